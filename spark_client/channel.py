"""Messages over a unix socket: each is checked against the protocol's tables, sent whole or received whole.

`dial` finds the daemon and greets it.  The socket never blocks; `poll` does, so that sending can receive too: two full
socket buffers never wait for each other.  When the socket ends, what it still holds is read first, as it may say why
(a CLOSE) or that rows are safe (ACKs).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Final, TypeVar

from producerd.errors import Code, ConfigurationError, ConnectionFailed, ProtocolError, Refused
from producerd.wire import frames
from producerd.wire.columns import Buffer, Columns
from producerd.wire.frames import MessageType
from producerd.wire.machine import Machine, Side, frame_id_of

T = TypeVar("T", frames.Opened, frames.Blocked)

DEFAULT_SOCKET: Final = "/run/producerd/producerd.sock"
MAX_SOCKET_PATH_BYTES: Final = 107
"""sockaddr_un holds 108, with the zero that ends it."""
DIAL_AGAIN_SECONDS: Final = 0.1
LEAST_SECONDS: Final = 0.1
"""A daemon needs a moment to answer: with a shorter time-out none would ever be found, or never have room."""
RECEIVE_BYTES: Final = 64 * 1024
ADMIN_SUFFIX: Final = ".admin.sock"
"""How the admin socket's default name ends, where the clients' socket is NAME.sock."""
MAX_PARTS: Final = 1024
"""IOV_MAX of Linux: the most buffers that one sendmsg takes."""


class Late(Exception):
    """The deadline passed."""


class Lost(Exception):
    """The socket is at its end, and everything that it held has been read."""


def socket_paths(argument: str | None = None, configured: str | None = None) -> tuple[str, ...]:
    """Where to look: the argument, PRODUCERD_SOCKET, Spark's `spark.producerd.socket`; else both usual places."""
    named = argument or os.environ.get("PRODUCERD_SOCKET") or configured
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    usual = [DEFAULT_SOCKET] + ([os.path.join(runtime, "producerd", "producerd.sock")] if runtime else [])
    paths = [named] if named else usual
    for path in paths:
        if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
            raise ConfigurationError([f"socket={path!r}: a socket's path has at most {MAX_SOCKET_PATH_BYTES} bytes"])
    return tuple(paths)


def dial(hello: frames.Hello, paths: Sequence[str], timeout_seconds: float) -> tuple[Channel, frames.Welcome]:
    """A session with the daemon at the first path where one answers; absent ones are tried again until the time-out.

    Raises ConnectionFailed: DAEMON_ABSENT, NOT_AUTHORIZED (at once), or what the daemon's CLOSE says;
    ConfigurationError where the path is the admin socket's.
    """
    deadline = time.monotonic() + max(timeout_seconds, LEAST_SECONDS)
    while True:
        troubles: list[Exception] = []
        for path in paths:
            try:
                return _greet(path, hello, deadline)
            except (OSError, Late, Lost) as error:  # Lost: a daemon that stops, or one that starts right behind it
                troubles.append(error)
        denied = [isinstance(error, PermissionError) for error in troubles]
        if all(denied) or time.monotonic() >= deadline:
            raise _absent(paths, troubles, timeout_seconds, Code.NOT_AUTHORIZED if any(denied) else Code.DAEMON_ABSENT)
        time.sleep(DIAL_AGAIN_SECONDS)


def closed(message: frames.Close, owed: str = "") -> ProtocolError | ConnectionFailed:
    """The error that a daemon's CLOSE means."""
    text = f"the daemon on host {socket.gethostname()} closed the session: {message.message}{owed}"
    return ProtocolError(text) if message.code == Code.PROTOCOL else ConnectionFailed(text, code=message.code)


def ask(channel: Channel, question: frames.Message, wanted: type[T], seconds: float) -> T:
    """The answer to an OPEN or a STATUS.

    Raises Refused where the daemon refuses it, and ConnectionFailed where it closes the session or does not answer.
    """
    try:
        channel.tell(question)
        deadline = time.monotonic() + seconds
        while True:
            message = channel.read(deadline)
            if isinstance(message, wanted):
                return message
            if isinstance(message, frames.Refused):
                raise Refused(message.message, code=message.code)
            if isinstance(message, frames.Close):
                raise closed(message)
    except (Late, Lost):
        text = f"the daemon greeted, and then had no answer to {type(question).__name__.upper()}"
        raise ConnectionFailed(text, code=Code.DAEMON_LOST) from None


class Channel:
    """One side of one session, the client's.  ``machine`` knows what may be sent and what may come."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.machine = Machine(Side.CLIENT, 1)
        self._received = bytearray()
        self._ended = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        try:
            self._socket.connect(path)  # a unix socket connects at once or says why not (EAGAIN: the backlog is full)
        except BaseException:
            self.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def close(self) -> None:
        self._socket.close()

    def cut(self) -> None:
        """From any thread: end the session, so that who waits in it is woken; closing it would wake nobody."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> int:
        return self._socket.fileno()

    def tell(self, message: frames.Message) -> None:
        data = frames.encode(message)
        self.machine.sent(MessageType(data[0]), frame_id_of(message))
        self._send(data)

    def send_body(self, frame_id: int, columns: Columns) -> None:
        self.machine.sent(MessageType.BODY, frame_id)
        self._send(frames.body_header(columns.layout), columns.body_prefix(frame_id), *columns.parts)

    def _send(self, *parts: Buffer) -> None:
        """Send all of it, however long that takes: the daemon reads what it granted, or the socket ends (Lost)."""
        left = [memoryview(part).cast("B") for part in parts if len(part)]
        while left:
            try:
                sent = self._socket.sendmsg(left[:MAX_PARTS])
            except BlockingIOError:
                self._wait(select.POLLIN | select.POLLOUT, None)
                self._receive()
                sent = 0
            except OSError:
                self._ended = True
            if self._ended:
                self._receive_rest()
                raise Lost
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]

    def read(self, deadline: float | None) -> frames.Message:
        """The next message.  Raises Late when there is none by then, Lost when there will be none."""
        while True:
            message = self._parse()
            if message is not None:
                return message
            if self._ended:
                raise Lost
            self._wait(select.POLLIN, deadline)
            self._receive()

    def _parse(self) -> frames.Message | None:
        if len(self._received) < frames.HEADER.size:
            return None
        try:
            header = frames.parse_header(self._received)
        except ProtocolError:
            if self._received.startswith(b"HTTP/"):
                raise _admin_socket(self.path) from None
            raise
        if header.type is MessageType.BODY:
            raise ProtocolError("BODY from the daemon")  # said now, as its length has no bound
        end = frames.HEADER.size + header.payload_bytes
        if len(self._received) < end:
            return None
        message = frames.decode(header, bytes(self._received[frames.HEADER.size : end]))
        self.machine.received(header.type, frame_id_of(message))
        del self._received[:end]
        return message

    def _wait(self, events: int, deadline: float | None) -> None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        self._poll.modify(self._socket, events)
        if not self._poll.poll(left):
            raise Late

    def _receive(self) -> None:
        """Take what has arrived, if anything."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._ended = not data
        self._received += data

    def _receive_rest(self) -> None:
        before = -1
        while len(self._received) != before:
            before = len(self._received)
            self._receive()
        self._ended = True


def _greet(path: str, hello: frames.Hello, deadline: float) -> tuple[Channel, frames.Welcome]:
    channel = Channel(path)
    try:
        with contextlib.suppress(Lost):  # a daemon that does not want this client may have closed already, saying why
            channel.tell(hello)
        answer = channel.read(deadline)
        if isinstance(answer, frames.Close):
            raise closed(answer)
        assert isinstance(answer, frames.Welcome)  # the machine lets nothing else pass
        if not hello.min_version <= answer.version <= hello.max_version or answer.window_frames < 1:
            raise ProtocolError(f"WELCOME: version {answer.version}, a window of {answer.window_frames} frames")
    except BaseException:
        channel.close()
        raise
    channel.machine.set_window(answer.window_frames)
    return channel, answer


def _absent(paths: Sequence[str], troubles: Sequence[Exception], seconds: float, code: str) -> ConnectionFailed:
    tried = "; ".join(
        f"{path}: {getattr(error, 'strerror', None) or 'connected, but nobody answers'}"
        for path, error in zip(paths, troubles)
    )
    cure = (
        "start it there with `producerd serve`, or name its socket (socket=, PRODUCERD_SOCKET, spark.producerd.socket)"
    )
    found = f"no daemon to talk to on host {socket.gethostname()} within {seconds:g} s"
    if code == Code.NOT_AUTHORIZED:
        found = f"user {os.getuid()} may not talk to the daemon on host {socket.gethostname()}"
        cure = "add this user to the socket's group (socket_group, or SocketGroup= of the unit), or see socket_mode"
        if any(path.endswith(ADMIN_SUFFIX) for path in paths):
            cure = "by its name this is the admin socket, which clients do not use: give the path of `socket`"
    text = f"{found} ({tried}): {cure}"
    return ConnectionFailed(text, code=code)


def _admin_socket(path: str) -> ConfigurationError:
    """The path is a socket of the daemon, and the wrong one."""
    named = path[: -len(ADMIN_SUFFIX)] + ".sock" if path.endswith(ADMIN_SUFFIX) else DEFAULT_SOCKET
    text = (
        f"{path} is the admin socket on host {socket.gethostname()}: it answers in HTTP, for producerctl. Clients need "
        f"the daemon's setting `socket`, by default {named} (socket=, PRODUCERD_SOCKET, spark.producerd.socket)"
    )
    return ConfigurationError([text])
