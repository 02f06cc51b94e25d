"""HttpConnection: a connection that carries one HTTP/1.1 request after the other, and aborts when one is given up.

An abort drops the buffers and sends the peer a reset.  Closing gracefully kept 265 sockets and 777 MiB alive while an
endpoint hung, and that endpoint stored requests late.  httptools, the parser of Node.js, parses the answers.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

IDLE_SECONDS: Final = 60.0
"""Time after which a connection that serves no request is closed."""
MAX_HEAD_BYTES: Final = 64 * 1024
"""Largest answer, apart from its body; Kinesis sends less than 1 KB."""
JOINED_BYTES: Final = 12 * 1024
"""Largest body that is written together with its head: then both are one record of TLS, which has up to 16 KiB."""
PIECE_BYTES: Final = 64 * 1024
"""Most of a body that is written at once: until it ends, a connection keeps a buffer of TLS for the largest piece."""
MOST_WAITING_BYTES: Final = 2**31 - 1
"""The most that uvloop takes for a limit.  Requests in flight have a limit of their own."""
TOO_LARGE: Final = b""
"""The body of an answer that is larger than any of Kinesis's: no reader accepts it, and the status still counts."""
NOT_HTTP: Final = (HttpParserError, HttpParserUpgrade)
"""What `HttpConnection.ask` raises, besides ConnectionError, if what it reads is not HTTP."""


class HttpAnswer(NamedTuple):
    """An answer to a request.  The names of its ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ConnectionState(Enum):
    """What a connection may do next."""

    IDLE = "idle"
    """It may carry the next request: its last answer was whole, all was sent, and the peer keeps it open."""
    ASKED = "asked"
    """It carries a request, or reads the answer."""
    SPENT = "spent"
    """It carries nothing more."""


class HttpConnection(asyncio.Protocol):
    """A connection to a host, or through a proxy.  It carries one request at a time."""

    def __init__(self) -> None:
        self.state = ConnectionState.IDLE
        self._loop = asyncio.get_running_loop()
        self._transports: list[Any] = []  # TCP's, then one for each TLS within it
        self._answer: asyncio.Future[HttpAnswer] | None = None
        self._parser: Any = None
        self._opens_tunnel = False
        self._head_bytes = 0
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._most_bytes = 0
        self._ends_with_connection = False
        self._idle: list[HttpConnection] = []
        self._expiry: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        peer = self._transports[0].get_extra_info("peername") if self._transports else None
        return f"<HttpConnection {self.state.value}, to {peer}, {len(self._transports) - 1} TLS>"

    async def start_tls(self, tls: ssl.SSLContext, host: str) -> None:
        """Speak TLS from now on, inside of what the connection speaks already.  Raise OSError and ssl.SSLError."""
        name = host.removesuffix(".")  # no certificate has the dot of a full name
        inner: Any = await self._loop.start_tls(self._transports[-1], self, tls, server_hostname=name)
        self._add(inner)
        if inner.is_closing():  # uvloop takes the end of the outer TLS for the end of the handshake
            raise ConnectionResetError("the peer has closed it")

    async def ask(
        self, head: bytes, body: bytes | memoryview, most_bytes: int, *, opens_tunnel: bool = False
    ) -> HttpAnswer:
        """Send a request and return its answer, whose body has at most ``most_bytes``.

        With ``opens_tunnel`` the request is a CONNECT: the answer ends with its headers, and what follows is the
        tunnel's.  Raise ConnectionError, HttpParserError and HttpParserUpgrade.
        """
        self.state, self._most_bytes, self._opens_tunnel = ConnectionState.ASKED, most_bytes, opens_tunnel
        if self._expiry is not None:
            self._expiry.cancel()
        self._answer = self._loop.create_future()
        self._parser, self._head_bytes, self._ends_with_connection = HttpResponseParser(self), 0, False
        transport = self._transports[-1]
        if len(body) <= JOINED_BYTES:
            transport.write(b"".join((head, body)))
        else:
            pieces = memoryview(body)
            transport.writelines((head, pieces[:PIECE_BYTES]))
            for begin in range(PIECE_BYTES, len(body), PIECE_BYTES):
                transport.write(pieces[begin : begin + PIECE_BYTES])
        try:
            return await self._answer
        finally:  # an idle connection keeps no answer, and a failed one is in no reference cycle
            self._answer, self._headers, self._body = None, {}, bytearray()

    @property
    def is_open(self) -> bool:
        return self.state is ConnectionState.IDLE and not self._transports[-1].is_closing()

    def wait(self, idle: list[HttpConnection]) -> None:
        """Wait in ``idle`` for the next request."""
        self._idle = idle
        idle.append(self)
        self._expiry = self._loop.call_later(IDLE_SECONDS, self.abort)

    def abort(self) -> None:
        """Drop the connection with everything that it has buffered, so that the peer gets a reset."""
        self.state = ConnectionState.SPENT
        if self._transports:
            self._transports[-1].abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._add(transport)

    def _add(self, transport: Any) -> None:
        """Let the transport take every piece at once: TLS keeps a buffer of what it could not hand on."""
        transport.set_write_buffer_limits(high=MOST_WAITING_BYTES)
        self._transports.append(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)
        if self._expiry is not None:
            self._expiry.cancel()
        self._end(exc)
        self._parser = None  # which refers to this, so that 0.4 MB of buffers would wait for the garbage collector

    def eof_received(self) -> None:
        self._end(None)
        self.abort()  # TLS within TLS would wait for the end of the outer one

    def _end(self, error: Exception | None) -> None:
        if error is None and self._ends_with_connection and self.state is ConnectionState.ASKED:
            self._deliver(self._decoded_body())
        self._fail(ConnectionResetError(str(error or "the peer has closed it")))

    def data_received(self, data: bytes) -> None:
        if self.state is not ConnectionState.ASKED:  # no request waits for an answer
            self.abort()
            return
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except NOT_HTTP as error:
            self._fail(error)
        if self._head_bytes > MAX_HEAD_BYTES:  # also of one header, which httptools reports only when it is whole
            self._fail(ConnectionError("an answer with endless headers"))

    def _fail(self, error: Exception) -> None:
        self.state = ConnectionState.SPENT
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _deliver(self, body: bytes, state: ConnectionState = ConnectionState.SPENT) -> None:
        """End the request with the answer that was read, and go over to ``state``."""
        self.state = state
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(HttpAnswer(self._parser.get_status_code(), self._headers, body))

    def _decoded_body(self) -> bytes:
        return decoded(bytes(self._body), self._headers.get("content-encoding", "").lower(), self._most_bytes)

    # ---- for httptools, which calls these also for what follows an answer that was delivered

    def on_message_begin(self) -> None:
        if self.state is ConnectionState.ASKED:
            self._headers, self._body = {}, bytearray()
        else:  # it answers no request
            self.state = ConnectionState.SPENT

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.state is ConnectionState.ASKED:
            self._headers[str(name, "latin-1").lower()] = str(value, "latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self.state is not ConnectionState.ASKED or status < 200:
            return
        if self._opens_tunnel:
            self._deliver(b"", ConnectionState.IDLE)
            return
        length = self._headers.get("content-length", "")
        is_chunked = self._headers.get("transfer-encoding", "").lower().endswith("chunked")
        self._ends_with_connection = not length and not is_chunked
        if length.isdecimal() and int(length) > self._most_bytes:
            self._deliver(TOO_LARGE)

    def on_body(self, part: bytes) -> None:
        if self.state is not ConnectionState.ASKED:
            self.state = ConnectionState.SPENT
            return
        self._head_bytes -= len(part)
        self._body += part
        if len(self._body) > self._most_bytes:
            self._deliver(TOO_LARGE)

    def on_message_complete(self) -> None:
        if self.state is not ConnectionState.ASKED or self._parser.get_status_code() < 200:
            return  # an interim response comes before the answer
        # TLS reports only its own buffer, so each transport is asked.
        all_sent = all(transport.get_write_buffer_size() == 0 for transport in self._transports)
        serves_again = all_sent and self._parser.should_keep_alive()
        self._deliver(self._decoded_body(), ConnectionState.IDLE if serves_again else ConnectionState.SPENT)


def decoded(body: bytes, coding: str, most_bytes: int) -> bytes:
    """Return the decoded body, or b"" if that fails.  The daemon asks for no coding, but a proxy may apply one."""
    if coding not in ("gzip", "x-gzip", "deflate"):
        return body
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)  # the data's own header says which coding it is
    try:
        whole = decoder.decompress(body, most_bytes)
    except zlib.error:
        return b""
    return whole if decoder.eof else b""
