"""Every reach into what aiobotocore, botocore and aiohttp keep to themselves.

Nothing promises that these names stay.  So pyproject.toml caps aiobotocore and aiohttp at the tested minor versions
(aiobotocore decides which botocore), and `check` looks for the names when the daemon starts.
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
    """Raise ConfigurationError where an installed library lacks a name that is used here."""
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
    """Whether a class has an attribute, or a constructor sets one."""
    return hasattr(owner, name) if isinstance(owner, type) else name in owner.__code__.co_names


# ---- connections


def tls_of(connector: aiohttp.TCPConnector) -> ssl.SSLContext:
    """The context that a connector makes its TLS connections with."""
    context: ssl.SSLContext = connector._ssl  # type: ignore[assignment]
    return context


def abort_what_closes(connector: aiohttp.TCPConnector) -> None:
    """Have a connector abort each connection that it would close."""
    release = connector._release

    def release_or_abort(key: Any, protocol: Any, *, should_close: bool = False) -> None:
        if should_close:
            protocol.abort()
        release(key, protocol, should_close=should_close)

    connector._release = release_or_abort  # type: ignore[method-assign]


def proxy_of(session: AIOHTTPSession, url: str) -> str | None:
    """The proxy that a session asks for a URL."""
    proxy_url: str | None = session._proxy_config.proxy_url_for(url)
    return proxy_url


def sent_by(session: AIOHTTPSession, proxy_url: str | None) -> aiohttp.ClientSession:
    """aiohttp's session for a proxy, which has sent something."""
    found: aiohttp.ClientSession = session._sessions[proxy_url]
    return found


def opened_by(session: AIOHTTPSession) -> AsyncExitStack:
    """What a session closes with itself."""
    stack: AsyncExitStack = session._exit_stack
    return stack


def send_as(request: Any, body: Any) -> None:
    """Have a request sent with this body, and its answer left unread, whatever its size."""
    request.stream_output = True
    request.body = body


def put_content(answer: Any, content: bytes) -> None:
    """Give an answer the content that was read for it."""
    answer._content = content


# ---- credentials


def expiry_of(source: Any) -> datetime | None:
    """When credentials expire; None where they do not, or do not say."""
    ends: datetime | None = getattr(source, "_expiry_time", None)
    return ends


def received_by(source: Any) -> Any:
    """The credentials that a source received last, also where it refuses to hand them out; None for none."""
    return getattr(source, "_frozen_credentials", None)


def tell_time(source: RefreshableCredentials, now: Callable[[], datetime]) -> None:
    """Have credentials that expire read the time here."""
    source._time_fetcher = now
