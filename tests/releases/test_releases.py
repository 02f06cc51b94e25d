"""Releases work with each other: jobs pin a client's zip, and nodes get another daemon on another day.

The clients and daemons of earlier releases lie in this folder as they were published.  Each test stands for a promise
that a release made: one that fails here shows a change that breaks a user's job, so the change is what is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from producerd.errors import Refused
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from spark_client import check, checks
from tests.daemon import CREDENTIALS, ROOT, DaemonProcess, daemon, directory
from tests.spark_client.fake_spark import fake_spark
from tests.spark_client.shipped import run_with_zip

FOLDER: Final = Path(__file__).parent
OLD_CLIENT: Final = FOLDER / "producerd-client-0.1.0.zip"
OLD_DAEMON: Final = FOLDER / "producerd-0.1.0-py3-none-any.whl"
CALLER_SECONDS: Final = 60


class Pair(NamedTuple):
    """What client and daemon are imported from."""

    client: Path
    daemon: Path


PAIRS: Final = {
    "the client of 0.1.0 and the daemon of today": Pair(OLD_CLIENT, ROOT),
    "the client of today and the daemon of 0.1.0": Pair(ROOT, OLD_DAEMON),
}


@pytest.fixture
def kinesis() -> FakeKinesis:
    fake = FakeKinesis()
    fake.create_stream("flights", shards=4)
    return fake


@pytest.fixture
def server(kinesis: FakeKinesis) -> Iterator[FakeServer]:
    with serve_in_thread(kinesis) as serving:
        yield serving


@contextmanager
def daemon_from(place: Path, url: str, socket_path: Path, **sets: Any) -> Iterator[DaemonProcess]:
    """A daemon of another release, or of this tree: it is started in this tree, and must not look there first."""
    environ = {**CREDENTIALS, "PYTHONPATH": str(place), "PYTHONSAFEPATH": "1"}
    with daemon(url, environ=environ, socket_path=socket_path, **sets) as running:
        if place is OLD_DAEMON:
            assert json.loads(running.get("/version")[1])["version"] == "0.1.0"
            assert str(place) in Path(f"/proc/{running.process.pid}/environ").read_text()
        yield running


class Caller:
    """A process that has the client of one release, and nothing else of the project."""

    def __init__(self, place: Path, socket_path: Path) -> None:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, str(FOLDER / "caller.py"), str(socket_path)],
            cwd=socket_path.parent,
            env={**kept, "PYTHONPATH": str(place), "PYTHONSAFEPATH": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.rows: list[str] = []  # that it was taken, or will be
        assert self._answer().startswith(str(place))

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate(timeout=CALLER_SECONDS)
        assert kind is not None or self._process.returncode == 0

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def _ask(self, *order: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def put(self, count: int, timeout_seconds: float | None = None) -> Any:
        rows = [f"row {len(self.rows) + i}" for i in range(count)]
        told = self._ask("put", [(row, row) for row in rows], timeout_seconds)
        self.rows += rows[: told["taken"]]
        return told

    def put_with_a_bad_row(self) -> Any:
        """A partition key may have 256 characters."""
        told = self._ask("put", [("good", "key"), ("bad", "k" * 257), ("good too", "key")], None)
        self.rows += ["good", "good too"]
        return told

    def flush(self) -> Any:
        return self._ask("flush")


@pytest.mark.promise("earlier-version-wrote", "release-acknowledges-another", "release-acknowledges-another-stored")
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_what_one_release_acknowledges_to_another_is_stored(
    pair: Pair, kinesis: FakeKinesis, server: FakeServer
) -> None:
    """Behind a full queue, after a row that is refused, and when a daemon stops and gives rows back: each row once."""
    with directory() as folder, ExitStack() as stack:
        socket_path = folder / "daemon.sock"
        with daemon_from(pair.daemon, server.url, socket_path, queue_limit=100, linger_seconds=60) as first:
            caller = stack.enter_context(Caller(pair.client, socket_path))
            assert caller.put(50) == {"taken": 50}
            assert caller.flush() == {"failed": []}
            assert len(kinesis.streams["flights"].entries()) == 50
            assert caller.put_with_a_bad_row() == {"taken": 3}
            assert caller.flush() == {"failed": ["RECORD_INVALID"]}

            kinesis.standing.append(Fault("hang"))
            told = caller.put(300, timeout_seconds=0.5)
            assert told["code"] == "BACKPRESSURE_TIMEOUT"
            assert 0 < told["taken"] <= 100
            kinesis.standing.clear()
            server.release()
            assert caller.put(300) == {"taken": 300}
            assert caller.flush() == {"failed": []}

            assert caller.put(20) == {"taken": 20}  # and they linger
            assert first.end() == 0
            assert "stopped records_returned=20 " in first.log
        with daemon_from(pair.daemon, server.url, socket_path):
            assert caller.flush() == {"failed": []}
            stack.close()
    stored = Counter(record.data.decode() for record in kinesis.streams["flights"].read().records)
    assert stored == Counter(caller.rows)


@pytest.mark.promise("earlier-version-wrote")
def test_a_check_of_the_cluster_finds_a_daemon_of_0_1_0_well(
    kinesis: FakeKinesis, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an executor asks it; without Spark, which has no part in what the two say to each other."""
    monkeypatch.setattr(checks, "_run", lambda _spark, task: [json.loads(task(0))])
    with directory() as folder, daemon_from(OLD_DAEMON, server.url, folder / "daemon.sock") as running:
        told = check(fake_spark(), stream="flights", socket=str(running.socket))
        with pytest.raises(Refused, match="STREAM_NOT_FOUND"):
            check(fake_spark(), stream="no-such-stream", socket=str(running.socket))
    assert [executor.daemon for executor in told.executors] == ["producerd 0.1.0"]
    assert "is not verified: 1 executor" in str(told), "it cannot ask Kinesis, and the check says so"


SHIPPED: Final = """\
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.addPyFile(sys.argv[1])
import spark_client
assert sys.argv[1].rsplit("/", 1)[1] in spark_client.__file__, spark_client.__file__
rows = spark.range(1_000).selectExpr("cast(id as string) as partition_key", "cast(id as string) as data")
result = spark_client.write_batch(rows, stream="flights", data="data", socket=sys.argv[2])
assert result.records == 1_000
"""


@pytest.mark.promise("earlier-version-wrote", "release-acknowledges-another")
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_batch_of_spark_by_one_release_is_stored_by_another(
    pair: Pair, kinesis: FakeKinesis, server: FakeServer, tmp_path: Path
) -> None:
    """The client shipped as `--py-files` ships it, with nothing else of the project on the executors."""
    shipped = pair.client if pair.client is OLD_CLIENT else None
    with directory() as folder, daemon_from(pair.daemon, server.url, folder / "daemon.sock") as running:
        run_with_zip(tmp_path, SHIPPED, str(running.socket), client=shipped)
    stored = Counter(record.data for record in kinesis.streams["flights"].read().records)
    assert stored == Counter(b"%d" % i for i in range(1_000))
