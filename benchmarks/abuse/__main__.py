"""``./dev bench abuse [--json] [--seconds N] [--passes N] [--attack NAME]``"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.abuse.attackers import ATTACKS, HTTP_ATTACKS
from benchmarks.abuse.run import Figures, bench
from benchmarks.arguments import at_least, seconds_at_least
from benchmarks.harness import parser, report
from benchmarks.table import say

SECONDS: Final = 5.0


def measured(options: argparse.Namespace) -> Iterator[Figures]:
    with bench(options.seconds, say) as running:
        say(running.conditions)
        yield from running.figures(options.attack or [*ATTACKS, *HTTP_ATTACKS], options.passes)


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser("abuse", "What hostile clients cost honest ones.")
    made.add_argument(
        "--seconds",
        type=seconds_at_least(1),
        default=SECONDS,
        help="length of each measurement, three for each attack (%(default)g)",
    )
    made.add_argument(
        "--passes",
        type=at_least(1),
        default=1,
        metavar="N",
        help="how often all attacks are measured: the results have the median ratio of each (%(default)s)",
    )
    made.add_argument(
        "--attack",
        action="append",
        choices=(*ATTACKS, *HTTP_ATTACKS),
        metavar="NAME",
        help="one of several (default: all)",
    )
    options = made.parse_args(arguments)
    logging.getLogger("producerd.client").setLevel(logging.ERROR)  # it would warn about the waits that we measure
    return report(Figures, measured(options), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
