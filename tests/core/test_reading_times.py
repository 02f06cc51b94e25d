"""A daemon reads a stream's shards soon when rows wait for them, and else seldom enough for a fleet of daemons."""

from __future__ import annotations

from itertools import pairwise
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


@pytest.mark.law("RetryPolicy")
def test_readings_that_no_rows_wait_for_are_few_and_those_that_some_wait_for_two_seconds_apart() -> None:
    readings, now, times = ShardReadings(Random(1)), 0.0, []
    for place in range(40):
        awaited = 10 <= place < 30
        now = max(now, readings.next_time(wanted=True, awaited=awaited))
        times.append(now)
        readings.began(now, awaited=awaited)
        readings.failed(now + 0.05, denied=False, unreachable=False)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert all(AWAITED_SECONDS[0] <= gap <= AWAITED_SECONDS[1] for gap in gaps[10:28])
    assert len({round(gap, 3) for gap in gaps[10:28]}) > 15, "and none by the clock"
    assert all(sum(start <= time < start + 60 for time in times[30:]) <= READINGS_PER_MINUTE for start in times[30:])
    readings.failed(now, denied=True, unreachable=False)
    again = readings.next_time(wanted=True, awaited=True)
    assert now + 15.0 <= again <= now + 60.0, "a denied list is read again, and not again and again"


@pytest.mark.law("RetryPolicy")
def test_readings_for_rows_that_wait_do_not_keep_later_ones_waiting() -> None:
    """After a start with many of them a split is followed as soon as ever."""
    readings, now = ShardReadings(Random(1)), 0.0
    for _ in range(10):
        readings.began(now, awaited=True)
        readings.failed(now, denied=False, unreachable=False)
        now = readings.next_time(wanted=True, awaited=True)
    readings.began(now, awaited=True)
    readings.succeeded(now)
    assert readings.next_time(wanted=True, awaited=False) <= now + 8.0


@pytest.mark.law("RetryPolicy")
def test_readings_that_nobody_asked_for_are_about_a_minute_apart_and_spread() -> None:
    """A daemon that reads its summary does so about every ten minutes."""
    random = Random(1)
    times = [about(600.0, random) for _ in range(1_000)]
    assert 450.0 <= min(times) < 470.0
    assert 730.0 < max(times) <= 750.0


@pytest.mark.law("RetryPolicy")
def test_a_summary_that_cannot_be_read_is_read_again_later_each_time() -> None:
    for seed in range(50):
        readings = SummaryReadings(Random(seed))
        for _ in range(2):
            first, second = readings.failed(), readings.failed()
            assert SUMMARY_SPREAD_SECONDS <= first <= 2 * SUMMARY_SPREAD_SECONDS <= second <= 4 * SUMMARY_SPREAD_SECONDS
            readings.succeeded()
