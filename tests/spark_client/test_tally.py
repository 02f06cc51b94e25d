"""A tally's counts are exact, however many rows and kinds of failure there are."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest

from producerd.errors import Code, Outcome, RowFailure
from producerd.wire.columns import lay_out
from producerd.wire.messages import Ack, RowCode
from spark_client.tally import Tally
from tests.spark_client.fake_daemon import ack_of

INVALID = RowCode(Outcome.NOT_STORED, Code.RECORD_INVALID, "data is null", judged=True)


def settle(tally: Tally, *codes: RowCode, first: int = 0) -> Sequence[int]:
    """Settle a frame in which every row failed, and nothing is sent again."""
    records = len(codes)
    ack = ack_of(1, records, dict(enumerate(codes)))
    return tally.add_ack(ack, range(first, first + records), "s", lay_out([b"k"] * records, [b"x"] * records))


def test_a_tally_begins_at_nothing() -> None:
    assert Tally() == Tally(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, {})


def test_waits_add_up() -> None:
    tally = Tally()
    for seconds in (0.5, 0.25):
        tally.add_blocked(seconds)
        tally.add_flushing(2 * seconds)
    assert (tally.seconds_blocked, tally.seconds_flushing) == (0.75, 1.5)


def test_rows_that_come_back_and_are_not_sent_again_are_failures() -> None:
    tally = Tally()
    back = [RowCode(Outcome.RETURNED, "", "the daemon stops", maybe) for maybe in (True, False)]
    assert settle(tally, *back, INVALID) == []
    assert tally.failures == (
        RowFailure(Code.RECORD_INVALID, "data is null", 1, False, (2,), "s", judged=True),
        RowFailure(Code.DRAINING, "the daemon stops", 2, True, (0, 1), "s"),
    )
    assert (tally.records, tally.returned, tally.possible_duplicates) == (3, 2, 0)


@pytest.mark.parametrize("sends_again", [False, True])
def test_rows_that_came_back_end_with_the_frame_that_they_are_sent_again_in(sends_again: bool) -> None:
    """Of four: one stored, one unknown, two given back, of which one may be stored."""
    unknown = RowCode(Outcome.UNKNOWN, Code.EXPIRED, "too old", True)
    back = [RowCode(Outcome.RETURNED, Code.DRAINING, "the daemon stops", maybe) for maybe in (False, True)]
    ack = Ack(*(1, 4, 1, 0, 1, 2), bitmap=b"\x0e", code_rows=struct.pack("<3H", 0, 1, 2), codes=(unknown, *back))
    tally, columns = Tally(), lay_out([b""] * 4, [b"x"] * 4)
    assert tally.add_ack(ack, [10, 11, 12, 13], "s", columns, sends_again=sends_again) == (
        [2, 3] if sends_again else []
    )
    assert (tally.records, tally.stored, tally.returned) == ((2, 1, 0) if sends_again else (4, 1, 2))
    assert tally.possible_duplicates == (1 if sends_again else 0)
    assert sum(failure.records for failure in tally.failures) == (1 if sends_again else 3)


def test_bad_rows_come_before_the_good_ones_that_were_refused_with_them() -> None:
    tally = Tally()
    settle(tally, RowCode(Outcome.NOT_STORED, Code.FRAME_REFUSED, "refused"), INVALID, INVALID)
    assert [(failure.code, failure.records) for failure in tally.failures] == [
        (Code.RECORD_INVALID, 2),
        (Code.FRAME_REFUSED, 1),
    ]


def test_more_than_64_kinds_of_failure_are_counted_together() -> None:
    """Judged rows are counted apart, and so are those that may be stored.  A kind that is known already stays itself.

    A code does not say whether a row was judged.
    """
    tally = Tally()
    settle(tally, *[RowCode(Outcome.NOT_STORED, f"Code{n}", "no") for n in range(64)])
    unjudged = replace(INVALID, judged=False)
    settle(tally, INVALID, unjudged, INVALID, replace(INVALID, outcome=Outcome.UNKNOWN), first=64)
    settle(tally, RowCode(Outcome.NOT_STORED, "Code0", "no"), first=68)
    more = "more kinds of failure than can be told apart here"
    assert tally.failures[-4:] == (
        RowFailure("OTHER", more, 1, False, (65,)),
        RowFailure(Code.RECORD_INVALID, more, 1, True, (67,), judged=True),
        RowFailure("Code0", "no", 2, False, (0, 68), "s"),
        RowFailure(Code.RECORD_INVALID, more, 2, False, (64, 66), judged=True),
    )
    assert len(tally.failures) == 67
    assert sum(failure.records for failure in tally.failures) == tally.records == 69


def test_a_failure_names_its_first_20_rows() -> None:
    tally = Tally()
    settle(tally, *[INVALID] * 21)
    assert tally.failures == (RowFailure(Code.RECORD_INVALID, "data is null", 21, False, tuple(range(20)), "s", True),)
