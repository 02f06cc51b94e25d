"""Helpers that make the spans of rows which the encoders take, each with the number of its lane."""

from __future__ import annotations

from producerd.core.encoding.formats import CBOR, JSON
from producerd.core.rows.spans import Span
from tests.core.rows import Row, even_map, rows_of, sorted_of

SPECIAL_KEYS = [b'"', b"\\", b"\x00", b"\n\t\x1f", b"</script>", b"\x7f", "é€😀".encode(), "\u2028".encode(), b"%b{}"]
FORMATS = {format_.name: format_ for format_ in (JSON, CBOR)}
Numbered = list[tuple[int, Span]]
"""Spans with the numbers of their lanes."""


def pieces_of(rows: list[Row], shards: int = 1) -> Numbered:
    result = sorted_of([rows_of(rows)], even_map(shards), 1)
    return result.spans


def drop(pieces: Numbered, rows: int) -> Numbered:
    left: Numbered = []
    for lane, span in pieces:
        gone = min(rows, span.records)
        rows -= gone
        if gone < span.records:
            left.append((lane, span.cut(span.first + gone)[1]))
    return left
