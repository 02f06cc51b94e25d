"""Request: rows on their way to Kinesis, numbered through the spans that it took them from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from producerd.core.entries import EncodedRequest, Piece
from producerd.core.lanes import Lane
from producerd.core.spans import Job


class Request:
    """Rows on their way to Kinesis.  ``ends``: the number of its rows up to the end of each piece."""

    __slots__ = ("attempts", "bytes", "encoded", "ends", "pieces")

    def __init__(self, pieces: list[Piece], bytes_: int) -> None:
        self.pieces = pieces
        self.bytes = bytes_
        self.ends = ends_of(pieces)
        self.attempts = max([piece.span.attempts for piece in pieces])
        self.encoded: EncodedRequest | None = None

    @property
    def records(self) -> int:
        return int(self.ends[-1])

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
        self.ends = ends_of(self.pieces)
        return back


def ends_of(pieces: Sequence[Piece]) -> npt.NDArray[np.int64]:
    """The number of rows up to the end of each piece."""
    return np.cumsum([piece.span.last - piece.span.first for piece in pieces])


def runs_of(pieces: Sequence[Piece]) -> list[tuple[Job, int, int]]:
    """The rows of some pieces as (job, first, last): neighbouring spans of a job together, to be settled at once."""
    runs: list[tuple[Job, int, int]] = []
    for _, span in pieces:
        job = span.buffer.job
        if runs and runs[-1][0] is job and runs[-1][2] == span.first:
            runs[-1] = (job, runs[-1][1], span.last)
        else:
            runs.append((job, span.first, span.last))
    return runs
