"""Spark's batches succeed without the rows that can never be stored, and these are in files, also after a repeat."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from producerd.errors import FlushTimeout, RecordsFailed
from spark_client import write_batch
from tests.daemon import DaemonProcess, daemon
from tests.spark.orders import query, start_query
from tests.spark.queries import Input
from tests.spark.service import Kinesis

pytestmark = pytest.mark.spark
BAD = "CASE WHEN id % 50 = 3 THEN NULL ELSE to_json(struct(id)) END"
"""The data of a row: null in two of a hundred."""


def diverted(folder: Path) -> dict[str, list[tuple[int, str]]]:
    """The row numbers and keys in each file."""
    return {
        path.name: [(row["row"], row["partition_key"].decode()) for row in pq.read_table(path).to_pylist()]
        for path in sorted(folder.iterdir())
    }


@pytest.mark.promise("repeated-batch-replaces")
@pytest.mark.spark_lane
def test_a_repeated_batch_replaces_its_files_and_no_other(
    spark: Any, kinesis: Kinesis, running: DaemonProcess, tmp_path: Path
) -> None:
    given, stream, to = Input(tmp_path, files=6, rows_a_file=100), kinesis.stream(), tmp_path / "bad"
    options: dict[str, Any] = {"stream": stream, "socket": str(running.socket), "data": BAD}
    options.update(on_bad_record="divert", divert_to=to.as_uri())
    query(spark, **given.query(2), **options)
    good = Counter(number for number in range(given.rows) if number % 50 != 3)
    assert kinesis.ids(stream) == good
    query_id = json.loads((given.checkpoint / "metadata").read_text())["id"]
    files = diverted(to)
    calls = {name.rpartition("-")[0] for name in files}
    assert [re.sub("-[0-9a-f]{8}-", "-DIGEST-", call) for call in sorted(calls)] == [
        f"{query_id}-{batch}-DIGEST-0" for batch in range(3)
    ]
    keys = Counter(key for rows in files.values() for _, key in rows)
    assert keys == Counter(f"N{number % 211}" for number in range(given.rows) if number % 50 == 3)

    written = {name: (to / name).stat().st_mtime_ns for name in files}
    given.forget_commit(2)
    query(spark, **given.query(2), **options)
    assert kinesis.ids(stream) == good + Counter(number for number in given.batch(2) if number % 50 != 3)
    assert diverted(to) == files
    again = {name for name in files if (to / name).stat().st_mtime_ns != written[name]}
    assert again == {name for name in files if name.startswith(f"{query_id}-2-")}


@pytest.mark.promise("task-writes-bad-rows")
def test_each_write_of_a_batch_job_has_files_of_its_own_and_they_can_be_written_again(
    spark: Any, kinesis: Kinesis, running: DaemonProcess, tmp_path: Path
) -> None:
    stream, frame = kinesis.stream(), spark.range(0, 100, 1, 2).withColumnRenamed("id", "partition_key")
    options: dict[str, Any] = {"stream": stream, "socket": str(running.socket)}
    for _ in range(2):
        result = write_batch(
            frame.selectExpr("partition_key", "partition_key AS id"),
            data=BAD,
            on_bad_record="divert",
            divert_to=tmp_path.as_uri(),
            **options,
        )
        assert (result.records, result.skipped, len(result.diverted)) == (100, 2, 2)
    assert len(diverted(tmp_path)) == 4
    fixed = spark.read.parquet(str(tmp_path)).selectExpr("partition_key", "'fixed' AS data")
    assert write_batch(fixed, data="data", **options).records == 4


@pytest.mark.promise("repeated-batch-replaces")
def test_the_data_source_diverts_as_the_writer_does(
    spark: Any, kinesis: Kinesis, running: DaemonProcess, tmp_path: Path
) -> None:
    if int(spark.version.split(".")[0]) < 4:
        pytest.skip('format("producerd") needs Spark 4')
    given, stream, to = Input(tmp_path, files=2, rows_a_file=100), kinesis.stream(), tmp_path / "bad"
    options = {"stream": stream, "socket": str(running.socket), "onBadRecord": "divert", "divertTo": to.as_uri()}
    rows = spark.readStream.schema("id INT, partition_key STRING").json(str(given.files))
    sink = rows.selectExpr("partition_key", f"{BAD} AS data").writeStream.format("producerd").options(**options)
    streaming = sink.option("checkpointLocation", str(given.checkpoint)).trigger(availableNow=True).start()
    assert streaming.awaitTermination(60)
    query_id = json.loads((given.checkpoint / "metadata").read_text())["id"]
    of_stream = diverted(to)
    assert {name.rpartition("-")[0] for name in of_stream} == {f"{query_id}-0-sink"}
    assert sum(map(len, of_stream.values())) == 4

    frame = spark.range(0, 100, 1, 1).selectExpr("id AS partition_key", f"{BAD} AS data")
    frame.write.format("producerd").options(**options).mode("append").save()
    (one,) = diverted(to).keys() - of_stream.keys()
    assert diverted(to)[one] == [(3, "3"), (53, "53")]
    assert kinesis.ids(stream) == Counter(number for number in range(200) if number % 50 != 3) + Counter(
        number for number in range(100) if number % 50 != 3
    )


@pytest.mark.promise("message-judges-record", "way-stream-refused-good")
def test_where_the_way_or_the_stream_is_refused_no_good_row_is_left_out(
    spark: Any, kinesis: Kinesis, tmp_path: Path
) -> None:
    """A front end refuses every request, and then Kinesis itself does, without a word about a record."""
    frame = spark.range(0, 5, 1, 1).selectExpr("id AS partition_key", f"{BAD} AS data")
    text = "StreamARN and StreamName do not match"
    refusal = {"kind": "error", "status": 400, "code": "InvalidArgumentException", "message": text}
    with daemon(kinesis.url, tuning={"permanent_error_grace_seconds": 0.5}) as running:
        options: dict[str, Any] = {"socket": str(running.socket), "data": "data"}
        kinesis.call("faults", {"standing": [{"kind": "replaced", "status": 413}]})
        with pytest.raises(FlushTimeout, match="last error: 413: "):
            write_batch(frame, stream=kinesis.stream(), on_bad_record="skip", flush_timeout_seconds=1.0, **options)
        kinesis.call("faults", {"standing": [refusal]})
        with pytest.raises(RecordsFailed, match=rf"^PRODUCERD\[REQUEST_REFUSED\]: .*: 4 records failed; .*{text}"):
            write_batch(frame, stream=kinesis.stream(), on_bad_record="divert", divert_to=tmp_path.as_uri(), **options)
        kinesis.recover()
    assert not [*tmp_path.iterdir()]


@pytest.mark.promise("repeated-batch-replaces")
def test_no_write_of_a_foreach_batch_replaces_the_rows_of_another(
    spark: Any, kinesis: Kinesis, running: DaemonProcess, tmp_path: Path
) -> None:
    """By the writer and by the data source, with and without a batch's number, and under job groups of the user's."""
    given, to = Input(tmp_path, files=2, rows_a_file=100), tmp_path / "bad"
    streams = [kinesis.stream(), kinesis.stream()]
    place = {"socket": str(running.socket)}
    sources = int(spark.version.split(".")[0]) >= 4
    diverts: dict[str, Any] = {"data": BAD, "on_bad_record": "divert", "divert_to": to.as_uri(), **place}
    options = {"onBadRecord": "divert", "divertTo": to.as_uri(), **place}

    def write(frame: Any, batch_id: int) -> None:
        for stream in streams:
            write_batch(frame, batch_id, stream=stream, **diverts)
            write_batch(frame, stream=stream, **diverts)
            if sources:
                rows = frame.selectExpr("partition_key", f"{BAD} AS data")
                rows.write.format("producerd").options(stream=stream, **options).mode("append").save()
        frame.sparkSession.sparkContext.setJobGroup("mine", "a user's")
        for stream in streams:
            write_batch(frame, batch_id, stream=stream, **diverts)

    streaming = start_query(spark, str(given.files), str(given.checkpoint), 1, write)
    assert streaming.awaitTermination(100)
    query_id = json.loads((given.checkpoint / "metadata").read_text())["id"]
    tables = [(path.name, pq.read_table(path).to_pylist()) for path in to.iterdir()]
    writes = 4 if sources else 3
    assert Counter(row["stream"] for _, rows in tables for row in rows) == dict.fromkeys(streams, writes * 4)
    of_query = {(row["stream"], name.split("-")[-3]) for name, (row, *_) in tables if name.startswith(query_id)}
    assert len(of_query) == len({digest for _, digest in of_query}) == 2, "one may be left out of a repeat"
