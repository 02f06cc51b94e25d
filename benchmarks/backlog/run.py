"""Run the same query for each case, with a Spark, a producer and a Kinesis of its own, and watch it every second.

A run through producerd is good only if every record was stored, and Spark, the daemon and Kinesis counted the same
number.  Whatever the KPL does is reported.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import maven
from benchmarks.backlog.curves import NAMES, Curves, Sample, curves
from benchmarks.backlog.kinesis import Stored
from benchmarks.backlog.spark_job import KEYS, NUMBERS_SECONDS, RECORD_BYTES, STREAM, Batch
from benchmarks.harness import RecordsWrong, serve_with
from benchmarks.machine import PACKAGES, conditions
from benchmarks.processes import family, rss_bytes
from producerd.config import NodeSettings
from producerd.demo.children import Child, ChildFailed, Children
from producerd.demo.ports import free_port
from producerd.demo.progress import Watch
from producerd.demo.scenario import environment, folder, java

SHARDS: Final = 4
SHARD_RECORDS_PER_SECOND: Final = 1_000
"""About the 1 MiB/s of a shard, in records of this size."""
BATCH_SHARE: Final = 1 / 20
"""Part of a run in which the shards store a micro-batch."""
HANG: Final = (1 / 6, 5 / 6)
"""Begin and end of the fault, as parts of a run: two minutes of the default run."""
QUEUE_LIMIT: Final = 10_000
LEAST_SECONDS: Final = 60.0
"""Shortest run.  Its micro-batches are larger than the queue limit."""
CHARGED_BYTES: Final = RECORD_BYTES + 64
"""Bytes charged for a record at most: data, key, 32 bytes, and its share of a frame's 1,024."""
ROOM_FOR_BATCHES: Final = 2
"""Micro-batches for which limits have room that must never hold.  A share of a limit is kept for other sessions."""
MOST_RATE: Final = 10
"""Ids are counted up to this many times what the shards can store: the KPL may lose records faster."""
WIDE: Final = {"session_window_bytes": 1 << 30, "session_window_frames": 4_096}
"""Windows of sessions that never block a task before the queue does."""
START_SECONDS: Final = 120.0
LAST_BATCH_SECONDS: Final = 180.0
STOP_SECONDS: Final = 30.0
SAY_SECONDS: Final = 10
KPL_PROCESS: Final = "kinesis_produce"
"""The name of the KPL's native process, as the kernel cuts it."""
KPL: Final = "kpl"
CASES: Final = (KPL, "without_limit", "with_limit")


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results: a run.

    ``limits`` are settings of the daemon.  ``means`` and ``peaks`` belong to the curves.  Of the records that Spark
    ``written``, ``acknowledged`` were reported as stored, and ``lost`` are not in Kinesis.  ``payload_bytes`` and
    ``charged_bytes`` are the payload of most records that waited, and what a daemon charges for it.
    ``recovery_seconds`` is None if the stream did not recover before the end.
    """

    case: str
    seconds: float
    limits: Mapping[str, int]
    means: Mapping[str, float]
    peaks: Mapping[str, float]
    written: int
    acknowledged: int
    stored: int
    lost: int
    duplicates: int
    payload_bytes: int
    charged_bytes: int
    records_per_second_before: int
    recovery_seconds: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """A run with its curves, for a picture.  ``batches`` are the seconds at which each micro-batch began and ended."""

    figures: Figures
    hang: tuple[float, float]
    batches: list[tuple[float, float]]
    curves: Curves


@dataclass(frozen=True, slots=True)
class Bench:
    """The benchmark.  ``say`` reports the progress."""

    seconds: float
    say: Callable[[str], None]

    @property
    def batch_records(self) -> int:
        return round(self.seconds * BATCH_SHARE * SHARDS * SHARD_RECORDS_PER_SECOND / 1_000) * 1_000

    @property
    def conditions(self) -> str:
        begin, end = (share * self.seconds for share in HANG)
        return conditions(
            f"micro-batches of {self.batch_records:,} records of {RECORD_BYTES:,} bytes with {KEYS:,} keys for "
            f"{self.seconds:.0f} s, the endpoint hangs from {begin:.0f} to {end:.0f} s, TLS, "
            f"{SHARDS} shards of 1 MiB/s and 1,000 records/s each, aggregation kpl, "
            "limits as in the figures, other settings as they come",
            packages=("pyspark", *PACKAGES),
        )

    def limits(self, case: str) -> dict[str, int]:
        """Return the daemon's settings of a case, which differ only in ``queue_limit``."""
        if case == KPL:
            return {}
        room = ROOM_FOR_BATCHES * self.batch_records
        return {
            "queue_limit": QUEUE_LIMIT if case == "with_limit" else room,
            "queue_limit_bytes": room * CHARGED_BYTES,
            "node_queue_limit_bytes": max(room * CHARGED_BYTES, NodeSettings().node_queue_limit_bytes),
        }

    def run(self, case: str) -> Run:
        """Make a run.  Raise `ChildFailed`, `RecordsWrong` or `maven.Unavailable`."""
        self.say(f"{case}: starting Spark, the producer and Kinesis ...")
        with folder() as work, Children(work, environment(work)) as children:
            most = round(MOST_RATE * self.seconds * SHARDS * SHARD_RECORDS_PER_SECOND)
            fake = children.start("kinesis", ["-m", f"{__package__}.kinesis", str(SHARDS), str(most)])
            kinesis = FakeProcess(fake, fake.line(START_SECONDS), fake.line(START_SECONDS))
            job = ["-m", f"{__package__}.spark_job", str(work), str(self.batch_records)]
            producer: WatchedDaemon | KplInSpark
            if case == KPL:
                port = kinesis.url.rpartition(":")[2].strip("/")
                spark = children.start("spark", [*job, port], java(work) | on_class_path())
                producer = KplInSpark(spark)
            else:
                spark = children.start("spark", job, java(work))
                producer = WatchedDaemon(children, work, kinesis, self.limits(case))
            while json.loads(spark.line(START_SECONDS)) != "ready":
                pass
            run, last = self._watched(case, spark, producer, kinesis)
        self.check(run.figures, last)
        return run

    def _watched(
        self, case: str, spark: Child, producer: WatchedDaemon | KplInSpark, kinesis: FakeProcess
    ) -> tuple[Run, Mapping[str, float]]:
        """Watch the run until its last micro-batch, and hang the endpoint in the middle of it."""
        batches: list[Batch] = []
        spark.tell("go")
        deadline = time.monotonic() + START_SECONDS
        while not (samples := [self._sample(producer, kinesis)])[0].accepted:  # Spark's first plan takes a while
            if line := spark.poll_line(NUMBERS_SECONDS):
                producer.report(*json.loads(line))
            if time.monotonic() > deadline:
                raise ChildFailed("Spark did not write", spark.log)
        start = samples[0].at
        orders = [(share * self.seconds, word) for share, word in zip(HANG, ("hang", "answer"), strict=True)]
        orders.append((self.seconds, "stop"))
        hang: list[float] = []
        ended = False
        while not ended:
            while (left := samples[-1].at + 1.0 - time.monotonic()) > 0 and not ended:
                match json.loads(spark.poll_line(left) or "0"):
                    case [began, finished, records, duplicates]:
                        batches.append(Batch(began, finished, records, duplicates))
                    case [_, _, _] as numbers:
                        producer.report(*numbers)
                    case None:
                        ended = True
            samples.append(now := self._sample(producer, kinesis))
            second = now.at - start
            if orders and second >= orders[0][0]:
                _, word = orders.pop(0)
                if word == "stop":
                    spark.tell(word)
                else:
                    kinesis.ask(word)
                    hang.append(second)
            if second > self.seconds + LAST_BATCH_SECONDS:
                raise ChildFailed("the last micro-batch did not end", spark.log)
            if len(samples) % SAY_SECONDS == 0:
                self.say(
                    f"  {second:4.0f} s: {len(batches)} micro-batches, accepted {now.accepted:,}, "
                    f"stored {now.stored:,}, waiting {now.waiting:,}, {now.memory_bytes / 1e6:,.0f} MB"
                )
        last = producer.end()
        spans = [(batch.began - start, batch.ended - start) for batch in batches]
        whole = curves(samples, start)
        written = samples[-1].accepted
        stored = kinesis.ask(str(written))
        acknowledged = sum(batch.records for batch in batches)
        waited = round(max(whole.waiting))
        recovery = whole.recovery_seconds(hang[0], hang[1])
        figures = Figures(
            case,
            self.seconds,
            self.limits(case),
            {name: round(sum(values) / len(values)) for name in NAMES if (values := getattr(whole, name))},
            {name: round(max(getattr(whole, name))) for name in NAMES},
            written,
            acknowledged,
            stored.records,
            stored.missing,
            stored.records - (written - stored.missing),
            waited * RECORD_BYTES,
            waited * CHARGED_BYTES,
            round(whole.rate_before(hang[0])),
            None if recovery is None else round(recovery, 1),
        )
        return Run(figures, (hang[0], hang[1]), spans, whole), last

    @staticmethod
    def _sample(producer: WatchedDaemon | KplInSpark, kinesis: FakeProcess) -> Sample:
        accepted, waiting, memory_bytes = producer.numbers()
        return Sample(time.monotonic(), accepted, kinesis.ask("0").records, waiting, memory_bytes)

    @staticmethod
    def check(figures: Figures, last: Mapping[str, float]) -> None:
        """Check the counts of a run through producerd against each other.  Raise `RecordsWrong` if they differ."""
        if figures.case == KPL:
            return
        problems = []
        if figures.lost:
            problems.append(f"{figures.lost:,} of {figures.written:,} records are not in Kinesis")
        if figures.acknowledged != figures.written:
            problems.append(f"{figures.acknowledged:,} records of {figures.written:,} were acknowledged")
        if figures.duplicates > last["possible_duplicate_records_total"]:
            problems.append(f"{figures.duplicates:,} duplicates, of which the daemon does not know")
        if last["failed_records_total"] or last["discarded_records_total"] or last["queue_records"]:
            problems.append(f"the daemon counts {dict(last)}")
        if last["queue_peak_records"] > figures.limits["queue_limit"]:
            problems.append(f"{last['queue_peak_records']:,.0f} records were queued, above the limit")
        if problems:
            raise RecordsWrong(f"{figures.case}: {'; '.join(problems)}")


@dataclass(frozen=True, slots=True)
class FakeProcess:
    """The process of the fake Kinesis, its URL and its certificate."""

    child: Child
    url: str
    certificate: str

    def ask(self, word: str) -> Stored:
        self.child.tell(word)
        return Stored(**json.loads(self.child.line(START_SECONDS)))


class KplInSpark:
    """The KPL in Spark's JVM, with the numbers that Spark's process reported last."""

    def __init__(self, spark: Child) -> None:
        self._spark = spark
        self._accepted = self._waiting = 0

    def report(self, accepted: int, waiting: int, _failed: int) -> None:
        self._accepted, self._waiting = accepted, waiting

    def numbers(self) -> tuple[int, int, int]:
        """Return the records accepted, the records waiting, and the memory of the native process."""
        return self._accepted, self._waiting, sum(map(rss_bytes, self._processes()))

    def _processes(self) -> list[int]:
        return [
            pid
            for pid in family(self._spark.process.pid)
            if Path(f"/proc/{pid}/comm").read_text().strip() == KPL_PROCESS
        ]

    def end(self) -> Mapping[str, float]:
        """Return nothing to check: Spark's end is the KPL's."""
        return {}


class WatchedDaemon:
    """A daemon that is ready.  Its numbers come from GET /metrics, summed over labels other than the stream."""

    def __init__(self, children: Children, work: Path, kinesis: FakeProcess, limits: Mapping[str, int]) -> None:
        address = f"127.0.0.1:{free_port()}"
        self._metrics_url = f"http://{address}/metrics?collect=all"
        settings = {
            "socket": work / "producerd.sock",
            "metrics_listen": address,
            "endpoint_url": kinesis.url,
            "aggregation": "kpl",
            **limits,
        }
        command = serve_with(settings, ("-m", "tests.tuned", json.dumps(WIDE)))
        self._child = children.start("daemon", command, {"AWS_CA_BUNDLE": kinesis.certificate})
        ready, deadline = Watch(f"http://{address}", STREAM), time.monotonic() + START_SECONDS
        while not ready.ready():
            self._child.poll_line(0.05)  # it raises if the daemon has ended
            if time.monotonic() > deadline:
                raise ChildFailed(f"the daemon was not ready within {START_SECONDS:.0f} s", self._child.log)

    def report(self, *numbers: int) -> None:
        """Ignore numbers of the KPL: Spark's process has none."""

    def numbers(self) -> tuple[int, int, int]:
        """Return the records accepted, the records waiting, and the daemon's memory."""
        said = self._scrape()
        settled = sum(said[f"{name}_records_total"] for name in ("delivered", "failed", "discarded"))
        accepted = said["ingest_records_total"]
        return int(accepted), int(accepted - settled), rss_bytes(self._child.process.pid)

    def end(self) -> Mapping[str, float]:
        """End the daemon, and return what it counted last."""
        said = self._scrape()
        if self._child.stop(STOP_SECONDS) != 0:
            raise ChildFailed(f"the daemon ended with exit code {self._child.ended(0.0)}", self._child.log)
        return said

    def _scrape(self) -> Mapping[str, float]:
        with urllib.request.urlopen(self._metrics_url, timeout=10) as answer:
            text = answer.read().decode()
        sums: defaultdict[str, float] = defaultdict(float)
        for each in text_string_to_metric_families(text):
            for sample in each.samples:
                if sample.labels.get("stream") == STREAM:
                    sums[sample.name.removeprefix("producerd_")] += sample.value
        return sums


def on_class_path() -> dict[str, str]:
    """Return the variable that puts the KPL on the class path of Spark's JVM.  Raise `maven.Unavailable`."""
    command = maven.command(Path(__file__).parent / "kpl_sink", "Sink")
    kpl = command[command.index("-cp") + 1]
    # The KPL brings an older Scala, so Spark's own jars come first.
    spark = Path(pyspark.__file__).parent / "jars"
    return {"PYSPARK_SUBMIT_ARGS": f"--driver-class-path {spark}/*{os.pathsep}{kpl} pyspark-shell"}
