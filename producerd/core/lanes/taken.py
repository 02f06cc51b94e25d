"""Rows taken from lanes for one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from producerd.core.lanes.lane import Lane, Piece
from producerd.core.rows.spans import Span
from producerd.core.rules import EntryRules

ANY: Final = 2**62
"""A number of bytes or entries that stands for no limit."""


class Taken:
    """Rows of some lanes for one request.  Encoding makes up to ``entries`` entries with ``bytes`` bytes of them.

    - ``max_bytes``: the most bytes of all rows together.  A single row may be larger.
    - ``aggregate_bytes``: for each lane the size of the largest aggregate of its rows, or 0 for plain records.
    - ``paid``: for each lane the entries and bytes charged to its pacer.
    - ``timeouts``: the most requests in a row that any of these rows saw time out.
    """

    __slots__ = ("aggregate_bytes", "bytes", "entries", "max_bytes", "paid", "pieces", "timeouts")

    def __init__(self, max_bytes: int = ANY) -> None:
        self.max_bytes = max_bytes
        self.pieces: list[Piece] = []
        self.bytes = 0
        self.entries = 0
        self.aggregate_bytes: dict[Lane, int] = {}
        self.paid: dict[Lane, tuple[int, int]] = {}
        self.timeouts = 0

    def add_rows(self, lane: Lane, spans: Sequence[Span], bytes_: int, entries: int, aggregate_bytes: int) -> None:
        """Add rows of a lane."""
        self.pieces += [Piece(lane, span) for span in spans]
        self.bytes += bytes_
        self.entries += entries
        self.aggregate_bytes[lane] = aggregate_bytes
        self.timeouts = max(self.timeouts, *[span.timeouts for span in spans])

    def pay(self, lane: Lane, entries: int, bytes_: int, now: float) -> None:
        """Charge the lane's pacer, if it has one."""
        if lane.pacer is not None:
            lane.pacer.take(entries, bytes_, now)
            before = self.paid.get(lane, (0, 0))
            self.paid[lane] = (before[0] + entries, before[1] + bytes_)

    def is_full(self, rules: EntryRules) -> bool:
        """Return whether no further row fits in a request by these rules."""
        return self.bytes >= self.max_bytes or self.entries >= rules.request_max_records
