"""KnownShards: everything that one stream knows of its shards.

That is the newest list, what an answer may be believed by, how long rows wait for a list that does not come, and when
it is read again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import inf
from random import Random
from typing import Final

from producerd.core.failures import Kind, meaning_of
from producerd.core.shards.map_wait import MapWait
from producerd.core.shards.reading_times import ShardReadings
from producerd.core.shards.shard_map import ONE_LANE, Shard, ShardMap
from producerd.errors import Code


class KnownShards:
    """The newest list, the ranges of closed shards that an answer on its way may still name, and doubts.

    An answer names the shard that stored an entry by its id alone, and the list has the range of that id.  But a stream
    can be deleted and made again with the same ids and other ranges.  That takes the service longer than
    `CONTINUITY_SECONDS`, in which nothing is stored.  So the list is believed from its reading on while records are
    stored at shorter distances.  After a longer silence it is doubted until it is read again.

    ``aggregates``: whether the stream's rows become aggregates, which need the list.
    """

    CONTINUITY_SECONDS: Final = 20.0
    """Above the watch's least distance between two readings, so that a doubt is settled at once."""

    def __init__(self, random: Random, *, aggregates: bool) -> None:
        self.map: ShardMap | None = None
        self.wanted = True  # a newer list
        self.doubted = False
        self._aggregates = aggregates
        self._refuted = False  # a shard's sequence numbers fell: not only silence speaks against the list
        self._unreadable = False  # the last reading failed, and the next one may not
        self._closed: dict[str, Shard] = {}
        self._awaited: set[Hashable] = set()
        self._seen_at = -inf
        self._wait = MapWait(aggregates=aggregates)
        self._readings = ShardReadings(random)

    def get(self, shard_id: str) -> Shard | None:
        """Return an open shard, or one that closed while requests were in flight."""
        return (self.map.get(shard_id) if self.map else None) or self._closed.get(shard_id)

    @property
    def is_blind(self) -> bool:
        """Whether the list is in doubt, and cannot be read just now."""
        return self.doubted and self._unreadable

    @property
    def goes_plain(self) -> bool:
        """Whether rows to be aggregated go as plain records, because no list came in time."""
        return self._wait.plain

    @property
    def error(self) -> str:
        """Why the last reading failed, or ""."""
        return self._wait.error

    def is_denied(self, now: float) -> bool:
        """Return whether rows that need the list are refused, because reading it was denied for long enough."""
        return self._aggregates and self.map is None and self._wait.denied and now >= self._wait.ends_at

    # ---- rows that need it

    def want(self) -> None:
        """Rows are there that need a newer list."""
        self.wanted = True

    def for_sorting(self, now: float, wait_seconds: float) -> ShardMap | None:
        """Return the list to sort rows by, `ONE_LANE` where they go without it, or None while they wait for it."""
        if self.map is not None:
            return self.map
        self._wait.begin(now, wait_seconds)
        if self._wait.plain or now >= self._wait.ends_at:
            return ONE_LANE
        return None

    def go_plain(self) -> None:
        """No list came in time: rows to be aggregated go as plain records until one comes."""
        self._wait.go_plain()

    def waits(self, now: float) -> bool:
        """Return whether rows that are to be sorted wait for the list."""
        return self.map is None and now < self._wait.ends_at

    def next_time(self, *, of_refusal: bool) -> float:
        """Return when rows stop waiting for the list.  ``of_refusal``: only where they are refused then."""
        if self.map is not None or (of_refusal and not self._wait.denied):
            return inf
        return self._wait.ends_at

    # ---- reading it

    def next_reading(self, *, awaited: bool) -> float:
        """Return when to read the list next.  ``awaited``: rows wait for a newer one, or go plain until it comes."""
        return self._readings.next_time(wanted=self.wanted, awaited=awaited)

    def reading_began(self, now: float, *, awaited: bool) -> None:
        """The list is being read."""
        self._readings.began(now, awaited=awaited)

    def learn(self, shard_map: ShardMap, now: float, *, asked_at: float, in_flight: Iterable[Hashable]) -> None:
        """A newer list, asked for at ``asked_at``.  Requests in flight may be answered by shards that have closed."""
        if self.map is not None and not self.map.contradicts(shard_map):
            self._closed |= {shard.shard_id: shard for shard in self.map.shards if shard not in shard_map}
        else:
            self._closed.clear()
        self._awaited = set(in_flight) if self._closed else set()  # else it would hold on to their bodies
        self.map, self._seen_at = shard_map, asked_at
        self.doubted = self._refuted = self._unreadable = False
        self._forget_closed()
        self.wanted = False
        self._wait.over()
        self._wait.answered(now)
        self._readings.succeeded(now)

    def not_read(self, code: str, message: str, now: float, wait_seconds: float) -> None:
        """A reading failed.  From then on rows wait for the list for ``wait_seconds``, unless it was denied.

        A daemon that may not read it goes on to believe it, where nothing but silence speaks against it.
        """
        self._wait.failed(code, message, now)
        if self.map is None and not self._wait.denied:
            self._wait.begin(now, wait_seconds)
        self._readings.failed(now, denied=self._wait.denied, unreachable=code == Code.UNREACHABLE)
        permanent = meaning_of(code).kind is Kind.PERMANENT
        self._unreadable = not permanent
        if permanent and self.doubted and not self._refuted:
            self.doubted, self._seen_at = False, now

    def service_answered(self, now: float) -> None:
        """The service answered a call about this stream, whatever it said."""
        self._wait.answered(now)

    def forget(self) -> None:
        """The stream is gone: the next one of its name is another one."""
        self._drop()
        self.wanted = True

    def rest(self) -> None:
        """The stream has been idle for long: its shards are read again when rows need them."""
        self._drop()
        self.wanted = False
        self._wait.over()
        self._readings.forgotten()

    # ---- what answers say

    def answered(self, request: Hashable) -> None:
        """A request that was in flight has its answer."""
        if self._closed:
            self._awaited.discard(request)
            self._forget_closed()

    def stored(self, sent_at: float, now: float) -> None:
        """Something was stored between ``sent_at`` and ``now``: the stream existed then."""
        if self.map is None:
            return  # there is nothing to doubt
        if now > self._seen_at + self.CONTINUITY_SECONDS:
            self.doubted = True
        else:
            self._seen_at = max(self._seen_at, sent_at)

    def refute(self) -> None:
        """A shard's sequence numbers fell: it is another shard."""
        self.doubted = self._refuted = True

    def _forget_closed(self) -> None:
        if not self._awaited:
            self._closed.clear()

    def _drop(self) -> None:
        self.map = None
        self.doubted = self._refuted = self._unreadable = False
        self._closed.clear()
        self._awaited.clear()
