"""HTTP sessions to AWS that abort the connection of a request that is given up.

An abort drops the buffers and sends the peer a reset.  Closing gracefully kept 265 sockets and 777 MiB alive while an
endpoint hung, and that endpoint stored requests late.

An answer is read up to the size that Kinesis may send.  A larger answer is given up like a request, and counts as
empty.
"""

from __future__ import annotations

import socket
import ssl
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import botocore.exceptions as boto_errors
from aiobotocore.httpsession import AIOHTTPSession
from botocore.httpsession import mask_proxy_url

from producerd.runtime.aws import internals
from producerd.runtime.aws.sending import (
    MAX_ANSWER_BYTES,
    NotedBody,
    Sending,
    not_followed,
    redirect_trace,
    this_sending,
)

USER_TIMEOUT_MILLISECONDS: Final = 30_000
"""TCP_USER_TIMEOUT: time after which a peer that acknowledges nothing is considered gone."""
SEND_BUFFER_BYTES: Final = 1 << 20
"""Size of the kernel's buffer for a request; Linux doubles it."""


class HttpAnswer(NamedTuple):
    """An answer to a request.  The names of its ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class AbortingSession(AIOHTTPSession):  # type: ignore[misc]
    """aiobotocore's HTTP session, which aborts a connection that is given up instead of closing it."""

    _tls: ssl.SSLContext | None = None

    async def _create_connector(self, proxy_url: str | None) -> Any:
        connector = await super()._create_connector(proxy_url)
        if proxy_url is None:
            self._tls = internals.tls_of(connector)
        internals.abort_what_closes(connector)
        return connector

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        if redirect_trace not in session.trace_configs:
            session.trace_configs.append(redirect_trace)
        return session

    def tls_without_proxy(self, url: str) -> ssl.SSLContext | None:
        """Return the TLS context for a URL that was already called, or None if it is reached through a proxy."""
        return None if internals.proxy_of(self, url) else self._tls

    def posts(self, url: str) -> Posts:
        """Return a way to POST to a URL that a request was already sent to."""
        proxy_url = internals.proxy_of(self, url)
        sent_by = internals.sent_by(self, proxy_url)
        session = aiohttp.ClientSession(
            connector=sent_by.connector,
            connector_owner=False,
            timeout=sent_by.timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        internals.opened_by(self).push_async_callback(session.close)
        return Posts(session, url, proxy_url)

    async def send(self, request: Any) -> Any:
        """Send botocore's request and return its answer, whose body is read and bounded."""
        most_bytes, body = MAX_ANSWER_BYTES, request.body
        if (sending := this_sending.get()) is not None and body is sending.body:
            sending.note(self, request)
            most_bytes, body = sending.answer_bytes, NotedBody(sending)
        internals.send_as(request, body)
        answer = await super().send(request)
        internals.put_content(answer, await _body_of(answer.raw, most_bytes))
        return answer


class Posts:
    """POSTs to one URL through aiohttp, over an `AbortingSession`'s connections.

    aiobotocore would build the URL and all headers of each request again, which needs half as much CPU again.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, proxy_url: str | None) -> None:
        self._session = session
        self._url = url
        self._proxy_url = proxy_url

    async def post(self, headers: Mapping[str, str], sending: Sending) -> HttpAnswer:
        """Send a signed request and return its answer.  Raise what `AbortingSession` raises."""
        try:
            answer = await self._session.post(
                self._url,
                headers={**headers, "Accept-Encoding": "identity"},
                data=NotedBody(sending),
                proxy=self._proxy_url,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError) as error:
            raise self._as_botocore(error) from None
        body = await _body_of(answer, sending.answer_bytes)
        if answer.status in REDIRECTS:
            raise boto_errors.HTTPClientError(error=not_followed(answer.status))
        return HttpAnswer(answer.status, answer.headers, body)

    def _as_botocore(self, error: Exception) -> boto_errors.BotoCoreError:
        """Return the exception that aiobotocore would raise for an error."""
        match error:
            case aiohttp.ClientSSLError():
                return boto_errors.SSLError(endpoint_url=self._url, error=error)
            case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
                return boto_errors.ProxyConnectionError(proxy_url=mask_proxy_url(self._proxy_url), error=error)
            case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError():
                return boto_errors.ConnectionClosedError(endpoint_url=self._url, error=error)
            case aiohttp.ServerTimeoutError():  # only connecting has this time-out
                return boto_errors.ConnectTimeoutError(endpoint_url=self._url, error=error)
            case aiohttp.ClientConnectionError():
                return boto_errors.EndpointConnectionError(endpoint_url=self._url, error=error)
        return boto_errors.HTTPClientError(error=error)


REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
"""Statuses of redirects, which are not followed."""


async def _body_of(answer: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """Return the body of an answer, or b"" if it cannot be read or is too large.

    No reader accepts an empty body, and the status still counts.
    """
    body = bytearray()
    try:
        if (answer.content_length or 0) > most_bytes:
            return b""
        async for part in answer.content.iter_any():
            body += part
            if len(body) > most_bytes:
                return b""
        await answer.wait_for_close()  # the request is written to its end then, too
    finally:
        answer.close()  # closes the connection only if the answer was not read to its end
    return decoded(bytes(body), answer.headers.get("Content-Encoding", "").lower(), most_bytes)


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


PORTS: Final = {"http": 80, "https": 443}
"""Default ports of the schemes."""


def host_of(url: str) -> str:
    """Return the value of the header Host: the port is included unless it is the scheme's default."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2].removesuffix(f":{PORTS[parts.scheme]}")


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
