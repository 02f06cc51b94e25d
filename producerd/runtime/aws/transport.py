"""Transport: the one way by which requests leave the daemon for Kinesis, for botocore's and for its own.

It takes from aiobotocore what AWS's configuration says of certificates and proxies.  The rest is `Connections`.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import botocore.exceptions as boto_errors
from aiobotocore.awsrequest import AioAWSResponse
from aiobotocore.httpsession import AIOHTTPSession
from botocore.awsrequest import AWSPreparedRequest

from producerd.runtime.aside import begin_aside
from producerd.runtime.aws import internals
from producerd.runtime.aws.connection import HttpAnswer
from producerd.runtime.aws.connections import Connections, Proxy, Sending


class Transport(AIOHTTPSession):  # type: ignore[misc]
    """aiobotocore's HTTP session for one client, without its HTTP."""

    def __init__(self, *, timeout: tuple[float, Any], **options: Any) -> None:
        super().__init__(timeout=timeout, **options)
        self._connect_timeout_seconds = timeout[0]
        self._to: dict[str, Connections] = {}  # by URL; a client has one URL, and one for each other account
        self._reading: asyncio.Future[tuple[ssl.SSLContext, ssl.SSLContext | None]] | None = None
        self._is_closed = False

    async def __aexit__(self, *raised: object) -> None:
        self._is_closed = True
        while self._to:
            self._to.popitem()[1].close()
        await super().__aexit__(*raised)

    async def to(self, url: str) -> Connections:
        """Return the connections to the host of a URL.  Raise botocore's exceptions, and OSError."""
        if url not in self._to:
            proxy_url = internals.proxy_url_of(self, url)
            tls, proxy_tls = None, None
            if proxy_url is not None or not url.startswith("http:"):
                tls, proxy_tls = await self._contexts(proxy_url)
            if self._is_closed:
                raise boto_errors.HTTPClientError(error="the daemon stops")
            if url not in self._to:
                proxy = None if proxy_url is None or proxy_tls is None else Proxy(proxy_url, proxy_tls)
                self._to[url] = Connections(url, tls, self._connect_timeout_seconds, proxy)
        return self._to[url]

    async def _contexts(self, proxy_url: str | None) -> tuple[ssl.SSLContext, ssl.SSLContext | None]:
        """Return the TLS contexts.  One thread reads their files, which may hang longer than a request waits."""
        if self._reading is None:
            self._reading = begin_aside(lambda: internals.tls_of(self, proxy_url))
            self._reading.add_done_callback(self._read)
        return await asyncio.shield(self._reading)

    def _read(self, reading: asyncio.Future[Any]) -> None:
        if reading.cancelled() or reading.exception() is not None:  # the next request reads again
            self._reading = None

    async def send(self, request: AWSPreparedRequest) -> AioAWSResponse:
        """Send botocore's request, and return its answer, whose body is read and bounded."""
        connections = await self.to(request.url)
        return for_botocore(request.url, await connections.post(headers_of(request), Sending(request.body)))


def headers_of(request: AWSPreparedRequest) -> dict[str, str]:
    """Return the headers of botocore's request."""
    return {name: value if isinstance(value, str) else str(value, "utf-8") for name, value in request.headers.items()}


def for_botocore(url: str, answer: HttpAnswer) -> AioAWSResponse:
    """Return an answer as botocore takes it."""
    return AioAWSResponse(url, answer.status, answer.headers, _Content(answer.body))


class _Content:
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def read(self) -> bytes:
        return self._content
