"""The rows of a frame, as columns in Arrow's layout.

A body is one run of bytes: a prefix, the offsets of each column (int32, little endian, records + 1 of them), an
optional validity bitmap of the data column (Arrow's: bit i of byte i // 8, least significant first, 1 = present),
then the bytes of each column::

    prefix | key offsets | data offsets | [hash key offsets] | [validity] | keys | data | [hash keys]

The first offset may be any number, as in a slice of an Arrow array.  Only differences count, so a client can send a
slice without a pass over its rows.  A null or empty key has length 0, and so has an absent explicit hash key.

The functions here check lengths, not rows.  `producerd.core.rows.intake` checks the rows of a frame in bulk.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Union

from producerd.errors import ProtocolError

RECORD_CHARGE_BYTES: Final = 32
"""Memory charged for a record in addition to its own bytes: offsets 8, hash 16, order 4, state 1, and 3 to spare."""
FRAME_CHARGE_BYTES: Final = 1024
"""Memory charged for a frame in addition to its records: its objects, its counts and its acknowledgement."""
MAX_COLUMN_BYTES: Final = 2**31 - 1
"""Size of the largest column.  Offsets are int32."""

PREFIX: Final = struct.Struct("<QIIII")  # frame id, records, key bytes, data bytes, hash key bytes
OFFSET_BYTES: Final = 4

FLAG_RESENT: Final = 1
FLAG_HASH_KEYS: Final = 2
FLAG_VALIDITY: Final = 4
KNOWN_FLAGS: Final = FLAG_RESENT | FLAG_HASH_KEYS | FLAG_VALIDITY

Buffer = Union[bytes, bytearray, memoryview]


@dataclass
class Layout:
    """The size of a body: records, and the bytes of each column.  RESERVE announces it, and the body must repeat it.

    Nothing changes it.  It is not frozen because a frozen one takes three times as long to make.
    """

    records: int
    key_bytes: int
    data_bytes: int
    hash_key_bytes: int = 0
    flags: int = 0
    charge_bytes: int = field(init=False, repr=False, compare=False)
    """Bytes that the frame counts against limits: keys, data and hash keys, 32 for each record, and 1 KiB."""
    body_bytes: int = field(init=False, repr=False, compare=False)
    """Bytes in the payload of the BODY message: always fewer than `charge_bytes`, which covers the buffer."""

    def __post_init__(self) -> None:
        column_bytes = self.key_bytes + self.data_bytes + self.hash_key_bytes
        self.charge_bytes = column_bytes + RECORD_CHARGE_BYTES * self.records + FRAME_CHARGE_BYTES
        offsets = OFFSET_BYTES * (self.records + 1) * (3 if self.flags & FLAG_HASH_KEYS else 2)
        validity = (self.records + 7) // 8 if self.flags & FLAG_VALIDITY else 0
        self.body_bytes = PREFIX.size + offsets + validity + column_bytes

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """Its fields, in order."""
        return self.records, self.key_bytes, self.data_bytes, self.hash_key_bytes, self.flags

    def check(self) -> None:
        """Raise ProtocolError unless a frame can have these numbers."""
        if self.records < 1:
            raise ProtocolError("a frame without records")
        if self.flags & ~KNOWN_FLAGS:
            raise ProtocolError(f"unknown frame flags {self.flags:#x}")
        if self.hash_key_bytes and not self.flags & FLAG_HASH_KEYS:
            raise ProtocolError("hash key bytes without the hash key flag")
        if max(self.key_bytes, self.data_bytes, self.hash_key_bytes) > MAX_COLUMN_BYTES:
            raise ProtocolError("a column over 2 GiB")


class Body(NamedTuple):
    """A received body, as views of its columns.  Nothing is copied."""

    frame_id: int
    layout: Layout
    key_offsets: memoryview
    data_offsets: memoryview
    hash_key_offsets: memoryview | None
    validity: memoryview | None
    keys: memoryview
    data: memoryview
    hash_keys: memoryview | None


def parse_body(payload: Buffer, flags: int, expected: Layout | None = None) -> Body:
    """Cut the payload of a BODY into its columns.  Raise ProtocolError if its length is not the one in its prefix.

    If its layout is ``expected``, none is made.
    """
    view = memoryview(payload)
    if len(view) < PREFIX.size:
        raise ProtocolError(f"a body of {len(view)} bytes is shorter than its prefix")
    frame_id, records, key_bytes, data_bytes, hash_key_bytes = PREFIX.unpack_from(view)
    sizes = records, key_bytes, data_bytes, hash_key_bytes, flags
    if expected is not None and sizes == expected.sizes:
        layout = expected
    else:
        layout = Layout(*sizes)
        layout.check()
    if len(view) != layout.body_bytes:
        raise ProtocolError(f"a body of {len(view)} bytes where its prefix says {layout.body_bytes}")
    hashed, marked = flags & FLAG_HASH_KEYS, flags & FLAG_VALIDITY
    offsets = OFFSET_BYTES * (records + 1)
    a = PREFIX.size + offsets
    b = a + offsets
    c = b + offsets if hashed else b
    d = c + (records + 7) // 8 if marked else c
    e = d + key_bytes
    f = e + data_bytes
    key_offsets, data_offsets = view[PREFIX.size : a], view[a:b]
    hash_key_offsets = view[b:c] if hashed else None
    validity = view[c:d] if marked else None
    hash_keys = view[f:] if hashed else None
    return Body(
        frame_id, layout, key_offsets, data_offsets, hash_key_offsets, validity, view[d:e], view[e:f], hash_keys
    )


@dataclass(frozen=True)
class Columns:
    """A frame ready to send: its layout, and the buffers that follow the prefix in its body, in order."""

    layout: Layout
    parts: tuple[Buffer, ...]

    def body_prefix(self, frame_id: int) -> bytes:
        """Return the first bytes of the body, which the buffers follow."""
        layout = self.layout
        return PREFIX.pack(frame_id, layout.records, layout.key_bytes, layout.data_bytes, layout.hash_key_bytes)

    def row(self, row: int) -> tuple[bytes, bytes | None, bytes | None]:
        """Return a copy of one row as (key, data, hash key), with None for absent data and without hash keys."""
        (key,), (data,), hash_keys = self._rows([row])
        return key, data, hash_keys[0] if hash_keys else None

    def take(self, rows: Sequence[int]) -> Columns:
        """Return a frame with a copy of these rows."""
        return lay_out(*self._rows(rows))

    def _rows(self, rows: Sequence[int]) -> tuple[list[bytes], list[bytes | None], list[bytes] | None]:
        """Return the keys, the data and the hash keys of these rows, copied."""
        flags = self.layout.flags
        count = 3 if flags & FLAG_HASH_KEYS else 2
        columns = [_values(self.parts[i], self.parts[i - count], rows) for i in range(count)]
        data: list[bytes | None] = [*columns[1]]
        if flags & FLAG_VALIDITY:
            valid = memoryview(self.parts[count]).cast("B")
            data = [value if valid[row // 8] >> row % 8 & 1 else None for row, value in zip(rows, data)]
        return columns[0], data, columns[2] if count == 3 else None


def lay_out(
    keys: Sequence[bytes | None], data: Sequence[bytes | None], hash_keys: Sequence[bytes | None] | None = None
) -> Columns:
    """Lay out rows of Python bytes as columns, for callers without Arrow.  ``None`` data is marked as absent."""
    columns = [_column(keys), _column(data)]
    if hash_keys is not None:
        columns.append(_column(hash_keys))
    validity = _validity(data) if None in data else None
    flags = (FLAG_HASH_KEYS if hash_keys is not None else 0) | (FLAG_VALIDITY if validity is not None else 0)
    lengths = [len(values) for _, values in columns] + [0]
    layout = Layout(len(data), lengths[0], lengths[1], lengths[2], flags)
    offsets = [part for part, _ in columns]
    return Columns(
        layout, (*offsets, *([validity] if validity is not None else []), *(values for _, values in columns))
    )


def _values(offsets: Buffer, values: Buffer, rows: Sequence[int]) -> list[bytes]:
    at, raw = memoryview(offsets).cast("B").cast("i"), memoryview(values).cast("B")
    return [bytes(raw[at[row] - at[0] : at[row + 1] - at[0]]) for row in rows]


def _column(rows: Sequence[bytes | None]) -> tuple[bytes, bytes]:
    values = [row or b"" for row in rows]
    return array("i", itertools.accumulate(map(len, values), initial=0)).tobytes(), b"".join(values)


def _validity(rows: Sequence[bytes | None]) -> bytes:
    bits = bytearray((len(rows) + 7) // 8)
    for i, row in enumerate(rows):
        if row is not None:
            bits[i // 8] |= 1 << (i % 8)
    return bytes(bits)
