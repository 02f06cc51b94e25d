"""Spark Connect: the user's process has no JVM, and foreachBatch runs on the server's machine."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import DaemonProcess, daemon, until
from tests.spark.drivers import Driver, driver
from tests.spark.nodes import connect_server
from tests.spark.queries import Input
from tests.spark.service import (
    UNPACKING,
    Kinesis,
    assert_all_stored,
    commands_of,
    counted,
    own_settings,
    plain_settings,
    wait_until_left_alone,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("grpc_status") is None, reason="needs pyspark[connect]"),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("connect")
    with connect_server(folder) as url, driver(folder, url) as ready:
        yield ready


def query(client: Driver, **order: Any) -> Any:
    """Run a query; again if its Python worker took longer to start than the 10 s that Spark gives it."""
    for _ in range(3):
        if "Python worker failed to connect back" not in (result := client.ask("query", **order)).get("error", ""):
            break
    return result


def test_a_batch_is_written_from_a_client_of_spark_connect(
    client: Driver, kinesis: Kinesis, running: DaemonProcess
) -> None:
    """By the writer and by the data source."""
    stream, rows = kinesis.stream(), 1_000
    result = client.ask("write", rows=rows, partitions=3, stream=stream, socket=str(running.socket))
    assert result.get("records") == rows, result
    assert len(result["partitions"]) == 3
    assert kinesis.ids(stream) == Counter(range(rows))
    result = client.ask("save", rows=rows, stream=stream, socket=str(running.socket))
    assert "error" not in result, result
    assert kinesis.ids(stream) == Counter([*range(rows), *range(rows)])


@pytest.mark.promise("writer-settings-count")
def test_tasks_of_spark_connect_start_their_daemon(client: Driver, kinesis: Kinesis) -> None:
    stream, rows = kinesis.stream(), 100
    result = client.ask("write", rows=rows, partitions=2, stream=stream, daemon=own_settings(kinesis))
    assert result.get("records") == rows, result
    assert len(result["daemons"]) == 1, "the daemon of the server's JVM"
    assert kinesis.ids(stream) == Counter(range(rows))


def test_a_query_of_spark_connect_stores_every_row_once_and_a_repeated_batch_twice(
    client: Driver, kinesis: Kinesis, running: DaemonProcess, tmp_path: Path
) -> None:
    given, stream = Input(tmp_path, files=6, rows_a_file=100), kinesis.stream()
    options = {"stream": stream, "socket": str(running.socket)}
    assert "error" not in query(client, **given.query(2), **options)
    assert given.committed() == [0, 1, 2]
    assert kinesis.ids(stream) == Counter(range(given.rows))
    given.forget_commit(2)
    assert "error" not in query(client, **given.query(2), **options)
    assert kinesis.ids(stream) == Counter(range(given.rows)) + Counter(given.batch(2))
    metrics = counted(running, stream)
    assert metrics["ingest_records_total"] == metrics["delivered_records_total"] == given.rows + 200
    guard = {"replay_guard": (tmp_path / "guard").as_uri(), "replay_key": "k"}
    for _ in range(2):
        given.forget_commit(2)
        assert "error" not in query(client, **given.query(2), **options, **guard)
    once_more = Counter(given.batch(2))
    assert kinesis.ids(stream) == Counter(range(given.rows)) + once_more + once_more, "a guard with a key knows it"


def test_an_error_is_one_line_in_a_client_of_spark_connect_and_marked_in_a_query(
    client: Driver, kinesis: Kinesis, running: DaemonProcess, tmp_path: Path
) -> None:
    """Spark logs nothing of its own for a misspelt column."""
    options = {"stream": "no-such-stream", "socket": str(running.socket)}
    result = client.ask("write", rows=10, partitions=1, **options)
    assert result.get("error", "").startswith("PRODUCERD[STREAM_NOT_FOUND]: "), result
    assert "\n" not in result["error"]
    result = client.ask("save", rows=10, strem="s", socket=str(running.socket))
    text = "PRODUCERD[CONFIGURATION]: strem: is not an option of producerd; did you mean stream?"
    assert text in result.get("error", "")
    given = Input(tmp_path, files=1, rows_a_file=10)
    result = query(client, **given.query(1), **options)
    assert "PRODUCERD[STREAM_NOT_FOUND]: " in result.get("error", ""), result
    for name in ("tailnr", "upper(tailnr)"):
        before = client.logged_bytes
        result = client.ask("write", rows=1, partitions=1, stream="s", partition_key=name)
        assert result["kind"] == "BadColumn", result
        assert client.logged_bytes == before, client.log


def test_a_batch_that_a_client_of_spark_connect_interrupts_ends_on_the_server(client: Driver, kinesis: Kinesis) -> None:
    stream = kinesis.stream()
    with daemon(kinesis.url, queue_limit=100, drain_timeout_seconds=1) as running:
        order = {"partitions": 2, "stream": stream, "socket": str(running.socket)}
        kinesis.hang()
        client.tell("write_until_interrupted", rows=4_000, **order)
        until(lambda: counted(running, stream)["backpressure_blocked_clients"], "a blocked caller", 60)
        os.kill(client.process.pid, signal.SIGINT)
        assert client.answer() == {"interrupted": True}
        until(lambda: not running.metrics()["client_connections"], "the tasks' sessions end", 30)
        kinesis.recover()
        wait_until_left_alone(running)
        assert client.ask("write", rows=10, **order).get("records") == 10


@pytest.mark.promise("executors-lack-daemon")
def test_an_artifact_of_spark_connect_has_the_daemon_that_tasks_start(
    client: Driver, kinesis: Kinesis, pex: Path
) -> None:
    stream, rows = kinesis.stream(), 200
    assert client.ask("add_artifact", path=str(pex)) == {}
    result = client.ask("write", rows=rows, partitions=2, stream=stream, daemon=plain_settings(kinesis), **UNPACKING)
    assert_all_stored(result, kinesis, stream, rows)
    assert "/.producerd-pex/" in commands_of(result)[0]
