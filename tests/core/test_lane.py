"""A lane hands out its rows in order, within bounds, and skips those whose caller has gone."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

from producerd.core.lanes.lane import (
    ENTRY_OVERHEAD_BYTES,
    MAX_REQUESTS_OF_SLOW_LANE,
    MAX_REQUESTS_PER_LANE,
    Lane,
)
from producerd.core.lanes.pacing import Pacer
from producerd.core.rows.job import Job
from producerd.core.rows.spans import Span
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.shard_map import Shard
from tests.core.rows import content, even_map, rows_of, sorted_of

ANY = 2**40
EVERYTHING = Shard("shard-0", 0, MAX_HASH_KEY)


def filled(sizes: list[int]) -> tuple[Lane, Job]:
    """A lane with a row of each size, all of one job."""
    result = sorted_of([rows_of([(b"k", b"x" * size, None) for size in sizes])], even_map(1))
    lane = Lane(EVERYTHING, None)
    lane.extend([span for _, span in result.spans])
    return lane, result.job


def positions(spans: list[Span]) -> list[int]:
    return [at for span in spans for at in range(span.first, span.last)]


def test_a_row_larger_than_the_bound_goes_alone_only_where_that_is_allowed() -> None:
    lane, _ = filled([10, 50_000, 10])
    taken, _ = lane.take(10, 1_000, ANY)
    assert positions(taken) == [0]
    assert lane.take(10, 1_000, 0) == ([], 0)
    assert lane.take(10, 1_000, 50_000) == ([], 0), "its key and overhead count too"
    taken, used = lane.take(10, 1_000, 50_000 + 1 + ENTRY_OVERHEAD_BYTES)
    assert positions(taken) == [1]
    assert used == 50_000 + 1 + ENTRY_OVERHEAD_BYTES
    assert positions(lane.take(10, 1_000)[0]) == [2]


def test_rows_that_have_ended_are_left_out_and_cut_a_span_in_two() -> None:
    lane, job = filled([10] * 9)
    job.end_queued(np.array([0, 3, 4, 8]))
    taken, used = lane.take(100, ANY)
    assert [(span.first, span.last) for span in taken] == [(1, 3), (5, 8)]
    assert used == 5 * (11 + ENTRY_OVERHEAD_BYTES)
    lane, job = filled([10] * 20)
    job.end_queued(np.arange(20))
    assert lane.take(10, ANY, ANY) == ([], 0)
    assert (lane.queued, len(lane.spans)) == (0, 0)


@pytest.mark.law("Lane")
def test_a_lane_sends_with_rows_few_requests_and_no_hold_off() -> None:
    lane, _ = filled([10])
    assert lane.ready_at(0.0) == 0.0
    lane.hold(5.5)
    lane.hold(5.2)
    assert lane.ready_at(5.0) == 5.5
    lane.await_map(7.5)
    lane.await_map(9.5)
    assert lane.ready_at(5.0) == 7.5
    for _ in range(MAX_REQUESTS_PER_LANE):
        lane.sent()
    assert lane.ready_at(8.0) == inf
    assert Lane(EVERYTHING, None).ready_at(8.0) == inf


@pytest.mark.law("Lane")
def test_a_lane_whose_requests_are_slow_sends_more_of_them_up_to_a_bound() -> None:
    lane, _ = filled([10])
    for _ in range(MAX_REQUESTS_OF_SLOW_LANE):
        assert lane.ready_at(5.0) <= 5.0
        lane.sent()
        lane.slowed()
    assert lane.ready_at(5.0) == inf


@pytest.mark.parametrize("of", ["records", "bytes"])
def test_a_lane_is_paced_while_one_of_its_buckets_is_less_than_half_full(of: str) -> None:
    pacer = Pacer()
    lane = Lane(EVERYTHING, pacer)
    half_of_records, half_of_bytes = int(pacer.rate_records / 2), int(pacer.rate_bytes / 2)
    pacer.take(*((half_of_records, 1) if of == "records" else (1, half_of_bytes)), 5.0)
    assert not lane.is_paced(5.0)
    pacer.take(1, 1, 5.0)
    assert lane.is_paced(5.0)
    assert not lane.is_paced(5.1)


def test_a_lane_without_a_pacer_is_not_paced() -> None:
    lane = Lane(EVERYTHING, None)
    assert not lane.is_paced(5.0)
    assert (lane.use(5.0), lane.aggregate_max_bytes) == (0.0, 0)


def test_a_lane_hands_answers_and_rules_to_its_pacer_if_it_has_one() -> None:
    pacer = Pacer()
    lane, unpaced = Lane(EVERYTHING, pacer), Lane(EVERYTHING, None)
    lane.pace(0, 1, 5.0, 5.0, lambda times: 10.0)
    assert (lane.backs_off(5.0), pacer.rate_records) == (True, 125)
    for each in (lane, unpaced):
        each.set_rules(700, 0.5, 5.0)
        assert each.aggregate_max_bytes == 700
    assert pacer.rate_records == 62.5


def test_a_number_that_fell_is_the_one_that_later_numbers_are_compared_with() -> None:
    """A shard of a stream that was made again begins at lower numbers."""
    lane = Lane(EVERYTHING, None)
    assert lane.sequence == 0
    assert not lane.read(10, 0)
    assert not lane.read(7, 0), "an answer that was overtaken"
    assert lane.sequence == 10
    assert lane.read(5, 10)
    assert lane.sequence == 5
    assert not lane.read(0, 5)
    assert lane.sequence == 5
    assert lane.read(1, 5)
    assert lane.sequence == 1


def test_a_lane_without_a_pacer_waits_longer_after_each_answer_in_a_row_that_throttles_it() -> None:
    lane = Lane(EVERYTHING, None)
    holds = []
    for throttled in (1, 3, 0, 2):
        lane.pace(5, throttled, 1.0, 5.0, lambda times: 10.0 * times)
        holds.append(lane.hold_until)
    assert holds == [15.0, 25.0, 25.0, 15.0]
    assert lane.backs_off(14.9)
    assert not lane.backs_off(15.0)


def test_a_request_that_ended_counts_no_more_and_a_slow_one_not_as_slow_either() -> None:
    lane = Lane(EVERYTHING, None)
    for _ in range(3):
        lane.sent()
    lane.slowed()
    lane.passed_over()
    lane.ended()
    assert (lane.in_flight, lane.slow_in_flight, lane.overdue_in_flight) == (2, 1, 1)
    lane.ended(slow=True, overdue=True)
    assert (lane.in_flight, lane.slow_in_flight, lane.overdue_in_flight) == (1, 0, 0)


def test_a_late_answer_ends_the_silence_of_a_lane_and_one_in_time_lets_it_share_requests() -> None:
    lane = Lane(Shard("", 0, MAX_HASH_KEY), None)
    lane.answered(late=True)
    assert (lane.alone, lane.silent) == (False, False)
    lane.timed_out()
    assert repr(lane) == "<Lane of all shards: 0 rows in 0 spans, 0 requests in flight, 0 set aside, alone, silent>"
    lane.answered(late=True)
    assert (lane.alone, lane.silent) == (True, False)
    lane.answered(late=False)
    assert (lane.alone, lane.silent) == (False, False)


# ---- one row of each key


def of_keys(keys: str, size: int = 10) -> list[Span]:
    """A span of a job of its own, with a row for each of these keys."""
    rows = rows_of([(key.encode(), b"x" * size, None) for key in keys])
    return [span for _, span in sorted_of([rows], even_map(1), 1).spans]


def lane_of(*keys: str) -> Lane:
    """A lane with a span for each of these texts."""
    lane = Lane(EVERYTHING, None)
    for text in keys:
        lane.extend(of_keys(text))
    return lane


def keys_in(spans: list[Span]) -> str:
    return "".join([content(span, at)[0].decode() for span in spans for at in range(span.first, span.last)])


def test_the_first_rows_of_all_keys_are_taken_and_the_others_stay_in_their_order() -> None:
    lane = lane_of("aab", "ac", "bd")
    found = []
    while lane.queued:
        taken, used = lane.take_distinct(10, ANY)
        assert used == (1 + 10 + 40) * sum(span.records for span in taken)
        found.append(keys_in(taken))
    assert found == ["abcd", "ab", "a"]
    assert not lane.spans


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [((3, ANY), ["abc", "d"]), ((4, ANY), ["abcd"]), ((9, 3 * 51), ["abc", "d"]), ((9, 3 * 51 - 1), ["ab", "cd"])],
)
def test_no_more_rows_of_distinct_keys_are_taken_than_the_bounds_allow(
    bounds: tuple[int, int], expected: list[str]
) -> None:
    lane = lane_of("ab", "cd")
    found = []
    while lane.queued:
        taken, _ = lane.take_distinct(*bounds)
        found.append(keys_in(taken))
        assert lane.queued == sum(span.records for span in lane.spans)
    assert found == expected


def test_a_large_row_goes_alone_and_no_later_one_overtakes_it_where_keys_are_distinct() -> None:
    lane = lane_of("a")
    lane.extend(of_keys("b", 50_000))
    lane.extend(of_keys("c"))
    assert keys_in(lane.take_distinct(10, 1_000, ANY)[0]) == "a"
    assert lane.take_distinct(10, 1_000) == ([], 0)
    taken, used = lane.take_distinct(10, 1_000, ANY)
    assert (keys_in(taken), used) == ("b", 1 + 50_000 + 40)
    assert keys_in(lane.take_distinct(10, 1_000, ANY)[0]) == "c"


@pytest.mark.parametrize(("waiting", "expected"), [(31, "ab"), (32, "a")])
def test_a_row_is_found_behind_32_spans_that_wait_at_most(waiting: int, expected: str) -> None:
    lane = lane_of("a", *["a"] * waiting, "b")
    assert keys_in(lane.take_distinct(10, ANY)[0]) == expected
    assert lane.queued == waiting + 2 - len(expected)


@pytest.mark.parametrize("odd", [{"strays": 2}, {"faults": 2}], ids=["raw", "failing"])
@pytest.mark.parametrize("distinct", [False, True])
def test_rows_that_are_sent_in_another_way_share_no_request(odd: dict[str, Any], distinct: bool) -> None:
    lane = lane_of("a")
    lane.extend([span._replace(**odd) for span in of_keys("b")])
    lane.extend(of_keys("c"))
    found = []
    while lane.queued:
        taken, _ = lane.take_distinct(10, ANY) if distinct else lane.take(10, ANY)
        found.append(keys_in(taken))
    assert found == ["a", "b", "c"]
