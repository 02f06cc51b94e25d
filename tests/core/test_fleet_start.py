"""When thousands of daemons start at once, each stores within a minute, and each gets its list of shards.

Each has a pipeline that aggregates, and one caller that sends rows from the start.  It reads its shards and its summary
when `producerd.core.reading_times` says, as `producerd.runtime.shard_watch` does.  The fake Kinesis answers ListShards
100 times a second, for the stream, and DescribeStreamSummary 20 times a second, for the account.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count, pairwise
from random import Random
from typing import Final

import orjson
import pytest

from producerd.core.budget import QueueBudget
from producerd.core.encoding.entries import encode
from producerd.core.pipeline import Pipeline
from producerd.core.rows import intake
from producerd.core.rows.frame import Frame
from producerd.core.rows.sorting import sort_rows
from producerd.core.sending.answers import parse_answer
from producerd.core.shards.reading_times import AWAITED_SECONDS, SummaryReadings
from producerd.core.shards.shard_map import map_from_listing
from producerd.runtime.stream import SUMMARY_PATIENCE_SECONDS
from producerd.testing import FakeKinesis, Fault
from producerd.wire.columns import lay_out
from tests.simulation.setting import ADDRESS, STREAM, make_body, make_rules
from tests.simulation.shard_watch import error_of

DAEMONS: Final = 2_000
SHARDS: Final = 2
QUOTAS: Final = {"ListShards": 100.0, "DescribeStreamSummary": 20.0}
ANSWER_SECONDS: Final = (0.01, 0.05)
ROWS: Final = lay_out([b"key %d" % row for row in range(8)], [b"x" * 100] * 8)


class Fleet:
    """All daemons, one stream, one clock."""

    def __init__(self, daemons: int = DAEMONS, *faults: Fault) -> None:
        self.now = 1_000.0
        self.began_at = self.now
        self.random = Random(1)
        self.kinesis = FakeKinesis(1)
        self.kinesis.calls_per_second = QUOTAS
        self.kinesis.standing += faults
        self.kinesis.create_stream(STREAM, SHARDS, now=self.now).keeps_entries = False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.daemons = [Daemon(self, number) for number in range(daemons)]

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), action))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until

    def call(self, action: str, body: bytes, answered: Callable[[int, bytes], None]) -> None:
        """Ask the service; its answer comes after a moment."""

        def arrives() -> None:
            reply = self.kinesis.handle(action, body, self.now)
            self.after(self.random.uniform(*ANSWER_SECONDS), lambda: answered(reply.status, bytes(reply.body)))

        self.after(self.random.uniform(*ANSWER_SECONDS), arrives)

    def throttled(self) -> int:
        return self.kinesis.replies["LimitExceededException"]


class Daemon:
    """One daemon, with a frame to store; `stored_at` says when that was."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet = fleet
        self.stored_at: float | None = None
        self.knows_summary = False
        self.listed_at: list[float] = []
        random = Random(number)
        self.pipeline = Pipeline(make_rules(aggregate=True), QueueBudget(1_000, 1 << 20), random)
        self._summaries = SummaryReadings(random)
        self._reads_shards = self._reading = False
        self._looks: set[float] = set()
        fleet.after(0.0, self._begin)

    def _begin(self) -> None:
        layout = ROWS.layout
        self.pipeline.budget.take(layout.records, layout.charge_bytes)
        rows = intake.check(make_body(ROWS), 1 << 20)
        self.pipeline.submit(Frame(self, 1, rows, layout.charge_bytes), self.fleet.now)
        self._describe()
        self.fleet.after(SUMMARY_PATIENCE_SECONDS, self._read_shards)
        self.pump()

    def finished(self) -> None:
        if self.pipeline.take_finished():
            self.stored_at = self.fleet.now

    def pump(self) -> None:
        """Do what can be done now, and look again when something is due."""
        fleet, pipeline = self.fleet, self.pipeline
        while (job := pipeline.take_job(fleet.now)) is not None:
            pipeline.sorted(job, [(job.frames, sort_rows(job.frames, job.shard_map, job.seed))])
        while (request := pipeline.take_request(fleet.now)) is not None:
            encoded = encode(ADDRESS, request.numbered, pipeline.rules.entries, request.aggregate_bytes)
            pipeline.encoded(request, encoded, fleet.now)

            def answered(_: int, body: bytes, request: object = request, entries: int = encoded.entries) -> None:
                pipeline.complete(request, parse_answer(body, entries), fleet.now)  # type: ignore[arg-type]
                self.finished()
                self.pump()

            fleet.call("PutRecords", bytes(encoded.body), answered)
        self._look()
        self._pump_at(pipeline.next_time())

    def _pump_at(self, due: float | None) -> None:
        if due is not None and due > self.fleet.now and due not in self._looks:
            self._looks.add(due)
            self.fleet.after(due - self.fleet.now, self.pump)

    # ---- as `producerd.runtime.shard_watch`

    def _read_shards(self) -> None:
        """The first map has waited for the summary long enough."""
        self._reads_shards = True
        self._look()

    def _look(self) -> None:
        if self._reading or not self._reads_shards:
            return
        fleet, pipeline = self.fleet, self.pipeline
        due = pipeline.next_reading()
        if due > fleet.now:
            self._pump_at(due)
            return
        self._reading = True
        pipeline.reading_began(fleet.now)
        self.listed_at.append(fleet.now)
        fleet.call("ListShards", orjson.dumps({**ADDRESS, "ShardFilter": {"Type": "AT_LATEST"}}), self._listed)

    def _listed(self, status: int, body: bytes) -> None:
        now = self.fleet.now
        self._reading = False
        if status == 200:
            self.pipeline.set_shard_map(map_from_listing([orjson.loads(body)]), now, self.listed_at[-1])
        else:
            self.pipeline.shard_map_failed(*error_of(body), now)
        self.pump()

    def _describe(self) -> None:
        self.fleet.call("DescribeStreamSummary", orjson.dumps(ADDRESS), self._described)

    def _described(self, status: int, _: bytes) -> None:
        self.pipeline.service_answered(self.fleet.now)
        self.knows_summary |= status == 200
        self.fleet.after(self._summaries.succeeded() if status == 200 else self._summaries.failed(), self._describe)
        self._read_shards()


@pytest.mark.promise("2000-daemons-start-once")
@pytest.mark.slow
def test_2000_daemons_that_start_at_once_all_store_within_a_minute_and_none_starves() -> None:
    fleet = Fleet()
    fleet.run(60)
    stored = [daemon.stored_at - fleet.began_at for daemon in fleet.daemons if daemon.stored_at is not None]
    assert len(stored) == DAEMONS
    assert all(daemon.pipeline.shard_map is not None for daemon in fleet.daemons), "and has the list"
    fleet.run(300)
    assert all(daemon.knows_summary for daemon in fleet.daemons)
    before = fleet.throttled()
    fleet.run(60)
    assert fleet.throttled() - before < DAEMONS / 100
    print(
        f"the last of {DAEMONS} stored after {max(stored):.1f} s, the median after {sorted(stored)[DAEMONS // 2]:.1f} s"
    )


def test_while_the_list_fails_for_a_fleet_each_stores_plain_and_it_is_asked_for_with_restraint() -> None:
    fleet = Fleet(100, failing := Fault("error", status=503, action="ListShards"))
    fleet.run(60)
    assert all(daemon.stored_at is not None for daemon in fleet.daemons)
    assert all(daemon.stored_at - fleet.began_at < 15 for daemon in fleet.daemons if daemon.stored_at is not None)
    for daemon in fleet.daemons:
        gaps = [later - earlier for earlier, later in pairwise(daemon.listed_at)]
        assert len(gaps) >= 3
        assert min(gaps[:2]) >= AWAITED_SECONDS[0], "while rows wait"
        assert len(gaps) <= 10, "and ever more rarely when they are stored"
    fleet.kinesis.standing.remove(failing)
    fleet.run(120)
    assert all(daemon.pipeline.shard_map is not None for daemon in fleet.daemons)
