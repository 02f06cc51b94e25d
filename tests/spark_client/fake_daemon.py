"""A daemon for the client's tests: a script on a real unix socket, held to the protocol by the daemon's own tables.

A test says what the daemon does as a function of one session, which runs in a thread of its own; what it raises fails
the test.  Without a script every frame is granted and acknowledged as stored, and ``rows`` keeps what came.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from producerd.errors import Code, Outcome
from producerd.wire import messages
from producerd.wire.columns import Body, parse_body
from producerd.wire.machine import Machine, Side, frame_id_of
from producerd.wire.messages import MessageType
from tests.wire.messages import bits

T = TypeVar("T")
Row = tuple[bytes, "bytes | None", "bytes | None"]

WINDOW_BYTES, WINDOW_FRAMES, MAX_FRAME_BYTES, MAX_FRAME_RECORDS = 8 << 20, 64, 1 << 20, 10_000


def rows_of(body: Body) -> list[Row]:
    """(key, data, hash key) of each row; data is None where the validity bitmap says so."""

    def cut(offsets: memoryview, values: memoryview) -> list[bytes]:
        at = offsets.cast("i").tolist()
        return [bytes(values[a - at[0] : b - at[0]]) for a, b in zip(at, at[1:])]

    keys, data = cut(body.key_offsets, body.keys), cut(body.data_offsets, body.data)
    hash_keys: list[bytes] | list[None] = [None] * len(data)
    if body.hash_key_offsets is not None and body.hash_keys is not None:
        hash_keys = cut(body.hash_key_offsets, body.hash_keys)
    assert len(keys) == len(data) == len(hash_keys)
    present = [body.validity is None or bool(body.validity[i // 8] >> i % 8 & 1) for i in range(len(data))]
    return [(k, d if p else None, h) for k, d, h, p in zip(keys, data, hash_keys, present)]


def ack_of(frame_id: int, records: int, failed: dict[int, messages.RowCode]) -> messages.Ack:
    """Return the ACK of a frame of which these rows end as their code says, and the others are stored."""
    codes = tuple(dict.fromkeys(failed.values()))
    places = b"".join(codes.index(failed[row]).to_bytes(2, "little") for row in sorted(failed))
    outcomes = [code.outcome for code in failed.values()]
    return messages.Ack(
        frame_id,
        records,
        records - len(failed),
        outcomes.count(Outcome.NOT_STORED),
        outcomes.count(Outcome.UNKNOWN),
        outcomes.count(Outcome.RETURNED),
        bitmap=sum(1 << row for row in failed).to_bytes((records + 7) // 8, "little") if failed else b"",
        code_rows=places if len(codes) > 1 else b"",
        codes=codes,
        judged=bits([code.judged for code in codes]),
    )


class Session:
    """The daemon's side of one connection, one message at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(60)
        self.socket = sock
        self.machine = Machine(Side.DAEMON, WINDOW_FRAMES)
        self.hello: messages.Hello | None = None
        self.bodies: list[Body] = []
        self.flushes: list[messages.Flush] = []
        self.streams: dict[int, str] = {}
        self._stream_of: dict[int, int] = {}
        self._received = bytearray()

    def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError
            self._received += data
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def read(self) -> messages.Message | Body:
        header = messages.parse_header(self._take(messages.HEADER.size))
        payload = self._take(header.payload_bytes)
        if header.type is MessageType.BODY:
            body = parse_body(payload, header.flags)
            self.machine.received(header.type, body.frame_id)
            self.bodies.append(body)
            return body
        message = messages.decode(header, payload)
        self.machine.received(header.type, frame_id_of(message))
        if isinstance(message, messages.Flush):
            self.flushes.append(message)
        elif isinstance(message, messages.Open):
            self.streams[message.stream_id] = message.stream
        elif isinstance(message, messages.Reserve):
            self._stream_of[message.frame_id] = message.stream_id
        return message

    @property
    def rows(self) -> list[tuple[str, Row]]:
        """Every row that came, behind the stream that it came for."""
        return [(self.streams[self._stream_of[body.frame_id]], row) for body in self.bodies for row in rows_of(body)]

    def expect(self, kind: type[T]) -> T:
        """Return the next message, which must be of this kind, without answering a client that asks why it waits."""
        message = self.read()
        while isinstance(message, messages.Status) and kind is not messages.Status:
            message = self.read()
        assert isinstance(message, kind), f"{kind.__name__} expected, {message} came"
        return message

    def send(self, *said: messages.Message) -> None:
        """Send messages at once."""
        encoded = [messages.encode(message) for message in said]
        for message, data in zip(said, encoded):
            self.machine.sent(MessageType(data[0]), frame_id_of(message))
        self.socket.sendall(b"".join(encoded))

    def welcome(self, **changes: Any) -> messages.Hello:
        self.hello = hello = self.expect(messages.Hello)
        values: dict[str, Any] = {
            "version": 1,
            "session_id": 1,
            "window_bytes": WINDOW_BYTES,
            "window_frames": WINDOW_FRAMES,
            "max_frame_bytes": MAX_FRAME_BYTES,
            "max_frame_records": MAX_FRAME_RECORDS,
            "body_timeout_seconds": 10.0,
        }
        self.send(messages.Welcome(**{**values, **changes}))
        return hello

    def opened(self, **changes: Any) -> messages.Open:
        opened = self.expect(messages.Open)
        values = {"max_frame_bytes": MAX_FRAME_BYTES, "max_frame_records": MAX_FRAME_RECORDS}
        self.send(messages.Opened(opened.stream_id, **{**values, **changes}))
        return opened

    def start(self, **changes: Any) -> None:
        self.welcome(**changes)
        self.opened()

    def grant(self) -> messages.Reserve:
        """Grant the next RESERVE."""
        reserve = self.expect(messages.Reserve)
        self.send(messages.Grant(reserve.frame_id))
        return reserve

    def take_frame(self) -> Body:
        reserve = self.grant()
        body = self.expect(Body)
        assert body.layout == reserve.layout
        return body

    def ack(self, body: Body, **counts: Any) -> None:
        """Every row is stored."""
        records = body.layout.records
        self.send(messages.Ack(body.frame_id, records, records, 0, 0, 0, **counts))

    def fail(self, body: Body, failed: dict[int, messages.RowCode]) -> None:
        """The rows given end as their code says; the others are stored."""
        self.send(ack_of(body.frame_id, body.layout.records, failed))

    def refuse(self, reserve: messages.Reserve, code: str, message: str = "no", **limits: int) -> None:
        self.send(messages.Refused(reserve.frame_id, reserve.stream_id, code, message, **limits))

    def serve(self, bad: Callable[[Row], messages.RowCode | None] = lambda _: None, **opened: Any) -> None:
        """Grant and acknowledge whatever comes, until the client goes; rows for which ``bad`` has a code fail.

        ``opened``: what OPENED says more.
        """
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                message = self.read()
                if isinstance(message, messages.Open):
                    self.send(messages.Opened(message.stream_id, MAX_FRAME_BYTES, MAX_FRAME_RECORDS, **opened))
                elif isinstance(message, messages.Reserve):
                    self.send(messages.Grant(message.frame_id))
                elif isinstance(message, Body):
                    codes = {i: code for i, row in enumerate(rows_of(message)) if (code := bad(row)) is not None}
                    self.fail(message, codes) if codes else self.ack(message)

    def ignore(self) -> None:
        """Read what the client sends, and answer nothing, until it goes."""
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                self.read()

    def await_end(self) -> None:
        """The client goes, without another word but FLUSH."""
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                self.expect(messages.Flush)


Script = Callable[[Session], None]


def serve(session: Session) -> None:
    session.welcome()
    session.serve()


class FakeDaemon:
    """Runs the script for each connection; with several scripts, the last one for all further connections."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.scripts: list[Script] = [serve]
        self.sessions: list[Session] = []
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(16)
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    @property
    def hellos(self) -> list[messages.Hello]:
        return [session.hello for session in self.sessions if session.hello is not None]

    @property
    def rows(self) -> list[Row]:
        return [row for session in self.sessions for _, row in session.rows]

    @property
    def rows_of_streams(self) -> list[tuple[str, Row]]:
        return [row for session in self.sessions for row in session.rows]

    @property
    def outstanding(self) -> int:
        """How many frames of the latest session are reserved, granted or sent."""
        return self.sessions[-1].machine.outstanding

    def link(self, name: str = "link") -> Path:
        """Return another path of the socket, which a test may take away."""
        path = Path(self.path).with_name(name)
        os.link(self.path, path)
        return path

    def runs(self, *scripts: Script) -> None:
        self.scripts = list(scripts)

    def close(self) -> None:
        """End, and raise what a script raised."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(10)
        self._listener.close()
        for thread in self._threads:
            thread.join(60)
        if self._errors:
            raise self._errors[0]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                session = Session(self._listener.accept()[0])
                self.sessions.append(session)
                script = self.scripts[min(len(self.sessions), len(self.scripts)) - 1]
                thread = threading.Thread(target=self._run, args=(script, session), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _run(self, script: Script, session: Session) -> None:
        with session.socket:
            try:
                script(session)
            except BaseException as error:
                self._errors.append(error)


@contextlib.contextmanager
def fake_daemon(path: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(path)
    try:
        yield daemon
    finally:
        daemon.close()


Step = Callable[[Session], object]


def in_turn(*steps: Step) -> Script:
    def script(session: Session) -> None:
        for step in steps:
            step(session)

    return script


def ends(*steps: Step, **welcome: Any) -> Script:
    """Return a script: the daemon opens a stream, takes these steps, and is gone."""
    return in_turn(lambda session: session.start(**welcome), *steps)


def lasts(*steps: Step, **welcome: Any) -> Script:
    """Return a script: the daemon opens a stream, takes these steps, and then waits for the client to go."""
    return ends(*steps, Session.await_end, **welcome)


def serves_after(*steps: Step, **welcome: Any) -> Script:
    """Return a script: the daemon opens a stream, takes these steps, and then stores whatever comes."""
    return ends(*steps, Session.serve, **welcome)


def takes(frames_: int) -> Step:
    """Return a step: grant and read this many frames, and acknowledge none."""
    return in_turn(*[Session.take_frame] * frames_)


def stores(frames_: int = 1, **counts: Any) -> Step:
    """Return a step: take this many frames, and acknowledge each at once."""
    return in_turn(*[lambda session: session.ack(session.take_frame(), **counts)] * frames_)


def acks(*places: int) -> Step:
    """Return a step: acknowledge frames by their place among those that came."""

    def step(session: Session) -> None:
        for place in places:
            session.ack(session.bodies[place])

    return step


def fails(place: int, failed: dict[int, messages.RowCode]) -> Step:
    """Return a step: acknowledge the frame at a place, of which these rows failed."""
    return lambda session: session.fail(session.bodies[place], failed)


def expects(kind: type) -> Step:
    return lambda session: session.expect(kind)


def says(*said: messages.Message) -> Step:
    return lambda session: session.send(*said)


def refuses(code: str, message: str = "no", **limits: int) -> Step:
    """Return a step: refuse the next RESERVE."""
    return lambda session: session.refuse(session.expect(messages.Reserve), code, message, **limits)


def refuses_stream(code: str, message: str = "no") -> Step:
    """Return a step: refuse the next OPEN."""
    return lambda session: session.send(messages.Refused(0, session.expect(messages.Open).stream_id, code, message))


def waits(event: threading.Event) -> Step:
    def step(session: Session) -> None:
        assert event.wait(10)

    return step


dies: Script = ends(Session.take_frame)
"""A script: the daemon is gone when it has taken a frame."""


def close_with(code: str) -> Script:
    def script(session: Session) -> None:
        session.expect(messages.Hello)
        session.send(messages.Close(code, f"because of {code}"))

    return script


RETURNED = messages.RowCode(Outcome.RETURNED, Code.DRAINING, "the daemon stops")


refuses_the_first_stream: Script = in_turn(
    Session.welcome, refuses_stream(Code.STREAM_LIMIT, "64 streams are open"), Session.serve
)
"""A script: the first OPEN is one stream too many; then all goes well."""


INVALID = messages.RowCode(Outcome.NOT_STORED, Code.RECORD_INVALID, "data is null", judged=True)
TOO_LARGE = messages.RowCode(
    Outcome.NOT_STORED, Code.RECORD_TOO_LARGE, "over the stream's 1048576 bytes a record", judged=True
)
EXPIRED = messages.RowCode(Outcome.NOT_STORED, Code.EXPIRED, "older than record_ttl_seconds")


def until(happens: Callable[[], object]) -> None:
    """Wait until something happens in another thread."""
    gives_up = time.monotonic() + 10
    while not happens():
        assert time.monotonic() < gives_up
        time.sleep(0.001)
