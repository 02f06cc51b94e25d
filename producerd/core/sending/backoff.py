"""How long to wait before something is sent again, and how much may be in flight."""

from __future__ import annotations

from random import Random
from typing import Final


class RetryPolicy:
    """Full-jitter exponential back-off: uniform in (0, min(cap, base * 2^attempt)), at least `MIN_DELAY_SECONDS`."""

    BASE_SECONDS: Final = 0.1
    CAP_SECONDS: Final = 5.0
    MIN_DELAY_SECONDS: Final = 0.01
    UPLINK_BYTES_PER_SECOND: Final = 256 * 1024
    """A request's time-out grows with its size: a slow uplink is not an outage."""
    MAX_TIMEOUT_SECONDS: Final = 60.0

    def __init__(self, random: Random, request_timeout_seconds: float = 6.0) -> None:
        self._random = random
        self.request_timeout_seconds = request_timeout_seconds

    def set_timeout(self, request_timeout_seconds: float) -> None:
        """Another time-out, for requests from now on."""
        self.request_timeout_seconds = request_timeout_seconds

    def timeout(self, bytes_: int, timeouts: int) -> float:
        """Seconds to wait for the answer to a body of that size, whose rows had ``timeouts`` time-outs before."""
        base = self.request_timeout_seconds + bytes_ / self.UPLINK_BYTES_PER_SECOND
        return max(base, min(self.MAX_TIMEOUT_SECONDS, base * 2.0 ** min(timeouts, 10)))

    def delay(self, attempts: int) -> float:
        """Seconds to wait before attempt number ``attempts`` + 1."""
        ceiling = min(self.CAP_SECONDS, self.BASE_SECONDS * 2.0 ** min(attempts, 16))
        return max(self.MIN_DELAY_SECONDS, self._random.uniform(0, ceiling))

    def hold(self) -> float:
        """Seconds that a whole stream waits when nothing gets through."""
        return max(self.MIN_DELAY_SECONDS, self._random.uniform(0, self.CAP_SECONDS))


class InFlightWindow:
    """How many requests and bytes of a stream may be in flight: halved by a time-out, one by one up again.

    It starts at `FIRST`, and after `hold` at one, and doubles with each window that is answered, up to where it was.
    While answers take a good part of their time-out it does not grow: what is added to a slow uplink only waits there
    (24 requests of 1 MiB over 20 Mbit/s would all time out).
    """

    FIRST: Final = 4
    TARDY: Final = 1 / 3
    """Of the time-out."""

    def __init__(self, most: int, most_bytes: int, request_max_bytes: int) -> None:
        self.most = most
        self.most_bytes = most_bytes
        self._request_max_bytes = request_max_bytes
        self._size = float(min(most, self.FIRST))
        self._slow_start_until = float(most)

    def set_limits(self, most: int, most_bytes: int, request_max_bytes: int) -> None:
        """New limits.  What a time-out has taught stays: from there it grows one by one."""
        never_cut = self._slow_start_until >= self.most
        self._slow_start_until = float(most) if never_cut else min(self._slow_start_until, most)
        self._size = min(self._size, float(most))
        self.most = most
        self.most_bytes = most_bytes
        self._request_max_bytes = request_max_bytes

    @property
    def size(self) -> int:
        return int(self._size)

    @property
    def bytes(self) -> int:
        """Room for so many full requests; where single records are larger than a request, their share of the limit."""
        share = int(self.most_bytes * self._size / self.most)
        return min(self.most_bytes, max(share, self.size * self._request_max_bytes))

    def answered(self, seconds: float, timeout_seconds: float) -> None:
        if seconds > self.TARDY * timeout_seconds:
            self._slow_start_until = min(self._slow_start_until, self._size)
            return
        step = 1.0 if self._size < self._slow_start_until else 1.0 / self._size
        self._size = min(float(self.most), self._size + step)

    def timed_out(self) -> None:
        self._size = max(1.0, self._size / 2)
        self._slow_start_until = self._size

    def hold(self) -> None:
        self._slow_start_until = max(self._slow_start_until / 2, 1.0)
        self._size = 1.0
