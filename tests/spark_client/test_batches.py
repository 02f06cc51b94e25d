"""Whatever layout Arrow gives a batch, its frames hold the same rows, in order, and keep their bounds."""

from __future__ import annotations

import mmap
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producerd.errors import BadColumn
from producerd.wire.columns import Columns, parse_body
from spark_client.batches import Batch, PlainRows, by_stream
from spark_client.connection import Cuttable
from tests.spark_client.fake_daemon import Row, rows_of

KEYS = ["N101", None, "", "schlüssel", "N2", "a much longer key than the others", None, "k"]
DATA = [b"one", b"", b"three" * 50, b"\x00\xff", None, b"six", b"seven", None]

TEXT_TYPES = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.large_string()),
]
DATA_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())]


def array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(values, kind)


def batch_of(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def received(columns: Columns, frame_id: int = 7) -> list[Row]:
    """What a daemon reads from the bytes that would be sent."""
    payload = columns.body_prefix(frame_id) + b"".join(bytes(part) for part in columns.parts)
    assert len(payload) == columns.layout.body_bytes
    body = parse_body(payload, columns.layout.flags)
    assert body.layout == columns.layout
    return rows_of(body)


def cut_up(batch: Batch, max_frame_bytes: int = 1 << 20, max_frame_records: int = 10_000) -> list[Columns]:
    frames, start = [], 0
    while start < batch.records:
        stop = batch.frame_end(start, max_frame_bytes, max_frame_records)
        frames.append(batch.columns(start, stop))
        assert frames[-1].layout.charge_bytes == batch.charge_bytes(start, stop)
        start = stop
    return frames


def expected(start: int = 0, stop: int | None = None) -> list[Row]:
    rows: list[Row] = [((key or "").encode(), data, None) for key, data in zip(KEYS, DATA)]
    return rows[start:stop]


@pytest.mark.parametrize("data_type", DATA_TYPES, ids=str)
@pytest.mark.parametrize("key_type", TEXT_TYPES, ids=str)
def test_every_type_of_column_arrives_as_it_was(key_type: pa.DataType, data_type: pa.DataType) -> None:
    whole = batch_of(partition_key=array(KEYS, key_type), data=array(DATA, data_type))
    for start, max_records in ((0, 100), (0, 3), (3, 1), (3, 100)):
        frames = cut_up(Batch(whole.slice(start)), max_frame_records=max_records)
        assert [row for frame in frames for row in received(frame)] == expected(start)
        assert max(frame.layout.records for frame in frames) <= max_records


@settings(max_examples=60)
@given(
    values=st.lists(st.none() | st.binary(max_size=9), min_size=20, max_size=40),
    start=st.integers(0, 20),
    most_records=st.integers(1, 20),
)
def test_slices_at_any_bit_keep_their_nulls(values: list[bytes | None], start: int, most_records: int) -> None:
    whole = batch_of(data=pa.array(values, pa.binary()))
    frames = cut_up(Batch(whole.slice(start)), max_frame_records=most_records)
    assert [data for frame in frames for _, data, _ in received(frame)] == values[start:]


def test_a_frame_without_nulls_has_no_bitmap() -> None:
    frames = cut_up(Batch(batch_of(data=pa.array([b"a", None, b"b", b"c"], pa.binary()))), max_frame_records=2)
    assert [frame.layout.flags for frame in frames] == [4, 0]


def test_what_a_null_slot_hides_is_not_sent() -> None:
    offsets, hidden = pa.py_buffer(pa.array([0, 1, 7, 8], pa.int32()).buffers()[1]), pa.py_buffer(b"aSECRETb"[:8])
    bitmap = pa.py_buffer(bytes([0b101]))
    keys = pa.Array.from_buffers(pa.string(), 3, [bitmap, offsets, hidden])
    data = pa.Array.from_buffers(pa.binary(), 3, [bitmap, offsets, hidden])
    (frame,) = cut_up(Batch(batch_of(partition_key=keys, data=data)))
    assert received(frame)[1] == (b"", None, None)
    assert not any(b"SECRE" in bytes(part) for part in frame.parts)


def test_offsets_beyond_2_gib_fit_a_frame() -> None:
    far = 2**31 + 5
    offsets = pa.array([far, far + 10, far + 30], pa.int64()).buffers()[1]
    with mmap.mmap(-1, far + 30) as untouched:  # no page of it exists until it is read
        untouched[far : far + 30] = b"a" * 10 + b"b" * 20
        batch = Batch(
            batch_of(data=pa.Array.from_buffers(pa.large_binary(), 2, [None, offsets, pa.py_buffer(untouched)]))
        )
        assert [data for _, data, _ in received(batch.columns(0, 2))] == [b"a" * 10, b"b" * 20]
        assert [data for _, data, _ in received(batch.columns(1, 2))] == [b"b" * 20]
        assert memoryview(batch.columns(1, 2).parts[1]).tolist() == [*b"\0\0\0\0\x14\0\0\0"], "from 0 on"
        del batch


def test_a_null_in_a_dictionary_is_a_null() -> None:
    data = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array([b"x", None]))
    (frame,) = cut_up(Batch(batch_of(data=data)))
    assert [data for _, data, _ in received(frame)] == [b"x", None, None]


@pytest.mark.parametrize("kind", [pa.binary(2), pa.dictionary(pa.int8(), pa.binary(2))], ids=str)
def test_bytes_of_one_size_are_bytes(kind: pa.DataType) -> None:
    (frame,) = cut_up(Batch(batch_of(data=array([b"ab", None, b"cd"], kind))))
    assert [data for _, data, _ in received(frame)] == [b"ab", None, b"cd"]


@pytest.mark.parametrize("kind", [pa.binary(), pa.dictionary(pa.int8(), pa.binary())], ids=str)
def test_a_key_may_be_any_bytes(kind: pa.DataType) -> None:
    (frame,) = cut_up(Batch(batch_of(partition_key=array([b"\xff\x00", None], kind), data=pa.array(["a", "b"]))))
    assert received(frame) == [(b"\xff\x00", b"a", None), (b"", b"b", None)]


@pytest.mark.parametrize(
    "hash_keys",
    [
        pa.array(["0", None, "340282366920938463463374607431768211455"]),
        pa.array([Decimal(0), None, Decimal(10**38 - 1)], pa.decimal128(38, 0)),
        pa.array([0, None, 2**63 - 1], pa.int64()),
    ],
    ids=["string", "decimal", "int"],
)
def test_hash_keys_go_along_as_decimal_digits(hash_keys: pa.Array) -> None:
    (frame,) = cut_up(Batch(batch_of(data=pa.array(["a", "b", "c"]), explicit_hash_key=hash_keys)))
    last = str(hash_keys[2].as_py()).encode()
    assert received(frame) == [(b"", b"a", b"0"), (b"", b"b", b""), (b"", b"c", last)]


def test_a_frame_may_be_as_large_as_the_bound_and_no_larger() -> None:
    batch = Batch(batch_of(data=pa.array([b"x" * 10] * 5)))
    three = 1_024 + 3 * (32 + 10)
    assert batch.charge_bytes(0, 3) == batch.charge_bytes(1, 4) == three
    both: list[Cuttable] = [batch, PlainRows([(b"x" * 10, None, None)] * 5)]
    for rows in both:
        assert [rows.frame_end(0, three + more, 100) for more in (-1, 0, 41, 42)] == [2, 3, 3, 4]
        assert [rows.frame_end(1, three, most) for most in (1, 2, 3, 4)] == [2, 3, 4, 4]
        assert [rows.frame_end(3, 1 << 20, most) for most in (0, 1, 2, 3)] == [4, 4, 5, 5]


def test_a_record_larger_than_the_bound_goes_alone() -> None:
    batch = Batch(batch_of(data=pa.array([b"a", b"b" * 5_000, b"c", b"d"])))
    assert [frame.layout.records for frame in cut_up(batch, 1_500)] == [1, 1, 2]
    assert [frame.layout.records for frame in cut_up(batch, 0, 0)] == [1, 1, 1, 1]


def test_a_frame_is_a_view_of_arrows_own_buffers() -> None:
    data = pa.array([b"x" * 100] * 50)
    frame = Batch(batch_of(data=data)).columns(10, 30)
    sent = memoryview(frame.parts[-1])
    assert pa.py_buffer(sent).address == data.buffers()[2].address + 1_000
    assert pa.py_buffer(memoryview(frame.parts[1])).address == data.buffers()[1].address + 40


def test_data_of_another_type_is_a_bad_column() -> None:
    with pytest.raises(BadColumn, match=r"data of type int64 cannot be sent: give text or bytes"):
        Batch(batch_of(data=pa.array([1, 2])))


def parts(batch: pa.RecordBatch, first_row: int = 0) -> list[tuple[str | None, list[bytes | None], list[int]]]:
    """(stream, data, row numbers) of each part."""
    return [
        (stream, [data for _, data, _ in received(columns_of(part))], list(rows))
        for stream, part, rows in by_stream(batch, first_row)
    ]


@pytest.mark.parametrize("kind", ["large_string", "binary", "dictionary<values=string, indices=int32>"])
def test_the_stream_may_be_of_any_type_of_text(kind: str) -> None:
    plain = pa.array(["a", "b", "a"])
    streams = plain.dictionary_encode() if kind.startswith("dict") else plain.cast(kind)
    assert [(stream, rows) for stream, _, rows in parts(batch_of(data=pa.array(["x"] * 3), stream=streams))] == [
        ("a", [0, 2]),
        ("b", [1]),
    ]


def test_a_text_that_is_not_utf_8_is_no_error_of_its_batch() -> None:
    """It becomes a name that no stream can have, so its rows are bad records."""
    buffers = pa.array([b"a\xff", b"a", None], pa.binary()).buffers()
    streams = pa.Array.from_buffers(pa.string(), 3, buffers)
    assert parts(batch_of(data=pa.array(["x", "y", "z"]), stream=streams)) == [
        ("a\ufffd", [b"x"], [0]),
        ("a", [b"y"], [1]),
        (None, [b"z"], [2]),
    ]


@pytest.mark.skipif(not hasattr(pa, "string_view"), reason="pyarrow has views since 16")
def test_views_are_grouped_too() -> None:
    """Arrow itself cannot take single rows from them."""
    streams, data = pa.array(["a", "b", "a"], pa.string_view()), pa.array([b"x", None, b"z" * 99], pa.binary_view())
    found = {
        stream: received(columns_of(part)) for stream, part, _ in by_stream(batch_of(data=data, stream=streams), 0)
    }
    assert found == {"a": [(b"", b"x", None), (b"", b"z" * 99, None)], "b": [(b"", None, None)]}


def test_a_batch_of_one_stream_is_sent_as_it_is() -> None:
    """Nothing is sorted or copied where all rows go the same way; slices keep their offsets."""
    batch = batch_of(data=pa.array([b"a", b"b", b"c", b"d"]), stream=pa.array(["s"] * 4)).slice(1, 2)
    ((stream, part, rows),) = by_stream(batch, 7)
    assert (stream, list(rows)) == ("s", [7, 8])
    columns = part.columns(0, 2)
    (_, _, data) = batch.column("data").buffers()
    values = memoryview(columns.parts[-1])
    assert bytes(values) == b"bc"
    assert pa.py_buffer(values).address == data.address + 1


RECORD = st.tuples(
    st.integers(0, 400).map(bytes),
    st.none() | st.integers(1, 9).map(lambda size: b"k" * size),
    st.none() | st.integers(0, 2**128 - 1).map(lambda number: b"%d" % number),
)


@settings(max_examples=40)
@given(plain=st.lists(RECORD, min_size=1, max_size=60), most_bytes=st.integers(1_000, 6_000), most=st.integers(1, 60))
def test_lists_and_arrow_batches_become_the_same_frames_as_large_as_the_bounds_allow(
    plain: list[Any], most_bytes: int, most: int
) -> None:
    names = ("data", "partition_key", "explicit_hash_key")
    columns = {name: pa.array(column, pa.binary()) for name, column in zip(names, zip(*plain))}
    arrow = batch_of(**{name: column for name, column in columns.items() if column.null_count < len(column)})
    whole, listed, start = Batch(arrow), PlainRows(plain), 0
    while start < len(plain):
        stop = listed.frame_end(start, most_bytes, most)
        assert stop == whole.frame_end(start, most_bytes, most)
        assert received(listed.columns(start, stop)) == received(whole.columns(start, stop))
        assert listed.columns(start, stop).layout == whole.columns(start, stop).layout
        assert stop - start == 1 or (whole.charge_bytes(start, stop) <= most_bytes and stop - start <= most)
        is_full = stop == len(plain) or stop - start == most
        assert is_full or whole.charge_bytes(start, stop + 1) > most_bytes
        start = stop


def columns_of(part: Batch) -> Columns:
    return part.columns(0, part.records)
