"""``./dev mutate [MODULE ...] [--seed S] [--count N] [--workers N] [--json]``: whether the tests notice small faults.

Each fault is planted alone, in a copy of the tree.  First run the tests that have noticed other faults of its function,
then, of the tests that reach it, the ones in files that import the module, the others of its package, and the ones that
run a whole daemon, until one fails.  A fault that no
test notices survives: either a test is missing, or the fault changes nothing visible.  The second kind
stands in ``tools/equivalents.toml``, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from tools import ROOT
from tools.mutation.equivalents import find
from tools.mutation.faults import Planted, faults, read_equivalents
from tools.mutation.trees import Trees

MODULES = [
    *("producerd/core", "producerd/runtime", "producerd/wire", "producerd/config", "producerd/ctl", "spark_client"),
    *("producerd/cli.py", "producerd/errors.py", "producerd/printing.py"),
]
"""All of the product but producerd/demo and producerd/testing, which neither the daemon nor the client loads."""
EQUIVALENTS = "tools/equivalents.toml"


@dataclass(frozen=True)
class Row:
    """What became of a fault."""

    module: str
    line: int
    function: str
    statement: str
    fault: str
    verdict: str
    by: str  # the test that noticed it, or why it is equivalent
    seconds: float

    def __str__(self) -> str:
        by = f"  {self.by}" if self.by else ""
        where = f"{self.module}:{self.line} {self.function}"
        statement = textwrap.shorten(self.statement, 100, placeholder=" ...")
        return f"{self.verdict:10} {where}: `{statement}`: {self.fault}{by} ({self.seconds:.0f} s)"


def modules_of(names: list[str], root: Path) -> list[str]:
    """Return the modules with these paths and below them."""
    found = [root / name for name in names]
    files = {file for path in found for file in (path.rglob("*.py") if path.is_dir() else [path])}
    return sorted(file.relative_to(root).as_posix() for file in files)


def main(arguments: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev mutate", description="Plant small faults, and see which the tests notice."
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"a file or folder (default: {' '.join(MODULES)})")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="which faults are drawn (default: 1)")
    parser.add_argument("--count", type=int, default=150, metavar="N", help="how many (default: 150)")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--workers", type=int, default=cores, metavar="N", help=f"how many at once (default: a core each, {cores})"
    )
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    options = parser.parse_args(arguments)
    if absent := [name for name in options.modules if not (root / name).exists()]:
        parser.error(f"not there: {' '.join(absent)}")
    modules = modules_of(options.modules or MODULES, root)
    texts = {module: (root / module).read_text() for module in modules}
    every = [planted for module, text in texts.items() for planted in faults(module, text)]
    random.Random(options.seed).shuffle(every)
    entries = read_equivalents(root / EQUIVALENTS)
    found = find(entries, [planted.fault for planted in every], texts)
    for old, new in found.renamed.items():
        print(f"{EQUIVALENTS}: taken for a new name: {old} -> {new}", file=sys.stderr)
    for gone in [*found.stale, *(entry for entry in entries if not (root / entry.module).exists())]:
        print(f"{EQUIVALENTS}: cannot be planted any more: {gone}", file=sys.stderr)
    drawn: list[Planted] = []
    passed_over: list[Planted] = []
    for planted in every:
        if len(drawn) < options.count:
            (passed_over if planted.fault in found.reasons else drawn).append(planted)

    out = sys.stderr if options.json else sys.stdout
    rows: list[Row] = []

    def report(planted: Planted, verdict: str, by: str = "", seconds: float = 0.0) -> None:
        rows.append(Row(line=planted.line, verdict=verdict, by=by, seconds=round(seconds, 1), **asdict(planted.fault)))
        print(f"{len(rows)}/{len(passed_over) + len(drawn)} {rows[-1]}", file=out, flush=True)

    for planted in passed_over:
        report(planted, "equivalent", found.reasons[planted.fault])
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        trees = Trees(root, Path(folder), options.workers, sorted({planted.fault.module for planted in drawn}))
        try:
            if drawn and (failed := trees.uncollected()):
                print(f"the tests cannot be collected, also without a fault: {failed}", file=sys.stderr)
                return 2
            for done in as_completed([pool.submit(trees.outcome, planted) for planted in drawn]):
                planted, by, seconds = done.result()
                report(planted, "caught" if by else "SURVIVED", by, seconds)
        finally:
            trees.stop()
            pool.shutdown(cancel_futures=True)
    survived = sum(row.verdict == "SURVIVED" for row in rows)
    caught = len(drawn) - survived
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    print(f"{caught} of {len(drawn)} caught ({caught / max(1, len(drawn)):.0%}), seed {options.seed}", file=out)
    return int(survived > 0)


def run_alone(arguments: list[str], root: Path = ROOT) -> NoReturn:
    """Be the whole process: yield to others, and end in order when interrupted."""
    os.nice(10)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda signum, _frame: sys.exit(128 + signum))
    sys.exit(main(arguments, root))


if __name__ == "__main__":
    run_alone(sys.argv[1:])
