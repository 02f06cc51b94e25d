"""A task sends its whole partition or says in one line why not; what is reported names rows, never their data."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from producerd.errors import (
    BackpressureTimeout,
    Code,
    FlushTimeout,
    ProducerdError,
    RecordsFailed,
    RowFailure,
)
from producerd.wire import messages
from producerd.wire.columns import Body
from producerd.wire.messages import BadRows
from spark_client import __version__
from spark_client.daemon_settings import DaemonSettings
from spark_client.options import WriterOptions
from spark_client.results import (
    BatchResult,
    DaemonFigures,
    PartitionResult,
    SkippedRow,
    merge,
)
from spark_client.tally import Tally
from spark_client.task import Plan, send_partition, speculates
from tests.spark_client.fake_daemon import (
    INVALID,
    FakeDaemon,
    Script,
    Session,
    dies,
    ends,
    expects,
    in_turn,
    lasts,
    refuses,
    stores,
)


def batch(data: list[str | None], keys: list[str | None] | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"partition_key": pa.array(keys or [f"k{i}" for i in range(len(data))], pa.string()), "data": pa.array(data)}
    )


def send(daemon: FakeDaemon, *batches: pa.RecordBatch, **options: Any) -> list[PartitionResult]:
    plan = Plan("s", daemon.path)._replace(**options)
    return [PartitionResult.from_line(made.column(0)[0].as_py()) for made in send_partition(plan, iter(batches))]


def result(partition: int, *failures: RowFailure, records: int = 10) -> PartitionResult:
    return PartitionResult(partition, f"host{partition}", records, 100, 1, 2, 3, 4, 5, 0.5, 0.25, failures)


def test_a_partition_is_sent_over_one_connection(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its report has every count, and seconds to the millisecond."""
    monkeypatch.setattr(Tally, "add_blocked", lambda tally, _: setattr(tally, "seconds_blocked", 1.23456))
    monkeypatch.setattr(Tally, "add_flushing", lambda tally, _: setattr(tally, "seconds_flushing", 6.54321))
    counted = lasts(stores(2, retries=6, throttled=7, possible_duplicates=8, spread_keys=9))
    daemon.runs(dies, counted)
    (report,) = send(daemon, batch(["a", "b"]), batch([]), batch(["c"]))
    assert (report.partition, report.host, report.records, report.bytes) == (0, socket.gethostname(), 3, 9)
    assert (report.retries, report.throttled, report.spread_keys, report.failures) == (12, 14, 18, ())
    assert (report.resent, report.possible_duplicates) == (2, 16 + 2)
    assert (report.seconds_blocked, report.seconds_flushing) == (1.235, 6.543)
    assert [data for _, (_, data, _) in daemon.sessions[1].rows] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(("batch_id", "told"), [(None, 7), (3, 3)])
def test_a_task_says_which_batch_it_is_of(
    batch_id: int | None, told: int, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan knows, or Spark's local property."""
    monkeypatch.setattr("spark_client.task.local_property", {"streaming.sql.batchId": "7"}.get)
    send(daemon, batch(["a"]), batch_id=batch_id)
    assert [hello.batch_id for hello in daemon.hellos] == [told]


def test_a_task_s_time_has_what_spark_needs_for_its_first_rows(daemon: FakeDaemon) -> None:
    """Otherwise the share of it in which the task waited would blame the daemon."""

    def made_slowly() -> Iterator[pa.RecordBatch]:
        time.sleep(0.05)
        yield batch(["a"])

    (made,) = send_partition(Plan("s", daemon.path), made_slowly())
    assert PartitionResult.from_line(made.column(0)[0].as_py()).seconds >= 0.05


def test_a_plan_has_the_defaults_of_the_options() -> None:
    assert Plan.of(WriterOptions("s")) == Plan("s")
    assert Plan.of(WriterOptions("s", daemon={}), batch_id=4) == Plan("s", batch_id=4, daemon=DaemonSettings.of({}))


@pytest.mark.parametrize(("setting", "does"), [("true", True), ("TRUE", True), ("false", False), (None, False)])
def test_two_copies_of_a_task_may_run_at_once_where_spark_speculates(setting: str | None, does: bool) -> None:
    assert speculates(setting) is does


class Context:
    """A task's, as far as a task asks it."""

    properties: Mapping[str, str] = {"sql.streaming.queryId": "q", "spark.jobGroup.id": "r"}

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self.properties.get(name)

    def stageId(self) -> int:  # noqa: N802 - Spark's name
        return 3

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return 5

    def attemptNumber(self) -> int:  # noqa: N802 - Spark's name
        return 2


@pytest.mark.parametrize(
    ("context", "places"),
    [(None, ("", "", 0, 0, 0, 0)), (Context(), ("q", "r", 0, 3, 5, 2))],
    ids=["under Spark Connect", "in a query"],
)
@pytest.mark.parametrize(("skip", "bad_rows"), [(False, BadRows.REFUSE_FRAME), (True, BadRows.TAKE_GOOD)])
def test_a_task_names_its_query_its_batch_and_itself(
    context: Any,
    places: tuple[Any, ...],
    skip: bool,
    bad_rows: BadRows,
    daemon: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: context)
    send(daemon, batch(["a"]), application_id="app", skip_bad_records=skip)
    (hello,) = daemon.hellos
    client = f"spark_client {__version__}, Python {platform.python_version()}"
    who: Any = messages.OnDisconnect.DISCARD, bad_rows, client, "app", *places, os.getpid()
    assert dataclasses.replace(hello, comes_back=0) == messages.Hello(messages.VERSION, messages.VERSION, *who)


class Own:
    """A daemon that tasks start, which runs already."""

    log = "/its.log"

    def __init__(self, path: str) -> None:
        self.paths = (path,)
        self.started = 0

    def start(self) -> None:
        self.started += 1

    def last_line(self) -> str:
        return "its last line"

    def figures(self, pid: int) -> DaemonFigures:
        return DaemonFigures("h", pid, None, 1, 0.5, self.log)


def test_a_task_s_result_has_what_its_own_daemon_has_used(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Own(daemon.path)
    monkeypatch.setattr(Plan, "own_daemon", lambda _: own)
    (report,) = send(daemon, batch(["a"]), socket="/not/this/one")
    assert report.daemon == own.figures(os.getpid())
    assert own.started == 0, "it answered"


@pytest.mark.parametrize("code", [Code.DAEMON_LOST, Code.KMS])
def test_the_log_of_its_own_daemon_is_quoted_where_that_is_lost(
    code: str, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = ends(expects(messages.Reserve))
    daemon.runs(gone if code == Code.DAEMON_LOST else lasts(refuses(code, "the key is disabled")))
    own = Own(daemon.path)
    monkeypatch.setattr(Plan, "own_daemon", lambda _: own)
    with pytest.raises(ProducerdError) as caught:
        send(daemon, batch(["x"]), reconnect_timeout_seconds=0)
    assert caught.value.code == code
    assert ("; its log /its.log ends with: its last line" in str(caught.value)) is (code == Code.DAEMON_LOST)


def test_an_empty_partition_opens_no_connection(daemon: FakeDaemon) -> None:
    assert send(daemon) == send(daemon, batch([]), batch([])) == []
    assert daemon.sessions == []


def test_a_frame_that_is_too_large_is_cut_again(daemon: FakeDaemon) -> None:
    """Refused first by bytes, then by records: every row arrives once, in order."""
    by_bytes = refuses(Code.TOO_LARGE, max_frame_bytes=1_024 + 39 * 35, max_frame_records=10_000)
    by_records = refuses(Code.TOO_LARGE, max_frame_bytes=0, max_frame_records=1)
    daemon.runs(lasts(by_bytes, stores(2), by_records, stores(22)))
    (report,) = send(daemon, batch(["x"] * 100, [f"{i:02}" for i in range(100)]))
    assert report.records == 100
    assert [body.layout.records for body in daemon.sessions[0].bodies] == [39, 39, *[1] * 22]
    assert [key for key, _, _ in daemon.rows] == [b"%02d" % i for i in range(100)]


def test_a_task_that_cannot_go_on_says_so_in_one_marked_line(daemon: FakeDaemon) -> None:
    daemon.runs(lasts(refuses(Code.KMS, "the key\nis disabled")))
    with pytest.raises(
        ProducerdError,
        match=r"^PRODUCERD\[KMS\]: host \S+, partition 0: the key is disabled; allow the stream",
    ) as caught:
        send(daemon, batch(["x"]))
    assert caught.value.code == Code.KMS
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_partition_with_failed_rows_is_reported_and_goes_no_further(daemon: FakeDaemon) -> None:
    sent = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal sent
        for _ in range(1_000):
            sent += 1
            yield batch(["good", None, "good"])

    bad = in_turn(Session.welcome, lambda session: session.serve(lambda row: INVALID if row[1] is None else None))
    daemon.runs(bad)
    (made,) = send_partition(Plan("s", daemon.path), batches())
    report = PartitionResult.from_line(made.column(0)[0].as_py())
    assert report.failures[0].rows[0] == 1
    assert sent < 100


def test_a_batch_is_the_sum_of_its_partitions() -> None:
    skipped = RowFailure(Code.RECORD_INVALID, "data is null", 30, False, tuple(range(20)), judged=True)
    merged = merge(7, "s", [result(1, skipped), result(0)], skip_bad_records=True)
    assert merged == BatchResult(
        *(7, 20, 200, 30, 2, 4, 6, 8, 10, 1.0, 0.5),
        tuple(SkippedRow(1, row, Code.RECORD_INVALID, reason="data is null") for row in range(20)),
        (result(0), result(1, skipped)),
        stream="s",
    )


@pytest.mark.parametrize("error", [BackpressureTimeout("no room"), FlushTimeout("not acknowledged")])
def test_a_task_that_waited_too_long_names_its_option(error: ProducerdError, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_long(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr("spark_client.task._send", too_long)
    option = "put_timeout_seconds" if isinstance(error, BackpressureTimeout) else "flush_timeout_seconds"
    with pytest.raises(ProducerdError, match=f": {error}; to wait longer, raise {option}$"):
        list(send_partition(Plan("s"), []))


def streams(*named: str | bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "partition_key": pa.array(["k"] * len(named)),
            "data": pa.array([f"row {i}" for i in range(len(named))]),
            "stream": pa.array(named),
        }
    )


def knows(*names: str) -> Script:
    """Return a script: the daemon opens streams of these names only, and serves."""

    def opens(session: Session) -> None:
        session.welcome()
        with contextlib.suppress(EOFError):
            while True:
                message = session.read()
                if isinstance(message, messages.Open) and message.stream in names:
                    session.send(messages.Opened(message.stream_id, 1 << 20, 100))
                elif isinstance(message, messages.Open):
                    session.send(messages.Refused(0, message.stream_id, Code.STREAM_LIMIT, f"{message.stream!r}: no"))
                elif isinstance(message, messages.Reserve):
                    session.send(messages.Grant(message.frame_id))
                elif isinstance(message, Body):
                    session.ack(message)

    return opens


def test_a_stream_that_is_refused_fails_its_rows_and_not_the_task(daemon: FakeDaemon) -> None:
    """Another attempt would only store the rows of the other streams once more."""
    daemon.runs(knows("a", "c"))
    (report,) = send(daemon, streams("a", "b", "c", "b"), streams("a", "a"), stream=None)
    assert report.failures == (RowFailure(Code.STREAM_LIMIT, "'b': no", 2, False, (1, 3), "b"),)
    assert len(daemon.rows) == 2, "what comes behind a failure is not sent"
    with pytest.raises(
        RecordsFailed, match=r"^PRODUCERD\[STREAM_LIMIT\]: .* STREAM_LIMIT 2 of stream b .*rows 0:1, 0:3"
    ):
        merge(None, None, [report], skip_bad_records=True)


def test_what_cannot_be_a_stream_s_name_is_a_bad_record_and_is_not_quoted(daemon: FakeDaemon) -> None:
    odd = [b"PRODUCERD[X]: SECRET", b"a", "SECRET ü".encode(), b"SECRET\xff\n", b"SECRET" * 1_000, b"", None]
    (report,) = send(daemon, streams(*odd), streams("a", ""), stream=None, skip_bad_records=True)
    assert {failure.code for failure in report.failures} == {Code.RECORD_INVALID}
    assert sorted(row for failure in report.failures for row in failure.rows) == [0, 2, 3, 4, 5, 6, 8]
    assert "SECRET" not in report.to_line()
    assert (report.records, len(daemon.rows)) == (9, 2)
