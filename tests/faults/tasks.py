"""Threads that write partitions as Spark's tasks do, and keep which rows were stored, left out or failed."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyarrow
from pyarrow import parquet

from producerd.errors import ProducerdError
from spark_client.task import Plan, send
from tests.faults.oracle import Sent
from tests.faults.records import Book, Id

FIRST: Final = 6_000
"""The number of the first task.  A run's senders have lower ones."""
ROWS: Final = 20
"""Rows of a partition: as many as a result names of each kind of failure."""
RECONNECT_SECONDS: Final = 300.0


class Task(threading.Thread):
    """Writes one partition after the other until it is stopped, with ``on_bad_record = "skip"``.

    With ``divert_to`` it writes with "divert" to that folder, and each file must have the rows that were left out.
    ``acknowledged`` has the numbers of the rows that were stored, and ``left_out`` the codes of the rows that were left
    out.  ``errors_told`` counts the rows that failed their batch, by code.  ``bad``: the rows that may be left out.
    """

    def __init__(self, number: int, stream: str, book: Book, socket: Path, divert_to: Path | None = None) -> None:
        super().__init__(name=f"task {number}", daemon=True)
        self.number = number
        self.stream = stream
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.bad: set[int] = set()
        self.left_out: dict[int, str] = {}
        self.errors_told: Counter[str] = Counter()
        self.failure = ""
        self._book = book
        self._stopped = threading.Event()
        self._plan = Plan(
            stream,
            str(socket),
            skip_bad_records=True,
            reconnect_timeout_seconds=RECONNECT_SECONDS,
            divert_to=None if divert_to is None else divert_to.as_uri(),
        )

    @property
    def account(self) -> Sent:
        """What the oracle must know."""
        return Sent(self.number, self.sent, self.acknowledged, self.stream == "ordered")

    @property
    def ended(self) -> int:
        """The number of rows that have ended."""
        return len(self.acknowledged) + len(self.left_out) + self.errors_told.total()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.write()
            except Exception as error:  # whatever it is, the oracle must know that this task sends no more
                self.failure = repr(error)
                return

    def stop(self) -> None:
        """Write no further partition."""
        self._stopped.set()

    def write(self) -> set[int]:
        """Write the next rows.  Returns the numbers of those that were left out."""
        first, self.sent = self.sent, self.sent + ROWS
        ids = [Id(self.number, first + place) for place in range(ROWS)]
        keys = [self._book.key_of(identity) for identity in ids]
        data = [self._book.data_of(identity) for identity in ids]
        batch = pyarrow.RecordBatch.from_pydict({"partition_key": keys, "data": data})
        try:
            result = send(self._plan._replace(call=f"{self.number}-{first}"), [batch])
        except ProducerdError as error:
            self.errors_told[error.code] += ROWS
            return set()
        assert result is not None
        failed = {row: failure for failure in result.failures for row in failure.rows}
        self.acknowledged.update(first + row for row in range(ROWS) if row not in failed)
        if result.failed(skip_bad_records=True):
            for failure in result.failures:
                self.errors_told[failure.code] += failure.records
            return set()
        if self._plan.divert_to is not None and failed:
            assert result.diverted is not None
            there = parquet.read_table(urlsplit(result.diverted).path, columns=["data"]).column("data").to_pylist()
            assert sorted(there) == sorted(data[row] for row in failed), "the file has other rows"
        left_out = {first + row: failure.code for row, failure in failed.items()}
        self.left_out |= left_out
        return {*left_out}
