"""``./dev bench delivery [--json] [--with-kpl] [--scenario NAME ...]``"""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks import maven
from benchmarks.delivery.figures import HELD, Figures
from benchmarks.delivery.producerd import producerd
from benchmarks.delivery.run import Start, judged, run
from benchmarks.delivery.scenarios import Scenario, all_scenarios
from benchmarks.harness import parser
from benchmarks.interrupts import interrupts
from benchmarks.judges import Judge, fake, kcl
from benchmarks.machine import machine
from benchmarks.rivals import kpl
from benchmarks.table import answer, say
from producerd.demo.children import ChildFailed
from producerd.errors import ProducerdError

BESIDE_KPL: Final = ("split", "kpl")
"""The scenario and the aggregation that the official KPL runs too."""


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser("delivery", "What arrives while things go wrong.")
    names = list(dict.fromkeys(scenario.name for scenario in all_scenarios()))
    made.add_argument(
        "--with-kpl", action="store_true", help="the official KPL through `split` too; the official KCL judges both"
    )
    made.add_argument("--scenario", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    options = made.parse_args(arguments)
    chosen = [s for s in all_scenarios() if not options.scenario or s.name in options.scenario]
    bench = Bench(with_kpl=options.with_kpl)
    say(f"{machine()}; Python {platform.python_version()}")
    try:
        with interrupts():
            rows = [row for scenario in chosen for row in bench.rows(scenario)]
    except maven.Unavailable as reason:
        say(f"--with-kpl: {reason}")
        return 1
    print(answer(Figures, rows, as_json=options.json))
    return int(bench.failed)


class Bench:
    """Runs scenarios one after the other, and reports each on standard error.

    ``failed`` is set if a scenario has no figures, a load did not end, or producerd broke its promise.  A broken
    promise of
    a rival is only reported.
    """

    def __init__(self, *, with_kpl: bool) -> None:
        self.with_kpl = with_kpl
        self.failed = False

    def rows(self, scenario: Scenario) -> Iterator[Figures]:
        beside = self.with_kpl and (scenario.name, scenario.aggregation) == BESIDE_KPL
        for start in (kpl.kpl, producerd) if beside else (producerd,):
            try:
                row = self._row(scenario, start, official=beside)
                self.failed |= row.verdict != HELD and start is not kpl.kpl
                yield row
            except (ChildFailed, ProducerdError, subprocess.SubprocessError) as error:
                self.failed = True
                say(f"  FAILED: {error}\n{getattr(error, 'tail', '')}")

    def _row(self, scenario: Scenario, start: Start, *, official: bool) -> Figures:
        say(f"{scenario.name}, aggregation {scenario.aggregation}, {start.__name__} ...")
        began = time.monotonic()
        done = run(scenario, start, say)
        for failure in done.failures:
            self.failed = True
            say(f"  FAILED: {failure}")
        judge: Judge = kcl.hand_over if official else fake.hand_over
        row = judged(done, scenario, judge(done.stream), kcl.NAME if official else "fake Kinesis")
        readable = f"{row.readable:,} of {row.acknowledged:,} readable"
        say(f"  {row.verdict}: {readable}; {time.monotonic() - began:.0f} s")
        return row


if __name__ == "__main__":
    sys.exit(main())
