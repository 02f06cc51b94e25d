"""What Prometheus scrapes, rendered from one snapshot, so that its sums hold.

``ingest = delivered + failed + discarded + queued`` at every scrape.  Labels are the stream and closed enumerations;
every label set of a stream exists from its first scrape on.  The only import of prometheus_client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from producerd import __version__
from producerd.core.retry import HealthState
from producerd.core.sender import Cause
from producerd.core.spans import MAYBE_CAUSES
from producerd.core.stats import ATTEMPT_BOUNDS
from producerd.errors import Code
from producerd.runtime.stream import Stream

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
WAIT_BUCKETS_SECONDS: Final = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0)
FAILURE_REASONS: Final = (
    Code.RECORD_TOO_LARGE,
    Code.RECORD_INVALID,
    Code.RESULT_COUNT,
    Code.STREAM_NOT_FOUND,
    Code.ACCESS_DENIED,
    Code.CREDENTIALS,
    Code.KMS,
    Code.SHARD_MAP_MISSING,
    Code.EXPIRED,
    Code.THROTTLED,
    Code.PREDECESSOR_FAILED,
    Code.INTERNAL,
)
ERROR_CODES: Final = (
    Code.THROTTLED,
    Code.SERVICE_FAULT,
    Code.UNREACHABLE,
    Code.RESULT_COUNT,
    Code.RECORD_INVALID,
    Code.STREAM_NOT_FOUND,
    Code.ACCESS_DENIED,
    Code.CREDENTIALS,
    Code.KMS,
    Code.INTERNAL,
)
"""Everything that `retry.meaning_of` gives."""
DISCARD_REASONS: Final = ("disconnected", "returned", "abandoned")
FLUSH_TRIGGERS: Final = ("size", "linger", "flush", "pressure", "drain")
PUT_RESULTS: Final = ("ok", "partial", "failed")
MAP_RESULTS: Final = ("ok", "failed")
HOLDING_CAUSES: Final = get_args(Cause)
REJECT_REASONS: Final = (Code.RECORD_TOO_LARGE, Code.RECORD_INVALID)


@dataclass(slots=True)
class WaitHistogram:
    """How long callers waited for room; kept by stream, outside the gate, which only lists its waits."""

    counts: list[int]
    sum_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.sum_seconds += seconds
        place = next((i for i, bound in enumerate(WAIT_BUCKETS_SECONDS) if seconds <= bound), len(WAIT_BUCKETS_SECONDS))
        self.counts[place] += 1

    def buckets(self) -> list[tuple[str, float]]:
        total, buckets = 0, []
        for bound, here in zip((*map(str, WAIT_BUCKETS_SECONDS), "+Inf"), self.counts, strict=True):
            total += here
            buckets.append((bound, float(total)))
        return buckets


class Metrics:
    """Renders the node's metrics.  Called on the loop thread, where nothing moves meanwhile."""

    def __init__(self) -> None:
        self._waits: dict[str, WaitHistogram] = {}

    def render(self, streams: Iterable[Stream], *, ready: bool, connections: int, now: float) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families(list(self._families(list(streams), ready, connections, now))))
        return generate_latest(registry)

    def _families(self, streams: list[Stream], ready: bool, connections: int, now: float) -> Iterator[Metric]:
        names = {stream.name for stream in streams}
        self._waits = {name: histogram for name, histogram in self._waits.items() if name in names}
        info = GaugeMetricFamily("producerd_build_info", "Always 1; the version is in the label.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        yield GaugeMetricFamily("producerd_ready", "1 while the socket accepts and does not drain.", float(ready))
        yield GaugeMetricFamily("producerd_client_connections", "Client connections.", float(connections))
        yield from _per_stream(streams, now)
        for name, text, labels in _LABELLED:
            family = CounterMetricFamily(name, text, labels=["stream", labels[0]])
            for stream in streams:
                counted = _counts(stream, name)
                for value in dict.fromkeys((*labels[1], *counted)):
                    family.add_metric([stream.name, value], counted.get(value, 0))
            yield family
        waits = HistogramMetricFamily(
            "producerd_backpressure_wait_seconds", "How long a frame that had to wait did.", labels=["stream"]
        )
        attempts = HistogramMetricFamily(
            "producerd_record_attempts", "Sends until a record was stored.", labels=["stream"]
        )
        for stream in streams:
            attempts.add_metric([stream.name], *_attempts(stream))
            histogram = self._waits_of(stream)
            waits.add_metric([stream.name], histogram.buckets(), histogram.sum_seconds)
        yield waits
        yield attempts

    def _waits_of(self, stream: Stream) -> WaitHistogram:
        histogram = self._waits.setdefault(stream.name, WaitHistogram([0] * (len(WAIT_BUCKETS_SECONDS) + 1)))
        while stream.gate.waits_seconds:
            histogram.add(stream.gate.waits_seconds.popleft())
        return histogram


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._metrics = families

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _per_stream(streams: list[Stream], now: float) -> Iterator[Metric]:
    for name, text, kind, read in _PLAIN:
        family = kind(f"producerd_{name}", text, labels=["stream"])
        for stream in streams:
            family.add_metric([stream.name], read(stream))
        yield family
    for name, text, kind, read_at in _OF_A_TIME:
        family = kind(f"producerd_{name}", text, labels=["stream"])
        for stream in streams:
            family.add_metric([stream.name], read_at(stream, now))
        yield family


_PLAIN: Final[tuple[tuple[str, str, Any, Callable[[Stream], float]], ...]] = (
    ("ingest_records", "Records accepted.", CounterMetricFamily, lambda s: s.pipeline.stats.ingest_records),
    ("ingest_bytes", "Charged bytes accepted.", CounterMetricFamily, lambda s: s.pipeline.stats.ingest_bytes),
    ("delivered_records", "Records stored.", CounterMetricFamily, lambda s: s.pipeline.stats.delivered_records),
    (
        "record_retries",
        "Sends beyond a record's first.",
        CounterMetricFamily,
        lambda s: s.pipeline.stats.retried_records,
    ),
    (
        "shard_mispredictions",
        "Entries stored in another shard than predicted.",
        CounterMetricFamily,
        lambda s: s.pipeline.stats.shard_mispredictions,
    ),
    (
        "shards_open",
        "Open shards, as the newest list has them.",
        GaugeMetricFamily,
        lambda s: len(s.pipeline.shard_map or ()),
    ),
    (
        "record_rate_bound_seconds",
        "Time in which some caller waited, as shards took no more records a second, but more bytes.",
        CounterMetricFamily,
        lambda s: s.record_rate_bound_seconds,
    ),
    (
        "stream_up",
        "0 while the service refuses the stream as a whole.",
        GaugeMetricFamily,
        lambda s: s.pipeline.health.state not in (HealthState.SUSPECT, HealthState.BROKEN),
    ),
    ("queue_records", "Records accepted and not settled.", GaugeMetricFamily, lambda s: s.pipeline.queued_records),
    ("queue_bytes", "Charged bytes taken on.", GaugeMetricFamily, lambda s: s.budget.used_bytes),
    ("queue_limit_records", "Setting queue_limit.", GaugeMetricFamily, lambda s: s.budget.limit_records),
    ("queue_limit_bytes", "Setting queue_limit_bytes.", GaugeMetricFamily, lambda s: s.budget.limit_bytes),
    ("queue_peak_records", "Most records ever taken on.", GaugeMetricFamily, lambda s: s.budget.peak_records),
    ("queue_peak_bytes", "Most charged bytes ever taken on.", GaugeMetricFamily, lambda s: s.budget.peak_bytes),
    ("backpressure_blocked_clients", "Callers that wait.", GaugeMetricFamily, lambda s: s.gate.blocked_callers),
    ("inflight_requests", "PutRecords unanswered.", GaugeMetricFamily, lambda s: s.pipeline.requests_in_flight),
)
_OF_A_TIME: Final[tuple[tuple[str, str, Any, Callable[[Stream, float], float]], ...]] = (
    (
        "queue_oldest_record_age_seconds",
        "Since the oldest frame with records left was accepted.",
        GaugeMetricFamily,
        lambda s, now: s.pipeline.oldest_seconds(now),
    ),
    (
        "backpressure_active_seconds",
        "Time in which some caller waited for room.",
        CounterMetricFamily,
        lambda s, now: s.gate.active_seconds(now),
    ),
    (
        "shards_backing_off",
        "Shards that are sent less than before, as they throttled.",
        GaugeMetricFamily,
        lambda s, now: s.pipeline.lanes.backing_off(now),
    ),
    (
        "shard_utilization_max_ratio",
        "What the busiest shard stored of late, of its 1 MiB/s or 1,000 records/s.",
        GaugeMetricFamily,
        lambda s, now: s.pipeline.lanes.most_used(now),
    ),
)
_LABELLED: Final = (
    ("producerd_failed_records", "Records that ended not stored, or unknown.", ("reason", FAILURE_REASONS)),
    ("producerd_discarded_records", "Records whose caller is gone, or got them back.", ("reason", DISCARD_REASONS)),
    ("producerd_ingest_rejected_records", "Records not accepted: bad rows.", ("reason", REJECT_REASONS)),
    ("producerd_record_errors", "Sends of a record that failed, by what the service said.", ("code", ERROR_CODES)),
    ("producerd_shard_map_refreshes", "Readings of the list of shards.", ("result", MAP_RESULTS)),
    ("producerd_flushes", "Batches sealed, by what sealed them.", ("trigger", FLUSH_TRIGGERS)),
    ("producerd_put_requests", "PutRecords by result.", ("result", PUT_RESULTS)),
    (
        "producerd_possible_duplicate_records",
        "Records stored that an earlier attempt may have stored too.",
        ("cause", MAYBE_CAUSES[1:]),
    ),
    (
        "producerd_backpressure_cause_seconds",
        "Time in which some caller waited for room, by what held the queue.",
        ("cause", HOLDING_CAUSES),
    ),
)


def _attempts(stream: Stream) -> tuple[list[tuple[str, float]], float]:
    """The buckets, and the sum of all sends: a record's first and those that `record_retries` counts."""
    stats = stream.pipeline.stats
    total, buckets = 0, []
    for bound in ATTEMPT_BOUNDS:
        total += stats.attempts[bound]
        buckets.append((str(float(bound)), float(total)))
    buckets.append(("+Inf", float(total + stats.attempts[0])))
    return buckets, float(stats.attempts_sum)


def _counts(stream: Stream, name: str) -> Mapping[str, float]:
    stats = stream.pipeline.stats
    counts: dict[str, Mapping[str, float]] = {
        "producerd_failed_records": stats.failed_records,
        "producerd_discarded_records": stats.discarded_records,
        "producerd_ingest_rejected_records": stream.rejected_records,
        "producerd_record_errors": stats.record_errors,
        "producerd_shard_map_refreshes": stats.shard_map_refreshes,
        "producerd_flushes": stats.flushes,
        "producerd_put_requests": stats.put_requests,
        "producerd_possible_duplicate_records": stats.possible_duplicate_records,
        "producerd_backpressure_cause_seconds": stream.cause_seconds,
    }
    return counts[name]
