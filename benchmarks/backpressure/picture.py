"""Draw a picture for each run: its curves below one another, all pictures to the same scales.

The background is white, which is also legible on a dark page.  A curve's path in the SVG has the curve's name as its
id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from benchmarks.backpressure.curves import NAMES
from benchmarks.backpressure.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 5.0, 6.8
"""Width and height in inches.  Two pictures fit next to each other."""
INK: Final = "#24292f"
QUIET: Final = "#6e7781"
SHADE: Final = "#f0f2f5"
ROOM: Final = 1.06
"""Height of a curve's part, relative to its highest second."""
LABEL_ROOM: Final = 1.15
"""The same height for a part that also has the names of the micro-batches."""


class Panel(NamedTuple):
    """A curve: its name, the format of its numbers, its colour and its share of the height.

    A rate holds for a whole second.  Other values hold for one moment of the second.
    """

    name: str
    title: str
    shown: Callable[[float], str]
    colour: str
    height: float
    is_rate: bool = True


def thousands(value: float) -> str:
    return f"{value / 1_000:,.0f}k" if value else "0"


def megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f} MB" if value else "0"


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


PANELS: Final = (
    Panel("accepted", "accepted from Spark, records/s", thousands, "#0969da", 1.6),
    Panel("stored", "stored in Kinesis, records/s", thousands, "#1a7f37", 1.0),
    Panel("queue", "queue, records", thousands, "#bc4c00", 1.3, is_rate=False),
    Panel("rss", "RSS of the daemon", megabytes, "#8250df", 1.0, is_rate=False),
    Panel("blocked", "tasks blocked, part of each second", percent, "#cf222e", 0.8),
)


def draw(runs: Sequence[Run], folder: Path) -> Iterator[Path]:
    """Write ``backpressure-CASE.svg`` for each run."""
    folder.mkdir(parents=True, exist_ok=True)
    tops = {name: ROOM * (max(max(getattr(run.curves, name)) for run in runs) or 1.0) for name in NAMES}
    tops[PANELS[0].name] *= LABEL_ROOM
    end = max(run.curves.seconds[-1] for run in runs)
    for run in runs:
        path = folder / f"backpressure-{run.figures.case.replace('_', '-')}.svg"
        # The same data give the same bytes, and text stays text.
        with matplotlib.rc_context({"svg.hashsalt": "producerd", "svg.fonttype": "none", "font.size": 9}):
            _picture(run, tops, end).savefig(path, metadata={"Date": None})
        yield path


def _picture(run: Run, tops: dict[str, float], end: float) -> Figure:
    figure = Figure((WIDTH, HEIGHT), layout="constrained", facecolor="white")
    figures = run.figures
    title = (
        f"queue_limit = {figures.limits['queue_limit']:,}\nmicro-batches of {figures.totals['batch_records']:,} records"
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    heights = [panel.height for panel in PANELS]
    panels = figure.subplots(len(PANELS), sharex=True, height_ratios=heights)
    for axes, panel in zip(panels, PANELS, strict=True):
        _curve(axes, panel, run, tops[panel.name])
        axes.set_xlim(0, end)
    for number, (begin, finish) in enumerate(run.batches, 1):
        middle = (begin + finish) / 2
        panels[0].text(middle, tops["accepted"], f"batch {number}", ha="center", va="top", fontsize=8, color=QUIET)
    panels[-1].set_xlabel("seconds", color=INK)
    return figure


def _curve(axes: Axes, panel: Panel, run: Run, top: float) -> None:
    seconds, values = run.curves.seconds, getattr(run.curves, panel.name)
    (line,) = axes.plot(seconds, values, color=panel.colour, linewidth=1.3)
    if panel.is_rate:
        line.set_drawstyle("steps-pre")
    line.set_gid(panel.name)
    axes.fill_between(
        seconds, values, step="pre" if panel.is_rate else None, color=panel.colour, alpha=0.15, linewidth=0
    )
    for begin, finish in run.batches:
        axes.axvspan(begin, finish, color=SHADE, linewidth=0, zorder=0)
    axes.set_ylim(0, top)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: panel.shown(value)))
    variation = run.figures.coefficients_of_variation[panel.name]
    title = "0" if variation is None else f"CV {variation:.2f}"
    axes.set_title(panel.title, loc="left", fontsize=10, fontweight="bold", color=panel.colour)
    axes.set_title(title, loc="right", fontsize=9, color=INK)
    axes.tick_params(colors=INK, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(QUIET)
