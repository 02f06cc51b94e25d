"""Show on which step of its way through the daemon a record's CPU time goes: ``./dev bench profile``.

It measures the daemon as ``./dev bench daemon`` does.  `benchmarks.sampler` samples it meanwhile, and its CPU time is
shared among the steps by their samples.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import matplotlib
from matplotlib.figure import Figure

from benchmarks import sampler
from benchmarks.daemon import WARM_PART, WORTH, Bench, Case, case_options, chosen
from benchmarks.harness import RUN_SECONDS, STOP_SECONDS, parser, report, rig, serve_with
from benchmarks.sampler import STEPS
from benchmarks.table import say

RECORDS: Final = 10_000_000
PICTURE: Final = Path("build/profile.svg")
INK: Final = "#24292f"
LEAST_NAMED: Final = 0.04
"""Smallest share that has its number in the bar."""


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


def profile(bench: Bench, case: Case) -> list[Figures]:
    """Return the figures of a case, one for each step.  Raise `ChildFailed` and `RecordsWrong`."""
    records, path = max(1, bench.records // WORTH[case.record_bytes]), bench.rig.work / "samples.json"
    say(f"{case}: {records:,} records ...")
    with bench.rig.daemon(serve_with(bench.settings(case), ("-m", sampler.__name__, str(path)))) as daemon:
        client = bench.rig.client("producerd", case.record_bytes)
        for count in (max(1, records // WARM_PART), records):
            run = bench.run(daemon, client, count)
            daemon.tell("")
            daemon.line(RUN_SECONDS)
        client.stop(STOP_SECONDS)
    samples = json.loads(path.read_text())
    total = sum(samples.values())
    parts = [(step, samples.get(step, 0)) for step in STEPS]
    return [Figures(*case, step, round(run.cpu_ns * n / total), round(n / total, 3), n) for step, n in parts]


def draw(rows: Sequence[Figures], path: Path) -> None:
    """Write an SVG file with a bar for each case, and in it a part for each step."""
    cases = list(dict.fromkeys(Case(row.record_bytes, row.aggregation) for row in rows))
    places = range(len(cases))
    figure = Figure((8.6, 1.3 + 0.55 * len(cases) + 0.2 * len(STEPS)), layout="constrained", facecolor="white")
    axes = figure.subplots()
    colours, left = matplotlib.colormaps["tab20"], [0.0] * len(cases)
    for number, step in enumerate(STEPS):
        of_step = [row for row in rows if row.step == step]
        shares = [row.share for row in of_step]
        bars = axes.barh(places, shares, left=left, color=colours(number), label=step)
        names = [f"{row.cpu_ns_per_record:,}" if row.share >= LEAST_NAMED else "" for row in of_step]
        axes.bar_label(bars, names, label_type="center", fontsize=8, color=INK)
        left = [before + share for before, share in zip(left, shares, strict=True)]
    totals = [
        sum(row.cpu_ns_per_record for row in rows if (row.record_bytes, row.aggregation) == case) for case in cases
    ]
    labels = [f"{size:,} B, {packed}\n{total:,} ns" for (size, packed), total in zip(cases, totals, strict=True)]
    axes.set_yticks(places, labels, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("CPU time of the daemon for a record, in ns", x=0.01, ha="left", fontsize=11, color=INK)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "producerd", "svg.fonttype": "none"}):  # the same data, the same bytes
        figure.savefig(path, metadata={"Date": None})
    say(f"{path} shows this")


def measured(options: argparse.Namespace) -> Iterator[Figures]:
    with rig() as ready:
        bench = Bench(ready, options.records, 1, options.wire_format)
        say(bench.conditions)
        rows = [row for case in chosen(options) for row in profile(bench, case)]
    draw(rows, options.picture)
    yield from rows


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser("profile", "Where a record's CPU time goes.")
    case_options(made, RECORDS)
    made.add_argument("--picture", type=Path, default=PICTURE, help=f"the SVG file to write ({PICTURE})")
    options = made.parse_args(arguments)
    return report(Figures, measured(options), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
