"""Any user may connect to the HTTP endpoint: those that ask for nothing go first, and all have a part of the loop."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any, NamedTuple

import pytest

from producerd.runtime import admin
from producerd.runtime import http_connections as module

OK = b"HTTP/1.1 200 OK\r\n"


class Caller(NamedTuple):
    """One connection to the endpoint."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def ask(self, path: str, times: int = 1) -> None:
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * times)

    async def is_answered(self) -> bool:
        with suppress(ConnectionError):
            return await self.reader.readline() == OK
        return False

    async def ends(self) -> bool:
        async with asyncio.timeout(10):
            with suppress(ConnectionError):
                return await self.reader.read() == b""
            return True


class Endpoint:
    """The endpoint, which renders its metrics when the test sets `renders`."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.renders = asyncio.Event()
        self.ready_answers = 0
        self.address = ("", 0)
        self._stack = stack

    async def render(self, *, everything: bool) -> bytes:
        await self.renders.wait()
        return b"a_metric 1\n"

    def unready(self) -> None:
        self.ready_answers += 1

    async def call(self) -> Caller:
        caller = Caller(*await asyncio.open_connection(*self.address))
        self._stack.callback(caller.writer.close)
        return caller


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with AsyncExitStack() as stack:
        one = Endpoint(stack)
        serving = admin.serve(
            ("127.0.0.1", 0), render_metrics=one.render, render_page=lambda: "the page", unready=one.unready
        )
        one.address = await stack.enter_async_context(serving)
        yield one


@pytest.mark.promise("answered-connection-stays", "answered-connection-stays-idle")
async def test_an_answered_connection_stays_and_idle_and_incomplete_ones_go(endpoint: Endpoint) -> None:
    """The 16 of 20 scrapes that failed were answered when 64 idle connections had come after them."""
    scraper = await endpoint.call()
    scraper.ask("/metrics")
    first = [await endpoint.call() for _ in range(30)]
    for one in first[:15]:
        one.writer.write(b"GET /metrics HTTP/1.1\r\nHost: local")
    answered = await endpoint.call()
    answered.ask("/-/healthy")
    assert await answered.is_answered()
    later = [await endpoint.call() for _ in range(62)]
    assert all([await one.ends() for one in first])
    later[-1].ask("/-/ready")
    assert await later[-1].is_answered()
    endpoint.renders.set()
    assert await scraper.is_answered()


@pytest.mark.promise("answered-connection-stays")
async def test_while_all_are_answered_a_new_one_waits_until_the_slowest_may_go(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 1.0)
    began, scrapers = asyncio.get_running_loop().time(), []
    for _ in range(64):
        scrapers.append(await endpoint.call())
        scrapers[-1].ask("/metrics")
    new = await endpoint.call()
    new.ask("/-/healthy")
    assert await new.is_answered()
    assert asyncio.get_running_loop().time() - began >= 1.0
    assert await scrapers[0].ends()
    endpoint.renders.set()
    assert await scrapers[-1].is_answered()


@pytest.mark.promise("answered-connection-stays", "answered-connection-stays-idle")
async def test_a_flood_has_its_part_of_the_time_and_gives_its_places_to_those_that_wait(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection of the flood asks ahead, so that none of them is ever idle."""
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.004)  # which no machine is too slow for
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(64):
        (await endpoint.call()).ask("/-/ready", times=5_000)
    new = await endpoint.call()
    new.ask("/-/healthy")
    async with asyncio.timeout(30):
        assert await new.is_answered()
    await asyncio.sleep(1.0)
    most = (loop.time() - began) * module.PART.part / module.REQUEST_SECONDS
    assert 10 < endpoint.ready_answers < most + 10


async def test_a_request_that_is_too_long_ends_its_connection(endpoint: Endpoint) -> None:
    caller = await endpoint.call()
    caller.writer.write(b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000)
    assert await caller.ends()


async def test_connections_are_accepted_again_when_there_are_descriptors_again(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    accept, errors = loop.sock_accept, [ConnectionAbortedError(), OSError(errno.EMFILE, "too many open files")]

    async def fail(listening: socket.socket) -> Any:
        if errors:
            raise errors.pop(0)
        return await accept(listening)

    monkeypatch.setattr(module, "NO_DESCRIPTOR_SECONDS", 0.01)
    monkeypatch.setattr(loop, "sock_accept", fail)
    for _ in range(2):
        caller = await endpoint.call()
        caller.ask("/-/healthy")
        assert await caller.is_answered()
    assert not errors
