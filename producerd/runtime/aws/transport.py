"""The connections to AWS: giving up a request aborts its connection; buffers are dropped and the peer gets a reset.

A graceful close kept 265 sockets and 777 MiB alive against an endpoint that hung, and stored requests late.  Of an
answer no more is read than Kinesis may have to say: what is larger is given up like a request, and counts as empty.
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
"""TCP_USER_TIMEOUT: a peer that acknowledges nothing for so long is gone."""
SEND_BUFFER_BYTES: Final = 1 << 20
"""A bound on what the kernel holds of a request; Linux doubles it."""


class HttpAnswer(NamedTuple):
    """``headers`` have their names in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class AbortingSession(AIOHTTPSession):  # type: ignore[misc]
    """aiobotocore's HTTP session, but a connection that is given up is aborted and not closed politely."""

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
        """What connections to a host are made with, once it was called.  None: a proxy is asked for it."""
        return None if internals.proxy_of(self, url) else self._tls

    def posts(self, url: str) -> Posts:
        """To a URL that something was sent to."""
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
        most_bytes, body = MAX_ANSWER_BYTES, request.body
        if (sending := this_sending.get()) is not None and body is sending.body:
            sending.note(self, request)
            most_bytes, body = sending.answer_bytes, NotedBody(sending)
        internals.send_as(request, body)
        answer = await super().send(request)
        internals.put_content(answer, await _body_of(answer.raw, most_bytes))
        return answer


class Posts:
    """POSTs to one URL, by aiohttp over an `AbortingSession`'s connections.

    aiobotocore makes URL and headers of each request anew, those of the proxy too, which costs half as much again.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, proxy_url: str | None) -> None:
        self._session = session
        self._url = url
        self._proxy_url = proxy_url

    async def post(self, headers: Mapping[str, str], sending: Sending) -> HttpAnswer:
        """Send a signed request.  Raises what `AbortingSession` does."""
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
        """What aiobotocore makes of an error."""
        match error:
            case aiohttp.ClientSSLError():
                return boto_errors.SSLError(endpoint_url=self._url, error=error)
            case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
                return boto_errors.ProxyConnectionError(proxy_url=mask_proxy_url(self._proxy_url), error=error)
            case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError():
                return boto_errors.ConnectionClosedError(endpoint_url=self._url, error=error)
            case aiohttp.ServerTimeoutError():  # to connect: none is set for reading
                return boto_errors.ConnectTimeoutError(endpoint_url=self._url, error=error)
            case aiohttp.ClientConnectionError():
                return boto_errors.EndpointConnectionError(endpoint_url=self._url, error=error)
        return boto_errors.HTTPClientError(error=error)


REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


async def _body_of(answer: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """Nothing in place of what cannot be read: no reader takes that for an answer, and its status still counts."""
    body = bytearray()
    try:
        if (answer.content_length or 0) > most_bytes:
            return b""
        async for part in answer.content.iter_any():
            body += part
            if len(body) > most_bytes:
                return b""
        await answer.wait_for_close()  # and so for the rest of the request
    finally:
        answer.close()  # of what was not read to its end
    return decoded(bytes(body), answer.headers.get("Content-Encoding", "").lower(), most_bytes)


def decoded(body: bytes, coding: str, most_bytes: int) -> bytes:
    """The body of an answer.  No coding is asked for; a proxy may apply one all the same."""
    if coding not in ("gzip", "x-gzip", "deflate"):
        return body
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)  # its header says which of them it is
    try:
        whole = decoder.decompress(body, most_bytes)
    except zlib.error:
        return b""
    return whole if decoder.eof else b""


PORTS: Final = {"http": 80, "https": 443}


def host_of(url: str) -> str:
    """What the header Host says: with the port, where it is not the scheme's own."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2].removesuffix(f":{PORTS[parts.scheme]}")


def make_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that resets when it is closed, and on Linux gives up a peer that acknowledges nothing."""
    family, type_, protocol, _, _ = address
    made = socket.socket(family=family, type=type_, proto=protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # on, 0 s
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MILLISECONDS)
    return made
