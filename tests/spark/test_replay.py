"""A repeated micro-batch is stored once where it has a replay guard, and nothing is lost by it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producerd.errors import ConfigurationError, RecordsFailed
from spark_client import KinesisBatchWriter, write_batch
from tests.daemon import DaemonProcess, until
from tests.spark.orders import QUERY_SECONDS, query, start_query
from tests.spark.queries import Input
from tests.spark.service import Kinesis, counted

pytestmark = pytest.mark.spark


def run(spark: Any, given: Input, write_one: Callable[[Any, int], None]) -> str:
    """Run a query until it has no more input, and return how it failed, or ""."""
    running = start_query(spark, **given.query(2), write_one=write_one)
    try:
        assert running.awaitTermination(QUERY_SECONDS)
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.spark_lane
def test_a_batch_whose_commit_is_lost_is_stored_once(
    spark: Any, kinesis: Kinesis, running: DaemonProcess, tmp_path: Path
) -> None:
    given, stream, guard = Input(tmp_path, files=6, rows_a_file=100), kinesis.stream(), tmp_path / "guard"
    options: dict[str, Any] = {"stream": stream, "socket": str(running.socket), "replay_guard": guard.as_uri()}
    assert query(spark, **given.query(2), **options)["batches"].keys() == {0, 1, 2}
    given.forget_commit(2)
    assert query(spark, **given.query(2), **options)["batches"].keys() == {2}
    assert kinesis.ids(stream) == Counter(range(given.rows))
    assert counted(running, stream)["left_out_records_total"] == 200
    until(lambda: [path.name for path in guard.glob("query=*/*")] == ["batch=2"], "earlier batches are forgotten")


def test_a_batch_that_fails_between_its_writers_stores_each_stream_once(
    spark: Any, kinesis: Kinesis, running: DaemonProcess, tmp_path: Path
) -> None:
    given, streams = Input(tmp_path, files=4, rows_a_file=100), [kinesis.stream(), kinesis.stream()]
    options: dict[str, Any] = {"socket": str(running.socket), "replay_guard": (tmp_path / "guard").as_uri()}
    writers = [KinesisBatchWriter(stream, **options) for stream in streams]
    left_out: list[tuple[int, int]] = []

    def write_both(planted: tuple[int, int] | None) -> Callable[[Any, int], None]:
        def write_one(frame: Any, batch: int) -> None:
            for place, writer in enumerate(writers):
                if (batch, place) == planted:
                    raise RuntimeError("planted")
                result = writer.write(frame, batch)
                left_out.append((batch, result.left_out))

        return write_one

    for planted in ((0, 1), (0, 2), (1, 1), None):
        why = run(spark, given, write_both(planted))
        if planted == (0, 2):  # no such writer: as if the driver had been killed before it committed
            given.forget_commit(0)
            given.forget_commit(1)
        assert ("planted" if planted not in ((0, 2), None) else "") in why
        assert bool(why) == (planted not in ((0, 2), None))
    assert [kinesis.ids(stream) for stream in streams] == [Counter(range(given.rows))] * 2
    assert {(0, 200), (1, 200)} <= {*left_out}


def test_a_stream_that_was_made_again_under_a_running_daemon_gets_the_repeated_batch_whole(
    spark: Any, kinesis: Kinesis, running: DaemonProcess, tmp_path: Path
) -> None:
    given, stream = Input(tmp_path, files=4, rows_a_file=100), kinesis.stream()
    guard = (tmp_path / "guard").as_uri()
    options: dict[str, Any] = {"stream": stream, "socket": str(running.socket), "replay_guard": guard}
    assert query(spark, **given.query(2), **options)["batches"].keys() == {0, 1}
    kinesis.call("streams", {"name": stream, "shards": 4})
    given.forget_commit(1)
    assert query(spark, **given.query(2), **options)["batches"].keys() == {1}
    assert kinesis.ids(stream) == Counter(given.batch(1))


def test_rows_that_are_not_the_same_in_a_repeat_are_all_stored(
    spark: Any, kinesis: Kinesis, running: DaemonProcess, tmp_path: Path
) -> None:
    given, stream = Input(tmp_path, files=2, rows_a_file=100), kinesis.stream()
    guard = (tmp_path / "guard").as_uri()
    writer = KinesisBatchWriter(
        stream, data="to_json(struct(id, rand() as chance))", socket=str(running.socket), replay_guard=guard
    )
    for _ in range(2):
        assert not run(spark, given, writer)
        given.forget_commit(0)
    assert kinesis.ids(stream) == Counter(dict.fromkeys(range(given.rows), 2))


def test_a_batch_job_needs_a_key_and_its_next_try_with_that_key_stores_the_rest(
    spark: Any, kinesis: Kinesis, running: DaemonProcess, tmp_path: Path
) -> None:
    stream, guard = kinesis.stream(), (tmp_path / "guard").as_uri()
    options: dict[str, Any] = {"stream": stream, "socket": str(running.socket), "replay_guard": guard}
    rows = spark.range(0, 30_000, 1, 2).selectExpr("cast(id as string) as partition_key", "id")
    bad = rows.selectExpr("if(id = 12000, repeat('x', 300), partition_key) as partition_key", "id")
    with pytest.raises(ConfigurationError, match="replay_key=None"):
        write_batch(rows, **options)
    with pytest.raises(RecordsFailed):
        write_batch(bad, **options, replay_key="of-today")
    result = write_batch(rows, **options, replay_key="of-today")
    assert (result.records, result.left_out) == (30_000, 25_000)
    assert set(kinesis.ids(stream)) == set(range(30_000))
    again = write_batch(rows, **options, replay_key="of-today")
    assert again.left_out == 0, "another write of this process"
    options["replay_guard"] = "file:///proc/not-a-place"
    result = write_batch(rows, **options, replay_key="of-today")
    assert (result.records, bool(result.guard_problem)) == (30_000, True), "it goes without a guard"


def test_the_data_source_has_the_guard_too(
    spark: Any, kinesis: Kinesis, running: DaemonProcess, tmp_path: Path
) -> None:
    if spark.version.startswith("3."):
        pytest.skip("Spark 3.5 has no Python data sources")

    given, streams, guard = Input(tmp_path, files=4, rows_a_file=100), [kinesis.stream(), kinesis.stream()], "guard"
    options = {"socket": str(running.socket), "replayGuard": (tmp_path / guard).as_uri()}
    data = ["partition_key", "to_json(struct(id)) as data"]
    for _ in range(2):
        source = spark.readStream.schema("id INT, partition_key STRING").option("maxFilesPerTrigger", 2)
        writing = source.json(str(given.files)).selectExpr(*data).writeStream.format("producerd").options(**options)
        writing = writing.option("stream", streams[0]).option("checkpointLocation", str(given.checkpoint))
        assert writing.trigger(availableNow=True).start().awaitTermination(QUERY_SECONDS)
        given.forget_commit(1)
        rows = spark.range(0, 1_000, 1, 2).selectExpr("cast(id as string) as partition_key", data[1])
        saving = rows.write.format("producerd").options(**options).option("stream", streams[1]).mode("append")
        with pytest.raises(Exception, match="replayKey"):
            saving.save()
        saving.option("replayKey", "k").save()
    assert kinesis.ids(streams[0]) == Counter(range(given.rows))
    assert kinesis.ids(streams[1]) == Counter(range(1_000))
    until(lambda: [path.name for path in (tmp_path / guard).glob("query=*/*")] == ["batch=1"])
    assert json.loads(next((tmp_path / guard).glob("key=k/batch=none/0/*/*.json")).read_text())["chunks"]
