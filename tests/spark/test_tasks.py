"""Tasks that fail, or whose Python worker is killed: Spark tries them again, and what they had sent is stored twice."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_client import write_batch
from tests.daemon import DaemonProcess, daemon, until
from tests.spark.processes import Process, descendants, holds_unix_socket
from tests.spark.service import Kinesis, counted, wait_until_left_alone

pytestmark = pytest.mark.spark
ROWS = 10_000
PARTITIONS = 2


@pytest.fixture
def small_arrow_batches(spark: Any) -> Iterator[None]:
    """A task hands over its first rows long before it has its last."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"  # 2,000 on Spark 3.5, where the client sets it
    spark.conf.set(name, "1000")
    yield
    spark.conf.unset(name)


def rows(spark: Any) -> Any:
    """Wide enough that few of them wait in Spark's own buffers."""
    columns = ("cast(id as string) as partition_key", "id", "repeat('.', 100) as text")
    return spark.range(0, ROWS, 1, PARTITIONS).selectExpr(*columns)


@pytest.mark.spark_lane
@pytest.mark.slow
def test_a_task_that_fails_is_tried_again_and_only_what_it_had_sent_is_stored_twice(
    spark: Any, small_arrow_batches: None, kinesis: Kinesis, running: DaemonProcess, tmp_path: Path
) -> None:
    stream, may_fail = kinesis.stream(), tmp_path / "may-fail"

    def fails_once(batches: Any) -> Any:
        """Upstream of the client: in the first attempt of the first partition it fails, when some rows are stored."""
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        yield from batches
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            deadline = time.monotonic() + 30
            while not may_fail.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            raise ValueError("as it should")

    def let_it_fail() -> None:
        until(lambda: min(kinesis.ids(stream), default=ROWS) < ROWS // PARTITIONS, "rows of the first partition", 30)
        may_fail.touch()

    watcher = threading.Thread(target=let_it_fail)
    watcher.start()
    frame = rows(spark)
    result = write_batch(frame.mapInPandas(fails_once, frame.schema), stream=stream, socket=str(running.socket))
    watcher.join()

    found, metrics = kinesis.ids(stream), counted(running, stream)
    assert set(found) == set(range(ROWS)), "records are missing"
    twice = {row for row, times in found.items() if times > 1}
    assert twice, "the first attempt had stored some"
    assert max(found.values()) == 2, "there were two attempts"
    assert max(twice) < ROWS // PARTITIONS, "the other task did not fail"
    handed_over_before = metrics["ingest_records_total"] - ROWS
    assert len(twice) == handed_over_before - metrics["discarded_records_total"]
    assert (result.records, result.possible_duplicates) == (ROWS, 0), "a result tells of the attempts that succeeded"


@pytest.mark.spark_lane
@pytest.mark.slow
def test_a_python_worker_that_is_killed_at_any_time_leaves_nothing_and_its_task_is_tried_again(
    spark: Any, small_arrow_batches: None, kinesis: Kinesis
) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")  # shown when it fails
    chance = random.Random(seed)
    stream, results = kinesis.stream(), []
    kinesis.answer_after(0.1)
    with daemon(kinesis.url, queue_limit=200) as running:
        writer = threading.Thread(
            target=lambda: results.append(write_batch(rows(spark), stream=stream, socket=str(running.socket)))
        )
        writer.start()
        killed: list[Process] = []
        for _ in range(3):  # a task may fail so often, were it always the same one
            until(lambda: counted(running, stream)["backpressure_blocked_clients"], "a blocked worker", 30)
            time.sleep(chance.random() * 0.3)
            found = [process for process in python_workers() if holds_unix_socket(process)]
            if found:
                killed.append(chance.choice(found))
                killed[-1].kill()
        kinesis.answer_after(0.0)
        writer.join(60)
        assert results, "the batch did not end"
        assert results[0].records == ROWS
        wait_until_left_alone(running)
        metrics, ids = counted(running, stream), kinesis.ids(stream)
        assert killed
        assert set(ids) == set(range(ROWS)), "records are missing"
        handed_over_before = metrics["ingest_records_total"] - ROWS
        assert sum(ids.values()) - ROWS == handed_over_before - metrics["discarded_records_total"]
        assert sum(ids.values()) == metrics["delivered_records_total"]


def python_workers() -> list[Process]:
    return [process for process in descendants(os.getpid()) if "pyspark.daemon" in process.command]
