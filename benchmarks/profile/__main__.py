"""``./dev bench profile [--json] [--records N] [--only CASE ...] [--picture FILE]``"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.arguments import at_least
from benchmarks.daemon.__main__ import cases
from benchmarks.daemon.run import RecordsWrong, bench
from benchmarks.interrupts import fails_by, interrupts
from benchmarks.profile.picture import draw
from benchmarks.profile.run import CASES, Figures, profile
from benchmarks.table import answer, say
from producerd.demo.children import ChildFailed

RECORDS: Final = 10_000_000
PICTURE: Final = Path("build/profile.svg")


@fails_by(ChildFailed, RecordsWrong)
def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = [case for case in CASES if not options.only or any(case in some for some in options.only)]
    with interrupts(), bench(options.records, 1, say, options.wire_format) as running:
        say(running.conditions)
        rows = [row for case in chosen for row in profile(running, case)]
    draw(rows, options.picture)
    say(f"{options.picture} shows this")
    print(answer(Figures, rows, as_json=options.json))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench profile", description="Where a record's CPU time goes.")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    parser.add_argument(
        "--records", type=at_least(1), default=RECORDS, help=f"of 100 bytes in the run of a case ({RECORDS:,})"
    )
    parser.add_argument("--wire-format", choices=("json", "cbor"), default="cbor", help="the setting (cbor, as to AWS)")
    parser.add_argument("--only", type=cases, nargs="+", metavar="BYTES[,AGGREGATION]", help="such as 100,kpl or 1024")
    parser.add_argument("--picture", type=Path, default=PICTURE, help=f"the SVG file to write ({PICTURE})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
