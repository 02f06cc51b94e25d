"""The gate: no hot function takes more instructions for a record than its budget, whatever else the machine does."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import cbor2
import pytest

import benchmarks.walk
from benchmarks.counter import Counter
from benchmarks.instructions import budgets, hot, qemu
from benchmarks.instructions.__main__ import main, verdict
from benchmarks.instructions.budgets import LOOSE, WIDER, Budgets, Figures
from benchmarks.instructions.run import count
from benchmarks.walk import Case, RecordsWrong, answer_to, walk
from producerd.core.encoding.entries import EncodedRequest
from producerd.core.lanes.lane import Lane

HERE = {"python": "3.11.7", "numpy": "2.4.6"}
BUDGETS = Budgets(HERE, {"route": 1_000, "sort": 2_000})

# ------------------------------------------------------------------------------------------------------------ the gate

T = TypeVar("T", bound=Callable[..., None])


def on_qemu(test: T) -> T:
    lack = qemu.missing()
    for mark in (pytest.mark.slow, pytest.mark.system, pytest.mark.skipif(bool(lack), reason=lack)):
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def counted() -> dict[str, float]:
    """All of it, once."""
    return count(hot.NAMES, lambda _: None)


@on_qemu
def test_every_hot_function_keeps_to_its_budget(counted: dict[str, float]) -> None:
    known = budgets.read()
    told = verdict(known.figures(counted), known.limit(budgets.versions()))
    assert not told.startswith("FAILED"), f"{told}\n{known.figures(counted)}"


@on_qemu
def test_budgets_are_tight_and_of_these_versions(counted: dict[str, float]) -> None:
    """Budgets that are not are only reported: a developer who made things faster may write them again."""
    known = budgets.read()
    if (told := verdict(known.figures(counted), known.limit(budgets.versions()))) != "all within their budgets":
        pytest.skip(f"./dev bench instructions: {told}")


@on_qemu
def test_what_does_not_run_under_qemu_is_told() -> None:
    with pytest.raises(qemu.Failed, match="nothing ended with exit code 1 under qemu"):
        qemu.run("benchmarks.nothing")


# --------------------------------------------------------------------------------------------------------- the verdict


def figures(route: float, sort: float) -> list[Figures]:
    return BUDGETS.figures({"route": route, "sort": sort})


def test_a_figure_is_told_with_its_budget_and_the_ratio() -> None:
    assert figures(900.04, 2_100) == [Figures("route", 900.0, 1_000, 0.9), Figures("sort", 2_100, 2_000, 1.05)]


def test_what_is_above_its_budget_fails_by_name() -> None:
    assert verdict(figures(1_000, 2_000), 1.0) == "all within their budgets"
    assert verdict(figures(1_000, 2_020), 1.0) == "FAILED: above 1 of the budget: sort"


def test_what_has_no_budget_fails() -> None:
    assert verdict(BUDGETS.figures({"new": 1.0}), 1.0).startswith("FAILED: above 1 of the budget: new")


def test_what_is_far_below_its_budget_is_told_and_does_not_fail() -> None:
    told = verdict(figures(1_000 * LOOSE - 10, 2_000), 1.0)
    assert told.endswith("should be written again: route")
    assert "FAILED" not in told


@pytest.mark.parametrize("here", [{**HERE, "python": "3.11.8"}, {"python": "3.11.7"}])
def test_with_other_versions_the_limit_is_wider_and_that_is_told(here: dict[str, str]) -> None:
    limit = BUDGETS.limit(here)
    assert limit == WIDER
    assert verdict(figures(1_200, 2_400), limit).startswith("the budgets are of other versions")
    assert verdict(figures(1_000, 2_600), limit).startswith("FAILED: above 1.25 of the budget: sort")
    assert BUDGETS.limit(HERE) == 1.0


def test_budgets_that_are_written_hold_and_only_those_of_the_same_versions_stay(tmp_path: Path) -> None:
    path = tmp_path / "budgets.json"
    path.write_text(json.dumps({"holds_for": HERE, "instructions_per_record": {"route": 1, "sort": 2_000}}))
    budgets.write({"route": 1_000.0}, HERE, path)
    assert budgets.read(path) == Budgets(HERE, {"route": 1_030, "sort": 2_000})
    newer = {**HERE, "python": "3.11.8"}
    budgets.write({"sort": 1_000.0}, newer, path)
    assert budgets.read(path) == Budgets(newer, {"sort": 1_030})


def test_every_hot_function_has_a_budget_and_no_other() -> None:
    assert set(budgets.read().instructions_per_record) == set(hot.NAMES)


def test_a_machine_without_qemu_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("PATH", "/nowhere")
    assert main([]) == 1
    assert "FAILED: needs qemu-x86_64, gcc: apt-get install qemu-user gcc libc6-dev" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------- what is counted


@pytest.mark.parametrize("name", ["sort 100 B", "encode kpl 100 B", "acknowledge none"])
def test_a_piece_of_work_is_done_and_takes_something(name: str) -> None:
    counter = Counter()
    assert counter.unit == "cpu_ns"
    assert hot.count(name, counter) > 1


@pytest.mark.parametrize("aggregation", ["none", "kpl"])
def test_records_walk_from_their_frames_to_their_acknowledgements(aggregation: str) -> None:
    cost = walk(Case(aggregation, shards=2, sessions=3, frame_records=100), Counter(), 2_000, 500)
    assert 2_000 <= cost.records < 2_000 + 3 * 100
    assert cost.counted > 0
    assert cost.mean_entry_bytes == 116 if aggregation == "none" else cost.mean_entry_bytes > 1_000


def test_a_walk_takes_the_same_steps_each_time() -> None:
    case = Case("kpl", shards=7, sessions=2, keys=50, frame_records=300)
    first, second = (walk(case, Counter(), 3_000, 600) for _ in range(2))
    assert (first.records, first.requests, first.entries, first.entry_bytes) == (
        second.records,
        second.requests,
        second.entries,
        second.entry_bytes,
    )


def test_a_walk_in_which_records_are_not_stored_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(request: EncodedRequest, lanes: Sequence[Lane], first_number: int = 1) -> bytes:
        answer = cbor2.loads(answer_to(request, lanes, first_number))
        answer["Records"] = [{"ErrorCode": "KMSAccessDeniedException", "ErrorMessage": "no"}] * request.entries
        return cbor2.dumps(answer)

    monkeypatch.setattr(benchmarks.walk, "answer_to", refused)
    with pytest.raises(RecordsWrong, match="0 of 100 records are stored"):
        walk(Case("none", sessions=1, frame_records=100), Counter(), 100, 100)


def test_what_is_done_in_a_pause_is_not_counted() -> None:
    def burn() -> int:
        return sum(range(3_000_000))

    counter = Counter()
    counter.take()
    burn()
    all_of_it = counter.take()
    counter.pause()
    burn()
    counter.go_on()
    assert counter.take() < all_of_it / 4
