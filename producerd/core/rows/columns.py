"""Columns of rows: the bytes of all rows, and the offset at which each row begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from producerd.core.shards.hash_keys import I32

Bool = npt.NDArray[np.bool_]
Column = tuple[memoryview, npt.NDArray[np.integer[Any]]]
"""The bytes of all rows, and offsets into them: one for each row and one for the end."""


def gather(columns: Sequence[tuple[memoryview, I32]], order: I32) -> Column:
    """Return one column of some frames' rows in the given order, with offsets from 0.

    ``order`` numbers the rows through all of ``columns``.
    """
    arrays = [
        pa.Array.from_buffers(
            pa.large_binary(),
            len(offsets) - 1,
            [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(values)],
        )
        for values, offsets in columns
    ]
    # pa.array would load pandas if it is installed, which takes 0.3 s and 35 MiB of memory.
    places = pa.Array.from_buffers(pa.int32(), len(order), [None, pa.py_buffer(np.ascontiguousarray(order, np.int32))])
    # The offsets have 64 bits, because a job may hold frames with rows of 10 MiB.  Each span buffer has 32-bit ones.
    taken: Any = pa.concat_arrays(arrays).take(places)
    offsets = np.frombuffer(taken.buffers()[1], np.int64, len(order) + 1, taken.offset * 8)
    values = taken.buffers()[2]
    return memoryview(values if values is not None else b"").cast("B"), offsets


def copy(column: Column, first: int, last: int) -> tuple[bytes, I32]:
    """Return a copy of the rows from ``first`` up to ``last``, with offsets from 0."""
    values, offsets = column
    part = offsets[first : last + 1]
    return bytes(values[part[0] : part[-1]]), (part - part[0]).astype(np.int32, copy=False)
