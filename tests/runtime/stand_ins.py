"""Stand-ins for Kinesis, for the daemon and for the socket of a session, and the messages that its client sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from producerd.config import StreamSettings
from producerd.config.tuning import Tuning
from producerd.core.encoding.entries import EncodedRequest
from producerd.core.sending.answers import Answer, RequestFailed, parse_answer
from producerd.errors import Code, Refused
from producerd.runtime.asking import ServiceAnswer
from producerd.runtime.kinesis import Address, StreamSummary, Tried
from producerd.runtime.session import Session
from producerd.runtime.stream import Stream
from producerd.runtime.users.shares import LoopShares
from producerd.wire import messages
from producerd.wire.columns import Columns

SHORT = Tuning(session_window_bytes=8192, session_window_frames=4, body_timeout_seconds=5)

DENIED = RequestFailed("AccessDeniedException", "no", maybe_stored=False)


class StandInKinesis:
    """A service that stores all records, and whose shards may not be listed.  A test changes what it does at any time.

    Its endpoint is known once ``known`` is set.  It answers once ``answers`` is set.  While it ``holds``, each request
    waits for an event of its own.
    """

    is_aws = False

    def __init__(self) -> None:
        self.known, self.answers = asyncio.Event(), asyncio.Event()
        self.known.set()
        self.answers.set()
        self.holds = False
        self.waiting: list[asyncio.Event] = []
        self.raises: Exception | None = None
        self.fails: RequestFailed | None = None
        self.cut: list[tuple[EncodedRequest, float]] = []  # what it was to await only until a time
        self.put: Callable[[], object] = lambda: None  # called with each request
        self.readied = self.getting_ready = self.requests = self.records = 0
        self.asked: list[tuple[Address, bool]] = []

    async def ready(self) -> None:
        self.readied += 1
        self.getting_ready += 1
        try:
            await self.known.wait()
        finally:
            self.getting_ready -= 1

    async def put_records(
        self, address: Address, request: EncodedRequest, timeout_seconds: float
    ) -> Answer | RequestFailed:
        self.requests += 1
        self.put()
        if self.raises is not None:
            raise self.raises
        if self.fails is not None:
            return self.fails
        if self.holds:
            self.waiting.append(told := asyncio.Event())
            await told.wait()
        await self.answers.wait()
        self.records += request.entries
        results = b",".join([b'{"SequenceNumber":"1","ShardId":"s"}'] * request.entries)
        return parse_answer(b'{"Records":[' + results + b"]}", request.entries)

    def await_until(self, request: EncodedRequest, at: float) -> None:
        self.cut.append((request, at))

    async def list_shards(self, address: Address) -> list[dict[str, Any]] | RequestFailed:
        return DENIED

    async def describe_stream_summary(self, address: Address) -> StreamSummary | RequestFailed:
        return DENIED

    async def try_storing(self, address: Address, *, aggregates: bool) -> Tried:
        self.asked.append((address, aggregates))
        await self.answers.wait()
        return Tried(None, by_put_records=True, endpoint="there")


Said = bytes | messages.Message
"""A message of a client, or bytes of one or more."""


class StandInTransport(asyncio.Transport):
    """Keeps what is written, and chokes the protocol while a test has it slow."""

    def __init__(self, protocol: Session) -> None:
        super().__init__()
        self.protocol = protocol
        self.written = b""
        self.high_water = 1 << 30
        self.closed = False
        self.reading = True
        protocol.connection_made(self)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written += bytes(data)
        if len(self.written) > self.high_water:
            self.protocol.pause_writing()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def drain(self) -> list[messages.Message]:
        """Return what was written until now, and forget it."""
        said, at = [], 0
        while at < len(self.written):
            header = messages.parse_header(self.written, at)
            end = at + messages.HEADER.size + header.payload_bytes
            said.append(messages.decode(header, self.written[at + messages.HEADER.size : end]))
            at = end
        self.written = b""
        return said


class StandInHost:
    """A daemon of one stream or more, none of which sends anything."""

    def __init__(self, queue_limit: int = 10, **changed: Any) -> None:
        self.tuning = SHORT
        self.allowed_uids: frozenset[int] = frozenset()
        self.shares = LoopShares(lambda: 0.0)  # the time that a loaded machine takes changes nothing
        self.full = ""  # why no client is let in
        self.refuses_with: str = Code.NOT_AUTHORIZED
        self.gone: list[Session] = []
        self.failures: list[Exception] = []
        self.questions: list[Callable[[ServiceAnswer], None]] = []  # what has been asked of the service
        self.where_questions: list[Callable[[StreamSummary | None], None]] = []
        self.answers_late = False
        self.word = ServiceAnswer(messages.Service.FAILED, Code.UNREACHABLE, "no such host")
        settings = StreamSettings(queue_limit=queue_limit, **changed)
        self.stream = Stream("flights", settings)
        self.streams = {"flights": self.stream}

    def admit(self, session: Session) -> str | None:
        return self.full or None

    def open_stream(self, name: str, uid: int | None, *, dry_run: bool = False) -> Stream:
        if name not in self.streams:
            raise Refused("no", code=self.refuses_with)
        return self.streams[name]

    def ask_service(self, stream: Stream, hear: Callable[[ServiceAnswer], None]) -> None:
        self.questions.append(hear)
        if not self.answers_late:
            hear(self.word)

    def ask_where(self, stream: Stream, hear: Callable[[StreamSummary | None], None]) -> None:
        self.where_questions.append(hear)

    def end_loudly(self, error: Exception) -> None:
        self.failures.append(error)

    def session_ended(self, session: Session) -> None:
        self.gone.append(session)


def tell(session: Session, *said: Said, piece: int = 1 << 20) -> None:
    """Hand a client's messages over as a transport does, at most ``piece`` bytes at a time."""
    data = b"".join(each if isinstance(each, bytes) else messages.encode(each) for each in said)
    while data:
        buffer = session.get_buffer(-1)
        count = min(len(buffer), len(data), piece)
        assert count, "a transport needs a buffer"
        buffer[:count] = data[:count]
        data = data[count:]
        session.buffer_updated(count)


def connected(host: StandInHost, *said: Said) -> tuple[Session, StandInTransport]:
    """Return a session, and the transport of a client that has said this."""
    session = Session(host, 1)
    transport = StandInTransport(session)
    tell(session, *said)
    return session, transport


def opened(host: StandInHost, *said: Said) -> tuple[Session, StandInTransport]:
    """Return the same of a client that has opened ``flights``, and then has said this."""
    session, transport = connected(host, messages.Hello(1, 1, client="test"), messages.Open(1, "flights"))
    assert [type(message) for message in transport.drain()] == [messages.Welcome, messages.Opened]
    tell(session, *said)
    return session, transport


def reserve(number: int, columns: Columns, stream_id: int = 1) -> bytes:
    return messages.encode(messages.Reserve(number, stream_id, columns.layout))


def body(number: int, columns: Columns) -> bytes:
    return b"".join((messages.body_header(columns.layout), columns.body_prefix(number), *map(bytes, columns.parts)))


def put(number: int, columns: Columns, stream_id: int = 1) -> bytes:
    """A RESERVE, and its body as of a client that knows that the frame is granted."""
    return reserve(number, columns, stream_id) + body(number, columns)
