"""Retry delays, time-outs of requests, and the window of requests in flight."""

from __future__ import annotations

from random import Random
from typing import Final


class RetryPolicy:
    """The delays before rows are sent again, and the time-outs of requests.

    Delays follow exponential back-off with full jitter: uniform in (0, min(cap, base * 2^attempts)), and at least
    `MIN_DELAY_SECONDS`.
    """

    BASE_SECONDS: Final = 0.1
    CAP_SECONDS: Final = 5.0
    MIN_DELAY_SECONDS: Final = 0.01
    UPLINK_BYTES_PER_SECOND: Final = 256 * 1024
    """Slowest uplink for which a request's time-out allows, so that a slow uplink does not look like an outage."""
    MAX_TIMEOUT_SECONDS: Final = 60.0
    """Limit of the time-outs that double after each other.  A large body may need more."""

    def __init__(self, random: Random, request_timeout_seconds: float = 6.0) -> None:
        self._random = random
        self.request_timeout_seconds = request_timeout_seconds

    def set_timeout(self, request_timeout_seconds: float) -> None:
        """Use another time-out for requests from now on."""
        self.request_timeout_seconds = request_timeout_seconds

    def timeout(self, bytes_: int, timeouts: int) -> float:
        """Return how many seconds to wait for the answer to a body whose rows timed out ``timeouts`` times before."""
        base = self.request_timeout_seconds + bytes_ / self.UPLINK_BYTES_PER_SECOND
        return max(base, min(self.MAX_TIMEOUT_SECONDS, base * 2.0 ** min(timeouts, 10)))

    def delay(self, attempts: int) -> float:
        """Return how many seconds to wait before attempt number ``attempts`` + 1."""
        ceiling = min(self.CAP_SECONDS, self.BASE_SECONDS * 2.0 ** min(attempts, 16))
        return max(self.MIN_DELAY_SECONDS, self._random.uniform(0, ceiling))

    def hold(self) -> float:
        """Return how many seconds a whole stream waits when no request succeeds."""
        return max(self.MIN_DELAY_SECONDS, self._random.uniform(0, self.CAP_SECONDS))


class InFlightWindow:
    """The number of requests and bytes that a stream may have in flight.

    The window begins with `FIRST` requests, and after `hold` with one.  It doubles with each window of answers up to
    its former size, and from there grows by one with each window.  A time-out halves it.

    While answers need more than `TARDY` of their time-out, the window does not grow, because more requests would only
    wait in a slow uplink: 24 requests of 1 MiB over 20 Mbit/s would all time out.
    """

    FIRST: Final = 4
    """Requests with which a stream begins."""
    TARDY: Final = 1 / 3
    """Share of the time-out after which an answer is too late for the window to grow."""

    def __init__(self, most: int, most_bytes: int, request_max_bytes: int) -> None:
        self.most = most
        self.most_bytes = most_bytes
        self._request_max_bytes = request_max_bytes
        self._size = float(min(most, self.FIRST))
        self._slow_start_until = float(most)

    def set_limits(self, most: int, most_bytes: int, request_max_bytes: int) -> None:
        """Follow new limits.  Above the size that a time-out left, the window still grows by one at a time."""
        never_cut = self._slow_start_until >= self.most
        self._slow_start_until = float(most) if never_cut else min(self._slow_start_until, most)
        self._size = min(self._size, float(most))
        self.most = most
        self.most_bytes = most_bytes
        self._request_max_bytes = request_max_bytes

    @property
    def size(self) -> int:
        """The number of requests that may be in flight."""
        return int(self._size)

    @property
    def bytes(self) -> int:
        """The bytes that may be in flight: `size` full requests, or if that is more the same share of the limit."""
        share = int(self.most_bytes * self._size / self.most)
        return min(self.most_bytes, max(share, self.size * self._request_max_bytes))

    def measure(self, seconds: float, timeout_seconds: float) -> None:
        """Note an answer that came after ``seconds``."""
        if seconds > self.TARDY * timeout_seconds:
            self._slow_start_until = min(self._slow_start_until, self._size)
            return
        step = 1.0 if self._size < self._slow_start_until else 1.0 / self._size
        self._size = min(float(self.most), self._size + step)

    def timed_out(self) -> None:
        """Halve the window: a request had no answer in time."""
        self._size = max(1.0, self._size / 2)
        self._slow_start_until = self._size

    def hold(self) -> None:
        """Begin again with one request: no request succeeds.  Another failure of that one changes nothing."""
        if self._size > 1.0:
            self._slow_start_until = max(self._slow_start_until / 2, 1.0)
        self._size = 1.0
