"""``./dev bench latency [--json] [--puts N]``"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.arguments import at_least
from benchmarks.daemon.run import RecordsWrong
from benchmarks.interrupts import fails_by, interrupts
from benchmarks.latency.run import Figures, bench
from benchmarks.table import answer, say
from producerd.demo.children import ChildFailed

PUTS: Final = 3_000
LEAST_PUTS: Final = 100
"""Fewest puts in a case, of which one is above the 99th percentile."""


@fails_by(ChildFailed, RecordsWrong)
def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.getLogger("producerd.client").setLevel(logging.ERROR)  # it would warn about the waits that we measure
    with interrupts(), bench(options.puts, say) as running:
        say(running.conditions)
        rows = list(running.figures())
    print(answer(Figures, rows, as_json=options.json))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench latency", description="From put to acknowledgement.")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    parser.add_argument(
        "--puts", type=at_least(LEAST_PUTS), default=PUTS, help=f"in each case, {LEAST_PUTS} or more ({PUTS:,})"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
