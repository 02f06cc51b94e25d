"""AioKinesis: calls to Kinesis through aiobotocore.

An `AwsClient` provides credentials, hosts, signing and connections.  `producerd.core.encoding.entries` writes the
bodies of PutRecords, which botocore never sees.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from botocore.credentials import ReadOnlyCredentials

from producerd.config.redaction import redacted_url
from producerd.core.encoding.entries import EncodedRequest
from producerd.core.failures import CREDENTIALS_AWAITED, meaning_of
from producerd.core.sending.answers import Answer, RequestFailed, parse_answer
from producerd.errors import Code
from producerd.runtime.aws.building import TINY
from producerd.runtime.aws.clients import AwsClient
from producerd.runtime.aws.connections import MAX_ANSWER_BYTES, Sending
from producerd.runtime.aws.errors import failure_of, is_answer, not_kinesis, shows_wrong_endpoint
from producerd.runtime.kinesis import Address, StreamSummary, Tried

SMALL_ANSWER_BYTES: Final = 64 * 1024
"""Largest answer that the loop thread parses itself; a hop to a worker costs more CPU than parsing it.

If Kinesis stored all records, its answer is smaller.
"""
RESULT_BYTES: Final = 1024
"""Most bytes read for each entry.  Kinesis sends 130 bytes for one, or 350 with an error's message."""
FEW_RESULTS_BYTES: Final = 64 * 1024
"""Bytes read of an answer in any case: an error page, and what proxies add."""
CONTROL_TIMEOUT_SECONDS: Final = 10.0
"""Time-out of a page of ListShards, and of DescribeStreamSummary."""
MAX_PAGES: Final = 64
"""Most pages of ListShards that are read."""
MAX_SHARDS: Final = MAX_PAGES * 1_000
"""Most open shards that are read; no account may have half as many."""
DEFAULT_MAX_RECORD_KIB: Final = 1024
"""Record limit of a stream whose summary does not say one (Kinesis quotas)."""
MAX_RECORD_KIB: Final = 1 << 20
"""Largest record limit that is believed: a hundred times what a stream can be set to."""
CLOCK_OFF: Final = "RequestTimeTooSkewed"
"""Code of a failure whose reason was this machine's clock."""

_T = TypeVar("_T")


class AioKinesis:
    """Kinesis through one client.

    If the service refuses the credentials, the call is made once more with others, if there may be any.  If it refuses
    the time of the signature, the call is made once more with the service's time.
    """

    def __init__(self, client: AwsClient, executor: Executor) -> None:
        self._client = client
        self._executor = executor
        self._timeouts: dict[int, asyncio.Timeout] = {}  # by the id of the body that is on its way

    async def ready(self) -> None:
        with suppress(Exception):  # botocore raises anything that keeps a client from being made
            await self._client.ready()

    @property
    def is_aws(self) -> bool:
        return self._client.is_aws

    async def put_records(
        self, address: Address, request: EncodedRequest, timeout_seconds: float
    ) -> Answer | RequestFailed:
        sending = Sending(request.body, most_answer_bytes(request.entries))
        ask = partial(self._client.put_records, address, request, sending)
        answer = await self._ask(ask, timeout_seconds, sending)
        if isinstance(answer, RequestFailed):
            return answer
        read = partial(_read, parse_answer, answer, request.entries, maybe_stored=True)
        if len(answer) <= SMALL_ANSWER_BYTES:
            return read()
        return await asyncio.get_running_loop().run_in_executor(self._executor, read)

    def await_until(self, request: EncodedRequest, at: float) -> None:
        timeout = self._timeouts.get(id(request.body))
        if timeout is not None and not timeout.expired():
            timeout.reschedule(at)

    async def list_shards(self, address: Address) -> list[dict[str, Any]] | RequestFailed:
        first = {**address, "ShardFilter": {"Type": "AT_LATEST"}}
        pages: list[dict[str, Any]] = []
        token, shards = "", 0
        for _ in range(MAX_PAGES):
            # A token includes the stream's name: the service refuses both in one request.
            page = await self._call("list_shards", {"NextToken": token} if token else first)
            if isinstance(page, RequestFailed):
                if page.code != "ExpiredNextTokenException":
                    return page
                pages, token, shards = [], "", 0
                continue
            read = _read(_size_and_next_token, page)
            if isinstance(read, RequestFailed):
                return read
            pages.append(page)
            before, (size, token) = token, read
            if not token:
                return pages
            shards += size
            if token == before or shards > MAX_SHARDS:
                break
        return RequestFailed("InternalFailure", f"ListShards has no end: {len(pages)} pages", maybe_stored=False)

    async def describe_stream_summary(self, address: Address) -> StreamSummary | RequestFailed:
        async def call() -> tuple[dict[str, Any], str]:
            client = await self._client.ready()
            endpoint = urlsplit(client.meta.endpoint_url)
            host = endpoint.netloc.rpartition("@")[2] + endpoint.path.rstrip("/")  # one host may have many services
            return await client.describe_stream_summary(**address), host

        found = await self._ask(call, CONTROL_TIMEOUT_SECONDS)
        return found if isinstance(found, RequestFailed) else _read(_summary, *found)

    async def dry_run(self, address: Address) -> RequestFailed | None:
        """Return why PutRecords would fail, or None if the daemon may send, without storing a record.

        Call it only if `AwsClient.why_no_dry_run` returns "".  Another service may not know dry runs, and store the
        record.
        """
        answer = await self._call("put_records", {**address, "Records": TINY, "DryRun": True})
        if not isinstance(answer, RequestFailed):
            return RequestFailed("InternalFailure", "a dry run was answered as if it had stored", maybe_stored=True)
        return None if answer.code == "DryRunOperationException" else answer

    async def try_storing(self, address: Address, *, aggregates: bool) -> Tried:
        """Return whether the service would store records, without storing one.

        At AWS itself this is a dry run, and elsewhere ListShards.  A stream with ``aggregates`` needs the permission
        for ListShards everywhere.
        """
        try:
            reason = await self._client.why_no_dry_run()
            endpoint = redacted_url((await self._client.ready()).meta.endpoint_url)
        except Exception as error:  # botocore raises anything that keeps a client from being made
            return Tried(failure_of(error, body_written=False), by_put_records=True)
        refused = None if reason else await self.dry_run(address)
        if reason or (aggregates and refused is None):
            page = await self._call("list_shards", {**address, "MaxResults": 1})
            failed = page if isinstance(page, RequestFailed) else None
            if reason or (failed is not None and meaning_of(failed.code).code == Code.ACCESS_DENIED):
                return Tried(failed, by_put_records=False, endpoint=endpoint)
        return Tried(refused, by_put_records=True, endpoint=endpoint)

    async def _call(self, operation: str, arguments: Mapping[str, Any]) -> dict[str, Any] | RequestFailed:
        async def call() -> dict[str, Any]:
            answer: dict[str, Any] = await getattr(await self._client.ready(), operation)(**arguments)
            return answer

        return await self._ask(call, CONTROL_TIMEOUT_SECONDS)

    async def _ask(
        self, ask: Callable[[], Awaitable[_T]], timeout_seconds: float, sending: Sending | None = None
    ) -> _T | RequestFailed:
        credentials = self._client.credentials
        used = credentials.found
        answer = await self._ask_once(ask, timeout_seconds, sending)
        # If the records may be stored, leave it to the pipeline to send them again: it counts the copies.
        if not isinstance(answer, RequestFailed) or answer.maybe_stored:
            return answer
        refuses_keys = bool(answer.status) and meaning_of(answer.code).code == Code.CREDENTIALS
        if answer.code == CLOCK_OFF or (refuses_keys and used is not None and credentials.may_replace(used)):
            return await self._ask_once(ask, timeout_seconds, sending)
        return answer

    async def _ask_once(
        self, ask: Callable[[], Awaitable[_T]], timeout_seconds: float, sending: Sending | None
    ) -> _T | RequestFailed:
        offset, used, began = self._client.clock.offset, self._client.credentials.found, time.monotonic()
        if sending is not None:
            sending.begin()
        try:
            async with asyncio.timeout(timeout_seconds) as timeout:
                if sending is not None:
                    self._timeouts[id(sending.body)] = timeout
                answer = await ask()
        except Exception as error:  # botocore's parser raises anything at an answer that is not AWS's
            written, seconds = sending is not None and sending.body_written, time.monotonic() - began
            if isinstance(error, TimeoutError) and self._client.credentials.are_awaited and not written:
                text = f"no credentials within {seconds:.1f} s, and their source is still asked"
                return RequestFailed(CREDENTIALS_AWAITED, text, maybe_stored=False)
            if isinstance(error, TimeoutError):
                lacks = "answer" if written or sending is None else "connection"
                text = f"no {lacks} within {seconds:.1f} s"
                return RequestFailed(Code.UNREACHABLE, text, maybe_stored=written, timed_out=written)
            return self._refused(error, failure_of(error, body_written=written), offset, used)
        finally:
            if sending is not None:
                self._timeouts.pop(id(sending.body), None)
        self._client.note_answer()
        return answer

    def _refused(
        self, error: Exception, failed: RequestFailed, offset: timedelta, used: ReadOnlyCredentials | None
    ) -> RequestFailed:
        """Return the failure, after learning from it what is wrong with the endpoint, the clock or the credentials.

        ``offset`` and ``used`` are the clock's and the credentials when the call began.
        """
        bare_400 = failed.code == "400"  # as from a port for HTTPS that is spoken to in plain HTTP
        if is_answer(error) and not bare_400:
            self._client.note_answer()
        elif not self._client.was_answered and (
            bare_400 or (failed.code == Code.UNREACHABLE and shows_wrong_endpoint(error))
        ):
            return replace(failed, wrong_endpoint=True)
        if self._client.clock.learn(error, offset):
            return replace(failed, code=CLOCK_OFF)
        if is_answer(error) and meaning_of(failed.code).code == Code.CREDENTIALS:
            self._client.credentials.doubt(used)
        return failed


def most_answer_bytes(entries: int) -> int:
    """Return the most bytes that are read of the answer to a PutRecords of this many entries.

    Without this limit, a peer that answers every request with endless data could fill the memory.
    """
    return min(MAX_ANSWER_BYTES, FEW_RESULTS_BYTES + entries * RESULT_BYTES)


# --- what answers hold -------------------------------------------------------------------------------------------


def _read(reader: Callable[..., _T], *answer: Any, maybe_stored: bool = False) -> _T | RequestFailed:
    """Return what a reader finds in an answer, or a failure if it raises: JSON may hold anything."""
    try:
        return reader(*answer)
    except Exception as error:  # the answer has another shape than Kinesis's
        return not_kinesis(error, maybe_stored=maybe_stored)


def _size_and_next_token(page: dict[str, Any]) -> tuple[int, str]:
    """Return the number of shards in a page of ListShards, and the token of the next page or ""."""
    return len(page["Shards"]), _text(page.get("NextToken") or "")


def _summary(answer: dict[str, Any], endpoint_host: str) -> StreamSummary:
    description = answer["StreamDescriptionSummary"]
    kib = description.get("MaxRecordSizeInKiB") or DEFAULT_MAX_RECORD_KIB
    if type(kib) is not int or not 0 < kib <= MAX_RECORD_KIB:
        raise ValueError("a size that no record has")
    strategy = _text(description.get("RecordDistributionStrategy") or "USER_PARTITION_KEY")
    created = description.get("StreamCreationTimestamp")
    return StreamSummary(
        _text(description["StreamARN"]),
        kib * 1024,
        strategy,
        status=_text(description.get("StreamStatus") or ""),
        mode=_text((description.get("StreamModeDetails") or {}).get("StreamMode") or ""),
        kms_key=_text(description.get("KeyId") or "") if description.get("EncryptionType") == "KMS" else "",
        created_milliseconds=max(0, round(created.timestamp() * 1000)) if isinstance(created, datetime) else 0,
        endpoint_host=endpoint_host,
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return value
