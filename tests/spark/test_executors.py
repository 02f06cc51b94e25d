"""An executor that is killed under a batch: its tasks run again on another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon import daemon, until
from tests.spark.drivers import driver
from tests.spark.processes import of_session
from tests.spark.service import Kinesis, counted, wait_for_records, wait_until_left_alone

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_an_executor_that_is_killed_under_a_batch_loses_nothing(kinesis: Kinesis, tmp_path: Path) -> None:
    """The daemon frees what the dead tasks had not sent; what they had sent is stored twice, and nothing else."""
    stream, rows = kinesis.stream(), 4_000
    with daemon(kinesis.url, queue_limit=100) as running, driver(tmp_path, "local-cluster[2,1,1024]") as cluster:
        kinesis.answer_after(0.1)
        cluster.tell("write", rows=rows, partitions=4, stream=stream, socket=str(running.socket))
        until(lambda: running.metrics()["client_connections"] == 2, "a task on each executor", 90)
        wait_for_records(running, stream, counted(running, stream)["delivered_records_total"] + 200)
        executors = of_session(cluster.process.pid, "CoarseGrainedExecutorBackend")
        assert len(executors) == 2
        executors[0].kill()
        kinesis.answer_after(0.0)
        result = cluster.answer()
        assert result.get("records") == rows, result
        wait_until_left_alone(running)
        found, metrics = kinesis.ids(stream), counted(running, stream)
        assert set(found) == set(range(rows)), "records are missing"
        handed_over_before = metrics["ingest_records_total"] - rows
        assert handed_over_before > 0, "no task was hit"
        assert sum(found.values()) - rows == handed_over_before - metrics["discarded_records_total"]
