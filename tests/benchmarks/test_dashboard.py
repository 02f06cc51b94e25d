"""The dashboard's picture shows values as Grafana does, and breaks its curves where data are missing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.dashboard.__main__ import main
from benchmarks.dashboard.grafana import legend, row
from benchmarks.dashboard.picture import lone, shown, with_gaps
from benchmarks.dashboard.record import Curve, DrawnPanel, RowRecord, read, write
from tools.dashboard import FILE


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.875, "percentunit", "87.5 %"),
        (2_500, "recps", "2.5k/s"),
        (0, "recps", "0/s"),
        (30, "s", "30 s"),
        (1_572_864, "binBps", "1.5 MiB/s"),
        (8, "short", "8"),
    ],
)
def test_values_are_shown_in_their_units(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_a_curve_is_broken_where_points_are_missing_and_shows_a_lone_one() -> None:
    seconds, values = with_gaps(Curve("", [0, 2, 4, 10, 16, 18], [1, 2, 3, 4, 5, 6]))
    assert [None if math.isnan(value) else value for value in values] == [1, 2, 3, None, 4, None, 5, 6]
    assert len(seconds) == len(values)
    assert [values[place] for place in lone(values)] == [4]


def test_a_row_has_the_panels_up_to_the_next_row_and_legends_are_filled() -> None:
    dashboard = json.loads(FILE.read_text())
    rows = [row(dashboard, title) for title in ("Fleet", "Stream", "Node")]
    assert [panels[0]["title"] for panels in rows] == ["Pages", "Records", "Nodes with a trouble now"]
    assert sum(map(len, rows)) + len(rows) == len(dashboard["panels"])
    assert legend({"legendFormat": "open, {{stream}} {{cluster}}"}, {"stream": "a"}) == "open, a"


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    panel = DrawnPanel("Records", "recps", [1.0], True, [Curve("stored", [1.0], [2.0])])
    kept = RowRecord("a machine", {"calm": 20.0}, [panel])
    write(kept, tmp_path)
    assert read(tmp_path) == kept


def test_nothing_to_draw_again_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--redraw", "--pictures", str(tmp_path)])
    assert "there is no " in capsys.readouterr().err
