"""The settings of a stream that the core needs, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class EntryRules:
    """How rows become entries.  Sizes count data + keys, as the service does.

    ``per_key``: a request has at most one aggregate of a lane.
    """

    aggregate: bool
    aggregate_max_bytes: int
    aggregate_max_records: int
    request_max_records: int
    request_max_bytes: int
    per_key: bool = False


@dataclass(frozen=True, slots=True)
class PipelineRules:
    """Durations in seconds, sizes in bytes.

    ``record_ttl_seconds``, ``first_contact_timeout_seconds``: ``inf`` keeps rows for ever.  ``entries.per_key`` is
    `ordering = "per_key"`.
    """

    entries: EntryRules
    linger_seconds: float
    max_in_flight_requests: int
    max_in_flight_bytes: int
    shard_map_wait_seconds: float
    permanent_error_grace_seconds: float
    first_contact_timeout_seconds: float = inf
    request_timeout_seconds: float = 6.0
    record_ttl_seconds: float = inf
    fail_if_throttled: bool = False
    shard_rate_fraction: float = 1.0
