"""ShardMap: which open shard a hash key belongs to.

A shard owns an inclusive range of hash keys.  The ranges of the open shards cover 0 to 2^128-1 without gap or overlap.
(Amazon Kinesis API reference: HashKeyRange.)
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from producerd.core.shards.hash_keys import _LOW, I32, MAX_HASH_KEY, U64

_HASH_KEY: Final = re.compile("[0-9]{1,39}")


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


ONE_LANE: Final = ShardMap([Shard("", 0, MAX_HASH_KEY)])
"""Stands in while the shards are not known: one nameless shard that owns everything."""


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
