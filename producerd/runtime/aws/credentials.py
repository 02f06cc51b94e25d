"""RenewedCredentials: what requests are signed with, renewed before it expires and resolved anew when it is refused.

They come from AWS's standard chain, and from the role that is assumed on top of it, if one is set.  botocore refreshes
what says when it expires, but reads a file or the environment once in a client's life: keys that were rotated there
would be refused for ever.  So after a refusal the whole chain is walked again by a fresh session, at most every few
seconds.  What still holds serves meanwhile; whoever finds nothing that holds waits for the renewal, which no request
that gives up can end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import uniform
from typing import Any, Final

import botocore.exceptions as boto_errors
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioAssumeRoleCredentialFetcher, AioDeferredRefreshableCredentials
from botocore.credentials import ReadOnlyCredentials, RefreshableCredentials

from producerd.runtime.aws import internals
from producerd.runtime.aws.clock import ServiceClock
from producerd.runtime.aws.errors import failure_of
from producerd.runtime.outage import Outage

RENEWAL_SECONDS: Final = 5.0
"""Between the beginnings of two renewals, give or take a fifth."""
RENEWAL_TIMEOUT_SECONDS: Final = 60.0
"""A credential process may hang for ever."""
ROLE_SESSION: Final = "producerd"
_STS: Final = AioConfig(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2})
_TOLD_AS_THEY_ARE: Final = (
    boto_errors.NoCredentialsError,
    boto_errors.CredentialRetrievalError,
    boto_errors.ClientError,  # STS refused
    boto_errors.ConnectionError,  # STS was not reached
    boto_errors.HTTPClientError,
)
"""Whatever else goes wrong is a failure to get credentials."""

for _name in ("aiobotocore.credentials", "aiobotocore.utils"):
    logging.getLogger(_name).setLevel(logging.ERROR)  # they warn at each attempt, with tracebacks; `Outage` warns once


class RenewedCredentials:
    """Takes the place of botocore's credentials in a client, and of the chain in its session.

    ``resolve`` walks the chain afresh: botocore's credentials, or None where there are none.
    """

    def __init__(
        self, resolve: Callable[[], Awaitable[Any]], clock: ServiceClock, tasks: asyncio.TaskGroup, of: str
    ) -> None:
        self._resolve = resolve
        self._clock = clock
        self._tasks = tasks
        self._outage = Outage("credentials", of=of)
        self._source: Any = None  # botocore's, that `_frozen` came from
        self._frozen: ReadOnlyCredentials | None = None
        self._error: Exception | None = None  # of the last renewal
        self._doubted = True
        self._renewal: asyncio.Task[None] | None = None
        self._next_renewal = 0.0

    def doubt(self) -> None:
        """The service has refused them: they are resolved anew by whoever needs them next."""
        self._doubted = True

    def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()

    @property
    def expires_at(self) -> float | None:
        """When what signs now expires, in seconds since 1970; None: it does not say, or nothing is there yet."""
        ends = internals.expiry_of(self._source)
        return None if ends is None else float(ends.timestamp())

    @property
    def method(self) -> str:
        """How they were found, in botocore's words, such as "env" or "iam-role"; "": not yet."""
        return str(getattr(self._source, "method", ""))

    async def load_credentials(self) -> RenewedCredentials:
        """What a session asks its chain."""
        return self

    async def get_frozen_credentials(self) -> ReadOnlyCredentials | None:
        """What a client's signer asks.  Raises what went wrong where there is nothing to sign with."""
        now = asyncio.get_running_loop().time()
        if self._renewal is None and now >= self._next_renewal and (self._doubted or self._expires_within(None)):
            self._next_renewal = now + RENEWAL_SECONDS * uniform(0.8, 1.2)
            self._renewal = self._tasks.create_task(self._renew())
        if self._renewal is not None and (self._doubted or self._expires_within(0)):
            await asyncio.wait({self._renewal})
        if self._error is not None and (self._frozen is None or self._expires_within(0)):
            raise self._error.with_traceback(None)  # it would grow with each raise
        return self._frozen

    async def get_account_id(self) -> str | None:
        """What the choice of a host asks."""
        frozen = await self.get_frozen_credentials()
        return None if frozen is None else frozen.account_id

    def get_deferred_property(self, name: str) -> Callable[[], Awaitable[str | None]]:
        """What botocore asks for the account's id, to ask for it later."""
        assert name == "account_id", name
        return self.get_account_id

    async def _renew(self) -> None:
        try:
            async with asyncio.timeout(RENEWAL_TIMEOUT_SECONDS):
                source = await self._resolved() if self._doubted else self._source
                frozen = await self._frozen_of(source)
            if frozen is None:
                raise boto_errors.NoCredentialsError
        except Exception as error:  # files, processes, metadata services and STS raise anything
            self._error, self._doubted = _told(error), True
            failed = failure_of(self._error, body_written=False)
            self._outage.failed(failed.code, failed.message)
        else:
            self._source, self._frozen, self._error, self._doubted = source, frozen, None, False
            self._outage.ended()
        finally:
            self._renewal = None

    async def _resolved(self) -> Any:
        source = await self._resolve()
        if isinstance(source, RefreshableCredentials):
            internals.tell_time(source, self._clock.now)  # else what is fresh looks expired to a clock that is ahead
        return source

    async def _frozen_of(self, source: Any) -> ReadOnlyCredentials | None:
        if source is None:
            return None
        offset = self._clock.offset
        try:
            return await _handed_out_by(source)
        except boto_errors.ClientError as error:  # of STS
            if not self._clock.learn(error, offset):
                raise
        return await _handed_out_by(source)

    def _expires_within(self, seconds: float | None) -> bool:
        """None: within the time in which botocore begins to refresh."""
        return isinstance(self._source, RefreshableCredentials) and self._source.refresh_needed(seconds)


async def _handed_out_by(source: Any) -> Any:
    """Return what the source hands out, also where this machine's clock says that it has expired.

    botocore refuses credentials that it has just received and that look expired.  The service has to judge them:
    a clock that is ahead learns the time by the service's refusal alone.
    """
    before = internals.received_by(source)
    try:
        return await source.get_frozen_credentials()
    except RuntimeError:
        received = internals.received_by(source)
        if received is before:
            raise
        return received


def _told(error: Exception) -> Exception:
    if not isinstance(error, _TOLD_AS_THEY_ARE):
        text = " ".join(str(error).split()) or type(error).__name__
        error = boto_errors.CredentialRetrievalError(provider="the standard chain", error_msg=text)
    return error


def role_credentials(session: Any, source: Any, role_arn: str, external_id: str | None) -> Any:
    """The credentials of a role, assumed by ``source`` when they are first needed and again before they expire."""
    arguments = {"RoleSessionName": ROLE_SESSION} | ({} if external_id is None else {"ExternalId": external_id})

    def sts(service: str, **keys: Any) -> Any:
        return session.create_client(service, config=_STS, **keys)

    async def assume() -> Any:
        # A fetcher keeps what it has fetched, by this machine's clock: so each is used once.
        fetcher = AioAssumeRoleCredentialFetcher(sts, source, role_arn, extra_args=arguments)
        return await fetcher.fetch_credentials()

    return AioDeferredRefreshableCredentials(refresh_using=assume, method="assume-role")
