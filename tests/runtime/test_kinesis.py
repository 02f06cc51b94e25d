"""Each request reaches Kinesis in the right form, and whatever comes back becomes a value and not an exception."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from socket import EAI_NONAME, gaierror
from typing import Any
from unittest.mock import AsyncMock, MagicMock
from urllib.parse import urlsplit

import orjson
import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError
from hypothesis import HealthCheck, given, settings, strategies

from producerd.core.failures import Kind, meaning_of
from producerd.core.sending.answers import Answer, RequestFailed
from producerd.core.shards.shard_map import map_from_listing
from producerd.errors import Code
from producerd.runtime.aws.clock import ServiceClock
from producerd.runtime.aws.connections import Sending
from producerd.runtime.aws.kinesis import MAX_PAGES, AioKinesis, most_answer_bytes
from producerd.runtime.kinesis import StreamSummary
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import serve
from tests.daemon import until_on_loop
from tests.runtime.aws.reaching import BODY, FLIGHTS, fails, reached, reaching, request_of, stores
from tests.runtime.odd_answers import variants
from tests.runtime.recording import recording, signed_headers

pytestmark = pytest.mark.usefixtures("bare_environment")


async def test_the_body_is_ours_byte_for_byte_and_the_signature_covers_its_digest() -> None:
    answer = (
        b'{"FailedRecordCount":0,"Records":[{"SequenceNumber":"1","ShardId":"s"},{"SequenceNumber":"2","ShardId":"s"}]}'
    )
    async with recording(answer) as (url, requests), reaching(url) as kinesis:
        given = await kinesis.put_records(FLIGHTS, request_of(), 5)
    assert isinstance(given, Answer)
    ((headers, body),) = requests
    assert body == BODY
    assert headers["X-Amz-Target"] == "Kinesis_20131202.PutRecords"
    assert headers["X-Amz-Content-SHA256"] == hashlib.sha256(BODY).hexdigest()
    assert int(headers["Content-Length"]) == len(BODY)
    assert "x-amz-content-sha256" in signed_headers(url, headers, body)


@pytest.mark.parametrize("status", [None, 200, 403, 503], ids=["nobody answered", "stored", "refused", "unavailable"])
async def test_an_endpoint_where_anybody_has_answered_is_never_wrong(
    status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_such_host(*_: Any) -> bytes:
        raise EndpointConnectionError(endpoint_url="https://x", error=gaierror(EAI_NONAME, "no such name"))

    async with recording(b"{}", status or 200) as (url, _), reached(url) as (kinesis, client):
        if status is not None:
            await kinesis.put_records(FLIGHTS, request_of(), 5)
        monkeypatch.setattr(client, "put_records", no_such_host)
        failed = await fails(kinesis)
    assert (failed.code, failed.wrong_endpoint) == (Code.UNREACHABLE, status is None)


async def test_an_endpoint_that_answers_nothing_but_a_bare_400_is_wrong() -> None:
    """As a port for HTTPS answers that is spoken to in plain HTTP."""
    async with recording(b"<html>", 400) as (url, _), reaching(url) as kinesis:
        for _ in range(2):
            failed = await fails(kinesis)
            assert (failed.code, failed.wrong_endpoint) == ("400", True)


@pytest.mark.parametrize("aggregates", [False, True])
async def test_a_dry_run_says_nothing_of_the_list_that_aggregates_need(
    aggregates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at AWS itself, where PutRecords may be allowed and ListShards not."""

    async def nothing_against_it(*_: Any) -> None:
        return None

    denied = b'{"__type":"AccessDeniedException","message":"no"}'
    async with recording(denied, 400) as (url, asked), reached(url) as (kinesis, client):
        monkeypatch.setattr(client, "why_no_dry_run", nothing_against_it)
        monkeypatch.setattr(kinesis, "dry_run", nothing_against_it)
        tried = await kinesis.try_storing(FLIGHTS, aggregates=aggregates)
    assert len(asked) == aggregates
    assert (tried.failed is not None, tried.by_put_records) == (aggregates, not aggregates)
    assert tried.endpoint == url


@pytest.mark.parametrize("entries", [2, 40], ids=["on the loop", "in a worker"])
async def test_an_answer_of_the_wrong_length_makes_every_entry_unknown(entries: int) -> None:
    async with recording(b'{"Records":[{"SequenceNumber":"1","ShardId":"s"}]}') as (url, _), reaching(url) as kinesis:
        failed = await kinesis.put_records(FLIGHTS, request_of(entries=entries), 5)
    assert failed == RequestFailed(Code.RESULT_COUNT, f"1 results for {entries} entries", maybe_stored=True)


@pytest.mark.parametrize(
    ("fault", "code", "maybe_stored", "timed_out"),
    [
        (Fault("error", status=500), "InternalFailure", True, False),
        (Fault("error", status=400, code="ResourceNotFoundException"), "ResourceNotFoundException", False, False),
        (Fault("error", status=502, code=""), "502", True, False),
        (Fault("reset"), Code.UNREACHABLE, True, False),
        (Fault("lost"), Code.UNREACHABLE, True, False),
        (Fault("hang"), Code.UNREACHABLE, True, True),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else None,
)
async def test_what_the_service_does_comes_back_as_a_value(
    fault: Fault, code: str, maybe_stored: bool, timed_out: bool
) -> None:
    fake = FakeKinesis()
    fake.create_stream("flights")
    fake.standing.append(replace(fault, action="*"))
    async with serve(fake) as server, reaching(server.url) as kinesis:
        failed = await kinesis.put_records(FLIGHTS, request_of(), 1.5 if timed_out else 10)
        assert isinstance(failed, RequestFailed)
        assert (failed.code, failed.maybe_stored, failed.timed_out) == (code, maybe_stored, timed_out)
        if not timed_out:
            read = await kinesis.list_shards(FLIGHTS)
            assert isinstance(read, RequestFailed)
            assert (read.code, read.maybe_stored) == (code, False)
        fake.standing.clear()
        await stores(kinesis)


async def test_the_time_until_which_an_answer_is_awaited_may_come_nearer() -> None:
    fake, request, now = FakeKinesis(), request_of(), asyncio.get_running_loop().time
    fake.create_stream("flights")
    fake.standing.append(Fault("hang", action="*"))
    async with serve(fake) as server, reaching(server.url) as kinesis:
        putting = asyncio.ensure_future(kinesis.put_records(FLIGHTS, request, 300))
        await until_on_loop(lambda: server.in_flight == 1)
        kinesis.await_until(request, now())
        kinesis.await_until(request, now())
        failed = await putting
        assert isinstance(failed, RequestFailed)
        assert failed.timed_out
        assert failed.message.startswith("no answer within 0.")
        kinesis.await_until(request, now())


async def test_a_connection_that_is_not_made_in_time_is_no_missing_answer() -> None:
    """As with a firewall, or a proxy that never answers CONNECT."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # its kernel takes connections, and nobody answers
        async with reaching(f"https://127.0.0.1:{silent.getsockname()[1]}") as kinesis:
            failed = await kinesis.put_records(FLIGHTS, request_of(), 0.2)
    assert isinstance(failed, RequestFailed)
    assert (failed.code, failed.maybe_stored, failed.timed_out) == (Code.UNREACHABLE, False, False)
    assert failed.message.startswith("no connection within 0.")


async def test_all_pages_of_a_listing_are_read() -> None:
    fake = FakeKinesis()
    fake.create_stream("flights", shards=10_000)
    async with serve(fake) as server, reaching(server.url) as kinesis:
        pages = await kinesis.list_shards(FLIGHTS)
        assert not isinstance(pages, RequestFailed)
        assert [len(page["Shards"]) for page in pages] == [1_000] * 10
        assert fake.requests["ListShards"] == 10
        failed = await kinesis.list_shards({"StreamName": "nothing"})
        assert isinstance(failed, RequestFailed)
        assert failed.code == "ResourceNotFoundException"


@pytest.mark.parametrize("address", [FLIGHTS, {"StreamARN": "arn:aws:kinesis:us-east-1:123456789012:stream/flights"}])
async def test_a_page_after_the_first_is_asked_for_by_its_token_alone(address: dict[str, str]) -> None:
    def listing(asked: dict[str, Any]) -> tuple[int, bytes]:
        return 200, b'{"Shards":[]}' if "NextToken" in asked else b'{"Shards":[],"NextToken":"2"}'

    async with recording(listing) as (url, requests), reaching(url) as kinesis:
        assert not isinstance(await kinesis.list_shards(address), RequestFailed)
    asked = [orjson.loads(body) for _, body in requests]
    assert asked == [{**address, "ShardFilter": {"Type": "AT_LATEST"}}, {"NextToken": "2"}]


async def test_a_listing_whose_token_repeats_fails_at_once() -> None:
    async with recording(b'{"Shards":[],"NextToken":"again"}') as (url, requests), reaching(url) as kinesis:
        failed = await kinesis.list_shards(FLIGHTS)
    assert isinstance(failed, RequestFailed)
    assert meaning_of(failed.code).kind is Kind.TRANSIENT
    assert len(requests) == 2


async def test_a_listing_without_an_end_fails() -> None:
    def listing(asked: dict[str, Any]) -> tuple[int, bytes]:
        return 200, b'{"Shards":[],"NextToken":"%d"}' % (int(asked.get("NextToken", 0)) + 1)

    async with recording(listing) as (url, requests), reaching(url) as kinesis:
        failed = await kinesis.list_shards(FLIGHTS)
    assert failed == RequestFailed("InternalFailure", "ListShards has no end: 64 pages", maybe_stored=False)
    assert len(requests) == 64


@pytest.mark.parametrize("times", [1, 1_000])
async def test_a_listing_whose_token_expires_is_begun_again_and_not_for_ever(times: int) -> None:
    left = times

    def listing(asked: dict[str, Any]) -> tuple[int, bytes]:
        nonlocal left
        if asked.get("NextToken") != "2":
            return 200, b'{"Shards":[],"NextToken":"2"}'
        if left:
            left -= 1
            return 400, b'{"__type":"ExpiredNextTokenException","message":"too late"}'
        return 200, b'{"Shards":[]}'

    async with recording(listing) as (url, requests), reaching(url) as kinesis:
        pages = await kinesis.list_shards(FLIGHTS)
    if times == 1:
        assert not isinstance(pages, RequestFailed)
        assert len(pages) == 2, "what was read before the token expired does not count"
        assert len(requests) == 4
    else:
        assert isinstance(pages, RequestFailed)
        assert len(requests) == MAX_PAGES


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("answer", [b"", b"{}", b"null", b"[]", b"<html>a proxy</html>", b"\xff\xfe"])
async def test_an_answer_that_is_not_kinesiss_is_a_value_whoever_asked(answer: bytes, status: int) -> None:
    async with recording(answer, status) as (url, _), reaching(url) as kinesis:
        put = await fails(kinesis)
        summary = await kinesis.describe_stream_summary(FLIGHTS)
        pages = await kinesis.list_shards(FLIGHTS)
    assert (meaning_of(put.code).kind, put.maybe_stored) == (Kind.TRANSIENT, True)
    assert isinstance(summary, RequestFailed)
    assert isinstance(pages, RequestFailed) or "Shards" not in pages[0]  # which the map refuses


ALL_STORED = b'{"Records":[{"SequenceNumber":"1","ShardId":"s"},{"SequenceNumber":"2","ShardId":"s"}]}'
SHARDS = [
    {
        "ShardId": f"shardId-{number:012d}",
        "HashKeyRange": {"StartingHashKey": str(number << 127), "EndingHashKey": str((number + 1 << 127) - 1)},
        "SequenceNumberRange": {"StartingSequenceNumber": "49590338271490256608559692538361571095921575989136588898"},
    }
    for number in range(2)
]
SUMMARY = {"StreamARN": "arn", "MaxRecordSizeInKiB": 2_048, "RecordDistributionStrategy": "AUTO", "StreamName": "x"}
STORED = [{"SequenceNumber": "1", "ShardId": "s"}, {"ErrorCode": "InternalFailure", "ErrorMessage": "no"}]
GOOD: dict[str, tuple[int, dict[str, Any]]] = {
    "listing": (200, {"Shards": SHARDS, "NextToken": None, "StreamInfo": {}}),
    "summary": (200, {"StreamDescriptionSummary": SUMMARY}),
    "results": (200, {"FailedRecordCount": 1, "Records": STORED}),
    "refusal": (400, {"__type": "LimitExceededException", "message": "slower"}),
    "fault": (500, {"__type": "InternalFailure", "message": "broken", "Error": {"Code": "x"}}),
}


class Asker:
    """Asks a service for everything, which answers all with one status and body."""

    def __init__(self, runner: asyncio.Runner, kinesis: AioKinesis, answer: list[tuple[int, bytes]]) -> None:
        self._runner, self._kinesis, self._answer = runner, kinesis, answer

    def ask(self, status: int, document: Any) -> list[Any]:
        self._answer[:] = [(status, json.dumps(document).encode())]
        return self._runner.run(self._ask())

    async def _ask(self) -> list[Any]:
        return [
            await self._kinesis.put_records(FLIGHTS, request_of(), 5),
            await self._kinesis.list_shards(FLIGHTS),
            await self._kinesis.describe_stream_summary(FLIGHTS),
        ]


@pytest.fixture
def asker(bare_environment: None) -> Iterator[Asker]:
    answer: list[tuple[int, bytes]] = []
    stack = AsyncExitStack()
    with asyncio.Runner() as runner:

        async def serve() -> AioKinesis:
            url, _ = await stack.enter_async_context(recording(lambda _: answer[0]))
            return await stack.enter_async_context(reaching(url))

        yield Asker(runner, runner.run(serve()), answer)
        runner.run(stack.aclose())


@pytest.mark.parametrize("kind", GOOD)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=strategies.data())
def test_any_value_in_an_answer_is_checked(asker: Asker, kind: str, data: strategies.DataObject) -> None:
    """Nothing raises, and what is believed has the types and sizes that it should have."""
    status, good = GOOD[kind]
    for told in asker.ask(status, data.draw(variants(good))):
        match told:
            case RequestFailed():
                assert len(told.code) <= 128
                assert len(told.message) <= 1_000
            case StreamSummary():
                assert status == 200
                assert {type(told.arn), type(told.record_distribution_strategy)} == {str}
                assert 0 < told.max_record_bytes <= 1 << 30
            case Answer():
                assert status == 200
                assert {type(shard_id) for shard_id in told.shard_table} <= {str}
            case [*pages]:
                assert status == 200
                with suppress(ValueError):
                    assert len(map_from_listing(pages)) in (1, 2)
            case _:
                pytest.fail(f"{told!r}")


@pytest.mark.parametrize("kind", GOOD)
def test_each_good_answer_is_believed_by_the_one_that_asked_for_it(asker: Asker, kind: str) -> None:
    believed = [not isinstance(told, RequestFailed) for told in asker.ask(*GOOD[kind])]
    assert believed == [kind == asked for asked in ("results", "listing", "summary")]


@pytest.mark.parametrize("kib", [float("inf"), 10**400, (1 << 20) + 1, -1, 1.5, "2048", [1], True])
async def test_a_size_that_no_record_has_is_no_answer_of_kinesis(kib: object) -> None:
    answer = json.dumps({"StreamDescriptionSummary": SUMMARY | {"MaxRecordSizeInKiB": kib}}).encode()
    async with recording(answer) as (url, _), reaching(url) as kinesis:
        failed = await kinesis.describe_stream_summary(FLIGHTS)
    assert isinstance(failed, RequestFailed)
    assert failed.code == "InternalFailure"
    assert failed.message.startswith("an answer that is not Kinesis's")


@pytest.mark.parametrize("token", [5, ["2"], {"2": "2"}, True])
async def test_a_token_that_is_not_text_is_no_answer_of_kinesis(token: object) -> None:
    answer = json.dumps({"Shards": SHARDS, "NextToken": token}).encode()
    async with recording(answer) as (url, requests), reaching(url) as kinesis:
        failed = await kinesis.list_shards(FLIGHTS)
    assert isinstance(failed, RequestFailed)
    assert failed.message.startswith("an answer that is not Kinesis's")
    assert len(requests) == 1


async def test_a_listing_of_more_shards_than_anybody_has_is_given_up() -> None:
    def listing(asked: dict[str, Any]) -> tuple[int, bytes]:
        return 200, b'{"Shards":[%s],"NextToken":"%d"}' % (many, int(asked.get("NextToken", 0)) + 1)

    many = b",".join([b"{}"] * 30_000)
    async with recording(listing) as (url, requests), reaching(url) as kinesis:
        assert isinstance(await kinesis.list_shards(FLIGHTS), RequestFailed)
    assert len(requests) == 3


async def test_what_the_clock_had_refused_counts_for_nothing_when_it_is_sent_again() -> None:
    """A request that the service has refused was sent whole; the next attempt may not get so far."""
    failures: list[Exception] = [ConnectTimeoutError(endpoint_url="http://x")]
    told = {"Error": {"Code": "RequestTimeTooSkewed"}, "ResponseMetadata": {"HTTPStatusCode": 400, "RequestId": "d3f1"}}
    failures.append(ClientError(told, "PutRecords"))

    async def put_records(_: Any, __: Any, sending: Sending) -> bytes:
        sending.body_written = sending.body_written or len(failures) == 2
        raise failures.pop()

    behind = MagicMock(clock=ServiceClock(), put_records=put_records)
    with ThreadPoolExecutor(1) as pool:
        failed = await AioKinesis(behind, pool).put_records(FLIGHTS, request_of(), 5)
    assert isinstance(failed, RequestFailed)
    assert (failed.code, failed.maybe_stored) == (Code.UNREACHABLE, False)


# ---- what is read of an answer, and where


@pytest.mark.parametrize(
    ("entries", "size"), [(0, 65_536), (2, 67_584), (500, 577_536), (8_128, 8 << 20), (8_129, 8 << 20)]
)
def test_how_much_of_an_answer_is_read_grows_with_its_entries(entries: int, size: int) -> None:
    assert most_answer_bytes(entries) == size


@pytest.mark.parametrize(("size", "beside"), [(65_536, False), (65_537, True)])
async def test_a_large_answer_is_read_beside_the_loop(size: int, beside: bool) -> None:
    class Pool(ThreadPoolExecutor):
        works = 0

        def submit(self, *arguments: Any, **options: Any) -> Any:
            self.works += 1
            return super().submit(*arguments, **options)

    async def put_records(*_: Any) -> bytes:
        return ALL_STORED.ljust(size)

    with Pool(1) as pool:
        behind = MagicMock(clock=ServiceClock(), put_records=put_records)
        assert isinstance(await AioKinesis(behind, pool).put_records(FLIGHTS, request_of(), 5), Answer)
        assert pool.works == beside


async def test_a_summary_names_the_host_that_gave_it_though_no_other_client_can_be_made() -> None:
    answer = {"StreamDescriptionSummary": {"StreamARN": "arn"}}
    made = MagicMock(describe_stream_summary=AsyncMock(return_value=answer))
    made.meta.endpoint_url = "https://user:secret@there:4567"
    behind = MagicMock(clock=ServiceClock(), ready=AsyncMock(side_effect=[made, OSError("a certificate is gone")]))
    with ThreadPoolExecutor(1) as pool:
        kinesis = AioKinesis(behind, pool)
        assert await kinesis.describe_stream_summary(FLIGHTS) == StreamSummary(
            "arn", 1_048_576, endpoint_host="there:4567"
        )
        assert isinstance(await kinesis.describe_stream_summary(FLIGHTS), RequestFailed)


async def test_an_answer_whose_status_is_no_success_is_none() -> None:
    async with recording(ALL_STORED, 300) as (url, _), reaching(url) as kinesis:
        assert isinstance(await kinesis.put_records(FLIGHTS, request_of(), 5), RequestFailed)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, StreamSummary("arn", 1_048_576)),
        ({"MaxRecordSizeInKiB": 1}, StreamSummary("arn", 1_024)),
        ({"MaxRecordSizeInKiB": 0}, StreamSummary("arn", 1_048_576)),
        ({"MaxRecordSizeInKiB": 1 << 20}, StreamSummary("arn", 1 << 30)),
        ({"RecordDistributionStrategy": "AUTO"}, StreamSummary("arn", 1_048_576, "AUTO")),
        ({"KeyId": "alias/aws/kinesis", "EncryptionType": "NONE"}, StreamSummary("arn", 1_048_576)),
        (
            {"KeyId": "alias/aws/kinesis", "EncryptionType": "KMS", "StreamStatus": "UPDATING"},
            StreamSummary("arn", 1_048_576, status="UPDATING", kms_key="alias/aws/kinesis"),
        ),
        ({"EncryptionType": "KMS"}, StreamSummary("arn", 1_048_576)),
        ({"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}, StreamSummary("arn", 1_048_576, mode="ON_DEMAND")),
        ({"StreamCreationTimestamp": 1.7e9}, StreamSummary("arn", 1_048_576, created_milliseconds=1_700_000_000_000)),
        ({"StreamCreationTimestamp": None}, StreamSummary("arn", 1_048_576)),
    ],
)
async def test_what_a_summary_leaves_out_is_as_usual(more: dict[str, Any], expected: StreamSummary) -> None:
    answer = json.dumps({"StreamDescriptionSummary": {"StreamARN": "arn", **more}}).encode()
    async with recording(answer) as (url, _), reaching(f"{url}/blue/") as kinesis:
        summary = await kinesis.describe_stream_summary(FLIGHTS)
    assert summary == replace(expected, endpoint_host=f"{urlsplit(url).netloc}/blue")
