"""The ledger of one stream: all accepted frames until they finish, and the room that their rows hold.

A row settles exactly once.  Its place in the queue is free at that moment, its bytes when the last row of its buffer
has settled.  A finished frame is handed out once, if its owner is still there.
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
from producerd.core.shards.hash_keys import I32
from producerd.core.stats import StreamStats
from producerd.errors import Code, Outcome
from producerd.wire.columns import FRAME_CHARGE_BYTES

RETURNED: Final = RowEnd(Outcome.RETURNED, Code.DRAINING, "the daemon stops; these rows were not sent")
"""The end of rows that a stopping daemon returns to their sessions."""
_PREDECESSOR_FAILED: Final = RowEnd(
    Outcome.NOT_STORED, Code.PREDECESSOR_FAILED, "an earlier row of this session failed, and the stream keeps the order"
)


class Ledger:
    """The only place where rows settle.  The gate takes room from the budget, and the ledger releases it.

    ``keeps_order``: after a row failed, the later rows of its session fail too.
    """

    def __init__(self, budget: QueueBudget, stats: StreamStats, *, keeps_order: bool = False) -> None:
        self.budget = budget
        self.stats = stats
        self.draining = False
        self.frames: dict[Frame, None] = {}  # accepted and not finished, oldest first
        self.sorting: dict[Frame, None] = {}
        self._jobs: dict[Frame, Job] = {}  # for the frames that are sorted
        self.flushings: WeakSet[Flushing] = WeakSet()  # forgets a flush when its command has gone
        self._expiring: dict[float, dict[Frame, None]] = {}  # frames by their time-to-live, oldest first
        self._keeps_order = keeps_order
        self._failed_sessions: dict[object, None] = {}  # failed sessions that are still there
        self._finished: list[Frame] = []

    def return_new_frames(self) -> None:
        """Return frames that are accepted from now on to their sessions, because the daemon stops."""
        self.draining = True

    # ---- frames come and go

    def accept_frame(self, frame: Frame, now: float, ttl_seconds: float) -> None:
        """Accept a frame.  Rows of it that have ended already, which are the bad ones, are not counted."""
        frame.set_accepted(now, ttl_seconds)
        self.budget.release(frame.records - frame.unsettled, 0)
        self.stats.accepted(frame.unsettled, frame.charge_bytes)
        self.frames[frame] = None
        if ttl_seconds < inf:
            self._expiring.setdefault(ttl_seconds, {})[frame] = None
        if self.draining and frame.owner is not None:
            self.withdraw(frame, RETURNED)
        elif self.has_failed(frame.session):
            self.withdraw(frame, _PREDECESSOR_FAILED)

    def take_finished(self) -> list[Frame]:
        """Return the finished frames whose owner is still there, each once."""
        finished, self._finished = self._finished, []
        return finished

    def forget_session(self, owner: object) -> None:
        """Forget an owner that is gone.  It receives no further result."""
        self._failed_sessions.pop(owner, None)
        self._finished = [frame for frame in self._finished if frame.owner is not owner]

    def waiting_rows(self, frame: Frame) -> int:
        """Return how many rows of a frame are in no request and have not ended."""
        job = self._jobs.get(frame)
        return frame.unsettled if job is None else len(job.queued_positions_of(frame))

    # ---- sorting

    def sort(self, frames: Sequence[Frame]) -> None:
        """Note that the rows of some frames are being sorted."""
        self.sorting.update(dict.fromkeys(frames))

    def sorted(self, job: Job) -> None:
        """Move the charge of sorted rows from their frames' own buffers to the span buffers."""
        charge_bytes = job.charge_bytes + sum([buffer.charge_bytes for buffer in job.buffers])
        self.budget.release(0, sum([frame.row_charge_bytes for frame in job.frames]) - charge_bytes)
        job.count_frames()
        for frame in job.frames:
            del self.sorting[frame]
            frame.release_rows()
            if frame.finished:  # its rows ended while they were sorted, and only now their memory can be released
                self._end_queued(job, job.positions_of(frame))
            else:
                self._jobs[frame] = job

    def unsortable(self, frame: Frame, end: RowEnd) -> None:
        """End the rows of a frame that could not be sorted."""
        del self.sorting[frame]
        if frame.withdrawn_from == 0:
            frame.release_rows()
            self.budget.release(0, frame.row_charge_bytes)
        else:
            self.withdraw(frame, end)

    # ---- the order of a session

    def fail_session(self, owner: object) -> None:
        """Accept no later rows of a session whose rows were refused, if the order is kept."""
        if self._keeps_order:
            self._failed_sessions[owner] = None

    def has_failed(self, owner: object) -> bool:
        """Return whether a session's rows end as soon as they are accepted, because an earlier one failed."""
        return owner in self._failed_sessions

    def _fail_followers(self, frame: Frame, from_row: int) -> None:
        """End what a session sent after a failed row, if the order is kept."""
        if not self._keeps_order:
            return
        if frame.owner is not None:
            self.fail_session(frame.session)
        if not frame.finished:
            self.withdraw(frame, _PREDECESSOR_FAILED, from_row)
        for other in [other for other in self.frames if other.session is frame.session]:
            if other.frame_id > frame.frame_id:
                self.withdraw(other, _PREDECESSOR_FAILED)

    # ---- rows leave a request unsettled

    def left_request(self, spans: Sequence[Span], otherwise: RowEnd | None) -> None:
        """End the rows of a request that must not be sent again.  ``otherwise``: how all its other rows end as well."""
        for job in dict.fromkeys([span.job for span in spans]):
            for frame in job.frames:
                if frame.withdrawn_from is not None:
                    end, from_row = frame.withdrawn_as, frame.withdrawn_from
                    self.withdraw(frame, end, from_row)
                elif self.draining and frame.owner is not None and not frame.finished:
                    self.withdraw(frame, RETURNED)
                elif otherwise is not None and not frame.finished and not frame.outlasts(otherwise):
                    self.withdraw(frame, otherwise)

    def retried(self, span: Span) -> Span:
        """Count rows that will be sent again.  Returns their span with one more attempt."""
        self.stats.retried(span.records)
        for frame, records in span.job.records_by_frame(slice(span.first, span.last)):
            frame.add_retries(records)
        return span._replace(attempts=span.attempts + 1)

    def throttled(self, spans: Sequence[Span]) -> None:
        """Count rows that a shard throttled."""
        for span in spans:
            self.stats.throttled(span.records)
            for frame, records in span.job.records_by_frame(slice(span.first, span.last)):
                frame.add_throttles(records)

    def mark_maybe_stored(self, spans: Sequence[Span], cause: str) -> None:
        """Note that a send may have stored rows.  A copy that an earlier send may have stored is now a duplicate."""
        for span in spans:
            self._count_copies(span.job, slice(span.first, span.last))
            span.job.mark_maybe_stored(span.first, span.last, cause)

    # ---- rows expire

    def next_expiry(self) -> float:
        """Return the earliest time at which a frame with rows to send expires; ``inf`` if none expires."""
        return min(
            [
                next((frame.expires_at for frame in frames if frame.withdrawn_from != 0), inf)
                for frames in self._expiring.values()
            ],
            default=inf,
        )

    def expire(self, now: float, end: RowEnd) -> None:
        """End the rows that have waited too long, except those in a request."""
        for frames in list(self._expiring.values()):
            for frame in list(takewhile(lambda frame: frame.expires_at <= now, frames)):
                if frame.withdrawn_from != 0:
                    self.withdraw(frame, end)

    # ---- rows end

    def store(self, spans: Sequence[Span], now: float) -> None:
        """Settle rows of a request as stored."""
        stored: dict[Job, list[slice]] = {}
        delivery_seconds = self.stats.delivery_seconds
        for job, first, last in runs_of(spans):
            where = slice(first, last)
            job.settle_rows(first, last)
            self._count_copies(job, where)
            stored.setdefault(job, []).append(where)
        # One call for each job, because with many shards runs are short and most frames have rows in each.
        for job, runs in stored.items():
            if job.column is not None:
                counts = job.count_by_frame(*runs)
                places = counts.nonzero()[0]
                delivery_seconds.observe_each(now - job.accepted_at[places], counts[places])
                for frame in job.column.store(places, counts[places]):
                    self._finish(frame)
                continue
            for frame, records in job.records_by_frame(*runs):
                delivery_seconds.observe(now - frame.accepted_at, records)
                frame.store(records)
                self._finish(frame)
        attempts: dict[int, int] = {}
        for span in spans:
            attempts[span.attempts] = attempts.get(span.attempts, 0) + span.last - span.first
        for before, records in attempts.items():
            self.stats.attempts.observe(before + 1, records)
        self.stats.delivered(records_of(spans), sum([span.bytes for span in spans]), now)
        self._release(spans)

    def _count_copies(self, job: Job, where: slice) -> None:
        """Count the copies that earlier sends of these rows may have stored, now that another send has or may have.

        Every send that may have stored a row counts once, except the last one of a row that does not end STORED.
        """
        if job.maybe_stored is None or not (maybe := job.maybe_stored[where]).any():
            return
        for cause, records in zip(MAYBE_CAUSES[1:], np.bincount(maybe, minlength=9).tolist()[1:], strict=False):
            self.stats.possible_duplicate_records[cause] += records
        for frame, records in job.records_by_frame(np.flatnonzero(maybe) + where.start):
            frame.add_copies(records)

    def end_rows(self, span: Span, end: RowEnd) -> None:
        """End rows of a request in another way than STORED."""
        job, where = span.job, slice(span.first, span.last)
        job.settle_rows(span.first, span.last)
        for positions, row_end in _by_maybe(end, job.causes_of(where), np.arange(span.first, span.last)):
            for frame, rows in job.frames_of(positions):
                self._end(frame, rows, row_end)
        self._release([span])
        if self._keeps_order:
            for frame, rows in job.frames_of(where):
                if not (end.judged and frame.takes_good):
                    self._fail_followers(frame, int(rows.min()) + 1)

    def _release(self, spans: Sequence[Span]) -> None:
        """Release the room of settled rows of a request, and the buffers whose last rows they were."""
        records = charge_bytes = 0
        for span in spans:
            count = span.last - span.first
            records += count
            charge_bytes += span.job.release(span.buffer, count)
        self.budget.release(records, charge_bytes)

    def withdraw(self, frame: Frame, end: RowEnd | None, from_row: int = 0) -> None:
        """End the rows of a frame that are in no request, and send none of its rows again.

        ``end`` None: the rows are dropped without a result.  ``from_row``: the rows before this number stay as they
        are.
        """
        before = frame.unsettled
        frame.withdraw(from_row, end)
        if not before:
            return
        job = self._jobs.get(frame)
        if job is not None:
            positions = job.queued_positions_of(frame, from_row)
            rows, causes = job.rows_of(frame, positions), job.causes_of(positions)
            self._end_queued(job, positions)
        else:
            if frame not in self.sorting:  # otherwise `sorted` releases its memory
                frame.release_rows()
                self.budget.release(0, frame.row_charge_bytes)
            rows, causes = frame.open_rows(), None
        if len(rows):
            self.budget.release(len(rows), 0)
            for chosen, row_end in _by_maybe(end, causes, rows):
                self._end(frame, chosen, row_end)
        failed = end is not None and end.outcome is not Outcome.RETURNED and end is not _PREDECESSOR_FAILED
        if failed and frame.unsettled < before:
            self._fail_followers(frame, from_row)

    def _end_queued(self, job: Job, positions: npt.NDArray[np.intp]) -> None:
        """Settle queued rows in place and release their memory.  Their lanes skip them later."""
        if len(positions):
            self.budget.release(0, job.end_queued(positions))

    def _end(self, frame: Frame, rows: I32, end: RowEnd | None) -> None:
        """End rows of a frame, given by their numbers in it, in another way than STORED."""
        if end is None or frame.is_discarded:
            frame.drop(len(rows))
            self.stats.discarded_records["disconnected"] += len(rows)
        else:
            frame.note_end(rows, end)
            if frame.owner is None:
                self.stats.lost(len(rows), end.code)
            elif end.outcome is Outcome.RETURNED:
                self.stats.discarded_records["returned"] += len(rows)
            else:
                self.stats.failed_records[end.code] += len(rows)
        self._finish(frame)

    def withdraw_all(self, end: RowEnd, *, unsorted: bool = False) -> None:
        """End every row that is in no request, except in frames that outlast such an end.

        ``unsorted``: only in frames whose rows are not in a lane yet and are not being sorted.
        """
        frames = [frame for frame in self.frames if not frame.outlasts(end)]
        if unsorted:
            frames = [frame for frame in frames if frame not in self._jobs and frame not in self.sorting]
        # In reverse where the order is kept: otherwise the first frame's end would end the others as its followers.
        for frame in reversed(frames) if self._keeps_order else frames:
            self.withdraw(frame, end)

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
                    flushing.frame_finished(frame)
            self.budget.release(0, FRAME_CHARGE_BYTES)
            if frame.owner is not None:
                self._finished.append(frame)


_N = TypeVar("_N", bound=np.integer[Any])


def _by_maybe(
    end: RowEnd | None, causes: npt.NDArray[np.uint8] | None, rows: npt.NDArray[_N]
) -> list[tuple[npt.NDArray[_N], RowEnd | None]]:
    """Separate the rows that an earlier send may have stored.  Their outcome is UNKNOWN instead of NOT_STORED."""
    if end is None or causes is None or not causes.any():
        return [(rows, end)]
    maybe = causes != 0
    outcome = Outcome.UNKNOWN if end.outcome is Outcome.NOT_STORED else end.outcome
    halves = [(rows[~maybe], end), (rows[maybe], end._replace(outcome=outcome, maybe_stored=True))]
    return [(chosen, row_end) for chosen, row_end in halves if len(chosen)]
