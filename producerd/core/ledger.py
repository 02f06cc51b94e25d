"""Ledger: every accepted frame until it is finished, and what its rows hold of the budget until they settle.

A row settles exactly once.  Its record is free at that moment, its bytes when the last row of its buffer has settled.
A frame that is finished, after its last row, is handed out once, to an owner that is still there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from producerd.core.budget import QueueBudget
from producerd.core.entries import Piece
from producerd.core.frame import Frame, RowEnd
from producerd.core.requests import ends_of, runs_of
from producerd.core.spans import IN_REQUEST, QUEUED, SETTLED, Job, SortedRows, Span
from producerd.core.stats import StreamStats
from producerd.errors import Outcome
from producerd.wire.columns import FRAME_CHARGE_BYTES


class Ledger:
    """See the module's text.  The gate takes from the budget; the ledger releases."""

    def __init__(self, budget: QueueBudget, stats: StreamStats) -> None:
        self.budget = budget
        self.stats = stats
        self.frames: dict[Frame, None] = {}  # accepted and not finished, oldest first
        self.sorting: dict[Frame, None] = {}
        self._finished: list[Frame] = []

    # ---- frames come and go

    def accept(self, frame: Frame) -> None:
        """A whole frame.  Its rows that ended already, the bad ones, are not accepted."""
        self.budget.release(frame.records - frame.unsettled, 0)
        self.stats.ingest_records += frame.unsettled
        self.stats.ingest_bytes += frame.charge_bytes
        self.frames[frame] = None

    def take_finished(self) -> list[Frame]:
        """Frames whose last row settled and whose owner is still there, each once."""
        finished, self._finished = self._finished, []
        return finished

    def forget_finished(self, owner: object) -> None:
        """An owner is gone: it is told nothing more."""
        self._finished = [frame for frame in self._finished if frame.owner is not owner]

    # ---- sorting

    def sorted(self, frames: Sequence[Frame], rows: SortedRows) -> Job:
        """Their charge moves from the frames' own buffers to the span buffers."""
        job = Job(frames, rows)
        charge = job.charge_bytes + sum([buffer.charge_bytes for buffer in rows.buffers])
        self.budget.release(0, sum([frame.row_charge_bytes for frame in frames]) - charge)
        for frame in frames:
            del self.sorting[frame]
            frame.job, frame.rows = job, None
        for frame in frames:
            if frame.withdrawn:  # while it was sorted: its rows have ended, their memory has not
                self._let_go(job, job.positions_of(frame))
        return job

    def unsortable(self, frame: Frame, end: RowEnd) -> None:
        """Sorting this frame raised."""
        del self.sorting[frame]
        if frame.withdrawn:
            frame.rows = None
            self.budget.release(0, frame.row_charge_bytes)
        else:
            self.withdraw(frame, end, "")

    # ---- rows go back

    def retried(self, span: Span) -> Span:
        self.stats.retried_records += span.records
        for frame, rows in span.buffer.job.frames_of(slice(span.first, span.last)):
            frame.retries += len(rows)
        return span._replace(attempts=span.attempts + 1)

    def throttled(self, pieces: list[Piece]) -> None:
        for _, span in pieces:
            self.stats.throttled_records += span.records
            for frame, rows in span.buffer.job.frames_of(slice(span.first, span.last)):
                frame.throttled += len(rows)

    def mark_maybe_stored(self, pieces: list[Piece]) -> None:
        for _, span in pieces:
            span.buffer.job.mark_maybe_stored(span.first, span.last)

    # ---- rows end

    def store(self, pieces: list[Piece]) -> None:
        """Rows of a request are in the stream."""
        for job, first, last in runs_of(pieces):
            where = slice(first, last)
            self._settle(job, where)
            if job.maybe_stored is not None and (maybe := job.maybe_stored[where]).any():
                self.stats.possible_duplicate_records += int(maybe.sum())
                for frame, rows in job.frames_of(np.flatnonzero(maybe) + first):
                    frame.possible_duplicates += len(rows)
            self.stats.delivered_records += last - first
            for frame, rows in job.frames_of(where):
                frame.store(len(rows))
                self._finish(frame)
        self._shrink(pieces)

    def end(self, piece: Piece, end: RowEnd) -> None:
        """Rows of a request end otherwise."""
        span = piece.span
        job, where = span.buffer.job, slice(span.first, span.last)
        self._settle(job, where)
        self.stats.failed_records[end.code] += span.records
        maybe = job.maybe_stored[where] if job.maybe_stored is not None else None
        for chosen, told in _by_maybe(end, maybe, np.arange(span.first, span.last)):
            for frame, rows in job.frames_of(chosen):
                frame.end(rows, told)
                self._finish(frame)
        self._shrink([piece])

    def _settle(self, job: Job, where: slice) -> None:
        state = job.state[where]
        assert (state == IN_REQUEST).all(), "a row settled twice"
        state[:] = SETTLED

    def _shrink(self, pieces: list[Piece]) -> None:
        """Rows of a request have settled: their records are free, and the buffers of which they were the last."""
        charge = 0
        for _, span in pieces:
            buffer = span.buffer
            buffer.live -= span.last - span.first
            if not buffer.live:
                charge += buffer.let_go()
        self.budget.release(int(ends_of(pieces)[-1]), charge)

    def withdraw(self, frame: Frame, end: RowEnd | None, reason: str) -> None:
        """Rows of a frame that are in no request end now (None: nobody is told); no row of it is sent again."""
        if not frame.withdrawn:
            frame.withdrawn, frame.withdrawn_as = True, end
        if frame.job is not None:
            positions = frame.job.positions_of(frame)
            positions = positions[frame.job.state[positions] == QUEUED]
            self._let_go(frame.job, positions)
            self._end_rows(frame, frame.job, positions, end, reason)
        elif frame.unsettled:
            if frame not in self.sorting:  # else its memory is let go when the sort is done
                frame.rows = None
                self.budget.release(0, frame.row_charge_bytes)
            self._end_unsorted(frame, end, reason)

    def _let_go(self, job: Job, positions: npt.NDArray[np.intp]) -> None:
        """Queued rows are needed no more: free what holds them.  Their lanes find them settled where they stand."""
        if not len(positions):
            return
        job.state[positions] = SETTLED
        job.has_gaps = True
        for buffer, records in job.buffers_of(positions):
            buffer.live -= records
            if not buffer.live:
                self.budget.release(0, buffer.let_go())

    def _end_rows(
        self, frame: Frame, job: Job, positions: npt.NDArray[np.intp], end: RowEnd | None, reason: str
    ) -> None:
        if not len(positions):
            return
        self.budget.release(len(positions), 0)
        self._count_end(len(positions), end, reason)
        if end is None:
            frame.drop(len(positions))
        else:
            rows = job.order[positions] - np.int32(job.starts[job.frames.index(frame)])
            maybe = job.maybe_stored[positions] if job.maybe_stored is not None else None
            for chosen, told in _by_maybe(end, maybe, rows):
                frame.end(chosen, told)
        self._finish(frame)

    def _end_unsorted(self, frame: Frame, end: RowEnd | None, reason: str) -> None:
        records = frame.unsettled
        self.budget.release(records, 0)
        self._count_end(records, end, reason)
        if end is None:
            frame.drop(records)
        else:
            frame.end(frame.open_rows(), end)
        self._finish(frame)

    def _count_end(self, records: int, end: RowEnd | None, reason: str) -> None:
        if end is None or end.outcome is Outcome.RETURNED:
            self.stats.discarded_records[reason] += records
        else:
            self.stats.failed_records[end.code] += records

    def withdraw_all(self, end: RowEnd) -> None:
        """Every row that is in no request ends."""
        for frame in list(self.frames):
            self.withdraw(frame, end, "")

    def _finish(self, frame: Frame) -> None:
        if frame.finished and frame in self.frames:
            del self.frames[frame]
            self.budget.release(0, FRAME_CHARGE_BYTES)
            if frame.owner is not None:
                self._finished.append(frame)


_N = TypeVar("_N", bound=np.integer[Any])


def _by_maybe(
    end: RowEnd, maybe: npt.NDArray[np.bool_] | None, rows: npt.NDArray[_N]
) -> list[tuple[npt.NDArray[_N], RowEnd]]:
    """Rows apart by whether an earlier attempt may have stored them: those are never told as NOT_STORED."""
    if maybe is None or not maybe.any():
        return [(rows, end)]
    outcome = Outcome.UNKNOWN if end.outcome is Outcome.NOT_STORED else end.outcome
    parts = [(rows[~maybe], end), (rows[maybe], end._replace(outcome=outcome, maybe_stored=True))]
    return [(chosen, told) for chosen, told in parts if len(chosen)]
