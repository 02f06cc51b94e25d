"""Many daemons on one stream share its shards: together they use nearly all of the quota, and none starves.

Each pipeline runs in virtual time with all that a daemon has except sockets and threads.  The fake Kinesis enforces its
limits.  The daemons do not know of each other: a lane knows only which of its own entries were throttled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from producerd.core.budget import QueueBudget
from producerd.core.encoding.entries import encode
from producerd.core.pipeline import Pipeline
from producerd.core.rows import intake
from producerd.core.rows.frame import Frame
from producerd.core.rows.sorting import sort_rows
from producerd.core.sending.answers import Answer, parse_answer
from producerd.core.shards.shard_map import map_from_listing
from producerd.testing import FakeKinesis
from producerd.wire.columns import Columns, lay_out
from tests.simulation.setting import ADDRESS, STREAM, make_body, make_rules

PRODUCERS: Final = 25
SHARDS: Final = 2
SHARD_BYTES_PER_SECOND: Final = 1024 * 1024
QUEUE_BYTES: Final = 2 * 1024 * 1024
TICK_SECONDS: Final = 0.25


class Producer:
    """One daemon's pipeline, which is offered ``bytes_per_second`` and takes only what it has room for."""

    def __init__(self, fleet: Fleet, number: int, bytes_per_second: float) -> None:
        self.fleet = fleet
        self.random = Random(number)
        self.bytes_per_second = bytes_per_second
        self.stored_bytes = 0
        self.stored_records = 0
        self.stopped = False
        self._owed = self.random.uniform(0, bytes_per_second * TICK_SECONDS)
        self._frames = count(1)
        self._timer_at = 0.0
        self.budget = QueueBudget(1_000_000, fleet.queue_bytes)
        self.pipeline = Pipeline(make_rules(**fleet.rules), self.budget, self.random)
        self.pipeline.set_shard_map(fleet.shard_map, fleet.now)
        fleet.after(self.random.uniform(0, TICK_SECONDS), self.offer)

    def offer(self) -> None:
        if self.stopped:
            return
        self._owed += self.bytes_per_second * TICK_SECONDS
        while self._owed >= self.fleet.columns[0].layout.body_bytes:
            columns = self.random.choice(self.fleet.columns)
            self._owed -= columns.layout.body_bytes
            if self.budget.fits(columns.layout.records, columns.layout.charge_bytes):
                self.budget.take(columns.layout.records, columns.layout.charge_bytes)
                rows = intake.check(make_body(columns), 1 << 20)
                self.pipeline.submit(Frame(self, next(self._frames), rows, columns.layout.charge_bytes), self.fleet.now)
        self.pump()
        self.fleet.after(TICK_SECONDS, self.offer)

    def pump(self) -> None:
        fleet = self.fleet
        while True:
            if (job := self.pipeline.take_job(fleet.now)) is not None:
                self.pipeline.sorted(job, [(job.frames, sort_rows(job.frames, job.shard_map, job.seed))])
            elif not self._send():
                break
        self.pipeline.take_finished()
        due = self.pipeline.next_time()
        if due is not None and not fleet.now < self._timer_at <= due:
            self._timer_at = max(due, fleet.now + 1e-3)
            fleet.after(self._timer_at - fleet.now, self.pump)

    def _send(self) -> bool:
        fleet = self.fleet
        request = self.pipeline.take_request(fleet.now)
        if request is None:
            return False
        encoded = encode(ADDRESS, request.numbered, self.pipeline.rules.entries, request.aggregate_bytes)
        self.pipeline.encoded(request, encoded, fleet.now)

        def arrives() -> None:
            reply = fleet.kinesis.handle("PutRecords", encoded.body, fleet.now)
            answer = parse_answer(reply.body, encoded.entries)
            assert isinstance(answer, Answer)
            stored = answer.errors < 0
            self.stored_bytes += int(encoded.sizes[stored].sum())
            self.stored_records += int(np.diff(encoded.ends, prepend=0)[stored].sum())
            fleet.entries += encoded.entries
            fleet.throttled += int((~stored).sum())
            fleet.after(self.random.uniform(0.01, 0.025), lambda: completes(answer))

        def completes(answer: Answer) -> None:
            self.pipeline.complete(request, answer, fleet.now)
            self.pump()

        fleet.after(self.random.uniform(0.01, 0.025), arrives)
        return True


class Window(NamedTuple):
    """What was seen over some seconds: of what was possible, of the entries, and of a fair share."""

    used: float
    throttled: float
    least: float

    def __str__(self) -> str:
        return f"used {self.used:.1%} of what is possible, {self.throttled:.1%} throttled, least share {self.least:.2f}"


class Fleet:
    """All producers, one stream, one clock."""

    def __init__(
        self,
        load: float,
        *,
        producers: int = PRODUCERS,
        shards: int = SHARDS,
        record_bytes: int = 1_000,
        keys: int = 16_000,
        queue_bytes: int = QUEUE_BYTES,
        **rules: Any,
    ) -> None:
        self.now = 1_000.0
        self.load = load
        self.rules = {"aggregate": True} | rules
        self.queue_bytes = queue_bytes
        self.quota_bytes_per_second = shards * SHARD_BYTES_PER_SECOND
        self.kinesis = FakeKinesis(1)
        self.kinesis.enforce_limits = True
        self.kinesis.create_stream(STREAM, shards, now=self.now).keeps_entries = False
        listing = self.kinesis.streams[STREAM].describe_shards(self.now)
        self.shard_map = map_from_listing([{"Shards": [shard for _, shard in listing]}])
        self.entries = self.throttled = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        rows = 32_000 // record_bytes
        self.columns: list[Columns] = [  # enough keys to load all shards alike
            lay_out([b"key %06d" % ((frame * rows + row) % keys) for row in range(rows)], [b"x" * record_bytes] * rows)
            for frame in range(max(1, 16_000 // rows))
        ]
        self.bytes_per_second = load * self.quota_bytes_per_second / producers
        self.producers = [Producer(self, number, self.bytes_per_second) for number in range(producers)]

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), action))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until

    def restart(self, producers: int) -> None:
        """Stop this many producers at once, and start others in their place that have learnt nothing yet."""
        for place in range(producers):
            self.producers[place].stopped = True
            self.producers[place] = Producer(self, 1_000 + place, self.bytes_per_second)

    def watch(self, seconds: float) -> Window:
        before = [producer.stored_bytes for producer in self.producers]
        self.entries = self.throttled = 0
        self.run(seconds)
        stored = [producer.stored_bytes - start for producer, start in zip(self.producers, before, strict=True)]
        possible = min(self.load, 1.0) * self.quota_bytes_per_second * seconds
        return Window(sum(stored) / possible, self.throttled / self.entries, min(stored) * len(stored) / possible)


@pytest.mark.promise("fleet-shares-quota")
@pytest.mark.slow
@pytest.mark.law("Pacer")
@pytest.mark.parametrize(("load", "seconds"), [(0.5, 15), (1.0, 15), (3.0, 30)])
def test_a_fleet_shares_the_quota(load: float, seconds: int) -> None:
    """Watched as long as it had to settle: after its start, and after half of the fleet restarted at once."""
    fleet = Fleet(load)
    fleet.run(seconds)
    settled = fleet.watch(seconds)
    fleet.restart(PRODUCERS // 2)
    fleet.run(seconds)
    again = fleet.watch(seconds)
    for window in (settled, again):
        told = f"at {load} times the quota: {settled}; after the restart: {again}"
        assert window.used >= 0.9, told
        assert window.throttled < 0.05, told
        assert window.least >= 1 / 3, told


@pytest.mark.promise("order-per-key-costs")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("aggregate", "record_bytes", "keys", "least", "most"),
    [
        (False, 1_000, 16_000, 950, 1_001),
        (False, 1_000, 100, 500, 900),
        (False, 1_000, 4, 15, 60),
        (True, 1_000, 16_000, 950, 1_100),
        (True, 100, 16_000, 8_000, 10_000),
        (True, 1_000, 4, 150, 1_100),
    ],
)
def test_what_the_order_per_key_costs(aggregate: bool, record_bytes: int, keys: int, least: int, most: int) -> None:
    """One daemon on 4 shards with more to send than they take; an answer takes 20 to 50 ms."""
    alone = {"producers": 1, "shards": 4, "queue_bytes": 16 << 20}
    fleet = Fleet(2.0, **alone, record_bytes=record_bytes, keys=keys, aggregate=aggregate, per_key=True)
    fleet.run(5)
    before = fleet.producers[0].stored_records
    fleet.run(8)
    records_per_second = (fleet.producers[0].stored_records - before) / 8 / 4
    print(f"aggregate={aggregate}, {record_bytes} B, {keys} keys: {records_per_second:.0f} records/s a shard")
    assert least <= records_per_second <= most
