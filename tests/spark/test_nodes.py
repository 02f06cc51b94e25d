"""Two nodes with a daemon each: which sends what, what a task reports where one is missing, and speculation."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from producerd.errors import Code
from tests.daemon import DaemonProcess, daemon, directory, until
from tests.spark.drivers import Driver, driver
from tests.spark.nodes import cluster
from tests.spark.service import Kinesis, assert_all_stored, counted, own_settings, wait_until_left_alone

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("none_is_left")]
CONF = {
    # One core of each node for each driver, which begins when it has both.
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "50ms",
}


@pytest.fixture(scope="module")
def sockets() -> Iterator[list[Path]]:
    with directory() as folder:
        yield [folder / "first.sock", folder / "second.sock"]


@pytest.fixture(scope="module")
def master(sockets: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster"), sockets) as url:
        yield url


@pytest.fixture(scope="module")
def plain(master: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A task that fails is not tried on the other node."""
    with driver(tmp_path_factory.mktemp("plain"), master, {**CONF, "spark.task.maxFailures": "1"}) as ready:
        yield ready


@pytest.fixture(scope="module")
def speculating(master: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with driver(tmp_path_factory.mktemp("speculating"), master, {**CONF, **SPECULATION}) as ready:
        yield ready


def test_each_node_s_daemon_sends_what_its_node_s_tasks_hand_over(
    plain: Driver, kinesis: Kinesis, sockets: list[Path]
) -> None:
    stream, rows = kinesis.stream(), 1_200
    with daemon(kinesis.url, socket_path=sockets[0]) as first, daemon(kinesis.url, socket_path=sockets[1]) as second:
        result = plain.ask("write", rows=rows, partitions=12, stream=stream)
        assert result.get("records") == rows, result
        delivered = [counted(running, stream)["delivered_records_total"] for running in (first, second)]
        assert min(delivered) > 0
        assert sum(delivered) == rows
        assert kinesis.ids(stream) == Counter(range(rows))


def test_a_node_without_a_daemon_is_named_in_one_line(plain: Driver, kinesis: Kinesis, sockets: list[Path]) -> None:
    with daemon(kinesis.url, socket_path=sockets[0]):
        options = {"stream": kinesis.stream(), "connect_timeout_seconds": 1}
        result = plain.ask("write", rows=1_200, partitions=12, **options)
    assert result.get("kind") == "ConnectionFailed", result
    assert result["error"].startswith(f"PRODUCERD[{Code.DAEMON_ABSENT}]: host {socket.gethostname()}, partition ")
    assert f"({sockets[1]}: No such file or directory)" in result["error"]
    assert str(sockets[0]) not in result["error"]
    assert "\n" not in result["error"]


@pytest.mark.promise("writer-settings-count")
def test_a_writer_s_settings_count_more_than_the_nodes_daemons(
    plain: Driver, kinesis: Kinesis, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The nodes name daemons that are not there."""
    stream, rows = kinesis.stream(), 400
    result = plain.ask("write", rows=rows, partitions=8, stream=stream, daemon=own_settings(kinesis))
    assert_all_stored(result, kinesis, stream, rows)
    logs = [*tmp_path_factory.getbasetemp().glob("cluster[0-9]*/work-*/app-*/*/producerd-*.log")]
    assert len(logs) == len(result["daemons"]) == 2, "each next to its executor's stderr"


def test_where_speculation_is_allowed_what_both_copies_of_a_task_sent_is_stored_twice(
    speculating: Driver, kinesis: Kinesis, sockets: list[Path]
) -> None:
    """The second node's daemon is slow: Spark writes its task once more on the first one."""
    rows = 2_000
    fast, slow, url = *sockets, kinesis.url
    with daemon(url, socket_path=fast) as first, daemon(url, socket_path=slow, queue_limit=10) as second:
        warm_up = speculating.ask("write", rows=2, partitions=2, stream=kinesis.stream(), allow_speculation=True)
        assert warm_up.get("records") == 2, warm_up
        kinesis.answer_after(0.1)
        for _ in range(3):  # on a busy machine Spark may see too late that a task is slow
            stream = kinesis.stream()
            result = speculating.ask("write", rows=rows, partitions=4, stream=stream, allow_speculation=True)
            assert result.get("records") == rows, result
            assert set(kinesis.ids(stream)) == set(range(rows)), "records are missing"
            found = ids_once_settled(kinesis, stream, [first, second])
            if sum(found.values()) > rows:
                break
        else:
            pytest.fail("Spark did not speculate")
        assert max(found.values()) <= 2, "a task has one copy at most"


def ids_once_settled(kinesis: Kinesis, stream: str, daemons: list[DaemonProcess]) -> Counter[int]:
    """How often each row can be read, once the daemons have stored or discarded all that they took.

    Spark ends the other copy of a task in its own time: it may hand over records after the job is done.
    """

    def adds_up() -> bool:
        taken = 0.0
        for running in daemons:
            wait_until_left_alone(running)
            metrics = counted(running, stream)
            taken += metrics["ingest_records_total"] - metrics["discarded_records_total"]
        return len(kinesis.data(stream)) == taken

    until(adds_up, "as many records are stored as were taken and not discarded")
    return kinesis.ids(stream)
