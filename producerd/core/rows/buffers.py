"""SpanBuffer: sorted rows in memory of their own.

A buffer holds whole spans and is closed at 64 KiB, so that room comes free in small steps, and a lagging shard pins
little more than its own rows.  (Views into one shared buffer pinned 17.7 times the limit.)
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from producerd.core.rows.columns import Bool, gather
from producerd.core.shards.hash_keys import I32, U64
from producerd.wire.columns import RECORD_CHARGE_BYTES

JOB_CHARGE_BYTES: Final = 5
"""The part of a record's charge that its job holds until its last row settles: order 4, state 1."""


class SpanBuffer:
    """Consecutive rows of a job.  Its whole charge is held until the last of them settles.

    ``first``: the position of its first row in the job's sorted order.  ``explicit``: which rows have a hash key other
    than their partition key's; ``aggregates``: the data of which rows is itself an aggregate; None where no row is.
    """

    __slots__ = (
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
        self.live = len(key_offsets) - 1
        self.charge_bytes = len(keys) + len(data) + (RECORD_CHARGE_BYTES - JOB_CHARGE_BYTES) * self.live

    def __repr__(self) -> str:
        return f"<SpanBuffer from {self.first}: {self.live} rows, {self.charge_bytes} bytes>"

    def settle(self, records: int) -> int:
        """Count rows that have ended.  Returns the charge that comes free: with the last row all of it, else 0."""
        self.live -= records
        if self.live:
            return 0
        self.keys = self.data = b""
        self.key_offsets = self.data_offsets = _NO_OFFSETS
        self.hashes, self.explicit, self.aggregates = _NO_HASHES, None, None
        charge_bytes, self.charge_bytes = self.charge_bytes, 0
        return charge_bytes

    def reorder(self, a: int, b: int, order: npt.NDArray[np.intp]) -> None:
        """Put the rows ``a`` to ``b`` (excluded, counted from the buffer's first) in another order.

        A worker thread may be reading other rows: these stay where they are, and each array is replaced, not written.
        """
        self.keys, self.key_offsets = _reordered(self.keys, self.key_offsets, a, b, order)
        self.data, self.data_offsets = _reordered(self.data, self.data_offsets, a, b, order)
        high, low = self.hashes[0].copy(), self.hashes[1].copy()
        high[a:b], low[a:b] = high[a:b][order], low[a:b][order]
        self.hashes = high, low
        self.explicit, self.aggregates = [_remarked(marks, a, b, order) for marks in (self.explicit, self.aggregates)]


_NO_OFFSETS: Final = np.zeros(1, np.int32)
_NO_HASHES: Final = (np.zeros(0, np.uint64), np.zeros(0, np.uint64))


def _remarked(marks: Bool | None, a: int, b: int, order: npt.NDArray[np.intp]) -> Bool | None:
    if marks is not None:
        marks = marks.copy()
        marks[a:b] = marks[a:b][order]
    return marks


def _reordered(values: bytes, offsets: I32, a: int, b: int, order: npt.NDArray[np.intp]) -> tuple[bytes, I32]:
    part = offsets[a : b + 1]
    moved, moved_offsets = gather([(memoryview(values), part)], order.astype(np.int32))
    offsets = offsets.copy()
    offsets[a : b + 1] = moved_offsets + part[0]
    return b"".join((values[: part[0]], moved, values[part[-1] :])), offsets
