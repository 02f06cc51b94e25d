"""A body is cut into exactly the columns that were laid out, or it is a ProtocolError; no row is looked at."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import pairwise
from random import Random

import pytest

from producerd.errors import ProtocolError
from producerd.wire import columns
from producerd.wire.columns import FLAG_HASH_KEYS, FLAG_RESENT, FLAG_VALIDITY, PREFIX, Body, Layout, lay_out, parse_body
from producerd.wire.frames import body_header

Values = list[bytes | None]

GOLDEN = (
    "0906000056000000050000000000000003000000050000000400000004000000000000000100000001000000050000000000000004000000"
    "040000000400000000000000000000000100000004000000036b6b6579336461746130333430"
)


def payload_of(laid_out: columns.Columns, frame_id: int = 1) -> bytes:
    return laid_out.body_prefix(frame_id) + b"".join(bytes(part) for part in laid_out.parts)


def values_of(offsets: memoryview, column: memoryview) -> list[bytes]:
    at = offsets.cast("i").tolist()
    return [bytes(column[a - at[0] : b - at[0]]) for a, b in pairwise(at)]


def body_or_protocol_error(payload: bytes, flags: int) -> Body | None:
    try:
        return parse_body(payload, flags)
    except ProtocolError:
        return None


@pytest.mark.law("wire")
def test_rows_are_the_same_after_their_body_was_read() -> None:
    random = Random(1)
    for _ in range(300):
        records = random.randint(1, 30)
        keys: Values = [random.choice([None, b"", random.randbytes(random.randint(1, 9))]) for _ in range(records)]
        data: Values = [random.choice([None, b"", random.randbytes(random.randint(1, 99))]) for _ in range(records)]
        hashes: Values | None = None
        if random.random() < 0.5:
            hashes = [random.choice([None, b"", b"%d" % random.getrandbits(128)]) for _ in range(records)]
        laid_out = lay_out(keys, data, hashes)
        body = parse_body(payload_of(laid_out, 77), laid_out.layout.flags)
        assert body.frame_id == 77
        assert body.layout == laid_out.layout
        assert values_of(body.key_offsets, body.keys) == [key or b"" for key in keys]
        assert values_of(body.data_offsets, body.data) == [value or b"" for value in data]
        if hashes is None:
            assert body.hash_keys is None
            assert body.hash_key_offsets is None
        else:
            assert body.hash_keys is not None
            assert body.hash_key_offsets is not None
            assert values_of(body.hash_key_offsets, body.hash_keys) == [value or b"" for value in hashes]
        present = [value is not None for value in data]
        assert (body.validity is None) == all(present)
        if body.validity is not None:
            assert [bool(body.validity[i // 8] >> i % 8 & 1) for i in range(records)] == present


@pytest.mark.law("wire")
def test_the_bytes_of_a_body_never_change() -> None:
    laid_out = lay_out([b"k", None, b"key3"], [b"data", b"", None], [None, b"0", b"340"])
    assert (body_header(laid_out.layout) + payload_of(laid_out, 5)).hex() == GOLDEN


@pytest.mark.law("wire")
def test_a_body_is_views_into_its_payload_and_never_a_copy() -> None:
    laid_out = lay_out([b"k"] * 10, [b"d" * 10_000] * 10, [b"1"] * 10)
    payload = bytearray(payload_of(laid_out))
    body = parse_body(payload, laid_out.layout.flags)
    payload[-10 - 1] = ord("X")  # the last byte of data, before 10 hash keys of one digit
    assert body.data[-1] == ord("X")


@pytest.mark.law("wire")
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


@pytest.mark.law("wire")
def test_thousands_of_damages_give_a_body_or_a_protocol_error() -> None:
    random = Random(2)
    laid_out = lay_out([b"k", None, b"key"], [b"data", b"", None], [None, b"0", b"340"])
    whole = payload_of(laid_out)
    for at in range(len(whole)):
        for value in range(256):
            body_or_protocol_error(whole[:at] + bytes([value]) + whole[at + 1 :], laid_out.layout.flags)
    for _ in range(5_000):
        damaged = bytearray(whole)
        for _ in range(random.randint(1, 5)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        if random.random() < 0.3:
            del damaged[random.randrange(len(damaged)) :]
        body_or_protocol_error(bytes(damaged), random.randrange(256))


@pytest.mark.law("wire")
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


@pytest.mark.law("wire")
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


def test_the_charge_is_the_page_s_and_always_covers_the_body() -> None:
    assert Layout(3, 10, 20, 5, FLAG_HASH_KEYS).charge_bytes == 10 + 20 + 5 + 3 * 32 + 1_024
    random = Random(3)
    for _ in range(2_000):
        layout = Layout(*(random.choice([1, 7, 8, 10_000, random.getrandbits(20) + 1]) for _ in range(4)))
        for flags in (0, FLAG_RESENT, FLAG_HASH_KEYS, FLAG_VALIDITY, FLAG_HASH_KEYS | FLAG_VALIDITY):
            made = Layout(layout.records, layout.key_bytes, layout.data_bytes, layout.hash_key_bytes, flags)
            assert made.body_bytes < made.charge_bytes


@pytest.mark.parametrize("seed", range(20))
def test_some_rows_of_a_frame_are_laid_out_as_they_were(seed: int) -> None:
    random = Random(seed)
    count = random.choice([1, 7, 40])
    keys = [random.choice([None, b"", b"k%d" % i]) for i in range(count)]
    data = [random.choice([None, b"", random.randbytes(random.randrange(50))]) for _ in range(count)]
    hash_keys = random.choice([None, [random.choice([None, b"%d" % i]) for i in range(count)]])
    whole = lay_out(keys, data, hash_keys)
    rows = random.sample(range(count), random.randint(1, count))
    expected = lay_out(
        [keys[row] for row in rows],
        [data[row] for row in rows],
        None if hash_keys is None else [hash_keys[row] for row in rows],
    )
    taken = whole.take(rows)
    assert taken.layout == expected.layout
    assert [bytes(part) for part in taken.parts] == [bytes(part) for part in expected.parts]


@pytest.mark.law("wire")
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


@pytest.mark.law("wire")
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
