"""``./dev bench memory [--json] [--only NAME ...] [--record-bytes N ...] [--rounds N] [--queue-limit-bytes SIZE]
[--set KEY=VALUE] ...``"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from benchmarks.arguments import MOST_RECORD_BYTES, assignment, at_least
from benchmarks.daemon.run import RecordsWrong
from benchmarks.interrupts import fails_by, interrupts
from benchmarks.memory.run import ROUNDS, STUCK_BYTES, Bench, Figures
from benchmarks.table import answer, say
from producerd.config.memory import mib
from producerd.demo.children import ChildFailed
from producerd.errors import BackpressureTimeout, ConfigurationError

CASES: Final[dict[str, Callable[[Bench], Iterable[Figures]]]] = {
    "start": lambda bench: [bench.start()],
    "stuck": lambda bench: map(bench.stuck, bench.record_bytes),
    "lagging": lambda bench: [bench.lagging()],
    "requests": lambda bench: [bench.requests(read=True), bench.requests(read=False)],
    "jobs": lambda bench: [bench.job(size, shards) for size in (10, 100, 1_024) for shards in (16, 1_000)],
    "connections": Bench.connections,
    "lanes": lambda bench: [bench.lanes()],
}
REQUESTS_QUEUE_BYTES: Final = 32 << 20
"""Least queue for the case "requests": room for 24 records of 1 MB, with an eighth of it kept free for others."""


@fails_by(ChildFailed, RecordsWrong, BackpressureTimeout)
def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    chosen, settings = options.only or CASES, dict(options.set)
    if options.queue_limit_bytes:
        settings["queue_limit_bytes"] = options.queue_limit_bytes
    logging.getLogger("producerd.client").setLevel(logging.ERROR)  # it would warn about callers that wait, as intended
    bench = Bench(settings, options.record_bytes, options.rounds, say)
    try:
        limit = bench.config().defaults.queue_limit_bytes
    except ConfigurationError as error:
        parser.error(str(error))
    if "requests" in chosen and limit < REQUESTS_QUEUE_BYTES:
        others = " ".join(name for name in CASES if name != "requests")
        least = f"the case requests needs {mib(REQUESTS_QUEUE_BYTES)} or more"
        parser.error(f"queue_limit_bytes {mib(limit)}: {least}; without it: --only {others}")
    with interrupts():
        say(bench.conditions)
        rows = [row for name in chosen for row in CASES[name](bench)]
    print(answer(Figures, rows, as_json=options.json))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench memory", description="How much memory the daemon takes.")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    parser.add_argument("--only", choices=CASES, nargs="+", metavar="NAME", help=" ".join(CASES))
    parser.add_argument(
        "--record-bytes",
        type=at_least(1, MOST_RECORD_BYTES),
        nargs="+",
        default=STUCK_BYTES,
        metavar="N",
        help=f"of the case stuck ({' '.join(map(str, STUCK_BYTES))})",
    )
    parser.add_argument("--rounds", type=at_least(1), default=ROUNDS, help="of filling and draining (%(default)s)")
    parser.add_argument("--queue-limit-bytes", metavar="SIZE", help='other than the default, such as "16 MiB"')
    parser.add_argument(
        "--set",
        type=assignment,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another setting of the daemon; may be repeated",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
