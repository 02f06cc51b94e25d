"""Requests: rows on their way to Kinesis, numbered through the spans from which they were taken."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import numpy as np

from producerd.core.encoding.entries import EncodedRequest
from producerd.core.lanes.lane import Piece, lanes_of, spans_of
from producerd.core.lanes.taken import Taken
from producerd.core.rows.spans import Span, runs_of
from producerd.core.sending.answers import RequestFailed
from producerd.core.shards.shard_map import ShardMap


class Request:
    """Rows on their way to Kinesis.  ``bytes`` is an upper bound of their size.

    - ``shard_map``: the newest map when its rows were taken.
    - ``lanes``: the lanes of its rows.  A lane's index here is its number in the encoded request.
    - ``aggregate_bytes``: for each of these lanes the size of the largest aggregate of its rows, or 0.
    - ``paid``: for each lane the entries and bytes charged to its pacer.
    - ``sequences``: the highest sequence number that each lane had seen when its rows were taken.
    - ``timeout_seconds``: how long to wait for the answer.  ``timeouts``: the most requests in a row that any of its
      rows saw time out.
    - ``slow``: it has waited for its answer for long.
    - ``refused``: how its rows were refused in CBOR before, if they go in JSON because of that.
    """

    __slots__ = (
        "_ends",
        "aggregate_bytes",
        "bytes",
        "encoded",
        "lanes",
        "paid",
        "pieces",
        "refused",
        "sent_at",
        "sequences",
        "shard_map",
        "slow",
        "timeout_seconds",
        "timeouts",
    )

    def __init__(self, taken: Taken, shard_map: ShardMap, refused: RequestFailed | None = None) -> None:
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
        self.refused = refused
        self._ends: list[int] | None = None

    def __repr__(self) -> str:
        state = "to be encoded" if self.encoded is None else f"sent at {self.sent_at:.3f}"
        return f"<Request of {self.records} rows, {self.bytes} bytes, {len(self.lanes)} lanes, {state}>"

    def mark_sent(self, encoded: EncodedRequest, sent_at: float, timeout_seconds: float) -> None:
        """Note that it is encoded and on its way."""
        self.encoded, self.sent_at, self.timeout_seconds = encoded, sent_at, timeout_seconds

    def wait_at_most(self, timeout_seconds: float) -> None:
        """Shorten its time-out to this, if it is longer."""
        self.timeout_seconds = min(self.timeout_seconds, timeout_seconds)

    def slowed(self) -> None:
        """Note that it has waited for long: one of its shards holds back the rows of the others."""
        self.slow = True

    def return_charge(self) -> None:
        """Return to its lanes their charge, because it stored nothing."""
        if self.encoded is None:
            paid = self.paid
        else:
            paid = dict(zip(self.lanes, self.encoded.of_lanes(len(self.lanes)), strict=True))
        for lane, (entries, bytes_) in paid.items():
            lane.refund(entries, bytes_)

    @property
    def ends(self) -> list[int]:
        """The number of its rows up to the end of each piece."""
        if self._ends is None:
            self._ends = ends_of(self.pieces)
        return self._ends

    @property
    def records(self) -> int:
        """The number of its rows."""
        return self.ends[-1]

    @property
    def spans(self) -> list[Span]:
        """Its spans, without their lanes."""
        return spans_of(self.pieces)

    @property
    def numbered(self) -> list[tuple[int, Span]]:
        """Its spans, each with the number of its lane."""
        numbers = {lane: number for number, lane in enumerate(self.lanes)}
        return [(numbers[lane], span) for lane, span in self.pieces]

    def pieces_of(self, first: int, last: int) -> Iterator[Piece]:
        """Yield the pieces of its rows from ``first`` up to ``last`` (excluded), cut to these rows."""
        place = bisect_right(self.ends, first)
        while first < last:
            lane, span = self.pieces[place]
            end = self.ends[place]
            start = end - span.records
            if start < first:
                span = span.cut(span.first + first - start)[1]
            if last < end:
                span = span.cut(span.last - (end - last))[0]
            yield Piece(lane, span)
            first, place = end, place + 1

    def keep(self, records: int) -> list[Piece]:
        """Keep only its first rows, and return the others.

        The remaining lanes keep their numbers, because the lanes without rows are the last ones.
        """
        back = list(self.pieces_of(records, self.records))
        self.pieces = list(self.pieces_of(0, records))
        self.lanes = tuple(lanes_of(self.pieces))
        self._ends = None
        return back


def begin(pieces: Iterable[Piece]) -> None:
    """Note that rows are in a request."""
    for job, first, last in runs_of(spans_of(pieces)):
        job.begin(first, last)


def first_of(pieces: list[Piece], max_bytes: int) -> tuple[list[Piece], list[Piece]]:
    """Divide pieces into their first rows, up to ``max_bytes`` or a single larger row, and the others."""
    for place, (lane, span) in enumerate(pieces):
        if span.bytes > max_bytes:
            rows = int(np.searchsorted(span.sizes(), max_bytes, side="right")) - 1
            halves = [Piece(lane, half) for half in span.cut(span.first + (rows if place else max(rows, 1)))]
            first, others = ([half] if half.span.records else [] for half in halves)
            return [*pieces[:place], *first], [*others, *pieces[place + 1 :]]
        max_bytes -= span.bytes
    return pieces, []


def cut_pieces(pieces: Sequence[Piece], at: int) -> tuple[list[Piece], list[Piece]]:
    """Divide pieces into their rows before number ``at``, and those from it on."""
    before: list[Piece] = []
    for place, (lane, span) in enumerate(pieces):
        if at < span.records:
            halves = [Piece(lane, half) for half in span.cut(span.first + at)]
            return [*before, *halves[: at > 0]], [*halves[1:], *pieces[place + 1 :]]
        before.append(Piece(lane, span))
        at -= span.records
    return before, []


def parts_of(request: Request, pieces: list[Piece], named: int = 0) -> tuple[list[Piece], list[Piece]]:
    """Divide the rows of a request, which are in ``pieces``, in two parts that are to be sent apart.

    These are its halves, cut between two entries if it has two.  If Kinesis has ``named`` the number of an entry, they
    are that entry and all others.
    """
    starts = [0, *request.encoded.ends.tolist()] if request.encoded is not None else []
    first, last = (starts[named - 1], starts[named]) if 0 < named < len(starts) else (0, 0)
    if not 0 < last - first < request.records:
        first, last = 0, starts[(len(starts) - 1) // 2] if len(starts) > 2 else 0
    if not 0 < last - first < request.records:  # the last row may have been cut into most of the entries
        first, last = 0, request.records // 2
    before, others = cut_pieces(pieces, first)
    part, after = cut_pieces(others, last - first)
    return part, before + after


def ends_of(pieces: Sequence[Piece]) -> list[int]:
    """Return for each piece the number of rows up to its end."""
    return [*accumulate([span.last - span.first for _, span in pieces])]
