"""Arrow record batches become frames of bounded size without a look at any row, and so do lists of plain records.

A `Batch` keeps Arrow's own offset and value buffers, and a frame is a slice of each.  Arrow's offsets are the prefix
sums of the lengths, so binary search finds where to cut, in O(log rows) steps and without a copy.

One vectorised call of Arrow copies each column of another layout (dictionaries, views, numbers), and each column with
nulls, because the slot of a null may hide bytes that must not be sent.  64-bit offsets are copied slice by slice.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from producerd.errors import BadColumn
from producerd.wire.columns import (
    FLAG_HASH_KEYS,
    FLAG_VALIDITY,
    FRAME_CHARGE_BYTES,
    OFFSET_BYTES,
    RECORD_CHARGE_BYTES,
    Columns,
    Layout,
    lay_out,
)

if TYPE_CHECKING:
    import pyarrow as pa

STREAM: Final = "stream"
STREAM_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
"""The names that a stream can have, by the Kinesis API reference (CreateStream)."""
KEY: Final = "partition_key"
DATA: Final = "data"
HASH_KEY: Final = "explicit_hash_key"
PLAIN: Final = ("string", "binary", "large_string", "large_binary")
"""The Arrow types that are stored as offsets and bytes."""


class Batch:
    """The rows of one record batch, ready to be cut: ``data``, and keys and hash keys if the batch has them.

    Keys and hash keys may be of any type that Arrow can write as text.  Nulls, and the rows of a missing key column,
    are sent with length 0.  ``data`` must be text or bytes, otherwise the constructor raises BadColumn.  Its nulls are
    marked, and the daemon refuses them.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        self.records: int = batch.num_rows
        data = _plain(batch.column(DATA))
        self._keys = _Column(_text(batch.column(KEY))) if KEY in names else None
        self._data = _Column(data)
        self._hash_keys = _Column(_text(batch.column(HASH_KEY))) if HASH_KEY in names else None
        self._validity = _Bitmap(data.is_valid()) if data.null_count else None
        self._columns = [column for column in (self._keys, self._data, self._hash_keys) if column is not None]

    @staticmethod
    def copied(columns: Columns) -> Batch:
        """Return a copy of a frame's rows.  Its views would keep a whole Arrow batch, which may be large."""
        import pyarrow as pa
        import pyarrow.compute as pc

        flags, rows = columns.layout.flags, columns.layout.records
        names = (KEY, DATA, HASH_KEY)[: 3 if flags & FLAG_HASH_KEYS else 2]
        arrays = []
        for place, name in enumerate(names):
            offsets = pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(columns.parts[place])])
            offsets = pc.subtract(offsets, offsets[0]).buffers()[1]
            values = pa.py_buffer(bytes(columns.parts[place - len(names)]))
            has_nulls = name == DATA and flags & FLAG_VALIDITY
            present = pa.py_buffer(bytes(columns.parts[len(names)])) if has_nulls else None
            arrays.append(pa.Array.from_buffers(pa.binary(), rows, [present, offsets, values]))
        return Batch(pa.RecordBatch.from_arrays(arrays, names=names))

    def charge_bytes(self, start: int, stop: int) -> int:
        """Return what a frame of these rows counts against limits, which is also its layout's number."""
        rows = sum(column.size(start, stop) for column in self._columns)
        return rows + RECORD_CHARGE_BYTES * (stop - start) + FRAME_CHARGE_BYTES

    def frame_end(self, start: int, max_frame_bytes: int, max_frame_records: int) -> int:
        """Return where the frame that begins at ``start`` ends, as `Cuttable` asks."""
        low, high = start + 1, max(start + 1, min(self.records, start + max_frame_records))
        while low < high:
            middle = (low + high + 1) // 2
            if self.charge_bytes(start, middle) <= max_frame_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def columns(self, start: int, stop: int) -> Columns:
        """Return the frame of rows ``start`` to ``stop``, as views that keep Arrow's buffers alive."""
        records = stop - start
        keys, data, hash_keys = self._keys, self._data, self._hash_keys
        validity = self._validity.bits(start, stop) if self._validity else None
        layout = Layout(
            records,
            keys.size(start, stop) if keys else 0,
            data.size(start, stop),
            hash_keys.size(start, stop) if hash_keys else 0,
            (FLAG_HASH_KEYS if hash_keys else 0) | (FLAG_VALIDITY if validity else 0),
        )
        offsets = [
            keys.offsets(start, stop) if keys else bytes(OFFSET_BYTES * (records + 1)),
            data.offsets(start, stop),
            *([hash_keys.offsets(start, stop)] if hash_keys else []),
        ]
        values = [column.values(start, stop) for column in self._columns]
        return Columns(layout, (*offsets, *([validity] if validity else []), *values))


@dataclass
class BatchPart:
    """Rows of a batch from ``start`` on, ready to be cut."""

    batch: Batch
    start: int
    records: int

    def frame_end(self, start: int, max_frame_bytes: int, max_frame_records: int) -> int:
        """Return where the frame that begins at ``start`` ends, as `Cuttable` asks."""
        end = self.batch.frame_end(self.start + start, max_frame_bytes, max_frame_records)
        return min(end - self.start, self.records)

    def columns(self, start: int, stop: int) -> Columns:
        """Return the frame of rows ``start`` to ``stop`` of these, as views."""
        return self.batch.columns(self.start + start, self.start + stop)


def by_stream(batch: pa.RecordBatch, first_row: int) -> Iterator[tuple[str | None, Batch, Sequence[int]]]:
    """Yield each stream that the column ``stream`` names, with its rows and their numbers, from ``first_row`` on.

    Rows of one stream stay in order.  One call of Arrow sorts the batch, unless all rows name the same stream.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    codes = _text(batch.column(STREAM)).dictionary_encode("encode")
    rows: Sequence[int] = range(first_row, first_row + batch.num_rows)
    if len(codes.dictionary) > 1:
        order = pc.sort_indices(codes.indices)  # stable
        batch, codes = _plain_views(batch).take(order), codes.take(order)
        rows = memoryview(pc.add(order, pa.scalar(first_row, order.type)).buffers()[1]).cast("B").cast("Q")
    ends = pc.value_counts(codes.indices).field("counts").to_pylist()
    start = 0
    for name, count in zip(codes.indices.unique().to_pylist(), ends):
        stream = codes.dictionary[name].as_buffer()  # not as_py(): nothing checks that a text of Arrow is UTF-8
        named = None if stream is None else stream.to_pybytes().decode(errors="replace")
        yield named, Batch(batch.slice(start, count)), rows[start : start + count]
        start += count


class PlainRows:
    """Records without Arrow, each as (data, key, hash key), ready to be cut."""

    def __init__(self, rows: Sequence[tuple[bytes, bytes | None, bytes | None]]) -> None:
        self.records: int = len(rows)
        self._columns = tuple(zip(*rows)) if rows else ((), (), ())
        self._has_hash_keys = any(self._columns[2])
        sizes = (
            RECORD_CHARGE_BYTES + len(value) + len(key or b"") + len(hash_key or b"") for value, key, hash_key in rows
        )
        self._charged = [*itertools.accumulate(sizes, initial=0)]

    def frame_end(self, start: int, max_frame_bytes: int, max_frame_records: int) -> int:
        """Return where the frame that begins at ``start`` ends, as `Cuttable` asks."""
        most = self._charged[start] + max_frame_bytes - FRAME_CHARGE_BYTES
        fits = bisect.bisect_right(self._charged, most, lo=start) - 1
        return max(start + 1, min(fits, start + max_frame_records, self.records))

    def columns(self, start: int, stop: int) -> Columns:
        """Return the frame of rows ``start`` to ``stop``, copied."""
        data, keys, hash_keys = (column[start:stop] for column in self._columns)
        return lay_out(keys, data, hash_keys if self._has_hash_keys else None)


class _Column:
    """A column of text or bytes in Arrow's layout.  Nulls become empty, because their slots may hold anything."""

    def __init__(self, array: pa.Array) -> None:
        if array.null_count:
            array = array.fill_null("" if str(array.type).endswith("string") else b"")
        _, offsets, values = array.buffers()
        wide = str(array.type).startswith("large_")
        size = 8 if wide else OFFSET_BYTES
        first, end = array.offset * size, (array.offset + len(array) + 1) * size
        # An empty array may have no offsets.
        raw = memoryview(offsets)[first:end] if len(array) else memoryview(bytes(size))
        self._at = raw.cast("B").cast("q" if wide else "i")
        self._raw = None if wide else raw
        self._values = memoryview(values if values is not None else b"")

    def size(self, start: int, stop: int) -> int:
        return self._at[stop] - self._at[start]

    def values(self, start: int, stop: int) -> memoryview:
        return self._values[self._at[start] : self._at[stop]]

    def offsets(self, start: int, stop: int) -> memoryview:
        if self._raw is not None:
            return self._raw[start * OFFSET_BYTES : (stop + 1) * OFFSET_BYTES]
        return _narrowed(self._at[start : stop + 1])


def _narrowed(offsets: memoryview) -> memoryview:
    """Return 64-bit offsets as 32-bit ones that begin at 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wide = pa.Array.from_buffers(pa.int64(), len(offsets), [None, pa.py_buffer(offsets)])
    narrow = pc.subtract(wide, offsets[0]).cast(pa.int32())
    return memoryview(narrow.buffers()[1])[: len(offsets) * OFFSET_BYTES]


class _Bitmap:
    """Which rows are not null, to be sliced at any bit."""

    def __init__(self, present: pa.BooleanArray) -> None:
        self._bits = memoryview(present.buffers()[1])
        self._offset = present.offset

    def bits(self, start: int, stop: int) -> bytes | None:
        """Return rows ``start`` to ``stop`` from bit 0 on, by one shift of a large integer; None if all are present."""
        first, end = self._offset + start, self._offset + stop
        all_present = (1 << (stop - start)) - 1
        bits = int.from_bytes(self._bits[first // 8 : (end + 7) // 8], "little") >> (first % 8)
        bits &= all_present
        return None if bits == all_present else bits.to_bytes((stop - start + 7) // 8, "little")


def _plain_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows without views, from which Arrow cannot take."""
    columns = [_plain(column) if str(column.type).endswith("_view") else column for column in batch.columns]
    return type(batch).from_arrays(columns, names=batch.schema.names)


def _text(array: pa.Array) -> pa.Array:
    """Return keys as text or bytes, with numbers written in decimal."""
    return _plain(array if _holds_bytes(array.type) else array.cast("string"))


def _plain(array: pa.Array) -> pa.Array:
    """Return the same values, stored as offsets and bytes."""
    kind = str(array.type)
    if not _holds_bytes(array.type):
        raise BadColumn(f"data of type {kind} cannot be sent: give text or bytes, for example by to_json or a cast")
    if kind.startswith("dictionary<"):
        return _plain(array.dictionary_decode())
    return array if kind in PLAIN else array.cast("large_binary")  # views may hold more than 2 GiB together


def _holds_bytes(kind: Any) -> bool:
    # Types are compared by name, because pyarrow has views since 16 and a cluster's may be older.
    name = str(kind.value_type if str(kind).startswith("dictionary<") else kind)
    return name in PLAIN or name in ("string_view", "binary_view") or name.startswith("fixed_size_binary[")
