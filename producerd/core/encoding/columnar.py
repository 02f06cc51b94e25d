"""The columnar twin of the loops in `entries`: it makes the same bytes by work on whole columns.

A loop over rows takes about 1 us of CPU for each row.  Here a request takes some dozens of calls of numpy and pyarrow,
however many lanes its rows come from, and a dozen more for each aggregate.  In exchange columns are copied once or
twice more.  So this twin is faster for many small rows only: `suits` and `suited` decide.  Tests compare both twins
byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import md5
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from producerd.core.encoding.formats import Format
from producerd.core.encoding.gather import Buffer, Cells, offsets_of
from producerd.core.encoding.row_columns import columns_of
from producerd.core.kpl.aggregation import FRAMING_BYTES, MAGIC
from producerd.core.rows.columns import Bool
from producerd.core.rows.spans import NULL_KEY, Span, explicit_hash_key_of
from producerd.core.shards.hash_keys import I32

LEAST_ROWS: Final = 192
"""Fewest plain rows for which the columnar twin is faster."""
LEAST_AGGREGATED_ROWS: Final = 256
"""Fewest rows of all lanes together for which aggregating them here is faster."""
LEAST_ROWS_OF_AGGREGATE: Final = 20
"""Fewest rows for each aggregate of a lane, on average, for which aggregating them here is faster."""
MOST_ROW_BYTES: Final = 1_536
"""Mean size of plain rows (key + data) from which the loop is faster."""
MOST_AGGREGATED_BYTES: Final = 1_200
"""Mean size of aggregated rows (key + data) from which the loop is faster."""

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


class LaneRows(NamedTuple):
    """The rows of one lane, and the limits of an aggregate of them.  A single row may pass the limits."""

    spans: Sequence[Span]
    most_bytes: int
    most_records: int


def suits(spans: Sequence[Span]) -> bool:
    """Return whether to make one entry for each of these rows here.

    It must be faster than the loop, and no row may be a given aggregate.
    """
    rows = sum([span.records for span in spans])
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
    rows = sum([span.records for span in lane.spans])
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
    """An aggregate, and the number of consecutive rows in it."""

    rows: int
    blob: bytes


def aggregates(lanes: Sequence[LaneRows]) -> Iterator[list[AggregatedRows]]:
    """Yield for each lane the aggregates of its rows.  No row may have an explicit hash key."""
    cuts, (key_entries, key_at), (records, record_at) = _joined(lanes)
    row = key = 0
    for cut in cuts:
        made = []
        for aggregate in cut:
            row_end, key_end = row + len(aggregate.places), key + int(np.count_nonzero(aggregate.new))
            message = (key_entries[key_at[key] : key_at[key_end]], records[record_at[row] : record_at[row_end]])
            digest = md5(message[0], usedforsecurity=False)
            digest.update(message[1])
            made.append(AggregatedRows(row_end - row, b"".join((MAGIC, *message, digest.digest()))))
            row, key = row_end, key_end
        yield made


class _AggregateRows(NamedTuple):
    """The rows of one aggregate: the place of each one's key in the key table, and whether it is the key's first."""

    places: I64
    new: Bool


_Texts = tuple[memoryview, I32]
"""Texts one after the other, and their offsets: one for each text and one for the end."""


def _joined(lanes: Sequence[LaneRows]) -> tuple[list[list[_AggregateRows]], _Texts, _Texts]:
    """Return the aggregates of each lane, and of all aggregates the key tables and the records, both in protobuf."""
    columns = columns_of([span for lane in lanes for span in lane.spans])
    key_at = offsets_of(columns.key_bytes)
    keys = _binary(key_at, columns.keys)
    codes = np.frombuffer(keys.dictionary_encode().indices.buffers()[1], np.int32, len(keys))
    cuts = _cut(lanes, codes, columns.key_bytes, columns.data_bytes)
    places = np.concatenate([aggregate.places for cut in cuts for aggregate in cut])
    new = np.concatenate([aggregate.new for cut in cuts for aggregate in cut])
    new_key_bytes, data_bytes = columns.key_bytes[new], columns.data_bytes
    entries = _with_headers(_headers(0x0A, new_key_bytes), [columns.keys], 0, key_at[:-1][new], new_key_bytes)
    heads = _headers(0x1A, _fields_bytes(data_bytes) + _width(places), 0x08, places, 0x1A, data_bytes)
    records = _with_headers(heads, columns.data, columns.data_places, columns.data_offsets, data_bytes)
    return cuts, entries, records


def _cut(lanes: Sequence[LaneRows], codes: I32, key_bytes: I32, data_bytes: I32) -> list[list[_AggregateRows]]:
    """Cut each lane's rows into aggregates, each as large as the limits allow, exactly as `Aggregate.add` does."""
    before = _row_before(codes)
    place_of_code = np.zeros(int(codes.max()) + 1, np.int64)
    key_entry = 1 + _width(key_bytes) + key_bytes
    fields = _fields_bytes(data_bytes)
    least = _from_0(fields + 3)  # if every key is in the table already, and place and length fit in a byte each
    most = _from_0(key_entry + fields + 9)  # if every key is new, and place and length need four bytes each
    cuts: list[list[_AggregateRows]] = []
    first = end = 0
    for spans, most_bytes, most_records in lanes:
        cut, room = [], most_bytes - FRAMING_BYTES
        end += sum([span.records for span in spans])
        while first < end:
            last = int(least.searchsorted(least[first] + room, side="right"))
            last = min(end, first + most_records, max(last, first + 1))
            new = before[first:last] < first
            keys = int(np.count_nonzero(new))
            place_of_code[codes[first:last][new]] = np.arange(keys)
            places = place_of_code[codes[first:last]]
            if most[last] - most[first] > room:
                record = fields[first:last] + (1 if keys <= _LOW_PLACES else _width(places))
                added = new * key_entry[first:last] + 1 + _width(record) + record
                fitting = max(1, int(added.cumsum().searchsorted(room, side="right")))
                places, new = places[:fitting], new[:fitting]
            cut.append(_AggregateRows(places, new))
            first += len(new)
        cuts.append(cut)
    return cuts


_LOW_PLACES: Final = 0x80
"""Number of places in a key table that a varint of one byte can name."""


def _row_before(codes: I32) -> I64:
    """Return for each row the last row before it with the same key, or -1."""
    order = np.argsort(codes, kind="stable")
    same = codes[order[1:]] == codes[order[:-1]]
    before = np.full(len(codes), -1)
    before[order[1:][same]] = order[:-1][same]
    return before


def _fields_bytes(data_bytes: I32) -> I64:
    """Return the length of each `Record` without the number of its key.  No record has an explicit hash key."""
    return 2 + _width(data_bytes) + data_bytes


def _from_0(numbers: I64) -> I64:
    """Return the running total from 0: a value for each number and one for the end."""
    return np.concatenate(([0], np.cumsum(numbers)))


# ---- protobuf


def _width(numbers: npt.NDArray[Any]) -> I64:
    """Return the length of each number as a varint, in bytes.  All numbers are below 2^28."""
    return np.int64(1) + (numbers > 0x7F).astype(np.int64) + (numbers > 0x3FFF) + (numbers > 0x1FFFFF)


def _with_headers(
    headers: tuple[bytes, I32], buffers: Sequence[Buffer], which: I32 | int, offsets: I32, lengths: I32
) -> _Texts:
    """Return the values, each with its header in front."""
    texts, header_bytes = headers
    cells = Cells(len(lengths), 2)
    cells.slices(0, [texts], 0, offsets_of(header_bytes)[:-1], header_bytes)
    cells.slices(1, buffers, which, offsets, lengths)
    return cells.joined(), offsets_of(header_bytes + lengths)


def _headers(*columns: int | npt.NDArray[Any]) -> tuple[bytes, I32]:
    """Return the headers of all rows, joined, and the length of each.

    A column is either one byte that all rows share, or one number for each row, written as a varint.
    """
    rows = next(len(column) for column in columns if not isinstance(column, int))
    octets: list[U8] = []
    masks: list[Bool] = []
    for column in columns:
        if isinstance(column, int):
            octets.append(np.full(rows, column, np.uint8))
            masks.append(np.ones(rows, np.bool_))
            continue
        width = _width(column)
        for place in range(int(width.max())):
            more = width > place + 1
            octets.append(((column >> (7 * place)) & 0x7F | more << 7).astype(np.uint8))
            masks.append(width > place)
    matrix, mask = np.stack(octets, axis=1), np.stack(masks, axis=1)
    return matrix[mask].tobytes(), mask.sum(axis=1, dtype=np.int32)


# ---- Arrow.  pa.array and to_numpy would load pandas if it is installed, which takes 0.3 s and 35 MiB of memory.


def _binary(offsets: I32, values: Any) -> Any:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)
