"""Threads that put records by the public client, and keep which of them were acknowledged."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Final, NamedTuple

from producerd.errors import ProducerdError, RecordsFailed
from spark_client import KinesisClient, Record
from tests.faults.records import Book, Id

RECORDS_PER_CALL: Final = 20
"""As many as an error names by their places: so it is known of each record whether it was acknowledged."""
PAUSE_SECONDS: Final = 0.2
"""Between an error and the next call."""
RECONNECT_SECONDS: Final = 300.0


class Call(NamedTuple):
    """One call that was acknowledged: when it began, by `time.monotonic`, and how long its acknowledgement took."""

    began: float
    seconds: float


class Sender(threading.Thread):
    """Puts records of one stream at a steady rate until it is stopped.

    ``acknowledged`` holds the numbers of its records that are obligations now.  ``errors_told`` counts records by the
    code of the error that the client raised for them.  While it ``rests`` it puts nothing.
    """

    def __init__(self, number: int, stream: str, book: Book, socket: Path, records_per_second: float) -> None:
        super().__init__(name=f"sender {number}", daemon=True)
        self.number = number
        self.stream = stream
        self.sent = 0  # also those that are being put
        self.acknowledged: set[int] = set()
        self.errors_told: Counter[str] = Counter()
        self.calls: list[Call] = []
        self.failure = ""
        self.rests = False
        self._book = book
        self._period_seconds = RECORDS_PER_CALL / records_per_second
        self._stopped = threading.Event()
        self._lock = threading.Lock()  # callbacks run in the client's thread
        self._open_calls = 0
        self._forgiven = 0  # the records below this number oblige nobody
        self._client = KinesisClient(
            stream, socket=str(socket), on_disconnect="deliver", reconnect_timeout_seconds=RECONNECT_SECONDS
        )

    @property
    def is_forgiven(self) -> bool:
        """Return whether some of the records do not count as obligations."""
        return self._forgiven > 0

    @property
    def open_calls(self) -> int:
        """Return how many calls have not ended."""
        return self._open_calls

    def run(self) -> None:
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._period_seconds, time.monotonic() - self._period_seconds)
            if self.rests:
                continue
            try:
                self.put()
            except ProducerdError as error:
                with self._lock:
                    self.errors_told[error.code] += RECORDS_PER_CALL
                self._stopped.wait(PAUSE_SECONDS)
            except Exception as error:  # whatever it is, the oracle must know that this sender sends no more
                self.failure = repr(error)
                return

    def put(self, timeout_seconds: float | None = None) -> Future[None]:
        """Put the next records; return the client's future."""
        with self._lock:
            first, self.sent = self.sent, self.sent + RECORDS_PER_CALL
        ids = [Id(self.number, first + place) for place in range(RECORDS_PER_CALL)]
        began = time.monotonic()
        records = [Record(self._book.data_of(identity), self._book.key_of(identity)) for identity in ids]
        future = self._client.put_many(records, timeout_seconds=timeout_seconds)
        with self._lock:
            self._open_calls += 1
        future.add_done_callback(lambda ended: self._ended(first, began, ended))
        return future

    def _ended(self, first: int, began: float, future: Future[None]) -> None:
        error, failed = future.exception(), set[int]()
        if isinstance(error, RecordsFailed):
            failed.update(place for failure in error.failures for place in failure.rows)
        elif error is not None:
            failed.update(range(RECORDS_PER_CALL))
        with self._lock:
            self._open_calls -= 1
            if first >= self._forgiven:
                self.acknowledged.update(first + place for place in range(RECORDS_PER_CALL) if place not in failed)
            if error is None:
                self.calls.append(Call(began, time.monotonic() - began))
            elif failed:
                self.errors_told[getattr(error, "code", type(error).__name__)] += len(failed)

    def forgive(self) -> None:
        """Only what is put from now on obliges, also where an earlier record is acknowledged later.

        To be called when the stream that held the records is deleted, by its owner.
        """
        with self._lock:
            self._forgiven = self.sent
            self.acknowledged.clear()

    def stop(self) -> None:
        """Send no more.  The thread may still wait for room."""
        self._stopped.set()

    def flush(self, timeout_seconds: float) -> None:
        """Wait until every call has ended.  Raises FlushTimeout."""
        with contextlib.suppress(RecordsFailed):  # counted when the call ended
            self._client.flush(timeout_seconds)

    def close(self) -> None:
        self._client.close(0)
