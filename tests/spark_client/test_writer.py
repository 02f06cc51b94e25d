"""A DataFrame is in the daemon's hands, row for row, when the writer returns; else it raises one clear line."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
import threading
import uuid
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from producerd import __version__
from producerd.errors import Code, ConnectionFailed, ProducerdError, RowFailure
from spark_client import BadColumn, KinesisBatchWriter, write_batch
from spark_client.options import WriterOptions
from spark_client.results import SAME_CLIENT, PartitionResult, marked
from spark_client.task import Plan
from spark_client.writer import _bounded_arrow_batches, _name_of_call
from tests.spark_client.fake_daemon import (
    FakeDaemon,
    Row,
    acks,
    dies,
    lasts,
    serve,
    takes,
    until,
)
from tests.spark_client.fake_spark import AnyConf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[2]


def test_importing_the_client_needs_only_the_standard_library() -> None:
    script = (
        "import sys\n"
        "for name in ('pyarrow', 'pyspark', 'pandas', 'numpy'): sys.modules[name] = None\n"
        "import spark_client, spark_client.batches, spark_client.task\n"
        "spark_client.KinesisBatchWriter(stream='s')\n"
    )
    subprocess.run([sys.executable, "-S", "-c", script], cwd=ROOT, check=True, timeout=60)


def test_a_writer_is_picklable() -> None:
    writer = KinesisBatchWriter("s", "tailnum", "to_json(struct(*))", put_timeout_seconds=3, on_bad_record="skip")
    assert vars(pickle.loads(pickle.dumps(writer))) == vars(writer)


def test_speculation_is_refused() -> None:
    conf = {"spark.speculation": "true"}
    df: Any = SimpleNamespace(sparkSession=SimpleNamespace(conf=conf), isStreaming=False)
    with pytest.raises(ProducerdError, match="allow_speculation=True") as caught:
        write_batch(df, stream="s")
    assert caught.value.code == Code.SPECULATION_ENABLED
    with pytest.raises(AttributeError):
        write_batch(df, stream="s", allow_speculation=True)


@pytest.mark.parametrize("module", ["pyarrow", "pandas"])
def test_a_missing_library_is_named_with_the_cure(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    df: Any = None
    with pytest.raises(ProducerdError, match=rf"{module} is missing .*pip install {module} on") as caught:
        write_batch(df, stream="s")
    assert caught.value.code == Code.ARROW_MISSING


@pytest.fixture
def flights(spark: SparkSession) -> DataFrame:
    """Two partitions of 500 rows, with names that need quoting; every seventh key is null."""
    return spark.range(0, 1_000, 1, 2).selectExpr(
        "id", "IF(id % 7 = 0, NULL, 'N' || id) AS `tail.num`", "id * 2 AS `seat ``count`", "'x' AS data"
    )


def write(daemon: FakeDaemon, df: DataFrame, key: Any = "tail.num", **options: Any) -> Any:
    return write_batch(df, 5, **{"stream": "s", "partition_key": key, "socket": daemon.path, **options})


def written(daemon: FakeDaemon) -> Counter[Row]:
    return Counter(daemon.rows)


@pytest.mark.spark
def test_every_row_arrives_once_as_json_by_default(daemon: FakeDaemon, flights: DataFrame) -> None:
    result = write(daemon, flights.drop("data"))
    assert (result.batch_id, result.records, result.skipped, len(result.partitions)) == (5, 1_000, 0, 2)
    assert all(0 < partition.seconds < result.seconds for partition in result.partitions)
    assert result.bytes == sum(len(key) + len(data or b"") for key, data, _ in daemon.rows)
    assert written(daemon) == Counter(
        (f"N{i}".encode(), f'{{"id":{i},"tail.num":"N{i}","seat `count":{2 * i}}}'.encode(), None)
        if i % 7
        else (b"", f'{{"id":{i},"seat `count":{2 * i}}}'.encode(), None)
        for i in range(1_000)
    )


@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "tailnum"}, r"partition_key='tailnum': no such column, did you mean tail\.num\? columns: id, tail"),
        ({"key": "id +"}, r"partition_key='id \+': neither.*PARSE_SYNTAX_ERROR"),
        ({"data": "id"}, r"data='id' has type bigint: give a string or binary column, such as to_json"),
    ],
)
def test_a_bad_column_is_named_before_any_job(
    daemon: FakeDaemon, flights: DataFrame, options: dict[str, str], message: str
) -> None:
    with pytest.raises(BadColumn, match=message) as caught:
        write(daemon, flights, **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("PRODUCERD[BAD_COLUMN]: ")
    assert daemon.sessions == []


WITH_TIMES = (
    "SELECT 'k' AS partition_key, timestamp'2024-07-01 12:00:00.123456' AS at, timestamp'1890-01-01 00:00:00.5' AS old,"
    " timestamp_ntz'2024-07-01 12:00:00.000001' AS ntz, named_struct('at', timestamp'2024-01-01 00:00:00') AS inner,"
    " date'2024-07-01' AS day"
)


@pytest.mark.spark
@pytest.mark.spark_lane
@pytest.mark.parametrize("conf", [{}, {"spark.sql.legacy.timeParserPolicy": "LEGACY"}], ids=["default", "legacy"])
def test_a_row_as_json_keeps_the_microseconds_of_its_timestamps(
    daemon: FakeDaemon, spark: SparkSession, conf: dict[str, str]
) -> None:
    """ISO 8601 with the session's zone, whatever Spark's legacy settings are; Spark reads the same instants from it."""
    from pyspark.sql import functions as F  # noqa: N812

    conf = {"spark.sql.session.timeZone": "Europe/Berlin", "spark.sql.parser.escapedStringLiterals": "true", **conf}
    before = {name: str(spark.conf.get(name)) for name in conf}
    try:
        for name, value in conf.items():
            spark.conf.set(name, value)
        df = spark.sql(WITH_TIMES)
        write(daemon, df, "partition_key")
        ((_, payload, _),) = daemon.rows
        assert payload is not None
        read = spark.createDataFrame([(payload.decode(),)], "json string").select(
            F.from_json("json", df.schema).alias("row")
        )
        same = read.select("row.*").first() == df.first()
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    told = json.loads(payload)
    assert told["at"] == "2024-07-01T12:00:00.123456+02:00"
    assert told["ntz"] == "2024-07-01T12:00:00.000001"
    assert told["inner"] == {"at": "2024-01-01T00:00:00.000000+01:00"}
    assert told["day"] == "2024-07-01"
    if len(conf) == 2:  # Spark's legacy format has no seconds of a zone's offset
        assert told["old"] == "1890-01-01T00:00:00.500000+00:53:28"
        assert same


@pytest.mark.spark
def test_columns_may_be_names_expressions_or_columns(daemon: FakeDaemon, spark: SparkSession) -> None:
    """Also as Kinesis sources call them, and with their table's name."""
    from pyspark.sql import functions as F  # noqa: N812

    df = spark.sql(
        "SELECT 1 AS id, 'k' AS partitionKey, '7' AS explicitHashKey, 'd' AS data, 'src' AS streamName,"
        " 'a' AS `Tail.Num`, named_struct('Inner', 'c') AS place"
    )
    df = df.alias("flights")
    write(daemon, df, "partition_key", data="data")
    write(daemon, df, "Flights.ID", data="data -- the payload", explicit_hash_key=None)
    write(daemon, df, "id + 1", data=F.encode(F.lit("é"), "UTF-8"), explicit_hash_key="CAST(id AS DECIMAL(38,0))")
    write(daemon, df, "id * 3 AS key", data="data AS payload -- the payload", stream=None, stream_column="streamName")
    write(daemon, df, "id", data="data", stream=None, stream_column="upper(streamName)")
    write(daemon, df, "`TAIL.NUM`", data="data", explicit_hash_key=None)
    write(daemon, df, "PLACE.inner", data="data", explicit_hash_key=None)
    assert daemon.rows_of_streams == [
        ("s", (b"k", b"d", b"7")),
        ("s", (b"1", b"d", b"7")),
        ("s", (b"2", "é".encode(), b"1")),
        ("src", (b"3", b"d", b"7")),
        ("SRC", (b"1", b"d", b"7")),
        ("s", (b"a", b"d", b"7")),
        ("s", (b"c", b"d", b"7")),
    ]


@pytest.mark.spark
@pytest.mark.parametrize(("seconds", "attempts"), [(30, [0, 0, 0]), (0, [0, 0, 1])])
def test_a_daemon_that_dies_costs_no_record_and_no_attempt_if_it_comes_back(
    daemon: FakeDaemon, flights: DataFrame, seconds: float, attempts: list[int]
) -> None:
    daemon.runs(dies, serve)
    result = write(daemon, flights, reconnect_timeout_seconds=seconds)
    assert result.records == 1_000
    assert {key for key, _, _ in daemon.rows} == {b"N%d" % i for i in range(1_000) if i % 7} | {b""}
    assert sorted(hello.attempt for hello in daemon.hellos) == attempts
    assert result.resent == result.possible_duplicates == (500 if seconds else 0)


@pytest.mark.spark
def test_arrow_batches_are_bounded_while_a_batch_runs(daemon: FakeDaemon, spark: SparkSession) -> None:
    if spark.version.startswith("3."):
        pytest.skip("Spark 4 brought the limit in bytes")
    name = "spark.sql.execution.arrow.maxBytesPerBatch"
    before, sizes = spark.conf.get(name), spark.range(0, 40_000, 1, 1).selectExpr("repeat('x', 1000) AS data", "id")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "0")
    try:
        assert write(daemon, sizes, "id", data="data").records == 40_000
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert spark.conf.get(name) == before
    # 40 MB in batches of 4 MiB: the last frame of each is smaller than what a frame may hold.
    small = [body for session in daemon.sessions for body in session.bodies if body.layout.charge_bytes < 1_000_000]
    assert len(small) >= 9


class Conf(AnyConf):
    """A session's, as far as the writer uses it."""

    def set(self, name: str, value: str) -> None:
        self[name] = value

    def unset(self, name: str) -> None:
        del self[name]


@pytest.mark.parametrize(
    ("version", "row_bytes", "value"),
    [
        ("4.3.0", 200.0, "4194304"),
        ("3.5.9", 0.0, "500"),
        ("3.5.9", 200.0, "10000"),
        ("3.5.9", 30_000.0, "139"),
        ("3.5.9", 1e9, "1"),
    ],
)
@pytest.mark.parametrize("before", [None, "77"])
def test_an_arrow_batch_has_a_few_megabytes_on_every_spark(
    version: str, row_bytes: float, value: str, before: str | None
) -> None:
    """By the rows of the batch before, where Spark has no bound in bytes; what the user had set comes back."""
    name = "spark.sql.execution.arrow." + ("maxBytesPerBatch" if version[0] == "4" else "maxRecordsPerBatch")
    conf = Conf(**({name: before} if before else {}))
    with _bounded_arrow_batches(SimpleNamespace(version=version, conf=conf), row_bytes):
        assert conf == {name: value}
    assert conf == ({name: before} if before else {})


@pytest.mark.parametrize("before", [None, "77"])
def test_of_two_batches_at_once_the_one_that_began_first_restores_what_the_user_had(before: str | None) -> None:
    """Else the second would set our own value for good, as it found that one."""
    users = {"spark.sql.execution.arrow.maxBytesPerBatch": before} if before else {}
    spark = SimpleNamespace(version="4.3.0", conf=Conf(users))
    with ExitStack() as second, _bounded_arrow_batches(spark, 0.0):
        second.enter_context(_bounded_arrow_batches(spark, 0.0))
    assert spark.conf == users


class Connected:
    """A session of Spark Connect, as far as a write uses it.  Its job yields the reports that a test names."""

    def __init__(self, version: str = "4.3.0", **conf: str) -> None:
        self.version = version
        self.conf = Conf(conf)
        self.reports: Any = []
        self.ran: list[tuple[Any, str]] = []
        self.bounds: list[str] = []

    sparkSession = property(lambda self: self)  # noqa: N815 - Spark's name
    isStreaming = False  # noqa: N815

    def tags(self, _: str) -> None:
        """Spark's calls that add, remove and cancel a job's tag."""

    addTag = removeTag = interruptTag = tags  # noqa: N815 - Spark's names

    def mapInArrow(self, task: Any, schema: str) -> Connected:  # noqa: N802 - Spark's name
        self.ran.append((task.args[0], schema))
        return self

    def collect(self) -> list[tuple[str]]:
        self.bounds += [self.conf[name] for name in self.conf if "arrow" in name]
        if isinstance(self.reports, Exception):
            raise self.reports
        return [(report.to_line(),) for report in self.reports]


Connected.__module__ = "pyspark.sql.connect.session"


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Connected:
    monkeypatch.setattr("spark_client.writer.select", lambda df, options: df)
    return Connected(**{"spark.app.id": "app-1"})


def report(records: int, stored_bytes: int, *failures: RowFailure) -> PartitionResult:
    return PartitionResult(0, "h", records, stored_bytes, 0, 0, 0, 0, 0, 0.0, 0.0, failures)


def test_a_write_returns_keeps_and_logs_its_result(connected: Connected, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "producerd.client")
    connected.reports = [report(3, 30), report(2, 20)]
    writer = KinesisBatchWriter("s", reconnect_timeout_seconds=7)
    df: Any = connected
    assert writer(df, 4) is None  # type: ignore[func-returns-value]
    result = writer.last_result
    assert result is not None
    assert (result.batch_id, result.records, result.bytes) == (4, 5, 50)
    assert caplog.messages == [str(result)]
    plan = Plan("s", reconnect_timeout_seconds=7, application_id="app-1", batch_id=4)
    assert connected.ran == [(plan, "result string")]


def test_spark_s_configuration_is_read_once_and_a_task_gets_it(connected: Connected) -> None:
    df: Any = connected
    writer = KinesisBatchWriter("s")
    for path in ("/first", "/second"):
        connected.conf["spark.producerd.socket"] = path
        writer.write(df)
    assert [plan.configured_socket for plan, _ in connected.ran] == ["/first", "/first"]


def test_on_spark_3_5_a_batch_is_bounded_by_the_size_of_the_stored_rows_before(connected: Connected) -> None:
    connected.version = "3.5.9"
    skipped = RowFailure(Code.RECORD_INVALID, "no data", 2, False, (0, 1), judged=True)
    df: Any = connected
    writer = KinesisBatchWriter("s", on_bad_record="skip")
    for reports in ([report(10, 24_000, skipped)], [report(2, 0, skipped)], [report(10, 1_000)], []):
        connected.reports = reports
        writer.write(df)
    # 4 MiB in rows of 3,000 bytes, twice, as nothing was stored the second time; then in rows of 100.
    assert connected.bounds == ["500", "1398", "1398", "10000"]


def test_the_files_of_a_write_without_a_query_are_named_after_the_application(connected: Connected) -> None:
    df: Any = connected
    write_batch(df, 3, stream="s", on_bad_record="divert", divert_to="file:///f")
    ((plan, _),) = connected.ran
    assert plan.call.startswith("app-1-")


def test_the_files_of_a_query_are_named_after_it_and_its_own_batch(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller may count batches otherwise."""
    its = {"sql.streaming.queryId": "q", "spark.jobGroup.id": str(uuid.uuid4()), "streaming.sql.batchId": "7"}
    spark: Any = SimpleNamespace(conf=connected.conf, sparkContext=SimpleNamespace(getLocalProperty=its.get))
    assert _name_of_call(spark, WriterOptions("s"), 3).startswith("q-7-")
    del its["streaming.sql.batchId"]
    assert _name_of_call(spark, WriterOptions("s"), 3).startswith("app-1-")


def test_a_task_s_error_is_raised_as_its_line_and_every_other_as_it_is(connected: Connected) -> None:
    line = "PRODUCERD[DAEMON_ABSENT]: host h, partition 0: no daemon"
    lacks = "  return cloudpickle.loads(obj)\nModuleNotFoundError: No module named 'spark_client'\n SQLSTATE: 38000"
    no_client = marked(Code.CONFIGURATION, f"no client {__version__} on the executors: {SAME_CLIENT}")
    df: Any = connected
    for error, kind, said in (
        (RuntimeError(f"Job aborted: x.ProducerdError: {line}\n\tat java"), ConnectionFailed, line),
        (RuntimeError(lacks), ProducerdError, no_client),
        (RuntimeError("Job 3 cancelled"), RuntimeError, "Job 3 cancelled"),
    ):
        connected.reports = error
        with pytest.raises(kind) as caught:
            KinesisBatchWriter("s")(df, 1)
        assert (type(caught.value), str(caught.value)) == (kind, said)
        assert caught.value.__cause__ is None


@pytest.mark.promise("foreach-batch-commits")
@pytest.mark.spark
def test_foreach_batch_commits_only_what_is_acknowledged(
    daemon: FakeDaemon, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commit of the batch is written while one row is unacknowledged; HELLO names query, run, batch and task."""
    from pyspark.sql import functions as F  # noqa: N812

    go_on = threading.Event()

    daemon.runs(lasts(takes(1), lambda _: go_on.wait(60), acks(0)))
    spark.range(0, 10, 1, 1).selectExpr("id AS partition_key", "'d' AS data").write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("partition_key long, data string").parquet(str(tmp_path / "in"))
    monkeypatch.setenv("PRODUCERD_SOCKET", "/only/the/worker's/own/environment/counts")
    spark.conf.set("spark.producerd.socket", daemon.path)
    writer = KinesisBatchWriter("s", data="data")
    try:
        query = (
            stream.observe("producerd", F.count("*").alias("records"))
            .writeStream.foreachBatch(writer)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        until(lambda: daemon.rows)
        assert not query.awaitTermination(1)
        assert not list(tmp_path.glob("checkpoint/commits/[0-9]*"))
        go_on.set()
        assert query.awaitTermination(30)
    finally:
        spark.conf.unset("spark.producerd.socket")
    assert list(tmp_path.glob("checkpoint/commits/0"))
    (hello,) = daemon.hellos
    assert (hello.query_id, hello.run_id, hello.batch_id) == (query.id, query.runId, 0)
    assert (hello.application_id, hello.attempt) == (spark.sparkContext.applicationId, 0)
    assert len(daemon.rows) == 10
    told = [progress for progress in query.recentProgress if progress["numInputRows"]]
    assert [(progress["batchId"], progress["observedMetrics"]["producerd"]["records"]) for progress in told] == [
        (0, 10)
    ]
    assert [(result.batch_id, result.records) for result in writer.results] == [(0, 10)]
    assert not writer.results[0].partitions, "each keeps little, as there may be 100 of them"
