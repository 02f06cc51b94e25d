"""A whole stream in virtual time: whatever fails, every accepted row ends once, and what is acknowledged can be read.

The starred laws of docs/architecture.md are checked after every step (`Simulation.check`).
"""

from __future__ import annotations

from random import Random

import pytest

from producerd.errors import Outcome
from producerd.testing import Fault
from tests.simulation import Session, Simulation, make_rules

STARRED = [pytest.mark.law(owner) for owner in ("QueueBudget", "Frame", "Row", "Lane", "Pipeline")]
pytestmark = STARRED

REGRESSIONS: tuple[int, ...] = ()
"""Seeds that failed once."""
SEEDS = (*range(160), *REGRESSIONS)

FAULTS = (
    Fault("throttle", fraction=0.3),
    Fault("throttle", fraction=1.0, shard_id="shardId-000000000000"),
    Fault("fail", fraction=0.2),
    Fault("error", fraction=0.2),
    Fault("error", fraction=0.2, status=400),
    Fault("error", fraction=0.05, status=400, code="ValidationException", message="1 validation error detected"),
    Fault("reset", fraction=0.2),
    Fault("lost", fraction=0.2),
    Fault("hang", fraction=0.05),
    Fault("failed_count", fraction=0.3, count=7),
)


class Story:
    """One seed: some sessions send, cancel, flush and vanish while the service fails and its shards split."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        rules = make_rules(
            aggregate=bool(seed % 2),
            aggregate_max_bytes=random.choice([300, 51_200]),
            request_max_bytes=random.choice([4_096, 1 << 20]),
            request_max_records=random.choice([5, 500]),
            max_in_flight_requests=random.choice([1, 24]),
            linger_seconds=random.choice([0.01, 0.1, 2.0]),
        )
        self.sim = Simulation(
            seed,
            rules=rules,
            limit_records=random.choice([1, 10, 1_000, 100_000]),
            limit_bytes=random.choice([20_000, 1 << 20, 64 << 20]),
            shards=random.choice([1, 4, 16]),
            workers=random.choice([1, 2]),
        )
        self.sim.kinesis.latency_seconds = (0.001, 0.2)
        self.sim.kinesis.standing += [fault for fault in FAULTS if random.random() < 0.2]
        # One result too few and one too many in the same answer is a lie that nobody could see.
        self.sim.kinesis.standing.append(Fault("miscount", fraction=0.1, count=random.choice([-1, 1, 3])))
        self.sim.stream.list_shards_lag_seconds = random.choice([0.0, 1.0])
        self.sessions = [self.sim.session() for _ in range(random.randint(1, 5))]
        self.rows = 0

    def run(self) -> None:
        random, sim = self.random, self.sim
        for _ in range(12):
            for session in self.sessions:
                if not session.gone and len(session.waiting) < 4:
                    self._send(session)
            if random.random() < 0.2:
                sim.after(random.uniform(0, 0.5), self._split)
            sim.run(random.uniform(0, 0.3))
        # A fault that always hits one shard would hold its rows for ever, as it should.
        sim.after(5.0, lambda: self._mend())
        sim.run_until_idle(3_600)

    def _mend(self) -> None:
        self.sim.kinesis.standing = [fault for fault in self.sim.kinesis.standing if fault.fraction < 1.0]

    def _send(self, session: Session) -> None:
        random, sim = self.random, self.sim
        frame_id = session.send(self._rows())
        if random.random() < 0.1:
            sim.after(random.uniform(0, 1), lambda: None if session.gone else session.cancel(frame_id))
        if random.random() < 0.02:
            sim.after(random.uniform(0, 1), lambda: None if session.gone else session.vanish())
        if random.random() < 0.3:
            sim.pipeline.flush(session)

    def _rows(self) -> list[tuple[bytes, bytes]]:
        random = self.random
        max_bytes, max_records = self.sim.gate.largest_frame
        rows: list[tuple[bytes, bytes]] = []
        charge = 1_024
        for _ in range(random.randint(1, min(max_records, 120))):
            key = random.choice([b"", b"k%d" % random.randint(0, 50)])
            data = b"%d:" % self.rows + b"x" * random.choice([0, 10, 100, 2_000])
            charge += len(key) + len(data) + 32
            if rows and charge > max_bytes:
                break
            self.rows += 1
            rows.append((key, data))
        return rows

    def _split(self) -> None:
        stream = self.sim.stream
        if len(stream.open_shards) < 20:
            stream.split_shard(self.random.choice(stream.open_shards).shard_id, now=self.sim.now)

    def check(self) -> None:
        sim = self.sim
        sim.run(10.0)  # delays and hold-offs of rows that have no caller any more
        sim.check_acknowledged()
        assert (sim.budget.used_records, sim.budget.used_bytes) == (0, 0)
        assert (sim.pipeline.requests_in_flight, sim.pipeline.in_flight_bytes) == (0, 0)
        assert sim.pipeline.next_time() is None
        assert sim.pipeline.take_request(sim.now) is None
        open_shards = {shard.shard_id for shard in sim.pipeline.shard_map.shards} if sim.pipeline.shard_map else {""}
        assert {lane.shard.shard_id for lane in sim.pipeline.sender.lanes} <= open_shards
        assert not any(lane.queued or lane.in_flight or lane.spans for lane in sim.pipeline.sender.lanes)
        for session in self.sessions:
            if not session.gone:
                assert session.accepted == set(session.acked)
                assert sum(result.records for result in session.acked.values()) == sum(
                    len(session.rows[frame_id]) for frame_id in session.accepted
                )


@pytest.mark.parametrize("seed", SEEDS)
def test_every_accepted_row_ends_once_and_every_row_that_is_acknowledged_can_be_read(seed: int) -> None:
    story = Story(seed)
    story.run()
    story.check()


def test_the_stories_together_meet_every_kind_of_failure() -> None:
    """Else the test above shows less than it says."""
    met: set[str] = set()
    outcomes: set[Outcome] = set()
    for seed in range(24):
        story = Story(seed)
        story.run()
        stats = story.sim.pipeline.stats
        met |= {kind for kind, count in story.sim.kinesis.replies.items() if count}
        met |= {"throttled"} if stats.throttled_records else set()
        met |= {"mispredicted"} if stats.shard_mispredictions else set()
        met |= {"vanished"} if stats.discarded_records["disconnected"] else set()
        met |= {"duplicates"} if stats.possible_duplicate_records else set()
        met |= {"cancelled"} if any(len(s.rows) > len(s.accepted | s.waiting.keys()) for s in story.sessions) else set()
        outcomes |= {outcome for outcome, count in story.sim.outcomes().items() if count}
    assert met >= {"ok", "reset", "lost", "hang", "throttled", "mispredicted", "vanished", "duplicates", "cancelled"}
    assert {Outcome.STORED, Outcome.UNKNOWN} <= outcomes


@pytest.mark.parametrize("seed", range(8))
def test_without_failures_every_row_is_stored_exactly_once(seed: int) -> None:
    story = Story(seed)
    story.sim.kinesis.standing.clear()
    story._split = lambda: None  # type: ignore[method-assign]
    story.run()
    story.check()
    assert set(story.sim.stored().values()) == {1}
    assert story.sim.pipeline.stats.retried_records == 0


@pytest.mark.parametrize("aggregate", [False, True])
def test_a_drain_in_the_middle_of_it_all_ends_every_row(aggregate: bool) -> None:
    for seed in range(12):
        story = Story(seed * 2 + aggregate)
        sim = story.sim
        for _ in range(5):
            for session in story.sessions:
                if not session.gone:
                    story._send(session)
            sim.run(0.05)
        sim.pipeline.drain()
        for session in story.sessions:
            for frame_id in [*session.waiting]:
                session.cancel(frame_id)
        story._mend()
        sim.run_until_idle(3_600)
        story.check()
        for session in story.sessions:
            for result in session.acked.values():
                assert result.not_stored == 0


@pytest.mark.law("RetryPolicy")
@pytest.mark.parametrize("kind", ["reset", "hang", "error"])
def test_an_outage_is_outlived_with_few_requests(kind: str) -> None:
    sim = Simulation(1)
    sim.kinesis.latency_seconds = 0.005
    sim.kinesis.standing.append(Fault(kind))  # type: ignore[arg-type]
    session = sim.session()
    for i in range(20):
        session.send([(b"k%d" % row, b"%d/%d" % (i, row)) for row in range(400)])
    sim.run(300.0)
    assert sim.kinesis.requests["PutRecords"] < 24 + 300
    sim.kinesis.standing.clear()
    sim.run_until_idle(120)
    assert sim.outcomes()[Outcome.STORED] == 8_000
    sim.check_acknowledged()


@pytest.mark.law("RetryPolicy")
@pytest.mark.parametrize("code", ["ResourceNotFoundException", "ValidationException"])
def test_a_stream_that_worked_and_is_refused_now_is_asked_seldom(code: str) -> None:
    """Whether the service refuses requests as a whole, or one entry after another."""
    sim = Simulation(4)
    sim.kinesis.latency_seconds = 0.005
    session = sim.session()
    session.send([(b"k", b"first")])
    sim.run_until_idle()
    sim.kinesis.requests.clear()
    sim.kinesis.standing.append(Fault("error", status=400, code=code, message="not today"))
    for i in range(20):
        session.send([(b"k%d" % row, b"%d/%d" % (i, row)) for row in range(400)])
    sim.run(50.0)
    assert sim.kinesis.requests["PutRecords"] < 200 + 50
    assert sim.outcomes()[Outcome.NOT_STORED] < 400, "it has a grace of a minute"


def test_a_throttled_shard_does_not_delay_the_rows_of_another() -> None:
    sim = Simulation(2, shards=4)
    sim.kinesis.latency_seconds = 0.01
    sim.kinesis.standing.append(Fault("throttle", shard_id="shardId-000000000000"))
    session = sim.session()
    for i in range(10):
        session.send([(b"k%d" % row, b"%d/%d" % (i, row)) for row in range(200)])
    sim.run(1.0)
    stored = sim.pipeline.stats.delivered_records
    assert stored == sum(len(shard.entries) for shard in sim.stream.shards[1:])
    assert stored > 1_200, "three quarters of 2,000, within a second"
    assert sim.pipeline.queued_records == 2_000 - stored


def test_a_shard_that_limits_is_filled_and_not_flooded() -> None:
    """1,000 records a second each: 8,000 rows to 4 shards take about a second more than the first burst."""
    sim = Simulation(3, shards=4)
    sim.kinesis.latency_seconds = 0.01
    sim.kinesis.enforce_limits = True
    session = sim.session()
    for i in range(20):
        session.send([(b"k%d" % row, b"%d/%d" % (i, row)) for row in range(400)])
    start = sim.now
    sim.run_until_idle(60)
    assert sim.now - start < 15
    assert sim.outcomes()[Outcome.STORED] == 8_000
