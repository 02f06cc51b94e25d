"""Frames: the state of each accepted frame until its last row has settled.

A frame finishes exactly once, with its last row.  No row settles twice, which its job checks.  The memory for failed
rows is bounded by the number of the frame's rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from producerd.core.rows.intake import CheckedRows
from producerd.core.shards.hash_keys import I32
from producerd.errors import Code, Outcome
from producerd.wire.columns import FRAME_CHARGE_BYTES

MAX_CODES: Final = 256
"""Most lines in an acknowledgement's code table (docs/build/protocol.md)."""
MAX_COPIES: Final = 2**32 - 1
"""The largest ``possible_duplicates`` of an acknowledgement.  Rows that are sent for days may have more copies."""

_NONE_FAILED: Final[dict[Outcome, int]] = {outcome: 0 for outcome in Outcome if outcome is not Outcome.STORED}


class RowEnd(NamedTuple):
    """The end of a row whose outcome is not STORED.

    ``maybe_stored``: an earlier send may have stored it.  ``judged``: that very row can never be stored.  No end is
    RECORD_INVALID or RECORD_TOO_LARGE without it, because clients of 0.2.0 and before leave out rows by these codes.
    """

    outcome: Outcome
    code: str
    message: str
    maybe_stored: bool = False
    judged: bool = False


class FrameResult(NamedTuple):
    """The content of an acknowledgement (docs/build/protocol.md, "The acknowledgement")."""

    records: int
    stored: int
    not_stored: int
    unknown: int
    returned: int
    retries: int
    throttled: int
    possible_duplicates: int
    spread_keys: int
    bitmap: bytes
    code_rows: bytes
    codes: tuple[RowEnd, ...]
    judged: bytes


class Frame:
    """One frame of a client, with the tallies of its rows.

    - ``owner``: the session that receives its result, or None after that session has gone.
    - ``session``: the session that sent it, also after it has gone.  It orders rows where the order is kept.
    - ``takes_good``: its session asked for good rows to be taken, so that a judged row fails no later one.
    - ``patient``: an earlier daemon had these rows, or acknowledged others of their session.  They wait without a limit
      for a service that cannot be reached.
    - ``rows``: the buffers in which it arrived, until its rows are copied to span buffers.
    - ``withdrawn_from``: the first row that is not sent again.  From it on, the rows in no request have ended as
      ``withdrawn_as``; None means discarded.
    """

    __slots__ = (
        "_code_of_row",
        "_codes",
        "_dropped",
        "_failed",
        "_place",
        "_unsettled",
        "accepted_at",
        "charge_bytes",
        "frame_id",
        "owner",
        "patient",
        "possible_duplicates",
        "records",
        "retries",
        "rows",
        "session",
        "spread_keys",
        "takes_good",
        "throttled",
        "ttl_seconds",
        "withdrawn_as",
        "withdrawn_from",
    )

    def __init__(
        self,
        owner: Any,
        frame_id: int,
        rows: CheckedRows,
        charge_bytes: int,
        *,
        patient: bool = False,
        takes_good: bool = False,
    ) -> None:
        self.owner = owner
        self.patient = patient
        self.takes_good = takes_good
        self.frame_id = frame_id
        self.rows: CheckedRows | None = rows
        self.records = rows.records
        self.charge_bytes = charge_bytes
        self._unsettled: list[int] | npt.NDArray[np.int64] = [rows.records]
        self._place = 0
        self._failed = _NONE_FAILED.copy()
        self._dropped = 0
        self.retries = 0
        self.throttled = 0
        self.possible_duplicates = 0
        self.spread_keys = rows.null_keys
        self.accepted_at = 0.0
        self.session = owner
        self.ttl_seconds = inf
        self.withdrawn_from: int | None = None
        self.withdrawn_as: RowEnd | None = None
        self._codes: dict[RowEnd, int] = {}
        self._code_of_row: I32 | None = None

    def __repr__(self) -> str:
        ended = ", ".join([f"{rows} {outcome.name.lower()}" for outcome, rows in self.tallies.items() if rows])
        return f"<Frame {self.frame_id}: {self.unsettled} of {self.records} rows unsettled{ended and ', ' + ended}>"

    @property
    def unsettled(self) -> int:
        """The number of its rows that have not settled."""
        return int(self._unsettled[self._place])

    @property
    def tallies(self) -> dict[Outcome, int]:
        """The number of its rows that ended in each way, without rows that were dropped."""
        stored = self.records - self.unsettled - self._dropped - sum(self._failed.values())
        return {Outcome.STORED: stored, **self._failed}

    @property
    def row_charge_bytes(self) -> int:
        """The charged bytes of its rows, without the charge for the frame itself, which lasts until it finishes."""
        return self.charge_bytes - FRAME_CHARGE_BYTES

    @property
    def expires_at(self) -> float:
        """When its rows expire; ``inf`` means never."""
        return self.accepted_at + self.ttl_seconds

    @property
    def finished(self) -> bool:
        """Whether all its rows have settled."""
        return not self._unsettled[self._place]

    def outlasts(self, end: RowEnd) -> bool:
        """Return whether its rows go on waiting when the other rows of their stream end like this."""
        return self.patient and end.code == Code.UNREACHABLE

    # ---- events

    def set_accepted(self, now: float, ttl_seconds: float) -> None:
        """Accept the frame now; its rows expire after ``ttl_seconds``."""
        self.accepted_at, self.ttl_seconds = now, ttl_seconds

    def count_in(self, unsettled: npt.NDArray[np.int64], place: int) -> None:
        """Count the unsettled rows at a place of a `FrameColumn`, which has their number already."""
        self._unsettled, self._place = unsettled, place

    def disown(self) -> None:
        """Note that its session is gone.  No session receives its result."""
        self.owner = None

    def release_rows(self) -> None:
        """Release the buffers in which it arrived."""
        self.rows = None

    def withdraw(self, from_row: int, end: RowEnd | None) -> None:
        """Send no row from ``from_row`` on again.  Of several calls, the one with the earliest row counts."""
        if self.withdrawn_from is None or from_row < self.withdrawn_from:
            self.withdrawn_from, self.withdrawn_as = from_row, end

    @property
    def is_discarded(self) -> bool:
        """Whether its caller has left and wants none of its rows delivered."""
        return self.withdrawn_from == 0 and self.withdrawn_as is None

    def add_retries(self, records: int) -> None:
        """Count rows of it that will be sent again."""
        self.retries += records

    def add_throttles(self, records: int) -> None:
        """Count rows of it that a shard throttled."""
        self.throttled += records

    def add_copies(self, records: int) -> None:
        """Count rows of it of which the stream may hold one more copy."""
        self.possible_duplicates += records

    # ---- how its rows end

    def takes_rest(self, *, keeps_order: bool) -> bool:
        """Return whether its good rows are taken: its session ``takes_good``, and no order is broken.

        Only judged rows may be left out where the order is kept.
        """
        return self.takes_good and not (keeps_order and self.rows and any(not bad.judged for bad in self.rows.bad))

    def end_bad_rows(self, *, keeps_order: bool = False) -> Counter[str]:
        """End the rows that intake found bad, and unless it ``takes_rest`` the others too.

        Returns the number of ended rows by code.
        """
        if self.rows is None:
            raise AssertionError("bad rows end before the frame is accepted")
        ended: Counter[str] = Counter()
        left = np.ones(self.records, np.bool_)
        for bad in self.rows.bad:
            rows = bad.rows[left[bad.rows]]  # of a row's several reasons the first counts
            left[rows] = False
            if len(rows):
                self.note_end(rows, RowEnd(Outcome.NOT_STORED, bad.code, bad.message, judged=bad.judged))
                ended[bad.code] += len(rows)
        others = np.flatnonzero(left).astype(np.int32)
        if len(others) < self.records and len(others) and not self.takes_rest(keeps_order=keeps_order):
            message = "not taken, because other rows of its frame are bad"
            self.note_end(others, RowEnd(Outcome.NOT_STORED, Code.FRAME_REFUSED, message))
            ended[Code.FRAME_REFUSED] = len(others)
        return ended

    def store(self, records: int) -> None:
        """Count rows of it that are stored."""
        self._settle(records)

    def note_end(self, rows: I32, end: RowEnd) -> None:
        """End rows, given by their numbers in the frame, in another way than STORED."""
        if self._code_of_row is None:
            self._code_of_row = np.full(self.records, -1, np.int32)
        self._code_of_row[rows] = self._code(end)
        self._failed[end.outcome] += len(rows)
        self._settle(len(rows))

    def open_rows(self) -> I32:
        """Return the numbers of the rows that have not ended.  Only valid while no row is stored."""
        if self._code_of_row is None:
            return np.arange(self.records, dtype=np.int32)
        return np.flatnonzero(self._code_of_row < 0).astype(np.int32)

    def drop(self, records: int) -> None:
        """Settle rows whose session is gone.  No result counts them."""
        self._dropped += records
        self._settle(records)

    def result(self) -> FrameResult:
        """Return the content of its acknowledgement.  Only valid when it is `finished`."""
        if not self.finished:
            raise AssertionError("a frame is acknowledged before its last row has settled")
        sends = self.retries, self.throttled, min(self.possible_duplicates, MAX_COPIES), self.spread_keys
        if self._code_of_row is None:
            return FrameResult(self.records, self.records - self._dropped, 0, 0, 0, *sends, b"", b"", (), b"")
        tallies, failed = self.tallies, self._code_of_row >= 0
        return FrameResult(
            self.records,
            tallies[Outcome.STORED],
            tallies[Outcome.NOT_STORED],
            tallies[Outcome.UNKNOWN],
            tallies[Outcome.RETURNED],
            *sends,
            bitmap=np.packbits(failed, bitorder="little").tobytes(),
            code_rows=self._code_of_row[failed].astype("<u2").tobytes() if len(self._codes) > 1 else b"",
            codes=tuple(self._codes),
            judged=_bits([end.judged for end in self._codes]),
        )

    def _settle(self, records: int) -> None:
        left = self._unsettled[self._place] - records
        if left < 0:
            raise AssertionError("a row settled twice")
        self._unsettled[self._place] = left

    def _code(self, end: RowEnd) -> int:
        """Return the line of an end in the code table.

        When the table fills up, further ends of one code and outcome share one line without their messages.
        """
        if end in self._codes:
            return self._codes[end]
        # The first half of the table is for messages, the rest for the shared lines: there are far fewer codes than
        # that.  The last twelve lines are for the three outcomes, each with and without maybe_stored and judged.
        if len(self._codes) >= MAX_CODES // 2:
            end = end._replace(message="(further messages of this code are left out)")
        if len(self._codes) >= MAX_CODES - 12 and end not in self._codes:
            end = end._replace(code="OTHER")
        return self._codes.setdefault(end, len(self._codes))


class FrameColumn:
    """The unsettled rows of many frames as one column, in which stored rows of all frames are counted at once."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self._frames = frames
        self._unsettled = np.array([frame.unsettled for frame in frames])
        for place, frame in enumerate(frames):
            frame.count_in(self._unsettled, place)

    def store(self, places: npt.NDArray[np.intp], records: npt.NDArray[np.intp]) -> list[Frame]:
        """Count stored rows of the frames at some places.  Returns the frames that are finished now."""
        left = self._unsettled[places] - records
        if (left < 0).any():
            raise AssertionError("a row settled twice")
        self._unsettled[places] = left
        return [self._frames[place] for place in places[left == 0].tolist()]


def _bits(flags: list[bool]) -> bytes:
    """Return one bit for each flag, least significant first, or b"" if none is set."""
    return np.packbits(flags, bitorder="little").tobytes() if any(flags) else b""
