"""Run the user's side: a structured streaming query with a checkpoint, which always has a next micro-batch.

Each micro-batch has a partition for each of Spark's slots, so that all of them run at once.  The process prints
``ready`` when Spark has started.  The line ``go`` on stdin starts the query, and ``stop`` ends it after its
micro-batch.  The process prints a line of JSON, a `Batch`, for each micro-batch, and ``null`` after the last.  With
the port of an endpoint the query writes through the KPL, whose numbers are a line of JSON, an array, each second::

    python -m benchmarks.backlog.spark_job WORK BATCH_RECORDS [KPL_PORT]
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from producerd.demo.children import take_stdout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM: Final = "flights"
RECORD_BYTES: Final = 1_000
KEYS: Final = 10_000
ID_DIGITS: Final = 10
COLUMNS: Final = (
    f"CAST(value % {KEYS} AS STRING) AS partition_key",
    f"rpad(concat('<', lpad(value, {ID_DIGITS}, '0'), '>'), {RECORD_BYTES}, '.') AS data",
)
NUMBERS_SECONDS: Final = 0.5
Write = Callable[["DataFrame", int], tuple[int, int]]
"""Writes a micro-batch.  Returns its acknowledged records and the possible duplicates."""


class Batch(NamedTuple):
    """A micro-batch: when Spark began and ended it, on the machine's monotonic clock, and what its writer returned."""

    began: float
    ended: float
    records: int
    possible_duplicates: int


def main(work: Path, batch_records: int, kpl_port: int = 0) -> None:
    from producerd.demo.spark_job import session  # Spark takes a while: `Batch` is for others, too

    pipe, stopping, done = take_stdout(), threading.Event(), threading.Event()
    spark = session(work)

    def say(line: object) -> None:
        pipe.write(json.dumps(line) + "\n")
        pipe.flush()

    write = through_kpl(spark, work, kpl_port, say) if kpl_port else through_producerd

    def write_or_stop(rows: DataFrame, batch_id: int) -> None:
        if stopping.is_set():  # the source has no end
            done.set()
            return
        began = time.monotonic()
        counted = write(rows.selectExpr(*COLUMNS), batch_id)
        say(Batch(began, time.monotonic(), *counted))

    say("ready")
    sys.stdin.readline()
    threading.Thread(target=wait_for_stop, args=(stopping,), daemon=True).start()
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", batch_records)
    query = (
        rows.option("numPartitions", spark.sparkContext.defaultParallelism)
        .load()
        .writeStream.foreachBatch(write_or_stop)
        .option("checkpointLocation", str(work / "checkpoint"))
        .start()
    )
    while not done.wait(0.1) and query.isActive:
        pass
    query.stop()
    if error := query.exception():
        raise error
    say(None)
    spark.stop()


def wait_for_stop(stopping: threading.Event) -> None:
    sys.stdin.readline()
    stopping.set()


def through_producerd(rows: DataFrame, batch_id: int) -> tuple[int, int]:
    from spark_client import write_batch

    result = write_batch(rows, batch_id, stream=STREAM, data="data")
    return result.records, result.possible_duplicates


def through_kpl(spark: SparkSession, work: Path, port: int, say: Callable[[object], None]) -> Write:
    """Start the KPL in Spark's JVM, and report its numbers from now on."""
    jvm: Any = spark.sparkContext._jvm
    sink = jvm.Sink(port, STREAM, str(work))

    def report() -> None:
        while True:
            say(json.loads(sink.numbers()))
            time.sleep(NUMBERS_SECONDS)

    def write(rows: DataFrame, _batch_id: int) -> tuple[int, int]:
        accepted, _, failed = json.loads(sink.numbers())
        texts = rows.selectExpr("concat(partition_key, ' ', data)")._jdf
        sink.write(getattr(texts, "as")(jvm.org.apache.spark.sql.Encoders.STRING()).toLocalIterator())
        accepted_after, _, failed_after = json.loads(sink.numbers())
        return accepted_after - accepted - (failed_after - failed), 0

    threading.Thread(target=report, daemon=True).start()
    return write


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
