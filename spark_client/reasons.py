"""What held a client longest, in the daemon's own words."""

from __future__ import annotations

import re
from typing import Final

FIRST_SECONDS: Final = 1.0
"""How long a client waits in all before it asks the daemon why."""
MOST_SECONDS: Final = 30.0
"""The longest wait between two questions.  Each is twice the one before."""
MOST_KINDS: Final = 32
NUMBERS: Final = re.compile(r"\d[\d.,]*")


def kind_of(reason: str) -> str:
    """Return a reason without its numbers, which differ each time."""
    return NUMBERS.sub("#", reason)


class Reasons:
    """For how long a client has waited, by the daemon's reasons.

    The time until a reason comes counts as spent on that reason, and the time after the last one, too.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._latest: dict[str, str] = {}
        self._unexplained_seconds = 0.0
        self._asks_after_seconds = FIRST_SECONDS
        self._last = ""
        self._is_asked = False

    @property
    def due_seconds(self) -> float:
        """How much longer the client waits before it asks; infinite while an answer is on its way."""
        return float("inf") if self._is_asked else max(0.0, self._asks_after_seconds - self._unexplained_seconds)

    @property
    def longest(self) -> tuple[str, float]:
        """The reason that held the client longest, as the daemon gave it last, and for how many seconds."""
        if not self._last:
            return "", 0.0
        seconds = {**self._seconds, self._last: self._seconds[self._last] + self._unexplained_seconds}
        kind = max(seconds, key=lambda one: seconds[one])
        return self._latest[kind], seconds[kind]

    @property
    def latest(self) -> str:
        """The reason that came last, or "" before the first."""
        return self._latest.get(self._last, "")

    def count_wait(self, seconds: float) -> None:
        """Count a wait."""
        self._unexplained_seconds += seconds

    def asked(self) -> None:
        """Note that the daemon was asked."""
        self._is_asked = True

    def forget_question(self) -> None:
        """Note that the daemon that was asked is gone."""
        self._is_asked = False

    def told(self, reason: str) -> None:
        """Take the daemon's answer."""
        self._is_asked = False
        self._asks_after_seconds = min(2 * self._asks_after_seconds, MOST_SECONDS)
        kind = kind_of(reason)
        if kind in self._seconds or len(self._seconds) < MOST_KINDS:
            self._last, self._latest[kind] = kind, reason
            self._seconds[kind] = self._seconds.get(kind, 0.0) + self._unexplained_seconds
            self._unexplained_seconds = 0.0
