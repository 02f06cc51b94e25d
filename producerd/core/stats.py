"""StreamStats: the plain counters that a Pipeline adds to, once a batch and never once a record.

``ingested = delivered + failed + discarded + queued`` holds whenever nobody is inside the pipeline.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

ATTEMPT_BOUNDS: Final = (1, 2, 3, 5, 10, 20, 50)
"""Sends until a record was stored: at most so many.  Beyond the last one the place is 0."""


@dataclass(slots=True)
class StreamStats:
    """Totals since the stream was opened.  Records unless the name says bytes or requests."""

    ingest_records: int = 0
    ingest_bytes: int = 0
    delivered_records: int = 0
    failed_records: Counter[str] = field(default_factory=Counter)  # by code
    discarded_records: Counter[str] = field(default_factory=Counter)  # by reason: disconnected, returned, abandoned
    record_errors: Counter[str] = field(default_factory=Counter)  # by code: each failed send of each record
    attempts: Counter[int] = field(default_factory=Counter)  # records stored, by the bound of ATTEMPT_BOUNDS
    attempts_sum: int = 0
    retried_records: int = 0
    throttled_records: int = 0
    possible_duplicate_records: Counter[str] = field(default_factory=Counter)  # by cause: spans.MAYBE_CAUSES
    shard_mispredictions: int = 0
    shard_map_refreshes: Counter[str] = field(default_factory=Counter)  # by result: ok, failed
    put_requests: Counter[str] = field(default_factory=Counter)  # by result: ok, partial, failed
    flushes: Counter[str] = field(default_factory=Counter)  # by trigger: size, linger, flush, pressure, drain
    last_error: str = ""  # empty again once a request was stored whole

    def stored_after(self, attempts: int, records: int) -> None:
        """Records were stored with their ``attempts``-th send."""
        self.attempts_sum += attempts * records
        self.attempts[next((bound for bound in ATTEMPT_BOUNDS if attempts <= bound), 0)] += records
