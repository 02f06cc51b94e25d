"""Each failure of botocore is a value; the body that is sent is ours byte for byte, and its digest is signed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from socket import gaierror
from typing import Any
from unittest.mock import MagicMock

import botocore.exceptions as boto_errors
import numpy as np
import pytest
from aiohttp import ClientConnectorError, ClientOSError, ClientPayloadError, web

from producerd.core.entries import Answer, EncodedRequest, RequestFailed
from producerd.core.retry import Kind, meaning_of
from producerd.errors import Code, ConfigurationError
from producerd.runtime.kinesis import AioKinesis, connect, failure_of
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import serve

BODY = (
    b'{"StreamName":"flights","Records":[{"Data":"eA==","PartitionKey":"k"},{"Data":"eQ==","PartitionKey":"\\u00e9"}]}'
)


def client_error(code: str, status: int, message: str = "words") -> boto_errors.ClientError:
    return boto_errors.ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "PutRecords",
    )


REFUSED = ClientConnectorError(MagicMock(), ConnectionRefusedError(111, "Connection refused"))
RESET = ClientOSError(104, "Connection reset by peer")
FAILURES: list[tuple[Exception, str, bool]] = [
    # Only 4xx says that nothing was stored.
    (client_error("ResourceNotFoundException", 400), "ResourceNotFoundException", False),
    (client_error("AccessDeniedException", 400), "AccessDeniedException", False),
    (client_error("ValidationException", 400), "ValidationException", False),
    (client_error("413", 413, "Request Entity Too Large"), "413", False),
    (client_error("InternalFailure", 500), "InternalFailure", True),
    (client_error("ServiceUnavailable", 503), "ServiceUnavailable", True),
    (client_error("", 502), "InternalFailure", True),
    (boto_errors.NoCredentialsError(), Code.CREDENTIALS, False),
    (boto_errors.PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"), Code.CREDENTIALS, False),
    (boto_errors.CredentialRetrievalError(provider="custom", error_msg="exit 1"), Code.CREDENTIALS, False),
    (boto_errors.TokenRetrievalError(provider="sso", error_msg="expired"), Code.CREDENTIALS, False),
    (boto_errors.UnauthorizedSSOTokenError(), Code.CREDENTIALS, False),
    (boto_errors.EndpointConnectionError(endpoint_url="http://x", error=REFUSED), Code.UNREACHABLE, False),
    (boto_errors.EndpointConnectionError(endpoint_url="http://x", error=gaierror(-2, "no name")), "UNREACHABLE", False),
    # aiobotocore calls a connection that was reset under a request by the same name.
    (boto_errors.EndpointConnectionError(endpoint_url="http://x", error=RESET), Code.UNREACHABLE, True),
    (boto_errors.ConnectTimeoutError(endpoint_url="http://x"), Code.UNREACHABLE, False),
    (boto_errors.ProxyConnectionError(proxy_url="http://p"), Code.UNREACHABLE, False),
    (boto_errors.SSLError(endpoint_url="https://x", error="certificate verify failed"), Code.UNREACHABLE, False),
    (boto_errors.ReadTimeoutError(endpoint_url="http://x"), Code.UNREACHABLE, True),
    (boto_errors.ConnectionClosedError(endpoint_url="http://x"), Code.UNREACHABLE, True),
    (boto_errors.HTTPClientError(error="broken"), Code.UNREACHABLE, True),
    (ClientPayloadError("not completed"), Code.UNREACHABLE, True),
    (ConnectionResetError(104, "Connection reset by peer"), Code.UNREACHABLE, True),
]


@pytest.mark.parametrize(("error", "code", "maybe_stored"), FAILURES, ids=lambda value: type(value).__name__)
def test_what_an_exception_means(error: Exception, code: str, maybe_stored: bool) -> None:
    failed = failure_of(error)
    assert (failed.code, failed.maybe_stored, failed.timed_out) == (code, maybe_stored, False)
    assert failed.message
    assert "\n" not in failed.message


def request_of(body: bytes = BODY, entries: int = 2) -> EncodedRequest:
    ends = np.arange(1, entries + 1, dtype=np.int32)
    return EncodedRequest(body, hashlib.sha256(body).hexdigest(), ends, np.zeros(entries, np.int32), (), 4)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def client_of(url: str, region: str | None = "us-east-1") -> AsyncIterator[AioKinesis]:
    with ThreadPoolExecutor(1) as pool:
        async with connect(pool, region=region, endpoint_url=url, connect_timeout_seconds=2) as kinesis:
            yield kinesis


@asynccontextmanager
async def recording(answer: bytes, status: int = 200) -> AsyncIterator[tuple[str, list[tuple[Any, bytes]]]]:
    """A server that keeps what it is sent and says one thing."""
    requests: list[tuple[Any, bytes]] = []

    async def respond(request: web.BaseRequest) -> web.Response:
        requests.append((request.headers.copy(), await request.read()))
        return web.Response(status=status, body=answer, content_type="application/x-amz-json-1.1")

    runner = web.ServerRunner(web.Server(respond), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", requests
    finally:
        await runner.cleanup()


async def test_the_body_is_ours_byte_for_byte_and_the_signature_covers_its_digest() -> None:
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    answer = (
        b'{"FailedRecordCount":0,"Records":[{"SequenceNumber":"1","ShardId":"s"},{"SequenceNumber":"2","ShardId":"s"}]}'
    )
    async with recording(answer) as (url, requests), client_of(url) as kinesis:
        given = await kinesis.put_records("flights", request_of(), 5)
    assert isinstance(given, Answer)
    ((headers, body),) = requests
    assert body == BODY
    assert headers["X-Amz-Target"] == "Kinesis_20131202.PutRecords"
    assert headers["X-Amz-Content-SHA256"] == hashlib.sha256(BODY).hexdigest()
    assert int(headers["Content-Length"]) == len(BODY)
    # Signed once more, by botocore alone and from the bytes that came.
    signed = headers["Authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
    again = AWSRequest("POST", url + "/", headers={name: headers[name] for name in signed if name != "host"}, data=body)
    again.context["timestamp"] = headers["X-Amz-Date"]
    auth = SigV4Auth(Credentials("testing", "testing"), "kinesis", "us-east-1")
    text = auth.string_to_sign(again, auth.canonical_request(again))
    assert headers["Authorization"].endswith(f"Signature={auth.signature(text, again)}")


async def test_requests_at_the_same_time_keep_their_bodies_apart() -> None:
    fake = FakeKinesis()
    stream = fake.create_stream("flights")
    fake.latency_seconds = (0.0, 0.02)
    bodies = [BODY.replace(b"eA==", f"{number:04d}".encode()) for number in range(30)]
    async with serve(fake) as server, client_of(server.url) as kinesis, asyncio.TaskGroup() as group:
        for body in bodies:
            group.create_task(kinesis.put_records("flights", request_of(body), 5))
    assert len({entry.data for entry in stream.entries() if entry.data != b"y"}) == 30


@pytest.mark.parametrize("entries", [2, 40], ids=["on the loop", "in a worker"])
async def test_an_answer_of_the_wrong_length_makes_every_entry_unknown(entries: int) -> None:
    async with recording(b'{"Records":[{"ShardId":"s"}]}') as (url, _), client_of(url) as kinesis:
        failed = await kinesis.put_records("flights", request_of(entries=entries), 5)
    assert failed == RequestFailed(Code.RESULT_COUNT, f"1 results for {entries} entries", maybe_stored=True)


async def test_an_answer_that_is_no_json_makes_every_entry_unknown() -> None:
    async with recording(b"<html>a proxy</html>") as (url, _), client_of(url) as kinesis:
        failed = await kinesis.put_records("flights", request_of(), 5)
    assert isinstance(failed, RequestFailed)
    assert (failed.code, failed.maybe_stored) == (Code.RESULT_COUNT, True)


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
    fake.script(fault)
    async with serve(fake) as server, client_of(server.url) as kinesis:
        failed = await kinesis.put_records("flights", request_of(), 0.3 if timed_out else 10)
        assert isinstance(failed, RequestFailed)
        assert (failed.code, failed.maybe_stored, failed.timed_out) == (code, maybe_stored, timed_out)
        assert isinstance(await kinesis.put_records("flights", request_of(), 5), Answer)


async def test_all_pages_of_a_listing_are_read_and_the_largest_record_is_asked() -> None:
    fake = FakeKinesis()
    fake.create_stream("flights", shards=2_500, max_record_kib=10_240)
    async with serve(fake) as server, client_of(server.url) as kinesis:
        pages = await kinesis.list_shards("flights")
        assert not isinstance(pages, RequestFailed)
        assert [len(page["Shards"]) for page in pages] == [1_000, 1_000, 500]
        assert await kinesis.max_record_bytes("flights") == 10_240 * 1024
        failed = await kinesis.list_shards("nothing")
        assert isinstance(failed, RequestFailed)
        assert failed.code == "ResourceNotFoundException"


@pytest.mark.parametrize("status", [200, 202, 503])
@pytest.mark.parametrize("answer", [b"", b"{}", b"null", b"[]", b'"words"', b"<html>a proxy</html>", b"\xff\xfe"])
async def test_an_answer_that_is_not_kinesiss_is_a_value_whoever_asked(answer: bytes, status: int) -> None:
    async with recording(answer, status) as (url, _), client_of(url) as kinesis:
        put = await kinesis.put_records("flights", request_of(), 5)
        summary = await kinesis.max_record_bytes("flights")
        pages = await kinesis.list_shards("flights")
    assert isinstance(put, RequestFailed)
    assert (meaning_of(put.code).kind, put.maybe_stored) == (Kind.TRANSIENT, True)
    assert isinstance(summary, RequestFailed)
    assert isinstance(pages, RequestFailed) or "Shards" not in pages[0]  # which the map refuses


async def test_nobody_listens_and_nothing_was_stored() -> None:
    async with client_of("http://127.0.0.1:1") as kinesis:
        failed = await kinesis.put_records("flights", request_of(), 5)
    assert isinstance(failed, RequestFailed)
    assert (failed.code, failed.maybe_stored) == (Code.UNREACHABLE, False)


async def test_no_credentials_are_a_value_with_botocores_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    async with client_of("http://127.0.0.1:1") as kinesis:
        failed = await kinesis.put_records("flights", request_of(), 5)
    assert failed == RequestFailed(Code.CREDENTIALS, "Unable to locate credentials", maybe_stored=False)


async def test_no_region_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(ConfigurationError, match="AWS_REGION"):
        async with client_of("http://127.0.0.1:1", region=None):
            pass


async def test_a_request_given_up_over_tls_resets_a_peer_that_answers_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A polite end of TLS would wait for the peer's own, for 30 s and with all buffers."""
    fake = FakeKinesis()
    fake.create_stream("flights")
    fake.standing.append(Fault("hang"))
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Between client and server, until the request has arrived: then nothing comes back any more."""
        answers, upstream = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        async with asyncio.TaskGroup() as group:
            back = group.create_task(carry_back(answers, writer))
            try:
                while data := await reader.read(65_536):
                    upstream.write(data)
                    if fake.requests["PutRecords"]:
                        back.cancel()
                ended.set_result("closed")
            except ConnectionResetError:
                ended.set_result("reset")
            back.cancel()
        upstream.transport.abort()
        writer.transport.abort()

    async def carry_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not fake.requests["PutRecords"]:
            writer.write(await reader.read(65_536))

    async with serve(fake, tls=True) as server:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(server.certificate))
        between = await asyncio.start_server(carry, "127.0.0.1", 0)
        async with between, client_of(f"https://127.0.0.1:{between.sockets[0].getsockname()[1]}") as kinesis:
            failed = await kinesis.put_records("flights", request_of(), 0.5)
            assert isinstance(failed, RequestFailed)
            assert failed.timed_out
            async with asyncio.timeout(3):
                assert await ended == "reset"
