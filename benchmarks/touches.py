"""Show what each byte of payload costs, and which calls a small frame takes: ``./dev bench touches``.

A step that touches payload costs more for records of 10,240 bytes than for records of 1,024: the difference, as
`benchmarks.profile` samples it, is divided by the bytes.  Calls of Python functions are counted, by package, while
frames of one record walk through a daemon (`benchmarks.walk`).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Final

from benchmarks import walk
from benchmarks.counter import Counter
from benchmarks.daemon import Bench, Case
from benchmarks.harness import parser, report, rig
from benchmarks.profile import profile
from benchmarks.sampler import STEPS
from benchmarks.table import say

RECORDS: Final = 10_000_000
SIZES: Final = (1_024, 10_240)
AGGREGATIONS: Final = ("none", "kpl")
FRAMES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results: the cost of a step or of a package's functions, without aggregation and with it."""

    what: str
    unit: str
    none: float
    kpl: float


def bytes_touched(bench: Bench) -> Iterator[Figures]:
    """Yield the CPU time of each step for a KiB of payload.  Raise `ChildFailed` and `RecordsWrong`."""
    costs = {
        (size, packed): {row.step: row.cpu_ns_per_record for row in profile(bench, Case(size, packed))}
        for size in SIZES
        for packed in AGGREGATIONS
    }
    less, more = SIZES
    for step in STEPS:
        none, kpl = [
            (costs[more, packed][step] - costs[less, packed][step]) * 1_024 / (more - less) for packed in AGGREGATIONS
        ]
        yield Figures(step, "ns a KiB", round(none), round(kpl))


class Calls(Counter):
    """A counter of the calls of Python functions.  ``by_package`` has those between the last two calls of `take`."""

    def __init__(self) -> None:
        self.by_package: dict[str, int] = {}
        self._called: dict[str, int] = defaultdict(int)

    def pause(self) -> None:
        sys.setprofile(None)

    def go_on(self) -> None:
        sys.setprofile(self._note)

    def take(self) -> int:
        self.pause()
        self.by_package, self._called = self._called, defaultdict(int)
        self.go_on()
        return sum(self.by_package.values())

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            self._called[frame.f_globals["__name__"].rpartition(".")[0] or "dataclasses"] += 1


def calls() -> Iterator[Figures]:
    """Yield the calls that a frame of one record takes, by package, the most first."""
    none, kpl = [_calls_of(walk.Case(packed, frame_records=1)) for packed in AGGREGATIONS]
    for package in sorted(none.keys() - {"benchmarks"}, key=lambda package: -none[package]):
        yield Figures(package, "calls a frame", round(none[package], 1), round(kpl.get(package, 0.0), 1))


def _calls_of(case: walk.Case) -> dict[str, float]:
    counter = Calls()
    cost = walk.walk(case, counter, FRAMES, FRAMES)
    counter.pause()
    return {package: count / cost.records for package, count in counter.by_package.items()}


def measured() -> Iterator[Figures]:
    with rig() as ready:
        bench = Bench(ready, RECORDS, 1)
        say(bench.conditions)
        yield from bytes_touched(bench)
    walk.freeze()
    yield from calls()


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser("touches", "What a byte of payload costs, and which calls a small frame takes.")
    options = made.parse_args(arguments)
    return report(Figures, measured(), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
