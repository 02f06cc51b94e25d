"""KnownShards: what an answer may be believed by."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import inf
from typing import Final

from producerd.core.shards.shard_map import Shard, ShardMap


class KnownShards:
    """The newest map, the ranges of closed shards that an answer on its way may still name, and doubts.

    An answer names the shard that stored an entry by its id alone.  What that id's range is, the map says; but a stream
    can be deleted and made again with the same ids and other ranges.  That takes the service longer than
    `CONTINUITY_SECONDS`, in which nothing is stored: so the map is believed without a break from its reading on while
    records are stored at shorter distances, and doubted after a longer silence until it is read again.
    """

    CONTINUITY_SECONDS: Final = 20.0
    """Above the watch's least distance between two readings, so that a doubt is settled at once."""

    def __init__(self) -> None:
        self.map: ShardMap | None = None
        self.doubted = False
        self.refuted = False  # a shard's sequence numbers fell: not only silence speaks against the map
        self.unreadable = False  # the last reading failed, and the next one may not
        self._closed: dict[str, Shard] = {}
        self._awaited: set[Hashable] = set()
        self._seen_at = -inf

    def get(self, shard_id: str) -> Shard | None:
        """The range of an open shard, or of one that closed while requests were in flight."""
        return (self.map.get(shard_id) if self.map else None) or self._closed.get(shard_id)

    @property
    def blind(self) -> bool:
        """Whether the map is in doubt, and cannot be read just now."""
        return self.doubted and self.unreadable

    def learn(self, shard_map: ShardMap, asked_at: float, in_flight: Iterable[Hashable]) -> None:
        """A newer map, asked for at ``asked_at``.  Requests in flight may be answered by shards that it has no more."""
        if self.map is not None and not self.map.contradicts(shard_map):
            self._closed |= {shard.shard_id: shard for shard in self.map.shards if shard not in shard_map}
        else:
            self._closed.clear()
        self._awaited = set(in_flight) if self._closed else set()  # else it would hold on to their bodies
        self.map, self._seen_at = shard_map, asked_at
        self.doubted = self.refuted = self.unreadable = False
        self._forget_closed()

    def forget(self) -> None:
        """The stream is no more."""
        self.map = None
        self.doubted = self.refuted = self.unreadable = False
        self._closed.clear()
        self._awaited.clear()

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
        self.doubted = self.refuted = True

    def not_read(self, now: float, *, denied: bool) -> None:
        """The map could not be read.  Who may not read it believes it where nothing but silence speaks against it."""
        self.unreadable = not denied
        if denied and self.doubted and not self.refuted:
            self.doubted, self._seen_at = False, now

    def _forget_closed(self) -> None:
        if not self._awaited:
            self._closed.clear()
