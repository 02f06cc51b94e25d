"""A clock of virtual time, and what happens by it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Events:
    """A clock, and what will happen by it."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), action))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until
