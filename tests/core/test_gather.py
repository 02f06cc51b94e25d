"""`Cells` joins pieces into the same bytes as `bytes.join` does."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from producerd.core.encoding.gather import INLINE_BYTES, Cells, Texts

LENGTHS = [0, 1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 40]


@pytest.mark.parametrize("seed", range(50))
def test_slices_of_several_buffers_are_joined_row_by_row(seed: int) -> None:
    """Short ones too, up to a buffer's last byte; and other columns between."""
    random = Random(seed)
    rows = random.choice([1, 2, 100])
    buffers = [random.randbytes(random.choice([40, 41, 500])) for _ in range(random.choice([1, 3]))]
    which = np.array([random.randrange(len(buffers)) for _ in range(rows)], np.int32)
    lengths = np.array([random.choice(LENGTHS) for _ in range(rows)], np.int32)
    at_end = random.random() < 0.5
    offsets = np.array(
        [
            len(buffers[b]) - n if at_end else random.randint(0, len(buffers[b]) - n)
            for b, n in zip(which, lengths, strict=True)
        ],
        np.int32,
    )
    zeros = np.array([random.randint(0, INLINE_BYTES) for _ in range(rows)], np.int32)
    cells = Cells(rows, 5)
    cells.text(0, b"a text that came before the slices")
    cells.slices(1, buffers, which, offsets, lengths)
    cells.text(2, b"a text of more than twelve bytes")
    cells.zeros(3, zeros)
    slices = [buffers[b][at : at + n] for b, at, n in zip(which, offsets, lengths, strict=True)]
    expected = [
        b"".join((b"a text that came before the slices", text, b"a text of more than twelve bytes", bytes(count)))
        for text, count in zip(slices, zeros, strict=True)
    ]
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
