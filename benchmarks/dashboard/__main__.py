"""``./dev bench dashboard [--seconds N] [--pictures DIR] [--redraw]``"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.arguments import seconds_at_least
from benchmarks.dashboard.grafana import DASHBOARD
from benchmarks.dashboard.picture import draw
from benchmarks.dashboard.record import FILE, read, record, write
from benchmarks.dashboard.run import JOBS, NODES, PHASES, SCRAPE_SECONDS, SHARDS, faulty_run
from benchmarks.interrupts import fails_by, interrupts
from benchmarks.machine import machine
from benchmarks.table import say
from producerd.demo.children import ChildFailed

SECONDS: Final = 100.0
LEAST_SECONDS: Final = 20.0
PICTURES: Final = Path("build", "dashboard")


@fails_by(ChildFailed)
def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.redraw:
        if not (options.pictures / FILE).is_file():
            parser.error(f"--redraw: there is no {options.pictures / FILE}")
    elif shutil.which("prometheus") is None:
        parser.error("there is no prometheus: Debian's package has it (apt-get install prometheus)")
    else:
        _measure(options.seconds, options.pictures)
    say(f"drawn: {draw(read(options.pictures), options.pictures)}")
    return 0


def _measure(seconds: float, pictures: Path) -> None:
    asked = subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=True)
    version = (asked.stdout + asked.stderr).split(" (")[0]
    conditions = (
        f"{machine()}; {version}; {NODES} daemons with {JOBS} jobs each, {SHARDS} shards of 1 MiB/s and "
        f"1,000 records/s, a scrape each {SCRAPE_SECONDS} s"
    )
    say(conditions)
    logging.getLogger("producerd.client").setLevel(logging.CRITICAL)  # its warnings are what the run is about
    with interrupts(), faulty_run(seconds / len(PHASES), say) as run:
        kept = record(run, json.loads(DASHBOARD.read_text()), f"{conditions}; load {os.getloadavg()[0]:.1f} after")
    write(kept, pictures)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev bench dashboard", description="What the dashboard's row Stream shows while everything fails."
    )
    parser.add_argument(
        "--seconds",
        type=seconds_at_least(LEAST_SECONDS),
        default=SECONDS,
        help=f"that the run takes, about; {LEAST_SECONDS:g} or more (%(default)g)",
    )
    parser.add_argument(
        "--pictures",
        type=Path,
        default=PICTURES,
        metavar="DIR",
        help="where the picture and its data go (%(default)s)",
    )
    parser.add_argument("--redraw", action="store_true", help="run nothing: draw the picture again from its data")
    return parser


if __name__ == "__main__":
    sys.exit(main())
