"""Lanes: every lane of one stream: which may send, what a request takes of them, and where rows go when shards change.

There is a lane for each open shard that had rows, and never one for another.  Only lanes that may send are touched; a
lane that waits for a time stands in a heap, one that waits for an answer stands nowhere until it is listed again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from math import inf
from typing import Final, NamedTuple

from producerd.core.lanes.lane import (
    AGGREGATED_OVERHEAD_BYTES,
    ENTRY_OVERHEAD_BYTES,
    SLOW_LANE_PAUSE_SECONDS,
    Lane,
    Piece,
)
from producerd.core.lanes.pacing import Pacer
from producerd.core.lanes.taken import ANY, Taken
from producerd.core.rows.spans import RAW_FROM_STRAYS, Span, place, records_of
from producerd.core.rules import EntryRules
from producerd.core.shards.shard_map import ONE_LANE, Shard, ShardMap

SMALLEST_RETRY_BYTES: Final = 64 * 1024
"""After time-outs requests are halved down to this, or to one row."""
FAULTY_ROWS: Final = 512
"""Rows whose requests failed twice in a row by a fault of the service go alone, and half as many each time, down to
one: a record that makes the service fail must not sink its mates."""
EVEN_USE: Final = 0.8
"""Where the other shards have stored this part of what the fullest one has, on average, all are as full as it is.
Random keys differ by less, and a shard whose keys are to be spread by more."""


class Hottest(NamedTuple):
    """The lane with the most waiting bytes, and its share of all that wait."""

    lane: Lane
    share: float


class ShardState(NamedTuple):
    """What is to be known of an open shard.  ``share``: of all waiting bytes; ``use``: of the shard's quota, of late.

    ``rate_records``, ``rate_bytes``: what its lane may send in a second, 0 before it had rows.  ``waits_for``: what
    keeps its rows from being sent, "" where nothing does or there are none.
    """

    shard: Shard
    waiting_records: int
    waiting_bytes: int
    share: float
    in_flight: int
    rate_records: float
    rate_bytes: float
    use: float
    backs_off: bool
    waits_for: str


class Lanes:
    """See the module's text.  With ``per_key`` a lane has one request in flight, of distinct keys or one aggregate."""

    def __init__(self, rules: EntryRules, make_pacer: Callable[[], Pacer]) -> None:
        self.map = ONE_LANE
        self._rules = rules
        self._make_pacer = make_pacer
        self._per_key = rules.per_key
        self._lanes: dict[Shard, Lane] = {}
        self._leaving: list[Lane] = []  # of closed shards, with requests on their way
        self._ready: deque[Lane] = deque()  # with rows, longest-waiting first
        self._held: list[tuple[float, int, Lane]] = []  # with rows, that wait for a time: a heap
        self._listed: set[Lane] = set()  # those in one of the two, in which a lane stands at most once
        self._numbers = count()

    # ---- questions

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def have_work(self, now: float) -> bool:
        """Whether any lane may send now."""
        return any(lane.ready_at(now) <= now for lane in self._ready)

    @property
    def waiting(self) -> bool:
        """Whether any lane stands in line."""
        return bool(self._ready)

    def next_time(self) -> float:
        """When the next lane that waits for a time may send."""
        return self._held[0][0] if self._held else inf

    def hottest(self) -> Hottest | None:
        """The lane that holds most, by the bytes of its rows.  Looks at every span: ask it seldom."""
        bytes_of = {lane: lane.bytes for lane in self._lanes.values()}
        total = sum(bytes_of.values())
        if not total:
            return None
        lane = max(bytes_of, key=bytes_of.__getitem__)
        return Hottest(lane, bytes_of[lane] / total)

    def others_have_room(self, full: Lane, now: float) -> bool:
        """Whether the shards other than that of ``full`` could store clearly more.  Looks at every lane: ask it seldom.

        A lane that its pace or its shard's throttles hold back counts as full, whatever it has stored.
        """
        others = [lane for lane in self._lanes.values() if lane is not full]
        used = sum([1.0 if lane.is_paced(now) or lane.backs_off(now) else lane.use(now) for lane in others])
        most = 1.0 if full.backs_off(now) else full.use(now)
        return used < EVEN_USE * most * (len(self.map) - 1)

    def backing_off(self, now: float) -> int:
        """Lanes that send less than before because their shard throttled them."""
        return sum([lane.backs_off(now) for lane in self._lanes.values()])

    def most_used(self, now: float) -> float:
        """Of the busiest shard's quota, what it was sent of late."""
        return max([lane.use(now) for lane in self._lanes.values() if not lane.nameless], default=0.0)

    def states(self, now: float) -> Iterator[ShardState]:
        """Each open shard, in their order.  Looks at every span: ask it seldom."""
        total = max(1, sum([lane.bytes for lane in self._lanes.values()]))
        for shard in self.map.shards:
            lane = self._lanes.get(shard)
            if lane is None or lane.pacer is None:
                yield ShardState(shard, 0, 0, 0.0, 0, 0.0, 0.0, 0.0, backs_off=False, waits_for="")
                continue
            bytes_, pacer = lane.bytes, lane.pacer
            yield ShardState(
                shard,
                lane.queued,
                bytes_,
                bytes_ / total,
                lane.in_flight,
                pacer.rate_records,
                pacer.rate_bytes,
                pacer.use(now),
                lane.backs_off(now),
                _waits_for(lane, now),
            )

    # ---- rows come and go

    def append(self, shard_map: ShardMap, spans: Sequence[tuple[int, Span]]) -> None:
        """Sorted spans join their lanes, in order.  The map that they were sorted by may be older than ours."""
        by_lane: dict[Lane, list[Span]] = {}
        for shard_index, span in spans:
            shard = shard_map.shards[shard_index]
            for lane, part in [(self._lane(shard), span)] if shard in self.map else self._place(span):
                by_lane.setdefault(lane, []).append(part)
        for lane, lane_spans in by_lane.items():
            lane.extend(lane_spans)
            self.line_up(lane)

    def put_back(self, pieces: Iterable[Piece]) -> None:
        """Rows return to the front of their lanes, in their order.

        Those that keep failing go to the end: else each request after an outage, or beside one, would begin with them.
        """
        by_lane: dict[Lane, list[Span]] = {}
        for lane, span in self.renewed(pieces):
            by_lane.setdefault(lane, []).append(span)
        for lane, spans in by_lane.items():
            last = [span for span in spans if span.failing and not self._per_key]
            lane.put_back([span for span in spans if span not in last] if last else spans)
            lane.extend(last)
            self.line_up(lane)

    def renewed(self, pieces: Iterable[Piece]) -> list[Piece]:
        """The same rows with the lanes that are theirs by the newest map."""
        renewed: list[Piece] = []
        for lane, span in pieces:
            if self._lanes.get(lane.shard) is lane:
                renewed.append(Piece(lane, span))
            else:
                renewed += self._place(span)
        return renewed

    def learn(self, shard_map: ShardMap) -> None:
        """A newer map.  Rows of shards that it does not have are sorted anew, to the front of their new lanes."""
        self.map = shard_map
        gone = [lane for shard, lane in self._lanes.items() if shard not in shard_map]
        moved: list[Piece] = []
        for lane in gone:
            del self._lanes[lane.shard]
            moved += [Piece(lane, span) for span in lane.take_all()]
            if lane.in_flight or lane.set_aside:
                self._leaving.append(lane)
        self.put_back(moved)

    def line_up(self, lane: Lane) -> None:
        """Put a lane in line if it has rows."""
        if lane.queued and lane not in self._listed:
            self._listed.add(lane)
            self._ready.append(lane)

    def released(self, lanes: Iterable[Lane]) -> None:
        """A request of these lanes has ended, or left the queue beside them."""
        left = False
        for lane in lanes:
            self.line_up(lane)
            left = left or (lane in self._leaving and not lane.in_flight and not lane.set_aside)
        if left:
            self._leaving = [lane for lane in self._leaving if lane.in_flight or lane.set_aside]
            for lane in self._lanes.values():
                self.line_up(lane)

    def set_rules(self, rules: EntryRules, shard_rate_fraction: float, now: float) -> None:
        """Other rules, from now on."""
        self._rules = rules
        for lane in self._lanes.values():
            lane.set_rules(self._aggregate_bytes(lane.shard), shard_rate_fraction, now)
        held, self._held = self._held, []
        for _, _, lane in held:  # they may send sooner now
            self._listed.remove(lane)
            self.line_up(lane)

    # ---- requests

    def take(
        self,
        now: float,
        bytes_left: int,
        *,
        request_bytes: int = ANY,
        takes_slow: bool = True,
        passes_larger: bool = False,
    ) -> Taken | None:
        """Rows of few lanes, deep, the longest-waiting first.

        ``bytes_left``: the most that one large row may have; where the first has more nothing is taken, or, with
        ``passes_larger``, of other lanes.  ``request_bytes``: the most that several rows may have, where that is less
        than the rules'.  ``takes_slow``: also of lanes that go alone.
        """
        while self._held and self._held[0][0] <= now:
            lane = heapq.heappop(self._held)[2]
            self._listed.remove(lane)
            self.line_up(lane)
        taken = Taken(min(self._rules.request_max_bytes, request_bytes))
        passed: list[Lane] = []
        while self._ready:
            lane = self._ready.popleft()
            self._listed.remove(lane)
            due = lane.ready_at(now)
            if due > now or self._must_wait(lane):
                self._hold(lane, due)
                continue
            alone = lane.alone or lane.spans[0].failing
            if (alone and taken.pieces) or (lane.alone and not takes_slow):
                self._listed.add(lane)
                passed.append(lane)
            elif self._take_from(lane, taken, now, bytes_left) or (alone and taken.pieces):
                if taken.pieces or not passes_larger:
                    break
                passed.append(self._ready.popleft())  # to which it went back, as its first row is larger
        self._ready.extendleft(reversed(passed))
        return taken if taken.pieces else None

    def _take_from(self, lane: Lane, taken: Taken, now: float, bytes_left: int) -> bool:
        """Take what the request and the lane's pace allow; says whether the request is full."""
        rules, pacer = self._rules, lane.pacer
        front = lane.spans[0]
        no_map = lane.nameless or lane.map_until is not None  # none came in time: until one does, records go plain
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
            # Whole aggregates but for the last; encoding hands back what this estimate lets in too much.
            max_bytes = min(max_bytes, largest if self._per_key else entries * largest)
        bounds = min(most_rows, ANY if aggregates else entries), max_bytes, first_row_bytes
        if self._per_key and not aggregates:
            spans, size = lane.take_distinct(*bounds)
        else:
            small = aggregates and front.buffer.explicit is None
            spans, size = lane.take(*bounds, AGGREGATED_OVERHEAD_BYTES if small else ENTRY_OVERHEAD_BYTES)
        if spans:
            if no_map:
                spans = as_raw(spans)
            made = size // largest + 1 if aggregates else records_of(spans)
            taken.add(lane, spans, size, made, largest if aggregates else 0)
            taken.pay(lane, made, size if aggregates else size - ENTRY_OVERHEAD_BYTES * made, now)
            if lane.alone:
                lane.hold(now + SLOW_LANE_PAUSE_SECONDS)
        elif lane.queued and pacer is not None and not one_larger and (paced_bytes < room or not taken.pieces):
            # Its first row is larger than what the bucket holds, or than a request.
            pacer.held()
            self._hold(lane, pacer.ready_at(now, ANY))
            return False
        if self._per_key and spans:
            return taken.is_full(rules)  # what is left waits for the answer
        if lane.queued:
            self._listed.add(lane)
            if spans:
                self._ready.append(lane)
            else:
                self._ready.appendleft(lane)
        cut_short = max_bytes >= room and (aggregates or entries == most_entries)  # by the request, not by its pace
        return (lane.queued > 0 and (cut_short or not spans)) or taken.is_full(rules)

    def _must_wait(self, lane: Lane) -> bool:
        """With ``per_key``: whether rows of its range are on their way, in its own requests or in a closed shard's."""
        if not self._per_key:
            return False
        return (
            lane.in_flight > 0 or lane.set_aside > 0 or any(overlap(lane.shard, other.shard) for other in self._leaving)
        )

    def _hold(self, lane: Lane, until: float) -> None:
        """It waits for a time; with inf it waits to be listed again."""
        if until < inf and not self._must_wait(lane):
            self._listed.add(lane)
            heapq.heappush(self._held, (until, next(self._numbers), lane))

    def _place(self, span: Span) -> list[Piece]:
        if not span.buffer.live:
            return []  # all of its rows have ended, and their memory is gone
        return [Piece(self._lane(self.map.shards[index]), part) for index, part in place(span, self.map)]

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
    """The same rows, to be sent as plain records."""
    return [span._replace(strays=max(span.strays, RAW_FROM_STRAYS)) for span in spans]


def overlap(one: Shard, other: Shard) -> bool:
    """Whether two ranges have a hash key in common."""
    return one.start <= other.end and other.start <= one.end


def _waits_for(lane: Lane, now: float) -> str:
    if lane.ready_at(now) <= now or not lane.queued:
        return ""
    if lane.map_until is not None and now < lane.map_until:
        return "shard map"
    return "answers" if lane.waits_for_answers else "pace"
