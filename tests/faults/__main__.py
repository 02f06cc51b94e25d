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
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks import maven
from benchmarks.interrupts import interrupts
from benchmarks.judges import kcl
from benchmarks.table import say, table
from producerd.demo.children import ChildFailed, Children
from tests.faults.oracle import Law
from tests.faults.records import LARGEST_SEED
from tests.faults.scenarios import all_scenarios
from tests.faults.stage import Figures, Row, Scenario

RUN_SECONDS: Final = 3_600.0
"""The longest that one run may take; the longest scenario takes a quarter of it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where a law was broken, or a run did not come to its end."""
    known = all_scenarios()
    parser = _parser(known)
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.scenario if name not in known]:
        near = " or ".join(difflib.get_close_matches(unknown[0], known, 3))
        parser.error(f"no scenario {unknown[0]!r}; {f'did you mean {near}?' if near else '--help lists them'}")
    if options.seed + options.seeds - 1 > LARGEST_SEED:
        parser.error(f"--seed {options.seed} and --seeds {options.seeds} pass the largest seed, {LARGEST_SEED:,}")
    if not options.short:
        _build_kcl()
    runs = [
        (name, seed)
        for name in dict.fromkeys(options.scenario or known)
        for seed in range(options.seed, options.seed + options.seeds)
    ]
    bench = Bench(known, len(runs), short=options.short)
    with (
        interrupts(),
        tempfile.TemporaryDirectory(prefix="faults-") as logs,
        ThreadPoolExecutor(options.at_once) as pool,
        # They end first, and with them what the threads wait for.  What they leave behind goes with the folder.
        Children(Path(logs), {**os.environ, "TMPDIR": logs}) as children,
    ):
        try:
            for _ in pool.map(lambda run: bench.run(children, *run), runs):
                pass
        except SystemExit:
            bench.is_interrupted = True
            raise
        finally:
            rows = [bench.rows[run] for run in runs if run in bench.rows]
            print(_as_json(rows) if options.json else table(Figures, [row.figures for row in rows]), flush=True)
            say(bench.summary())
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

    ``rows`` has the runs that came to their end, by scenario and seed.
    """

    def __init__(self, known: Mapping[str, Scenario], runs: int, *, short: bool) -> None:
        self.rows: dict[tuple[str, int], Row] = {}
        self.is_interrupted = False
        self._known = known
        self._runs = runs
        self._begun = itertools.count(1)
        self._skipped = self._failures = 0
        self._short = ["--short"] * short

    @property
    def failed(self) -> bool:
        """A law was broken, or a run did not come to its end."""
        return bool(self._failures or self._broken)

    @property
    def _broken(self) -> int:
        return sum(bool(row.broken) for row in self.rows.values())

    def summary(self) -> str:
        held = len(self.rows) - self._broken
        return (
            f"{self._runs} runs: {held} ok, {self._broken} BROKEN, {self._failures} FAILED, {self._skipped} skipped"
            f"{', interrupted' * self.is_interrupted}"
        )

    def run(self, children: Children, name: str, seed: int) -> None:
        scenario, title = self._known[name], f"{name}, seed {seed}"
        if lacks := scenario.lacks():
            self._skipped += 1
            say(f"{name}: skipped: {lacks}")
            return
        form = "the short form of: " if self._short else ""
        say(f"{title} ({next(self._begun)} of {self._runs}): {form}{scenario.injected} ...")
        began = time.monotonic()
        try:
            child = children.start(title, ["-m", "tests.faults.one", name, str(seed), *self._short])
            told = json.loads(child.line(RUN_SECONDS))
        except ChildFailed as error:
            if not self.is_interrupted:
                self._failures += 1
                say(f"{title}: FAILED: {error}\n{error.tail}")
            return
        row = self.rows[name, seed] = Row(Figures(**told["figures"]), tuple(told["broken"]), tuple(told["notes"]))
        figures, judged = row.figures, len(Law) - len(scenario.exempt)
        verdict = f"BROKEN: {len(row.broken)} times" if row.broken else f"ok: {judged} laws hold"
        ends = f"{figures.readable:,} of {figures.acknowledged:,} acknowledged records are readable"
        lines = *row.notes, *row.broken, f"{verdict}; {ends}; {time.monotonic() - began:.0f} s"
        say("\n".join(f"{title}: {line}" for line in lines))


def _parser(known: Mapping[str, Scenario]) -> argparse.ArgumentParser:
    width = max(map(len, known))
    parser = argparse.ArgumentParser(
        prog="./dev faults",
        description="Run a real daemon under one fault at a time, and check from outside that it keeps its promises.",
        epilog="scenarios:\n" + "\n".join(f"  {name:{width}}  {each.injected}" for name, each in known.items()) + "\n\n"
        "exit code: 0: all is well; 1: a law was broken, or a run did not come to its end; 2: a wrong option; 130: "
        "interrupted",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "scenario", nargs="*", metavar="NAME", help="default: all of them, which takes one to two hours"
    )
    parser.add_argument("--seed", type=_seed, default=1, metavar="S", help="of the first run (default: 1)")
    parser.add_argument("--seeds", type=_count, default=1, metavar="N", help="run each with N seeds (default: 1)")
    parser.add_argument("--at-once", type=_count, default=1, metavar="N", help="how many run at a time (default: 1)")
    parser.add_argument("--short", action="store_true", help="the short forms, of some seconds, which the tests run")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    return parser


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) > LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {LARGEST_SEED:,}")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
