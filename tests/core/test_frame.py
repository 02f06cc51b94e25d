"""A frame is finished exactly when its last row ended, and it reports how and why each row ended that is not stored."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producerd.core.rows.frame import MAX_CODES, Frame, FrameColumn, RowEnd
from producerd.core.rows.intake import CheckedRows
from producerd.errors import Code, Outcome
from tests.core.rows import rows_of
from tests.core.stories import on_the_wire

pytestmark = pytest.mark.law("Frame", "Row")

OUTCOMES = (Outcome.NOT_STORED, Outcome.UNKNOWN, Outcome.RETURNED)


def good_rows(records: int) -> CheckedRows:
    return rows_of([(b"k", b"d", None)] * records)


def a_frame(records: int) -> Frame:
    return Frame(object(), 1, good_rows(records), 5_000)


def rows(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(numbers, np.int32)


END = st.builds(
    RowEnd, st.sampled_from(OUTCOMES), st.sampled_from(["A", "B"]), st.just("m"), st.booleans(), st.booleans()
)


@settings(max_examples=80)
@given(
    parts=st.lists(st.tuples(st.integers(1, 40), st.none() | END), min_size=1, max_size=8),
    stride=st.sampled_from([1, 7]),
)
def test_an_acknowledgement_names_each_row_that_is_not_stored_and_its_code(
    parts: list[tuple[int, RowEnd | None]], stride: int
) -> None:
    """Whatever rows end together, and in whatever order."""
    records = sum(size for size, _ in parts)
    frame, order = a_frame(records), sorted(range(records), key=lambda row: row * stride % 13)
    expected: dict[int, RowEnd] = {}
    for size, end in parts:
        assert not frame.finished
        part, order = order[:size], order[size:]
        if end is None:
            frame.store(size)
        else:
            frame.note_end(rows(*part), end)
            expected.update(dict.fromkeys(part, end))
    assert frame.finished
    ack = on_the_wire(frame.result())
    assert ack.stored == records - len(expected)
    assert {
        row: RowEnd(Outcome(c.outcome), c.code, c.message, c.maybe_stored, c.judged) for row, c in ack.failed_rows()
    } == expected


def test_a_frame_whose_rows_are_all_stored_says_so_with_its_tallies_alone() -> None:
    frame = a_frame(100)
    frame.store(60)
    frame.store(40)
    result = frame.result()
    assert (result.stored, result.bitmap, result.code_rows, result.codes) == (100, b"", b"", ())


def test_a_result_before_the_last_row_ended_is_refused_loudly() -> None:
    frame = a_frame(2)
    frame.store(1)
    with pytest.raises(AssertionError):
        frame.result()


def test_a_row_that_settles_twice_is_refused_loudly() -> None:
    frame = a_frame(2)
    frame.store(2)
    with pytest.raises(AssertionError, match="twice"):
        frame.store(1)
    with pytest.raises(AssertionError, match="twice"):
        a_frame(1).drop(2)


def test_frames_in_a_column_are_stored_together_and_end_rows_each_by_themselves() -> None:
    frames, lost = [a_frame(3) for _ in range(4)], RowEnd(Outcome.UNKNOWN, "LOST", "m")
    frames[0].note_end(rows(2), lost)
    column = FrameColumn(frames)
    assert column.store(np.array([0, 1, 3]), np.array([1, 3, 2])) == [frames[1]]
    assert [frame.unsettled for frame in frames] == [1, 0, 3, 1]
    frames[3].note_end(rows(0), lost)
    frames[2].drop(1)
    assert column.store(np.array([0, 2]), np.array([1, 2])) == [frames[0], frames[2]]
    assert [frame.tallies[Outcome.STORED] for frame in frames] == [2, 3, 2, 2]
    assert [on_the_wire(frame.result()).stored for frame in (frames[0], frames[1], frames[3])] == [2, 3, 2]
    with pytest.raises(AssertionError, match="a row settled twice"):
        column.store(np.array([1]), np.array([1]))
    with pytest.raises(AssertionError, match="a row settled twice"):
        frames[3].store(1)


@pytest.mark.parametrize("take_good", [False, True])
def test_bad_rows_end_with_their_own_reason_and_refuse_the_others_unless_the_good_are_taken(take_good: bool) -> None:
    checked = rows_of([(b"k", b"d", None), (b"\xff", None, None), (b"k", b"d", b"x"), (b"k", b"d", None)])
    frame = Frame(None, 1, checked, 5_000, takes_good=take_good)
    ended = frame.end_bad_rows()
    assert ended == {Code.RECORD_INVALID: 2} | ({} if take_good else {Code.FRAME_REFUSED: 2})
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


@pytest.mark.parametrize("take_good", [False, True])
@pytest.mark.parametrize("records", [1, 8, 9])
def test_a_frame_of_nothing_but_bad_rows_is_finished_at_once(records: int, take_good: bool) -> None:
    frame = Frame(None, 1, rows_of([(b"k", None, None)] * records), 5_000, takes_good=take_good)
    assert frame.end_bad_rows() == {Code.RECORD_INVALID: records}
    assert frame.finished
    ack = on_the_wire(frame.result())
    assert len(dict(ack.failed_rows())) == records
    assert [code.code for code in ack.codes] == [Code.RECORD_INVALID], "no row was good and refused"


def test_bad_rows_are_ended_only_before_the_frame_has_given_its_rows_away() -> None:
    frame = a_frame(3)
    assert not frame.end_bad_rows(), "none is bad, so none is refused"
    assert (frame.unsettled, frame.open_rows().tolist()) == (3, [0, 1, 2])
    frame.release_rows()
    with pytest.raises(AssertionError, match="before"):
        frame.end_bad_rows()


def test_messages_beyond_the_code_table_are_folded_and_outcomes_and_codes_are_kept() -> None:
    records = 2_000
    frame = a_frame(records + 1)
    for row in range(records):
        frame.note_end(rows(row), RowEnd(OUTCOMES[row % 3], f"C{row % 7}", f"message {row}", row % 2 == 0))
    frame.note_end(rows(records), RowEnd(OUTCOMES[0], "C0", "message 0", True))
    result = frame.result()
    assert len(result.codes) <= MAX_CODES
    found = dict(on_the_wire(result).failed_rows())
    messages = {row for row, code in found.items() if "left out" not in code.message}
    assert messages == {*range(MAX_CODES // 2), records}, "a message with a line is named again"
    for row in range(records):
        code = found[row]
        assert (code.outcome, code.code, code.maybe_stored) == (OUTCOMES[row % 3], f"C{row % 7}", row % 2 == 0)


def test_even_more_codes_than_lines_fit_the_table_and_outcomes_are_kept() -> None:
    records = 3_000
    frame = a_frame(records + 1)
    for row in range(records):
        frame.note_end(
            rows(row), RowEnd(OUTCOMES[row % 3], f"C{row}", f"message {row}", row // 3 % 2 == 0, row // 6 % 2 == 0)
        )
    frame.note_end(rows(records), RowEnd(OUTCOMES[0], "C150", "another message", True))
    result = frame.result()
    assert len(result.codes) == MAX_CODES
    found = dict(on_the_wire(result).failed_rows())
    assert (found[records].code, found[records - 1].code) == ("C150", "OTHER"), "a code with a line is named again"
    for row in range(records):
        assert (found[row].outcome, found[row].maybe_stored) == (OUTCOMES[row % 3], row // 3 % 2 == 0)
        assert found[row].judged is (row // 6 % 2 == 0)


def test_a_frame_counts_its_null_keys() -> None:
    frame = Frame(None, 1, rows_of([(None, b"d", None), (b"", b"d", None), (b"k", b"d", None)]), 5_000)
    assert frame.spread_keys == 2
    assert frame.row_charge_bytes == 5_000 - 1_024


def test_an_acknowledgement_counts_rows_sent_again_throttled_and_maybe_stored_twice() -> None:
    frame = a_frame(2)
    for records in (1, 2):
        frame.add_retries(records)
        frame.add_throttles(10 * records)
        frame.add_copies(100 * records)
    frame.store(2)
    ack = on_the_wire(frame.result())
    assert (ack.retries, ack.throttled, ack.possible_duplicates) == (3, 30, 300)
    quiet = a_frame(1)
    quiet.store(1)
    ack = on_the_wire(quiet.result())
    assert (ack.retries, ack.throttled, ack.possible_duplicates) == (0, 0, 0)


def test_of_several_withdrawals_the_earliest_row_counts_and_for_one_row_the_first_call() -> None:
    """The rows that were queued have ended so already, and those in a request end like them."""
    first, second = (RowEnd(Outcome.RETURNED, code, "m") for code in ("FIRST", "SECOND"))
    frame = a_frame(9)
    found = []
    for row, end in ((5, first), (7, second), (5, second), (3, None), (3, first)):
        frame.withdraw(row, end)
        found.append((frame.withdrawn_from, frame.withdrawn_as))
    assert found == [(5, first)] * 3 + [(3, None)] * 2


def test_copies_beyond_what_an_acknowledgement_holds_are_told_as_that_many() -> None:
    """Records that a proxy stores and refuses may be sent again for weeks."""
    frame = a_frame(1)
    frame.possible_duplicates = 2**40
    frame.store(1)
    assert on_the_wire(frame.result()).possible_duplicates == 2**32 - 1
