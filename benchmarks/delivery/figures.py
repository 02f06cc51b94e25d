"""Compute the figures of a row from counts.  The functions are pure; times are seconds on one clock."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from benchmarks.judges import Handed

ID_DIGITS: Final = 12
"""Digits of a row's id, with which its data begin."""
WINDOW_SECONDS: Final = 1.0
RECOVERED: Final = 0.9
HELD: Final = "ok"


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results.  A field that has no meaning for a scenario is None.

    ``acknowledged`` counts rows that the producer reported as STORED.  A consumer receives ``readable`` of them at
    least
    once, and ``duplicates`` counts further copies.  ``requests`` counts PutRecords.

    ``recovery_seconds`` is the time from the fault's end until throughput has been at least 0.9 of its former value for
    a
    second.  After a merge, which halves the quota, half of that is enough.  If the run did not recover, it is None and
    ``recovered`` is False.

    ``others_...`` are about the rows for shards without a fault: their throughput during the fault divided by their
    throughput before, and the longest time in which none was stored.  ``goodput_ratio`` is the share of the uplink that
    rows
    stored for the first time used, in base64.  ``verdict`` is the result of `verdict_on`.
    """

    producer: str
    scenario: str
    aggregation: str
    judge: str
    acknowledged: int
    readable: int
    duplicates: int
    requests: int
    recovery_seconds: float | None = None
    recovered: bool | None = None
    others_throughput_ratio: float | None = None
    others_longest_gap_seconds: float | None = None
    goodput_ratio: float | None = None
    verdict: str = HELD


class FaultTimes(NamedTuple):
    """Throughput before the fault is measured from `watched_from` on."""

    watched_from: float
    begins: float
    ends: float


class Delivery(NamedTuple):
    """A row, with the time at which its first readable copy was stored."""

    row: int
    at: float


def data_of(row: int, size: int) -> bytes:
    return b"%0*d" % (ID_DIGITS, row) + b"." * (size - ID_DIGITS)


def deliveries(handed: Iterable[Handed]) -> tuple[list[Delivery], int]:
    """Return the first copies in the order of storing, and the number of further copies.  Skip data without an id."""
    first: dict[int, float] = {}
    copies = 0
    for entry, records, _ in handed:
        for record in records:
            if (number := record.data[:ID_DIGITS]).isdigit():
                copies += 1
                first.setdefault(int(number), entry.stored_at)
    return [Delivery(row, at) for row, at in first.items()], copies - len(first)


def verdict_on(acknowledged: set[int], handed: Iterable[Handed], sent: Callable[[int], bytes | None]) -> str:
    """Return whether a consumer receives every acknowledged row, and no row that was not sent.

    ``sent`` returns the data of a row, or None for a row that was not put.
    """
    missing, never_sent = set(acknowledged), 0
    for _, records, _ in handed:
        for record in records:
            row = int(number) if (number := record.data[:ID_DIGITS]).isdigit() else None
            if row is None or record.data != sent(row):
                never_sent += 1
            else:
                missing.discard(row)
    wrong = {"LOST": len(missing), "NEVER SENT": never_sent}
    return ", ".join(f"{what} {count:,}" for what, count in wrong.items() if count) or HELD


def times(found: Iterable[Delivery], wanted: Callable[[int], bool] = lambda _row: True) -> list[float]:
    return sorted(delivery.at for delivery in found if wanted(delivery.row))


def rate(at: Sequence[float], begin: float, end: float) -> float:
    """Return the rows per second from `begin` on and before `end`, or 0 for no time.  ``at`` is sorted."""
    if end <= begin:
        return 0.0
    return (bisect_left(at, end) - bisect_left(at, begin)) / (end - begin)


def rate_before(at: Sequence[float], fault: FaultTimes) -> float:
    return rate(at, fault.watched_from, fault.begins)


def recovery_seconds(at: Sequence[float], fault: FaultTimes, quota_ratio: float = 1.0) -> float | None:
    """Return the time from the fault's end to the first row of the first second with enough rows, or None.

    ``quota_ratio`` is the quota of the shards after the fault, divided by their quota before.
    """
    enough = math.ceil(RECOVERED * quota_ratio * WINDOW_SECONDS * rate_before(at, fault))
    if enough == 0:
        return None
    for first in range(bisect_left(at, fault.ends), len(at) - enough + 1):
        if at[first + enough - 1] - at[first] < WINDOW_SECONDS:
            return at[first] - fault.ends
    return None


def throughput_ratio(at: Sequence[float], fault: FaultTimes) -> float | None:
    """Return the throughput during the fault, divided by the throughput before."""
    before = rate_before(at, fault)
    return rate(at, fault.begins, fault.ends) / before if before else None


def longest_gap(at: Sequence[float], fault: FaultTimes) -> float:
    """Return the longest time during the fault in which no row was stored."""
    during = at[bisect_left(at, fault.begins) : bisect_left(at, fault.ends)]
    return max(later - earlier for earlier, later in pairwise([fault.begins, *during, fault.ends]))
