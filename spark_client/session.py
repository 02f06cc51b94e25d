"""One session with one daemon, which opens streams, and grants and acknowledges frames.

Nothing runs in the background.  The client settles acknowledgements whenever it reads anything: while it waits for the
window or for a GRANT, and in `DaemonSession.flush`.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from producerd.errors import (
    BackpressureTimeout,
    Code,
    ConnectionFailed,
    FlushTimeout,
    Outcome,
    ProtocolError,
    Refused,
)
from producerd.wire import messages
from producerd.wire.columns import Layout
from producerd.wire.messages import Service
from spark_client.backlog import Backlog, UnackedFrame
from spark_client.channel import LEAST_SECONDS, SERVICE_SECONDS, Late, Lost, closed, dial
from spark_client.reasons import Reasons
from spark_client.results import counted

LOG: Final = logging.getLogger("producerd.client")
ANSWER_SECONDS: Final = 2.0
"""How long a caller whose time-out has ended waits for the daemon's reason.  A daemon answers at once, or it hangs."""
SLOW_SECONDS: Final = 30.0
LOG_AGAIN_SECONDS: Final = 300.0
"""The log reports a wait after the same times as the daemon reports to a blocked caller."""
LONG_WAIT_SECONDS: Final = 0.25
"""The shortest wait that counts, because a loop of puts has thousands of short ones."""
WHERE_SECONDS: Final = 7.0
"""The least wait for an OPENED that says where the stream is: a daemon looks for that for up to 5 s."""
MOST_WHERE_SECONDS: Final = 15.0
"""How long a task waits for such answers in all, before it asks for no more."""
SILENT_SECONDS: Final = 360.0
"""How long a daemon is silent before the log says so.  It must exceed the 5 minutes between reports of no room."""


def warn(text: str, *values: object) -> None:
    """Log a warning, whatever a handler raises: the session must not end by it.

    A handler that sends the log by way of a `KinesisClient` raises, because the client refuses calls from its own
    thread.
    """
    with contextlib.suppress(Exception):
        LOG.warning(text, *values, stacklevel=2)


class Deadline(NamedTuple):
    """The end of a time-out of ``seconds``, by `time.monotonic`; None waits forever."""

    seconds: float | None
    at: float | None

    @staticmethod
    def after(seconds: float | None) -> Deadline:
        return Deadline(seconds, None if seconds is None else time.monotonic() + max(seconds, LEAST_SECONDS))


class OpenStream(NamedTuple):
    """A stream that the daemon has opened: its number, and the largest frame that it takes now (charge, records)."""

    number: int
    max_frame_bytes: int
    max_frame_records: int


class WaitTime:
    """The time for which a client has waited for any daemon, and the total at which the log reports it next.

    ``reasons`` has what the daemons said of it.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.logs_at = SLOW_SECONDS
        self.reasons = Reasons()
        self._opening_seconds = 0.0

    @property
    def asks_where(self) -> bool:
        """Whether the daemons are still asked where streams are: with many streams the waits would add up."""
        return self._opening_seconds < MOST_WHERE_SECONDS

    def count_opening(self, seconds: float) -> None:
        self._opening_seconds += seconds

    def count_seconds(self, seconds: float) -> None:
        self.seconds += seconds

    def round_up(self) -> None:
        """Count a wait that lasted until the log was due, even if it was too short to count."""
        self.seconds = max(self.seconds, self.logs_at)

    def logged(self) -> None:
        self.logs_at = self.seconds + LOG_AGAIN_SECONDS


class DaemonSession:
    """The client's side of a session.  Its name tells it from the daemon's side, `producerd.runtime.session.Session`.

    The constructor finds a daemon as `dial` does.  At the session's end calls raise ConnectionFailed: with DAEMON_LOST
    if the socket has ended, or with DRAINING if the daemon stops and takes no more frames.  ``backlog`` then has the
    frames that the daemon did not acknowledge.

    ``opened`` is called with each stream's OPENED, which then says where the stream is.

    ``has_progressed`` is whether the daemon acknowledged a frame, or the client waited without any.
    """

    def __init__(
        self,
        hello: messages.Hello,
        paths: Sequence[str],
        timeout_seconds: float,
        backlog: Backlog,
        wait_time: WaitTime,
        start: Callable[[], None] | None = None,
        gives_up: Callable[[], bool] = lambda: False,
        *,
        dry_run: bool = False,
        opened: Callable[[str, messages.Opened], object] | None = None,
    ) -> None:
        self.streams: dict[str, OpenStream] = {}
        self.draining: messages.Draining | None = None
        self.has_progressed = False
        self._ended_by: messages.Close | None = None  # each later call ends by it, too
        self._opening: dict[str, int] = {}  # the numbers of streams whose OPEN is not answered
        self._last_number = 0
        self._backlog = backlog
        self._wait_time = wait_time
        self._resumed = backlog.is_resumed
        wait_time.reasons.forget_question()
        self._channel, self._welcome = dial(hello, paths, timeout_seconds, start, gives_up)
        self._dry_run = dry_run
        self._tell_opened = opened
        if dry_run and not self._welcome.dry_runs:
            self.close()
            text = f"the daemon ({self._welcome.daemon}) would store the rows of a dry run: upgrade it"
            raise ConnectionFailed(text, code=Code.VERSION_MISMATCH)

    def __repr__(self) -> str:
        machine, welcome, backlog = self._channel.machine, self._welcome, self._backlog
        return (
            f"<DaemonSession {welcome.session_id} with {welcome.daemon or 'a daemon'} at {self._channel.path}: "
            f"streams {', '.join(self.streams) or 'none'}, {machine.outstanding} of {machine.window_frames} frames "
            f"open, {backlog.sent_bytes} of {welcome.window_bytes} bytes sent>"
        )

    def fileno(self) -> int:
        return self._channel.fileno()

    @property
    def is_unread(self) -> bool:
        """Whether a message may have arrived that no call has read, or CLOSE has ended the session."""
        return self._ended_by is not None or self._channel.is_unread

    @property
    def daemon_pid(self) -> int:
        return self._channel.peer_pid

    def close(self) -> None:
        self._channel.close()

    def interrupt(self) -> None:
        """End the session, and wake the thread that waits in it.  Any thread may call this."""
        self._channel.interrupt()

    # ---------------------------------------------------------------------------------------------------------- streams

    def open(self, stream: str, deadline: Deadline) -> None:
        """Open a stream.  After a call that timed out, wait for the answer to its OPEN and send no other."""
        if stream not in self.streams and stream not in self._opening:
            self._last_number += 1
            asks_where = int(self._tell_opened is not None and self._wait_time.asks_where)
            self._tell(messages.Open(self._last_number, stream, int(self._resumed), int(self._dry_run), asks_where))
            self._opening[stream] = self._last_number
        number = self._opening.get(stream)
        until, began = deadline.at, time.monotonic()
        if until is not None and self._tell_opened is not None:  # the daemon answers when it has asked Kinesis
            until = max(until, began + WHERE_SECONDS)
        try:
            while stream in self._opening:
                answer = self._read(until)
                self._settle(answer)
                if isinstance(answer, messages.Refused) and (answer.frame_id, answer.stream_id) == (0, number):
                    raise self._refusal(answer)
        except Late:
            text = f"stream {stream} was not opened within {deadline.seconds} s: the daemon does not answer"
            raise BackpressureTimeout(text) from None
        if self._tell_opened is not None:
            self._wait_time.count_opening(time.monotonic() - began)
        if self._dry_run and number is not None:
            self._ask_service(stream)

    def figures(self, stream: str) -> messages.Figures:
        """Return what the daemon counted of a stream's dry run, when all its frames are acknowledged."""
        self._tell(messages.Status(self.streams[stream].number, asks_figures=1))
        figures: messages.Figures = self._answer(lambda message: isinstance(message, messages.Figures), ANSWER_SECONDS)
        return figures

    def note_left_out(self, stream: str, records: int) -> None:
        """Have the daemon count rows of an open stream that are left out, because an earlier run has stored them."""
        self._tell(messages.Flush(self.streams[stream].number, left_out=records))

    def _ask_service(self, stream: str) -> None:
        """Raise Refused if Kinesis would store nothing of a stream, whose rows no dry run sends there."""
        self._tell(messages.Status(self.streams[stream].number, asks_service=1))
        answer = self._answer(lambda message: getattr(message, "service", Service.NOT_ASKED), SERVICE_SECONDS)
        if answer.service == Service.FAILED:
            raise Refused(answer.service_message, code=answer.service_code)

    def _answer(self, suits: Callable[[messages.Message], object], seconds: float) -> Any:
        """Return the message that answers a question, and settle what comes before it."""
        at = time.monotonic() + seconds
        try:
            while True:
                message = self._read(at)
                if suits(message):
                    return message
                self._settle(message)
        except Late:
            raise ConnectionFailed("the daemon does not answer", code=Code.DAEMON_LOST) from None

    def largest_frame(self, stream: str) -> tuple[int, int]:
        """Return the most (charge, records) that a stream's frame may have now: by OPENED, or before it by WELCOME."""
        limits = self.streams.get(stream, self._welcome)
        return limits.max_frame_bytes, limits.max_frame_records

    # ----------------------------------------------------------------------------------------------------------- frames

    def reserve(self, frame: UnackedFrame, deadline: Deadline) -> int:
        """Return the frame's id when the daemon grants it.

        Return 0 if this daemon can never take its only record, which is then in the frame's tally.
        """
        layout = frame.columns.layout
        if self._backlog.given_up_records or self.draining:
            raise self._drained()
        try:
            if layout.charge_bytes > self._welcome.max_frame_bytes and not self._window_has_room(layout):
                self._tell(
                    messages.Flush()
                )  # unasked, a daemon flushes only if the window lacks room for max_frame_bytes
            while not self._window_has_room(layout):
                self._settle_next(deadline.at, frame.stream)
        except Late:
            raise _no_room(frame, deadline, self.reason(frame.stream)) from None
        frame_id = self._channel.machine.last_frame_id + 1
        self._tell(messages.Reserve(frame_id, self.streams[frame.stream].number, layout))
        try:
            answer = self._answer_to_reserve(frame_id, deadline.at, frame.stream)
        except Late:
            answer = self._cancel(frame_id, frame, deadline)
        if isinstance(answer, messages.Grant):
            return frame_id
        if layout.records == 1 and answer.code in (Code.RECORD_TOO_LARGE, Code.CONFIGURATION):
            why = messages.RowCode(Outcome.NOT_STORED, answer.code, answer.message, judged=bool(answer.judged))
            frame.tally.refuse(frame.rows[0], why, frame.stream, frame.columns, 0)
            return 0
        if answer.code == Code.TOO_LARGE:
            self._shrink(frame.stream, layout, answer)
        raise self._refusal(answer)

    def send(self, frame_id: int, frame: UnackedFrame) -> None:
        """Send a frame that the daemon granted, however long that takes."""
        self._backlog.keep(frame_id, frame)
        try:
            self._channel.send_body(frame_id, frame.columns)
        except Lost:
            self._read_to_the_end()

    def hasten(self) -> None:
        """Have every frame sent to Kinesis without lingering."""
        if self._backlog.sent:
            self._tell(messages.Flush())

    def flush(self, deadline: Deadline) -> None:
        """Have every frame sent to Kinesis without lingering, and wait until all are acknowledged."""
        self.hasten()
        try:
            while self._backlog.sent:
                self._settle_next(deadline.at, self._first_stream())
        except Late:
            reason = self.reason(self._first_stream())
            if self._backlog.sent:  # the last ACK may have come before the reason did
                raise FlushTimeout(f"{self._backlog} after {deadline.seconds} s: {reason}") from None
        if self._backlog.returned_records:
            raise self._drained()

    def settle_arrived(self) -> None:
        """Settle what has arrived, without waiting."""
        if not self._backlog.sent:
            self.has_progressed = True  # nothing was sent: should the session end now, no frame is to blame
        with contextlib.suppress(Late):
            while True:
                self._settle(self._read(time.monotonic()))

    def hear_out(self) -> None:
        """Settle the last messages of a daemon that stops: it acknowledges what it can, and gives the rest back."""
        at = time.monotonic() + (self.draining.deadline_seconds if self.draining else 0) + ANSWER_SECONDS
        with contextlib.suppress(Late, Lost, ConnectionFailed):
            while self._backlog.sent:
                self._settle(self._channel.read(at))

    def reason(self, stream: str) -> str:
        """Return the daemon's reason why rows of an open stream wait, or that it gave none."""
        self._tell(messages.Status(self.streams[stream].number))
        at = time.monotonic() + ANSWER_SECONDS
        try:
            while True:
                message = self._read(at)
                if isinstance(message, messages.Blocked):
                    self._wait_time.reasons.told(message.reason)
                    return describe(message)
                self._settle(message)
        except Late:
            return "the daemon does not answer"

    def log_long_wait(self) -> None:
        """Log now and then how long this client has waited in all, and for what."""
        wait_time = self._wait_time
        if wait_time.seconds >= wait_time.logs_at and self._backlog.sent:
            wait_time.logged()
            stream = self._first_stream()
            text = "stream %s: this task has waited for more than %.0f s; %s: %s"
            warn(text, stream, wait_time.seconds, str(self._backlog), self.reason(stream))

    def _first_stream(self) -> str:
        return next(iter(self._backlog.sent.values())).stream

    def _window_has_room(self, layout: Layout) -> bool:
        """Return whether the frame fits the window, as a single frame always does.

        Without a window acknowledgements would pile up, or both sides would block writing.
        """
        machine, backlog = self._channel.machine, self._backlog
        if machine.outstanding >= machine.window_frames:
            return False
        return not backlog.sent or backlog.sent_bytes + layout.charge_bytes <= self._welcome.window_bytes

    def _cancel(self, frame_id: int, frame: UnackedFrame, deadline: Deadline) -> messages.Refused:
        """Withdraw a RESERVE and raise BackpressureTimeout, or return a refusal that crossed the CANCEL.

        A GRANT that crossed it is void.
        """
        self._tell(messages.Cancel(frame_id))
        try:
            answer = self._answer_to_reserve(frame_id, time.monotonic() + ANSWER_SECONDS, frame.stream)
        except Late:  # should an answer still come, the machine knows of the CANCEL, and _settle ignores it
            reason = "the daemon does not answer"
        else:
            if isinstance(answer, messages.Refused) and answer.code != Code.CANCELLED:
                return answer
            reason = answer.message if isinstance(answer, messages.Refused) else "room came just too late"
        raise _no_room(frame, deadline, reason)

    def _shrink(self, stream: str, layout: Layout, refused: messages.Refused) -> None:
        most_bytes, most_records = refused.max_frame_bytes, refused.max_frame_records or layout.records
        if layout.records > 1 and layout.charge_bytes <= most_bytes and layout.records <= most_records:
            raise ProtocolError(f"a frame of {layout.charge_bytes} bytes was refused as larger than {most_bytes}")
        number, max_bytes, max_records = self.streams[stream]
        self.streams[stream] = OpenStream(number, min(max_bytes, most_bytes), min(max_records, most_records))

    def _refusal(self, refused: messages.Refused) -> Refused | ConnectionFailed:
        if refused.code == Code.DRAINING:
            return self._drained()
        return Refused(
            refused.message,
            code=refused.code,
            max_frame_bytes=refused.max_frame_bytes,
            max_frame_records=refused.max_frame_records,
        )

    def _drained(self) -> ConnectionFailed:
        text = f"the daemon stops: it gave {counted(self._backlog.returned_records, 'record')} back and takes no more"
        return ConnectionFailed(text, code=Code.DRAINING)

    # --------------------------------------------------------------------------------------------------------- messages

    def _settle(self, message: messages.Message) -> None:
        """Handle a message that no call waits for.  It ignores the answer to a RESERVE that was cancelled."""
        if isinstance(message, messages.Ack):
            self.has_progressed = True
            self._backlog.end_frame(message)
        elif isinstance(message, messages.Opened):
            self._opened(message)
        elif isinstance(message, messages.Refused) and not message.frame_id:
            self._opening = {name: number for name, number in self._opening.items() if number != message.stream_id}
        elif isinstance(message, messages.Blocked):
            self._wait_time.reasons.told(message.reason)
            if message.seconds:  # otherwise it is the answer to a question
                name = next((name for name, stream in self.streams.items() if stream.number == message.stream_id), "?")
                warn("stream %s: blocked for %.0f s: %s", name, message.seconds, describe(message))
        elif isinstance(message, messages.Draining):
            self.draining = message
        elif isinstance(message, messages.Close):
            self._ended_by = message
            raise closed(message, f"; {self._backlog}")

    def _opened(self, opened: messages.Opened) -> None:
        for name in [name for name, number in self._opening.items() if number == opened.stream_id]:
            self.streams[name] = OpenStream(
                self._opening.pop(name),
                min(opened.max_frame_bytes, self._welcome.max_frame_bytes),
                min(opened.max_frame_records, self._welcome.max_frame_records),
            )
            if self._tell_opened is not None:
                self._tell_opened(name, opened)

    def _settle_next(self, until: float | None, stream: str) -> None:
        """Wait for the next message and settle it.  Log what the client waits for if it has waited for long."""
        logs_at = time.monotonic() + max(0.0, self._wait_time.logs_at - self._wait_time.seconds)
        try:
            self._settle(self._await(logs_at if until is None else min(logs_at, until), stream))
        except Late:
            if until is not None and until <= logs_at:
                raise
            self._wait_time.round_up()
        self.log_long_wait()

    def _answer_to_reserve(self, frame_id: int, until: float | None, stream: str) -> messages.Grant | messages.Refused:
        """Return the GRANT or REFUSED of this frame; settle what comes before it."""
        while True:
            message = self._await(until, stream)
            if isinstance(message, (messages.Grant, messages.Refused)) and message.frame_id == frame_id:
                return message
            self._settle(message)

    def _await(self, until: float | None, stream: str) -> messages.Message:
        """Return the next message.  Ask now and then why the rows of a stream wait; `_settle` takes the answer."""
        reasons = self._wait_time.reasons
        while True:
            if not reasons.due_seconds:
                self._tell(messages.Status(self.streams[stream].number))
                reasons.asked()
            began = time.monotonic()
            asks_at = began + reasons.due_seconds
            try:
                return self._read(asks_at if until is None else min(asks_at, until))
            except Late:
                if until is not None and until <= asks_at:
                    raise
            finally:
                reasons.count_wait(time.monotonic() - began)

    def _tell(self, message: messages.Message) -> None:
        if self._ended_by is not None:
            self._settle(self._ended_by)
        try:
            self._channel.tell(message)
        except Lost:
            self._read_to_the_end()

    def _read_to_the_end(self) -> None:
        while True:
            self._settle(self._read(None))

    def _read(self, until: float | None) -> messages.Message:
        """Return the next message.  Log a line whenever the daemon has been silent for long."""
        if self._ended_by is not None:
            return self._ended_by
        while True:
            began = time.monotonic()
            soon = began + SILENT_SECONDS
            try:
                return self._channel.read(soon if until is None else min(soon, until))
            except Late:
                if until is not None and until <= soon:
                    raise
                text = "the daemon on host %s has sent nothing for %g s, and this task waits for it: %s"
                warn(text, socket.gethostname(), SILENT_SECONDS, str(self._backlog))
            except Lost:
                text = f"the daemon on host {socket.gethostname()} is gone: {self._backlog}"
                raise ConnectionFailed(text, code=Code.DAEMON_LOST) from None
            finally:
                seconds = time.monotonic() - began
                if seconds >= LONG_WAIT_SECONDS:
                    self._wait_time.count_seconds(seconds)


def _no_room(frame: UnackedFrame, deadline: Deadline, reason: str) -> BackpressureTimeout:
    seconds = round(deadline.seconds or 0, 2)  # what the call had left, which is a little less than its time-out
    return BackpressureTimeout(f"no room for stream {frame.stream} within {seconds:g} s: {reason}")


def describe(blocked: messages.Blocked) -> str:
    """Return BLOCKED as one line with its numbers."""
    line = (
        f"{blocked.reason}; queue {blocked.queue_records:,} of {blocked.queue_limit_records:,} records, "
        f"{blocked.queue_bytes:,} of {blocked.queue_limit_bytes:,} bytes, "
        f"{blocked.requests_in_flight} requests in flight"
    )
    if blocked.shard:
        line += f", {blocked.shard} holds {blocked.share:.0%}"
    if blocked.last_error:
        line += f", last error: {blocked.last_error}"
    return line
