"""The daemon asks a service once for all clients that check a stream together, and its answer holds for writers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from producerd.config import StreamSettings
from producerd.core.sending.answers import RequestFailed
from producerd.core.sending.health import WHERE_TO_LOOK
from producerd.errors import Code
from producerd.runtime.asking import Asking, ServiceAnswer, answer_of
from producerd.runtime.kinesis import Tried
from producerd.runtime.stream import Stream
from producerd.wire.messages import Service
from tests.runtime.stand_ins import DENIED, StandInKinesis
from tests.runtime.virtual_time import live

SLOW = RequestFailed("LimitExceededException", "slow down", maybe_stored=False)
NOWHERE = RequestFailed(Code.UNREACHABLE, "no such host", maybe_stored=False)
FAULT = RequestFailed("ServiceUnavailable", "503", maybe_stored=False)


def stream_of(**settings: Any) -> Stream:
    return Stream("flights", StreamSettings(**settings))


def test_all_who_ask_meanwhile_share_one_question_and_its_answer_serves_for_two_seconds() -> None:
    async def story() -> None:
        loop, service, heard = asyncio.get_running_loop(), StandInKinesis(), list[ServiceAnswer]()
        service.answers.clear()
        async with asyncio.TaskGroup() as tasks:
            one = Asking(stream_of(), service, tasks)
            for _ in range(100):
                one.ask(heard.append)
            await asyncio.sleep(0)
            assert (service.asked, heard) == ([({"StreamName": "flights"}, False)], [])
            service.answers.set()
            await asyncio.sleep(0.25)
            assert [word.service for word in heard] == [Service.READY] * 100
            for until, asked in ((1.75, 1), (2.0, 2)):
                await asyncio.sleep(until - loop.time())
                one.ask(heard.append)
                await asyncio.sleep(0)
                assert len(service.asked) == asked
        assert len(heard) == 102

    live(story())


async def test_a_question_of_a_stream_that_is_forgotten_ends() -> None:
    heard: list[ServiceAnswer] = []
    service = StandInKinesis()
    service.answers.clear()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        one = Asking(stream_of(), service, tasks)
        one.ask(heard.append)
        await asyncio.sleep(0)
        one.close()
    assert heard == []


DRY_RUN = "a dry run of PutRecords is allowed, at there"
LISTED = "ListShards answers; PutRecords was not tried, at there"
MAY_NOT_LIST = "the daemon may not list the stream's shards: AccessDeniedException: no"
NEEDS_LIST = 'AccessDeniedException: no; aggregation = "kpl" needs kinesis:ListShards'
NO_HOST = f"no such host: {WHERE_TO_LOOK}"


@pytest.mark.parametrize(
    ("failed", "by_put_records", "aggregation", "answer"),
    [
        (None, True, "none", (Service.READY, "", DRY_RUN)),
        (None, False, "none", (Service.READY, "", LISTED)),
        (SLOW, False, "kpl", (Service.READY, "", LISTED)),
        (DENIED, True, "none", (Service.FAILED, Code.ACCESS_DENIED, "AccessDeniedException: no")),
        (DENIED, True, "kpl", (Service.FAILED, Code.ACCESS_DENIED, "AccessDeniedException: no")),
        (DENIED, False, "none", (Service.NOT_VERIFIED, Code.ACCESS_DENIED, MAY_NOT_LIST)),
        (DENIED, False, "kpl", (Service.FAILED, Code.ACCESS_DENIED, NEEDS_LIST)),
        (NOWHERE, False, "none", (Service.FAILED, Code.UNREACHABLE, NO_HOST)),
        (FAULT, False, "none", (Service.FAILED, Code.SERVICE_FAULT, "ServiceUnavailable: 503")),
    ],
)
def test_what_an_answer_means_for_a_stream(
    failed: RequestFailed | None, by_put_records: bool, aggregation: str, answer: tuple[Service, str, str]
) -> None:
    assert answer_of(Tried(failed, by_put_records, "there"), stream_of(aggregation=aggregation)) == answer


@pytest.mark.parametrize(
    ("works", "code", "by_put_records", "service"),
    [
        (False, Code.ACCESS_DENIED, False, Service.NOT_VERIFIED),
        (False, Code.KMS, False, Service.NOT_VERIFIED),
        (False, Code.KMS, True, Service.READY),
        (False, Code.CREDENTIALS, False, Service.READY),
        (True, Code.KMS, False, Service.READY),
    ],
)
def test_a_list_does_not_show_that_records_are_taken_that_were_refused(
    works: bool, code: str, by_put_records: bool, service: Service
) -> None:
    """Only a dry run, or the next records, would."""
    stream = stream_of()
    if works:
        stream.pipeline.health.found_working()
    stream.pipeline.health.looks_permanent(code, "no", 0.0)
    answer = answer_of(Tried(None, by_put_records, "there"), stream)
    refused = ServiceAnswer(Service.NOT_VERIFIED, code, f"the last records were refused: {code}: no")
    ready = ServiceAnswer(Service.READY, message=DRY_RUN if by_put_records else LISTED)
    assert answer == (refused if service is Service.NOT_VERIFIED else ready)


def test_a_stream_whose_shards_do_not_follow_the_keys_is_not_ready() -> None:
    stream = stream_of(aggregation="kpl")
    stream.pipeline.cannot_aggregate = "AUTO"
    word = answer_of(Tried(None, by_put_records=True, endpoint="there"), stream)
    assert word == ServiceAnswer(Service.FAILED, Code.SHARD_MAP_MISSING, "AUTO")
