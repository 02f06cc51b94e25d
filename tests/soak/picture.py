"""Draw the soaks as small multiples: ``python -m tests.soak.picture CURVES SVG``.

CURVES is a file of ``./dev soak --curves``; of several runs of one soak the last counts.  Each figure is shown relative
to its median after the warm-up, next to the words of the report that it answers.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from tests.soak.growth import WARM_UP
from tests.soak.soaks import SOAKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS: Final = 3
WIDTH, ROW_HEIGHT = 10.0, 1.7
"""In inches."""
INK: Final = "#24292f"
QUIET: Final = "#6e7781"
SHADE: Final = "#f0f2f5"
LINES: Final = {
    "bytes_in_use": ("memory in use", "#0072b2"),
    "objects": ("objects", "#d55e00"),
    "threads": ("threads", "#009e73"),
}
"""Names and colours of the curves, which colour-blind readers can tell apart."""
TOP: Final = 1.5


def draw(curves: Path, svg: Path) -> None:
    """Draw the runs of a file of curves.  The same data give the same bytes, and text stays text."""
    runs = {run["soak"]: run for run in map(json.loads, curves.read_text().splitlines())}
    rows = math.ceil(len(runs) / COLUMNS)
    with matplotlib.rc_context({"svg.hashsalt": "producerd", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure((WIDTH, ROW_HEIGHT * rows + 0.5), layout="constrained", facecolor="white")
        panels = figure.subplots(rows, COLUMNS, sharey=True, squeeze=False).ravel()
        for axes, run in zip(panels, runs.values(), strict=False):
            _panel(axes, run)
        for axes in panels[len(runs) :]:
            axes.set_axis_off()
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=len(LINES), frameon=False)
        figure.savefig(svg, metadata={"Date": None})


def _panel(axes: Axes, run: Mapping[str, Any]) -> None:
    hours = np.array(run["at_hours"])
    minutes, judged = hours * 60, hours >= WARM_UP * hours[-1]
    for name, (label, colour) in LINES.items():
        values = np.array(run[name])
        axes.plot(minutes, values / np.median(values[judged]), label=label, color=colour, linewidth=1.2)
    axes.axvspan(0, WARM_UP * minutes[-1], color=SHADE, linewidth=0, zorder=0)
    axes.set_title(run["soak"].replace("_", " "), loc="left", fontsize=9, fontweight="bold", color=INK)
    done = f"{run['done']:,} {run['unit']}, {run['in_use_mib']:.0f} MiB"
    report = SOAKS[run["soak"]].report
    for at, style, text in ((0.42, "normal", done), (0.06, "italic", report)):
        axes.text(0.5, at, text, transform=axes.transAxes, ha="center", fontsize=8, fontstyle=style, color=QUIET)
    axes.set(xlim=(0, minutes[-1]), ylim=(0, TOP), xlabel="minutes")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.tick_params(colors=INK, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
