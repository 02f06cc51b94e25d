"""Pipeline: one stream's whole producer as a state machine, from an accepted frame to its acknowledgement.

A frame joins the *filling* batch; a sealed batch becomes a *job*, whose rows are sorted into spans; spans wait in
their shard's *lane*; a *request* takes rows from a few lanes, is cut into entries, and its answer settles rows or puts
them back.  The caller of these methods carries jobs and requests to worker threads and to Kinesis, and tells the time.

    submit -> [filling] -> take_job -> [sorting] -> sorted -> [lanes] -> take_request -> [in flight] -> complete

accepted = settled + filling + sorting + queued + in flight, in records and in bytes, after every step.  A row settles
exactly once.  A frame is handed out by `take_finished` exactly once, after its last row settled.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, groupby, pairwise
from operator import itemgetter
from random import Random
from typing import Final, NamedTuple

import numpy as np

from producerd.core.budget import QueueBudget
from producerd.core.entries import Answer, EncodedRequest, EntryRules, Piece, RequestFailed
from producerd.core.frame import Frame, RowEnd
from producerd.core.intake import Rows
from producerd.core.lanes import Lane, records_of
from producerd.core.ledger import Ledger
from producerd.core.requests import Request
from producerd.core.retry import HealthState, InFlightWindow, Kind, RetryPolicy, StreamHealth, meaning_of
from producerd.core.shards import I32, ShardMap, one_lane
from producerd.core.spans import IN_REQUEST, QUEUED, SETTLED, SortedRows, Span
from producerd.core.stats import StreamStats
from producerd.errors import Code, Outcome

MIB: Final = 1024 * 1024
ANY_RECORDS: Final = 2**31
ANY_BYTES: Final = 2**62
FAILURES_TO_HOLD: Final = 3
"""Whole-request failures in a row after which the stream, and not only some rows, waits."""
WRONG_COUNTS_TO_GIVE_UP: Final = 3
INVALID_TO_DOUBT_STREAM: Final = 8
"""Single entries refused in a row with one message and nothing stored: then it is the stream, not the entries."""


@dataclass(frozen=True, slots=True)
class PipelineRules:
    """A stream's settings that the pipeline needs; durations in seconds, sizes in bytes."""

    entries: EntryRules
    linger_seconds: float
    max_in_flight_requests: int
    max_in_flight_bytes: int
    shard_map_wait_seconds: float
    permanent_error_grace_seconds: float


class SortJob(NamedTuple):
    """Work for `spans.sort_rows`."""

    frames: list[Frame]
    rows: list[Rows]
    shard_map: ShardMap
    seed: int


class Pipeline:
    """See the module's text.  ``budget`` is shared with the gate, which takes; the pipeline releases."""

    def __init__(
        self, rules: PipelineRules, budget: QueueBudget, random: Random, shard_map: ShardMap | None = None
    ) -> None:
        self.rules = rules
        self.budget = budget
        self.health = StreamHealth(rules.permanent_error_grace_seconds, random)
        self.stats = StreamStats()
        self.ledger = Ledger(budget, self.stats)
        self.wants_shard_map = shard_map is None
        self.in_flight_bytes = 0
        self._random = random
        self._policy = RetryPolicy(random)
        self._window = InFlightWindow(rules.max_in_flight_requests)
        self._shard_map = shard_map
        self._map_wait_until: float | None = None
        self._map_error = ""
        self._draining = False
        self._filling: list[Frame] = []
        self._filling_records = 0
        self._filling_bytes = 0
        self._filling_since = 0.0
        self._sealed: deque[list[Frame]] = deque()
        self._lanes: dict[str, Lane] = {}
        self._ready: deque[Lane] = deque()  # lanes with rows, longest-waiting first; each at most once
        self._held: list[tuple[float, int, Lane]] = []  # lanes with rows that hold off: a heap
        self._later: list[tuple[float, int, list[Piece]]] = []  # rows that wait out a delay: a heap
        self._alone: deque[list[Piece]] = deque()  # rows that make a request of their own
        self._in_flight: dict[Request, None] = {}
        self._failures = 0
        self._hold_until = 0.0
        self._refused_alone: tuple[str, int] = ("", 0)
        self._numbers = count()

    # ---- questions

    @property
    def queued_records(self) -> int:
        """Rows accepted and not settled."""
        return sum(frame.unsettled for frame in self.ledger.frames)

    @property
    def requests_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def idle(self) -> bool:
        return not self.ledger.frames

    @property
    def shard_map(self) -> ShardMap | None:
        return self._shard_map

    def refuses(self, now: float) -> RowEnd | None:
        """Why a caller's frame is not to be taken on now, or None.  Asked once for each frame: it spends the probe."""
        if self._map_missing(now):
            return self._map_missing_end()
        if not self.health.admits(now):
            return RowEnd(Outcome.NOT_STORED, self.health.code, self.health.message)
        return None

    def next_time(self) -> float | None:
        """When something is due that no other call will bring about."""
        times = []
        if self._filling:
            times.append(self._filling_since + self.rules.linger_seconds)
        if self._map_wait_until is not None and self._sealed:
            times.append(self._map_wait_until)
        if self._held:
            times.append(self._held[0][0])
        if self._later:
            times.append(self._later[0][0])
        if self._hold_until and (self._ready or self._alone):
            times.append(self._hold_until)
        return min(times, default=None)

    # ---- frames come in

    def submit(self, frame: Frame, now: float) -> None:
        """Accept a whole frame, granted by the gate.  Rows that ended already (bad ones) are not accepted."""
        self.ledger.accept(frame)
        if self._draining and frame.owner is not None:
            self.ledger.withdraw(frame, _RETURNED, "returned")
            return
        if not self._filling:
            self._filling_since = now
        self._filling.append(frame)
        self._filling_records += frame.records
        self._filling_bytes += frame.charge_bytes
        shards = len(self._shard_map) if self._shard_map else 1
        largest = max(MIB, shards * self.rules.entries.aggregate_max_bytes)
        if (
            self._filling_bytes >= min(self.budget.limit_bytes // 4, largest)
            or self._filling_records >= self.budget.limit_records // 4
        ):
            self._seal("size")

    def flush(self, owner: object) -> None:
        """Send what an owner has in the filling batch without lingering."""
        if any(frame.owner is owner for frame in self._filling):
            self._seal("flush")

    def press(self, now: float) -> None:
        """A caller waits for room: seal, unless work that may be sent waits already (crumbs gain nothing then)."""
        work_waits = (
            self._sealed or self.ledger.sorting or self._alone or any(lane.may_send(now) for lane in self._ready)
        )
        if self._filling and not work_waits:
            self._seal("pressure")

    def discard(self, owner: object) -> None:
        """An owner is gone and wants nothing more: its rows that are in no request end now."""
        self.ledger.forget_finished(owner)
        for frame in [frame for frame in self.ledger.frames if frame.owner is owner]:
            frame.owner = None
            self.ledger.withdraw(frame, None, "disconnected")

    def disown(self, owner: object) -> None:
        """An owner is gone, and its rows are still to be delivered."""
        self.ledger.forget_finished(owner)
        for frame in self.ledger.frames:
            if frame.owner is owner:
                frame.owner = None

    def drain(self) -> None:
        """The daemon stops: rows with an owner that are in no request go back to it; the others are still sent."""
        self._draining = True
        for frame in [frame for frame in self.ledger.frames if frame.owner is not None]:
            self.ledger.withdraw(frame, _RETURNED, "returned")
        if self._filling:
            self._seal("drain")

    def abandon(self) -> int:
        """The deadline: nothing in flight is left, every other row ends.  Returns how many had no caller to go to."""
        self._draining = True
        orphans = 0
        for frame in list(self.ledger.frames):
            if frame.owner is None and not frame.withdrawn:
                orphans += frame.unsettled
            self.ledger.withdraw(frame, _RETURNED, "returned" if frame.owner is not None else "abandoned")
        return orphans

    def take_finished(self) -> list[Frame]:
        """Frames whose last row settled and whose owner is still there, each once."""
        return self.ledger.take_finished()

    # ---- jobs

    def take_job(self, now: float) -> SortJob | None:
        """The next sealed batch to sort, if there is one and it can be sorted now."""
        if self._filling and now >= self._filling_since + self.rules.linger_seconds:
            self._seal("linger")
        while self._sealed:
            shard_map = self._map_for_sorting(now)
            if shard_map is None:
                return None
            frames = [frame for frame in self._sealed.popleft() if not frame.withdrawn]
            if not frames:
                continue
            self.ledger.sorting.update(dict.fromkeys(frames))
            rows = [frame.rows for frame in frames if frame.rows is not None]
            return SortJob(frames, rows, shard_map, self._random.getrandbits(63))
        return None

    def sorted(self, frames: Sequence[Frame], rows: SortedRows, shard_map: ShardMap) -> None:
        """Some frames of a job are sorted: their spans join their lanes, in job order."""
        self.ledger.sorted(frames, rows)
        stale = shard_map is not _ONE_LANE and (self._shard_map is None or self._shard_map.contradicts(shard_map))
        for shard, spans in groupby(rows.spans, key=itemgetter(0)):
            lane = self._lane(shard_map.shards[shard].shard_id)
            lane.extend([span._replace(raw=True) if stale else span for _, span in spans])
            self._list(lane)

    def unsortable(self, frame: Frame) -> None:
        """Sorting this frame raised."""
        end = RowEnd(Outcome.NOT_STORED, Code.INTERNAL, "the daemon could not sort these rows; see its log")
        self.ledger.unsortable(frame, end)

    # ---- requests

    def take_request(self, now: float) -> Request | None:
        """Rows for one request, if there are any that may be sent now."""
        self._bring_back(now)
        if not self._may_send(now):
            return None
        while self._alone:
            pieces = self._live(self._alone.popleft())
            if pieces:
                return self._start(pieces, sum([piece.span.bytes for piece in pieces]))
        return self._gather(now)

    def encoded(self, request: Request, encoded: EncodedRequest) -> None:
        """A request was cut into entries; rows that did not fit go back to the front of their lanes."""
        request.encoded = encoded
        written = int(encoded.ends[-1])
        if written == request.records:
            return
        before = request.lanes
        back = request.keep(written)
        for lane in before:
            if all(piece.lane is not lane for piece in request.pieces):
                lane.in_flight -= 1
        self._requeue(back)

    def complete(self, request: Request, outcome: Answer | RequestFailed, now: float) -> None:
        """A request's end: settles its rows, or puts them back."""
        del self._in_flight[request]
        self.in_flight_bytes -= request.bytes
        for lane in request.lanes:
            lane.in_flight -= 1
        if isinstance(outcome, RequestFailed):
            self._failed(request, outcome, now)
        else:
            self._answered(request, outcome, now)
        for lane in request.lanes:
            self._list(lane)

    # ---- the shard map

    def set_shard_map(self, shard_map: ShardMap) -> None:
        """A new map.  Rows that stand in lanes stay there; the next job is sorted by it.

        A stream that was deleted and made again has the same shard ids with other ranges: see `_distrust_lanes`.
        """
        if self._shard_map is not None and self._shard_map.contradicts(shard_map):
            self._distrust_lanes()
        self._shard_map = shard_map
        self._map_wait_until, self._map_error = None, ""
        self.wants_shard_map = False
        for lane in list(self._lanes.values()):
            self._forget_if_unused(lane)

    def shard_map_failed(self, code: str, message: str, now: float) -> None:
        """ListShards failed.  A stream that does not exist, or credentials that fail, are the stream's own failure."""
        self._map_error = f"{code}: {message}"
        meaning = meaning_of(code)
        if meaning.code == Code.STREAM_NOT_FOUND or (self._shard_map is None and meaning.code == Code.CREDENTIALS):
            self._looks_permanent(meaning.code, message, now)

    def _distrust_lanes(self) -> None:
        """Shard ids mean other ranges: what was sorted by the old ones goes out raw, and no aggregate of it counts."""
        old, self._lanes = list(self._lanes.values()), {}
        self._ready.clear()
        self._held.clear()
        for lane in old:
            lane.stale = True
            lane.listed = False
        self._alone = deque([_as_raw(pieces) for pieces in self._alone])
        for lane in old:
            spans, lane.spans, lane.queued = list(lane.spans), deque(), 0
            self._to_lanes([Piece(lane, span) for span in spans])

    def _map_for_sorting(self, now: float) -> ShardMap | None:
        if self._shard_map is not None:
            return self._shard_map
        if not self.rules.entries.aggregate:
            return _ONE_LANE
        if self._map_wait_until is None:
            self._map_wait_until = now + self.rules.shard_map_wait_seconds
        if self._map_missing(now):
            self.ledger.withdraw_all(self._map_missing_end())
            self._sealed.clear()  # all of it has ended
        return None

    def _map_missing(self, now: float) -> bool:
        """Whether the wait for a map is over; a stream that worked, and is refused, has its own patience."""
        suspect = self.health.state is HealthState.SUSPECT
        return self._map_wait_until is not None and now >= self._map_wait_until and not suspect

    def _map_missing_end(self) -> RowEnd:
        return RowEnd(
            Outcome.NOT_STORED,
            Code.SHARD_MAP_MISSING,
            'aggregation = "kpl" needs the stream\'s shards, and ListShards gave none within '
            f"{self.rules.shard_map_wait_seconds:g} s ({self._map_error or 'no answer'}); "
            'allow kinesis:ListShards, or set aggregation = "none"',
        )

    # ---- batches

    def _seal(self, trigger: str) -> None:
        self._sealed.append(self._filling)
        self._filling, self._filling_records, self._filling_bytes = [], 0, 0
        self.stats.flushes[trigger] += 1

    # ---- lanes

    def _lane(self, shard_id: str) -> Lane:
        lane = self._lanes.get(shard_id)
        if lane is None:
            lane = self._lanes[shard_id] = Lane(shard_id)
        return lane

    def _list(self, lane: Lane) -> None:
        """Put a lane in line if it has rows; forget it if it is of no use any more."""
        if lane.queued and not lane.listed:
            lane.listed = True
            self._ready.append(lane)
        elif not lane.queued:
            self._forget_if_unused(lane)

    def _forget_if_unused(self, lane: Lane) -> None:
        known = self._shard_map.get(lane.shard_id) if self._shard_map else None
        unused = known is None and not lane.queued and not lane.in_flight and not lane.listed
        if unused and self._lanes.get(lane.shard_id) is lane:
            del self._lanes[lane.shard_id]

    def _may_send(self, now: float) -> bool:
        if now < self._hold_until:
            return False
        self._hold_until = 0.0  # else `next_time` would name it for ever, and hide what is due later
        most = 1 if self.health.state is HealthState.SUSPECT else self._window.size
        return len(self._in_flight) < most and self.rules.entries.request_max_bytes <= self._bytes_left

    @property
    def _bytes_left(self) -> int:
        """What may still go in flight; with nothing in flight, one request of any size."""
        return self.rules.max_in_flight_bytes - self.in_flight_bytes if self._in_flight else ANY_BYTES

    def _gather(self, now: float) -> Request | None:
        """Rows of few lanes, deep, the longest-waiting first."""
        rules = self.rules.entries
        pieces: list[Piece] = []
        entries, used = 0, 0
        while self._ready and entries < rules.request_max_records:
            lane = self._ready.popleft()
            lane.listed = False
            if not lane.may_send(now):
                if lane.queued and lane.hold_until > now:
                    lane.listed = True
                    heapq.heappush(self._held, (lane.hold_until, next(self._numbers), lane))
                continue  # a lane with too many in flight is listed again when one of them completes
            left = rules.request_max_records - entries
            room = rules.request_max_bytes - used
            if rules.aggregate:
                # Whole aggregates but for the last; encoding hands back what this estimate lets in too much.
                room = min(room, left * rules.aggregate_max_bytes)
            most_records = ANY_RECORDS if rules.aggregate and not lane.spans[0].raw else left
            spans, size = lane.take(most_records, room, 0 if pieces else self._bytes_left)
            if spans:
                pieces += [Piece(lane, span) for span in spans]
                used += size
                entries += size // rules.aggregate_max_bytes + 1 if rules.aggregate else records_of(spans)
            if lane.queued:
                lane.listed = True
                if spans:
                    self._ready.append(lane)
                else:
                    self._ready.appendleft(lane)
            elif not spans:
                self._forget_if_unused(lane)  # its rows had no caller any more
            if lane.queued or used >= rules.request_max_bytes:
                break  # full
        return self._start(pieces, used) if pieces else None

    def _start(self, pieces: list[Piece], size: int) -> Request:
        request = Request(pieces, size)
        for piece in pieces:
            span = piece.span
            span.buffer.job.state[span.first : span.last] = IN_REQUEST
        for lane in request.lanes:
            lane.in_flight += 1
        self._in_flight[request] = None
        self.in_flight_bytes += size
        return request

    def _bring_back(self, now: float) -> None:
        """Lanes whose hold-off is over, and rows whose delay is."""
        while self._held and self._held[0][0] <= now:
            lane = heapq.heappop(self._held)[2]
            lane.listed = False
            self._list(lane)
        while self._later and self._later[0][0] <= now:
            self._to_lanes(heapq.heappop(self._later)[2])

    def _to_lanes(self, pieces: Iterable[Piece]) -> None:
        """Rows return to the front of their lanes, in their order."""
        by_lane: dict[str, list[Span]] = {}
        for lane, span in pieces:
            if lane.stale:
                self._lane(lane.shard_id)  # another one
                span = span._replace(raw=True)
            else:
                self._lanes.setdefault(lane.shard_id, lane)
            by_lane.setdefault(lane.shard_id, []).append(span)
        for shard_id, spans in by_lane.items():
            lane = self._lanes[shard_id]
            lane.put_back(spans)
            self._list(lane)

    def _live(self, pieces: list[Piece]) -> list[Piece]:
        """Those rows whose caller is still there."""
        live: list[Piece] = []
        for lane, span in pieces:
            state = span.buffer.job.state[span.first : span.last]
            edges = np.flatnonzero(np.diff(np.concatenate(([SETTLED], state, [SETTLED])) == QUEUED))
            for start, stop in edges.reshape(-1, 2).tolist():
                live.append(Piece(lane, span.cut(span.first + stop)[0].cut(span.first + start)[1]))
        return live

    # ---- answers

    def _answered(self, request: Request, answer: Answer, now: float) -> None:
        encoded = request.encoded
        assert encoded is not None
        self._failures, self._hold_until = 0, 0.0
        self._window.succeeded()
        classes = self._classify(encoded, answer)
        if (answer.errors < 0).any():
            self.health.stored()
            self._refused_alone = ("", 0)
        self.stats.put_requests["partial" if (answer.errors >= 0).any() else "ok"] += 1
        if not classes.any():
            self.ledger.store(request.pieces)
            for lane in encoded.lane_table:
                lane.throttles = 0
            return
        edges = [0, *(np.flatnonzero(np.diff(classes)) + 1).tolist(), len(classes)]
        starts = np.concatenate(([0], encoded.ends))
        back: list[Piece] = []
        throttled: dict[Lane, None] = {}
        for first, last in pairwise(edges):
            rows = request.pieces_of(int(starts[first]), int(starts[last]))
            pieces = [Piece(lane, span._replace(wrong_counts=0)) for lane, span in rows]
            verdict = int(classes[first])
            if verdict == _STORED:
                self.ledger.store(pieces)
                for lane in dict.fromkeys([piece.lane for piece in pieces]):
                    lane.throttles = 0 if lane not in throttled else lane.throttles
            elif verdict == _ELSEWHERE:
                self.ledger.mark_maybe_stored(pieces)
                back += [Piece(lane, self.ledger.retried(span)._replace(raw=True)) for lane, span in pieces]
            else:
                code, message = answer.error_table[verdict - 1]
                meaning = meaning_of(code)
                self.stats.last_error = f"{code}: {message}"
                if meaning.kind is Kind.THROTTLED:
                    throttled.update(dict.fromkeys(piece.lane for piece in pieces))
                    self.ledger.throttled(pieces)
                    back += [Piece(lane, self.ledger.retried(span)) for lane, span in pieces]
                    continue
                if meaning.kind is Kind.PERMANENT:
                    self._looks_permanent(meaning.code, message, now)
                self._again_later(pieces, now)
        for lane in throttled:
            lane.throttles += 1
            lane.hold_until = now + self._policy.delay(lane.throttles)
        self._requeue(back)

    def _classify(self, encoded: EncodedRequest, answer: Answer) -> I32:
        """For each entry _STORED, _ELSEWHERE, or 1 + its error's place in the table."""
        classes = answer.errors + 1
        places = {shard_id: place for place, shard_id in enumerate(answer.shard_table)}
        expected = np.array([places.get(lane.shard_id, -2) for lane in encoded.lane_table], np.int32)[encoded.lanes]
        stale = np.array([lane.stale for lane in encoded.lane_table])[encoded.lanes]
        # Without a shard id nothing was predicted, and only raw records are sent then.
        predicted = np.array([bool(lane.shard_id) for lane in encoded.lane_table])[encoded.lanes]
        elsewhere = ((answer.shards != expected) | stale) & predicted & (answer.errors < 0)
        if elsewhere.any():
            self.stats.shard_mispredictions += int(elsewhere.sum())
            self.wants_shard_map = True
            classes[elsewhere & (np.diff(encoded.ends, prepend=0) > 1)] = _ELSEWHERE
        return classes

    def _failed(self, request: Request, failed: RequestFailed, now: float) -> None:
        meaning = meaning_of(failed.code)
        self.stats.put_requests["failed"] += 1
        self.stats.last_error = f"{failed.code}: {failed.message}"
        if failed.maybe_stored:
            self.ledger.mark_maybe_stored(request.pieces)
        if meaning.kind is Kind.INVALID:
            self._halve(request, meaning.code, failed.message, now)
            return
        if meaning.kind is Kind.PERMANENT:
            self._looks_permanent(meaning.code, failed.message, now)
        else:
            self._failures += 1
            if failed.timed_out:
                self._window.timed_out()
            if self._failures >= FAILURES_TO_HOLD:
                self._window.hold()
                self._hold_until = now + self._policy.hold()
        if failed.code == Code.RESULT_COUNT:
            pieces = self._count_wrong(request.pieces, failed.message)
        else:
            pieces = [Piece(lane, span._replace(wrong_counts=0)) for lane, span in request.pieces]
        self._again_later(pieces, now)

    def _count_wrong(self, pieces: list[Piece], message: str) -> list[Piece]:
        """Rows whose answers had the wrong number of results too often end as unknown; the others are tried again."""
        again = []
        for lane, span in pieces:
            if span.wrong_counts + 1 >= WRONG_COUNTS_TO_GIVE_UP:
                self.ledger.end(
                    Piece(lane, span), RowEnd(Outcome.UNKNOWN, Code.RESULT_COUNT, message, maybe_stored=True)
                )
            else:
                again.append(Piece(lane, span._replace(wrong_counts=span.wrong_counts + 1)))
        return again

    def _halve(self, request: Request, code: str, message: str, now: float) -> None:
        """Somewhere in this request is an entry that the service refuses: halve it until that one stands alone."""
        ends = request.encoded.ends if request.encoded is not None else None
        if request.records == 1:
            too_large = code != Code.INTERNAL and "length less than or equal to" in message and "data" in message
            end_code = Code.RECORD_TOO_LARGE if too_large else code
            self.ledger.end(request.pieces[0], RowEnd(Outcome.NOT_STORED, end_code, message))
            told, times = self._refused_alone
            self._refused_alone = (message, times + 1 if told == message else 1)
            if self._refused_alone[1] >= INVALID_TO_DOUBT_STREAM and code != Code.INTERNAL:
                self._looks_permanent(code, message, now)
            return
        whole_entries = ends is not None and len(ends) > 1
        middle = int(ends[len(ends) // 2 - 1]) if ends is not None and whole_entries else request.records // 2
        # Depth first: a bad entry, or a bad stream, is found after few requests.
        self._requeue(list(request.pieces_of(middle, request.records)), alone=True)
        self._requeue(list(request.pieces_of(0, middle)), alone=True)

    def _looks_permanent(self, code: str, message: str, now: float) -> None:
        self.stats.last_error = f"{code}: {message}"
        if code == Code.STREAM_NOT_FOUND and self._shard_map is not None:
            self._shard_map, self.wants_shard_map = None, True  # the next stream of that name is another one
            self._distrust_lanes()
        self.health.looks_permanent(code, message, now)
        if self.health.state is HealthState.BROKEN:
            self._hold_until = 0.0  # from here on probes set the pace
            self.ledger.withdraw_all(RowEnd(Outcome.NOT_STORED, code, message))
        elif self.health.state is HealthState.SUSPECT:
            self._hold_until = now + self._policy.hold()

    # ---- rows go back

    def _again_later(self, pieces: list[Piece], now: float) -> None:
        """Rows that wait out a delay of their own before they return to their lanes."""
        if pieces:
            attempts = max(piece.span.attempts for piece in pieces)
            retried = [Piece(lane, self.ledger.retried(span)) for lane, span in pieces]
            self._requeue(retried, due=now + self._policy.delay(attempts))

    def _requeue(self, pieces: list[Piece], *, due: float | None = None, alone: bool = False) -> None:
        """Rows leave a request unsettled, unless they are to be sent no more."""
        for piece in pieces:
            span = piece.span
            span.buffer.job.state[span.first : span.last] = QUEUED
        if alone:
            self._alone.appendleft(pieces)
        elif due is not None:
            heapq.heappush(self._later, (due, next(self._numbers), pieces))
        else:
            self._to_lanes(pieces)
        broken = self.health.state is HealthState.BROKEN
        for job in {id(piece.span.buffer.job): piece.span.buffer.job for piece in pieces}.values():
            for frame in job.frames:
                if frame.withdrawn:
                    self.ledger.withdraw(
                        frame, frame.withdrawn_as, "returned" if frame.withdrawn_as else "disconnected"
                    )
                elif self._draining and frame.owner is not None and not frame.finished:
                    self.ledger.withdraw(frame, _RETURNED, "returned")
                elif broken and not frame.finished:
                    self.ledger.withdraw(frame, RowEnd(Outcome.NOT_STORED, self.health.code, self.health.message), "")


def _as_raw(pieces: list[Piece]) -> list[Piece]:
    return [Piece(lane, span._replace(raw=True)) for lane, span in pieces]


_STORED: Final = 0
_ELSEWHERE: Final = -1
_RETURNED: Final = RowEnd(Outcome.RETURNED, Code.DRAINING, "the daemon stops; these rows were not sent")
_ONE_LANE: Final = one_lane()
