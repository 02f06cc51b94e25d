"""Compute curves from scrapes: what happened in each second, and how even that was.

A counter that falls has begun again at 0, as in Prometheus.

The *steady part* has the seconds between the end of the first micro-batch and the end of the last.  It has whole
micro-batches, without the start of Spark's workers.  A curve's *coefficient of variation* is the standard deviation of
its seconds in the steady part, divided by their mean.  It is 0 for a flat line.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import NamedTuple


class Sample(NamedTuple):
    """One scrape: its time on the machine's monotonic clock, and the numbers of the daemon and the kernel.

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

    ``accepted`` and ``stored`` are records per second, ``queue`` is records and ``rss`` is bytes.  ``blocked`` is the
    share
    of the second in which at least one caller waited.
    """

    seconds: list[float]
    accepted: list[float]
    stored: list[float]
    queue: list[float]
    rss: list[float]
    blocked: list[float]

    def between(self, begin: float, end: float) -> Curves:
        """Return the seconds that lie completely in this span."""
        begins = [-math.inf, *self.seconds]  # a second begins at the end of the one before
        kept = [i for i, at in enumerate(self.seconds) if begins[i] >= begin and at <= end]
        return Curves(*([getattr(self, field.name)[i] for i in kept] for field in fields(self)))


NAMES = tuple(field.name for field in fields(Curves))[1:]
"""The names of the curves."""


def curves(samples: Sequence[Sample], start: float) -> Curves:
    """Return the curves of samples in their order.  ``start`` is second 0."""
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
    """Return the coefficient of variation, or None if there is no value or the mean is 0."""
    mean = statistics.fmean(values) if values else 0.0
    return statistics.pstdev(values, mean) / mean if mean else None
