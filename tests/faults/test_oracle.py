"""The oracle finds each law of what is read that a test breaks, and names it with an example."""

from __future__ import annotations

import pytest

from tests.faults.oracle import Law, Reading, Sent, copies_within, judge
from tests.faults.reader import Handed
from tests.faults.records import Book, Id, Shape

SHAPE = Shape(data_bytes=60, keys=1)
BOOK = Book(7, {0: Shape(), 1: SHAPE})
FIRST = BOOK.data_of(Id(1, 0))


def read(numbers: list[int], acknowledged: set[int], *, sender: int = 1, ordered: bool = True) -> Reading:
    """Of ten records of a sender these were acknowledged, and these were read.  Sender 1 has a single key."""
    ids = [Id(sender, number) for number in numbers]
    handed = [Handed(BOOK.key_of(identity), BOOK.data_of(identity)) for identity in ids]
    return judge(BOOK, [Sent(sender, 10, acknowledged, ordered)], handed)


def laws(reading: Reading) -> list[Law]:
    return [broken.law for broken in reading.broken]


@pytest.mark.promise("acknowledged-record-read")
def test_an_acknowledged_record_that_is_not_read_is_named() -> None:
    reading = read([0, 2], {0, 1, 2})
    assert laws(reading) == [Law.READABLE]
    assert "1 of 3 are not: Id(sender=1, number=1)" in reading.broken[0].what
    assert reading.readable == 2


def test_copies_are_counted_and_are_no_fault_of_order() -> None:
    reading = read([0, 1, 0, 0, 2], {1, 2})
    assert (reading.readable, reading.duplicates, reading.broken) == (2, 2, [])
    assert copies_within(2, 2) == []
    assert copies_within(2, 1)[0].law == Law.COPIES


@pytest.mark.promise("acknowledged-record-read")
def test_first_copies_of_a_key_out_of_order_are_found_where_order_is_promised() -> None:
    assert laws(read([0, 2, 1, 3, 1], set())) == [Law.ORDER]
    assert read([0, 2, 1, 3, 1], set()).order_violations == 1
    assert laws(read([0, 2, 1], set(), ordered=False)) == []
    assert laws(read([3, 2, 1], set(), sender=0)) == [], "each record has another key"


@pytest.mark.promise("acknowledged-record-read")
@pytest.mark.parametrize(
    "stranger",
    [
        pytest.param(Handed("1-0", b"nobody's"), id="no id"),
        pytest.param(Handed("1-1", FIRST), id="another key"),
        pytest.param(Handed("1-0", FIRST[:-1]), id="cut"),
        pytest.param(Handed("1-0", BOOK.data_of(Id(1, 10))), id="never sent"),
        pytest.param(Handed("2-0", FIRST.replace(b"/0001/", b"/0002/")), id="unknown sender"),
        pytest.param(Handed("1-0", Book(8, {1: SHAPE}).data_of(Id(1, 0))), id="another run"),
    ],
)
def test_a_record_that_was_not_sent_is_found(stranger: Handed) -> None:
    assert laws(judge(BOOK, [Sent(1, 10, set(), True)], [stranger])) == [Law.SENT]
