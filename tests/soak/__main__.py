"""``./dev soak [NAME ...] [--hours H] [--json] [--curves FILE]``"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.interrupts import interrupts
from benchmarks.table import answer, say
from tests.soak.run import Figures, run
from tests.soak.soaks import SOAKS

HOURS: Final = 0.05
"""Three minutes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if a figure grows."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.soak if name not in SOAKS]:
        parser.error(f"no soak {unknown[0]!r}; --help lists them")
    rows: list[Figures] = []
    with interrupts():
        for name in options.soak or SOAKS:
            soak = SOAKS[name]
            if lacks := soak.lacks():
                say(f"{name}: skipped: {lacks}")
                continue
            say(f"{name}: {soak.what}; for {60 * options.hours:g} minutes ...")
            done = run(name, soak, options.hours, say)
            rows.append(done.figures)
            for line in done.told:
                say(f"{name}: {line}")
            if options.curves:
                with options.curves.open("a") as file:
                    file.write(json.dumps(done.curves()) + "\n")
    print(answer(Figures, rows, as_json=options.json))
    return int(any(row.grows for row in rows))


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, SOAKS))
    made = argparse.ArgumentParser(
        prog="./dev soak",
        description="Repeat one thing for a while, and judge whether anything grows in the daemon and its clients:\n"
        "memory, threads, descriptors, objects of each class, and elements of each collection.",
        epilog="soaks:\n" + "\n".join(f"  {name:{width}}  {each.what}" for name, each in SOAKS.items()) + "\n\n"
        "A figure is unclear if it may grow or not: a longer run tells.  Memory is judged in runs of an hour.\n\n"
        "exit code: 0: nothing grows; 1: a figure grows; 2: a wrong option; 130: interrupted",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("soak", nargs="*", metavar="NAME", help="default: all of them")
    made.add_argument("--hours", type=_hours, default=HOURS, metavar="H", help=f"of each (default: {HOURS})")
    made.add_argument("--json", action="store_true", help="one array of objects on stdout")
    made.add_argument("--curves", type=Path, metavar="FILE", help="add what a picture needs, a line for each soak")
    return made


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0.0 < hours <= 1_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours up to 1,000")
    return hours


if __name__ == "__main__":
    sys.exit(main())
