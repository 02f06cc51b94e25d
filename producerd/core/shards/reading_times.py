"""When a stream's shards and its summary are read: soon for rows that wait, and seldom enough for a fleet.

The reader asks for the next time, and reports when a reading begins and how it ended.  Thousands of daemons may begin
at once, and the service answers a bounded number of calls: each delay is drawn by chance, so that the daemons spread.
"""

from __future__ import annotations

from collections import deque
from math import inf
from random import Random
from typing import Final

READINGS_PER_MINUTE: Final = 6
"""Where no rows wait.  ListShards allows 1,000 calls a second, and a split may wake hundreds of nodes at once."""
AFTER_READING_SECONDS: Final = 2.5
"""At least so long after a reading that succeeded, for each reading of the last minute: a split is followed soon, and a
stream that rouses suspicion all the time is read every 14 s or so."""
REFRESH_SECONDS: Final = 60.0
"""Between two readings that nobody asked for: a stream that was deleted and made again has the same shard ids."""
AWAITED_SECONDS: Final = (2.0, 4.0)
"""Between the beginnings of two readings that fail for now, while rows wait.  2,000 daemons make 670 calls a second, of
which a stream's quota answers 100: the daemons have their lists in half a minute."""
FIRST_RETRY_SECONDS: Final = 0.5
MAX_RETRY_SECONDS: Final = 30.0
SUMMARY_SECONDS: Final = 600.0
"""DescribeStreamSummary allows 20 calls a second in an account."""
SUMMARY_SPREAD_SECONDS: Final = 15.0
"""Over which the nodes of a fleet that begin at once spread their first: 300 nodes make 20 a second."""


class ShardReadings:
    """When the shards of one stream are read next."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._began: deque[float] = deque(maxlen=READINGS_PER_MINUTE)  # the latest, except those repeated for rows
        self._began_at = -inf
        self._refresh_at = -inf
        self._wanted_at = -inf
        self._awaited_at = -inf
        self._failures = 0
        self._unreachable = False

    def next_time(self, *, wanted: bool, awaited: bool) -> float:
        """When to read: because a newer map is ``wanted``, because rows await it, or without either once a minute."""
        if awaited and self._failures and self._awaited_at < inf:
            return self._awaited_at
        due = self._wanted_at if wanted else self._refresh_at
        return max(due, self._began[0] + 60.0) if len(self._began) == READINGS_PER_MINUTE else due

    def began(self, now: float, *, awaited: bool) -> None:
        """A reading begins."""
        self._began_at = now
        if not (awaited and self._failures):
            self._began.append(now)

    def succeeded(self, now: float) -> None:
        """It brought a map."""
        self._failures, self._unreachable = 0, False
        readings = sum(began > now - 60.0 for began in self._began)
        self._wanted_at = now + AFTER_READING_SECONDS * readings * self._random.uniform(1.0, 1.5)
        self._refresh_at = self._wanted_at + about(REFRESH_SECONDS, self._random)

    def failed(self, now: float, *, denied: bool, unreachable: bool) -> None:
        """It brought none.  After a time without the service its first refusal is no reason to wait long."""
        self._failures = 1 if self._unreachable and not unreachable else self._failures + 1
        self._unreachable = unreachable
        self._wanted_at = now + backed_off(FIRST_RETRY_SECONDS, self._failures, MAX_RETRY_SECONDS, self._random)
        self._awaited_at = inf if denied else max(now, self._began_at + self._random.uniform(*AWAITED_SECONDS))
        self._refresh_at = self._wanted_at + about(REFRESH_SECONDS, self._random)

    def forgotten(self) -> None:
        """The shards are not needed any more; they are read when they are wanted again."""
        self._refresh_at = inf


class SummaryReadings:
    """When the summary of one stream is read next."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._failures = 0

    def first_seconds(self, *, aggregates: bool) -> float:
        """How long the first one waits: not where the first map waits for it."""
        return 0.0 if aggregates else self._random.uniform(0, SUMMARY_SPREAD_SECONDS)

    def succeeded(self) -> float:
        """Returns the seconds until the next one."""
        self._failures = 0
        return about(SUMMARY_SECONDS, self._random)

    def failed(self) -> float:
        """Returns the seconds until the next one."""
        self._failures += 1
        return backed_off(SUMMARY_SPREAD_SECONDS, self._failures, SUMMARY_SECONDS, self._random)


def about(seconds: float, random: Random) -> float:
    """A time that daemons that begin at once do not have in common."""
    return seconds * random.uniform(0.75, 1.25)


def backed_off(first: float, failures: int, most: float, random: Random) -> float:
    """A delay that doubles with each failure, and of which half is chance."""
    ceiling = min(most, first * 2.0 ** min(failures, 16))
    return random.uniform(ceiling / 2, ceiling)
