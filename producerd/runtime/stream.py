"""Stream: wires one stream's pipeline to its gate, and describes both to clients and operators."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any, Protocol

from producerd.config import StreamSettings
from producerd.core import turn
from producerd.core.budget import NodeBudget, NodeInFlight, QueueBudget
from producerd.core.gate import MAX_RECORD_BYTES, AdmissionGate, Caller, Member, Ticket
from producerd.core.holding import Facts, Holding, Limit, sentence
from producerd.core.pipeline import Pipeline
from producerd.core.rows import flushing, intake
from producerd.core.rows.frame import Frame
from producerd.core.rows.intake import CheckedRows
from producerd.core.rules import EntryRules, PipelineRules
from producerd.core.sending.health import HealthState
from producerd.core.shards.shard_map import ShardMap
from producerd.errors import Code
from producerd.runtime.kinesis import address_of
from producerd.runtime.logs import get_logger
from producerd.runtime.outage import request_values
from producerd.wire import messages
from producerd.wire.columns import Body, Layout

log = get_logger("producerd.stream")

SLOW_SECONDS = 30.0
"""Age of the oldest record from which the daemon logs that the stream is slow.

Callers that waited this long within `SLOW_WITHIN_SECONDS` cause the same line.
"""
SLOW_WITHIN_SECONDS = 60.0
TELL_AGAIN_SECONDS = 300.0
BODY_LIMIT_SECONDS = 10.0
"""How long only smaller requests pass a proxy before the daemon logs that."""
SUMMARY_PATIENCE_SECONDS = 2.0
"""Longest time for which rows of a new stream wait for its summary.

It shows whether the shards follow the keys, which aggregates need, and the limit on a record.
"""
LOOK_SECONDS = 0.5
"""Least time between two looks at what holds the queue.  Each look reads every span."""


class Credentials(Protocol):
    """The credentials that sign requests."""

    @property
    def expires_at(self) -> float | None:
        """When they expire, in seconds since 1970, or None if that is unknown."""


class Owner(Protocol):
    """The sender of a frame, while it is still connected."""

    def finished(self, frame: Frame) -> None:
        """Receive a frame whose last row has ended."""


@dataclass(frozen=True, slots=True)
class FlushProgress:
    """Rows that a stream had accepted at one moment.  ``done`` is set when the last of them has ended.

    A caller that stops waiting drops this object.
    """

    rows: flushing.Flushing
    done: asyncio.Event

    def counts(self) -> dict[str, int]:
        """Return how many records there are, and how they have ended until now."""
        return self.rows.counts()


class Stream:
    """One stream, on the loop thread.

    Sessions, the operator and the watch of its shards call its verbs.  Each verb ends with a call of ``touched``, which
    makes the dispatcher look at the stream.  The dispatcher takes work from ``pipeline``.  ``reading_changed`` is set
    when the next reading of the shards is due at another time than `next_reading` returned last.
    """

    def __init__(
        self,
        name: str,
        settings: StreamSettings,
        max_frame_bytes: int,
        max_frame_records: int,
        node: NodeBudget | None = None,
        in_flight: NodeInFlight | None = None,
        *,
        touched: Callable[[Stream], None] = lambda _: None,
        credentials: Credentials | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.address = address_of(name, settings)
        self.budget = QueueBudget(settings.queue_limit, settings.queue_limit_bytes, node)
        self.pipeline = Pipeline(_rules(settings), self.budget, Random(), in_flight)
        self.gate = AdmissionGate(
            self.budget, self.pipeline.refuses, max_frame_bytes=max_frame_bytes, max_frame_records=max_frame_records
        )
        self.capacity_mode = ""
        self.rejected_records: Counter[str] = Counter()  # by code
        self.refused_records = 0
        self.credentials = credentials
        self.reading_changed = asyncio.Event()
        self.summary_wanted = asyncio.Event()  # at once, for a caller that needs it
        self.followers: set[Stream] = set()  # which learn what it learns about its shards
        self._touched = touched
        self._reads_next = self.pipeline.next_reading()
        self.cause_seconds: dict[str, float] = defaultdict(float)  # in which a caller waited, by the cause
        self.record_rate_bound_seconds = 0.0  # the part in which shards took no more records, but more bytes
        self._active_seconds = 0.0  # their sum
        self.slow_seconds: dict[str, float] = defaultdict(float)  # in which a record waited, by `Holding.held_by`
        self._oldest: tuple[float, float] | None = None  # when the stream settled last, and how old its oldest row was
        self._holding = Holding("daemon")  # since the stream settled last
        self._seen = Holding("daemon")  # as the last look found it
        self._idle_since: float | None = None
        self._looked_at = -inf
        self._waits_before: tuple[float, float] = -inf, 0.0  # when, and how long callers had waited until then
        self._told_slow_at = -inf
        self._told_health = HealthState.UNPROVEN
        self._went_plain_at: float | None = None
        self._told_format = False
        self._told_body_limit = False

    @property
    def max_record_bytes(self) -> int:
        """The largest record that the stream takes, or any stream while that is not known."""
        return min(self.pipeline.record_limit_bytes, MAX_RECORD_BYTES)

    def check(self, body: Body) -> CheckedRows:
        """Check a frame's body and return its rows.  Raise ProtocolError if it is malformed."""
        entries = self.pipeline.rules.entries
        takes_aggregates = entries.aggregate and not entries.per_key
        return intake.check(body, MAX_RECORD_BYTES, takes_aggregates=takes_aggregates)

    def settle(self, now: float) -> bool:
        """Settle as in `turn.settle`, log changes, and wake the watch of the shards if its next reading moved.

        Return whether there may be new work.
        """
        may_have_work = turn.settle(self.pipeline, self.gate, now)
        if self.pipeline.next_reading() != self._reads_next:
            self.reading_changed.set()
        self._tell_health()
        self._tell_plain(now)
        self._tell_format()
        self._tell_body_limit(now)
        self._look_what_holds(now)
        if not self._is_idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        return may_have_work

    # ---- sessions

    def join(self, caller: Caller, *, patient: bool, uid: int | None = None) -> Member:
        """Let a session of a user open the stream."""
        member = self.gate.join(caller, patient=patient, uid=uid)
        self._touched(self)
        return member

    @property
    def of(self) -> Stream:
        """The stream itself, or the one that this is a dry run of."""
        return self

    @property
    def users(self) -> set[int | None]:
        """The users whose sessions have the stream open, or a dry run of it."""
        return {uid for stream in (self, *self.followers) for uid in stream.gate.users}

    @property
    def is_open(self) -> bool:
        """Whether a session has the stream open, or a dry run of it."""
        return bool(self.gate.sessions or self.followers)

    def reserve(self, member: Member, frame_id: int, layout: Layout, now: float) -> Ticket:
        """Ask the gate for room for a session's frame.  The gate may call the session back before this returns."""
        ticket = self.gate.ask(member, frame_id, layout, now)
        if ticket.waiting:
            self._touched(self)
        return ticket

    def cancel(self, ticket: Ticket, now: float) -> None:
        """Give up a session's request for room."""
        self.gate.cancel(ticket, now)
        self._touched(self)

    def accept(self, frame: Frame, ticket: Ticket, now: float) -> bool:
        """Accept a whole frame.  Return False if its bad rows refuse it.  The frame is finished then.

        If the frame ``takes_good``, its good rows are accepted.
        """
        self.gate.received(ticket)
        if frame.rows is not None and frame.rows.bad:
            self.rejected_records += frame.end_bad_rows()
        if accepted := not frame.finished:
            self.pipeline.submit(frame, now)
        else:
            if not frame.takes_good:
                self.pipeline.refused(frame.owner)
            self.budget.release(frame.records, frame.charge_bytes)
        self._touched(self)
        return accepted

    def set_window(self, member: Member, now: float, *, is_full: bool) -> None:
        """Note that a session's window is full, or has room again.  In a full one nothing lingers."""
        self.gate.window(member, now, is_full=is_full)
        if is_full and self.pipeline.lingers:
            self._touched(self)

    def listen_again(self) -> None:
        """Note that a session reads again, and may receive frames."""
        self._touched(self)

    def flush(self, owner: Owner) -> None:
        """Send a session's rows without lingering."""
        self.pipeline.flush(owner)
        self._touched(self)

    def leave(self, member: Member, now: float, *, deliver: bool) -> None:
        """End a session's part in the stream.

        With ``deliver`` its rows are still sent, otherwise rows in no request are discarded.
        """
        if deliver:
            self.pipeline.disown(member.caller)
        else:
            self.pipeline.discard(member.caller)
        self.gate.leave(member, now)
        self._touched(self)

    # ---- the watch of its shards

    def next_reading(self) -> float:
        """Return when to read the list of the shards.  `reading_changed` is set as soon as that time changes."""
        self.reading_changed.clear()
        self._reads_next = self.pipeline.next_reading()
        return self._reads_next

    def reading_began(self, now: float) -> None:
        """Note that a reading of the shards has begun."""
        self.pipeline.reading_began(now)

    def want_shards(self) -> None:
        """Have the list of the shards read unless it is known."""
        if self.pipeline.shard_map is None:
            self.pipeline.known.want()
            self._touched(self)

    def learn_shards(self, shard_map: ShardMap, now: float, asked_at: float) -> None:
        """Use a newer list of the shards, whose reading began at ``asked_at``."""
        self.pipeline.set_shard_map(shard_map, now, asked_at)
        self._touched(self)
        for follower in self.followers:
            follower.learn_shards(shard_map, now, asked_at)

    def shards_not_read(
        self, code: str, message: str, now: float, *, wrong_endpoint: bool = False, request_id: str = ""
    ) -> None:
        """Note that a reading of the shards failed."""
        self.pipeline.shard_map_failed(code, message, now, wrong_endpoint=wrong_endpoint, request_id=request_id)
        self._touched(self)
        for follower in self.followers:
            follower.shards_not_read(code, message, now, wrong_endpoint=wrong_endpoint, request_id=request_id)

    def service_answered(self, now: float) -> None:
        """Note that the service answered a call about this stream."""
        self.pipeline.service_answered(now)
        self._touched(self)

    def learn_summary(self, max_record_bytes: int, capacity_mode: str, cannot_aggregate: str) -> None:
        """Use the stream's summary.  ``cannot_aggregate``: why its rows must not be aggregated, or ""."""
        self.pipeline.set_record_limit(max_record_bytes)
        self.capacity_mode = capacity_mode
        self.pipeline.set_cannot_aggregate(cannot_aggregate)
        self._touched(self)
        for follower in self.followers:
            follower.learn_summary(max_record_bytes, capacity_mode, cannot_aggregate)

    # ---- the node

    def press(self, now: float) -> bool:
        """Send lingering rows because the node is full and a caller waits.  See `Pipeline.press`."""
        pressed = self.pipeline.press(now)
        if pressed:
            self._touched(self)
        return pressed

    def take_room(self) -> None:
        """Look for room of the node that came free.  A caller of this stream waits for it."""
        self._touched(self)

    def hasten(self, now: float) -> None:
        """Let nothing linger any more, and end a pause, so that the queue empties."""
        self.resume(now)
        self.pipeline.hasten()
        self._touched(self)

    def drain(self) -> None:
        """Return or send the rows, because the daemon stops.  See `Pipeline.drain`."""
        self.pipeline.drain()
        self._touched(self)

    # ---- the operator

    def reload(self, settings: StreamSettings, now: float) -> None:
        """Follow new settings from now on, except those that need a restart.  No row is dropped.

        See `Pipeline.set_rules`.  The gate admits waiting callers that fit now, and refuses those that never will.
        """
        self.settings = settings
        self.pipeline.set_rules(_rules(settings), now)
        self.gate.set_limits(settings.queue_limit, settings.queue_limit_bytes, now)
        self._touched(self)

    def forget_refusal(self) -> None:
        """Let the next row find out whether Kinesis still refuses the stream, which no client uses."""
        self.pipeline.health.forget_refusal()
        self._told_health = self.pipeline.health.state
        log.info("a refusal is forgotten, as nobody uses the stream", stream=self.name)

    def count_refused(self, records: int) -> None:
        """Count records whose frame the gate refused because of the stream."""
        self.refused_records += records

    def pause(self, now: float) -> None:
        """Send nothing until `resume`.  The gate still admits callers until the queue is full."""
        if not self.pipeline.paused:
            self.pipeline.pause()
            self._look_anew(now)
            log.info("stream paused", stream=self.name)

    def resume(self, now: float) -> None:
        if self.pipeline.paused:
            self.pipeline.resume()
            self._look_anew(now)
            log.info("stream resumed", stream=self.name)
            self._touched(self)

    def flush_all(self) -> FlushProgress:
        """Send every row accepted until now without lingering.  Return how these rows end."""
        done = asyncio.Event()
        flushing = FlushProgress(self.pipeline.flush_all(done.set), done)
        self._touched(self)
        return flushing

    @property
    def health(self) -> str:
        """The state of its health.

        It is "outage" if nothing gets through although the service does not refuse the stream.
        """
        state = self.pipeline.health.state
        refused = state in (HealthState.SUSPECT, HealthState.BROKEN)
        return "outage" if self.pipeline.diagnosis.in_outage and not refused else state.value

    @property
    def is_up(self) -> bool:
        """Whether the service takes records, as far as the daemon knows."""
        return self.health not in ("suspect", "broken", "outage")

    def takes_records(self, now: float) -> bool:
        """Return whether records get through: the service takes them, and none fails because the shards are unknown."""
        return self.is_up and self.pipeline.map_missing(now) is None

    @property
    def idle_since(self) -> float | None:
        """When it was first seen without sessions and rows, or None if it has either or is paused."""
        return self._idle_since if self._is_idle else None

    @property
    def _is_idle(self) -> bool:
        return self.pipeline.idle and not self.is_open and not self.pipeline.paused

    # ---- what holds the queue

    def _look_what_holds(self, now: float) -> None:
        active_seconds = self.gate.active_seconds(now)
        self.cause_seconds[self._holding.cause] += active_seconds - self._active_seconds
        if self._holding.by_records:
            self.record_rate_bound_seconds += active_seconds - self._active_seconds
        self._active_seconds = active_seconds
        self._count_slow(now)
        self._holding = self._look(now)

    def _count_slow(self, now: float) -> None:
        """Count the time since the stream settled last in which its oldest row had waited for `SLOW_SECONDS`."""
        if self._oldest is not None:
            then, seconds = self._oldest
            passed = now - then
            self.slow_seconds[self._holding.held_by] += min(passed, max(0.0, seconds + passed - SLOW_SECONDS))
        self._oldest = None if self.pipeline.idle else (now, self.pipeline.oldest_seconds(now))

    def _look_anew(self, now: float) -> None:
        self._looked_at = -inf
        self._look_what_holds(now)

    def _look(self, now: float) -> Holding:
        if now >= self._looked_at + LOOK_SECONDS:
            self._looked_at, self._seen = now, self.pipeline.diagnosis.holding(now)
            self._tell_slow(now)
        return Holding("node_limit") if self._waits_for_node else self._seen

    @property
    def _waits_for_node(self) -> bool:
        """Whether a caller waits only because the node is full, and not because this stream is paused."""
        holds_by_pause = self.pipeline.paused and not self.pipeline.idle
        return self.budget in self.budget.node.wanted_by and not holds_by_pause

    def _tell_slow(self, now: float) -> None:
        """Log one line if rows stay for long, even if no single wait of a caller was that long."""
        began_at, seconds_before = self._waits_before
        waited_seconds = self._active_seconds - seconds_before
        if now >= began_at + SLOW_WITHIN_SECONDS:
            self._waits_before = now, self._active_seconds
        oldest_seconds = self.pipeline.oldest_seconds(now)
        if max(waited_seconds, oldest_seconds) >= SLOW_SECONDS and now >= self._told_slow_at + TELL_AGAIN_SECONDS:
            self._told_slow_at = now
            log.warning(
                "stream is slow",
                stream=self.name,
                oldest_record_seconds=round(oldest_seconds),
                callers_waited_seconds=round(waited_seconds),
                why=self.describe(now),
            )

    def blocked(self, stream_id: int, seconds: float, now: float) -> messages.Blocked:
        """Return why rows of this stream wait, with the numbers."""
        stats = self.pipeline.stats
        holding = self._look(now)
        return messages.Blocked(
            stream_id,
            seconds,
            self._reason(holding),
            self.budget.used_records,
            self.budget.limit_records,
            self.budget.used_bytes,
            self.budget.limit_bytes,
            self.pipeline.requests_in_flight,
            stats.last_error,
            holding.shard_id,
            holding.share,
            capacity_mode=self.capacity_mode,
            aggregates=int(self.pipeline.rules.entries.aggregate),
            delivered_records=stats.delivered_records,
            delivered_bytes=stats.delivered_bytes,
            kinesis_records=stats.delivered_kinesis_records,
            delivering_seconds=0.0 if stats.delivering_from is None else now - stats.delivering_from,
        )

    def _reason(self, holding: Holding) -> str:
        """Return one sentence for people about what holds the queue."""
        budget, pipeline = self.budget, self.pipeline
        health, in_flight = pipeline.health, pipeline.sender.in_flight
        facts = Facts(
            stream=self.name,
            refused_as=(health.code, health.message) if health.state is HealthState.BROKEN else None,
            failed_as=in_flight.failed_as,
            map_error=pipeline.map_error,
            aggregates=pipeline.rules.entries.aggregate,
            goes_plain=pipeline.goes_plain,
            is_full=self.gate.wants_room(),
            used_records=budget.used_records,
            used_bytes=budget.used_bytes,
            queues=Limit(budget.node.used_bytes, budget.node.limit_bytes),
            in_flight=Limit(in_flight.node.used_bytes, in_flight.node.limit_bytes) if pipeline.held_by_node else None,
        )
        return sentence(holding, facts)

    def describe(self, now: float) -> str:
        """Return the state in one line: what holds the queue, then its numbers, as the client shows BLOCKED."""
        budget, stats = self.budget, self.pipeline.stats
        return (
            f"{self._reason(self._look(now))}; queue {budget.used_records:,} of {budget.limit_records:,} records, "
            f"{budget.used_bytes:,} of {budget.limit_bytes:,} bytes, "
            f"{self.pipeline.requests_in_flight} requests in flight"
            f"{f', last error: {stats.last_error}' if stats.last_error else ''}"
        )

    def status(self, now: float) -> dict[str, Any]:
        """Return the state for `producerctl`, as JSON's values."""
        budget, pipeline = self.budget, self.pipeline
        return {
            "stream": self.name,
            "health": self.health,
            "paused": pipeline.paused,
            "queue_records": pipeline.queued_records,
            "records_without_caller": pipeline.records_without_caller,
            "queue_limit_records": budget.limit_records,
            "queue_bytes": budget.used_bytes,
            "queue_limit_bytes": budget.limit_bytes,
            "blocked_callers": self.gate.blocked_callers,
            "sessions": self.gate.sessions,
            "requests_in_flight": pipeline.requests_in_flight,
            "shards_open": len(pipeline.shard_map or ()),
            "wire_format": pipeline.wire_format,
            **self._holds(now),
            "last_error": pipeline.stats.last_error,
        }

    def _holds(self, now: float) -> dict[str, Any]:
        cause, shard_id, share, *_ = holding = self._look(now)
        if (end := self.pipeline.map_missing(now)) is not None:
            return {"cause": "shard_map", "shard_id": "", "share": 0.0, "reason": f"refused: {end.message}"}
        if self.pipeline.idle and not self._waits_for_node:
            return {"cause": "", "shard_id": "", "share": 0.0, "reason": ""}
        return {"cause": cause, "shard_id": shard_id, "share": share, "reason": self._reason(holding)}

    def shards(self, now: float) -> dict[str, Any]:
        """Return each open shard for `producerctl`.

        Hash keys are decimal text, because most JSON readers round such numbers.
        """
        shards = []
        for state in self.pipeline.diagnosis.shards(now):
            values = state._asdict()
            shard = values.pop("shard")
            ends = {"starting_hash_key": str(shard.start), "ending_hash_key": str(shard.end)}
            shards.append({"shard_id": shard.shard_id, **ends, **values})
        waits = {"queue_records": self.pipeline.queued_records, "reason": self._holds(now)["reason"]}
        return {"stream": self.name, **waits, "shards": shards}

    def _tell_health(self) -> None:
        health = self.pipeline.health
        if health.state is self._told_health:
            return
        self._told_health = health.state
        request = request_values(health.request_id)
        if health.state is HealthState.BROKEN and health.code == Code.UNREACHABLE:
            log.error("stream cannot be reached", stream=self.name, message=health.message)
        elif health.state is HealthState.BROKEN:
            log.error(
                "stream is refused by the service",
                stream=self.name,
                code=health.code,
                message=health.message,
                **request,
            )
        elif health.state is HealthState.SUSPECT:
            log.warning("stream looks refused", stream=self.name, code=health.code, message=health.message, **request)
        elif health.state is HealthState.WORKING:
            log.info("stream works", stream=self.name)

    def _tell_plain(self, now: float) -> None:
        """Log when records begin to go plain because the shards are unknown, and when aggregation resumes."""
        pipeline = self.pipeline
        if pipeline.goes_plain and self._went_plain_at is None:
            self._went_plain_at = now
            log.warning(
                "records go plain until the shards are known",
                stream=self.name,
                why=f"ListShards: {pipeline.map_error or 'no answer'}",
            )
        elif self._went_plain_at is not None and not pipeline.goes_plain:
            seconds, self._went_plain_at = round(now - self._went_plain_at, 1), None
            if pipeline.shard_map is not None:  # otherwise nothing was sent for long, and no row needs the list
                log.info("records are aggregated again", stream=self.name, plain_seconds=seconds)

    def _tell_format(self) -> None:
        """Log once that the service has refused CBOR."""
        refusal = self.pipeline.cbor_refused_as
        if refusal is not None and not self._told_format:
            self._told_format = True
            log.warning(
                "the service refuses CBOR; requests go in JSON from now on",
                stream=self.name,
                code=refusal.code,
                message=refusal.message,
                **request_values(refusal.request_id),
            )

    def _tell_body_limit(self, now: float) -> None:
        """Log that a proxy refuses large requests, once only smaller ones pass for a while, and when that has ended."""
        limit = self.pipeline.body_limit
        if limit.lasts_since is None:
            if self._told_body_limit:
                log.info("large requests pass again", stream=self.name)
            self._told_body_limit = False
        elif not self._told_body_limit and now >= limit.lasts_since + BODY_LIMIT_SECONDS:
            self._told_body_limit = True
            log.warning(
                "a proxy refuses large requests; they are cut to the size that passes",
                stream=self.name,
                refused_bytes=limit.refused_body_bytes,
                passed_bytes=limit.passed_body_bytes,
            )


async def within(seconds: float, event: asyncio.Event) -> None:
    """Wait for an event, at most for this long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds if seconds < inf else None):
            await event.wait()


def _rules(settings: StreamSettings) -> PipelineRules:
    return PipelineRules(
        EntryRules(
            aggregate=settings.aggregation == "kpl",
            aggregate_max_bytes=settings.aggregate_max_bytes,
            aggregate_max_records=settings.aggregate_max_records,
            request_max_records=settings.request_max_records,
            request_max_bytes=settings.request_max_bytes,
            per_key=settings.ordering == "per_key",
        ),
        linger_seconds=settings.linger_seconds,
        max_in_flight_requests=settings.max_in_flight_requests,
        max_in_flight_bytes=settings.max_in_flight_bytes,
        shard_map_wait_seconds=settings.shard_map_wait_seconds,
        permanent_error_grace_seconds=settings.permanent_error_grace_seconds,
        first_contact_timeout_seconds=settings.first_contact_timeout_seconds or inf,
        request_timeout_seconds=settings.request_timeout_seconds,
        record_ttl_seconds=settings.record_ttl_seconds or inf,
        fail_if_throttled=settings.on_throttle == "fail",
        shard_rate_fraction=settings.shard_rate_fraction,
        wire_format=settings.wire_format,
    )
