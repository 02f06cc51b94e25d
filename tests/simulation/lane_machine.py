"""Random rows, answers and maps for the lanes of one stream, which keep their pace.

Every row leaves once and in its order, every request can be encoded within the bounds, and no shard is sent more than
its pace allows.  No row waits forever.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from producerd.core.encoding.entries import encode
from producerd.core.lanes.lane import Lane, Piece
from producerd.core.lanes.lanes import Lanes
from producerd.core.lanes.pacing import SHARD_BYTES_PER_SECOND, SHARD_RECORDS_PER_SECOND, Pacer
from producerd.core.lanes.taken import Taken
from producerd.core.rows.job import QUEUED, Job
from producerd.core.sending.requests import Request
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.shard_map import Shard, ShardMap
from tests.core.rows import Row, rows_of, sorted_of
from tests.simulation.setting import ADDRESS, make_rules

HASH_KEYS: Final = st.sampled_from([None, None, 0, 1, 2**126, 2**127 - 1, 2**127, MAX_HASH_KEY])
DRAWN_ROWS: Final = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([0, 10, 100, 100, 3_000, 60_000]), HASH_KEYS, st.integers(1, 15)),
    min_size=1,
    max_size=3,
)
"""Each: a key, the size of the data, a hash key, and how many such rows."""
PICK: Final = st.integers(0, 59)


class UnderWay(NamedTuple):
    """A request without an answer, and for each of its lanes its entries and bytes."""

    request: Request
    of_lanes: list[tuple[int, int]]
    sent_at: float


class LaneMachine(RuleBasedStateMachine):
    """Lanes with pacers.  Rows are numbered in the order in which they came."""

    @initialize(
        shards=st.integers(1, 4),
        per_key=st.booleans(),
        aggregate=st.booleans(),
        aggregate_max_bytes=st.sampled_from([100, 1_000, 51_200]),
        request_max_records=st.sampled_from([1, 7, 500]),
        request_max_bytes=st.sampled_from([500, 20_000, 1 << 20]),
        fraction=st.sampled_from([1.0, 0.3, 0.01]),
    )
    def begin(self, shards: int, fraction: float, **rules: Any) -> None:
        self.entry_rules = make_rules(**rules).entries
        self.fraction = fraction
        self.lanes = Lanes(self.entry_rules, lambda: Pacer(fraction))
        self.now = 0.0
        self.maps = [self.make_map(shards)]
        self.lanes.follow_map(self.maps[-1])
        self.jobs: dict[Job, int] = {}  # with the number of each one's first row
        self.names: dict[int, tuple[int, int | None]] = {}  # the key and hash key of each row
        self.under_way: list[UnderWay] = []
        self.ended: set[int] = set()
        self.taken: set[int] = set()
        self.last_taken: dict[tuple[int, int | None], int] = {}
        self.last_stored: dict[tuple[int, int | None], int] = {}
        self.sent: dict[Lane, list[tuple[float, int, int, int]]] = {}  # time, entries, bytes, largest entry

    def make_map(self, shards: int) -> ShardMap:
        """A map of this many shards.  A range that the newest map has keeps its shard."""
        edges = [i * 2**128 // shards for i in range(shards + 1)]
        old = {(shard.start, shard.end): shard for shard in self.maps[-1].shards} if hasattr(self, "maps") else {}
        ranges = [(start, end - 1) for start, end in pairwise(edges)]
        number = len(getattr(self, "maps", ()))
        return ShardMap(old.get(each, Shard(f"shard-{number}-{each[0]}", *each)) for each in ranges)

    def numbers(self, pieces: Iterable[Piece]) -> list[int]:
        return [self.jobs[span.job] + int(row) for _, span in pieces for row in span.job.order[span.first : span.last]]

    # ---- rows come

    @rule(drawn=DRAWN_ROWS, by_older_map=st.booleans())
    def rows_come(self, drawn: list[tuple[int, int, int | None, int]], by_older_map: bool) -> None:
        first = len(self.names)
        rows: list[Row] = []
        for key, size, hash_key, count in drawn:
            for _ in range(count if size < 10_000 else 2):
                self.names[first + len(rows)] = key, hash_key
                rows.append((b"k%d" % key, bytes(size), None if hash_key is None else b"%d" % hash_key))
        shard_map = self.maps[-2 if by_older_map and len(self.maps) > 1 else -1]
        result = sorted_of([rows_of(rows)], shard_map)
        self.jobs[result.job] = first
        self.lanes.append(shard_map, result.spans)

    @precondition(lambda self: self.jobs)
    @rule(pick=PICK, every=st.sampled_from([1, 2, 3]))
    def a_caller_leaves(self, pick: int, every: int) -> None:
        """Its rows that are in no request end where they are."""
        job = list(self.jobs)[pick % len(self.jobs)]
        positions = np.flatnonzero(job.state == QUEUED)[::every]
        if len(positions):
            self.ended |= {self.jobs[job] + int(row) for row in job.order[positions]}
            job.end_queued(positions)

    # ---- requests go

    @rule(takes_slow=st.booleans(), passes_larger=st.booleans(), bytes_left=st.sampled_from([2**62, 2**62, 1_000]))
    def a_request_goes(self, takes_slow: bool, passes_larger: bool, bytes_left: int) -> None:
        taken = self.lanes.take_for_request(self.now, bytes_left, takes_slow=takes_slow, passes_larger=passes_larger)
        if taken is not None:
            self.encode_and_send(taken)

    def encode_and_send(self, taken: Taken) -> None:
        request = Request(taken, self.lanes.map)
        for lane in request.lanes:
            assert not (self.entry_rules.per_key and lane.in_flight), "one request of a lane at a time"
            lane.request_began()
        for span in request.spans:
            assert (span.job.state[span.first : span.last] == QUEUED).all(), "a row that ended is not sent"
            span.job.begin(span.first, span.last)
        assert request.records
        assert request.bytes <= self.entry_rules.request_max_bytes or request.records == 1
        encoded = encode(ADDRESS, request.numbered, self.entry_rules, request.aggregate_bytes, request.shard_map)
        assert 1 <= encoded.entries <= self.entry_rules.request_max_records
        assert encoded.payload_bytes <= self.entry_rules.request_max_bytes or encoded.entries == 1
        lanes, of_lanes = request.lanes, encoded.of_lanes(len(request.lanes))
        back = request.keep(int(encoded.ends[-1])) if encoded.ends[-1] < request.records else []
        for place, (lane, (entries, bytes_)) in enumerate(zip(lanes, of_lanes, strict=True)):
            paid_entries, paid_bytes = request.paid[lane]
            lane.refund(paid_entries - entries, paid_bytes - bytes_)
            largest = int(encoded.sizes[encoded.lanes == place].max(initial=0))
            self.sent.setdefault(lane, []).append((self.now, entries, bytes_, largest))
        self.requeue(back)
        for lane in (gone := [lane for lane in lanes if lane not in request.lanes]):
            lane.request_left()
        self.lanes.put_back(back)
        self.lanes.released(gone)
        self.is_in_order(request)
        self.under_way.append(UnderWay(request, of_lanes, self.now))

    def is_in_order(self, request: Request) -> None:
        """Rows of one key and one hash key are first taken in the order in which they came."""
        for number in self.numbers(request.pieces):
            name = self.names[number]
            if number not in self.taken:
                assert number > self.last_taken.get(name, -1), "overtaken by a row of its key that came later"
                self.taken.add(number)
                self.last_taken[name] = number
        if self.entry_rules.per_key and not any(request.aggregate_bytes):
            keys = [
                (lane, self.names[at][0]) for lane, span in request.pieces for at in self.numbers([Piece(lane, span)])
            ]
            assert len(set(keys)) == len(keys), "two rows of one key in a request"

    # ---- answers come

    @precondition(lambda self: self.under_way)
    @rule(pick=PICK, throttled=st.sampled_from([0, 0, 0, 1, 2, 7]))
    def answer(self, pick: int, throttled: int = 0) -> None:
        """Each shard stores or throttles all of its rows."""
        request, of_lanes, sent_at = self.under_way.pop(pick % len(self.under_way))
        for place, (lane, (entries, _)) in enumerate(zip(request.lanes, of_lanes, strict=False)):
            refused = bool(throttled >> place & 1)
            lane.answer_came(late=False)
            lane.pace(0 if refused else entries, entries if refused else 0, sent_at, self.now, lambda _: 1.0)
            pieces = [piece for piece in request.pieces if piece.lane is lane]
            if refused:
                self.requeue(pieces)
                self.lanes.put_back(pieces)
            else:
                self.store(pieces)
            lane.request_left()
        self.lanes.released(request.lanes)

    @precondition(lambda self: self.under_way)
    @rule(pick=PICK, timed_out=st.booleans())
    def fail(self, pick: int, timed_out: bool) -> None:
        """The whole request fails, by a time-out or a fault of the service."""
        request = self.under_way.pop(pick % len(self.under_way)).request
        change = {"timeouts": 1} if timed_out else {"faults": 1}
        ((name, more),) = change.items()
        again = [Piece(lane, span._replace(**{name: getattr(span, name) + more})) for lane, span in request.pieces]
        self.requeue(again)
        for lane in request.lanes:
            lane.request_left()
            if timed_out:
                lane.timed_out()
        self.lanes.put_back(again)
        self.lanes.released(request.lanes)

    def requeue(self, pieces: Iterable[Piece]) -> None:
        for _, span in pieces:
            span.job.requeue(span.first, span.last)

    def store(self, pieces: list[Piece]) -> None:
        for number in self.numbers(pieces):
            assert number not in self.ended, "a row ends once"
            self.ended.add(number)
            if self.entry_rules.per_key:
                assert number > self.last_stored.get(self.names[number], -1), "the order of a key is kept"
                self.last_stored[self.names[number]] = number
        for _, span in pieces:
            span.job.settle_rows(span.first, span.last)
            span.job.release(span.buffer, span.records)

    # ---- shards change, and time passes

    @rule(shards=st.integers(1, 4))
    def shards_change(self, shards: int) -> None:
        self.maps.append(self.make_map(shards))
        self.lanes.follow_map(self.maps[-1])

    @rule(seconds=st.sampled_from([0.05, 0.5, 5.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.lanes.next_time() < inf)
    @rule()
    def the_next_lane_is_due(self) -> None:
        self.now = max(self.now, self.lanes.next_time())

    # ---- at all times

    @invariant()
    def every_row_is_in_its_lane_or_in_a_request_or_has_ended(self) -> None:
        waiting: list[int] = []
        assert len(self.lanes) <= len(self.lanes.map)
        for lane in self.lanes:
            assert lane.shard in self.lanes.map
            assert lane.queued == sum(span.records for span in lane.spans)
            for span in lane.spans:
                assert not span.buffer.live or span.lies_in(lane.shard)
                waiting += self.numbers([Piece(lane, span)])
        there = [number for number in waiting if number not in self.ended]
        there += [number for under_way in self.under_way for number in self.numbers(under_way.request.pieces)]
        assert sorted(there) == sorted(set(self.names) - self.ended)

    def teardown(self) -> None:
        """All is answered, and each row is sent."""
        if not hasattr(self, "lanes"):
            return
        for _ in range(20_000):
            while self.under_way:
                self.answer(0)
            if len(self.ended) == len(self.names):
                break
            if (taken := self.lanes.take_for_request(self.now, 2**62)) is not None:
                self.encode_and_send(taken)
            else:
                assert len(self.ended) == len(self.names) or self.now < self.lanes.next_time() < inf, (
                    "rows wait forever"
                )
                self.now = self.lanes.next_time()
        assert len(self.ended) == len(self.names), "rows wait forever"
        for sent in self.sent.values():
            self.keeps_its_pace(sent)

    def keeps_its_pace(self, sent: list[tuple[float, int, int, int]]) -> None:
        """Over T seconds at most T x rate + the larger of one second's rate and the largest entry."""
        records_rate, bytes_rate = SHARD_RECORDS_PER_SECOND * self.fraction, SHARD_BYTES_PER_SECOND * self.fraction
        most_records, most_bytes = max(1.0, records_rate), max(bytes_rate, *[largest for *_, largest in sent])
        records = bytes_ = before = 0.0
        for number, (now, more_records, more_bytes, _) in enumerate(sent):
            records = max(0.0, records - records_rate * (now - before)) + more_records
            bytes_ = max(0.0, bytes_ - bytes_rate * (now - before)) + more_bytes
            before = now
            assert records <= most_records + 0.01 or self.entry_rules.aggregate  # whose number is estimated
            assert bytes_ <= most_bytes + 2 * number + 2, "rounded down by a byte each time"
