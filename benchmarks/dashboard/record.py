"""Keep what Prometheus answered for the row Stream in a small file, from which the picture can be drawn again.

The file has a line of JSON for the conditions and the phases, and one for each panel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.dashboard.grafana import filled, legend, row
from benchmarks.dashboard.run import RATE_SECONDS, FaultyRun

FILE: Final = "dashboard.jsonl"
POINTS: Final = 40
"""Points of a curve, about."""
DIGITS: Final = 3
"""Significant digits of a value."""


class Curve(NamedTuple):
    """A series of a panel: seconds since the beginning of the run, and values."""

    name: str
    seconds: list[float]
    values: list[float]


class DrawnPanel(NamedTuple):
    """A panel with its curves and the values at which it has a line."""

    title: str
    unit: str
    levels: list[float]
    is_stacked: bool
    curves: list[Curve]


class RowRecord(NamedTuple):
    """A run: its conditions, the second at which each phase ended, and the panels of the row."""

    conditions: str
    phases: dict[str, float]
    panels: list[DrawnPanel]


def record(run: FaultyRun, dashboard: Mapping[str, Any], conditions: str) -> RowRecord:
    """Ask for every panel of the row, as Grafana would."""
    phases = {name: round(end - run.began, 1) for name, end in run.phases.items()}
    return RowRecord(conditions, phases, [_drawn(run, panel) for panel in row(dashboard, "Stream")])


def _drawn(run: FaultyRun, panel: Mapping[str, Any]) -> DrawnPanel:
    defaults = panel["fieldConfig"]["defaults"]
    step = max(1, round((run.ended - run.began) / POINTS))
    curves = []
    for target in panel["targets"]:
        for found in run.prometheus.graph(filled(target["expr"], RATE_SECONDS), run.began, run.ended, step):
            seconds = [round(at - run.began) for at, _ in found.points]
            values = [float(f"{value:.{DIGITS}g}") for _, value in found.points]
            curves.append(Curve(legend(target, found.labels), list(map(float, seconds)), values))
    levels = [each["value"] for each in defaults["thresholds"]["steps"] if each["value"] is not None]
    is_stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    return DrawnPanel(panel["title"], defaults["unit"], levels, is_stacked, curves)


def write(kept: RowRecord, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines: Sequence[object] = [{"conditions": kept.conditions, "phases": kept.phases}, *kept.panels]
    (folder / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))


def read(folder: Path) -> RowRecord:
    head, *lines = map(json.loads, (folder / FILE).read_text().splitlines())
    panels = [DrawnPanel(*line)._replace(curves=[Curve(*curve) for curve in line[-1]]) for line in lines]
    return RowRecord(head["conditions"], head["phases"], panels)
