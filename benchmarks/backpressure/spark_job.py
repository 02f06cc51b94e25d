"""Run the user's side: a structured streaming query with a checkpoint, which always has a next micro-batch.

Each micro-batch has a partition for each of Spark's slots, so that all of them run at once.  The process prints
``ready`` when Spark has started, and waits for a line on stdin.  Then it prints a line of JSON, a `Batch`, for each
micro-batch that is stored::

    python -m benchmarks.backpressure.spark_job WORK BATCHES BATCH_RECORDS
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from producerd.demo.children import take_stdout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STREAM: Final = "flights"
RECORD_BYTES: Final = 200
KEYS: Final = 10_000
ID_DIGITS: Final = 10
COLUMNS: Final = (
    f"CAST(value % {KEYS} AS STRING) AS partition_key",
    f"rpad(concat('<', lpad(value, {ID_DIGITS}, '0'), '>'), {RECORD_BYTES}, '.') AS data",
)


class Batch(NamedTuple):
    """The times, on the machine's monotonic clock, at which Spark began a micro-batch and all of it was stored."""

    began: float
    ended: float
    records: int
    seconds_blocked: float
    possible_duplicates: int


def main(work: Path, batches: int, batch_records: int) -> None:
    from producerd.demo.spark_job import session  # Spark takes a while: `Batch` is for others, too
    from spark_client import write_batch

    pipe, done = take_stdout(), threading.Event()
    spark = session(work)

    def write(rows: DataFrame, batch_id: int) -> None:
        if batch_id >= batches:  # the source has no end
            done.set()
            return
        began = time.monotonic()
        result = write_batch(rows.selectExpr(*COLUMNS), batch_id, stream=STREAM, data="data")
        stored = result.records, result.seconds_blocked, result.possible_duplicates
        print(json.dumps(Batch(began, time.monotonic(), *stored)), file=pipe)

    print("ready", file=pipe)
    sys.stdin.readline()
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", batch_records)
    query = (
        rows.option("numPartitions", spark.sparkContext.defaultParallelism)
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(work / "checkpoint"))
        .start()
    )
    while not done.wait(0.1) and query.isActive:
        pass
    query.stop()
    if error := query.exception():
        raise error
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
