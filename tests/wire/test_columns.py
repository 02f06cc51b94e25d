"""A body is cut into exactly the columns that were laid out, or it is a ProtocolError; no row is looked at."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producerd.errors import ProtocolError
from producerd.wire import columns
from producerd.wire.columns import FLAG_HASH_KEYS, PREFIX, Layout, lay_out, parse_body
from producerd.wire.messages import body_header
from tests.wire.strategies import DAMAGES, ROWS, DrawnRow, columns_of, damaged

pytestmark = pytest.mark.law("wire")

GOLDEN = (
    "0906000056000000050000000000000003000000050000000400000004000000000000000100000001000000050000000000000004000000"
    "040000000400000000000000000000000100000004000000036b6b6579336461746130333430"
)


def payload_of(laid_out: columns.Columns, frame_id: int = 1) -> bytes:
    return laid_out.body_prefix(frame_id) + b"".join(bytes(part) for part in laid_out.parts)


def values_of(offsets: memoryview, column: memoryview) -> list[bytes]:
    at = offsets.cast("i").tolist()
    return [bytes(column[a - at[0] : b - at[0]]) for a, b in pairwise(at)]


@settings(max_examples=80)
@given(rows=ROWS, hashed=st.booleans())
def test_rows_are_the_same_after_their_body_was_read(rows: list[DrawnRow], hashed: bool) -> None:
    laid_out = columns_of(rows, hashed=hashed)
    body = parse_body(payload_of(laid_out, 77), laid_out.layout.flags)
    assert (body.frame_id, body.layout) == (77, laid_out.layout)
    assert values_of(body.key_offsets, body.keys) == [key or b"" for key, _, _ in rows]
    assert values_of(body.data_offsets, body.data) == [value or b"" for _, value, _ in rows]
    if body.hash_keys is not None and body.hash_key_offsets is not None:
        assert values_of(body.hash_key_offsets, body.hash_keys) == [hash_key or b"" for *_, hash_key in rows]
    assert [body.hash_keys is not None, body.hash_key_offsets is not None] == [hashed] * 2
    present = [value is not None for _, value, _ in rows]
    assert (body.validity is None) == all(present)
    if body.validity is not None:
        assert [bool(body.validity[i // 8] >> i % 8 & 1) for i in range(len(rows))] == present
    assert body.layout.body_bytes < body.layout.charge_bytes, "the charge always covers the body"


@settings(max_examples=60)
@given(rows=ROWS, hashed=st.booleans(), picks=st.lists(st.integers(0, 29), min_size=1, max_size=30, unique=True))
def test_some_rows_of_a_frame_are_laid_out_as_they_were(rows: list[DrawnRow], hashed: bool, picks: list[int]) -> None:
    picks = list({pick % len(rows): None for pick in picks})
    taken, expected = columns_of(rows, hashed=hashed).take(picks), columns_of([rows[at] for at in picks], hashed=hashed)
    assert taken.layout == expected.layout
    assert [bytes(part) for part in taken.parts] == [bytes(part) for part in expected.parts]


def test_the_bytes_of_a_body_never_change() -> None:
    laid_out = lay_out([b"k", None, b"key3"], [b"data", b"", None], [None, b"0", b"340"])
    assert (body_header(laid_out.layout) + payload_of(laid_out, 5)).hex() == GOLDEN


def test_a_body_is_views_into_its_payload_and_never_a_copy() -> None:
    laid_out = lay_out([b"k"] * 10, [b"d" * 10_000] * 10, [b"1"] * 10)
    payload = bytearray(payload_of(laid_out))
    body = parse_body(payload, laid_out.layout.flags)
    payload[-10 - 1] = ord("X")  # the last byte of data, before 10 hash keys of one digit
    assert body.data[-1] == ord("X")


@pytest.mark.parametrize("flags", range(8))
def test_every_other_length_is_a_protocol_error(flags: int) -> None:
    layout = Layout(9, 20, 30, 4 if flags & FLAG_HASH_KEYS else 0, flags)
    prefix = PREFIX.pack(1, layout.records, layout.key_bytes, layout.data_bytes, layout.hash_key_bytes)
    whole = prefix + bytes(layout.body_bytes - PREFIX.size)
    assert parse_body(whole, flags).layout == layout
    for size in range(len(whole)):
        with pytest.raises(ProtocolError):
            parse_body(whole[:size], flags)
    with pytest.raises(ProtocolError):
        parse_body(whole + b"\0", flags)


@settings(max_examples=200)
@given(damages=DAMAGES, flags=st.sampled_from([6, 6, 6, 0, 2, 4, 7, 255]))
def test_a_damaged_body_gives_a_body_or_a_protocol_error(damages: list[tuple[str, int, bytes]], flags: int) -> None:
    whole = payload_of(lay_out([b"k", None, b"key"], [b"data", b"", None], [None, b"0", b"340"]))
    with suppress(ProtocolError):
        parse_body(damaged(whole, damages), flags)


@pytest.mark.parametrize("field", range(4))
def test_a_huge_length_field_allocates_nothing(field: int) -> None:
    lengths = [3, 8, 4, 0]
    tracemalloc.start()
    try:
        for huge in (2**31 - 1, 2**31, 2**32 - 1):
            lengths[field] = huge
            for flags in range(8):
                with pytest.raises(ProtocolError):
                    parse_body(PREFIX.pack(1, *lengths) + bytes(100), flags)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "layout",
    [
        Layout(0, 0, 0),
        Layout(1, 0, 0, 0, 8),
        Layout(1, 0, 0, 0, 255),
        Layout(1, 0, 0, 5, 0),
        Layout(1, 2**31, 0),
        Layout(1, 0, 2**31),
        Layout(1, 0, 0, 2**31, FLAG_HASH_KEYS),
    ],
)
def test_a_layout_that_cannot_be_is_a_protocol_error(layout: Layout) -> None:
    with pytest.raises(ProtocolError):
        layout.check()
    with pytest.raises(ProtocolError):
        parse_body(struct.pack("<QIIII", 1, layout.records, layout.key_bytes, layout.data_bytes, 0), layout.flags or 8)


def test_the_charge_is_the_page_s() -> None:
    assert Layout(3, 10, 20, 5, FLAG_HASH_KEYS).charge_bytes == 10 + 20 + 5 + 3 * 32 + 1_024


def test_offsets_that_do_not_begin_at_0_count_from_their_first() -> None:
    """Arrow hands over a slice of a column with the offsets of the whole."""
    whole = lay_out([b"a", b"bb", b"ccc"], [b"1", b"22", b"333"])
    keys, data, key_values, data_values = (bytes(part) for part in whole.parts)
    sliced = columns.Columns(Layout(2, 5, 5), (keys[4:], data[4:], key_values[1:], data_values[1:]))
    assert [sliced.row(row) for row in (0, 1)] == [(b"bb", b"22", None), (b"ccc", b"333", None)]
    with_hash_keys = lay_out([b"a"], [None], [b"77"])
    assert with_hash_keys.row(0) == (b"a", None, b"77")


def test_a_column_may_have_2_gib_and_no_byte_more() -> None:
    Layout(1, columns.MAX_COLUMN_BYTES, columns.MAX_COLUMN_BYTES).check()
    with pytest.raises(ProtocolError, match="2 GiB"):
        Layout(1, 0, columns.MAX_COLUMN_BYTES + 1).check()


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (PREFIX.pack(1, 0, 0, 0, 0) + bytes(8), "without records"),
        (PREFIX.pack(1, 1, 0, 0, 0), f"{PREFIX.size} bytes where its prefix says"),
        (PREFIX.pack(1, 1, 0, 0, 0)[:-1], "shorter than its prefix"),
    ],
)
def test_a_body_that_cannot_be_says_why(payload: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        parse_body(payload, 0)
