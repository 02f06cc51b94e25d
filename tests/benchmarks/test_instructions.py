"""The gate: no hot function takes more instructions for a record than its budget, whatever else the machine does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from benchmarks.counter import Counter
from benchmarks.instructions import budgets, hot, qemu
from benchmarks.instructions.__main__ import verdict
from benchmarks.instructions.budgets import LOOSE, WIDER, Budgets
from benchmarks.instructions.run import count
from benchmarks.scale import AGGREGATIONS, many_shards
from benchmarks.walk import walk

HERE = {"python": "3.11.7", "numpy": "2.4.6"}
BUDGETS = Budgets(HERE, {"route": 1_000, "sort": 2_000})
T = TypeVar("T", bound=Callable[..., None])


def on_qemu(test: T) -> T:
    lack = qemu.missing()
    for mark in (pytest.mark.slow, pytest.mark.system, pytest.mark.skipif(bool(lack), reason=lack)):
        test = mark(test)
    return test


@on_qemu
def test_every_hot_function_keeps_to_its_budget() -> None:
    """Budgets that are too large are only reported: a developer who made things faster may write them again."""
    known = budgets.read()
    counted = count(hot.NAMES, lambda _: None)
    told = verdict(known.figures(counted), known.limit(budgets.versions()))
    assert not told.startswith("FAILED"), f"{told}\n{known.figures(counted)}"
    if told != "all within their budgets":
        pytest.skip(f"./dev bench instructions: {told}")


@on_qemu
def test_what_does_not_run_under_qemu_fails() -> None:
    with pytest.raises(qemu.Failed, match="nothing ended with exit code 1 under qemu"):
        qemu.run("benchmarks.nothing")


def test_every_hot_function_has_a_budget_and_no_other() -> None:
    assert set(budgets.read().instructions_per_record) == set(hot.NAMES)


@pytest.mark.parametrize(
    ("counted", "here", "begins"),
    [
        ({"route": 1_000, "sort": 2_000}, HERE, "all within their budgets"),
        ({"route": 1_000, "sort": 2_020}, HERE, "FAILED: above 1 of the budget: sort"),
        ({"new": 1}, HERE, "FAILED: above 1 of the budget: new"),
        ({"route": 1_000 * LOOSE - 10, "sort": 2_000}, HERE, "far below the budget"),
        ({"route": 1_200, "sort": 2_400}, {"python": "3.11.8"}, "the budgets are of other versions"),
        ({"route": 1_000, "sort": 2_600}, {"python": "3.11.8"}, f"FAILED: above {WIDER} of the budget: sort"),
    ],
    ids=["within", "above", "without a budget", "far below", "other versions", "above by other versions"],
)
def test_the_verdict_names_what_is_above_its_budget(
    counted: dict[str, float], here: dict[str, str], begins: str
) -> None:
    assert verdict(BUDGETS.figures(counted), BUDGETS.limit(here)).startswith(begins)


@pytest.mark.parametrize("name", ["sort 100 B", "encode kpl 100 B", "acknowledge none"])
def test_a_hot_function_runs_without_qemu(name: str) -> None:
    assert hot.count(name, Counter()) > 1


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_records_walk_from_their_frames_to_their_acknowledgements(aggregation: str) -> None:
    cost = walk(many_shards(aggregation, 16).case, Counter(), 2_000, 500)
    assert cost.records >= 2_000
    assert cost.counted > 0
    assert cost.mean_entry_bytes == 116 if aggregation == "none" else cost.mean_entry_bytes > 116
