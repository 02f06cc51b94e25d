"""Outage: what is asked again and again fails for a while: one WARNING when it begins, and one INFO at its end."""

from __future__ import annotations

import asyncio

from producerd.runtime.logs import get_logger

log = get_logger("producerd")


class Outage:
    """One thing's.  ``labels`` say of what, in each line."""

    def __init__(self, what: str, **labels: str) -> None:
        self._begins = f"{what} failed"
        self._ends = f"{what} works again"
        self._labels = labels
        self._began: float | None = None
        self._times = 0

    def failed(self, code: str, message: str) -> None:
        began = self._began is None
        if began:
            self._began = asyncio.get_running_loop().time()
        self._times += 1
        level = log.warning if began else log.debug
        level(self._begins, **self._labels, code=code, message=message)

    def ended(self) -> None:
        """It works, or does so again."""
        if self._began is not None:
            seconds = asyncio.get_running_loop().time() - self._began
            log.info(self._ends, **self._labels, failures=self._times, seconds=round(seconds, 1))
        self._began, self._times = None, 0
