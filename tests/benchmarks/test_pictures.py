"""The documents show the pictures and figures of backpressure that its recorded data give."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.backpressure.__main__ import SECONDS
from benchmarks.backpressure.curves import NAMES
from benchmarks.backpressure.picture import draw
from benchmarks.backpressure.record import FILE, read
from benchmarks.backpressure.run import BATCHES, WIDE, Bench
from tools import ROOT

PICTURES: Final = ROOT / "docs/pictures"
SVG: Final = "{http://www.w3.org/2000/svg}"
ROWS: Final = {
    "accepted": "records accepted from Spark",
    "stored": "records stored in Kinesis",
    "queue": "queue",
    "rss": "RSS",
    "blocked": "time blocked",
}
"""The documents' names of the curves."""


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
        assert paths(path).keys() == set(NAMES)
        for name, points in paths(path).items():
            assert np.allclose(points, paths(shown)[name], atol=1.0), name  # in points: fonts may differ
        assert f"docs/pictures/{path.name}" in (ROOT / "README.md").read_text()
        assert shown.stat().st_size < 150_000
    assert (PICTURES / FILE).stat().st_size < 50_000


def test_the_coefficients_of_variation_are_those_of_the_data() -> None:
    text = (ROOT / "docs/understand/performance.md").read_text()
    without, limited = (run.figures.coefficients_of_variation for run in read(PICTURES))
    for name, words in ROWS.items():
        shown = ["-" if value is None else f"{value:.2f}" for value in (without[name], limited[name])]
        assert f"| {words} | {' | '.join(shown)} |" in text


def test_the_data_are_of_a_run_with_the_default_options() -> None:
    for figures in (run.figures for run in read(PICTURES)):
        assert figures.limits == Bench.lasting(SECONDS, print).limits(figures.case) | WIDE
        assert figures.totals["records"] == BATCHES * figures.totals["batch_records"]
