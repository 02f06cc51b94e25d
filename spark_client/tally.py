"""How rows ended: exact counts, and the first rows of each kind of failure by number.

A tally's memory is bounded: it has at most `MAX_FAILURES` kinds, and each names at most `MAX_ROWS_NAMED` rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from producerd.errors import Code, Outcome, RowFailure
from producerd.wire.columns import Columns
from producerd.wire.messages import Ack, RowCode

MAX_ROWS_NAMED: Final = 20
MAX_FAILURES: Final = 64
OTHER: Final = "OTHER"
MORE_KINDS: Final = "more kinds of failure than can be told apart here"


class _Cause(NamedTuple):
    """What the rows of one failure have in common.  Judged rows are one cause, and those that may be stored another."""

    code: str
    message: str
    stream: str
    judged: bool
    maybe_stored: bool


@dataclass
class _Failure:
    records: int = 0
    maybe_stored: bool = False
    rows: list[int] = field(default_factory=list)


@dataclass
class Tally:
    """A count of how the rows put until now ended.

    - ``taken``: rows that a daemon took, of which ``records`` have ended.
    - ``payload_bytes``: the keys, data and hash keys of the ``stored`` rows.
    - ``left_out``: rows that an earlier run has stored, and that were not put again.
    - ``resent``: rows that a second daemon took, because the first one was lost or gave them back.
    - ``seconds_blocked``: how long the client waited for room.
    - ``seconds_flushing``: how long it waited for the last acknowledgements.
    """

    taken: int = 0
    records: int = 0
    payload_bytes: int = 0
    stored: int = 0
    returned: int = 0
    retries: int = 0
    throttled: int = 0
    possible_duplicates: int = 0
    spread_keys: int = 0
    resent: int = 0
    left_out: int = 0
    seconds_blocked: float = 0.0
    seconds_flushing: float = 0.0
    _failures: dict[_Cause, _Failure] = field(default_factory=dict)

    @property
    def failures(self) -> tuple[RowFailure, ...]:
        """The rows that are not STORED, by code, message and stream, under the numbers that put() gave them.

        The most telling come first: bad rows before the good rows that were refused with them, then the rarest.
        """
        found = [
            RowFailure(
                kind.code, kind.message, one.records, one.maybe_stored, tuple(one.rows), kind.stream, kind.judged
            )
            for kind, one in self._failures.items()
        ]
        return tuple(sorted(found, key=lambda failure: (failure.code == Code.FRAME_REFUSED, failure.records)))

    def add_taken(self, records: int) -> None:
        """Count rows that a daemon took."""
        self.taken += records

    def add_resent(self, records: int) -> None:
        """Count rows that one more daemon took."""
        self.resent += records

    def add_left_out(self, records: int) -> None:
        """Count rows that an earlier run has stored."""
        self.records += records
        self.left_out += records

    def add_lost(self, records: int) -> None:
        """Count rows that a lost daemon may have stored, and that are sent again."""
        self.possible_duplicates += records

    def add_payload(self, payload_bytes: int) -> None:
        """Count the bytes of stored rows."""
        self.payload_bytes += payload_bytes

    def add_blocked(self, seconds: float) -> None:
        """Count a wait for room."""
        self.seconds_blocked += seconds

    def add_flushing(self, seconds: float) -> None:
        """Count a wait for the last acknowledgements."""
        self.seconds_flushing += seconds

    def add_ack(
        self, ack: Ack, rows: Sequence[int], stream: str, columns: Columns, *, sends_again: bool = False
    ) -> list[int]:
        """Add the end of one frame of a stream; ``rows`` are the numbers of its rows, and ``columns`` holds them.

        Return the places of the rows that are sent again.  Those end with another frame.  Without ``sends_again`` there
        are none, and rows that the daemon gave back are failures.
        """
        back = []
        for place, why in ack.failed_rows():
            if sends_again and why.outcome == Outcome.RETURNED:
                back.append(place)
                self.possible_duplicates += why.maybe_stored
            else:
                self._fail(rows[place], why, stream, columns, place, stream)
        self.records += ack.records - len(back)
        self.stored += ack.stored
        self.returned += ack.returned - len(back)
        self.retries += ack.retries
        self.throttled += ack.throttled
        self.possible_duplicates += ack.possible_duplicates
        self.spread_keys += ack.spread_keys
        return back

    def refuse(
        self, row: int, why: RowCode, stream: str, columns: Columns, place: int, *, named: str | None = None
    ) -> None:
        """Add one row that was refused before it was sent: the one at a place in a frame's columns.

        ``named`` is how failures name its stream, if that differs.
        """
        self.records += 1
        self._fail(row, why, stream, columns, place, stream if named is None else named)

    def _fail(self, row: int, why: RowCode, stream: str, columns: Columns, place: int, named: str) -> None:  # noqa: ARG002
        maybe_stored = why.maybe_stored or why.outcome == Outcome.UNKNOWN
        code = Code.DRAINING if why.outcome == Outcome.RETURNED else why.code
        kind = _Cause(code, why.message, named, why.judged, why.judged and maybe_stored)
        if kind not in self._failures and len(self._failures) >= MAX_FAILURES:
            kind = kind._replace(code=code if why.judged else OTHER, message=MORE_KINDS, stream="")
        failure = self._failures.setdefault(kind, _Failure())
        failure.records += 1
        failure.maybe_stored |= maybe_stored
        if len(failure.rows) < MAX_ROWS_NAMED:
            failure.rows.append(row)


class PartTally(Tally):
    """Counts some rows in the tally ``whole``, and how many of them are ``stored``.

    ``acknowledged`` is called when more of them are.
    """

    def __init__(self, whole: Tally, acknowledged: Callable[[], object]) -> None:
        super().__init__()
        self._whole = whole
        self._acknowledged = acknowledged

    def add_taken(self, records: int) -> None:
        self._whole.add_taken(records)

    def add_resent(self, records: int) -> None:
        self._whole.add_resent(records)

    def add_lost(self, records: int) -> None:
        self._whole.add_lost(records)

    def add_payload(self, payload_bytes: int) -> None:
        self._whole.add_payload(payload_bytes)

    def add_ack(
        self, ack: Ack, rows: Sequence[int], stream: str, columns: Columns, *, sends_again: bool = False
    ) -> list[int]:
        back = self._whole.add_ack(ack, rows, stream, columns, sends_again=sends_again)
        self.stored += ack.stored
        self._acknowledged()
        return back

    def refuse(
        self, row: int, why: RowCode, stream: str, columns: Columns, place: int, *, named: str | None = None
    ) -> None:
        self._whole.refuse(row, why, stream, columns, place, named=named)
