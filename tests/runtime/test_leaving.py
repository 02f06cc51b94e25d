"""A daemon that tasks have started ends with the process that it belongs to, and when nothing has used it for long."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from producerd.runtime import leaving
from producerd.runtime.leaving import IdleTime, OwnerProcess
from tests.runtime.virtual_time import live


def start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as running:
        yield running
        running.kill()


# ---- the owner


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_it_is_seen_that_a_process_ends(
    process: subprocess.Popen[bytes], has_pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    pidfd_open = os.pidfd_open

    def note(pid: int) -> int:
        opened.append(pidfd_open(pid))
        return opened[0]

    monkeypatch.setattr(os, "pidfd_open", note)
    if not has_pidfd:
        monkeypatch.setattr(os, "pidfd_open", lambda _: os.open("/no such file", os.O_RDONLY))
        monkeypatch.setattr(leaving, "LOOK_SECONDS", 0.01)
    owner = OwnerProcess(process.pid, start_of(process.pid))

    async def watch() -> None:
        ending = asyncio.create_task(owner.ends())
        await asyncio.sleep(0.1)
        assert not ending.done()
        process.kill()
        await asyncio.wait_for(ending, 10)
        for descriptor in opened:
            assert not asyncio.get_running_loop().remove_reader(descriptor)
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)

    asyncio.run(watch())
    assert not owner.lives, "though nobody has waited for it yet"
    process.wait()
    assert not owner.lives


@pytest.mark.parametrize("lacks_it", ["the kernel", "Python"])
def test_without_a_pidfd_a_process_is_looked_at_each_second(lacks_it: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pidfd(_pid: int) -> int:
        raise OSError

    async def watch() -> float:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(OwnerProcess, "lives", property(lambda _: loop.time() < 2.5))
        await OwnerProcess(1, 1).ends()
        return loop.time()

    if lacks_it == "Python":
        monkeypatch.delattr(os, "pidfd_open")
    else:
        monkeypatch.setattr(os, "pidfd_open", no_pidfd)
    assert live(watch()) == 3.0


@pytest.mark.parametrize("later", [0, 1])
def test_an_id_that_is_another_process_s_by_now_has_ended(process: subprocess.Popen[bytes], later: int) -> None:
    owner = OwnerProcess(process.pid, start_of(process.pid) + later)
    assert owner.lives is (later == 0)
    if later:
        asyncio.run(asyncio.wait_for(owner.ends(), 10))


# ---- idle


def test_an_idle_time_begins_again_when_something_uses_the_daemon() -> None:
    async def watch() -> None:
        loop, idle = asyncio.get_running_loop(), IdleTime()
        waiting = asyncio.create_task(idle.lasts(8.0))
        idle.look(is_idle=True, now=0.0)
        await asyncio.sleep(4.0)
        idle.look(is_idle=False, now=4.0)
        await asyncio.sleep(12.0)
        assert not waiting.done()
        idle.look(is_idle=True, now=16.0)
        idle.look(is_idle=True, now=17.0)
        await asyncio.sleep(7.75)
        assert not waiting.done()
        await waiting
        assert loop.time() == 24.0
        await idle.lasts(8.0)
        assert loop.time() == 24.0
        await idle.lasts(8.5)
        assert loop.time() == 24.5

    live(watch())
