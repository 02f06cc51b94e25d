"""``./dev bench client [--json] [--records N]``"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.arguments import at_least
from benchmarks.client.run import Figures, bench
from benchmarks.daemon.run import RecordsWrong
from benchmarks.interrupts import fails_by, interrupts
from benchmarks.table import answer, say
from producerd.demo.children import ChildFailed

RECORDS: Final = 500_000
LEAST_RECORDS: Final = 20_000
REPEATS: Final = 3


@fails_by(ChildFailed, RecordsWrong)
def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.getLogger("producerd.client").setLevel(logging.ERROR)
    with interrupts(), bench(options.records, REPEATS, say) as running:
        say(running.conditions)
        rows = list(running.figures())
    print(answer(Figures, rows, as_json=options.json))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench client", description="Records per second of one program.")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    parser.add_argument("--records", type=at_least(LEAST_RECORDS), default=RECORDS, help=f"in each run ({RECORDS:,})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
