"""Run the paths one after the other, with one daemon, one sink and one Spark."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.machine import machine
from benchmarks.spark.cost import cpu_seconds, workers_cpu_seconds
from benchmarks.spark.paths import ALONE, BOTO3, PATHS, Place, map_in_arrow_alone, with_write_batch
from producerd.demo.children import Child, ChildFailed, Children
from producerd.demo.scenario import environment, folder, java
from producerd.demo.spark_job import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT: Final = Path(__file__).resolve().parents[2]
RUNS: Final = 3
WARM_ROWS: Final = 20_000
KEYS: Final = 10_000
TINY_RUNS: Final = 20
TINY_WARM_RUNS: Final = 3
START_SECONDS: Final = 30.0
FASTER_THAN_ANY_SHARD: Final = 10_000
"""Share of a shard's limit that the daemon may send.  It never limits, because the sink accepts any rate."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results, with medians.  A field that has no meaning for a path is None.

    ``rows_per_second`` is measured from the call to its return, when every row is acknowledged.  The CPU times are of
    Spark's Python workers (`benchmarks.spark.cost`) and of the daemon.  ``ratio_to_boto3`` is the workers' CPU time
    with
    boto3, divided by their time on this path.  ``tiny_batch_ms`` is the time for a batch of 0 or 1 rows.
    """

    path: str
    rows: int
    rows_per_second: int | None = None
    python_cpu_ns_per_row: int | None = None
    ratio_to_boto3: float | None = None
    daemon_cpu_ns_per_row: int | None = None
    tiny_batch_ms: float | None = None


class RowsMissing(Exception):
    """Some rows did not reach the sink."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Spark and the processes that it writes to.  ``say`` reports the progress."""

    spark: SparkSession
    place: Place
    daemon: Child
    row_bytes: int
    say: Callable[[str], None]

    @property
    def conditions(self) -> str:
        import pyarrow as pa

        return (
            f"{self.row_bytes} bytes of data and a key of 1 to 4 a row, {self._partitions} partitions, "
            f"{self.spark.sparkContext.defaultParallelism} slots; {machine()}; "
            f"Spark {self.spark.version}, Python {platform.python_version()}, pyarrow {pa.__version__}; medians"
        )

    @property
    def _partitions(self) -> int:
        return 2 * self.spark.sparkContext.defaultParallelism

    def rows(self, count: int) -> DataFrame:
        columns = [f"CAST(id % {KEYS} AS STRING) AS partition_key", f"lpad(id, {self.row_bytes}, 'x') AS data"]
        return self.spark.range(0, count, 1, self._partitions).selectExpr(*columns)

    def paths(self, rows: int) -> Iterator[Figures]:
        """Yield the figures of all paths.  Raise RowsMissing."""
        boto3_ns = 0.0
        for name in PATHS:
            self.say(f"{name}: {RUNS} times {rows:,} rows ...")
            seconds, python_ns, daemon_ns = self._measured(name, rows)
            boto3_ns = boto3_ns or python_ns
            yield Figures(
                name,
                rows,
                rows_per_second=round(rows / seconds),
                python_cpu_ns_per_row=round(python_ns),
                ratio_to_boto3=None if name == ALONE else round(boto3_ns / python_ns, 1),
                daemon_cpu_ns_per_row=None if name in (BOTO3, ALONE) else round(daemon_ns),
            )

    def _measured(self, name: str, rows: int) -> tuple[float, float, float]:
        """Return the seconds, and the CPU time in ns per row of the workers and of the daemon."""
        PATHS[name](self.rows(min(rows, WARM_ROWS)), self.place)()
        step, runs = PATHS[name](self.rows(rows), self.place), []
        for _ in range(RUNS):
            arrived, before, began = self._arrived(), self._cpu(), time.perf_counter()
            step()
            seconds, after = time.perf_counter() - began, self._cpu()
            arrived = self._arrived() - arrived
            if name != ALONE and arrived != rows:
                raise RowsMissing(f"{name}: {arrived:,} of {rows:,} rows arrived")
            runs.append((seconds, *((b - a) * 1e9 / rows for a, b in zip(before, after, strict=True))))
        seconds, python_ns, daemon_ns = map(statistics.median, zip(*runs, strict=True))
        return seconds, python_ns, daemon_ns

    def tiny_batches(self) -> Iterator[Figures]:
        """Yield the figures of batches of 0 and 1 rows, with Spark's own mapInArrow job and `write_batch` in turn."""
        for rows in (0, 1):
            self.say(f"tiny batches of {rows} rows: {TINY_RUNS} times ...")
            df = self.rows(1).coalesce(1).where(f"data < '{'x' * rows}y'" if rows else "data < ''")
            steps = {"map_in_arrow_alone": map_in_arrow_alone, "write_batch": with_write_batch}
            took: dict[str, list[float]] = {name: [] for name in steps}
            for _ in range(TINY_WARM_RUNS + TINY_RUNS):
                for name, path in steps.items():
                    began = time.perf_counter()
                    path(df, self.place)()
                    took[name].append(1_000 * (time.perf_counter() - began))
            for name, milliseconds in took.items():
                median = statistics.median(milliseconds[TINY_WARM_RUNS:])
                yield Figures(f"tiny_batch {name}", rows, tiny_batch_ms=round(median, 1))

    def _cpu(self) -> tuple[float, float]:
        """Return the CPU seconds of the workers and of the daemon."""
        gateway = self.spark.sparkContext._gateway
        assert gateway is not None
        return workers_cpu_seconds(gateway.proc.pid), cpu_seconds(self.daemon.process.pid)

    def _arrived(self) -> int:
        with urllib.request.urlopen(self.place.endpoint_url) as answer:
            return int(answer.read())


@contextlib.contextmanager
def bench(row_bytes: int, say: Callable[[str], None]) -> Iterator[Bench]:
    """Start everything that the benchmark needs, and end all of it after the block.  Raise `ChildFailed`."""
    with folder() as work, Children(work, environment(work)) as children:
        say("starting the sink, the daemon and Spark ...")
        sink = children.start("sink", ["-m", "benchmarks.spark.sink"])
        place = Place(f"http://127.0.0.1:{sink.line(START_SECONDS)}", str(work / "producerd.sock"), work)
        daemon = _daemon(children, place)
        os.environ.update(environment(work) | java(work))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        spark = session(work)
        spark.sparkContext.setLogLevel("OFF")
        try:
            yield Bench(spark, place, daemon, row_bytes, say)
        finally:
            spark.stop()


def _daemon(children: Children, place: Place) -> Child:
    settings = {
        "socket": place.socket,
        "metrics_listen": "",
        "endpoint_url": place.endpoint_url,
        "shard_rate_fraction": FASTER_THAN_ANY_SHARD,
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    daemon = children.start("daemon", ["-m", "producerd", "serve", *sets])
    deadline = time.monotonic() + START_SECONDS
    while not Path(place.socket).exists():
        daemon.poll_line(0.02)  # it raises if the daemon has ended
        if time.monotonic() > deadline:
            raise ChildFailed(f"the daemon did not listen within {START_SECONDS:.0f} s", daemon.log)
    return daemon
