"""Jobs: sorted batches of frames.  A job knows the state and the frame of each of its rows."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from producerd.core.rows.buffers import JOB_CHARGE_BYTES, SpanBuffer
from producerd.core.rows.frame import Frame, FrameColumn
from producerd.core.shards.hash_keys import I32

MAYBE_CAUSES: Final = ("", "timeout", "connection", "service", "result_count", "reshard")
"""Causes for which a row that is sent again may be stored already.

In this order: none, no answer in time, a broken connection, an error of Kinesis or a proxy, a wrong number of results,
an aggregate in a shard where a consumer drops it.
"""
AWAITING_MAP: Final = "awaiting a map"
"""The cause while an aggregate, stored in a shard of unknown range, waits for a map that decides about its rows."""
_MARKS: Final = (*MAYBE_CAUSES, AWAITING_MAP)

FEW_FRAMES: Final = 12
"""Frames up to which it is faster to count the rows of each by itself."""

# The states of a row.
QUEUED: Final = 0
IN_REQUEST: Final = 1
SETTLED: Final = 2


class Job:
    """A batch of frames after sorting.  It guarantees that each row settles exactly once.

    - A row is named by its position in the sorted order.  ``order`` has its number, counted through all frames.
    - ``accepted_at``: when each of its frames was accepted, as a column.
    - ``column``: the unsettled rows of its frames, if these are many, after `count_frames`.
    - ``state``: for each row QUEUED, IN_REQUEST or SETTLED, in one byte.
    - ``has_gaps``: some rows settled while they waited in their lanes.
    - ``maybe_stored``: None until a send may have stored some row.  Then it has for each row the cause of its last
      possible copy, as an index into `MAYBE_CAUSES` (0: no copy).
    """

    __slots__ = (
        "accepted_at",
        "buffers",
        "charge_bytes",
        "column",
        "frames",
        "has_gaps",
        "live_buffers",
        "maybe_stored",
        "order",
        "starts",
        "state",
    )

    def __init__(self, frames: Sequence[Frame], order: I32, buffers: Sequence[SpanBuffer]) -> None:
        self.frames = tuple(frames)
        self.accepted_at = np.array([frame.accepted_at for frame in frames])
        self.starts = np.array([0, *accumulate([frame.records for frame in frames])])
        self.order = order
        self.state = np.zeros(len(order), np.uint8)
        self.has_gaps = False
        self.maybe_stored: npt.NDArray[np.uint8] | None = None
        self.buffers = tuple(buffers)
        self.live_buffers = len(buffers)
        self.charge_bytes = JOB_CHARGE_BYTES * len(order)
        self.column: FrameColumn | None = None

    def __repr__(self) -> str:
        queued, in_request, settled = np.bincount(self.state, minlength=3).tolist()
        return (
            f"<Job of {len(self.frames)} frames: {queued} rows queued, {in_request} in requests, {settled} settled, "
            f"{self.live_buffers} of {len(self.buffers)} buffers>"
        )

    # ---- the states of rows; ``last`` is excluded everywhere

    def begin(self, first: int, last: int) -> None:
        """Take queued rows for a request."""
        self.state[first:last] = IN_REQUEST

    def requeue(self, first: int, last: int) -> None:
        """Return rows of a request to the queue."""
        self.state[first:last] = QUEUED

    def settle_rows(self, first: int, last: int) -> None:
        """Settle rows of a request.  `release` then frees their memory."""
        state = self.state[first:last]
        if state.tobytes().count(IN_REQUEST) != last - first:
            raise AssertionError("a row settled twice")
        state[:] = SETTLED

    def release(self, buffer: SpanBuffer, records: int) -> int:
        """Release the memory of settled rows.  Returns the charged bytes that come free."""
        charge_bytes = buffer.count_settled(records)
        if not buffer.live:
            self.live_buffers -= 1
            if not self.live_buffers:
                charge_bytes += self.charge_bytes
                self.charge_bytes = 0
        return charge_bytes

    def end_queued(self, positions: npt.NDArray[np.intp]) -> int:
        """Settle queued rows in place and release their memory; their lanes skip them later.

        Returns the charged bytes that come free.
        """
        self.state[positions] = SETTLED
        self.has_gaps = True
        return sum([self.release(buffer, records) for buffer, records in self._buffers_of(positions)])

    def count(self, first: int, last: int, state: int) -> int:
        """Return how many of these rows are in a state."""
        return self.state[first:last].tobytes().count(state)  # a quarter of numpy's time for some tens of rows

    def queued_runs(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the runs of queued rows among these, each as (first, last)."""
        state = self.state[first:last]
        edges = np.flatnonzero(np.diff(np.concatenate(([SETTLED], state, [SETTLED])) == QUEUED)) + first
        return [(start, stop) for start, stop in edges.reshape(-1, 2).tolist()]

    def first_queued_run(self, first: int, last: int) -> tuple[int, int]:
        """Return the first of `queued_runs`, or an empty run at ``last``."""
        queued = self.state[first:last] == QUEUED
        if not queued.any():
            return last, last
        start = int(queued.argmax())
        rest = ~queued[start:]
        return first + start, first + start + int(rest.argmax()) if rest.any() else last

    def mark_maybe_stored(self, first: int, last: int, cause: str) -> None:
        """Note why these rows may be stored: one of `MAYBE_CAUSES`, or `AWAITING_MAP`.  "" removes the mark."""
        if self.maybe_stored is None:
            self.maybe_stored = np.zeros(len(self.order), np.uint8)
        self.maybe_stored[first:last] = _MARKS.index(cause)

    def causes_of(self, positions: slice | npt.NDArray[np.intp]) -> npt.NDArray[np.uint8] | None:
        """Return the marks of `mark_maybe_stored` on rows, 0 for none.  None if no row has any."""
        return None if self.maybe_stored is None else self.maybe_stored[positions]

    def reorder(self, first: int, last: int, order: npt.NDArray[np.intp]) -> None:
        """Put queued rows in another order."""
        for rows in (self.order, self.state, self.maybe_stored):
            if rows is not None:
                rows[first:last] = rows[first:last][order]

    # ---- the frames of rows

    def frames_of(self, positions: slice | npt.NDArray[np.intp]) -> Iterator[tuple[Frame, I32]]:
        """Yield the frames of some rows, each with the rows' numbers in that frame."""
        rows = self.order[positions]
        if len(self.frames) == 1:
            yield self.frames[0], rows
            return
        places = np.searchsorted(self.starts, rows, side="right") - 1
        for place in np.flatnonzero(np.bincount(places)).tolist():
            yield self.frames[place], rows[places == place] - np.int32(self.starts[place])

    def runs_by_session(
        self, first: int, last: int, sessions: Container[object]
    ) -> Iterator[tuple[object | None, int, int]]:
        """Yield the runs of rows of one of these sessions, or of any others (None), each as (session, first, last)."""
        held = [frame.session if frame.session in sessions else None for frame in self.frames]
        if len(set(map(id, held))) == 1:
            yield held[0], first, last
            return
        places = np.searchsorted(self.starts, self.order[first:last], side="right") - 1
        numbers = np.array([*map(id, held)])[places]
        start = first
        for edge in [*(np.flatnonzero(np.diff(numbers)) + first + 1).tolist(), last]:
            yield held[int(places[start - first])], start, edge
            start = edge

    def records_by_frame(self, *positions: slice | npt.NDArray[np.intp]) -> list[tuple[Frame, int]]:
        """Return the frames of some rows, each with the number of these rows that it has."""
        if len(self.frames) == 1:
            return [(self.frames[0], sum([len(self.order[some]) for some in positions]))]
        return self.counted(self.count_by_frame(*positions))

    def count_by_frame(self, *positions: slice | npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return how many of these rows each frame has, without the frames behind the last one that has some."""
        rows = np.concatenate([self.order[some] for some in positions])
        return np.bincount(self.starts.searchsorted(rows, side="right") - 1)

    def count_frames(self) -> None:
        """If it has many frames, count their unsettled rows in a column from now on."""
        if len(self.frames) > FEW_FRAMES:
            self.column = FrameColumn(self.frames)

    def counted(self, counts: npt.NDArray[np.intp]) -> list[tuple[Frame, int]]:
        """Return the frames that have rows by `count_by_frame`, each with their number."""
        return [(frame, records) for frame, records in zip(self.frames, counts.tolist(), strict=False) if records]

    def positions_of(self, frame: Frame, from_row: int = 0) -> npt.NDArray[np.intp]:
        """Return the positions of a frame's rows from number ``from_row`` on."""
        start = self.starts[self.frames.index(frame)]
        return np.flatnonzero((self.order >= start + from_row) & (self.order < start + frame.records))

    def queued_positions_of(self, frame: Frame, from_row: int = 0) -> npt.NDArray[np.intp]:
        """Return the positions of a frame's queued rows from number ``from_row`` on."""
        positions = self.positions_of(frame, from_row)
        queued: npt.NDArray[np.intp] = positions[self.state[positions] == QUEUED]
        return queued

    def rows_of(self, frame: Frame, positions: npt.NDArray[np.intp]) -> I32:
        """Return the numbers in their frame of rows at these positions."""
        rows: I32 = self.order[positions] - np.int32(self.starts[self.frames.index(frame)])
        return rows

    def _buffers_of(self, positions: npt.NDArray[np.intp]) -> Iterator[tuple[SpanBuffer, int]]:
        """Yield the buffers of some rows, each with the number of these rows that it holds."""
        firsts = [buffer.first for buffer in self.buffers]
        counts = np.bincount(np.searchsorted(firsts, positions, side="right") - 1)
        for place in np.flatnonzero(counts).tolist():
            yield self.buffers[place], int(counts[place])
