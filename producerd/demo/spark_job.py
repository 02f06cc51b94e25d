"""Run the user's side of the demo: a structured streaming query of a few lines, over files, with a checkpoint.

This process prints ``ready`` when Spark has started, and waits for a line on stdin: the settings of a daemon that its
tasks start, as JSON, or null.  Then it runs the query over all files and prints a line of JSON with the micro-batches
and rows that Spark counted::

    python -m producerd.demo.spark_job FOLDER WORK FILES_PER_BATCH
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from producerd.demo import flights
from producerd.demo.children import take_stdout
from spark_client import KinesisBatchWriter

JAVA_OPTIONS: Final = "-Xss16m -XX:-UsePerfData"
"""Options of Spark's JVM.  Without the first, stopping a query prints 1,000 lines of StackOverflowError.

Without the second, a JVM that is killed leaves a file in /tmp.
"""
SCHEMA: Final = ", ".join(f"{name} {'STRING' if name in flights.TEXTS else 'INT'}" for name in flights.COLUMNS)


def session(work: Path, cores: int = 0) -> SparkSession:
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -Djava.io.tmpdir={work}",  # in our folder
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(work / "scratch"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    cores = cores or max(2, min(4, os.cpu_count() or 2))
    builder = SparkSession.builder.appName("producerd demo").master(f"local[{cores},4]")  # each task has 4 attempts
    return builder.config(map=settings).getOrCreate()


def start(
    spark: SparkSession, folder: Path, work: Path, files_per_batch: int, daemon: Mapping[str, Any] | None
) -> StreamingQuery:
    files = spark.readStream.schema(SCHEMA).option("header", True).option("nullValue", flights.MISSING)
    rows = files.option("maxFilesPerTrigger", files_per_batch).csv(str(folder))
    write = KinesisBatchWriter(stream=flights.STREAM, partition_key=flights.KEY, daemon=daemon)
    return (
        rows.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def main(folder: Path, work: Path, files_per_batch: int) -> None:
    pipe = take_stdout()
    spark = session(work)
    print("ready", file=pipe)
    query = start(spark, folder, work, files_per_batch, json.loads(sys.stdin.readline()))
    query.awaitTermination()
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    print(json.dumps({"batches": len(batches), "rows": sum(b["numInputRows"] for b in batches)}), file=pipe)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
