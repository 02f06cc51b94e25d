"""``format("producerd")``: a DataFrame is stored whole when Spark says that the write, or the batch, is done."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark.sql.datasource", reason="Spark's data sources in Python begin with Spark 4")

from pyspark.sql.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from producerd.errors import BadColumn, Code, ConfigurationError, ProducerdError, RecordsFailed, RowFailure
from spark_client import datasource
from spark_client.datasource import ProducerdDataSource
from spark_client.results import PartitionResult
from tests.snapshots import Snapshot
from tests.spark_client.fake_daemon import INVALID, FakeDaemon, Session, in_turn
from tests.spark_client.shipped import run_with_zip

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


TYPES = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "long": LongType(),
    "double": DoubleType(),
    "decimal(38,0)": DecimalType(38, 0),
    "decimal(38,2)": DecimalType(38, 2),
    "struct<a: int>": StructType([StructField("a", IntegerType())]),
}


def schema_of(text: str) -> Any:
    fields = (field.split(" ", 1) for field in text.split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in fields])


def source(schema: str, **options: str) -> Any:
    return ProducerdDataSource(options).writer(schema_of(schema), overwrite=False)


REFUSED: list[tuple[str, dict[str, str]]] = [
    ("k string, data string", {"stream": "s"}),
    ("tailnum string, data string", {"stream": "s", "partitionkey": "tailnr"}),
    ("partition_key string", {"stream": "s"}),
    ("partition_key string, data long", {"stream": "s"}),
    ("partition_key double, data string", {"stream": "s"}),
    ("partition_key decimal(38,2), data string", {"stream": "s"}),
    ("partition_key struct<a: int>, data string", {"stream": "s"}),
    ("partition_key string, data string", {}),
    ("partition_key string, data string", {"stream": "s", "explicithashkey": "h"}),
    ("partition_key string, data string", {"streamcolumn": "to"}),
]


def test_a_column_that_cannot_be_sent_is_named_on_the_driver(snapshot: Snapshot) -> None:
    lines = []
    for schema, options in REFUSED:
        with pytest.raises(BadColumn) as caught:
            source(schema, **options)
        lines.append(f"# {schema}, {options}\n{caught.value}\n")
    snapshot("bad_columns_of_the_source", "".join(lines))


def test_options_are_read_when_a_writer_is_made() -> None:
    with pytest.raises(ConfigurationError, match="did you mean onBadRecord"):
        source("partition_key string, data string", onbadrecords="skip")


def test_overwriting_is_refused_with_the_mode_to_give() -> None:
    schema = schema_of("partition_key string, data string")
    with pytest.raises(ConfigurationError, match=r'\.mode\("append"\)'):
        ProducerdDataSource({"stream": "s"}).writer(schema, True)


READS = 'PRODUCERD[CONFIGURATION]: format("producerd") writes and does not read: read a stream with a Kinesis source'


@pytest.mark.slow
@pytest.mark.spark
def test_a_table_takes_rows_and_is_never_read_or_written_over(daemon: FakeDaemon, spark: SparkSession) -> None:
    with pytest.raises(Exception, match="A table USING producerd needs its columns, and each INSERT INTO its options"):
        spark.sql("CREATE TABLE flights USING producerd")
    spark.sql("CREATE TABLE flights (partition_key STRING, data STRING) USING producerd")
    try:
        spark.sql(f"INSERT INTO flights WITH ('stream' = 's', 'socket' = '{daemon.path}') VALUES ('k', 'd')")
        with pytest.raises(Exception, match=r"can only be appended to: give .* or say INSERT INTO"):
            spark.sql("INSERT OVERWRITE flights VALUES ('k', 'd')")
        with pytest.raises(Exception, match="PRODUCERD") as caught:
            spark.table("flights").collect()
    finally:
        spark.sql("DROP TABLE flights")
    assert READS in str(caught.value)
    assert daemon.rows == [(b"k", b"d", None)]


@pytest.fixture
def kinesis_rows(spark: SparkSession) -> DataFrame:
    """What Databricks' Kinesis source produces: two partitions, 1,000 rows, two streams."""
    return spark.range(0, 1_000, 1, 2).selectExpr(
        "IF(id % 7 = 0, NULL, 'k' || id) AS partitionKey",
        "encode('d' || id, 'UTF-8') AS data",
        "IF(id % 2 = 0, 'even', 'odd') AS stream",
        "'shardId-000000000000' AS shardId",
        "'49' AS sequenceNumber",
        "current_timestamp() AS approximateArrivalTimestamp",
    )


def expected(stream: str | None = None) -> Counter[Any]:
    return Counter(
        (stream or ("odd" if i % 2 else "even"), (b"k%d" % i if i % 7 else b"", b"d%d" % i, None)) for i in range(1_000)
    )


@pytest.mark.spark
def test_what_a_kinesis_source_produced_is_written_back_unchanged(daemon: FakeDaemon, kinesis_rows: DataFrame) -> None:
    """By the column that Databricks' source has, or by the one of AWS's where that is asked for; or to one stream."""
    of_aws = kinesis_rows.withColumnRenamed("stream", "streamName")
    with pytest.raises(Exception, match=r"BAD_COLUMN\]: no stream: .* \(data source: streamColumn\)"):
        of_aws.write.format("producerd").option("socket", daemon.path).mode("append").save()
    for df, options, stream in (
        (kinesis_rows, {}, None),
        (of_aws, {"streamColumn": "streamName"}, None),
        (kinesis_rows, {"stream": "all", "onBadRecord": "skip"}, "all"),
    ):
        before = len(daemon.rows_of_streams)
        df.write.format("producerd").options(socket=daemon.path, **options).mode("append").save()
        assert Counter(daemon.rows_of_streams[before:]) == expected(stream)
    assert [hello.bad_rows for hello in daemon.hellos] == [0] * 4 + [1] * 2


@pytest.mark.spark
def test_a_streaming_query_commits_what_is_acknowledged(
    daemon: FakeDaemon, kinesis_rows: DataFrame, tmp_path: Path
) -> None:
    """Real numbers in its progress; HELLO names the query, the batch and the task."""
    query = started(kinesis_rows, tmp_path, socket=daemon.path, flushTimeoutSeconds="30s")
    assert query.awaitTermination(60)
    assert query.exception() is None
    assert Counter(daemon.rows_of_streams) == expected()
    assert query.lastProgress["sink"]["numOutputRows"] == 1_000
    assert {(hello.query_id, hello.run_id, hello.batch_id) for hello in daemon.hellos} == {(query.id, query.runId, 0)}


def started(df: DataFrame, folder: Path, **options: str) -> Any:
    df.write.parquet(str(folder / "in"))
    stream = df.sparkSession.readStream.schema(df.schema).parquet(str(folder / "in"))
    writer = stream.writeStream.format("producerd").options(**options)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()


@pytest.mark.spark
def test_failed_rows_fail_the_batch_in_one_line_and_no_task_is_repeated(
    daemon: FakeDaemon, kinesis_rows: DataFrame, tmp_path: Path
) -> None:
    daemon.runs(in_turn(Session.welcome, lambda s: s.serve(lambda row: INVALID if row[0] == b"k8" else None)))
    query = started(kinesis_rows.coalesce(1), tmp_path, socket=daemon.path, stream="s")
    with pytest.raises(Exception, match="RECORD_INVALID"):
        query.awaitTermination(60)
    text = str(query.exception())
    assert "RecordsFailed: PRODUCERD[RECORD_INVALID]: host " in text
    assert "RECORD_INVALID 1 (data is null), rows 0:8; fix these rows" in text
    assert len(daemon.sessions) == 1
    assert not list(tmp_path.glob("checkpoint/commits/[0-9]*"))


def test_rows_one_by_one_become_the_same_batches(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.0 hands rows to its streaming sinks: null keys and data stay null, numbers become text."""
    monkeypatch.setattr(datasource, "STREAMS_ARROW", False)
    schema = schema_of("extra int, partitionKey long, data binary, stream string")
    writer = ProducerdDataSource({"socket": daemon.path, "onBadRecord": "skip"}).streamWriter(schema, False)
    sent: list[pa.RecordBatch] = []
    monkeypatch.setattr(datasource, "send", lambda plan, batches: sent.extend(batches))
    writer.write(iter([(1, 7, bytearray(b"a"), "s"), (2, None, None, None)] * 1_100))
    assert [batch.num_rows for batch in sent] == [1_000, 1_000, 200]
    assert sent[0].slice(0, 2).to_pydict() == {
        "partition_key": ["7", None],
        "data": [b"a", None],
        "stream": ["s", None],
    }


@pytest.mark.slow
@pytest.mark.spark
def test_it_works_from_a_zip_after_one_line(daemon: FakeDaemon, tmp_path: Path) -> None:
    """Shipped by --py-files to a cluster's executors, where nothing is installed: both ways to write find it."""
    script = (
        "import sys\n"
        "from pyspark.sql import SparkSession\n"
        "spark = (SparkSession.builder.master('local-cluster[2,1,1024]').config('spark.ui.enabled', 'false')\n"
        "    .config('spark.submit.pyFiles', sys.argv[1]).getOrCreate())\n"
        "from spark_client.datasource import ProducerdDataSource\n"
        "assert 'client.zip' in sys.modules['spark_client'].__file__\n"
        "spark.dataSource.register(ProducerdDataSource)\n"
        "df = spark.range(0, 10, 1, 4).selectExpr('id AS partition_key', \"'d' AS data\")\n"
        "df.write.format('producerd').options(stream='s', socket=sys.argv[2]).mode('append').save()\n"
        "import spark_client\n"
        "assert spark_client.write_batch(df.limit(5), stream='s', socket=sys.argv[2]).records == 5\n"
    )
    run_with_zip(tmp_path, script, daemon.path)
    assert len(daemon.rows) == 15


@pytest.mark.parametrize(
    "schema", ["partition_key string, data string, data string", "partition_key string, DATA int, Data string"]
)
def test_a_name_that_several_columns_have_is_refused(schema: str) -> None:
    """Never the first of them."""
    with pytest.raises(
        BadColumn, match=r"^PRODUCERD\[BAD_COLUMN\]: data='(data|DATA)': several columns have this name"
    ):
        source(schema, stream="s")


@pytest.mark.parametrize(
    ("schema", "columns", "row"),
    [
        ("DATA int, data string, partition_key string", {"DATA": [1], "data": ["d"], "key": ["k"]}, (b"k", b"d", None)),
        (
            "data binary, explicit_hash_key decimal(38,0), partition_key long",
            {"data": [b"d"], "hash": [Decimal(9)], "key": [7]},
            (b"7", b"d", b"9"),
        ),
    ],
    ids=["names that differ in case", "whole numbers as keys"],
)
def test_columns_are_found_by_name_and_sent_as_they_are(
    schema: str, columns: dict[str, list[Any]], row: Any, daemon: FakeDaemon
) -> None:
    writer = source(schema, stream="s", socket=daemon.path)
    writer.write(iter([pa.RecordBatch.from_pydict(columns)]))
    assert daemon.rows == [row]


# ---- what Spark calls


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda asked: asked.schema(), f"{datasource.ONLY_WRITES}. {datasource.OF_TABLES}"),
        (lambda asked: asked.reader(schema_of("data string")), datasource.ONLY_WRITES),
        (lambda asked: asked.streamReader(schema_of("data string")), datasource.ONLY_WRITES),
    ],
    ids=["schema", "batch", "stream"],
)
def test_to_read_is_refused(ask: Callable[[Any], object], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ask(ProducerdDataSource({}))
    assert str(caught.value) == f"PRODUCERD[CONFIGURATION]: {said}"


def writers(**options: str) -> Iterator[Any]:
    """What a task of a batch and one of a query write with."""
    schema, its = schema_of("partition_key string, data string"), ProducerdDataSource({"stream": "s", **options})
    yield its.writer(schema, False)
    yield its.streamWriter(schema, False)


ROW = pa.RecordBatch.from_pydict({"partition_key": ["k"], "data": ["d"]})


def rows_for(writer: Any) -> Iterator[Any]:
    """One row, as Spark hands it over."""
    takes_rows = "Stream" in type(writer).__name__ and not datasource.STREAMS_ARROW
    return iter([("k", "d")] if takes_rows else [ROW])


def test_a_task_s_commit_has_its_report_unless_it_had_no_rows(daemon: FakeDaemon) -> None:
    for writer in writers(socket=daemon.path):
        line = writer.write(rows_for(writer)).line
        assert PartitionResult.from_line(line).records == 1
        assert writer.write(iter([])).line is None
    assert daemon.rows == [(b"k", b"d", None)] * 2


def test_a_task_under_speculation_sends_no_row_unless_that_is_allowed(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasource, "local_property", {"spark.speculation": "true"}.get)
    for writer in writers(socket=daemon.path):
        with pytest.raises(ProducerdError) as caught:
            writer.write(rows_for(writer))
        assert caught.value.code == Code.SPECULATION_ENABLED
    assert daemon.sessions == []
    for writer in writers(socket=daemon.path, allowspeculation="true"):
        writer.write(rows_for(writer))
    assert len(daemon.rows) == 2


def commit(writer: Any, *messages: Any) -> None:
    """Commit as the driver does, with None for a task that has not committed."""
    batch_id = (7,) if "Stream" in type(writer).__name__ else ()
    writer.commit([None, *messages], *batch_id)


def test_the_driver_s_commit_logs_the_sum_and_raises_for_rows_that_failed(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "producerd.client")
    daemon.runs(in_turn(Session.welcome, lambda session: session.serve(lambda _: INVALID)))
    bad = RowFailure(Code.RECORD_INVALID, "data is null", 1, False, (0,), judged=True, stream="s")
    for writer in writers(socket=daemon.path):
        with pytest.raises(RecordsFailed) as caught:
            commit(writer, writer.write(rows_for(writer)))
        assert caught.value.failures == (bad,)
    assert caplog.messages == []
    for writer in writers(socket=daemon.path, onbadrecord="skip"):
        commit(writer, writer.write(rows_for(writer)), writer.write(iter([])))
    assert len(caplog.messages) == 2
    for line, batch in zip(caplog.messages, ("", ", batch 7")):
        assert line.startswith(f"s{batch}: 1 records, 0 bytes in 1 task, ")
        assert line.endswith(", 1 skipped; skipped (partition:row): 0:0 RECORD_INVALID: data is null")
