"""``./dev bench daemon [--json] [--records N] [--repeat N] [--wire-format F] [--only CASE ...]``"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.arguments import at_least
from benchmarks.daemon.run import CASES, Case, Figures, RecordsWrong, bench, warn_of_few
from benchmarks.interrupts import fails_by, interrupts
from benchmarks.table import answer, say
from producerd.demo.children import ChildFailed

RECORDS: Final = 2_000_000
REPEATS: Final = 3


@fails_by(ChildFailed, RecordsWrong)
def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = [case for case in CASES if not options.only or any(case in some for some in options.only)]
    with (
        interrupts(),
        bench(options.records, options.repeat, say, options.wire_format) as running,
    ):
        say(running.conditions)
        warn_of_few(options.records, say)
        rows = [running.figures(case) for case in chosen]
    print(answer(Figures, rows, as_json=options.json))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench daemon", description="What a record costs the daemon.")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    parser.add_argument("--records", type=at_least(1), default=RECORDS, help=f"of 100 bytes in each run ({RECORDS:,})")
    parser.add_argument(
        "--repeat", type=at_least(1), default=REPEATS, help=f"runs, of which the best counts ({REPEATS})"
    )
    parser.add_argument("--wire-format", choices=("json", "cbor"), default="cbor", help="the setting (cbor, as to AWS)")
    parser.add_argument("--only", type=cases, nargs="+", metavar="BYTES[,AGGREGATION]", help="such as 100,kpl")
    return parser


def cases(text: str) -> tuple[Case, ...]:
    """Return the cases whose names begin with this text."""
    words = text.split(",")
    found = tuple(case for case in CASES if str(case).split(",")[: len(words)] == words)
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: no case is that; they are {' '.join(map(str, CASES))}")
    return found


if __name__ == "__main__":
    sys.exit(main())
