"""All lanes of one stream.

They decide which lanes may send, which rows a request takes, and where rows go when shards change.  A shard has a lane
from its first row until it closes and its last request ends.  A request takes CPU time only for lanes that may send: a
lane that waits for a time is in a heap, and a lane that waits for an answer is in no list.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from math import inf
from typing import Final

from producerd.core.lanes.lane import (
    ENTRY_OVERHEAD_BYTES,
    SLOW_LANE_PAUSE_SECONDS,
    Lane,
    Piece,
)
from producerd.core.lanes.pacing import JOINING_SECONDS, Pacer
from producerd.core.lanes.taken import ANY, Taken
from producerd.core.rows.sorting import SPAN_BYTES
from producerd.core.rows.spans import RAW_FROM_STRAYS, Span, place, records_of
from producerd.core.rules import EntryRules
from producerd.core.shards.shard_map import ONE_LANE, Shard, ShardMap

SMALLEST_RETRY_BYTES: Final = 64 * 1024
"""Size down to which requests are halved after time-outs.  A single row may be larger."""
FAULTY_ROWS: Final = 512
"""Most rows in a request of rows that are suspected to make Kinesis fail.  Such rows share no request with others.
Each further failure halves their number, down to one, so that a faulty row does not fail the others."""


class Lanes:
    """All lanes of one stream.  A lane is in at most one of the two lists of lanes that have rows.

    With ``per_key`` a lane has one request in flight, with rows of distinct partition keys or with one aggregate.
    """

    def __init__(self, rules: EntryRules, make_pacer: Callable[[], Pacer]) -> None:
        self.map = ONE_LANE
        self._rules = rules
        self._make_pacer = make_pacer
        self._per_key = rules.per_key
        self._lanes: dict[Shard, Lane] = {}
        self._leaving: list[Lane] = []  # lanes of closed shards, with requests on their way
        self._ready: deque[Lane] = deque()  # lanes with rows, longest-waiting first
        # A heap of the lanes with rows that wait for a time, and whether they may join a request before it.
        self._held: list[tuple[float, int, Lane, bool]] = []
        self._listed: set[Lane] = set()  # the lanes in `_ready` or `_held`
        self._numbers = count()
        self.record_limit_bytes = ANY  # the stream's, or no limit while it is not known
        self._sole_bytes = ANY  # a span with more has one row
        self.held_back: dict[object, list[Span]] = {}  # by session, in order, rows that wait for an earlier one

    # ---- questions

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def have_work(self, now: float) -> bool:
        """Return whether any lane may send now."""
        return self.next_time() <= now or any(lane.ready_at(now) <= now for lane in self._ready)

    def are_free(self, pieces: Iterable[Piece]) -> bool:
        """Return whether no request in flight has rows of these rows' shards, by this map or an earlier one."""
        busy = [lane.shard for lane in (*self._lanes.values(), *self._leaving) if lane.in_flight]
        return not any(overlap(lane.shard, shard) for lane, _ in pieces for shard in busy)

    @property
    def waiting(self) -> bool:
        """Whether any lane is in line to send."""
        return bool(self._ready)

    def next_time(self) -> float:
        """Return when the next lane that waits for a time may send; ``inf`` if none does."""
        return self._held[0][0] if self._held else inf

    # ---- rows come and go

    def append(self, shard_map: ShardMap, spans: Sequence[tuple[int, Span]]) -> None:
        """Add sorted spans to their lanes, in order.  They may have been sorted by an older map than the newest."""
        by_lane: dict[Lane, list[Span]] = {}
        is_newest = shard_map is self.map
        for shard_index, span in spans:
            shard = shard_map.shards[shard_index]
            is_open = is_newest or shard in self.map
            for lane, placed in [(self._lane(shard), span)] if is_open else self._place(span):
                by_lane.setdefault(lane, []).append(placed)
        for lane, lane_spans in by_lane.items():
            lane.extend(self._without_held(lane_spans))
            self.line_up(lane)

    def put_back(self, pieces: Iterable[Piece]) -> None:
        """Return rows to the front of their lanes, in their order.

        Rows that keep failing go to the end.  Otherwise every request during and after an outage would begin with them.
        """
        by_lane: dict[Lane, list[Span]] = {}
        for lane, span in self.renewed(pieces):
            by_lane.setdefault(lane, []).append(span)
        for lane, spans in by_lane.items():
            spans = self._without_held(spans, at_front=True)
            last = [span for span in spans if span.failing and not self._per_key]
            lane.put_back([span for span in spans if span not in last] if last else spans)
            lane.extend(last)
            self.line_up(lane)

    def hold_back(self, session: object) -> None:
        """Send no row of a session that is or comes in a lane until `let_go`: an earlier one waits outside."""
        self.held_back.setdefault(session, [])
        for lane in self._lanes.values():
            lane.extend(self._without_held(lane.take_all()))

    def let_go(self, session: object) -> None:
        """Return the rows of a session that were held back to the front of their lanes."""
        self.put_back([piece for span in self.held_back.pop(session) for piece in self._place(span)])

    def _without_held(self, spans: list[Span], *, at_front: bool = False) -> list[Span]:
        """Move the rows of sessions that are held back out of some spans.  Returns the others."""
        if not self.held_back:
            return spans
        free: list[Span] = []
        held: dict[object, list[Span]] = {}
        for span in spans:
            if not span.buffer.live:
                continue  # all of its rows have ended, and their memory is released
            for session, _, last in span.job.runs_by_session(span.first, span.last, self.held_back):
                run, span = span.cut(last)
                (free if session is None else held.setdefault(session, [])).append(run)
        for session, runs in held.items():
            before = self.held_back[session]
            self.held_back[session] = runs + before if at_front else before + runs
        return free

    def renewed(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Return the same rows with their lanes by the newest map."""
        renewed: list[Piece] = []
        for lane, span in pieces:
            if self._lanes.get(lane.shard) is lane:
                renewed.append(Piece(lane, span))
            else:
                renewed += self._place(span)
        return renewed

    def follow_map(self, shard_map: ShardMap) -> None:
        """Follow a newer map.  Rows of shards that it lacks move to the front of their new lanes."""
        self.map = shard_map
        gone = [lane for shard, lane in self._lanes.items() if shard not in shard_map]
        moved: list[Piece] = []
        for lane in gone:
            del self._lanes[lane.shard]
            moved += [Piece(lane, span) for span in lane.take_all()]
            if lane.in_flight or lane.set_aside:
                self._leaving.append(lane)
        self.put_back(moved)

    def forget_all(self) -> None:
        """Forget the map and all lanes, which have no rows and no requests on their way."""
        self.map = ONE_LANE
        for each in (self._lanes, self._leaving, self._ready, self._held, self._listed, self.held_back):
            each.clear()

    def line_up(self, lane: Lane) -> None:
        """Put a lane in line if it has rows."""
        if lane.queued and lane not in self._listed:
            self._listed.add(lane)
            self._ready.append(lane)

    def released(self, lanes: Iterable[Lane]) -> None:
        """List these lanes again: a request with their rows has ended, or their rows that waited outside have left."""
        left = False
        for lane in lanes:
            self.line_up(lane)
            left = left or (lane in self._leaving and not lane.in_flight and not lane.set_aside)
        if left:
            self._leaving = [lane for lane in self._leaving if lane.in_flight or lane.set_aside]
            for lane in self._lanes.values():
                self.line_up(lane)

    def set_record_limit(self, limit_bytes: int) -> None:
        """Send rows that are larger by themselves, because Kinesis refuses a whole request for one of them."""
        self.record_limit_bytes = limit_bytes
        self._sole_bytes = max(limit_bytes, SPAN_BYTES)

    def set_rules(self, rules: EntryRules, shard_rate_fraction: float, now: float) -> None:
        """Follow new rules from now on."""
        self._rules = rules
        for lane in self._lanes.values():
            lane.set_rules(self._aggregate_bytes(lane.shard), shard_rate_fraction, now)
        self._look_again()

    def map_came(self) -> None:
        """End the waits of all lanes for a map."""
        for lane in self._lanes.values():
            lane.map_came()
        self._look_again()

    def _look_again(self) -> None:
        """Line up the lanes that wait for a time, because they may send sooner now."""
        held, self._held = self._held, []
        for _, _, lane, _ in held:
            self._listed.remove(lane)
            self.line_up(lane)

    # ---- requests

    def take_for_request(
        self,
        now: float,
        bytes_left: int,
        *,
        request_bytes: int = ANY,
        takes_slow: bool = True,
        passes_larger: bool = False,
    ) -> Taken | None:
        """Take rows for one request, or None: many rows each of few lanes, the longest-waiting lane first.

        If it is not full then, lanes join it whose pace would soon let them begin one of their own.

        - ``bytes_left``: the most bytes of a single row.  If the first row has more, nothing is taken.
        - ``request_bytes``: the most bytes of several rows together, if that is less than in the rules.
        - ``takes_slow``: take rows of lanes that share no request, too.
        - ``passes_larger``: if a lane's first row is too large, take rows of other lanes instead.
        """
        while self._held and self._held[0][0] <= now:
            lane = heapq.heappop(self._held)[2]
            self._listed.remove(lane)
            self.line_up(lane)
        taken = Taken(min(self._rules.request_max_bytes, request_bytes))
        passed: list[Lane] = []
        while self._ready or (taken.pieces and self._may_join(now)):
            joins = not self._ready
            lane = heapq.heappop(self._held)[2] if joins else self._ready.popleft()
            self._listed.remove(lane)
            due = lane.ready_at(now, JOINING_SECONDS if joins else 0.0)
            if due > now or self._must_wait(lane):
                self._hold(lane, lane.ready_at(now) if joins else due)
                if joins:
                    break
                continue
            if not lane.drop_ended():  # the first of those that are left decide how they are sent
                continue
            alone = lane.alone or lane.spans[0].failing or lane.spans[0].bytes > self._sole_bytes
            if (alone and taken.pieces) or (lane.alone and not takes_slow):
                self._listed.add(lane)
                passed.append(lane)
                continue
            before = len(taken.pieces)
            is_full = self._take_from(lane, taken, now, bytes_left)
            if is_full or (alone and taken.pieces) or (joins and len(taken.pieces) == before):
                if taken.pieces or not passes_larger:
                    break
                passed.append(self._ready.popleft())  # `_take_from` put the lane back: its first row is too large
        self._ready.extendleft(reversed(passed))
        return taken if taken.pieces else None

    def _take_from(self, lane: Lane, taken: Taken, now: float, bytes_left: int) -> bool:
        """Take the rows that the request and the lane's pace allow.  Returns whether the request is full."""
        rules, pacer = self._rules, lane.pacer
        front = lane.spans[0]
        no_map = lane.nameless or lane.map_until is not None  # no map came in time: until one does, rows go plain
        aggregates = rules.aggregate and not front.raw and not no_map
        most_entries = rules.request_max_records - taken.entries
        most_rows = max(1, FAULTY_ROWS >> front.faults) if front.failing else ANY
        room = taken.max_bytes - taken.bytes
        if front.timeouts:
            room = min(room, max(SMALLEST_RETRY_BYTES, rules.request_max_bytes >> front.timeouts))
        paced_entries, paced_bytes, one_larger = ANY, ANY, True
        first_row_bytes = 0 if taken.pieces else bytes_left
        largest = rules.aggregate_max_bytes
        if pacer is not None:
            paced_entries, paced_bytes, one_larger = pacer.allowance(now)
            largest = pacer.entry_bytes(largest)
            if not one_larger:
                first_row_bytes = 0
        entries, max_bytes = min(most_entries, paced_entries), min(room, paced_bytes)
        if aggregates:
            # All aggregates but the last will be full.  Encoding returns the rows that this estimate takes too many.
            max_bytes = min(max_bytes, largest if self._per_key else entries * largest)
            max_rows = most_rows
        else:
            max_rows = min(most_rows, entries)
        if self._per_key and not aggregates:
            spans, size = lane.take_distinct(max_rows, max_bytes, first_row_bytes, self._sole_bytes)
        else:
            spans, size = lane.take_rows(max_rows, max_bytes, first_row_bytes, self._sole_bytes, aggregates=aggregates)
        if spans:
            if no_map:
                spans = as_raw(spans)
            made = size // largest + 1 if aggregates else records_of(spans)
            taken.add_rows(lane, spans, size, made, largest if aggregates else 0)
            taken.pay(lane, made, size if aggregates else size - ENTRY_OVERHEAD_BYTES * made, now)
            if lane.alone:
                lane.wait_until(now + SLOW_LANE_PAUSE_SECONDS)
        elif lane.queued and pacer is not None and not one_larger and (paced_bytes < room or not taken.pieces):
            # Its first row is larger than the bucket's tokens or than a request.
            due = lane.ready_at(now)
            if due > now:  # it only tried to join
                self._hold(lane, due)
            else:
                pacer.held()
                self._hold(lane, pacer.ready_at(now, ANY), joins=False)  # nothing less than a full bucket will do
            return False
        if self._per_key and spans:
            return taken.is_full(rules)  # the lane's other rows wait for the answer
        if lane.queued:
            self._listed.add(lane)
            if spans:
                self._ready.append(lane)
            else:
                self._ready.appendleft(lane)
        cut_short = max_bytes >= room and (aggregates or entries == most_entries)  # the request is full, not the pace
        return (lane.queued > 0 and (cut_short or not spans)) or taken.is_full(rules)

    def _must_wait(self, lane: Lane) -> bool:
        """Return whether ``per_key`` holds the lane back.

        It does while rows of the lane's range are on their way, in its own requests or in a closed shard's.
        """
        if not self._per_key:
            return False
        return (
            lane.in_flight > 0 or lane.set_aside > 0 or any(overlap(lane.shard, other.shard) for other in self._leaving)
        )

    def _may_join(self, now: float) -> bool:
        """Return whether the next lane that waits may be due soon enough to join a request that goes now."""
        return bool(self._held) and self._held[0][3] and self._held[0][0] <= now + JOINING_SECONDS

    def _hold(self, lane: Lane, until: float, *, joins: bool = True) -> None:
        """Let a lane wait until a time.  ``inf`` leaves it out of both lists until `line_up` lists it again."""
        if until < inf and not self._must_wait(lane):
            self._listed.add(lane)
            heapq.heappush(self._held, (until, next(self._numbers), lane, joins))

    def _place(self, span: Span) -> list[Piece]:
        """Sort a span's rows by the newest map."""
        if not span.buffer.live:
            return []  # all of its rows have ended, and their memory is released
        return [Piece(self._lane(self.map.shards[index]), placed) for index, placed in place(span, self.map)]

    def _lane(self, shard: Shard) -> Lane:
        lane = self._lanes.get(shard)
        if lane is None:
            paced = shard.shard_id or self._rules.aggregate
            pacer = self._make_pacer() if paced else None
            lane = self._lanes[shard] = Lane(shard, pacer, self._aggregate_bytes(shard))
        return lane

    def _aggregate_bytes(self, shard: Shard) -> int:
        return self._rules.aggregate_max_bytes if self._rules.aggregate and shard.shard_id else 0


def as_raw(spans: Sequence[Span]) -> list[Span]:
    """Return the same rows, marked to go as plain records."""
    return [span._replace(strays=max(span.strays, RAW_FROM_STRAYS)) for span in spans]


def overlap(one: Shard, other: Shard) -> bool:
    """Return whether the ranges of two shards have a hash key in common."""
    return one.start <= other.end and other.start <= one.end
