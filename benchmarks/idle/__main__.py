"""``./dev bench idle [--json] [--starts N] [--seconds N]``"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.arguments import at_least, seconds_at_least
from benchmarks.idle.run import Figures, bench
from benchmarks.interrupts import fails_by, interrupts
from benchmarks.table import answer, say
from producerd.demo.children import ChildFailed

STARTS: Final = 7
SECONDS: Final = 60.0


@fails_by(ChildFailed)
def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    with interrupts(), bench(say) as running:
        say(running.conditions)
        rows = running.cases(options.starts, options.seconds)
    print(answer(Figures, rows, as_json=options.json))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench idle", description="Measure a daemon that has nothing to do.")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    parser.add_argument("--starts", type=at_least(1), default=STARTS, help="starts for the medians (%(default)s)")
    parser.add_argument(
        "--seconds",
        type=seconds_at_least(1),
        default=SECONDS,
        help="length of each case (%(default)g); scrapes come every 15",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
