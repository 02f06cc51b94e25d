"""Helpers that make aggregates as callers make them, and a pipeline with a service that stores them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from producerd.core.kpl.aggregation import Aggregate, InnerRecord
from producerd.core.rows import intake
from producerd.core.rows.frame import Frame
from producerd.core.sending.answers import parse_answer
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.testing import FakeKinesis, FakeStream
from producerd.wire.columns import FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES, lay_out
from tests.core.stories import Desk, Sent
from tests.simulation.setting import STREAM, make_body

Users = list[InnerRecord]


def aggregate_of(users: Users) -> bytes:
    aggregate = Aggregate()
    for user in users:
        aggregate.try_add(*user, limit_bytes=2**40)
    return aggregate.to_bytes()


def body_of(payloads: list[bytes]) -> Any:
    return make_body(lay_out([b"outer"] * len(payloads), list(payloads)))


class Service:
    """A pipeline in `kpl` mode in front of the fake Kinesis, whose stream is read by the consumer's rule."""

    def __init__(self, shards: int = 4, **rules: Any) -> None:
        self.kinesis = FakeKinesis(1)
        self.stream: FakeStream = self.kinesis.create_stream(STREAM, shards)
        self.desk = Desk(self.map(), **{"aggregate": True} | rules)

    def map(self) -> ShardMap:
        return ShardMap(Shard(shard.shard_id, shard.start, shard.end) for shard in self.stream.open_shards)

    def submit(self, payloads: list[bytes], owner: object = "caller", *, take_good: bool = False) -> Frame:
        desk = self.desk
        rows = intake.check(body_of(payloads), 1 << 20, takes_aggregates=True)
        assert take_good or not rows.bad
        desk.ids += 1
        charge = FRAME_CHARGE_BYTES + RECORD_CHARGE_BYTES * len(payloads) + len(rows.keys) + len(rows.data)
        desk.budget.charge(len(payloads), charge)
        frame = Frame(owner, desk.ids, rows, charge, takes_good=take_good)
        frame.end_bad_rows()
        desk.pipeline.submit(frame, desk.now)
        desk.sort()
        return frame

    def answer(self, sent: Sent) -> None:
        reply = self.kinesis.handle("PutRecords", sent.encoded.body, self.desk.now)
        self.desk.pipeline.complete(sent.request, parse_answer(reply.body, len(sent.entries)), self.desk.now)

    def deliver(self, *frames: Frame) -> None:
        """Turn after turn, each a second; the map is read when it is wanted."""
        for _ in range(300):
            for sent in self.desk.send_all():
                self.answer(sent)
            if all(frame.finished for frame in frames):
                return
            if self.desk.pipeline.wants_shard_map:
                self.desk.pipeline.set_shard_map(self.map(), self.desk.now)
            self.desk.now += 1.0
        pytest.fail("rows were lost")

    def read(self) -> Counter[tuple[str, bytes]]:
        return Counter((record.partition_key, record.data) for record in self.stream.read().records)
