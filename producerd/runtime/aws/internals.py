"""The only place that uses private names of aiobotocore and botocore.

Because these names may disappear in any release, pyproject.toml caps aiobotocore at the tested minor version, which
pins botocore.  `check` looks for the names when the daemon starts.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from importlib.metadata import version
from typing import Any

from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.utils import AioIMDSFetcher
from botocore.auth import SigV4Auth
from botocore.credentials import AssumeRoleProvider, InstanceMetadataProvider, RefreshableCredentials
from botocore.exceptions import ReadTimeoutError

from producerd.errors import ConfigurationError


def check() -> None:
    """Raise ConfigurationError if an installed library lacks a name that this module uses."""
    if problems := list(_problems()):
        raise ConfigurationError(tuple(problems))


def _problems() -> Iterator[str]:
    for library, owner, names in (
        ("aiobotocore", AIOHTTPSession, ("_build_ssl_contexts",)),
        ("aiobotocore", AIOHTTPSession.__init__, ("_proxy_config", "_verify")),
        ("botocore", RefreshableCredentials.__init__, ("_time_fetcher", "_expiry_time", "_frozen_credentials")),
        ("botocore", RefreshableCredentials, ("_advisory_refresh_timeout", "_mandatory_refresh_timeout")),
        ("aiobotocore", AioIMDSFetcher.__init__, ("_session",)),
        ("botocore", AssumeRoleProvider.__init__, ("_prompter",)),
        ("botocore", InstanceMetadataProvider.__init__, ("_role_fetcher",)),
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


def proxy_url_of(session: AIOHTTPSession, url: str) -> str | None:
    """Return the URL of the proxy that AWS's configuration names for a URL, or None."""
    proxy_url: str | None = session._proxy_config.proxy_url_for(url)
    return proxy_url


def tls_of(session: AIOHTTPSession, proxy_url: str | None, bundle: str) -> tuple[ssl.SSLContext, ssl.SSLContext | None]:
    """Return the TLS contexts for the service, and for the proxy if there is one, that trust the file ``bundle``.

    It reads certificates from files, so call it in a thread.  Raise OSError and botocore's exceptions.
    """
    session._verify = bundle
    contexts: tuple[ssl.SSLContext, ssl.SSLContext | None] = session._build_ssl_contexts(proxy_url)
    return contexts


# ---- credentials


def never_prompt(session: Any) -> None:
    """Make a session refuse a profile with mfa_serial, where botocore would wait at the terminal for a code."""

    def refuse(_: str) -> str:
        raise ConfigurationError(("a daemon cannot enter an MFA code: use a profile without mfa_serial",))

    session.get_component("credential_provider").get_provider("assume-role")._prompter = refuse


class MetadataSessions:
    """The HTTP sessions in which a provider asks for the instance's metadata.

    botocore takes an instance that does not answer for one without credentials.  ``is_late``: the last request was
    written and had no answer in time.  It stays False for a provider that asks elsewhere.
    """

    def __init__(self, provider: Any) -> None:
        self.is_late = False
        self._session: Any = None
        if isinstance(provider, InstanceMetadataProvider):
            self._sessions, provider._role_fetcher._session = provider._role_fetcher._session, self

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[MetadataSessions]:
        async with self._sessions.acquire() as self._session:
            yield self

    async def send(self, request: Any) -> Any:
        self.is_late = False
        try:
            return await self._session.send(request)
        except ReadTimeoutError:
            self.is_late = True
            raise


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


def raise_each_failure(source: RefreshableCredentials) -> None:
    """Make credentials that expire raise the error of every renewal.

    botocore hides it until 10 minutes before they expire, although it begins to renew them 15 minutes before.
    """
    source._mandatory_refresh_timeout = source._advisory_refresh_timeout
