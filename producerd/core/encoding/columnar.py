"""The columnar twin of the loops in `entries`: the same bytes, made by work on whole columns.

A loop over rows costs a microsecond for each; here a row costs what its bytes do, and a request some dozens of calls of
numpy and pyarrow, however many lanes its rows are of; only where an aggregate ends is found for each by a dozen more.
So it pays for many small rows (`suits`, `suited`): columns are copied once or twice more.  The loops are what it is
tested against, byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import md5
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pybase64 import b64encode

from producerd.core.encoding.gather import Buffer, Cells
from producerd.core.kpl.aggregation import FRAMING_BYTES, MAGIC
from producerd.core.rows.columns import Bool
from producerd.core.rows.spans import NULL_KEY, Span, explicit_hash_key_of
from producerd.core.shards.hash_keys import I32

LEAST_ROWS: Final = 192
LEAST_AGGREGATED_ROWS: Final = 256
"""Of all lanes together: they pay for what is done once."""
LEAST_ROWS_OF_AGGREGATE: Final = 20
"""In the mean, for each lane: they pay for what is done for each aggregate."""
MOST_ROW_BYTES: Final = 1_536
MOST_AGGREGATED_BYTES: Final = 1_200

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


_DATA: Final = b'{"Data":"'
_KEY: Final = b'","PartitionKey":"'
_END: Final = b'"},'
_HASH_KEY: Final = b'","ExplicitHashKey":"%b"},'
_PADDING: Final = b"=="


class Columns(NamedTuple):
    """Rows of some spans.  Keys one after the other, and how long each is; the data of each span as it lies in its
    buffer, for each row which of them has it, where, and how long it is."""

    keys: bytes
    key_bytes: I32
    data: list[memoryview]
    data_places: I32
    data_offsets: I32
    data_bytes: I32

    @property
    def rows(self) -> int:
        return len(self.key_bytes)


def columns_of(spans: Sequence[Span]) -> Columns:
    """Raises ValueError where a span's rows are gone: in a worker thread, when the daemon has given its request up."""
    keys, data, key_bytes, data_offsets, data_bytes = [], [], [], [], []
    for _, buffer, first, last, *_ in spans:
        a, b = first - buffer.first, last - buffer.first
        all_keys, all_data = memoryview(buffer.keys), memoryview(buffer.data)
        key_at, data_at = buffer.key_offsets[a : b + 1], buffer.data_offsets[a : b + 1]
        if key_at[-1] > len(all_keys) or data_at[-1] > len(all_data):
            raise ValueError("rows that are gone")  # Arrow would read whatever lies there
        keys.append(all_keys[key_at[0] : key_at[-1]])
        data.append(all_data[data_at[0] : data_at[-1]])
        key_bytes.append(key_at[1:] - key_at[:-1])
        data_offsets.append(data_at[:-1] - data_at[0])
        data_bytes.append(data_at[1:] - data_at[:-1])
    return Columns(
        b"".join(keys),
        np.concatenate(key_bytes),
        data,
        np.arange(len(spans), dtype=np.int32).repeat([span.records for span in spans]),
        np.concatenate(data_offsets),
        np.concatenate(data_bytes),
    )


class LaneRows(NamedTuple):
    """Rows of one lane, and what an aggregate of them may have, or exactly one row."""

    spans: Sequence[Span]
    most_bytes: int
    most_records: int


def suits(spans: Sequence[Span]) -> bool:
    """Whether it is worth it to make a record of each of these rows here, and can be done: none is itself an
    aggregate."""
    rows = sum([span.records for span in spans])
    bytes_ = sum([span.bytes for span in spans])
    return (
        rows >= LEAST_ROWS and bytes_ < rows * MOST_ROW_BYTES and all(span.buffer.aggregates is None for span in spans)
    )


def suited(lanes: Sequence[LaneRows]) -> list[bool]:
    """For which lanes it is worth it to aggregate their rows here, all in one go, and can be done: none has an explicit
    hash key (so none is without a key, or itself an aggregate) or is to be raw."""
    rows = [_suited_rows(lane) for lane in lanes]
    enough = sum(rows) >= LEAST_AGGREGATED_ROWS
    return [enough and count > 0 for count in rows]


def _suited_rows(lane: LaneRows) -> int:
    rows = sum([span.records for span in lane.spans])
    bytes_ = sum([span.bytes for span in lane.spans])
    aggregates = 1 + max(bytes_ // lane.most_bytes, rows // lane.most_records)
    worth_it = rows >= aggregates * LEAST_ROWS_OF_AGGREGATE and bytes_ < rows * MOST_AGGREGATED_BYTES
    return rows if worth_it and not any(span.raw or span.buffer.explicit is not None for span in lane.spans) else 0


# ---- a Kinesis record for each row


def needs_escape(text: bytes) -> bool:
    """Whether JSON does not take it as it is; quotes, backslashes and control characters it does not."""
    values = np.frombuffer(text, np.uint8)
    return bool(len(values) and (values.min() < ord(" ") or b'"' in text or b"\\" in text))


def raw_request(spans: Sequence[Span], most: int, most_bytes: int, head: bytes) -> tuple[memoryview, I32] | None:
    """The first rows as a PutRecords body, which begins with ``head``; and each one's data + key, in bytes.

    At most so many entries and bytes, or exactly one.  None where a key must be escaped.
    """
    columns = columns_of(spans)
    if needs_escape(columns.keys):
        return None
    sizes = np.maximum(columns.key_bytes, len(NULL_KEY)) + columns.data_bytes
    fitting = int(sizes.cumsum(dtype=np.int64).searchsorted(most_bytes, side="right"))
    rows = min(columns.rows, most, max(1, fitting))
    data, data_offsets, padding = _base64(columns, rows)
    key_bytes = columns.key_bytes[:rows]
    cells = Cells(rows, 5)
    cells.text(0, _DATA)
    cells.text(0, head + _DATA, rows=0)
    cells.slices(1, [data], 0, data_offsets[:-1], data_offsets[1:] - data_offsets[:-1] - padding)
    cells.slices(2, [_PADDING + _KEY], 0, len(_PADDING) - padding, padding + len(_KEY))
    cells.slices(3, [columns.keys], 0, _offsets(key_bytes)[:-1], key_bytes)
    if not key_bytes.all():
        cells.text(3, NULL_KEY, rows=np.flatnonzero(key_bytes == 0))
    end = _ends(cells, spans, rows)
    cells.text(4, end.removesuffix(b",") + b"]}", rows=rows - 1)
    return cells.joined(), sizes[:rows].astype(np.int32)


def _ends(cells: Cells, spans: Sequence[Span], rows: int) -> bytes:
    """What closes each entry: with its explicit hash key, where it has one.  Returns the last."""
    if all(span.buffer.explicit is None for span in spans):
        cells.text(4, _END)
        return _END
    hash_keys = [explicit_hash_key_of(span, at) for span in spans for at in range(span.first, span.last)][:rows]
    ends = [_END if hash_key is None else _HASH_KEY % hash_key for hash_key in hash_keys]
    lengths = np.fromiter(map(len, ends), np.int32, rows)
    cells.slices(4, [b"".join(ends)], 0, _offsets(lengths)[:-1], lengths)
    return ends[-1]


def _base64(columns: Columns, rows: int) -> tuple[bytes, I32, I32]:
    """The data of the first rows in base64, all encoded in one go: its text, where that of each row begins and ends,
    and how many characters at its end are to be padding, of what it was filled up with to whole groups of three bytes.
    """
    lengths = columns.data_bytes[:rows]
    missing = -lengths % 3
    cells = Cells(rows, 2)
    cells.slices(0, columns.data, columns.data_places[:rows], columns.data_offsets[:rows], lengths)
    cells.zeros(1, missing)
    return b64encode(cells.joined()), _offsets(lengths + missing) // 3 * 4, missing


# ---- aggregates


class Aggregated(NamedTuple):
    """Consecutive rows as one aggregate."""

    rows: int
    blob: bytes


def aggregates(lanes: Sequence[LaneRows]) -> Iterator[list[Aggregated]]:
    """For each lane its rows, none with an explicit hash key, as aggregates."""
    cuts, (key_entries, key_at), (records, record_at) = _joined(lanes)
    row = key = 0
    for cut in cuts:
        made = []
        for part in cut:
            row_end, key_end = row + len(part.places), key + int(np.count_nonzero(part.new))
            message = (key_entries[key_at[key] : key_at[key_end]], records[record_at[row] : record_at[row_end]])
            digest = md5(message[0], usedforsecurity=False)
            digest.update(message[1])
            made.append(Aggregated(row_end - row, b"".join((MAGIC, *message, digest.digest()))))
            row, key = row_end, key_end
        yield made


class _Part(NamedTuple):
    """The rows of one aggregate: each one's place in the table of keys, and whether it is the first with its key."""

    places: I64
    new: Bool


_Texts = tuple[memoryview, I32]
"""One after the other, and where each begins and the last one ends."""


def _joined(lanes: Sequence[LaneRows]) -> tuple[list[list[_Part]], _Texts, _Texts]:
    """For each lane its aggregates; and of all of these, one after the other, the entries of their tables of keys, and
    their records."""
    columns = columns_of([span for lane in lanes for span in lane.spans])
    key_at = _offsets(columns.key_bytes)
    keys = _binary(key_at, columns.keys)
    codes = np.frombuffer(keys.dictionary_encode().indices.buffers()[1], np.int32, len(keys))
    cuts = _cut(lanes, codes, columns.key_bytes, columns.data_bytes)
    places = np.concatenate([part.places for cut in cuts for part in cut])
    new = np.concatenate([part.new for cut in cuts for part in cut])
    new_key_bytes, data_bytes = columns.key_bytes[new], columns.data_bytes
    entries = _with_headers(_headers(0x0A, new_key_bytes), [columns.keys], 0, key_at[:-1][new], new_key_bytes)
    heads = _headers(0x1A, _fields_bytes(data_bytes) + _width(places), 0x08, places, 0x1A, data_bytes)
    records = _with_headers(heads, columns.data, columns.data_places, columns.data_offsets, data_bytes)
    return cuts, entries, records


def _cut(lanes: Sequence[LaneRows], codes: I32, key_bytes: I32, data_bytes: I32) -> list[list[_Part]]:
    """Where aggregates end, for each lane: greedily, as `Aggregate.add` does it."""
    before = _row_before(codes)
    place_of_code = np.zeros(int(codes.max()) + 1, np.int64)
    key_entry = 1 + _width(key_bytes) + key_bytes
    fields = _fields_bytes(data_bytes)
    least = _from_0(fields + 3)  # with known keys, and place and length in a byte each
    most = _from_0(key_entry + fields + 9)  # with new keys, and place and length in four
    cuts: list[list[_Part]] = []
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
            cut.append(_Part(places, new))
            first += len(new)
        cuts.append(cut)
    return cuts


_LOW_PLACES: Final = 0x80
"""That are written in one byte."""


def _row_before(codes: I32) -> I64:
    """For each row the last one before it with the same key, or -1."""
    order = np.argsort(codes, kind="stable")
    same = codes[order[1:]] == codes[order[:-1]]
    before = np.full(len(codes), -1)
    before[order[1:][same]] = order[:-1][same]
    return before


def _fields_bytes(data_bytes: I32) -> I64:
    """Length of `Record`, but for its place in the table of keys itself; it has no explicit hash key."""
    return 2 + _width(data_bytes) + data_bytes


def _from_0(numbers: I64) -> I64:
    """Running total: a value for each and one for the end."""
    return np.concatenate(([0], np.cumsum(numbers)))


# ---- protobuf


def _width(numbers: npt.NDArray[Any]) -> I64:
    """Bytes of each as a varint; all are below 2^28."""
    return np.int64(1) + (numbers > 0x7F).astype(np.int64) + (numbers > 0x3FFF) + (numbers > 0x1FFFFF)


def _with_headers(
    headers: tuple[bytes, I32], buffers: Sequence[Buffer], which: I32 | int, offsets: I32, lengths: I32
) -> _Texts:
    """Each value behind its header."""
    texts, header_bytes = headers
    cells = Cells(len(lengths), 2)
    cells.slices(0, [texts], 0, _offsets(header_bytes)[:-1], header_bytes)
    cells.slices(1, buffers, which, offsets, lengths)
    return cells.joined(), _offsets(header_bytes + lengths)


def _headers(*columns: int | npt.NDArray[Any]) -> tuple[bytes, I32]:
    """For each row a header, of single bytes that are the same for all, and varints; and how long each is."""
    rows = next(len(column) for column in columns if not isinstance(column, int))
    parts: list[U8] = []
    masks: list[Bool] = []
    for column in columns:
        if isinstance(column, int):
            parts.append(np.full(rows, column, np.uint8))
            masks.append(np.ones(rows, np.bool_))
            continue
        width = _width(column)
        for place in range(int(width.max())):
            more = width > place + 1
            parts.append(((column >> (7 * place)) & 0x7F | more << 7).astype(np.uint8))
            masks.append(width > place)
    matrix, mask = np.stack(parts, axis=1), np.stack(masks, axis=1)
    return matrix[mask].tobytes(), mask.sum(axis=1, dtype=np.int32)


# ---- Arrow.  Not pa.array and to_numpy, which load pandas where that is installed: 0.3 s and 35 MiB


def _offsets(lengths: npt.NDArray[Any]) -> I32:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    lengths.cumsum(out=offsets[1:])
    return offsets


def _binary(offsets: I32, values: Any) -> Any:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)
