"""A streaming query that begins again from its checkpoint stores every row, and the rows of a repeated batch twice."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import DaemonProcess, daemon
from tests.spark.drivers import driver
from tests.spark.orders import query
from tests.spark.queries import Input
from tests.spark.service import Kinesis, counted, wait_for_records, wait_until_left_alone

pytestmark = pytest.mark.spark


@pytest.mark.spark_lane
def test_a_batch_whose_commit_is_lost_is_written_again_and_no_other(
    spark: Any, kinesis: Kinesis, running: DaemonProcess, tmp_path: Path
) -> None:
    given, stream = Input(tmp_path, files=6, rows_a_file=100), kinesis.stream()
    options: dict[str, Any] = {"stream": stream, "socket": str(running.socket)}
    assert query(spark, **given.query(2), **options)["batches"].keys() == {0, 1, 2}
    assert kinesis.ids(stream) == Counter(range(given.rows))
    newest = given.committed()[-1]
    given.forget_commit(newest)
    assert query(spark, **given.query(2), **options)["batches"].keys() == {newest}
    assert len(given.batch(newest)) == 200
    assert kinesis.ids(stream) == Counter(range(given.rows)) + Counter(given.batch(newest))


@pytest.mark.slow
def test_a_query_whose_driver_is_killed_at_any_time_loses_nothing(
    kinesis: Kinesis, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """A killed run leaves at most one batch that is planned and not committed: the next one repeats that, alone."""
    kills = pytestconfig.getoption("--kills")
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")  # shown when it fails
    chance = random.Random(seed)
    given, stream = Input(tmp_path, files=12 * (kills + 1), rows_a_file=200), kinesis.stream()
    repeated: Counter[int] = Counter()
    kinesis.answer_after(0.1)
    with daemon(kinesis.url, queue_limit=100, aggregation="kpl") as running:
        order = {**given.query(3), "stream": stream, "socket": str(running.socket)}
        for kill in range(kills):
            with driver(tmp_path, "local[2]") as killed:
                enough = counted(running, stream)["delivered_records_total"] + chance.randrange(1, 1_500)
                killed.tell("query", **order)
                wait_for_records(running, stream, enough)
                time.sleep(chance.random() * 0.5)  # the end of a batch, and the time between two
                assert not killed.answered, f"it has ended before it could be killed: {killed.log}"
                if kill % 2:  # as the kernel does that runs out of memory: its workers must find out
                    killed.kill_jvm()
                else:
                    killed.kill()
                wait_until_left_alone(running)
            pending = set(given.planned()) - set(given.committed())
            assert len(pending) <= 1
            for batch in pending:
                repeated.update(given.batch(batch))
        with driver(tmp_path, "local[2]") as last:
            kinesis.answer_after(0.0)
            assert "error" not in last.ask("query", **order)
        wait_until_left_alone(running)
        found = kinesis.ids(stream)
        assert set(found) == set(range(given.rows)), "records are missing"
        extra = found - Counter(range(given.rows))
        metrics = counted(running, stream)
        assert not extra - repeated, f"rows were stored twice of a batch that was not repeated: {metrics}"
        assert sum(found.values()) == metrics["delivered_records_total"]
        assert not metrics["possible_duplicate_records_total"]
