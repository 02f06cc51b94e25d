"""A payload is split into the records that other readers find in it, stays one row, or is refused."""

from __future__ import annotations

import sys
from base64 import b64decode
from typing import Final

from aws_kinesis_agg.deaggregator import iter_deaggregate_records

from producerd.core.kpl.aggregation import Aggregate, Undeliverable, parse, split
from producerd.testing.aggregates import BrokenAggregate, UserRecord, deaggregate
from tests.core.mutants import framed

SHARD_BITS: Final = 126
KEYS: Final = b"a", b"key", "é€😀".encode(), b"k" * 256
HASH_KEYS: Final = None, b"0", b"7", b"%d" % (2**128 - 1)


def check(data: bytes) -> None:
    """The first byte says what the others are: a message, a whole payload, or records to pack."""
    kind = data[0] % 3 if data else 1
    if kind == 2:
        _check_packing(data[1:])
    else:
        _check_payload(framed(data[1:]) if kind == 0 else data[1:])


def _check_payload(payload: bytes) -> None:
    try:
        theirs = deaggregate(payload)
        broken = False
    except BrokenAggregate:
        theirs, broken = [], True
    try:
        ours = parse(payload)
    except Undeliverable:
        assert theirs is not None, "a plain record is refused"
        return
    if ours is None:
        assert theirs is None, "an aggregate stays one row"
        assert split(payload, lambda hash_key: 0) == []
        return
    assert theirs, f"a plain or a broken payload ({broken}) is split"
    assert [record.data for record in ours] == [record.data for record in theirs]
    keys = zip(ours, theirs, strict=True)
    assert all(_same(own.partition_key, other.partition_key) for own, other in keys)
    assert all(0 <= record.hash_key < 2**128 for record in ours)
    if _amazon_agrees(payload):
        assert [(record.partition_key, record.data) for record in ours] == _read_by_amazon(payload)
    _check_split(payload, theirs)


def _same(own: bytes, other: str) -> bool:
    try:
        return own.decode() == other
    except UnicodeDecodeError:
        return "\ufffd" in other


def _check_split(payload: bytes, theirs: list[UserRecord]) -> None:
    """Every fragment lies in one shard, and all of them together have the records."""
    found: list[bytes] = []
    for fragment in split(payload, lambda hash_key: hash_key >> SHARD_BITS):
        inside = deaggregate(fragment.data) if fragment.hash_keys else None
        found += [fragment.data] if inside is None else [record.data for record in inside]
        if fragment.hash_keys is not None:
            assert len({hash_key >> SHARD_BITS for hash_key in fragment.hash_keys}) == 1, "a fragment of two shards"
    assert sorted(found) == sorted(record.data for record in theirs), "a split loses records, or makes some up"


def _check_packing(data: bytes) -> None:
    aggregate, records, at = Aggregate(), [], 0
    while at + 2 <= len(data):
        choice, size = data[at], data[at + 1]
        record = KEYS[choice & 3], HASH_KEYS[choice >> 2 & 3], data[at + 2 : at + 2 + size]
        aggregate.try_add(*record, limit_bytes=sys.maxsize)
        records.append(record)
        at += 2 + size
    if records:
        payload = aggregate.to_bytes()
        assert len(payload) == aggregate.size
        assert [tuple(record) for record in parse(payload) or ()] == records
        assert _read_by_amazon(payload) == [(key, value) for key, _, value in records]


def _read_by_amazon(payload: bytes) -> list[tuple[bytes, bytes]]:
    entry = {"Data": payload, "PartitionKey": "a", "SequenceNumber": "1", "ApproximateArrivalTimestamp": 1.0}
    users = [user["kinesis"] for user in iter_deaggregate_records([entry], data_format="Boto3")]
    return [(user["partitionKey"].encode(), b64decode(user["data"])) for user in users]


def _amazon_agrees(payload: bytes) -> bool:
    """Whether the payload is well formed: its keys are UTF-8, and packing its records again gives the same bytes.

    The library reads any other message by its own rules, which are not the consumer's.
    """
    aggregate = Aggregate()
    for record in parse(payload) or ():
        if not _same(record.partition_key, record.partition_key.decode(errors="ignore")):
            return False
        aggregate.try_add(*record, limit_bytes=sys.maxsize)
    return aggregate.to_bytes() == payload
