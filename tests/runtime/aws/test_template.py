"""A request from the template equals what botocore would make: its signature, its host, and what must differ."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest
from botocore.credentials import ReadOnlyCredentials

from producerd.core.sending.answers import NOT_KINESIS, Answer, RequestFailed
from producerd.runtime.aws import credentials
from producerd.runtime.aws.building import build_request
from producerd.runtime.aws.clients import AwsClient
from producerd.runtime.aws.template import RequestTemplate, SigV4
from producerd.runtime.aws.transport import headers_of
from tests.runtime.aws.local_aws import LocalAws
from tests.runtime.aws.reaching import BODY, FLIGHTS, STORED, answering_for, fails, reached, request_of, stores
from tests.runtime.recording import recording

DIFFER = {"Amz-Sdk-Invocation-Id", "Amz-Sdk-Request", "Authorization", "Content-Length", "X-Amz-Content-Sha256"}
KEYS = ReadOnlyCredentials("key", "secret", None)


class Made:
    """How many requests botocore itself has put together."""

    def __init__(self) -> None:
        self.times = 0

    async def of(self, client: AwsClient) -> Made:
        def count(**_: Any) -> None:
            self.times += 1

        (await client.ready()).meta.events.register("before-call.kinesis.PutRecords", count)
        return self


async def test_botocore_makes_the_first_and_signatures_of_all_hold(aws: LocalAws) -> None:
    bodies = [BODY.replace(b"eA==", b"%04d" % number) for number in range(4)]
    async with reached(aws.url) as (client, behind):
        made = await Made().of(behind)
        for body in bodies:
            assert isinstance(await client.put_records(FLIGHTS, request_of(body), 5), Answer)
        assert made.times == 1
        assert aws.used["testing"] == 4
    assert len({entry.data for entry in aws.kinesis.streams["flights"].entries() if entry.data != b"y"}) == 4


async def test_a_request_is_what_botocore_would_send_but_for_what_is_of_one_request() -> None:
    longer = request_of(BODY.replace(b"eA==", b"eHh4"))
    async with recording(STORED) as (url, requests), reached(url) as (client, behind):
        for request in (request_of(), longer):
            assert isinstance(await client.put_records(FLIGHTS, request, 5), Answer)
        oracle = headers_of(await build_request(await behind.ready(), FLIGHTS, longer))
    sent, body = requests[1]
    assert body == longer.body
    assert sent["X-Amz-Content-SHA256"] == longer.sha256
    assert int(sent["Content-Length"]) == len(longer.body)
    assert "Amz-Sdk-Invocation-Id" not in sent, "it would tell that both are one"
    differ = {*DIFFER, "X-Amz-Date"}
    by_connections = {"Host", "Accept", "Accept-Encoding"}
    kept = {name.title(): value for name, value in sent.items() if name.title() not in differ | by_connections}
    assert kept == {name.title(): value for name, value in oracle.items() if name.title() not in differ}


async def test_other_credentials_are_used_by_botocore_first(aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "RENEWAL_SECONDS", 0.0)
    async with reached(aws.url) as (client, behind):
        made = await Made().of(behind)
        for _ in range(2):
            for _ in range(2):
                await stores(client)
            behind.credentials.doubt(behind.credentials.found)  # so the same keys are resolved once more
    assert made.times == 2


ODD = {
    "refused": (400, b'{"__type":"com.amazon.coral#ResourceNotFoundException","message":"Stream flights not found."}'),
    "refused in a header's way": (400, b'{"__type":"AccessDeniedException:http://internal","Message":"no"}'),
    "throttled": (400, b'{"__type":"LimitExceededException"}'),
    "not signed well": (403, b'{"__type":"InvalidSignatureException","message":"Signature expired"}'),
    "failed": (500, b'{"__type":"InternalFailure"}'),
    "failed, no body": (500, b""),
    "a proxy's page": (503, b"<html><body><b>Http/1.1 Service Unavailable</b></body></html>"),
    "not found, a page": (404, b"<html>nothing here</html>"),
    "not changed": (304, b""),
    "a redirect": (307, b""),
}


@pytest.mark.parametrize("odd", ODD)
async def test_an_error_of_the_service_means_what_botocore_takes_it_for(odd: str) -> None:
    async with recording(lambda _: ODD[odd]) as (url, _), reached(url) as (client, _):
        outcome = await fails(client)
        oracle = await client.list_shards(FLIGHTS)
    assert isinstance(oracle, RequestFailed)
    # botocore names the operation, and counts our attempts, where it falls back on its own words.
    words = oracle.message.replace(" (reached max retries: 0)", "").replace("ListShards", "PutRecords")
    assert (outcome.code, outcome.status) == (oracle.code, oracle.status)
    assert outcome.message.split("(")[0] == words.split("(")[0]


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (201, STORED, None),
        (204, b"", NOT_KINESIS),
        (200, b"<html>a captive portal</html>", NOT_KINESIS),
        (400, b"\xff\xfe", "400"),
        (400, b"[1]", "400"),
        (400, b'{"__type":7,"message":[]}', "400"),
        (400, b'{"__type":{"a":1}}', "400"),
    ],
    ids=["created", "no content", "accepted, not Kinesis", "not text", "a list", "another type", "a type of several"],
)
async def test_what_botocore_is_not_asked_about(status: int, body: bytes, code: str | None) -> None:
    async with recording(lambda _: (status, body)) as (url, _), reached(url) as (client, _):
        outcome = await client.put_records(FLIGHTS, request_of(), 5)
    assert (outcome.code if isinstance(outcome, RequestFailed) else None) == code


async def test_streams_of_other_accounts_keep_their_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounts have hosts of their own, which the rules make of the ARN."""
    async with answering_for(monkeypatch) as hosts, reached() as (client, _):
        for _ in range(2):
            for account in ("111122223333", "444455556666"):
                address = {"StreamARN": f"arn:aws:kinesis:us-east-1:{account}:stream/flights"}
                assert isinstance(await client.put_records(address, request_of(), 5), Answer)
            await stores(client)
    accounts = [f"https://{account}.data-kinesis.us-east-1.amazonaws.com/" for account in (111122223333, 444455556666)]
    assert hosts == [*accounts, "https://kinesis.us-east-1.amazonaws.com/"] * 2


async def test_as_many_streams_by_name_as_one_likes_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering_for(monkeypatch), reached() as (client, behind):
        made = await Made().of(behind)
        for number in range(20):
            assert isinstance(await client.put_records({"StreamName": f"s{number}"}, request_of(), 5), Answer)
        assert made.times == 1


def signed(url: str, keys: ReadOnlyCredentials = KEYS, **headers: str) -> AWSPreparedRequest:
    """By botocore alone."""
    request = AWSRequest("POST", url, {"X-Amz-Content-SHA256": "0" * 64, "User-Agent": "x", **headers}, b"{}")
    SigV4Auth(keys, "kinesis", "us-east-1").add_auth(request)
    return request.prepare()


@pytest.mark.parametrize(
    "url",
    ["https://kinesis.us-east-1.amazonaws.com/", "https://here:443/", "https://here:4567/", "http://[::1]:80/a/b"],
)
@pytest.mark.parametrize("token", [None, "session+token=="])
def test_what_botocore_signed_is_a_template(url: str, token: str | None) -> None:
    """What is of one request alone is neither signed again nor sent."""
    keys = ReadOnlyCredentials("key", "secret/+", token)
    request = signed(url, keys, **{"Content-Type": "application/x-amz-json-1.1", "amz-sdk-invocation-id": "1"})
    template = RequestTemplate.of(request, keys)
    assert template is not None
    assert template.url == url
    headers = template.headers(request_of(), datetime(2026, 11, 23, 5, 4, 3, tzinfo=UTC))
    assert headers["X-Amz-Date"] == "20261123T050403Z"
    names = "host;x-amz-content-sha256;x-amz-date" + ";x-amz-security-token" * (token is not None)
    assert f"SignedHeaders=content-type;{names}," in headers["Authorization"]
    assert "amz-sdk-invocation-id" in request.headers["Authorization"]
    assert "amz-sdk-invocation-id" not in headers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", ""),
        ("Authorization", "Bearer x"),
        ("Authorization", "AWS4-ECDSA-P256-SHA256 Credential=key/20260101/kinesis/aws4_request, Signature=0"),
        ("Content-Type", "text/plain"),
        ("Content-Type", None),
        ("X-Amz-Date", "20260101T000000Z"),
        ("X-Amz-Date", None),
        ("X-Amz-Content-SHA256", "1" * 64),
    ],
)
def test_what_is_signed_in_a_way_of_its_own_is_none(name: str, value: str | None) -> None:
    """So whatever botocore signs otherwise, one day, it goes on to make itself."""
    request = signed("https://here/", **{"Content-Type": "application/x-amz-json-1.1"})
    assert RequestTemplate.of(request, KEYS) is not None
    for keys in (None, ReadOnlyCredentials("other", "secret", None), ReadOnlyCredentials("key", "other", None)):
        assert RequestTemplate.of(request, keys) is None
    del request.headers[name]
    if value is not None:
        request.headers[name] = value
    assert RequestTemplate.of(request, KEYS) is None


def test_a_path_that_must_be_quoted_is_left_to_botocore() -> None:
    assert RequestTemplate.of(signed("https://here/a b/../c"), KEYS) is None


def test_the_key_of_a_day_is_not_used_on_the_next() -> None:
    signer = SigV4(KEYS, "us-east-1", "kinesis", "https://here/")
    for date in ("20260101T235959Z", "20260102T000000Z", "20260101T235959Z"):
        request = AWSRequest("POST", "https://here/", {"X-Amz-Content-SHA256": "0" * 64, "X-Amz-Date": date}, b"")
        request.context["timestamp"] = date
        auth = SigV4Auth(KEYS, "kinesis", "us-east-1")
        expected = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
        names = ["host", "x-amz-content-sha256", "x-amz-date"]
        given = signer.authorization(names, {name.lower(): value for name, value in request.headers.items()})
        assert given.endswith(f"Signature={expected}")
