"""Repeats: pass a message a few times within a window of time, and count its further repeats.

The first message of a kind opens a window, which ends after a fixed time.  The first message always passes.  The next
message of that kind after the window reports how many were held back.  If `Repeats.ended` is called first, it reports
them instead.  This module is pure: callers pass the time in.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

MOST: Final = 5
"""Messages of one kind that pass within a window."""
WITHIN_SECONDS: Final = 60.0
"""Length of a window."""
MAX_KINDS: Final = 1_000
"""Most kinds that have a window at once.

Libraries may log any number of texts, so a new kind closes the oldest window.
"""
MAX_EVENT_CHARACTERS: Final = 200
"""Length of the event's beginning by which messages are compared."""


class MessageKind(NamedTuple):
    """The attributes that are equal in messages that count as repeats of each other."""

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
    """The windows of all loggers' messages.

    Call `passes` before each message is written, and `ended` at the time of `next_end`.
    """

    def __init__(self, most: int = MOST, within_seconds: float = WITHIN_SECONDS, max_kinds: int = MAX_KINDS) -> None:
        self._most = most
        self._within_seconds = within_seconds
        self._max_kinds = max_kinds
        self._windows: dict[MessageKind, _Window] = {}  # in the order in which they end, because all have one length
        self._closed_early: list[tuple[MessageKind, int]] = []  # until `ended` reports them

    def passes(self, kind: MessageKind, now: float) -> int | None:
        """Return how many repeats were held back before this message, or None if it is held back itself."""
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
        """The time at which to call `ended` again, or None if no window is open."""
        return next((window.ends_at for window in self._windows.values()), None)

    def ended(self, now: float = inf) -> list[tuple[MessageKind, int]]:
        """Return the kinds whose windows have ended, with the number of messages held back and not reported yet."""
        ended, self._closed_early = self._closed_early, []
        while (end := self.next_end) is not None and end <= now:
            self._close_oldest(ended)
        return ended

    def _close_oldest(self, closed: list[tuple[MessageKind, int]]) -> None:
        kind = next(iter(self._windows))
        if held_back := self._windows.pop(kind).held_back:
            closed.append((kind, held_back))
