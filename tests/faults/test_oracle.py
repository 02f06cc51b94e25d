"""The oracle finds each law broken that a test breaks, and names it with an example."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator

from tests.faults.oracle import Law, Reading, Sent, copies_within, judge
from tests.faults.reader import Entry, Handed, handed_by_rule
from tests.faults.records import Book, Id, Shape

BOOK = Book(7, {0: Shape(), 1: Shape(data_bytes=60, keys=1)})
WHOLE = range(2**128)


def handed(sender: int, numbers: Sequence[int]) -> list[Handed]:
    ids = [Id(sender, number) for number in numbers]
    return [Handed(BOOK.key_of(identity), BOOK.data_of(identity)) for identity in ids]


def judged(numbers: Sequence[int], acknowledged: set[int], *, ordered: bool = True) -> Reading:
    """Ten records of sender 1, whose key is always the same; these were read."""
    return judge(BOOK, [Sent(1, 10, acknowledged, ordered)], handed(1, numbers))


def laws(reading: Reading) -> list[Law]:
    return [broken.law for broken in reading.broken]


def test_all_that_was_acknowledged_is_there() -> None:
    reading = judged([0, 1, 2, 3], {1, 2})
    assert (reading.readable, reading.duplicates, reading.order_violations, reading.broken) == (2, 0, 0, [])


@pytest.mark.promise("acknowledged-record-read")
def test_an_acknowledged_record_that_is_not_read_is_named() -> None:
    reading = judged([0, 2], {0, 1, 2})
    assert laws(reading) == [Law.READABLE]
    assert "1 of 3 are not: Id(sender=1, number=1)" in reading.broken[0].what
    assert reading.readable == 2


def test_copies_are_counted_and_are_no_fault_of_order() -> None:
    reading = judged([0, 1, 0, 0, 2], set())
    assert (reading.duplicates, reading.broken) == (2, [])
    assert copies_within(2, 2) == []
    assert copies_within(2, 1)[0].law == Law.COPIES


@pytest.mark.promise("acknowledged-record-read")
def test_first_copies_out_of_order_are_found_where_order_is_promised() -> None:
    assert laws(judged([0, 2, 1], set())) == [Law.ORDER]
    assert laws(judged([0, 2, 1], set(), ordered=False)) == []
    assert judged([0, 2, 1, 3, 1], set()).order_violations == 1


def test_order_is_that_of_each_key_alone() -> None:
    reading = judge(BOOK, [Sent(0, 10, set(), True)], handed(0, [3, 2, 1]))
    assert reading.broken == []


@pytest.mark.promise("acknowledged-record-read")
@pytest.mark.parametrize(
    "stranger",
    [
        Handed("1-0", b"nobody's"),
        Handed("1-1", BOOK.data_of(Id(1, 0))),
        Handed("1-0", BOOK.data_of(Id(1, 0))[:-1]),
        Handed("1-0", BOOK.data_of(Id(1, 0)) + b"."),
        Handed("1-0", BOOK.data_of(Id(1, 10))),
        Handed("2-0", BOOK.data_of(Id(1, 0)).replace(b"/0001/", b"/0002/")),
        Handed("1-0", Book(8, {1: Shape(data_bytes=60, keys=1)}).data_of(Id(1, 0))),
    ],
    ids=["no id", "another key", "cut", "longer", "never sent", "unknown sender", "another run"],
)
def test_what_nobody_sent_is_found(stranger: Handed) -> None:
    reading = judge(BOOK, [Sent(1, 10, set(), True)], [stranger])
    assert laws(reading) == [Law.SENT]
    assert reading.duplicates == 0


def test_data_vary_in_size_around_their_mean() -> None:
    sizes = [len(BOOK.data_of(Id(0, number))) for number in range(300)]
    assert min(sizes) >= 150
    assert max(sizes) < 450
    assert 270 < sum(sizes) / len(sizes) < 330


def aggregate(*records: tuple[str, int | None, bytes]) -> bytes:
    """Return an aggregate as Amazon's own library for producers writes it."""
    made = RecordAggregator()
    for key, hash_key, data in records:
        made.add_user_record(key, data, None if hash_key is None else str(hash_key))
    contents: bytes = made.clear_and_get().get_contents()[2]
    return contents


def entry(data: bytes, hashes: range = WHOLE) -> Entry:
    return Entry("shardId-000000000000", hashes, "1", "key", data)


def test_a_plain_record_is_handed_as_it_is() -> None:
    assert handed_by_rule(entry(b"data")) == [Handed("key", b"data")]


def test_an_aggregate_is_taken_apart() -> None:
    data = aggregate(("a", None, b"1"), ("b", 5, b"2"))
    assert handed_by_rule(entry(data)) == [Handed("a", b"1"), Handed("b", b"2")]


@pytest.mark.parametrize("hash_key", [None, 5])
def test_an_aggregate_with_one_record_of_another_shard_is_dropped_whole(hash_key: int | None) -> None:
    there = int.from_bytes(hashlib.md5(b"a").digest(), "big") if hash_key is None else hash_key
    data = aggregate(("a", hash_key, b"1"), ("b", there + 1, b"2"))
    assert len(handed_by_rule(entry(data, range(there, there + 2)))) == 2
    assert handed_by_rule(entry(data, range(there, there + 1))) == []
    assert handed_by_rule(entry(data, range(there + 1, there + 2))) == []


def test_an_aggregate_whose_digest_is_wrong_is_a_plain_record() -> None:
    data = aggregate(("a", None, b"1"))
    spoiled = data[:-1] + bytes([data[-1] ^ 1])
    assert handed_by_rule(entry(spoiled)) == [Handed("key", spoiled)]
