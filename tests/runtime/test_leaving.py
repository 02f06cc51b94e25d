"""A daemon that tasks have started ends with the process that it belongs to, and when nothing has used it for long."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from producerd.runtime import leaving
from producerd.runtime.leaving import IdleTime, OwnerProcess
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from tests.daemon import daemon, rows, session, until
from tests.runtime.virtual_time import VirtualLoop


def start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as running:
        yield running
        running.kill()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    kinesis = FakeKinesis()
    kinesis.create_stream("flights", shards=2)
    with serve_in_thread(kinesis) as running:
        yield running


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
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(watch()) == 3.0


@pytest.mark.parametrize("later", [0, 1])
def test_an_id_that_is_another_process_s_by_now_has_ended(process: subprocess.Popen[bytes], later: int) -> None:
    owner = OwnerProcess(process.pid, start_of(process.pid) + later)
    assert owner.lives is (later == 0)
    if later:
        asyncio.run(asyncio.wait_for(owner.ends(), 10))


@pytest.mark.parametrize("drains", [False, True])
def test_the_daemon_ends_soon_after_its_owner_though_records_are_left(
    process: subprocess.Popen[bytes], server: FakeServer, drains: bool
) -> None:
    """Also while it drains because of a signal, for which it has a minute."""
    owner = f"--owner={process.pid}:{start_of(process.pid)}"
    server.kinesis.standing.append(Fault("hang"))
    with daemon(server.url, options=[owner], drain_timeout_seconds=60, exit_code=None) as running:
        with session(running, deliver=True) as client:
            client.put(rows(10))
            until(lambda: running.metrics()["queue_records"] == 10)
        if drains:
            running.signal()
            until(lambda: "draining signal=SIGTERM" in running.log)
        process.kill()
        ended_at = time.monotonic()
        assert running.wait() == 1
        assert time.monotonic() - ended_at < 5
        assert f"owner_ended={process.pid}" in running.log
        assert "records were lost: their callers had gone" in running.log


# ---- idle


def test_a_daemon_that_nobody_uses_ends(server: FakeServer) -> None:
    with daemon(server.url, exit_when_idle_seconds=0.3) as running:
        assert running.wait() == 0
        assert "idle_for_seconds=0.3" in running.log


@pytest.mark.promise("ends-because-idle-followed")
def test_a_client_and_its_records_keep_a_daemon(server: FakeServer) -> None:
    with daemon(server.url, exit_when_idle_seconds=0.5, drain_timeout_seconds=60) as running:
        with session(running) as client:
            time.sleep(1.5)
            client.put(rows(10))
            assert client.acks()[0].stored == 10
            assert running.process.poll() is None
        with session(running, deliver=True) as client:
            server.kinesis.standing.append(Fault("hang"))
            client.put(rows(10))
            until(lambda: running.metrics()["queue_records"] == 10)
        time.sleep(1.5)
        assert "draining" not in running.log, "it has records of a client that has gone"
        server.kinesis.standing.clear()
        server.release()
        assert running.wait() == 0
        assert "records_without_a_caller_undelivered=0" in running.log


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

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(watch())
