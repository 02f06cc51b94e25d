"""``./dev bench scale [--json] [--only DIMENSION ...] [--aggregation none|kpl]``"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.instructions.qemu import Failed
from benchmarks.interrupts import interrupts
from benchmarks.scale.points import AGGREGATIONS, DIMENSIONS
from benchmarks.scale.run import Figures, conditions, figures, not_flat
from benchmarks.table import answer, say


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    say(conditions())
    try:
        with interrupts():
            rows = list(figures(options.only, options.aggregation, say))
    except Failed as error:
        say(f"FAILED: {error}")
        return 1
    print(answer(Figures, rows, as_json=options.json))
    for row in not_flat(rows):
        say(f"NOT FLAT: {row.dimension} {row.aggregation} {row.value:,}: {row.ratio:g} of the reference")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev bench scale", description="What a record costs with many shards, clients, keys, small frames."
    )
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=DIMENSIONS,
        default=list(DIMENSIONS),
        metavar="DIMENSION",
        help=", ".join(DIMENSIONS),
    )
    parser.add_argument("--aggregation", nargs="+", choices=AGGREGATIONS, default=AGGREGATIONS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
