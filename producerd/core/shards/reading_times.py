"""Times at which a stream's shards and its summary are read: soon if rows wait, and seldom enough for a fleet.

The reader asks for the next time, and reports when a reading begins and how it ended.  Each delay is partly random,
because thousands of daemons may begin at once and the service answers a limited number of calls.
"""

from __future__ import annotations

from collections import deque
from math import inf
from random import Random
from typing import Final

READINGS_PER_MINUTE: Final = 6
"""Most readings in a minute while no rows wait.  ListShards allows 1,000 calls per second, and a split may wake
hundreds of nodes at once."""
AFTER_READING_SECONDS: Final = 2.5
"""Least delay after a successful reading, for each reading of the last minute.  The daemon follows a split soon, and
reads a stream that keeps rousing suspicion about every 14 s."""
REFRESH_SECONDS: Final = 60.0
"""Delay between two readings that no row needs.  They find a stream that was deleted and made again with the same shard
ids."""
AWAITED_SECONDS: Final = (2.0, 4.0)
"""Least and most time between the starts of two readings that fail for now, while rows wait.  2,000 daemons make 670
calls per second.  Even where a stream answers only 100 of them, all daemons have their lists in half a minute."""
FIRST_RETRY_SECONDS: Final = 0.5
MAX_RETRY_SECONDS: Final = 30.0
SUMMARY_SECONDS: Final = 3_600.0
"""Delay after the first reading of the summary, which doubles with each answer.  Nothing waits for a reading, and
DescribeStreamSummary allows 20 calls per second in an account.  2,000 nodes with 30 streams would make 17 hourly."""
MOST_SUMMARY_SECONDS: Final = 86_400.0
NOT_BY_KEY_SECONDS: Final = 600.0
"""Delay while callers are refused because of what the summary says, which an operator may change."""
SUMMARY_SPREAD_SECONDS: Final = 15.0
"""Time over which nodes that begin at once spread their first readings.  300 nodes make 20 per second."""
REFUSED_SECONDS: Final = ((15.0, 30.0), (60.0, 300.0), (1_800.0, 14_400.0), (7_200.0, 21_600.0))
"""Least and most delay after each refused reading in a row; the last pair also counts for further ones.

2,000 daemons with a stream each have all read it after the second delay.  A larger fleet leaves the account's calls to
others after six minutes, and reads the rest over four hours."""


class ShardReadings:
    """The times at which one stream's shards are read."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._began: deque[float] = deque(maxlen=READINGS_PER_MINUTE)  # without readings repeated while rows wait
        self._began_at = -inf
        self._refresh_at = -inf
        self._wanted_at = -inf
        self._awaited_at = -inf
        self._failures = 0
        self._unreachable = False

    def next_time(self, *, wanted: bool, awaited: bool) -> float:
        """Return when to read next: once a minute, or soon if a newer map is ``wanted`` or ``awaited`` by rows."""
        if awaited and self._failures and self._awaited_at < inf:
            return self._awaited_at
        due = self._wanted_at if wanted else self._refresh_at
        return max(due, self._began[0] + 60.0) if len(self._began) == READINGS_PER_MINUTE else due

    def began(self, now: float, *, awaited: bool) -> None:
        """Note that a reading has begun."""
        self._began_at = now
        if not (awaited and self._failures):
            self._began.append(now)

    def succeeded(self, now: float) -> None:
        """Note that a reading brought a map."""
        self._failures = 0
        readings = sum(began > now - 60.0 for began in self._began)
        self._wanted_at = now + AFTER_READING_SECONDS * readings * self._random.uniform(1.0, 1.5)
        self._refresh_at = self._wanted_at + about(REFRESH_SECONDS, self._random)

    def count_failure(self, now: float, *, denied: bool, unreachable: bool) -> None:
        """Note that a reading brought no map.

        The first refusal after a time without the service causes only a short delay.
        """
        self._failures = 1 if self._unreachable and not unreachable else self._failures + 1
        self._unreachable = unreachable
        self._wanted_at = now + backed_off(FIRST_RETRY_SECONDS, self._failures, MAX_RETRY_SECONDS, self._random)
        self._awaited_at = inf if denied else max(now, self._began_at + self._random.uniform(*AWAITED_SECONDS))
        self._refresh_at = self._wanted_at + about(REFRESH_SECONDS, self._random)

    def forgotten(self) -> None:
        """Stop the regular readings.  The shards are read again when rows want them."""
        self._refresh_at = inf


class SummaryReadings:
    """The times at which one stream's summary is read."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._failures = 0
        self._pause_seconds = SUMMARY_SECONDS

    def first_seconds(self, *, aggregates: bool) -> float:
        """Return the delay of the first reading.

        With ``aggregates`` there is none, because the first map waits for it for a moment.
        """
        return 0.0 if aggregates else self._random.uniform(0, SUMMARY_SPREAD_SECONDS)

    def succeeded(self, *, refuses: bool = False) -> float:
        """Note that a reading succeeded, and whether it ``refuses`` callers.  Return the seconds until the next one."""
        self._failures = 0
        if refuses:
            return about(NOT_BY_KEY_SECONDS, self._random)
        seconds = about(self._pause_seconds, self._random)
        self._pause_longer()
        return seconds

    def summary_failed(self, *, answered: bool = True) -> float:
        """Note that a reading failed, and whether the service ``answered``.  Return the seconds until the next one."""
        self._failures += 1
        if not answered:
            return backed_off(SUMMARY_SPREAD_SECONDS, self._failures, REFUSED_SECONDS[-1][1], self._random)
        self._pause_longer()
        return self._random.uniform(*REFUSED_SECONDS[min(self._failures, len(REFUSED_SECONDS)) - 1])

    def made_again(self) -> None:
        """Note that the stream was made again, so that it is read like a new one."""
        self._pause_seconds = SUMMARY_SECONDS

    def _pause_longer(self) -> None:
        self._pause_seconds = min(2 * self._pause_seconds, MOST_SUMMARY_SECONDS)


def about(seconds: float, random: Random) -> float:
    """Return about this many seconds, partly random so that daemons that begin at once spread."""
    return seconds * random.uniform(0.75, 1.25)


def backed_off(first: float, failures: int, most: float, random: Random) -> float:
    """Return a delay that doubles with each failure.  Half of it is random."""
    ceiling = min(most, first * 2.0 ** min(failures, 16))
    return random.uniform(ceiling / 2, ceiling)
