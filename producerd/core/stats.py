"""The counters of one stream.

The pipeline adds to them once for a request, a frame or a span, never once for a row.  Between two calls into the
pipeline ``ingested = delivered + failed + discarded + queued`` holds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

ATTEMPT_BOUNDS: Final = (1, 2, 3, 5, 10, 20, 50)
"""Upper bounds of the number of sends after which a row was stored."""
DELIVERY_SECONDS_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
REQUEST_SECONDS_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
REQUEST_BYTES_BOUNDS: Final = tuple(kib * 1024 for kib in (1, 4, 16, 64, 256, 512, 1024, 2048, 5120, 15360))
REQUEST_RECORDS_BOUNDS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500)
USER_RECORDS_BOUNDS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000)


class Histogram:
    """Counts of values by size, and their sum.

    ``counts`` has one count for each bound, of the values above the bound before and up to this one.  The last count is
    of the values above all bounds.
    """

    __slots__ = ("_array", "bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._array = np.array(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0

    def copy(self) -> Histogram:
        """Return a copy that later values do not change."""
        other = Histogram(self.bounds)
        other.counts, other.sum = self.counts.copy(), self.sum
        return other

    def merge(self, other: Histogram) -> None:
        """Add the values of another histogram, which has the same bounds."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def observe(self, value: float, times: int = 1) -> None:
        """Add a value this many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def observe_each(
        self, values: npt.NDArray[np.number[Any]], times: npt.NDArray[np.integer[Any]] | None = None
    ) -> None:
        """Add each of these values once, or as many times as ``times`` says."""
        for place, number in enumerate(np.bincount(self._array.searchsorted(values), times).tolist()):
            self.counts[place] += int(number)
        total = values.sum() if times is None else np.dot(values, times)
        self.sum += total.item()


@dataclass(slots=True)
class StreamStats:
    """The totals of a stream since it was opened.  A counter counts rows unless its name says otherwise."""

    ingest_records: int = 0
    ingest_bytes: int = 0
    delivered_records: int = 0
    delivered_bytes: int = 0  # key + data
    delivering_from: float | None = None  # when rows were first stored
    delivered_at: float | None = None  # when rows were last stored
    delivery_seconds: Histogram = field(default_factory=lambda: Histogram(DELIVERY_SECONDS_BOUNDS))
    failed_records: Counter[str] = field(default_factory=Counter)  # by code
    discarded_records: Counter[str] = field(default_factory=Counter)  # by reason: disconnected, returned, abandoned
    lost_as: str = ""  # the code of the row that was abandoned last
    record_errors: Counter[str] = field(default_factory=Counter)  # by code: each failed send of each row
    attempts: Histogram = field(default_factory=lambda: Histogram(ATTEMPT_BOUNDS))  # sends of each stored row
    retried_records: int = 0
    throttled_records: int = 0
    possible_duplicate_records: Counter[str] = field(default_factory=Counter)  # copies, by cause: job.MAYBE_CAUSES
    shard_mispredictions: int = 0
    shard_map_refreshes: Counter[str] = field(default_factory=Counter)  # by result: ok, failed
    put_requests: Counter[str] = field(default_factory=Counter)  # by result: ok, partial, failed
    request_seconds: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS_BOUNDS))
    request_bytes: Histogram = field(default_factory=lambda: Histogram(REQUEST_BYTES_BOUNDS))
    request_records: Histogram = field(default_factory=lambda: Histogram(REQUEST_RECORDS_BOUNDS))
    user_records: Histogram = field(default_factory=lambda: Histogram(USER_RECORDS_BOUNDS))  # in a Kinesis record
    flushes: Counter[str] = field(default_factory=Counter)  # by trigger: size, linger, flush, pressure, drain
    last_error: str = ""  # cleared when a whole request is stored

    @property
    def delivered_kinesis_records(self) -> int:
        """About how many records of Kinesis the stored rows are in: as many to each as in all that were sent."""
        sent = sum(self.user_records.counts)
        return round(self.delivered_records * sent / self.user_records.sum) if sent else 0

    # ---- events

    def lost(self, records: int, code: str) -> None:
        """Count rows that ended in another way than stored, and whose callers had gone."""
        self.discarded_records["abandoned"] += records
        self.lost_as = code

    def accepted(self, records: int, bytes_: int) -> None:
        """Count an accepted frame."""
        self.ingest_records += records
        self.ingest_bytes += bytes_

    def flushed(self, trigger: str) -> None:
        """Count a sealed batch, by what sealed it."""
        self.flushes[trigger] += 1

    def delivered(self, records: int, bytes_: int, now: float) -> None:
        """Count rows that were stored."""
        self.delivered_records += records
        self.delivered_bytes += bytes_
        self.delivered_at = now
        if self.delivering_from is None:
            self.delivering_from = now

    def retried(self, records: int) -> None:
        """Count rows that will be sent again."""
        self.retried_records += records

    def throttled(self, records: int) -> None:
        """Count rows that a shard throttled."""
        self.throttled_records += records

    def mispredicted(self, entries: int) -> None:
        """Count entries that were stored in another shard than their lane's."""
        self.shard_mispredictions += entries

    def note_error(self, error: str) -> None:
        """Note why Kinesis refused entries or a request, or did not answer."""
        self.last_error = error

    def all_is_well(self) -> None:
        """Note that a whole request was stored."""
        self.last_error = ""

    def request_ended(self, body_bytes: int, row_ends: npt.NDArray[np.int32], seconds: float, *, split: bool) -> None:
        """Count a request that was answered or given up.

        ``row_ends``: for each entry the number of rows up to its end.  ``split``: rows were split into several entries.
        """
        entries = len(row_ends)
        self.request_seconds.observe(seconds)
        self.request_bytes.observe(body_bytes)
        self.request_records.observe(entries)
        if row_ends[-1] == entries and not split:
            self.user_records.observe(1, entries)
        else:
            records = row_ends.copy()
            records[1:] -= row_ends[:-1]
            self.user_records.observe_each(records)
