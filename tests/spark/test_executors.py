"""An executor that is killed under a batch: its own daemon ends with it, and its tasks run again on another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import daemon, until
from tests.spark.drivers import Driver, driver
from tests.spark.processes import of_session
from tests.spark.service import (
    Kinesis,
    counted,
    own_daemons,
    own_settings,
    wait_for_records,
    wait_until_left_alone,
)

pytestmark = pytest.mark.spark
END_SECONDS = 5.0


@pytest.fixture(scope="module")
def cluster(one_kinesis: Kinesis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Two executors.  No daemon of theirs is left when they have ended."""
    with driver(tmp_path_factory.mktemp("executors"), "local-cluster[2,1,1024]") as ready:
        yield ready
    until(lambda: not own_daemons(one_kinesis), "no daemon is left", END_SECONDS)


def kill_one(cluster: Driver) -> None:
    executors = of_session(cluster.process.pid, "CoarseGrainedExecutorBackend")
    assert len(executors) == 2
    executors[0].kill()


@pytest.mark.slow
@pytest.mark.promise("executor-own-killed")
def test_each_executor_has_its_own_and_one_that_is_killed_takes_its_daemon_along(
    cluster: Driver, kinesis: Kinesis, tmp_path: Path
) -> None:
    """Nothing is lost by a replay guard then."""
    stream, rows = kinesis.stream(), 4_000
    guard = {"replay_guard": tmp_path.as_uri(), "replay_key": "k", "replay_guard_interval_seconds": 1}
    given = {"daemon": own_settings(kinesis), "stream": stream, **guard}
    result = cluster.ask("write", rows=200, partitions=4, **given)
    assert result.get("records") == 200, result
    before = {found.pid for found in own_daemons(kinesis)}
    assert {*result["daemons"]} == before
    assert len(before) == 2
    kinesis.answer_after(0.1)
    cluster.tell("write", rows=rows, partitions=4, **given, daemon_start_timeout_seconds=90)
    kill_one(cluster)
    until(lambda: len(before & {found.pid for found in own_daemons(kinesis)}) == 1, "its daemon's end", END_SECONDS)
    kinesis.answer_after(0.0)
    result = cluster.answer()
    assert result.get("records") == rows, result
    assert set(kinesis.ids(stream)) == set(range(rows))


@pytest.mark.slow
def test_an_executor_that_is_killed_under_a_batch_loses_nothing(cluster: Driver, kinesis: Kinesis) -> None:
    """The daemon frees what the dead tasks had not sent; what they had sent is stored twice, and nothing else."""
    stream, rows = kinesis.stream(), 4_000
    with daemon(kinesis.url, queue_limit=100) as running:
        warm_up = cluster.ask("write", rows=2, partitions=2, stream=kinesis.stream(), socket=str(running.socket))
        assert warm_up.get("records") == 2, warm_up
        kinesis.answer_after(2)  # an executor that Spark replaces may come when the other would be done
        cluster.tell("write", rows=rows, partitions=4, stream=stream, socket=str(running.socket))
        until(lambda: running.metrics()["client_connections"] == 2, "a task on each executor", 60)
        kinesis.answer_after(0.1)
        wait_for_records(running, stream, counted(running, stream)["delivered_records_total"] + 200)
        kill_one(cluster)
        kinesis.answer_after(0.0)
        result = cluster.answer()
        assert result.get("records") == rows, result
        wait_until_left_alone(running)
        found, metrics = kinesis.ids(stream), counted(running, stream)
        assert set(found) == set(range(rows)), "records are missing"
        handed_over_before = metrics["ingest_records_total"] - rows
        assert handed_over_before > 0, "no task was hit"
        assert sum(found.values()) - rows == handed_over_before - metrics["discarded_records_total"]
