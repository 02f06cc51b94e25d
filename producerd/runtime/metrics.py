"""What Prometheus scrapes, so that its sums hold.

``ingested = delivered + failed + discarded + queued`` at every scrape: its numbers are read in one go on the loop
thread, where nothing moves meanwhile.  Labels are the stream and closed enumerations; every label set of a stream
exists, at 0, from the start where it has settings, else from when it is opened.  `NODE_FAMILIES` and `STREAM_FAMILIES`
are all there is; docs/operations.md has the same list.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from math import inf
from typing import Final, Literal, NamedTuple, TypeVar, get_args

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric

from producerd import __version__
from producerd.config import Config
from producerd.config.text import as_toml
from producerd.core.holding import Cause
from producerd.core.rows.job import MAYBE_CAUSES
from producerd.core.stats import Histogram
from producerd.errors import Code
from producerd.runtime.session import DISCONNECT_REASONS
from producerd.runtime.stream import Stream

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
PREFIX: Final = "producerd_"
FAILURE_REASONS: Final = (
    Code.RECORD_TOO_LARGE,
    Code.RECORD_INVALID,
    Code.RESULT_COUNT,
    Code.STREAM_NOT_FOUND,
    Code.ACCESS_DENIED,
    Code.CREDENTIALS,
    Code.KMS,
    Code.UNREACHABLE,
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
REJECT_REASONS: Final = (Code.RECORD_TOO_LARGE, Code.RECORD_INVALID, Code.FRAME_REFUSED)
STATES: Final = ("starting", "serving", "draining", "stopped")

LAG_SECONDS_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""From 5 ms on: the loop's timers keep whole milliseconds."""
LAG_LOOK_SECONDS: Final = 0.25

S = TypeVar("S")
Value = float | Histogram | Mapping[str, float]
Snapshot = list[tuple["Family", list[tuple[dict[str, str], Value]]]]


class Moment(NamedTuple):
    """When it is: on the loop's clock, and since 1970."""

    now: float
    unix: float


class Node(NamedTuple):
    """What is not of one stream."""

    state: str
    is_ready: bool
    connections: int
    disconnects: Mapping[str, float]
    loop_lag: Histogram
    config_hash: str
    reload_succeeded: bool
    reloaded_at: float
    memory_limit_bytes: float


@dataclass(frozen=True, slots=True)
class Family:
    """One metric; its name goes without ``producerd_``.

    ``label``: beside the stream; ``values``: all that it may have, where that is known beforehand.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    label: str = ""
    values: tuple[str, ...] = ()


class LoopLag:
    """How late the event loop is: of a timer, which is always set, by how much it comes too late."""

    def __init__(self) -> None:
        self.seconds = Histogram(LAG_SECONDS_BOUNDS)
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on, until `stop`."""
        due = time.monotonic() + LAG_LOOK_SECONDS  # the loop's own clock stands still while it is at work

        def look() -> None:
            self.seconds.add(max(0.0, time.monotonic() - due))
            self.watch(loop)

        self._timer = loop.call_later(LAG_LOOK_SECONDS, look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Metrics:
    """The node's metrics, and those of its numbers that nobody else keeps."""

    def __init__(self, config: Config, memory_limit_bytes: int | None = None) -> None:
        self.reload(config, memory_limit_bytes)
        self.disconnects: Counter[str] = Counter()  # by `Session.ended_as`
        self.loop_lag = LoopLag()

    def reload(self, config: Config, memory_limit_bytes: int | None) -> None:
        """These settings are in effect."""
        self.config_hash = sha256(as_toml(config).encode()).hexdigest()[:16]
        self._memory_limit_bytes = inf if memory_limit_bytes is None else memory_limit_bytes
        self.reload_succeeded, self._reloaded_at = True, time.time()
        # A stream that has settings is told of before anybody opens it, by one that nobody ever will.
        self._unopened = [Stream(name, config.stream(name), 1, 1) for name in config.streams]

    def reload_failed(self) -> None:
        """Settings were read and refused."""
        self.reload_succeeded = False

    def snapshot(
        self, streams: Iterable[Stream], *, state: str, is_ready: bool, connections: int, now: float
    ) -> Snapshot:
        """All numbers of one moment.  Called on the loop thread, where nothing moves meanwhile."""
        node = Node(
            state,
            is_ready,
            connections,
            self.disconnects,
            self.loop_lag.seconds,
            self.config_hash,
            self.reload_succeeded,
            self._reloaded_at,
            self._memory_limit_bytes,
        )
        moment = Moment(now, time.time())
        shown = {stream.name: stream for stream in (*self._unopened, *streams)}
        of_node: Snapshot = [(family, [({}, _frozen(read(node)))]) for family, read in NODE_FAMILIES.items()]
        of_streams: Snapshot = [
            (family, [({"stream": name}, _frozen(read_of(stream, moment))) for name, stream in shown.items()])
            for family, read_of in STREAM_FAMILIES.items()
        ]
        return [*of_node, *of_streams]


def text(snapshot: Snapshot) -> bytes:
    """What Prometheus reads.  Of 64 streams it takes 0.1 s: in a thread, as the loop would stand still."""
    return generate_latest(_Told([*(_metric(family, told) for family, told in snapshot), *_PROCESS.collect()]))


_PROCESS: Final = ProcessCollector(registry=None)
"""Memory, CPU and open files of this process, by the names that all exporters have for them."""


class _Told:
    """As much of a registry as the library asks for."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def _metric(family: Family, told: list[tuple[dict[str, str], Value]]) -> Metric:
    name = PREFIX + family.name
    metric = Metric(name.removesuffix("_total") if family.kind == "counter" else name, family.meaning, family.kind)
    for labels, value in told:
        if isinstance(value, Histogram):
            totals = list(accumulate(value.counts))
            for bound, total in zip((*map(float, value.bounds), "+Inf"), totals, strict=True):
                metric.add_sample(f"{name}_bucket", {**labels, "le": str(bound)}, total)
            metric.add_sample(f"{name}_sum", labels, value.sum)
            metric.add_sample(f"{name}_count", labels, totals[-1])
        elif isinstance(value, Mapping):
            # What is not foreseen is shown all the same, so that sums hold.
            for label in dict.fromkeys((*family.values, *value)):
                metric.add_sample(name, {**labels, family.label: label}, value.get(label, 0))
        else:
            metric.add_sample(name, labels, value)
    return metric


def _frozen(value: Value) -> Value:
    """As it is now, whatever is added meanwhile."""
    if isinstance(value, Histogram):
        return value.copy()
    return dict(value) if isinstance(value, Mapping) else value


def _delivered_at(stream: Stream, at: Moment) -> float:
    delivered_at = stream.pipeline.stats.delivered_at
    return 0.0 if delivered_at is None else round(at.unix - (at.now - delivered_at), 3)


NODE_FAMILIES: Final[dict[Family, Callable[[Node], Value]]] = {
    Family("build_info", "gauge", "Always 1; the version is in the label.", "version"): lambda _: {__version__: 1},
    Family("config_info", "gauge", "Always 1; nodes with the same settings have the same hash.", "hash"): (
        lambda node: {node.config_hash: 1}
    ),
    Family(
        "config_last_reload_successful", "gauge", "1 if settings held when they were read last, at the start or later."
    ): (lambda node: node.reload_succeeded),
    Family("config_last_reload_success_timestamp_seconds", "gauge", "When settings were read that held."): (
        lambda node: node.reloaded_at
    ),
    Family("memory_limit_bytes", "gauge", "Memory limit of the daemon's cgroup; +Inf where there is none."): (
        lambda node: node.memory_limit_bytes
    ),
    Family("ready", "gauge", "1 while clients can connect and it does not drain."): lambda node: node.is_ready,
    Family("state", "gauge", "1 for the state that the daemon is in.", "state", STATES): lambda node: {node.state: 1},
    Family("event_loop_lag_seconds", "histogram", "How late timers of the event loop were."): (
        lambda node: node.loop_lag
    ),
    Family("client_connections", "gauge", "Client connections."): lambda node: node.connections,
    Family(
        "client_disconnects_total",
        "counter",
        "Connections that ended. closed: owed nothing; lost: owed something; late: HELLO or a body did not come.",
        "reason",
        DISCONNECT_REASONS,
    ): lambda node: node.disconnects,
}

STREAM_FAMILIES: Final[dict[Family, Callable[[Stream, Moment], Value]]] = {
    Family("ingest_records_total", "counter", "Records accepted."): lambda s, _: s.pipeline.stats.ingest_records,
    Family(
        "ingest_bytes_total", "counter", "Bytes accepted, as the queue counts them: key, data, hash key and 32 more."
    ): (lambda s, _: s.pipeline.stats.ingest_bytes),
    Family(
        "ingest_rejected_records_total",
        "counter",
        "Records not accepted: bad rows; FRAME_REFUSED: good ones of a frame that its bad rows refused.",
        "reason",
        REJECT_REASONS,
    ): lambda s, _: s.rejected_records,
    Family("queue_records", "gauge", "Records accepted and not settled."): lambda s, _: s.pipeline.queued_records,
    Family("queue_bytes", "gauge", "Bytes taken on, as the queue counts them."): lambda s, _: s.budget.used_bytes,
    Family("queue_limit_records", "gauge", "Setting queue_limit."): lambda s, _: s.budget.limit_records,
    Family("queue_limit_bytes", "gauge", "Setting queue_limit_bytes."): lambda s, _: s.budget.limit_bytes,
    Family("queue_peak_records", "gauge", "Most records ever taken on."): lambda s, _: s.budget.peak_records,
    Family("queue_peak_bytes", "gauge", "Most bytes ever taken on."): lambda s, _: s.budget.peak_bytes,
    Family("queue_oldest_record_age_seconds", "gauge", "Since the oldest frame with records left was accepted."): (
        lambda s, at: s.pipeline.oldest_seconds(at.now)
    ),
    Family(
        "backpressure_blocked_clients", "gauge", "Callers that wait for room, or for answers as their window is full."
    ): (lambda s, _: s.gate.blocked_callers),
    Family(
        "backpressure_active_seconds_total",
        "counter",
        "Time in which some caller could not send: it waited for room, or its window was full.",
    ): (lambda s, at: s.gate.active_seconds(at.now)),
    Family("backpressure_wait_seconds", "histogram", "How long a frame that had to wait for room did."): (
        lambda s, _: s.gate.wait_seconds
    ),
    Family(
        "backpressure_cause_seconds_total",
        "counter",
        "Of that time, by what held the queue.",
        "cause",
        get_args(Cause),
    ): lambda s, _: s.cause_seconds,
    Family(
        "record_rate_bound_seconds_total",
        "counter",
        "Of that time, while shards took no more records a second, but more bytes: aggregation would help.",
    ): lambda s, _: s.record_rate_bound_seconds,
    Family("flushes_total", "counter", "Batches sealed, by what sealed them.", "trigger", FLUSH_TRIGGERS): (
        lambda s, _: s.pipeline.stats.flushes
    ),
    Family(
        "put_requests_total",
        "counter",
        "PutRecords. partial: some entries were refused; failed: no answer that says what was stored.",
        "result",
        PUT_RESULTS,
    ): lambda s, _: s.pipeline.stats.put_requests,
    Family("put_request_duration_seconds", "histogram", "From sending a PutRecords to its answer or its failure."): (
        lambda s, _: s.pipeline.stats.request_seconds
    ),
    Family("put_request_size_bytes", "histogram", "Body of a PutRecords: records in base64, and JSON around them."): (
        lambda s, _: s.pipeline.stats.request_bytes
    ),
    Family("put_request_records", "histogram", "Kinesis records in a PutRecords."): (
        lambda s, _: s.pipeline.stats.request_records
    ),
    Family(
        "aggregation_user_records", "histogram", "Records in a Kinesis record that was sent; 1 without aggregation."
    ): (lambda s, _: s.pipeline.stats.user_records),
    Family("inflight_requests", "gauge", "PutRecords on their way."): lambda s, _: s.pipeline.requests_in_flight,
    Family("delivered_records_total", "counter", "Records stored."): lambda s, _: s.pipeline.stats.delivered_records,
    Family("delivered_bytes_total", "counter", "Key and data of the records stored."): (
        lambda s, _: s.pipeline.stats.delivered_bytes
    ),
    Family("delivery_latency_seconds", "histogram", "From accepting a record to its being stored."): (
        lambda s, _: s.pipeline.stats.delivery_seconds
    ),
    Family("last_delivery_timestamp_seconds", "gauge", "When records were stored last; 0 if never."): _delivered_at,
    Family(
        "record_errors_total",
        "counter",
        "Sends of a record that failed, by what the service said.",
        "code",
        ERROR_CODES,
    ): lambda s, _: s.pipeline.stats.record_errors,
    Family("record_retries_total", "counter", "Sends beyond a record's first."): (
        lambda s, _: s.pipeline.stats.retried_records
    ),
    Family("record_attempts", "histogram", "Sends until a record was stored."): lambda s, _: s.pipeline.stats.attempts,
    Family(
        "failed_records_total", "counter", "Records that ended not stored, or unknown.", "reason", FAILURE_REASONS
    ): (lambda s, _: s.pipeline.stats.failed_records),
    Family(
        "discarded_records_total",
        "counter",
        "Records whose caller is gone, or got them back. abandoned: of no caller, when a daemon stopped: lost.",
        "reason",
        DISCARD_REASONS,
    ): lambda s, _: s.pipeline.stats.discarded_records,
    Family(
        "possible_duplicate_records_total",
        "counter",
        "Copies of records that may be in the stream beyond one of each.",
        "cause",
        MAYBE_CAUSES[1:],
    ): lambda s, _: s.pipeline.stats.possible_duplicate_records,
    Family("stream_up", "gauge", "0 while the service refuses the stream as a whole, or nothing gets through."): (
        lambda s, _: s.is_up
    ),
    Family("stream_paused", "gauge", "1 while an operator has paused the stream."): lambda s, _: s.pipeline.paused,
    Family("shards_open", "gauge", "Open shards, as the newest list has them; 0 while there is none."): (
        lambda s, _: len(s.pipeline.shard_map or ())
    ),
    Family("shards_backing_off", "gauge", "Shards that are sent less than before, as they throttled."): (
        lambda s, at: s.pipeline.lanes.backing_off(at.now)
    ),
    Family(
        "shard_utilization_max_ratio",
        "gauge",
        "What the busiest shard stored of late, of its 1 MiB/s or 1,000 records/s.",
    ): lambda s, at: s.pipeline.lanes.most_used(at.now),
    Family("shard_map_refreshes_total", "counter", "Readings of the list of shards.", "result", MAP_RESULTS): (
        lambda s, _: s.pipeline.stats.shard_map_refreshes
    ),
    Family("credentials_expiry_timestamp_seconds", "gauge", "When the credentials end; 0 if they do not say."): (
        lambda s, _: (s.credentials and s.credentials.expires_at) or 0.0
    ),
    Family("shard_mispredictions_total", "counter", "Entries stored in another shard than the list said."): (
        lambda s, _: s.pipeline.stats.shard_mispredictions
    ),
}
