"""The replay guard leaves out only rows that are stored, however a batch is partitioned when it runs again."""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producerd.wire.columns import FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES
from spark_client.batches import DATA, HASH_KEY, KEY, Batch
from spark_client.replay.chunks import CHUNK_BYTES, CHUNK_ROWS, Cutter, Digest
from spark_client.replay.records import (
    FILE_FORMAT,
    MOST_AGE_SECONDS,
    MOST_SKEW_SECONDS,
    BadFile,
    Known,
    StoredChunk,
    Where,
    from_file,
    to_file,
)

Row = tuple[Optional[bytes], Optional[bytes], Optional[bytes]]  # key, data, hash key

HERE = Where("kinesis.eu-west-1.amazonaws.com", "arn:aws:kinesis:eu-west-1:1:stream/flights", 1_700_000_000_250)
AGAIN = HERE._replace(created_milliseconds=1_700_000_001_000)
NOW = 1_700_100_000.0
BYTES = st.sampled_from([b"", b"a", b"b", b"ab", b"x" * 40])
ROWS = st.lists(st.tuples(st.none() | BYTES, st.none() | BYTES, st.none() | BYTES), max_size=30)


def batch(rows: Sequence[Row]) -> Batch:
    columns = zip(*rows) if rows else ((), (), ())
    arrays = [pa.array(column, pa.binary()) for column in columns]
    return Batch(pa.RecordBatch.from_arrays(arrays, names=[KEY, DATA, HASH_KEY]))


def chunks(batches: Sequence[Sequence[Row]], bytes_: int, rows: int) -> list[tuple[list[Row], bytes]]:
    """The chunks of a partition that comes in these batches, each with its rows and its digest."""
    cutter = Cutter(bytes_, rows)
    found: dict[int, tuple[list[Row], Digest]] = {}
    for each in batches:
        ready = batch(each)
        for number, start, stop in cutter.cut(ready):
            of_rows, digest = found.setdefault(number, ([], Digest("flights")))
            of_rows += each[start:stop]
            digest.add(ready.columns(start, stop))
    assert [*found] == [*range(len(found))]
    return [(of_rows, digest.value()) for of_rows, digest in found.values()]


def charge_bytes(row: Row) -> int:
    return RECORD_CHARGE_BYTES + sum(len(value or b"") for value in row)


def cut_at(rows: Sequence[Row], places: Sequence[int]) -> list[Sequence[Row]]:
    ends = sorted(min(place, len(rows)) for place in places)
    return [rows[start:end] for start, end in zip([0, *ends], [*ends, len(rows)])]


PLACES = st.lists(st.integers(0, 30), max_size=4)


@given(ROWS, PLACES, PLACES, st.sampled_from([40, 90, 200, 1 << 20]), st.sampled_from([1, 3, 7, 100]))
def test_chunks_depend_on_the_rows_and_not_on_the_batches(
    rows: list[Row], places: list[int], others: list[int], bytes_: int, most: int
) -> None:
    found = chunks(cut_at(rows, places), bytes_, most)
    assert found == chunks(cut_at(rows, others), bytes_, most)
    assert [row for of_rows, _ in found for row in of_rows] == rows
    sizes = [sum(map(charge_bytes, of_rows)) for of_rows, _ in found]
    for (of_rows, _), size, (following, _) in zip(found, sizes, [*found[1:], ([], b"")]):
        assert len(of_rows) == 1 or (size <= bytes_ and len(of_rows) <= most)
        if following:
            assert len(of_rows) == most or size + charge_bytes(following[0]) > bytes_, "it is as large as may be"


def test_a_chunk_has_a_mebibyte_or_ten_thousand_rows() -> None:
    size = CHUNK_BYTES // 64 - RECORD_CHARGE_BYTES
    exact: list[Row] = [(b"", b"x" * size, None)] * 65
    assert [tuple(piece) for piece in Cutter().cut(batch(exact))] == [(0, 0, 64), (1, 64, 65)], "each in one piece"
    in_four = [exact[:16], exact[16:32], exact[32:48], exact[48:]]
    assert [len(rows) for rows, _ in chunks(in_four, CHUNK_BYTES, CHUNK_ROWS)] == [64, 1]
    small: list[Row] = [(b"", b"x", None)] * 10_001
    pieces = [tuple(piece) for piece in Cutter().cut(batch(small))]
    assert pieces == [(0, 0, 10_000), (1, 10_000, 10_001)]
    assert batch(exact).charge_bytes(0, 64) == CHUNK_BYTES + FRAME_CHARGE_BYTES


def digest(rows: Sequence[Row]) -> bytes:
    made, ready = Digest("flights"), batch(rows)
    made.add(ready.columns(0, ready.records))
    return made.value()


@given(ROWS.filter(bool), ROWS.filter(bool))
def test_chunks_of_other_rows_have_other_digests(rows: list[Row], others: list[Row]) -> None:
    """A null key is an empty one, as on the wire; null data is refused, and empty data is not."""

    def sent(some: list[Row]) -> list[Any]:
        return [(key or b"", data, hash_key or b"") for key, data, hash_key in some]

    assert (digest(rows) == digest(others)) is (sent(rows) == sent(others))


def test_a_digest_is_over_lengths_and_values_and_the_same_in_every_release() -> None:
    rows: list[Row] = [(b"N101", b"one", b"7"), (None, None, None), (b"N2", b"", b"")]
    columns = [((4, 0, 2), b"N101N2"), ((3, -1, 0), b"one"), ((1, 0, 0), b"7")]
    parts = [part for lengths, values in columns for part in (struct.pack("<3i", *lengths), values)]
    whole = b"producerd chunk 1 flights 3" + b"".join(hashlib.sha256(part).digest() for part in parts)
    assert digest(rows) == hashlib.sha256(whole).digest()


def record(number: int = 0, rows: bytes = b"r" * 32, where: Where = HERE, stream: str = "flights") -> StoredChunk:
    return StoredChunk(stream, number, rows, where, NOW)


WHOLE = to_file([record()])


@pytest.mark.parametrize(
    "content",
    [
        *(WHOLE[:length] for length in range(len(WHOLE))),
        b"PAR1\x00\xff",
        b"[]",
        b"{}",
        b"null",
        b"[" * 100_000,
        WHOLE.replace(b"1700100000.0", b"9" * 400),
        WHOLE.replace(b"72", b"7", 1),
        *(
            json.dumps({**json.loads(WHOLE), **wrong}).encode()
            for wrong in (
                {"producerd_replay": FILE_FORMAT + 1},
                {"chunks": [["flights", 0, "72" * 32, "now", *HERE]]},
                {"chunks": 7},
                {"chunks": [["flights", 0]]},
                {"chunks": [["flights", "0", "72" * 32, NOW, *HERE]]},
                {"chunks": [["flights", 0, "72" * 31, NOW, *HERE]]},
                {"chunks": [["flights", 0, 72, NOW, *HERE]]},
                {"chunks": [[None, 0, "72" * 32, NOW, *HERE]]},
                {"chunks": [["flights", 0, "72" * 32, NOW, HERE.endpoint_host, None, 0.0]]},
                {"chunks": [["flights", 0, "72" * 32, NOW, HERE.endpoint_host, HERE.stream_arn, "0"]]},
            )
        ),
    ],
)
def test_a_torn_foreign_or_newer_file_is_told(content: bytes) -> None:
    with pytest.raises(BadFile, match=r"Error|its format"):
        from_file(content)


@pytest.mark.parametrize(
    ("age_seconds", "counts"),
    [
        (0.0, True),
        (MOST_AGE_SECONDS - 1, True),
        (MOST_AGE_SECONDS, False),
        (-MOST_SKEW_SECONDS, True),
        (-MOST_SKEW_SECONDS - 1, False),
    ],
)
def test_a_record_that_is_too_old_or_of_a_later_time_counts_as_absent(age_seconds: float, counts: bool) -> None:
    known = Known([record()], {"flights": False})
    assert known.has("flights", 0, b"r" * 32, HERE, NOW + age_seconds) is counts


def test_only_a_chunk_with_its_place_rows_and_stream_is_left_out() -> None:
    known = Known([record(0), record(2, b"s" * 32), record(2, b"t" * 32)], {"flights": False, "delays": False})
    assert [known.may_match("flights", number) for number in range(3)] == [True, False, True]
    assert not known.has("delays", 0, b"r" * 32, HERE, NOW)
    assert not known.may_match("delays", 0)
    assert known.has("flights", 0, b"r" * 32, HERE, NOW)
    assert not known.has("flights", 0, b"s" * 32, HERE, NOW)
    assert not known.has("flights", 0, b"r" * 32, AGAIN, NOW), "the stream was made again"
    assert not known.has("flights", 0, b"r" * 32, None, NOW)
    assert known.has("flights", 2, b"s" * 32, HERE, NOW), "two attempts may have stored two chunks at a place"
    assert known.has("flights", 2, b"t" * 32, HERE, NOW)


def test_where_keys_stay_in_order_a_place_with_the_rows_of_two_runs_matches_nothing() -> None:
    known = Known([record(0), record(0), record(1), record(1, b"s" * 32)], {"flights": True})
    assert [known.has("flights", number, b"r" * 32, HERE, NOW) for number in range(2)] == [True, False]


def test_only_a_prefix_is_left_out_where_keys_stay_in_order() -> None:
    known = Known([record(0), record(0, stream="delays")], {"flights": True, "delays": False})
    known.sends("delays")
    assert known.may_match("flights", 0)
    known.sends("flights")
    assert not known.may_match("flights", 0)
    assert known.may_match("delays", 0), "which promises no order"


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Row], list[tuple[list[list[Row]], list[int]]]]:
    """A batch, and its runs: the partitions of each, and of each chunk what becomes of it."""
    rows: list[Row] = [(b"", data, None) for data in draw(st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=24))]
    found = []
    for _ in range(draw(st.integers(2, 4))):
        shuffled = draw(st.permutations(rows)) if draw(st.booleans()) else rows
        partitions = [list(part) for part in cut_at(shuffled, draw(PLACES))]
        found.append((partitions, draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))))
    return rows, found


LOST, STORED, RECORDED, RECORDED_BY_TWO = range(4)


def partition_of(
    rows: list[Row], known: Known, fates: Iterator[int], stored: Counter[Row]
) -> Iterator[tuple[int, bytes]]:
    """Run one task of a batch, and yield the place and the digest of each chunk that it records."""
    for number, (of_rows, value) in enumerate(chunks([rows], 1 << 20, 3)):
        if known.may_match("flights", number) and known.has("flights", number, value, HERE, NOW):
            continue
        known.sends("flights")
        fate = next(fates)
        if fate != LOST:
            stored.update(of_rows)
        if fate == RECORDED_BY_TWO:  # an attempt that was given up goes on
            stored.update(of_rows)
            yield number, value
        if fate >= RECORDED:
            yield number, value


@settings(max_examples=300)
@given(runs(), st.booleans())
def test_nothing_is_lost_by_any_number_of_runs(drawn: tuple[list[Row], list[Any]], per_key: bool) -> None:
    rows, found = drawn
    stored: Counter[Row] = Counter()
    records: dict[int, list[StoredChunk]] = {}  # by partition
    for at, (partitions, fates) in enumerate(found):
        is_last = at == len(found) - 1  # only this one is committed
        endless = iter(lambda fates=fates, is_last=is_last: STORED if is_last else fates.pop(0) if fates else LOST, -1)  # type: ignore[misc]
        for partition, of_rows in enumerate(partitions):
            known = Known(records.get(partition, []), {"flights": per_key})
            new = [record(number, value) for number, value in partition_of(of_rows, known, endless, stored)]
            records.setdefault(partition, []).extend(new)
    assert not Counter(rows) - stored
