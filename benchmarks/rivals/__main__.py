"""``./dev bench rivals [--json] [--only PRODUCER ...] [--bytes N ...] [--records N] [--repeat N]``"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.arguments import at_least
from benchmarks.daemon.run import WORTH, RecordsWrong, warn_of_few
from benchmarks.interrupts import fails_by, interrupts
from benchmarks.rivals.run import NAMES, Figures, bench
from benchmarks.table import answer, say
from producerd.demo.children import ChildFailed

RECORDS: Final = 500_000
REPEATS: Final = 3


@fails_by(ChildFailed, RecordsWrong)
def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    with interrupts(), bench(options.records, options.repeat, options.only, say) as running:
        say(running.conditions)
        warn_of_few(options.records, say)
        rows = list(running.rows(options.bytes))
    print(answer(Figures, rows, as_json=options.json))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench rivals", description="What a record costs other producers.")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    names = ", ".join(NAMES)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="PRODUCER", help=f"of {names}")
    sizes = ", ".join(map(str, WORTH))
    parser.add_argument(
        "--bytes",
        type=at_least(1),
        nargs="+",
        choices=list(WORTH),
        default=list(WORTH),
        metavar="N",
        help=f"of {sizes}",
    )
    parser.add_argument(
        "--records", type=at_least(1), default=RECORDS, help=f"of 100 bytes in a run of ours ({RECORDS:,})"
    )
    parser.add_argument(
        "--repeat", type=at_least(1), default=REPEATS, help=f"runs, of which the best counts ({REPEATS})"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
