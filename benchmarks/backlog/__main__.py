"""``./dev bench backlog [--json] [--with-kpl] [--seconds N] [--pictures DIR] [--redraw]``"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.arguments import seconds_at_least
from benchmarks.backlog.picture import draw
from benchmarks.backlog.record import FILE, read, write
from benchmarks.backlog.run import CASES, KPL, LEAST_SECONDS, Bench, Figures, Run
from benchmarks.harness import parser, report
from benchmarks.table import say

SECONDS: Final = 180.0
PICTURES: Final = Path("build", "backlog")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table for people."""

    case: str
    written: int
    lost: int
    duplicates: int
    most_waiting: int
    payload_bytes: int
    charged_bytes: int
    memory_bytes: int
    records_per_second_before: int
    recovery_seconds: float | None


def measured(options: argparse.Namespace) -> Iterator[Figures | Line]:
    if not options.redraw:
        measure(Bench(options.seconds, say), options.pictures, with_kpl=options.with_kpl)
    runs = read(options.pictures)
    for path in draw(runs, options.pictures):
        say(f"drawn: {path}")
    figures = [run.figures for run in runs]
    yield from figures if options.json else map(line, figures)


def measure(bench: Bench, pictures: Path, *, with_kpl: bool) -> None:
    """Run the cases, and write their figures and curves to the folder of the pictures."""
    say(conditions := bench.conditions)
    runs: list[Run] = []
    for case in CASES:
        if with_kpl or case != KPL:
            runs.append(bench.run(case))
            write(runs, f"{conditions}; load {os.getloadavg()[0]:.1f} after", pictures)


def line(figures: Figures) -> Line:
    return Line(
        figures.case,
        figures.written,
        figures.lost,
        figures.duplicates,
        round(figures.peaks["waiting"]),
        figures.payload_bytes,
        figures.charged_bytes,
        round(figures.peaks["memory"]),
        figures.records_per_second_before,
        figures.recovery_seconds,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser("backlog", "What waits while Kinesis hangs.")
    made.add_argument(
        "--seconds",
        type=seconds_at_least(LEAST_SECONDS),
        default=SECONDS,
        help=f"that each run takes, about; {LEAST_SECONDS:g} or more (%(default)g)",
    )
    made.add_argument("--with-kpl", action="store_true", help="the official KPL too; needs Maven and a JDK")
    made.add_argument(
        "--pictures", type=Path, default=PICTURES, metavar="DIR", help="where pictures and their data go (%(default)s)"
    )
    made.add_argument("--redraw", action="store_true", help="run nothing: draw the pictures again from their data")
    options = made.parse_args(arguments)
    if options.redraw and not (options.pictures / FILE).is_file():
        first = f"`./dev bench backlog --pictures {options.pictures}`"
        made.error(f"--redraw: there is no {options.pictures / FILE}: first run {first}")
    return report(Figures if options.json else Line, measured(options), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
