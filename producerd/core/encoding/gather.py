"""Join any number of slices of some buffers with a single call of Arrow.

An Arrow binary view names a slice in 16 bytes: its length with its buffer and offset, or with its bytes themselves if
there are at most twelve.  Arrow casts an array of views to plain binary in about 20 µs plus 10 ns for each view, and
copies each byte once.  Joining columns element by element takes twice that time, and first needs all columns in row
order.  (Source: Arrow Columnar Format, "Variable-size Binary View Layout".)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from producerd.core.shards.hash_keys import I32

INLINE_BYTES: Final = 12
"""Longest slice whose bytes an Arrow view holds itself."""
_TEXT: Final = np.dtype(f"V{INLINE_BYTES}")
_WITH_TEXT: Final = np.dtype([("length", np.int32), ("text", _TEXT)])
_WHOLE: Final = np.dtype(np.complex128)
"""Sixteen bytes, which numpy copies in a fifth of the time that it takes for a structure."""
_WITH_PLACE: Final = np.dtype([("length", np.int32), ("prefix", np.int32), ("buffer", np.int32), ("offset", np.int32)])

Buffer = bytes | memoryview
Integers = npt.NDArray[np.integer[Any]]


def offsets_of(lengths: Integers) -> I32:
    """Return where each of some texts begins if they are joined, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    lengths.cumsum(out=offsets[1:])
    return offsets


class Texts:
    """Texts by number, of which `Cells.chosen` takes one for each row.

    A table holds the texts of numbers below ``count``.  Either all of these are at most `INLINE_BYTES` long, or all are
    longer.
    """

    def __init__(self, text_of: Callable[[int], bytes], count: int) -> None:
        self.text_of = text_of
        self.count = count

    @cached_property
    def table(self) -> tuple[bytes, npt.NDArray[np.complex128]]:
        """The texts one after the other if they are long, otherwise b"", and a view of each."""
        texts = [*map(self.text_of, range(self.count))]
        lengths = np.fromiter(map(len, texts), np.int32, len(texts))
        if lengths.max() <= INLINE_BYTES:
            return b"", np.array([*zip(lengths.tolist(), texts, strict=True)], _WITH_TEXT).view(_WHOLE)
        if lengths.min() <= INLINE_BYTES:
            raise ValueError("short texts and long ones")
        views = np.zeros(len(texts), _WITH_PLACE)
        views["length"], views["offset"] = lengths, offsets_of(lengths)[:-1]
        return b"".join(texts), views.view(_WHOLE)


class Cells:
    """A table of slices that `joined` copies row by row.

    The table has at least one row and less than 2 GiB of bytes.  A column that no call has filled is empty.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self._views = np.zeros(rows * columns + 1, _WITH_PLACE)  # the last is behind all rows
        self._places = self._views[:-1].reshape(rows, columns)
        self._texts = self._places.view(_WITH_TEXT)
        self._wholes = self._places.view(_WHOLE)
        self._buffers: list[Any] = []

    def slices(
        self, column: int, buffers: Sequence[Buffer], which: Integers | int, offsets: Integers | int, lengths: Integers
    ) -> None:
        """Fill a column with one slice for each row: ``lengths`` bytes from ``offsets`` on of the buffer ``which``.

        Each slice must lie within its buffer, because Arrow does not check that.  If any slice is short, the buffers
        are copied once more.
        """
        places = self._places[:, column]
        places["length"] = lengths
        places["buffer"] = which + len(self._buffers)
        places["offset"] = offsets
        self._buffers += buffers
        short = lengths <= INLINE_BYTES
        if short.any():
            texts = b"".join((*buffers, bytes(INLINE_BYTES)))  # Arrow ignores the bytes behind a slice's length
            starts = np.array([0, *accumulate(map(len, buffers))])[which] + offsets
            every_text = np.ndarray(len(texts) - INLINE_BYTES + 1, _TEXT, texts, strides=(1,))
            self._texts["text"][short, column] = every_text[np.broadcast_to(starts, lengths.shape)[short]]

    def chosen(self, column: int, texts: Texts, numbers: Integers) -> None:
        """Fill a column with one of some texts for each row, by its number."""
        buffer, views = texts.table
        beyond = numbers.max() >= texts.count
        self._wholes[:, column] = views[np.minimum(numbers, texts.count - 1) if beyond else numbers]
        if buffer:
            self._places["buffer"][:, column] = len(self._buffers)
            self._buffers.append(buffer)
        for row in (numbers >= texts.count).nonzero()[0].tolist() if beyond else ():
            self.text(column, texts.text_of(int(numbers[row])), rows=row)

    def zeros(self, column: int, lengths: Integers) -> None:
        """Fill a column with zero bytes, at most `INLINE_BYTES` of them for each row."""
        self._places["length"][:, column] = lengths

    def text(self, column: int, text: bytes, rows: int | slice | Integers = slice(None)) -> None:
        """Fill some rows of a column, by default all, with the same bytes."""
        if len(text) > INLINE_BYTES:
            self._places[rows, column] = (len(text), 0, len(self._buffers), 0)
            self._buffers.append(text)
        else:
            self._texts[rows, column] = (len(text), text)

    def end(self, text: bytes) -> None:
        """Put a text of more than `INLINE_BYTES` behind all rows."""
        self._views[-1] = (len(text), 0, len(self._buffers), 0)
        self._buffers.append(text)

    def joined(self) -> memoryview:
        """Return the bytes of all slices, row after row."""
        views = [None, *map(pa.py_buffer, (self._views, *self._buffers))]
        joined: Any = pa.Array.from_buffers(pa.binary_view(), len(self._views), views).cast(pa.binary())
        values = joined.buffers()[2]
        return memoryview(values if values is not None else b"").cast("B")
