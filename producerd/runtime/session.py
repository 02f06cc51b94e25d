"""Session: one client connection, from HELLO to the end of the socket.

A session keeps its client within the window, and ends if HELLO or a body is not whole in time.  Its end never affects
another session.  It reads a body straight into a buffer of the body's size.  Everything else, also a small body that
comes at once, passes through one small buffer of fixed size.  A session never waits: it handles bytes as they come in.
It writes its answers at once, when the gate grants a frame or when a frame ends.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Concatenate, Final, ParamSpec, Protocol, cast

import numpy as np

from producerd import __version__
from producerd.config.tuning import Tuning
from producerd.errors import Code, ProducerdError, ProtocolError
from producerd.runtime.asking import NOT_ASKED, ServiceAnswer
from producerd.runtime.client_frames import ClientFrames, SessionStream
from producerd.runtime.client_socket import ClientDeadline, ClientSocket
from producerd.runtime.dry_run import DryRun
from producerd.runtime.kinesis import StreamSummary
from producerd.runtime.logs import get_logger
from producerd.runtime.stream import Stream
from producerd.runtime.users.peers import Client, peer_of
from producerd.runtime.users.shares import LoopShares
from producerd.wire import messages
from producerd.wire.columns import Body
from producerd.wire.machine import Side
from producerd.wire.protocol import BodyBegins, Event
from producerd.wire.protocol import Protocol as Wire

log = get_logger("producerd.session")
P = ParamSpec("P")

BODY_BYTES_A_SECOND: Final = 1024 * 1024
"""The slowest body, beyond ``body_timeout_seconds``."""
_CODES: Final = (Code.PROTOCOL, Code.VERSION_MISMATCH, Code.CONNECTION_LIMIT, Code.TABLE_FULL, Code.NOT_AUTHORIZED)
_ENDED_AS: Final = {code: code.lower() for code in (*_CODES, Code.DRAINING)}
DISCONNECT_REASONS: Final = ("closed", "lost", "late", *_ENDED_AS.values(), "failed")
"""The reasons for which connections end.

``closed``: the client closed its end and did not wait for anything.  ``lost``: it waited for an answer.
"""


class Host(Protocol):
    """The daemon, as a session sees it."""

    tuning: Tuning
    shares: LoopShares

    @property
    def allowed_uids(self) -> frozenset[int]:
        """The users that may connect; if empty, the socket's mode and group decide."""

    def admit(self, session: Session) -> str | None:
        """Let a new client in, if need be in place of an idle one.  Return why not, or None."""

    def open_stream(self, name: str, uid: int | None, *, dry_run: bool) -> Stream:
        """Return a stream, or a dry run of it, for a client of this user.  Raise ProducerdError if that cannot be."""

    def ask_service(self, stream: Stream, receive: Callable[[ServiceAnswer], None]) -> None:
        """Ask the stream's service whether it would store records, and call ``receive`` with the answer."""

    def ask_where(self, stream: Stream, receive: Callable[[StreamSummary | None], None]) -> None:
        """Call ``receive`` with the stream's summary, read after this call, or with None if it cannot be read."""

    def end_loudly(self, error: Exception) -> None:
        """End the daemon: the gate or the pipeline raised ``error``, so its state may be half changed."""

    def session_ended(self, session: Session) -> None:
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
            session.host.end_loudly(error)

    return guarded


class Session(asyncio.BufferedProtocol):
    """One client connection: it answers every message, or ends.  It owns which streams are open, and why it ended.

    Its `ClientSocket` reads and writes, its `ClientDeadline` says when the client is late, and its `ClientFrames` have
    what was reserved, granted and sent.
    """

    def __init__(self, host: Host, session_id: int) -> None:
        self.host = host
        self.session_id = session_id
        self.client = Client()
        self.ended_as = ""  # why the connection ended: one of `DISCONNECT_REASONS`
        self._tuning = tuning = host.tuning
        self._loop = asyncio.get_running_loop()
        self._wire = Wire(Side.DAEMON, tuning.session_window_frames)
        self._socket = ClientSocket(self._wire, self._read_on)
        self._deadline = ClientDeadline(self._late, lambda: self._socket.puts_off, tuning.body_timeout_seconds)
        self._frames = ClientFrames(tuning, self._socket, self._deadline, self._blocked)
        self._opened: dict[int, SessionStream] = {}
        self._asking: set[SessionStream] = set()  # streams with a question to their service on its way
        self._heard_at = self._loop.time()  # when the client last sent something, or its question was answered

    def __repr__(self) -> str:
        streams = ", ".join([stream.name for stream in self.streams])
        return f"<Session {self.session_id} of {self.client.who}: streams {streams or 'none'}, {self._frames!r}>"

    # ---- questions

    @property
    def streams(self) -> list[Stream]:
        """The streams that the client has open, also for a dry run."""
        return [opened.stream.of for opened in self._opened.values()]

    @property
    def idle_since(self) -> float | None:
        """The time since which the client has sent nothing and waited for no answer, or None if it waits for one."""
        if self._frames.are_awaited or self._asking or self._socket.puts_off or not self._socket.is_connected:
            return None
        return max(self._heard_at, self._frames.answered_at)

    @property
    def _named(self) -> dict[str, Any]:
        """The session in a line of the log."""
        return {"session": self.session_id, "client": self.client.who}

    # ---- for the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for HELLO, unless the client may not connect."""
        self._socket.connected(cast("asyncio.Transport", transport))
        self._deadline.expect("HELLO", "was not whole", self._tuning.body_timeout_seconds)
        self.client = Client(peer_of(transport))
        peer, allowed = self.client.peer, self.host.allowed_uids
        if allowed and (peer is None or peer.uid not in allowed):
            uid = "unknown" if peer is None else peer.uid
            log.warning("client is not allowed", session=self.session_id, uid=uid, pid=peer and peer.pid)
            self.end_session(Code.NOT_AUTHORIZED, f"user id {uid} may not use this socket: it is not in allowed_uids")
        else:
            self._find_place()

    @_guarded
    def _find_place(self) -> None:
        began = self.host.shares.clock()
        if (why := self.host.admit(self)) is not None:
            log.warning("client is one too many", **self._named, why=why)
            self.end_session(Code.CONNECTION_LIMIT, why)
        self.host.shares.spend(self.client.peer, began)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the buffer that the next bytes are read into."""
        return self._wire.get_buffer()

    @_guarded
    def buffer_updated(self, nbytes: int) -> None:
        """Handle ``nbytes`` new bytes in the buffer that `get_buffer` returned."""
        if self._socket.is_connected:
            self._heard_at = self._loop.time()
            self._wire.received(nbytes)
            self._read()

    def pause_writing(self) -> None:
        """Stop reading, because the client does not read its answers."""
        self._socket.choke()

    def resume_writing(self) -> None:
        """Read on, because the client has read its answers."""
        self._socket.unchoke()

    @_guarded
    def _read_on(self) -> None:
        """Read on after a pause: first the messages that were left in the buffer, then the socket.

        The pause was for a client that did not read, or for the other sockets' turn.
        """
        self._read()
        if self._socket.resume():
            self._frames.look_again()

    @_guarded
    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything, because the connection is gone."""
        self._socket.lost()
        if not self.ended_as:
            self.ended_as = "lost" if exc is not None or self._frames.are_awaited else "closed"
        self._let_go()
        self.host.session_ended(self)

    # ---- for the daemon

    def end_session(self, code: str, message: str) -> None:
        """End the session from the daemon's side, and send the client the reason."""
        self.ended_as = self.ended_as or _ENDED_AS.get(code, "failed")
        self._socket.close_with(messages.Close(code, message), self._tuning.body_timeout_seconds)
        self._let_go()

    def announce_drain(self, deadline_seconds: float) -> None:
        """Announce to a client that has greeted that the daemon stops.  The gate refuses the RESERVEs that wait."""
        if self.client.calls_itself:
            self._socket.send(messages.Draining(deadline_seconds, "the daemon stops"))

    # ---- what the client sends

    def _read(self) -> None:
        """Handle what has come, as far as the turn and the share of the client's user go."""
        shares, peer = self.host.shares, self.client.peer
        began = shares.clock()
        try:
            for event in self._socket.events(lambda: shares.has_time(peer, began)):
                self._handle(event)
        except ProtocolError as error:
            log.warning("client broke the protocol", **self._named, error=str(error))
            self.end_session(error.code, str(error))
            shares.broke_the_protocol(peer)
        else:
            if self._socket.puts_off:
                shares.put_off(peer, self._read_on)
        shares.spend(peer, began)

    def _handle(self, event: Event) -> None:
        if isinstance(event, BodyBegins):
            body_bytes = event.layout.body_bytes
            seconds = self._tuning.body_timeout_seconds + body_bytes / BODY_BYTES_A_SECOND
            self._deadline.expect("a body", "was not whole", seconds)
            self._wire.read_body(np.empty(body_bytes, np.uint8).data)  # not bytearray, which would fill it with zeros
        elif isinstance(event, Body):
            if self._frames.submit(event, takes_good=self.client.takes_good):
                self.host.shares.will_deliver(self.client.peer, event.layout.records)
        else:
            self.host.shares.count(self.client.peer, event)
            _HANDLERS[type(event)](self, event)

    def _hello(self, hello: messages.Hello) -> None:
        self._deadline.stop()
        self.client = self.client.greeted(hello)
        if not hello.min_version <= messages.VERSION <= hello.max_version:
            message = (
                f"the client speaks versions {hello.min_version} to {hello.max_version}, "
                f"this daemon (producerd {__version__}) version {messages.VERSION}; install matching versions"
            )
            versions = f"{hello.min_version}-{hello.max_version}"
            log.warning("client speaks other versions", **self._named, versions=versions)
            self.end_session(Code.VERSION_MISMATCH, message)
            return
        tuning = self._tuning
        self._socket.send(
            messages.Welcome(
                version=messages.VERSION,
                session_id=self.session_id,
                window_bytes=tuning.session_window_bytes,
                window_frames=tuning.session_window_frames,
                max_frame_bytes=tuning.max_frame_bytes,
                max_frame_records=tuning.max_frame_records,
                body_timeout_seconds=tuning.body_timeout_seconds,
                daemon=f"producerd {__version__}",
                dry_runs=1,
            )
        )
        log.debug("session opened", **self._named, uid=self.client.uid)

    def _open(self, message: messages.Open) -> None:
        if message.stream_id in self._opened or message.stream_id == 0:
            raise ProtocolError(f"OPEN of stream number {message.stream_id}, which is taken")
        # A second OPEN would count as a second session of the stream.
        if any(opened.stream.name == message.stream for opened in self._opened.values()):
            raise ProtocolError(f"OPEN of stream {message.stream}, which is open")
        uid = self.client.uid
        try:
            stream = self.host.open_stream(message.stream, uid, dry_run=bool(message.dry_run))
        except ProducerdError as error:
            self._not_opened(message, error)
            return
        opened = SessionStream(
            self._frames,
            message.stream_id,
            stream,
            uid=uid,
            resumed=bool(message.resumed),
            takes_good=self.client.takes_good,
        )
        self._opened[message.stream_id] = opened
        if message.asks_where and stream is stream.of:
            self._asking.add(opened)
            self.host.ask_where(stream, functools.partial(self._tell_opened, opened))
        else:
            self._tell_opened(opened)

    @_guarded
    def _tell_opened(self, opened: SessionStream, where: StreamSummary | None = None) -> None:
        self._asking.discard(opened)
        self._heard_at = self._loop.time()
        stream = opened.stream
        told = messages.Opened(
            opened.stream_id,
            *stream.gate.largest_frame,
            stream.max_record_bytes,
            per_key=int(stream.pipeline.rules.entries.per_key),
            endpoint_host=where.endpoint_host if where else "",
            stream_arn=where.arn if where else "",
            created_milliseconds=where.created_milliseconds if where else 0,
        )
        self._socket.send(told)

    def _not_opened(self, message: messages.Open, error: ProducerdError) -> None:
        """Log and say why a client may not open a stream.  A daemon that stops refuses every OPEN without a line."""
        # Not as `stream`, because repeats are counted by stream, and there may be any number of wrong names.
        told = {**self._named, "name": message.stream, "why": str(error)}
        if error.code == Code.STREAM_NOT_FOUND:
            log.warning("stream cannot have this name", **told)
        elif error.code == Code.STREAM_LIMIT:
            log.warning("stream is one too many", **told)
        elif error.code == Code.NOT_AUTHORIZED:
            log.warning("stream is not allowed", **told)
        self._socket.send(messages.Refused(0, message.stream_id, error.code, str(error)))

    def _reserve(self, message: messages.Reserve) -> None:
        self._frames.reserve(self._opened_by(message.stream_id), message)

    def _cancel(self, message: messages.Cancel) -> None:
        self._frames.cancel(message.frame_id)

    def _flush(self, message: messages.Flush) -> None:
        streams = self._frames.streams() if message.stream_id == 0 else [self._opened_by(message.stream_id)]
        for opened in streams:
            opened.stream.flush(opened)
        if message.left_out:
            self._opened_by(message.stream_id).stream.count_left_out(message.left_out)

    def _status(self, message: messages.Status) -> None:
        opened = self._opened_by(message.stream_id)
        if message.asks_figures and isinstance(opened.stream, DryRun):
            self._socket.send(opened.stream.figures(opened.stream_id))
        elif message.asks_service and opened not in self._asking:  # one at a time, because a client may send any number
            self._asking.add(opened)
            self.host.ask_service(opened.stream, functools.partial(self._answered, opened))
        else:
            self._tell_status(opened)

    @_guarded
    def _answered(self, opened: SessionStream, answer: ServiceAnswer) -> None:
        self._asking.discard(opened)
        self._heard_at = self._loop.time()
        self._tell_status(opened, answer)

    def _tell_status(self, opened: SessionStream, answer: ServiceAnswer = NOT_ASKED) -> None:
        status = opened.stream.report.blocked(opened.stream_id, 0.0, self._loop.time())
        told = replace(status, service=answer.service, service_code=answer.code, service_message=answer.message)
        self._socket.send(told)

    def _closed(self, message: messages.Close) -> None:
        self.ended_as = "closed"
        log.debug("client closed", **self._named, code=message.code, message=message.message)
        self._socket.hang_up()

    def _opened_by(self, stream_id: int) -> SessionStream:
        opened = self._opened.get(stream_id)
        if opened is None:
            raise ProtocolError(f"stream number {stream_id} is not open")
        return opened

    # ---- time

    @_guarded
    def _late(self, what: str, has_not: str, seconds: float) -> None:
        """End the session of a client whose message did not arrive in time.

        A client whose body is late has not broken the protocol: its process may have had no processor meanwhile.  The
        session then ends like a lost daemon's: the client connects once more and sends what was not acknowledged.
        """
        self.ended_as = "late"
        told = {**self._named, "waited_for": what, "seconds": seconds}
        if what == "HELLO":
            code = Code.PROTOCOL
            log.warning("client has not greeted", **told)
        else:
            code = Code.DAEMON_LOST
            log.warning("client is late", **told)
        self.end_session(code, f"{what} {has_not} within {seconds:.4g} s")

    @_guarded
    def _blocked(self, opened: SessionStream, seconds: float) -> None:
        """Report a caller that has been blocked for long, to the log and to the caller."""
        stream, now = opened.stream, self._loop.time()
        if not self._socket.is_choked:
            self._socket.send(stream.report.blocked(opened.stream_id, seconds, now))
        why = stream.report.describe(now)
        log.warning("caller blocked", **self._named, stream=stream.name, seconds=round(seconds), why=why)

    def _let_go(self) -> None:
        """Release what the session holds when it ends: its reservations, and its share in every open stream."""
        now = self._loop.time()
        self._deadline.end()
        self._wire.stop()
        self._frames.give_up(now)
        for opened in self._opened.values():
            opened.stream.leave(opened.member, now, deliver=self.client.delivers)
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
