"""The documents show the pictures and figures of backlog that its recorded data give."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.backlog.__main__ import SECONDS
from benchmarks.backlog.curves import Curves
from benchmarks.backlog.picture import PANELS, draw
from benchmarks.backlog.record import FILE, read
from benchmarks.backlog.run import CASES, Bench
from tools import ROOT

PICTURES: Final = ROOT / "docs/pictures"
SVG: Final = "{http://www.w3.org/2000/svg}"
NAMES: Final = {panel.name for panel in PANELS}


def paths(picture: Path) -> dict[str, list[list[float]]]:
    """The points of each curve in an SVG."""
    found = {}
    for group in ET.parse(picture).iter(f"{SVG}g"):
        if group.get("id") in NAMES:
            (path,) = group.iter(f"{SVG}path")
            found[str(group.get("id"))] = [
                [float(number) for number in point.split()] for point in re.split("[ML]", path.get("d", ""))[1:]
            ]
    return found


def test_the_pictures_of_the_readme_are_drawn_from_the_data_beside_them(tmp_path: Path) -> None:
    for path in draw(read(PICTURES), tmp_path):
        shown = PICTURES / path.name
        assert paths(path).keys() == NAMES
        for name, points in paths(path).items():
            assert np.allclose(points, paths(shown)[name], atol=1.0), name  # in points: fonts may differ
        assert f"docs/pictures/{path.name}" in (ROOT / "README.md").read_text()
        assert shown.stat().st_size < 65_000
    assert (PICTURES / FILE).stat().st_size < 50_000


def test_the_table_of_the_three_cases_is_that_of_the_data() -> None:
    text = (ROOT / "docs/understand/performance.md").read_text()
    runs = read(PICTURES)
    figures = [run.figures for run in runs]
    for run in runs:
        recovery = run.curves.recovery_seconds(*run.hang)
        assert run.figures.recovery_seconds == (None if recovery is None else round(recovery, 1))
    rows = {
        "records lost": [f"{each.lost:,} of {each.written:,}" for each in figures],
        "duplicates": [f"{each.duplicates:,}" for each in figures],
        "most records waiting": [f"{each.peaks['waiting']:,}" for each in figures],
        "their payload, MB": [f"{each.payload_bytes / 1e6:,.0f}" for each in figures],
        "most memory, MB": [f"{each.peaks['memory'] / 1e6:,.0f}" for each in figures],
        "seconds to recover": [f"{each.recovery_seconds}" for each in figures],
    }
    for words, shown in rows.items():
        assert f"| {words} | {' | '.join(shown)} |" in text


def test_the_data_are_of_a_run_of_all_cases_with_the_default_options() -> None:
    figures = [run.figures for run in read(PICTURES)]
    assert [each.case for each in figures] == list(CASES)
    for each in figures:
        assert each.seconds == SECONDS
        assert each.limits == Bench(SECONDS, print).limits(each.case)


def test_a_stream_has_recovered_after_five_seconds_at_nine_tenths_of_its_rate() -> None:
    stored = [100.0] * 8 + [0.0] * 2 + [0.0] * 10 + [50.0] * 3 + [90.0] * 7
    made = Curves([float(second) for second in range(30)], [], stored, [], [])
    assert made.recovery_seconds(9.0, 20.0) == 3.0
    assert made.recovery_seconds(9.0, 26.0) is None
