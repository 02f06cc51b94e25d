"""The size of the requests that a proxy lets through, if it refuses larger ones."""

from __future__ import annotations

from math import inf
from typing import Final

from producerd.core.lanes.lane import ANY_BYTES


class BodyLimit:
    """The largest request that passed a proxy that refuses larger ones, as the answers show it.

    If a request is refused that is not larger than one that passed, its size is not the reason, and no limit applies.

    - ``bytes``: the most bytes of a request of several rows.  ``lasts_since``: since when there is such a limit.
    - ``passed_body_bytes`` and ``refused_body_bytes``: the size of the bodies by which it is known; 0 if it is not.
    """

    LEAST_BYTES: Final = 64 * 1024
    """The smallest limit.  Proxies that refuse such small requests refuse them for another reason."""
    MOST_BYTES: Final = 10 * 1024 * 1024
    """The largest request that Kinesis takes.  No limit is needed above it."""
    TRY_SECONDS: Final = 300.0
    """Time after which the limit doubles, because an operator may have raised the proxy's own."""

    def __init__(self) -> None:
        self.bytes = ANY_BYTES
        self.lasts_since: float | None = None
        self.passed_body_bytes = 0
        self.refused_body_bytes = 0
        self._passed_bytes = 0
        self._refused_bytes = inf
        self._tries_at = inf

    def __repr__(self) -> str:
        return f"<BodyLimit {self.bytes}: {self._passed_bytes} bytes passed, {self._refused_bytes} were refused>"

    def try_larger(self, now: float) -> None:
        """Double the limit if its time has come."""
        if now >= self._tries_at:
            self._refused_bytes = inf
            self._limit(self.bytes * 2, now)

    def passed(self, bytes_: int, body_bytes: int, now: float) -> None:
        """Note that a request passed."""
        if bytes_ <= self._passed_bytes:
            return
        self._passed_bytes, self.passed_body_bytes = bytes_, body_bytes
        if bytes_ >= self._refused_bytes:
            self._refused_bytes = inf
            self._limit(ANY_BYTES, now)
        elif self._refused_bytes < inf:
            self._limit(bytes_, now)

    def body_refused(self, bytes_: int, body_bytes: int, now: float) -> None:
        """Note that a proxy refused a request."""
        if bytes_ <= self._passed_bytes:
            self._passed_bytes, self._refused_bytes = 0, inf
        if bytes_ < self._refused_bytes:
            self._refused_bytes, self.refused_body_bytes = bytes_, body_bytes
        self._limit(self._passed_bytes or ANY_BYTES, now)

    def _limit(self, bytes_: int, now: float) -> None:
        self.bytes = ANY_BYTES if bytes_ > self.MOST_BYTES else max(bytes_, self.LEAST_BYTES)
        self._tries_at = now + self.TRY_SECONDS if self.bytes < ANY_BYTES else inf
        if self.bytes == ANY_BYTES:
            self.lasts_since = None
        elif self.lasts_since is None:
            self.lasts_since = now
