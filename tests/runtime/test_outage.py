"""During a real outage the daemon uses little CPU and keeps its bounds, and it recovers within seconds."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

import pytest

from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import serve_in_thread
from producerd.wire import messages
from spark_client.connection import Connection
from tests.daemon import DaemonProcess, conserved, daemon, rows, until

pytestmark = pytest.mark.slow

SHARDS = 2
FULL_ROWS_PER_SECOND = SHARDS * 1_000
CPU_SHARE = 0.02


class Caller(threading.Thread):
    """Puts frame after frame, as a Spark task does, until the test stops it.  Then it flushes."""

    def __init__(self, running: DaemonProcess) -> None:
        super().__init__()
        self.hello = messages.Hello(1, 1, 0, 0, "outage", pid=os.getpid())
        self.path = str(running.socket)
        self.ends = threading.Event()
        self.put_rows = 0
        self.flushed = False

    def run(self) -> None:
        with Connection(self.hello, [self.path]) as connection:
            connection.open("flights")
            while not self.ends.is_set():
                connection.put("flights", rows(200, size=200, name=f"{self.name}-{self.put_rows}"))
                self.put_rows += 200
            connection.flush()
            self.flushed = True


def an_outage_of(
    seconds: float, begins: Callable[[], None], ends: Callable[[], None], kinesis: FakeKinesis, running: DaemonProcess
) -> None:
    """Three callers keep the queue full; the service goes and comes back."""

    def rate(seconds: float) -> float:
        before = stored()
        time.sleep(seconds)
        return (stored() - before) / seconds

    def stored() -> float:
        return running.metrics().get("delivered_records_total", 0.0)  # there is none before the first stream

    callers = [Caller(running) for _ in range(3)]
    for caller in callers:
        caller.start()
    try:
        until(lambda: stored() > 2_000)
        until(lambda: rate(3.0) >= 0.85 * FULL_ROWS_PER_SECOND, "the shards' rate")
        begins()
        time.sleep(3.0)  # what was on its way has failed
        cpu_seconds, requests, rss_bytes = running.cpu_seconds(), kinesis.requests["PutRecords"], running.rss_bytes()
        time.sleep(seconds)
        cpu_share = (running.cpu_seconds() - cpu_seconds) / seconds
        assert cpu_share < CPU_SHARE, f"{cpu_share:.1%} of a core"
        assert kinesis.requests["PutRecords"] - requests <= 30
        assert running.rss_bytes() - rss_bytes < 16 << 20
        metrics = running.metrics()
        assert metrics["queue_records"] <= metrics["queue_limit_records"]
        assert metrics["backpressure_cause_seconds_total[service]"] > seconds / 2
        before = stored()
        ends()
        over_at = time.monotonic()
        until(lambda: stored() > before, "the first row after the outage")
        first_seconds = time.monotonic() - over_at
        assert first_seconds < 12.0, f"the first row after {first_seconds:.1f} s"
        until(lambda: rate(3.0) >= 0.85 * FULL_ROWS_PER_SECOND, "the shards' rate after the outage")
    finally:
        for caller in callers:
            caller.ends.set()
        for caller in callers:
            caller.join(60.0)
    assert all(caller.flushed for caller in callers)
    metrics = running.metrics()
    assert conserved(metrics)
    assert metrics["delivered_records_total"] == sum(caller.put_rows for caller in callers)
    assert not metrics["failed_records_total"]


@pytest.mark.promise("service-hangs")
def test_a_while_in_which_the_service_hangs() -> None:
    kinesis = FakeKinesis()
    kinesis.enforce_limits = True
    kinesis.create_stream("flights", shards=SHARDS)
    with (
        serve_in_thread(kinesis) as server,
        daemon(server.url, forked=False, shard_rate_fraction=1, queue_limit=5_000) as running,
    ):
        an_outage_of(
            60.0, lambda: kinesis.standing.append(Fault("hang", action="*")), kinesis.standing.clear, kinesis, running
        )


@pytest.mark.promise("service-hangs")
def test_a_while_in_which_nobody_answers() -> None:
    """The endpoint's port is closed, and then open again."""
    kinesis = FakeKinesis()
    kinesis.enforce_limits = True
    kinesis.create_stream("flights", shards=SHARDS)
    with contextlib.ExitStack() as serving:
        server = serving.enter_context(serve_in_thread(kinesis))

        def back() -> None:
            serving.enter_context(serve_in_thread(kinesis, port=int(server.url.rpartition(":")[2])))

        with daemon(server.url, forked=False, shard_rate_fraction=1, queue_limit=5_000) as running:
            an_outage_of(20.0, serving.close, back, kinesis, running)
