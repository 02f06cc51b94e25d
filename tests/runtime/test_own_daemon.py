"""Tasks start a daemon of their own: once for an executor and its settings, and nothing of it outlives the executor."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from producerd.ctl.daemon import AdminClient
from producerd.errors import Code, ConfigurationError, ConnectionFailed, ProducerdError
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from spark_client import KinesisClient, own_daemon
from spark_client.channel import Channel
from spark_client.daemon_settings import DaemonSettings
from spark_client.own_daemon import OwnDaemon
from spark_client.task import Plan, send
from tests.daemon import CREDENTIALS, START_SECONDS, until

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
def server() -> Iterator[FakeServer]:
    kinesis = FakeKinesis()
    kinesis.create_stream("flights", shards=2)
    with serve_in_thread(kinesis) as running:
        yield running


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at a daemon's variables and files")
def test_it_has_a_session_of_its_own_and_nothing_of_the_task_that_started_it(
    server: FakeServer, executor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = {"PYTHONPATH": "/nowhere", "PEX_ROOT": "/x", "PRODUCERD_QUEUE_LIMIT": "no number", "NOTIFY_SOCKET": "/x"}
    for name, value in foreign.items():
        monkeypatch.setenv(name, value)
    with socket.socket() as inherited:
        inherited.set_inheritable(True)
        inode = os.fstat(inherited.fileno()).st_ino
        daemon = own(settings_for(server))
        daemon.start()
    pid = pid_at(daemon)
    assert os.getsid(pid) not in (os.getsid(0), pid), "so it can never get a terminal"
    assert os.getpgid(pid) != os.getpgid(0), "which PySpark signals"
    proc = Path(f"/proc/{pid}")
    names = {line.split(b"=")[0].decode() for line in (proc / "environ").read_bytes().split(b"\0")}
    assert not names & foreign.keys()
    held = set()
    for path in (proc / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the daemon has closed it meanwhile
            held.add(os.readlink(path))
    assert held
    assert f"socket:[{inode}]" not in held
    status = (proc / "status").read_text()
    assert re.search(r"^PPid:\s+(\d+)$", status, re.MULTILINE)[1] != str(os.getpid())  # type: ignore[index]
    assert re.search(r"^Umask:\s+0077$", status, re.MULTILINE), "what it makes is private"


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


def test_the_error_of_a_task_whose_daemon_was_lost_quotes_its_log(
    server: FakeServer, executor: subprocess.Popen[bytes], folders: Path
) -> None:
    server.kinesis.standing.append(Fault("hang"))
    settings = DaemonSettings.of(settings_for(server))
    rows = pa.RecordBatch.from_pydict({"partition_key": ["k"], "data": [b"data"]})
    killing = threading.Thread(
        target=lambda: os.kill(
            until(lambda: busy_daemon(folders), "a daemon with a client", START_SECONDS), signal.SIGKILL
        )
    )
    killing.start()
    with pytest.raises(ProducerdError, match=r"; its log \S+ ends with: \S+ INFO ") as caught:
        send(Plan("flights", daemon=settings, reconnect_timeout_seconds=0), [rows])
    killing.join()
    assert caught.value.code == Code.DAEMON_LOST


def busy_daemon(folder: Path) -> int:
    """The daemon that has read the stream's shards, or 0."""
    logs = "".join(path.read_text() for path in folder.rglob("*.log"))
    return next(iter(daemons_below(folder)), 0) if "shards read" in logs else 0


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


def test_settings_that_only_the_daemon_can_refuse_are_the_tasks_error(server: FakeServer) -> None:
    with pytest.raises(ConfigurationError, match=r'memory = "5 MiB": no limits are low enough; at least \d+ MiB'):
        own({**settings_for(server), "memory": "5 MiB"}).start()


@pytest.mark.promise("daemon-says-cannot-start")
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("/no/such/python -I -m producerd", "not found"),
        ("python3 -c 'import no_such_module'", r"No module named 'no_such_module': on every node `pip install"),
        ("sh -c 'exit 3'", "it said nothing"),
        ("sh -c 'echo first >&2; echo producerd: the reason >&2; echo last >&2'", "ended: producerd: the reason "),
    ],
)
def test_what_a_daemon_says_that_cannot_start_is_the_tasks_error(server: FakeServer, command: str, says: str) -> None:
    with pytest.raises(ConnectionFailed, match=says) as caught:
        own(settings_for(server, command=command)).start()
    assert caught.value.code == Code.DAEMON_ABSENT
    assert "\n" not in str(caught.value)


def test_who_waited_for_a_start_that_failed_does_not_try_again(
    server: FakeServer, executor: subprocess.Popen[bytes], folders: Path
) -> None:
    count = folders / "starts"
    given = settings_for(server, command=["sh", "-c", f"echo >> {count}; sleep 1; echo producerd: broken >&2"])
    said = in_children(8, own(given).start)
    assert [text for text in said if "ended: producerd: broken" in text] == said
    assert len(count.read_text().splitlines()) < 8
    with pytest.raises(ConnectionFailed):
        own(given).start()  # who comes later tries again


@pytest.mark.parametrize("content", [b"", b"\0" * 20, b"1:2 x\n\nx", b"1:2 x\nsoon\nx", "1:2 x\n1\nü".encode()[:-1]])
def test_whatever_the_lock_s_file_has_the_next_task_starts(
    server: FakeServer, executor: subprocess.Popen[bytes], content: bytes
) -> None:
    daemon = own(settings_for(server, command="sh -c 'exit 3'"))
    (Path(daemon.paths[0]).parent / "lock").write_bytes(content)
    with pytest.raises(ConnectionFailed, match="has ended: it said nothing"):
        daemon.start()


def test_one_that_does_not_answer_in_time_is_ended_and_the_error_names_the_time_out(
    server: FakeServer, folders: Path
) -> None:
    given = settings_for(server, command=[sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(ConnectionFailed, match=r"within daemon_start_timeout_seconds=0\.2: it has said nothing"):
        own(given, 0.2).start()
    until(lambda: not daemons_below(folders), "its end")


def test_no_place_for_the_folder_is_one_line(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_daemon, "FOLDERS", Path("/proc/nowhere"))
    with pytest.raises(ConfigurationError, match="no folder for its socket on host"):
        own(settings_for(server))


# ---- its folder and its log


@pytest.mark.promise("name-taken-left-alone")
@pytest.mark.parametrize("what", ["symlink", "file", "open to all", "of another user"])
def test_a_name_that_is_taken_is_left_alone(
    server: FakeServer, executor: subprocess.Popen[bytes], folders: Path, what: str
) -> None:
    given = settings_for(server)
    taken = Path(own(given).paths[0]).parent
    taken.rmdir()
    if what == "symlink":
        taken.symlink_to(folders.parent)
    elif what == "file":
        taken.touch(0o600)
    elif what == "open to all":
        taken.mkdir()
        taken.chmod(0o777)
    elif os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    else:
        taken.mkdir(mode=0o700)
        os.chown(taken, 12345, 12345)
    daemon = own(given)
    assert daemon.paths[0] == f"{taken}-1/producerd.sock"
    assert stat.S_IMODE(Path(daemon.paths[0]).parent.stat().st_mode) == 0o700


def test_the_longest_name_fits_a_sockets_path(server: FakeServer, executor: subprocess.Popen[bytes]) -> None:
    """The user's number is in it, and all else has the same length everywhere."""
    name = Path(own(settings_for(server)).paths[0]).parent.name
    longest = name.replace(f"-{os.geteuid()}-", f"-{2**32 - 2}-")
    assert len(f"/tmp/{longest}-9/producerd.admin.sock") <= 107


@pytest.mark.parametrize("place", ["yarn", "standalone", "neither"])
def test_its_log_is_beside_the_executors(
    server: FakeServer, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "executor"
    logs.mkdir()
    if place == "yarn":
        monkeypatch.setenv("LOG_DIRS", f"{logs},/elsewhere")
    elif place == "standalone":
        (logs / "stderr").touch()
    with subprocess.Popen(["sleep", "600"], cwd=logs) as process:
        monkeypatch.setattr(own_daemon, "jvm_pid", lambda: process.pid)
        daemon = own(settings_for(server, command="sh -c 'echo producerd: refused >&2'"))
        with pytest.raises(ConnectionFailed, match="ended: producerd: refused"):
            daemon.start()
        process.kill()
    assert daemon.log.parent == (Path(daemon.paths[0]).parent if place == "neither" else logs)
    assert daemon.log.read_text() == "producerd: refused\n"


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
