"""``./dev bench backpressure [--json] [--seconds N] [--pictures DIR] [--redraw]``"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.arguments import seconds_at_least
from benchmarks.backpressure.curves import NAMES
from benchmarks.backpressure.picture import draw
from benchmarks.backpressure.record import FILE, read, write
from benchmarks.backpressure.run import CASES, LEAST_SECONDS, Bench, Figures, Run
from benchmarks.harness import parser, report
from benchmarks.table import say

SECONDS: Final = 100.0
PICTURES: Final = Path("build", "backpressure")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table for people."""

    case: str
    curve: str
    mean: float
    peak: float
    coefficient_of_variation: float | None


def measured(options: argparse.Namespace) -> Iterator[Figures | Line]:
    if not options.redraw:
        measure(Bench.lasting(options.seconds, say), options.pictures)
    runs = read(options.pictures)
    for path in draw(runs, options.pictures):
        say(f"drawn: {path}")
    figures = [run.figures for run in runs]
    yield from figures if options.json else lines(figures)


def measure(bench: Bench, pictures: Path) -> None:
    """Run both cases, and write their figures and curves to the folder of the pictures."""
    say(conditions := bench.conditions)
    runs = [bench.run(case) for case in CASES]
    if never_blocked(runs):
        say("NEVER BLOCKED: with_limit did not reach its limit, and shows nothing: it needs more --seconds")
    write(runs, f"{conditions}; load {os.getloadavg()[0]:.1f} after", pictures)


def never_blocked(runs: Sequence[Run]) -> bool:
    return any(run.figures.case == "with_limit" and not run.figures.totals["blocked_seconds"] for run in runs)


def lines(figures: Sequence[Figures]) -> Iterator[Line]:
    for run in figures:
        for name in NAMES:
            yield Line(run.case, name, run.means[name], run.peaks[name], run.coefficients_of_variation[name])


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser("backpressure", "What a queue limit does to a job.")
    made.add_argument(
        "--seconds",
        type=seconds_at_least(LEAST_SECONDS),
        default=SECONDS,
        help=f"that each of two runs takes, about; {LEAST_SECONDS:g} or more (%(default)g)",
    )
    made.add_argument(
        "--pictures", type=Path, default=PICTURES, metavar="DIR", help="where pictures and their data go (%(default)s)"
    )
    made.add_argument("--redraw", action="store_true", help="run nothing: draw the pictures again from their data")
    options = made.parse_args(arguments)
    if options.redraw and not (options.pictures / FILE).is_file():
        first = f"`./dev bench backpressure --pictures {options.pictures}`"
        made.error(f"--redraw: there is no {options.pictures / FILE}: first run {first}")
    return report(Figures if options.json else Line, measured(options), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
