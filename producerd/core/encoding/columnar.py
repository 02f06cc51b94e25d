"""The columnar twin of the loops in `entries`: it makes the same bytes by work on whole columns.

A loop over rows takes about 1 µs of CPU for each row.  Here a request takes some dozens of calls of numpy and pyarrow,
however many lanes its rows come from, and ten more for each aggregate.  In exchange it copies columns once more, and is
faster only for many small rows: `suits` and `suited` decide.  Tests compare both twins byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import md5
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from producerd.core.encoding.formats import Format
from producerd.core.encoding.gather import Buffer, Cells, Texts, offsets_of
from producerd.core.encoding.row_columns import RowColumns, columns_of
from producerd.core.kpl.aggregation import FRAMING_BYTES, MAGIC, MAX_KEY_CHARACTERS, varint
from producerd.core.rows.columns import Bool
from producerd.core.rows.spans import NULL_KEY, Span, explicit_hash_key_of, records_of
from producerd.core.shards.hash_keys import I32

LEAST_ROWS: Final = 192
"""Fewest plain rows for which the columnar twin is faster."""
LEAST_AGGREGATED_ROWS: Final = 256
"""Fewest rows of all lanes together for which aggregating them here is faster."""
LEAST_ROWS_OF_AGGREGATE: Final = 12
"""Fewest rows for each aggregate of a lane, on average, for which aggregating them here is faster."""
MOST_ROW_BYTES: Final = 2_560
"""Mean size of plain rows (key + data) from which the loop is faster."""
MOST_AGGREGATED_BYTES: Final = 3_500
"""Mean size of aggregated rows (key + data) from which the loop is faster."""

I64 = npt.NDArray[np.int64]


_Texts = tuple[memoryview, I32]
"""Texts one after the other, and their offsets: one for each text and one for the end."""


class LaneRows(NamedTuple):
    """The rows of one lane, and the limits of an aggregate of them.  A single row may pass the limits."""

    spans: Sequence[Span]
    most_bytes: int
    most_records: int


def suits(spans: Sequence[Span]) -> bool:
    """Return whether to make one entry for each of these rows here.

    It must be faster than the loop, and no row may be a given aggregate.
    """
    rows = records_of(spans)
    bytes_ = sum([span.bytes for span in spans])
    return (
        rows >= LEAST_ROWS and bytes_ < rows * MOST_ROW_BYTES and all(span.buffer.aggregates is None for span in spans)
    )


def suited(lanes: Sequence[LaneRows]) -> list[bool]:
    """Return for each lane whether to aggregate its rows here, all lanes together.

    It must be faster than the loop.  No span may be `raw`.  No row may have an explicit hash key, which also excludes
    rows without a key and given aggregates.
    """
    rows = [_suited_rows(lane) for lane in lanes]
    enough = sum(rows) >= LEAST_AGGREGATED_ROWS
    return [enough and count > 0 for count in rows]


def _suited_rows(lane: LaneRows) -> int:
    rows = records_of(lane.spans)
    bytes_ = sum([span.bytes for span in lane.spans])
    aggregates = 1 + max(bytes_ // lane.most_bytes, rows // lane.most_records)
    worth_it = rows >= aggregates * LEAST_ROWS_OF_AGGREGATE and bytes_ < rows * MOST_AGGREGATED_BYTES
    return rows if worth_it and not any(span.raw or span.buffer.explicit is not None for span in lane.spans) else 0


# ---- one entry for each row


def raw_request(
    spans: Sequence[Span], most: int, most_bytes: int, address: Mapping[str, str], format_: Format
) -> tuple[Buffer, I32] | None:
    """Write the first rows as a PutRecords body, one entry for each row.

    Returns the body and each entry's data + key in bytes, or None if the format must escape a key.  The body has up to
    ``most`` entries and ``most_bytes`` bytes of data and keys; a first row larger than that goes alone.
    """
    columns = columns_of(spans)
    if not format_.takes(columns.keys):
        return None
    sizes = np.maximum(columns.key_bytes, len(NULL_KEY)) + columns.data_bytes
    fitting = int(sizes.cumsum(dtype=np.int64).searchsorted(most_bytes, side="right"))
    rows = min(columns.rows, most, max(1, fitting))
    hash_keys = None
    if any(span.buffer.explicit is not None for span in spans):
        hash_keys = [explicit_hash_key_of(span, at) for span in spans for at in range(span.first, span.last)][:rows]
    return format_.body(address, columns.first(rows), hash_keys), sizes[:rows].astype(np.int32)


# ---- aggregates


class AggregatedRows(NamedTuple):
    """An aggregate in chunks, and the number of consecutive rows in it."""

    rows: int
    chunks: tuple[Buffer, ...]


def aggregates(lanes: Sequence[LaneRows]) -> Iterator[list[AggregatedRows]]:
    """Yield for each lane the aggregates of its rows.  No row may have an explicit hash key."""
    if not lanes:
        return
    columns = columns_of([span for lane in lanes for span in lane.spans])
    keys = _keys_of(columns)
    cuts = _cut(lanes, keys, columns)
    ends = np.array([end for cut in cuts for end in cut])
    places, new = _places(keys, ends)
    (table, table_at), (records, record_at) = _tables(columns, new), _records(columns, places)
    new_before = _from_0(new)
    each = zip(ends.tolist(), table_at[new_before[ends]].tolist(), record_at[ends].tolist(), strict=True)
    first = table_first = record_first = 0
    for cut in cuts:
        made = []
        for end, table_end, record_end in islice(each, len(cut)):
            message = table[table_first:table_end], records[record_first:record_end]
            digest = md5(message[0], usedforsecurity=False)
            digest.update(message[1])
            made.append(AggregatedRows(end - first, (MAGIC, *message, digest.digest())))
            first, table_first, record_first = end, table_end, record_end
        yield made


class _Keys(NamedTuple):
    """The keys of rows, as numbers.

    - ``codes``: for each row the number of its key.
    - ``order``: all rows sorted by key.  Rows of one key stay in their order.
    - ``before``: for each row the last row before it with the same key, or -1.
    """

    codes: I32
    order: npt.NDArray[np.intp]
    before: I64


def _keys_of(columns: RowColumns) -> _Keys:
    texts = _binary(offsets_of(columns.key_bytes), columns.keys)
    codes = np.frombuffer(texts.dictionary_encode().indices.buffers()[1], np.int32, len(texts))
    order = codes.argsort(kind="stable")
    in_order = codes[order]
    same = in_order[1:] == in_order[:-1]
    before = np.full(len(codes), -1)
    before[order[1:][same]] = order[:-1][same]
    return _Keys(codes, order, before)


def _cut(lanes: Sequence[LaneRows], keys: _Keys, columns: RowColumns) -> list[list[int]]:
    """Return for each lane the ends of its aggregates, each as large as the limits allow, as `Aggregate.add` decides.

    An end is the number of rows before it, of all lanes.
    """
    key_entry = _entry_bytes(columns.key_bytes)
    records = _record_bytes(columns.data_bytes, 0)
    least = _from_0(records)  # if every key is in the table already, at a low place
    most = _from_0(records + key_entry)  # if every key is new, at a low place
    cuts: list[list[int]] = []
    first = end = most_at_first = 0
    for spans, most_bytes, most_records in lanes:
        cut, room = [], most_bytes - FRAMING_BYTES
        end += records_of(spans)
        most_at_end = most.item(end)
        if end - first <= min(_LOW_PLACES, most_records) and most_at_end - most_at_first <= room:
            cut.append(end)  # as nearly always if there are many lanes
            first = end
        while first < end:
            last = int(least.searchsorted(least[first] + room, side="right")) - 1
            last = min(end, first + most_records, max(last, first + 1))
            new = keys.before[first:last] < first
            added = records[first:last]
            if np.count_nonzero(new) > _LOW_PLACES:
                added = _record_bytes(columns.data_bytes[first:last], _places_of(keys.codes[first:last], new))
            sizes = (added + new * key_entry[first:last]).cumsum()
            first += max(1, int(sizes.searchsorted(room, side="right")))
            cut.append(first)
        cuts.append(cut)
        most_at_first = most_at_end
    return cuts


_LOW_PLACES: Final = 0x80
"""Number of places in a key table that a varint of one byte can name."""


def _places_of(codes: I32, new: Bool) -> I64:
    """Return for each row of an aggregate the place of its key in the key table.  ``new`` marks a key's first row."""
    place_of_code = np.zeros(int(codes.max()) + 1, np.int64)
    first_codes = codes[new]
    place_of_code[first_codes] = np.arange(len(first_codes))
    return place_of_code[codes]


def _places(keys: _Keys, ends: npt.NDArray[np.intp]) -> tuple[I64, Bool]:
    """Do what `_places_of` does for all aggregates at once, and also return which rows are the first of their key."""
    starts = np.concatenate(([0], ends[:-1]))
    rows = ends - starts
    new = keys.before < starts.repeat(rows)
    counted = _from_0(new)
    places = counted[1:] - 1 - counted[starts].repeat(rows)  # of new rows
    if not new.all():
        heads = np.where(new[keys.order], np.arange(len(new)), 0)
        places[keys.order] = places[keys.order[np.maximum.accumulate(heads)]]
    return places, new


def _tables(columns: RowColumns, new: Bool) -> _Texts:
    """Return the entries of all key tables, one for each of the ``new`` rows."""
    key_bytes, key_at = columns.key_bytes[new], offsets_of(columns.key_bytes)[:-1][new]
    cells = Cells(len(key_bytes), 2)
    cells.chosen(0, _KEY_HEADS, key_bytes)
    cells.slices(1, [columns.keys], 0, key_at, key_bytes)
    return cells.joined(), offsets_of(_entry_bytes(key_bytes))


def _records(columns: RowColumns, places: I64) -> _Texts:
    """Return the records of all aggregates, one for each row."""
    cells = Cells(columns.rows, 4)
    cells.chosen(0, _HEADS, _fields_bytes(columns.data_bytes, places))
    cells.chosen(1, _PLACES, places)
    cells.chosen(2, _HEADS, columns.data_bytes)
    cells.slices(3, columns.data, columns.data_places, columns.data_offsets, columns.data_bytes)
    return cells.joined(), offsets_of(_record_bytes(columns.data_bytes, places))


_KEY_HEADS: Final = Texts(lambda length: b"\x0a" + varint(length), MAX_KEY_CHARACTERS * 4 + 1)
"""What comes before a key in its table."""
_PLACES: Final = Texts(lambda place: b"\x08" + varint(place), 4_096)
_HEADS: Final = Texts(lambda length: b"\x1a" + varint(length), 4_096)
"""What comes before a record, and before its data."""


def _entry_bytes(key_bytes: I32) -> I64:
    """Return the length of each key's entry in the key table."""
    return 1 + _width(key_bytes) + key_bytes


def _fields_bytes(data_bytes: I32, places: I64 | int) -> I64:
    """Return the length of the fields of each `Record`, which has no explicit hash key."""
    return 2 + _width(np.asarray(places)) + _width(data_bytes) + data_bytes


def _record_bytes(data_bytes: I32, places: I64 | int) -> I64:
    """Return the length of each `Record` with its own head."""
    fields = _fields_bytes(data_bytes, places)
    return 1 + _width(fields) + fields


def _from_0(numbers: npt.NDArray[Any]) -> I64:
    """Return the running total from 0: a value for each number and one for the end."""
    totals = np.zeros(len(numbers) + 1, np.int64)
    numbers.cumsum(out=totals[1:])
    return totals


# ---- protobuf


def _width(numbers: npt.NDArray[Any]) -> I64 | np.int64:
    """Return the length of each number as a varint, in bytes: one for all if it is the same.

    All numbers are below 2^28.
    """
    smallest, largest = numbers.min(), numbers.max()
    width: I64 | np.int64 = np.int64(1)
    for bound in (0x7F, 0x3FFF, 0x1FFFFF):
        if largest > bound:
            width = width + (np.int64(1) if smallest > bound else numbers > bound)
    return width


# ---- Arrow.  pa.array and to_numpy would load pandas if it is installed, which takes 0.3 s and 35 MiB of memory.


def _binary(offsets: I32, values: Any) -> Any:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)
