"""One session with this node's daemon: rows go in as frames, acknowledgements come back.

What `put` returned from is the daemon's; what it raised from, a lost daemon aside, was not taken at all, not even in
part.  `flush` returns only when every frame is acknowledged.  One thread, one task attempt, one connection: it is
opened when the attempt starts, closed when it ends and never cached, as a reused worker would inherit a dead task's
ids and failures (connecting costs 0.1 ms).

Nothing runs in the background: acknowledgements are settled whenever anything is read, which is while `put` waits for
the window or for its GRANT, and in `flush`.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from producerd.errors import (
    BackpressureTimeout,
    Code,
    ConnectionFailed,
    FlushTimeout,
    Outcome,
    ProtocolError,
    Refused,
)
from producerd.wire import frames
from producerd.wire.columns import Buffer, Columns, Layout
from producerd.wire.frames import MessageType
from producerd.wire.machine import frame_id_of
from spark_client.channel import Late, Lost, closed, dial
from spark_client.tally import Tally

LOG: Final = logging.getLogger("producerd.client")
ANSWER_SECONDS: Final = 2.0
"""How long a caller whose time-out has ended waits for the daemon's reason.  It answers at once, or it hangs."""


@dataclass
class _Stream:
    """An open stream: its number, and the largest frame that it takes now (charge, records)."""

    name: str
    number: int
    max_frame_bytes: int
    max_frame_records: int


@dataclass(frozen=True)
class _Sent:
    stream: _Stream
    layout: Layout
    first_row: int


class Connection:
    """Connects and says HELLO; raises ConnectionFailed where that cannot be done within ``connect_timeout_seconds``.

    ``tally`` says how the rows put so far ended, ``draining`` what the daemon said when it began to stop.
    """

    def __init__(self, hello: frames.Hello, paths: Sequence[str], *, connect_timeout_seconds: float = 10.0) -> None:
        self.tally = Tally()
        self.draining: frames.Draining | None = None
        self._channel, self._welcome = dial(hello, paths, connect_timeout_seconds)
        self._streams: dict[str, _Stream] = {}
        self._unacked: dict[int, _Sent] = {}
        self._unacked_bytes = 0
        self._last_frame_id = 0
        self._next_row = 0

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """End the session; what is not acknowledged is the daemon's to discard or to deliver, as HELLO said."""
        self._channel.close()

    def open(self, stream: str, timeout_seconds: float | None = None) -> None:
        """Name a stream to the daemon, once.  Raises Refused: STREAM_LIMIT, NOT_AUTHORIZED, ..."""
        if stream in self._streams:
            return
        number = len(self._streams) + 1
        self._tell(frames.Open(number, stream))
        try:
            answer = self._answer(frames.Opened, 0, _deadline(timeout_seconds))
        except Late:
            text = f"stream {stream} was not opened within {timeout_seconds} s: the daemon does not answer"
            raise BackpressureTimeout(text) from None
        if isinstance(answer, frames.Refused):
            raise self._refusal(answer)
        self._streams[stream] = _Stream(
            stream,
            number,
            min(answer.max_frame_bytes, self._welcome.max_frame_bytes),
            min(answer.max_frame_records, self._welcome.max_frame_records),
        )

    def largest_frame(self, stream: str) -> tuple[int, int]:
        """The most (charge, records) that a frame for an open stream may have now; one larger record may go alone."""
        return self._streams[stream].max_frame_bytes, self._streams[stream].max_frame_records

    def put(self, stream: str, columns: Columns, timeout_seconds: float | None = None) -> None:
        """Hand one frame to the daemon; wait while there is no room for it.

        Raises BackpressureTimeout when there was none in time, and Refused when there never will be; with TOO_LARGE
        `largest_frame` has shrunk: cut again.  A record that passes the queue's whole limit alone ends in the tally,
        like any bad row.  Once the frame is granted its body is sent whole, and the time-out is over.
        """
        self.open(stream, timeout_seconds)
        opened, layout = self._streams[stream], columns.layout
        began = time.monotonic()
        try:
            frame_id = self._reserve(opened, layout, timeout_seconds)
        finally:
            self.tally.seconds_blocked += time.monotonic() - began
        if frame_id:
            self._unacked[frame_id] = _Sent(opened, layout, self._next_row)
            self._unacked_bytes += layout.charge_bytes
            self._channel.machine.sent(MessageType.BODY, frame_id)
            self._send(frames.body_header(layout), columns.body_prefix(frame_id), *columns.parts)
        self._next_row += layout.records

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Have every frame sent without lingering and wait until all are acknowledged; the tally says how they ended.

        Raises FlushTimeout with the daemon's reason, and ConnectionFailed(DRAINING) if rows came back.
        """
        deadline = _deadline(timeout_seconds)
        if self._unacked:
            self._tell(frames.Flush())
        try:
            while self._unacked:
                self._settle(self._read(deadline))
        except Late:
            reason = self._reason(next(iter(self._unacked.values())).stream)
            if self._unacked:  # the last ACK may have come before the reason did
                raise FlushTimeout(f"{self._owed()} after {timeout_seconds} s: {reason}") from None
        if self.tally.returned:
            raise self._drained()

    # -------------------------------------------------------------------------------------------- room for one frame

    def _reserve(self, stream: _Stream, layout: Layout, timeout_seconds: float | None) -> int:
        """The id of the frame when it is granted; 0 when its only record can never be taken."""
        deadline = _deadline(timeout_seconds)
        if self.tally.returned or self.draining:
            raise self._drained()
        try:
            while not self._window_has_room(layout):
                self._settle(self._read(deadline))
        except Late:
            raise _no_room(stream, timeout_seconds, self._reason(stream)) from None
        self._last_frame_id += 1
        frame_id = self._last_frame_id
        self._tell(frames.Reserve(frame_id, stream.number, layout))
        try:
            answer = self._answer(frames.Grant, frame_id, deadline)
        except Late:
            answer = self._cancel(stream, frame_id, timeout_seconds)
        if not isinstance(answer, frames.Refused):
            return frame_id
        if answer.code == Code.RECORD_TOO_LARGE and layout.records == 1:
            self.tally.refuse(self._next_row, frames.RowCode(Outcome.NOT_STORED, answer.code, answer.message))
            return 0
        if answer.code == Code.TOO_LARGE:
            _shrink(stream, layout, answer)
        raise self._refusal(answer)

    def _window_has_room(self, layout: Layout) -> bool:
        """Both sides keep the window: else acknowledgements pile up, or both block writing.  One frame always fits."""
        machine = self._channel.machine
        if machine.outstanding >= machine.window_frames:
            return False
        return not self._unacked or self._unacked_bytes + layout.charge_bytes <= self._welcome.window_bytes

    def _cancel(self, stream: _Stream, frame_id: int, timeout_seconds: float | None) -> frames.Refused:
        """Withdraw a RESERVE, then raise.  Returned is only a refusal that crossed; a GRANT that did so is void."""
        self._tell(frames.Cancel(frame_id))
        try:
            answer = self._answer(frames.Grant, frame_id, time.monotonic() + ANSWER_SECONDS)
        except Late:  # should it answer yet, the machine knows that the frame is cancelled, and _settle drops it
            reason = "the daemon does not answer"
        else:
            if isinstance(answer, frames.Refused) and answer.code != Code.CANCELLED:
                return answer
            reason = answer.message if isinstance(answer, frames.Refused) else "room came just too late"
        raise _no_room(stream, timeout_seconds, reason)

    def _reason(self, stream: _Stream) -> str:
        """The daemon's word on why a stream's rows wait, or that it gave none."""
        self._tell(frames.Status(stream.number))
        deadline = time.monotonic() + ANSWER_SECONDS
        try:
            while True:
                message = self._read(deadline)
                if isinstance(message, frames.Blocked):
                    return _describe(message)
                self._settle(message)
        except Late:
            return "the daemon does not answer"

    # ----------------------------------------------------------------------------------------------- the daemon's word

    def _answer(self, wanted: type, frame_id: int, deadline: float | None) -> Any:
        """The next ``wanted`` message, or REFUSED, that names this frame; what comes before it is settled."""
        while True:
            message = self._read(deadline)
            if isinstance(message, (wanted, frames.Refused)) and frame_id_of(message) == frame_id:
                return message
            self._settle(message)

    def _settle(self, message: frames.Message) -> None:
        """Take note of a message that nobody waits for.  A late GRANT, REFUSED or OPENED is void."""
        if isinstance(message, frames.Ack):
            sent = self._unacked.pop(message.frame_id)
            layout = sent.layout
            if message.records != layout.records:
                raise ProtocolError(f"ACK of {message.records} records for a frame of {layout.records}")
            self._unacked_bytes -= layout.charge_bytes
            self.tally.payload_bytes += layout.key_bytes + layout.data_bytes + layout.hash_key_bytes
            self.tally.settle(message, sent.first_row)
        elif isinstance(message, frames.Blocked):
            stream = next((s.name for s in self._streams.values() if s.number == message.stream_id), "?")
            LOG.warning("stream %s: blocked for %.0f s: %s", stream, message.seconds, _describe(message))
        elif isinstance(message, frames.Draining):
            self.draining = message
        elif isinstance(message, frames.Close):
            raise closed(message, f"; {self._owed()}")

    def _refusal(self, refused: frames.Refused) -> Refused | ConnectionFailed:
        if refused.code == Code.DRAINING:
            return self._drained()
        return Refused(
            refused.message,
            code=refused.code,
            max_frame_bytes=refused.max_frame_bytes,
            max_frame_records=refused.max_frame_records,
        )

    def _drained(self) -> ConnectionFailed:
        """The daemon stops.  The one place to resend from, over a new connection, what it returned or refused."""
        text = f"the daemon stops: it gave {self.tally.returned} records back and takes no more"
        return ConnectionFailed(text, code=Code.DRAINING)

    def _owed(self) -> str:
        records = sum(sent.layout.records for sent in self._unacked.values())
        return f"{len(self._unacked)} frames with {records} records are not acknowledged"

    # ------------------------------------------------------------------------------------- messages, or a lost daemon

    def _tell(self, message: frames.Message) -> None:
        try:
            self._channel.tell(message)
        except Lost:
            self._read_to_the_end()

    def _send(self, *parts: Buffer) -> None:
        try:
            self._channel.send(*parts)
        except Lost:
            self._read_to_the_end()

    def _read_to_the_end(self) -> None:
        while True:
            self._settle(self._read(None))

    def _read(self, deadline: float | None) -> frames.Message:
        try:
            return self._channel.read(deadline)
        except Lost:
            text = f"the daemon on host {socket.gethostname()} is gone: {self._owed()}"
            raise ConnectionFailed(text, code=Code.DAEMON_LOST) from None


def _deadline(timeout_seconds: float | None) -> float | None:
    return None if timeout_seconds is None else time.monotonic() + timeout_seconds


def _shrink(stream: _Stream, layout: Layout, refused: frames.Refused) -> None:
    most_bytes, most_records = refused.max_frame_bytes, refused.max_frame_records or layout.records
    if layout.records > 1 and layout.charge_bytes <= most_bytes and layout.records <= most_records:
        raise ProtocolError(f"a frame of {layout.charge_bytes} bytes was refused as larger than {most_bytes}")
    stream.max_frame_bytes = min(stream.max_frame_bytes, most_bytes)
    stream.max_frame_records = min(stream.max_frame_records, most_records)


def _no_room(stream: _Stream, timeout_seconds: float | None, reason: str) -> BackpressureTimeout:
    return BackpressureTimeout(f"no room for stream {stream.name} within {timeout_seconds} s: {reason}")


def _describe(blocked: frames.Blocked) -> str:
    """BLOCKED in one line, with the numbers."""
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
