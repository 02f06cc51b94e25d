"""From scrapes to curves: what happened in each second, and how even that was.

A counter that falls began anew at 0, as Prometheus has it.

The *steady part* are the seconds that lie between the end of the first micro-batch and that of the last: whole
micro-batches, without the start of Spark's workers.  A curve's *coefficient of variation* is the standard deviation of
its seconds there, divided by their mean: 0 is a flat line.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import NamedTuple


class Sample(NamedTuple):
    """One scrape: when, by the machine's monotonic clock, and what the daemon and the kernel said.

    ``accepted``, ``stored`` and ``blocked_seconds`` are counters.
    """

    at: float
    accepted: float
    stored: float
    queue: float
    rss_bytes: float
    blocked_seconds: float


@dataclass(frozen=True, slots=True)
class Curves:
    """A value for each second that ends at one of ``seconds``, which count from a moment of the run.

    ``accepted`` and ``stored``: records a second.  ``queue``: records.  ``rss``: bytes.  ``blocked``: the part of the
    second in which some caller waited.
    """

    seconds: list[float]
    accepted: list[float]
    stored: list[float]
    queue: list[float]
    rss: list[float]
    blocked: list[float]

    def between(self, begin: float, end: float) -> Curves:
        """The seconds that lie wholly there."""
        begins = [-math.inf, *self.seconds]  # a second begins where the one before ends
        kept = [i for i, at in enumerate(self.seconds) if begins[i] >= begin and at <= end]
        return Curves(*([getattr(self, field.name)[i] for i in kept] for field in fields(self)))


NAMES = tuple(field.name for field in fields(Curves))[1:]
"""Of the curves themselves."""


def curves(samples: Sequence[Sample], start: float) -> Curves:
    """Of samples in their order; ``start`` is second 0."""
    rows = [
        (
            after.at - start,
            increase(before.accepted, after.accepted) / (after.at - before.at),
            increase(before.stored, after.stored) / (after.at - before.at),
            after.queue,
            after.rss_bytes,
            increase(before.blocked_seconds, after.blocked_seconds) / (after.at - before.at),
        )
        for before, after in pairwise(samples)
    ]
    return Curves(*map(list, zip(*rows, strict=True))) if rows else Curves([], [], [], [], [], [])


def increase(before: float, after: float) -> float:
    return after - before if after >= before else after


def variation(values: Sequence[float]) -> float | None:
    """The coefficient of variation; None where it has none: the mean is 0, or nothing is there."""
    mean = statistics.fmean(values) if values else 0.0
    return statistics.pstdev(values, mean) / mean if mean else None
