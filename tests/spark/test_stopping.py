"""query.stop() while its workers wait for room: Spark kills them after some seconds, in the middle of whatever."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from spark_client import KinesisBatchWriter
from tests.daemon import daemon, until
from tests.spark.orders import start_query
from tests.spark.queries import Input
from tests.spark.service import Kinesis, counted, threads, wait_until_left_alone

pytestmark = pytest.mark.spark
STOP_SECONDS = 30
"""Spark lets a worker's task end by itself for some seconds; a worker that listens to nobody would never end."""

MOST_KEPT_CONNECTIONS = 8


@pytest.mark.slow
def test_a_query_that_is_stopped_while_it_is_blocked_ends_cleanly_and_leaves_nothing(
    spark: Any, kinesis: Kinesis, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    given, stream = Input(tmp_path, files=2, rows_a_file=1_000), kinesis.stream()
    held_threads, held_descriptors = [], []
    with daemon(kinesis.url, queue_limit=100, drain_timeout_seconds=1) as running:
        for _ in range(pytestconfig.getoption("--stops")):
            kinesis.hang()
            writer = KinesisBatchWriter(stream=stream, socket=str(running.socket))
            query = start_query(spark, str(given.files), str(given.checkpoint), 2, writer)
            until(lambda: counted(running, stream)["backpressure_blocked_clients"], "a blocked caller", 60)
            stopper = threading.Thread(target=query.stop)
            stopper.start()
            stopper.join(STOP_SECONDS)
            assert not stopper.is_alive(), "stop() does not return"
            assert query.exception() is None
            until(lambda: not running.metrics()["client_connections"], "the workers' sessions end", STOP_SECONDS)
            assert not counted(running, stream)["backpressure_blocked_clients"]
            kinesis.recover()
            wait_until_left_alone(running)
            held_threads.append(threads(running))
            held_descriptors.append(running.descriptors())
        # Connections to the service are kept, and their number varies; what each stop leaves would be more.
        assert max(held_descriptors) <= held_descriptors[0] + MOST_KEPT_CONNECTIONS, held_descriptors
        assert max(held_threads) <= held_threads[0] + 1, held_threads
        query = start_query(spark, str(given.files), str(given.checkpoint), 2, writer)
        assert query.awaitTermination(60)
        assert query.exception() is None
        assert set(kinesis.ids(stream)) == set(range(given.rows)), "records are missing"
