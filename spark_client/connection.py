"""Rows go to this node's daemon as frames, and to the next daemon if that one is lost or stops.

When `put` returns, the daemon has the rows.  When it raises, no daemon took any of them, unless the daemon was lost.
`flush` returns only when every frame is acknowledged.  Each task attempt opens one connection in one thread, and
closes it at its end.  Connections are never cached: a reused worker would inherit a dead task's ids and failures, and
connecting costs 0.1 ms.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from producerd.errors import BackpressureTimeout, Code, ConnectionFailed, FlushTimeout, Refused
from producerd.wire import messages
from producerd.wire.columns import Columns
from spark_client.backlog import Backlog, UnackedFrame
from spark_client.channel import DIAL_AGAIN_SECONDS, LEAST_SECONDS
from spark_client.session import DaemonSession, Deadline, WaitTime, warn
from spark_client.tally import Tally

MOST_FRUITLESS_SESSIONS: Final = 5
"""Sessions in a row that may end without an acknowledgement.  After more, the rows must be what ends them."""


_OF_A_LOST_DAEMON: Final = (Code.DAEMON_LOST, Code.DRAINING, Code.TABLE_FULL)


class Cuttable(Protocol):
    """Rows of one stream that can be cut into frames."""

    records: int

    def frame_end(self, start: int, max_frame_bytes: int, max_frame_records: int) -> int:
        """Return where the frame that begins at ``start`` ends.

        That is as late as both bounds allow, or after exactly one row.
        """

    def columns(self, start: int, stop: int) -> Columns:
        """Return the frame of rows ``start`` to ``stop``."""


class Connection:
    """Rows on their way to whichever daemon serves this node.

    The constructor connects, or raises ConnectionFailed if it cannot within ``connect_timeout_seconds``.

    If the daemon's table of connections is full, it ends the session of an idle client with TABLE_FULL.  The connection
    then sleeps, and comes back when it has something to send, within ``connect_timeout_seconds``.

    If the daemon is lost or stops, the connection looks for it, or for its successor, for
    ``reconnect_timeout_seconds``.  Then it sends everything again that was not acknowledged or that the daemon gave
    back, in order.  With 0 a lost daemon is an error.

    ``start`` starts a daemon where none answers (`spark_client.channel.dial`).

    ``tally`` counts how rows ended that were put without a tally of their own; by default it is a new one.
    ``acknowledged`` is called after each acknowledgement.

    ``opened`` is called with each stream's OPENED, which then says where the stream is.

    With ``dry_run`` its streams are opened for a dry run.  The figures are lost with the session, and so the connection
    ends with it: leave ``reconnect_timeout_seconds`` at 0.
    """

    def __init__(
        self,
        hello: messages.Hello,
        paths: Sequence[str],
        *,
        connect_timeout_seconds: float = 10.0,
        reconnect_timeout_seconds: float = 0.0,
        acknowledged: Callable[[], object] = lambda: None,
        start: Callable[[], None] | None = None,
        tally: Tally | None = None,
        dry_run: bool = False,
        opened: Callable[[str, messages.Opened], object] | None = None,
    ) -> None:
        self._dry_run = dry_run
        self._opened = opened
        self.tally = Tally() if tally is None else tally
        self._hello = dataclasses.replace(hello, comes_back=int(not dry_run))
        self._paths = paths
        self._start = start
        self._connect_timeout_seconds = connect_timeout_seconds
        self._reconnect_timeout_seconds = reconnect_timeout_seconds
        self._backlog = Backlog(sends_again=reconnect_timeout_seconds > 0, acknowledged=acknowledged)
        self._wait_time = WaitTime()
        self._to_open: list[str] = []  # that the present daemon does not know yet
        self._fruitless_sessions = 0  # that have ended since the last acknowledgement
        self._next_row = 0
        self._hastened_rows = 0  # how many of these hasten() has asked for
        self.sleeps = False  # whether the session has ended with TABLE_FULL, so that there is nothing to read
        self._is_abandoned = False
        self._reserves = ""  # the stream of the frame that waits for its GRANT
        self._session = self._connect(connect_timeout_seconds)

    def __repr__(self) -> str:
        return f"<Connection with {len(self._backlog.again)} frames to be sent again: {self._session!r}>"

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """End the session.  The daemon then delivers or discards what it has not acknowledged, as HELLO asked."""
        self._session.close()

    def abandon(self) -> None:
        """End the session.  Calls that wait in it raise ConnectionFailed and look for no daemon.

        Any thread may call this.
        """
        self._reconnect_timeout_seconds = 0.0
        self._is_abandoned = True
        self._backlog.send_no_more()
        self._session.interrupt()

    @property
    def held_by(self) -> tuple[str, float]:
        """What held this client longest, in a daemon's words, and for how many seconds; "" if nothing did for long."""
        return self._wait_time.reasons.longest

    @property
    def waits_for(self) -> str:
        """The stream for which a call waits for room now, and why, as the daemon said last; any thread may ask."""
        stream, reason = self._reserves, self._wait_time.reasons.latest
        return f"stream {stream}; the daemon said last: {reason}" if stream and reason else ""

    @property
    def draining(self) -> messages.Draining | None:
        """The daemon's message that it stops, if it sent one."""
        return self._session.draining

    @property
    def daemon_pid(self) -> int:
        """The id of the present daemon's process, in this process's namespace of ids."""
        return self._session.daemon_pid

    def fileno(self) -> int:
        """Return the socket's descriptor: when select or poll find it readable, call `settle_arrived`.

        Before each select or poll ask `is_behind`.
        """
        return self._session.fileno()

    @property
    def is_behind(self) -> bool:
        """Whether `settle_arrived` has something to do although nothing more arrives.

        The present daemon lacks streams or rows that the last one had, or a call stopped reading before the last
        message that it had received.
        """
        return not self.sleeps and bool(self._to_open or self._backlog.again or self._session.is_unread)

    def open(self, stream: str, timeout_seconds: float | None = None) -> None:
        """Open a stream unless it is open.  Raises Refused: STREAM_LIMIT, NOT_AUTHORIZED, ..."""
        if stream not in self._session.streams and stream not in self._to_open:
            self._lasting(lambda session, deadline: session.open(stream, deadline), timeout_seconds)

    def largest_frame(self, stream: str) -> tuple[int, int]:
        """Return the most (charge, records) that a frame for an open stream may have now.

        A single record may be larger.
        """
        return self._session.largest_frame(stream)

    def put_batch(
        self,
        stream: str,
        batch: Cuttable,
        timeout_seconds: float | None = None,
        *,
        rows: Sequence[int] | None = None,
        tally: Tally | None = None,
        together: bool = False,
    ) -> None:
        """Put a batch frame by frame, each as large as the daemon takes it now.

        The time-out holds for each frame, or for all of them ``together``.
        """
        whole = Deadline.after(timeout_seconds)

        def left() -> float | None:
            return timeout_seconds if whole.at is None or not together else max(0.0, whole.at - time.monotonic())

        self.open(stream, timeout_seconds)
        start = 0
        while start < batch.records:
            stop = batch.frame_end(start, *self.largest_frame(stream))
            named = None if rows is None else rows[start:stop]
            try:
                self.put(stream, batch.columns(start, stop), left(), rows=named, tally=tally)
            except Refused as refused:
                if refused.code != Code.TOO_LARGE or stop - start == 1:
                    raise
            else:
                start = stop

    def put(
        self,
        stream: str,
        columns: Columns,
        timeout_seconds: float | None = None,
        *,
        rows: Sequence[int] | None = None,
        tally: Tally | None = None,
    ) -> None:
        """Hand one frame to the daemon; wait while there is no room for it.

        Raises BackpressureTimeout if there is no room in time, and Refused if there never will be.  After TOO_LARGE
        `largest_frame` has shrunk, so cut again.  A record that exceeds the queue's whole limit ends in the tally, like
        any bad row.  Once the frame is granted it is sent whole, and the time-out no longer counts.

        The tally names rows by their numbers in ``rows``, by default counted from 0 in the order of put().
        """
        self.open(stream, timeout_seconds)
        first, records = self._next_row, columns.layout.records
        numbers = range(first, first + records) if rows is None else rows
        frame = UnackedFrame(stream, columns, numbers, self.tally if tally is None else tally, first)
        granted = taken = False

        def step(session: DaemonSession, deadline: Deadline) -> None:
            nonlocal granted, taken
            if taken:
                return
            if not granted:  # otherwise by a daemon that was then lost, so the frame was sent again with the backlog
                began = time.monotonic()
                self._reserves = stream
                try:
                    frame_id = session.reserve(frame, deadline)
                finally:
                    self._reserves = ""
                    self.tally.add_blocked(time.monotonic() - began)
                granted = True
                self._next_row += records
                if frame_id:
                    session.send(frame_id, frame)
            taken = True
            frame.tally.add_taken(records)
            session.log_long_wait()

        try:
            self._lasting(step, timeout_seconds)
        except BackpressureTimeout:
            if granted and not taken:  # the backlog keeps it for the next daemon
                frame.tally.add_taken(records)
            raise

    def settle_arrived(self) -> None:
        """Settle what has arrived, without waiting.  If the daemon is lost, find the next one and catch up."""
        if not self.sleeps:
            self._lasting(lambda session, _: session.settle_arrived(), wakes=False)

    def hasten(self) -> None:
        """Have every frame sent to Kinesis without lingering, also by the next daemon if this one is lost."""
        if not self.sleeps:
            self._lasting(lambda session, _: session.hasten())
            self._hastened_rows = self._next_row

    def reason(self, stream: str) -> str:
        """Return the daemon's reason why rows of an open stream wait, or why it has none."""
        if stream not in self._session.streams or self.sleeps:
            return "there is no daemon that knows of them"
        try:
            return self._session.reason(stream)
        except ConnectionFailed as ended:
            if ended.code not in _OF_A_LOST_DAEMON:
                raise
            return str(ended)  # the next call ends so, too, and looks for another one

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Have every frame sent to Kinesis without lingering, and wait until all are acknowledged.

        Raises FlushTimeout with the daemon's reason, and ConnectionFailed(DRAINING) if rows came back.
        """

        def step(session: DaemonSession, deadline: Deadline) -> None:
            began = time.monotonic()
            try:
                session.flush(deadline)
            finally:
                self.tally.add_flushing(time.monotonic() - began)

        if self.sleeps and not self._backlog.again:
            return  # all was acknowledged
        try:
            self._lasting(step, timeout_seconds)
        except BackpressureTimeout as full:  # raised for a frame that is sent again
            raise FlushTimeout(f"{self._backlog} after {timeout_seconds} s: {full}") from None

    def note_left_out(self, stream: str, records: int) -> None:
        """Have the daemon count rows of an open stream that are left out, because an earlier run has stored them."""
        self._lasting(lambda session, _: session.note_left_out(stream, records))

    def figures(self) -> dict[str, messages.Figures]:
        """Return what the daemon counted of each stream's dry run.  Call `flush` before."""
        return {stream: self._session.figures(stream) for stream in self._session.streams}

    # -------------------------------------------------------------------------------------------------- the next daemon

    def _connect(self, timeout_seconds: float) -> DaemonSession:
        return DaemonSession(
            self._hello,
            self._paths,
            timeout_seconds,
            self._backlog,
            self._wait_time,
            self._start,
            lambda: self._is_abandoned,
            dry_run=self._dry_run,
            opened=self._opened,
        )

    def _lasting(
        self,
        step: Callable[[DaemonSession, Deadline], None],
        timeout_seconds: float | None = None,
        *,
        wakes: bool = True,
    ) -> None:
        """Do a step with the present daemon or, if it is lost, with the next one.  Each has the whole time-out.

        A step that ``wakes`` the connection is repeated if the session ends with TABLE_FULL.  While there are frames to
        send again, every step is: nothing else would wake the connection for them.
        """
        tries_until: float | None = None  # to find a place, if the last session had to make place
        while True:
            try:
                if self.sleeps:
                    self._come_back()
                deadline = self._catch_up(timeout_seconds)
                step(self._session, deadline)
                return
            except ConnectionFailed as ended:
                if ended.code == Code.TABLE_FULL and not self._backlog.sent and not self._dry_run:
                    self._sleep()
                    if not wakes and not self._backlog.again:
                        return
                    tries_until = self._await_place(ended, tries_until)
                elif ended.code in _OF_A_LOST_DAEMON and self._reconnect_timeout_seconds:
                    self._find_next(ended)
                else:
                    raise

    def _sleep(self) -> None:
        """Note that the session ended with TABLE_FULL."""
        if not self.sleeps:
            self.sleeps = True
            self._to_open = [*self._session.streams, *self._to_open]

    def _await_place(self, ended: ConnectionFailed, until: float | None) -> float:
        """Wait before the next try to find a place, except the first, and return until when a call tries.

        Raise the error that ended the session if that time is over.
        """
        now = time.monotonic()
        if until is None:
            return now + max(self._connect_timeout_seconds, LEAST_SECONDS)
        if now > until:
            raise ended
        time.sleep(DIAL_AGAIN_SECONDS)
        return until

    def _come_back(self) -> None:
        last = self._session
        self._session = self._connect(max(self._connect_timeout_seconds, self._reconnect_timeout_seconds))
        last.close()
        self.sleeps = False
        if self._is_abandoned:
            self._session.interrupt()

    def _catch_up(self, timeout_seconds: float | None) -> Deadline:
        """Open the streams at a new daemon, and send again what the last one did not acknowledge.

        Return until when the call may wait.
        """
        deadline = Deadline.after(timeout_seconds)
        try:
            while self._to_open:
                self._session.open(self._to_open[0], deadline)
                del self._to_open[0]
                if self._opened is not None:  # the daemon asked Kinesis, and had room
                    deadline = Deadline.after(timeout_seconds)
            sends_again = bool(self._backlog.again)
            while self._backlog.again:
                self._send_again(deadline)
            if sends_again and any(frame.first < self._hastened_rows for frame in self._backlog.sent.values()):
                self._session.hasten()  # a flush may wait for them, and the last daemon had its FLUSH
        except Refused as refused:  # concerns what was put before, and not the present call
            stream = self._to_open[0] if self._to_open else self._backlog.again[0].stream
            raise ConnectionFailed(f"stream {stream}: {refused}; {self._backlog}", code=refused.code) from None
        return deadline

    def _send_again(self, deadline: Deadline) -> None:
        """Send the first frame again, or split it if it is larger than the daemon takes."""
        frame = self._backlog.again[0]
        try:
            frame_id = self._session.reserve(frame, deadline)
        except Refused as refused:
            if refused.code != Code.TOO_LARGE or len(frame.rows) == 1:
                raise
            self._backlog.split_first()
        else:
            self._backlog.pop_first()
            if frame_id:
                self._session.send(frame_id, frame)

    def _find_next(self, ended: ConnectionFailed) -> None:
        """Settle the last messages of this daemon, and connect to the next one."""
        last = self._session
        if ended.code == Code.DRAINING:
            last.hear_out()
        last.close()
        self._backlog.lose()
        self._fruitless_sessions = 1 if last.has_progressed else self._fruitless_sessions + 1
        if self._fruitless_sessions > MOST_FRUITLESS_SESSIONS:
            raise ConnectionFailed(
                f"{ended}; {MOST_FRUITLESS_SESSIONS} daemons in a row ended before any acknowledgement", code=ended.code
            )
        warn("%s; looking for it for %g s", ended, self._reconnect_timeout_seconds)
        try:
            self._session = self._connect(self._reconnect_timeout_seconds)
        except ConnectionFailed as absent:
            code = Code.DAEMON_LOST if absent.code == Code.DAEMON_ABSENT else absent.code
            raise ConnectionFailed(f"{ended}; {absent}", code=code) from None
        self._to_open = [*last.streams, *self._to_open]
        if self._is_abandoned:  # meanwhile
            self._session.close()
            raise ended
