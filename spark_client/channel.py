"""Messages over a unix socket: each is checked against the protocol's tables, and sent or received whole.

`dial` finds the daemon and greets it.  Only `poll` blocks, never the socket, so that `Channel` can receive while it
sends.  Otherwise two full socket buffers would wait for each other.  When the socket ends, `Channel` first returns the
messages that it still holds: a CLOSE may say why it ended, and ACKs say which rows are safe.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

from producerd.errors import Code, ConfigurationError, ConnectionFailed, ProtocolError, Refused
from producerd.wire import messages
from producerd.wire.columns import Buffer, Columns
from producerd.wire.machine import Side
from producerd.wire.protocol import Protocol

T = TypeVar("T", messages.Opened, messages.Blocked)

DEFAULT_SOCKET: Final = "/run/producerd/producerd.sock"
MAX_SOCKET_PATH_BYTES: Final = 107
"""A sockaddr_un holds 108 bytes, of which the last is zero."""
DIAL_AGAIN_SECONDS: Final = 0.1
NO_PLACE_AGAIN_SECONDS: Final = 1.0
"""The longest time between two tries to find a place in a full table of connections."""
LEAST_SECONDS: Final = 0.1
"""The shortest time-out.  A daemon needs a moment to answer, so a shorter one would never find it, or room in it."""
SERVICE_SECONDS: Final = 30.0
"""How long the daemon may take to ask the service: two time-outs of 10 s, and another 10 s to find credentials."""
ADMIN_SUFFIX: Final = ".admin.sock"
"""The end of the admin socket's default name, if the clients' socket is NAME.sock."""
UCRED: Final = struct.Struct("=iII")
"""The process, user and group at the other end of a unix socket (unix(7), SO_PEERCRED)."""
MAX_PARTS: Final = 1024
"""The most buffers that one sendmsg takes, which is IOV_MAX of Linux."""


NO_PLACE: Final = (Code.CONNECTION_LIMIT, Code.TABLE_FULL)
"""Codes of a daemon that has no place for this client now."""
NOBODY_LISTENS: Final = (FileNotFoundError, ConnectionRefusedError)


class Late(Exception):
    """The deadline passed."""


class Lost(Exception):
    """The socket has ended, and every message that it held was returned."""


def socket_paths(argument: str | None = None, configured: str | None = None) -> tuple[str, ...]:
    """Return the paths at which to look for the daemon.

    The first that is set: the argument, PRODUCERD_SOCKET, Spark's `spark.producerd.socket`; otherwise both usual
    places.
    """
    named = argument or os.environ.get("PRODUCERD_SOCKET") or configured
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    usual = [DEFAULT_SOCKET] + ([os.path.join(runtime, "producerd", "producerd.sock")] if runtime else [])
    paths = [named] if named else usual
    for path in paths:
        if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
            raise ConfigurationError([f"socket={path!r}: a socket's path has at most {MAX_SOCKET_PATH_BYTES} bytes"])
    return tuple(paths)


def dial(
    hello: messages.Hello,
    paths: Sequence[str],
    timeout_seconds: float,
    start: Callable[[], None] | None = None,
    gives_up: Callable[[], bool] = lambda: False,
) -> tuple[Channel, messages.Welcome]:
    """Return a channel to the daemon at the first path where one answers, and its WELCOME.

    While none answers, `dial` calls ``start``, and tries all paths again until ``gives_up`` or the time-out, which does
    not count the time that ``start`` takes.  It also tries again while a daemon has no place for one more client.

    Raises ConnectionFailed: with DAEMON_ABSENT, with NOT_AUTHORIZED (at once), or with the code of the daemon's CLOSE.
    Raises ConfigurationError if the path is the admin socket's.
    """
    deadline = time.monotonic() + max(timeout_seconds, LEAST_SECONDS)
    again_seconds = DIAL_AGAIN_SECONDS
    while True:
        troubles: list[Exception] = []
        for path in paths:
            try:
                return greet(path, hello, deadline)
            except ConnectionFailed as error:
                if error.code not in NO_PLACE:
                    raise
                troubles.append(error)
            except (OSError, Late, Lost) as error:  # Lost: a daemon that stops, perhaps before the next one starts
                troubles.append(error)
        full = next((error for error in troubles if isinstance(error, ConnectionFailed)), None)
        denied = [isinstance(error, PermissionError) for error in troubles]
        if all(denied) or time.monotonic() >= deadline or gives_up():
            if full is not None:
                raise full
            raise _absent(paths, troubles, timeout_seconds, Code.NOT_AUTHORIZED if any(denied) else Code.DAEMON_ABSENT)
        if start is None or not all(isinstance(error, NOBODY_LISTENS) for error in troubles):
            time.sleep(min(again_seconds, max(0.0, deadline - time.monotonic())))
        if full is not None:  # there may be hundreds of clients without a place, so they come less and less often
            if time.monotonic() >= deadline:
                raise full
            again_seconds = min(2 * again_seconds, NO_PLACE_AGAIN_SECONDS)
        if start is not None:
            began = time.monotonic()
            start()
            deadline += time.monotonic() - began


def closed(message: messages.Close, owed: str = "") -> ProtocolError | ConnectionFailed:
    """Return the error that a daemon's CLOSE means."""
    text = f"the daemon on host {socket.gethostname()} closed the session: {message.message}{owed}"
    return ProtocolError(text) if message.code == Code.PROTOCOL else ConnectionFailed(text, code=message.code)


def ask(channel: Channel, question: messages.Message, wanted: type[T], seconds: float) -> T:
    """Return the daemon's answer to an OPEN or a STATUS.

    Raises Refused if the daemon refuses it, and ConnectionFailed if it closes the session or does not answer.
    """
    try:
        channel.tell(question)
        deadline = time.monotonic() + seconds
        while True:
            message = channel.read(deadline)
            if isinstance(message, wanted):
                return message
            if isinstance(message, messages.Refused):
                raise Refused(message.message, code=message.code)
            if isinstance(message, messages.Close):
                raise closed(message)
    except (Late, Lost):
        text = f"the daemon greeted, and then had no answer to {type(question).__name__.upper()}"
        raise ConnectionFailed(text, code=Code.DAEMON_LOST) from None


class Channel:
    """The client's socket in one session.  ``machine`` checks that each message may be sent or received now.

    ``is_unread`` is whether it may hold a whole message that `read` has not returned, of which no poll of the socket
    tells.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._wire = Protocol(Side.CLIENT, 1)
        self.machine = self._wire.machine
        self.is_unread = False
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

    def interrupt(self) -> None:
        """End the session and wake the thread that waits in it, which `close` would not do.

        Any thread may call this.
        """
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def peer_pid(self) -> int:
        """The id of the process that listens at the other end."""
        pid: int
        pid, _, _ = UCRED.unpack(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
        return pid

    def tell(self, message: messages.Message) -> None:
        self._send(self._wire.send(message))

    def send_body(self, frame_id: int, columns: Columns) -> None:
        header = self._wire.send_body(frame_id, columns.layout)
        self._send(header, columns.body_prefix(frame_id), *columns.parts)

    def _send(self, *parts: Buffer) -> None:
        """Send all parts, however long that takes: the daemon reads what it granted, or the socket ends (Lost)."""
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

    def read(self, deadline: float | None) -> messages.Message:
        """Return the next message.  Raises Late if none comes before the deadline, and Lost if none can come."""
        while True:
            message = self._parse()
            self.is_unread = message is not None and len(self._wire.unread) > 0
            if message is not None:
                return message
            if self._ended:
                raise Lost
            self._wait(select.POLLIN, deadline)
            self._receive()

    def _parse(self) -> messages.Message | None:
        try:
            return cast("messages.Message | None", self._wire.next_event())  # no body comes from a daemon
        except ProtocolError:
            if bytes(self._wire.unread[:5]) == b"HTTP/":
                raise _admin_socket(self.path) from None
            raise

    def _wait(self, events: int, deadline: float | None) -> None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        self._poll.modify(self._socket, events)
        if not self._poll.poll(left):
            raise Late

    def _receive(self) -> None:
        """Receive what has arrived, if anything."""
        try:
            size = self._socket.recv_into(self._wire.get_buffer())
        except BlockingIOError:
            return
        except OSError:
            size = 0
        self._ended = not size
        self._wire.received(size)
        self.is_unread |= size > 0

    def _receive_rest(self) -> None:
        before = -1
        while len(self._wire.unread) != before:
            before = len(self._wire.unread)
            self._receive()
        self._ended = True


def greet(path: str, hello: messages.Hello, deadline: float) -> tuple[Channel, messages.Welcome]:
    """Return a channel to the daemon at this path, and its WELCOME.

    Raises OSError if no process listens there, Late without an answer before the deadline, and Lost if the daemon ends.
    """
    channel = Channel(path)
    try:
        with contextlib.suppress(Lost):  # a daemon that refuses this client may have sent CLOSE and gone
            channel.tell(hello)
        answer = channel.read(deadline)
        if isinstance(answer, messages.Close):
            raise closed(answer)
        assert isinstance(answer, messages.Welcome)  # as the machine refuses every other message
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
        "start it there with `producerd serve`, name its socket (socket=, PRODUCERD_SOCKET, or for a writer "
        "spark.producerd.socket), or have tasks start one (daemon={...}; data source: daemon.region)"
    )
    if any(isinstance(error, Late) for error in troubles):
        cure = "the daemon that listens there hangs, or its node is too busy: see its log, and restart it"
    found = f"no daemon to talk to on host {socket.gethostname()} within {seconds:g} s"
    if code == Code.NOT_AUTHORIZED:
        found = f"user {os.getuid()} may not talk to the daemon on host {socket.gethostname()}"
        cure = "add this user to the socket's group (socket_group, or SocketGroup= of the unit), or see socket_mode"
        if any(path.endswith(ADMIN_SUFFIX) for path in paths):
            cure = "by its name this is the admin socket, which clients do not use: give the path of `socket`"
    text = f"{found} ({tried}): {cure}"
    return ConnectionFailed(text, code=code)


def _admin_socket(path: str) -> ConfigurationError:
    """Return the error for a path that leads to the daemon's other socket."""
    named = path[: -len(ADMIN_SUFFIX)] + ".sock" if path.endswith(ADMIN_SUFFIX) else DEFAULT_SOCKET
    text = (
        f"{path} is the admin socket on host {socket.gethostname()}: it answers in HTTP, for producerctl. Clients need "
        f"the daemon's setting `socket`, by default {named} (socket=, PRODUCERD_SOCKET, spark.producerd.socket)"
    )
    return ConfigurationError([text])
