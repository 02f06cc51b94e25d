"""At an engineer's desk: what a driver prints, and what is left of a batch that somebody interrupts."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.daemon import daemon, until
from tests.spark.drivers import Driver, driver
from tests.spark.service import Kinesis, counted, wait_until_left_alone

pytestmark = [pytest.mark.spark, pytest.mark.slow]
MOST_BYTES = 300
"""A line or two: Spark printed 24,000 and more."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with driver(tmp_path_factory.mktemp("desk"), "local[4]", {"spark.speculation": "true"}) as ready:
        yield ready


def test_spark_prints_nothing_of_its_own_for_a_misspelt_column(desk: Driver) -> None:
    for option, name in (("partition_key", "tailnr"), ("partition_key", "upper(tailnr)"), ("data", "*")):
        before = desk.logged_bytes
        result = desk.ask("write", rows=1, partitions=1, stream="s", **{option: name}, allow_speculation=True)
        assert result["kind"] == "BadColumn", result
        assert result["error"].startswith(f"PRODUCERD[BAD_COLUMN]: {option}={name!r}: ")
        assert desk.logged_bytes - before < MOST_BYTES, desk.log


def test_speculation_is_refused_before_anything_is_sent(desk: Driver, kinesis: Kinesis) -> None:
    """By the writer and by the data source, with the setting that Spark really has."""
    stream = kinesis.stream()
    with daemon(kinesis.url) as running:
        order = {"rows": 10, "stream": stream, "socket": str(running.socket)}
        refused = desk.ask("write", partitions=2, **order).get("error", "")
        assert refused.startswith("PRODUCERD[SPECULATION_ENABLED]: spark.speculation=true"), refused
        if desk.version.startswith("3."):
            pytest.skip("Spark's data sources in Python begin with Spark 4")
        assert "PRODUCERD[SPECULATION_ENABLED]: spark.speculation=true" in desk.ask("save", **order).get("error", "")
        assert not counted(running, stream)["ingest_records_total"]
        assert desk.ask("save", allowSpeculation="true", **order) == {}
        assert kinesis.ids(stream) == Counter(range(10))


def test_a_batch_that_is_interrupted_ends_its_job_and_no_other(desk: Driver, kinesis: Kinesis) -> None:
    """The daemon forgets what the tasks had not sent, and the session goes on as if nothing had been."""
    stream, rows = kinesis.stream(), 4_000
    with daemon(kinesis.url, queue_limit=100, drain_timeout_seconds=1) as running:
        order = {"partitions": 2, "stream": stream, "socket": str(running.socket), "allow_speculation": True}
        desk.ask("sleep_beside", seconds=600)
        (other,) = until(lambda: desk.ask("jobs")["active"])
        kinesis.hang()
        desk.tell("write_until_interrupted", rows=rows, **order)
        until(lambda: counted(running, stream)["backpressure_blocked_clients"], "a blocked caller", 60)
        os.kill(desk.process.pid, signal.SIGINT)
        assert desk.answer() == {"interrupted": True}
        assert "while sending command" not in desk.log  # py4j's tracebacks: of PySpark's handler, and its own
        until(lambda: desk.ask("jobs") == {"active": [other], "tags": []}, "the job ends", 30)
        until(lambda: not running.metrics()["client_connections"], "the tasks' sessions end", 30)
        kinesis.recover()
        wait_until_left_alone(running)
        stored = kinesis.ids(stream)
        assert desk.ask("write", rows=10, **order).get("records") == 10
        assert kinesis.ids(stream) == stored + Counter(range(10))
        assert desk.ask("jobs") == {"active": [other], "tags": []}
