"""A request takes rows from the lanes that may send, in their order.  Rows find their lane again when shards change.

`tests.simulation.lane_machine` does this with any rows, answers and maps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from producerd.core.diagnosis import Diagnosis, ShardState, fullest_of, others_have_room, shard_states
from producerd.core.lanes.lane import MAX_REQUESTS_OF_SLOW_LANE, MAX_REQUESTS_PER_LANE, Lane, Piece
from producerd.core.lanes.lanes import FAULTY_ROWS, Lanes, as_raw, overlap
from producerd.core.lanes.pacing import Allowance, Pacer
from producerd.core.rows.job import Job
from producerd.core.rows.spans import RAW_FROM_STRAYS, Span
from producerd.core.rules import EntryRules
from producerd.core.sending.requests import Request
from producerd.core.shards.shard_map import ONE_LANE, Shard, ShardMap
from tests.core.rows import Row, content, even_map, rows_of, sorted_of
from tests.core.stories import HALVES, MERGED
from tests.simulation.lane_machine import LaneMachine
from tests.simulation.setting import make_rules

pytestmark = pytest.mark.law("Lane", "Pacer", "ShardMap")

ANY = 2**62
MIB = 1 << 20


class HandSetPacer(Pacer):
    """A pacer that allows what a test puts in it, and not before its time."""

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
    """Lanes, and what was put in them.  ``rows``: how many each shard of an even map has at first."""

    def __init__(self, *rows: int, shard_map: ShardMap | None = None, **rules: Any) -> None:
        self.rules: EntryRules = make_rules(**rules).entries
        self.lanes = Lanes(self.rules, HandSetPacer)
        self.lanes.follow_map(shard_map or even_map(len(rows)))
        for shard, count in enumerate(rows):
            if count:
                self.fill(shard, count)

    def add(self, rows: list[Row], by: ShardMap | None = None) -> Job:
        """Rows that were sorted by a map, in their lanes."""
        by = by or self.lanes.map
        result = sorted_of([rows_of(rows)], by)
        self.lanes.append(by, result.spans)
        return result.job

    def fill(self, shard: int, rows: int, size: int = 10) -> Job:
        """Add this many rows of one shard."""
        start = self.lanes.map.shards[shard].start
        return self.add([(b"k", f"{i}".encode().ljust(size), b"%d" % start) for i in range(rows)])

    def lane(self, shard: int | str) -> Lane:
        name = f"shard-{shard}" if isinstance(shard, int) else shard
        (found,) = [lane for lane in self.lanes if lane.shard.shard_id == name]
        return found

    def mark(self, shard: int, **changes: Any) -> None:
        """Change all spans that wait in a lane."""
        lane = self.lane(shard)
        lane.extend([span._replace(**changes) for span in lane.take_all()])

    def pacer(self, shard: int | str) -> HandSetPacer:
        pacer = self.lane(shard).pacer
        assert isinstance(pacer, HandSetPacer)
        return pacer

    def try_take(self, now: float = 0.0, bytes_left: int = ANY, **options: bool) -> Request | None:
        """As the sender takes it."""
        taken = self.lanes.take_for_request(now, bytes_left, **options)
        request = Request(taken, self.lanes.map) if taken is not None else None
        for lane in request.lanes if request is not None else ():
            lane.request_began()
        return request

    def take(self, now: float = 0.0, bytes_left: int = ANY, **options: bool) -> Request:
        request = self.try_take(now, bytes_left, **options)
        assert request is not None, "nothing to send"
        return request

    def shards(self, now: float = 0.0, **options: bool) -> list[int | str]:
        """The shards of the next request, in order."""
        return shards_of(self.take(now, **options))

    def is_in_line(self) -> bool:
        """Whether any lane is.  A question, because types take an attribute to stay what it was."""
        return self.lanes.waiting

    def end(self, request: Request) -> None:
        for lane in request.lanes:
            lane.request_left()
        self.lanes.released(request.lanes)


def shards_of(request: Request) -> list[int | str]:
    names = [lane.shard.shard_id for lane in request.lanes]
    return [int(name.removeprefix("shard-")) if name.startswith("shard-") else name for name in names]


def rows_in(request: Request) -> dict[str, int]:
    """How many rows of each shard a request has."""
    return dict(Counter(lane.shard.shard_id for lane, span in request.pieces for _ in range(span.records)))


def data_of(pieces: list[Piece]) -> list[bytes]:
    return [content(span, at)[1].strip() for _, span in pieces for at in numbers(span)]


def numbers(span: Span) -> range:
    return range(span.first, span.last)


@pytest.mark.promise("over-time-sent-rate")
def test_any_rows_leave_once_in_their_order_and_within_their_pace() -> None:
    run_state_machine_as_test(LaneMachine, settings=settings(max_examples=80, stateful_step_count=30))


# ---- which lanes, and how much of them


def test_there_is_a_lane_for_each_open_shard_that_had_rows_and_for_no_other() -> None:
    line = Line(0, 5, 0, 5)
    line.fill(1, 5)
    assert [lane.shard.shard_id for lane in line.lanes] == ["shard-1", "shard-3"]


def test_a_request_takes_few_lanes_deep_and_the_longest_waiting_first() -> None:
    line = Line(0, 0, 0, request_max_records=100)
    for shard in (2, 0, 1):
        line.fill(shard, 150)
    requests = [line.take() for _ in range(5)]
    assert [shards_of(request) for request in requests[:4]] == [[2], [0], [1], [2, 0]]
    assert rows_in(requests[3]) == {"shard-2": 50, "shard-0": 50}, "what is left of two fills one request"


def test_small_lanes_share_a_request_in_the_order_of_their_waiting() -> None:
    line = Line(*[0] * 8)
    for shard in (5, 1, 7, 0):
        line.fill(shard, 3)
    assert line.shards() == [5, 1, 7, 0]


def test_lanes_that_wait_for_a_time_are_not_looked_at_before_it() -> None:
    line = Line(*[2] * 256)
    pacers = [line.pacer(shard) for shard in range(256)]
    for shard, pacer in enumerate(pacers):
        pacer.opens_at = 10.0 + shard
    assert line.try_take(now=1.0) is None
    assert line.lanes.next_time() == 10.0
    asked = sum(pacer.asked for pacer in pacers)
    for _ in range(100):
        assert line.try_take(now=5.0) is None
    assert sum(pacer.asked for pacer in pacers) == asked
    assert line.shards(now=12.5) == [0, 1, 2], "whose time came first goes first"
    assert sum(pacer.asked for pacer in pacers) <= asked + 6


def test_lanes_that_wait_for_an_answer_are_not_looked_at_before_it() -> None:
    line = Line(50, 50, request_max_records=1)
    requests = [line.take() for _ in range(2 * MAX_REQUESTS_PER_LANE)]
    assert line.try_take() is None
    asked = line.pacer(0).asked
    assert line.try_take(now=100.0) is None
    assert (line.pacer(0).asked, line.lanes.next_time()) == (asked, inf)
    line.end(next(request for request in requests if shards_of(request) == [0]))
    assert line.shards() == [0]
    assert line.try_take() is None


def test_a_lane_that_holds_off_delays_no_other() -> None:
    line = Line(5, 5, 5)
    line.lane(0).wait_until(10.0)
    assert line.shards(now=1.0) == [1, 2]
    assert line.try_take(now=9.9) is None
    assert line.shards(now=10.0) == [0]


def test_lanes_whose_pace_lets_them_send_soon_join_a_request_that_goes_anyway() -> None:
    line = Line(5, 5, 5, 5)
    for shard, opens_at in enumerate((1.0, 1.04, 1.07)):
        line.pacer(shard).opens_at = opens_at
    line.lane(3).wait_until(1.045)
    assert line.try_take(now=0.99) is None, "no request goes"
    assert line.shards(now=1.0) == [0, 1], "shard 2 gathers for longer, and not the pace holds shard 3"
    assert line.shards(now=1.045) == [3, 2]
    assert line.try_take(now=9.0) is None


def test_a_lane_that_waits_for_a_full_bucket_joins_no_request_before() -> None:
    line = Line(0, 5)
    line.fill(0, 1, size=200_000)
    pacer = line.pacer(0)
    pacer.left, pacer.full_at = (10, 100_000), 7.0
    assert line.shards(now=1.0) == [1]
    line.fill(1, 5)
    pacer.left = (10, 250_000)
    assert line.shards(now=6.99) == [1], "without a full second's slack its shard would throttle it"
    assert line.shards(now=7.0) == [0]


@pytest.mark.parametrize("per_key", [False, True])
def test_rows_that_keep_failing_come_back_behind_the_others_unless_their_order_counts(per_key: bool) -> None:
    line = Line(6, per_key=per_key, request_max_records=3)
    request = line.take()
    line.end(request)
    line.lanes.put_back([Piece(lane, span._replace(faults=2)) for lane, span in request.pieces])
    again = data_of([Piece(line.lane(0), span) for span in line.lane(0).spans])
    first = data_of(request.pieces)
    assert (again[: len(first)] == first) is per_key
    assert (again[-len(first) :] == first) is not per_key


@pytest.mark.parametrize("per_key", [False, True])
def test_a_large_row_that_what_is_in_flight_leaves_no_room_for_stays_first_in_line(per_key: bool) -> None:
    line = Line(0, 0, per_key=per_key)
    line.fill(0, 1, size=MIB - 10)
    line.fill(1, 5)
    assert line.try_take(bytes_left=1_000) is None, "it would never go if others overtook it"
    assert shards_of(line.take(bytes_left=2 * MIB)) == [0]
    assert line.shards() == [1]


def test_after_time_outs_a_lane_s_requests_are_smaller_down_to_one_row() -> None:
    line = Line(0)
    line.fill(0, 400, size=2_000)
    for timeouts in (1, 2, 3, 4, 9):
        line.mark(0, timeouts=timeouts)
        request = line.take()
        limit = MIB >> min(4, timeouts)
        assert limit * 0.9 <= request.bytes <= limit
        line.end(request)
        line.lanes.put_back(request.pieces)


def test_a_request_has_no_more_bytes_than_there_is_room_for() -> None:
    taken = Line(10).lanes.take_for_request(0.0, ANY, request_bytes=3 * 51)
    assert taken is not None
    assert (taken.bytes, taken.entries, taken.max_bytes) == (3 * 51, 3, 3 * 51)
    assert Line(10, request_max_bytes=3 * 51).take().bytes == 3 * 51


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
    line = Line(0, **rules)
    line.add([(b"k", b"x" * 10, hash_key)] * 3)
    line.mark(0, strays=strays)
    request = line.take()
    assert (request.paid, request.bytes, request.aggregate_bytes) == ({line.lane(0): paid}, bytes_, (aggregate_bytes,))
    assert line.pacer(0).left == (ANY - paid[0], ANY - paid[1])


# ---- what a pace allows


@pytest.mark.parametrize("left", [(30, ANY), (ANY, 30 * 51), (ANY, 31 * 51 - 1)])
def test_what_a_pace_allows_in_entries_or_bytes_is_taken_and_the_others_fill_the_request(left: tuple[int, int]) -> None:
    line = Line(80, 80, request_max_records=100)
    line.pacer(0).left = left
    assert rows_in(line.take()) == {"shard-0": 30, "shard-1": 70}


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("small_rows", [0, 5])
def test_a_row_larger_than_the_bucket_goes_alone_when_that_is_full_and_delays_no_other_lane(
    small_rows: int, slow: bool
) -> None:
    line = Line(0, 0)
    line.fill(0, 1, size=300_000)
    if slow:
        line.lane(0).slowed()
    pacer = line.pacer(0)
    pacer.left, pacer.full_at = (10, 100_000), 7.0
    if small_rows:
        line.fill(1, small_rows)
    assert (line.try_take(now=1.0) is None) == (not small_rows)
    assert (line.lanes.next_time(), pacer.times_held) == (7.0, 1), "its pace may grow"
    pacer.left = (10, MIB)
    assert line.shards(now=7.0) == [0]


@pytest.mark.parametrize("alone", [False, True])
def test_a_large_row_behind_a_small_one_of_another_lane_waits_for_its_bucket_and_delays_no_third(alone: bool) -> None:
    line = Line(0, 0, 0)
    line.fill(0, 2)
    line.fill(1, 1, size=300_000)
    line.fill(2, 2)
    pacer = line.pacer(1)
    pacer.left, pacer.full_at = (10, 100_000), 7.0
    if alone:
        line.lane(1).slowed()
        assert line.shards(now=1.0) == [0, 2]
        assert line.try_take(now=1.0) is None
    else:
        assert line.shards(now=1.0) == [0, 2]
    assert line.lanes.next_time() == 7.0


@pytest.mark.parametrize("left", [(10, ANY), (10, MIB - (1 + 999_000 + 40))])
def test_a_row_for_which_only_the_request_has_no_room_does_not_wait_for_its_bucket(left: tuple[int, int]) -> None:
    line = Line(0, 0)
    for shard in range(2):
        line.fill(shard, 1, size=999_000)
        line.pacer(shard).full_at = 7.0
    line.pacer(1).left = left
    assert line.shards(now=1.0) == [0]
    assert line.lanes.next_time() == inf
    assert line.is_in_line()


def test_a_lane_is_not_held_back_because_a_request_was_full_before_it() -> None:
    line = Line(5, 5, request_max_records=5)
    line.pacer(1).left, line.pacer(1).full_at = (10, 100_000), 7.0
    assert [line.shards(now=1.0), line.shards(now=1.0)] == [[0], [1]]


@pytest.mark.parametrize(("per_key", "rows"), [(False, 20), (True, 10)])
def test_aggregates_take_the_bytes_of_as_many_as_the_pace_allows_and_of_one_where_the_order_counts(
    per_key: bool, rows: int
) -> None:
    """A row has its key and 60 more bytes."""
    line = Line(0, aggregate=True, aggregate_max_bytes=1_000, per_key=per_key)
    line.fill(0, 100, size=39)
    line.pacer(0).left = (2, ANY)
    assert rows_in(line.take()) == {"shard-0": rows}


@pytest.mark.parametrize("passes_larger", [False, True])
@pytest.mark.parametrize("rows", [2, 3])
def test_a_request_that_is_full_by_bytes_takes_no_small_row_of_a_later_lane(rows: int, passes_larger: bool) -> None:
    line = Line(0, 0, 0, request_max_bytes=1_000)
    line.fill(0, rows, size=600)
    for shard in (1, 2):
        line.fill(shard, 2)
    assert rows_in(line.take(passes_larger=passes_larger)) == {"shard-0": 1}
    assert line.shards(passes_larger=passes_larger)[:2] == [1, 2]


def test_a_request_that_is_full_of_aggregates_takes_no_small_row_of_a_later_lane() -> None:
    line = Line(0, 0, aggregate=True)
    line.fill(0, 1_100, size=1_000)
    line.fill(1, 5)
    line.pacer(0).left = (30, ANY)
    assert line.shards() == [0]


# ---- one row of each key


def keyed(*texts: str, **rules: Any) -> Line:
    """One lane with a span for each of these texts: a row for each letter, which is its key."""
    line = Line(0, **rules)
    for text in texts:
        line.add([(letter.encode(), b"x" * 10, None) for letter in text])
    return line


def taken_of(line: Line) -> list[str]:
    """The keys of each request until no row is left."""
    found = []
    while (request := line.try_take()) is not None:
        line.end(request)
        found.append("".join([content(span, at)[0].decode() for _, span in request.pieces for at in numbers(span)]))
    return found


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"request_max_records": 3}, ["abc", "d"]),
        ({"request_max_records": 4}, ["abcd"]),
        ({"request_max_bytes": 3 * 51}, ["abc", "d"]),
        ({"request_max_bytes": 3 * 51 - 1}, ["ab", "cd"]),
    ],
)
def test_no_more_rows_of_distinct_keys_are_taken_than_the_bounds_allow(
    rules: dict[str, int], expected: list[str]
) -> None:
    assert taken_of(keyed("ab", "cd", per_key=True, **rules)) == expected


def test_where_keys_are_distinct_no_later_row_overtakes_one_that_is_too_large_for_the_request() -> None:
    line = keyed("a", per_key=True, request_max_bytes=1_000)
    for row in ((b"b", bytes(50_000), None), (b"c", b"", None)):
        line.add([row])
    assert taken_of(line) == ["a", "b", "c"]


@pytest.mark.parametrize(("waiting", "first"), [(31, "ab"), (32, "a")])
def test_a_row_is_found_behind_32_spans_that_wait_at_most(waiting: int, first: str) -> None:
    line = keyed("a", *["a"] * waiting, "b", per_key=True)
    assert taken_of(line)[0] == first


@pytest.mark.parametrize("odd", [{"strays": 2}, {"faults": 2}], ids=["raw", "failing"])
@pytest.mark.parametrize("per_key", [False, True])
def test_rows_that_are_sent_in_another_way_share_no_request(odd: dict[str, Any], per_key: bool) -> None:
    line = keyed("a", "b", "c", per_key=per_key)
    spans = line.lane(0).spans
    spans[1] = spans[1]._replace(**odd)
    assert taken_of(line) == ["a", "b", "c"]


# ---- what one lane keeps


def test_of_several_holds_the_latest_counts_and_of_several_waits_for_a_map_the_soonest() -> None:
    lane = Line(1).lane(0)
    lane.wait_until(5.5)
    lane.wait_until(5.2)
    assert lane.ready_at(5.0) == 5.5
    lane.await_map(7.5)
    lane.await_map(9.5)
    assert lane.ready_at(5.0) == 7.5
    lane.take_all()
    assert lane.ready_at(9.0) == inf, "it has no rows"


@pytest.mark.parametrize("of", ["records", "bytes"])
def test_a_lane_is_paced_while_one_of_its_buckets_is_less_than_half_full(of: str) -> None:
    pacer = Pacer()
    lane = Lane(MERGED.shards[0], pacer)
    half_of_records, half_of_bytes = int(pacer.rate_records / 2), int(pacer.rate_bytes / 2)
    pacer.take(*((half_of_records, 1) if of == "records" else (1, half_of_bytes)), 5.0)
    assert not lane.is_paced(5.0)
    pacer.take(1, 1, 5.0)
    assert (lane.is_paced(5.0), lane.is_paced(5.1)) == (True, False)


def test_a_number_that_fell_is_the_one_that_later_numbers_are_compared_with() -> None:
    """A shard of a stream that was made again begins at lower numbers.  An answer that was overtaken is none."""
    lane = Lane(MERGED.shards[0], None)
    read = [
        (lane.sequence_seen(*numbers), lane.sequence) for numbers in ((0, 0), (10, 0), (7, 0), (5, 10), (0, 5), (1, 5))
    ]
    assert read == [(False, 0), (False, 10), (False, 10), (True, 5), (False, 5), (True, 1)]


def test_a_lane_without_a_pacer_waits_longer_after_each_answer_in_a_row_that_throttles_it() -> None:
    lane = Lane(MERGED.shards[0], None)
    holds = []
    for throttled in (1, 3, 0, 2):
        lane.pace(5, throttled, 1.0, 5.0, lambda times: 10.0 * times)
        holds.append(lane.hold_until)
    assert holds == [15.0, 25.0, 25.0, 15.0]
    assert (lane.backs_off(14.9), lane.backs_off(15.0)) == (True, False)
    assert (lane.is_paced(5.0), lane.use(5.0), lane.aggregate_max_bytes) == (False, 0.0, 0)


# ---- lanes that go alone


def test_a_lane_that_goes_alone_shares_no_request_and_loses_no_turn() -> None:
    line = Line(2, 2, 20, 2, request_max_records=10)
    line.lane(1).slowed()
    assert [line.shards(), line.shards()] == [[0, 2], [1]]
    line = Line(2, 2)
    line.lane(0).slowed()
    assert [line.shards(), line.shards()] == [[0], [1]]


def test_a_lane_that_goes_alone_is_passed_over_while_too_many_such_are_on_their_way() -> None:
    line = Line(5, 5)
    line.lane(0).slowed()
    assert line.shards(takes_slow=False) == [1]
    assert line.try_take(takes_slow=False) is None
    assert line.shards() == [0], "and it is still in line"


def test_a_lane_that_timed_out_has_one_request_on_its_way() -> None:
    line = Line(5, request_max_records=1)
    line.lane(0).timed_out()
    request = line.take()
    assert line.try_take(now=100.0) is None
    line.end(request)
    assert line.try_take(now=100.0) is not None


def may_send(lane: Lane) -> bool:
    return lane.ready_at(0.0) < inf


def test_each_slow_request_makes_room_for_one_more_up_to_a_bound_until_it_ends() -> None:
    lane = Line(1).lane(0)
    for _ in range(MAX_REQUESTS_PER_LANE):
        lane.request_began()
    for _ in range(MAX_REQUESTS_OF_SLOW_LANE - MAX_REQUESTS_PER_LANE):
        assert not may_send(lane)
        lane.slowed()
        assert may_send(lane)
        lane.request_began()
    lane.slowed()
    assert not may_send(lane), "they are as many as a slow lane may have"
    lane.request_left(slow=True)
    assert may_send(lane)
    for _ in range(MAX_REQUESTS_OF_SLOW_LANE - MAX_REQUESTS_PER_LANE):
        lane.request_left(slow=True)
    lane.request_began()
    assert not may_send(lane), "none of those that are left is slow"


def test_each_overdue_request_of_a_lane_that_timed_out_makes_room_for_one_more_until_it_ends() -> None:
    lane = Line(1).lane(0)
    lane.timed_out()
    for _ in range(2):
        assert may_send(lane)
        lane.request_began()
        assert not may_send(lane)
        lane.passed_over()
    lane.request_began()
    lane.request_left(overdue=True)
    assert not may_send(lane), "the last one still holds it back"
    lane.request_left()
    assert may_send(lane)


@pytest.mark.parametrize("aggregate", [False, True])
@pytest.mark.parametrize(
    ("faults", "rows"), [(1, None), (2, 128), (3, 64), (5, 16), (9, 1), (30, 1)], ids=lambda value: str(value)
)
def test_rows_whose_requests_fail_by_a_fault_of_the_service_go_alone_and_fewer_each_time(
    aggregate: bool, faults: int, rows: int | None
) -> None:
    line = Line(300, 30, aggregate=aggregate)
    line.mark(0, faults=faults)
    request = line.take()
    if rows is None:
        assert shards_of(request) == [0, 1]
    else:
        assert rows_in(request) == {"shard-0": rows}


# ---- rows that have ended do not decide for those behind them


def test_rows_behind_ended_ones_go_plain_one_of_each_key() -> None:
    """They may not be aggregated any more, and of the rows of a key one may be throttled and the next stored."""
    line = Line(0, aggregate=True, per_key=True)
    ended = line.fill(0, 3)
    line.fill(0, 4)
    lane = line.lane(0)
    lane.spans[1] = lane.spans[1]._replace(strays=RAW_FROM_STRAYS)
    ended.end_queued(np.arange(3))
    assert line.take().records == 1


def test_failing_rows_behind_ended_ones_go_alone_and_few_at_a_time() -> None:
    line = Line(0, 0)
    ended = line.fill(0, 3)
    line.fill(0, 100)
    line.fill(1, 100)
    lane = line.lane(0)
    lane.spans[1] = lane.spans[1]._replace(faults=5)
    ended.end_queued(np.arange(3))
    found = [rows_in(line.take()), rows_in(line.take())]
    assert {"shard-1": 100} in found
    assert {"shard-0": FAULTY_ROWS >> 5} in found


def test_a_lane_whose_rows_have_all_ended_leaves_the_line_and_waits_for_nothing() -> None:
    line = Line(0, 0)
    line.fill(0, 3).end_queued(np.arange(3))
    line.pacer(0).full_at = 7.0
    assert line.try_take(now=1.0) is None
    assert (line.lane(0).queued, line.lanes.next_time(), line.is_in_line()) == (0, inf, False)


# ---- shards change


@pytest.mark.parametrize("when", ["in a lane", "while they were sorted", "in a request"])
def test_rows_that_ended_and_hold_no_memory_any_more_survive_a_new_map(when: str) -> None:
    """Their callers left, or they expired: what is left of them is dropped, and nothing falls over it."""
    line = Line(0)
    result = sorted_of([rows_of([(b"k%d" % i, b"d", None) for i in range(20)])], even_map(1))

    def end_all() -> None:
        result.job.end_queued(np.arange(20))

    if when == "while they were sorted":
        line.lanes.follow_map(HALVES)
        end_all()
        line.lanes.append(even_map(1), result.spans)
    else:
        line.lanes.append(even_map(1), result.spans)
        request = line.take() if when == "in a request" else None
        end_all()
        line.lanes.follow_map(HALVES)
        if request is not None:
            line.end(request)
            line.lanes.put_back(request.pieces)
    assert line.try_take() is None
    assert not any(lane.queued for lane in line.lanes)


def test_a_lane_whose_shard_stays_keeps_its_pace_and_its_place() -> None:
    line = Line(5, 5)
    kept, (low, high) = line.lane(1), line.lanes.map.shards
    line.lanes.follow_map(ShardMap([Shard("a", 0, low.end // 2), Shard("b", low.end // 2 + 1, low.end), high]))
    assert line.lane(1) is kept
    assert kept.queued == 5
    assert line.shards()[0] == 1, "the longest-waiting"


@pytest.mark.parametrize("map_comes", [False, True])
def test_while_no_map_comes_in_time_a_lane_s_rows_go_plain_and_are_aggregated_after_it(map_comes: bool) -> None:
    line = Line(20, aggregate=True, request_max_records=5)
    lane = line.lane(0)
    lane.await_map(10.0)
    assert line.try_take(now=9.0) is None
    assert line.lanes.next_time() == 10.0
    request = line.take(now=10.0)
    assert [span.raw for _, span in request.pieces] == [True]
    if map_comes:
        lane.map_came()
    rest = line.take(now=11.0)
    assert {span.raw for _, span in rest.pieces} == {not map_comes}
    assert rest.records == (15 if map_comes else 5)


def test_a_merged_shard_waits_for_rows_that_its_parents_have_set_aside() -> None:
    line = Line(2, 2, per_key=True)
    request = line.take()
    first = request.lanes[0]
    first.put_aside()
    line.lanes.follow_map(MERGED)
    line.end(request)
    assert line.try_take() is None
    first.take_up()
    line.lanes.released([first])
    assert line.shards() == ["merged"]


def test_a_child_goes_on_when_its_parent_s_request_ends_also_if_another_shard_shared_it() -> None:
    line = Line(2, 2, per_key=True)
    request = line.take()
    low, high = line.lanes.map.shards
    line.lanes.follow_map(ShardMap([Shard("a", 0, 9), Shard("b", 10, low.end), high]))
    assert line.try_take() is None
    line.end(request)
    assert sorted(map(str, line.shards())) == ["1", "a"]


def test_an_answer_lists_no_lane_but_those_that_waited_for_it() -> None:
    line = Line(3, 1, MAX_REQUESTS_PER_LANE + 1, request_max_records=1)
    requests: dict[int | str, list[Request]] = defaultdict(list)
    while (request := line.try_take()) is not None:
        requests[shards_of(request)[0]].append(request)
    assert [len(found) for found in requests.values()] == [3, 1, MAX_REQUESTS_PER_LANE]
    closed = line.lane(0)
    halves = even_map(6).shards[:2]
    line.lanes.follow_map(
        ShardMap([*[Shard(f"half {s.start}", s.start, s.end) for s in halves], *even_map(3).shards[1:]])
    )
    for shard in (1, 0, 0):
        line.end(requests[shard].pop())
        assert not line.is_in_line(), "the last one has its rows on their way"
    closed.put_aside()
    line.end(requests[0].pop())
    assert not line.is_in_line()
    closed.take_up()
    line.lanes.released([closed])
    assert line.is_in_line()


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [((0, 4), (5, 9), False), ((0, 4), (0, 9), True), ((0, 9), (5, 9), True), ((5, 5), (5, 9), True)],
)
def test_ranges_overlap_if_one_hash_key_is_in_both(
    one: tuple[int, int], other: tuple[int, int], expected: bool
) -> None:
    first, second = Shard("x", *one), Shard("y", *other)
    assert overlap(first, second) is overlap(second, first) is expected


@pytest.mark.parametrize(
    ("aggregate", "shard_map", "gathers", "is_paced"),
    [
        (True, even_map(1), 51_200, True),
        (False, even_map(1), 0, True),
        (True, ONE_LANE, 0, True),
        (False, ONE_LANE, 0, False),
    ],
)
def test_lanes_of_shards_are_paced_and_gather_the_bytes_of_an_aggregate(
    aggregate: bool, shard_map: ShardMap, gathers: int, is_paced: bool
) -> None:
    line = Line(1, shard_map=shard_map, aggregate=aggregate)
    assert [(lane.aggregate_max_bytes, lane.pacer is not None) for lane in line.lanes] == [(gathers, is_paced)]


def test_rows_that_go_plain_keep_the_count_of_their_strays() -> None:
    (span,) = Line(1).lane(0).spans
    assert [as_raw([span._replace(strays=strays)])[0].strays for strays in (0, 1, 2, 5)] == [2, 2, 2, 5]


# ---- what is found by looking at lanes


def diagnosis_of(line: Line) -> Diagnosis:
    return Diagnosis(cast("Any", SimpleNamespace(lanes=line.lanes)), cast("Any", None))


def test_the_lane_that_holds_most_is_found_by_its_bytes() -> None:
    line = Line(0, 0, 0)
    assert fullest_of(line.lanes) is None
    line.fill(0, 30, size=10)
    line.fill(2, 3, size=500)
    fullest = fullest_of(line.lanes)
    assert fullest is not None
    assert fullest.lane is line.lane(2)
    assert fullest.share == 1_503 / (1_503 + 330)
    fullest.lane.take_all()
    assert fullest.lane.bytes == 0


def test_other_shards_have_room_while_their_mean_use_is_below_four_fifths_of_the_full_one_s() -> None:
    line = Line(1, 1, 1)
    full, second, third = (line.pacer(shard) for shard in range(3))

    def have_room(of_full: float, of_second: float, of_third: float) -> bool:
        full.used, second.used, third.used = of_full, of_second, of_third
        return others_have_room(line.lanes, line.lane(0), 5.0)

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
    assert diagnosis_of(line).backing_off(5.0) == 1


def test_the_busiest_shard_s_use_is_that_of_the_stream_and_unknown_shards_have_none() -> None:
    line = Line(0, 0)
    assert diagnosis_of(line).most_used(5.0) == 0.0
    for shard, used in enumerate((0.7, 0.2)):
        line.fill(shard, 1)
        line.pacer(shard).used = used
    assert diagnosis_of(line).most_used(5.0) == 0.7
    line = Line(1, shard_map=ONE_LANE, aggregate=True)
    line.pacer("").used = 0.9
    assert diagnosis_of(line).most_used(5.0) == 0.0


def test_each_open_shard_has_a_state_also_before_its_first_row() -> None:
    line = Line(0, 0)
    line.add([(b"k", b"", b"0")])
    line.pacer(0).used, line.pacer(0).throttled = 0.3, True
    low, high = even_map(2).shards
    assert list(shard_states(line.lanes, 5.0)) == [
        ShardState(low, 1, 1, 1.0, 0, 250.0, MIB / 4, 0.3, True, ""),
        ShardState(high, 0, 0, 0.0, 0, 0.0, 0.0, 0.0, False, ""),
    ]


def test_what_a_lane_waits_for_is_named() -> None:
    line = Line(5)
    lane = line.lane(0)

    def waits_for(now: float) -> str:
        (state,) = shard_states(line.lanes, now)
        return state.waits_for

    line.pacer(0).opens_at = 5.0
    assert [waits_for(now) for now in (4.9, 5.0)] == ["pace", ""]
    lane.await_map(8.0)
    assert [waits_for(now) for now in (7.9, 8.0)] == ["shard map", ""]
    for _ in range(MAX_REQUESTS_PER_LANE):
        lane.request_began()
    assert [waits_for(now) for now in (7.9, 8.0)] == ["shard map", "answers"]
    lane.take_all()
    assert waits_for(7.9) == ""
    lane.timed_out()
    assert waits_for(7.9) == "answers", "which its requests do not have, though no other row waits"
