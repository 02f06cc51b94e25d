"""Transport: the one way by which requests leave the daemon for Kinesis, for botocore's and for its own.

It takes from aiobotocore what AWS's configuration says of certificates and proxies.  The rest is `Connections`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import botocore.exceptions as boto_errors
from aiobotocore.awsrequest import AioAWSResponse
from aiobotocore.httpsession import AIOHTTPSession
from botocore.awsrequest import AWSPreparedRequest

from producerd.runtime.aside import aside
from producerd.runtime.aws import internals
from producerd.runtime.aws.connection import HttpAnswer
from producerd.runtime.aws.connections import Connections, Proxy, Sending


class Transport(AIOHTTPSession):  # type: ignore[misc]
    """aiobotocore's HTTP session for one client, without its HTTP."""

    def __init__(self, *, timeout: tuple[float, Any], **options: Any) -> None:
        super().__init__(timeout=timeout, **options)
        self._connect_timeout_seconds = timeout[0]
        self._to: dict[str, Connections] = {}  # by URL; a client has one URL, and one for each other account
        self._opening = asyncio.Lock()
        self._is_closed = False

    async def __aexit__(self, *raised: object) -> None:
        self._is_closed = True
        while self._to:
            self._to.popitem()[1].close()
        await super().__aexit__(*raised)

    async def to(self, url: str) -> Connections:
        """Return the connections to the host of a URL.  Raise botocore's exceptions, and OSError."""
        if url not in self._to:
            async with self._opening:
                if self._is_closed:
                    raise boto_errors.HTTPClientError(error="the daemon stops")
                if url not in self._to:
                    self._to[url] = await self._opened(url)
        return self._to[url]

    async def _opened(self, url: str) -> Connections:
        """Read AWS's certificates and proxies for a URL."""
        proxy_url = internals.proxy_url_of(self, url)
        if proxy_url is None and url.startswith("http:"):
            return Connections(url, None, self._connect_timeout_seconds)
        tls, proxy_tls = await aside(lambda: internals.tls_of(self, proxy_url))
        proxy = None if proxy_tls is None or proxy_url is None else Proxy(proxy_url, proxy_tls)
        return Connections(url, tls, self._connect_timeout_seconds, proxy)

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
