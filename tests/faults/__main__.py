"""``./dev faults [NAME ...] [--seed S] [--seeds N] [--at-once N] [--short] [--json]``"""

from __future__ import annotations

import argparse
import difflib
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
from tests.faults.stage import Figures, Row

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
    bench = Bench(short=options.short)
    if not options.short:
        _build_kcl()
    runs = [
        (known[name], seed)
        for name in options.scenario or known
        for seed in range(options.seed, options.seed + options.seeds)
    ]
    with interrupts(), tempfile.TemporaryDirectory(prefix="faults-") as logs:
        # The children end first, and with them what the threads wait for.
        with ThreadPoolExecutor(options.at_once) as pool, Children(Path(logs), os.environ) as children:
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


