"""One session with this node's daemon: rows go in as frames, acknowledgements come back.

What `put` returned from is the daemon's; what it raised from, a lost daemon aside, was not taken at all, not even in
part.  `flush` returns only when every frame is acknowledged.  One thread, one task attempt, one connection: it is
opened when the attempt starts, closed when it ends and never cached, as a reused worker would inherit a dead task's
ids and failures (connecting costs 0.1 ms).

Nothing runs in the background: acknowledgements are settled whenever anything is read, which is while `put` waits for
the window or for its GRANT, and in `flush`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

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
from producerd.wire.columns import FLAG_RESENT, Buffer, Columns, Layout
from producerd.wire.frames import MessageType
from producerd.wire.machine import frame_id_of
from spark_client.channel import LEAST_SECONDS, Late, Lost, closed, dial
from spark_client.tally import Tally

LOG: Final = logging.getLogger("producerd.client")
ANSWER_SECONDS: Final = 2.0
"""How long a caller whose time-out has ended waits for the daemon's reason.  It answers at once, or it hangs."""
SLOW_SECONDS: Final = 30.0
TELL_AGAIN_SECONDS: Final = 300.0
"""As the daemon tells a caller that is blocked."""
LONG_WAIT_SECONDS: Final = 0.25
"""Waits that are shorter count for nothing: a loop of puts has thousands."""
SILENT_SECONDS: Final = 360.0
"""A daemon says every 5 minutes why there is no room, but never why acknowledgements take so long."""
MOST_IN_VAIN: Final = 5
"""Sessions in a row that ended before anything was acknowledged: then it is what is sent that ends them."""


class Cuttable(Protocol):
    """Rows of one stream that can be cut into frames."""

    records: int

    def cut(self, start: int, max_frame_bytes: int, max_frame_records: int) -> int:
        """Where the frame that begins at ``start`` ends: as late as both bounds allow, or behind exactly one row."""

    def columns(self, start: int, stop: int) -> Columns:
        """The frame of rows ``start`` to ``stop``."""


@dataclass
class _Stream:
    """An open stream: its number, and the largest frame that it takes now (charge, records)."""

    name: str
    number: int
    max_frame_bytes: int
    max_frame_records: int


@dataclass
class _Sent:
    """A frame, kept until it is acknowledged; ``rows``: their numbers; ``tally``: where their end is counted.

    ``first``: what of the session was put before it, which says where it belongs among what is sent again.
    """

    stream: _Stream
    columns: Columns
    rows: Sequence[int]
    tally: Tally
    first: int
    granted: bool = False


class Connection:
    """Connects and says HELLO; raises ConnectionFailed where that cannot be done within ``connect_timeout_seconds``.

    Where the daemon is lost or stops, it, or the one after it, is waited for, for ``reconnect_timeout_seconds``; then
    what was not acknowledged, or came back, is sent again, in its order.  With 0 that is an error.

    ``tally`` says how the rows put so far ended (but those put with a tally of their own), ``draining`` what the daemon
    said when it began to stop; ``acknowledged`` is called behind each acknowledgement.
    """

    def __init__(
        self,
        hello: frames.Hello,
        paths: Sequence[str],
        *,
        connect_timeout_seconds: float = 10.0,
        reconnect_timeout_seconds: float = 0.0,
    ) -> None:
        self.tally = Tally()
        self.draining: frames.Draining | None = None
        self.acknowledged: Callable[[], object] = lambda: None
        self._hello = hello
        self._paths = paths
        self._reconnect_timeout_seconds = reconnect_timeout_seconds
        self._channel, self._welcome = dial(hello, paths, connect_timeout_seconds)
        self._streams: dict[str, _Stream] = {}
        self._opening: dict[str, int] = {}  # the numbers of those whose OPEN this daemon has not answered
        self._last_number = 0
        self._unacked: dict[int, _Sent] = {}
        self._unacked_bytes = 0
        self._to_open: list[str] = []  # that this daemon does not know yet
        self._again: list[_Sent] = []  # given back, or of a lost daemon: to be sent once more
        self._returned = 0  # records given back, where nobody sends them again
        self._waited_seconds = 0.0  # for messages
        self._tells_at_seconds = SLOW_SECONDS  # of them
        self._in_vain = 0  # sessions in a row that acknowledged nothing
        self._was_acknowledged = False  # whether any daemon had a row of ours stored
        self._resumed = False  # whether an earlier daemon did, or had some that are sent again
        self._last_frame_id = 0
        self._next_row = 0

    def __repr__(self) -> str:
        return (
            f"<Connection to {', '.join(map(str, self._paths))}: streams {', '.join(self._streams) or 'none'}, "
            f"{len(self._unacked)} frames with {self._unacked_bytes} bytes not acknowledged, "
            f"{len(self._again)} to be sent again>"
        )

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """End the session; what is not acknowledged is the daemon's to discard or to deliver, as HELLO said."""
        self._channel.close()

    def abandon(self) -> None:
        """From any thread: end the session.  What waits in it raises ConnectionFailed and looks for no other daemon."""
        self._reconnect_timeout_seconds = 0.0
        self._channel.cut()

    def open(self, stream: str, timeout_seconds: float | None = None) -> None:
        """Name a stream to the daemon, once.  Raises Refused: STREAM_LIMIT, NOT_AUTHORIZED, ..."""
        if stream not in self._streams:
            self._lasting(lambda deadline: self._open(stream, timeout_seconds, deadline), timeout_seconds)

    def _open(self, stream: str, timeout_seconds: float | None, deadline: float | None) -> None:
        """Have it opened, for the first time or by another daemon.  What a hurried caller asked is not asked again."""
        if stream not in self._opening:
            self._last_number += 1
            self._tell(frames.Open(self._last_number, stream, int(self._resumed)))
            self._opening[stream] = self._last_number
        number = self._opening[stream]
        try:
            while stream in self._opening:
                answer = self._read(deadline)
                self._settle(answer)
                if isinstance(answer, frames.Refused) and (answer.frame_id, answer.stream_id) == (0, number):
                    raise self._refusal(answer)
        except Late:
            text = f"stream {stream} was not opened within {timeout_seconds} s: the daemon does not answer"
            raise BackpressureTimeout(text) from None

    def largest_frame(self, stream: str) -> tuple[int, int]:
        """The most (charge, records) that a frame for an open stream may have now; one larger record may go alone."""
        return self._streams[stream].max_frame_bytes, self._streams[stream].max_frame_records

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
        """Put a batch frame by frame, each as large as it may be; cut again where the daemon wants smaller ones.

        The time-out is that of each frame, or of all of them ``together``.
        """
        ends = _deadline(timeout_seconds) if together else None

        def left() -> float | None:
            return timeout_seconds if ends is None else max(0.0, ends - time.monotonic())

        self.open(stream, timeout_seconds)
        start = 0
        while start < batch.records:
            stop = batch.cut(start, *self.largest_frame(stream))
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

        Raises BackpressureTimeout when there was none in time, and Refused when there never will be; with TOO_LARGE
        `largest_frame` has shrunk: cut again.  A record that passes the queue's whole limit alone ends in the tally,
        like any bad row.  Once the frame is granted its body is sent whole, and the time-out is over.

        ``rows`` are the numbers by which the tally names its rows; by default they count from 0 in the order of put().
        """
        self.open(stream, timeout_seconds)
        numbers = range(self._next_row, self._next_row + columns.layout.records) if rows is None else rows
        sent = _Sent(self._streams[stream], columns, numbers, self.tally if tally is None else tally, self._next_row)
        self._lasting(lambda deadline: self._put(sent, timeout_seconds, deadline), timeout_seconds)

    def _put(self, sent: _Sent, timeout_seconds: float | None, deadline: float | None) -> None:
        if sent.granted:
            return  # before the daemon was lost; it is sent again like every other
        layout = sent.columns.layout
        began = time.monotonic()
        try:
            frame_id = self._reserve(sent, layout, timeout_seconds, deadline)
        finally:
            self.tally.seconds_blocked += time.monotonic() - began
        sent.granted = True
        sent.tally.taken += layout.records
        self._next_row += layout.records
        if frame_id:
            self._send_body(frame_id, sent)
        self._tell_wait()

    def _send_body(self, frame_id: int, sent: _Sent) -> None:
        columns = sent.columns
        self._unacked[frame_id] = sent
        self._unacked_bytes += columns.layout.charge_bytes
        self._channel.machine.sent(MessageType.BODY, frame_id)
        self._send(frames.body_header(columns.layout), columns.body_prefix(frame_id), *columns.parts)

    def fileno(self) -> int:
        """The socket's, for select and poll: when it is readable, `settle_arrived`."""
        return self._channel.fileno()

    @property
    def is_behind(self) -> bool:
        """Whether this daemon has yet to hear of streams and rows that the last one had: `settle_arrived`."""
        return bool(self._to_open or self._again)

    def settle_arrived(self) -> None:
        """Settle what has arrived, without waiting; but where the daemon is lost, find the next one and catch up."""
        self._lasting(lambda _: self._settle_arrived())

    def _settle_arrived(self) -> None:
        if not self._unacked:
            self._in_vain = 0  # nothing was sent: should this session end now, it is not by that
        with contextlib.suppress(Late):
            while True:
                self._settle(self._read(time.monotonic()))

    def hasten(self) -> None:
        """Have every frame sent without lingering."""
        self._lasting(lambda _: self._hasten())

    def _hasten(self) -> None:
        if self._unacked:
            self._tell(frames.Flush())

    def reason(self, stream: str) -> str:
        """The daemon's word on why rows of an open stream wait, or why it has none."""
        if stream not in self._streams or self._to_open:
            return "there is no daemon that knows of them"
        try:
            return self._reason(self._streams[stream])
        except ConnectionFailed as ended:
            if ended.code != Code.DAEMON_LOST:
                raise
            return str(ended)  # the next step finds it lost, too, and looks for another one

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Have every frame sent without lingering and wait until all are acknowledged; the tally says how they ended.

        Raises FlushTimeout with the daemon's reason, and ConnectionFailed(DRAINING) if rows came back.
        """
        try:
            self._lasting(lambda deadline: self._flush(timeout_seconds, deadline), timeout_seconds)
        except BackpressureTimeout as full:  # by what is sent again
            raise FlushTimeout(f"{self._owed()} after {timeout_seconds} s: {full}") from None

    def _flush(self, timeout_seconds: float | None, deadline: float | None) -> None:
        self._hasten()
        began = time.monotonic()
        try:
            while self._unacked:
                self._settle_next(deadline)
        except Late:
            reason = self._reason(next(iter(self._unacked.values())).stream)
            if self._unacked:  # the last ACK may have come before the reason did
                raise FlushTimeout(f"{self._owed()} after {timeout_seconds} s: {reason}") from None
        finally:
            self.tally.seconds_flushing += time.monotonic() - began
        if self._returned or self._again:
            raise self._drained()

    def _settle_next(self, deadline: float | None) -> None:
        """Wait for a message that nobody waits for; say why it takes long, as the daemon tells who is blocked."""
        tells_at = time.monotonic() + max(0.0, self._tells_at_seconds - self._waited_seconds)
        try:
            self._settle(self._read(tells_at if deadline is None else min(tells_at, deadline)))
        except Late:
            if deadline is not None and deadline <= tells_at:
                raise
            self._waited_seconds = max(self._waited_seconds, self._tells_at_seconds)  # this wait was the rest of it
        self._tell_wait()

    def _tell_wait(self) -> None:
        """Now and then the log says how long this session has waited in all, and for what."""
        if self._waited_seconds >= self._tells_at_seconds and self._unacked:
            self._tells_at_seconds = self._waited_seconds + TELL_AGAIN_SECONDS
            stream = next(iter(self._unacked.values())).stream
            text = "stream %s: this task has waited for more than %.0f s; %s: %s"
            LOG.warning(text, stream.name, self._waited_seconds, self._owed(), self._reason(stream))

    # --------------------------------------------------------------------------------------- the session after this one

    def _lasting(self, step: Callable[[float | None], None], timeout_seconds: float | None = None) -> None:
        """Do it, with the daemon that is there or with the one that comes after it; each has the whole time-out."""
        while True:
            deadline = _deadline(timeout_seconds)
            try:
                self._catch_up(timeout_seconds, deadline)
                step(deadline)
                return
            except ConnectionFailed as ended:
                if ended.code not in (Code.DAEMON_LOST, Code.DRAINING) or not self._reconnect_timeout_seconds:
                    raise
                self._find_next(ended)

    def _catch_up(self, timeout_seconds: float | None, deadline: float | None) -> None:
        """Tell a new daemon of the streams, and send again what the last one did not acknowledge."""
        try:
            while self._to_open:
                self._open(self._to_open[0], timeout_seconds, deadline)
                del self._to_open[0]
            while self._again:
                self._send_again(self._again[0], timeout_seconds, deadline)
        except Refused as refused:  # of what was taken before: not the answer to what is asked for now
            stream = self._to_open[0] if self._to_open else self._again[0].stream.name
            raise ConnectionFailed(f"stream {stream}: {refused}; {self._owed()}", code=refused.code) from None

    def _find_next(self, ended: ConnectionFailed) -> None:
        """Hear what the last daemon has to say, and find the next one."""
        if ended.code == Code.DRAINING:
            self._hear_out()
        lost = list(self._unacked.values())
        for sent in lost:
            sent.tally.possible_duplicates += len(sent.rows)
        self._again += lost
        self._again.sort(key=lambda sent: sent.first)
        self._resumed = self._was_acknowledged or bool(self._again)
        self._unacked.clear()
        self._unacked_bytes = 0
        self._channel.close()
        self._in_vain += 1
        if self._in_vain > MOST_IN_VAIN:
            raise ConnectionFailed(f"{ended}; {MOST_IN_VAIN} daemons in a row were", code=ended.code)
        LOG.warning("%s; looking for it for %g s", ended, self._reconnect_timeout_seconds)
        try:
            self._channel, self._welcome = dial(self._hello, self._paths, self._reconnect_timeout_seconds)
        except ConnectionFailed as absent:
            code = Code.DAEMON_LOST if absent.code == Code.DAEMON_ABSENT else absent.code
            raise ConnectionFailed(f"{ended}; {absent}", code=code) from None
        if not self._reconnect_timeout_seconds:  # abandoned meanwhile
            self._channel.close()
            raise ended
        self.draining = None
        self._last_frame_id = 0
        self._opening.clear()
        self._to_open = list(self._streams)

    def _hear_out(self) -> None:
        """A daemon that stops acknowledges what it can, and gives the rest back."""
        deadline = time.monotonic() + (self.draining.deadline_seconds if self.draining else 0) + ANSWER_SECONDS
        with contextlib.suppress(Late, Lost, ConnectionFailed):
            while self._unacked:
                self._settle(self._channel.read(deadline))

    def _send_again(self, sent: _Sent, timeout_seconds: float | None, deadline: float | None) -> None:
        """The first of those to be sent again; in two halves where it is larger than a frame may be now."""
        layout = dataclasses.replace(sent.columns.layout, flags=sent.columns.layout.flags | FLAG_RESENT)
        try:
            frame_id = self._reserve(sent, layout, timeout_seconds, deadline)
        except Refused as refused:
            if refused.code != Code.TOO_LARGE or layout.records == 1:
                raise
            places, middle = range(layout.records), layout.records // 2
            self._again[:1] = [_part(sent, part) for part in (places[:middle], places[middle:])]
            return
        del self._again[0]
        sent.tally.resent += layout.records
        if frame_id:
            self._send_body(frame_id, dataclasses.replace(sent, columns=Columns(layout, sent.columns.parts)))

    # -------------------------------------------------------------------------------------------- room for one frame

    def _reserve(self, sent: _Sent, layout: Layout, timeout_seconds: float | None, deadline: float | None) -> int:
        """The id of the frame when it is granted; 0 when its only record can never be taken."""
        stream = sent.stream
        if self._returned or self.draining:
            raise self._drained()
        try:
            if layout.charge_bytes > self._welcome.max_frame_bytes and not self._window_has_room(layout):
                self._tell(frames.Flush())  # a daemon sends by itself what lingers where no other frame has room
            while not self._window_has_room(layout):
                self._settle_next(deadline)
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
            sent.tally.refuse(
                sent.rows[0], frames.RowCode(Outcome.NOT_STORED, answer.code, answer.message), stream.name
            )
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
                    return describe(message)
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
        """Take note of a message, whoever waits for it.  A late GRANT or REFUSED of a frame is void."""
        if isinstance(message, frames.Ack):
            sent = self._unacked.pop(message.frame_id)
            layout = sent.columns.layout
            if message.records != layout.records:
                raise ProtocolError(f"ACK of {message.records} records for a frame of {layout.records}")
            self._unacked_bytes -= layout.charge_bytes
            not_stored = sent.columns.take([place for place, _ in message.failed_rows()]).layout
            sent.tally.payload_bytes += _payload_bytes(layout) - _payload_bytes(not_stored)
            self._in_vain = 0
            self._was_acknowledged |= message.stored > 0
            sends_again = self._reconnect_timeout_seconds > 0
            back = sent.tally.settle(message, sent.rows, sent.stream.name, sends_again=sends_again)
            self._returned += 0 if sends_again else message.returned
            if back:
                self._again.append(_part(sent, back))
            self.acknowledged()
        elif isinstance(message, frames.Opened):
            self._opened(message)
        elif isinstance(message, frames.Refused) and not message.frame_id:
            self._opening = {name: at for name, at in self._opening.items() if at != message.stream_id}
        elif isinstance(message, frames.Blocked):
            stream = next((s.name for s in self._streams.values() if s.number == message.stream_id), "?")
            LOG.warning("stream %s: blocked for %.0f s: %s", stream, message.seconds, describe(message))
        elif isinstance(message, frames.Draining):
            self.draining = message
        elif isinstance(message, frames.Close):
            raise closed(message, f"; {self._owed()}")

    def _opened(self, opened: frames.Opened) -> None:
        for name in [name for name, number in self._opening.items() if number == opened.stream_id]:
            stream = self._streams.setdefault(name, _Stream(name, 0, 0, 0))
            stream.number = self._opening.pop(name)
            stream.max_frame_bytes = min(opened.max_frame_bytes, self._welcome.max_frame_bytes)
            stream.max_frame_records = min(opened.max_frame_records, self._welcome.max_frame_records)

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
        returned = self._returned + sum(len(sent.rows) for sent in self._again)
        text = f"the daemon stops: it gave {returned} records back and takes no more"
        return ConnectionFailed(text, code=Code.DRAINING)

    def _owed(self) -> str:
        owed = [*self._unacked.values(), *self._again]
        return f"{len(owed)} frames with {sum(len(sent.rows) for sent in owed)} records are not acknowledged"

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
        while True:
            began = time.monotonic()
            soon = began + SILENT_SECONDS
            try:
                return self._channel.read(soon if deadline is None else min(soon, deadline))
            except Late:
                if deadline is not None and deadline <= soon:
                    raise
                text = "the daemon on host %s has said nothing for %g s, and is waited for: %s"
                LOG.warning(text, socket.gethostname(), SILENT_SECONDS, self._owed())
            except Lost:
                text = f"the daemon on host {socket.gethostname()} is gone: {self._owed()}"
                raise ConnectionFailed(text, code=Code.DAEMON_LOST) from None
            finally:
                seconds = time.monotonic() - began
                if seconds >= LONG_WAIT_SECONDS:
                    self._waited_seconds += seconds


def _payload_bytes(layout: Layout) -> int:
    return layout.key_bytes + layout.data_bytes + layout.hash_key_bytes


def _part(sent: _Sent, places: Sequence[int]) -> _Sent:
    """Some rows of a frame, as one to be sent again."""
    rows = [sent.rows[place] for place in places]
    return dataclasses.replace(sent, columns=sent.columns.take(places), rows=rows, first=sent.first + places[0])


def _deadline(timeout_seconds: float | None) -> float | None:
    return None if timeout_seconds is None else time.monotonic() + max(timeout_seconds, LEAST_SECONDS)


def _shrink(stream: _Stream, layout: Layout, refused: frames.Refused) -> None:
    most_bytes, most_records = refused.max_frame_bytes, refused.max_frame_records or layout.records
    if layout.records > 1 and layout.charge_bytes <= most_bytes and layout.records <= most_records:
        raise ProtocolError(f"a frame of {layout.charge_bytes} bytes was refused as larger than {most_bytes}")
    stream.max_frame_bytes = min(stream.max_frame_bytes, most_bytes)
    stream.max_frame_records = min(stream.max_frame_records, most_records)


def _no_room(stream: _Stream, timeout_seconds: float | None, reason: str) -> BackpressureTimeout:
    return BackpressureTimeout(f"no room for stream {stream.name} within {timeout_seconds or 0:.4g} s: {reason}")


def describe(blocked: frames.Blocked) -> str:
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
