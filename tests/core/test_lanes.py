"""A request takes rows from the lanes that may send, in their order.  Rows find their lane again when shards change."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import inf
from random import Random
from typing import Any

import numpy as np
import pytest

from producerd.core.encoding.entries import encode
from producerd.core.lanes.lane import MAX_REQUESTS_PER_LANE, Lane, Piece
from producerd.core.lanes.lanes import FAULTY_ROWS, Lanes, ShardState, as_raw, overlap
from producerd.core.lanes.pacing import Allowance, Pacer
from producerd.core.rows.intake import CheckedRows
from producerd.core.rows.job import Job
from producerd.core.rows.spans import RAW_FROM_STRAYS
from producerd.core.rules import EntryRules
from producerd.core.sending.requests import Request
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.shard_map import ONE_LANE, Shard, ShardMap
from tests.core.rows import Row, content, even_map, rows_of, sorted_of
from tests.simulation.setting import ADDRESS, make_rules

ANY = 2**62
MIB = 1 << 20
HALVES = ShardMap([Shard("low", 0, 2**127 - 1), Shard("high", 2**127, MAX_HASH_KEY)])
MERGED = ShardMap([Shard("merged", 0, MAX_HASH_KEY)])


class Bucket(Pacer):
    """As much as a test puts in, and not before its time."""

    def __init__(self) -> None:
        super().__init__()
        self.opens_at = 0.0
        self.full_at = 0.0
        self.left = (ANY, ANY)
        self.asked = 0
        self.times_held = 0
        self.used = 0.0
        self.throttled = False

    @property
    def backs_off(self) -> bool:
        return self.throttled

    def use(self, now: float) -> float:
        return self.used

    def held(self) -> None:
        self.times_held += 1

    def ready_at(self, now: float, entry_bytes: int = 0) -> float:
        self.asked += 1
        return max(now, self.full_at if entry_bytes > self.left[1] else self.opens_at)

    def allowance(self, now: float) -> Allowance:
        return Allowance(*self.left, one_larger=now >= self.full_at)

    def entry_bytes(self, most: int) -> int:
        return most

    def take(self, records: int, bytes_: int, now: float) -> None:
        self.left = (self.left[0] - records, self.left[1] - bytes_)


class Line:
    """Lanes, and what was put in them."""

    def __init__(self, shard_map: ShardMap = ONE_LANE, **rules: Any) -> None:
        self.rules: EntryRules = make_rules(**rules).entries
        self.lanes = Lanes(self.rules, Bucket)
        self.lanes.learn(shard_map)
        self.jobs: list[Job] = []

    def add(self, rows: list[Row], by: ShardMap | None = None) -> Job:
        """Sorted by a map, and in their lanes."""
        by = by or self.lanes.map
        checked: CheckedRows = rows_of(rows)
        result = sorted_of([checked], by, 1)
        job = result.job
        self.jobs.append(job)
        self.lanes.append(by, result.spans)
        return job

    def fill(self, shard_index: int, rows: int, size: int = 10, tag: str = "") -> Job:
        """Add this many rows of one shard."""
        start = self.lanes.map.shards[shard_index].start
        return self.add([(b"k", f"{tag}{i}".encode().ljust(size), b"%d" % start) for i in range(rows)])

    def lane(self, shard_id: str) -> Lane:
        (found,) = [lane for lane in self.lanes if lane.shard.shard_id == shard_id]
        return found

    def bucket(self, shard_id: str) -> Bucket:
        pacer = self.lane(shard_id).pacer
        assert isinstance(pacer, Bucket)
        return pacer

    def take(self, now: float = 0.0, bytes_left: int = ANY, **options: bool) -> Request | None:
        """As the sender takes it."""
        taken = self.lanes.take(now, bytes_left, **options)
        request = Request(taken, self.lanes.map) if taken is not None else None
        for lane in request.lanes if request is not None else ():
            lane.sent()
        return request

    def is_in_line(self) -> bool:
        """Whether any lane is.  A question, as types take an attribute to stay what it was."""
        return self.lanes.waiting

    def end(self, request: Request) -> None:
        for lane in request.lanes:
            lane.ended()
        self.lanes.released(request.lanes)


def data_of(pieces: list[Piece]) -> list[bytes]:
    return [content(span, at)[1].strip() for _, span in pieces for at in range(span.first, span.last)]


def shards_of(request: Request | None) -> list[str]:
    assert request is not None
    return [lane.shard.shard_id for lane in request.lanes]


# ---- which lanes, and how much of them


@pytest.mark.law("Lane")
def test_there_is_a_lane_for_each_open_shard_that_had_rows_and_for_no_other() -> None:
    line = Line(even_map(4))
    assert len(line.lanes) == 0
    line.fill(1, 5)
    line.fill(3, 5)
    line.fill(1, 5)
    assert [lane.shard.shard_id for lane in line.lanes] == ["shard-1", "shard-3"]


@pytest.mark.law("Lane")
def test_a_request_takes_few_lanes_deep_and_the_longest_waiting_first() -> None:
    line = Line(even_map(3), request_max_records=100)
    for shard in (2, 0, 1):
        line.fill(shard, 150)
    taken = []
    while (request := line.take()) is not None:
        taken.append([(lane.shard.shard_id, request.records) for lane in request.lanes])
    assert [lanes[0][0] for lanes in taken[:3]] == ["shard-2", "shard-0", "shard-1"]
    assert [len(lanes) for lanes in taken] == [1, 1, 1, 2, 1], "what is left of two fills one request"
    assert taken[3] == [("shard-2", 100), ("shard-0", 100)]


@pytest.mark.law("Lane")
def test_small_lanes_share_a_request_in_the_order_of_their_waiting() -> None:
    line = Line(even_map(8))
    for shard in (5, 1, 7, 0):
        line.fill(shard, 3)
    assert shards_of(line.take()) == ["shard-5", "shard-1", "shard-7", "shard-0"]


@pytest.mark.law("Lane")
def test_lanes_that_wait_for_a_time_are_not_looked_at_before_it() -> None:
    line = Line(even_map(256))
    for shard in range(256):
        line.fill(shard, 2)
        line.bucket(f"shard-{shard}").opens_at = 10.0 + shard
    assert line.take(now=1.0) is None
    assert line.lanes.next_time() == 10.0
    asked = sum(line.bucket(f"shard-{shard}").asked for shard in range(256))
    for _ in range(100):
        assert line.take(now=5.0) is None
    assert sum(line.bucket(f"shard-{shard}").asked for shard in range(256)) == asked
    assert shards_of(line.take(now=12.5)) == ["shard-0", "shard-1", "shard-2"], "whose time came first goes first"
    assert sum(line.bucket(f"shard-{shard}").asked for shard in range(256)) <= asked + 6


@pytest.mark.law("Lane")
def test_lanes_that_wait_for_an_answer_are_not_looked_at_before_it() -> None:
    line = Line(even_map(2), request_max_records=1)
    line.fill(0, 50)
    line.fill(1, 50)
    requests = []
    while (request := line.take()) is not None:
        requests.append(request)
    assert len(requests) == 2 * MAX_REQUESTS_PER_LANE
    asked = line.bucket("shard-0").asked
    assert line.take(now=100.0) is None
    assert line.bucket("shard-0").asked == asked
    assert line.lanes.next_time() == inf
    (mine, *_) = [request for request in requests if shards_of(request) == ["shard-0"]]
    line.end(mine)
    assert shards_of(line.take()) == ["shard-0"]
    assert line.take() is None


@pytest.mark.law("Lane")
def test_a_lane_that_holds_off_delays_no_other() -> None:
    line = Line(even_map(3))
    for shard in range(3):
        line.fill(shard, 5)
    line.lane("shard-0").hold(10.0)
    assert shards_of(line.take(now=1.0)) == ["shard-1", "shard-2"]
    assert line.take(now=9.9) is None
    assert shards_of(line.take(now=10.0)) == ["shard-0"]


@pytest.mark.law("Lane")
def test_rows_that_come_back_are_the_first_again() -> None:
    line = Line(even_map(1), request_max_records=4)
    line.fill(0, 12)
    first, second = line.take(), line.take()
    assert first is not None
    assert second is not None
    line.lanes.put_back(second.pieces)
    line.lanes.put_back(first.pieces[:1])
    taken = []
    while (request := line.take()) is not None:
        taken += data_of(request.pieces)
        line.end(request)
    assert [int(data) for data in taken] == list(range(12))


@pytest.mark.law("Lane")
@pytest.mark.parametrize("per_key", [False, True])
def test_rows_that_keep_failing_come_back_behind_the_others_unless_their_order_counts(per_key: bool) -> None:
    line = Line(even_map(1), per_key=per_key, request_max_records=3)
    line.fill(0, 6, tag="a")
    request = line.take()
    assert request is not None
    line.end(request)
    line.lanes.put_back([Piece(piece.lane, piece.span._replace(faults=2)) for piece in request.pieces])
    again = [content(span, at)[1].strip() for span in line.lane("shard-0").spans for at in range(span.first, span.last)]
    first = data_of(request.pieces)
    assert (again[: len(first)] == first) is per_key
    assert (again[-len(first) :] == first) is not per_key
    assert len(again) == 6


def test_what_a_pace_allows_is_taken_and_the_others_fill_the_request() -> None:
    line = Line(even_map(2), request_max_records=100)
    line.fill(0, 80)
    line.fill(1, 80)
    line.bucket("shard-0").left = (30, ANY)
    request = line.take()
    assert request is not None
    counts = Counter(piece.lane.shard.shard_id for piece in request.pieces for _ in range(piece.span.records))
    assert counts == {"shard-0": 30, "shard-1": 70}


@pytest.mark.law("Lane")
@pytest.mark.parametrize("small_rows", [0, 5])
def test_a_row_larger_than_the_bucket_goes_alone_when_that_is_full_and_delays_no_other_lane(small_rows: int) -> None:
    line = Line(even_map(2))
    line.add([(b"k", b"x" * 300_000, b"0")])
    line.bucket("shard-0").left = (10, 100_000)
    line.bucket("shard-0").full_at = 7.0
    if small_rows:
        line.fill(1, small_rows)
    request = line.take(now=1.0)
    assert (request is None) == (not small_rows)
    assert line.lanes.next_time() == 7.0
    assert line.bucket("shard-0").times_held == 1, "its pace may grow"
    line.bucket("shard-0").left = (10, MIB)
    request = line.take(now=7.0)
    assert shards_of(request) == ["shard-0"]


@pytest.mark.law("Lane")
def test_a_row_larger_than_a_request_waits_for_a_full_bucket_and_is_not_forgotten() -> None:
    """The bucket has bytes enough for every request, and lacks some records: nothing else tells when it is full."""
    line = Line(even_map(1))
    line.add([(b"k", b"x" * (MIB - 1), b"0")])
    line.bucket("shard-0").full_at = 7.0
    assert line.take(now=1.0) is None
    line.bucket("shard-0").left = (10, MIB)
    assert line.take(now=1.0) is None
    assert line.lanes.next_time() == 7.0
    assert shards_of(line.take(now=7.0)) == ["shard-0"]


@pytest.mark.law("Lane")
@pytest.mark.parametrize("per_key", [False, True])
def test_a_large_row_that_what_is_in_flight_leaves_no_room_for_stays_first_in_line(per_key: bool) -> None:
    line = Line(even_map(2), per_key=per_key)
    line.add([(b"k", b"x" * (MIB - 10), b"0")])
    line.fill(1, 5)
    assert line.take(bytes_left=1_000) is None, "nobody overtakes it: it would never go"
    assert shards_of(line.take(bytes_left=2 * MIB)) == ["shard-0"]
    assert shards_of(line.take()) == ["shard-1"]


@pytest.mark.law("Lane")
def test_a_row_that_does_not_fit_any_more_leads_the_next_request() -> None:
    for per_key in (False, True):
        line = Line(even_map(2), per_key=per_key)
        line.add([(b"k", b"x" * 600_000, b"0")])
        line.add([(b"k", b"y" * 600_000, b"%d" % MAX_HASH_KEY)])
        assert shards_of(line.take()) == ["shard-0"]
        assert shards_of(line.take()) == ["shard-1"]


@pytest.mark.law("Lane")
def test_after_time_outs_a_lane_s_requests_are_smaller_down_to_one_row() -> None:
    line = Line(even_map(1))
    line.fill(0, 400, size=2_000)
    sizes = []
    for timeouts in (0, 1, 2, 3, 4, 9):
        request = line.take()
        assert request is not None
        sizes.append(request.bytes)
        line.end(request)
        again = [Piece(lane, span._replace(timeouts=timeouts + 1)) for lane, span in request.pieces]
        line.lanes.put_back(again)
    limits = [MIB >> at for at in (0, 1, 2, 3, 4, 4)]
    assert all(limit * 0.9 <= size <= limit for size, limit in zip(sizes[1:], limits[1:], strict=True)), sizes


# ---- lanes that go alone


@pytest.mark.law("Lane")
def test_a_lane_that_goes_alone_shares_no_request_and_loses_no_turn() -> None:
    line = Line(even_map(4), request_max_records=10)
    for shard, rows in ((0, 2), (1, 2), (2, 20), (3, 2)):
        line.fill(shard, rows)
    line.lane("shard-1").slowed()
    assert shards_of(line.take()) == ["shard-0", "shard-2"], "it cannot go with these"
    assert shards_of(line.take()) == ["shard-1"], "and is the next"
    line = Line(even_map(2))
    for shard in range(2):
        line.fill(shard, 2)
    line.lane("shard-0").slowed()
    assert shards_of(line.take()) == ["shard-0"]
    assert shards_of(line.take()) == ["shard-1"]


@pytest.mark.law("Lane")
def test_a_lane_that_goes_alone_is_passed_over_while_too_many_such_are_on_their_way() -> None:
    line = Line(even_map(2))
    line.fill(0, 5)
    line.fill(1, 5)
    line.lane("shard-0").slowed()
    assert shards_of(line.take(takes_slow=False)) == ["shard-1"]
    assert line.take(takes_slow=False) is None
    assert shards_of(line.take()) == ["shard-0"], "and it is still in line"


@pytest.mark.law("Lane")
def test_a_lane_that_timed_out_has_one_request_on_its_way() -> None:
    line = Line(even_map(1), request_max_records=1)
    line.fill(0, 5)
    line.lane("shard-0").timed_out()
    request = line.take()
    assert request is not None
    assert line.take(now=100.0) is None
    line.end(request)
    assert line.take(now=100.0) is not None


# ---- shards change


@pytest.mark.law("Lane")
@pytest.mark.parametrize(
    ("before", "after"), [(even_map(1), HALVES), (even_map(2), MERGED), (even_map(5), even_map(3))]
)
def test_rows_go_to_the_lanes_of_the_newest_map_in_their_order(before: ShardMap, after: ShardMap) -> None:
    line = Line(before)
    rows: list[Row] = [(b"key %d" % (i % 40), b"%d" % i, None) for i in range(400)]
    line.add(rows)
    taken = line.take()
    assert taken is not None
    line.lanes.learn(after)
    assert all(lane.shard in after for lane in line.lanes)
    assert len(line.lanes) <= len(after)
    line.end(taken)
    line.lanes.put_back(taken.pieces)
    seen: dict[bytes, list[int]] = defaultdict(list)
    while (request := line.take()) is not None:
        for lane, span in request.pieces:
            assert span.lies_in(lane.shard)
            for at in range(span.first, span.last):
                key, data, _, _ = content(span, at)
                seen[key].append(int(data))
        line.end(request)
    assert sum(map(len, seen.values())) == 400
    assert all(numbers == sorted(numbers) for numbers in seen.values())


@pytest.mark.law("Lane")
def test_rows_that_were_sorted_by_an_older_map_join_behind_those_that_wait() -> None:
    line = Line(even_map(1))
    line.add([(b"k", b"first", b"0"), (b"k", b"first", b"%d" % MAX_HASH_KEY)])
    line.lanes.learn(HALVES)
    line.add([(b"k", b"second", b"0"), (b"k", b"second", b"%d" % MAX_HASH_KEY)], by=even_map(1))
    assert sorted(lane.shard.shard_id for lane in line.lanes) == ["high", "low"]
    for shard_id in ("low", "high"):
        assert data_of([Piece(line.lane(shard_id), span) for span in line.lane(shard_id).spans]) == [
            b"first",
            b"second",
        ]


@pytest.mark.law("Lane")
@pytest.mark.parametrize("when", ["in a lane", "while they were sorted", "in a request"])
def test_rows_that_ended_and_hold_no_memory_any_more_survive_a_new_map(when: str) -> None:
    """Their callers left, or they expired: what is left of them is dropped, and nothing falls over it."""
    line = Line(even_map(1))
    checked = rows_of([(b"k%d" % i, b"d", None) for i in range(20)])
    result = sorted_of([checked], even_map(1), 1)
    job = result.job

    def end_all() -> None:
        job.end_queued(np.arange(20))

    if when == "while they were sorted":
        line.lanes.learn(HALVES)
        end_all()
        line.lanes.append(even_map(1), result.spans)
    else:
        line.lanes.append(even_map(1), result.spans)
        request = line.take() if when == "in a request" else None
        end_all()
        line.lanes.learn(HALVES)
        if request is not None:
            line.end(request)
            line.lanes.put_back(request.pieces)
    assert line.take() is None
    assert not any(lane.queued for lane in line.lanes)


@pytest.mark.law("Lane")
def test_a_lane_whose_shard_stays_keeps_its_pace_and_its_place() -> None:
    line = Line(even_map(2))
    line.fill(0, 5)
    line.fill(1, 5)
    kept = line.lane("shard-1")
    low = even_map(2).shards[0]
    middle = low.end // 2
    line.lanes.learn(
        ShardMap([Shard("a", 0, middle), Shard("b", middle + 1, low.end), even_map(2).shards[1]]),
    )
    assert line.lane("shard-1") is kept
    assert kept.queued == 5
    assert shards_of(line.take())[0] == "shard-1", "the longest-waiting"


@pytest.mark.law("ShardMap")
def test_when_no_map_comes_in_time_a_lane_s_aggregates_become_plain_records() -> None:
    line = Line(even_map(1), aggregate=True)
    line.fill(0, 20)
    lane = line.lane("shard-0")
    lane.await_map(10.0)
    assert line.take(now=9.0) is None
    assert line.lanes.next_time() == 10.0
    request = line.take(now=10.0)
    assert request is not None
    assert all(span.raw for _, span in request.pieces)


@pytest.mark.law("ShardMap")
def test_what_was_not_sent_before_the_map_came_late_is_aggregated_again() -> None:
    line = Line(even_map(1), aggregate=True, request_max_records=5)
    line.fill(0, 20)
    lane = line.lane("shard-0")
    lane.await_map(10.0)
    request = line.take(now=10.0)
    assert request is not None
    assert request.records == 5
    lane.map_came()
    rest = line.take(now=11.0)
    assert rest is not None
    assert rest.records == 15
    assert not any(span.raw for _, span in rest.pieces)


@pytest.mark.parametrize("aggregate", [False, True])
def test_rows_whose_requests_fail_by_a_fault_of_the_service_go_alone_and_fewer_each_time(aggregate: bool) -> None:
    line = Line(even_map(2), aggregate=aggregate)
    line.fill(0, 300)
    line.fill(1, 300)
    records = []
    for faults in (0, 1, 2, 3, 5, 9, 30):
        lane = line.lane("shard-0")
        lane.spans = type(lane.spans)([span._replace(faults=faults) for span in lane.spans])
        request = line.take()
        assert request is not None
        if shards_of(request) == ["shard-1"]:
            line.end(request)
            request = line.take()
            assert request is not None
        assert len(request.lanes) == (2 if faults < 2 else 1) or not line.lane("shard-1").queued
        records.append(sum(span.records for lane, span in request.pieces if lane.shard.shard_id == "shard-0"))
        line.end(request)
        line.lanes.put_back([piece for piece in request.pieces if piece.lane is lane])
    assert records[2:] == [128, 64, 16, 1, 1]
    assert min(records[:2]) > 128


def test_ranges_overlap_if_one_hash_key_is_in_both() -> None:
    low, high = HALVES.shards
    assert not overlap(low, high)
    assert overlap(low, MERGED.shards[0])
    assert overlap(MERGED.shards[0], high)
    assert overlap(Shard("x", 5, 5), Shard("y", 5, 9))
    assert overlap(Shard("y", 5, 9), Shard("x", 0, 5))
    assert not overlap(Shard("x", 5, 5), Shard("y", 6, 9))


# ---- the bound


@pytest.mark.law("Lane")
@pytest.mark.parametrize("seed", range(80))
def test_what_is_taken_can_be_encoded_and_every_row_goes_once_in_its_lane_s_order(seed: int) -> None:
    """What encoding hands back, because the estimate let in too much, leads its lane again."""
    random = Random(seed)
    shards = random.choice([1, 3, 16])
    line = Line(
        even_map(shards),
        aggregate=bool(seed % 2),
        aggregate_max_bytes=random.choice([100, 1_000, 51_200]),
        aggregate_max_records=random.choice([2, 2**32 - 1]),
        request_max_records=random.choice([1, 7, 500]),
        request_max_bytes=random.choice([500, 20_000, MIB]),
    )
    expected: dict[int, list[bytes]] = defaultdict(list)
    for tag in range(random.randint(1, 4)):
        rows: list[Row] = []
        for i in range(random.choice([1, 50, 300])):
            number = random.getrandbits(128)
            data = b"%d/%d:" % (tag, i) + b"x" * random.choice([0, 10, 100, 3_000])
            rows.append((b"k%d" % random.randrange(5), data, b"%d" % number))
            expected[line.lanes.map.locate_one(number)].append(data)
        line.add(rows)
    sent: dict[int, list[bytes]] = defaultdict(list)
    for turn in range(10_000):
        request = line.take(now=float(turn))
        if request is None:
            break
        assert request.bytes <= line.rules.request_max_bytes or request.records == 1
        assert request.records
        encoded = encode(ADDRESS, request.numbered, line.rules, request.aggregate_bytes, line.lanes.map)
        written = int(encoded.ends[-1])
        assert written
        assert encoded.entries <= line.rules.request_max_records
        if not line.rules.aggregate:
            assert encoded.entries == request.records
        line.end(request)
        back = request.keep(written) if written < request.records else []
        line.lanes.put_back(back)
        for lane, span in request.pieces:
            sent[line.lanes.map.shards.index(lane.shard)] += [
                content(span, at)[1] for at in range(span.first, span.last)
            ]
    assert sent == expected


def test_the_lane_that_holds_most_is_found_by_its_bytes() -> None:
    line = Line(even_map(3))
    assert line.lanes.hottest() is None
    line.fill(0, 30, size=10)
    line.fill(2, 3, size=500)
    hottest = line.lanes.hottest()
    assert hottest is not None
    assert hottest.lane is line.lane("shard-2")
    assert 0.8 < hottest.share < 0.85
    hottest.lane.take_all()
    assert hottest.lane.bytes == 0


# ---- rows that have ended do not decide for those behind them


@pytest.mark.law("Lane")
def test_rows_behind_ended_ones_go_plain_one_of_each_key() -> None:
    """They may not be aggregated any more, and of the rows of a key one may be throttled and the next stored."""
    line = Line(even_map(1), aggregate=True, per_key=True)
    ended = line.fill(0, 3)
    line.fill(0, 4)
    lane = line.lane("shard-0")
    lane.spans[1] = lane.spans[1]._replace(strays=RAW_FROM_STRAYS)
    ended.end_queued(np.arange(3))
    request = line.take()
    assert request is not None
    assert request.records == 1


@pytest.mark.law("Lane")
def test_failing_rows_behind_ended_ones_go_alone_and_few_at_a_time() -> None:
    line = Line(even_map(2))
    ended = line.fill(0, 3)
    line.fill(0, 100)
    line.fill(1, 100)
    lane = line.lane("shard-0")
    lane.spans[1] = lane.spans[1]._replace(faults=5)
    ended.end_queued(np.arange(3))
    found = [rows_in(line.take()), rows_in(line.take())]
    assert {"shard-1": 100} in found
    assert {"shard-0": FAULTY_ROWS >> 5} in found


def test_a_lane_of_ended_rows_alone_leaves_the_line() -> None:
    line = Line(even_map(2))
    line.fill(0, 3).end_queued(np.arange(3))
    line.fill(1, 2)
    assert rows_in(line.take()) == {"shard-1": 2}
    assert line.lane("shard-0").queued == 0
    assert not line.is_in_line()


# ---- how rows of several lanes share a request


def rows_in(request: Request | None) -> dict[str, int]:
    """How many rows of each shard a request has."""
    assert request is not None
    return dict(Counter(piece.lane.shard.shard_id for piece in request.pieces for _ in range(piece.span.records)))


@pytest.mark.parametrize(
    ("rules", "hash_key", "strays", "paid", "bytes_", "aggregate_bytes"),
    [
        ({}, None, 0, (3, 33), 3 * (11 + 40), 0),
        ({"aggregate": True}, None, 0, (1, 108), 3 * (11 + 25), 51_200),
        ({"aggregate": True}, b"0", 0, (1, 213), 3 * (11 + 60), 51_200),
        ({"aggregate": True, "aggregate_max_bytes": 50}, None, 0, (3, 108), 3 * (11 + 25), 50),
        ({"aggregate": True}, None, 2, (3, 33), 3 * (11 + 40), 0),
    ],
)
def test_a_lane_is_charged_for_its_entries_and_bytes_and_the_request_has_room_for_what_they_add(
    rules: dict[str, Any], hash_key: bytes | None, strays: int, paid: tuple[int, int], bytes_: int, aggregate_bytes: int
) -> None:
    line = Line(even_map(1), **rules)
    line.add([(b"k", b"x" * 10, hash_key)] * 3)
    lane = line.lane("shard-0")
    lane.spans = type(lane.spans)([span._replace(strays=strays) for span in lane.spans])
    request = line.take()
    assert request is not None
    assert (request.paid, request.bytes, request.aggregate_bytes) == ({lane: paid}, bytes_, (aggregate_bytes,))
    assert line.bucket("shard-0").left == (ANY - paid[0], ANY - paid[1])


def test_a_request_has_no_more_bytes_than_there_is_room_for() -> None:
    line = Line(even_map(1))
    line.fill(0, 10)
    taken = line.lanes.take(0.0, ANY, request_bytes=3 * 51)
    assert taken is not None
    assert (taken.bytes, taken.entries, taken.max_bytes) == (3 * 51, 3, 3 * 51)
    line = Line(even_map(1), request_max_bytes=3 * 51)
    line.fill(0, 10)
    taken = line.lanes.take(0.0, ANY, request_bytes=MIB)
    assert taken is not None
    assert taken.bytes == 3 * 51


@pytest.mark.parametrize("left", [(30, ANY), (ANY, 30 * 51), (ANY, 31 * 51 - 1)])
def test_what_a_pace_allows_in_entries_or_bytes_is_taken_and_the_others_fill_the_request(left: tuple[int, int]) -> None:
    line = Line(even_map(2), request_max_records=100)
    line.fill(0, 80)
    line.fill(1, 80)
    line.bucket("shard-0").left = left
    assert rows_in(line.take()) == {"shard-0": 30, "shard-1": 70}


@pytest.mark.parametrize("passes_larger", [False, True])
@pytest.mark.parametrize("rows", [2, 3])
def test_a_request_that_is_full_by_bytes_takes_no_small_row_of_a_later_lane(rows: int, passes_larger: bool) -> None:
    line = Line(even_map(3), request_max_bytes=1_000)
    line.fill(0, rows, size=600)
    line.fill(1, 2)
    line.fill(2, 2)
    assert rows_in(line.take(passes_larger=passes_larger)) == {"shard-0": 1}
    assert shards_of(line.take(passes_larger=passes_larger))[:2] == ["shard-1", "shard-2"]


def test_a_request_that_is_full_of_aggregates_takes_no_small_row_of_a_later_lane() -> None:
    line = Line(even_map(2), aggregate=True)
    line.fill(0, 1_100, size=1_000)
    line.fill(1, 5)
    line.bucket("shard-0").left = (30, ANY)
    assert shards_of(line.take()) == ["shard-0"]


def test_aggregates_take_the_bytes_of_as_many_as_the_pace_allows() -> None:
    line = Line(even_map(1), aggregate=True, aggregate_max_bytes=1_000)
    line.fill(0, 100, size=39)
    line.bucket("shard-0").left = (2, ANY)
    assert rows_in(line.take()) == {"shard-0": 20}, "each with its key and 60 bytes"
    line = Line(even_map(1), aggregate=True, aggregate_max_bytes=1_000, per_key=True)
    line.fill(0, 100, size=39)
    assert rows_in(line.take()) == {"shard-0": 10}, "one, where the order counts"


def test_a_large_row_behind_a_small_one_of_another_lane_waits_for_its_bucket_and_delays_no_third() -> None:
    line = Line(even_map(3))
    line.fill(0, 2)
    line.add([(b"k", b"x" * 300_000, b"%d" % even_map(3).shards[1].start)])
    line.fill(2, 2)
    line.bucket("shard-1").left = (10, 100_000)
    line.bucket("shard-1").full_at = 7.0
    assert shards_of(line.take(now=1.0)) == ["shard-0", "shard-2"]
    assert line.lanes.next_time() == 7.0


@pytest.mark.parametrize("left", [(10, ANY), (10, MIB - (1 + 999_000 + 40))])
def test_a_row_for_which_only_the_request_has_no_room_does_not_wait_for_its_bucket(left: tuple[int, int]) -> None:
    line = Line(even_map(2))
    line.add([(b"k", b"x" * 999_000, b"0")])
    line.add([(b"k", b"y" * 999_000, b"%d" % MAX_HASH_KEY)])
    for shard in range(2):
        line.bucket(f"shard-{shard}").full_at = 7.0
    line.bucket("shard-1").left = left
    assert shards_of(line.take(now=1.0)) == ["shard-0"]
    assert line.lanes.next_time() == inf
    assert line.is_in_line()


def test_a_lane_is_not_held_back_because_a_request_was_full_before_it() -> None:
    line = Line(even_map(2), request_max_records=5)
    line.fill(0, 5)
    line.fill(1, 5)
    line.bucket("shard-1").left = (10, 100_000)
    line.bucket("shard-1").full_at = 7.0
    assert shards_of(line.take(now=1.0)) == ["shard-0"]
    assert shards_of(line.take(now=1.0)) == ["shard-1"]


def test_a_lane_that_goes_alone_and_has_to_wait_delays_no_other() -> None:
    line = Line(even_map(2))
    line.add([(b"k", b"x" * 300_000, b"0")])
    line.fill(1, 5)
    line.lane("shard-0").slowed()
    line.bucket("shard-0").left = (10, 100_000)
    line.bucket("shard-0").full_at = 7.0
    assert shards_of(line.take(now=1.0)) == ["shard-1"]


def test_a_lane_whose_rows_have_all_ended_waits_for_nothing() -> None:
    line = Line(even_map(1))
    job = line.fill(0, 5)
    job.end_queued(np.arange(5))
    line.bucket("shard-0").full_at = 7.0
    assert line.take(now=1.0) is None
    assert line.lanes.next_time() == inf
    assert not line.is_in_line()


# ---- which lanes are in line


def test_a_lane_without_rows_is_not_in_line() -> None:
    line = Line(even_map(1))
    line.fill(0, 5)
    assert line.is_in_line()
    request = line.take()
    assert request is not None
    line.end(request)
    assert not line.is_in_line()
    assert line.lanes.next_time() == inf


def test_an_answer_lists_no_lane_but_those_that_waited_for_it() -> None:
    line = Line(even_map(3), request_max_records=1)
    line.fill(0, 3)
    line.fill(1, 1)
    line.fill(2, MAX_REQUESTS_PER_LANE + 1)
    requests: dict[str, list[Request]] = defaultdict(list)
    while (request := line.take()) is not None:
        requests[shards_of(request)[0]].append(request)
    assert [len(found) for found in requests.values()] == [3, 1, MAX_REQUESTS_PER_LANE]
    closed = line.lane("shard-0")
    halves = even_map(6).shards[:2]
    line.lanes.learn(ShardMap([*[Shard(f"half {s.start}", s.start, s.end) for s in halves], *even_map(3).shards[1:]]))
    for shard_id in ("shard-1", "shard-0", "shard-0"):
        line.end(requests[shard_id].pop())
        assert not line.is_in_line(), "the last one has its rows on their way"
    closed.put_aside()
    line.end(requests["shard-0"].pop())
    assert not line.is_in_line()
    closed.take_up()
    line.lanes.released([closed])
    assert line.is_in_line()


def test_a_merged_shard_waits_for_rows_that_its_parents_have_set_aside() -> None:
    line = Line(even_map(2), per_key=True)
    line.fill(0, 2)
    line.fill(1, 2)
    request = line.take()
    assert request is not None
    first = request.lanes[0]
    first.put_aside()
    line.lanes.learn(MERGED)
    line.end(request)
    assert line.take() is None
    first.take_up()
    line.lanes.released([first])
    assert shards_of(line.take()) == ["merged"]


def test_a_child_goes_on_when_its_parent_s_request_ends_also_if_another_shard_shared_it() -> None:
    line = Line(even_map(2), per_key=True)
    line.fill(0, 2)
    line.fill(1, 2)
    request = line.take()
    assert request is not None
    assert shards_of(request) == ["shard-0", "shard-1"]
    low, high = even_map(2).shards
    line.lanes.learn(ShardMap([Shard("a", 0, 9), Shard("b", 10, low.end), high]))
    assert line.take() is None
    line.end(request)
    assert sorted(shards_of(line.take())) == ["a", "shard-1"]


def test_only_lanes_of_shards_whose_rows_are_aggregated_gather_the_bytes_of_one() -> None:
    for aggregate, shard_map, expected in ((True, even_map(1), 51_200), (False, even_map(1), 0), (True, ONE_LANE, 0)):
        line = Line(shard_map, aggregate=aggregate)
        line.fill(0, 1)
        assert [lane.aggregate_max_bytes for lane in line.lanes] == [expected]
    assert [lane.pacer is None for lane in line.lanes] == [False]
    line = Line(ONE_LANE)
    line.fill(0, 1)
    assert [lane.pacer for lane in line.lanes] == [None]


def test_rows_that_go_plain_keep_the_count_of_their_strays() -> None:
    line = Line(even_map(1))
    line.fill(0, 1)
    (span,) = line.lane("shard-0").spans
    assert [as_raw([span._replace(strays=strays)])[0].strays for strays in (0, 1, 2, 5)] == [2, 2, 2, 5]


# ---- what lanes say of themselves


def test_other_shards_have_room_while_their_mean_use_is_below_four_fifths_of_the_full_one_s() -> None:
    line = Line(even_map(3))
    for shard in range(3):
        line.fill(shard, 1)
    full, second, third = (line.bucket(f"shard-{shard}") for shard in range(3))

    def have_room(of_full: float, of_second: float, of_third: float) -> bool:
        full.used, second.used, third.used = of_full, of_second, of_third
        return line.lanes.others_have_room(line.lane("shard-0"), 5.0)

    assert have_room(0.5, 0.4, 0.39)
    assert not have_room(0.5, 0.4, 0.4)
    second.left = (100, ANY)  # less than half a second's
    assert have_room(1.0, 0.0, 0.59)
    assert not have_room(1.0, 0.0, 0.6)
    second.left, second.throttled = (ANY, ANY), True
    assert have_room(1.0, 0.0, 0.59)
    assert not have_room(1.0, 0.0, 0.6)
    second.throttled, full.throttled = False, True
    assert have_room(0.0, 0.8, 0.79)
    assert not have_room(0.0, 0.8, 0.8)
    assert line.lanes.backing_off(5.0) == 1


def test_the_busiest_shard_s_use_is_that_of_the_stream_and_unknown_shards_have_none() -> None:
    line = Line(even_map(2))
    assert line.lanes.most_used(5.0) == 0.0
    for shard, used in enumerate((0.7, 0.2)):
        line.fill(shard, 1)
        line.bucket(f"shard-{shard}").used = used
    assert line.lanes.most_used(5.0) == 0.7
    line = Line(ONE_LANE, aggregate=True)
    line.fill(0, 1)
    line.bucket("").used = 0.9
    assert line.lanes.most_used(5.0) == 0.0


def test_each_open_shard_has_a_state_also_before_its_first_row() -> None:
    line = Line(even_map(2))
    line.add([(b"k", b"", b"0")])
    line.bucket("shard-0").used = 0.3
    line.bucket("shard-0").throttled = True
    low, high = even_map(2).shards
    assert list(line.lanes.states(5.0)) == [
        ShardState(low, 1, 1, 1.0, 0, 250.0, MIB / 4, 0.3, True, ""),
        ShardState(high, 0, 0, 0.0, 0, 0.0, 0.0, 0.0, False, ""),
    ]


def test_what_a_lane_waits_for_is_named() -> None:
    line = Line(even_map(1))
    line.fill(0, 5)
    lane = line.lane("shard-0")

    def waits_for(now: float) -> str:
        (state,) = line.lanes.states(now)
        return state.waits_for

    line.bucket("shard-0").opens_at = 5.0
    assert [waits_for(now) for now in (4.9, 5.0)] == ["pace", ""]
    lane.await_map(8.0)
    assert [waits_for(now) for now in (7.9, 8.0)] == ["shard map", ""]
    lane.in_flight = MAX_REQUESTS_PER_LANE
    assert [waits_for(now) for now in (7.9, 8.0)] == ["shard map", "answers"]
    lane.take_all()
    assert waits_for(7.9) == ""
