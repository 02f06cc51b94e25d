"""Run the same query twice, each time with a Spark, a daemon and a Kinesis of its own, and watch it every second.

A run is good only if every record was stored, and Spark, the daemon and Kinesis counted the same number.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.backpressure.curves import NAMES, Curves, Sample, curves, variation
from benchmarks.backpressure.kinesis import Stored
from benchmarks.backpressure.spark_job import KEYS, RECORD_BYTES, STREAM, Batch
from benchmarks.harness import RecordsWrong, serve_with
from benchmarks.machine import PACKAGES, conditions
from benchmarks.processes import peak_rss_bytes, rss_bytes
from producerd.config import NodeSettings
from producerd.demo.children import Child, ChildFailed, Children
from producerd.demo.progress import Watch
from producerd.demo.scenario import environment, folder, free_port, java

SHARDS: Final = 8
SHARD_RECORDS_PER_SECOND: Final = 5_000
"""About the 1 MiB/s of a shard, in records of this size."""
BATCHES: Final = 4
QUEUE_LIMIT: Final = 100_000
LEAST_SECONDS: Final = 20.0
"""Shortest run.  Its micro-batches are twice the queue limit, so shards cannot make room for the rest in time."""
CHARGED_BYTES: Final = RECORD_BYTES + 64
"""Bytes charged for a record at most: data, key, 32 bytes, and its share of a frame's 1,024."""
ROOM_FOR_BATCHES: Final = 2
"""Micro-batches for which limits have room that must never hold.  A share of a limit is kept for other sessions."""
WIDE: Final = {"session_window_bytes": 1 << 30, "session_window_frames": 4_096}
"""Windows of sessions that never block a task before the queue does."""
START_SECONDS: Final = 120.0
STALL_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
SAY_SECONDS: Final = 10
AFTER_SECONDS: Final = 3
"""Time for which a run is watched after its last micro-batch."""
CASES: Final = ("without_limit", "with_limit")
Said = defaultdict[str, float]
"""Values of the stream's metrics by their names.  A metric that is missing counts as 0."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results: a run.

    ``limits`` are settings of the daemon.  ``coefficients_of_variation`` and ``means`` belong to the steady part
    (`benchmarks.backpressure.curves`).  ``peaks`` are the highest seconds of the whole run, which are exact for queue
    and
    RSS.  In ``totals``, ``blocked_seconds`` is the time in which at least one caller waited, and
    ``possible_duplicates`` is
    the daemon's count.
    """

    case: str
    limits: Mapping[str, int]
    coefficients_of_variation: Mapping[str, float | None]
    means: Mapping[str, float]
    peaks: Mapping[str, float]
    totals: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """A run with its curves, for a picture.  ``batches`` are the seconds at which each micro-batch began and ended."""

    figures: Figures
    batches: list[tuple[float, float]]
    curves: Curves


@dataclass(frozen=True, slots=True)
class Bench:
    """The benchmark.  ``say`` reports the progress."""

    batch_records: int
    say: Callable[[str], None]

    @classmethod
    def lasting(cls, seconds: float, say: Callable[[str], None]) -> Bench:
        """Return a benchmark whose runs take about this many seconds."""
        per_second = SHARDS * SHARD_RECORDS_PER_SECOND
        return cls(round(seconds * per_second / BATCHES / 1_000) * 1_000, say)

    @property
    def records(self) -> int:
        return BATCHES * self.batch_records

    @property
    def conditions(self) -> str:
        return conditions(
            f"{BATCHES} micro-batches of {self.batch_records:,} records of {RECORD_BYTES} bytes with {KEYS:,} keys, "
            f"{SHARDS} shards of 1 MiB/s and 1,000 records/s each, aggregation kpl, "
            "limits as in the figures, other settings as they come",
            packages=("pyspark", *PACKAGES),
        )

    def limits(self, case: str) -> dict[str, int]:
        """Return the settings of both cases, which differ only in ``queue_limit``."""
        room = ROOM_FOR_BATCHES * self.batch_records
        return {
            "queue_limit": QUEUE_LIMIT if case == "with_limit" else room,
            "queue_limit_bytes": room * CHARGED_BYTES,
            "node_queue_limit_bytes": max(room * CHARGED_BYTES, NodeSettings().node_queue_limit_bytes),
        }

    def run(self, case: str) -> Run:
        """Make a run.  Raise `ChildFailed` or `RecordsWrong`."""
        self.say(f"{case}: starting Spark, the daemon and Kinesis ...")
        with folder() as work, Children(work, environment(work)) as children:
            counts = [str(BATCHES), str(self.batch_records)]
            spark = children.start("spark", ["-m", f"{__package__}.spark_job", str(work), *counts], java(work))
            kinesis = children.start("kinesis", ["-m", f"{__package__}.kinesis", str(SHARDS), str(self.records)])
            daemon, scrapes = self._daemon(case, children, work, kinesis.line(START_SECONDS))
            spark.line(START_SECONDS)
            batches, samples = self._watched(spark, daemon, scrapes)
            kinesis.tell("")
            stored = Stored(**json.loads(kinesis.line(START_SECONDS)))
            peak_rss, last = peak_rss_bytes(daemon.process.pid), scrapes.scrape()
            if daemon.stop(STOP_SECONDS) != 0:
                raise ChildFailed(f"the daemon ended with exit code {daemon.ended(0.0)}", daemon.log)
        self.check(case, batches, last, stored)
        return self.result(case, batches, samples, last, peak_rss)

    def _daemon(self, case: str, children: Children, work: Path, endpoint_url: str) -> tuple[Child, Scrapes]:
        """Start a daemon and wait until it is ready."""
        address = f"127.0.0.1:{free_port()}"
        settings = {
            "socket": work / "producerd.sock",
            "metrics_listen": address,
            "endpoint_url": endpoint_url,
            "aggregation": "kpl",
            **self.limits(case),
        }
        daemon = children.start("daemon", serve_with(settings, ("-m", "tests.tuned", json.dumps(WIDE))))
        ready, deadline = Watch(f"http://{address}", STREAM), time.monotonic() + START_SECONDS
        while not ready.ready():
            daemon.poll_line(0.05)  # it raises if the daemon has ended
            if time.monotonic() > deadline:
                raise ChildFailed(f"the daemon was not ready within {START_SECONDS:.0f} s", daemon.log)
        return daemon, Scrapes(f"http://{address}/metrics?collect=all")

    def _watched(self, spark: Child, daemon: Child, scrapes: Scrapes) -> tuple[list[Batch], list[Sample]]:
        """Watch the run from before the first micro-batch to some seconds after the last."""
        batches: list[Batch] = []
        samples = [scrapes.sample(daemon)]
        moved_at = samples[0].at
        spark.tell("go")
        while len(batches) < BATCHES or samples[-1].at < batches[-1].ended + AFTER_SECONDS:
            next_at = samples[-1].at + 1.0
            while (left := next_at - time.monotonic()) > 0:
                if len(batches) < BATCHES:
                    if line := spark.poll_line(left):
                        batches.append(Batch(*json.loads(line)))
                else:
                    time.sleep(left)
            daemon.poll_line(0.0)  # it raises if the daemon has ended
            samples.append(now := scrapes.sample(daemon))
            if now.stored != samples[-2].stored:
                moved_at = now.at
            if len(batches) < BATCHES and now.at - moved_at > STALL_SECONDS:
                raise ChildFailed(f"nothing was stored for {STALL_SECONDS:.0f} s", daemon.log)
            if len(samples) % SAY_SECONDS == 0:
                self.say(
                    f"  {now.at - samples[0].at:4.0f} s: {len(batches)} of {BATCHES} micro-batches, accepted "
                    f"{now.accepted:,.0f}, stored {now.stored:,.0f} of {self.records:,}, queue {now.queue:,.0f}"
                )
        return batches, samples

    def check(self, case: str, batches: list[Batch], last: Said, stored: Stored) -> None:
        """Check the counts against each other.  Raise `RecordsWrong` if they differ."""
        written = sum(batch.records for batch in batches)
        counted = {name: int(last[f"{name}_records_total"]) for name in ("ingest", "delivered", "failed", "discarded")}
        duplicates = stored.records - (self.records - stored.missing)
        problems = []
        if stored.missing or stored.strangers:
            problems.append(
                f"{stored.missing:,} of {self.records:,} records are not in Kinesis, {stored.strangers:,} strangers are"
            )
        if duplicates > last["possible_duplicate_records_total"]:
            problems.append(f"{duplicates:,} duplicates, of which the daemon does not know")
        if written != self.records:
            problems.append(f"Spark wrote {written:,} records of {self.records:,}")
        if counted != {"ingest": written, "delivered": written, "failed": 0, "discarded": 0} or last["queue_records"]:
            problems.append(
                f"the daemon counts {counted} and {last['queue_records']:,.0f} queued, and Spark wrote {written:,}"
            )
        if last["queue_peak_records"] > self.limits(case)["queue_limit"]:
            problems.append(f"{last['queue_peak_records']:,.0f} records were queued, above the limit")
        if problems:
            raise RecordsWrong(f"{case}: {'; '.join(problems)}")

    def result(self, case: str, batches: list[Batch], samples: list[Sample], last: Said, peak_rss: int) -> Run:
        start = batches[0].began
        whole, spans = curves(samples, start), [(batch.began - start, batch.ended - start) for batch in batches]
        steady = whole.between(spans[0][1], spans[-1][1])
        peaks: dict[str, float] = {name: max(getattr(whole, name)) for name in NAMES}
        peaks |= {"queue": last["queue_peak_records"], "rss": peak_rss}
        variations = {name: variation(getattr(steady, name)) for name in NAMES}
        totals: dict[str, float] = {
            "records": int(last["delivered_records_total"]),
            "batch_records": self.batch_records,
            "seconds": round(spans[-1][1], 1),
            "steady_seconds": len(steady.seconds),
            "blocked_seconds": round(last["backpressure_active_seconds_total"], 1),
            "possible_duplicates": int(last["possible_duplicate_records_total"]),
        }
        figures = Figures(
            case,
            self.limits(case) | WIDE,
            {name: None if value is None else round(value, 3) for name, value in variations.items()},
            {name: _rounded(name, sum(values) / len(values)) for name in NAMES if (values := getattr(steady, name))},
            {name: _rounded(name, value) for name, value in peaks.items()},
            totals,
        )
        return Run(figures, spans, whole)


def _rounded(name: str, value: float) -> float:
    return round(value, 3) if name == "blocked" else round(value)


@dataclass(frozen=True, slots=True)
class Scrapes:
    """Return the stream's numbers from a daemon's GET /metrics, summed over other labels."""

    url: str

    def scrape(self) -> Said:
        with urllib.request.urlopen(self.url, timeout=10) as answer:
            return parsed(answer.read().decode())

    def sample(self, daemon: Child) -> Sample:
        said, at = self.scrape(), time.monotonic()
        counters = said["ingest_records_total"], said["delivered_records_total"]
        rss = rss_bytes(daemon.process.pid)
        return Sample(at, *counters, said["queue_records"], rss, said["backpressure_active_seconds_total"])


def parsed(text: str) -> Said:
    sums: Said = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("stream") == STREAM:
                sums[sample.name.removeprefix("producerd_")] += sample.value
    return sums
