"""Ctrl-C ends a benchmark as it ends the demo, and that is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.table import say
from producerd.demo import scenario


@contextmanager
def interrupts() -> Iterator[None]:
    """As `producerd.demo.scenario.interrupts`, whose SystemExit says so once all is cleaned up."""
    with scenario.interrupts():
        try:
            yield
        except SystemExit:
            say("interrupted")
            raise
