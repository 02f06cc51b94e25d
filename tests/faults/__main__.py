"""``./dev faults [NAME ...] [--seed S] [--json]``"""

from __future__ import annotations

import argparse
import difflib
import json
import logging
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from benchmarks import maven
from benchmarks.interrupts import interrupts
from benchmarks.judges import kcl
from benchmarks.table import say, table
from tests.faults.records import LARGEST_SEED
from tests.faults.scenarios import all_scenarios
from tests.faults.stage import Figures, Row, Scenario, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where a law was broken, or a run did not come to its end."""
    known = all_scenarios()
    parser = _parser(list(known))
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.scenario if name not in known]:
        near = difflib.get_close_matches(unknown[0], known, 3) or known
        parser.error(f"no scenario {unknown[0]!r}; there is {', '.join(near)}")
    logging.getLogger("producerd.client").setLevel(logging.ERROR)  # lost daemons are what it is about
    judge = None if options.short else _kcl()
    rows: list[Row] = []
    failed = False
    with interrupts():
        for name in options.scenario or known:
            for seed in range(options.seed, options.seed + options.seeds):
                if lacks := known[name].lacks():
                    say(f"{name}: skipped: {lacks}")
                    continue
                row = _one(known[name], seed, judge, short=options.short)
                failed |= row is None or bool(row.broken)
                rows += [row] if row else []
    print(_as_json(rows) if options.json else table(Figures, [row.figures for row in rows]))
    return int(failed)


def _as_json(rows: Iterable[Row]) -> str:
    return json.dumps([asdict(row.figures) | {"broken": row.broken, "notes": row.notes} for row in rows], indent=1)


def _one(scenario: Scenario, seed: int, judge: Sequence[str] | None, *, short: bool) -> Row | None:
    say(f"{scenario.name}, seed {seed}: {scenario.injected} ...")
    began = time.monotonic()
    try:
        row = run(scenario, seed, short=short, kcl=judge)
    except Exception as error:  # whatever it is, the others run on
        say(f"  FAILED: {type(error).__name__}: {error}")
        return None
    for note in row.notes:
        say(f"  {note}")
    for broken in row.broken:
        say(f"  BROKEN: {broken}")
    told = f"{row.figures.readable:,} of {row.figures.acknowledged:,} acknowledged records are readable"
    say(f"  {'broken' if row.broken else 'ok'}: {told}; {time.monotonic() - began:.0f} s")
    return row


def _kcl() -> Sequence[str] | None:
    try:
        return kcl.command()
    except maven.Unavailable as reason:
        say(f"Amazon's consumer library does not judge here: {reason}")
        return None


def _parser(names: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev faults",
        description="Break the daemon's world in every way, and judge from outside whether a promise was broken.",
        epilog=f"scenarios: {', '.join(names)}",
    )
    parser.add_argument("scenario", nargs="*", metavar="NAME", help="default: all of them")
    parser.add_argument("--seed", type=_seed, default=1, help="of the first run (default: 1)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="run each with N seeds, one after the other")
    parser.add_argument("--short", action="store_true", help="the short forms, which the tests run")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    return parser


def _seed(text: str) -> int:
    seed = int(text)
    if not 0 <= seed <= LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"{text}: 0 to {LARGEST_SEED:,}")
    return seed


if __name__ == "__main__":
    sys.exit(main())
