"""Stream: one stream's pipeline behind its gate, with a verb for each thing that happens to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Protocol

from producerd.config import StreamSettings
from producerd.config.tuning import TUNING, Tuning
from producerd.core import turn
from producerd.core.budget import NodeBudget, NodeInFlight, QueueBudget
from producerd.core.gate import MAX_RECORD_BYTES, AdmissionGate, Caller, Member, Ticket
from producerd.core.pipeline import Pipeline
from producerd.core.rows import flushing, intake
from producerd.core.rows.frame import Frame
from producerd.core.rows.intake import CheckedRows
from producerd.core.rules import EntryRules, PipelineRules
from producerd.core.shards.shard_map import ShardMap
from producerd.runtime.kinesis import address_of
from producerd.runtime.logs import get_logger
from producerd.runtime.stream_report import StreamReport
from producerd.wire.columns import Body, Layout

log = get_logger("producerd.stream")

SUMMARY_PATIENCE_SECONDS = 2.0
"""Longest time for which rows of a new stream wait for its summary.

It shows whether the shards follow the keys, which aggregates need, and the limit on a record.
"""


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
        node: NodeBudget | None = None,
        in_flight: NodeInFlight | None = None,
        *,
        touched: Callable[[Stream], None] = lambda _: None,
        credentials: Credentials | None = None,
        tuning: Tuning = TUNING,
    ) -> None:
        self.name = name
        self.settings = settings
        self._tuning = tuning
        self.address = address_of(name, settings)
        self.budget = QueueBudget(settings.queue_limit, settings.queue_limit_bytes, node)
        self.pipeline = Pipeline(_rules(settings, tuning), self.budget, Random(), in_flight)
        self.gate = AdmissionGate(
            self.budget,
            self.pipeline.refuses,
            max_frame_bytes=tuning.max_frame_bytes,
            max_frame_records=tuning.max_frame_records,
        )
        self.stats, self.diagnosis = self.pipeline.stats, self.pipeline.diagnosis
        self.report = StreamReport(name, self.pipeline, self.gate, self.budget)
        self.rejected_records: Counter[str] = Counter()  # by code
        self.refused_records = 0
        self.left_out_records = 0
        self.credentials = credentials
        self.reading_changed = asyncio.Event()
        self.summary_wanted = asyncio.Event()  # at once, for a caller that needs it
        self.followers: set[Stream] = set()  # which learn what it learns about its shards
        self._touched = touched
        self._reads_next = self.pipeline.next_reading()
        self._idle_since: float | None = None

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
        self.report.settled(now)
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

        If the frame ``takes_rest``, its good rows are accepted.
        """
        self.gate.received(ticket)
        keeps_order = self.pipeline.rules.entries.per_key
        if frame.rows is not None and frame.rows.bad:
            self.rejected_records += frame.end_bad_rows(keeps_order=keeps_order)
        if accepted := not frame.finished:
            self.pipeline.submit(frame, now)
        else:
            if not frame.takes_rest(keeps_order=keeps_order):
                self.pipeline.frame_refused(frame.owner)
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
        self.report.learn_capacity_mode(capacity_mode)
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

    def return_rows(self) -> None:
        """Return or send the rows, because the daemon stops.  See `Pipeline.return_rows`."""
        self.pipeline.return_rows()
        self._touched(self)

    # ---- the operator

    def reload(self, settings: StreamSettings, now: float) -> None:
        """Follow new settings from now on, except those that need a restart.  No row is dropped.

        See `Pipeline.set_rules`.  The gate admits waiting callers that fit now, and refuses those that never will.
        """
        self.settings = settings
        self.pipeline.set_rules(_rules(settings, self._tuning), now)
        self.gate.set_limits(settings.queue_limit, settings.queue_limit_bytes, now)
        self._touched(self)

    def forget_refusal(self) -> None:
        """Let the next row find out whether Kinesis still refuses the stream, which no client uses."""
        self.pipeline.health.forget_refusal()
        self.report.refusal_forgotten()

    def count_rejected(self, code: str) -> None:
        """Count a record that the gate refused for its own sake."""
        self.rejected_records[code] += 1

    def count_refused(self, records: int) -> None:
        """Count records whose frame the gate refused because of the stream."""
        self.refused_records += records

    def count_left_out(self, records: int) -> None:
        """Count records that a client did not send, because an earlier run has stored them."""
        self.left_out_records += records

    def pause(self, now: float) -> None:
        """Send nothing until `resume`.  The gate still admits callers until the queue is full."""
        if not self.pipeline.paused:
            self.pipeline.pause()
            self.report.paused(now)

    def resume(self, now: float) -> None:
        if self.pipeline.paused:
            self.pipeline.resume()
            self.report.resumed(now)
            self._touched(self)

    def flush_all(self) -> FlushProgress:
        """Send every row accepted until now without lingering.  Return how these rows end."""
        done = asyncio.Event()
        flushing = FlushProgress(self.pipeline.flush_all(done.set), done)
        self._touched(self)
        return flushing

    @property
    def idle_since(self) -> float | None:
        """When it was first seen without sessions and rows, or None if it has either or is paused."""
        return self._idle_since if self._is_idle else None

    @property
    def _is_idle(self) -> bool:
        return self.pipeline.idle and not self.is_open and not self.pipeline.paused


async def within(seconds: float, event: asyncio.Event) -> None:
    """Wait for an event, at most for this long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds if seconds < inf else None):
            await event.wait()


def _rules(settings: StreamSettings, tuning: Tuning) -> PipelineRules:
    return PipelineRules(
        EntryRules(
            aggregate=settings.aggregation == "kpl",
            aggregate_max_bytes=settings.aggregate_max_bytes,
            aggregate_max_records=tuning.aggregate_max_records,
            request_max_records=tuning.request_max_records,
            request_max_bytes=settings.request_max_bytes,
            per_key=settings.ordering == "per_key",
        ),
        linger_seconds=settings.linger_seconds,
        max_in_flight_requests=settings.max_in_flight_requests,
        max_in_flight_bytes=tuning.max_in_flight_bytes,
        shard_map_wait_seconds=tuning.shard_map_wait_seconds,
        permanent_error_grace_seconds=tuning.permanent_error_grace_seconds,
        first_contact_timeout_seconds=tuning.first_contact_timeout_seconds,
        request_timeout_seconds=settings.request_timeout_seconds,
        record_ttl_seconds=settings.record_ttl_seconds or inf,
        fail_if_throttled=settings.on_throttle == "fail",
        shard_rate_fraction=settings.shard_rate_fraction,
        wire_format=settings.wire_format,
    )
