"""A stream whose rows stay for long logs one line, which names the cause."""

from __future__ import annotations

import asyncio
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from producerd.config import StreamSettings
from producerd.core.budget import NodeBudget, QueueBudget
from producerd.core.gate import Refusal, Ticket
from producerd.core.holding import Holding
from producerd.core.rows import intake
from producerd.core.rows.frame import Frame
from producerd.core.rows.sorting import sort_rows
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.shard_map import ONE_LANE, Shard, ShardMap
from producerd.errors import Code
from producerd.runtime import commands
from producerd.runtime.stream import Stream
from producerd.wire import columns
from producerd.wire.columns import lay_out
from tests.daemon import rows
from tests.simulation.setting import make_body


class Owner:
    """A caller that takes every answer."""

    def __init__(self) -> None:
        self.receives = True
        self.grants = 0
        self.refusals: list[str] = []

    def finished(self, frame: Frame) -> None:
        pass

    def may_receive(self, charge_bytes: int) -> bool:
        return self.receives

    def granted(self, ticket: Ticket) -> None:
        self.grants += 1

    def refused(self, ticket: Ticket, refusal: Refusal) -> None:
        self.refusals.append(refusal.code)


def with_a_frame(records: int = 100, *, node: NodeBudget | None = None, **settings: Any) -> tuple[Stream, Owner]:
    """A stream whose rows nobody sends, since the time 0."""
    stream, owner = Stream("flights", StreamSettings(**settings), 1 << 20, 10_000, node), Owner()
    stream.pipeline.set_shard_map(ShardMap([Shard("shard-0", 0, MAX_HASH_KEY)]), 0.0)
    frame = rows(records)
    parts = b"".join((frame.body_prefix(1), *map(bytes, frame.parts)))
    checked = intake.check(columns.parse_body(parts, frame.layout.flags), 1 << 20)
    stream.budget.take(records, frame.layout.charge_bytes)
    stream.pipeline.submit(Frame(owner, 1, checked, frame.layout.charge_bytes), 0.0)
    return stream, owner


def told_at(stream: Stream, times: list[float]) -> dict[float, dict[str, Any]]:
    """Return the warnings by the time at which the stream logged them."""
    told: dict[float, dict[str, Any]] = {}
    for now in times:
        with structlog.testing.capture_logs() as log:
            stream.settle(now)
        for line in log:
            if line["log_level"] == "warning":
                told[now] = dict(line)
    return told


def test_a_record_that_stays_for_half_a_minute_is_told_and_again_every_five_minutes() -> None:
    stream, _ = with_a_frame()
    told = told_at(stream, [float(second) for second in range(700)])
    assert list(told) == [30.0, 330.0, 630.0]
    assert told[30.0]["event"] == "stream is slow"
    assert told[30.0]["stream"] == "flights"
    assert told[30.0]["oldest_record_seconds"] == 30
    assert "100 of 1000000 records" in told[30.0]["why"]


@pytest.mark.parametrize(
    ("holding", "aggregation", "add_shards", "aggregate"),
    [
        (Holding("shard_rate", by_records=True), "none", True, True),
        (Holding("shard_rate", by_records=False), "none", True, False),
        (Holding("shard_rate", by_records=True), "kpl", True, False),
        (Holding("hot_shard", "shard-0", 0.9, by_records=True), "none", False, False),
    ],
)
def test_where_all_shards_are_full_the_advice_is_to_add_shards_or_to_aggregate_small_records(
    monkeypatch: pytest.MonkeyPatch, holding: Holding, aggregation: str, add_shards: bool, aggregate: bool
) -> None:
    stream, _ = with_a_frame(aggregation=aggregation)
    monkeypatch.setattr(stream.pipeline, "holding", lambda _now: holding)
    why = stream.describe(1.0)
    assert ("add shards" in why) is add_shards
    assert ('aggregation = "kpl" would send up to' in why) is aggregate
    assert ("spread its keys" in why) is not add_shards


def test_callers_that_wait_again_and_again_are_told_too() -> None:
    """None of them for long; the queue's one record is never older than a second."""
    stream, owner = with_a_frame(queue_limit=100)
    member = stream.gate.join(owner)
    told: dict[float, dict[str, Any]] = {}
    for second in range(100):
        waiting = stream.gate.ask(member, second, rows(50).layout, float(second))
        next(iter(stream.pipeline.ledger.frames)).accepted_at = float(second)
        told |= told_at(stream, [second + 0.25, second + 0.75])
        stream.gate.cancel(waiting, second + 0.8)
    (line,) = told.values()
    assert line["callers_waited_seconds"] >= 30
    assert line["oldest_record_seconds"] <= 1


def test_callers_that_seldom_wait_are_not_told_however_long_that_goes_on() -> None:
    stream, owner = with_a_frame(queue_limit=100)
    member = stream.gate.join(owner)
    for second in range(200):
        waiting = stream.gate.ask(member, second, rows(50).layout, float(second))
        next(iter(stream.pipeline.ledger.frames)).accepted_at = float(second)
        assert not told_at(stream, [second + 0.25])
        stream.gate.cancel(waiting, second + 0.25)
    assert stream.gate.active_seconds(200.0) == 50.0


def test_rows_that_flow_are_not_told() -> None:
    stream, _ = with_a_frame()
    assert not told_at(stream, [1.0, 10.0, 29.0])
    stream.pipeline.press(29.0)
    job = stream.pipeline.take_job(29.0)
    assert job is not None
    stream.pipeline.sorted(job, [(job.frames, sort_rows(job.frames, job.shard_map, job.seed))])
    stream.pipeline.abandon()
    assert not told_at(stream, [31.0, 400.0])
    assert stream.pipeline.oldest_seconds(400.0) == 0.0


# ---- what holds a caller


def test_a_caller_that_waits_only_for_the_nodes_limit_has_a_cause_of_its_own() -> None:
    node = NodeBudget(100_000, 1_000)
    stream, owner = with_a_frame(node=node)
    other = QueueBudget(10**6, 10**6, node)
    other.take(1, 100_000 - node.used_bytes)
    member = stream.gate.join(owner)
    ticket = stream.gate.ask(member, 2, rows(50).layout, 10.0)
    stream.settle(10.0)
    stream.settle(12.0)
    assert stream.cause_seconds["node_limit"] == 2.0
    assert "node_queue_limit_bytes = 100,000" in stream.describe(12.0)
    assert stream.status(12.0)["cause"] == "node_limit"
    other.release(0, 50_000)
    stream.settle(13.0)
    assert owner.grants == 1
    assert stream.cause_seconds["node_limit"] == 3.0
    stream.gate.cancel(ticket, 13.0)
    stream.settle(14.0)
    assert (stream.cause_seconds["node_limit"], stream.status(14.0)["cause"]) == (3.0, "daemon")


def test_a_stream_without_a_row_waits_for_the_node_too() -> None:
    node = NodeBudget(100_000, 1_000)
    stream, owner = Stream("flights", StreamSettings(), 1 << 20, 10_000, node), Owner()
    other = QueueBudget(10**6, 10**6, node)
    other.take(1, 100_000)
    member = stream.gate.join(owner)
    stream.gate.ask(member, 1, rows(50).layout, 0.0)
    stream.settle(0.0)
    stream.settle(5.0)
    assert stream.cause_seconds == {"daemon": 0.0, "node_limit": 5.0}
    assert stream.status(5.0)["cause"] == "node_limit"
    other.release(0, 50_000)
    stream.settle(6.0)
    assert owner.grants == 1
    owner.receives = False
    stream.gate.ask(member, 2, rows(50).layout, 6.0)
    stream.settle(8.0)
    assert stream.cause_seconds == {"daemon": 2.0, "node_limit": 6.0}


def test_a_paused_stream_lets_callers_in_until_it_is_full_and_says_why_they_wait() -> None:
    stream, owner = with_a_frame(queue_limit=200)
    stream.settle(1.0)
    with structlog.testing.capture_logs() as log:
        stream.pause(1.0)
        stream.pause(1.0)
    member = stream.gate.join(owner)
    stream.gate.received(stream.gate.ask(member, 2, rows(50).layout, 1.0))
    stream.gate.ask(member, 3, rows(100).layout, 1.0)
    assert owner.grants == 1
    stream.settle(1.0)
    stream.settle(4.0)
    assert stream.pipeline.take_request(4.0) is None
    assert stream.cause_seconds["paused"] == 3.0
    assert "paused by the operator: producerctl resume flights" in stream.describe(4.0)
    status = stream.status(4.0)
    assert (status["paused"], status["cause"]) == (True, "paused")
    with structlog.testing.capture_logs() as later:
        stream.resume(4.0)
        stream.resume(4.0)
    assert [(line["event"], line["log_level"]) for line in (*log, *later)] == [
        ("stream paused", "info"),
        ("stream resumed", "info"),
    ]
    assert stream.status(4.0)["paused"] is False
    stream.settle(5.0)
    assert stream.cause_seconds["paused"] == 3.0


# ---- other settings


@pytest.mark.law("QueueBudget")
@pytest.mark.law("AdmissionGate")
def test_after_a_reload_whoever_fits_is_let_in_at_once_and_whoever_never_will_is_told() -> None:
    stream, owner = with_a_frame(queue_limit=300)
    member = stream.gate.join(owner)
    stream.gate.ask(member, 2, rows(150).layout, 1.0)
    assert owner.grants == 1
    stream.gate.ask(member, 3, rows(100).layout, 1.0)
    assert (owner.grants, owner.refusals) == (1, [])
    stream.reload(StreamSettings(queue_limit=180, linger_seconds=7), 2.0)
    assert (owner.grants, owner.refusals) == (1, [Code.TOO_LARGE])
    assert stream.pipeline.rules.linger_seconds == 7
    stream.gate.ask(member, 4, rows(80).layout, 2.0)
    stream.settle(2.5)
    assert (owner.grants, stream.budget.used_records) == (1, 250)
    stream.reload(StreamSettings(queue_limit=400), 3.0)
    assert owner.grants == 2
    assert stream.status(3.0)["queue_limit_records"] == 400


def test_a_reload_that_changes_how_records_are_packed_is_refused() -> None:
    stream, _ = with_a_frame()
    with pytest.raises(AssertionError, match="made for these"):
        stream.reload(StreamSettings(aggregation="kpl"), 1.0)


# ---- flushed, idle


async def test_a_flush_is_done_when_the_last_row_that_was_there_has_ended() -> None:
    stream, owner = with_a_frame(linger_seconds=3_600)
    flushing = stream.flush_all()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await flushing.done.wait()
    assert flushing.counts() | {"records": 100, "open": 100} == flushing.counts()
    job = stream.pipeline.take_job(1.0)
    assert job is not None, "it lingers no more"
    stream.pipeline.sorted(job, [(job.frames, sort_rows(job.frames, job.shard_map, job.seed))])
    stream.pipeline.discard(owner)
    await flushing.done.wait()
    assert flushing.counts() | {"records": 100, "discarded": 100, "open": 0} == flushing.counts()
    assert stream.flush_all().done.is_set(), "where nothing is"


def test_a_stream_is_idle_since_it_has_neither_a_session_nor_a_row() -> None:
    stream, owner = with_a_frame()

    def since() -> float | None:
        return stream.idle_since

    stream.settle(1.0)
    assert since() is None
    member = stream.gate.join(owner)
    stream.pipeline.discard(owner)
    stream.settle(2.0)
    assert since() is None, "a session has it open"
    stream.gate.leave(member, 3.0)
    stream.settle(3.0)
    stream.settle(9.0)
    assert since() == 3.0
    stream.pause(9.0)
    assert since() is None, "it would forget its pause"
    stream.resume(9.0)
    again = stream.gate.join(owner)
    assert since() is None, "nobody has looked yet"
    stream.settle(10.0)
    stream.gate.leave(again, 11.0)
    stream.settle(11.0)
    assert since() == 11.0


def test_a_stream_that_goes_plain_for_lack_of_a_list_is_told_once_and_so_is_its_end() -> None:
    stream, owner = Stream("flights", StreamSettings(aggregation="kpl"), 1 << 20, 10_000), Owner()
    frame = rows(100)
    parts = b"".join((frame.body_prefix(1), *map(bytes, frame.parts)))
    checked = intake.check(columns.parse_body(parts, frame.layout.flags), 1 << 20)
    stream.budget.take(100, frame.layout.charge_bytes)
    stream.pipeline.submit(Frame(owner, 1, checked, frame.layout.charge_bytes), 0.0)
    told: list[Any] = []
    with structlog.testing.capture_logs() as log:
        for second in range(20):
            stream.pipeline.shard_map_failed("LimitExceededException", "Rate exceeded", float(second))
            if (job := stream.pipeline.take_job(float(second))) is not None:
                stream.pipeline.sorted(job, [(job.frames, sort_rows(job.frames, job.shard_map, job.seed))])
            stream.settle(float(second))
            told.append(stream.status(float(second))["reason"])
            assert stream.blocked(1, 30.0, float(second)).reason == told[-1]
        stream.pipeline.set_shard_map(ShardMap([Shard("shard-0", 0, MAX_HASH_KEY)]), 20.0)
        stream.settle(20.0)
    assert "are not known" in told[5]
    assert "ListShards: LimitExceededException: Rate exceeded" in told[5]
    assert "records go plain, at one shard's pace" in told[15]
    begins, ends = [line for line in log if "plain" in line["event"] or "aggregated" in line["event"]]
    assert (begins["log_level"], begins["event"]) == ("warning", "records go plain until the shards are known")
    assert begins["why"] == "ListShards: LimitExceededException: Rate exceeded"
    assert (ends["log_level"], ends["event"], ends["plain_seconds"]) == ("info", "records are aggregated again", 10.0)


def test_what_the_pipeline_wants_of_the_shards_is_told_against_what_their_watch_has_read() -> None:
    """Not against what was so at the last look: a wish that came and went and came between two looks would be lost."""
    stream = Stream("flights", StreamSettings(), 1 << 20, 10_000)
    assert stream.next_reading() == -inf, "at once"
    stream.learn_shards(ONE_LANE, 0.0, 0.0)
    assert stream.next_reading() >= 45.0
    stream.pipeline.known.want()
    assert not stream.reading_changed.is_set()
    stream.settle(0.0)
    assert stream.reading_changed.is_set()


@pytest.mark.parametrize(("ordering", "unsent"), [("none", [False, False]), ("per_key", [True, False])])
def test_with_an_order_nothing_is_sent_after_a_frame_that_was_refused_for_a_bad_row(
    ordering: str, unsent: list[bool]
) -> None:
    """Of the same session; another one's rows are sent, and without an order all are."""
    stream = Stream("flights", StreamSettings.model_validate({"ordering": ordering}), 1 << 20, 10_000)
    stream.pipeline.set_shard_map(ShardMap([Shard("shard-0", 0, MAX_HASH_KEY)]), 0.0)
    frames = []
    for owner, keys in ((first := Owner(), [b"k" * 300, b"k"]), (first, [b"k"]), (Owner(), [b"k"])):
        laid_out = lay_out(keys, [b"data"] * len(keys))
        ticket = stream.reserve(stream.join(owner, patient=False), 1, laid_out.layout, 0.0)
        frames.append(Frame(owner, 1, stream.check(make_body(laid_out)), laid_out.layout.charge_bytes))
        assert stream.accept(frames[-1], ticket, 0.0, take_good=False) is (len(keys) == 1)
    assert [frame.finished for frame in frames[1:]] == unsent


# ---- the operator


async def test_the_operator_reads_times_in_tenths_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    class Known(list[Stream]):
        budget = NodeBudget(1, 1)

    stream, owner = with_a_frame(queue_limit=100)
    stream.gate.ask(stream.gate.join(owner), 2, rows(50).layout, 2.0)
    node: Any = SimpleNamespace(state_name="serving", unready=None, connections=1)
    streams: Any = Known([stream])
    orders = commands.Commands(node, streams)
    monkeypatch.setattr(orders, "_loop", SimpleNamespace(time=lambda: 12.3456))
    monkeypatch.setattr(commands, "STARTED", 0.0)
    monkeypatch.setattr(commands, "time", SimpleNamespace(monotonic=lambda: 987.6543))
    status = orders.status()
    assert status["uptime_seconds"] == 987.7
    assert status["streams"][0]["oldest_record_seconds"] == 12.3
    assert status["streams"][0]["blocked_seconds"] == 10.3
