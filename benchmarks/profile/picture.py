"""Draw the profile: a bar for each case, and in it a part for each step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib
from matplotlib.figure import Figure

from benchmarks.profile.run import Figures
from benchmarks.profile.steps import STEPS

INK: Final = "#24292f"
LEAST_NAMED: Final = 0.04
"""Smallest share that has its number in the bar."""


def draw(rows: Sequence[Figures], path: Path) -> None:
    """Write the picture as an SVG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cases = list(dict.fromkeys((row.record_bytes, row.aggregation) for row in rows))
    figure = Figure((8.6, 1.3 + 0.55 * len(cases) + 0.2 * len(STEPS)), layout="constrained", facecolor="white")
    axes = figure.subplots()
    colours = matplotlib.colormaps["tab20"]
    left = dict.fromkeys(cases, 0.0)
    for number, step in enumerate(STEPS):
        of_step = {(row.record_bytes, row.aggregation): row for row in rows if row.step == step}
        widths = [of_step[case].share for case in cases]
        bars = axes.barh(
            range(len(cases)), widths, left=[left[case] for case in cases], color=colours(number), label=step
        )
        names = [f"{of_step[case].cpu_ns_per_record:,}" if of_step[case].share >= LEAST_NAMED else "" for case in cases]
        axes.bar_label(bars, names, label_type="center", fontsize=8, color=INK)
        for case in cases:
            left[case] += of_step[case].share
    totals = [
        sum(row.cpu_ns_per_record for row in rows if (row.record_bytes, row.aggregation) == case) for case in cases
    ]
    axes.set_yticks(
        range(len(cases)),
        [f"{size:,} B, {aggregation}\n{total:,} ns" for (size, aggregation), total in zip(cases, totals, strict=True)],
        color=INK,
    )
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("CPU time of the daemon for a record, in ns", x=0.01, ha="left", fontsize=11, color=INK)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    with matplotlib.rc_context({"svg.hashsalt": "producerd", "svg.fonttype": "none"}):  # the same data, the same bytes
        figure.savefig(path, metadata={"Date": None})
