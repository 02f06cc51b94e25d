"""A frame is finished exactly when its last row ended, and it reports how and why each row ended that is not stored."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from producerd.core.rows.frame import MAX_CODES, Frame, RowEnd
from producerd.core.rows.intake import CheckedRows
from producerd.errors import Code, Outcome
from tests.core.rows import rows_of
from tests.core.stories import on_the_wire

OUTCOMES = (Outcome.NOT_STORED, Outcome.UNKNOWN, Outcome.RETURNED)


def good_rows(records: int) -> CheckedRows:
    return rows_of([(b"k", b"d", None)] * records)


def a_frame(records: int) -> Frame:
    return Frame(object(), 1, good_rows(records), 5_000)


def rows(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(numbers, np.int32)


@pytest.mark.law("Frame")
@pytest.mark.parametrize("seed", range(200))
def test_an_acknowledgement_names_each_row_that_is_not_stored_and_its_code(seed: int) -> None:
    random = Random(seed)
    records = random.randint(1, 200)
    frame = a_frame(records)
    ends = [RowEnd(random.choice(OUTCOMES), f"C{i}", f"m{i}", random.random() < 0.5) for i in range(5)]
    ends = ends[: random.randint(1, 5)]
    left = list(range(records))
    random.shuffle(left)
    expected: dict[int, RowEnd] = {}
    stored = 0
    while left:
        assert not frame.finished
        part, left = left[: (size := random.randint(1, len(left)))], left[size:]
        if random.random() < 0.5:
            frame.store(len(part))
            stored += len(part)
        else:
            end = random.choice(ends)
            frame.end(rows(*part), end)
            expected.update(dict.fromkeys(part, end))
    assert frame.finished
    ack = on_the_wire(frame.result())
    assert ack.stored == stored
    found = {row: RowEnd(Outcome(c.outcome), c.code, c.message, c.maybe_stored) for row, c in ack.failed_rows()}
    assert found == expected


@pytest.mark.law("Frame")
def test_a_frame_whose_rows_are_all_stored_says_so_with_its_tallies_alone() -> None:
    frame = a_frame(100)
    frame.store(60)
    frame.store(40)
    result = frame.result()
    assert (result.stored, result.bitmap, result.code_rows, result.codes) == (100, b"", b"", ())


@pytest.mark.law("Frame")
def test_a_result_before_the_last_row_ended_is_refused_loudly() -> None:
    frame = a_frame(2)
    frame.store(1)
    with pytest.raises(AssertionError):
        frame.result()


@pytest.mark.law("Row")
def test_a_row_that_settles_twice_is_refused_loudly() -> None:
    frame = a_frame(2)
    frame.store(2)
    with pytest.raises(AssertionError, match="twice"):
        frame.store(1)
    with pytest.raises(AssertionError, match="twice"):
        a_frame(1).drop(2)


@pytest.mark.parametrize("take_good", [False, True])
def test_bad_rows_end_with_their_own_reason_and_refuse_the_others_unless_the_good_are_taken(take_good: bool) -> None:
    checked = rows_of([(b"k", b"d", None), (b"\xff", None, None), (b"k", b"d", b"x"), (b"k", b"d", None)])
    frame = Frame(None, 1, checked, 5_000)
    frame.end_bad_rows(take_good=take_good)
    assert frame.unsettled == (2 if take_good else 0)
    assert frame.open_rows().tolist() == ([0, 3] if take_good else [])
    if take_good:
        frame.store(2)
    found = dict(on_the_wire(frame.result()).failed_rows())
    assert "null" in found[1].message, "two reasons: the first one counts"
    assert "hash key" in found[2].message
    assert sorted(found) == ([1, 2] if take_good else [0, 1, 2, 3])
    if not take_good:
        assert "other rows" in found[0].message
    codes = {row: code.code for row, code in found.items()}
    assert codes == {row: Code.RECORD_INVALID if row in (1, 2) else Code.FRAME_REFUSED for row in found}


@pytest.mark.parametrize("records", [1, 8, 9])
def test_a_frame_of_nothing_but_bad_rows_is_finished_at_once(records: int) -> None:
    frame = Frame(None, 1, rows_of([(b"k", None, None)] * records), 5_000)
    frame.end_bad_rows(take_good=True)
    assert frame.finished
    assert len(dict(on_the_wire(frame.result()).failed_rows())) == records


@pytest.mark.law("Frame")
def test_messages_beyond_the_code_table_are_folded_and_outcomes_and_codes_are_kept() -> None:
    records = 2_000
    frame = a_frame(records)
    for row in range(records):
        frame.end(rows(row), RowEnd(OUTCOMES[row % 3], f"C{row % 7}", f"message {row}", row % 2 == 0))
    result = frame.result()
    assert len(result.codes) <= MAX_CODES
    found = dict(on_the_wire(result).failed_rows())
    for row in range(records):
        code = found[row]
        assert (code.outcome, code.code, code.maybe_stored) == (OUTCOMES[row % 3], f"C{row % 7}", row % 2 == 0)


@pytest.mark.law("Frame")
def test_even_more_codes_than_lines_fit_the_table_and_outcomes_are_kept() -> None:
    records = 3_000
    frame = a_frame(records)
    for row in range(records):
        frame.end(rows(row), RowEnd(OUTCOMES[row % 3], f"C{row}", f"message {row}", row // 3 % 2 == 0))
    result = frame.result()
    assert len(result.codes) <= MAX_CODES
    found = dict(on_the_wire(result).failed_rows())
    for row in range(records):
        assert (found[row].outcome, found[row].maybe_stored) == (OUTCOMES[row % 3], row // 3 % 2 == 0)


def test_a_frame_counts_its_null_keys() -> None:
    frame = Frame(None, 1, rows_of([(None, b"d", None), (b"", b"d", None), (b"k", b"d", None)]), 5_000)
    assert frame.spread_keys == 2
    assert frame.row_charge_bytes == 5_000 - 1_024


def test_copies_beyond_what_an_acknowledgement_holds_are_told_as_that_many() -> None:
    """Records that a proxy stores and refuses may be sent again for weeks."""
    frame = a_frame(1)
    frame.possible_duplicates = 2**40
    frame.store(1)
    assert on_the_wire(frame.result()).possible_duplicates == 2**32 - 1
