"""The settings of a stream that the core needs, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class EntryRules:
    """The rules by which rows become entries.  Sizes are in bytes and count data + keys, as Kinesis does.

    ``per_key``: a request has at most one aggregate of each lane.
    """

    aggregate: bool
    aggregate_max_bytes: int
    aggregate_max_records: int
    request_max_records: int
    request_max_bytes: int
    per_key: bool = False


@dataclass(frozen=True, slots=True)
class PipelineRules:
    """The rules of one stream's pipeline.  Durations are in seconds, sizes in bytes.

    ``inf`` as ``record_ttl_seconds`` or ``first_contact_timeout_seconds`` keeps rows without a time limit.
    ``entries.per_key`` is the setting ``ordering = "per_key"``.
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
    wire_format: str = "auto"
