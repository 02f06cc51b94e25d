"""Records that a client puts one by one, gathered into a frame, with a future for each that costs little.

A program that puts many records would otherwise wait for the daemon's answer to each.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Callable, Final, Optional

from producerd.errors import Code, Outcome, ProducerdError, RecordsFailed, RowFailure
from producerd.wire.columns import FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES, Columns
from producerd.wire.messages import Ack, RowCode
from spark_client.results import MAX_FAILURES_NAMED, as_line
from spark_client.tally import MAX_FAILURES, MORE_KINDS, OTHER, Tally

LOG: Final = logging.getLogger("producerd.client")
Row = tuple[bytes, Optional[bytes], Optional[bytes]]
"""Data, key and hash key of a record."""
RUNNING: Final = "RUNNING"
FINISHED: Final = "FINISHED"


class _Waiting:
    """Guards the moment when a caller begins to wait for a `RecordFuture`, against its end.

    A signal's handler may begin to wait in the middle of that, and a fork copies the lock as another thread holds it.
    """

    lock = threading.RLock()

    @classmethod
    def renew_lock(cls) -> None:
        cls.lock = threading.RLock()


os.register_at_fork(after_in_child=_Waiting.renew_lock)

Kinds = dict[tuple[str, str, str, bool], int]
"""How many records failed, by code, message, stream, and whether they may be stored."""


class Unraised:
    """Failed records that no future has raised.  The next flush raises them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may ask a future in the middle of another call
        self._kinds: Kinds = {}

    def take_failures(self) -> list[RowFailure]:
        """Return the failures by kind, without the numbers of rows, and forget them."""
        with self._lock:
            taken, self._kinds = self._kinds, {}
        return [
            RowFailure(code, message, records, maybe_stored, (), stream)
            for (code, message, stream, maybe_stored), records in taken.items()
        ]

    def count_failures(self, failures: Sequence[RowFailure]) -> Callable[[Sequence[RowFailure]], None]:
        """Count failures, and return the function that takes out those that a future raises."""
        with self._lock:
            kinds = self._kinds
            for failure in failures:
                self._count(kinds, failure, failure.records)
        return partial(self._raised, kinds)

    def _raised(self, kinds: Kinds, failures: Sequence[RowFailure]) -> None:
        """Take failures out, unless a flush has raised them since."""
        with self._lock:
            for failure in failures:
                self._count(kinds, failure, -failure.records)

    def _count(self, kinds: Kinds, failure: RowFailure, records: int) -> None:
        kind = failure.code, failure.message, failure.stream, failure.maybe_stored
        if kind not in kinds and (records < 0 or len(kinds) >= MAX_FAILURES):
            kind = OTHER, MORE_KINDS, "", failure.maybe_stored
        kinds[kind] = kinds.get(kind, 0) + records
        if kinds[kind] <= 0:
            del kinds[kind]


class PutFuture(Future[None]):
    """The future of a call's records.  It is done when all are stored.  It cannot be cancelled.

    A failure that it has raised or returned is not raised again by a flush.
    """

    _raised: Callable[[], None] | None = None
    """Takes what this future raises out of what the next flush raises."""

    @property
    def taken(self) -> int:
        """How many of the call's records, the first ones, the daemon has."""
        raise NotImplementedError

    def fails(self, raised: Callable[[], None]) -> None:
        """Have a function called once when the caller learns of the failure, with which this future is about to end."""
        self._raised = raised

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        if (raised := self.__dict__.pop("_raised", None)) is not None:
            raised()
        return error

    def result(self, timeout: float | None = None) -> Any:  # None: mypy refuses to compare what only returns None
        self.exception(timeout)
        return super().result(timeout)


class CallFuture(PutFuture):
    """The future of records that were put together."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally
        self.set_running_or_notify_cancel()  # what was taken cannot be cancelled

    @property
    def taken(self) -> int:
        return self._tally.taken


class RecordFuture(PutFuture):
    """The future of a record that was put alone.

    Most of many such futures are never waited for one by one, so each makes its lock when a caller does.
    """

    _state = RUNNING
    _result: Any = None
    _exception: BaseException | None = None
    _is_waited_for = False

    def __init__(self, frame: Gathered, place: int) -> None:
        self._frame = frame
        self.place = place

    def __getattr__(self, name: str) -> Any:
        if name not in ("_condition", "_waiters", "_done_callbacks"):
            raise AttributeError(name)
        with _Waiting.lock:
            for attribute, value in (("_waiters", []), ("_done_callbacks", []), ("_condition", threading.Condition())):
                self.__dict__.setdefault(attribute, value)
            self._is_waited_for = True
        return self.__dict__[name]

    def done(self) -> bool:
        return self._state == FINISHED

    @property
    def taken(self) -> int:
        return int(self._frame.tally.taken > self.place)


class RowTally(Tally):
    """A tally that also knows which rows have ended, and why each failed one did."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: set[int] = set()
        self.failed: dict[int, RowCode] = {}

    def add_ack(
        self, ack: Ack, rows: Sequence[int], stream: str, columns: Columns, *, sends_again: bool = False
    ) -> list[int]:
        back = super().add_ack(ack, rows, stream, columns, sends_again=sends_again)
        self.ended.update(rows)
        self.ended.difference_update(rows[place] for place in back)
        return back

    def _fail(self, row: int, why: RowCode, stream: str, columns: Columns, place: int, named: str) -> None:
        super()._fail(row, why, stream, columns, place, named)
        self.ended.add(row)
        self.failed[row] = why


class Gathered:
    """Records of one stream that go to the daemon together, in order, and their futures.

    ``largest`` is the most (charge, records) that they may be, unless it is one record.
    """

    def __init__(self, stream: str, largest: tuple[int, int]) -> None:
        self.stream = stream
        self.tally = RowTally()
        self.future: Future[None] = Future()  # of them all, for a flush
        self.is_announced = False  # to the thread that sends
        self._most_bytes, self._most_records = largest
        self._charge_bytes = FRAME_CHARGE_BYTES
        self.rows: list[Row] = []
        self._futures: list[RecordFuture] = []  # each knows its row: an interrupt may come between the two

    def add_record(self, row: Row) -> RecordFuture | None:
        """Add a record and return its future, or None if there is no room."""
        data, key, hash_key = row
        charge_bytes = self._charge_bytes + RECORD_CHARGE_BYTES + len(data)
        if key:
            charge_bytes += len(key)
        if hash_key:
            charge_bytes += len(hash_key)
        place = len(self.rows)
        if place and (charge_bytes > self._most_bytes or place >= self._most_records):
            return None
        future = RecordFuture(self, place)
        self._charge_bytes = charge_bytes
        self.rows.append(row)
        self._futures.append(future)
        return future

    @property
    def owed_records(self) -> int:
        """How many records have not ended."""
        return len(self.rows) - self.tally.records

    def split(self, place: int) -> Gathered:
        """Return the records from a place on, and keep those before it."""
        rest = Gathered(self.stream, (self._most_bytes, self._most_records))
        rest.rows, self.rows = self.rows[place:], self.rows[:place]
        rest._futures = [future for future in self._futures if future.place >= place]
        self._futures = [future for future in self._futures if future.place < place]
        return rest

    def end_all(
        self,
        unraised: Unraised,
        lost: RowFailure | None = None,
        error: Callable[[], ProducerdError] | None = None,
    ) -> None:
        """End the futures, and count the failed records.  One that has not ended failed as ``lost``, with ``error``."""
        text = f"1 of 1 record of one call for stream {self.stream} failed, named by place"
        errors: dict[int, ProducerdError] = {}
        failures: dict[int, RowFailure] = {}
        for place, why in self.tally.failed.items():
            code = Code.DRAINING if why.outcome == Outcome.RETURNED else why.code
            maybe_stored = bool(why.maybe_stored) or why.outcome == Outcome.UNKNOWN
            failures[place] = RowFailure(code, why.message, 1, maybe_stored, (0,), self.stream, why.judged)
            errors[place] = records_failed(text, [failures[place]])
        failed = [*failures.values()]
        if lost is not None and error is not None:
            failed.append(lost._replace(records=self.owed_records))
            for future in self._futures:
                if future.place not in self.tally.ended:
                    failures[future.place], errors[future.place] = lost, error()
        raised = unraised.count_failures(failed)
        waited_for = []
        with _Waiting.lock:
            for future in self._futures:
                its = errors.get(future.place)
                if its is not None:
                    future.fails(partial(raised, [failures[future.place]]))
                if future._is_waited_for:
                    waited_for.append((future, its))
                else:
                    future._exception = its
                    future._state = FINISHED
        for future, its in waited_for:
            end(future, its)
        end(self.future, None)
        self.rows, self._futures = [], []  # a caller that keeps one future would keep them all


def end(future: Future[None], error: ProducerdError | None) -> None:
    """End a future, whatever its callbacks raise: they run in the thread of all callers."""
    try:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
    except BaseException:  # Future itself logs an Exception
        with contextlib.suppress(Exception):  # of a handler's, as in `warn`
            LOG.exception("a callback of a future ended by")


def records_failed(text: str, failures: Sequence[RowFailure]) -> RecordsFailed:
    """Return the error of records that cannot be stored: ``text``, and the first kinds of failure."""
    named = "; ".join(
        f"{failure.code} {failure.records} ({failure.message})"
        + (f", records {', '.join(map(str, failure.rows))}" if failure.rows else "")
        for failure in failures[:MAX_FAILURES_NAMED]
    )
    return as_line(RecordsFailed(f"{text}: {named}", failures))
