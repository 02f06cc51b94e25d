"""A client that asks where a stream is hears of a reading that began after its question, or of none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from producerd.core.sending.answers import RequestFailed
from producerd.runtime.kinesis import Address, StreamSummary
from producerd.runtime.whereabouts import WHERE_SECONDS, Pace, Whereabouts
from tests.runtime.stand_ins import DENIED, StandInKinesis
from tests.runtime.virtual_time import live

FLIGHTS = {"StreamName": "flights"}
SLOW = RequestFailed("LimitExceededException", "slow down", maybe_stored=False)


def at(created_milliseconds: int) -> StreamSummary:
    return StreamSummary("arn", 1 << 20, created_milliseconds=created_milliseconds, endpoint_host="there")


class SlowService(StandInKinesis):
    """A service whose answer takes ``seconds``, and which tells when a reading began."""

    def __init__(self, seconds: float = 1.0) -> None:
        super().__init__()
        self.seconds = seconds
        self.began: list[float] = []
        self.answer: Callable[[float], StreamSummary | RequestFailed] = lambda now: at(round(now * 1000) + 1)

    async def describe_stream_summary(self, address: Address) -> StreamSummary | RequestFailed:
        assert address == FLIGHTS
        began = asyncio.get_running_loop().time()
        self.began.append(began)
        await asyncio.sleep(self.seconds)
        return self.answer(began)


def heard_of(service: SlowService, *asks_at: float, until: float = 30) -> list[tuple[float, float, Any]]:
    """Return (when it asked, when it heard, what it heard) of clients that ask at these times."""
    heard: list[tuple[float, float, Any]] = []

    def note(asked: float, found: StreamSummary | None) -> None:
        heard.append((asked, asyncio.get_running_loop().time(), found))

    async def story() -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            one = Whereabouts(FLIGHTS, service, tasks, Pace())
            for asked in asks_at:
                await asyncio.sleep(asked - loop.time())
                one.ask(partial(note, asked))
            await asyncio.sleep(until - loop.time())
            one.close()

    live(story())
    return heard


def test_a_reading_that_began_before_a_question_does_not_answer_it_and_the_next_serves_all_that_wait() -> None:
    service = SlowService()
    heard = heard_of(service, 0.0, 0.25, 0.5, 3.0)
    assert service.began == [0.0, 1.0, 3.0]
    assert heard == [
        (0.0, 1.0, at(1)),
        (0.25, 2.0, at(1001)),
        (0.5, 2.0, at(1001)),
        (3.0, 4.0, at(3001)),
    ]


def test_nobody_waits_for_longer_than_five_seconds() -> None:
    service = SlowService(60.0)
    heard = heard_of(service, 0.0, 2.0, 4.0, 9.0)
    assert [found for *_, found in heard] == [None] * 4
    assert all(seconds - asked <= WHERE_SECONDS for asked, seconds, _ in heard)
    assert len(service.began) == 3


def test_readings_begin_half_a_second_apart_however_many_tasks_begin() -> None:
    service = SlowService(0.0)
    heard = heard_of(service, *[place / 100 for place in range(200)])
    assert service.began == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert all(0 <= seconds - asked <= 0.5 for asked, seconds, _ in heard)
    assert all(found.created_milliseconds > asked * 1000 for asked, _, found in heard)


def test_where_the_accounts_calls_are_used_up_tasks_wait_in_vain_only_now_and_then() -> None:
    service = SlowService(0.0)
    service.answer = lambda _: SLOW
    heard = heard_of(service, 0.0, 6.0, 34.0, 35.5, until=60)
    assert [(asked, seconds) for asked, seconds, _ in heard] == [(0.0, 5.0), (6.0, 6.0), (34.0, 34.0), (35.5, 40.5)]
    assert {found for *_, found in heard} == {None}


@pytest.mark.parametrize("answer", [DENIED, at(0)])
def test_what_the_service_does_not_tell_is_unknown_at_once(answer: StreamSummary | RequestFailed) -> None:
    service = SlowService()
    service.answer = lambda _: answer
    assert heard_of(service, 0.0) == [(0.0, 1.0, None)]


def test_a_throttled_reading_is_made_again_while_clients_wait() -> None:
    service = SlowService(0.0)
    service.answer = lambda now: at(7) if now > 2 else SLOW
    ((_, seconds, found),) = heard_of(service, 0.0)
    assert (found, 2 < seconds <= 3) == (at(7), True)
    assert 3 <= len(service.began) <= 12


def test_readings_of_many_streams_begin_a_tenth_of_a_second_apart() -> None:
    service, heard = SlowService(0.0), list[StreamSummary | None]()

    async def story() -> None:
        async with asyncio.TaskGroup() as tasks:
            pace = Pace()
            for _ in range(80):
                Whereabouts(FLIGHTS, service, tasks, pace).ask(heard.append)

    live(story())
    assert [round(began, 3) for began in service.began] == [round(place / 10, 3) for place in range(len(service.began))]
    assert 49 <= len(service.began) <= 51, "those that would wait for over 5 s are not read"
    assert heard.count(None) == 80 - len(service.began)


async def test_the_reading_of_a_stream_that_is_forgotten_ends() -> None:
    service = SlowService(60.0)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        one = Whereabouts(FLIGHTS, service, tasks, Pace())
        one.close()
        heard: list[StreamSummary | None] = []
        one.ask(heard.append)
        await asyncio.sleep(0)
        one.close()
    assert heard == []
