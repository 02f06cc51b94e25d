"""If this machine's clock is wrong, the daemon signs requests by the service's clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from botocore import UNSIGNED
from botocore.exceptions import ClientError
from structlog.testing import capture_logs

from producerd.core.failures import Kind, meaning_of
from producerd.core.sending.answers import Answer
from producerd.errors import Code
from producerd.runtime.aws.clock import ServiceClock
from producerd.runtime.aws.kinesis import AioKinesis
from producerd.runtime.kinesis import StreamSummary
from producerd.testing import FakeKinesis
from tests.daemon import until_on_loop
from tests.runtime.aws.local_aws import LocalAws, local_aws
from tests.runtime.aws.reaching import FLIGHTS, fails, reached, reaching, request_of, stores

HOUR = timedelta(hours=1)


async def everything_works(kinesis: AioKinesis) -> bool:
    put, pages, summary = (
        await kinesis.put_records(FLIGHTS, request_of(), 5),
        await kinesis.list_shards(FLIGHTS),
        await kinesis.describe_stream_summary(FLIGHTS),
    )
    return isinstance(put, Answer) and isinstance(pages, list) and isinstance(summary, StreamSummary)


@pytest.mark.promise("refusal-teaches-clock")
@pytest.mark.parametrize("offset", [HOUR, -HOUR, timedelta(days=400)], ids=str)
async def test_one_refusal_teaches_the_clock_and_nobody_hears_of_it(aws: LocalAws, offset: timedelta) -> None:
    async with reaching(aws.url) as client:
        aws.clock_offset = offset
        with capture_logs() as logs:
            assert await everything_works(client)
            assert await everything_works(client)
    assert aws.refused.total() == 1
    (line,) = [line for line in logs if "clock" in line["event"]]
    assert line["log_level"] == "warning"
    assert abs(line["seconds"] - offset.total_seconds()) < 5


async def test_requests_that_are_refused_together_all_pass(aws: LocalAws) -> None:
    async with reached(aws.url) as (client, behind):
        await client.ready()  # else the first is refused before the last has its turn to make the client
        aws.clock_offset = HOUR
        async with asyncio.TaskGroup() as group:
            puts = [group.create_task(client.put_records(FLIGHTS, request_of(), 5)) for _ in range(8)]
        assert all(isinstance(put.result(), Answer) for put in puts)
        assert aws.refused.total() == 8
        assert abs(behind.clock.offset - HOUR) < timedelta(seconds=5)


async def test_a_clock_that_is_set_right_is_followed_again(aws: LocalAws) -> None:
    async with reached(aws.url) as (client, behind):
        aws.clock_offset = -HOUR
        assert await everything_works(client)
        aws.clock_offset = timedelta(0)
        assert await everything_works(client)
        assert behind.clock.offset == timedelta(0)
        assert aws.refused.total() == 2


async def test_a_refusal_for_another_reason_is_not_the_clocks(aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    async with reached(aws.url) as (client, behind):
        aws.clock_offset = timedelta(seconds=50)
        failed = await fails(client)
        assert failed.code == "InvalidSignatureException"
        assert meaning_of(failed.code).kind is Kind.PERMANENT
        assert behind.clock.offset == timedelta(0)
        assert aws.refused.total() == 1


async def test_a_refusal_that_may_not_be_kinesiss_teaches_the_clock_and_is_left_to_the_pipeline(
    aws: LocalAws,
) -> None:
    """The records may have been stored: the pipeline counts what it sends again."""
    async with reached(aws.url) as (client, _):
        aws.clock_offset, aws.tells_request_id = -HOUR, False
        failed = await fails(client)
        assert (meaning_of(failed.code).kind, failed.maybe_stored) == (Kind.TRANSIENT, True)
        assert aws.refused.total() == 1
        await stores(client)


async def test_a_service_whose_clock_cannot_be_followed_is_a_transient_failure(kinesis: FakeKinesis) -> None:
    class Jumping(LocalAws):
        async def respond(self, request):  # type: ignore[no-untyped-def]
            self.clock_offset += HOUR
            return await super().respond(request)

    async with local_aws(kinesis, Jumping) as aws, reaching(aws.url) as client:
        failed = await fails(client)
    assert meaning_of(failed.code).kind is Kind.TRANSIENT
    assert not failed.maybe_stored


@pytest.mark.parametrize(
    "date",
    [
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Mon, 01 Jan 1800 00:00:00 GMT",
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
        "Mon, 01 Jan 2024 00:00:00 +99999999",
        "Mon, 01 Jan 2024 00:00:00",
        "now",
        "²",
        "",
    ],
)
def test_a_date_that_no_clock_shows_teaches_nothing(date: str) -> None:
    told = {"Error": {"Code": "InvalidSignatureException"}, "ResponseMetadata": {"HTTPHeaders": {"date": date}}}
    clock = ServiceClock()
    assert not clock.learn(ClientError(told, "PutRecords"), timedelta(0))
    assert clock.offset == timedelta(0)


@pytest.mark.parametrize("offset", [HOUR, -HOUR], ids=str)
async def test_a_role_is_assumed_by_the_services_clock_too(aws: LocalAws, offset: timedelta) -> None:
    role = "arn:aws:iam::123456789012:role/producer"
    aws.role, aws.clock_offset = role, offset
    async with reaching(aws.url, role_arn=role) as client:
        assert await everything_works(client)
        assert await everything_works(client)
    assert len(aws.assumed) == 1
    assert aws.used == {"ROLE1": 6}
    assert set(aws.refused) == {"SignatureDoesNotMatch"}


@pytest.mark.parametrize("offset", [HOUR, -HOUR], ids=str)
async def test_a_role_is_assumed_again_before_its_end_by_the_services_clock(
    aws: LocalAws, monkeypatch: pytest.MonkeyPatch, offset: timedelta
) -> None:
    role = "arn:aws:iam::123456789012:role/producer"
    monkeypatch.setattr("producerd.runtime.aws.credentials.RENEWAL_SECONDS", 0.0)
    aws.role, aws.clock_offset = role, offset
    aws.lifetime = timedelta(minutes=14)  # within what is refreshed early
    async with reached(aws.url, role_arn=role) as (client, behind):
        assert await everything_works(client)
        await until_on_loop(lambda: behind.credentials.refreshes["ok"] >= 2)
        assert await everything_works(client)
    assert aws.used["ROLE1"] < aws.used.total(), "the newer ones are used"


@pytest.mark.promise("refusal-teaches-clock")
@pytest.mark.parametrize("offset", [6 * HOUR, -6 * HOUR], ids=str)
async def test_keys_that_look_expired_to_a_wrong_clock_are_judged_by_the_service(
    aws: LocalAws, monkeypatch: pytest.MonkeyPatch, offset: timedelta
) -> None:
    """A clock that is ahead of the end of all keys learns the time, also where it was right or behind before."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setattr("producerd.runtime.aws.credentials.RENEWAL_SECONDS", 0.0)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{aws.url}/container")
    aws.keys, aws.container_key, aws.container_lifetime = {"A"}, "A", HOUR
    async with reaching(aws.url) as client:
        aws.clock_offset = offset
        assert await everything_works(client)
        aws.clock_offset = -offset
        assert await everything_works(client)
    assert set(aws.refused) == {"InvalidSignatureException"}


async def test_no_credentials_are_no_question_of_the_clock(aws: LocalAws) -> None:
    async with reached(aws.url) as (client, behind):
        aws.keys, aws.clock_offset = set(), timedelta(seconds=50)
        failed = await fails(client)
        assert meaning_of(failed.code).code == Code.CREDENTIALS
        assert behind.clock.offset == timedelta(0)


@pytest.mark.parametrize(
    ("seconds", "signed_with", "learns", "offset"),
    [
        (50, 0, False, 0),
        (90, 0, True, 90),
        (-90, 0, True, -90),
        (10, 3_600, True, 0),
        (3_590, 3_600, False, 0),
        (99 * 365 * 86_400, 0, True, 99 * 365 * 86_400),
        (101 * 366 * 86_400, 0, False, 0),
    ],
)
def test_a_difference_of_more_than_a_minute_and_less_than_a_century_is_learnt(
    seconds: int, signed_with: int, learns: bool, offset: int
) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
    told = {"Error": {"Code": "InvalidSignatureException"}, "ResponseMetadata": {"HTTPHeaders": {"date": date}}}
    clock = ServiceClock()
    assert clock.learn(ClientError(told, "PutRecords"), timedelta(seconds=signed_with)) is learns
    assert abs(clock.offset.total_seconds() - offset) < (5 if offset else 1e-9)


def test_what_is_learnt_already_is_not_told_again() -> None:
    date = format_datetime(datetime.now(UTC) + HOUR, usegmt=True)
    told = {"Error": {"Code": "InvalidSignatureException"}, "ResponseMetadata": {"HTTPHeaders": {"date": date}}}
    clock = ServiceClock()
    clock.offset = HOUR
    with capture_logs() as log:
        assert clock.learn(ClientError(told, "PutRecords"), timedelta(0))
    assert log == []


def test_only_a_signature_by_a_clock_that_is_off_is_ours() -> None:
    clock = ServiceClock()
    assert clock.choose_signer("v4", {}) is None
    clock.offset = HOUR
    assert clock.choose_signer(UNSIGNED, {}) is None
    assert clock.choose_signer("v4", {}) == "producerd-v4"
