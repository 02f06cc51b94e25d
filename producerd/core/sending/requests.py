"""Request: rows on their way to Kinesis, numbered through the spans that it took them from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from producerd.core.encoding.entries import EncodedRequest
from producerd.core.lanes.lane import ANY, Lane, Piece, spans_of
from producerd.core.rows.spans import Span
from producerd.core.rules import EntryRules
from producerd.core.shards.shard_map import ShardMap


class Request:
    """Rows on their way to Kinesis.  ``bytes`` and ``entries`` are bounds until it is encoded.

    ``max_bytes``: what it may have, or exactly one larger row.
    ``shard_map``: the newest when it was taken.
    ``aggregate_bytes``: the largest aggregate to make of each lane's rows.  ``paid``: the entries and bytes that lanes'
    pacers were charged.  ``sequences``: the highest sequence number that each lane had seen when this was sent.
    ``timeout_seconds``: how long to wait for the answer; ``timeouts``: how often in a row these rows had none.
    """

    __slots__ = (
        "_ends",
        "aggregate_bytes",
        "bytes",
        "encoded",
        "entries",
        "max_bytes",
        "paid",
        "pieces",
        "sent_at",
        "sequences",
        "shard_map",
        "slow",
        "timeout_seconds",
        "timeouts",
    )

    def __init__(self, shard_map: ShardMap, max_bytes: int = ANY) -> None:
        self.shard_map = shard_map
        self.max_bytes = max_bytes
        self.pieces: list[Piece] = []
        self.bytes = 0
        self.entries = 0
        self.aggregate_bytes: dict[Lane, int] = {}
        self.paid: dict[Lane, tuple[int, int]] = {}
        self.sequences: dict[Lane, int] = {}
        self.encoded: EncodedRequest | None = None
        self.sent_at = 0.0
        self.timeout_seconds = 0.0
        self.timeouts = 0
        self.slow = False  # known, before its answer came
        self._ends: npt.NDArray[np.int64] | None = None

    def add(self, lane: Lane, spans: Sequence[Span], bytes_: int, entries: int, aggregate_bytes: int) -> None:
        """More rows, before it is sent."""
        self.pieces += [Piece(lane, span) for span in spans]
        self.bytes += bytes_
        self.entries += entries
        self.aggregate_bytes[lane] = aggregate_bytes
        self.timeouts = max(self.timeouts, max([span.timeouts for span in spans]))

    def pay(self, lane: Lane, entries: int, bytes_: int) -> None:
        """So much was charged to a lane's pacer."""
        before = self.paid.get(lane, (0, 0))
        self.paid[lane] = (before[0] + entries, before[1] + bytes_)

    def begin(self) -> None:
        """It has all of its rows, and is to be encoded."""
        self.sequences = {lane: lane.sequence for lane in self.lanes}

    def sent(self, encoded: EncodedRequest, sent_at: float, timeout_seconds: float) -> None:
        """It is encoded, and on its way."""
        self.encoded, self.sent_at, self.timeout_seconds = encoded, sent_at, timeout_seconds

    def slowed(self) -> None:
        """It has had no answer for long: one of its shards holds up the others' rows."""
        self.slow = True

    def is_full(self, rules: EntryRules) -> bool:
        return self.bytes >= self.max_bytes or self.entries >= rules.request_max_records

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """The number of its rows up to the end of each piece."""
        if self._ends is None:
            self._ends = ends_of(self.pieces)
        return self._ends

    @property
    def records(self) -> int:
        return int(self.ends[-1])

    @property
    def spans(self) -> list[Span]:
        return spans_of(self.pieces)

    @property
    def lanes(self) -> list[Lane]:
        return list(dict.fromkeys([piece.lane for piece in self.pieces]))

    def pieces_of(self, first: int, last: int) -> Iterator[Piece]:
        """The pieces of its rows ``first`` to ``last`` (excluded), cut to them."""
        place = int(np.searchsorted(self.ends, first, side="right"))
        while first < last:
            lane, span = self.pieces[place]
            end = int(self.ends[place])
            start = end - span.records
            if start < first:
                span = span.cut(span.first + first - start)[1]
            if last < end:
                span = span.cut(span.last - (end - last))[0]
            yield Piece(lane, span)
            first, place = end, place + 1

    def keep(self, records: int) -> list[Piece]:
        """Leave it its first rows; returns the others."""
        back = list(self.pieces_of(records, self.records))
        self.pieces = list(self.pieces_of(0, records))
        self._ends = None
        return back


def first_of(pieces: list[Piece], max_bytes: int) -> tuple[list[Piece], list[Piece]]:
    """The first rows of some pieces, within so many bytes or exactly one, and the others."""
    for place, (lane, span) in enumerate(pieces):
        if span.bytes > max_bytes:
            rows = int(np.searchsorted(span.sizes(), max_bytes, side="right")) - 1
            parts = [Piece(lane, part) for part in span.cut(span.first + (rows if place else max(rows, 1)))]
            first, others = ([part] if part.span.records else [] for part in parts)
            return [*pieces[:place], *first], [*others, *pieces[place + 1 :]]
        max_bytes -= span.bytes
    return pieces, []


def ends_of(pieces: Sequence[Piece]) -> npt.NDArray[np.int64]:
    """The number of rows up to the end of each piece."""
    return np.cumsum([piece.span.last - piece.span.first for piece in pieces])
