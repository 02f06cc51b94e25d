"""``./dev bench rivals [--json] [--only PRODUCER ...] [--bytes N ...] [--records N] [--repeat N]``"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks import daemon
from benchmarks.arguments import at_least
from benchmarks.daemon import WORTH, warn_of_few
from benchmarks.harness import parser, report, rig
from benchmarks.rivals.run import NAMES, Bench, Figures
from benchmarks.table import say

RECORDS: Final = 500_000
REPEATS: Final = 3


def measured(options: argparse.Namespace) -> Iterator[Figures]:
    with rig() as ready:
        bench = Bench(daemon.Bench(ready, options.records, options.repeat), options.only)
        say(bench.conditions)
        warn_of_few(options.records)
        yield from bench.rows(options.bytes)


def main(arguments: Sequence[str] | None = None) -> int:
    made, names, sizes = parser("rivals", "What a record costs other producers."), ", ".join(NAMES), list(WORTH)
    made.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="PRODUCER", help=f"of {names}")
    made.add_argument("--bytes", type=int, nargs="+", choices=sizes, default=sizes, help="of a record's data")
    made.add_argument(
        "--records", type=at_least(1), default=RECORDS, help=f"of 100 bytes in a run of ours ({RECORDS:,})"
    )
    made.add_argument("--repeat", type=at_least(1), default=REPEATS, help=f"runs, of which the best counts ({REPEATS})")
    options = made.parse_args(arguments)
    return report(Figures, measured(options), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
