"""The ways from a DataFrame with the columns ``partition_key`` and ``data`` into the sink's stream."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import boto3

from spark_client import KinesisBatchWriter, write_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from benchmarks.harness import Rig

STREAM: Final = "bench"
MOST_RECORDS: Final = 500
"""Most records in one PutRecords."""


Way = Callable[["DataFrame", "Rig"], Callable[[], None]]
"""A way: a function that prepares a run, which is not measured, and returns the function to measure."""


def foreach_partition_boto3(df: DataFrame, rig: Rig) -> Callable[[], None]:
    return partial(df.foreachPartition, partial(put_partition, rig.endpoint_url))


def put_partition(endpoint_url: str, rows: Iterable[tuple[str, str]]) -> None:
    """Send rows as a careful user of boto3 would: in full requests, with failed records sent again."""
    client = boto3.client("kinesis", endpoint_url=endpoint_url)
    entries: list[dict[str, Any]] = []
    for partition_key, data in rows:
        entries.append({"Data": data.encode(), "PartitionKey": partition_key})
        if len(entries) == MOST_RECORDS:
            put_all(client, entries)
            entries = []
    if entries:
        put_all(client, entries)


def put_all(client: Any, entries: list[dict[str, Any]]) -> None:
    delay_seconds = 0.1
    while True:
        answer = client.put_records(StreamName=STREAM, Records=entries)
        if not answer["FailedRecordCount"]:
            return
        results = zip(entries, answer["Records"], strict=True)
        entries = [entry for entry, result in results if "ErrorCode" in result]
        time.sleep(delay_seconds)
        delay_seconds = min(2 * delay_seconds, 5.0)


def with_write_batch(df: DataFrame, rig: Rig) -> Callable[[], None]:
    def run() -> None:
        write_batch(df, stream=STREAM, data="data", socket=rig.socket)

    return run


def batch_writer(df: DataFrame, rig: Rig) -> Callable[[], None]:
    """Prepare a streaming query over files, whose one micro-batch is measured."""
    folder = tempfile.mkdtemp(dir=rig.work)
    df.write.parquet(f"{folder}/rows")
    rows = df.sparkSession.readStream.schema(df.schema).parquet(f"{folder}/rows")
    writer = KinesisBatchWriter(STREAM, data="data", socket=rig.socket)
    query = rows.writeStream.foreachBatch(writer).trigger(availableNow=True)

    def run() -> None:
        checkpoint = tempfile.mkdtemp(dir=folder)
        query.option("checkpointLocation", checkpoint).start().awaitTermination()

    return run


def datasource(df: DataFrame, rig: Rig) -> Callable[[], None]:
    sink = df.write.format("producerd").mode("append").option("stream", STREAM).option("socket", rig.socket)
    return sink.save


def map_in_arrow_alone(df: DataFrame, _: Rig) -> Callable[[], None]:
    """Hand the rows to Python as Arrow and do nothing with them, to measure what Spark itself needs."""

    def run() -> None:
        df.mapInArrow(nothing, "n long").collect()

    return run


def nothing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield from ()


BOTO3: Final = "foreach_partition_boto3"
ALONE: Final = "map_in_arrow_alone"
PATHS: Final[dict[str, Way]] = {
    BOTO3: foreach_partition_boto3,
    "write_batch": with_write_batch,
    "batch_writer": batch_writer,
    **({"datasource": datasource} if importlib.util.find_spec("pyspark_producerd") else {}),
    ALONE: map_in_arrow_alone,
}
