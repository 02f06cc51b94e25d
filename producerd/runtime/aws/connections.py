"""Connections: HTTP/1.1 to one host with little work between a request and the socket, for `transport = "direct"`.

A connection serves one request after the other.  It is aborted when its request is given up, as in `AbortingSession`.
httptools, the parser of Node.js, parses the answers.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import aiohappyeyeballs
import botocore.exceptions as boto_errors
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from producerd.runtime.aws.sending import Sending, not_followed
from producerd.runtime.aws.transport import PORTS, REDIRECTS, HttpAnswer, decoded, host_of, make_socket

IDLE_SECONDS: Final = 60.0
"""Time after which a connection that serves no request is closed."""
MAX_HEAD_BYTES: Final = 64 * 1024
"""Largest answer, apart from its body; Kinesis sends less than 1 KB."""
EYEBALLS_SECONDS: Final = 0.25
"""Time after which the next address of a host is tried as well (RFC 8305)."""


class Connections:
    """The connections to the host of one URL; with https they use ``tls``."""

    def __init__(self, url: str, tls: ssl.SSLContext, connect_timeout_seconds: float) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, url
        self._url = url
        self._host, self._port = parts.hostname, parts.port or PORTS[parts.scheme]
        self._tls = tls if parts.scheme == "https" else None
        self._connect_timeout_seconds = connect_timeout_seconds
        lines = (
            f"POST {parts.path or '/'} HTTP/1.1",
            f"Host: {host_of(url)}",
            "Accept: */*",
            "Accept-Encoding: identity",
        )
        self._head = "".join([f"{line}\r\n" for line in lines]).encode()
        self._idle: list[_Connection] = []

    async def post(self, headers: Mapping[str, str], sending: Sending) -> HttpAnswer:
        """Send a signed request and return its answer.  Raise what `AbortingSession` raises."""
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = b"%b%b\r\n" % (self._head, lines.encode())
        connection = self._waiting() or await self._connect()
        try:
            sending.write()
            answer = await connection.ask(head, sending.body, sending.answer_bytes)
        except (ConnectionError, HttpParserError, HttpParserUpgrade) as error:
            raise boto_errors.ConnectionClosedError(endpoint_url=self._url, error=error) from None
        finally:
            if connection.serves_again:
                connection.wait(self._idle)
            else:
                connection.abort()
        if answer.status in REDIRECTS:
            raise boto_errors.HTTPClientError(error=not_followed(answer.status))
        return answer

    def _waiting(self) -> _Connection | None:
        """Return an idle connection that is still open, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    def close(self) -> None:
        """Abort the idle connections."""
        for connection in [*self._idle]:
            connection.abort()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                addresses = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                connected = await aiohappyeyeballs.start_connection(
                    addresses, happy_eyeballs_delay=EYEBALLS_SECONDS, loop=loop, socket_factory=make_socket
                )
                name = self._host if self._tls else None
                connection: _Connection
                _, connection = await loop.create_connection(
                    _Connection, sock=connected, ssl=self._tls, server_hostname=name
                )
        except TimeoutError as error:
            raise boto_errors.ConnectTimeoutError(endpoint_url=self._url, error=error) from None
        except ssl.SSLError as error:
            raise boto_errors.SSLError(endpoint_url=self._url, error=error) from None
        except OSError as error:
            raise boto_errors.EndpointConnectionError(endpoint_url=self._url, error=error) from None
        return connection


class _Connection(asyncio.Protocol):
    """A connection to the host, which serves one request at a time.

    ``serves_again``: its last answer was whole, it has nothing left to send or read, and the peer keeps it open.
    """

    def __init__(self) -> None:
        self.serves_again = False
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._answer: asyncio.Future[HttpAnswer] | None = None
        self._parser: Any = None
        self._head_bytes = 0
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._most_bytes = 0
        self._ends_with_connection = False
        self._idle: list[_Connection] = []
        self._expiry: asyncio.TimerHandle | None = None

    async def ask(self, head: bytes, body: bytes | memoryview, most_bytes: int) -> HttpAnswer:
        """Send a request and return its answer, whose body has at most ``most_bytes``.

        Raise ConnectionError, HttpParserError and HttpParserUpgrade.
        """
        self.serves_again, self._most_bytes = False, most_bytes
        if self._expiry is not None:
            self._expiry.cancel()
        self._answer = self._loop.create_future()
        self._parser, self._head_bytes, self._ends_with_connection = HttpResponseParser(self), 0, False
        self._transport.writelines((head, body))
        try:
            return await self._answer
        finally:  # an idle connection keeps no answer, and a failed one is in no reference cycle
            self._answer, self._headers, self._body = None, {}, bytearray()

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def wait(self, idle: list[_Connection]) -> None:
        """Wait in ``idle`` for the next request."""
        self._idle = idle
        idle.append(self)
        self._expiry = self._loop.call_later(IDLE_SECONDS, self.abort)

    def abort(self) -> None:
        """Drop the connection with everything that it has buffered, so that the peer gets a reset."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)
        if self._expiry is not None:
            self._expiry.cancel()
        if exc is None and self._ends_with_connection:
            self._succeed()
        self._fail(ConnectionResetError(str(exc or "the peer has closed it")))

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():  # no request waits for an answer
            self.serves_again = False
            self.abort()
            return
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(error)
        if self._head_bytes > MAX_HEAD_BYTES:  # also of one header, which httptools reports only when it is whole
            self._fail(ConnectionError("an answer with endless headers"))

    def _fail(self, error: Exception) -> None:
        self.serves_again = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _succeed(self, *, too_large: bool = False) -> None:
        """Deliver the answer.

        A body that is too large counts as empty: no reader accepts that, and the status still counts.
        """
        if self._answer is not None and not self._answer.done():
            coding = self._headers.get("content-encoding", "").lower()
            body = b"" if too_large else decoded(bytes(self._body), coding, self._most_bytes)
            self._answer.set_result(HttpAnswer(self._parser.get_status_code(), self._headers, body))

    # ---- for httptools

    def on_message_begin(self) -> None:
        self.serves_again = False
        self._headers, self._body = {}, bytearray()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[str(name, "latin-1").lower()] = str(value, "latin-1")

    def on_headers_complete(self) -> None:
        length = self._headers.get("content-length", "")
        has_end = length or self._headers.get("transfer-encoding", "").lower().endswith("chunked")
        self._ends_with_connection = not has_end and self._parser.get_status_code() >= 200
        if length.isdecimal() and int(length) > self._most_bytes:
            self._succeed(too_large=True)

    def on_body(self, part: bytes) -> None:
        self._head_bytes -= len(part)
        self._body += part
        if len(self._body) > self._most_bytes:
            self._succeed(too_large=True)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            return  # an interim response comes before the answer
        all_sent = self._transport.get_write_buffer_size() == 0
        is_first = self._answer is not None and not self._answer.done()
        self.serves_again = is_first and all_sent and self._parser.should_keep_alive()
        self._succeed()
