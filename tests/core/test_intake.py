"""Both checks of a frame find the bad rows that the page names.  Only impossible bytes end a session."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from producerd.core.rows import intake
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.errors import Code, ProtocolError
from producerd.wire.columns import FLAG_HASH_KEYS, FLAG_VALIDITY, PREFIX, Body, Layout, lay_out, parse_body
from tests.simulation.setting import make_body

pytestmark = pytest.mark.law("wire")

Values = list[bytes | None]
NULL, NOT_UTF8, LONG, LARGE, HASH = "null", "not UTF-8", "characters", "record", "hash key"


def reasons_of(key: bytes, value: bytes | None, hash_key: bytes, max_record_bytes: int) -> set[str]:
    """The oracle: what is wrong with one row, by the page."""
    found = set()
    if value is None:
        found.add(NULL)
    try:
        if len(key.decode()) > 256:
            found.add(LONG)
    except UnicodeDecodeError:
        found.add(NOT_UTF8)
    if len(key) + len(value or b"") > max_record_bytes:
        found.add(LARGE)
    if hash_key:
        text = hash_key.decode("latin-1")
        good = all(digit in "0123456789" for digit in text) and (text == "0" or text[0] != "0")
        if not good or int(text) > MAX_HASH_KEY:
            found.add(HASH)
    return found


def reasons_found(rows: intake.CheckedRows) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for bad in rows.bad:
        (reason,) = [word for word in (NULL, NOT_UTF8, LONG, LARGE, HASH) if word in bad.message]
        assert bad.code == (Code.RECORD_TOO_LARGE if reason is LARGE else Code.RECORD_INVALID)
        for row in bad.rows.tolist():
            found.setdefault(row, set()).add(reason)
    return found


def values_of(column: memoryview, offsets: Any) -> list[bytes]:
    at = offsets.tolist()
    return [bytes(column[a:b]) for a, b in pairwise(at)]


KEYS: Values = [
    None,
    b"",
    b"k",
    b"\x00",
    b"x" * 256,
    b"x" * 257,
    "é".encode() * 256,
    "é".encode() * 257,
    "€".encode() * 256,
    "😀".encode() * 256,
    "😀".encode() * 257,
    "😀".encode() * 200 + b"x" * 56,
    "😀".encode() * 200 + b"x" * 57,
]
DAMAGED_KEYS: Values = [
    b"\xff",
    b"\x80",  # continues what no key began
    "é".encode()[:1],
    "é".encode()[1:],
    "😀".encode()[:2],
    "😀".encode()[2:],
    b"\xc0\x80",  # overlong
    b"\xed\xa0\x80",  # half of a surrogate pair
    b"\xf4\x90\x80\x80",  # beyond Unicode
    b"\xff" * 300,
    b"x" * 300 + b"\xff",
]
HASH_KEYS: Values = [
    None,
    *b"|0|1|9|00|01|10|-1|+1| 1|1 |1.0|1e3|0x1|\x00|:|/|3402823669209384634633746074317682114:5".split(b"|"),
    b"\xd9\xa1",  # a digit, but not one of ASCII
    *(b"%d" % (MAX_HASH_KEY + more) for more in (-1, 0, 1, 10**38)),
    *(digit * length for digit, length in ((b"9", 38), (b"1", 39), (b"3", 39), (b"0", 39), (b"9", 39), (b"1", 40))),
    b"4" + b"0" * 38,
    b"34028236692093846346337460743176821145/",
    b"1" * 100,
]


DATA: Values = [None, b"", b"d", b"\xff" * 843, b"d" * 844, b"d" * 1_200]
ANY_ROWS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(DATA), st.sampled_from(HASH_KEYS)), min_size=1, max_size=12
)
DAMAGED_ROWS = st.lists(
    st.tuples(st.sampled_from(KEYS + DAMAGED_KEYS), st.sampled_from(DATA), st.sampled_from(HASH_KEYS)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=400)
@example(rows=[(b"k" * 257, b"d", None)], hashed=False, most_bytes=1 << 20, small_bytes=intake.SMALL_BYTES)
@example(rows=[(b"k", b"d" * 1_200, None)], hashed=False, most_bytes=1_100, small_bytes=0)
@example(rows=[(b"k", b"d" * 1_200, None)], hashed=False, most_bytes=1_100, small_bytes=intake.SMALL_BYTES)
@given(
    rows=ANY_ROWS | DAMAGED_ROWS,
    hashed=st.booleans(),
    most_bytes=st.sampled_from([1_100, 1 << 20]),
    small_bytes=st.sampled_from([0, intake.SMALL_BYTES]),
)
def test_both_checks_agree_with_the_page_about_each_row(
    rows: list[tuple[bytes | None, bytes | None, bytes | None]], hashed: bool, most_bytes: int, small_bytes: int
) -> None:
    keys, data, hashes = [key for key, _, _ in rows], [value for _, value, _ in rows], [given for _, _, given in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intake, "SMALL_BYTES", small_bytes)
        checked = intake.check(make_body(lay_out(keys, data, hashes if hashed else None)), most_bytes)
    found = reasons_found(checked)
    for row, (key, value, hash_key) in enumerate(rows):
        got, reasons = found.get(row, set()), reasons_of(key or b"", value, (hashed and hash_key) or b"", most_bytes)
        if NOT_UTF8 in got | reasons:  # it may be counted as any number of characters
            assert NOT_UTF8 in got & reasons, row
            got, reasons = got - {LONG}, reasons - {LONG}
        assert got == reasons, row
    assert (checked.records, checked.null_keys) == (len(rows), sum(not key for key in keys))
    assert values_of(checked.keys, checked.key_offsets) == [key or b"" for key in keys]
    assert values_of(checked.data, checked.data_offsets) == [value or b"" for value in data]


@pytest.mark.parametrize("hash_key", HASH_KEYS, ids=repr)
def test_each_hash_key_is_judged_as_a_number(hash_key: bytes | None) -> None:
    rows = intake.check(make_body(lay_out([b"k"], [b"d"], [hash_key])), 100)
    assert bool(rows.bad) == bool(reasons_of(b"k", b"d", hash_key or b"", 100))


@settings(max_examples=50)
@given(steps=st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 37)), min_size=1, max_size=60))
def test_hash_keys_around_the_largest_are_judged_as_numbers(steps: list[tuple[int, int]]) -> None:
    numbers = [MAX_HASH_KEY + times * 10**power for times, power in steps]
    rows = intake.check(
        make_body(lay_out([b"k"] * len(numbers), [b""] * len(numbers), [b"%d" % number for number in numbers])), 100
    )
    found = {row for bad in rows.bad for row in bad.rows.tolist()}
    assert found == {row for row, number in enumerate(numbers) if number > MAX_HASH_KEY}


def test_characters_cut_in_two_by_a_row_s_edge_mark_both_rows() -> None:
    """The column is UTF-8 as a whole: only the rows' edges show it."""
    euro = "€".encode()
    for cut in (1, 2):
        rows = intake.check(make_body(lay_out([b"a", euro[:cut], b"", euro[cut:], b"z"], [b"d"] * 5)), 1 << 20)
        assert reasons_found(rows) == {1: {NOT_UTF8}, 3: {NOT_UTF8}}


@pytest.mark.parametrize("hashed", [False, True])
def test_columns_without_a_byte_are_rows_like_others(hashed: bool) -> None:
    rows = intake.check(make_body(lay_out([None] * 9, [b""] * 9, [None] * 9 if hashed else None)), 1 << 20)
    assert not rows.bad
    assert rows.null_keys == 9
    assert values_of(rows.data, rows.data_offsets) == [b""] * 9


SLICED = st.tuples(st.sampled_from([None, b"", b"k", b"key"]), st.sampled_from([None, b"", b"v", b"value"]))


@settings(max_examples=60)
@given(rows=st.lists(SLICED, min_size=2, max_size=40), ends=st.tuples(st.integers(0, 39), st.integers(0, 39)))
def test_offsets_of_an_arrow_slice_may_start_anywhere(
    rows: list[tuple[bytes | None, bytes | None]], ends: tuple[int, int]
) -> None:
    first, last = sorted(end % len(rows) for end in ends)
    keys, data = [key for key, _ in rows], [value for _, value in rows]
    body = _sliced_body(pa.array(keys, pa.binary()), pa.array(data, pa.binary()), first, last + 1)
    checked = intake.check(body, 1 << 20)
    assert values_of(checked.keys, checked.key_offsets) == [key or b"" for key in keys[first : last + 1]]
    assert values_of(checked.data, checked.data_offsets) == [value or b"" for value in data[first : last + 1]]
    assert reasons_found(checked) == {row: {NULL} for row, value in enumerate(data[first : last + 1]) if value is None}


def _sliced_body(keys: Any, data: Any, first: int, last: int) -> Body:
    parts, lengths = [], []
    for array in (keys, data):
        offsets = array.buffers()[1].to_pybytes()[4 * first : 4 * last + 4]
        start, end = struct.unpack_from("<i", offsets)[0], struct.unpack_from("<i", offsets, len(offsets) - 4)[0]
        parts += [offsets, (array.buffers()[2].to_pybytes() if array.buffers()[2] else b"")[start:end]]
        lengths.append(end - start)
    bits = [value is not None for value in data[first:last].to_pylist()]
    validity = bytes(sum(bit << i for i, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8))
    layout = Layout(last - first, lengths[0], lengths[1], 0, FLAG_VALIDITY)
    prefix = PREFIX.pack(1, layout.records, layout.key_bytes, layout.data_bytes, 0)
    return parse_body(prefix + parts[0] + parts[2] + validity + parts[1] + parts[3], FLAG_VALIDITY)


@pytest.mark.parametrize("column", ["key", "data", "hash key"])
@pytest.mark.parametrize(
    "offsets",
    [
        (0, 5, 4, 6),  # falls
        (0, 7, 7, 6),  # falls at its end
        (0, 2**31 - 1, 3, 6),  # falls from far
        (0, -1, 3, 6),
        (-1, 0, 3, 5),  # starts before the column
        (-1, 0, 3, 6),
        (-(2**31), 0, 3, -(2**31) + 6),
        (2**31 - 3, -(2**31), -(2**31) + 1, -(2**31) + 3),  # overflows
        (0, 1, 3, 5),  # too short
        (0, 1, 3, 7),  # too long
        (0, 1, 6, 9),
        (1, 1, 3, 6),
        (0, 0, 0, 2**31 - 1),
        (2**31 - 1, 0, 0, 5),
    ],
)
@pytest.mark.parametrize("most_bytes", [100, 1 << 20])
def test_offsets_that_cannot_be_are_a_protocol_error(column: str, offsets: tuple[int, ...], most_bytes: int) -> None:
    good = struct.pack("<4i", 0, 1, 3, 6)
    bad = struct.pack("<4i", *offsets)
    span = offsets[-1] - offsets[0]
    said = f"the {column} offsets (span {span} of 6 bytes|fall)$"
    for flags, names in ((0, ["key", "data"]), (FLAG_HASH_KEYS, ["key", "data", "hash key"])):
        if column not in names:
            continue
        columns = [bad if column == name else good for name in names]
        payload = PREFIX.pack(1, 3, 6, 6, 6 if flags else 0) + b"".join(columns) + b"123456" * len(names)
        with pytest.raises(ProtocolError, match=said):
            intake.check(parse_body(payload, flags), most_bytes)


def test_the_largest_offsets_that_can_be_are_taken() -> None:
    high = struct.pack("<4i", *(2**31 - 7 + at for at in (0, 1, 3, 6)))
    rows = intake.check(parse_body(PREFIX.pack(1, 3, 6, 6, 0) + high + high + b"abcdef" * 2, 0), 100)
    assert values_of(rows.keys, rows.key_offsets) == [b"a", b"bc", b"def"]
    assert not rows.bad


WHOLE = lay_out([b"k", None, "é€".encode()], [b"data", b"", None], [None, b"0", b"%d" % MAX_HASH_KEY])
PLACES = st.tuples(st.integers(PREFIX.size, PREFIX.size + 199), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))


@settings(max_examples=500)
@given(damages=st.lists(PLACES, min_size=1, max_size=3))
def test_a_damaged_body_gives_rows_or_a_protocol_error(damages: list[tuple[int, int]]) -> None:
    damaged = bytearray(WHOLE.body_prefix(1) + b"".join(bytes(part) for part in WHOLE.parts))
    for at, byte in damages:
        damaged[max(PREFIX.size, at % len(damaged))] = byte
    try:
        rows = intake.check(parse_body(damaged, WHOLE.layout.flags), 1 << 20)
    except ProtocolError:
        return
    for offsets, column in ((rows.key_offsets, rows.keys), (rows.data_offsets, rows.data)):
        assert (offsets[0], offsets[-1]) == (0, len(column))


def test_reasons_never_quote_the_data() -> None:
    rows = intake.check(make_body(lay_out([b"secret\xff", b"secret" * 99], [b"secret" * 99] * 2, [b"secret"] * 2)), 100)
    assert len(rows.bad) == 4
    assert all("secret" not in bad.message for bad in rows.bad)
