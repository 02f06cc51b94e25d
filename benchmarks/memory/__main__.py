"""``./dev bench memory [--json] [--only NAME ...] [--record-bytes N ...] [--rounds N] [--queue-limit-bytes SIZE]
[--set KEY=VALUE ...]``"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from benchmarks.daemon.run import RecordsWrong
from benchmarks.memory.run import ROUNDS, STUCK_BYTES, Bench, Figures
from benchmarks.table import answer, say
from producerd.demo.children import ChildFailed
from producerd.demo.scenario import interrupts

CASES: Final[dict[str, Callable[[Bench], Iterable[Figures]]]] = {
    "start": lambda bench: [bench.start()],
    "stuck": lambda bench: map(bench.stuck, bench.record_bytes),
    "lagging": lambda bench: [bench.lagging()],
    "requests": lambda bench: [bench.requests(read=True), bench.requests(read=False)],
    "jobs": lambda bench: [bench.job(size, shards) for size in (10, 100, 1_024) for shards in (16, 1_000)],
    "connections": Bench.connections,
    "lanes": lambda bench: [bench.lanes()],
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    settings = dict(text.split("=", 1) for text in options.set)
    if options.queue_limit_bytes:
        settings["queue_limit_bytes"] = options.queue_limit_bytes
    logging.getLogger("producerd.client").setLevel(logging.ERROR)  # that callers wait is what is wanted
    bench = Bench(settings, options.record_bytes, options.rounds, say)
    try:
        with interrupts():
            say(bench.conditions)
            rows = [row for name in options.only or CASES for row in CASES[name](bench)]
    except (ChildFailed, RecordsWrong) as error:
        say(f"FAILED: {error}\n{getattr(error, 'tail', '')}")
        return 1
    print(answer(Figures, rows, as_json=options.json))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench memory", description="How much memory the daemon takes.")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    parser.add_argument("--only", choices=CASES, nargs="+", metavar="NAME", help=" ".join(CASES))
    parser.add_argument(
        "--record-bytes", type=int, nargs="+", default=STUCK_BYTES, help="of the case stuck (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of filling and draining (%(default)s)")
    parser.add_argument("--queue-limit-bytes", metavar="SIZE", help='other than the default, such as "16 MiB"')
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of the daemon")
    return parser


if __name__ == "__main__":
    sys.exit(main())
