"""Every scrape is whole, the first one too, and has no series of a stream that has gone."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from prometheus_client import ProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from producerd.config import Config, NodeSettings, StreamSettings
from producerd.config.memory import needed_bytes
from producerd.core.failures import Kind, meaning_of
from producerd.core.gate import Refusal, Ticket
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.errors import Code
from producerd.runtime import logs
from producerd.runtime.daemon import State
from producerd.runtime.metrics import (
    BIRTH_SECONDS,
    DISCARD_REASONS,
    ERROR_CODES,
    FAILURE_REASONS,
    LAG_LOOK_SECONDS,
    NEVER_STORED,
    NODE_FAMILIES,
    STATES,
    STREAM_FAMILIES,
    LoopLag,
    Metrics,
    OwnProcess,
)
from producerd.runtime.metrics import text as text_of
from producerd.runtime.session import DISCONNECT_REASONS, Session
from producerd.runtime.stream import Stream
from producerd.wire import messages
from producerd.wire.columns import Layout, lay_out
from tests import daemon as daemon_helpers
from tests.daemon import rows, until_on_loop
from tests.runtime.stand_ins import StandInHost, StandInTransport, body, opened, reserve, tell
from tests.runtime.timers import Timers

ODD: Final = 'a"b\\c\nd'
LISTED: Final = Config(streams={name: StreamSettings() for name in ("flights", "orders", "never", ODD)})
"""Their streams have a label of their own from the start."""
ONE_SHARD: Final = ShardMap([Shard("shard-0", 0, MAX_HASH_KEY)])


def stream(name: str) -> Stream:
    return Stream(name, StreamSettings())


def rendered(
    metrics: Metrics,
    streams: Iterable[Stream],
    *,
    state: str = "serving",
    connections: int = 0,
    now: float = 0.0,
    everything: bool = True,
) -> bytes:
    is_ready = state == "serving"
    snapshot = metrics.snapshot(streams, state=state, is_ready=is_ready, connections=connections, now=now)
    return text_of(snapshot, everything=everything)


class Scraped:
    """A scrape as Prometheus reads it: call it with a name and the values of labels, in any order."""

    def __init__(self, text: str) -> None:
        self.samples = {
            (sample.name.removeprefix("producerd_"), frozenset(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def __call__(self, name: str, *labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels)))

    def total(self, name: str, *labels: str) -> float:
        return sum(value for (found, its), value in self.samples.items() if found == name and its >= {*labels})


def samples(metrics: Metrics, *streams: Stream, now: float = 0.0) -> Scraped:
    return Scraped(rendered(metrics, streams, connections=3, now=now).decode())


NAMES = """
build_info{version} config_info{hash} config_last_reload_successful config_last_reload_success_timestamp_seconds
memory_limit_bytes memory_needed_bytes ready state{state} event_loop_lag_seconds client_connections
client_disconnects_total{reason} refused_opens_total{reason}
clock_offset_seconds credential_refreshes_total{result} log_lines_lost_total{reason}
ingest_records_total ingest_bytes_total ingest_rejected_records_total{reason} refused_records_total
left_out_records_total
queue_records queue_bytes queue_limit_records queue_limit_bytes queue_peak_records queue_peak_bytes
queue_oldest_record_age_seconds backpressure_blocked_clients backpressure_active_seconds_total
backpressure_wait_seconds backpressure_cause_seconds_total{cause} record_rate_bound_seconds_total
slow_seconds_total{held_by} flushes_total{trigger} put_requests_total{result} put_request_duration_seconds
put_request_size_bytes put_request_records aggregation_user_records inflight_requests delivered_records_total
delivered_bytes_total
delivery_latency_seconds last_delivery_timestamp_seconds record_errors_total{code} record_retries_total
record_attempts failed_records_total{reason} discarded_records_total{reason} possible_duplicate_records_total{cause}
stream_up stream_paused shards_open shards_backing_off shards_silent shard_utilization_max_ratio
shard_map_refreshes_total{result} credentials_expiry_timestamp_seconds shard_mispredictions_total
"""
"""Dashboards and alerts of others go by these names: none is ever changed, and none taken away."""


def test_names_and_labels_are_those_that_were_promised() -> None:
    families = [*NODE_FAMILIES, *STREAM_FAMILIES]
    assert [f"{one.name}{{{one.label}}}" if one.label else one.name for one in families] == NAMES.split()


def test_labels_are_the_stream_and_closed_enumerations() -> None:
    """The two families that are 1 whatever their label is are the exception."""
    for family in (*NODE_FAMILIES, *STREAM_FAMILIES):
        assert bool(family.values) == bool(family.label) or family.name in ("build_info", "config_info")
    assert set(STATES) == {state.value for state in State}


@pytest.mark.promise("stream-many-series-pages")
def test_a_stream_has_as_many_series_as_the_pages_say() -> None:
    usual, everything = (
        rendered(Metrics(LISTED), [stream("flights")], everything=everything).decode().count('stream="flights"')
        for everything in (False, True)
    )
    page = (daemon_helpers.ROOT / "docs/operate/metrics.md").read_text()
    assert f"One stream is {usual} series for each node" in page
    assert f"`collect=all` shows {everything}" in page
    assert f"with {usual} series for each stream" in (daemon_helpers.ROOT / "docs/use/kubernetes.md").read_text()


def test_an_error_of_the_service_is_shown_from_its_first_time_and_throttling_before() -> None:
    flights = stream("flights")
    flights.pipeline.stats.record_errors["KMS"] = 3
    found = Scraped(rendered(Metrics(LISTED), [flights], everything=False).decode())
    shown = {labels: value for (name, labels), value in found.samples.items() if name == "record_errors_total"}
    of_flights = {labels - {"flights"}: value for labels, value in shown.items() if "flights" in labels}
    assert of_flights == {frozenset({"THROTTLED"}): 0, frozenset({"KMS"}): 3}


def test_every_family_of_a_stream_is_there_before_anything_happened() -> None:
    text = rendered(Metrics(LISTED), [stream("flights")]).decode()
    for family in STREAM_FAMILIES:
        name = f"producerd_{family.name}"
        assert f"# TYPE {name} {family.kind}\n" in text
        if family.kind == "histogram":
            assert f'\n{name}_count{{stream="flights"}} 0.0\n' in text
            assert f'\n{name}_bucket{{le="+Inf",stream="flights"}} 0.0\n' in text
        for value in family.values:
            labels = ",".join(sorted(['stream="flights"', f'{family.label}="{value}"']))
            assert f"\n{name}{{{labels}}} 0.0\n" in text
        if not family.label and family.kind == "counter":
            assert f'\n{name}{{stream="flights"}} 0' in text
    values = {family.name: family.values for family in STREAM_FAMILIES}
    assert values["failed_records_total"] == FAILURE_REASONS
    assert values["discarded_records_total"] == DISCARD_REASONS
    duplicates = {"timeout", "connection", "service", "result_count", "reshard"}
    assert {*values["possible_duplicate_records_total"]} == duplicates


def test_a_scrape_is_read_as_it_was_written() -> None:
    """Each family once, of its type, and histograms that rise to their count.  A name may have any letters."""
    flights, odd = stream("flights"), stream(ODD)
    for seconds in (0.003, 0.2, 1e6):
        flights.pipeline.stats.delivery_seconds.observe(seconds, 5)
    text = rendered(Metrics(LISTED), [flights, odd], state="draining", connections=3).decode()
    families = list(text_string_to_metric_families(text))
    own = [told for told in families if told.name.startswith("producerd_")]
    others = {told.name for told in families if told not in own}
    assert {"process_resident_memory_bytes", "process_cpu_seconds", "process_open_fds"} <= others
    assert [(told.name, told.type, told.documentation) for told in own] == [
        (f"producerd_{family.name.removesuffix('_total')}", family.kind, family.meaning)
        for family in (*NODE_FAMILIES, *STREAM_FAMILIES)
    ]
    found = Scraped(text)
    assert found("delivery_latency_seconds_count", "flights") == 15
    assert found("delivery_latency_seconds_sum", "flights") == pytest.approx(5 * 1_000_000.203)
    buckets = [
        value
        for (name, labels), value in found.samples.items()
        if name == "delivery_latency_seconds_bucket" and "flights" in labels
    ]
    assert buckets == [5.0] * 4 + [10.0] * 9 + [15.0]
    assert [found("state", state) for state in ("draining", "serving")] == [1, 0]
    assert [found("client_connections"), found("ready"), found("queue_records", ODD)] == [3, 0, 0]


def test_the_bounds_of_every_histogram_rise_by_at_most_ten_times() -> None:
    text = rendered(Metrics(Config()), []).decode()
    bounds: dict[str, list[float]] = {}
    for name, bound in re.findall(r'^(\w+)_bucket\{le="([\d.]+)"', text, re.MULTILINE):
        bounds.setdefault(name, []).append(float(bound))
    assert len(bounds) == sum(family.kind == "histogram" for family in (*NODE_FAMILIES, *STREAM_FAMILIES))
    for name, rising in bounds.items():
        assert all(low < high <= 10 * low for low, high in pairwise(rising)), name


# ---- labels of streams


def test_a_stream_that_has_settings_is_there_before_anybody_opens_it() -> None:
    """Its first failure is then one for `increase()`; once it is open it is not there twice."""
    metrics = Metrics(Config(streams={"orders": StreamSettings(queue_limit=777)}))
    found = samples(metrics)
    assert found("queue_limit_records", "orders") == 777
    assert found("failed_records_total", "orders", "INTERNAL") == 0
    orders = stream("orders")
    orders.pipeline.stats.ingest_records = 3
    text = rendered(metrics, [orders]).decode()
    assert Scraped(text)("ingest_records_total", "orders") == 3
    assert text.count('producerd_ingest_records_total{stream="orders"') == 1


@pytest.mark.promise("label-begins-failures")
def test_a_label_begins_without_failures_though_records_failed_before() -> None:
    """Else `increase()` would miss them.  The first reader of the metrics takes that from no other one."""
    metrics, late = Metrics(Config()), stream("late")
    stats = late.pipeline.stats
    stats.ingest_records, stats.delivered_records, stats.failed_records["EXPIRED"] = 3, 1, 2
    for begin, before in ((0.0, 0), (1_000.0, 2)):
        for now in (begin, begin + 1.0, begin + 119.9):
            found = samples(metrics, late, now=now)
            failed = [found("failed_records_total", label, "EXPIRED") for label in ("late", NEVER_STORED)]
            accepted = [found("ingest_records_total", label) for label in ("late", NEVER_STORED)]
            assert (failed, accepted) == ([0, 2 + before], [0, 3 + 3 * (begin > 0)]), "the sums hold"
        stats.delivered_records += 1
        stats.ingest_records += 1
        assert samples(metrics, late, now=begin + 120.0)("failed_records_total", "late", "EXPIRED") == 2
        stats.delivered_records, stats.ingest_records = 1, 3
        samples(metrics, now=begin + 500.0)  # it is forgotten
    working = stream("working")
    working.pipeline.stats.delivered_records = 1
    assert samples(metrics, working, now=2_000.0)("delivered_records_total", "working") == 1
    working.pipeline.stats.failed_records["EXPIRED"] = 1
    assert samples(metrics, working, now=2_001.0)("failed_records_total", "working", "EXPIRED") == 1


@pytest.mark.promise("counters-shared-label")
def test_counters_of_the_shared_label_never_fall_when_streams_leave_it() -> None:
    """`increase()` would take that for a restart, and count again what remains."""
    metrics, works, stays, goes = Metrics(Config()), stream("works"), stream("stays"), stream("goes")
    for one, failed in ((works, 60), (stays, 40), (goes, 5)):
        one.pipeline.stats.failed_records["EXPIRED"] = failed
        one.pipeline.stats.ingest_records = failed
        one.gate.wait_seconds.observe(1.0, failed)

    def shared(*streams: Stream, now: float = 0.0) -> list[float | None]:
        found = samples(metrics, *streams, now=now)
        waits = found("backpressure_wait_seconds_count", NEVER_STORED)
        failed = found("failed_records_total", NEVER_STORED, "EXPIRED")
        return [failed, found("ingest_records_total", NEVER_STORED), waits]

    assert shared(works, stays, goes) == [105, 105, 105]
    works.pipeline.stats.delivered_records = 1
    works.pipeline.stats.ingest_records += 1
    assert shared(works, stays, goes) == [105, 106, 105]
    assert shared(works, stays, goes, now=BIRTH_SECONDS) == [105, 106, 105]
    assert shared(works, stays, now=200.0) == [105, 106, 105], "one was forgotten"
    stays.pipeline.stats.failed_records["EXPIRED"] += 1
    assert shared(works, stays, now=300.0) == [106, 106, 105]
    assert shared(now=400.0) == [106, 106, 105], "all were"
    found = samples(metrics, stays, now=400.0)
    assert found("queue_limit_records", NEVER_STORED) == StreamSettings().queue_limit


@pytest.mark.promise("counters-shared-label")
def test_queued_records_go_along_with_a_stream_that_leaves_the_shared_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """So accepted records are those that ended and those in the queue, in each label at every scrape."""
    metrics, works = Metrics(Config()), stream("works")
    stats = works.pipeline.stats
    stats.ingest_records, stats.discarded_records["disconnected"] = 7, 2
    queued = 5
    monkeypatch.setattr(type(works.pipeline), "queued_records", property(lambda _: queued))
    assert samples(metrics, works)("ingest_records_total", NEVER_STORED) == 2 + 5
    stats.delivered_records, queued = 1, 4
    found = samples(metrics, works)
    assert [found("ingest_records_total", label) for label in ("works", NEVER_STORED)] == [7, 2]


@pytest.mark.promise("open-stream-keeps-label")
@pytest.mark.parametrize("stored", [10, 0])
def test_an_open_stream_keeps_its_label_when_a_reload_takes_its_settings_away(stored: int) -> None:
    """Else its counters would fall and rise again, and `increase()` would count all of it a second time."""
    metrics, flights = Metrics(LISTED), stream("flights")
    flights.pipeline.stats.delivered_records = stored
    flights.pipeline.stats.failed_records["EXPIRED"] = 2

    def failed(*streams: Stream, now: float) -> list[float | None]:
        found = samples(metrics, *streams, now=now)
        return [found("failed_records_total", label, "EXPIRED") for label in ("flights", NEVER_STORED)]

    for now in (0.0, 60.0, BIRTH_SECONDS, 1_000.0):
        assert failed(flights, now=now) == [2, 0]
        metrics.reload(Config(), None)
    flights.pipeline.stats.failed_records["EXPIRED"] += 1
    assert failed(flights, now=1_001.0) == [3, 0]
    assert failed(now=2_000.0) == [None, 0], "it is forgotten"
    assert failed(stream("flights"), now=2_001.0) == [None, 0], "a new one of its name begins as any other"


@pytest.mark.promise("open-stream-keeps-label")
@pytest.mark.parametrize("stored", [10, 0])
def test_a_stream_that_reloads_list_and_unlist_is_counted_once_in_each_label(stored: int) -> None:
    metrics, flights = Metrics(Config()), stream("flights")
    stats = flights.pipeline.stats
    stats.delivered_records, stats.failed_records["EXPIRED"], stats.discarded_records["returned"] = stored, 2, 1
    stats.ingest_records = stored + 3
    shown = []
    for config in (Config(), LISTED, Config(), LISTED, Config()):
        metrics.reload(config, None)
        found = samples(metrics, flights)
        shown.append([found.total("failed_records_total", label) for label in ("flights", NEVER_STORED)])
        for label in ("flights", NEVER_STORED):
            ended = sum(found.total(f"{how}_records_total", label) for how in ("delivered", "failed", "discarded"))
            assert found.total("ingest_records_total", label) == ended, "nothing is queued"
    assert shown == [[0, 2], [2, 2], [2, 2], [2, 2], [2, 2]]


@pytest.mark.promise("streams-never-stored")
def test_streams_that_never_stored_a_record_share_a_label() -> None:
    """Clients may invent any number of names."""
    metrics, streams = Metrics(Config()), [stream(f"stream-{number}") for number in range(50)]
    empty = len(rendered(metrics, []))
    for number, one in enumerate(streams):
        one.pipeline.stats.ingest_records = number
        if number > 0:
            one.pipeline.stats.failed_records["EXPIRED"] = 1
        one.gate.wait_seconds.observe(1.0)
    streams[7].pipeline.pause()
    found = samples(metrics, *streams)
    assert found("ingest_records_total", NEVER_STORED) == sum(range(50))
    assert found("failed_records_total", NEVER_STORED, "EXPIRED") == 49
    assert found("failed_records_total", NEVER_STORED, "INTERNAL") == 0
    assert found("backpressure_wait_seconds_count", NEVER_STORED) == 50
    assert found("queue_limit_records", NEVER_STORED) == 50 * StreamSettings().queue_limit, "as the queues are added"
    assert NEVER_STORED == daemon_helpers.NEVER_STORED
    assert (found("stream_paused", NEVER_STORED), found("stream_up", NEVER_STORED)) == (1, 1)
    assert abs(len(rendered(metrics, streams)) - empty) < 1_000
    assert sum(streams[0].gate.wait_seconds.counts) == 1, "its own numbers are not the shared ones"


def test_the_first_stored_record_gives_a_stream_its_own_label() -> None:
    metrics, orders, never = Metrics(Config()), stream("of-today"), stream("invented")
    orders.pipeline.stats.ingest_records = never.pipeline.stats.ingest_records = 3
    assert samples(metrics, orders, never)("ingest_records_total", NEVER_STORED) == 6
    orders.pipeline.stats.delivered_records = 1
    found = samples(metrics, orders, never)
    assert [found("ingest_records_total", label) for label in ("of-today", NEVER_STORED)] == [3, 6]
    only_listed = Config(node=NodeSettings(streams_allowed="listed"), streams={"of-today": StreamSettings()})
    assert not [labels for _, labels in samples(Metrics(only_listed)).samples if NEVER_STORED in labels]


def test_streams_that_are_gone_are_forgotten() -> None:
    metrics = Metrics(Config())
    for number in range(3):
        gone = stream(f"stream-{number}")
        gone.pipeline.stats.delivered_records = 1
        gone.gate.wait_seconds.observe(1.0)
        samples(metrics, gone)
    back = stream("stream-0")
    back.pipeline.stats.delivered_records = 1
    found = samples(metrics, back)
    assert found("backpressure_wait_seconds_count", "stream-0") == 0
    assert found("backpressure_wait_seconds_count", "stream-1") is None


# ---- the node


def test_what_the_services_and_the_log_count_is_there_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Services:
        clock_offset_seconds = 0.0
        credential_refreshes: Mapping[str, float] = {}

    services, lost = Services(), dict[str, int]()
    monkeypatch.setattr(logs, "lost_lines", lambda: lost)
    metrics = Metrics(Config(), services=services)

    def shown() -> list[float | None]:
        found = samples(metrics)
        refreshes = [found("credential_refreshes_total", result) for result in ("ok", "failed")]
        lines = [found("log_lines_lost_total", reason) for reason in ("full", "failed")]
        return [found("clock_offset_seconds"), *refreshes, *lines]

    assert samples(Metrics(LISTED))("clock_offset_seconds") == 0
    assert shown() == [0, 0, 0, 0, 0]
    services.clock_offset_seconds, services.credential_refreshes = -612.0, {"ok": 3, "failed": 1}
    lost |= {"full": 7, "failed": 2}
    assert shown() == [-612, 3, 1, 7, 2]


def test_a_process_to_which_proc_shows_processes_alone_has_its_metrics(tmp_path: Path) -> None:
    """As the unit's ProcSubset=pid has it."""
    (tmp_path / "self").symlink_to("/proc/self")
    seen = {metric.name: metric.samples[0].value for metric in OwnProcess(proc=str(tmp_path), registry=None).collect()}
    whole = {metric.name: metric.samples[0].value for metric in ProcessCollector(registry=None).collect()}
    assert seen.keys() == whole.keys()
    assert seen["process_start_time_seconds"] == pytest.approx(whole["process_start_time_seconds"], abs=2.0)


def test_the_start_of_a_process_counts_from_the_boot_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 400.0}.__getitem__)
    seen = {metric.name: metric.samples[0].value for metric in OwnProcess(registry=None).collect()}
    ticks_since_boot = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    assert seen["process_start_time_seconds"] == 999_600.0 + ticks_since_boot / os.sysconf("SC_CLK_TCK")


def test_the_node_shows_its_settings_limit_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 2_000_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    metrics, needed = Metrics(LISTED, 1 << 30), needed_bytes(LISTED).bytes

    def shown() -> list[float | None]:
        found = samples(metrics)
        reload = [found(f"config_last_reload_{end}") for end in ("successful", "success_timestamp_seconds")]
        infos = [found.total("build_info"), found.total("config_info")]
        return [*reload, found("memory_limit_bytes"), found("memory_needed_bytes"), *infos]

    assert shown() == [1, 2_000_000_000.0, 1 << 30, needed, 1, 1]
    now = 2_000_000_060.0
    metrics.reload_failed()
    assert shown() == [0, 2_000_000_000.0, 1 << 30, needed, 1, 1]
    metrics.reload(LISTED, None)
    assert shown() == [1, 2_000_000_060.0, inf, needed, 1, 1]


def test_nodes_of_the_same_settings_have_the_same_hash() -> None:
    def hash_of(config: Config) -> str:
        ((label,),) = [labels for name, labels in samples(Metrics(config)).samples if name == "config_info"]
        return label

    other = Config(defaults=StreamSettings(linger_seconds=0.2))
    assert re.fullmatch("[0-9a-f]{16}", hash_of(Config()))
    assert hash_of(Config()) == hash_of(Config()) != hash_of(other)


def test_the_loops_lag_is_by_how_much_its_timers_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lag, timers = LoopLag(), Timers()
    lag.watch(timers)  # type: ignore[arg-type] # all of a loop that it needs
    for late in (0.0, 3.0, -0.001):  # uvloop's timers may be early by less than a millisecond
        assert timers.left == [LAG_LOOK_SECONDS] == [0.25]
        now += LAG_LOOK_SECONDS + late
        timers.go_on()
    assert sum(lag.seconds.counts) == 3
    assert lag.seconds.sum == pytest.approx(3.0)
    assert lag.seconds.counts[0] == 2
    lag.stop()
    assert timers.left == []


async def test_every_connection_ends_for_one_reason() -> None:
    def nothing(_: Session) -> None:
        pass

    ends: list[tuple[str, Callable[[Session], None], Exception | None]] = [
        ("closed", nothing, None),
        ("closed", lambda session: tell(session, messages.encode(messages.Close("", "bye"))), None),
        ("lost", nothing, ConnectionResetError()),
        ("lost", lambda session: tell(session, reserve(1, rows(3))), None),
        ("protocol", lambda session: tell(session, messages.encode(messages.Reserve(1, 9, Layout(1, 1, 1)))), None),
        ("draining", lambda session: session.end_session(Code.DRAINING, "the daemon has stopped"), None),
        ("not_authorized", lambda session: session.end_session(Code.NOT_AUTHORIZED, "no"), None),
        ("failed", lambda session: session.end_session(Code.INTERNAL, "no"), None),
    ]
    for reason, happens, error in ends:
        host = StandInHost()
        session, _ = opened(host)
        happens(session)
        session.connection_lost(error)
        assert [gone.ended_as for gone in host.gone] == [reason]
        assert reason in DISCONNECT_REASONS
    host = StandInHost()
    host.tuning = replace(host.tuning, body_timeout_seconds=0.01)
    session, _ = opened(host)
    tell(session, reserve(1, rows(3)))  # and no body follows
    await until_on_loop(lambda: session.ended_as == "late")
    session = Session(host, 1)
    StandInTransport(session)
    tell(session, messages.encode(messages.Hello(8, 9)))
    assert session.ended_as == "version_mismatch"
    host.full = "max_connections = 1"
    session = Session(host, 2)
    StandInTransport(session)
    assert session.ended_as == "connection_limit"


# ---- a stream's numbers


@pytest.mark.parametrize(
    ("name", "happens", "shown"),
    [
        ("shards_open", lambda one: one.pipeline.set_shard_map(ONE_SHARD, 0.0), 1.0),
        # It is shown in whole milliseconds, and in seconds since 1970.
        (
            *("last_delivery_timestamp_seconds", lambda one: setattr(one.pipeline.stats, "delivered_at", 40.0004)),
            1_999_999_940.0,
        ),
        ("credentials_expiry_timestamp_seconds", lambda one: setattr(one, "credentials", expiring(1.8e9)), 1.8e9),
        ("credentials_expiry_timestamp_seconds", lambda one: setattr(one, "credentials", expiring(None)), 0.0),
    ],
)
def test_what_is_known_of_a_stream_is_shown_and_else_zero(
    monkeypatch: pytest.MonkeyPatch, name: str, happens: Callable[[Stream], None], shown: float
) -> None:
    monkeypatch.setattr(time, "time", lambda: 2_000_000_000.0)
    flights, never = stream("flights"), stream("never")
    happens(flights)
    found = samples(Metrics(LISTED), flights, never, now=100.0)
    assert [found(name, "flights"), found(name, "never")] == [shown, 0]


def expiring(at: float | None) -> Any:
    return SimpleNamespace(expires_at=at)


def test_a_scrape_shows_its_moment_though_numbers_change_before_it_is_rendered() -> None:
    """A thread renders it, while the loop goes on."""
    metrics, flights = Metrics(LISTED), stream("flights")

    def count() -> None:
        metrics.disconnects["lost"] += 1
        metrics.loop_lag.seconds.observe(0.02)
        flights.pipeline.stats.failed_records["EXPIRED"] += 1
        flights.gate.wait_seconds.observe(1.0)

    count()
    taken = metrics.snapshot([flights], state="serving", is_ready=True, connections=0, now=0.0)

    def shown() -> dict[tuple[str, frozenset[str]], float]:
        found = Scraped(text_of(taken, everything=True).decode()).samples
        return {key: value for key, value in found.items() if not key[0].startswith("process_")}

    before = shown()
    count()
    assert shown() == before
    assert before["client_disconnects_total", frozenset(("lost",))] == 1
    assert before["event_loop_lag_seconds_count", frozenset()] == 1


async def test_each_row_that_is_not_accepted_is_counted_once() -> None:
    """A row that is bad twice, the good rows that its frame's bad ones refused, and a record larger than the queue."""
    host = StandInHost()
    session, _ = opened(host)
    two_bad = lay_out([b"\xff" * 300, b"k" * 300, b"k", b"k"], [b"1", b"2", b"3", b"4"])  # the first one twice
    tell(session, reserve(1, two_bad) + body(1, two_bad))
    host.stream.gate.set_limits(10, 1_000, 0.0)
    tell(session, reserve(2, lay_out([b"k"], [b"x" * 2_000])))
    found = samples(Metrics(LISTED), host.stream)
    for reason in ("RECORD_INVALID", "FRAME_REFUSED"):
        assert found("ingest_rejected_records_total", "flights", reason) == 2
    assert found("ingest_records_total", "flights") == 0
    assert found("refused_records_total", "flights") == 1


def test_waits_are_counted_once_each_and_those_of_seconds_are_told_apart() -> None:
    metrics, flights = Metrics(LISTED), stream("flights")
    waits = flights.gate.wait_seconds
    for seconds in (0.005, 0.05, 100.0):
        waits.observe(seconds)
    for _ in range(2):
        found = samples(metrics, flights)
        assert found("backpressure_wait_seconds_count", "flights") == 3
        assert found("backpressure_wait_seconds_sum", "flights") == 100.055
        assert found("backpressure_wait_seconds_bucket", "flights", "0.01") == 1
        assert found("backpressure_wait_seconds_bucket", "flights", "600.0") == 3
    for seconds in (0.3, 0.9, 1.5, 4.0, 9.0, 20.0, 50.0, 200.0, 500.0):
        waits.observe(seconds)
    assert max(waits.counts) == 1


def test_every_decision_on_a_failure_has_its_label() -> None:
    """The page has a generated table of all errors of the service."""
    page = (daemon_helpers.ROOT / "docs/operate/error-codes.md").read_text()
    meanings = [meaning_of(error) for error in [*re.findall(r"`(\w+)`", page), "whatever"]]
    judged = {Code.RECORD_INVALID, Code.RECORD_TOO_LARGE}
    assert {meaning.code for meaning in meanings} | judged == set(ERROR_CODES)
    assert {meaning.code for meaning in meanings if meaning.kind is Kind.PERMANENT} <= set(FAILURE_REASONS)


def test_records_are_counted_by_how_often_they_were_sent() -> None:
    flights = stream("flights")
    for attempts, records in ((1, 10), (4, 3), (51, 2)):
        flights.pipeline.stats.attempts.observe(attempts, records)
    found = samples(Metrics(LISTED), flights)
    bounds = ("1.0", "3.0", "5.0", "50.0", "+Inf")
    assert [found("record_attempts_bucket", "flights", bound) for bound in bounds] == [10, 10, 13, 13, 15]
    assert found("record_attempts_sum", "flights") == 10 + 12 + 102


def test_what_held_the_queue_is_counted_in_the_time_that_callers_waited() -> None:
    """The seconds of all causes add up to `backpressure_active_seconds`."""
    flights = stream("flights")
    member = flights.gate.join(Blocked())
    flights.budget.charge(flights.budget.limit_records, 0)
    flights.gate.ask(member, 1, Layout(1, 1, 1), 10.0)
    flights.settle(10.0)
    flights.settle(13.5)
    found = samples(Metrics(LISTED), flights, now=13.5)
    assert found.total("backpressure_cause_seconds_total", "flights") == 3.5
    assert found("backpressure_active_seconds_total", "flights") == 3.5


class Blocked:
    """A caller that waits."""

    def may_receive(self, charge_bytes: int) -> bool:
        return True

    def granted(self, ticket: Ticket) -> None:
        raise AssertionError("there was no room")

    def refused(self, ticket: Ticket, refusal: Refusal) -> None:
        raise AssertionError(refusal.message)
