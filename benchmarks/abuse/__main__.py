"""``./dev bench abuse [--json] [--seconds N] [--passes N] [--attack NAME]``"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.abuse.attackers import ATTACKS, HTTP_ATTACKS
from benchmarks.abuse.run import Figures, bench
from benchmarks.arguments import at_least, seconds_at_least
from benchmarks.interrupts import fails_by, interrupts
from benchmarks.table import answer, say
from producerd.demo.children import ChildFailed

SECONDS: Final = 5.0


@fails_by(ChildFailed)
def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.getLogger("producerd.client").setLevel(logging.ERROR)  # it would warn about the waits that we measure
    with interrupts(), bench(options.seconds, say) as running:
        say(running.conditions)
        rows = list(running.figures(options.attack or [*ATTACKS, *HTTP_ATTACKS], options.passes))
    print(answer(Figures, rows, as_json=options.json))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench abuse", description="What hostile clients cost honest ones.")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    parser.add_argument(
        "--seconds",
        type=seconds_at_least(1),
        default=SECONDS,
        help="length of each measurement, three for each attack (%(default)g)",
    )
    parser.add_argument(
        "--passes",
        type=at_least(1),
        default=1,
        metavar="N",
        help="how often all attacks are measured: the results have the median ratio of each (%(default)s)",
    )
    parser.add_argument(
        "--attack",
        action="append",
        choices=(*ATTACKS, *HTTP_ATTACKS),
        metavar="NAME",
        help="one of several (default: all)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
