"""Run one scenario with one producer and one judge, from an empty stream to its figures."""

from __future__ import annotations

import base64
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from benchmarks.delivery import figures
from benchmarks.delivery.figures import FaultTimes, Figures
from benchmarks.delivery.producerd import ROWS_PER_SESSION
from benchmarks.delivery.scenarios import UPLINK_BYTES_PER_SECOND, Scenario, Stage
from benchmarks.judges import Handed
from producerd.testing import FakeKinesis, FakeStream
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread

STREAM: Final = "bench"
SEED: Final = 1
TOLD_SECONDS: Final = 2.0


class Producer(Protocol):
    name: str

    def begin(self) -> None:
        """Start the loads, and return at once."""

    def sent(self, row: int) -> bool:
        """Return whether a row was put, after the run."""

    def acknowledged(self) -> set[int]:
        """Wait for the end of the loads, and return the ids of the rows acknowledged as stored."""

    @property
    def failures(self) -> list[str]:
        """Return the reasons why loads did not come to their end."""


Start = Callable[[Stage, Scenario], AbstractContextManager[Producer]]


class Run(NamedTuple):
    """The counts of a run, with the server's times.  ``entries_before`` are entries stored before the loads began."""

    producer: str
    acknowledged: set[int]
    sent: Callable[[int], bool]
    failures: list[str]
    requests: int
    fault: FaultTimes
    stream: FakeStream
    entries_before: int = 0


def run(scenario: Scenario, start: Start, say: Callable[[str], None] = lambda _line: None) -> Run:
    """Run a scenario and return its counts.  ``say`` reports the progress every few seconds."""
    kinesis = FakeKinesis(SEED)
    kinesis.latency_seconds = scenario.latency_seconds
    kinesis.enforce_limits = scenario.enforce_limits
    stream = kinesis.create_stream(STREAM, scenario.shards, now=time.time())
    with (
        serve_in_thread(kinesis, tls=True) as server,
        _telling(kinesis, say),
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
    ):
        stage = Stage(kinesis, stream, server, Path(folder))
        if scenario.begins_before_start:
            scenario.begin(stage)
        with start(stage, scenario) as producer:
            requests_before, entries_before = kinesis.requests["PutRecords"], len(stream.entries())
            producer.begin()
            began = server.now()
            fault_begins = _sleep_until(server, began + scenario.begins)
            if not scenario.begins_before_start:
                scenario.begin(stage)
            fault_ends = _sleep_until(server, began + scenario.ends)
            scenario.end(stage)
            acknowledged = producer.acknowledged()
        requests = kinesis.requests["PutRecords"] - requests_before
    # The first third still has the burst of a full quota.
    fault = FaultTimes(began + scenario.begins / 3, fault_begins, fault_ends)
    failures = producer.failures
    return Run(producer.name, acknowledged, producer.sent, failures, requests, fault, stream, entries_before)


@contextlib.contextmanager
def _telling(kinesis: FakeKinesis, say: Callable[[str], None]) -> Iterator[None]:
    """Report every few seconds how many requests and entries the fake has counted."""
    began, ended = time.monotonic(), threading.Event()

    def tell() -> None:
        while not ended.wait(TOLD_SECONDS):
            requests, stored = kinesis.requests["PutRecords"], kinesis.results["stored"]
            say(f"{time.monotonic() - began:5.0f} s: {requests:,} PutRecords, {stored:,} entries stored")

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _sleep_until(server: FakeServer, when: float) -> float:
    """Sleep until a time, and return the time after that."""
    time.sleep(max(0.0, when - server.now()))
    return server.now()


def judged(done: Run, scenario: Scenario, handed: list[Handed], judge_name: str) -> Figures:
    def sent(row: int) -> bytes | None:
        session = row // ROWS_PER_SESSION
        return figures.data_of(row, scenario.loads[session].row_bytes) if done.sent(row) else None

    found, duplicates = figures.deliveries(handed)
    others = [load.is_other for load in scenario.loads]
    watched = figures.times(found, lambda row: others[row // ROWS_PER_SESSION] or not scenario.counts_others)
    recovery = figures.recovery_seconds(watched, done.fault, scenario.quota_ratio) if scenario.recovers else None
    ratio = figures.throughput_ratio(watched, done.fault) if scenario.counts_others else None
    gap = figures.longest_gap(watched, done.fault) if scenario.counts_others else None
    goodput = None
    if scenario.counts_goodput:
        rows_per_second = figures.rate(watched, done.fault.begins, done.fault.ends)
        base64_bytes = len(base64.b64encode(bytes(scenario.loads[0].row_bytes)))
        goodput = rows_per_second * base64_bytes / UPLINK_BYTES_PER_SECOND
    return Figures(
        done.producer,
        scenario.name,
        scenario.aggregation,
        judge_name,
        acknowledged=len(done.acknowledged),
        readable=len(done.acknowledged.intersection(delivery.row for delivery in found)),
        duplicates=duplicates,
        requests=done.requests,
        recovery_seconds=_rounded(recovery),
        recovered=recovery is not None if scenario.recovers else None,
        others_throughput_ratio=_rounded(ratio),
        others_longest_gap_seconds=_rounded(gap),
        goodput_ratio=_rounded(goodput),
        verdict=figures.verdict_on(done.acknowledged, handed[done.entries_before :], sent),
    )


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 2)
