"""End a benchmark that is interrupted in the same way everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.table import say
from producerd.demo import scenario


@contextmanager
def interrupts() -> Iterator[None]:
    """Handle signals as `producerd.demo.scenario.interrupts` does, and report the interruption after the cleanup."""
    with scenario.interrupts():
        try:
            yield
        except SystemExit:
            say("interrupted")
            raise
