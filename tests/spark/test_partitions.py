"""Spark's partitions and Kinesis's shards in any proportion, empty ones too: every row is stored once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from spark_client import write_batch
from tests.daemon import DaemonProcess
from tests.spark.service import Kinesis, counted

pytestmark = pytest.mark.spark


@pytest.mark.slow
@pytest.mark.parametrize(("partitions", "shards"), [(1, 16), (24, 1)])
def test_any_number_of_partitions_goes_into_any_number_of_shards(
    spark: Any, kinesis: Kinesis, running: DaemonProcess, partitions: int, shards: int
) -> None:
    """A batch in which all partitions have rows, a tiny one that leaves most of them empty, and an empty one."""
    stream, first = kinesis.stream(shards), 0
    for batch_id, count in enumerate((2_000, 5, 0)):
        ids = spark.range(first, first + count, 1, partitions)
        frame = ids.selectExpr("cast(id as string) as partition_key", "id")
        result = write_batch(frame, batch_id, stream=stream, socket=str(running.socket))
        assert result.records == count
        assert len(result.partitions) == min(partitions, count), "an empty partition has nothing to tell"
        first += count
    assert kinesis.ids(stream) == Counter(range(first))
    metrics = counted(running, stream)
    assert metrics["delivered_records_total"] == metrics["ingest_records_total"] == first
    assert metrics["shards_open"] == shards


@pytest.mark.spark_lane
def test_empty_partitions_and_empty_batches_are_written(spark: Any, kinesis: Kinesis, running: DaemonProcess) -> None:
    stream = kinesis.stream()
    frame = spark.range(0, 9, 1, 3).selectExpr("cast(id as string) as partition_key", "id")
    for condition, count in (("id >= 6", 3), ("id < 0", 0)):
        result = write_batch(frame.where(condition), stream=stream, socket=str(running.socket))
        assert (result.records, len(result.partitions)) == (count, min(count, 1))
    assert kinesis.ids(stream) == Counter((6, 7, 8))


@pytest.mark.promise("dry-run-stores-nothing")
@pytest.mark.spark_lane
def test_a_dry_run_stores_nothing_and_finds_what_the_write_then_does(
    spark: Any, kinesis: Kinesis, running: DaemonProcess
) -> None:
    """Bad rows of all tasks are found, and none of them fails it, whatever the writer's own option says."""
    stream = kinesis.stream(shards=4)
    frame = spark.range(0, 2_000, 1, 3).selectExpr(
        "cast(id as string) as partition_key", "id", "if(id % 600 = 1, null, cast(id as string)) as data"
    )
    options: dict[str, Any] = {"stream": stream, "data": "data", "socket": str(running.socket)}
    result = write_batch(frame, dry_run=True, **options)
    assert not kinesis.data(stream)
    assert (result.records, result.skipped) == (2_000, 4)
    assert result.dry_run is not None
    (found,) = result.dry_run.streams
    assert result.dry_run.bad == {"RECORD_INVALID: data is null": 4}
    assert found.plain == (1_996, result.bytes, 1_996)
    assert 4 <= found.aggregated.units == found.aggregated.records <= 12
    assert (found.open_shards, sum(found.shards.values())) == (4, 1_996)
    assert "nothing is stored: 1,996 of 2,000 records are good" in str(result)
    write_batch(frame, on_bad_record="skip", **options)
    shards = Counter(entry["shard_id"] for entry in kinesis.call(f"entries?stream={stream}")["entries"])
    assert found.shards == shards
