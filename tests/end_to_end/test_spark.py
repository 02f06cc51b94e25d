"""Real Spark, a real daemon process, and the fake Kinesis: what a query promises while things go wrong around it."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from producerd.errors import BackpressureTimeout, Code, RecordsFailed, Refused
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from spark_client import KinesisBatchWriter, check, write_batch
from spark_client.checks import ClusterCheck
from tests.daemon import DaemonProcess, daemon, idle, until

pytestmark = pytest.mark.spark
ROWS = 20_000
FILES = 4


@contextmanager
def service(shards: int = 4) -> Iterator[tuple[FakeKinesis, FakeServer]]:
    fake = FakeKinesis()
    fake.create_stream("flights", shards=shards)
    with serve_in_thread(fake) as server:
        yield fake, server


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Input of a streaming query: ``ROWS`` rows in ``FILES`` files, some without a key."""
    folder = tmp_path / "input"
    folder.mkdir()
    for part in range(FILES):
        lines = [
            json.dumps({"id": i, "plane": f"N{i % 211}" if i % 50 else None, "text": f"ünï {i}"})
            for i in range(part, ROWS, FILES)
        ]
        (folder / f"{part}.json").write_text("\n".join(lines))
    return folder


def start(spark: Any, files: Path, writer: Callable[[Any, int], Any]) -> Any:
    """A streaming query of one micro-batch a file, with a checkpoint."""
    source = spark.readStream.schema("id INT, plane STRING, text STRING").option("maxFilesPerTrigger", 1)
    query = source.json(str(files)).writeStream.foreachBatch(writer)
    return query.option("checkpointLocation", str(files.parent / "checkpoint")).trigger(availableNow=True).start()


def finish(query: Any, seconds: float = 60) -> None:
    assert query.awaitTermination(seconds), "the query did not end"


def stored(fake: FakeKinesis) -> Counter[int]:
    """How often each row's id can be read."""
    return Counter(json.loads(record.data)["id"] for record in fake.streams["flights"].read().records)


def metric(running: DaemonProcess, name: str) -> float:
    """A metric's value; 0 while no stream is open yet."""
    return running.metrics().get(name, 0.0)


def writer_for(running: DaemonProcess, **options: Any) -> KinesisBatchWriter:
    return KinesisBatchWriter(stream="flights", partition_key="plane", socket=str(running.socket), **options)


@pytest.mark.parametrize("aggregation", [pytest.param("none", marks=pytest.mark.slow), "kpl"])
def test_a_query_ends_when_every_row_is_stored_once(spark: Any, files: Path, aggregation: str) -> None:
    with service() as (fake, server), daemon(server.url, aggregation=aggregation) as running:
        query = start(spark, files, writer_for(running))
        finish(query)
        assert query.exception() is None
        assert stored(fake) == Counter(range(ROWS))
        keys = {record.partition_key for record in fake.streams["flights"].read().records}
        assert keys == {f"N{i}" for i in range(211)} | {"-"}
        metrics = running.metrics()
        assert metrics["delivered_records_total"] == metrics["ingest_records_total"] == ROWS
        assert idle(metrics)


@pytest.mark.promise("full-queue-blocks-micro")
def test_a_full_queue_blocks_the_micro_batch_and_is_never_passed(spark: Any, files: Path) -> None:
    with service() as (fake, server), daemon(server.url, queue_limit=2_000, aggregation="kpl") as running:
        fake.latency_seconds = 0.05
        result = write_batch(
            spark.range(ROWS).selectExpr("cast(id as string) as partition_key", "id"),
            stream="flights",
            socket=str(running.socket),
        )
        metrics = running.metrics()
        assert result.records == ROWS
        assert result.seconds_blocked > 0
        assert metrics["backpressure_wait_seconds_count"] > 0
        assert 0 < metrics["queue_peak_records"] <= 2_000
        assert stored(fake) == Counter(range(ROWS))


def test_a_queue_limit_of_one_still_delivers_everything(spark: Any) -> None:
    with service() as (fake, server), daemon(server.url, queue_limit=1) as running:
        frame = spark.range(50).selectExpr("cast(id as string) as partition_key", "id")
        assert write_batch(frame, stream="flights", socket=str(running.socket)).records == 50
        assert stored(fake) == Counter(range(50))
        assert running.metrics()["queue_peak_records"] == 1


def test_a_daemon_killed_under_a_running_query_loses_nothing(spark: Any, files: Path) -> None:
    """Its tasks wait for it and send again what was not acknowledged."""
    with service() as (fake, server):
        fake.latency_seconds = 0.05
        with daemon(server.url, queue_limit=500, exit_code=None) as first:
            socket_path = first.socket
            query = start(spark, files, writer_for(first))
            until(lambda: metric(first, "delivered_records_total") > ROWS / 10, "a tenth delivered", 60)
            first.signal(signal.SIGKILL)
            assert first.wait() == -signal.SIGKILL
            time.sleep(0.5)
            socket_path.parent.mkdir(exist_ok=True)
            with daemon(server.url, socket_path=socket_path):
                fake.latency_seconds = 0.0
                finish(query)
    found = stored(fake)
    assert set(found) == set(range(ROWS)), "records are missing"


def test_a_stopped_daemon_gives_rows_back_and_its_successor_delivers_them(spark: Any, files: Path) -> None:
    with service() as (fake, server):
        fake.latency_seconds = 0.05
        with daemon(server.url, queue_limit=500) as first:
            socket_path = first.socket
            query = start(spark, files, writer_for(first))
            until(lambda: metric(first, "delivered_records_total") > ROWS / 10, "a tenth delivered", 60)
            assert first.end() == 0
            with daemon(server.url, socket_path=socket_path):
                fake.latency_seconds = 0.0
                finish(query)
    assert set(stored(fake)) == set(range(ROWS)), "records are missing"


@pytest.mark.slow
def test_the_data_source_delivers_through_the_daemons_restart(spark: Any, files: Path) -> None:
    """Rows of two streams; the daemon is killed under the query, and no task fails for it."""
    with service() as (fake, server):
        fake.create_stream("other", shards=2)
        fake.latency_seconds = 0.05
        source = spark.readStream.schema("id INT, plane STRING, text STRING").option("maxFilesPerTrigger", 1)
        rows = source.json(str(files)).selectExpr(
            "plane AS partitionKey", "to_json(struct(*)) AS data", "IF(id % 2 = 0, 'flights', 'other') AS stream"
        )
        with daemon(server.url, queue_limit=500, exit_code=None) as first:
            writer = rows.writeStream.format("producerd").option("socket", str(first.socket))
            checkpoint = str(files.parent / "checkpoint")
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            until(lambda: metric(first, "delivered_records_total") > ROWS / 20, "a twentieth delivered", 60)
            first.signal(signal.SIGKILL)
            assert first.wait() == -signal.SIGKILL
            first.socket.parent.mkdir(exist_ok=True)
            with daemon(server.url, socket_path=first.socket):
                fake.latency_seconds = 0.0
                finish(query)
        assert query.exception() is None
        assert sum(progress["sink"]["numOutputRows"] for progress in query.recentProgress) == ROWS
    assert set(stored(fake)) == set(range(0, ROWS, 2))
    odd = {json.loads(record.data)["id"] for record in fake.streams["other"].read().records}
    assert odd == set(range(1, ROWS, 2))


def test_a_batch_that_finds_no_room_in_time_fails_with_the_numbers(spark: Any) -> None:
    with (
        service() as (fake, server),
        daemon(server.url, queue_limit=100, request_timeout_seconds=300, drain_timeout_seconds=1) as running,
    ):
        fake.standing.append(Fault("hang"))
        frame = spark.range(1_000).selectExpr("cast(id as string) as partition_key", "id")
        with pytest.raises(BackpressureTimeout) as caught:
            write_batch(frame, stream="flights", socket=str(running.socket), put_timeout_seconds=0.5)
        text = str(caught.value)
        assert text.startswith("PRODUCERD[BACKPRESSURE_TIMEOUT]: ")
        assert "\n" not in text
        assert "of 100 records" in text
        assert "requests in flight" in text
        # The callers are gone: what was in no request is discarded, and the request that hangs is given up at the end.
        assert until(lambda: metric(running, "backpressure_blocked_clients") == 0.0)


def test_a_check_knows_whether_the_stream_is_there(spark: Any) -> None:
    with service() as (_, server), daemon(server.url) as running:
        told = check(spark, stream="flights", socket=str(running.socket))
        assert str(told).startswith("ready to write to stream flights: 1 executor, 1 daemon")
        assert told.executors[0].queue_limit_records == 1_000_000
        assert "records/s" not in str(told)
        frame = spark.range(1_200).selectExpr("cast(id as string) as partition_key", "id")
        write_batch(frame, stream="flights", socket=str(running.socket))
        told = check(spark, stream="flights", socket=str(running.socket))
        mode, aggregates, records, size, kinesis_records, seconds = told.executors[0].traffic
        assert mode in ("", "PROVISIONED"), "the daemon reads it within the stream's first half minute"
        assert (aggregates, records, kinesis_records) == (False, 1_200, 1_200)
        assert size == metric(running, "delivered_bytes_total")
        assert 0 < seconds < 60
        assert "records/s" not in str(told), "a short time says nothing about a month"
        later = told.executors[0]._replace(traffic=told.executors[0].traffic._replace(seconds=3_600.0))
        shown = str(ClusterCheck("flights", told.driver, (later,)))
        assert re.search(r"^traffic +0 records/s of \d+ bytes until now are about .* million PUT", shown, re.MULTILINE)
        with pytest.raises(Refused, match=r"^PRODUCERD\[STREAM_NOT_FOUND\]: 1 of 1 executor, on \S+: .*fligths"):
            check(spark, stream="fligths", socket=str(running.socket))


@pytest.mark.parametrize("aggregation", ["none", "kpl"])
def test_a_stream_that_does_not_exist_fails_the_query_in_one_line(spark: Any, files: Path, aggregation: str) -> None:
    with service() as (_, server), daemon(server.url, aggregation=aggregation) as running:
        writer = KinesisBatchWriter(stream="fligths", partition_key="plane", socket=str(running.socket))
        query = start(spark, files, writer)
        with pytest.raises(Exception, match="fligths"):
            query.awaitTermination(60)
        text = str(query.exception())
        assert f"PRODUCERD[{Code.STREAM_NOT_FOUND}]" in text
        assert "Stream fligths under account 000000000000 not found." in text


def test_a_bad_row_is_named_by_number_and_never_quoted(spark: Any) -> None:
    with service() as (fake, server), daemon(server.url) as running:
        frame = spark.createDataFrame(
            [("a", "good"), ("k" * 300, "SECRET-BY-LENGTH"), ("c", None)], "partition_key string, data string"
        ).coalesce(1)
        with pytest.raises(RecordsFailed) as caught:
            write_batch(frame, stream="flights", data="data", socket=str(running.socket))
        text = str(caught.value)
        assert "the partition key is over 256 characters" in text
        assert "data is null" in text
        assert "0:1" in text
        assert "0:2" in text
        assert "SECRET" not in text + running.log
        assert not fake.streams["flights"].entries(), "nothing of a refused frame is sent"
        result = write_batch(frame, stream="flights", data="data", socket=str(running.socket), on_bad_record="skip")
        assert (result.records, result.skipped) == (3, 2)
        assert [entry.data for entry in fake.streams["flights"].entries()] == [b"good"]


def test_stopping_a_blocked_query_stays_clean_and_frees_the_queue(spark: Any, files: Path) -> None:
    with service() as (fake, server), daemon(server.url, queue_limit=100, drain_timeout_seconds=1) as running:
        fake.standing.append(Fault("hang"))
        query = start(spark, files, writer_for(running))
        until(lambda: metric(running, "backpressure_blocked_clients") > 0, "a blocked caller", 60)
        stopper = threading.Thread(target=query.stop)
        stopper.start()
        stopper.join(30)
        assert not stopper.is_alive()
        assert query.exception() is None
        assert until(lambda: metric(running, "client_connections") == 0.0, "the workers' sessions end", 30)
        fake.standing.clear()
        server.release()
        assert until(lambda: idle(running.metrics()), "nothing is held for callers that are gone", 30)
