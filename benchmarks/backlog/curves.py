"""Compute curves from samples: what happened in each second, and how soon the stream recovered."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Final, NamedTuple

RECOVERED: Final = 0.9
"""Share of the rate before the fault at which a stream has recovered."""
RECOVERY_WINDOW: Final = 5
"""Seconds whose mean must reach that: Spark writes nothing for a moment between two micro-batches."""


class Sample(NamedTuple):
    """One look: its time on the machine's monotonic clock, and what was counted until then or is so now."""

    at: float
    accepted: int
    stored: int
    waiting: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Curves:
    """A value for each second that ends at one of ``seconds``, which count from a moment of the run.

    ``accepted`` and ``stored`` are records per second, ``waiting`` is records and ``memory`` is bytes.
    """

    seconds: list[float]
    accepted: list[float]
    stored: list[float]
    waiting: list[float]
    memory: list[float]

    def rate_before(self, begin: float) -> float:
        """Return the median rate of storing before a fault, or 0 if nothing was stored.

        It leaves out the first third, which has the burst of a full quota, and the seconds between two micro-batches.
        """
        seconds = zip(self.seconds, self.stored, strict=True)
        rates = [rate for at, rate in seconds if begin / 3 <= at <= begin and rate]
        return statistics.median(rates) if rates else 0.0

    def recovery_seconds(self, begin: float, end: float) -> float | None:
        """Return the time from a fault's end until the stored rate is back, or None if it never is."""
        enough = RECOVERED * self.rate_before(begin)
        for first, at in enumerate(self.seconds):
            window = self.stored[first : first + RECOVERY_WINDOW]
            if at >= end and len(window) == RECOVERY_WINDOW and statistics.fmean(window) >= enough:
                return at - end
        return None


NAMES = tuple(field.name for field in fields(Curves))[1:]
"""The names of the curves."""


def curves(samples: Sequence[Sample], start: float) -> Curves:
    """Return the curves of samples in their order.  ``start`` is second 0."""
    made = Curves([], [], [], [], [])
    for before, after in pairwise(samples):
        seconds = after.at - before.at
        made.seconds.append(after.at - start)
        made.accepted.append((after.accepted - before.accepted) / seconds)
        made.stored.append((after.stored - before.stored) / seconds)
        made.waiting.append(after.waiting)
        made.memory.append(after.memory_bytes)
    return made
