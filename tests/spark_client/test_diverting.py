"""Rows that can never be stored are kept in one Parquet file of their task."""

from __future__ import annotations

import gc
import io
import os
import re
import resource
import signal
import tempfile
import threading
import tracemalloc
import uuid
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from producerd.errors import Code, Outcome, ProducerdError, RecordsFailed
from producerd.wire import messages
from producerd.wire.columns import lay_out
from spark_client import diverting
from spark_client.diverting import COLUMNS, ROW_GROUP_BYTES, DivertedRows, Place, name_of_call
from spark_client.results import PartitionResult, error_in, merge
from spark_client.tally import MAX_FAILURES
from spark_client.task import ODD_STREAM, Plan, send_partition
from tests.spark_client.fake_daemon import EXPIRED, INVALID, TOO_LARGE, FakeDaemon, Row, Session
from tests.spark_client.moto_s3 import Faults, files

NAME = "query-7-0"
FILE = f"{NAME}-00000.parquet"
REFUSED = replace(INVALID, judged=False)
"""What a daemon that judges no row says of a good row of a stream that is refused."""


def batch(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in columns.items()})


def send(daemon: FakeDaemon, to: str, *batches: pa.RecordBatch, **options: Any) -> PartitionResult:
    plan = Plan("s", daemon.path, skip_bad_records=True, divert_to=to, call=NAME)._replace(**options)
    (made,) = send_partition(plan, iter(batches))
    return PartitionResult.from_line(made.column(0)[0].as_py())


def bad(row: Row) -> messages.RowCode | None:
    """What becomes of a row, by its data."""
    maybe = replace(TOO_LARGE, outcome=Outcome.UNKNOWN)
    return {b"invalid": INVALID, b"large": maybe, b"old": EXPIRED, b"refused": REFUSED, None: INVALID}.get(row[1])


@pytest.fixture
def picky(daemon: FakeDaemon) -> FakeDaemon:
    def script(session: Session) -> None:
        session.welcome()
        session.serve(bad)

    daemon.runs(*[script] * 4)
    return daemon


def kept(folder: Path) -> list[tuple[Any, ...]]:
    (path,) = folder.iterdir()
    assert path.name == FILE
    return [tuple(row.values()) for row in pq.read_table(path).to_pylist()]


@pytest.mark.promise("task-writes-bad-rows")
def test_a_task_writes_its_bad_rows_with_why_and_all_that_they_hold(picky: FakeDaemon, tmp_path: Path) -> None:
    to = (tmp_path / "a folder" / "new").as_uri()
    first = batch(partition_key=["a", "b", None], data=["good", "invalid", "good"])
    second = batch(partition_key=["d", "e"], data=["large", None], explicit_hash_key=["12", None])
    result = send(picky, to, first, second)
    assert (result.records, sum(failure.records for failure in result.failures)) == (5, 3)
    assert result.diverted == f"file://{tmp_path}/a folder/new/{FILE}"
    assert kept(tmp_path / "a folder" / "new") == [
        (0, 1, Code.RECORD_INVALID, INVALID.message, False, "s", b"b", None, b"invalid"),
        (0, 3, Code.RECORD_TOO_LARGE, TOO_LARGE.message, True, "s", b"d", b"12", b"large"),
        (0, 4, Code.RECORD_INVALID, INVALID.message, False, "s", b"e", b"", None),
    ]
    merged = merge(7, "s", [result], skip_bad_records=True)
    assert (merged.skipped, merged.diverted) == (3, (result.diverted,))


def test_rows_that_are_refused_before_they_are_sent_are_kept_too(daemon: FakeDaemon, tmp_path: Path) -> None:
    """A record that no stream takes, and streams that cannot be."""

    def script(session: Session) -> None:
        session.welcome()
        session.send(messages.Opened(session.expect(messages.Open).stream_id, 1 << 20, 1))
        session.refuse(session.expect(messages.Reserve), Code.RECORD_TOO_LARGE, "over 10 MiB", judged=1)
        session.serve()

    daemon.runs(script)
    rows = batch(stream=["a b", "fine", None, "fine"], partition_key=["k"] * 4, data=["0", "1", "2", "3"])
    send(daemon, tmp_path.as_uri(), rows, stream=None)
    assert sorted(row[1:6] + row[-1:] for row in kept(tmp_path)) == [
        (0, Code.RECORD_INVALID, ODD_STREAM.message, False, "a b", b"0"),
        (1, Code.RECORD_TOO_LARGE, "over 10 MiB", False, "fine", b"1"),
        (2, Code.RECORD_INVALID, "its stream is null or empty", False, "", b"2"),
    ]


@pytest.mark.promise("repeated-batch-replaces")
def test_a_repeat_replaces_the_file_whole(picky: FakeDaemon, tmp_path: Path) -> None:
    for data in (["invalid", "large", "good"], ["good", "invalid"]):
        send(picky, tmp_path.as_uri(), batch(partition_key=["k"] * len(data), data=data))
    assert [(row[1], row[-1]) for row in kept(tmp_path)] == [(1, b"invalid")]


def test_a_task_without_bad_rows_writes_nothing(picky: FakeDaemon, tmp_path: Path) -> None:
    result = send(picky, tmp_path.as_uri(), batch(partition_key=["k"], data=["good"]))
    assert (result.diverted, result.failures) == (None, ())
    assert not [*tmp_path.iterdir()]


@pytest.mark.promise("message-judges-record")
@pytest.mark.parametrize(
    ("data", "error"), [("old", "EXPIRED 1"), ("refused", "RECORD_INVALID 1 .*; these rows .* upgrade the daemon")]
)
def test_what_was_not_judged_is_not_kept_and_fails_the_batch(
    data: str, error: str, picky: FakeDaemon, tmp_path: Path
) -> None:
    result = send(picky, tmp_path.as_uri(), batch(partition_key=["k", "k"], data=[data, "good"]))
    with pytest.raises(RecordsFailed, match=error):
        merge(7, "s", [result], skip_bad_records=True)
    assert not [*tmp_path.iterdir()]


def test_a_task_that_fails_leaves_the_file_of_an_attempt_that_did_not(picky: FakeDaemon, tmp_path: Path) -> None:
    """It has not seen all of its rows."""
    send(picky, tmp_path.as_uri(), batch(partition_key=["k", "k"], data=["invalid", "large"]))
    before = kept(tmp_path)
    result = send(picky, tmp_path.as_uri(), batch(partition_key=["k", "k"], data=["invalid", "old"]))
    assert result.diverted is None
    assert kept(tmp_path) == before


def test_any_number_of_kinds_of_bad_rows_is_left_out(picky: FakeDaemon, tmp_path: Path) -> None:
    """As each stream is one."""
    streams = [f"s{number}" for number in range(MAX_FAILURES + 6)]
    rows = batch(stream=streams, partition_key=["k"] * len(streams), data=["invalid"] * len(streams))
    result = send(picky, tmp_path.as_uri(), rows, stream=None)
    assert merge(7, None, [result], skip_bad_records=True).skipped == len(streams) == len(kept(tmp_path))


def test_a_folder_that_is_full_keeps_the_file_that_it_had_and_no_part(tmp_path: Path) -> None:
    place, content = Place.of((tmp_path / "bad").as_uri()), tmp_path / "content"
    content.write_bytes(b"before")
    with content.open("rb") as source:
        place.copy(source.fileno(), FILE)
    content.write_bytes(bytes(1 << 20))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with content.open("rb") as source, pytest.raises(OSError, match="File too large"):
            place.copy(source.fileno(), FILE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [path.name for path in (tmp_path / "bad").iterdir()] == [FILE]
    assert (tmp_path / "bad" / FILE).read_bytes() == b"before"


@pytest.mark.promise("file-cannot-written")
@pytest.mark.parametrize("first_error", ["at its place", "on the task's disk"])
def test_a_file_that_cannot_be_written_fails_the_batch_and_not_the_task(
    first_error: str, picky: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt of the task would store its good rows once more."""
    place = tmp_path / "taken"
    if first_error == "at its place":
        place.touch()
    else:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "nowhere"))
    result = send(picky, place.as_uri(), batch(partition_key=["k", "k"], data=["invalid", "good"]))
    assert result.diverted is None
    failure, skipped = result.failures
    assert (failure.code, failure.records, failure.maybe_stored, failure.rows) == (Code.DIVERT_FAILED, 1, False, ())
    assert (skipped.code, skipped.records) == (Code.RECORD_INVALID, 1)
    with pytest.raises(RecordsFailed) as caught:
        merge(7, "s", [result], skip_bad_records=True)
    text = str(caught.value)
    assert caught.value.code == Code.DIVERT_FAILED
    kind = "FileExistsError" if first_error == "at its place" else "FileNotFoundError"
    assert f"DIVERT_FAILED 1 (file://{place}/{FILE}: {kind}: " in text
    assert text.endswith("; tasks write to divert_to with the rights of their own environment")
    error = error_in(f"ProducerdError: {text}")
    assert type(error) is ProducerdError


@pytest.mark.promise("however-many-rows-bad")
def test_however_many_rows_are_bad_a_task_holds_a_row_group_of_them(tmp_path: Path) -> None:
    """128 MiB in frames of 1 MiB, then one row that is larger than a group."""
    bad_rows = DivertedRows(tmp_path.as_uri(), NAME, 0)
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0
    tracemalloc.start()
    try:
        for frame in range(128):
            columns = lay_out([b"k"] * 64, [bytes([frame]) * 16_384] * 64)
            for place in range(64):
                bad_rows.keep(frame * 64 + place, INVALID, "s", columns, place)
            most = max(most, pool.bytes_allocated() - before)
        bad_rows.keep(8_192, INVALID, "s", lay_out([b"k"], [bytes(9 << 20)]), 0)
        bad_rows.write()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * ROW_GROUP_BYTES
    assert most < 2 * ROW_GROUP_BYTES
    with pq.ParquetFile(tmp_path / FILE) as file:
        sizes = [
            file.read_row_group(number).column("data").combine_chunks().nbytes
            for number in range(file.metadata.num_row_groups)
        ]
        assert file.metadata.num_rows == bad_rows.records == 8_193
    assert 16 < len(sizes) < 20
    assert max(sizes[:-1]) <= ROW_GROUP_BYTES < sizes[-1]


def content_of(path: Path, content: bytes) -> Any:
    path.write_bytes(content)
    return path.open("rb")


def test_a_file_is_on_the_disk_whole_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[int, bool]] = []
    target = tmp_path / "bad" / FILE
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((os.fstat(file).st_size, target.exists())))
    with content_of(tmp_path / "content", b"the rows") as source:
        Place.of((tmp_path / "bad").as_uri()).copy(source.fileno(), FILE)
    assert synced == [(8, False)]
    assert target.read_bytes() == b"the rows"


def test_the_folder_may_be_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(os, "makedirs", lambda path, exist_ok: made.append(path))
    monkeypatch.setattr(diverting, "_write", lambda path, _: made.append(path))
    with content_of(tmp_path / "content", b"the rows") as source:
        Place.of("file:///").copy(source.fileno(), "f")
    assert made == ["/", "/f"]


def test_a_group_of_rows_is_written_when_one_more_would_be_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row counts with its code's message, its stream, its key, its hash key and its data."""
    monkeypatch.setattr(diverting, "ROW_GROUP_BYTES", 100)
    before = len(os.listdir("/proc/self/fd"))
    bad_rows = DivertedRows(tmp_path.as_uri(), NAME, 0)
    place, rest = 0, 50 - len(INVALID.message) - len("s") - len("key")
    sizes = [150 + rest, rest, rest, rest, rest, rest + 1, rest]
    data = [bytes(size) for size in sizes]
    for row, one in enumerate(data):
        bad_rows.keep(row, INVALID, "s", lay_out([b"key"], [one]), place)
    bad_rows.keep(7, INVALID, "s", lay_out([b"key"], [bytes(rest - 3)], [b"123"]), place)
    assert bad_rows.records == 8
    bad_rows.write()
    assert len(os.listdir("/proc/self/fd")) == before
    with pq.ParquetFile(tmp_path / FILE) as file:
        groups = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
    assert groups == [1, 2, 2, 1, 2]


@pytest.mark.parametrize(("folders", "scratch"), [(None, None), ("", None), ("{}/a,{}/b", "{}/a")])
def test_the_first_of_spark_s_own_folders_has_the_rows_until_the_end(
    folders: str | None, scratch: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    if folders is not None:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", folders.format(tmp_path, tmp_path))
    used: list[str | None] = []
    made = tempfile.TemporaryFile

    def makes(*, dir: str | None) -> Any:  # noqa: A002 - tempfile's name
        used.append(dir)
        return made(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", makes)
    bad_rows = DivertedRows(tmp_path.as_uri(), NAME, 0)
    bad_rows.keep(0, INVALID, "s", lay_out([b"k"], [b"data"]), 0)
    bad_rows.write()
    assert used == [scratch and scratch.format(tmp_path)]


def test_a_file_has_the_columns_of_which_the_last_can_be_written_again(picky: FakeDaemon, tmp_path: Path) -> None:
    send(picky, tmp_path.as_uri(), batch(partition_key=["k"], data=["invalid"]))
    schema = pq.read_schema(tmp_path / FILE)
    assert {field.name: str(field.type) for field in schema} == {**COLUMNS, "maybe_stored": "bool"}


# ------------------------------------------------------------------------------------------------------------------ S3


class FailingUpload(io.BytesIO):
    """A stream to S3 that may not be written to."""

    def write(self, content: Any) -> int:
        raise OSError("no right")


def test_an_upload_that_failed_is_neither_closed_nor_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either would complete it."""
    uploads = {"b/f": FailingUpload()}
    failed = weakref.ref(uploads["b/f"])
    monkeypatch.setattr("pyarrow.fs.S3FileSystem", lambda **_: SimpleNamespace(open_output_stream=uploads.pop))
    with content_of(tmp_path / "content", b"rows") as source, pytest.raises(OSError, match="no right"):
        Place.of("s3://b?region=r").copy(source.fileno(), "f")
    gc.collect()
    kept = failed()
    assert kept is not None
    assert not kept.closed


@pytest.mark.parametrize(
    ("uri", "asked", "region"),
    [
        ("s3://b/p", ["b"], "eu-west-1"),
        ("s3://b/p?region=us-east-2", [], "us-east-2"),
        ("s3://b/p?region=", ["b"], "eu-west-1"),
        ("s3://b/p?endpoint_override=h", [], None),
        ("s3://unknown/p", ["unknown"], None),
    ],
)
def test_a_bucket_s_region_is_looked_up_unless_the_place_has_one_or_an_endpoint(
    uri: str, asked: list[str], region: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, buckets = [], []

    def resolved(bucket: str) -> str:
        buckets.append(bucket)
        if bucket == "unknown":
            raise OSError("no answer")
        return "eu-west-1"

    monkeypatch.setattr("pyarrow.fs.resolve_s3_region", resolved)

    def makes(**given: object) -> Any:
        made.append(given)
        return SimpleNamespace(open_output_stream=lambda _: io.BytesIO())

    monkeypatch.setattr("pyarrow.fs.S3FileSystem", makes)
    place = Place.of(uri)
    with content_of(tmp_path / "content", b"rows") as source:
        place.copy(source.fileno(), "f")
    assert (buckets, made) == (asked, [{**place.parameters, "region": region, "background_writes": False}])


@pytest.mark.promise("s3-file-under-prefix")
def test_s3_has_the_file_under_its_prefix(s3: str, picky: FakeDaemon) -> None:
    rows = batch(partition_key=["k", "k"], data=["good", "invalid"])
    result = send(picky, f"s3://kept/bad/rows/{s3}", rows)
    assert result.diverted == f"s3://kept/bad/rows/{FILE}"
    table = pq.read_table(f"kept/bad/rows/{FILE}", filesystem=files(s3))
    assert table.column("data").to_pylist() == [b"invalid"]


@pytest.mark.promise("file-cannot-written")
def test_a_bucket_that_is_not_there_fails_the_batch(s3: str, picky: FakeDaemon) -> None:
    result = send(picky, f"s3a://absent{s3}", batch(partition_key=["k"], data=["invalid"]))
    with pytest.raises(RecordsFailed, match=rf"DIVERT_FAILED 1 \(s3://absent/{FILE}: .*NO_SUCH_BUCKET"):
        merge(7, "s", [result], skip_bad_records=True)


@pytest.mark.promise("however-many-rows-bad")
def test_a_large_file_is_not_copied_into_memory_to_be_sent(s3: str, tmp_path: Path) -> None:
    """64 MiB, of which Arrow holds a part at a time."""
    content = tmp_path / "content"
    with content.open("wb") as out:
        out.truncate(64 << 20)
    pool = pa.default_memory_pool()
    most, ended = 0, threading.Event()
    with content.open("rb") as source:

        def copy() -> None:
            Place.of(f"s3://kept/{s3}").copy(source.fileno(), "large")
            ended.set()

        copying = threading.Thread(target=copy)
        copying.start()
        while not ended.wait(0.01):
            most = max(most, pool.bytes_allocated())
        copying.join()
    assert most < 32 << 20
    assert files(s3).get_file_info("kept/large").size == 64 << 20


@pytest.mark.promise("file-cannot-written")
def test_an_upload_that_fails_half_way_leaves_the_file_that_was_there(s3: str, faults: Faults, tmp_path: Path) -> None:
    """To close Arrow's stream would complete the upload with the parts that it has."""
    place, content = Place.of(f"s3://kept/{s3}"), tmp_path / "content"
    content.write_bytes(b"before")
    with content.open("rb") as source:
        place.copy(source.fileno(), FILE)
    content.write_bytes(bytes(35 << 20))
    faults.part = 3
    with content.open("rb") as source, pytest.raises(OSError, match="UploadPart"):
        place.copy(source.fileno(), FILE)
    gc.collect()
    assert files(s3).get_file_info(f"kept/{FILE}").size == len(b"before")


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("uri", "file"),
    [
        ("s3://bucket", "s3://bucket/f"),
        ("s3a://bucket/a/b/?region=eu-west-1", "s3://bucket/a/b/f"),
        ("file:///folder/with%20space/", "file:///folder/with space/f"),
        ("file:///", "file:///f"),
        ("s3://b.c-1/p?region=r&endpoint_override=h&scheme=http", "s3://b.c-1/p/f"),
    ],
)
def test_a_place_is_a_uri_of_s3_or_of_a_folder(uri: str, file: str) -> None:
    assert Place.of(uri).uri("f") == file


@pytest.mark.parametrize(
    "uri",
    [
        *("", "/folder", "folder", "file://host/folder", "file:folder", "s3://", "s3:///prefix", "hdfs://n/p"),
        *("s3://id:secret@b/p", "s3://b?access_key=x", "s3://b?access_key=", "file:///f?region=x", "s3://Bucket_/p"),
        *("file:///bad#1", "s3://b/p#x", "s3://AKIA:abc/SECRET@bucket/p"),
    ],
)
def test_any_other_place_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="give s3://BUCKET/PREFIX"):
        Place.of(uri)


RUNS = [str(uuid.uuid4()) for _ in range(2)]


def test_a_repeated_batch_has_the_names_that_it_had_and_no_other_write_has() -> None:
    def names(run: str, batch_id: int, *writes: str) -> list[str]:
        return [name_of_call("the-query", run, batch_id, "app", write) for write in writes]

    first = names(RUNS[0], 7, "a", "a", "b")
    assert [re.sub("-[0-9a-f]{8}-", "-DIGEST-", name) for name in first] == [
        f"the-query-7-DIGEST-{number}" for number in (0, 1, 0)
    ]
    assert len({*first}) == 3
    assert not {*first} & {*names(RUNS[0], 8, "a", "a", "b")}
    assert names(RUNS[1], 7, "a", "a", "b") == first
    assert names(RUNS[0], 7, "b") == first[2:], "a write of the batch may be left out when it is repeated"


@pytest.mark.parametrize(
    ("query_id", "run", "batch_id"),
    [(None, None, None), (None, RUNS[0], 7), ("q", "my job group", 7), ("q", None, 7), ("q", RUNS[0], None)],
    ids=["no query", "no query's batch", "a job group of the user's", "no run", "no batch"],
)
def test_where_nobody_can_say_which_write_repeats_which_no_two_have_one_name(
    query_id: str | None, run: str | None, batch_id: int | None
) -> None:
    names = [name_of_call(query_id, run, batch_id, "app", "a") for _ in range(3)]
    assert len({*names}) == 3
    assert all(re.fullmatch(rf"app-[0-9a-f]{{8}}-{os.getpid()}-[0-9]+", name) for name in names)
    assert name_of_call(None, None, None, None, "a").startswith("python-")
