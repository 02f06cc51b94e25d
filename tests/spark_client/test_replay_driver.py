"""The driver numbers the guarded calls of a batch, finds what is known of them, and removes what is not wanted more."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from producerd.errors import ConfigurationError
from spark_client.calls import Calls
from spark_client.replay import driver, store
from spark_client.replay.driver import guarded, plan_without_look, prune, remove_batches
from spark_client.replay.guard import CHANGED
from tests.daemon import until
from tests.spark_client.moto_s3 import Faults

QUERY, RUN = "query=q", "run-1"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has made no call yet, and in which no earlier test removes anything."""
    until(is_quiet)
    monkeypatch.setattr(driver, "_CALLS", Calls())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a b"


def put(folder: Path, path: str) -> Path:
    at = folder / path
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text("records")
    return at


def call_at(uri: str, name: str = QUERY, batch: int | None = 7, run: str | None = RUN) -> Any:
    with guarded(uri, 10.0, name, batch, run) as made:
        made.succeeded(sent=True)
        return made.plan


def call(folder: Path, *arguments: Any, **options: Any) -> Any:
    return call_at(folder.as_uri(), *arguments, **options)


def is_quiet() -> bool:
    """Whether nothing is being removed."""
    return all(thread.name != store.THREAD for thread in threading.enumerate())


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_file_whose_write_fails_is_never_seen(folder: Path) -> None:
    kept = store.Store(folder.as_uri())
    no_bytes: Any = object
    with pytest.raises(TypeError):
        kept.write("query=q/batch=7/0/0/a.json", no_bytes)
    assert kept.files(QUERY) == []


def test_a_first_run_finds_nothing_and_a_repeat_the_partitions_with_records(folder: Path) -> None:
    plan = call(folder)
    assert plan[:2] == (folder.as_uri(), "query=q/batch=7/0")
    assert (plan.found, plan.interval_seconds, len(plan.mark)) == ((), 10.0, 32)
    for path in ("0/3/a-1.json", "0/3/a-2.json", "0/11/a-3.json", "1/4/a-4.json", "0/x/a-5.json", "0/5/.torn"):
        put(folder, f"query=q/batch=7/{path}")
    again = call(folder, run="run-2")
    assert (again.found, again.mark) == ((3, 11), plan.mark)
    assert call(folder, run="run-2").found == (4,), "the second call of this batch"


def test_what_belongs_to_other_batches_is_removed_when_the_next_begins(folder: Path) -> None:
    put(folder, "query=q/batch=5/0/0/a.json")
    put(folder, "query=q/batch=6/0/0/a.json")
    other = put(folder, "query=r/batch=6/0/0/a.json")
    call(folder)
    until(lambda: not list((folder / QUERY).glob("batch=*")) and is_quiet())
    assert other.exists()
    put(folder, "query=q/batch=8/0/0/a.json")
    put(folder, "query=q/batch=9/0/0/a.json")
    remove_batches(folder.as_uri(), QUERY, 8)
    assert [path.name for path in (folder / QUERY).iterdir()] == ["batch=8"]


def test_a_batch_before_the_highest_that_is_known_ignores_and_removes_all_records_of_the_query(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(folder, "query=q/batch=7/0/0/a.json")
    put(folder, "query=q/batch=8/0/0/a.json")
    assert call(folder).found == ()
    assert not (folder / QUERY).exists()
    assert warnings(caplog) == [f"replay guard: {CHANGED.format(7)}"]


def test_of_what_is_older_only_records_are_pruned(folder: Path) -> None:
    kept = [put(folder, path) for path in ("flights/day=1/part.parquet", "key=a/x.json", "query=q/day=1/x.json")]
    old = [put(folder, f"{name}/batch={batch}/0/0/a.json") for name, batch in (("key=b", "none"), ("query=q", 7))]
    both = put(folder, "key=c/batch=8/0/0/a.json"), put(folder, "key=c/batch=9/0/0/a.json")
    for path in (*kept, *old, both[0]):
        os.utime(path, (0, 0))
    assert prune(folder.as_uri()) == 3
    assert all(path.exists() for path in (*kept, both[1]))
    assert not any(path.exists() for path in (*old, both[0], folder / "key=b"))


def test_a_key_that_is_given_again_after_its_write_is_warned_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        call(folder, "key=k", None, None)
        call(folder, QUERY, 7, RUN)
    assert warnings(caplog) == [
        "replay guard: this process has written with key=k before; this is another write, sent whole"
    ]


def test_records_under_a_key_stay_and_batches_without_a_number_have_no_order(folder: Path) -> None:
    made = put(folder, "key=daily/batch=none/0/0/a.json")
    plan = call(folder, "key=daily", None, None)
    assert (plan.folder, plan.found) == ("key=daily/batch=none/0", (0,))
    assert made.exists()


def test_a_key_that_another_process_uses_at_the_same_time_is_warned_of(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(folder, "key=k/batch=none/0/0/other-1.json")
    with guarded(folder.as_uri(), 10.0, "key=k", None) as made:
        assert made.plan is not None
        put(folder, f"key=k/batch=none/0/0/{made.plan.token}-2.json")
        made.succeeded(sent=True)
    assert warnings(caplog) == []
    with guarded(folder.as_uri(), 10.0, "key=k", None) as made:
        put(folder, "key=k/batch=none/1/0/other-3.json")
        made.succeeded(sent=True)
    assert warnings(caplog)[1:] == [
        "replay guard: another process has written with this key=k meanwhile: give each its own"
    ]


def test_a_call_that_raises_has_the_same_number_when_it_is_made_again(folder: Path) -> None:
    with pytest.raises(KeyError), guarded(folder.as_uri(), 10.0, "key=k", None):
        raise KeyError
    assert call(folder, "key=k", None, None).folder == "key=k/batch=none/0"


def test_a_store_that_fails_or_hangs_costs_the_guard_and_not_the_write(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    not_a_folder = put(tmp_path, "file")
    assert call(not_a_folder) is None
    assert plan_without_look(not_a_folder.as_uri(), 10.0) is None
    with guarded(not_a_folder.as_uri(), 10.0, QUERY, 7, RUN) as made:
        assert "file" in made.problem
    free = threading.Event()
    monkeypatch.setattr(store.Store, "mark", lambda _: free.wait(60))
    monkeypatch.setattr(store.within, "__defaults__", (0.2,))
    began = time.monotonic()
    assert call(folder) is None
    free.set()
    assert time.monotonic() - began < 30
    *failed, hung = warnings(caplog)
    assert all("this write goes without it" in line for line in failed)
    assert hung == "replay guard: TimeoutError: no answer within 0.2 s; this write goes without it"


def test_a_folder_that_hangs_forever_gets_no_ever_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    free, begun = threading.Event(), list[float]()

    def hang() -> None:
        begun.append(time.monotonic())
        free.wait(60)

    for _ in range(10):
        with pytest.raises(TimeoutError):
            store.within(hang, 0.01)
    assert len(begun) == store.MOST_HANGING
    free.set()
    until(is_quiet)
    assert store.within(lambda: "it answers again") == "it answers again"


def test_tasks_of_a_write_without_a_driver_have_the_marker(folder: Path) -> None:
    plan = plan_without_look(folder.as_uri(), 5.0)
    assert plan is not None
    assert (plan.found, plan.folder, plan.interval_seconds) == (None, "", 5.0)
    assert store.Store(folder.as_uri()).has(plan.mark)
    assert not store.Store(folder.as_uri()).has("another")


# ------------------------------------------------------------------------------------------------------------------ S3


@pytest.mark.parametrize("root", ["s3://kept", "s3a://kept/a/b"])
def test_in_s3_all_is_as_in_a_folder_and_needs_no_marker(s3: str, root: str) -> None:
    uri = f"{root}{s3}"
    kept = store.Store(uri)
    plan = call_at(uri)
    assert (plan.found, plan.mark) == ((), "")
    for batch in (6, 7):
        kept.write(f"query=q/batch={batch}/0/3/{plan.token}-1.json", b"records")
    assert call_at(uri, run="run-2").found == (3,)
    until(lambda: kept.folders(QUERY) == ["batch=7"] and is_quiet())
    assert kept.read(f"query=q/batch=7/0/3/{plan.token}-1.json") == b"records"
    kept.write("query=q/batch=8/0/3/a.json", b"")
    assert call_at(uri, run="run-3").found == ()
    assert (kept.folders(QUERY), kept.files(""), kept.has("")) == ([], [], True)
    kept.write("key=k/batch=none/0/3/a.json", b"")
    assert (prune(uri, 60.0), prune(uri, -60.0), kept.files("")) == (0, 1, [])


def test_s3_that_does_not_answer_ends_a_call_in_time(
    s3: str, faults: Faults, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store, "CALL_SECONDS", 0.5)
    faults.answers.clear()
    began = time.monotonic()
    assert call_at(f"s3://kept{s3}") is None
    assert time.monotonic() - began < 10
    (line,) = warnings(caplog)
    assert "this write goes without it" in line
    assert "TimeoutError" not in line, "the call itself has ended"


def test_a_task_of_the_data_source_that_does_not_know_its_query_is_refused(folder: Path) -> None:
    """Records of any two queries would be the same otherwise."""
    datasource = pytest.importorskip("spark_client.datasource", reason="Spark 3.5 has no Python data sources")
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType([StructField("partitionKey", StringType()), StructField("data", StringType())])
    source = datasource.ProducerdDataSource({"stream": "s", "replayguard": folder.as_uri()})
    with pytest.raises(ConfigurationError, match="does not tell this task to which query"):
        source.streamWriter(schema, overwrite=False).write(iter([]))
