"""Request: rows on their way to Kinesis, numbered through the spans that it took them from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from producerd.core.encoding.entries import EncodedRequest
from producerd.core.lanes.lane import Piece, lanes_of, spans_of
from producerd.core.lanes.taken import Taken
from producerd.core.rows.spans import Span
from producerd.core.shards.shard_map import ShardMap


class Request:
    """Rows on their way to Kinesis.  ``bytes`` is a bound until it is encoded.

    - ``shard_map``: the newest when it was taken.
    - ``lanes``: those that it has rows of; their places here are the numbers that encoding knows them by.
    - ``aggregate_bytes``: for each of these lanes the largest aggregate to make of its rows, or 0.
    - ``paid``: the entries and bytes that the pacers of lanes were charged.
    - ``sequences``: the highest sequence number that each lane had seen when it was taken.
    - ``timeout_seconds``: how long to wait for the answer; ``timeouts``: how often in a row these rows had none.
    - ``slow``: it has had no answer for long.
    """

    __slots__ = (
        "_ends",
        "aggregate_bytes",
        "bytes",
        "encoded",
        "lanes",
        "paid",
        "pieces",
        "sent_at",
        "sequences",
        "shard_map",
        "slow",
        "timeout_seconds",
        "timeouts",
    )

    def __init__(self, taken: Taken, shard_map: ShardMap) -> None:
        self.shard_map = shard_map
        self.pieces = taken.pieces
        self.bytes = taken.bytes
        self.timeouts = taken.timeouts
        self.paid = taken.paid
        self.lanes = tuple(taken.aggregate_bytes)
        self.aggregate_bytes = tuple(taken.aggregate_bytes.values())
        self.sequences = {lane: lane.sequence for lane in self.lanes}
        self.encoded: EncodedRequest | None = None
        self.sent_at = 0.0
        self.timeout_seconds = 0.0
        self.slow = False
        self._ends: npt.NDArray[np.int64] | None = None

    def __repr__(self) -> str:
        state = "to be encoded" if self.encoded is None else f"sent at {self.sent_at:.3f}"
        return f"<Request of {self.records} rows, {self.bytes} bytes, {len(self.lanes)} lanes, {state}>"

    def sent(self, encoded: EncodedRequest, sent_at: float, timeout_seconds: float) -> None:
        """It is encoded, and on its way."""
        self.encoded, self.sent_at, self.timeout_seconds = encoded, sent_at, timeout_seconds

    def slowed(self) -> None:
        """It has had no answer for long: one of its shards holds up the others' rows."""
        self.slow = True

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
    def numbered(self) -> list[tuple[int, Span]]:
        """Its spans, each with the number of its lane."""
        numbers = {lane: number for number, lane in enumerate(self.lanes)}
        return [(numbers[lane], span) for lane, span in self.pieces]

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
        """Leave it its first rows; returns the others.  The numbers of its lanes stay: those left out are the last."""
        back = list(self.pieces_of(records, self.records))
        self.pieces = list(self.pieces_of(0, records))
        self.lanes = tuple(lanes_of(self.pieces))
        self._ends = None
        return back


def first_of(pieces: list[Piece], max_bytes: int) -> tuple[list[Piece], list[Piece]]:
    """The first rows of some pieces, within so many bytes or exactly one, and the others."""
    for place, (lane, span) in enumerate(pieces):
        if span.bytes > max_bytes:
            rows = int(np.searchsorted(span.sizes(), max_bytes, side="right")) - 1
            halves = [Piece(lane, half) for half in span.cut(span.first + (rows if place else max(rows, 1)))]
            first, others = ([half] if half.span.records else [] for half in halves)
            return [*pieces[:place], *first], [*others, *pieces[place + 1 :]]
        max_bytes -= span.bytes
    return pieces, []


def ends_of(pieces: Sequence[Piece]) -> npt.NDArray[np.int64]:
    """The number of rows up to the end of each piece."""
    return np.cumsum([piece.span.last - piece.span.first for piece in pieces])
