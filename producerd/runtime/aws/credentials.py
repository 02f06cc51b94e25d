"""RenewedCredentials: credentials to sign with, renewed before they expire and after the service refuses them.

They come from AWS's standard chain and, if a role is set, from assuming that role.  If credentials say when they
expire, botocore refreshes them in time.  But it reads a file or the environment only once in a client's life, and the
service would refuse keys that were rotated there until the daemon restarts.

After a refusal or a failure, a new session therefore walks the whole chain again, at most every few seconds.
Credentials that are still valid sign requests meanwhile.  A request that finds no valid ones waits for the renewal, and
its time-out does not end the renewal.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from os import environ
from random import uniform
from typing import Any, Final

import botocore.exceptions as boto_errors
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioAssumeRoleCredentialFetcher, AioDeferredRefreshableCredentials
from botocore.credentials import ReadOnlyCredentials, RefreshableCredentials

from producerd.core.sending.answers import RequestFailed
from producerd.errors import Code
from producerd.runtime.aws import internals
from producerd.runtime.aws.clock import ServiceClock
from producerd.runtime.aws.errors import CredentialsFailed, credentials_failed, failure_of
from producerd.runtime.outage import Outage

RENEWAL_SECONDS: Final = 5.0
"""Time between the beginnings of two renewals, give or take a fifth."""
RENEWAL_TIMEOUT_SECONDS: Final = 10.0
"""Longest time for one renewal by HTTP: a stream's grace must have room for several."""
HELPER_TIMEOUT_SECONDS: Final = 60.0
"""Longest time for one renewal with a credential process, which may ask a person or a slow service."""
_NOT_IN_SESSION_NAMES: Final = re.compile(r"[^\w+=,.@-]", re.ASCII)
SOURCES: Final = AioConfig(connect_timeout=3, read_timeout=5, retries={"total_max_attempts": 1})
"""The configuration of clients for STS and SSO.  A request is over before the renewal is, so its error names the host.
"""
_VARIABLES: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_FILES: Final = {
    "shared-credentials-file": ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    "config-file": ("AWS_CONFIG_FILE", "~/.aws/config"),
}
"""By botocore's name of a source, the variable that names its file, and the file without the variable."""

for _name in ("aiobotocore", "botocore"):
    # They log what a source of credentials said, with tracebacks, and at DEBUG whole requests with their signatures.
    logging.getLogger(_name).setLevel(logging.ERROR)


class RenewedCredentials:
    """A stand-in for botocore's credentials in a client, and for the chain in its session.

    ``resolve`` walks the chain from its beginning.  It returns botocore's credentials, or None if there are none.
    """

    def __init__(
        self, resolve: Callable[[], Awaitable[Any]], clock: ServiceClock, tasks: asyncio.TaskGroup, of: str
    ) -> None:
        self._resolve = resolve
        self._clock = clock
        self._tasks = tasks
        self._of = of
        self._outage = Outage("credentials", of=of)
        self.refreshes: Counter[str] = Counter()  # by result: ok, failed
        self._source: Any = None  # botocore's credentials, which `_frozen` came from
        self._frozen: ReadOnlyCredentials | None = None
        self._error: Exception | None = None  # why the last renewal failed
        self._refused = False  # the service refused the credentials
        self._stale = True  # the chain is to be walked again
        self._limit_seconds = RENEWAL_TIMEOUT_SECONDS
        self._limit: asyncio.Timeout | None = None  # of the renewal that is under way
        self._renewal: asyncio.Task[None] | None = None
        self._next_renewal = 0.0

    def doubt(self, used: ReadOnlyCredentials | None) -> None:
        """Note that the service refused the credentials: the next request that needs them resolves them again.

        ``used``: those that were known when the refused request began.  If others were found since, these are not in
        doubt.
        """
        self._refused |= used is None or used is self._frozen

    def has_helper(self, helper: bool) -> None:
        """Note whether a credential process is in the chain.  The renewal that is under way has that much time."""
        self._limit_seconds = HELPER_TIMEOUT_SECONDS if helper else RENEWAL_TIMEOUT_SECONDS
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time() + self._limit_seconds)

    def close(self) -> None:
        """Cancel the renewal that is under way."""
        if self._renewal is not None:
            self._renewal.cancel()

    @property
    def found(self) -> ReadOnlyCredentials | None:
        """The credentials of the last renewal that found any, or None."""
        return self._frozen

    def may_replace(self, refused: ReadOnlyCredentials) -> bool:
        """Return whether there are others than those that the service refused, or a renewal looks for them."""
        self.renew()
        return self._frozen is not refused or self._renewal is not None

    @property
    def expires_at(self) -> float | None:
        """The time at which the current credentials expire, in seconds since 1970, or None if that is unknown."""
        ends = internals.expiry_of(self._source)
        return None if ends is None else float(ends.timestamp())

    @property
    def trouble(self) -> str:
        """One sentence for an operator if the last renewal failed, otherwise ""."""
        if self._error is None:
            return ""
        failed, ends = failure_of(self._error, body_written=False), self.expires_at
        if self._frozen is None or self._expires_within(0):
            return f"there are no valid credentials of {self._of}: {failed.code}: {failed.message}"
        until = "" if ends is None else datetime.fromtimestamp(ends, UTC).strftime(" until %Y-%m-%dT%H:%M:%SZ")
        return (
            f"do not restart, as a new daemon may have none: the credentials of {self._of} serve{until}, "
            f"but are not renewed: {failed.code}: {failed.message}"
        )

    @property
    def method(self) -> str:
        """The way in which botocore found the credentials, such as "env" or "iam-role", or "" before it has."""
        return _method_of(self._source)

    async def load_credentials(self) -> RenewedCredentials:
        """Return this object to a session that asks its chain for credentials."""
        return self

    async def get_frozen_credentials(self) -> ReadOnlyCredentials | None:
        """Return the credentials to sign with, for a client's signer.  Raise the last error if there are none."""
        self.renew()
        if self._renewal is not None and self.are_awaited:
            await asyncio.wait({self._renewal})
        if self._error is not None and (self._frozen is None or self._expires_within(0)):
            raise self._error.with_traceback(None)  # the traceback would grow with each raise
        return self._frozen

    @property
    def are_awaited(self) -> bool:
        """Whether a renewal is under way and no credentials are valid until it ends."""
        return self._renewal is not None and (self._frozen is None or self._refused or self._expires_within(0))

    def renew(self) -> None:
        """Begin a renewal, if one is due."""
        now = asyncio.get_running_loop().time()
        is_due = self._refused or self._stale or self._expires_within(None)
        if self._renewal is None and now >= self._next_renewal and is_due:
            self._next_renewal = now + RENEWAL_SECONDS * uniform(0.8, 1.2)
            self._renewal = self._tasks.create_task(self._renew())

    async def get_account_id(self) -> str | None:
        """Return the account's id, by which botocore chooses a host."""
        frozen = await self.get_frozen_credentials()
        return None if frozen is None else frozen.account_id

    def get_deferred_property(self, name: str) -> Callable[[], Awaitable[str | None]]:
        """Return a function that returns the account's id, for botocore to call later."""
        assert name == "account_id", name
        return self.get_account_id

    async def _renew(self) -> None:
        source = None
        try:
            async with asyncio.timeout(self._limit_seconds) as self._limit:
                source = await self._resolved() if self._refused or self._stale else self._source
                frozen = await self._frozen_of(source)
            if frozen is None:
                raise boto_errors.NoCredentialsError
            check_sendable(frozen, _method_of(source))
        except Exception as error:  # files, processes, metadata services and STS raise anything
            self.refreshes["failed"] += 1
            self._error, self._stale = credentials_failed(error, _method_of(source)), True
            failed = failure_of(self._error, body_written=False)
            self._outage.try_failed(failed.code, failed.message, failed.request_id)
        else:
            self._source, self._frozen, self._error = source, frozen, None
            self._refused = self._stale = False
            self._outage.ended()
            self.refreshes["ok"] += 1
        finally:
            self._renewal = self._limit = None

    async def _resolved(self) -> Any:
        source = await self._resolve()
        if isinstance(source, RefreshableCredentials):
            internals.tell_time(source, self._clock.now)  # otherwise new ones look expired to a clock that is ahead
            internals.raise_each_failure(source)
        return source

    async def _frozen_of(self, source: Any) -> ReadOnlyCredentials | None:
        if source is None:
            return None
        offset = self._clock.offset
        try:
            return await _current_of(source)
        except boto_errors.ClientError as error:  # STS refused
            if not self._clock.learn(error, offset):
                raise
        return await _current_of(source)

    def _expires_within(self, seconds: float | None) -> bool:
        """Return whether the credentials expire within ``seconds``; None stands for botocore's own margin."""
        return isinstance(self._source, RefreshableCredentials) and self._source.refresh_needed(seconds)


async def _current_of(source: Any) -> Any:
    """Return the source's current credentials, even if they look expired by this machine's clock.

    botocore refuses credentials that it has just received and that look expired.  Only the service can judge that,
    because a clock that is ahead learns the time from the service's refusal.
    """
    before = internals.received_by(source)
    try:
        return await source.get_frozen_credentials()
    except RuntimeError:
        received = internals.received_by(source)
        if received is before:
            raise
        return received


class NamedSource:
    """A provider in the chain of a botocore session, whose errors are replaced by ones that name it."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._metadata = internals.MetadataSessions(provider)
        self.METHOD = provider.METHOD
        self.CANONICAL_NAME = provider.CANONICAL_NAME

    async def load(self) -> Any:
        """Return the provider's credentials, or None if it has none."""
        try:
            found = await self._provider.load()
            if found is None and self._metadata.is_late:
                raise TimeoutError
            return found
        except Exception as error:  # files, processes, metadata services and STS raise anything
            failed = credentials_failed(error, self.METHOD)
        raise failed  # here, so that it does not keep the error as its context


def _method_of(source: Any) -> str:
    """Return the way in which botocore found credentials, or "" if there are none."""
    return str(getattr(source, "method", ""))


def check_sendable(frozen: ReadOnlyCredentials, method: str) -> None:
    """Raise CredentialsFailed if a part of credentials cannot be sent, as one with a line break."""
    for variable, part in zip(_VARIABLES, frozen, strict=False):
        if part is not None and any(ord(character) < 32 or ord(character) == 127 for character in part):
            where = environ.get(*_FILES[method]) if method in _FILES else method
            name = variable if method == "env" else variable.lower()
            text = f"no credentials from {where}: {name} has a line break or another control character"
            raise CredentialsFailed(RequestFailed(Code.CREDENTIALS, text, maybe_stored=False))


def uses_helper(session: Any) -> bool:
    """Return whether AWS's files name a credential process, for the session's profile or for the source of its role."""
    profiles, name = session.full_config.get("profiles", {}), session.get_config_variable("profile") or "default"
    passed: set[str] = set()
    while name in profiles and name not in passed:
        passed.add(name)
        if "credential_process" in profiles[name]:
            return True
        name = profiles[name].get("source_profile")
    return False


def role_session(host: str) -> str:
    """Return the session name of an assumed role, by which CloudTrail shows the host.

    AssumeRole allows 2 to 64 letters, digits and ``_+=,.@-``.
    """
    return f"producerd-{_NOT_IN_SESSION_NAMES.sub('-', host)}"[:64]


def role_credentials(session: Any, source: Any, role_arn: str, external_id: str | None) -> Any:
    """Return a role's credentials.  ``source`` assumes it when they are first needed, and before they expire."""
    arguments = {"RoleSessionName": role_session(socket.gethostname())}
    if external_id is not None:
        arguments["ExternalId"] = external_id

    async def assume() -> Any:
        check_sendable(await source.get_frozen_credentials(), _method_of(source))
        # A fetcher caches its result by this machine's clock, so each fetcher is used once.
        fetcher = AioAssumeRoleCredentialFetcher(session.create_client, source, role_arn, extra_args=arguments)
        return await fetcher.fetch_credentials()

    return AioDeferredRefreshableCredentials(refresh_using=assume, method="assume-role")
