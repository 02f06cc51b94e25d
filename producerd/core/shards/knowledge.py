"""KnownShards: everything that the daemon knows about one stream's shards.

It has the newest list, and decides how far the daemon may believe an answer.  It also knows how long rows wait for a
list that does not come, and when the list is read again.
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
    """The newest list of one stream's shards, the ranges of closed shards, and doubts about the list.

    An answer names only the id of the shard that stored an entry, and the list has the range of that id.  Answers in
    flight may name closed shards.

    A stream can be deleted and made again with the same ids and other ranges.  That takes longer than
    `CONTINUITY_SECONDS`, and nothing is stored meanwhile.  The list is therefore believed while records are stored at
    shorter intervals.  After a longer silence it is in doubt until it is read again.

    ``aggregates``: whether the stream's rows become aggregates, which need the list.
    """

    CONTINUITY_SECONDS: Final = 20.0
    """Longest interval between stored records in which the stream cannot have been made again.

    It exceeds the least interval between two readings of the shards, so that a reading can settle each doubt at once.
    """

    def __init__(self, random: Random, *, aggregates: bool) -> None:
        self.map: ShardMap | None = None
        self.wanted = True  # a newer list
        self.doubted = False
        self._refuted = False  # a shard's sequence numbers fell, so the list is in doubt for more than silence
        self._unreadable = False  # the last reading failed, but the next one may succeed
        self._closed: dict[str, Shard] = {}
        self._awaited: set[Hashable] = set()
        self._seen_at = -inf
        self._wait = MapWait(aggregates=aggregates)
        self._readings = ShardReadings(random)

    def get(self, shard_id: str) -> Shard | None:
        """Return an open shard, or one that closed while requests were in flight."""
        return (self.map.get(shard_id) if self.map is not None else None) or self._closed.get(shard_id)

    @property
    def is_blind(self) -> bool:
        """Whether the list is in doubt and cannot be read at the moment."""
        return self.doubted and self._unreadable

    @property
    def goes_plain(self) -> bool:
        """Whether rows to be aggregated go as plain records, because no list came in time."""
        return self._wait.plain

    @property
    def error(self) -> str:
        """The reason why the last reading failed, or ""."""
        return self._wait.error

    @property
    def was_denied(self) -> bool:
        """Whether the last reading was denied, which lasts until an operator grants the permission."""
        return self._wait.denied

    def is_denied(self, now: float) -> bool:
        """Return whether rows that need the list are refused, because reading it was denied for long enough."""
        return self.map is None and self._wait.refuses(now)

    # ---- rows that need it

    def want(self) -> None:
        """Note that rows need a newer list."""
        self.wanted = True

    def for_sorting(self, now: float, wait_seconds: float) -> ShardMap | None:
        """Return the list to sort rows by, `ONE_LANE` if they go without it, or None while they wait for it."""
        if self.map is not None:
            return self.map
        self._wait.begin(now, wait_seconds)
        if self._wait.plain or now >= self._wait.ends_at:
            return ONE_LANE
        return None

    def go_plain(self) -> None:
        """Let rows to be aggregated go as plain records until a list comes, because none came in time."""
        self._wait.go_plain()

    def waits(self, now: float) -> bool:
        """Return whether rows that are to be sorted wait for the list."""
        return self.map is None and now < self._wait.ends_at

    def next_time(self, *, of_refusal: bool) -> float:
        """Return when rows stop waiting for the list.  ``of_refusal``: only if they are refused then."""
        if self.map is not None or (of_refusal and not self._wait.denied):
            return inf
        return self._wait.ends_at

    # ---- reading it

    def next_reading(self, *, awaited: bool) -> float:
        """Return when to read the list next.  ``awaited``: rows wait for a newer one, or go plain until it comes."""
        return self._readings.next_time(wanted=self.wanted, awaited=awaited)

    def reading_began(self, now: float, *, awaited: bool) -> None:
        """Note that a reading of the list has begun."""
        self._readings.began(now, awaited=awaited)

    def learn_map(self, shard_map: ShardMap, now: float, *, asked_at: float, in_flight: Iterable[Hashable]) -> None:
        """Use a newer list, whose reading began at ``asked_at``.

        Shards that have closed may still answer ``in_flight``.
        """
        if self.map is not None and not self.map.contradicts(shard_map):
            self._closed |= {shard.shard_id: shard for shard in self.map.shards if shard not in shard_map}
        else:
            self._closed.clear()
        self._awaited = set(in_flight) if self._closed else set()  # a full set would keep the requests' bodies
        self.map, self._seen_at = shard_map, asked_at
        self.doubted = self._refuted = self._unreadable = False
        self._forget_closed()
        self.wanted = False
        self._wait.over()
        self._wait.heard_from_service(now)
        self._readings.succeeded(now)

    def not_read(
        self, code: str, message: str, now: float, wait_seconds: float, *, concerns_stream: bool = False
    ) -> None:
        """Note that a reading failed.  Rows wait for the list for ``wait_seconds`` from now on, unless it was denied.

        A daemon that may not read the list keeps believing it, if only silence speaks against it.  A failure that
        ``concerns_stream`` as a whole says nothing about the list.
        """
        self._wait.reading_failed(code, message, now)
        if self.map is None and not self._wait.denied:
            self._wait.begin(now, wait_seconds)
        self._readings.count_failure(now, denied=self._wait.denied, unreachable=code == Code.UNREACHABLE)
        if concerns_stream:
            return
        permanent = meaning_of(code).kind is Kind.PERMANENT
        self._unreadable = not permanent
        if permanent and self.doubted and not self._refuted:
            self.doubted, self._seen_at = False, now

    def service_answered(self, now: float) -> None:
        """Note that the service answered a call about this stream, with success or failure."""
        self._wait.heard_from_service(now)

    def forget_stream(self) -> None:
        """Forget the shards, because the stream is gone.  The next stream of its name is a different one."""
        self._drop()
        self.wanted = True

    def rest(self) -> None:
        """Forget the shards of a stream that was idle for a long time.  They are read again when rows need them."""
        self._drop()
        self.wanted = False
        self._wait.over()
        self._readings.forgotten()

    # ---- what answers say

    def request_ended(self, request: Hashable) -> None:
        """Note that a request in flight has its answer."""
        if self._closed:
            self._awaited.discard(request)
            self._forget_closed()

    def seen_storing(self, sent_at: float, now: float) -> None:
        """Note that something was stored between ``sent_at`` and ``now``, so the stream existed at that time."""
        if self.map is None:
            return  # there is nothing to doubt
        if now > self._seen_at + self.CONTINUITY_SECONDS:
            self.doubted = True
        else:
            self._seen_at = max(self._seen_at, sent_at)

    def refute(self) -> None:
        """Doubt the list, because a shard's sequence numbers fell.

        They always rise, so its id names another shard now.
        """
        self.doubted = self._refuted = True

    def _forget_closed(self) -> None:
        if not self._awaited:
            self._closed.clear()

    def _drop(self) -> None:
        self.map = None
        self.doubted = self._refuted = self._unreadable = False
        self._closed.clear()
        self._awaited.clear()
