"""The only place that uses private names of aiobotocore, botocore and aiohttp.

These names may disappear in any release.  So pyproject.toml caps aiobotocore and aiohttp at the tested minor versions,
and aiobotocore pins botocore.  `check` looks for the names when the daemon starts.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from datetime import datetime
from importlib.metadata import version
from typing import Any

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.credentials import RefreshableCredentials

from producerd.errors import ConfigurationError


def check() -> None:
    """Raise ConfigurationError if an installed library lacks a name that this module uses."""
    if problems := list(_problems()):
        raise ConfigurationError(tuple(problems))


def _problems() -> Iterator[str]:
    for library, owner, names in (
        ("aiobotocore", AIOHTTPSession, ("_create_connector", "_get_session")),
        ("aiobotocore", AIOHTTPSession.__init__, ("_proxy_config", "_sessions", "_exit_stack")),
        ("aiohttp", aiohttp.TCPConnector, ("_release",)),
        ("aiohttp", aiohttp.TCPConnector.__init__, ("_ssl",)),
        ("botocore", AWSResponse.__init__, ("_content",)),
        ("botocore", AWSPreparedRequest.__init__, ("stream_output", "body")),
        ("botocore", RefreshableCredentials.__init__, ("_time_fetcher", "_expiry_time", "_frozen_credentials")),
        ("botocore", SigV4Auth, ("_modify_request_before_signing",)),
    ):
        for name in names:
            if not _has(owner, name):
                yield (
                    f"{library} {version(library)} has no {name} in {owner.__qualname__}, which producerd needs: "
                    "install the versions of requirements.lock"
                )


def _has(owner: Any, name: str) -> bool:
    """Return whether a class has an attribute, or whether a constructor uses the name."""
    return hasattr(owner, name) if isinstance(owner, type) else name in owner.__code__.co_names


# ---- connections


def tls_of(connector: aiohttp.TCPConnector) -> ssl.SSLContext:
    """Return the context that a connector makes its TLS connections with."""
    context: ssl.SSLContext = connector._ssl  # type: ignore[assignment]
    return context


def abort_what_closes(connector: aiohttp.TCPConnector) -> None:
    """Make a connector abort each connection that it would close."""
    release = connector._release

    def release_or_abort(key: Any, protocol: Any, *, should_close: bool = False) -> None:
        if should_close:
            protocol.abort()
        release(key, protocol, should_close=should_close)

    connector._release = release_or_abort  # type: ignore[method-assign]


def proxy_of(session: AIOHTTPSession, url: str) -> str | None:
    """Return the proxy that a session uses for a URL, or None."""
    proxy_url: str | None = session._proxy_config.proxy_url_for(url)
    return proxy_url


def sent_by(session: AIOHTTPSession, proxy_url: str | None) -> aiohttp.ClientSession:
    """Return aiohttp's session for a proxy, after a request was sent through it."""
    found: aiohttp.ClientSession = session._sessions[proxy_url]
    return found


def opened_by(session: AIOHTTPSession) -> AsyncExitStack:
    """Return the stack of everything that a session closes with itself."""
    stack: AsyncExitStack = session._exit_stack
    return stack


def send_as(request: Any, body: Any) -> None:
    """Replace a request's body, and leave its answer unread, whatever the size."""
    request.stream_output = True
    request.body = body


def put_content(answer: Any, content: bytes) -> None:
    """Give an answer the content that was read for it."""
    answer._content = content


# ---- credentials


def expiry_of(source: Any) -> datetime | None:
    """Return when credentials expire, or None if they do not expire or do not say."""
    ends: datetime | None = getattr(source, "_expiry_time", None)
    return ends


def received_by(source: Any) -> Any:
    """Return the credentials that a source received last, even if it refuses to return them itself, or None."""
    return getattr(source, "_frozen_credentials", None)


def tell_time(source: RefreshableCredentials, now: Callable[[], datetime]) -> None:
    """Make credentials that expire read the time from ``now``."""
    source._time_fetcher = now
