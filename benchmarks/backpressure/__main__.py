"""``./dev bench backpressure [--json] [--seconds N] [--pictures DIR] [--redraw]``"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.backpressure.curves import NAMES
from benchmarks.backpressure.picture import draw
from benchmarks.backpressure.record import read, write
from benchmarks.backpressure.run import CASES, Bench, Figures
from benchmarks.daemon.run import RecordsWrong
from benchmarks.table import say, table
from producerd.demo.children import ChildFailed
from producerd.demo.scenario import interrupts

SECONDS: Final = 100.0
PICTURES: Final = Path("build", "backpressure")


@dataclass(frozen=True, slots=True)
class Line:
    """Of the table for people."""

    case: str
    curve: str
    mean: float
    peak: float
    coefficient_of_variation: float | None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        bench = Bench.lasting(options.seconds, say)
    except ValueError as error:
        parser.error(str(error))
    if not options.redraw:
        try:
            measure(bench, options.pictures)
        except (ChildFailed, RecordsWrong) as error:
            say(f"FAILED: {error}\n{getattr(error, 'tail', '')}")
            return 1
    runs = read(options.pictures)
    for path in draw(runs, options.pictures):
        say(f"drawn: {path}")
    figures = [run.figures for run in runs]
    print(json.dumps([asdict(each) for each in figures], indent=1) if options.json else table(Line, [*lines(figures)]))
    return 0


def measure(bench: Bench, pictures: Path) -> None:
    """Both runs; their figures and curves are written to where the pictures go."""
    say(conditions := bench.conditions)
    with interrupts():
        runs = [bench.run(case) for case in CASES]
    write(runs, f"{conditions}; load {os.getloadavg()[0]:.1f} after", pictures)


def lines(figures: Sequence[Figures]) -> Iterator[Line]:
    for run in figures:
        for name in NAMES:
            yield Line(run.case, name, run.means[name], run.peaks[name], run.coefficients_of_variation[name])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench backpressure", description="What a queue limit does to a job.")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="that each of two runs takes, about (%(default)g)"
    )
    parser.add_argument(
        "--pictures", type=Path, default=PICTURES, metavar="DIR", help="where pictures and their data go (%(default)s)"
    )
    parser.add_argument("--redraw", action="store_true", help="run nothing: draw anew what lies there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
