"""The rows of some spans as columns, which the columnar twins write requests from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from producerd.core.rows.spans import Span, buffer_runs_of
from producerd.core.shards.hash_keys import I32


class RowColumns(NamedTuple):
    """The rows of some spans as columns.

    ``keys`` holds all keys one after the other, each of ``key_bytes`` bytes.  ``data`` holds one view for each run of
    spans that lie side by side in a buffer, as the spans of small lanes do.  A row's data is ``data_bytes`` bytes from
    ``data_offsets`` on in the view number ``data_places``.
    """

    keys: bytes
    key_bytes: I32
    data: list[memoryview]
    data_places: I32
    data_offsets: I32
    data_bytes: I32

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.key_bytes)

    def first(self, rows: int) -> RowColumns:
        """Return the first rows."""
        key_bytes, places, offsets, data_bytes = (
            column[:rows] for column in (self.key_bytes, self.data_places, self.data_offsets, self.data_bytes)
        )
        return RowColumns(self.keys, key_bytes, self.data, places, offsets, data_bytes)


def columns_of(spans: Sequence[Span]) -> RowColumns:
    """Return the rows of some spans as columns.

    Raises ValueError if a span's memory has been released, which a worker thread sees after the daemon gave its
    request up.
    """
    runs = buffer_runs_of(spans)
    keys, data, key_bytes, data_offsets, data_bytes = [], [], [], [], []
    for buffer, first, last in runs:
        a, b = first - buffer.first, last - buffer.first
        all_keys, all_data = memoryview(buffer.keys), memoryview(buffer.data)
        key_at, data_at = buffer.key_offsets[a : b + 1], buffer.data_offsets[a : b + 1]
        if key_at[-1] > len(all_keys) or data_at[-1] > len(all_data):
            raise ValueError("rows that are gone")  # Arrow does not check bounds
        keys.append(all_keys[key_at[0] : key_at[-1]])
        data.append(all_data[data_at[0] : data_at[-1]])
        key_bytes.append(key_at[1:] - key_at[:-1])
        data_offsets.append(data_at[:-1] - data_at[0])
        data_bytes.append(data_at[1:] - data_at[:-1])
    return RowColumns(
        keys=b"".join(keys),
        key_bytes=np.concatenate(key_bytes),
        data=data,
        data_places=np.arange(len(runs), dtype=np.int32).repeat([last - first for _, first, last in runs]),
        data_offsets=np.concatenate(data_offsets),
        data_bytes=np.concatenate(data_bytes),
    )
