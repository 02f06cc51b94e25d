"""``./dev cluster up|smoke|faults|down [NAME ...] [--json]``"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.interrupts import interrupts
from benchmarks.table import answer, say
from tests.cluster import cases, cloud_cases, images, nodes, programs, spark_cases
from tests.cluster.trial import CASES, Figures, run
from tools.kubernetes import install_kubernetes_tools

SMOKE = "smoke"
assert {cases, cloud_cases, spark_cases}  # they register their cases


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if a record is missing, or a case did not come to its end."""
    parser = _parser()
    options = parser.parse_args(arguments)
    names = options.name or [name for name in CASES if name != SMOKE] if options.order == "faults" else [SMOKE]
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no case {unknown[0]!r}; --help lists them")
    if lacks := programs.lacks():
        say(f"skipped: {lacks}")
        return 0
    rows: list[Figures] = []
    with interrupts():
        if options.order == "down":
            nodes.down()
            return 0
        install_kubernetes_tools()
        programs.build()
        images.make()
        nodes.up()
        try:
            for name in names if options.order != "up" else ():
                say(f"{name}: {CASES[name].__doc__} ...")
                rows.append(run(name, CASES[name]))
        finally:
            if rows:
                print(answer(Figures, rows, as_json=options.json))
    return int(any(row.missing != 0 for row in rows))


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, CASES))
    made = argparse.ArgumentParser(
        prog="./dev cluster",
        description="Run the chart in a real Kubernetes of two nodes on this machine, and count what is missing.\n"
        "Kubernetes is built once, in up to 30 minutes.  The cluster stays up until `down`.",
        epilog="cases:\n" + "\n".join(f"  {name:{width}}  {act.__doc__}" for name, act in CASES.items()) + "\n\n"
        "exit code: 0: nothing is missing; 1: a record is missing, or a case failed; 2: a wrong option;\n"
        "130: interrupted",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("order", choices=("up", SMOKE, "faults", "down"))
    made.add_argument("name", nargs="*", metavar="NAME", help="of a case for `faults` (default: each but smoke)")
    made.add_argument("--json", action="store_true", help="one array of objects on stdout")
    return made


if __name__ == "__main__":
    sys.exit(main())
