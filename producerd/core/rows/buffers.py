"""Span buffers: small pieces of memory that hold sorted rows.

A buffer holds one span, up to 256 KiB, or several of neighbouring shards, up to 64 KiB together.  The queue's room
therefore comes free in small steps, and a lagging shard keeps little more than its own rows in memory.  (Views into one
shared buffer kept 17.7 times the queue's limit.)
"""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from producerd.core.rows.columns import Bool, gather
from producerd.core.shards.hash_keys import I32, U64, hash_keys
from producerd.wire.columns import RECORD_CHARGE_BYTES

JOB_CHARGE_BYTES: Final = 5
"""Bytes charged for each row of a job until the job's last row settles: 4 for ``order``, 1 for ``state``."""


class SpanBuffer:
    """Consecutive rows of a job in memory of their own, which is released when the last of them settles.

    - ``first``: the position of its first row in the job's sorted order.
    - ``explicit``: a mask of the rows whose hash key is not their partition key's; None if it would be empty.
    - ``aggregates``: a mask of the rows that are given aggregates; None if it would be empty.
    - ``live``: the number of rows that have not settled.
    """

    __slots__ = (
        "_key_numbers",
        "aggregates",
        "charge_bytes",
        "data",
        "data_offsets",
        "explicit",
        "first",
        "hashes",
        "key_offsets",
        "keys",
        "live",
    )

    def __init__(
        self,
        first: int,
        keys: bytes,
        key_offsets: I32,
        data: bytes,
        data_offsets: I32,
        hashes: tuple[U64, U64],
        explicit: Bool | None,
        aggregates: Bool | None = None,
    ) -> None:
        self.first = first
        self.keys = keys
        self.key_offsets = key_offsets
        self.data = data
        self.data_offsets = data_offsets
        self.hashes = hashes
        self.explicit = explicit
        self.aggregates = aggregates
        self._key_numbers: U64 | None = None
        self.live = len(key_offsets) - 1
        self.charge_bytes = len(keys) + len(data) + (RECORD_CHARGE_BYTES - JOB_CHARGE_BYTES) * self.live

    def __repr__(self) -> str:
        return f"<SpanBuffer from {self.first}: {self.live} rows, {self.charge_bytes} bytes>"

    def key_numbers(self, a: int, b: int) -> U64:
        """Return a number for each row from ``a`` up to ``b``, counted from its first, equal for rows of one key.

        A row without a partition key counts by its hash key.  Two keys may have the same number.
        """
        if self.explicit is None:
            return _mixed(self.hashes[0][a:b], self.hashes[1][a:b])
        if self._key_numbers is None:
            self._key_numbers = _mixed(*self.hashes)
            named = np.flatnonzero(self.explicit & (self.key_offsets[1:] > self.key_offsets[:-1])).astype(np.int32)
            keys, offsets = gather([(memoryview(self.keys), self.key_offsets)], named)
            self._key_numbers[named] = _mixed(*hash_keys(keys, offsets.astype(np.int32)))
        return self._key_numbers[a:b]

    def count_settled(self, records: int) -> int:
        """Count settled rows.  Returns the charged bytes that come free: all with the last row, before it none."""
        self.live -= records
        if self.live:
            return 0
        self.keys = self.data = b""
        self.key_offsets = self.data_offsets = _NO_OFFSETS
        self.hashes, self.explicit, self.aggregates, self._key_numbers = _NO_HASHES, None, None, None
        charge_bytes, self.charge_bytes = self.charge_bytes, 0
        return charge_bytes

    def reorder(self, a: int, b: int, order: npt.NDArray[np.intp]) -> None:
        """Put the rows from ``a`` up to ``b``, counted from the buffer's first, in another order.

        Because a worker thread may be reading the other rows, these keep their places, and a copy replaces every array.
        """
        self.keys, self.key_offsets = _reordered(self.keys, self.key_offsets, a, b, order)
        self.data, self.data_offsets = _reordered(self.data, self.data_offsets, a, b, order)
        high, low = self.hashes[0].copy(), self.hashes[1].copy()
        high[a:b], low[a:b] = high[a:b][order], low[a:b][order]
        self.hashes = high, low
        self.explicit, self.aggregates = [_moved(marks, a, b, order) for marks in (self.explicit, self.aggregates)]
        self._key_numbers = _moved(self._key_numbers, a, b, order)


A = TypeVar("A", Bool, U64)

_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
"""An odd multiplier, 2^64 / the golden ratio, which mixes the two halves of a hash key."""
_NO_OFFSETS: Final = np.zeros(1, np.int32)
_NO_HASHES: Final = (np.zeros(0, np.uint64), np.zeros(0, np.uint64))


def _mixed(high: U64, low: U64) -> U64:
    """Return a number for each hash key, of its two halves."""
    numbers: U64 = high * _ODD + low
    return numbers


def _moved(column: A | None, a: int, b: int, order: npt.NDArray[np.intp]) -> A | None:
    if column is not None:
        column = column.copy()
        column[a:b] = column[a:b][order]
    return column


def _reordered(values: bytes, offsets: I32, a: int, b: int, order: npt.NDArray[np.intp]) -> tuple[bytes, I32]:
    part = offsets[a : b + 1]
    moved, moved_offsets = gather([(memoryview(values), part)], order.astype(np.int32))
    offsets = offsets.copy()
    offsets[a : b + 1] = moved_offsets + part[0]
    return b"".join((values[: part[0]], moved, values[part[-1] :])), offsets
