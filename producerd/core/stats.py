"""StreamStats: the plain counters that a Pipeline adds to: once a request, a frame or a span, never once a record.

``ingested = delivered + failed + discarded + queued`` holds whenever nobody is inside the pipeline.
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
"""Sends until a record was stored."""
DELIVERY_SECONDS_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
REQUEST_SECONDS_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
REQUEST_BYTES_BOUNDS: Final = tuple(kib * 1024 for kib in (1, 4, 16, 64, 256, 512, 1024, 2048, 5120, 15360))
REQUEST_RECORDS_BOUNDS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500)
USER_RECORDS_BOUNDS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000)


class Histogram:
    """How many values were at most each of the bounds, and their sum.

    ``counts``: of each bound alone, and at the end of what is beyond the last one.
    """

    __slots__ = ("_array", "bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._array = np.array(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0

    def copy(self) -> Histogram:
        """As it is now."""
        other = Histogram(self.bounds)
        other.counts, other.sum = self.counts.copy(), self.sum
        return other

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def add_each(self, values: npt.NDArray[np.integer[Any]]) -> None:
        """The same for each of many values."""
        for place, times in enumerate(np.bincount(np.searchsorted(self._array, values)).tolist()):
            self.counts[place] += times
        self.sum += int(values.sum())


@dataclass(slots=True)
class StreamStats:
    """Totals since the stream was opened.  Records unless the name says bytes, seconds or requests."""

    ingest_records: int = 0
    ingest_bytes: int = 0
    delivered_records: int = 0
    delivered_bytes: int = 0  # key + data
    delivered_at: float | None = None  # when records were stored last
    delivery_seconds: Histogram = field(default_factory=lambda: Histogram(DELIVERY_SECONDS_BOUNDS))
    failed_records: Counter[str] = field(default_factory=Counter)  # by code
    discarded_records: Counter[str] = field(default_factory=Counter)  # by reason: disconnected, returned, abandoned
    record_errors: Counter[str] = field(default_factory=Counter)  # by code: each failed send of each record
    attempts: Histogram = field(default_factory=lambda: Histogram(ATTEMPT_BOUNDS))  # of records that were stored
    retried_records: int = 0
    throttled_records: int = 0
    possible_duplicate_records: Counter[str] = field(default_factory=Counter)  # copies, by cause: spans.MAYBE_CAUSES
    shard_mispredictions: int = 0
    shard_map_refreshes: Counter[str] = field(default_factory=Counter)  # by result: ok, failed
    put_requests: Counter[str] = field(default_factory=Counter)  # by result: ok, partial, failed
    request_seconds: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS_BOUNDS))
    request_bytes: Histogram = field(default_factory=lambda: Histogram(REQUEST_BYTES_BOUNDS))
    request_records: Histogram = field(default_factory=lambda: Histogram(REQUEST_RECORDS_BOUNDS))
    user_records: Histogram = field(default_factory=lambda: Histogram(USER_RECORDS_BOUNDS))  # in a Kinesis record
    flushes: Counter[str] = field(default_factory=Counter)  # by trigger: size, linger, flush, pressure, drain
    last_error: str = ""  # empty again once a request was stored whole

    # ---- one verb for each thing that happens

    def accepted(self, records: int, bytes_: int) -> None:
        """A frame was accepted."""
        self.ingest_records += records
        self.ingest_bytes += bytes_

    def flushed(self, trigger: str) -> None:
        """A batch was sealed."""
        self.flushes[trigger] += 1

    def delivered(self, records: int, bytes_: int, now: float) -> None:
        """Records were stored."""
        self.delivered_records += records
        self.delivered_bytes += bytes_
        self.delivered_at = now

    def retried(self, records: int) -> None:
        """Records are sent again."""
        self.retried_records += records

    def throttled(self, records: int) -> None:
        """A shard throttled records."""
        self.throttled_records += records

    def mispredicted(self, entries: int) -> None:
        """Another shard than their lane's stored entries."""
        self.shard_mispredictions += entries

    def failed(self, error: str) -> None:
        """The service refused entries or a request, or did not answer."""
        self.last_error = error

    def all_is_well(self) -> None:
        """A request was stored whole."""
        self.last_error = ""

    def request_ended(self, body_bytes: int, row_ends: npt.NDArray[np.int32], seconds: float, *, split: bool) -> None:
        """A request that was sent has its answer, or has none and was given up.

        ``row_ends``: for each entry the number of rows up to its end.  ``split``: rows were split into several entries.
        """
        entries = len(row_ends)
        self.request_seconds.add(seconds)
        self.request_bytes.add(body_bytes)
        self.request_records.add(entries)
        if row_ends[-1] == entries and not split:
            self.user_records.add(1, entries)
        else:
            records = row_ends.copy()
            records[1:] -= row_ends[:-1]
            self.user_records.add_each(records)
