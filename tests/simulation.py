"""A whole stream in virtual time, and the laws that hold whatever happens to it.

Everything is real but threads, sockets and the clock: callers, gate and pipeline here, the fake Kinesis there.
`tests.simulate` draws what happens from a seed.

- `Laws`: what holds after every step, for each frame that is acknowledged, and at the end.  Start there.
- `Consumer`: what is handed to somebody who reads the stream as Amazon's own library does.
- `Session`: a caller, and what it was told.
- `Simulation`: the clock, the worker threads, the network, and the watch that reads the shards.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, pairwise
from math import inf
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from producerd.core import intake
from producerd.core.budget import QueueBudget
from producerd.core.entries import Answer, EncodedRequest, EntryRules, Piece, RequestFailed, encode, parse_answer
from producerd.core.frame import Frame, FrameResult, RowEnd
from producerd.core.pacing import Pacer
from producerd.core.pipeline import Pipeline, SortJob
from producerd.core.requests import Request
from producerd.core.retry import StreamHealth
from producerd.core.rules import PipelineRules
from producerd.core.shards import Shard, ShardMap, map_from_listing
from producerd.core.spans import IN_REQUEST, QUEUED, Job, SortedRows, Span, sort_rows
from producerd.core.stats import StreamStats
from producerd.errors import Code, Outcome
from producerd.runtime.gate import AdmissionGate, Refusal, Ticket
from producerd.testing import FakeKinesis, Stream, deaggregate, hash_of
from producerd.testing.streams import SHARD_BYTES_PER_SECOND, SHARD_RECORDS_PER_SECOND
from producerd.wire import columns
from producerd.wire.columns import FRAME_CHARGE_BYTES, Columns

STREAM = "flights"
ADDRESS = {"StreamName": STREAM}
INLINE_ROWS: Final = 64
"""Work on at most so many rows is done on the loop thread, as the dispatcher does it."""
WORKER_SECONDS: Final = 0.002
"""The most that a worker thread takes for a job or a request."""


def make_rules(**changes: Any) -> PipelineRules:
    """The defaults of docs/names.md, with some changed."""
    entry: dict[str, Any] = {
        "aggregate": False,
        "aggregate_max_bytes": 51_200,
        "aggregate_max_records": 2**32 - 1,
        "request_max_records": 500,
        "request_max_bytes": 1 << 20,
        "per_key": False,
    }
    rest: dict[str, Any] = {
        "linger_seconds": 0.1,
        "max_in_flight_requests": 24,
        "max_in_flight_bytes": 32 << 20,
        "shard_map_wait_seconds": 10.0,
        "permanent_error_grace_seconds": 60.0,
    }
    for name, value in changes.items():
        (entry if name in entry else rest)[name] = value
    return PipelineRules(EntryRules(**entry), **rest)


def make_body(laid_out: Columns, frame_id: int = 1) -> columns.Body:
    """A frame's body as the daemon reads it."""
    payload = laid_out.body_prefix(frame_id) + b"".join(bytes(part) for part in laid_out.parts)
    return columns.parse_body(payload, laid_out.layout.flags)


# ---- what is sent, and what a consumer makes of it


class User(NamedTuple):
    """A record as a consumer is handed it.  No two rows of a simulation are alike."""

    partition_key: str
    data: bytes


class Row(NamedTuple):
    """A row as its caller sends it.  ``users``: what a consumer is to be handed for it, several for an aggregate."""

    key: bytes
    data: bytes | None
    hash_key: bytes | None
    users: tuple[User, ...]

    @staticmethod
    def plain(key: bytes, data: bytes | None, hash_key: bytes | None = None) -> Row:
        """One record; a null key is spread, and stored as "-".  Without data it is a bad row."""
        users = (User(key.decode(errors="replace") or "-", data),) if data is not None else ()
        return Row(key, data, hash_key, users)

    @property
    def hash(self) -> int | None:
        """Its place among the shards; None where chance decides."""
        if self.hash_key:
            return int(self.hash_key)
        return hash_of(self.key.decode(), None) if self.key else None


class Consumer:
    """Reads what is stored, by the rule of `Stream.read`: an aggregate with one hash outside its shard is dropped."""

    def __init__(self) -> None:
        self.first: dict[User, int] = {}  # where it was first handed over: rises with time, and within an aggregate
        self.copies: Counter[User] = Counter()  # all that were stored, dropped ones too
        self.dropped_aggregates = 0
        self._stream: Stream | None = None
        self._seen = 0

    def look(self, stream: Stream) -> None:
        """Read on, or begin with another stream of that name."""
        if stream is not self._stream:
            self._stream, self._seen = stream, 0
        entries = stream._entries
        for entry in entries[self._seen :] if len(entries) > self._seen else ():
            inside = deaggregate(entry.data)
            if inside is None:
                self._hand_over(User(entry.partition_key, entry.data))
                continue
            shard = stream.shards[int(entry.shard_id[-12:])]
            users = [User(user.partition_key, user.data) for user in inside]
            if all(shard.start <= hash_of(user.partition_key, user.explicit_hash_key) <= shard.end for user in inside):
                for user in users:
                    self._hand_over(user)
            else:
                self.dropped_aggregates += 1
                self.copies.update(users)
        self._seen = len(entries)

    def has(self, row: Row) -> bool:
        """Whether all of a row was handed over."""
        first = self.first
        return all(user in first for user in row.users)

    def copies_of(self, row: Row) -> int:
        """The most that was stored of any part of it."""
        return max([self.copies[user] for user in row.users], default=0)

    def _hand_over(self, user: User) -> None:
        self.copies[user] += 1
        self.first.setdefault(user, len(self.first))


# ---- callers


class Sent:
    """One frame, as its caller knows it."""

    __slots__ = ("columns", "frame", "frame_id", "result", "rows", "session", "ticket")

    def __init__(self, session: Session, frame_id: int, rows: list[Row]) -> None:
        self.session = session
        self.frame_id = frame_id
        self.rows = rows
        hash_keys = [row.hash_key for row in rows] if any(row.hash_key for row in rows) else None
        self.columns = columns.lay_out([row.key for row in rows], [row.data for row in rows], hash_keys)
        self.ticket: Ticket | None = None  # while it waits for room, or is on its way
        self.frame: WatchedFrame | None = None  # since it was accepted
        self.result: FrameResult | None = None  # its acknowledgement

    def ends(self) -> list[RowEnd | None] | None:
        """How each row ended, as an acknowledgement tells it: None is STORED.  No list where nobody can be told."""
        frame = self.frame
        if frame is None or not frame.finished or frame.dropped:
            return None
        result = self.result or frame.result()
        if not result.bitmap:
            return [None] * result.records
        failed = np.unpackbits(np.frombuffer(result.bitmap, np.uint8), count=result.records, bitorder="little")
        ends: list[RowEnd | None] = [None] * result.records
        places = np.frombuffer(result.code_rows, "<u2").tolist() if result.code_rows else [0] * result.records
        for row, place in zip(np.flatnonzero(failed).tolist(), places, strict=False):
            ends[row] = result.codes[place]
        return ends


class WatchedFrame(Frame):
    """A frame whose rows are looked at when they end."""

    __slots__ = ("accepted", "dropped", "laws", "sent")

    def __init__(self, sent: Sent, rows: intake.Rows, charge_bytes: int) -> None:
        super().__init__(sent.session, sent.frame_id, rows, charge_bytes)
        self.sent = sent
        self.laws = sent.session.sim.laws
        self.accepted = False
        self.dropped = 0

    def end(self, rows: Any, end: RowEnd) -> None:
        if self.accepted:
            self.laws.row_ends(self, int(rows.min()), end)
        super().end(rows, end)

    def drop(self, records: int) -> None:
        self.dropped += records
        super().drop(records)

    def _settle(self, records: int) -> None:
        super()._settle(records)
        self.laws.row_settles(self)


class Flush:
    """A caller waits until what it sent before is acknowledged."""

    def __init__(self, waits_for: Iterable[WatchedFrame]) -> None:
        self.waits_for = set(waits_for)  # acknowledgements that are missing


class Session:
    """A caller that sends frames, waits for room, flushes, cancels, vanishes, and keeps what it was told.

    ``deliver``: what it leaves behind is still to be delivered.  ``take_good``: bad rows do not refuse their frame.
    """

    def __init__(
        self, sim: Simulation, *, deliver: bool = False, take_good: bool = False, window_bytes: int = 8 << 20
    ) -> None:
        self.sim = sim
        self.deliver = deliver
        self.take_good = take_good
        self.window_bytes = window_bytes
        self.member = sim.gate.join(self)
        self.gone = False
        self.granted_ticket: Ticket | None = None  # the one body on its way
        self.sent: dict[int, Sent] = {}
        self.unacked: dict[WatchedFrame, None] = {}
        self.unacked_bytes = 0  # of frames that were granted
        self.refusals: dict[int, Refusal] = {}
        self.flushes: list[Flush] = []  # that have not returned
        self.first_failed: tuple[int, int] | None = None  # frame and row, where the order is kept
        self._ids = count(1)

    # ---- what it has been told

    @property
    def waiting(self) -> list[Sent]:
        """Frames that wait for room, or are on their way."""
        return [sent for sent in self.sent.values() if sent.ticket is not None]

    @property
    def accepted(self) -> list[Sent]:
        return [sent for sent in self.sent.values() if sent.frame is not None]

    @property
    def acked(self) -> dict[int, FrameResult]:
        return {sent.frame_id: sent.result for sent in self.sent.values() if sent.result is not None}

    # ---- what it does

    def send(self, rows: Iterable[Row | tuple[bytes, bytes]]) -> int:
        """Ask for room for a frame; it follows when there is."""
        frame_id = next(self._ids)
        sent = Sent(self, frame_id, [row if isinstance(row, Row) else Row.plain(*row) for row in rows])
        self.sent[frame_id] = sent
        sent.ticket = ticket = self.sim.gate.ask(self.member, frame_id, sent.columns.layout, self.sim.now)
        if not ticket.waiting and not ticket.granted:
            sent.ticket = None
        return frame_id

    def flush(self) -> None:
        """Wait for what was sent, and for nothing that is sent from now on."""
        self.sim.pipeline.flush(self)
        if self.unacked:
            self.flushes.append(Flush(self.unacked))

    def cancel(self, frame_id: int) -> None:
        """What a caller's time-out does."""
        sent = self.sent[frame_id]
        ticket, sent.ticket = sent.ticket, None
        if ticket is not None:
            if ticket is self.granted_ticket:
                self.granted_ticket = None
                self.unacked_bytes -= ticket.layout.charge_bytes
            self.sim.gate.cancel(ticket, self.sim.now)

    def vanish(self) -> None:
        """The connection ends."""
        self.gone = True
        self.flushes.clear()
        self.unacked.clear()
        ticket, self.granted_ticket = self.granted_ticket, None
        if ticket is not None:
            self.sim.gate.cancel(ticket, self.sim.now)
        for sent in self.waiting:
            sent.ticket = None
        if self.deliver:
            self.sim.pipeline.disown(self)
        else:
            self.sim.pipeline.discard(self)
        self.sim.gate.leave(self.member, self.sim.now)

    # ---- what the gate and the pipeline tell it

    def may_receive(self, charge_bytes: int) -> bool:
        if self.gone or self.granted_ticket is not None:
            return False
        return not self.unacked_bytes or self.unacked_bytes + charge_bytes <= self.window_bytes

    def granted(self, ticket: Ticket) -> None:
        if self.gone:
            raise LawBroken("AdmissionGate", "room was granted to a caller that is gone")
        self.granted_ticket = ticket
        self.unacked_bytes += ticket.layout.charge_bytes
        self.sim.after(self.sim.random.uniform(0, self.sim.body_seconds), lambda: self._body_arrives(ticket))

    def refused(self, ticket: Ticket, refusal: Refusal) -> None:
        self.sent[ticket.frame_id].ticket = None
        self.refusals[ticket.frame_id] = refusal

    def finished(self, frame: Frame) -> None:
        """Its acknowledgement."""
        assert isinstance(frame, WatchedFrame)
        self.sim.laws.frame_is_acknowledged(self, frame)
        frame.sent.result = frame.result()
        self.unacked.pop(frame, None)
        self.unacked_bytes -= frame.charge_bytes
        self.sim.gate.settled(self.member, frame.records, frame.charge_bytes)
        self.sim.laws.acknowledgement_is_true(frame.sent)
        for flush in self.flushes:
            flush.waits_for.discard(frame)
        self.flushes = [flush for flush in self.flushes if flush.waits_for]

    def _body_arrives(self, ticket: Ticket) -> None:
        """As `producerd.runtime.session` accepts it."""
        if self.granted_ticket is not ticket:
            return
        sim, sent = self.sim, self.sent[ticket.frame_id]
        self.granted_ticket = sent.ticket = None
        entries = sim.pipeline.rules.entries
        takes_aggregates = entries.aggregate and not entries.per_key
        body = make_body(sent.columns, ticket.frame_id)
        rows = intake.check(body, sim.max_record_bytes, takes_aggregates=takes_aggregates)
        frame = sent.frame = WatchedFrame(sent, rows, ticket.layout.charge_bytes)
        sim.gate.received(ticket)
        if rows.bad:
            frame.end_bad_rows(take_good=self.take_good)
        if not frame.finished:
            frame.accepted = True
            self.unacked[frame] = None
            sim.pipeline.submit(frame, sim.now)
            return
        if not self.take_good:
            sim.pipeline.refused(self)
            if entries.per_key:
                self.first_failed = self.first_failed or (sent.frame_id, 0)
        sim.budget.release(frame.records, frame.charge_bytes)
        self.finished(frame)


# ---- the laws


class LawBroken(AssertionError):
    """``law``: its owner in the table of docs/architecture.md; or a promise that has no owner there: acknowledgement,
    possible_duplicates, copies, per_key, flush."""

    def __init__(self, law: str, what: str) -> None:
        super().__init__(f"{law}: {what}")
        self.law = law


OWN_CHECKS: Final = {
    "a row settled twice": "Row",
    "admitted past the limit": "QueueBudget",
    "released more than was taken": "QueueBudget",
}
"""What the core asserts itself."""


@contextmanager
def laws_named() -> Iterator[None]:
    """What the core asserts itself breaks a law, too."""
    try:
        yield
    except LawBroken:
        raise
    except AssertionError as error:
        law = OWN_CHECKS.get(str(error))
        if law is None:
            raise
        raise LawBroken(law, str(error)) from error


class Laws:
    """Each method is a law.  ``allowed_codes``: for what reasons rows may end otherwise than STORED, in this run.

    They look at the owners' own collections, so that nothing can hide between what an owner says and what it holds.
    """

    FEW_REQUESTS: Final = 60
    """In `OUTAGE_SECONDS` without an answer.  (Of 1,500 seeds one made 29.)"""
    FEW_REQUESTS_A_ROW: Final = 10
    """In `OUTAGE_SECONDS`, where there are answers, and nothing is stored.  (Of 1,500 seeds one made 3.)"""
    OUTAGE_SECONDS: Final = 10.0
    FEW_WAKES: Final = 500
    """In a second, for nothing."""
    PACE_SLACK_SECONDS: Final = 0.02
    """Between the moment when the pace is asked and that when the request leaves."""
    MOST_COPIES: Final = 3
    """One that a consumer is handed, and two that were stored in vain: an aggregate, and one by a newer map."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.allowed_codes: set[str] | None = None
        self.seen: set[str] = set()  # where rows were
        self.longest_timeout_seconds = 0.0
        self._used = (0, 0)
        self._deep = 0
        self._ended = 0  # rows, when something was stored last
        self._unanswered: deque[float] = deque()  # when requests left since then
        self._failed: deque[float] = deque()  # when requests failed as a whole, since one had an answer
        self._wakes: deque[float] = deque()
        self._reached: dict[Shard, list[tuple[float, Any]]] = {}  # when entries were sent, and their sizes

    # ---- after every step

    def hold(self) -> None:
        """After every step; what looks at each row, after every eighth."""
        self.room_is_what_rows_and_grants_hold()
        self.every_accepted_row_is_somewhere()
        self.lanes_are_of_open_shards()
        self._deep += 1
        if self._deep % 8 == 0:
            self.rows_in_a_request_are_not_settled()
            self.rows_wait_in_the_lane_of_their_shard()
            self.seen.add(f"held by {self.sim.pipeline.holding(self.sim.now).cause}")

    def room_is_what_rows_and_grants_hold(self) -> None:
        """Nothing is admitted past a limit; a record counts until it settles, its bytes until its buffer is let go."""
        sim = self.sim
        budget, ledger = sim.budget, sim.pipeline.ledger
        granted = [session.granted_ticket for session in sim.sessions if session.granted_ticket is not None]
        granted_bytes = sum([ticket.layout.charge_bytes for ticket in granted])
        if sim.gate._unreceived_bytes != granted_bytes:
            raise LawBroken("AdmissionGate", f"{sim.gate._unreceived_bytes} granted, {granted_bytes} on their way")
        records = sum([frame.unsettled for frame in ledger.frames]) + sum([t.layout.records for t in granted])
        if budget.used_records != records:
            raise LawBroken("QueueBudget", f"{budget.used_records} records are taken, {records} are there")
        bytes_ = granted_bytes + FRAME_CHARGE_BYTES * len(ledger.frames) + sim.unsorted_bytes() + sim.buffer_bytes()
        if budget.used_bytes != bytes_:
            raise LawBroken("QueueBudget", f"{budget.used_bytes} bytes are taken, {bytes_} are there")
        for used, before, limit in zip(
            (budget.used_records, budget.used_bytes),
            self._used,
            (budget.limit_records, budget.limit_bytes),
            strict=True,
        ):
            if used > max(limit, before):
                raise LawBroken("QueueBudget", f"{used} of {limit} are taken, before it were {before}")
        self._used = (budget.used_records, budget.used_bytes)

    def every_accepted_row_is_somewhere(self) -> None:
        """accepted = settled + filling + sorting + queued + in flight + awaiting a map, in records."""
        pipeline = self.sim.pipeline
        sender, stats = pipeline.sender, pipeline.stats
        places = {
            "filling": sum([frame.unsettled for batch in (pipeline._filling, *pipeline._sealed) for frame in batch]),
            "sorting": sum([frame.unsettled for frame in pipeline.ledger.sorting]),
            "queued": sum([_live(lane.spans) for lane in sender.lanes])
            + sum([_live_of(pieces) for _, _, pieces in sender._later])
            + sum([_live_of(pieces) for pieces in sender._alone]),
            "in flight": sum([_live_of(request.pieces, IN_REQUEST) for request in sender.in_flight]),
            "awaiting a map": sum([_live_of(waiting.pieces) for waiting in sender._awaiting]),
        }
        unsettled = sum([frame.unsettled for frame in pipeline.ledger.frames])
        self.seen.update([place for place, rows in places.items() if rows])
        if sum(places.values()) != unsettled:
            raise LawBroken("Pipeline", f"{unsettled} rows are not settled, and these are there: {places}")
        ended = stats.delivered_records + stats.failed_records.total() + stats.discarded_records.total()
        if stats.ingest_records != ended + unsettled:
            raise LawBroken("Pipeline", f"of {stats.ingest_records} rows {ended} ended, and {unsettled} are there")

    def rows_in_a_request_are_not_settled(self) -> None:
        """What is on its way may be in the stream: nobody says how it ended before the answer does."""
        for request in self.sim.pipeline.sender.in_flight:
            for _, span in request.pieces:
                if not (span.buffer.job.state[span.first : span.last] == IN_REQUEST).all():
                    raise LawBroken("Row", "a row of a request on its way has settled")

    def lanes_are_of_open_shards(self) -> None:
        """There are no more lanes than open shards, by the newest map."""
        lanes = self.sim.pipeline.sender.lanes
        if len(lanes) > len(lanes.map):
            shards = [lane.shard.shard_id for lane in lanes]
            raise LawBroken("Lane", f"{shards}, where {[shard.shard_id for shard in lanes.map.shards]} are open")

    def rows_wait_in_the_lane_of_their_shard(self) -> None:
        """Of an open one: by the newest map."""
        lanes = self.sim.pipeline.sender.lanes
        for lane in lanes:
            if lane.shard not in lanes.map:
                raise LawBroken("Lane", f"there is a lane of {lane.shard}, which is not open")
            for span in lane.spans:
                if span.buffer.live and not span.lies_in(lane.shard):
                    raise LawBroken("Lane", f"a row of another shard waits in the lane of {lane.shard}")

    # ---- when something happens

    def settled_frames_are_told(self) -> None:
        """After each look for acknowledgements: a flush waits for its own frames, whatever else was sent since; and a
        frame is acknowledged as soon as its last row has settled."""
        for session in self.sim.sessions:
            for flush in session.flushes:
                if not any(frame.unsettled for frame in flush.waits_for):
                    raise LawBroken("flush", "all that it waits for has settled, and it has not returned")
            for frame in session.unacked:
                if not frame.unsettled:
                    raise LawBroken("Frame", f"frame {frame.frame_id} has settled, and is not acknowledged")

    def row_settles(self, frame: WatchedFrame) -> None:
        """With a TTL no later than that and one request's time-out."""
        late = self.sim.now - frame.expires_at - self.longest_timeout_seconds
        if frame.accepted and late > 0.1:
            raise LawBroken("Row", f"a row settled {late:g} s after its TTL and a request's time-out")

    def row_ends(self, frame: WatchedFrame, row: int, end: RowEnd) -> None:
        """Rows are given up for a reason that the run gave; without a TTL no row expires."""
        allowed = self.allowed_codes
        if allowed is not None and end.code not in allowed and end.outcome is not Outcome.RETURNED:
            raise LawBroken("Row", f"row {row} of frame {frame.frame_id} ended as {end}, for no reason in {allowed}")
        if end.outcome is not Outcome.RETURNED and self.sim.pipeline.rules.entries.per_key:
            place = (frame.frame_id, row)
            session = frame.sent.session
            session.first_failed = min(session.first_failed or place, place)

    def frame_is_acknowledged(self, session: Session, frame: WatchedFrame) -> None:
        """Once, after its last row settled, to a caller that is still there; each of its rows has ended one way."""
        told = sum(frame.tallies.values())
        if session.gone or frame.sent.result is not None:
            raise LawBroken("Frame", "acknowledged to a caller that is gone" if session.gone else "acknowledged twice")
        if frame.unsettled or frame in self.sim.pipeline.ledger.frames:
            raise LawBroken("Frame", f"acknowledged before {frame.unsettled} of its rows have settled")
        if told != frame.records:
            raise LawBroken("Row", f"of a frame of {frame.records} rows the caller is told of {told}")

    def acknowledgement_is_true(self, sent: Sent) -> None:
        """A row that is told STORED is handed to a consumer."""
        consumer = self.sim.consume()
        for row, end in zip(sent.rows, sent.ends() or (), strict=False):
            if end is None and not consumer.has(row):
                raise LawBroken("acknowledgement", f"{row.users[0]} is told STORED, and no consumer is handed it")

    def map_is_learnt(self, shard_map: ShardMap) -> None:
        """The newest map is the one that is used, as soon as it is read."""
        if self.sim.pipeline.shard_map != shard_map or self.sim.pipeline.sender.lanes.map != shard_map:
            raise LawBroken("ShardMap", "a newer map was read, and another one is used")
        self.lanes_are_of_open_shards()
        self.rows_wait_in_the_lane_of_their_shard()

    def request_is_taken(self, request: Request) -> None:
        """Where the order is kept, nothing is sent that its session sent after a row that failed."""
        if not self.sim.pipeline.rules.entries.per_key:
            return
        for _, span in request.pieces:
            for frame, rows in span.buffer.job.frames_of(slice(span.first, span.last)):
                assert isinstance(frame, WatchedFrame)
                failed = frame.sent.session.first_failed
                if failed is not None and (frame.frame_id, int(rows.max())) > failed:
                    raise LawBroken("per_key", f"frame {frame.frame_id} is sent, though {failed} before it failed")

    def request_is_made(self, request: Request, now: float) -> None:
        """Where nothing is stored, requests are few."""
        self.longest_timeout_seconds = max(self.longest_timeout_seconds, request.timeout_seconds)
        sent = self._unanswered
        sent.append(now)
        while sent[0] < now - self.OUTAGE_SECONDS:
            sent.popleft()
        most = self.FEW_REQUESTS_A_ROW * (self.sim.pipeline.stats.ingest_records - self._ended + 10)
        if len(sent) > most:
            raise LawBroken("RetryPolicy", f"{len(sent)} requests in {now - sent[0]:g} s, and nothing was stored")

    def request_is_answered(self, outcome: Answer | RequestFailed, now: float) -> None:
        """In an outage, in which no request has an answer, there are few of them."""
        failed = self._failed
        if not isinstance(outcome, RequestFailed):
            failed.clear()
            if (outcome.errors < 0).any():
                self._unanswered.clear()
                self._ended = self.sim.pipeline.stats.ingest_records - self.sim.pipeline.queued_records
            return
        failed.append(now)
        while failed[0] < now - self.OUTAGE_SECONDS:
            failed.popleft()
        if len(failed) > self.FEW_REQUESTS:
            raise LawBroken(
                "RetryPolicy", f"{len(failed)} requests failed in {now - failed[0]:g} s, and none was answered"
            )

    def request_reaches_its_shards(self, encoded: EncodedRequest, sent_at: float) -> None:
        """See `shards_are_sent_what_they_take`."""
        for place, lane in enumerate(encoded.lane_table):
            if lane.shard.shard_id:
                entries = self._reached.setdefault(lane.shard, [])
                entries.append((sent_at, encoded.sizes[encoded.lanes == place]))

    def what_is_due_is_done(self, could_be_done: bool, due: float) -> None:
        """A time that has passed is no time to wait for: it would hide what is due later."""
        if could_be_done:
            now, pipeline = self.sim.now, self.sim.pipeline
            owner = "Pipeline"
            if pipeline.rules.record_ttl_seconds < inf and pipeline.ledger.next_expiry() <= now:
                owner = "Row"
            elif pipeline.sender.lanes.next_time() <= now:
                owner = "Pacer"  # a lane whose time has come is let go
            raise LawBroken(owner, f"something has been due for {now - due:g} s, and is not done")

    def woken_for_nothing(self, now: float) -> None:
        """Nothing is looked at over and over while nothing can be done."""
        wakes = self._wakes
        wakes.append(now)
        while wakes[0] < now - 1.0:
            wakes.popleft()
        if len(wakes) > self.FEW_WAKES:
            raise LawBroken("RetryPolicy", f"woken {len(wakes)} times in a second, for nothing")

    def entries_in_flight_are_apart(self, in_flight: dict[Request, list[tuple[int, int]]]) -> None:
        """Where the order is kept: no two entries on their way have overlapping hash ranges (raw: equal keys)."""
        ranges = sorted([entry for entries in in_flight.values() for entry in entries])
        for (_, end), (start, _) in pairwise(ranges):
            if start <= end:
                raise LawBroken("per_key", "two entries with one hash key are in flight at once")

    # ---- at the end

    def hold_at_the_end(self, *, only_resharded: bool, nothing_doubtful: bool) -> None:
        """Everything has settled and nobody waits."""
        self.sim.consume()
        self.every_frame_is_told()
        self.counters_agree_with_frames()
        self.nothing_is_left()
        self.shards_are_sent_what_they_take()
        for session in self.sim.sessions:
            for sent in session.sent.values():
                self.acknowledgement_is_true(sent)
                self.not_stored_is_not_there(sent)
                self.copies_are_reported(sent)
                if only_resharded:
                    self.copies_are_few(sent)
        if nothing_doubtful and self.sim.pipeline.stats.possible_duplicate_records.total():
            counted = self.sim.pipeline.stats.possible_duplicate_records
            raise LawBroken("possible_duplicates", f"nothing failed, and these were counted: {counted}")
        if self.sim.pipeline.rules.entries.per_key:
            self.the_order_is_kept()

    def every_frame_is_told(self) -> None:
        """Each accepted frame of a caller that stayed has been acknowledged; each row of the others has settled."""
        for session in self.sim.sessions:
            for sent in session.accepted:
                if sent.frame is not None and sent.frame.unsettled:
                    raise LawBroken("Row", f"{sent.frame.unsettled} rows of frame {sent.frame_id} never settled")
                if sent.result is None and not session.gone:
                    raise LawBroken("Frame", f"frame {sent.frame_id} was never acknowledged")

    def counters_agree_with_frames(self) -> None:
        """What the metrics say is what the callers are told."""
        stats = self.sim.pipeline.stats
        frames = [sent.frame for session in self.sim.sessions for sent in session.accepted if sent.frame is not None]
        frames = [frame for frame in frames if frame.accepted]
        told = {
            "stored": (stats.delivered_records, sum([frame.tallies[Outcome.STORED] for frame in frames])),
            "retries": (stats.retried_records, sum([frame.retries for frame in frames])),
            "throttled": (stats.throttled_records, sum([frame.throttled for frame in frames])),
            "possible duplicates": (
                stats.possible_duplicate_records.total(),
                sum([frame.possible_duplicates for frame in frames]),
            ),
        }
        for name, (counted, in_frames) in told.items():
            if counted != in_frames:
                raise LawBroken("Pipeline", f"{name}: {counted} are counted, and {in_frames} told")

    def nothing_is_left(self) -> None:
        """All numbers are zero and every collection is empty; what may stay does not grow with what was sent."""
        sim = self.sim
        found = [
            *_leftovers("pipeline", sim.pipeline),
            *_leftovers("gate", sim.gate),
            *_leftovers("budget", sim.budget),
        ]
        if found:
            raise LawBroken("Pipeline", f"idle, and these are left: {found}")
        if (due := sim.pipeline.next_time()) is not None:
            raise LawBroken("Pipeline", f"idle, and something is due in {due - sim.now:g} s")

    def shards_are_sent_what_they_take(self) -> None:
        """Over T seconds at most T x rate + the larger of one second's rate and the largest entry, for each shard."""
        fraction = self.sim.pipeline.rules.shard_rate_fraction
        for shard, sent in self._reached.items():
            for unit, rate in (("records", SHARD_RECORDS_PER_SECOND), ("bytes", SHARD_BYTES_PER_SECOND)):
                above = before = 0.0
                largest = 1 if unit == "records" else max([int(sizes.max(initial=0)) for _, sizes in sent])
                most = max(fraction * rate, largest) + self.PACE_SLACK_SECONDS * rate
                for at, sizes in sorted(sent, key=lambda one: one[0]):
                    above = max(0.0, above - (at - before) * fraction * rate)
                    above += len(sizes) if unit == "records" else int(sizes.sum())
                    before = at
                    if above > most:
                        raise LawBroken(
                            "Pacer", f"{shard.shard_id} was sent {above:.0f} {unit} above its rate, not {most}"
                        )

    def not_stored_is_not_there(self, sent: Sent) -> None:
        """A row that an attempt may have stored is never told as NOT_STORED, or as returned for good."""
        for row, end in zip(sent.rows, sent.ends() or (), strict=False):
            if end is None or end.outcome is Outcome.UNKNOWN or end.maybe_stored:
                continue
            if self.sim.consumer.copies_of(row):
                raise LawBroken("acknowledgement", f"{row.users[0]} is told {end}, and is in the stream")

    def copies_are_reported(self, sent: Sent) -> None:
        """Of the rows that are told STORED those that are there twice were counted as possible duplicates."""
        ends = sent.ends()
        if ends is None or sent.frame is None:
            return
        stored = [row for row, end in zip(sent.rows, ends, strict=True) if end is None]
        twice = sum([self.sim.consumer.copies_of(row) > 1 for row in stored])
        if twice > sent.frame.possible_duplicates:
            counted = sent.frame.possible_duplicates
            raise LawBroken("possible_duplicates", f"{twice} rows of a frame are there twice, {counted} were counted")

    def copies_are_few(self, sent: Sent) -> None:
        """Where shards split and merge, and nothing else fails."""
        for row in sent.rows:
            copies = self.sim.consumer.copies_of(row)
            as_one = len(row.users) > self.sim.pipeline.rules.entries.request_max_records
            if copies > self.MOST_COPIES and not as_one:  # came as an aggregate, of more records than fit a request
                raise LawBroken(
                    "copies", f"{copies} copies of {row.users[0]} were stored, and nothing but shards changed"
                )

    def the_order_is_kept(self) -> None:
        """What a session sent of one hash key is first handed over in the order in which it was sent."""
        first = self.sim.consumer.first
        for session in self.sim.sessions:
            last: dict[int, int] = {}
            for sent in session.accepted:
                for row in sent.rows:
                    place = first.get(row.users[0]) if row.users else None
                    if place is None or (hash_key := row.hash) is None:
                        continue
                    if place < last.get(hash_key, -1):
                        raise LawBroken("per_key", f"{row.users[0]} is read before one that was sent before it")
                    last[hash_key] = place


def _live(spans: Iterable[Span], state: int = QUEUED) -> int:
    return sum(
        [
            int(np.count_nonzero(span.buffer.job.state[span.first : span.last] == state))
            if span.buffer.job.has_gaps
            else span.last - span.first
            for span in spans
        ]
    )


def _live_of(pieces: Iterable[Piece], state: int = QUEUED) -> int:
    return _live([piece.span for piece in pieces], state)


ZERO_WHEN_IDLE: Final = frozenset(
    (
        *(
            "used_records",
            "used_bytes",
            "taken_bytes",
            "taken_records",
            "in_flight",
            "in_flight_bytes",
            "parcels",
            "queued",
        ),
        *("live_buffers", "_waiting", "_unreceived_bytes", "_filling_records", "_filling_bytes"),
    )
)
MAY_STAY: Final = frozenset(["waits_seconds", "_members", "_failed_sessions", "_lanes"])
"""Lanes: at most one for each open shard.  What is in all of these is looked at."""
VALUES: Final = (StreamStats, ShardMap, PipelineRules, StreamHealth, Pacer, Shard, Session, Random)
"""Bounded by what they are: codes, shards, settings."""


def _leftovers(path: str, thing: Any, seen: set[int] | None = None) -> Iterator[str]:
    """Collections that are not empty, and numbers that are not zero, in an owner's attributes and theirs."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, VALUES) or not type(thing).__module__.startswith("producerd."):
        return
    seen.add(id(thing))
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    for name in [*names, *getattr(thing, "__dict__", ())]:
        value = getattr(thing, name, None)
        where = f"{path}.{name}"
        if isinstance(value, dict | list | deque | set):
            if value and name not in MAY_STAY:
                yield f"{where} has {len(value)}"
            inside = [*value, *value.values()] if isinstance(value, dict) else [*value]
            for one in inside:
                yield from _leftovers(f"{where}[...]", one, seen)
        elif name in ZERO_WHEN_IDLE and value:
            yield f"{where} is {value}"
        else:
            yield from _leftovers(where, value, seen)


# ---- the world around


class ShardWatch:
    """Reads the shards when the pipeline wants a map, as `producerd.runtime.shard_watch` does, but for its tasks."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self._began: deque[float] = deque([-inf] * 6, maxlen=6)  # readings in the last minute
        self._reading = False
        self._failures = 0
        self._not_before = 0.0
        self._looks_at = -inf

    def look(self) -> None:
        """The pipeline may want a map."""
        now = self.sim.now
        if self._reading or not self.sim.pipeline.wants_shard_map:
            return
        due = max(self._not_before, self._began[0] + 60.0)
        if due <= now:
            self._read()
        elif self._looks_at < now:
            self._looks_at = due
            self.sim.after(due - now, self.look)

    def _read(self) -> None:
        sim = self.sim
        self._reading = True
        self._began.append(sim.now)
        reply = sim.kinesis.handle(
            "ListShards", orjson.dumps({**ADDRESS, "ShardFilter": {"Type": "AT_LATEST"}}), sim.now
        )
        seconds = max(reply.delay_seconds, 0.01)
        if reply.how == "answer" and seconds < 6.0:
            sim.after(seconds, lambda: self._answered(reply.status, reply.body))
        else:
            sim.after(min(seconds, 6.0), lambda: self._failed(Code.UNREACHABLE, reply.how))

    def _answered(self, status: int, body: bytes) -> None:
        if status != 200:
            error = orjson.loads(body) if body else {"__type": "InternalFailure", "message": ""}
            self._failed(error["__type"], error["message"])
            return
        self._reading, self._failures = False, 0
        shard_map = map_from_listing([orjson.loads(body)])
        self.sim.pipeline.set_shard_map(shard_map, self.sim.now)
        self.sim.laws.map_is_learnt(shard_map)
        self._not_before = self.sim.now + 10.0 * self.sim.random.uniform(0.75, 1.25)
        self._again_in(60.0 * self.sim.random.uniform(0.75, 1.25))

    def _failed(self, code: str, message: str) -> None:
        self._reading = False
        self._failures += 1
        self.sim.pipeline.shard_map_failed(code, message, self.sim.now)
        ceiling = min(30.0, 0.5 * 2.0 ** min(self._failures, 16))
        self._not_before = self.sim.now + self.sim.random.uniform(ceiling / 2, ceiling)
        self._again_in(60.0 * self.sim.random.uniform(0.75, 1.25))

    def _again_in(self, seconds: float) -> None:
        """Unasked, if nobody asks before."""
        readings = self._began[-1]

        def read() -> None:
            if self._began[-1] == readings and not self._reading and not self.sim.pipeline.forget_shards(self.sim.now):
                self._read()

        self.sim.after(seconds, read)


class Simulation:
    """One stream.  ``workers``: so many jobs or requests are sorted or encoded at a time."""

    def __init__(
        self,
        seed: int,
        *,
        rules: PipelineRules | None = None,
        limit_records: int = 1_000_000,
        limit_bytes: int = 64 << 20,
        shards: int = 4,
        workers: int = 1,
        max_frame_bytes: int = 1 << 20,
        max_record_kib: int = 1024,
    ) -> None:
        self.random = Random(seed)
        self.now = 1_000.0
        self.kinesis = FakeKinesis(seed)
        self.stream = self.kinesis.create_stream(STREAM, shards, max_record_kib, now=self.now)
        self.consumer = Consumer()
        self.budget = QueueBudget(limit_records, limit_bytes)
        self.pipeline = Pipeline(rules or make_rules(), self.budget, Random(seed))
        self.gate = AdmissionGate(
            self.budget, self.pipeline.refuses, max_frame_bytes=max_frame_bytes, max_frame_records=10_000
        )
        self.watch = ShardWatch(self)
        self.laws = Laws(self)
        self.sessions: list[Session] = []
        self.max_record_bytes = max_record_kib * 1024  # as far as is known
        self.body_seconds = 0.01  # the most that a granted body takes to come
        self.arrival_seconds = (0.0, 0.0)  # from the moment when a request is sent until the service has it
        self.refused_connections = 0.0  # the fraction of requests that get none
        self.unsortable = self.unencodable = b""  # a row with these bytes makes the daemon's own code raise
        self.maybe_stored_requests = 0  # that failed so that nobody knows
        self.handed_back = 0  # rows that an encoded request had no room for
        self.gave_up = False
        self.steps = 0
        self._workers = workers
        self._busy = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._sorted: list[SortedRows] = []  # of which the pipeline has made no job yet
        self._jobs: list[Job] = []  # that hold memory
        self._open_calls: dict[Request, None] = {}
        self._ranges: dict[Request, list[tuple[int, int]]] = {}

    # ---- driving it

    def session(self, **options: Any) -> Session:
        session = Session(self, **options)
        self.sessions.append(session)
        return session

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), action))

    def run(self, seconds: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let that much time pass, or less: until something stops it.

        As in the dispatcher, work is looked for when something has happened or is due, and at no other time.
        """
        until = self.now + seconds
        with laws_named():
            begun = self._pump()
            while not stop():
                event = self._events[0][0] if self._events else inf
                due = self._due()
                if min(event, due) > until:
                    self.now = until
                    return
                self.now = max(self.now, min(event, due))
                if event > self.now and not begun:
                    self.laws.woken_for_nothing(self.now)
                while self._events and self._events[0][0] <= self.now:
                    heapq.heappop(self._events)[2]()
                    self.laws.hold()
                begun = self._pump()

    def run_until_idle(self, seconds: float = 600.0) -> None:
        """Until every accepted row settled and nobody waits, and what was due has passed."""
        self.run(seconds, stop=self._is_idle)
        if not self._is_idle():
            raise LawBroken(self._what_stalls(), f"not idle after {seconds} s: {self.describe()}")

    def _is_idle(self) -> bool:
        pipeline = self.pipeline
        nothing_to_do = not self._busy and pipeline.idle and pipeline.next_time() is None
        return nothing_to_do and not any(session.waiting for session in self.sessions)

    def _what_stalls(self) -> str:
        """A lane with rows and nothing on its way waits for its pace, if it waits for nothing else."""
        lanes = [lane for lane in self.pipeline.sender.lanes if lane.queued]
        paced = [lane for lane in lanes if not lane.in_flight and lane.hold_until <= self.now and not lane.map_until]
        return "Pacer" if paced and len(paced) == len(lanes) and not self.pipeline.sender.in_flight else "Row"

    def describe(self) -> str:
        return (
            f"{self.pipeline.queued_records} queued, {self.pipeline.requests_in_flight} in flight, "
            f"budget {self.budget.used_records}/{self.budget.used_bytes}, {self.gate.blocked_callers} blocked, "
            f"{self.pipeline.health.state}, {self.pipeline.stats}"
        )

    def make_stream_again(self, edges: Sequence[int], seconds: float, *, restart_sequences: bool) -> None:
        """Delete the stream, and after a while make one of that name with the same shard ids and other ranges."""
        old = self.stream
        self.consume()
        self.kinesis.delete_stream(STREAM)

        def make() -> None:
            self.stream = self.kinesis.create_stream(
                STREAM, None, old.max_record_kib, edges=edges, restart_sequences=restart_sequences, now=self.now
            )
            self.stream.list_shards_lag_seconds = old.list_shards_lag_seconds
            self.pipeline.cannot_aggregate = ""

        self.after(seconds, make)

    def give_up(self) -> int:
        """The deadline of a drain: every request is given up, and every row that is left ends."""
        self.gave_up = True
        self.run(inf, stop=lambda: not self._busy)
        for request in list(self.pipeline.sender.in_flight):
            failed = RequestFailed(Code.UNREACHABLE, "given up", maybe_stored=request.encoded is not None)
            self._complete(request, failed)
        orphans = self.pipeline.abandon()
        self._acknowledge()
        self.laws.hold()
        self.gave_up = False  # if anything could still be sent, it would
        return orphans

    # ---- what the laws ask

    def consume(self) -> Consumer:
        """The consumer, who has read everything."""
        self.consumer.look(self.stream)
        return self.consumer

    def unsorted_bytes(self) -> int:
        """The charge of frames whose rows are still in the frames' own buffers."""
        ledger = self.pipeline.ledger
        frames = {frame for frame in ledger.frames if frame.rows is not None}
        return sum([frame.row_charge_bytes for frame in frames.union(ledger.sorting)])

    def buffer_bytes(self) -> int:
        """The charge of jobs and of their buffers, as long as they hold memory."""
        self._jobs = [job for job in self._jobs if job.live_buffers]
        return sum([job.charge_bytes + sum([buffer.charge_bytes for buffer in job.buffers]) for job in self._jobs])

    def stored(self) -> Counter[tuple[str, bytes]]:
        """What a consumer of the stream reads: (key, data)."""
        return Counter((record.partition_key, record.data) for record in self.stream.read().records)

    def outcomes(self) -> Counter[Outcome]:
        """How the rows of all acknowledged frames ended."""
        total: Counter[Outcome] = Counter()
        for session in self.sessions:
            for result in session.acked.values():
                total[Outcome.STORED] += result.stored
                total[Outcome.NOT_STORED] += result.not_stored
                total[Outcome.UNKNOWN] += result.unknown
                total[Outcome.RETURNED] += result.returned
        return total

    # ---- the loop thread

    def _due(self) -> float:
        """When something is due that no event brings about."""
        due = self.pipeline.next_time()
        if due is None:
            return inf
        if due <= self.now:
            self.laws.what_is_due_is_done(self._busy < self._workers, due)
            return inf  # it waits for a worker or an answer
        return due

    def _pump(self) -> int:
        """Do what can be done now; returns how much work was begun."""
        for begun in count():
            self.steps += 1
            self._acknowledge()
            self.gate.pump(self.now)
            if self.gate.wants_room():
                self.pipeline.press(self.now)
            self.watch.look()
            self.laws.hold()
            if self.gave_up or self._busy >= self._workers or not self._start():
                return begun
        raise AssertionError

    def _acknowledge(self) -> None:
        for frame in self.pipeline.take_finished():
            frame.owner.finished(frame)
        self.laws.settled_frames_are_told()

    def _start(self) -> bool:
        if (request := self.pipeline.take_request(self.now)) is not None:
            self.laws.request_is_taken(request)
            self._in_worker(request.records, lambda: self._encode(request), lambda done: self._send(request, done))
            return True
        if (job := self.pipeline.take_job(self.now)) is not None:
            records = sum([rows.records for rows in job.rows])
            self._in_worker(records, lambda: self._sort(job), lambda done: self._has_sorted(job, done))
            return True
        return False

    # ---- worker threads

    def _in_worker(self, records: int, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Small work at once; other work is really done somewhen between its beginning and its end."""
        if records <= INLINE_ROWS and self.random.random() < 0.5:
            done(work())
            return
        self._busy += 1
        early = work() if self.random.random() < 0.5 else None

        def finish() -> None:
            self._busy -= 1
            done(early if early is not None else work())

        self.after(self.random.uniform(0, WORKER_SECONDS), finish)

    def _sort(self, job: SortJob) -> list[tuple[list[Frame], SortedRows | None]]:
        poisoned = [bool(self.unsortable) and self.unsortable in bytes(rows.data) for rows in job.rows]
        if not any(poisoned):
            return [(job.frames, sort_rows(job.rows, job.shard_map, job.seed))]
        return [
            ([frame], None if bad else sort_rows([rows], job.shard_map, job.seed))
            for frame, rows, bad in zip(job.frames, job.rows, poisoned, strict=True)
        ]

    def _has_sorted(self, job: SortJob, results: list[tuple[list[Frame], SortedRows | None]]) -> None:
        self._sorted += [rows for _, rows in results if rows is not None]
        self.pipeline.sorted(job, results)
        waiting = []
        for rows in self._sorted:
            found = getattr(rows.buffers[0], "job", None) if rows.buffers else None
            if found is not None:
                self._jobs.append(found)
            elif rows.buffers:
                waiting.append(rows)
        self._sorted = waiting

    def _encode(self, request: Request) -> EncodedRequest | RequestFailed:
        if self.unencodable and any(self.unencodable in piece.span.buffer.data for piece in request.pieces):
            for _, span in request.pieces:
                at = span.buffer.data_offsets
                first, last = at[span.first - span.buffer.first], at[span.last - span.buffer.first]
                if self.unencodable in span.buffer.data[first:last]:
                    return RequestFailed(Code.INTERNAL, "the daemon failed", maybe_stored=False)
        rules = self.pipeline.rules.entries
        try:
            return encode(ADDRESS, request.pieces, rules, request.aggregate_bytes, request.shard_map)
        except ValueError as error:
            return RequestFailed(Code.INTERNAL, str(error), maybe_stored=False)

    # ---- the network

    def _send(self, request: Request, encoded: EncodedRequest | RequestFailed) -> None:
        if isinstance(encoded, RequestFailed):
            self._complete(request, encoded)
            return
        records = request.records
        self.pipeline.encoded(request, encoded, self.now)
        self.handed_back += records - request.records
        self.laws.request_is_made(request, self.now)
        self._open_calls[request] = None
        if self.pipeline.rules.entries.per_key:
            self._ranges[request] = list(_hash_ranges(request, encoded))
            self.laws.entries_in_flight_are_apart(self._ranges)
        if self.random.random() < self.refused_connections:
            self._answer_after(0.01, request, RequestFailed(Code.UNREACHABLE, "connection refused", maybe_stored=False))
            return
        sent_at = self.now
        timed_out = RequestFailed(Code.UNREACHABLE, "timed out", maybe_stored=True, timed_out=True)
        self._answer_after(request.timeout_seconds, request, timed_out)
        self.after(self.random.uniform(*self.arrival_seconds), lambda: self._arrive(request, encoded, sent_at))

    def _arrive(self, request: Request, encoded: EncodedRequest, sent_at: float) -> None:
        """The service has it, maybe after the caller gave up waiting."""
        reply = self.kinesis.handle("PutRecords", encoded.body, self.now)
        if reply.how == "lost" or reply.status == 200:
            self.laws.request_reaches_its_shards(encoded, sent_at)
        if reply.how in ("reset", "lost"):
            failed = RequestFailed(Code.UNREACHABLE, "connection reset", maybe_stored=True)
            self._answer_after(reply.delay_seconds, request, failed)
        elif reply.how == "answer":
            self._answer_after(reply.delay_seconds, request, _outcome(reply.status, reply.body, encoded.entries))

    def _answer_after(self, seconds: float, request: Request, outcome: Answer | RequestFailed) -> None:
        def arrived() -> None:
            if request in self._open_calls:
                self._complete(request, outcome)

        self.after(seconds, arrived)

    def _complete(self, request: Request, outcome: Answer | RequestFailed) -> None:
        self._open_calls.pop(request, None)
        self._ranges.pop(request, None)
        if isinstance(outcome, RequestFailed):
            self.maybe_stored_requests += outcome.maybe_stored
        self.laws.request_is_answered(outcome, self.now)
        self.pipeline.complete(request, outcome, self.now)


def _hash_ranges(request: Request, encoded: EncodedRequest) -> Iterator[tuple[int, int]]:
    """The lowest and the highest hash key of each entry."""
    for first, last in pairwise([0, *encoded.ends.tolist()]):
        hashes: list[int] = []
        for _, span in request.pieces_of(first, last):
            a, b = span.first - span.buffer.first, span.last - span.buffer.first
            high, low = span.buffer.hashes
            hashes += [one << 64 | other for one, other in zip(high[a:b].tolist(), low[a:b].tolist(), strict=True)]
        yield min(hashes), max(hashes)


def _outcome(status: int, body: bytes, entries: int) -> Answer | RequestFailed:
    if status == 200:
        return parse_answer(body, entries)
    error = orjson.loads(body) if body else {"__type": "InternalFailure", "message": ""}
    return RequestFailed(error["__type"], error["message"], maybe_stored=status >= 500)
