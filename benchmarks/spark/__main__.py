"""``./dev bench spark [--json] [--rows N] [--row-bytes N]``"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.arguments import MOST_RECORD_BYTES, at_least
from benchmarks.interrupts import fails_by, interrupts
from benchmarks.spark.run import Figures, RowsMissing, bench
from benchmarks.table import answer, say
from producerd.demo.children import ChildFailed

ROWS: Final = 1_000_000
ROW_BYTES: Final = 200


@fails_by(ChildFailed, RowsMissing)
def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    with interrupts(), bench(options.row_bytes, say) as running:
        say(running.conditions)
        rows = [*running.paths(options.rows), *running.tiny_batches()]
    print(answer(Figures, rows, as_json=options.json))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench spark", description="What a row costs Spark's Python workers.")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    parser.add_argument("--rows", type=at_least(1), default=ROWS, help=f"of each run of each path ({ROWS:,})")
    parser.add_argument(
        "--row-bytes",
        type=at_least(1, MOST_RECORD_BYTES),
        default=ROW_BYTES,
        metavar="N",
        help=f"of data in each row ({ROW_BYTES})",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
