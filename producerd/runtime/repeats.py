"""Repeats: the same message at most a few times within a window; the rest is counted, and the count is told.

A message's window begins with the first one of its kind, which is never held back, and ends after a fixed time.  What
was held back until then is told by the next message of that kind, or by `ended`, whichever comes first.  It is pure:
time is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

MOST: Final = 5
WITHIN_SECONDS: Final = 60.0
MAX_KINDS: Final = 1_000
"""Messages of libraries may be as many as there are texts: the oldest window is closed early for one kind more."""
MAX_EVENT_CHARACTERS: Final = 200


class LineKind(NamedTuple):
    """What makes two messages the same."""

    logger: str
    level: int
    event: str
    stream: str | None = None


@dataclass(slots=True)
class _Window:
    ends_at: float
    passed: int = 0
    held_back: int = 0


class Repeats:
    """Of all loggers.  Ask it before each message is written."""

    def __init__(self, most: int = MOST, within_seconds: float = WITHIN_SECONDS, max_kinds: int = MAX_KINDS) -> None:
        self._most = most
        self._within_seconds = within_seconds
        self._max_kinds = max_kinds
        self._windows: dict[LineKind, _Window] = {}  # in the order in which they end, as all are as long
        self._closed_early: list[tuple[LineKind, int]] = []  # until `ended` is asked

    def passes(self, kind: LineKind, now: float) -> int | None:
        """How many like it were held back before it; None where it is held back itself."""
        kind = kind._replace(event=kind.event[:MAX_EVENT_CHARACTERS])
        window = self._windows.get(kind)
        owed = 0
        if window is None or window.ends_at <= now:
            if window is not None:
                owed = self._windows.pop(kind).held_back
            elif len(self._windows) >= self._max_kinds:
                self._close_oldest(self._closed_early)
            window = self._windows[kind] = _Window(now + self._within_seconds)
        if window.passed == self._most:
            window.held_back += 1
            return None
        window.passed += 1
        return owed

    @property
    def next_end(self) -> float | None:
        """When to ask `ended` again."""
        return next((window.ends_at for window in self._windows.values()), None)

    def ended(self, now: float = inf) -> list[tuple[LineKind, int]]:
        """What was held back, and has not been told, of each kind whose window has ended."""
        ended, self._closed_early = self._closed_early, []
        while (end := self.next_end) is not None and end <= now:
            self._close_oldest(ended)
        return ended

    def _close_oldest(self, told: list[tuple[LineKind, int]]) -> None:
        kind = next(iter(self._windows))
        if held_back := self._windows.pop(kind).held_back:
            told.append((kind, held_back))
