"""Run ``producerd serve``, with sessions of the Spark client that put rows with ids."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.delivery.figures import data_of
from benchmarks.delivery.scenarios import LONGEST_SECONDS, SOCKET, Load, Scenario, Stage
from producerd.demo.children import Child, ChildFailed, Children
from producerd.demo.scenario import environment
from producerd.errors import Code, Refused
from producerd.wire.columns import FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES, Columns, lay_out
from producerd.wire.messages import Ack, Hello
from spark_client.connection import Connection
from spark_client.tally import Tally

ROWS_PER_SESSION: Final = 10**9
"""Distance between the first ids of two sessions."""
KEY_BYTES: Final = 16
"""Length of the longest key of `Session.rows`."""
TICK_SECONDS: Final = 0.1
"""Time between two frames of a session with a rate.  Its 64 unacknowledged frames are then 6.4 s of rows."""
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 10.0


@dataclass
class StoredRows(Tally):
    """A connection that records which rows are STORED, not only how many."""

    rows: set[int] = field(default_factory=set)

    def add_ack(
        self, ack: Ack, rows: Sequence[int], stream: str, columns: Columns, *, sends_again: bool = False
    ) -> list[int]:
        failed = {place for place, _ in ack.failed_rows()}
        self.rows.update(row for place, row in enumerate(rows) if place not in failed)
        return super().add_ack(ack, rows, stream, columns, sends_again=sends_again)


class Session(threading.Thread):
    """A session that puts one load.  ``failure`` says why it ended early."""

    def __init__(self, number: int, load: Load, stream: str, socket_path: Path) -> None:
        super().__init__(name=f"session {number}", daemon=True)
        self.first_id = number * ROWS_PER_SESSION
        self.load = load
        self.put_rows = 0  # including the rows that are being put
        self.failure = ""
        self.stored = StoredRows()
        self._stream = stream
        self._began = 0.0
        self._socket_path = socket_path
        self._early = None if load.connects_late else self._connected()
        # Sessions put at different times, so that a second's throughput does not depend on where it begins.
        self._phase_seconds = TICK_SECONDS * (number % 4) / 4

    def begin(self, began: float) -> None:
        self._began = began
        self.start()

    def run(self) -> None:
        try:
            time.sleep(self._phase_seconds)
            if self._early is None:
                time.sleep(max(0.0, self._began + self.load.begins - time.monotonic()))
            with self._early or self._connected() as connection:
                self._put_all(connection)
                connection.flush(self._seconds_left())
        except Exception as error:  # any error ends this load early, and the benchmark reports it
            self.failure = f"{self.name}: {type(error).__name__}: {error}"

    def _connected(self) -> Connection:
        connection = Connection(Hello(1, 1, client="bench", pid=os.getpid()), [str(self._socket_path)])
        connection.tally = self.stored
        connection.open(self._stream, STOP_SECONDS)
        return connection

    def _put_all(self, connection: Connection) -> None:
        load, put = self.load, 0
        while put < load.rows and (now := time.monotonic() - self._began) < load.ends:
            due = load.rows - put
            if math.isfinite(load.rows_per_second):
                due = min(due, int((now - load.begins) * load.rows_per_second) - put)
            if due > 0:
                put += self._put(connection, put, due)
            else:
                time.sleep(TICK_SECONDS)

    def _put(self, connection: Connection, first: int, most: int) -> int:
        """Put some of the next rows, and return how many."""
        load = self.load
        largest_bytes, largest_records = connection.largest_frame(self._stream)
        fit = (largest_bytes - FRAME_CHARGE_BYTES) // (load.row_bytes + KEY_BYTES + RECORD_CHARGE_BYTES)
        rows = range(first, first + max(1, min(most, largest_records, fit)))
        ids = [self.first_id + row for row in rows]
        keys = [load.keys[row % len(load.keys)] for row in rows] if load.keys else [b"key-%d" % row for row in ids]
        try:
            self.put_rows = rows.stop
            columns = lay_out(keys, [data_of(row, load.row_bytes) for row in ids])
            connection.put(self._stream, columns, self._seconds_left())
        except Refused as refused:
            if refused.code != Code.TOO_LARGE:
                raise
            return 0
        return len(rows)

    def _seconds_left(self) -> float:
        return max(0.0, self._began + LONGEST_SECONDS - time.monotonic())


class Producerd:
    """The daemon and its sessions."""

    name = "producerd"

    def __init__(self, daemon: Child, sessions: list[Session]) -> None:
        self._daemon = daemon
        self._sessions = sessions

    def begin(self) -> None:
        began = time.monotonic()
        for session in self._sessions:
            session.begin(began)

    def acknowledged(self) -> set[int]:
        """Return the rows that the daemon reported to the sessions as STORED, after all sessions have ended."""
        for session in self._sessions:
            session.join()
        self._daemon.poll_line(0.0)  # it raises if the daemon has ended
        return {session.first_id + row for session in self._sessions for row in session.stored.rows}

    def sent(self, row: int) -> bool:
        number, place = divmod(row, ROWS_PER_SESSION)
        return number < len(self._sessions) and place < self._sessions[number].put_rows

    @property
    def failures(self) -> list[str]:
        return [session.failure for session in self._sessions if session.failure]


@contextlib.contextmanager
def producerd(stage: Stage, scenario: Scenario) -> Iterator[Producerd]:
    """Start a daemon and connect its sessions, and end all of it after the block.  Raise `ChildFailed`."""
    with Children(stage.folder, environment(stage.folder)) as children:
        socket_path = stage.folder / SOCKET
        settings = {
            "socket": socket_path,
            "metrics_listen": "",
            "endpoint_url": stage.server.url,
            "aggregation": scenario.aggregation,
            **scenario.settings,
        }
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        trusting = {"AWS_CA_BUNDLE": str(stage.server.certificate)}
        daemon = children.start("daemon", ["-m", "producerd", "serve", *sets], trusting)
        deadline = time.monotonic() + START_SECONDS
        while not socket_path.exists():
            daemon.poll_line(0.02)  # it raises if the daemon has ended
            if time.monotonic() > deadline:
                raise ChildFailed(f"the daemon did not listen within {START_SECONDS:.0f} s", daemon.log)
        loads = enumerate(scenario.loads)
        sessions = [Session(number, load, stage.stream.name, socket_path) for number, load in loads]
        yield Producerd(daemon, sessions)
        daemon.stop(STOP_SECONDS)
