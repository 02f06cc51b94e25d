"""Outage: log a lasting failure of one thing with one WARNING when it begins and one INFO when it ends."""

from __future__ import annotations

import asyncio

from producerd.runtime.logs import get_logger

log = get_logger("producerd")


def request_values(request_id: str) -> dict[str, str]:
    """Return the value of a log line that names a request as AWS's support knows it, if the service named one."""
    return {"request_id": request_id} if request_id else {}


class Outage:
    """The failures of one thing that the daemon tries again and again.

    ``what`` names the thing in the log's events, and ``labels`` are values of every line.
    """

    def __init__(self, what: str, **labels: str) -> None:
        self._begins = f"{what} failed"
        self._ends = f"{what} works again"
        self._labels = labels
        self._began: float | None = None
        self._times = 0

    def try_failed(self, code: str, message: str, request_id: str = "") -> None:
        """Log a failed try: the first one at WARNING, and its repeats at DEBUG."""
        began = self._began is None
        if began:
            self._began = asyncio.get_running_loop().time()
        self._times += 1
        level = log.warning if began else log.debug
        level(self._begins, **self._labels, code=code, message=message, **request_values(request_id))

    def ended(self) -> None:
        """Log that the thing works again, if it had failed before."""
        if self._began is not None:
            seconds = asyncio.get_running_loop().time() - self._began
            log.info(self._ends, **self._labels, failures=self._times, seconds=round(seconds, 1))
        self._began, self._times = None, 0
