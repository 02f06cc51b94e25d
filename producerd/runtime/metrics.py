"""The metrics that Prometheus scrapes, taken in one moment, so that their sums agree.

At every scrape, ``ingested = delivered + failed + discarded + queued``, because the loop thread reads all numbers
without a break, and nothing else changes them.

Labels are the stream and closed enumerations.  A stream of the configuration has every label set, at 0, from the start.
Another stream has them from its first stored record; until then it shares the label `NEVER_STORED`, because clients may
invent any number of names.  Its label, too, begins with no failure, even if records failed before (`_Birth`).
An open stream that a reload takes out of the configuration keeps its label.

A usual scrape has what the alerts, the dashboard and the sum above need, and one with ``collect=all`` has everything,
because a fleet pays for each series on each node.

`NODE_FAMILIES` and `STREAM_FAMILIES` define all metrics; the table in docs/operate/metrics.md is generated.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from math import inf
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, cast, get_args

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric

from producerd import __version__
from producerd.config import Config
from producerd.config.memory import needed_bytes
from producerd.config.text import as_toml
from producerd.core.holding import Cause, HeldBy
from producerd.core.rows.job import MAYBE_CAUSES
from producerd.core.stats import Histogram
from producerd.errors import Code
from producerd.runtime import logs
from producerd.runtime.log_lines import LOST_BECAUSE
from producerd.runtime.session import DISCONNECT_REASONS
from producerd.runtime.stream import Stream

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
"""Content type of the text that `text` returns."""
PREFIX: Final = "producerd_"
"""Beginning of every metric's name."""
NEVER_STORED: Final = "(never stored)"
"""Label of all streams together that stored no record and were never in the settings.  No stream can have this name."""
FAILURE_REASONS: Final = (
    Code.RECORD_TOO_LARGE,
    Code.RECORD_INVALID,
    Code.REQUEST_REFUSED,
    Code.PROXY_REFUSED,
    Code.RESULT_COUNT,
    Code.STREAM_NOT_FOUND,
    Code.ACCESS_DENIED,
    Code.CREDENTIALS,
    Code.CONFIGURATION,
    Code.KMS,
    Code.UNREACHABLE,
    Code.SHARD_MAP_MISSING,
    Code.EXPIRED,
    Code.THROTTLED,
    Code.PREDECESSOR_FAILED,
    Code.INTERNAL,
)
"""Codes with which a record can fail."""
ERROR_CODES: Final = (
    Code.THROTTLED,
    Code.SERVICE_FAULT,
    Code.UNREACHABLE,
    Code.RESULT_COUNT,
    Code.RECORD_INVALID,
    Code.RECORD_TOO_LARGE,
    Code.REQUEST_REFUSED,
    Code.PROXY_REFUSED,
    Code.STREAM_NOT_FOUND,
    Code.ACCESS_DENIED,
    Code.CREDENTIALS,
    Code.CONFIGURATION,
    Code.KMS,
    Code.INTERNAL,
)
"""Codes that `failures.meaning_of` returns."""
DISCARD_REASONS: Final = ("disconnected", "returned", "abandoned")
"""Reasons for which the daemon gives records up."""
FLUSH_TRIGGERS: Final = ("size", "linger", "flush", "pressure", "drain")
"""Reasons for which a batch is closed."""
PUT_RESULTS: Final = ("ok", "partial", "failed")
"""Results of a PutRecords."""
RESULTS: Final = ("ok", "failed")
"""Results of reading the list of shards, and of getting credentials."""
REJECT_REASONS: Final = (Code.RECORD_TOO_LARGE, Code.RECORD_INVALID, Code.CONFIGURATION, Code.FRAME_REFUSED)
"""Codes with which a record is not accepted."""
NOT_OPENED_REASONS: Final = (Code.NOT_AUTHORIZED, Code.STREAM_LIMIT, Code.STREAM_NOT_FOUND)
"""Codes with which a stream is not opened."""
STATES: Final = ("starting", "serving", "draining", "stopped")
"""The daemon's states, in the order of its life."""

BIRTH_SECONDS: Final = 120.0
"""Time for which a new label shows no failure: longer than between two scrapes, which are mostly a minute or less."""
DELIVERY_SECONDS: Final = (0.25, 1.0, 10.0, 60.0)
"""Bounds of the delivery's latency in each scrape: 60 s is the objective of the alerts."""
LAG_SECONDS_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Bounds of the loop's lag; they begin at 5 ms because the loop's timers have a resolution of 1 ms."""
LAG_LOOK_SECONDS: Final = 0.25
"""Time between two measurements of the loop's lag."""

S = TypeVar("S")
Value = float | Histogram | Mapping[str, float]
"""The value of a metric: a number, a histogram, or a number for each value of the metric's own label."""
Scrape = list[tuple["Family", list[tuple[dict[str, str], Value]]]]
"""Families with their values of one moment, each value with its labels."""


class Moment(NamedTuple):
    """A moment on the event loop's clock, and in seconds since 1970."""

    now: float
    unix: float


class NodeNumbers(NamedTuple):
    """The node's numbers of one moment, which belong to no single stream."""

    state: str
    is_ready: bool
    connections: int
    disconnects: Mapping[str, float]
    refused_opens: Mapping[str, float]
    loop_lag: Histogram
    config_hash: str
    reload_succeeded: bool
    reloaded_at: float
    memory_limit_bytes: float
    memory_needed_bytes: float
    clock_offset_seconds: float
    credential_refreshes: Mapping[str, float]
    lost_log_lines: Mapping[str, float]


class Services(Protocol):
    """The services that the daemon calls, as metrics see them."""

    @property
    def clock_offset_seconds(self) -> float: ...

    @property
    def credential_refreshes(self) -> Mapping[str, float]: ...


@dataclass(frozen=True, slots=True)
class Family:
    """One metric, whose name is given without the prefix ``producerd_``.

    ``label`` is its label in addition to the stream; ``values`` are the label's values that are known beforehand.
    ``together`` makes one value from several streams' values.

    ``is_usual``: a usual scrape has it, too.  ``usual``: what such a scrape has of it, where that is not all: bounds of
    a histogram, or values of the label that are shown before they occur.  Another value is shown once it has occurred.
    `increase()` does not see that first time, so no alert may need it.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    label: str = ""
    values: tuple[str, ...] = ()
    together: Callable[[Iterable[Any]], Any] = sum
    is_usual: bool = True
    usual: tuple[float | str, ...] | None = None


class LoopLag:
    """A histogram of the event loop's lag: by how many seconds a timer, which is always set, fires too late."""

    def __init__(self) -> None:
        self.seconds = Histogram(LAG_SECONDS_BOUNDS)
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure from now on, until `stop`."""
        due = time.monotonic() + LAG_LOOK_SECONDS  # loop.time() stands still while a callback runs

        def look() -> None:
            self.seconds.observe(max(0.0, time.monotonic() - due))
            self.watch(loop)

        self._timer = loop.call_later(LAG_LOOK_SECONDS, look)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()


class Metrics:
    """The node's metrics, and the numbers that no other object counts."""

    def __init__(self, config: Config, memory_limit_bytes: int | None = None, services: Services | None = None) -> None:
        self.reload(config, memory_limit_bytes)
        self._services = services
        self._births: dict[Stream, _Birth] = {}  # of the open streams that have their own label
        self._shared = _SharedLabel()
        self.disconnects: Counter[str] = Counter()  # by `Session.ended_as`
        self.refused_opens: Counter[str] = Counter()  # by code
        self.loop_lag = LoopLag()

    def reload(self, config: Config, memory_limit_bytes: int | None) -> None:
        """Take over settings that are now in effect."""
        self.config_hash = sha256(as_toml(config).encode()).hexdigest()[:16]
        self._memory_limit_bytes = inf if memory_limit_bytes is None else memory_limit_bytes
        self._memory_needed_bytes = needed_bytes(config).bytes
        self.reload_succeeded, self._reloaded_at = True, time.time()
        # A stream of the configuration is shown before a client opens it, by a stand-in that no client can open.
        shown = [*config.streams, *([NEVER_STORED] if config.node.streams_allowed == "any" else [])]
        self._unopened = [Stream(name, config.stream(name)) for name in shown]

    def reload_failed(self) -> None:
        """Note that new settings were read and refused."""
        self.reload_succeeded = False

    def snapshot(
        self, streams: Iterable[Stream], *, state: str, is_ready: bool, connections: int, now: float
    ) -> Scrape:
        """Return all numbers of one moment.  Call it on the loop thread, where nothing changes them meanwhile."""
        node = NodeNumbers(
            state=state,
            is_ready=is_ready,
            connections=connections,
            disconnects=self.disconnects,
            refused_opens=self.refused_opens,
            loop_lag=self.loop_lag.seconds,
            config_hash=self.config_hash,
            reload_succeeded=self.reload_succeeded,
            reloaded_at=self._reloaded_at,
            memory_limit_bytes=self._memory_limit_bytes,
            memory_needed_bytes=self._memory_needed_bytes,
            clock_offset_seconds=self._services.clock_offset_seconds if self._services else 0.0,
            credential_refreshes=self._services.credential_refreshes if self._services else {},
            lost_log_lines=logs.lost_lines(),
        )
        moment = Moment(now, time.time())
        shown = {stream.name: [stream] for stream in self._unopened}
        sharing: list[Stream] = []
        births = {}
        for stream in streams:
            if stream.name in shown:
                # A reload may take it out of the settings.  Its label then goes on: a birth would look like a restart,
                # and the shared label would count again what this one has shown.
                births[stream] = _Birth(stream, -inf)
                shown[stream.name] = [stream]
            elif stream in self._births or stream.stats.delivered_records:
                born = births[stream] = self._births.get(stream) or _Birth(stream, now)
                shown[stream.name] = [born.shown(stream, now)]
                if shown[stream.name] != [stream]:
                    sharing.append(stream)  # until its own label shows its numbers, so that the sums agree
            else:
                sharing.append(stream)
        self._births = births
        self._shared.look(sharing, moment)
        if sharing:
            shown[NEVER_STORED] = sharing
        of_node: Scrape = [(family, [({}, _frozen(read(node)))]) for family, read in NODE_FAMILIES.items()]
        of_streams: Scrape = [
            (
                family,
                [
                    (
                        {"stream": name},
                        _together(
                            [
                                *(read_of(stream, moment) for stream in several),
                                *(self._shared.left(family) if name == NEVER_STORED else ()),
                            ],
                            family.together,
                        ),
                    )
                    for name, several in shown.items()
                ],
            )
            for family, read_of in STREAM_FAMILIES.items()
        ]
        return [*of_node, *of_streams]


class _Birth:
    """The first `BIRTH_SECONDS` of the label of a stream that is not in the settings.

    Prometheus's `increase()` does not count what the first sample of a counter shows.  A stream that had failed records
    when its label was first shown is therefore shown without any for a time, to Prometheus and to other readers.
    """

    def __init__(self, stream: Stream, now: float) -> None:
        has_failed = stream.stats.failed_records.total()
        self._ends_at = now + BIRTH_SECONDS if has_failed else -inf

    def shown(self, stream: Stream, now: float) -> Stream:
        """Return the stream, or what is shown in its place."""
        return stream if now >= self._ends_at else Stream(stream.name, stream.settings)


class _SharedLabel:
    """The streams that share `NEVER_STORED`, and what the ones that left it had counted.

    The label keeps that.  Its counters would fall otherwise, and `increase()` would count again what remains.  Records
    that are queued go along with their stream, so that the sums agree.
    """

    def __init__(self) -> None:
        self._shown: dict[Stream, dict[Family, Value]] = {}
        self._left: dict[Family, Value] = {}

    def look(self, sharing: Iterable[Stream], at: Moment) -> None:
        """Note which streams share the label now.  Others have left it: they have their own label, or are forgotten."""
        counters = {family: read_of for family, read_of in STREAM_FAMILIES.items() if family.kind != "gauge"}
        counters[_INGEST] = lambda stream, _: stream.stats.ingest_records - stream.pipeline.queued_records
        before = self._shown
        self._shown = {
            stream: {family: _frozen(read_of(stream, at)) for family, read_of in counters.items()} for stream in sharing
        }
        for stream in before.keys() - self._shown.keys():
            for family, value in before[stream].items():
                self._left[family] = _together([value, *self.left(family)], sum)

    def left(self, family: Family) -> list[Value]:
        """Return what streams that left the label had counted when it was last shown, if there is any."""
        return [self._left[family]] if family in self._left else []


def text(snapshot: Scrape, *, everything: bool) -> bytes:
    """Return the snapshot in Prometheus's text format: what a usual scrape has, or everything.

    Call it in a thread: for 64 streams it needs 0.1 s of CPU, during which the loop could not serve clients.
    """
    return generate_latest(
        _MetricList(
            [
                *(
                    _metric(family, values, None if everything else family.usual)
                    for family, values in snapshot
                    if everything or family.is_usual
                ),
                *_PROCESS.collect(),
            ]
        )
    )


class OwnProcess(ProcessCollector):
    """Memory, CPU and open files of this process, under the names that all exporters use.

    It does not need `/proc/stat`, which systemd hides by ProcSubset=pid.  Without that file the library has no metrics.
    """

    def _boot_time(self) -> float:
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


_PROCESS: Final = OwnProcess(registry=None)


class _MetricList:
    """The part of a registry that `generate_latest` uses."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def _metric(
    family: Family, values: list[tuple[dict[str, str], Value]], usual: tuple[float | str, ...] | None
) -> Metric:
    """Return a metric, of which `usual` is shown, or all if that is None."""
    name = PREFIX + family.name
    # A histogram without buckets is a summary: Prometheus's text format demands the bucket +Inf of a histogram.
    kind = "summary" if family.kind == "histogram" and usual == () else family.kind
    metric = Metric(name.removesuffix("_total") if kind == "counter" else name, family.meaning, kind)
    for labels, value in values:
        if isinstance(value, Histogram):
            totals = list(accumulate(value.counts))
            for bound, total in zip((*map(float, value.bounds), "+Inf"), totals, strict=True):
                if usual is None or bound in usual or (usual and bound == "+Inf"):
                    metric.add_sample(f"{name}_bucket", {**labels, "le": str(bound)}, total)
            metric.add_sample(f"{name}_sum", labels, value.sum)
            metric.add_sample(f"{name}_count", labels, totals[-1])
        elif isinstance(value, Mapping):
            # An unforeseen value is shown as well, so that sums agree.
            foreseen = family.values if usual is None else map(str, usual)
            for label in dict.fromkeys((*foreseen, *value)):
                metric.add_sample(name, {**labels, family.label: label}, value.get(label, 0))
        else:
            metric.add_sample(name, labels, value)
    return metric


def _frozen(value: Value) -> Value:
    """Return a copy that later changes do not reach."""
    if isinstance(value, Histogram):
        return value.copy()
    return dict(value) if isinstance(value, Mapping) else value


def _together(values: Sequence[Value], of_numbers: Callable[[Iterable[Any]], Any]) -> Value:
    """Return one value for several streams, as a copy that later changes do not reach."""
    first, *others = values
    if isinstance(first, Histogram):
        total = first.copy()
        for other in cast("list[Histogram]", others):
            total.merge(other)
        return total
    if isinstance(first, Mapping):
        names = dict.fromkeys(name for value in cast("Sequence[Mapping[str, float]]", values) for name in value)
        return {name: of_numbers([value.get(name, 0) for value in values]) for name in names}  # type: ignore[union-attr]
    return of_numbers(values) if others else first


def _delivered_at(stream: Stream, at: Moment) -> float:
    delivered_at = stream.stats.delivered_at
    return 0.0 if delivered_at is None else round(at.unix - (at.now - delivered_at), 3)


NODE_FAMILIES: Final[dict[Family, Callable[[NodeNumbers], Value]]] = {
    Family("build_info", "gauge", "Always 1; the version is in the label.", "version"): lambda _: {__version__: 1},
    Family("config_info", "gauge", "Always 1; nodes with the same settings have the same hash.", "hash"): (
        lambda node: {node.config_hash: 1}
    ),
    Family("config_last_reload_successful", "gauge", "1 if the settings were valid when the daemon last read them."): (
        lambda node: node.reload_succeeded
    ),
    Family(
        "config_last_reload_success_timestamp_seconds",
        "gauge",
        "Unix time at which the daemon last read valid settings.",
    ): (lambda node: node.reloaded_at),
    Family("memory_limit_bytes", "gauge", "Memory limit of the daemon's cgroup; +Inf if there is none."): (
        lambda node: node.memory_limit_bytes
    ),
    Family("memory_needed_bytes", "gauge", "Most memory that the daemon should need: the sum of its limits."): (
        lambda node: node.memory_needed_bytes
    ),
    Family("ready", "gauge", "1 while clients can connect and the daemon does not drain."): lambda node: node.is_ready,
    Family("state", "gauge", "1 for the daemon's state, 0 for the others.", "state", STATES): lambda node: {
        node.state: 1
    },
    Family("event_loop_lag_seconds", "histogram", "Delay with which timers of the event loop fired."): (
        lambda node: node.loop_lag
    ),
    Family("client_connections", "gauge", "Open client connections."): lambda node: node.connections,
    Family(
        "client_disconnects_total",
        "counter",
        "Ended connections. closed: every frame was answered; lost: one was not; late: HELLO or a body was late.",
        "reason",
        DISCONNECT_REASONS,
    ): lambda node: node.disconnects,
    Family(
        "refused_opens_total",
        "counter",
        "Streams that the daemon did not open for a client: not allowed, too many, or no possible name.",
        "reason",
        NOT_OPENED_REASONS,
    ): lambda node: node.refused_opens,
    Family(
        "clock_offset_seconds",
        "gauge",
        "Seconds that the daemon adds to this machine's clock to sign requests; 0 unless a service refused its time.",
    ): lambda node: node.clock_offset_seconds,
    Family(
        "credential_refreshes_total",
        "counter",
        "Times that the daemon got credentials, or failed to.",
        "result",
        RESULTS,
    ): (lambda node: node.credential_refreshes),
    Family(
        "log_lines_lost_total",
        "counter",
        "Lines of the log that were not written. full: too many waited; failed: no reader, or the disk is full.",
        "reason",
        LOST_BECAUSE,
    ): lambda node: node.lost_log_lines,
}

_INGEST: Final = Family("ingest_records_total", "counter", "Records accepted into the queue.")
STREAM_FAMILIES: Final[dict[Family, Callable[[Stream, Moment], Value]]] = {
    _INGEST: lambda s, _: s.stats.ingest_records,
    Family(
        "ingest_bytes_total",
        "counter",
        "Bytes accepted into the queue: for each record its key, data, hash key and 32 more.",
    ): (lambda s, _: s.stats.ingest_bytes),
    Family(
        "ingest_rejected_records_total",
        "counter",
        "Records not accepted: bad rows. FRAME_REFUSED: valid records of a frame that its bad rows refused.",
        "reason",
        REJECT_REASONS,
    ): lambda s, _: s.rejected_records,
    Family(
        "refused_records_total",
        "counter",
        "Records of which nothing was taken: the whole stream is refused, or a record is larger than the queue may be. "
        "Each try counts.",
    ): lambda s, _: s.refused_records,
    Family(
        "left_out_records_total",
        "counter",
        "Records that no client sent, because its replay guard found that an earlier run had stored them.",
        is_usual=False,
    ): lambda s, _: s.left_out_records,
    Family("queue_records", "gauge", "Records accepted and not settled yet."): lambda s, _: s.pipeline.queued_records,
    Family("queue_bytes", "gauge", "Bytes granted and not settled yet, as the queue counts them."): lambda s, _: (
        s.budget.used_bytes
    ),
    Family("queue_limit_records", "gauge", "The setting queue_limit."): lambda s, _: s.budget.limit_records,
    Family("queue_limit_bytes", "gauge", "The setting queue_limit_bytes."): lambda s, _: s.budget.limit_bytes,
    Family(
        "queue_peak_records", "gauge", "Most records ever granted and not settled at one time.", is_usual=False
    ): lambda s, _: s.budget.peak_records,
    Family(
        "queue_peak_bytes", "gauge", "Most bytes ever granted and not settled at one time.", is_usual=False
    ): lambda s, _: s.budget.peak_bytes,
    Family(
        "queue_oldest_record_age_seconds", "gauge", "Age of the oldest frame that has unsettled records.", together=max
    ): (lambda s, at: s.diagnosis.oldest_seconds(at.now)),
    Family("backpressure_blocked_clients", "gauge", "Callers that wait for room in the queue or in their window."): (
        lambda s, _: s.gate.blocked_callers
    ),
    Family(
        "backpressure_active_seconds_total",
        "counter",
        "Time in which at least one caller waited for room in the queue or in its window.",
    ): (lambda s, at: s.gate.active_seconds(at.now)),
    Family(
        "backpressure_wait_seconds", "histogram", "Time for which frames waited for room, if they had to.", usual=()
    ): (lambda s, _: s.gate.wait_seconds),
    Family(
        "backpressure_cause_seconds_total",
        "counter",
        "Time in which at least one caller waited, by what held the queue.",
        "cause",
        get_args(Cause),
    ): lambda s, _: s.report.cause_seconds,
    Family(
        "record_rate_bound_seconds_total",
        "counter",
        "Time in which a caller waited and shards were at their limit of records, not bytes: aggregation helps.",
    ): lambda s, _: s.report.record_rate_bound_seconds,
    Family(
        "slow_seconds_total",
        "counter",
        "Time in which a record had waited for 30 s or more. quota: shards take no more; throttles: they take less.",
        "held_by",
        get_args(HeldBy),
    ): lambda s, _: s.report.slow_seconds,
    Family(
        "flushes_total",
        "counter",
        "Batches closed for sending, by what closed them.",
        "trigger",
        FLUSH_TRIGGERS,
        is_usual=False,
    ): (lambda s, _: s.stats.flushes),
    Family(
        "put_requests_total",
        "counter",
        "PutRecords sent. partial: some entries were refused; failed: no answer says what was stored.",
        "result",
        PUT_RESULTS,
    ): lambda s, _: s.stats.put_requests,
    Family(
        "put_request_duration_seconds",
        "histogram",
        "Time from sending a PutRecords to its answer or failure.",
        usual=(),
    ): (lambda s, _: s.stats.request_seconds),
    Family(
        "put_request_size_bytes", "histogram", "Size of a PutRecords body, as it goes over the network.", is_usual=False
    ): (lambda s, _: s.stats.request_bytes),
    Family("put_request_records", "histogram", "Kinesis records in a PutRecords.", is_usual=False): (
        lambda s, _: s.stats.request_records
    ),
    Family(
        "aggregation_user_records",
        "histogram",
        "Records in each Kinesis record that was sent; 1 without aggregation.",
        usual=(),
    ): (lambda s, _: s.stats.user_records),
    Family("inflight_requests", "gauge", "PutRecords that wait for their answer."): lambda s, _: (
        s.diagnosis.requests_in_flight
    ),
    Family("delivered_records_total", "counter", "Records that Kinesis stored."): lambda s, _: (
        s.stats.delivered_records
    ),
    Family("delivered_bytes_total", "counter", "Bytes of key and data of the records that Kinesis stored."): (
        lambda s, _: s.stats.delivered_bytes
    ),
    Family(
        "delivery_latency_seconds",
        "histogram",
        "Time from accepting a record to the answer that it is stored.",
        usual=DELIVERY_SECONDS,
    ): (lambda s, _: s.stats.delivery_seconds),
    Family(
        "last_delivery_timestamp_seconds",
        "gauge",
        "Unix time at which Kinesis last stored records; 0 if never.",
        together=max,
        is_usual=False,
    ): _delivered_at,
    Family(
        "record_errors_total",
        "counter",
        "Failed sends of a record, by the service's error.",
        "code",
        ERROR_CODES,
        usual=(Code.THROTTLED,),
    ): lambda s, _: s.stats.record_errors,
    Family("record_retries_total", "counter", "Sends of a record after its first.", is_usual=False): (
        lambda s, _: s.stats.retried_records
    ),
    Family(
        "record_attempts", "histogram", "Number of sends after which a record was stored.", is_usual=False
    ): lambda s, _: s.stats.attempts,
    Family(
        "failed_records_total", "counter", "Records that ended as not stored or unknown.", "reason", FAILURE_REASONS
    ): (lambda s, _: s.stats.failed_records),
    Family(
        "discarded_records_total",
        "counter",
        "Records given up. disconnected: the caller left; returned: it has them again; abandoned: lost after it left.",
        "reason",
        DISCARD_REASONS,
    ): lambda s, _: s.stats.discarded_records,
    Family(
        "possible_duplicate_records_total",
        "counter",
        "Extra copies of records that may be in the stream.",
        "cause",
        MAYBE_CAUSES[1:],
    ): lambda s, _: s.stats.possible_duplicate_records,
    Family(
        "stream_up", "gauge", "0 while the whole stream is refused, or the service does not answer.", together=min
    ): (lambda s, at: s.report.takes_records(at.now)),
    Family("stream_paused", "gauge", "1 while an operator has paused the stream.", together=max): lambda s, _: (
        s.pipeline.paused
    ),
    Family("shards_open", "gauge", "Open shards in the newest list of shards; 0 before the first list."): (
        lambda s, _: len(s.pipeline.shard_map or ())
    ),
    Family("shards_backing_off", "gauge", "Shards to which the daemon sends less, because they throttled."): (
        lambda s, at: s.diagnosis.backing_off(at.now)
    ),
    Family("shards_silent", "gauge", "Shards for which records wait, and whose last request had no answer in time."): (
        lambda s, _: s.diagnosis.silent_shards
    ),
    Family(
        "shard_utilization_max_ratio",
        "gauge",
        "Share of its 1 MiB/s or 1,000 records/s that the busiest shard was sent recently.",
        together=max,
    ): lambda s, at: s.diagnosis.most_used(at.now),
    Family("shard_map_refreshes_total", "counter", "Reads of the list of shards.", "result", RESULTS): (
        lambda s, _: s.stats.shard_map_refreshes
    ),
    Family(
        "credentials_expiry_timestamp_seconds",
        "gauge",
        "Unix time at which the credentials expire; 0 if unknown.",
        together=max,
    ): (lambda s, _: (s.credentials and s.credentials.expires_at) or 0.0),
    Family(
        "shard_mispredictions_total",
        "counter",
        "Entries stored in another shard than the daemon's list of shards predicted.",
        is_usual=False,
    ): (lambda s, _: s.stats.shard_mispredictions),
}
