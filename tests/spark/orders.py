"""A Spark driver in a process of its own: ``python -m tests.spark.orders CONF``, where CONF is JSON.

Says ``{"ready": ...}``, then does what each line on stdin asks and answers with one line: the orders are the
functions below, their arguments and answers JSON.  It ends at the end of stdin; it may be killed at any time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from spark_client import KinesisBatchWriter, check, write_batch

QUERY_SECONDS = 100


def write(spark: Any, *, rows: int, partitions: int, **options: Any) -> Any:
    """A batch of ``rows`` rows, whose ids count from 0."""
    frame = spark.range(0, rows, 1, partitions).selectExpr("cast(id as string) as partition_key", "id")
    result = write_batch(frame, **options)
    return {
        "records": result.records,
        "possible_duplicates": result.possible_duplicates,
        "partitions": [partition.records for partition in result.partitions],
        "daemons": [daemon.pid for daemon in result.daemons],
    }


def write_until_interrupted(spark: Any, **arguments: Any) -> Any:
    """The same under PySpark's own handler of SIGINT, as in a script."""
    try:
        write(spark, **arguments)
    except KeyboardInterrupt:
        return {"interrupted": True}
    return {}


def jobs(spark: Any) -> Any:
    """The jobs that run, and the tags that the next one would have."""
    context = spark.sparkContext
    return {"active": list(context.statusTracker().getActiveJobsIds()), "tags": sorted(context.getJobTags())}


def sleep_beside(spark: Any, *, seconds: float) -> Any:
    """Have another job run.  No call waits for it: py4j makes those again when it is interrupted in another one."""
    spark.sparkContext.parallelize([seconds], 1).map(time.sleep)._jrdd.countAsync()
    return {}


def check_cluster(spark: Any, **options: Any) -> Any:
    """What `spark_client.check` shows."""
    return {"shown": str(check(spark, **options))}


def add_artifact(spark: Any, *, path: str) -> Any:
    """Ship a file by Spark Connect."""
    spark.addArtifact(path, file=True)
    return {}


def save(spark: Any, *, rows: int, **options: str) -> Any:
    """The same, by the data source."""
    frame = spark.range(0, rows).selectExpr("id as partition_key", "to_json(struct(id)) as data")
    frame.write.format("producerd").options(**options).mode("append").save()
    return {}


def query(spark: Any, *, files: str, checkpoint: str, files_a_batch: int, **options: Any) -> Any:
    """A streaming query to its end; the sizes of each batch's partitions, where this process runs it (not Connect)."""
    writer, sizes = KinesisBatchWriter(**options), {}

    def write_one(frame: Any, batch_id: int) -> None:
        sizes[batch_id] = [partition.records for partition in writer.write(frame, batch_id).partitions]

    query = start_query(spark, files, checkpoint, files_a_batch, write_one)
    assert query.awaitTermination(QUERY_SECONDS), "the query did not end"
    return {"batches": sizes}


def start_query(spark: Any, files: str, checkpoint: str, files_a_batch: int, write_one: Any) -> Any:
    """A streaming query from `tests.spark.queries.Input`."""
    source = spark.readStream.schema("id INT, partition_key STRING").option("maxFilesPerTrigger", files_a_batch)
    stream = source.json(files).writeStream.foreachBatch(write_one)
    return stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


ORDERS: dict[str, Callable[..., Any]] = {
    order.__name__: order
    for order in (write, write_until_interrupted, jobs, sleep_beside, check_cluster, add_artifact, save, query)
}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the JVM and the workers may print what they like

    def say(answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")

    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("tests.spark")
    for name, value in json.loads(sys.argv[1]).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    say({"ready": spark.version})
    for line in sys.stdin:
        order = json.loads(line)
        try:
            say(ORDERS[order.pop("do")](spark, **order))
        except Exception as error:  # whatever it is, the test looks at it
            say({"error": str(error), "kind": type(error).__name__})
    spark.stop()


if __name__ == "__main__":
    main()
