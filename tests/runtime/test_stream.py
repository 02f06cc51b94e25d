"""A stream whose rows stay for long logs one line, which names the cause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import structlog

from producerd.config import StreamSettings
from producerd.core.budget import NodeBudget, NodeInFlight, QueueBudget
from producerd.core.diagnosis import Diagnosis
from producerd.core.encoding.entries import encode
from producerd.core.gate import MAX_RECORD_BYTES, Member, Refusal, Ticket
from producerd.core.holding import Holding
from producerd.core.kpl.aggregation import InnerRecord
from producerd.core.rows.frame import Frame
from producerd.core.rows.sorting import sort_rows
from producerd.core.sending.answers import RequestFailed, parse_answer
from producerd.core.sending.health import HealthState
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.shard_map import ONE_LANE, Shard, ShardMap
from producerd.errors import Code
from producerd.runtime.stream import Stream
from producerd.wire import messages
from producerd.wire.columns import Columns, lay_out
from tests.core.given import aggregate_of
from tests.daemon import one, rows
from tests.simulation.setting import make_body, make_rules

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/arrivals"


class Owner:
    """A caller that takes every answer."""

    def __init__(self) -> None:
        self.receives = True
        self.grants = 0
        self.refusals: list[str] = []

    def finished(self, frame: Frame) -> None:
        """It takes every answer."""

    def may_receive(self, charge_bytes: int) -> bool:
        return self.receives

    def granted(self, ticket: Ticket) -> None:
        self.grants += 1

    def refused(self, ticket: Ticket, refusal: Refusal) -> None:
        self.refusals.append(refusal.code)


def stream_of(
    *,
    node: NodeBudget | None = None,
    in_flight: NodeInFlight | None = None,
    touched: Callable[[Stream], None] = lambda _: None,
    **settings: Any,
) -> Stream:
    values = StreamSettings.model_validate(settings)
    return Stream("flights", values, node, in_flight, touched=touched)


def with_a_frame(records: int = 100, **options: Any) -> tuple[Stream, Owner]:
    """A stream of one shard whose rows nobody sends, since the time 0."""
    stream, owner = stream_of(**options), Owner()
    stream.pipeline.set_shard_map(ShardMap([Shard("shard-0", 0, MAX_HASH_KEY)]), 0.0)
    layout = rows(records).layout
    stream.budget.charge(records, layout.charge_bytes)
    stream.pipeline.submit(frame_of(stream, owner, rows(records)), 0.0)
    return stream, owner


def frame_of(stream: Stream, owner: Owner, laid_out: Columns, number: int = 1, **options: Any) -> Frame:
    return Frame(owner, number, stream.check(make_body(laid_out)), laid_out.layout.charge_bytes, **options)


def sort_job(stream: Stream, now: float) -> None:
    """Do the job that the stream has, as the dispatcher does it."""
    job = stream.pipeline.take_job(now)
    assert job is not None
    stream.pipeline.sorted(job, [(job.frames, sort_rows(job.frames, job.shard_map, job.seed))])


def sort(stream: Stream, now: float) -> None:
    """Have the rows that linger sorted."""
    stream.pipeline.press(now)
    sort_job(stream, now)


def send(stream: Stream, now: float) -> None:
    """Have sorted rows sent in one request, all of which is stored."""
    pipeline = stream.pipeline
    request = pipeline.take_request(now)
    assert request is not None
    rules, format_ = pipeline.rules.entries, pipeline.format_of(request, is_aws=False)
    encoded = encode(stream.address, request.numbered, rules, request.aggregate_bytes, request.shard_map, format_)
    pipeline.encoded(request, encoded, now)
    results = b",".join([b'{"SequenceNumber":"1","ShardId":"shard-0"}'] * encoded.entries)
    pipeline.complete(request, parse_answer(b'{"Records":[' + results + b"]}", encoded.entries), now)


def lines_of(stream: Stream, now: float) -> list[Any]:
    """Return what the stream logs when it settles."""
    with structlog.testing.capture_logs() as log:
        stream.settle(now)
    return log


def told_at(stream: Stream, times: list[float]) -> dict[float, dict[str, Any]]:
    """Return the warnings by the time at which the stream logged them."""
    return {now: line for now in times for line in lines_of(stream, now) if line["log_level"] == "warning"}


def test_a_record_that_stays_for_half_a_minute_is_told_and_again_every_five_minutes() -> None:
    stream, _ = with_a_frame()
    told = told_at(stream, [float(second) for second in range(700)])
    assert list(told) == [30.0, 330.0, 630.0]
    assert told[30.0] == {
        "event": "stream is slow",
        "log_level": "warning",
        "stream": "flights",
        "oldest_record_seconds": 30,
        "callers_waited_seconds": 0,
        "why": f"records are on their way; queue 100 of 1,000,000 records, {rows(100).layout.charge_bytes:,} of "
        "67,108,864 bytes, 0 requests in flight",
    }


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


def test_the_waits_of_one_minute_count_and_then_those_of_the_next() -> None:
    stream, owner = with_a_frame(queue_limit=100)
    member = stream.gate.join(owner)
    told: dict[float, dict[str, Any]] = {}

    def look(now: float) -> None:
        next(iter(stream.pipeline.ledger.frames)).accepted_at = now
        told.update(told_at(stream, [now]))

    first = stream.gate.ask(member, 2, rows(50).layout, 0.0)
    look(0.0)
    stream.gate.cancel(first, 20.0)
    look(60.0)
    stream.gate.ask(member, 3, rows(50).layout, 60.0)
    look(89.0)
    look(90.0)
    assert list(told) == [90.0]
    assert (told[90.0]["oldest_record_seconds"], told[90.0]["callers_waited_seconds"]) == (0, 30)


# ---- what holds a caller


def test_a_caller_that_waits_only_for_the_nodes_limit_has_a_cause_of_its_own() -> None:
    node = NodeBudget(100_000, 1_000)
    stream, owner = with_a_frame(node=node)
    other = QueueBudget(10**6, 10**6, node)
    other.charge(1, 100_000 - node.used_bytes)
    member = stream.gate.join(owner)
    ticket = stream.gate.ask(member, 2, rows(50).layout, 10.0)
    stream.settle(10.0)
    stream.settle(12.0)
    assert stream.report.cause_seconds["node_limit"] == 2.0
    assert "node_queue_limit_bytes = 100,000" in stream.report.describe(12.0)
    assert stream.report.status(12.0)["cause"] == "node_limit"
    other.release(0, 50_000)
    stream.settle(13.0)
    assert owner.grants == 1
    assert stream.report.cause_seconds["node_limit"] == 3.0
    stream.gate.cancel(ticket, 13.0)
    stream.settle(14.0)
    assert (stream.report.cause_seconds["node_limit"], stream.report.status(14.0)["cause"]) == (3.0, "daemon")


def test_a_stream_without_a_row_waits_for_the_node_too() -> None:
    node = NodeBudget(100_000, 1_000)
    stream, owner, other = stream_of(node=node), Owner(), QueueBudget(10**6, 10**6, node)
    other.charge(1, 100_000)
    member = stream.gate.join(owner)
    stream.gate.ask(member, 1, rows(50).layout, 0.0)
    stream.settle(0.0)
    stream.settle(5.0)
    assert stream.report.cause_seconds == {"daemon": 0.0, "node_limit": 5.0}
    assert stream.report.status(5.0)["cause"] == "node_limit"
    other.release(0, 50_000)
    stream.settle(6.0)
    assert owner.grants == 1
    owner.receives = False
    stream.gate.ask(member, 2, rows(50).layout, 6.0)
    stream.settle(8.0)
    assert stream.report.cause_seconds == {"daemon": 2.0, "node_limit": 6.0}


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
    assert stream.report.cause_seconds["paused"] == 3.0
    assert "paused by the operator: producerctl resume flights" in stream.report.describe(4.0)
    status = stream.report.status(4.0)
    assert (status["paused"], status["cause"]) == (True, "paused")
    with structlog.testing.capture_logs() as later:
        stream.resume(4.0)
        stream.resume(4.0)
    assert [(line["event"], line["log_level"]) for line in (*log, *later)] == [
        ("stream paused", "info"),
        ("stream resumed", "info"),
    ]
    assert stream.report.status(4.0)["paused"] is False
    stream.settle(5.0)
    assert stream.report.cause_seconds["paused"] == 3.0


@pytest.mark.parametrize(("records", "cause"), [(0, "node_limit"), (100, "paused")])
def test_a_paused_stream_waits_for_the_operator_if_it_holds_rows_and_otherwise_for_the_node(
    records: int, cause: str
) -> None:
    node = NodeBudget(100_000, 1_000)
    stream, owner = with_a_frame(records, node=node) if records else (stream_of(node=node), Owner())
    QueueBudget(10**6, 10**6, node).charge(1, 100_000 - node.used_bytes)
    stream.pause(0.0)
    stream.gate.ask(stream.gate.join(owner), 2, rows(50).layout, 0.0)
    assert stream.report.status(1.0)["cause"] == cause


def test_what_holds_the_queue_is_looked_at_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, _ = with_a_frame()
    looked: list[float] = []

    def holding(now: float) -> Holding:
        looked.append(now)
        return Holding("daemon")

    monkeypatch.setattr(stream.pipeline.diagnosis, "holding", holding)
    for quarter in range(6):
        stream.settle(quarter / 4)
    assert looked == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(("aggregation", "is_advised"), [("none", True), ("kpl", False)])
def test_aggregation_is_advised_where_it_is_off(
    monkeypatch: pytest.MonkeyPatch, aggregation: str, is_advised: bool
) -> None:
    stream, _ = with_a_frame(aggregation=aggregation)
    monkeypatch.setattr(stream.pipeline.diagnosis, "holding", lambda _now: Holding("shard_rate", by_records=True))
    assert ('aggregation = "kpl" would send up to' in stream.report.describe(1.0)) is is_advised


def test_the_time_in_which_shards_refused_only_the_number_of_records_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is the time in which aggregation would have sent more."""
    stream, owner = with_a_frame(queue_limit=100)
    holding = Holding("shard_rate", by_records=True)
    monkeypatch.setattr(stream.pipeline.diagnosis, "holding", lambda _now: holding)
    stream.gate.ask(stream.gate.join(owner), 2, rows(50).layout, 0.0)
    stream.settle(0.0)
    stream.settle(2.0)
    holding = Holding("shard_rate", by_records=False)
    stream.settle(5.0)
    stream.settle(9.0)
    assert stream.report.record_rate_bound_seconds == 5.0
    assert stream.report.cause_seconds == {"daemon": 0.0, "shard_rate": 9.0}


@pytest.mark.promise("batch-larger-minute")
def test_the_time_in_which_a_record_waits_for_long_is_counted_though_no_caller_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From 30 seconds on, by what held the queue."""
    stream, _ = with_a_frame()
    holding = Holding("shard_rate")
    monkeypatch.setattr(stream.pipeline.diagnosis, "holding", lambda _now: holding)
    for now in (0.0, 20.0, 29.0):
        stream.settle(now)
        assert not sum(stream.report.slow_seconds.values())
    stream.settle(40.0)
    assert stream.report.slow_seconds == {"quota": 10.0}
    holding = Holding("hot_shard", throttled=True)
    stream.settle(41.0)
    holding = Holding("in_flight")
    stream.settle(43.0)
    stream.settle(47.0)
    assert stream.report.slow_seconds == {"quota": 11.0, "throttles": 2.0, "other": 4.0}
    assert not any(stream.report.cause_seconds.values())
    stream.pipeline.abandon()
    stream.settle(50.0)
    stream.settle(90.0)
    assert sum(stream.report.slow_seconds.values()) == 20.0


# ---- what clients and the operator read


def test_a_client_reads_what_is_queued_what_was_delivered_and_why_the_rest_waits() -> None:
    stream, _ = with_a_frame()
    stream.learn_summary(1 << 20, "ON_DEMAND", "")
    layout, on_their_way = rows(100).layout, "records are on their way"
    limits: dict[str, Any] = {
        "queue_limit_records": 1_000_000,
        "queue_limit_bytes": 1 << 26,
        "capacity_mode": "ON_DEMAND",
    }
    assert stream.report.blocked(7, 31.0, 1.0) == messages.Blocked(
        7, 31.0, on_their_way, queue_records=100, queue_bytes=layout.charge_bytes, **limits
    )
    sort(stream, 1.0)
    send(stream, 2.0)
    stream.settle(2.0)
    assert stream.report.blocked(7, 31.0, 5.0) == messages.Blocked(
        7,
        31.0,
        "the queue is empty: the daemon waits for records",
        delivered_records=100,
        delivered_bytes=layout.key_bytes + layout.data_bytes,
        kinesis_records=100,
        delivering_seconds=3.0,
        **limits,
    )
    aggregating, _ = with_a_frame(aggregation="kpl")
    assert aggregating.report.blocked(7, 31.0, 1.0).aggregates == 1


def test_a_refused_stream_is_described_by_its_refusal_and_a_full_node_by_its_limit() -> None:
    in_flight = NodeInFlight(100, 10)
    in_flight.count_sent("another stream", 1_000)  # one record that is larger than all that is shared
    stream, _ = with_a_frame(in_flight=in_flight)
    sort(stream, 1.0)
    assert stream.report.status(1.0)["reason"] == (
        "the requests of all streams together are at their limit, 1,000 of node_max_in_flight_bytes = 100"
    )
    stream.pipeline.health.looks_permanent(Code.KMS, "no key", 1.0)
    assert stream.report.status(1.0)["reason"] == "the stream is refused by the service: KMS: no key"


def test_the_operator_reads_the_state_of_a_stream_and_of_its_shards() -> None:
    state = {
        "stream": "flights",
        "health": "unproven",
        "paused": False,
        "queue_records": 0,
        "records_without_caller": 0,
        "queue_limit_records": 1_000_000,
        "queue_bytes": 0,
        "queue_limit_bytes": 1 << 26,
        "blocked_callers": 0,
        "sessions": 0,
        "requests_in_flight": 0,
        "shards_open": 0,
        "wire_format": "",
        "cause": "",
        "shard_id": "",
        "share": 0.0,
        "reason": "",
        "last_error": "",
    }
    idle = stream_of()
    assert idle.report.status(1.0) == state
    assert idle.report.shards(1.0) == {"stream": "flights", "queue_records": 0, "reason": "", "shards": []}
    stream, _ = with_a_frame()
    assert stream.report.status(1.0) == {
        **state,
        "queue_records": 100,
        "queue_bytes": rows(100).layout.charge_bytes,
        "shards_open": 1,
        "cause": "daemon",
        "reason": "records are on their way",
    }
    shard = {"shard_id": "shard-0", "starting_hash_key": "0", "ending_hash_key": str(MAX_HASH_KEY)}
    numbers = dict.fromkeys(("waiting_records", "waiting_bytes", "in_flight"), 0)
    rates = dict.fromkeys(("share", "rate_records", "rate_bytes", "use"), 0.0)
    shard_state = {**shard, **numbers, **rates, "backs_off": False, "waits_for": ""}
    waits = {"queue_records": 100, "reason": "records are on their way"}
    assert stream.report.shards(1.0) == {"stream": "flights", **waits, "shards": [shard_state]}


@pytest.mark.parametrize(
    ("state", "in_outage", "health", "is_up"),
    [
        (HealthState.UNPROVEN, False, "unproven", True),
        (HealthState.WORKING, False, "working", True),
        (HealthState.WORKING, True, "outage", False),
        (HealthState.SUSPECT, True, "suspect", False),
        (HealthState.BROKEN, True, "broken", False),
        (HealthState.BROKEN, False, "broken", False),
    ],
)
def test_a_stream_is_down_if_it_is_refused_or_nothing_gets_through(
    monkeypatch: pytest.MonkeyPatch, state: HealthState, in_outage: bool, health: str, is_up: bool
) -> None:
    monkeypatch.setattr(Diagnosis, "in_outage", property(lambda _: in_outage))
    stream = stream_of()
    stream.pipeline.health.state = state
    assert (stream.report.health, stream.report.is_up) == (health, is_up)
    assert stream.report.takes_records(1.0) == is_up


def test_an_idle_stream_that_refuses_each_record_is_down_and_says_why() -> None:
    stream = stream_of(aggregation="kpl")
    stream.pipeline.set_cannot_aggregate("AUTO")
    assert stream.report.is_up
    assert not stream.report.takes_records(1.0)
    told = stream.report.status(1.0)
    assert (told["queue_records"], told["cause"], told["reason"]) == (0, "shard_map", "refused: AUTO")


# ---- what is logged


def test_each_change_of_a_streams_health_is_logged_once() -> None:
    stream = stream_of()
    health = stream.pipeline.health
    denied = {"stream": "flights", "code": Code.ACCESS_DENIED, "message": "no", "request_id": "d3f1"}
    assert lines_of(stream, 0.0) == []
    health.looks_permanent(Code.ACCESS_DENIED, "no", 1.0, "d3f1")
    assert lines_of(stream, 1.0) == [{"event": "stream is refused by the service", "log_level": "error", **denied}]
    assert lines_of(stream, 1.0) == []
    health.forget_refusal()
    assert lines_of(stream, 2.0) == [], "it is unproven again"
    health.found_working()
    assert lines_of(stream, 3.0) == [{"event": "stream works", "log_level": "info", "stream": "flights"}]
    health.looks_permanent(Code.ACCESS_DENIED, "no", 4.0, "d3f1")
    assert lines_of(stream, 4.0) == [{"event": "stream looks refused", "log_level": "warning", **denied}]
    assert lines_of(stream, 5.0) == []


def test_a_stream_whose_endpoint_does_not_exist_is_logged_as_unreachable() -> None:
    stream = stream_of()
    health = stream.pipeline.health
    wrong = RequestFailed(Code.UNREACHABLE, "no such host", maybe_stored=False, wrong_endpoint=True)
    health.tried(wrong, 0.0)
    assert lines_of(stream, 1.0) == []
    assert health.gives_up(60.0)
    line = {"event": "stream cannot be reached", "log_level": "error", "stream": "flights"}
    assert lines_of(stream, 60.0) == [line | {"message": health.message}]


def test_a_refusal_that_is_forgotten_is_logged_and_what_is_left_of_it_is_not() -> None:
    stream = stream_of()
    stream.pipeline.health.found_working()
    stream.pipeline.health.looks_permanent(Code.KMS, "no key", 0.0)
    stream.settle(0.0)
    with structlog.testing.capture_logs() as log:
        stream.forget_refusal()
    told = {"event": "a refusal is forgotten, as nobody uses the stream", "log_level": "info", "stream": "flights"}
    assert log == [told]
    assert stream.pipeline.health.state is HealthState.WORKING
    assert lines_of(stream, 1.0) == []


def test_a_service_that_refuses_cbor_is_logged_once() -> None:
    stream = stream_of()
    refusal = RequestFailed("SerializationException", "what?", maybe_stored=False, request_id="d3f1")
    assert lines_of(stream, 0.0) == []
    stream.pipeline.sender.format.use_json(refusal)
    assert lines_of(stream, 1.0) == [
        {
            "event": "the service refuses CBOR; requests go in JSON from now on",
            "log_level": "warning",
            "stream": "flights",
            "code": "SerializationException",
            "message": "what?",
            "request_id": "d3f1",
        }
    ]
    assert lines_of(stream, 2.0) == []


def test_rows_that_go_plain_are_logged_and_not_their_end_if_no_list_comes_any_more() -> None:
    stream = stream_of(aggregation="kpl")
    stream.pipeline.sender.go_plain()
    plain = {"event": "records go plain until the shards are known", "log_level": "warning", "stream": "flights"}
    assert lines_of(stream, 1.0) == [{**plain, "why": "ListShards: no answer"}]
    assert lines_of(stream, 2.0) == []
    stream.pipeline.sender.forget_shards()
    assert lines_of(stream, 3.0) == []
    stream.pipeline.shard_map_failed("LimitExceededException", "Rate exceeded", 3.5)
    stream.pipeline.sender.go_plain()
    assert lines_of(stream, 4.0) == [{**plain, "why": "ListShards: LimitExceededException: Rate exceeded"}]
    assert "records go plain, at one shard's pace" in stream.report.blocked(1, 30.0, 4.0).reason
    stream.pipeline.set_shard_map(ONE_LANE, 6.26)
    again = {"event": "records are aggregated again", "log_level": "info", "stream": "flights"}
    assert lines_of(stream, 6.26) == [{**again, "plain_seconds": 2.3}]


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
    assert stream.settings == StreamSettings(queue_limit=400)
    assert owner.grants == 2
    assert stream.report.status(3.0)["queue_limit_records"] == 400


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
    sort_job(stream, 1.0)  # it lingers no more
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


def test_what_the_pipeline_wants_of_the_shards_is_told_against_what_their_watch_has_read() -> None:
    """Not against what was so at the last look: a wish that came and went and came between two looks would be lost."""
    stream = stream_of()
    assert stream.next_reading() == -inf, "at once"
    stream.learn_shards(ONE_LANE, 0.0, 0.0)
    assert stream.next_reading() == stream.pipeline.next_reading() >= 45.0
    stream.pipeline.known.want()
    assert not stream.reading_changed.is_set()
    stream.settle(0.0)
    assert stream.reading_changed.is_set()
    assert stream.next_reading() < 45.0
    stream.settle(0.0)
    assert not stream.reading_changed.is_set(), "it has read that"


@pytest.mark.parametrize(("ordering", "unsent"), [("none", [False, False]), ("per_key", [True, False])])
def test_with_an_order_nothing_is_sent_after_a_frame_that_was_refused_for_a_bad_row(
    ordering: str, unsent: list[bool]
) -> None:
    """Of the same session; another one's rows are sent, and without an order all are."""
    stream, frames, first = stream_of(ordering=ordering), [], Owner()
    stream.pipeline.set_shard_map(ShardMap([Shard("shard-0", 0, MAX_HASH_KEY)]), 0.0)
    for owner, keys in ((first, [b"k" * 300, b"k"]), (first, [b"k"]), (Owner(), [b"k"])):
        laid_out = lay_out(keys, [b"data"] * len(keys))
        ticket = stream.reserve(stream.join(owner, patient=False), 1, laid_out.layout, 0.0)
        frames.append(frame_of(stream, owner, laid_out))
        assert stream.accept(frames[-1], ticket, 0.0) is (len(keys) == 1)
    assert [frame.finished for frame in frames[1:]] == unsent


# ---- its verbs


VERBS: dict[str, Callable[[Stream, Member, Ticket], object]] = {
    "join": lambda stream, _member, _ticket: stream.join(Owner(), patient=False),
    "reserve, which waits": lambda stream, member, _ticket: stream.reserve(member, 3, rows(20).layout, 1.0),
    "cancel": lambda stream, _member, ticket: stream.cancel(ticket, 1.0),
    "accept": lambda stream, _member, ticket: stream.accept(frame_of(stream, Owner(), rows(20), 2), ticket, 1.0),
    "set_window": lambda stream, member, _ticket: stream.set_window(member, 1.0, is_full=True),
    "listen_again": lambda stream, _member, _ticket: stream.listen_again(),
    "flush": lambda stream, _member, _ticket: stream.flush(Owner()),
    "leave": lambda stream, member, _ticket: stream.leave(member, 1.0, deliver=True),
    "learn_shards": lambda stream, _member, _ticket: stream.learn_shards(ONE_LANE, 1.0, 0.0),
    "shards_not_read": lambda stream, _member, _ticket: stream.shards_not_read("InternalFailure", "no", 1.0),
    "service_answered": lambda stream, _member, _ticket: stream.service_answered(1.0),
    "learn_summary": lambda stream, _member, _ticket: stream.learn_summary(1 << 20, "", ""),
    "press, which seals": lambda stream, _member, _ticket: stream.press(1.0),
    "take_room": lambda stream, _member, _ticket: stream.take_room(),
    "hasten": lambda stream, _member, _ticket: stream.hasten(1.0),
    "drain": lambda stream, _member, _ticket: stream.return_rows(),
    "reload": lambda stream, _member, _ticket: stream.reload(stream.settings, 1.0),
    "flush_all": lambda stream, _member, _ticket: stream.flush_all(),
}


def test_a_list_that_is_not_read_is_no_sign_of_a_wrong_endpoint_unless_it_is_said_so() -> None:
    stream = stream_of()
    stream.shards_not_read("InternalFailure", "no", 1.0)
    assert stream.pipeline.health.gives_up_at == inf
    stream.shards_not_read(Code.UNREACHABLE, "no such host", 2.0, wrong_endpoint=True)
    assert stream.pipeline.health.gives_up_at == 62.0


@pytest.mark.parametrize("verb", VERBS)
def test_after_each_verb_the_dispatcher_looks_at_the_stream(verb: str) -> None:
    touched: list[Stream] = []
    stream, owner = stream_of(queue_limit=40, touched=touched.append), Owner()
    member = stream.join(owner, patient=False)
    first = stream.reserve(member, 1, rows(5).layout, 0.0)
    assert stream.accept(frame_of(stream, owner, rows(5)), first, 0.0)
    second = stream.reserve(member, 2, rows(20).layout, 0.0)
    assert second.granted
    touched.clear()
    VERBS[verb](stream, member, second)
    assert touched == [stream]


def test_what_makes_no_work_has_nobody_look_at_the_stream() -> None:
    touched: list[Stream] = []
    stream = stream_of(touched=touched.append)
    member = stream.join(Owner(), patient=False)
    touched.clear()
    assert stream.reserve(member, 1, rows(5).layout, 0.0).granted
    assert stream.press(0.0) is False
    stream.resume(0.0)
    stream.pause(0.0)
    assert touched == []
    stream.resume(0.0)
    assert touched == [stream]


def test_a_settled_stream_says_whether_it_may_have_work() -> None:
    """It has some when rows that lingered are sent because a caller waits."""
    stream, owner = with_a_frame(20, queue_limit=100)
    assert stream.settle(0.0) is False
    member = stream.gate.join(owner)
    for frame_id in (2, 3):
        stream.gate.ask(member, frame_id, rows(50).layout, 0.0)
    assert (owner.grants, stream.settle(0.0)) == (1, True)
    other, _ = with_a_frame()
    assert other.press(0.0) is True


def test_a_body_that_has_arrived_lets_the_next_one_come() -> None:
    """Bodies on their way hold at most a quarter of the queue."""
    stream, first, second = stream_of(queue_limit_bytes=8_192), Owner(), Owner()
    large = one(b"x" * 500)
    ticket = stream.reserve(stream.join(first, patient=False), 1, large.layout, 0.0)
    waiting = stream.reserve(stream.join(second, patient=False), 1, large.layout, 0.0)
    assert (ticket.granted, waiting.granted) == (True, False)
    assert stream.accept(frame_of(stream, first, large), ticket, 0.0)
    stream.settle(0.0)
    assert waiting.granted


@pytest.mark.parametrize(
    ("take_good", "rejected", "left"),
    [(False, {Code.RECORD_INVALID: 1, Code.FRAME_REFUSED: 2}, 0), (True, {Code.RECORD_INVALID: 1}, 2)],
)
def test_rows_that_are_not_accepted_are_counted_and_hold_no_room(
    take_good: bool, rejected: dict[str, int], left: int
) -> None:
    stream, owner = stream_of(), Owner()
    laid_out = lay_out([b"k", b"k" * 300, b"k"], [b"data"] * 3)
    for times in (1, 2):
        ticket = stream.reserve(stream.join(owner, patient=False), times, laid_out.layout, 0.0)
        assert stream.accept(frame_of(stream, owner, laid_out, times, takes_good=take_good), ticket, 0.0) is take_good
        assert stream.rejected_records == {code: times * count for code, count in rejected.items()}
        assert stream.budget.used_records == times * left
        assert stream.budget.used_bytes == (times * laid_out.layout.charge_bytes if take_good else 0)


@pytest.mark.parametrize(
    ("aggregation", "ordering", "takes"),
    [("none", "none", False), ("kpl", "none", True), ("kpl", "per_key", False), ("none", "per_key", False)],
)
def test_a_row_that_is_an_aggregate_is_taken_where_it_can_be_taken_apart(
    aggregation: str, ordering: str, takes: bool
) -> None:
    stream = stream_of(aggregation=aggregation, ordering=ordering)
    checked = stream.check(make_body(one(aggregate_of([InnerRecord(b"k", None, b"1")]))))
    assert (checked.aggregates is not None, len(checked.bad)) == (takes, not takes)


@pytest.mark.parametrize(("size", "bad"), [(MAX_RECORD_BYTES - 1, 0), (MAX_RECORD_BYTES, 1)])
def test_a_record_is_as_large_as_any_stream_takes_it_and_no_byte_larger(size: int, bad: int) -> None:
    """An operator may have raised the stream's own limit since the daemon read it."""
    stream = stream_of()
    stream.learn_summary(100, "", "")
    assert stream.max_record_bytes == 100
    assert len(stream.check(make_body(one(b"x" * size, b"k"))).bad) == bad


def test_rows_linger_no_more_when_the_queue_is_to_empty() -> None:
    stream, _ = with_a_frame(linger_seconds=3_600)
    stream.flush(Owner())
    assert stream.pipeline.take_job(1.0) is None, "another session has flushed its own"
    stream.pause(0.0)
    stream.hasten(1.0)
    assert stream.pipeline.take_job(1.0) is not None
    assert not stream.pipeline.paused


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({}, {}),
        ({"aggregation": "kpl", "record_ttl_seconds": 90.0}, {"aggregate": True, "record_ttl_seconds": 90.0}),
        ({"ordering": "per_key", "on_throttle": "fail"}, {"per_key": True, "fail_if_throttled": True}),
    ],
)
def test_the_rules_for_its_rows_are_its_settings(settings: dict[str, Any], changes: dict[str, Any]) -> None:
    assert stream_of(**settings).pipeline.rules == make_rules(first_contact_timeout_seconds=60.0, **changes)


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({}, {"StreamName": "flights"}),
        ({"stream_name": "arrivals"}, {"StreamName": "arrivals"}),
        ({"stream_arn": ARN}, {"StreamARN": ARN}),
    ],
)
def test_a_stream_is_named_to_kinesis_by_its_settings_or_as_clients_name_it(
    settings: dict[str, Any], address: dict[str, str]
) -> None:
    assert stream_of(**settings).address == address
