"""Many daemons on one stream share it, and thousands that start at once do not keep each other from starting.

The daemons do not know of each other: a lane knows only which of its own entries were throttled.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple

import orjson
import pytest

from producerd.core.shards.reading_times import AWAITED_SECONDS, SummaryReadings
from producerd.core.shards.shard_map import map_from_listing
from producerd.runtime.stream import SUMMARY_PATIENCE_SECONDS
from producerd.testing import Fault
from producerd.wire.columns import Columns, lay_out
from tests.simulation.fleet import Node, Service
from tests.simulation.setting import ADDRESS, make_rules
from tests.simulation.shard_watch import error_of

SHARD_BYTES_PER_SECOND: Final = 1024 * 1024

# ---- the shards' quota


class Producer(Node):
    """A daemon that is offered ``bytes_per_second`` and takes only what it has room for."""

    TICK_SECONDS: Final = 0.25

    def __init__(self, fleet: ProducerFleet, number: int) -> None:
        super().__init__(fleet, number, fleet.rules, fleet.queue_bytes)
        self.fleet = fleet
        self.stopped = False
        self._owed = self.random.uniform(0, fleet.bytes_per_second * self.TICK_SECONDS)
        self.pipeline.set_shard_map(fleet.shard_map, fleet.now)
        fleet.after(self.random.uniform(0, self.TICK_SECONDS), self.tick)

    def tick(self) -> None:
        if self.stopped:
            return
        self._owed += self.fleet.bytes_per_second * self.TICK_SECONDS
        while self._owed >= self.fleet.columns[0].layout.body_bytes:
            columns = self.random.choice(self.fleet.columns)
            self._owed -= columns.layout.body_bytes
            self.offer(columns)
        self.pump()
        self.fleet.after(self.TICK_SECONDS, self.tick)


class Window(NamedTuple):
    """What was seen over some seconds: of what was possible, of the entries, and of a fair share."""

    used: float
    throttled: float
    least: float

    def __str__(self) -> str:
        return f"used {self.used:.1%} of what is possible, {self.throttled:.1%} throttled, least share {self.least:.2f}"


class ProducerFleet(Service):
    """All producers of a stream that enforces its limits.  ``load``: of the shards' quota that is offered."""

    def __init__(
        self, load: float, *, producers: int, shards: int, queue_bytes: int, record_bytes: int, keys: int, **rules: Any
    ) -> None:
        super().__init__(shards, (0.01, 0.025))
        self.load = load
        self.rules = make_rules(**rules)
        self.queue_bytes = queue_bytes
        self.quota_bytes_per_second = shards * SHARD_BYTES_PER_SECOND
        self.bytes_per_second = load * self.quota_bytes_per_second / producers
        self.kinesis.enforce_limits = True
        listing = self.stream.describe_shards(self.now)
        self.shard_map = map_from_listing([{"Shards": [shard for _, shard in listing]}])
        rows = 32_000 // record_bytes
        self.columns: list[Columns] = [  # enough keys to load all shards alike
            lay_out([b"key %06d" % ((frame * rows + row) % keys) for row in range(rows)], [b"x" * record_bytes] * rows)
            for frame in range(max(1, 16_000 // rows))
        ]
        self.producers = [Producer(self, number) for number in range(producers)]

    def restart(self, producers: int) -> None:
        """Stop this many producers at once, and start others in their place that have learnt nothing yet."""
        for place in range(producers):
            self.producers[place].stopped = True
            self.producers[place] = Producer(self, 1_000 + place)

    def watch(self, seconds: float) -> Window:
        before = [(each.stored_bytes, each.entries, each.throttled) for each in self.producers]
        self.run(seconds)
        after = [(each.stored_bytes, each.entries, each.throttled) for each in self.producers]
        stored, entries, throttled = zip(
            *[[a - b for a, b in zip(*pair, strict=True)] for pair in zip(after, before, strict=True)], strict=True
        )
        possible = min(self.load, 1.0) * self.quota_bytes_per_second * seconds
        return Window(sum(stored) / possible, sum(throttled) / sum(entries), min(stored) * len(stored) / possible)


@pytest.mark.promise("fleet-shares-quota")
@pytest.mark.slow
@pytest.mark.law("Pacer")
@pytest.mark.parametrize(
    ("load", "settles", "settles_again", "watched"), [(0.5, 3, 3, 5), (1.0, 5, 5, 5), (3.0, 10, 30, 15)]
)
def test_a_fleet_shares_the_quota(load: float, settles: int, settles_again: int, watched: int) -> None:
    """Watched after its start, and after half of the fleet restarted at once."""
    fleet = ProducerFleet(
        load, producers=25, shards=2, queue_bytes=2 << 20, record_bytes=2_000, keys=16_000, aggregate=True
    )
    fleet.run(settles)
    settled = fleet.watch(watched)
    fleet.restart(12)
    fleet.run(settles_again)
    again = fleet.watch(watched)
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
        (False, 1_000, 16_000, 950, 1_026),  # a tenth of a second's more, because all lanes send together
        (False, 1_000, 100, 500, 900),
        (False, 1_000, 4, 15, 60),
        (True, 1_000, 16_000, 950, 1_100),
        (True, 100, 16_000, 8_000, 10_000),
        (True, 1_000, 4, 150, 1_100),
    ],
)
def test_what_the_order_per_key_costs(aggregate: bool, record_bytes: int, keys: int, least: int, most: int) -> None:
    """One daemon on 4 shards with more to send than they take; an answer takes 20 to 50 ms."""
    of_one = {"producers": 1, "shards": 4, "queue_bytes": 16 << 20}
    fleet = ProducerFleet(2.0, **of_one, record_bytes=record_bytes, keys=keys, aggregate=aggregate, per_key=True)
    fleet.run(3)
    before = fleet.producers[0].stored_records
    fleet.run(4)
    records_per_second = (fleet.producers[0].stored_records - before) / 4 / 4
    print(f"aggregate={aggregate}, {record_bytes} B, {keys} keys: {records_per_second:.0f} records/s a shard")
    assert least <= records_per_second <= most


# ---- the start


class StartingNode(Node):
    """A daemon with one frame to store.  It reads its summary and its shards as `producerd.runtime.stream` does."""

    ROWS: Final = lay_out([b"key %d" % row for row in range(8)], [b"x" * 100] * 8)

    def __init__(self, service: Service, number: int) -> None:
        super().__init__(service, number, make_rules(aggregate=True), 1 << 20)
        self.knows_summary = False
        self.listed_at: list[float] = []
        self._summaries = SummaryReadings(self.random)
        self._reads_shards = self._reading = False
        service.after(0.0, self.begin)

    def begin(self) -> None:
        self.offer(self.ROWS)
        self._describe()
        self.service.after(SUMMARY_PATIENCE_SECONDS, self._read_shards)
        self.pump()

    def pump(self) -> None:
        super().pump()
        if self._reads_shards and not self._reading:
            self._look()

    def _read_shards(self) -> None:
        """The first map has waited for the summary long enough."""
        self._reads_shards = True
        self.pump()

    def _look(self) -> None:
        now, due = self.service.now, self.pipeline.next_reading()
        if due > now:
            self.pump_at(due)
            return
        self._reading = True
        self.pipeline.reading_began(now)
        self.listed_at.append(now)
        body = orjson.dumps({**ADDRESS, "ShardFilter": {"Type": "AT_LATEST"}})
        self.service.call("ListShards", body, self._listed)

    def _listed(self, status: int, body: bytes) -> None:
        now = self.service.now
        self._reading = False
        if status == 200:
            self.pipeline.set_shard_map(map_from_listing([orjson.loads(body)]), now, self.listed_at[-1])
        else:
            self.pipeline.shard_map_failed(*error_of(body), now)
        self.pump()

    def _describe(self) -> None:
        self.service.call("DescribeStreamSummary", orjson.dumps(ADDRESS), self._described)

    def _described(self, status: int, _: bytes) -> None:
        self.pipeline.service_answered(self.service.now)
        self.knows_summary |= status == 200
        seconds = self._summaries.succeeded() if status == 200 else self._summaries.summary_failed()
        self.service.after(seconds, self._describe)
        self._read_shards()


def starting(daemons: int) -> tuple[Service, list[StartingNode]]:
    """ListShards is answered 100 times a second for the stream, DescribeStreamSummary 20 times for the account."""
    service = Service(2, (0.01, 0.05))
    service.kinesis.calls_per_second = {"ListShards": 100.0, "DescribeStreamSummary": 20.0}
    return service, [StartingNode(service, number) for number in range(daemons)]


@pytest.mark.promise("2000-daemons-start-once")
@pytest.mark.slow
def test_2000_daemons_that_start_at_once_all_store_within_a_minute_and_none_starves() -> None:
    service, daemons = starting(2_000)
    service.run(60)
    assert all(daemon.acknowledged_at is not None for daemon in daemons)
    assert all(daemon.pipeline.shard_map is not None for daemon in daemons), "and has the list"
    service.run(300)
    assert all(daemon.knows_summary for daemon in daemons)
    before = service.kinesis.replies["LimitExceededException"]
    service.run(60)
    assert service.kinesis.replies["LimitExceededException"] - before < len(daemons) / 100


def test_while_the_list_fails_for_a_fleet_each_stores_plain_and_it_is_asked_for_with_restraint() -> None:
    service, daemons = starting(100)
    service.kinesis.standing.append(failing := Fault("error", status=503, action="ListShards"))
    began_at = service.now
    service.run(60)
    for daemon in daemons:
        assert daemon.acknowledged_at is not None
        assert daemon.acknowledged_at - began_at < 15
        gaps = [later - earlier for earlier, later in pairwise(daemon.listed_at)]
        assert len(gaps) >= 3
        assert min(gaps[:2]) >= AWAITED_SECONDS[0], "while rows wait"
        assert len(gaps) <= 10, "and ever more rarely when they are stored"
    service.kinesis.standing.remove(failing)
    service.run(120)
    assert all(daemon.pipeline.shard_map is not None for daemon in daemons)
