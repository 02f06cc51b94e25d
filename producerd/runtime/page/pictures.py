"""Pictures of the last ten minutes, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from operator import sub
from typing import Final

from producerd.runtime.page.text import text_of

SAMPLES: Final = 120
"""Number of samples in a history; at one every 5 seconds these are ten minutes."""
HEIGHT: Final = 100
"""Height of a picture in its own units.  Its width is one unit per sample."""


def round_above(value: float) -> float:
    """Return a round number that is at least ``value``, for the end of an axis."""
    if value <= 1:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 6, 8, 10) if value <= step * power)


def shares_picture(what: str, kind: str, shares: Sequence[float]) -> str:
    """Return a picture of shares between 0 and 1, with a caption for screen readers."""
    now, most = (shares[-1], max(shares)) if shares else (0.0, 0.0)
    return svg(f"{what}, now {now:.0%}, at most {most:.0%}", area(kind, shares, 1.0))


def svg(caption: str, drawn: str) -> str:
    """Return a picture with what was ``drawn`` in it, and ``caption`` for screen readers."""
    return (
        f'<svg role="img" viewBox="0 {-HEIGHT} {SAMPLES - 1} {HEIGHT}" preserveAspectRatio="none">'
        f"<title>{text_of(caption)}, in the last ten minutes</title>{drawn}</svg>"
    )


def area(kind: str, values: Sequence[float], most: float) -> str:
    """Return the filled area below the values."""
    return _path(f"area {kind}", values, most, f"V0H{SAMPLES - len(values)}z")


def line(kind: str, values: Sequence[float], most: float) -> str:
    """Return the line through the values."""
    return _path(f"line {kind}", values, most)


def _path(kind: str, values: Sequence[float], most: float, end: str = "") -> str:
    """Return a path from the first value to each next one.  The newest value is at the right edge."""
    if len(values) < 2:
        return ""
    scale = -HEIGHT / most
    heights = [round(value * scale) for value in values]  # SVG counts downwards
    steps = " 1 ".join(map(str, map(sub, heights[1:], heights)))
    return f'<path class="{kind}" d="M{SAMPLES - len(values)} {heights[0]}l1 {steps}{end}"/>'
