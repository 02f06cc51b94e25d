"""What each function may take, and the versions that this was counted with.

With other versions of the interpreter and of the libraries the same code takes somewhat more or less: then the limit is
wider, and who sees that writes the budgets anew.
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
"""Of a new budget to what was counted.  Counts differ by less than 0.1 % from run to run."""
WIDER: Final = 1.25
"""With other versions than those that budgets hold for."""
LOOSE: Final = 0.9
"""Of a budget: what takes less should get a smaller one, else it can become as slow again unseen."""
PACKAGES: Final = ("numpy", "orjson", "pyarrow", "pybase64")


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the answer.  ``ratio``: of what was counted to the budget; None where there is none."""

    name: str
    instructions_per_record: float
    budget: int | None
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Budgets:
    """``holds_for``: versions by name."""

    holds_for: Mapping[str, str]
    instructions_per_record: Mapping[str, int]

    def figures(self, counted: Mapping[str, float]) -> list[Figures]:
        return [self._figures(name, count) for name, count in counted.items()]

    def limit(self, here: Mapping[str, str]) -> float:
        """The ratio that nothing may pass, with these versions."""
        return 1.0 if here == self.holds_for else WIDER

    def _figures(self, name: str, count: float) -> Figures:
        budget = self.instructions_per_record.get(name)
        return Figures(name, round(count, 1), budget, None if budget is None else round(count / budget, 3))


def versions() -> dict[str, str]:
    """Those that decide how many instructions the same code takes."""
    libc = "".join(platform.libc_ver())
    packages = {name: version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **packages, "libc": libc, "qemu": qemu.version(), "cpu": qemu.CPU}


def read(path: Path = FILE) -> Budgets:
    told = json.loads(path.read_text())
    return Budgets(told["holds_for"], told["instructions_per_record"])


def write(counted: Mapping[str, float], here: Mapping[str, str], path: Path = FILE) -> None:
    """Budgets for what was counted.  Those of functions that were not stay, where they are of the same versions."""
    before = read(path)
    kept = before.instructions_per_record if before.holds_for == here else {}
    budgets = {**kept} | {name: round(count * SLACK) for name, count in counted.items()}
    path.write_text(json.dumps({"holds_for": here, "instructions_per_record": budgets}, indent=2) + "\n")


def too_slow(figures: list[Figures], limit: float) -> list[Figures]:
    return [line for line in figures if line.ratio is None or line.ratio > limit]


def loose(figures: list[Figures]) -> list[Figures]:
    return [line for line in figures if line.ratio is not None and line.ratio < LOOSE]
