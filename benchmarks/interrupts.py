"""End a benchmark that is interrupted, or that fails, in the same way everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec

from benchmarks.table import say
from producerd.demo import scenario

P = ParamSpec("P")


@contextmanager
def interrupts() -> Iterator[None]:
    """Handle signals as `producerd.demo.scenario.interrupts` does, and report the interruption after the cleanup."""
    with scenario.interrupts():
        try:
            yield
        except SystemExit:
            say("interrupted")
            raise


def fails_by(*kinds: type[Exception]) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Make a benchmark's `main` report these exceptions, with the end of a process's log, and return 1."""

    def reporting(main: Callable[P, int]) -> Callable[P, int]:
        @wraps(main)
        def reported(*args: P.args, **kwargs: P.kwargs) -> int:
            try:
                return main(*args, **kwargs)
            except kinds as error:
                say(f"FAILED: {error}\n{getattr(error, 'tail', '')}")
                return 1

        return reported

    return reporting
