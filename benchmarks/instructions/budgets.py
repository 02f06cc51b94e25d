"""The budgets of the hot functions, and the versions for which they hold.

With other versions of the interpreter and the libraries, the same code needs somewhat more or fewer instructions.  Then
the limit is wider, and a developer should write the budgets again.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.instructions import qemu

FILE: Final = Path(__file__).with_name("budgets.json")
SLACK: Final = 1.03
"""Ratio of a new budget to its count.  Counts differ by less than 0.1 % from run to run."""
WIDER: Final = 1.25
"""Highest ratio of a count to its budget with other versions."""
LOOSE: Final = 0.9
"""Ratio of a count to its budget below which the budget is too large: the function could become slower unnoticed."""
PACKAGES: Final = ("numpy", "orjson", "pyarrow", "pybase64")


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results.  ``ratio`` is the count divided by the budget, or None if there is no budget."""

    name: str
    instructions_per_record: float
    budget: int | None
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Budgets:
    """The budgets, and the versions by name for which they hold."""

    holds_for: Mapping[str, str]
    instructions_per_record: Mapping[str, int]

    def figures(self, counted: Mapping[str, float]) -> list[Figures]:
        return [self._figures(name, count) for name, count in counted.items()]

    def limit(self, here: Mapping[str, str]) -> float:
        """Highest allowed ratio of a count to its budget with these versions."""
        return 1.0 if here == self.holds_for else WIDER

    def _figures(self, name: str, count: float) -> Figures:
        budget = self.instructions_per_record.get(name)
        return Figures(name, round(count, 1), budget, None if budget is None else round(count / budget, 3))


def versions() -> dict[str, str]:
    """Return the versions that decide how many instructions the same code needs."""
    libc = "".join(platform.libc_ver())
    packages = {name: version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **packages, "libc": libc, "qemu": qemu.version(), "cpu": qemu.CPU}


def read(path: Path = FILE) -> Budgets:
    document = json.loads(path.read_text())
    return Budgets(document["holds_for"], document["instructions_per_record"])


def write(counted: Mapping[str, float], here: Mapping[str, str], path: Path = FILE) -> None:
    """Return budgets for new counts, and keep the other ones if they are of the same versions."""
    before = read(path)
    kept = before.instructions_per_record if before.holds_for == here else {}
    budgets = {**kept} | {name: round(count * SLACK) for name, count in counted.items()}
    path.write_text(json.dumps({"holds_for": here, "instructions_per_record": budgets}, indent=2) + "\n")


def too_slow(figures: list[Figures], limit: float) -> list[Figures]:
    return [line for line in figures if line.ratio is None or line.ratio > limit]


def loose(figures: list[Figures]) -> list[Figures]:
    return [line for line in figures if line.ratio is not None and line.ratio < LOOSE]
