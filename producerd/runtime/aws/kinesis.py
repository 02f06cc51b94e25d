"""AioKinesis: the way to Kinesis through aiobotocore.

Credentials, hosts, signing and connections are those of an `AwsClient`.  A PutRecords body is written by
`producerd.core.encoding.entries` and carried past botocore (see `Sending`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from producerd.core.encoding.entries import EncodedRequest
from producerd.core.failures import meaning_of
from producerd.core.sending.answers import Answer, RequestFailed, parse_answer
from producerd.errors import Code
from producerd.runtime.aws.clients import AwsClient
from producerd.runtime.aws.errors import failure_of, is_answer, not_kinesis, shows_wrong_endpoint
from producerd.runtime.aws.sending import TINY, Sending, most_answer_bytes
from producerd.runtime.kinesis import Address, StreamSummary, Tried
from producerd.runtime.log_lines import without_secrets

SMALL_ANSWER_BYTES: Final = 64 * 1024
"""Read on the loop thread, as Kinesis's answers are where all was stored: a hop to a worker costs more."""
CONTROL_TIMEOUT_SECONDS: Final = 10.0
"""For each page of ListShards, and for DescribeStreamSummary."""
MAX_PAGES: Final = 64
MAX_SHARDS: Final = MAX_PAGES * 1_000
"""Open shards; nobody may have half as many."""
DEFAULT_MAX_RECORD_KIB: Final = 1024
"""Of a stream that says nothing else (Kinesis quotas)."""
MAX_RECORD_KIB: Final = 1 << 20
"""A hundred times what a stream may be set to."""
CLOCK_OFF: Final = "RequestTimeTooSkewed"

_T = TypeVar("_T")


class AioKinesis:
    """Kinesis through one client.

    Where the service refuses the credentials, the client renews them.  Where it refuses the clock, the call is made
    once more by the service's clock.
    """

    def __init__(self, client: AwsClient, executor: Executor) -> None:
        self._client = client
        self._executor = executor

    async def put_records(
        self, address: Address, request: EncodedRequest, timeout_seconds: float
    ) -> Answer | RequestFailed:
        sending = Sending(request.body, request.sha256, most_answer_bytes(request.entries))
        try:
            answer = await self._ask(partial(self._client.put_records, address, sending), timeout_seconds, sending)
        finally:
            sending.let_go()
        if isinstance(answer, RequestFailed):
            return answer
        read = partial(_read, parse_answer, answer, request.entries, maybe_stored=True)
        if len(answer) <= SMALL_ANSWER_BYTES:
            return read()
        return await asyncio.get_running_loop().run_in_executor(self._executor, read)

    async def list_shards(self, address: Address) -> list[dict[str, Any]] | RequestFailed:
        first = {**address, "ShardFilter": {"Type": "AT_LATEST"}}
        pages: list[dict[str, Any]] = []
        token, shards = "", 0
        for _ in range(MAX_PAGES):
            # A token stands for the stream, too: the service refuses both together.
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
        answer = await self._call("describe_stream_summary", address)
        if isinstance(answer, RequestFailed):
            return answer
        return _read(_summary, answer)

    async def dry_run(self, address: Address) -> RequestFailed | None:
        """Why PutRecords would fail, or None: whether the daemon may send, without sending.

        Of AWS itself alone, where `AwsClient.why_no_dry_run` has nothing against it: whoever else answers may not know
        what a dry run is, and store the record.
        """
        answer = await self._call("put_records", {**address, "Records": TINY, "DryRun": True})
        if not isinstance(answer, RequestFailed):
            return RequestFailed("InternalFailure", "a dry run was answered as if it had stored", maybe_stored=True)
        return None if answer.code == "DryRunOperationException" else answer

    async def try_storing(self, address: Address, *, aggregates: bool) -> Tried:
        """Whether records could be stored, without storing one: a dry run at AWS itself, elsewhere ListShards.

        A stream that ``aggregates`` must be allowed ListShards everywhere.
        """
        try:
            reason = await self._client.why_no_dry_run()
            endpoint = without_secrets((await self._client.ready()).meta.endpoint_url)
        except Exception as error:  # botocore's, whatever keeps a client from being made
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
        answer = await self._ask_once(ask, timeout_seconds, sending)
        # What may have been stored is the pipeline's to send again, which counts the copies.
        if isinstance(answer, RequestFailed) and answer.code == CLOCK_OFF and not answer.maybe_stored:
            answer = await self._ask_once(ask, timeout_seconds, sending)  # by the right clock
        return answer

    async def _ask_once(
        self, ask: Callable[[], Awaitable[_T]], timeout_seconds: float, sending: Sending | None
    ) -> _T | RequestFailed:
        offset = self._client.clock.offset
        if sending is not None:
            sending.begin()
        try:
            async with asyncio.timeout(timeout_seconds):
                answer = await ask()
        except Exception as error:  # botocore's parser raises anything at what no AWS service says, as a proxy does
            written = sending is not None and sending.body_written
            if isinstance(error, TimeoutError):
                text = f"no answer within {timeout_seconds:.1f} s"
                return RequestFailed(Code.UNREACHABLE, text, maybe_stored=written, timed_out=written)
            return self._refused(error, failure_of(error, body_written=written), offset)
        self._client.answered()
        return answer

    def _refused(self, error: Exception, failed: RequestFailed, signed_with: timedelta) -> RequestFailed:
        """The failure, after what is wrong with the client was seen to."""
        if is_answer(error):
            self._client.answered()
        elif failed.code == Code.UNREACHABLE and not self._client.was_answered and shows_wrong_endpoint(error):
            return replace(failed, wrong_endpoint=True)
        if self._client.clock.learn(error, signed_with):
            return replace(failed, code=CLOCK_OFF)
        if meaning_of(failed.code).code == Code.CREDENTIALS:
            self._client.credentials.doubt()
        return failed


# --- what answers hold -------------------------------------------------------------------------------------------


def _read(reader: Callable[..., _T], *answer: Any, maybe_stored: bool = False) -> _T | RequestFailed:
    """Return what a reader finds in an answer.  JSON may hold anything: what is unexpected is a failure."""
    try:
        return reader(*answer)
    except Exception as error:  # whatever a reader trips over
        return not_kinesis(error, maybe_stored=maybe_stored)


def _size_and_next_token(page: dict[str, Any]) -> tuple[int, str]:
    """Return the number of shards in a page of ListShards, and the token of the next page or ""."""
    return len(page["Shards"]), _text(page.get("NextToken") or "")


def _summary(answer: dict[str, Any]) -> StreamSummary:
    told = answer["StreamDescriptionSummary"]
    kib = told.get("MaxRecordSizeInKiB") or DEFAULT_MAX_RECORD_KIB
    if type(kib) is not int or not 0 < kib <= MAX_RECORD_KIB:
        raise ValueError("a size that no record has")
    strategy = _text(told.get("RecordDistributionStrategy") or "USER_PARTITION_KEY")
    return StreamSummary(
        _text(told["StreamARN"]),
        kib * 1024,
        strategy,
        status=_text(told.get("StreamStatus") or ""),
        mode=_text((told.get("StreamModeDetails") or {}).get("StreamMode") or ""),
        kms_key=_text(told.get("KeyId") or "") if told.get("EncryptionType") == "KMS" else "",
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return value
