"""``./dev faults [NAME ...] [--seed S] [--seeds N] [--at-once N] [--short] [--json]``"""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks import maven
from benchmarks.interrupts import interrupts
from benchmarks.judges import kcl
from benchmarks.table import say, table
from producerd.demo.children import ChildFailed, Children
from tests.faults.records import LARGEST_SEED
from tests.faults.scenarios import all_scenarios
from tests.faults.stage import Figures, Row, Scenario

RUN_SECONDS: Final = 3_600.0
"""The longest that one run may take; the longest scenario takes a quarter of it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where a law was broken, or a run did not come to its end."""
    known = all_scenarios()
    parser = _parser(list(known))
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.scenario if name not in known]:
        near = difflib.get_close_matches(unknown[0], known, 3) or known
        parser.error(f"no scenario {unknown[0]!r}; there is {', '.join(near)}")
    if not options.short:
        _build_kcl()
    runs = [
        (known[name], seed)
        for name in options.scenario or known
        for seed in range(options.seed, options.seed + options.seeds)
    ]
    bench = Bench(len(runs), short=options.short)
    with (
        interrupts(),
        tempfile.TemporaryDirectory(prefix="faults-") as logs,
        ThreadPoolExecutor(options.at_once) as pool,
        Children(Path(logs), os.environ) as children,  # they end first, and with them what the threads wait for
    ):
        rows = [row for row in pool.map(lambda run: bench.run(children, *run), runs) if row]
    print(_as_json(rows) if options.json else table(Figures, [row.figures for row in rows]))
    return int(bench.failed)


def _as_json(rows: Iterable[Row]) -> str:
    return json.dumps([asdict(row.figures) | {"broken": row.broken, "notes": row.notes} for row in rows], indent=1)


def _build_kcl() -> None:
    """Build the judge once, before the runs ask for it."""
    try:
        kcl.command()
    except maven.Unavailable as reason:
        say(f"Amazon's consumer library does not judge here: {reason}")


class Bench:
    """Runs scenarios, each in a process of its own, and says how they get on.

    ``failed``: a law was broken, or a run did not come to its end.
    """

    def __init__(self, runs: int, *, short: bool) -> None:
        self.failed = False
        self._runs = runs
        self._begun = itertools.count(1)
        self._short = ["--short"] * short

    def run(self, children: Children, scenario: Scenario, seed: int) -> Row | None:
        if lacks := scenario.lacks():
            say(f"{scenario.name}: skipped: {lacks}")
            return None
        name = f"{scenario.name}, seed {seed}"
        say(f"{name} ({next(self._begun)} of {self._runs}): {scenario.injected} ...")
        began = time.monotonic()
        try:
            child = children.start(name, ["-m", "tests.faults.one", scenario.name, str(seed), *self._short])
            told = json.loads(child.line(RUN_SECONDS))
        except ChildFailed as error:
            self.failed = True
            say(f"{name}: FAILED: {error}\n{error.tail}")
            return None
        row = Row(Figures(**told["figures"]), tuple(told["broken"]), tuple(told["notes"]))
        self.failed |= bool(row.broken)
        readable = f"{row.figures.readable:,} of {row.figures.acknowledged:,} acknowledged records are readable"
        lines = [f"{'BROKEN' if row.broken else 'ok'}: {readable}; {time.monotonic() - began:.0f} s"]
        say("\n".join(f"{name}: {line}" for line in (*row.notes, *row.broken, *lines)))
        return row


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev faults",
        description="Break the daemon's world in every way, and judge from outside whether a promise was broken.",
        epilog=f"scenarios: {', '.join(names)}",
    )
    parser.add_argument("scenario", nargs="*", metavar="NAME", help="default: all of them")
    parser.add_argument("--seed", type=_seed, default=1, help="of the first run (default: 1)")
    parser.add_argument("--seeds", type=_count, default=1, metavar="N", help="run each with N seeds (default: 1)")
    parser.add_argument(
        "--at-once", type=_count, default=1, metavar="N", help="how many run at the same time: they mostly wait"
    )
    parser.add_argument("--short", action="store_true", help="the short forms, which the tests run")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    return parser


def _seed(text: str) -> int:
    seed = int(text)
    if not 0 <= seed <= LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"{text}: 0 to {LARGEST_SEED:,}")
    return seed


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text}: 1 or more")
    return count


if __name__ == "__main__":
    sys.exit(main())
