"""The laws that hold after every step, and whenever something happens."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any, Final

from producerd.core.encoding.entries import EncodedRequest
from producerd.core.lanes.taken import ANY
from producerd.core.rows.frame import RowEnd
from producerd.core.rows.job import IN_REQUEST
from producerd.core.sending.answers import Answer, RequestFailed
from producerd.core.sending.requests import Request
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.errors import Code, Outcome
from producerd.wire.columns import FRAME_CHARGE_BYTES
from tests.simulation.callers import Sent, Session, WatchedFrame
from tests.simulation.rows import ordered_by

if TYPE_CHECKING:
    from tests.simulation.operator import Watched
    from tests.simulation.world import Simulation


class LawBroken(AssertionError):
    """``law``: its owner in the table of docs/build/laws.md; or a promise that has no owner there: acknowledgement,
    possible_duplicates, copies, per_key, flush."""

    def __init__(self, law: str, what: str) -> None:
        super().__init__(f"{law}: {what}")
        self.law = law


OWN_CHECKS: Final = {
    "a row settled twice": "Row",
    "admitted past the limit": "QueueBudget",
    "released more than was taken": "QueueBudget",
    "sent past the node's limit": "NodeInFlight",
    "released more than was sent": "NodeInFlight",
}
"""The law that each assertion of the core keeps, by its message."""


@contextmanager
def laws_named() -> Iterator[None]:
    """Raise a failed assertion of the core as the law that it breaks."""
    try:
        yield
    except LawBroken:
        raise
    except AssertionError as error:
        law = OWN_CHECKS.get(str(error))
        if law is None:
            raise
        raise LawBroken(law, str(error)) from error


class _Lately(deque[float]):
    """The times at which something happened, in the last ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def note(self, now: float) -> int:
        """Note one more time, and return how often it has happened."""
        self.append(now)
        while self[0] < now - self.seconds:
            self.popleft()
        return len(self)


class Laws:
    """Each method is a law.  ``allowed_codes``: for what reasons rows may end otherwise than STORED, in this run.

    They count what the owners hold, by `Pipeline.census` and by the owners' own collections, against what went in.
    """

    FEW_REQUESTS: Final = 100
    """In `OUTAGE_SECONDS` without an answer.  (Of 1,500 seeds one made 29.  Refused requests are divided: one made 61.)
    """
    FEW_REQUESTS_A_ROW: Final = 10
    """In `OUTAGE_SECONDS`, where there are answers, and nothing is stored.  (Of 1,500 seeds one made 3.)"""
    OUTAGE_SECONDS: Final = 10.0
    LONGEST_PACE_SECONDS: Final = 60.0
    """Until the bucket of a lane with rows is full.  (Of 6,000 seeds one had 20.)"""
    FEW_WAKES: Final = 500
    """Wakes in one second that may find nothing to do."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self._may_expire = False  # whether any frame of this run has a time-to-live
        self.allowed_codes: set[str] | None = None
        self.seen: set[str] = set()  # where rows were
        self.longest_timeout_seconds = 0.0
        self._used = (0, 0)
        self.steps = 0
        self._ended = 0  # rows, when something was stored last
        self._unanswered = _Lately(self.OUTAGE_SECONDS)  # requests that left since then
        self._failed = _Lately(self.OUTAGE_SECONDS)  # requests that failed as a whole, since one had an answer
        self._wakes = _Lately(1.0)
        self.flushes: list[Watched] = []  # the operator's
        self.others_bytes: Counter[object] = Counter()  # on their way from each other stream
        self.others_single: list[int] = []  # the bytes of their single rows among these
        self.reached: dict[Shard, list[tuple[float, Any]]] = {}  # when entries were sent, and their sizes

    # ---- after every step

    def hold(self) -> None:
        """After every step; what looks at each row, after every eighth."""
        self.room_is_what_rows_and_grants_hold()
        self.every_accepted_row_is_somewhere()
        self.lanes_are_of_open_shards()
        self.what_is_on_its_way_is_within_the_nodes_limit()
        for flush in self.flushes:
            flush.hold()
        if self.sim.pipeline.goes_plain:
            self.seen.add("plain for lack of a map")
        self.steps += 1
        if self.steps % 8 == 0:
            self.rows_in_a_request_are_not_settled()
            self.rows_wait_in_the_lane_of_their_shard()
            self.seen.add(f"held by {self.sim.pipeline.diagnosis.holding(self.sim.now).cause}")

    def room_is_what_rows_and_grants_hold(self) -> None:
        """Nothing is admitted past a limit; a record counts until it settles, its bytes until its buffer is freed."""
        sim = self.sim
        budget, ledger = sim.budget, sim.pipeline.ledger
        granted = [session.granted_ticket for session in sim.sessions if session.granted_ticket is not None]
        granted_bytes = sum([ticket.layout.charge_bytes for ticket in granted])
        for session in sim.sessions:
            held_bytes = session.member.taken_bytes
            if held_bytes != session.unacked_bytes and not session.gone:
                raise LawBroken("AdmissionGate", f"a session holds {session.unacked_bytes} bytes, and not {held_bytes}")
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

    def what_is_on_its_way_is_within_the_nodes_limit(self) -> None:
        """All streams keep to the limit, except that one of them may send one larger row.

        A request counts until it has ended.
        A stream with nothing on its way may send, and may send a larger row if no other stream's is on its way.
        """
        in_flight = self.sim.pipeline.sender.in_flight
        node = in_flight.node
        single = [request.bytes for request in in_flight if request.records == 1]
        if node.used_bytes > node.limit_bytes + max([0, *single, *self.others_single]):
            raise LawBroken("NodeInFlight", f"{node.used_bytes} bytes of {node.limit_bytes} are on their way")
        others = self.others_bytes
        if node.used_bytes - others.total() != in_flight.bytes or in_flight.bytes != sum([r.bytes for r in in_flight]):
            raise LawBroken("NodeInFlight", f"{in_flight.bytes} bytes are on their way, and others are counted")
        if not in_flight and min(in_flight.request_bytes, node.floor_bytes) < min(
            node.floor_bytes, self.sim.pipeline.rules.entries.request_max_bytes
        ):
            raise LawBroken("NodeInFlight", "a stream with nothing on its way has no room for a request")
        beyond_floors = sum([max(0, used - node.floor_bytes) for used in others.values()])
        overfull = beyond_floors > node.limit_bytes - node.limit_bytes // 2
        if not in_flight and overfull is not in_flight.waits_with_larger:
            raise LawBroken("NodeInFlight", "a larger row may go with another stream's, or waits without one")

    def every_accepted_row_is_somewhere(self) -> None:
        """accepted = settled + filling + sorting + queued + in flight + awaiting a map, in records."""
        pipeline = self.sim.pipeline
        stats, places = pipeline.stats, pipeline.diagnosis.census()
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
                if not (span.job.state[span.first : span.last] == IN_REQUEST).all():
                    raise LawBroken("Row", "a row of a request on its way has settled")

    def lanes_are_of_open_shards(self) -> None:
        """There are no more lanes than open shards, by the newest map."""
        lanes = self.sim.pipeline.sender.lanes
        if len(lanes) > len(lanes.map):
            shards = [lane.shard.shard_id for lane in lanes]
            raise LawBroken("Lane", f"{shards}, where {[shard.shard_id for shard in lanes.map.shards]} are open")

    def rows_wait_in_the_lane_of_their_shard(self) -> None:
        """Rows wait only in lanes of shards that the newest map has open."""
        lanes = self.sim.pipeline.sender.lanes
        for lane in lanes:
            if lane.shard not in lanes.map:
                raise LawBroken("Lane", f"there is a lane of {lane.shard}, which is not open")
            for span in lane.spans:
                if span.buffer.live and not span.lies_in(lane.shard):
                    raise LawBroken("Lane", f"a row of another shard waits in the lane of {lane.shard}")

    # ---- after every step that leaves a worker free, and nothing that may be begun

    def hold_at_rest(self) -> None:
        """That what is due is done comes last: the others name what is at fault."""
        self.expired_rows_have_ended()
        self.buckets_are_full_before_long_and_let_any_entry_go()
        self.what_is_due_is_done()

    def expired_rows_have_ended(self) -> None:
        """A row whose TTL has passed waits for nothing any more: it has settled, or is in a request."""
        now, pipeline = self.sim.now, self.sim.pipeline
        self._may_expire |= pipeline.rules.record_ttl_seconds < inf
        for frame in [frame for frame in pipeline.ledger.frames if frame.expires_at <= now] if self._may_expire else ():
            rows = self.sim.pipeline.ledger.waiting_rows(frame)
            if rows:
                raise LawBroken("Row", f"{rows} rows of frame {frame.frame_id} still wait, and their TTL has passed")

    def buckets_are_full_before_long_and_let_any_entry_go(self) -> None:
        """A lane never waits for tokens that its bucket can't hold, however large its first row is."""
        now = self.sim.now
        for lane in self.sim.pipeline.sender.lanes:
            if lane.pacer is None or not lane.queued:
                continue
            full_at = lane.pacer.ready_at(now, ANY)
            if full_at - now > self.LONGEST_PACE_SECONDS:
                raise LawBroken("Pacer", f"{lane.shard.shard_id} is to wait {full_at - now:g} s for its pace")
            if full_at <= now and not lane.pacer.allowance(now).one_larger:
                raise LawBroken("Pacer", f"the bucket of {lane.shard.shard_id} is full, and its first row may not go")

    def what_is_due_is_done(self) -> None:
        """The pipeline never waits for a time that has passed, as that would hide what is due later."""
        due = self.sim.pipeline.next_time()
        if due is not None and due <= self.sim.now:
            raise LawBroken("Pipeline", f"something has been due for {self.sim.now - due:g} s, and is not done")

    # ---- when something happens

    def settled_frames_are_told(self) -> None:
        """After each look for acknowledgements: a flush waits for its own frames, whatever else was sent since; and a
        frame is acknowledged as soon as its last row has settled."""
        for session in self.sim.sessions:
            for waits_for in session.flushes:
                if not any(frame.unsettled for frame in waits_for):
                    raise LawBroken("flush", "all that it waits for has settled, and it has not returned")
            settled = [frame.frame_id for frame in session.unacked if not frame.unsettled]
            if settled:
                raise LawBroken("Frame", f"frames {settled} have settled, and are not acknowledged")

    def row_settles(self, frame: WatchedFrame) -> None:
        """A row with a TTL settles no later than the TTL and one request's time-out."""
        late = self.sim.now - frame.expires_at - self.longest_timeout_seconds
        if frame.accepted and late > 0.1:
            raise LawBroken("Row", f"a row settled {late:g} s after its TTL and a request's time-out")

    def rows_are_judged(self, frame: WatchedFrame, rows: list[int], end: RowEnd) -> None:
        """A row is left out only if it is bad itself, whatever its stream, its request or the way is refused for."""
        if end.code in (Code.RECORD_INVALID, Code.RECORD_TOO_LARGE) and not end.judged:
            raise LawBroken("Verdicts", f"clients of 0.2.0 leave out a row for {end}, and it was not judged")
        entries, limit_bytes = self.sim.pipeline.rules.entries, self.sim.stream.max_record_kib * 1024
        takes_aggregates = entries.aggregate and not entries.per_key
        for row in rows if end.judged else ():
            if frame.sent.rows[row].can_be_stored(limit_bytes, takes_aggregates=takes_aggregates):
                raise LawBroken("Verdicts", f"row {row} of frame {frame.frame_id} is good, and ended as {end}")

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
        self.row_settles(frame)  # which a `FrameColumn` does not tell
        told = sum(frame.tallies.values())
        if session.gone or frame.sent.result is not None:
            raise LawBroken("Frame", "acknowledged to a caller that is gone" if session.gone else "acknowledged twice")
        if frame.unsettled or frame in self.sim.pipeline.ledger.frames:
            raise LawBroken("Frame", f"acknowledged before {frame.unsettled} of its rows have settled")
        if told != frame.records:
            raise LawBroken("Row", f"the acknowledgement of a frame of {frame.records} rows counts {told}")

    def acknowledgement_is_true(self, sent: Sent) -> None:
        """A consumer receives every row that is acknowledged as STORED."""
        consumer = self.sim.consume()
        for row, end in zip(sent.rows, sent.ends() or (), strict=False):
            if end is None and not consumer.has(row):
                raise LawBroken("acknowledgement", f"{row.users[0]} is acknowledged STORED, and no consumer gets it")

    def room_is_granted(self, session: Session) -> None:
        """The gate grants room only to a caller that is still there."""
        if session.gone:
            raise LawBroken("AdmissionGate", "room was granted to a caller that is gone")

    def map_is_learnt(self, shard_map: ShardMap) -> None:
        """The newest map is the one that is used, as soon as it is read."""
        if self.sim.pipeline.shard_map != shard_map or self.sim.pipeline.sender.lanes.map != shard_map:
            raise LawBroken("ShardMap", "a newer map was read, and another one is used")
        self.lanes_are_of_open_shards()
        self.rows_wait_in_the_lane_of_their_shard()

    def request_is_taken(self, request: Request) -> None:
        """In a pause nothing is sent.  With the order kept, no row of a session is sent after one that failed."""
        if self.sim.pipeline.paused:
            raise LawBroken("Pipeline", "a request is begun while the stream is paused")
        if not self.sim.pipeline.rules.entries.per_key:
            return
        for _, span in request.pieces:
            for frame, rows in span.job.frames_of(slice(span.first, span.last)):
                assert isinstance(frame, WatchedFrame)
                failed = frame.sent.session.first_failed
                if failed is not None and (frame.frame_id, int(rows.max())) > failed:
                    raise LawBroken("per_key", f"frame {frame.frame_id} is sent, though {failed} before it failed")

    def request_is_made(self, request: Request, now: float) -> None:
        """While nothing is stored, requests are few."""
        self.longest_timeout_seconds = max(self.longest_timeout_seconds, request.timeout_seconds)
        sent = self._unanswered.note(now)
        if sent > self.FEW_REQUESTS_A_ROW * (self.sim.pipeline.stats.ingest_records - self._ended + 10):
            raise LawBroken("RetryPolicy", f"{sent} requests in {self.OUTAGE_SECONDS:g} s, and nothing was stored")

    def request_is_answered(self, outcome: Answer | RequestFailed, now: float) -> None:
        """In an outage, in which no request has an answer, there are few of them."""
        if not isinstance(outcome, RequestFailed):
            self._failed.clear()
            if (outcome.errors < 0).any():
                self._unanswered.clear()
                self._ended = self.sim.pipeline.stats.ingest_records - self.sim.pipeline.queued_records
        elif (failed := self._failed.note(now)) > self.FEW_REQUESTS:
            raise LawBroken("RetryPolicy", f"{failed} requests failed in {self.OUTAGE_SECONDS:g} s, none was answered")

    def request_reaches_its_shards(self, request: Request, encoded: EncodedRequest, sent_at: float) -> None:
        """See `shards_are_sent_what_they_take`.  Where rows go plain for lack of a map, their lane keeps that, too."""
        for place, lane in enumerate(request.lanes):
            if lane.shard.shard_id or self.sim.pipeline.rules.entries.aggregate:
                entries = self.reached.setdefault(lane.shard, [])
                entries.append((sent_at, encoded.sizes[encoded.lanes == place]))

    def woken_for_nothing(self, now: float) -> None:
        """Nothing is looked at over and over while nothing can be done."""
        if (wakes := self._wakes.note(now)) > self.FEW_WAKES:
            raise LawBroken("RetryPolicy", f"woken {wakes} times in a second, for nothing")

    def entries_in_flight_are_apart(self, entries: Iterable[list[tuple[bytes, int]]]) -> None:
        """Where the order is kept: of the rows of one key and one shard those in flight are in one entry.

        ``entries``: the partition key and the hash key of each of their rows.
        """
        edges = self.sim.edges()
        seen: set[tuple[bytes, int]] = set()
        for rows in entries:
            here = {ordered_by(edges, *row) for row in rows}
            if not seen.isdisjoint(here):
                raise LawBroken("per_key", "two entries with one key and one shard are in flight at once")
            seen |= here
