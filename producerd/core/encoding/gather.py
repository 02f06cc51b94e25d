"""Slices of some buffers copied one after the other in a single call, however many they are.

Arrow's binary views (Columnar Format, "Variable-size Binary View Layout") name a slice in 16 bytes: its length, and its
buffer and offset, or its bytes themselves where there are at most twelve.  Arrow makes plain binary of an array of them
in some 10 ns for each and 20 us for all, and copies each byte once; joining columns element by element takes twice as
long, and they must lie in order before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

INLINE_BYTES: Final = 12
_TEXT: Final = np.dtype(f"V{INLINE_BYTES}")
_WITH_TEXT: Final = np.dtype([("length", np.int32), ("text", _TEXT)])
_WITH_PLACE: Final = np.dtype([("length", np.int32), ("prefix", np.int32), ("buffer", np.int32), ("offset", np.int32)])

Buffer = bytes | memoryview
Integers = npt.NDArray[np.integer[Any]]


class Cells:
    """A table of slices, read row by row; of one row at least, and of less than 2 GiB.

    A column that is not given is empty.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self._places = np.zeros((rows, columns), _WITH_PLACE)
        self._texts = self._places.view(_WITH_TEXT)
        self._buffers: list[Any] = []

    def slices(
        self, column: int, buffers: Sequence[Buffer], which: Integers | int, offsets: Integers | int, lengths: Integers
    ) -> None:
        """For each row a slice of one of some buffers, which are copied once more where a slice is short.

        It must lie within its buffer: Arrow does not look.
        """
        places = self._places[:, column]
        places["length"] = lengths
        places["buffer"] = which + len(self._buffers)
        places["offset"] = offsets
        self._buffers += buffers
        short = lengths <= INLINE_BYTES
        if short.any():
            texts = b"".join((*buffers, bytes(INLINE_BYTES)))  # whatever lies behind a shorter one is not read
            starts = np.array([0, *accumulate(map(len, buffers))])[which] + offsets
            every_text = np.ndarray(len(texts) - INLINE_BYTES + 1, _TEXT, texts, strides=(1,))
            self._texts["text"][short, column] = every_text[np.broadcast_to(starts, lengths.shape)[short]]

    def zeros(self, column: int, lengths: Integers) -> None:
        """For each row so many bytes of zero, at most `INLINE_BYTES`."""
        self._places["length"][:, column] = lengths

    def text(self, column: int, text: bytes, rows: int | slice | Integers = slice(None)) -> None:
        """The same bytes for some rows."""
        if len(text) > INLINE_BYTES:
            self._places[rows, column] = (len(text), 0, len(self._buffers), 0)
            self._buffers.append(text)
        else:
            self._texts[rows, column] = (len(text), text)

    def joined(self) -> memoryview:
        views = [None, *map(pa.py_buffer, (self._places, *self._buffers))]
        joined: Any = pa.Array.from_buffers(pa.binary_view(), self._places.size, views).cast(pa.binary())
        values = joined.buffers()[2]
        return memoryview(values if values is not None else b"").cast("B")
