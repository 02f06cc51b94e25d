"""Judge whether a figure grows: a straight line through its samples, and how sure its slope is.

The first part of a run is its warm-up, and is not judged.  The rest is cut into blocks, and of each block the lowest
sample counts.  So what comes and goes is level, and what stays is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

WARM_UP: Final = 0.25
"""Share of a run that is not judged."""
BLOCKS: Final = 20
SURE: Final = 2.552
"""Standard errors from a slope to its bound at 99 %: the quantile of Student's t for a line through 20 points."""


class Growth(NamedTuple):
    """How far a figure rises within the judged part: its bounds at 99 %.  ``level`` is its mean."""

    level: float
    lower: float
    upper: float


def growth(at: Sequence[float], values: Sequence[float]) -> Growth:
    """Return the growth of the values at these times, of which there are at least as many as blocks."""
    lowest = [min(block) for block in np.array_split(values, BLOCKS)]
    middle = [np.mean(block) for block in np.array_split(at, BLOCKS)]
    (slope, _), covariance = np.polyfit(middle, lowest, 1, cov=True)
    rise, error = slope * (at[-1] - at[0]), SURE * np.sqrt(covariance[0, 0]) * (at[-1] - at[0])
    return Growth(float(np.mean(lowest)), float(rise - error), float(rise + error))
