"""The way to Kinesis: `Kinesis`, a protocol, and `AioKinesis`, its aiobotocore implementation.

Expected failures come back as values, not exceptions.  Credentials, endpoint, signing and the connection pool are
aiobotocore's; a PutRecords body is written by `producerd.core.entries` and carried through two of botocore's event
hooks, so that no record passes botocore's serialiser or parser (5 MB: 29.5 -> 5.7 ms).

Giving up a request aborts its connection: buffers are dropped and the peer gets a reset.  A graceful close kept 265
sockets and 777 MiB alive against an endpoint that hung, and stored requests late.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import botocore.exceptions as boto_errors
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import get_session
from aiohttp import ClientConnectorError
from aiohttp import ClientError as AiohttpError

from producerd.core.entries import Answer, EncodedRequest, RequestFailed, parse_answer
from producerd.errors import Code, ConfigurationError

USER_TIMEOUT_MILLISECONDS: Final = 30_000
"""TCP_USER_TIMEOUT: a peer that acknowledges nothing for so long is gone."""
SEND_BUFFER_BYTES: Final = 1 << 20
"""A bound on what the kernel holds of a request; Linux doubles it."""
SMALL_ANSWER_ENTRIES: Final = 32
"""Parsed on the loop thread: a hop to a worker costs more."""
_TINY: Final = [{"Data": b"", "PartitionKey": "-"}]  # what put_records is called with; the hook replaces the body

_ready_body: contextvars.ContextVar[tuple[bytes, str] | None] = contextvars.ContextVar("ready_body", default=None)


class Kinesis(Protocol):
    """What the daemon needs of the service."""

    async def put_records(
        self, stream: str, request: EncodedRequest, timeout_seconds: float
    ) -> Answer | RequestFailed: ...

    async def list_shards(self, stream: str) -> list[dict[str, Any]] | RequestFailed:
        """The answers of ListShards, all pages, open shards only."""

    async def max_record_bytes(self, stream: str) -> int | RequestFailed:
        """Largest key + data that the stream takes, from DescribeStreamSummary."""


class AioKinesis:
    """Kinesis through one aiobotocore client."""

    def __init__(self, client: Any, executor: Executor) -> None:
        self._client = client
        self._executor = executor
        client.meta.events.register("before-call.kinesis.PutRecords", _put_ready_body)
        client.meta.events.register("before-parse.kinesis.PutRecords", _keep_raw_answer)

    async def put_records(self, stream: str, request: EncodedRequest, timeout_seconds: float) -> Answer | RequestFailed:
        _ready_body.set((request.body, request.sha256))
        answer = await self._ask(
            self._client.put_records, {"StreamName": stream, "Records": _TINY}, timeout_seconds, may_store=True
        )
        if isinstance(answer, RequestFailed):
            return answer
        raw = answer["Raw"]
        if request.entries <= SMALL_ANSWER_ENTRIES:
            return parse_answer(raw, request.entries)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, parse_answer, raw, request.entries)

    async def list_shards(self, stream: str) -> list[dict[str, Any]] | RequestFailed:
        pages: list[dict[str, Any]] = []
        arguments: dict[str, Any] = {"StreamName": stream, "ShardFilter": {"Type": "AT_LATEST"}}
        while True:
            page = await self._ask(self._client.list_shards, arguments)
            if isinstance(page, RequestFailed):
                return page
            pages.append(page)
            if not page.get("NextToken"):
                return pages
            arguments = {"NextToken": page["NextToken"]}

    async def max_record_bytes(self, stream: str) -> int | RequestFailed:
        answer = await self._ask(self._client.describe_stream_summary, {"StreamName": stream})
        if isinstance(answer, RequestFailed):
            return answer
        try:
            return int(answer["StreamDescriptionSummary"].get("MaxRecordSizeInKiB") or DEFAULT_MAX_RECORD_KIB) * 1024
        except (KeyError, TypeError, ValueError) as error:
            return _not_kinesis(error, maybe_stored=False)

    async def _ask(
        self,
        operation: Callable[..., Any],
        arguments: dict[str, Any],
        timeout_seconds: float = 10.0,
        *,
        may_store: bool = False,
    ) -> dict[str, Any] | RequestFailed:
        try:
            async with asyncio.timeout(timeout_seconds):
                answer: dict[str, Any] = await operation(**arguments)
                return answer
        except TimeoutError:
            text = f"no answer within {timeout_seconds:.1f} s"
            return RequestFailed(Code.UNREACHABLE, text, maybe_stored=may_store, timed_out=may_store)
        except (boto_errors.ClientError, boto_errors.BotoCoreError, AiohttpError, OSError) as error:
            return failure_of(error)
        except Exception as error:  # botocore's parser raises anything at what no AWS service says, as a proxy does
            return _not_kinesis(error, maybe_stored=may_store)


DEFAULT_MAX_RECORD_KIB: Final = 1024
"""Of a stream that says nothing else (Kinesis quotas)."""


@asynccontextmanager
async def connect(
    executor: Executor, *, region: str | None, endpoint_url: str | None, connect_timeout_seconds: float
) -> AsyncIterator[AioKinesis]:
    """A client by the standard credential chain.  Raises ConfigurationError where no region can be found."""
    session = get_session()
    if region is None and session.get_config_variable("region") is None:
        raise ConfigurationError(["region: none is set; set region, or AWS_REGION, or a profile that has one"])
    config = AioConfig(
        connector_args={"keepalive_timeout": 60, "socket_factory": _make_socket},
        http_session_cls=_AbortingSession,
        connect_timeout=connect_timeout_seconds,
        read_timeout=None,  # ours covers the whole request
        max_pool_connections=10_000,  # the pipelines bound what is in flight
        retries={"total_max_attempts": 1},  # ours are per entry
        parameter_validation=False,
        tcp_keepalive=True,
    )
    try:
        context = session.create_client("kinesis", region_name=region, endpoint_url=endpoint_url, config=config)
        async with context as client:
            yield AioKinesis(client, executor)
    except (boto_errors.NoRegionError, boto_errors.ProfileNotFound, boto_errors.InvalidRegionError) as error:
        raise ConfigurationError([f"AWS settings: {error}"]) from None


def _not_kinesis(error: Exception, *, maybe_stored: bool) -> RequestFailed:
    """Whoever answered is not Kinesis.  The words of the error are left out: they may quote the answer."""
    return RequestFailed("InternalFailure", f"an answer that is not Kinesis's ({type(error).__name__})", maybe_stored)


def failure_of(error: Exception) -> RequestFailed:
    """What an exception of botocore or aiohttp means, as a value."""
    message = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, boto_errors.ClientError):
        told = error.response.get("Error", {})
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(told.get("Code") or "InternalFailure")
        # Only 4xx says that nothing was stored; botocore puts a bare status there where the body names no code.
        maybe_stored = not 400 <= status < 500
        return RequestFailed(code, str(told.get("Message") or message), maybe_stored=maybe_stored)
    if isinstance(error, _CREDENTIALS):
        return RequestFailed(Code.CREDENTIALS, message, maybe_stored=False)
    if isinstance(error, boto_errors.EndpointConnectionError):
        # aiobotocore says "could not connect" of a connection that was reset under a request, too.
        cause = error.kwargs.get("error")
        before_body = isinstance(cause, (ClientConnectorError, socket.gaierror))
        return RequestFailed(Code.UNREACHABLE, f"{message} ({cause})", maybe_stored=not before_body)
    before_body = isinstance(error, _BEFORE_THE_BODY)
    return RequestFailed(Code.UNREACHABLE, message, maybe_stored=not before_body)


_CREDENTIALS: Final = (
    boto_errors.NoCredentialsError,
    boto_errors.PartialCredentialsError,
    boto_errors.CredentialRetrievalError,
    boto_errors.TokenRetrievalError,
    boto_errors.NoAuthTokenError,
    boto_errors.UnauthorizedSSOTokenError,
    boto_errors.SSOTokenLoadError,
)
_BEFORE_THE_BODY: Final = (
    boto_errors.ConnectTimeoutError,
    boto_errors.ProxyConnectionError,
    boto_errors.SSLError,
)


def _put_ready_body(params: dict[str, Any], **_: Any) -> None:
    """before-call: the ready body, and its digest in the header that signing reads instead of hashing again."""
    ready = _ready_body.get()
    if ready is not None:
        params["body"], params["headers"]["X-Amz-Content-SHA256"] = ready


def _keep_raw_answer(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """before-parse: a success is handed on as it came; errors keep botocore's own path."""
    if response_dict["status_code"] < 301:  # what botocore takes for one
        customized_response_dict["Raw"] = response_dict["body"]
        response_dict["body"] = b"{}"


class _AbortingSession(AIOHTTPSession):  # type: ignore[misc]
    """aiobotocore's HTTP session, but a connection that is given up is aborted and not closed politely."""

    async def _create_connector(self, proxy_url: str | None) -> Any:
        connector = await super()._create_connector(proxy_url)
        release = connector._release

        def release_or_abort(key: Any, protocol: Any, *, should_close: bool = False) -> None:
            if should_close:
                protocol.abort()
            release(key, protocol, should_close=should_close)

        connector._release = release_or_abort
        return connector


def _make_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that resets when it is closed, and on Linux gives up a peer that acknowledges nothing."""
    family, type_, protocol, _, _ = address
    made = socket.socket(family=family, type=type_, proto=protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # on, 0 s
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MILLISECONDS)
    return made
