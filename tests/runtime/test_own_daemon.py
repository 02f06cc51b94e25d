"""Tasks start a daemon of their own: once for an executor and its settings, and nothing of it outlives the executor."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from producerd.ctl.daemon import AdminClient
from producerd.errors import ConfigurationError, ConnectionFailed
from producerd.testing.fake_kinesis import FakeServer
from spark_client import KinesisClient, own_daemon
from spark_client.channel import Channel
from spark_client.daemon_settings import DaemonSettings
from spark_client.own_daemon import OwnDaemon
from tests.daemon import CREDENTIALS, until

TASKS = 64
END_SECONDS = 5.0


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the daemons' folders are.  None of the daemons outlives the test."""
    for name, value in {**CREDENTIALS, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory() as short:  # a socket's path has 107 bytes
        folder = Path(short)
        monkeypatch.setattr(own_daemon, "FOLDERS", folder)
        yield folder
        for pid in daemons_below(folder):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands in for the JVM above this one."""
    with subprocess.Popen(["sleep", "600"]) as running:
        monkeypatch.setattr(own_daemon, "jvm_pid", lambda: running.pid)
        yield running
        running.kill()


def settings_for(server: FakeServer, **more: Any) -> dict[str, Any]:
    return {"region": "us-east-1", "endpoint_url": server.url, "linger_seconds": 0.01, **more}


def own(given: Mapping[str, Any], seconds: float = 60) -> OwnDaemon:
    return OwnDaemon(DaemonSettings.of(given), seconds)


def daemons_below(folder: Path) -> list[int]:
    """The daemons whose sockets are below this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"--set=socket={folder}/".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def pid_at(daemon: OwnDaemon) -> int:
    channel = Channel(daemon.paths[0])
    try:
        return channel.peer_pid
    finally:
        channel.close()


def in_children(count: int, act: Callable[[], object]) -> list[str]:
    """What the act returns or raises in each of ``count`` forks of this process, all at once."""
    pipes = []
    for _ in range(count):
        reader, writer = os.pipe()
        if os.fork() == 0:
            try:
                said = str(act())
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writer, said.encode())
            os._exit(0)
        os.close(writer)
        pipes.append(reader)
    told = []
    for reader in pipes:
        with os.fdopen(reader) as file:
            told.append(file.read())
        os.wait()
    return told


# ---- one daemon for an executor and its settings


def test_of_many_tasks_at_once_one_starts_the_daemon_and_all_find_it(
    server: FakeServer, executor: subprocess.Popen[bytes], folders: Path
) -> None:
    given = settings_for(server)

    def task() -> str:
        daemon = own(given)
        daemon.start()
        return str(pid_at(daemon))

    pids = set(in_children(TASKS, task))
    assert pids == {str(pid) for pid in daemons_below(folders)}
    assert len(pids) == 1
    found = own(given)
    found.start()
    figures = found.figures(pid_at(found))
    assert figures.started_seconds is None
    assert (figures.host, figures.pid, figures.log) == (socket.gethostname(), pid_at(found), str(found.log))
    assert 50 << 20 < figures.peak_rss_bytes < 384 << 20
    assert figures.cpu_seconds > 0.1


@pytest.mark.promise("credentials-settings-releases")
def test_other_credentials_settings_or_releases_have_another_daemon(
    server: FakeServer, executor: subprocess.Popen[bytes], folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings_for(server)
    daemon = own(given)
    daemon.start()
    assert own(given).paths == daemon.paths
    others = [own({**given, "aggregation": "kpl"})]
    with monkeypatch.context() as changed:
        changed.setenv("AWS_ACCESS_KEY_ID", "somebody-else")
        others.append(own(given))
    with monkeypatch.context() as changed:
        changed.setattr(own_daemon, "__version__", "0.0.1")
        others.append(own(given))
    assert len({daemon.paths, *(other.paths for other in others)}) == 4
    others[-1].start()
    assert len(daemons_below(folders)) == 2, "and the older one is left alone"
    everything = "".join(path.read_text() for path in folders.rglob("*") if path.is_file())
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in everything


@pytest.mark.promise("settings-stand-neither")
def test_its_settings_stand_neither_among_its_arguments_nor_in_its_folder(
    server: FakeServer, executor: subprocess.Popen[bytes], folders: Path
) -> None:
    role = {"role_arn": "arn:aws:iam::123456789012:role/x", "external_id": "s3cret"}
    own(settings_for(server, streams={"other": role}, queue_limit=12_345)).start()
    (pid,) = daemons_below(folders)
    assert b"s3cret" not in b"".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline"))
    assert "s3cret" not in "".join(path.read_text() for path in folders.rglob("*") if path.is_file())
    (socket_path,) = folders.rglob("producerd.admin.sock")
    settings = AdminClient(str(socket_path)).get("/dump")["settings"]
    assert any(line.startswith("queue_limit = 12345") for line in settings), "and they are its settings"
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE), "its memory is private"


# ---- its life


@pytest.mark.promise("executor-own-killed")
def test_it_ends_with_its_executor_and_leaves_the_neighbours_alone(
    server: FakeServer, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executors = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    daemons = []
    for process in executors:
        monkeypatch.setattr(own_daemon, "jvm_pid", lambda pid=process.pid: pid)
        daemons.append(own(settings_for(server)))
        daemons[-1].start()
    gone, stays = map(pid_at, daemons)
    executors[0].kill()
    until(lambda: gone not in daemons_below(folders), "the daemon's end", END_SECONDS)
    assert pid_at(daemons[1]) == stays
    executors[1].kill()
    until(lambda: not daemons_below(folders), "the daemon's end", END_SECONDS)
    for process in executors:
        process.wait()


@pytest.mark.promise("ends-because-idle-followed")
def test_one_that_ends_because_it_was_idle_is_followed_by_the_next(server: FakeServer, folders: Path) -> None:
    given = settings_for(server, exit_when_idle_seconds=0.2)
    for number in range(2):
        with KinesisClient("flights", daemon=given) as client:
            client.put(b"%d" % number, "key").result(30)
        until(lambda: not daemons_below(folders), "the daemon's end")
    assert len(server.kinesis.streams["flights"].read().records) == 2
    assert len(list(folders.iterdir())) == 1


def test_one_that_is_killed_under_load_is_followed_by_the_next_and_no_record_is_lost(
    server: FakeServer, folders: Path
) -> None:
    with KinesisClient("flights", daemon=settings_for(server)) as client:
        sent = []
        for number in range(40):
            client.put_many([(b"%d-%d" % (number, row), "key") for row in range(100)])
            sent += [b"%d-%d" % (number, row) for row in range(100)]
            if number == 20:
                (pid,) = daemons_below(folders)
                os.kill(pid, signal.SIGKILL)
    assert {record.data for record in server.kinesis.streams["flights"].read().records} == {*sent}


def test_one_that_is_half_started_when_its_task_is_killed_serves_the_next_task(
    server: FakeServer, executor: subprocess.Popen[bytes], folders: Path
) -> None:
    given = settings_for(server)
    child = os.fork()
    if child == 0:
        own(given).start()
        os._exit(0)
    until(lambda: daemons_below(folders), "a daemon that starts")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    daemon = own(given)
    daemon.start()
    until(lambda: daemons_below(folders) == [pid_at(daemon)], "one daemon alone")


# ---- what keeps it from starting


@pytest.mark.parametrize("content", [b"", b"\0" * 20, b"1:2 x\n\nx", b"1:2 x\nsoon\nx", "1:2 x\n1\nü".encode()[:-1]])
def test_whatever_the_lock_s_file_has_the_next_task_starts(
    server: FakeServer, executor: subprocess.Popen[bytes], content: bytes
) -> None:
    daemon = own(settings_for(server, command="sh -c 'exit 3'"))
    (Path(daemon.paths[0]).parent / "lock").write_bytes(content)
    with pytest.raises(ConnectionFailed, match="has ended: it said nothing"):
        daemon.start()


def test_no_place_for_the_folder_is_one_line(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_daemon, "FOLDERS", Path("/proc/nowhere"))
    with pytest.raises(ConfigurationError, match="no folder for its socket on host"):
        own(settings_for(server))


# ---- its folder and its log


def test_the_longest_name_fits_a_sockets_path(server: FakeServer, executor: subprocess.Popen[bytes]) -> None:
    """The user's number is in it, and all else has the same length everywhere."""
    name = Path(own(settings_for(server)).paths[0]).parent.name
    longest = name.replace(f"-{os.geteuid()}-", f"-{2**32 - 2}-")
    assert len(f"/tmp/{longest}-9/producerd.admin.sock") <= 107


# ---- a program of its own


@pytest.mark.promise("program-daemon-ends")
def test_a_program_s_daemon_ends_with_the_program(server: FakeServer, folders: Path) -> None:
    """Its start does not count in the time to connect."""
    child = os.fork()
    if child == 0:
        client = KinesisClient("flights", daemon=settings_for(server), connect_timeout_seconds=0)
        client.put(b"data", "key").result(30)
        os._exit(0)
    os.waitpid(child, 0)
    until(lambda: not daemons_below(folders), "the daemon's end", END_SECONDS)
    assert len(server.kinesis.streams["flights"].read().records) == 1
