"""Measure the CPU time of Spark's Python workers per row on each way into Kinesis: ``./dev bench spark``.

All ways begin with the same rows, which the JVM makes, and end in the same sink, which answers PutRecords at once.  One
way is `foreachPartition` with boto3 as people write it by hand; the others use producerd.

The CPU time includes all processes below the JVM: pyspark's daemon, the workers that it forks, and the ones that plan
and commit a Python data source.  The driver's own Python is above the JVM and does not count.  The time includes
everything that a worker does: reading from the JVM, unpickling or taking Arrow, the work itself, writing the answer,
and creating a boto3 client in each partition.  It does not include the start of workers and their imports, because
each way first runs once on few rows.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.arguments import at_least
from benchmarks.harness import RecordsWrong, Rig, parser, report, rig, serve_with
from benchmarks.machine import conditions
from benchmarks.processes import cpu_seconds
from benchmarks.spark_paths import ALONE, BOTO3, PATHS
from benchmarks.table import say
from producerd.demo.children import Child
from producerd.demo.scenario import environment, java
from producerd.demo.spark_job import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT: Final = Path(__file__).resolve().parents[1]
ROWS: Final = 1_000_000
ROW_BYTES: Final = 200
RUNS: Final = 3
WARM_ROWS: Final = 20_000
KEYS: Final = 10_000
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results, with medians.  A field that has no meaning for a path is None.

    ``rows_per_second`` is measured from the call to its return, when every row is acknowledged.  The CPU times are of
    Spark's Python workers and of the daemon.  ``ratio_to_boto3`` is the workers' CPU time with boto3, divided by their
    time on this path.
    """

    path: str
    rows_per_second: int
    python_cpu_ns_per_row: int
    ratio_to_boto3: float | None
    daemon_cpu_ns_per_row: int | None


class Process(NamedTuple):
    """A process.  ``reaped_seconds`` is the CPU time of its children that have ended, in steps of 10 ms."""

    pid: int
    parent: int
    reaped_seconds: float


def workers_cpu_seconds(jvm_pid: int) -> float:
    """Return the CPU time until now of all processes below the JVM, including ended ones."""
    everybody = list(_processes())
    below = [process for process in everybody if process.pid == jvm_pid]
    for parent in below:  # the list grows meanwhile
        below += [process for process in everybody if process.parent == parent.pid]
    total = sum(process.reaped_seconds for process in below)
    for process in below[1:]:
        with contextlib.suppress(OSError):  # it has just ended, and its parent has its time
            total += cpu_seconds(process.pid)
    return total


def _processes() -> Iterator[Process]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                reaped_ticks = int(fields[13]) + int(fields[14])
                yield Process(int(entry.name), int(fields[1]), reaped_ticks / TICKS_PER_SECOND)


@dataclass(frozen=True, slots=True)
class Bench:
    """Spark and the processes that it writes to."""

    spark: SparkSession
    rig: Rig
    daemon: Child

    @property
    def conditions(self) -> str:
        return conditions(
            f"Spark {self.spark.version}, {self._partitions} partitions, "
            f"{self.spark.sparkContext.defaultParallelism} slots",
            f"{ROW_BYTES} bytes of data and a key of 1 to 4 a row, JSON over TLS; medians of {RUNS} runs",
        )

    @property
    def _partitions(self) -> int:
        return 2 * self.spark.sparkContext.defaultParallelism

    def _rows(self, count: int) -> DataFrame:
        columns = [f"CAST(id % {KEYS} AS STRING) AS partition_key", f"lpad(id, {ROW_BYTES}, 'x') AS data"]
        return self.spark.range(0, count, 1, self._partitions).selectExpr(*columns)

    def paths(self, rows: int) -> Iterator[Figures]:
        """Yield the figures of all paths.  Raise RecordsWrong."""
        boto3_ns = 0.0
        for name in PATHS:
            say(f"{name}: {RUNS} times {rows:,} rows ...")
            seconds, python_ns, daemon_ns = self._measured(name, rows)
            boto3_ns = boto3_ns or python_ns
            yield Figures(
                name,
                rows_per_second=round(rows / seconds),
                python_cpu_ns_per_row=round(python_ns),
                ratio_to_boto3=None if name == ALONE else round(boto3_ns / python_ns, 1),
                daemon_cpu_ns_per_row=None if name in (BOTO3, ALONE) else round(daemon_ns),
            )

    def _measured(self, name: str, rows: int) -> tuple[float, float, float]:
        """Return the seconds, and the CPU time in ns per row of the workers and of the daemon."""
        PATHS[name](self._rows(min(rows, WARM_ROWS)), self.rig)()
        step, runs = PATHS[name](self._rows(rows), self.rig), []
        for _ in range(RUNS):
            arrived, before, began = self.rig.arrived(), self._cpu(), time.perf_counter()
            step()
            seconds, after = time.perf_counter() - began, self._cpu()
            arrived = self.rig.arrived() - arrived
            if name != ALONE and arrived != rows:
                raise RecordsWrong(f"{name}: {arrived:,} of {rows:,} rows arrived")
            runs.append((seconds, *((b - a) * 1e9 / rows for a, b in zip(before, after, strict=True))))
        seconds, python_ns, daemon_ns = map(statistics.median, zip(*runs, strict=True))
        return seconds, python_ns, daemon_ns

    def _cpu(self) -> tuple[float, float]:
        """Return the CPU seconds of the workers and of the daemon."""
        gateway = self.spark.sparkContext._gateway
        assert gateway is not None
        return workers_cpu_seconds(gateway.proc.pid), cpu_seconds(self.daemon.process.pid)


def measured(options: argparse.Namespace) -> Iterator[Figures]:
    say("starting the sink, the daemon and Spark ...")
    with rig() as ready, ready.daemon(serve_with(ready.settings(wire_format="json"))) as daemon:
        os.environ.update(environment(ready.work) | java(ready.work) | ready.trust)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        spark = session(ready.work)
        spark.sparkContext.setLogLevel("OFF")
        try:
            bench = Bench(spark, ready, daemon)
            say(bench.conditions)
            yield from bench.paths(options.rows)
        finally:
            spark.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser("spark", "What a row costs Spark's Python workers.")
    made.add_argument("--rows", type=at_least(1), default=ROWS, help=f"of each run of each path ({ROWS:,})")
    options = made.parse_args(arguments)
    return report(Figures, measured(options), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
