"""Draw the row Stream: a small graph for each panel, in the dashboard's order.

It shows the panels' data and not Grafana's looks.  Each curve's path in the SVG has the panel and the curve as its id.
"""

from __future__ import annotations

import io
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from benchmarks.dashboard.record import Curve, DrawnPanel, RowRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE: Final = "dashboard-stream.svg"
COLUMNS: Final = 3
WIDTH, LINE_HEIGHT = 12.0, 1.75
"""Width of the picture and height of a line of panels, in inches."""
INK: Final = "#24292f"
QUIET: Final = "#6e7781"
SHADE: Final = "#f0f2f5"
COLOURS: Final = ("#0969da", "#1a7f37", "#bc4c00", "#8250df", "#cf222e", "#6e7781", "#bf3989", "#1b7c83")
LEVEL_COLOUR: Final = "#cf222e"
ROOM: Final = 1.35
"""Height of a panel, relative to its highest value: the legend needs some."""
PREFIXES: Final = {"binBps": (1024, "iB/s"), "bytes": (1024, "iB")}
UNITS: Final = {"s": " s", "recps": "/s", "reqps": "/s", "short": ""}


def shown(value: float, unit: str) -> str:
    """Return a value as Grafana shows it, in short."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    base, suffix = PREFIXES.get(unit, (1_000, UNITS.get(unit, "")))
    for prefix in ("", "k", "M", "G"):
        if abs(value) < base or prefix == "G":
            break
        value /= base
    return f"{value:.3g}{' ' if base == 1024 and value else ''}{prefix.upper() if base == 1024 else prefix}{suffix}"


def draw(kept: RowRecord, folder: Path) -> Path:
    """Write the picture."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PICTURE
    # The same data give the same bytes, and text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "producerd", "svg.fonttype": "none", "font.size": 8}):
        drawn = io.StringIO()
        _picture(kept).savefig(drawn, format="svg", metadata={"Date": None})
    # One decimal suffices, and makes the file a third smaller.
    text = re.sub(r"\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", drawn.getvalue())
    path.write_text(re.sub("^ +", "", text, flags=re.MULTILINE))
    return path


def _picture(kept: RowRecord) -> Figure:
    lines = -(-len(kept.panels) // COLUMNS)
    figure = Figure((WIDTH, LINE_HEIGHT * lines), layout="constrained", facecolor="white")
    places = figure.subplots(lines, COLUMNS, sharex=True)
    for axes, panel in zip(places.flat, kept.panels, strict=True):
        _panel(axes, panel, kept.phases)
    for axes in places[-1]:
        axes.set_xticks([0.0, *kept.phases.values()])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:.0f} s"))
        for name, (begin, end) in zip(kept.phases, pairwise([0.0, *kept.phases.values()]), strict=True):
            place = axes.get_xaxis_transform()
            axes.text((begin + end) / 2, -0.28, name, transform=place, ha="center", fontsize=7, color=QUIET)
    return figure


def _panel(axes: Axes, panel: DrawnPanel, phases: dict[str, float]) -> None:
    ends = list(phases.values())
    for begin, end in zip(ends[:-1:2], ends[1::2], strict=True):
        axes.axvspan(begin, end, color=SHADE, linewidth=0, zorder=0)
    if panel.is_stacked:
        _stack(axes, panel)
    else:
        for number, curve in enumerate(panel.curves):
            seconds, values = with_gaps(curve)
            (line,) = axes.plot(seconds, values, color=COLOURS[number % len(COLOURS)], linewidth=1.1)
            if alone := lone(values):
                line.set_marker(".")
                line.set_markevery(alone)
            line.set_gid(f"{panel.title}: {curve.name}")
            line.set_label(curve.name)
    highest = max((value for curve in panel.curves for value in curve.values), default=0.0)
    top = ROOM * ((axes.dataLim.y1 if panel.is_stacked else highest) or 1.0)
    for level in panel.levels:
        if level < top:
            axes.axhline(level, color=LEVEL_COLOUR, linewidth=0.7, linestyle="--")
    axes.set_ylim(0, top)
    axes.set_xlim(0, ends[-1])
    binary = panel.unit in PREFIXES
    axes.yaxis.set_major_locator(MultipleLocator(2 ** round(math.log2(top / 3))) if binary else MaxNLocator(3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, panel.unit)))
    axes.set_title(panel.title, loc="left", fontsize=9, fontweight="bold", color=INK)
    axes.legend(loc="upper left", fontsize=6.5, frameon=False, ncols=2, handlelength=1.0, borderaxespad=0.1)
    axes.tick_params(colors=INK, labelsize=7, left=False, bottom=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(QUIET)


def with_gaps(curve: Curve) -> tuple[list[float], list[float]]:
    """Return the curve with a break where points are missing, as Grafana draws it."""
    step = min((after - before for before, after in pairwise(curve.seconds)), default=0.0)
    seconds, values = list[float](), list[float]()
    for at, value in zip(curve.seconds, curve.values, strict=True):
        if seconds and at - seconds[-1] > step:
            seconds.append(at)
            values.append(math.nan)
        seconds.append(at)
        values.append(value)
    return seconds, values


def lone(values: list[float]) -> list[int]:
    """Return the places of values without a neighbour, which no line shows."""
    missing = [True, *map(math.isnan, values), True]
    return [i for i in range(len(values)) if missing[i] and not missing[i + 1] and missing[i + 2]]


def _stack(axes: Axes, panel: DrawnPanel) -> None:
    """Draw the curves above one another.  Where a curve has no point, it is 0."""
    seconds = sorted({at for curve in panel.curves for at in curve.seconds})
    heights = []
    for curve in panel.curves:
        known = dict(zip(curve.seconds, curve.values, strict=True))
        heights.append([known.get(at, 0.0) for at in seconds])
    areas = axes.stackplot(
        seconds, heights, labels=[curve.name for curve in panel.curves], colors=COLOURS, alpha=0.6, linewidth=0
    )
    for area, curve in zip(areas, panel.curves, strict=True):
        area.set_gid(f"{panel.title}: {curve.name}")
