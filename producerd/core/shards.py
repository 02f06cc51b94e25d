"""Hash keys, the ShardMap: which open shard a hash key belongs to, and KnownShards: what an answer may be believed by.

A hash key is an unsigned 128-bit number: the MD5 of a UTF-8 partition key, big endian, unless an explicit hash key is
given.  In columns it is two uint64, the high and the low half.  A shard owns an inclusive range of hash keys; the open
shards' ranges cover 0..2^128-1 without gap or overlap.  (Amazon Kinesis API reference: PutRecords, HashKeyRange.)
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from producerd.core import md5

try:
    # 136 ns a key where hashlib.md5 spends 456 on setting up OpenSSL.
    from _md5 import md5 as _md5  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    from functools import partial
    from hashlib import md5 as _hashlib_md5

    _md5 = partial(_hashlib_md5, usedforsecurity=False)

U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]

MAX_HASH_KEY: Final = 2**128 - 1
_LOW: Final = 2**64 - 1
_HASH_KEY: Final = re.compile("[0-9]{1,39}")


def hash_keys(keys: memoryview, offsets: I32) -> tuple[U64, U64]:
    """The hash keys of a column of partition keys: (high halves, low halves).  ``offsets`` index ``keys``."""
    if len(offsets) > md5.LEAST_TEXTS and np.diff(offsets).max() <= md5.MOST_BYTES:
        digests: Any = md5.digests(keys, offsets)
    else:
        digests = b"".join([_md5(keys[a:b]).digest() for a, b in pairwise(offsets.tolist())])
    halves = np.frombuffer(digests, dtype=">u8").reshape(-1, 2)
    return halves[:, 0].astype(np.uint64), halves[:, 1].astype(np.uint64)


def parse_hash_keys(hash_keys: memoryview, offsets: npt.NDArray[np.integer[Any]]) -> tuple[U64, U64]:
    """Decimal explicit hash keys, checked by intake, as (high halves, low halves); an absent one (length 0) is 0."""
    numbers = [int(bytes(hash_keys[a:b])) if a < b else 0 for a, b in pairwise(offsets.tolist())]
    high = np.fromiter((number >> 64 for number in numbers), np.uint64, len(numbers))
    low = np.fromiter((number & _LOW for number in numbers), np.uint64, len(numbers))
    return high, low


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: its id and its inclusive range of hash keys."""

    shard_id: str
    start: int
    end: int

    def covers(self, lowest: int, highest: int) -> bool:
        """Whether its range holds all from one hash key to another."""
        return self.start <= lowest and highest <= self.end

    def holds(self, high: U64, low: U64) -> bool:
        """Whether its range holds every one of these hash keys."""
        if not len(high):
            return True
        above = (high > self.start >> 64) | ((high == self.start >> 64) & (low >= self.start & _LOW))
        below = (high < self.end >> 64) | ((high == self.end >> 64) & (low <= self.end & _LOW))
        return bool((above & below).all())


class ShardMap:
    """The open shards of one stream, immutable.  Raises ValueError unless they cover every hash key exactly once."""

    def __init__(self, open_shards: Iterable[Shard]) -> None:
        self.shards: tuple[Shard, ...] = tuple(sorted(open_shards, key=lambda shard: shard.start))
        expected = 0
        for shard in self.shards:
            if shard.start != expected or shard.end < shard.start:
                raise ValueError(f"{shard.shard_id} starts at hash key {shard.start}, expected {expected}")
            expected = shard.end + 1
        if expected != MAX_HASH_KEY + 1:
            raise ValueError(f"the open shards end at hash key {expected - 1}")
        self._starts = [shard.start for shard in self.shards]
        self._start_high = np.array([start >> 64 for start in self._starts], dtype=np.uint64)
        self._by_id = {shard.shard_id: index for index, shard in enumerate(self.shards)}
        # A row whose high half equals a boundary's needs the low half too: a few rows in 2^64.
        # (The type is named: numpy makes floats of a list with numbers on both sides of 2^63.)
        self._ambiguous_high = np.array([start >> 64 for start in self._starts if start & _LOW], dtype=np.uint64)

    def __len__(self) -> int:
        return len(self.shards)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardMap) and self.shards == other.shards

    def __hash__(self) -> int:
        return hash(self.shards)

    def locate(self, high: U64, low: U64) -> I32:
        """The index in `shards` of the shard that owns each hash key."""
        found = (np.searchsorted(self._start_high, high, side="right") - 1).astype(np.int32)
        for row in np.flatnonzero(np.isin(high, self._ambiguous_high)).tolist():
            found[row] = self.locate_one((int(high[row]) << 64) | int(low[row]))
        return found

    def locate_one(self, hash_key: int) -> int:
        return bisect_right(self._starts, hash_key) - 1

    def contradicts(self, other: ShardMap) -> bool:
        """Whether a shard id means another range there: then one of the two is of another stream of that name."""
        return self is not other and any(shard != (self.get(shard.shard_id) or shard) for shard in other.shards)

    def __contains__(self, shard: Shard) -> bool:
        return self.get(shard.shard_id) == shard

    def get(self, shard_id: str) -> Shard | None:
        """The open shard of that id."""
        index = self._by_id.get(shard_id)
        return None if index is None else self.shards[index]


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


def one_lane() -> ShardMap:
    """Stands in while the shards are not known: one nameless shard that owns everything."""
    return ShardMap([Shard("", 0, MAX_HASH_KEY)])


def map_from_listing(pages: Sequence[dict[str, Any]]) -> ShardMap:
    """A ShardMap from the answers of ListShards, all pages.

    Raises ValueError where the open shards do not cover, and for whatever else the answers may hold.
    """
    try:
        listed = [_listed(shard) for page in pages for shard in page["Shards"]]
    except Exception as error:  # JSON may hold anything in any place
        raise ValueError(f"{type(error).__name__} in what is listed") from None
    return ShardMap(shard for shard in listed if shard is not None)


def _listed(shard: dict[str, Any]) -> Shard | None:
    """One shard of ListShards; None: it is closed."""
    if "EndingSequenceNumber" in shard.get("SequenceNumberRange", {}):
        return None
    keys, shard_id = shard["HashKeyRange"], shard["ShardId"]
    if not isinstance(shard_id, str) or not 0 < len(shard_id) <= 128:
        raise ValueError("not an id")
    return Shard(shard_id, _hash_key(keys["StartingHashKey"]), _hash_key(keys["EndingHashKey"]))


def _hash_key(text: str) -> int:
    if not _HASH_KEY.fullmatch(text):
        raise ValueError("not a hash key")
    return int(text)
