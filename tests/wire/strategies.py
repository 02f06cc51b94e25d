"""What hypothesis draws for the wire: columns of rows, and damages of bytes."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from producerd.wire.columns import Columns, lay_out

DrawnRow = tuple[bytes | None, bytes | None, bytes | None]
VALUES: Final = st.none() | st.binary(max_size=20)
ROWS: Final = st.lists(st.tuples(VALUES, VALUES, st.sampled_from([None, b"", b"0", b"340"])), min_size=1, max_size=30)
DAMAGES: Final = st.lists(
    st.tuples(
        st.sampled_from(["change", "change", "cut", "insert", "append"]),
        st.integers(0, 400),
        st.binary(min_size=1, max_size=4)
        | st.sampled_from([b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\x7f", b"\x80"]),
    ),
    min_size=1,
    max_size=5,
)
"""Each: what is done, where, and with which bytes."""


def columns_of(rows: list[DrawnRow], *, hashed: bool) -> Columns:
    keys, data, hash_keys = ([row[i] for row in rows] for i in range(3))
    return lay_out(keys, data, hash_keys if hashed else None)


def damaged(whole: bytes, damages: list[tuple[str, int, bytes]], first: int = 0) -> bytes:
    """Some bytes after damages; none is cut off before ``first``."""
    data = bytearray(whole)
    for what, place, more in damages:
        at = place % len(data) if data else 0
        if what == "change":
            data[at : at + len(more)] = more[: len(data) - at]
        elif what == "cut":
            del data[max(at, first) :]
        elif what == "insert":
            data[max(at, first) : max(at, first)] = more
        else:
            data += more
    return bytes(data)
