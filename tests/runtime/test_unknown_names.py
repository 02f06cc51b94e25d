"""Invented names cost AWS a few calls a minute; names that exist cost their user none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from producerd.core.sending.answers import RequestFailed
from producerd.runtime.kinesis import Address, StreamSummary, Tried
from producerd.runtime.users.unknown_names import (
    CALLS_A_MINUTE,
    CALLS_AGAIN,
    CALLS_AT_ONCE,
    HELD_BACK,
    WAIT_SECONDS,
    CallAllowance,
    SparingCalls,
)

NOT_FOUND = RequestFailed("ResourceNotFoundException", "no such stream", False)
DOWN = RequestFailed("EndpointConnectionError", "no route", False)
SUMMARY = StreamSummary("arn:aws:kinesis:eu-west-1:1:stream/a", 1 << 20)


class Service:
    """Counts the calls, and answers each with ``answer``."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls = 0

    async def list_shards(self, address: Address) -> list[dict[str, Any]] | RequestFailed:
        self.calls += 1
        return [{}] if self.answer is None else self.answer

    async def describe_stream_summary(self, address: Address) -> StreamSummary | RequestFailed:
        self.calls += 1
        return SUMMARY if self.answer is None else self.answer

    async def try_storing(self, address: Address, *, aggregates: bool) -> Tried:
        self.calls += 1
        return Tried(self.answer, by_put_records=aggregates)


class Clock:
    """The loop's time, which passes when somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        monkeypatch.setattr("producerd.runtime.users.unknown_names.asyncio.sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def ask_first(service: Service, allowance: CallAllowance, names: int, uid: int = 7) -> None:
    """Ask about this many other names."""
    for _ in range(names):
        await SparingCalls(service, allowance, lambda: [uid], lambda: False).list_shards({})


async def ask(calls: SparingCalls, times: int) -> None:
    for _ in range(times // 2):
        await calls.list_shards({})
        await calls.describe_stream_summary({})


@pytest.mark.promise("streams-never-stored")
async def test_invented_names_of_a_user_make_32_calls_and_then_4_in_a_minute(clock: Clock) -> None:
    """Another user may have the stream open in a second's time, so each second is looked who has."""
    service, allowance = Service(NOT_FOUND), CallAllowance()
    await ask_first(service, allowance, CALLS_AT_ONCE)
    assert (service.calls, clock.slept) == (32, [])
    clock.now += 5.5
    late = SparingCalls(service, allowance, lambda: [7], lambda: False)
    assert (await late.try_storing({}, aggregates=False)).failed is NOT_FOUND
    assert clock.slept == pytest.approx([1.0] * 9 + [0.5])
    for _ in range(4):
        clock.now += 14.0
        await ask_first(service, allowance, 1)
    assert sum(clock.slept) == pytest.approx(9.5 + 4)
    slept = len(clock.slept)
    await ask_first(service, allowance, CALLS_AT_ONCE, 8)
    assert len(clock.slept) == slept, "another user has an allowance of their own"


@pytest.mark.promise("streams-never-stored")
async def test_names_that_are_missing_leave_half_of_the_calls_to_others(clock: Clock) -> None:
    """No row waits for what they ask again, so that is held back for as long as it takes."""
    service, allowance = Service(NOT_FOUND), CallAllowance()
    missing = SparingCalls(service, allowance, lambda: [7], lambda: False)
    await ask(missing, CALLS_AGAIN)
    assert clock.slept == []
    await ask(missing, 2)
    assert sum(clock.slept) == pytest.approx(30.0)
    await ask_first(service, allowance, CALLS_AGAIN)
    assert sum(clock.slept) == pytest.approx(30.0)


async def test_a_first_call_and_a_client_s_question_fail_after_ten_seconds_without_a_call(clock: Clock) -> None:
    service, allowance = Service(NOT_FOUND), CallAllowance()
    await ask_first(service, allowance, CALLS_AT_ONCE + CALLS_A_MINUTE)
    used = service.calls
    for _ in range(2):
        new, slept = SparingCalls(service, allowance, lambda: [7], lambda: False), sum(clock.slept)
        allowance.take([7], 10**9)
        assert [await new.list_shards({}), (await new.try_storing({}, aggregates=True)).failed] == [HELD_BACK] * 2
        assert sum(clock.slept) - slept == pytest.approx(2 * WAIT_SECONDS)
        allowance.take([7], 10**9)
        assert await new.describe_stream_summary({}) is HELD_BACK
    assert service.calls == used


async def test_a_call_that_waits_goes_once_its_stream_has_stored_a_record(clock: Clock) -> None:
    service, allowance = Service(NOT_FOUND), CallAllowance()
    await ask_first(service, allowance, CALLS_AT_ONCE)
    calls = SparingCalls(service, allowance, lambda: [7], lambda: clock.now >= 3)
    service.answer = None
    assert await calls.list_shards({}) == [{}]
    assert clock.now == pytest.approx(3.0)


async def test_a_call_that_finds_its_stream_gives_back_itself_and_no_other(clock: Clock) -> None:
    service, allowance = Service(NOT_FOUND), CallAllowance()
    await ask_first(service, allowance, CALLS_AT_ONCE - 2)
    service.answer = None
    await ask_first(service, allowance, 10)
    service.answer = NOT_FOUND
    await ask_first(service, allowance, 2)
    assert clock.slept == []
    await ask_first(service, allowance, 1)
    assert clock.slept == pytest.approx([1.0] * 10)


@pytest.mark.parametrize("answer", [None, DOWN])
async def test_a_name_that_exists_or_a_service_that_is_down_uses_nothing_up(clock: Clock, answer: Any) -> None:
    service, allowance = Service(answer), CallAllowance()
    calls = SparingCalls(service, allowance, lambda: [7], lambda: False)
    await ask(calls, 4 * CALLS_AT_ONCE)
    assert (await calls.try_storing({}, aggregates=True)).by_put_records
    assert not clock.slept
    assert allowance.users == 0, "nothing is kept of users who have used nothing up"


async def test_a_stream_that_is_known_needs_no_allowance(clock: Clock) -> None:
    service, known = Service(NOT_FOUND), False
    calls = SparingCalls(service, CallAllowance(), lambda: [7], lambda: known)
    await ask(calls, CALLS_AGAIN)
    known = True
    await ask(calls, 10 * CALLS_AT_ONCE)
    assert not clock.slept


async def test_what_is_used_up_comes_back_with_time(clock: Clock) -> None:
    service, allowance = Service(NOT_FOUND), CallAllowance()
    await ask_first(service, allowance, CALLS_AT_ONCE)
    clock.now += 60.0
    await ask_first(service, allowance, CALLS_A_MINUTE)
    assert not clock.slept
    clock.now += 3_600.0
    await ask_first(service, allowance, CALLS_AT_ONCE)
    assert not clock.slept


@pytest.mark.promise("streams-never-stored")
async def test_a_name_that_somebody_opened_first_is_asked_about_by_who_has_calls_left(clock: Clock) -> None:
    """Else a user without calls could open another user's stream first, and so keep it from working."""
    service, allowance, users = Service(NOT_FOUND), CallAllowance(), [7]
    await ask_first(service, allowance, CALLS_AT_ONCE)
    squatted = SparingCalls(service, allowance, lambda: users, lambda: False)
    users.append(8)
    await ask(squatted, CALLS_AGAIN)
    assert not clock.slept
