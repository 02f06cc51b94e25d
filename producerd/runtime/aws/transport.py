"""Transport: the one way by which requests leave the daemon for Kinesis, for botocore's and for its own.

It takes from aiobotocore what AWS's configuration says of certificates and proxies.  The rest is `Connections`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import botocore.exceptions as boto_errors
from aiobotocore.awsrequest import AioAWSResponse
from aiobotocore.httpsession import AIOHTTPSession
from botocore.awsrequest import AWSPreparedRequest
from botocore.httpsession import get_cert_path

from producerd.errors import ConfigurationError
from producerd.runtime.aside import begin_aside
from producerd.runtime.aws import internals
from producerd.runtime.aws.connection import HttpAnswer
from producerd.runtime.aws.connections import Connections, Proxy, Sending
from producerd.runtime.aws.errors import refuses_certificate

REREAD_SECONDS: Final = 5.0
"""Shortest time between two readings of the trusted certificates because the peer's certificate was refused."""


class Trusted(NamedTuple):
    """The TLS contexts for the service, and for the proxy if there is one, and the file that they trust."""

    tls: ssl.SSLContext
    proxy_tls: ssl.SSLContext | None
    path: str
    digest: bytes


class Transport(AIOHTTPSession):  # type: ignore[misc]
    """aiobotocore's HTTP session for one client, without its HTTP.

    ``verify`` is the file of the certificates to trust, or True for botocore's own.  ``bundle`` returns it as it is
    named later.
    """

    def __init__(
        self, *, timeout: tuple[float, Any], verify: str | bool, bundle: Callable[[], str | bool], **options: Any
    ) -> None:
        super().__init__(timeout=timeout, verify=verify, **options)
        self._named = verify
        self._connect_timeout_seconds = timeout[0]
        self._bundle = bundle
        self._to: dict[str, Connections] = {}  # by URL; a client has one URL, and one for each other account
        self._trusted: dict[str | None, Trusted] = {}  # by the proxy's URL
        self._reading: asyncio.Future[dict[str | None, Trusted]] | None = None
        self._next_rereading = 0.0
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
                while proxy_url not in self._trusted:
                    await self._read([*self._trusted, proxy_url])
                tls, proxy_tls, _, _ = self._trusted[proxy_url]
            if self._is_closed:
                raise boto_errors.HTTPClientError(error="the daemon stops")
            if url not in self._to:
                proxy = None if proxy_url is None or proxy_tls is None else Proxy(proxy_url, proxy_tls)
                self._to[url] = Connections(url, tls, self._connect_timeout_seconds, proxy)
        return self._to[url]

    async def post(self, url: str, headers: Mapping[str, str], sending: Sending) -> HttpAnswer:
        """Send a signed request and return its answer.  Raise botocore's HTTPClientError and its kinds.

        If the peer's certificate is refused and the bundle has other certificates by now, connect once more.
        """
        connections, loop = await self.to(url), asyncio.get_running_loop()
        try:
            return await connections.post(headers, sending)
        except boto_errors.ConnectionError as error:
            if not refuses_certificate(error) or loop.time() < self._next_rereading:
                raise
            self._next_rereading = loop.time() + REREAD_SECONDS
            with suppress(ConfigurationError):  # the file may be half written
                if await self.read_again():
                    return await connections.post(headers, sending)
            raise

    async def read_again(self) -> str:
        """Read the trusted certificates again, for later connections, and return the file if they are others, or "".

        Raise ConfigurationError if that fails; the certificates that were trusted before stay.
        """
        before = self._trusted
        if before:
            await self._read([*before])
        changed = [now.path for proxy_url, now in self._trusted.items() if now.digest != before[proxy_url].digest]
        return changed[0] if changed else ""

    async def _read(self, proxy_urls: list[str | None]) -> None:
        """Read the certificates.  One thread does that at a time, since a file may hang longer than a request waits."""
        if self._reading is None:
            self._reading = begin_aside(lambda: {url: self._trusted_for(url) for url in proxy_urls})
            self._reading.add_done_callback(self._learn)
        reading = self._reading
        await asyncio.wait([reading])  # which a caller that is cancelled leaves to the others
        self._learn(reading)  # a caller that comes when it has just ended does not wait for the callback
        reading.result()

    def _trusted_for(self, proxy_url: str | None) -> Trusted:
        path = str(get_cert_path(self._bundle() if self._trusted else self._named))
        try:
            digest = sha256(Path(path).read_bytes()).digest()
            return Trusted(*internals.tls_of(self, proxy_url, path), path, digest)
        except OSError as error:
            raise ConfigurationError((unreadable(path, error),)) from None
        except boto_errors.InvalidProxiesConfigError:
            raise ConfigurationError(("HTTPS_PROXY: not the URL of a proxy",)) from None

    def _learn(self, reading: asyncio.Future[dict[str | None, Trusted]]) -> None:
        if reading is not self._reading:
            return
        self._reading = None
        if reading.cancelled() or reading.exception() is not None:
            return
        self._trusted = reading.result()
        for url, connections in self._to.items():
            if (trusted := self._trusted.get(internals.proxy_url_of(self, url))) is not None:
                connections.trust(trusted.tls, trusted.proxy_tls)

    async def send(self, request: AWSPreparedRequest) -> AioAWSResponse:
        """Send botocore's request, and return its answer, whose body is read and bounded."""
        return for_botocore(request.url, await self.post(request.url, headers_of(request), Sending(request.body)))


def unreadable(bundle: str, error: OSError) -> str:
    """Return why the certificates of a file cannot be trusted."""
    named = f"AWS settings: {bundle}, which AWS_CA_BUNDLE or ca_bundle names"
    return f"{named}: no certificates can be read ({error.strerror})"


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
