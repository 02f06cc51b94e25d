"""A daemon reads a stream's shards soon when rows wait for them, and else seldom enough for a fleet of daemons."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import pairwise
from math import inf
from random import Random

import pytest

from producerd.core.shards.reading_times import (
    AWAITED_SECONDS,
    READINGS_PER_MINUTE,
    SUMMARY_SPREAD_SECONDS,
    ShardReadings,
    SummaryReadings,
    about,
)

pytestmark = pytest.mark.law("RetryPolicy")


class Least(Random):
    """Draws the least of all times, so that a test can name them."""

    def uniform(self, a: float, b: float) -> float:
        return a


def times_of(readings: ShardReadings, count: int, *, fails: bool, unreachable: bool = False) -> list[float]:
    """When a list is read that rows want all the time, if every reading ends at once in the same way."""
    now, times = 0.0, []
    for _ in range(count):
        now = max(now, readings.next_time(wanted=True, awaited=False))
        times.append(now)
        readings.began(now, awaited=False)
        if fails:
            readings.count_failure(now, denied=False, unreachable=unreachable)
        else:
            readings.succeeded(now)
    return times


def test_a_list_that_is_wanted_all_the_time_is_read_ever_later_and_six_times_a_minute() -> None:
    assert times_of(ShardReadings(Least()), 9, fails=False) == [0.0, 2.5, 7.5, 15.0, 25.0, 37.5, 60.0, 75.0, 85.0]
    for unreachable in (False, True):
        times = times_of(ShardReadings(Least()), 8, fails=True, unreachable=unreachable)
        assert times == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 60.0, 75.0]


def test_a_list_that_nobody_wants_is_read_a_minute_after_the_last_reading_until_it_is_forgotten() -> None:
    readings = ShardReadings(Least())
    readings.began(0.0, awaited=True)
    readings.count_failure(0.0, denied=False, unreachable=False)
    assert readings.next_time(wanted=False, awaited=False) == 0.5 + 45.0
    readings.began(45.5, awaited=False)
    readings.succeeded(45.5)
    assert readings.next_time(wanted=False, awaited=False) == 45.5 + 2 * 2.5 + 45.0
    readings.forgotten()
    assert readings.next_time(wanted=False, awaited=False) == inf
    assert readings.next_time(wanted=True, awaited=True) == 45.5 + 2 * 2.5, "no failure makes it more urgent"


def test_readings_of_more_than_a_minute_ago_delay_nothing() -> None:
    readings = ShardReadings(Least())
    for now in (0.0, 60.0):
        readings.began(now, awaited=False)
        readings.succeeded(now)
        assert readings.next_time(wanted=True, awaited=False) == now + 2.5


@pytest.mark.parametrize("end", ["it is read", "the service is back"])
def test_a_list_is_read_again_soon_after_the_end_of_a_row_of_failures(end: str) -> None:
    readings = ShardReadings(Least())
    for _ in range(6):
        readings.count_failure(0.0, denied=False, unreachable=True)
    assert readings.next_time(wanted=True, awaited=False) == 15.0
    if end == "it is read":
        readings.succeeded(15.0)
    delays = []
    for _ in range(3):
        readings.count_failure(100.0, denied=False, unreachable=False)
        delays.append(readings.next_time(wanted=True, awaited=False) - 100.0)
    assert delays == [0.5, 1.0, 2.0]


def test_readings_that_no_rows_wait_for_are_few_and_those_that_some_wait_for_two_seconds_apart() -> None:
    readings, now, times = ShardReadings(Random(1)), 0.0, []
    for place in range(40):
        awaited = 10 <= place < 30
        now = max(now, readings.next_time(wanted=True, awaited=awaited))
        times.append(now)
        readings.began(now, awaited=awaited)
        readings.count_failure(now + 0.05, denied=False, unreachable=False)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert all(AWAITED_SECONDS[0] <= gap <= AWAITED_SECONDS[1] for gap in gaps[10:28])
    assert len({round(gap, 3) for gap in gaps[10:28]}) > 15, "and none by the clock"
    assert all(sum(start <= time < start + 60 for time in times[30:]) <= READINGS_PER_MINUTE for start in times[30:])
    readings.count_failure(now, denied=True, unreachable=False)
    again = readings.next_time(wanted=True, awaited=True)
    assert now + 15.0 <= again <= now + 60.0, "a denied list is read again, and not again and again"


def test_readings_for_rows_that_wait_do_not_keep_later_ones_waiting() -> None:
    """After a start with many of them a split is followed as soon as ever."""
    readings, now = ShardReadings(Random(1)), 0.0
    for _ in range(10):
        readings.began(now, awaited=True)
        readings.count_failure(now, denied=False, unreachable=False)
        now = readings.next_time(wanted=True, awaited=True)
    readings.began(now, awaited=True)
    readings.succeeded(now)
    assert readings.next_time(wanted=True, awaited=False) <= now + 8.0


def test_readings_that_nobody_asked_for_are_about_a_minute_apart_and_spread() -> None:
    random = Random(1)
    times = [about(60.0, random) for _ in range(1_000)]
    assert 45.0 <= min(times) < 47.0
    assert 73.0 < max(times) <= 75.0


def test_a_summary_that_cannot_be_read_is_read_again_later_each_time() -> None:
    readings = SummaryReadings(Least())
    for _ in range(2):
        delays = [readings.summary_failed(answered=False) for _ in range(12)]
        assert delays == [15.0 * 2**n for n in range(10)] + [10_800.0] * 2
        readings.succeeded()
    assert [readings.summary_failed() for _ in range(5)] == [15.0, 60.0, 1_800.0, 7_200.0, 7_200.0]


def test_a_summary_is_read_after_an_hour_and_then_ever_more_rarely() -> None:
    readings = SummaryReadings(Least())
    for _ in range(2):
        delays = [readings.succeeded() / 0.75 / 3_600 for _ in range(7)]
        assert delays == [1, 2, 4, 8, 16, 24, 24]
        readings.made_again()
    assert readings.succeeded(refuses=True) == 450.0, "an operator may change why callers are refused"


def test_a_summary_is_read_at_once_where_a_map_waits_for_it_and_else_spread_over_a_fleet() -> None:
    fleet = [SummaryReadings(Random(seed)) for seed in range(300)]
    assert {node.first_seconds(aggregates=True) for node in fleet} == {0.0}
    times = sorted(node.first_seconds(aggregates=False) for node in fleet)
    assert 0.0 <= times[0] < 0.5
    assert SUMMARY_SPREAD_SECONDS - 0.5 < times[-1] <= SUMMARY_SPREAD_SECONDS


@pytest.mark.parametrize("aggregates", [False, True])
@pytest.mark.parametrize("answers", ["told", "denied"])
def test_a_large_fleet_soon_leaves_calls_about_summaries_to_others(answers: str, aggregates: bool) -> None:
    """A twentieth of 2,000 nodes with 30 streams, and of the 20 calls a second that an account has.

    After a quarter of an hour they make less than half of those calls, in each ten minutes of a day.
    """
    random, scale, streams = Random(1), 20, 2_000 * 30
    fleet = [SummaryReadings(random) for _ in range(streams // scale)]
    due = [(one.first_seconds(aggregates=aggregates), number) for number, one in enumerate(fleet)]
    heapq.heapify(due)
    calls, read, tokens, last = Counter[int](), set[int](), 1.0, 0.0
    while (now := due[0][0]) < 86_400:
        number = due[0][1]
        tokens, last = min(1.0, tokens + (now - last) * 20 / scale), now
        calls[int((now - 900) // 600)] += 1
        throttled = tokens < 1
        tokens -= not throttled
        one = fleet[number]
        if throttled or answers == "denied":
            seconds = one.summary_failed()
        else:
            seconds = one.succeeded()
            read.add(number)
        heapq.heapreplace(due, (now + seconds, number))
    assert max(count for interval, count in calls.items() if interval >= 0) / 600 * scale < 10
    assert len(read) == (len(fleet) if answers == "told" else 0), "each has its summary in the end"
