"""Run each case with a daemon that samples itself, and share its CPU time among the steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.daemon import client
from benchmarks.daemon.run import RUN_SECONDS, START_SECONDS, STOP_SECONDS, WARM_PART, WORTH, Bench, Case, serve_with
from benchmarks.profile import sampled
from benchmarks.profile.steps import STEPS

CASES: Final = tuple(Case(size, aggregation) for size in WORTH for aggregation in ("none", "kpl"))
SAMPLES: Final = "samples.json"


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results: a step of a case.

    ``cpu_ns_per_record`` is the step's part of the daemon's CPU time, ``share`` that part of the whole, and ``samples``
    the number of samples that it follows from.
    """

    record_bytes: int
    aggregation: str
    step: str
    cpu_ns_per_record: int
    share: float
    samples: int


def profile(bench: Bench, case: Case) -> Iterator[Figures]:
    """Yield the figures of a case, one for each step.  Raise `ChildFailed` and `RecordsWrong`."""
    bench.say(f"{case.record_bytes},{case.aggregation}: {bench.records // WORTH[case.record_bytes]:,} records ...")
    path = bench.work / SAMPLES
    records = bench.records // WORTH[case.record_bytes]
    with bench.daemon(["-m", sampled.__name__, str(path), *serve_with(bench.settings(case))[2:]]) as daemon:
        putting = bench.children.start(
            "client", ["-m", client.__name__, "producerd", bench.socket, str(case.record_bytes)]
        )
        putting.line(START_SECONDS)
        bench.run(daemon, putting, max(1, records // WARM_PART))
        daemon.tell("")
        daemon.line(RUN_SECONDS)
        run = bench.run(daemon, putting, records)
        daemon.tell("")
        daemon.line(RUN_SECONDS)
        putting.stop(STOP_SECONDS)
    yield from shared(case, run.cpu_ns, json.loads(path.read_text()))


def shared(case: Case, cpu_ns: float, samples: dict[str, int]) -> Sequence[Figures]:
    """Share a record's CPU time among the steps, by their samples."""
    total = sum(samples.values())
    parts = {step: samples.get(step, 0) / total for step in STEPS}
    return [
        Figures(case.record_bytes, case.aggregation, step, round(cpu_ns * part), round(part, 3), samples.get(step, 0))
        for step, part in parts.items()
    ]
