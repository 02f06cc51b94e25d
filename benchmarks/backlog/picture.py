"""Draw two runs as FLINK-9374 did, to the same scales: throughput with the checkpoints, records waiting, memory.

A curve's path in the SVG has the curve's name as its id.  Colour-blind readers can tell the colours apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from benchmarks.backlog.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 5.0, 5.6
"""Width and height in inches.  Two pictures fit next to each other."""
ROOM: Final = 1.08
"""Height of a panel, relative to the highest second of all pictures."""


class Theme(NamedTuple):
    name: str
    page: str
    ink: str
    quiet: str
    shade: str


THEMES: Final = (
    Theme("light", "#ffffff", "#1f2328", "#59636e", "#e6e9ed"),
    Theme("dark", "#0d1117", "#f0f6fc", "#9198a1", "#2c333c"),
)


class Panel(NamedTuple):
    """A curve: its name, its title, the format of its numbers, its colour and its share of the height."""

    name: str
    title: str
    shown: Callable[[float], str]
    colour: str
    height: float


def thousands(value: float) -> str:
    return f"{value / 1_000:,.0f}k" if value else "0"


def megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f} MB" if value else "0"


PANELS: Final = (
    Panel("stored", "Stored in Kinesis, records per second", thousands, "#0f8fd6", 1.3),
    Panel("waiting", "Records waiting in the producer", thousands, "#e08a00", 1.0),
    Panel("memory", "Memory of the producer's process", megabytes, "#00a37a", 1.0),
)


def draw(runs: Sequence[Run], folder: Path) -> Iterator[Path]:
    """Write ``backlog-CASE-THEME.svg`` for the first run and the last."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = (runs[0], runs[-1])
    tops = {panel.name: ROOM * (max(max(getattr(run.curves, panel.name)) for run in shown) or 1.0) for panel in PANELS}
    for run in shown:
        for theme in THEMES:
            path = folder / f"backlog-{run.figures.case.replace('_', '-')}-{theme.name}.svg"
            # The same data give the same bytes, and text stays text.
            with matplotlib.rc_context({"svg.hashsalt": "producerd", "svg.fonttype": "none", "font.size": 11}):
                _picture(run, tops, theme).savefig(path, metadata={"Date": None})
            yield path


def _picture(run: Run, tops: dict[str, float], theme: Theme) -> Figure:
    figure = Figure((WIDTH, HEIGHT), layout="constrained", facecolor=theme.page)
    lost = f"{run.figures.lost:,}" if run.figures.lost else "none"
    names = {
        "kpl": "Amazon's KPL, default settings",
        "without_limit": "producerd, room for two micro-batches",
        "with_limit": f"producerd, queue_limit = {run.figures.limits.get('queue_limit', 0):,}",
    }
    title = f"{names[run.figures.case]}\nlost: {lost} of {run.figures.written:,} records"
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=theme.ink)
    panels = figure.subplots(len(PANELS), sharex=True, height_ratios=[panel.height for panel in PANELS])
    for axes, panel in zip(panels, PANELS, strict=True):
        _curve(axes, panel, run, tops[panel.name], theme)
    panels[0].text(
        sum(run.hang) / 2,
        tops["stored"] / 2,
        "Kinesis hangs:\nno answers",
        ha="center",
        va="center",
        color=theme.ink,
        bbox={"facecolor": theme.shade, "edgecolor": "none"},
    )
    panels[-1].set_xlim(0, run.figures.seconds)
    panels[-1].set_xlabel("seconds; dashed lines: checkpoints (a micro-batch ends)", color=theme.ink, fontsize=10)
    return figure


def _curve(axes: Axes, panel: Panel, run: Run, top: float, theme: Theme) -> None:
    seconds, values = run.curves.seconds, getattr(run.curves, panel.name)
    axes.set_facecolor(theme.page)
    axes.axvspan(*run.hang, color=theme.shade, linewidth=0, zorder=0)
    for _, finish in run.batches:
        axes.axvline(finish, color=theme.quiet, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
    axes.fill_between(seconds, values, color=panel.colour, alpha=0.25, linewidth=0)
    (drawn,) = axes.plot(seconds, values, color=panel.colour, linewidth=1.6)
    drawn.set_gid(panel.name)
    axes.set_ylim(0, top)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: panel.shown(value)))
    axes.set_title(panel.title, loc="left", fontsize=11, fontweight="bold", color=panel.colour)
    axes.tick_params(colors=theme.ink, labelsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(theme.quiet)
