"""Run one scenario in a process of its own, and print its row as a line of JSON.

::

    python -m tests.faults.one NAME SEED [--short]
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from dataclasses import asdict

from benchmarks import maven
from benchmarks.judges import kcl
from producerd.demo.children import take_stdout
from tests.faults.scenarios import all_scenarios
from tests.faults.stage import run


def main(name: str, seed: int, *, short: bool) -> None:
    logging.getLogger("producerd.client").setLevel(logging.ERROR)  # that daemons are lost is what it is about
    judge = None
    if not short:
        with contextlib.suppress(maven.Unavailable):  # `tests.faults` has said so
            judge = kcl.command()
    row = run(all_scenarios()[name], seed, short=short, kcl=judge)
    print(json.dumps({"figures": asdict(row.figures), "broken": row.broken, "notes": row.notes}), file=stdout)


if __name__ == "__main__":
    stdout = take_stdout()
    main(sys.argv[1], int(sys.argv[2]), short="--short" in sys.argv[3:])
