"""The figures say what was counted, no more and no less."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from benchmarks.delivery.figures import (
    Delivery,
    FaultTimes,
    data_of,
    deliveries,
    longest_gap,
    rate,
    recovery_seconds,
    throughput_ratio,
    times,
    verdict_on,
)
from benchmarks.judges import Handed
from producerd.testing import Entry, UserRecord

FAULT = FaultTimes(watched_from=1.0, begins=3.0, ends=5.0)


def handed(at: float, *rows: int) -> Handed:
    """An entry stored at a time, of which a consumer is handed these rows."""
    entry = Entry("shardId-000000000000", "a", None, b"", "1", at)
    return Handed(entry, [UserRecord("key", None, data_of(row, 20)) for row in rows])


def steady(begin: float, end: float, per_second: int) -> list[float]:
    count = round((end - begin) * per_second)
    return [begin + i / per_second for i in range(count)]


def test_the_data_of_a_row_has_its_size_and_begins_with_its_id() -> None:
    assert data_of(7, 20) == b"000000000007........"
    assert len(data_of(3_000_000_001, 500)) == 500


def test_a_row_is_delivered_when_its_first_copy_is_stored_and_every_other_copy_is_a_duplicate() -> None:
    found, duplicates = deliveries([handed(1.0, 1, 2), handed(2.0), handed(3.0, 2, 3, 3)])
    assert found == [Delivery(1, 1.0), Delivery(2, 1.0), Delivery(3, 3.0)]
    assert duplicates == 2


def test_what_has_no_id_is_no_row() -> None:
    other = Handed(handed(1.0).entry, [UserRecord("key", None, data) for data in (b"first", b"", b"x" * 20)])
    assert deliveries([other, handed(2.0, 5)]) == ([Delivery(5, 2.0)], 0)


@pytest.mark.parametrize(
    ("acknowledged", "found", "verdict"),
    [
        ({1, 2}, [handed(1.0, 1, 2)], "ok"),
        ({1}, [handed(1.0, 1, 2), handed(2.0, 2)], "ok"),  # more than was acknowledged, and twice
        ({1, 2, 3}, [handed(1.0, 2)], "LOST 2"),
        (set(), [handed(1.0, 9)], "NEVER SENT 1"),
        ({1}, [Handed(handed(1.0).entry, [UserRecord("key", None, data_of(1, 19))])], "LOST 1, NEVER SENT 1"),
        (set(), [Handed(handed(1.0).entry, [UserRecord("key", None, b"no id")])], "NEVER SENT 1"),
        (set(range(5_000)), [], "LOST 5,000"),
    ],
    ids=["all", "more", "missing", "another's", "cut short", "without an id", "thousands"],
)
def test_an_acknowledged_row_that_is_not_handed_over_is_lost_and_what_was_not_sent_is_told(
    acknowledged: set[int], found: list[Handed], verdict: str
) -> None:
    assert verdict_on(acknowledged, found, lambda row: data_of(row, 20) if row < 5 else None) == verdict


def test_times_are_sorted_and_of_wanted_rows_alone() -> None:
    found = [Delivery(1, 3.0), Delivery(2, 1.0), Delivery(3, 2.0)]
    assert times(found) == [1.0, 2.0, 3.0]
    assert times(found, lambda row: row != 3) == [1.0, 3.0]


def test_a_rate_counts_its_first_moment_and_not_its_last() -> None:
    assert rate([1.0, 1.5, 2.0, 3.0], 1.0, 2.0) == 2.0
    assert rate([], 1.0, 3.0) == 0.0


@pytest.mark.parametrize(
    ("after", "seconds"),
    [
        (steady(5.0, 8.0, 10), 0.0),  # never gone
        (steady(6.5, 8.0, 10), 1.5),
        (steady(5.0, 7.0, 8) + steady(7.0, 9.0, 10), 1.125),  # at 0.8, then back: from 6.125 on a second holds 9
        (steady(5.0, 9.0, 8), None),
        (steady(5.0, 5.8, 10), None),  # it ends too soon to know
        ([], None),
    ],
    ids=["no loss", "late", "slower, then back", "slower", "too short", "nothing"],
)
def test_recovery_is_the_way_to_a_second_with_nine_tenths_of_the_rows_before(
    after: Iterable[float], seconds: float | None
) -> None:
    at = [*steady(0.0, 1.0, 30), *steady(1.0, 3.0, 10), *after]  # 10 a second when it counts
    found = recovery_seconds(at, FAULT)
    assert found == (seconds if seconds is None else pytest.approx(seconds))


def test_after_a_merge_half_of_the_throughput_is_recovery() -> None:
    at = [*steady(0.0, 3.0, 10), *steady(6.0, 9.0, 5)]
    assert recovery_seconds(at, FAULT) is None
    assert recovery_seconds(at, FAULT, quota_ratio=0.5) == 1.0


def test_without_throughput_before_there_is_no_recovery() -> None:
    assert recovery_seconds(steady(5.0, 9.0, 10), FAULT) is None
    assert throughput_ratio(steady(5.0, 9.0, 10), FAULT) is None


def test_the_throughput_ratio_is_during_to_before() -> None:
    assert throughput_ratio([*steady(0.0, 3.0, 10), *steady(3.0, 5.0, 5)], FAULT) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("at", "seconds"),
    [
        ([2.9, 3.5, 4.75, 5.25], 1.25),  # in between
        ([2.9, 4.0, 4.75, 5.25], 1.0),  # from the beginning
        ([2.9, 3.5, 4.0, 5.25], 1.0),  # to the end
        ([2.9, 5.25], 2.0),  # all of it
        ([], 2.0),
    ],
)
def test_the_longest_gap_lies_within_the_fault(at: list[float], seconds: float) -> None:
    assert longest_gap(at, FAULT) == seconds
