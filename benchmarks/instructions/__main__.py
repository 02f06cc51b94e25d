"""``./dev bench instructions [--json] [--write-budgets] [--only NAME ...]``"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.harness import parser
from benchmarks.instructions import budgets, hot, qemu
from benchmarks.instructions.budgets import Figures
from benchmarks.instructions.run import count
from benchmarks.interrupts import interrupts
from benchmarks.machine import machine
from benchmarks.table import answer, say


def main(arguments: Sequence[str] | None = None) -> int:
    made, names = parser("instructions", "The instructions that a record takes in the hot functions."), hot.NAMES
    made.add_argument("--write-budgets", action="store_true", help=f"what is counted is the budget, and {slack()}")
    made.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=f"of {', '.join(names)}")
    options = made.parse_args(arguments)
    if lack := qemu.missing():
        say(f"FAILED: {lack}")
        return 1
    here = budgets.versions()
    say(f"{machine()}; {', '.join(f'{name} {value}' for name, value in here.items())}")
    try:
        with interrupts():
            counted = count(options.only, say)
    except qemu.Failed as error:
        say(f"FAILED: {error}")
        return 1
    if options.write_budgets:
        budgets.write(counted, here)
    known = budgets.read()
    rows = known.figures(counted)
    print(answer(Figures, rows, as_json=options.json))
    summary = verdict(rows, known.limit(here))
    say(summary)
    return int(summary.startswith("FAILED"))


def verdict(rows: list[Figures], limit: float) -> str:
    lines = []
    if slow := budgets.too_slow(rows, limit):
        lines += [f"FAILED: above {limit:g} of the budget: {', '.join(row.name for row in slow)}"]
    if limit > 1:
        lines += ["the budgets are of other versions: write them again with --write-budgets"]
    if idle := budgets.loose(rows):
        lines += [f"far below the budget, which should be written again: {', '.join(row.name for row in idle)}"]
    return "\n".join(lines) or "all within their budgets"


def slack() -> str:
    return f"{budgets.SLACK - 1:.0%}".replace("%", " percent")


if __name__ == "__main__":
    sys.exit(main())
