"""Connections: the HTTP/1.1 connections to the host of one URL, made when all others are busy, and used again."""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import aiohappyeyeballs
import botocore.exceptions as boto_errors
from botocore.httpsession import mask_proxy_url

from producerd.config.redaction import redacted_url
from producerd.errors import ConfigurationError
from producerd.runtime.aws.connection import NOT_HTTP, ConnectionState, HttpAnswer, HttpConnection

MAX_ANSWER_BYTES: Final = 8 << 20
"""Most bytes read of any answer.  Kinesis's largest answer, a page of shards, has 4 MB."""
EYEBALLS_SECONDS: Final = 0.25
"""Time after which the next address of a host is tried as well (RFC 8305)."""
USER_TIMEOUT_MILLISECONDS: Final = 30_000
"""TCP_USER_TIMEOUT: time after which a peer that acknowledges nothing is considered gone."""
SEND_BUFFER_BYTES: Final = 1 << 20
"""Size of the kernel's buffer for a request; Linux doubles it."""
PORTS: Final = {"http": 80, "https": 443}
"""Default ports of the schemes."""
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
"""Statuses of redirects.  AWS sends none.

Following one would send records and a session's token to any host that an answer names.
"""


class Sending:
    """A request's body, the most bytes that its answer may have, and whether any of the body was written.

    Until a byte of it is handed to a connection, the service cannot have stored anything.
    """

    __slots__ = ("answer_bytes", "body", "body_written")

    def __init__(self, body: bytes | memoryview, answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        self.body = body
        self.answer_bytes = answer_bytes
        self.body_written = False

    def begin(self) -> None:
        """Note that a try begins, and that none of the body is written yet."""
        self.body_written = False

    def write(self) -> None:
        """Note that the body is about to be written."""
        self.body_written = True


class Proxy(NamedTuple):
    """An HTTP proxy: its URL, with a login if it wants one, and how to verify its certificate if the URL is https."""

    url: str
    tls: ssl.SSLContext

    @property
    def headers(self) -> dict[str, str]:
        """The headers that it wants: Basic authentication (RFC 7617) by the URL's login."""
        parts = urlsplit(self.url)
        if parts.username is None:
            return {}
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode()}"}


class Connections:
    """The connections to the host of one URL.  With https they use ``tls``.

    A connection is aborted when its request is given up.
    """

    def __init__(
        self, url: str, tls: ssl.SSLContext | None, connect_timeout_seconds: float, proxy: Proxy | None = None
    ) -> None:
        parts = urlsplit(url)
        try:
            self._host, self._port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        except (KeyError, ValueError):  # AWS_ENDPOINT_URL may be anything
            raise ConfigurationError((f"{redacted_url(url)}: no URL of a service",)) from None
        self._url = url
        self._tls = tls if parts.scheme == "https" else None
        self._connect_timeout_seconds = connect_timeout_seconds
        self._proxy = proxy
        target = f"{parts.path or '/'}{parts.query and f'?{parts.query}'}"
        headers = {"Host": host_of(url), "Accept": "*/*", "Accept-Encoding": "identity"}
        if proxy is not None and self._tls is None:  # the proxy reads the request itself
            target, headers = f"http://{headers['Host']}{target}", headers | proxy.headers
        self._head = b"POST %b HTTP/1.1\r\n%b" % (target.encode(), _lines(headers))
        self._idle: list[HttpConnection] = []
        self._is_closed = False

    async def post(self, headers: Mapping[str, str], sending: Sending) -> HttpAnswer:
        """Send a signed request and return its answer.

        Raise botocore's HTTPClientError and its kinds, which say at what it failed.
        """
        head = b"%b%b\r\n" % (self._head, _lines(headers))
        connection = self._waiting() or await self._connect()
        try:
            sending.write()
            answer = await connection.ask(head, sending.body, sending.answer_bytes)
        except (ConnectionError, *NOT_HTTP) as error:
            raise boto_errors.ConnectionClosedError(endpoint_url=self._url, error=error) from None
        finally:
            if connection.state is ConnectionState.IDLE and not self._is_closed:
                connection.wait(self._idle)
            else:
                connection.abort()
        if answer.status in REDIRECTS:
            raise boto_errors.HTTPClientError(error=f"a redirect (status {answer.status}), which is not followed")
        return answer

    def trust(self, tls: ssl.SSLContext, proxy_tls: ssl.SSLContext | None) -> None:
        """Verify certificates by these contexts from now on.  Connections that are open stay."""
        if self._tls is not None:
            self._tls = tls
        if self._proxy is not None and proxy_tls is not None:
            self._proxy = self._proxy._replace(tls=proxy_tls)

    @property
    def idle(self) -> int:
        """How many connections wait for a request."""
        return len(self._idle)

    def _waiting(self) -> HttpConnection | None:
        """Return an idle connection that is still open, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            connection.abort()
        return None

    def close(self) -> None:
        """Abort the idle connections now, and the others when their requests end."""
        self._is_closed = True
        for connection in [*self._idle]:
            connection.abort()

    async def _connect(self) -> HttpConnection:
        connection = HttpConnection()
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                if self._proxy is None:
                    await _reach(connection, self._host, self._port)
                else:
                    await self._reach_through(connection, self._proxy)
                if self._tls is not None:
                    await connection.start_tls(self._tls, self._host)
        except BaseException as error:
            connection.abort()
            if isinstance(error, UnicodeError):  # a name that no host can have
                raise ConfigurationError((f"{redacted_url(self._url)}: no URL of a service",)) from None
            if (failed := _kind_of(error)) is None:
                raise
            raise failed(endpoint_url=self._url, error=error) from None
        return connection

    async def _reach_through(self, connection: HttpConnection, proxy: Proxy) -> None:
        """Connect to the proxy.  With https, have it open a tunnel to the host (RFC 9110, section 9.3.6)."""
        parts = urlsplit(proxy.url)
        try:
            await _reach(connection, parts.hostname or "", parts.port or PORTS[parts.scheme])
            if parts.scheme == "https":
                await connection.start_tls(proxy.tls, parts.hostname or "")
            if self._tls is not None:
                host = f"[{self._host}]" if ":" in self._host else self._host
                where = f"{host}:{self._port}"
                head = b"CONNECT %b HTTP/1.1\r\n%b\r\n" % (where.encode(), _lines({"Host": where, **proxy.headers}))
                answer = await connection.ask(head, b"", 0, opens_tunnel=True)
                if answer.status // 100 != 2 or connection.state is not ConnectionState.IDLE:
                    raise ConnectionError(f"it answered CONNECT with status {answer.status}")
        except UnicodeError:  # a name that no host can have
            raise ConfigurationError(("HTTPS_PROXY: not the URL of a proxy",)) from None
        except (OSError, *NOT_HTTP) as error:
            raise boto_errors.ProxyConnectionError(proxy_url=mask_proxy_url(proxy.url), error=error) from None


def _kind_of(error: BaseException) -> Any:
    """Return what botocore raises where connecting ends with this error, or None if it is not of connecting."""
    match error:
        case boto_errors.BotoCoreError():  # the proxy's: botocore makes that one an OSError
            return None
        case TimeoutError():
            return boto_errors.ConnectTimeoutError
        case ssl.SSLError():
            return boto_errors.SSLError
        case OSError():
            return boto_errors.EndpointConnectionError
    return None


async def _reach(connection: HttpConnection, host: str, port: int) -> None:
    """Make ``connection`` one to this host.  Raise OSError."""
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    connected = await aiohappyeyeballs.start_connection(
        addresses, happy_eyeballs_delay=EYEBALLS_SECONDS, loop=loop, socket_factory=make_socket
    )
    await loop.create_connection(lambda: connection, sock=connected)


def make_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket that sends a reset when it is closed.

    On Linux it also gives up a peer that acknowledges nothing.
    """
    family, type_, protocol, _, _ = address
    made = socket.socket(family=family, type=type_, proto=protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # on, with 0 s
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MILLISECONDS)
    return made


def host_of(url: str) -> str:
    """Return the value of the header Host: the port is included unless it is the scheme's default."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2].lower().removesuffix(f":{PORTS.get(parts.scheme)}")


def _lines(headers: Mapping[str, str]) -> bytes:
    """Return the lines of some headers.  Raise ConfigurationError if a value would end its line, as keys of AWS may."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if not lines.count("\r") == lines.count("\n") == len(headers) or "\0" in lines:
        raise ConfigurationError(("a line break or a zero byte in a header",))
    return lines.encode()
