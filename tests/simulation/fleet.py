"""Daemons that share one stream in virtual time, each with all of a daemon except sockets and threads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random

import numpy as np

from producerd.core.budget import QueueBudget
from producerd.core.encoding.entries import encode
from producerd.core.pipeline import Pipeline
from producerd.core.rows import intake
from producerd.core.rows.frame import Frame
from producerd.core.rows.sorting import sort_rows
from producerd.core.rules import PipelineRules
from producerd.core.sending.answers import Answer, parse_answer
from producerd.core.sending.requests import Request
from producerd.testing import FakeKinesis
from producerd.wire.columns import Columns
from tests.simulation.events import Events
from tests.simulation.setting import ADDRESS, STREAM, make_body


class Service(Events):
    """One stream.  ``one_way_seconds``: how long a request or an answer is on its way."""

    def __init__(self, shards: int, one_way_seconds: tuple[float, float]) -> None:
        super().__init__()
        self.random = Random(1)
        self.one_way_seconds = one_way_seconds
        self.kinesis = FakeKinesis(1)
        self.stream = self.kinesis.create_stream(STREAM, shards, now=self.now)
        self.stream.keeps_entries = False

    def call(self, action: str, body: bytes, answered: Callable[[int, bytes], None]) -> None:
        def arrives() -> None:
            reply = self.kinesis.handle(action, body, self.now)
            self.after(self.random.uniform(*self.one_way_seconds), lambda: answered(reply.status, bytes(reply.body)))

        self.after(self.random.uniform(*self.one_way_seconds), arrives)


class Node:
    """One daemon."""

    def __init__(self, service: Service, number: int, rules: PipelineRules, queue_bytes: int) -> None:
        self.service = service
        self.random = Random(number)
        self.pipeline = Pipeline(rules, QueueBudget(1_000_000, queue_bytes), self.random)
        self.entries = self.throttled = 0
        self.stored_records = self.stored_bytes = 0
        self.acknowledged_at: float | None = None  # its first frame
        self._frames = count(1)
        self._pumps_at = 0.0

    def offer(self, columns: Columns) -> None:
        """Take a frame if there is room for it."""
        layout, budget = columns.layout, self.pipeline.budget
        if budget.fits(layout.records, layout.charge_bytes):
            budget.charge(layout.records, layout.charge_bytes)
            rows = intake.check(make_body(columns), 1 << 20)
            self.pipeline.submit(Frame(self, next(self._frames), rows, layout.charge_bytes), self.service.now)

    def pump(self) -> None:
        """Do what can be done now, and again when something is due."""
        pipeline, now = self.pipeline, self.service.now
        while True:
            if (job := pipeline.take_job(now)) is not None:
                pipeline.sorted(job, [(job.frames, sort_rows(job.frames, job.shard_map, job.seed))])
            elif (request := pipeline.take_request(now)) is not None:
                self._send(request)
            else:
                break
        if pipeline.take_finished() and self.acknowledged_at is None:
            self.acknowledged_at = now
        if (due := pipeline.next_time()) is not None:
            self.pump_at(due)

    def pump_at(self, due: float) -> None:
        now = self.service.now
        if not now < self._pumps_at <= due:
            self._pumps_at = max(due, now + 1e-3)
            self.service.after(self._pumps_at - now, self.pump)

    def _send(self, request: Request) -> None:
        rules = self.pipeline.rules.entries
        encoded = encode(ADDRESS, request.numbered, rules, request.aggregate_bytes)
        self.pipeline.encoded(request, encoded, self.service.now)

        def answered(_: int, body: bytes) -> None:
            answer = parse_answer(body, encoded.entries)
            if isinstance(answer, Answer):
                stored = answer.errors < 0
                self.entries += encoded.entries
                self.throttled += int((~stored).sum())
                self.stored_bytes += int(encoded.sizes[stored].sum())
                self.stored_records += int(np.diff(encoded.ends, prepend=0)[stored].sum())
            self.pipeline.complete(request, answer, self.service.now)
            self.pump()

        self.service.call("PutRecords", bytes(encoded.body), answered)
