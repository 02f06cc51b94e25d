"""Compute hash keys in columns.

A hash key is an unsigned 128-bit number: the explicit hash key if the row has one, otherwise the MD5 of its UTF-8
partition key, big endian.  A column of hash keys is two arrays of uint64, the high and the low halves.
(Source: Amazon Kinesis API reference, PutRecords.)
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from producerd.core.shards import md5

try:
    # 136 ns of CPU a key; hashlib.md5 needs 456 ns, most of it to set up OpenSSL.
    from _md5 import md5 as _md5  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    from functools import partial
    from hashlib import md5 as _hashlib_md5

    _md5 = partial(_hashlib_md5, usedforsecurity=False)

U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]

MAX_HASH_KEY: Final = 2**128 - 1
"""The highest hash key."""
_LOW: Final = 2**64 - 1
"""The bits of a hash key's low half."""


def hash_keys(keys: memoryview, offsets: I32) -> tuple[U64, U64]:
    """Return the MD5 of each partition key as (high halves, low halves).  ``offsets`` index ``keys``."""
    if len(offsets) <= md5.LEAST_TEXTS:
        return _one_by_one(keys, offsets[:-1], offsets[1:])
    lengths = np.diff(offsets)
    is_long = lengths > md5.MOST_BYTES
    if not is_long.any():
        return md5.digests(keys, offsets)
    if np.count_nonzero(~is_long) < md5.LEAST_TEXTS:
        return _one_by_one(keys, offsets[:-1], offsets[1:])
    # An empty text stands for each long key among the short ones.
    short = np.frombuffer(keys, np.uint8)[offsets[0] : offsets[-1]][np.repeat(~is_long, lengths)]
    high, low = md5.digests(short, np.concatenate(([0], np.where(is_long, 0, lengths).cumsum())))
    high[is_long], low[is_long] = _one_by_one(keys, offsets[:-1][is_long], offsets[1:][is_long])
    return high, low


def _one_by_one(keys: memoryview, starts: I32, ends: I32) -> tuple[U64, U64]:
    digests = b"".join([_md5(keys[a:b]).digest() for a, b in zip(starts.tolist(), ends.tolist(), strict=True)])
    halves = np.frombuffer(digests, dtype=">u8").reshape(-1, 2)
    return halves[:, 0].astype(np.uint64), halves[:, 1].astype(np.uint64)


def parse_hash_keys(hash_keys: memoryview, offsets: npt.NDArray[np.integer[Any]]) -> tuple[U64, U64]:
    """Parse decimal hash keys into (high halves, low halves).  An empty text is 0.

    Intake has checked that they are numbers up to `MAX_HASH_KEY`.
    """
    numbers = [int(bytes(hash_keys[a:b])) if a < b else 0 for a, b in pairwise(offsets.tolist())]
    high = np.fromiter((number >> 64 for number in numbers), np.uint64, len(numbers))
    low = np.fromiter((number & _LOW for number in numbers), np.uint64, len(numbers))
    return high, low
