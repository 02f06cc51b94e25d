"""`Cells` joins pieces into the same bytes as `bytes.join` does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from producerd.core.encoding.gather import INLINE_BYTES, Cells, Texts

LENGTHS = [0, 1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 40]


@given(st.data())
def test_slices_of_several_buffers_are_joined_row_by_row(data: st.DataObject) -> None:
    """Short ones too, up to a buffer's last byte; and other columns between."""
    buffers = data.draw(st.lists(st.binary(min_size=40, max_size=60), min_size=1, max_size=3))
    length = st.sampled_from(LENGTHS)
    rows = data.draw(st.lists(st.tuples(st.sampled_from(range(len(buffers))), length, length), min_size=1))
    at_end = data.draw(st.booleans())
    offsets = [len(buffers[b]) - n if at_end else min(at, len(buffers[b]) - n) for b, n, at in rows]
    zeros = data.draw(st.lists(st.integers(0, INLINE_BYTES), min_size=len(rows), max_size=len(rows)))
    before, after = b"a text that came before the slices", b"a text of more than twelve bytes"
    cells = Cells(len(rows), 5)
    cells.text(0, before)
    which, lengths = (np.array([row[column] for row in rows], np.int32) for column in (0, 1))
    cells.slices(1, buffers, which, np.array(offsets, np.int32), lengths)
    cells.text(2, after)
    cells.zeros(3, np.array(zeros, np.int32))
    slices = [buffers[b][at : at + n] for (b, n, _), at in zip(rows, offsets, strict=True)]
    expected = [before + text + after + bytes(count) for text, count in zip(slices, zeros, strict=True)]
    assert bytes(cells.joined()) == b"".join(expected)


def test_one_buffer_and_one_offset_serve_all_rows() -> None:
    cells = Cells(3, 1)
    cells.slices(0, [b"unused", memoryview(b"0123456789abcdef")], 1, 2, np.array([1, 12, 14]))
    assert bytes(cells.joined()) == b"2" + b"23456789abcd" + b"23456789abcdef"


@pytest.mark.parametrize("text", [b"", b"x", b"twelve bytes", b"more than twelve"])
def test_a_text_takes_the_place_of_what_some_rows_had(text: bytes) -> None:
    for rows in (1, slice(1, None), np.array([1, 2])):
        cells = Cells(3, 1)
        cells.slices(0, [b"a" * 20], 0, 0, np.array([20, 20, 20]))
        cells.text(0, text, rows)
        expected = [b"a" * 20, text, b"a" * 20 if isinstance(rows, int) else text]
        assert bytes(cells.joined()) == b"".join(expected)


@pytest.mark.parametrize("lengths", [[0, 1, INLINE_BYTES], [INLINE_BYTES + 1, 40, 50]])
def test_each_row_takes_one_of_some_texts(lengths: list[int]) -> None:
    texts = [bytes([number]) * length for number, length in enumerate(lengths, ord("a"))]
    which = [0, len(texts) - 1, 1, 0]
    before = b"a text that came before, in a buffer"
    for in_table in range(2, len(texts) + 1):  # the other texts are made when they are asked for
        cells = Cells(4, 2)
        cells.text(0, before)
        cells.chosen(1, Texts(texts.__getitem__, in_table), np.array(which))
        assert bytes(cells.joined()) == b"".join(before + texts[at] for at in which)


@pytest.mark.parametrize("short", [0, 5, INLINE_BYTES])
def test_short_texts_and_long_ones_do_not_mix(short: int) -> None:
    with pytest.raises(ValueError, match="short texts and long ones"):
        Texts([bytes(short), bytes(INLINE_BYTES + 1)].__getitem__, 2).table  # noqa: B018 - it is made on demand


def test_the_end_comes_behind_all_rows() -> None:
    cells = Cells(2, 1)
    cells.text(0, b"row ")
    cells.end(b"the end of it all")
    assert bytes(cells.joined()) == b"row row the end of it all"


def test_what_was_not_given_is_nothing() -> None:
    assert bytes(Cells(5, 3).joined()) == b""
