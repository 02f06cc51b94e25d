"""If its socket's file goes, the daemon binds it again or reports why it cannot.  Connected clients notice nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from producerd.runtime import acceptor as module
from producerd.runtime.acceptor import Acceptor
from producerd.runtime.listener import Listener
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import FakeServer
from tests.daemon import ROOT, DaemonProcess, WireClient, daemon, directory, rows, session, until, until_on_loop


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


@pytest.fixture
def path() -> Iterator[Path]:
    with directory() as folder:
        yield folder / "inner" / "daemon.sock"


@pytest.fixture
async def acceptor(path: Path) -> AsyncIterator[Acceptor]:
    """One that greets each client, and has not started."""
    listener = Listener(path, 0o600)
    made = Acceptor(listener, Greeting)
    yield made
    made.close()
    listener.close()


def ctl(running: DaemonProcess, *words: str) -> subprocess.CompletedProcess[str]:
    admin = running.socket.with_name(f"{running.socket.stem}.admin.sock")
    command = [sys.executable, "-m", "producerd.ctl", f"--admin-socket={admin}", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def replace(path: Path, aside: Path) -> None:
    """Move a socket's file away, and leave a file that is not a socket in its place."""
    path.rename(aside)
    path.write_text("mine")


def stores(client: WireClient) -> bool:
    client.put(rows(3))
    return client.acks()[0].stored == 3


@pytest.mark.promise("daemon-directory-deleted")
async def test_who_waits_at_the_deleted_socket_is_accepted_and_so_is_who_comes_by_the_path(
    acceptor: Acceptor, path: Path
) -> None:
    await acceptor.start()
    with socket.socket(socket.AF_UNIX) as early, socket.socket(socket.AF_UNIX) as late:
        early.connect(os.fspath(path))
        os.unlink(path)
        await acceptor.look()
        late.connect(os.fspath(path))
        for client in (early, late):
            client.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(client, 5) == b"hello"


async def test_sockets_that_were_deleted_long_ago_are_closed(acceptor: Acceptor, path: Path) -> None:
    await acceptor.start()
    made = [acceptor.listener.bound[0].socket]
    for _ in range(4):
        os.unlink(path)
        await acceptor.look()
        made.append(acceptor.listener.bound[-1].socket)
    await until_on_loop(lambda: [one.fileno() < 0 for one in made] == [False, True, True, False, False])


async def test_a_daemon_that_stops_listens_no_more_and_does_not_bind_again(acceptor: Acceptor, path: Path) -> None:
    await acceptor.start()
    acceptor.close()
    os.unlink(path)
    await acceptor.look()
    (bound,) = acceptor.listener.bound
    assert acceptor.problem is None
    await until_on_loop(lambda: bound.socket.fileno() < 0)


async def test_what_happens_to_the_path_is_logged_once(acceptor: Acceptor, path: Path) -> None:
    await acceptor.start()
    seen = [(acceptor.problem, 0)]
    aside, remedy = path.with_name("aside"), acceptor.listener.remedy
    why = "there is a file of that name which is not a socket: remove it"
    problem = f"nobody can connect to {path}: {why}: {remedy}"
    with structlog.testing.capture_logs() as log:
        await acceptor.look()
        assert log == []
        replace(path, aside)
        for _ in range(2):
            await acceptor.look()
            seen.append((acceptor.problem, len(log)))
        os.replace(aside, path)
        for _ in range(2):
            await acceptor.look()
            seen.append((acceptor.problem, len(log)))
        os.unlink(path)
        for _ in range(2):
            await acceptor.look()
            seen.append((acceptor.problem, len(log)))
    assert seen == [(None, 0), *[(problem, 1)] * 2, *[(None, 2)] * 2, *[(None, 3)] * 2]
    of = {"socket": str(path)}
    gone = "the socket's file was gone; it is bound again"
    assert log == [
        {
            "event": "nobody can connect any more",
            "log_level": "error",
            **of,
            "why": why,
            "do": acceptor.listener.remedy,
        },
        {"event": "clients can connect again", "log_level": "info", **of},
        {"event": gone, "log_level": "warning", **of, "do": f"see what deletes files in {path.parent}"},
    ]


async def test_a_daemon_whose_path_is_lost_at_its_start_serves_who_has_connected_before(
    acceptor: Acceptor, path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as early:
        early.connect(os.fspath(path))
        replace(path, path.with_name("aside"))
        await acceptor.start()
        assert acceptor.problem is not None
        early.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(early, 5) == b"hello"


async def test_the_path_is_looked_at_every_two_seconds(
    acceptor: Acceptor, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EnoughError(Exception):
        pass

    done: list[Any] = []

    async def sleep(seconds: float) -> None:
        if len(done) == 4:
            raise EnoughError
        done.append(seconds)

    async def look() -> None:
        done.append("look")

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(acceptor, "look", look)
    with pytest.raises(EnoughError):
        await acceptor.run()
    assert done == [2.0, "look", 2.0, "look"]


@pytest.mark.promise("daemon-directory-deleted", "daemon-directory-deleted-found")
def test_a_daemon_whose_directory_was_deleted_is_found_again_within_seconds(
    kinesis: FakeKinesis, server: FakeServer, path: Path
) -> None:
    """By clients and by `producerctl`; the session that was open goes on."""
    with daemon(server.url, socket_path=path, socket_mode="0640") as running, session(running) as before:
        assert stores(before)
        shutil.rmtree(path.parent)
        until(lambda: running.log.count("the socket's file was gone; it is bound again") == 2)
        assert path.stat().st_mode & 0o777 == 0o640
        with session(running) as after:
            assert stores(before)
            assert stores(after)
        assert ctl(running, "status").returncode == 0
        assert running.get("/-/ready") == (200, "ready\n")
    assert not list(path.parent.glob("*.sock"))


@pytest.mark.promise("daemon-nobody-reach")
def test_a_daemon_that_nobody_can_reach_says_so_everywhere_until_it_is_reached(
    kinesis: FakeKinesis, server: FakeServer, path: Path
) -> None:
    """Another program has taken its path.  A reload looks at once, and does not say that all is well."""
    with daemon(server.url, socket_path=path) as running, session(running) as client:
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(os.fspath(path))
            other.listen()
            why = f"nobody can connect to {path}: in use: another process answers on it: "
            why += f"free {path}, or set socket to another"
            reloaded = ctl(running, "reload")
            assert reloaded.returncode == 1
            assert why in reloaded.stderr
            status, text = running.get("/-/ready")
            assert status == 503
            assert text.startswith(why)
            assert running.metrics()["ready"] == 0
            assert running.metrics()["state[serving]"] == 1
            assert why in ctl(running, "status").stdout
            assert why in running.get("/")[1]
            assert f"ERROR   producerd: nobody can connect any more socket={path} why=" in running.log
            assert "settings read again changed=[] needs_restart=[] unready=" in running.log
            assert stores(client)
        running.signal(signal.SIGHUP)
        until(lambda: running.get("/-/ready")[0] == 200)
        assert running.metrics()["ready"] == 1
        assert ctl(running, "reload").returncode == 0
        with session(running) as later:
            assert stores(later)
