"""Session: one client connection, from HELLO to the end of the socket.

A session keeps its client within the window, and ends if HELLO or a body is not whole in time.  Its end never affects
another session.  It reads a body straight into a buffer of the body's size.  Everything else passes through one small
buffer of fixed size.  A session never waits: it handles bytes as they come in.  It writes its answers at once, when the
gate grants a frame or when a frame ends.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast

import numpy as np

from producerd import __version__
from producerd.core.gate import Refusal, Ticket
from producerd.core.rows.frame import Frame
from producerd.errors import Code, ProducerdError, ProtocolError
from producerd.runtime.asking import NOT_ASKED, ServiceAnswer
from producerd.runtime.dry_run import DryRun
from producerd.runtime.logs import get_logger
from producerd.runtime.peers import Peer, peer_of
from producerd.runtime.shares import LoopShares
from producerd.runtime.stream import Stream
from producerd.wire import messages
from producerd.wire.columns import Body
from producerd.wire.machine import SessionState, Side
from producerd.wire.messages import HEADER
from producerd.wire.protocol import BodyBegins, Event
from producerd.wire.protocol import Protocol as Wire

log = get_logger("producerd.session")
P = ParamSpec("P")
R = TypeVar("R")

WRITE_HIGH_WATER_BYTES: Final = 64 * 1024
"""Bytes of unread answers from which a session waits for its client.

If a client stops reading, the session stops writing to it and reading from it until it catches up.
"""
MESSAGES_OF_A_TURN: Final = 16
"""Most control messages that a session reads before other sockets have their turn.

16 STATUS messages use 1 ms of CPU, and the buffer holds 2,700.  A client has two or three on their way.
"""
_ENDED_AS: Final = {
    Code.PROTOCOL: "protocol",
    Code.VERSION_MISMATCH: "version_mismatch",
    Code.CONNECTION_LIMIT: "connection_limit",
    Code.TABLE_FULL: "table_full",
    Code.NOT_AUTHORIZED: "not_authorized",
    Code.DRAINING: "draining",
}
DISCONNECT_REASONS: Final = ("closed", "lost", "late", *_ENDED_AS.values(), "failed")
"""The reasons for which connections end.

``closed``: the client closed its end and did not wait for anything.  ``lost``: it waited for an answer.
"""
STOOD_STILL_SECONDS: Final = 0.05
"""Lateness of a timer from which the session assumes that the loop, or the whole daemon, did not run."""
BODY_BEGINS_SECONDS: Final = 2.0
"""Time after a GRANT in which the body must begin: a client sends it at once.

Until then its room is held for nothing, and other callers may be waiting for it.
"""
BODY_BYTES_A_SECOND: Final = 1024 * 1024
"""The slowest body, beyond ``body_timeout_seconds``."""
SILENT: Final = "which has not sent HELLO"
MOST_OWN_WORDS: Final = 300
"""Most characters of what a client says about itself in a line of the log."""
FIRST_BLOCKED_SECONDS: Final = 30.0
"""Time after which a waiting RESERVE is reported to the log and the client."""
NEXT_BLOCKED_SECONDS: Final = 300.0
"""Time between further reports of a waiting RESERVE."""


@dataclass(frozen=True, slots=True)
class SessionRules:
    """The node's settings that a session follows.  Sizes are in bytes, durations in seconds."""

    window_bytes: int
    window_frames: int
    max_frame_bytes: int
    max_frame_records: int
    body_timeout_seconds: float
    allowed_uids: frozenset[int] = frozenset()
    """Users that may connect; if empty, the socket's mode and group decide."""


class Host(Protocol):
    """The daemon, as a session sees it."""

    rules: SessionRules
    shares: LoopShares

    def admit(self, session: Session) -> str | None:
        """Let a new client in, if need be in place of an idle one.  Return why not, or None."""

    def open_stream(self, name: str, uid: int | None, *, dry_run: bool) -> Stream:
        """Return the stream of that name for a client of this user, or a dry run of it for this session.

        Raise ProducerdError if it cannot be opened; the client receives its code and message.
        """

    def ask_service(self, stream: Stream, receive: Callable[[ServiceAnswer], None]) -> None:
        """Ask the stream's service whether it would store records, and call ``receive`` with the answer."""

    def failed(self, error: Exception) -> None:
        """End the daemon.

        The gate or the pipeline raised ``error`` during a session's call, so its state may be half changed.
        """

    def ended(self, session: Session) -> None:
        """Forget a session whose connection is gone and which has released everything."""


def _guarded(method: Callable[Concatenate[Session, P], None]) -> Callable[Concatenate[Session, P], None]:
    """Wrap a method that the event loop calls, so that the daemon ends if the method raises.

    Such an exception comes from the gate or the pipeline.  If the daemon went on, half-settled rows could stay hidden.
    """

    @functools.wraps(method)
    def guarded(session: Session, /, *arguments: P.args, **options: P.kwargs) -> None:
        try:
            method(session, *arguments, **options)
        except Exception as error:
            session.host.failed(error)

    return guarded


def _understood(read: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R:
    """Return what ``read`` makes of a client's bytes.

    If ``read`` itself fails on the bytes, only that client's session ends.
    """
    try:
        return read(*arguments, **options)
    except ProtocolError:
        raise
    except Exception as error:
        log.exception("a client's bytes could not be read", exc_text=False)
        raise ProtocolError("these bytes could not be read; see the daemon's log") from error


class SessionStream:
    """A stream that one session has open.  It owns the session's frames of that stream."""

    __slots__ = ("asks", "member", "session", "stream", "stream_id")

    def __init__(self, session: Session, stream_id: int, stream: Stream, *, resumed: bool = False) -> None:
        self.session = session
        self.stream_id = stream_id
        self.stream = stream
        self.asks = False  # whether a question to its service is on its way
        self.member = stream.join(self, patient=resumed, uid=session.uid)

    def may_receive(self, charge_bytes: int) -> bool:
        """Return whether the client may be granted a body of this charge now."""
        return self.session.may_receive(charge_bytes)

    def granted(self, ticket: Ticket) -> None:
        """Send the GRANT of a ticket."""
        self.session.granted(self, ticket)

    def refused(self, ticket: Ticket, refusal: Refusal) -> None:
        """Send the refusal of a ticket."""
        if refusal.judged:
            self.stream.rejected_records[refusal.code] += 1
        elif refusal.code not in (Code.TOO_LARGE, Code.DRAINING):  # after which the client sends it otherwise
            self.stream.count_refused(ticket.layout.records)
        self.session.refuse(self, ticket.frame_id, refusal)

    def finished(self, frame: Frame) -> None:
        """Send the acknowledgement of a frame."""
        self.session.acknowledge(self, frame)


class Waiting:
    """A RESERVE that was not granted at once, and the timer of its next report."""

    __slots__ = ("opened", "ticket", "timer")

    def __init__(self, opened: SessionStream, ticket: Ticket) -> None:
        self.opened = opened
        self.ticket = ticket
        self.timer: asyncio.TimerHandle | None = None


class Session(asyncio.BufferedProtocol):
    """One client connection.  It answers every RESERVE and every frame, or ends."""

    def __init__(self, host: Host, session_id: int) -> None:
        self.host = host
        self._rules = host.rules
        self._loop = asyncio.get_running_loop()
        self._wire = Wire(Side.DAEMON, host.rules.window_frames)
        self._transport: asyncio.Transport | None = None
        self._granted: tuple[SessionStream, Ticket] | None = None  # the one body that the client may send
        self._timer: asyncio.TimerHandle | None = None  # the deadline of HELLO, then of each body
        self._opened: dict[int, SessionStream] = {}
        self._waiting: dict[int, Waiting] = {}
        self._unacked: dict[int, tuple[SessionStream, int]] = {}  # by frame id, with the charge in bytes
        self._unacked_bytes = 0
        self._withheld: dict[SessionStream, None] = {}  # streams that know that the window is full
        self._choked = False
        self._reads_on = False  # read on in the next turn of the loop: the buffer holds more messages
        self._deliver = False
        self._take_good = False
        self._active_at = self._loop.time()  # when the client last sent something, or was last answered
        self.stays_away = False  # whether a client that has greeted does not come back after TABLE_FULL
        self.session_id = session_id
        self._abort: asyncio.TimerHandle | None = None  # of a connection that the daemon closes
        self.peer: Peer | None = None  # the client's process, as the kernel reports it
        self.who = f"{_process(None)}, {SILENT}"
        self.ended_as = ""  # why the connection ended: one of `DISCONNECT_REASONS`

    def __repr__(self) -> str:
        streams = ", ".join([opened.stream.name for opened in self._opened.values()])
        return (
            f"<Session {self.session_id} of {self.who}: streams {streams or 'none'}, {len(self._unacked)} frames with "
            f"{self._unacked_bytes} bytes not acknowledged, {len(self._waiting)} waiting>"
        )

    # ---- questions

    @property
    def uid(self) -> int | None:
        """The client's user id, or None if it is not known."""
        return None if self.peer is None else self.peer.uid

    @property
    def streams(self) -> list[Stream]:
        """The streams that the client has open, also for a dry run."""
        return [opened.stream.of for opened in self._opened.values()]

    @property
    def idle_since(self) -> float | None:
        """The time since which the client has sent nothing and waited for no answer, or None if it waits for one."""
        owes = self._unacked or self._waiting or self._reads_on or self._transport is None
        asks = any(opened.asks for opened in self._opened.values())
        return None if owes or asks else self._active_at

    # ---- for the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for HELLO, unless the client may not connect."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES)
        self._wait_for("HELLO", self._rules.body_timeout_seconds)
        self.peer, allowed = peer_of(transport), self._rules.allowed_uids
        self.who = f"{_process(self.peer)}, {SILENT}"
        if allowed and (self.peer is None or self.peer.uid not in allowed):
            uid = "unknown" if self.peer is None else self.peer.uid
            log.warning("client is not allowed", session=self.session_id, uid=uid, pid=self.peer and self.peer.pid)
            self.close(Code.NOT_AUTHORIZED, f"user id {uid} may not use this socket: it is not in allowed_uids")
        else:
            self._find_place()

    @_guarded
    def _find_place(self) -> None:
        began = self.host.shares.clock()
        if (why := self.host.admit(self)) is not None:
            log.warning("client is one too many", session=self.session_id, client=self.who, why=why)
            self.close(Code.CONNECTION_LIMIT, why)
        self.host.shares.spend(self.peer, began)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the buffer that the next bytes are read into."""
        return self._wire.get_buffer()

    @_guarded
    def buffer_updated(self, nbytes: int) -> None:
        """Handle ``nbytes`` new bytes in the buffer that `get_buffer` returned."""
        if self._transport is None:
            return
        self._active_at, began = self._loop.time(), self.host.shares.clock()
        self._wire.received(nbytes)
        self._read(began)
        self.host.shares.spend(self.peer, began)

    def pause_writing(self) -> None:
        """Stop reading, because the client does not read its answers."""
        self._choked = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read on, because the client has read its answers."""
        self._choked = False
        self._loop.call_soon(self._listen_again)  # not at once: a write inside `_read` may call this

    @_guarded
    def _listen_again(self) -> None:
        """Read on after a pause: first the messages that were left in the buffer, then the socket.

        The pause was for a client that did not read, or for the other sockets' turn.
        """
        began = self.host.shares.clock()
        self._read(began)
        self.host.shares.spend(self.peer, began)
        stays_paused = self._choked or self._reads_on
        if not stays_paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._may_receive_again()

    def _may_receive_again(self) -> None:
        """Have streams look whether their frames that wait may be received now: only one body comes at a time."""
        for opened in {waiting.opened: None for waiting in self._waiting.values()}:
            opened.stream.listen_again()

    @_guarded
    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything, because the connection is gone."""
        self._transport = None
        if self._abort is not None:
            self._abort.cancel()  # the timer would keep 1 KB for each client that was turned away
        if not self.ended_as:
            owes = self._unacked or self._waiting
            self.ended_as = "lost" if exc is not None or owes else "closed"
        self._let_go()
        self.host.ended(self)

    def close(self, code: str, message: str) -> None:
        """End the session from the daemon's side, and send the client the reason."""
        self.ended_as = self.ended_as or _ENDED_AS.get(code, "failed")
        transport, self._transport = self._transport, None
        self._let_go()
        if transport is not None:
            transport.write(messages.encode(messages.Close(code, message)))
            transport.close()
            # Cut the connection after this time, even if the client never reads the reason.
            self._abort = self._loop.call_later(self._rules.body_timeout_seconds, transport.abort)

    # ---- for the gate and the pipeline

    def may_receive(self, charge_bytes: int) -> bool:
        """Return whether a body of ``charge_bytes`` may be granted now.

        A session grants one body at a time, within the window, and only to a client that reads its answers.
        """
        if self._granted is not None or self._choked or self._transport is None:
            return False
        return not self._unacked or self._unacked_bytes + charge_bytes <= self._rules.window_bytes

    def granted(self, opened: SessionStream, ticket: Ticket) -> None:
        """Send the GRANT of a ticket, and wait for its body."""
        self._forget_waiting(ticket.frame_id)
        self._granted = (opened, ticket)
        self._unacked[ticket.frame_id] = opened, ticket.layout.charge_bytes
        self._unacked_bytes += ticket.layout.charge_bytes
        self._wait_for("a body", min(BODY_BEGINS_SECONDS, self._rules.body_timeout_seconds))
        self._send(messages.Grant(ticket.frame_id))

    def refuse(self, opened: SessionStream, frame_id: int, refusal: Refusal) -> None:
        """Send the refusal of a frame that the client reserved."""
        self._forget_waiting(frame_id)
        self._send(
            messages.Refused(
                frame_id,
                opened.stream_id,
                refusal.code,
                refusal.message,
                refusal.max_frame_bytes,
                refusal.max_frame_records,
                judged=int(refusal.judged),
            )
        )

    def acknowledge(self, opened: SessionStream, frame: Frame) -> None:
        """Send the result of a frame that is settled, and make room in the window."""
        self._active_at = self._loop.time()
        self._release(frame.frame_id)
        self._may_receive_again()
        opened.stream.gate.settled(opened.member, frame.records, frame.charge_bytes)
        result = frame.result()
        self._send(
            messages.Ack(
                frame_id=frame.frame_id,
                records=result.records,
                stored=result.stored,
                not_stored=result.not_stored,
                unknown=result.unknown,
                returned=result.returned,
                retries=result.retries,
                throttled=result.throttled,
                possible_duplicates=result.possible_duplicates,
                spread_keys=result.spread_keys,
                bitmap=result.bitmap,
                code_rows=result.code_rows,
                codes=tuple(
                    messages.RowCode(end.outcome, end.code, end.message, end.maybe_stored) for end in result.codes
                ),
                judged=result.judged,
            )
        )

    def drain(self, deadline_seconds: float) -> None:
        """Announce to the client that the daemon stops.  The gate refuses the RESERVEs that wait."""
        if self._wire.machine.state is SessionState.OPEN:
            self._send(messages.Draining(deadline_seconds, "the daemon stops"))

    # ---- what the client sends

    def _read(self, began: float) -> None:
        """Handle what has come.

        What exceeds one turn's number of messages, or the share of the client's user, is left for the next turn.
        """
        handled = 0
        puts_off = False
        try:
            while self._transport is not None and (self._wire.reads_body or not self._choked):
                is_over = handled == MESSAGES_OF_A_TURN or not self.host.shares.has_time(self.peer, began)
                if is_over and not self._wire.reads_body and len(self._wire.unread) >= HEADER.size:
                    puts_off = not self._choked
                    break
                if (event := _understood(self._wire.next_event)) is None:
                    break
                handled += 1
                self._handle(event)
        except ProtocolError as error:
            self._broken(error)
        self._reads_on = puts_off
        if puts_off and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self.host.shares.put_off(self.peer, self._listen_again)

    def _handle(self, event: Event) -> None:
        if isinstance(event, BodyBegins):
            self._body_begins(event)
        elif isinstance(event, Body):
            self._body_whole(event)
        else:
            self.host.shares.count(self.peer, messages.number_of(event))
            _HANDLERS[type(event)](self, event)

    def _hello(self, hello: messages.Hello) -> None:
        self._stop_timer()
        self.who = f"{_process(self.peer)}, which calls itself {_own_words(hello)!r}"
        if not hello.min_version <= messages.VERSION <= hello.max_version:
            message = (
                f"the client speaks versions {hello.min_version} to {hello.max_version}, "
                f"this daemon (producerd {__version__}) version {messages.VERSION}; install matching versions"
            )
            versions = f"{hello.min_version}-{hello.max_version}"
            log.warning("client speaks other versions", session=self.session_id, client=self.who, versions=versions)
            self.close(Code.VERSION_MISMATCH, message)
            return
        self._deliver = hello.on_disconnect == messages.OnDisconnect.DELIVER
        self.stays_away = not hello.comes_back
        self._take_good = hello.bad_rows == messages.BadRows.TAKE_GOOD
        rules = self._rules
        self._send(
            messages.Welcome(
                version=messages.VERSION,
                session_id=self.session_id,
                window_bytes=rules.window_bytes,
                window_frames=rules.window_frames,
                max_frame_bytes=rules.max_frame_bytes,
                max_frame_records=rules.max_frame_records,
                body_timeout_seconds=rules.body_timeout_seconds,
                daemon=f"producerd {__version__}",
                dry_runs=1,
            )
        )
        log.debug("session opened", session=self.session_id, client=self.who, uid=self.uid)

    def _log_not_opened(self, name: str, error: ProducerdError) -> None:
        """Log why a client may not open a stream.  While the daemon stops, it refuses every OPEN without a line.

        The name is logged as ``name`` and not as ``stream``, because repeats are counted by stream, and there may be
        any number of wrong names.
        """
        session, client, why = self.session_id, self.who, str(error)
        if error.code == Code.STREAM_NOT_FOUND:
            log.warning("stream cannot have this name", session=session, client=client, name=name, why=why)
        elif error.code == Code.STREAM_LIMIT:
            log.warning("stream is one too many", session=session, client=client, name=name, why=why)
        elif error.code == Code.NOT_AUTHORIZED:
            log.warning("stream is not allowed", session=session, client=client, name=name, why=why)

    def _open(self, message: messages.Open) -> None:
        if message.stream_id in self._opened or message.stream_id == 0:
            raise ProtocolError(f"OPEN of stream number {message.stream_id}, which is taken")
        # A second OPEN would count as a second session of the stream.
        if any(opened.stream.name == message.stream for opened in self._opened.values()):
            raise ProtocolError(f"OPEN of stream {message.stream}, which is open")
        try:
            stream = self.host.open_stream(message.stream, self.uid, dry_run=bool(message.dry_run))
        except ProducerdError as error:
            self._log_not_opened(message.stream, error)
            self._send(messages.Refused(0, message.stream_id, error.code, str(error)))
            return
        opened = self._opened[message.stream_id] = SessionStream(
            self, message.stream_id, stream, resumed=bool(message.resumed)
        )
        max_bytes, max_records = opened.stream.gate.largest_frame
        self._send(messages.Opened(message.stream_id, max_bytes, max_records, stream.max_record_bytes))

    def _reserve(self, message: messages.Reserve) -> None:
        opened = self._opened_by(message.stream_id)
        now = self._loop.time()
        ticket = opened.stream.reserve(opened.member, message.frame_id, message.layout, now)
        if ticket.waiting:
            waiting = self._waiting[message.frame_id] = Waiting(opened, ticket)
            waiting.timer = self._loop.call_later(FIRST_BLOCKED_SECONDS, self._report, waiting)

    def _cancel(self, message: messages.Cancel) -> None:
        now = self._loop.time()
        if self._granted is not None and self._granted[1].frame_id == message.frame_id:
            opened, ticket = self._take_granted()
            self._release(ticket.frame_id)
            opened.stream.cancel(ticket, now)
        elif (waiting := self._waiting.get(message.frame_id)) is not None:
            why = waiting.opened.stream.report.describe(self._loop.time())
            waiting.opened.stream.cancel(waiting.ticket, now)
            self.refuse(waiting.opened, message.frame_id, Refusal(Code.CANCELLED, why))

    def _flush(self, message: messages.Flush) -> None:
        streams = self._streams_of_frames() if message.stream_id == 0 else [self._opened_by(message.stream_id)]
        for opened in streams:
            opened.stream.flush(opened)

    def _status(self, message: messages.Status) -> None:
        opened = self._opened_by(message.stream_id)
        if message.asks_figures and isinstance(opened.stream, DryRun):
            self._send(opened.stream.figures(opened.stream_id))
        elif message.asks_service and not opened.asks:  # one at a time, because a client may send any number
            opened.asks = True
            self.host.ask_service(opened.stream, functools.partial(self._answered, opened))
        else:
            self._tell_status(opened)

    @_guarded
    def _answered(self, opened: SessionStream, answer: ServiceAnswer) -> None:
        opened.asks = False
        self._active_at = self._loop.time()
        self._tell_status(opened, answer)

    def _tell_status(self, opened: SessionStream, answer: ServiceAnswer = NOT_ASKED) -> None:
        status = opened.stream.report.blocked(opened.stream_id, 0.0, self._loop.time())
        self._send(replace(status, service=answer.service, service_code=answer.code, service_message=answer.message))

    def _closed(self, message: messages.Close) -> None:
        self.ended_as = "closed"
        log.debug("client closed", session=self.session_id, client=self.who, code=message.code, message=message.message)
        if self._transport is not None:
            self._transport.close()

    def _broken(self, error: ProtocolError) -> None:
        log.warning("client broke the protocol", session=self.session_id, client=self.who, error=str(error))
        self.close(error.code, str(error))
        self.host.shares.broke_the_protocol(self.peer)

    def _opened_by(self, stream_id: int) -> SessionStream:
        opened = self._opened.get(stream_id)
        if opened is None:
            raise ProtocolError(f"stream number {stream_id} is not open")
        return opened

    # ---- bodies

    def _body_begins(self, begins: BodyBegins) -> None:
        self._stop_timer()
        body_bytes = begins.layout.body_bytes
        self._wait_for("a body", self._rules.body_timeout_seconds + body_bytes / BODY_BYTES_A_SECOND)
        self._wire.read_body(np.empty(body_bytes, np.uint8).data)  # not bytearray, which would fill it with zeros

    def _body_whole(self, body: Body) -> None:
        opened, ticket = cast("tuple[SessionStream, Ticket]", self._granted)
        rows = _understood(opened.stream.check, body)
        self._take_granted()
        frame = Frame(
            opened,
            ticket.frame_id,
            rows,
            ticket.layout.charge_bytes,
            patient=ticket.patient,
            takes_good=self._take_good,
        )
        self._accept(opened, frame, ticket)

    def _accept(self, opened: SessionStream, frame: Frame, ticket: Ticket) -> None:
        """Hand a whole frame to the pipeline, or return it at once if its bad rows refuse it."""
        if opened.stream.accept(frame, ticket, self._loop.time()):
            self.host.shares.will_deliver(self.peer, frame.records)
            if self._withheld:
                self._withhold([opened])
            self._look_at_window()
        else:
            self.acknowledge(opened, frame)

    def _look_at_window(self) -> None:
        """Tell the streams of unacknowledged frames whether the client's window has room for another full frame.

        If it has not, the client may be waiting for acknowledgements, and the streams send at once what it already gave
        them.  A client that sends a single record larger than a full frame asks for a flush itself.
        """
        rules = self._rules
        is_full = (
            len(self._unacked) >= rules.window_frames
            or self._unacked_bytes + rules.max_frame_bytes > rules.window_bytes
        )
        if is_full and not self._withheld:
            self._withhold(self._streams_of_frames())
        elif not is_full:
            for opened in self._withheld:
                opened.stream.set_window(opened.member, self._loop.time(), is_full=False)
            self._withheld.clear()

    def _withhold(self, streams: list[SessionStream]) -> None:
        for opened in streams:
            self._withheld[opened] = None
            opened.stream.set_window(opened.member, self._loop.time(), is_full=True)

    def _streams_of_frames(self) -> list[SessionStream]:
        """Return the streams that have unacknowledged frames.  The client may have hundreds of others open."""
        return list(dict.fromkeys([opened for opened, _ in self._unacked.values()]))

    def _release(self, frame_id: int) -> None:
        """Make room in the window."""
        _, charge_bytes = self._unacked.pop(frame_id)
        self._unacked_bytes -= charge_bytes
        self._look_at_window()

    def _take_granted(self) -> tuple[SessionStream, Ticket]:
        granted, self._granted = self._granted, None
        self._stop_timer()
        assert granted is not None
        self._may_receive_again()
        return granted

    # ---- time

    def _wait_for(self, what: str, seconds: float, *, again: bool = False) -> None:
        self._timer = self._loop.call_later(seconds, self._late, what, seconds, self._loop.time() + seconds, again)

    @_guarded
    def _late(self, what: str, seconds: float, due: float, again: bool) -> None:
        """Close the session of a client whose message did not arrive in time.

        A client whose body is late has not broken the protocol: its process may have had no processor meanwhile.  The
        session then ends like a lost daemon's: the client connects once more and sends what was not acknowledged.

        If the daemon itself stood still, as after SIGSTOP, it has not read what the client sent meanwhile, and waits
        once more.
        """
        stood_still_seconds = self._loop.time() - due
        if self._reads_on and not again:  # the daemon has put its messages off, and they may be here
            self._wait_for(what, self._rules.body_timeout_seconds, again=True)
            return
        if stood_still_seconds > STOOD_STILL_SECONDS and not again:
            self._wait_for(what, min(seconds, stood_still_seconds), again=True)
            return
        self.ended_as = "late"
        began = "had not begun" if self._granted is not None and not self._wire.reads_body else "was not whole"
        told = {"session": self.session_id, "client": self.who, "waited_for": what, "seconds": seconds}
        if self._granted is not None:
            code = Code.DAEMON_LOST
            log.warning("client is late", **told)
        else:
            code = Code.PROTOCOL
            log.warning("client has not greeted", **told)
        self.close(code, f"{what} {began} within {seconds:.4g} s")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @_guarded
    def _report(self, waiting: Waiting) -> None:
        """Report a caller that has been blocked for long, to the log and to the caller."""
        seconds = self._loop.time() - waiting.ticket.since
        stream = waiting.opened.stream
        if not self._choked:
            self._send(stream.report.blocked(waiting.opened.stream_id, seconds, self._loop.time()))
        log.warning(
            "caller blocked",
            session=self.session_id,
            client=self.who,
            stream=stream.name,
            seconds=round(seconds),
            why=stream.report.describe(self._loop.time()),
        )
        waiting.timer = self._loop.call_later(NEXT_BLOCKED_SECONDS, self._report, waiting)

    # ---- inside

    def _send(self, message: messages.Message) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(self._wire.send(message))

    def _forget_waiting(self, frame_id: int) -> None:
        waiting = self._waiting.pop(frame_id, None)
        if waiting is not None and waiting.timer is not None:
            waiting.timer.cancel()

    def _let_go(self) -> None:
        """Release what the session holds when it ends: its reservations, and its share in every open stream."""
        self._stop_timer()
        self._wire.stop()
        now = self._loop.time()
        if self._granted is not None:
            opened, ticket = self._take_granted()
            opened.stream.cancel(ticket, now)
        for frame_id in list(self._waiting):
            self._forget_waiting(frame_id)
        for opened in self._opened.values():
            opened.stream.leave(opened.member, now, deliver=self._deliver)
        self._opened.clear()


_HANDLERS: Final[dict[type, Callable[[Session, Any], None]]] = {
    messages.Hello: Session._hello,
    messages.Open: Session._open,
    messages.Reserve: Session._reserve,
    messages.Cancel: Session._cancel,
    messages.Flush: Session._flush,
    messages.Status: Session._status,
    messages.Close: Session._closed,
}


def _process(peer: Peer | None) -> str:
    """Return how the kernel names a client's process, for the log."""
    return "an unknown process" if peer is None else f"uid {peer.uid} pid {peer.pid}"


def _own_words(hello: messages.Hello) -> str:
    """Return what the client says about itself, for the log.  All of it may be invented."""
    client = f"{hello.client or 'client'} pid {hello.pid}"
    if hello.application_id:
        task = f"stage {hello.stage_id} partition {hello.partition} attempt {hello.attempt}"
        client = f"{client} {hello.application_id} {task}"
    return client[:MOST_OWN_WORDS]
