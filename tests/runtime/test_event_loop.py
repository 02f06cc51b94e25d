"""A name is looked up once for all that wait for it, and one that cannot be looked up delays nothing else."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import pytest

from producerd.runtime.event_loop import EventLoop
from tests.daemon import PATIENCE_SECONDS, ROOT, START_SECONDS, until_on_loop

Run = Callable[[Coroutine[Any, Any, None]], None]
HERE: Final = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 443))


class Resolver:
    """Stands in for the system's: each name is this machine's, but names that begin with "hangs" must wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.answered = 0
        self.knows_names = True
        self.may_answer = threading.Event()
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.resolve)

    def resolve(self, host: str, port: int, **options: int) -> Any:
        if options.get("flags", 0) & socket.AI_NUMERICHOST:
            return self._real(host, port, **options)
        self.asked.append(host)
        if host.startswith("hangs"):
            self.may_answer.wait(PATIENCE_SECONDS)
        self.answered += 1
        if not self.knows_names:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self._real("127.0.0.1", port, **options)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    stand_in = Resolver(monkeypatch)
    yield stand_in
    stand_in.may_answer.set()


@pytest.fixture
def run() -> Iterator[Run]:
    with asyncio.Runner(loop_factory=EventLoop, debug=True) as runner:
        yield runner.run


async def addresses(host: str, port: int = 443) -> list[Any]:
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


def test_all_that_wait_for_a_name_share_one_lookup_and_who_asks_later_has_another(resolver: Resolver, run: Run) -> None:
    async def ask() -> None:
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(addresses("hangs.test")) for _ in range(3)]
            await until_on_loop(lambda: bool(resolver.asked))
            resolver.may_answer.set()
        assert [each.result() for each in asked] == [[HERE]] * 3
        assert resolver.asked == ["hangs.test"]
        assert await addresses("hangs.test") == [HERE]
        assert resolver.asked == ["hangs.test"] * 2

    run(ask())


def test_one_that_gives_up_leaves_the_others_their_answer(resolver: Resolver, run: Run) -> None:
    async def ask() -> None:
        async with asyncio.TaskGroup() as tasks:
            first, second = [tasks.create_task(addresses("hangs.test")) for _ in range(2)]
            await until_on_loop(lambda: bool(resolver.asked))
            first.cancel()
            await asyncio.wait({first})
            third = tasks.create_task(addresses("hangs.test"))
            await asyncio.sleep(0)
            resolver.may_answer.set()
        assert first.cancelled()
        assert [second.result(), third.result()] == [[HERE]] * 2
        assert resolver.asked == ["hangs.test"]

    run(ask())


def test_names_that_hang_delay_no_other_one(resolver: Resolver, run: Run) -> None:
    """Nor one of the same host for another port, which has another answer."""

    async def ask() -> None:
        async with asyncio.TaskGroup() as tasks:
            hanging = [tasks.create_task(addresses(f"hangs-{number}.test")) for number in range(40)]
            await until_on_loop(lambda: len(resolver.asked) == len(hanging))
            async with asyncio.timeout(PATIENCE_SECONDS / 2):
                assert await addresses("answers.test") == [HERE]
                assert (await addresses("answers.test", 80))[0][4] == ("127.0.0.1", 80)
            assert not any(each.done() for each in hanging)
            resolver.may_answer.set()

    run(ask())


def test_each_that_waits_for_a_name_has_the_error_as_one_of_its_own(resolver: Resolver, run: Run) -> None:
    async def ask() -> None:
        resolver.knows_names = False
        asked = asyncio.gather(*[addresses("hangs.test") for _ in range(2)], return_exceptions=True)
        await until_on_loop(lambda: bool(resolver.asked))
        resolver.may_answer.set()
        one, other = await asked
        assert isinstance(one, socket.gaierror)
        assert isinstance(other, socket.gaierror)
        assert one is not other
        assert one.args == other.args == (socket.EAI_AGAIN, "Temporary failure in name resolution")
        assert resolver.asked == ["hangs.test"]

    run(ask())


def test_an_error_that_nobody_waits_for_any_more_is_not_complained_of(resolver: Resolver, run: Run) -> None:
    async def ask() -> None:
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
        resolver.knows_names = False
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await addresses("hangs.test")
        resolver.may_answer.set()
        await until_on_loop(lambda: resolver.answered == 1)
        resolver.knows_names = True
        assert await addresses("later.test") == [HERE]
        gc.collect()
        assert problems == []

    run(ask())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_address_needs_no_thread(host: str, resolver: Resolver, run: Run) -> None:
    async def ask() -> None:
        ((*_, address),) = await addresses(host)
        assert address[:2] == (host, 443)
        assert resolver.asked == []

    run(ask())


def test_what_cannot_be_a_name_is_an_error_at_once(resolver: Resolver, run: Run) -> None:
    async def ask() -> None:
        with pytest.raises(UnicodeError):
            await addresses(f"{'a' * 64}.test")
        assert resolver.asked == []

    run(ask())


HUNG: Final = """
import asyncio, socket, sys, threading
from producerd.config import Config
from producerd.runtime import app

real = socket.getaddrinfo

def resolve(host, port, *more, **options):
    if host == "hangs.test" and not options.get("flags", 0) & socket.AI_NUMERICHOST:
        threading.Event().wait()
    return real(host, port, *more, **options)

async def live(*given):
    try:
        async with asyncio.timeout(0.1):
            await asyncio.get_running_loop().getaddrinfo("hangs.test", 443)
    except TimeoutError:
        return 3

socket.getaddrinfo, app.live = resolve, live
sys.exit(app.run(Config(), lambda: Config()))
"""


def test_the_end_of_the_process_waits_for_no_lookup() -> None:
    ended = subprocess.run([sys.executable, "-c", HUNG], cwd=ROOT, timeout=START_SECONDS, check=False)
    assert ended.returncode == 3
