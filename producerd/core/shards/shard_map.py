"""The shard map of a stream, which has the open shard of every hash key.

A shard owns an inclusive range of hash keys.  The ranges of the open shards cover 0 to 2^128-1 without gap or overlap.
(Source: Amazon Kinesis API reference, HashKeyRange.)
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from producerd.core.shards.hash_keys import _LOW, I32, MAX_HASH_KEY, U64
from producerd.core.shards.ranges import Ranges

_HASH_KEY: Final = re.compile("[0-9]{1,39}")


class Shard(NamedTuple):
    """A shard: its id and its inclusive range of hash keys."""

    shard_id: str
    start: int
    end: int

    def covers(self, lowest: int, highest: int) -> bool:
        """Return whether its range contains all hash keys from ``lowest`` to ``highest``."""
        return self.start <= lowest and highest <= self.end

    def holds(self, high: U64, low: U64) -> bool:
        """Return whether its range contains every one of these hash keys."""
        if not len(high):
            return True
        if self.start >> 64 < int(high.min()) and int(high.max()) < self.end >> 64:
            return True  # nearly always: the low halves do not matter
        above = (high > self.start >> 64) | ((high == self.start >> 64) & (low >= self.start & _LOW))
        below = (high < self.end >> 64) | ((high == self.end >> 64) & (low <= self.end & _LOW))
        return bool((above & below).all())


class ShardMap:
    """The open shards of one stream, which never change.

    The constructor raises ValueError unless they cover every hash key exactly once.
    """

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
        # The type is explicit because numpy makes floats of a list with numbers on both sides of 2^63.
        self._by_high = Ranges(np.array([shard.end >> 64 for shard in self.shards], dtype=np.uint64), 64)
        self._ends_midway = np.array([shard.end & _LOW != _LOW for shard in self.shards])
        self._by_id = {shard.shard_id: shard for shard in self.shards}

    def __len__(self) -> int:
        return len(self.shards)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardMap) and self.shards == other.shards

    def __hash__(self) -> int:
        return hash(self.shards)

    def locate(self, high: U64, low: U64) -> I32:
        """Return the index in `shards` of the shard that owns each hash key."""
        if len(self.shards) == 1:
            return np.zeros(len(high), np.int32)
        found = self._by_high.locate(high)
        at_end = np.flatnonzero(high == self._by_high.ends[found])
        for row in at_end[self._ends_midway[found[at_end]]].tolist():  # the low half decides, which is rare
            found[row] = self.locate_one((int(high[row]) << 64) | int(low[row]))
        return found

    def locate_one(self, hash_key: int) -> int:
        """Return the index in `shards` of the shard that owns a hash key."""
        return bisect_right(self._starts, hash_key) - 1

    def contradicts(self, other: ShardMap) -> bool:
        """Return whether some shard id has another range in the other map.

        Then the two maps are of different streams of one name.
        """
        return self is not other and any(shard != (self.get(shard.shard_id) or shard) for shard in other.shards)

    def __contains__(self, shard: Shard) -> bool:
        return self.get(shard.shard_id) == shard

    def get(self, shard_id: str) -> Shard | None:
        """Return the open shard with an id, or None."""
        return self._by_id.get(shard_id)


ONE_LANE: Final = ShardMap([Shard("", 0, MAX_HASH_KEY)])
"""The map while the shards are not known: one nameless shard that owns every hash key."""


def map_from_listing(pages: Sequence[dict[str, Any]]) -> ShardMap:
    """Build a ShardMap from all pages of a ListShards answer.

    Raises ValueError if the open shards do not cover all hash keys, or if the pages have any other content.
    """
    try:
        listed = [_listed(shard) for page in pages for shard in page["Shards"]]
    except Exception as error:  # any value of the JSON may be missing or of another type
        raise ValueError(f"{type(error).__name__} in what is listed") from None
    return ShardMap(shard for shard in listed if shard is not None)


def _listed(shard: dict[str, Any]) -> Shard | None:
    """Read one shard of ListShards.  Returns None if it is closed."""
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
