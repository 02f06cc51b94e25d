"""Ledger: every accepted frame until it is finished, and what its rows hold of the budget until they settle.

A row settles exactly once.  Its record is free at that moment, its bytes when the last row of its buffer has settled.
A frame that is finished, after its last row, is handed out once, to an owner that is still there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from math import inf
from typing import Any, Final, TypeVar
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from producerd.core.budget import QueueBudget
from producerd.core.rows.flushing import Flushing
from producerd.core.rows.frame import Frame, RowEnd
from producerd.core.rows.job import MAYBE_CAUSES, Job
from producerd.core.rows.spans import Span, records_of, runs_of
from producerd.core.stats import StreamStats
from producerd.errors import Code, Outcome
from producerd.wire.columns import FRAME_CHARGE_BYTES

RETURNED: Final = RowEnd(Outcome.RETURNED, Code.DRAINING, "the daemon stops; these rows were not sent")
_PREDECESSOR_FAILED: Final = RowEnd(
    Outcome.NOT_STORED, Code.PREDECESSOR_FAILED, "an earlier row of this session failed, and the stream keeps the order"
)


class Ledger:
    """See the module's text.  The gate takes from the budget; the ledger releases."""

    def __init__(self, budget: QueueBudget, stats: StreamStats, *, keeps_order: bool = False) -> None:
        self.budget = budget
        self.stats = stats
        self.draining = False
        self.frames: dict[Frame, None] = {}  # accepted and not finished, oldest first
        self.sorting: dict[Frame, None] = {}
        self._jobs: dict[Frame, Job] = {}  # of the frames that are sorted
        self.flushings: WeakSet[Flushing] = WeakSet()  # one that nobody waits for any more is forgotten
        self._expiring: dict[float, dict[Frame, None]] = {}  # frames by their time-to-live, oldest first
        self._keeps_order = keeps_order
        self._failed_sessions: dict[object, None] = {}  # that are still there
        self._finished: list[Frame] = []

    def drain(self) -> None:
        """The daemon stops: frames accepted from now on go back to their sessions."""
        self.draining = True

    # ---- frames come and go

    def accept(self, frame: Frame, now: float, ttl_seconds: float) -> None:
        """A whole frame.  Its rows that ended already, the bad ones, are not accepted."""
        frame.accept(now, ttl_seconds)
        self.budget.release(frame.records - frame.unsettled, 0)
        self.stats.accepted(frame.unsettled, frame.charge_bytes)
        self.frames[frame] = None
        if ttl_seconds < inf:
            self._expiring.setdefault(ttl_seconds, {})[frame] = None
        if self.draining and frame.owner is not None:
            self.withdraw(frame, RETURNED, "returned")
        elif self.has_failed(frame.session):
            self.withdraw(frame, _PREDECESSOR_FAILED, "")

    def take_finished(self) -> list[Frame]:
        """Frames whose last row settled and whose owner is still there, each once."""
        finished, self._finished = self._finished, []
        return finished

    def forget_session(self, owner: object) -> None:
        """An owner is gone: it is told nothing more."""
        self._failed_sessions.pop(owner, None)
        self._finished = [frame for frame in self._finished if frame.owner is not owner]

    def waiting_rows(self, frame: Frame) -> int:
        """How many rows of a frame are in no request and have not ended."""
        job = self._jobs.get(frame)
        return frame.unsettled if job is None else len(job.queued_positions_of(frame))

    # ---- sorting

    def sort(self, frames: Sequence[Frame]) -> None:
        """The rows of some frames are being sorted."""
        self.sorting.update(dict.fromkeys(frames))

    def sorted(self, job: Job) -> None:
        """The rows of some frames are sorted: their charge moves from the frames' own buffers to the span buffers."""
        charge_bytes = job.charge_bytes + sum([buffer.charge_bytes for buffer in job.buffers])
        self.budget.release(0, sum([frame.row_charge_bytes for frame in job.frames]) - charge_bytes)
        for frame in job.frames:
            del self.sorting[frame]
            frame.release_rows()
            if frame.finished:  # while it was sorted: its rows have ended, their memory has not
                self._end_queued(job, job.positions_of(frame))
            else:
                self._jobs[frame] = job

    def unsortable(self, frame: Frame, end: RowEnd) -> None:
        """Sorting this frame raised."""
        del self.sorting[frame]
        if frame.withdrawn_from == 0:
            frame.release_rows()
            self.budget.release(0, frame.row_charge_bytes)
        else:
            self.withdraw(frame, end, "")

    # ---- the order of a session

    def fail_session(self, owner: object) -> None:
        """Rows of it were refused: where the order is kept, none of its later rows is accepted."""
        if self._keeps_order:
            self._failed_sessions[owner] = None

    def has_failed(self, owner: object) -> bool:
        """Whether the rows of this session end as soon as they are accepted, because an earlier one failed."""
        return owner in self._failed_sessions

    def _fail_followers(self, frame: Frame, from_row: int) -> None:
        """Where the order is kept: what a session sent after a row that failed is not sent any more."""
        if not self._keeps_order:
            return
        if frame.owner is not None:
            self.fail_session(frame.session)
        if not frame.finished:
            self.withdraw(frame, _PREDECESSOR_FAILED, "", from_row)
        for other in [other for other in self.frames if other.session is frame.session]:
            if other.frame_id > frame.frame_id:
                self.withdraw(other, _PREDECESSOR_FAILED, "")

    # ---- rows go back

    def left_request(self, spans: Sequence[Span], otherwise: RowEnd | None) -> None:
        """Rows are in no request any more: those to be sent no more end.  ``otherwise``: how all the others end too."""
        for job in dict.fromkeys([span.job for span in spans]):
            for frame in job.frames:
                if frame.withdrawn_from is not None:
                    end, from_row = frame.withdrawn_as, frame.withdrawn_from
                    self.withdraw(frame, end, "disconnected" if end is None else "returned", from_row)
                elif self.draining and frame.owner is not None and not frame.finished:
                    self.withdraw(frame, RETURNED, "returned")
                elif otherwise is not None and not frame.finished and not frame.outlasts(otherwise):
                    self.withdraw(frame, otherwise, "")

    def retried(self, span: Span) -> Span:
        """Count that rows are sent again.  Returns their span with one more attempt."""
        self.stats.retried(span.records)
        for frame, records in span.job.records_by_frame(slice(span.first, span.last)):
            frame.add_retries(records)
        return span._replace(attempts=span.attempts + 1)

    def throttled(self, spans: Sequence[Span]) -> None:
        """Count that rows were throttled."""
        for span in spans:
            self.stats.throttled(span.records)
            for frame, records in span.job.records_by_frame(slice(span.first, span.last)):
                frame.add_throttles(records)

    def mark_maybe_stored(self, spans: Sequence[Span], cause: str) -> None:
        """Note that a send may have stored rows.  What an earlier send may have stored is now a surplus copy."""
        for span in spans:
            self._count_copies(span.job, slice(span.first, span.last))
            span.job.mark_maybe_stored(span.first, span.last, cause)

    # ---- rows expire

    def next_expiry(self) -> float:
        """When the next frame that has rows to send expires."""
        return min(
            [
                next((frame.expires_at for frame in frames if frame.withdrawn_from != 0), inf)
                for frames in self._expiring.values()
            ],
            default=inf,
        )

    def expire(self, now: float, end: RowEnd) -> None:
        """Rows that have waited too long end, but for those in a request."""
        for frames in list(self._expiring.values()):
            for frame in list(takewhile(lambda frame: frame.expires_at <= now, frames)):
                if frame.withdrawn_from != 0:
                    self.withdraw(frame, end, "")

    # ---- rows end

    def store(self, spans: Sequence[Span], now: float) -> None:
        """Rows of a request are in the stream."""
        stored: dict[Job, list[slice]] = {}
        for job, first, last in runs_of(spans):
            where = slice(first, last)
            job.settle(first, last)
            self._count_copies(job, where)
            stored.setdefault(job, []).append(where)
        # Once a job: with many shards each run is short, and most frames have some rows in each.
        for job, runs in stored.items():
            for frame, records in job.records_by_frame(*runs):
                self.stats.delivery_seconds.add(now - frame.accepted_at, records)
                frame.store(records)
                self._finish(frame)
        for span in spans:
            self.stats.attempts.add(span.attempts + 1, span.last - span.first)
        self.stats.delivered(records_of(spans), sum([span.bytes for span in spans]), now)
        self._release(spans)

    def _count_copies(self, job: Job, where: slice) -> None:
        """Rows are in the stream once more, for certain or maybe: count the copy that the send before may have left.

        So every send that may have stored a row counts once, except the last one of a row that does not end STORED.
        """
        if job.maybe_stored is None or not (maybe := job.maybe_stored[where]).any():
            return
        for cause, records in zip(MAYBE_CAUSES[1:], np.bincount(maybe, minlength=9).tolist()[1:], strict=False):
            self.stats.possible_duplicate_records[cause] += records
        for frame, records in job.records_by_frame(np.flatnonzero(maybe) + where.start):
            frame.add_copies(records)

    def end(self, span: Span, end: RowEnd) -> None:
        """Rows of a request end, and are not stored for certain."""
        job, where = span.job, slice(span.first, span.last)
        job.settle(span.first, span.last)
        self.stats.failed_records[end.code] += span.records
        maybe = job.maybe_stored[where] if job.maybe_stored is not None else None
        for chosen, row_end in _by_maybe(end, maybe, np.arange(span.first, span.last)):
            for frame, rows in job.frames_of(chosen):
                frame.end(rows, row_end)
                self._finish(frame)
        self._release([span])
        if self._keeps_order:
            for frame, rows in job.frames_of(where):
                self._fail_followers(frame, int(rows.min()) + 1)

    def _release(self, spans: Sequence[Span]) -> None:
        """Rows of a request have settled: their records are free, and the buffers of which they were the last."""
        records = charge_bytes = 0
        for span in spans:
            count = span.last - span.first
            records += count
            charge_bytes += span.job.release(span.buffer, count)
        self.budget.release(records, charge_bytes)

    def withdraw(self, frame: Frame, end: RowEnd | None, reason: str, from_row: int = 0) -> None:
        """Rows of a frame that are in no request end now (None: nobody is told); no row of it is sent again.

        ``from_row``: the rows before that number are not meant.
        """
        before = frame.unsettled
        frame.withdraw(from_row, end)
        job = self._jobs.get(frame)
        if job is not None:
            positions = job.queued_positions_of(frame, from_row)
            self._end_queued(job, positions)
            self._end_rows(frame, job, positions, end, reason)
        elif frame.unsettled:
            if frame not in self.sorting:  # else its memory is let go when the sort is done
                frame.release_rows()
                self.budget.release(0, frame.row_charge_bytes)
            self._end_unsorted(frame, end, reason)
        failed = end is not None and end.outcome is not Outcome.RETURNED and end is not _PREDECESSOR_FAILED
        if failed and frame.unsettled < before:
            self._fail_followers(frame, from_row)

    def _end_queued(self, job: Job, positions: npt.NDArray[np.intp]) -> None:
        """Queued rows are needed no more: free what holds them.  Their lanes find them settled where they stand."""
        if len(positions):
            self.budget.release(0, job.end_queued(positions))

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
            rows = job.rows_of(frame, positions)
            maybe = job.maybe_stored[positions] if job.maybe_stored is not None else None
            for chosen, row_end in _by_maybe(end, maybe, rows):
                frame.end(chosen, row_end)
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

    def withdraw_all(self, end: RowEnd, *, unsorted: bool = False) -> None:
        """Every row that is in no request ends, except those of frames that outlast such an end.

        ``unsorted``: only those of frames whose rows are in no lane yet.
        """
        frames = [frame for frame in self.frames if not frame.outlasts(end)]
        if unsorted:
            frames = [frame for frame in frames if frame not in self._jobs and frame not in self.sorting]
        for frame in reversed(frames) if self._keeps_order else frames:  # else the later ones tell of the first alone
            self.withdraw(frame, end, "")

    def _finish(self, frame: Frame) -> None:
        if frame.finished and frame in self.frames:
            del self.frames[frame]
            self._jobs.pop(frame, None)
            if (expiring := self._expiring.get(frame.ttl_seconds)) is not None:
                del expiring[frame]
                if not expiring:
                    del self._expiring[frame.ttl_seconds]
            if self.flushings:
                for flushing in self.flushings:
                    flushing.finished(frame)
            self.budget.release(0, FRAME_CHARGE_BYTES)
            if frame.owner is not None:
                self._finished.append(frame)


_N = TypeVar("_N", bound=np.integer[Any])


def _by_maybe(
    end: RowEnd, causes: npt.NDArray[np.uint8] | None, rows: npt.NDArray[_N]
) -> list[tuple[npt.NDArray[_N], RowEnd]]:
    """Rows apart by whether an earlier attempt may have stored them: those are never told as NOT_STORED."""
    if causes is None or not causes.any():
        return [(rows, end)]
    maybe = causes != 0
    outcome = Outcome.UNKNOWN if end.outcome is Outcome.NOT_STORED else end.outcome
    halves = [(rows[~maybe], end), (rows[maybe], end._replace(outcome=outcome, maybe_stored=True))]
    return [(chosen, row_end) for chosen, row_end in halves if len(chosen)]
