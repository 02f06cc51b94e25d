"""Amazon's own tools read every row of an aggregate back, and its size is known before it is written."""

from __future__ import annotations

import base64
import hashlib

import pytest
from aws_kinesis_agg.deaggregator import iter_deaggregate_records
from hypothesis import given, settings
from hypothesis import strategies as st

from producerd.core.kpl.aggregation import MAGIC, Aggregate, InnerRecord, Undeliverable, parse, split
from producerd.testing import hash_of
from producerd.testing.aggregates import deaggregate
from tests.core.mutants import field, framed, mutants
from tests.core.strategies import inner_records

ANY = 2**40


def filled(records: list[InnerRecord], limit_bytes: int = ANY) -> tuple[Aggregate, int]:
    aggregate = Aggregate()
    for count, record in enumerate(records):
        if not aggregate.try_add(*record, limit_bytes):
            return aggregate, count
    return aggregate, len(records)


@settings(max_examples=60)
@given(records=inner_records())
def test_every_reader_finds_the_records_that_were_added(records: list[InnerRecord]) -> None:
    blob = filled(records)[0].to_bytes()
    assert parse(blob) == records
    theirs = deaggregate(blob)
    assert theirs is not None
    assert [(user.partition_key.encode(), user.explicit_hash_key, user.data) for user in theirs] == [
        (key, hash_key.decode() if hash_key is not None else None, data) for key, hash_key, data in records
    ]
    entry = {"Data": blob, "PartitionKey": "a", "SequenceNumber": "1", "ApproximateArrivalTimestamp": 1.0}
    users = [user["kinesis"] for user in iter_deaggregate_records([entry], data_format="Boto3")]
    read = [(user["partitionKey"].encode(), base64.b64decode(user["data"])) for user in users]
    assert read == [(key, data) for key, _, data in records]
    for user, (_, hash_key, _) in zip(users, records, strict=True):
        if hash_key is not None:  # to others this reader gives the table's first
            assert user["explicitHashKey"] == hash_key.decode()


@settings(max_examples=40)
@given(records=inner_records(), limit=st.sampled_from([100, 1_000, 51_200]))
def test_the_size_is_exact_and_never_passes_the_limit(records: list[InnerRecord], limit: int) -> None:
    while records:
        aggregate, count = filled(records, limit)
        assert count >= 1, "the first one always fits"
        assert aggregate.records == count
        assert aggregate.size == len(aggregate.to_bytes())
        assert aggregate.size <= limit or count == 1
        if count < len(records):
            assert filled(records[: count + 1])[0].size > limit, "it was full"
        records = records[count:]


@pytest.mark.parametrize(
    ("key", "as_read"),
    [(b"", ""), (b"k", "k"), ("é€😀".encode(), "é€😀"), (b"k\xff\xfe", "k\ufffd\ufffd"), (b"\xed\xa0\x80k", "\ufffdk")],
)
def test_a_record_lies_where_a_consumer_looks_for_its_key(key: bytes, as_read: str) -> None:
    assert InnerRecord(key, None, b"").hash_key == hash_of(as_read, None)
    assert InnerRecord(key, b"7", b"").hash_key == 7


def test_a_record_that_is_refused_leaves_nothing_behind() -> None:
    aggregate = Aggregate()
    aggregate.try_add(b"a", None, b"1", 100)
    before = aggregate.to_bytes()
    assert not aggregate.try_add(b"new key", b"99", b"x" * 100, 100)
    assert (aggregate.to_bytes(), aggregate.records) == (before, 1)
    assert aggregate.try_add(b"b", b"5", b"2", 100)
    assert parse(aggregate.to_bytes()) == [InnerRecord(b"a", None, b"1"), InnerRecord(b"b", b"5", b"2")]


def test_the_bytes_of_a_known_aggregate_never_change() -> None:
    aggregate, _ = filled(
        [InnerRecord(b"a", b"7", b"one"), InnerRecord(b"b", None, b"two"), InnerRecord(b"a", b"7", b"")]
    )
    message = b"\x0a\x01a\x0a\x01b" + b"\x12\x017"
    message += (
        b"\x1a\x09\x08\x00\x10\x00\x1a\x03one" + b"\x1a\x07\x08\x01\x1a\x03two" + b"\x1a\x06\x08\x00\x10\x00\x1a\x00"
    )
    assert aggregate.to_bytes() == MAGIC + message + hashlib.md5(message, usedforsecurity=False).digest()


def test_whatever_is_no_aggregate_is_a_plain_record() -> None:
    blob = filled([InnerRecord(b"k", b"1", b"data"), InnerRecord(b"l", None, b"more")])[0].to_bytes()
    assert parse(b"") is None
    assert parse(MAGIC) is None
    assert parse(MAGIC + hashlib.md5(b"", usedforsecurity=False).digest()) is None
    assert parse(blob[1:]) is None
    for size in range(len(blob)):
        assert parse(blob[:size]) is None
    for at in range(len(blob)):
        damaged = bytearray(blob)
        damaged[at] ^= 1
        assert parse(bytes(damaged)) is None


def test_damage_under_a_right_digest_is_a_plain_record_or_records_or_undeliverable() -> None:
    for mutant in mutants(0, 2_000):
        try:
            found = parse(mutant.payload)
        except Undeliverable:
            continue
        assert found is None or found
        assert all(0 <= record.hash_key < 2**128 for record in found or ())


@pytest.mark.parametrize("cut_short", [b"\x08", b"\x19" + bytes(7)], ids=["no value", "7 of 8 bytes"])
def test_a_field_that_passes_the_end_makes_a_plain_record(cut_short: bytes) -> None:
    records = field(1, b"k") + field(3, field(1, 0) + field(3, b"d"))
    assert parse(framed(records)) == [InnerRecord(b"k", None, b"d")]
    assert parse(framed(records + cut_short)) is None


@pytest.mark.parametrize(
    ("record", "plain"),
    [
        (InnerRecord(b"k", None, b"d"), True),
        (InnerRecord(b"", None, b"d"), False),
        (InnerRecord(b"\xff", None, b"d"), False),
        (InnerRecord("😀".encode() * 256, b"0", b""), True),
        (InnerRecord(b"k" * 257, None, b"d"), False),
        (InnerRecord(b"k", b"007", b"d"), False),
        (InnerRecord(b"k", None, filled([InnerRecord(b"k", None, b"d")])[0].to_bytes()), False),
    ],
)
def test_a_record_goes_plain_if_the_service_takes_it_and_it_is_no_aggregate_itself(
    record: InnerRecord, plain: bool
) -> None:
    assert record.can_go_plain is plain
    aggregate, _ = filled([record])
    ((*inside, hash_keys),) = split(aggregate.to_bytes(), None)
    assert (hash_keys is None) is plain
    if plain:
        assert tuple(inside) == record
    else:
        assert hash_keys == (record.hash_key, record.hash_key)


def test_nothing_is_split_of_a_plain_record() -> None:
    assert split(b"plain", None) == split(b"plain", lambda hash_key: 0) == []


def test_an_aggregate_is_split_by_shard_in_the_order_of_first_records() -> None:
    records = [InnerRecord(b"k", b"%d" % number, b"%d" % number) for number in (9, 1, 8, 2, 3)]
    aggregate, _ = filled(records)
    high, low = split(aggregate.to_bytes(), lambda hash_key: int(hash_key > 5))
    assert (high.partition_key, high.explicit_hash_key, high.hash_keys) == (b"a", b"9", (8, 9))
    assert (low.partition_key, low.explicit_hash_key, low.hash_keys) == (b"a", b"1", (1, 3))
    assert (parse(high.data), parse(low.data)) == ([records[0], records[2]], [records[1], *records[3:]])
