"""StreamStats: the plain counters that a Pipeline adds to, once a batch and never once a record.

``ingested = delivered + failed + discarded + queued`` holds whenever nobody is inside the pipeline.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class StreamStats:
    """Totals since the stream was opened.  Records unless the name says bytes or requests."""

    ingest_records: int = 0
    ingest_bytes: int = 0
    delivered_records: int = 0
    failed_records: Counter[str] = field(default_factory=Counter)  # by code
    discarded_records: Counter[str] = field(default_factory=Counter)  # by reason: disconnected, returned
    retried_records: int = 0
    throttled_records: int = 0
    possible_duplicate_records: int = 0
    shard_mispredictions: int = 0
    put_requests: Counter[str] = field(default_factory=Counter)  # by result: ok, partial, failed
    flushes: Counter[str] = field(default_factory=Counter)  # by trigger: size, linger, flush, pressure, drain
    last_error: str = ""
