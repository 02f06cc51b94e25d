"""What a task knows of processes, folders and logs, and how it starts a daemon of its own.

tests/runtime/test_own_daemon.py starts real ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from producerd.errors import Code, ConfigurationError, ConnectionFailed
from spark_client import __version__, own_daemon
from spark_client.daemon_code import INSTALL, DaemonCode
from spark_client.daemon_settings import DaemonSettings
from spark_client.own_daemon import OwnDaemon, Process
from spark_client.results import DaemonFigures
from tests.spark_client.fake_daemon import Session, fake_daemon, in_turn

HOST = socket.gethostname()
NAMESPACE = os.readlink("/proc/self/ns/pid")
FIELDS = ["java", "S", *map(str, range(2, 52))]
"""Fields of a process as `own_daemon._fields_of` has them: each number is its own place."""


class Clock:
    """A clock that only sleep() moves, by a second each time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self._asked = 0

    def monotonic(self) -> float:
        self._asked += 1
        assert self._asked < 1_000, "nothing ends the wait"
        return self.now

    def sleep(self, seconds: float) -> None:
        assert len(self.slept) < 10, "nothing ends the wait"
        self.slept.append(seconds)
        self.now += 1.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(own_daemon, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the daemons' folders are.  This process stands in for the JVM above a task."""
    monkeypatch.delenv("LOG_DIRS", raising=False)
    monkeypatch.setattr(own_daemon, "jvm_pid", os.getpid)
    with tempfile.TemporaryDirectory() as short:  # a socket's path has 107 bytes
        monkeypatch.setattr(own_daemon, "FOLDERS", Path(short))
        yield Path(short)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc in which a test says what there is of this process."""
    proc = tmp_path / "proc"
    (proc / str(os.getpid())).mkdir(parents=True)
    for name in ("self", "sys"):
        (proc / name).symlink_to(f"/proc/{name}")
    monkeypatch.setattr(own_daemon, "PROC", proc)
    return proc


def own(script: str = "exit 3", seconds: float = 20) -> OwnDaemon:
    """A daemon in whose place a shell runs this script."""
    return OwnDaemon(DaemonSettings.of({"command": ["sh", "-c", script], "memory": "1 MiB"}), seconds)


def owner() -> Process:
    found = Process.of(os.getpid())
    assert found is not None
    return found


def folder_of(daemon: OwnDaemon) -> Path:
    return Path(daemon.paths[0]).parent


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# ---- processes


def test_a_process_is_known_by_its_id_and_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert owner().lives
    assert not owner()._replace(started_at=0).lives
    monkeypatch.setattr(own_daemon, "_fields_of", lambda pid: FIELDS)
    assert Process.of(7) == Process(7, 20)
    assert str(Process(7, 20)) == "7:20"


def test_a_process_that_has_ended_does_not_live_even_if_nobody_has_waited_for_it() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert Process.of(process.pid) is None
    assert Process.of(process.pid) is None


def test_where_there_is_no_proc_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_daemon, "_fields_of", lambda *_: None)
    with pytest.raises(ConfigurationError) as caught:
        own()
    assert str(caught.value) == f"daemon={{...}}: a task can start a daemon on Linux only, and this is {sys.platform}"


@pytest.mark.parametrize(
    ("arguments", "heap_bytes"),
    [
        (["java", "-Xmx1g", "Main"], 1 << 30),
        (["java", "-Xmx512M", "Main"], 512 << 20),
        (["java", "-Xmx2048k"], 2_048 << 10),
        (["java", "-Xmx1048576"], 1 << 20),
        (["java", "-Xmx1g", "-Xmx32m", "-Xmx5x"], 32 << 20),
        (["java", "Main"], 0),
    ],
)
def test_the_heap_is_what_the_jvm_s_last_option_says(arguments: list[str], heap_bytes: int, proc: Path) -> None:
    daemon = own()
    (proc / str(os.getpid()) / "cmdline").write_bytes("\0".join([*arguments, ""]).encode())
    assert (daemon.heap_bytes(), daemon.memory_bytes) == (heap_bytes, 1 << 20)


def test_the_figures_are_the_kernel_s(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = own()
    (proc / "7").mkdir()
    (proc / "7" / "status").write_text("Name:\tpython\nVmHWM:\t   1234 kB\nVmRSS:\t   1000 kB\n")
    monkeypatch.setattr(own_daemon, "_fields_of", {7: FIELDS}.get)
    monkeypatch.setattr(os, "sysconf", lambda _: 1_024)
    cpu_seconds = 0.02  # 12 + 13 ticks
    assert daemon.figures(7) == DaemonFigures(HOST, 7, None, 1_234 << 10, cpu_seconds, str(daemon.log))
    monkeypatch.setattr(os, "sysconf", lambda _: 1)
    assert daemon.figures(8) == DaemonFigures(HOST, 8, None, 0, 0.0, str(daemon.log)), "it has ended"


# ---- its folder


@pytest.mark.promise("name-taken-left-alone")
def test_the_first_of_ten_names_that_nobody_else_has_is_its_folder(folders: Path) -> None:
    first = folder_of(own())
    assert re.fullmatch(rf"producerd-{os.geteuid()}-[0-9a-f]{{16}}", first.name)
    assert own().paths == (f"{first}/producerd.sock",)
    first.rmdir()
    first.symlink_to(folders)
    for number in range(1, 10):
        (folders / f"{first.name}-{number}").touch(0o600)
    with pytest.raises(ConfigurationError) as caught:
        own()
    assert str(caught.value) == f"daemon={{...}}: the first 10 names of {first} belong to somebody else"
    (folders / f"{first.name}-9").unlink()
    assert own().paths == (f"{first}-9/producerd.sock",)
    assert stat.S_IMODE((folders / f"{first.name}-9").stat().st_mode) == 0o700


@pytest.mark.promise("name-taken-left-alone")
def test_a_folder_that_others_may_enter_or_own_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    first, user = folder_of(own()), os.geteuid()
    first.chmod(0o710)
    assert folder_of(own()) == first.with_name(f"{first.name}-1")
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(ConfigurationError, match="belong to somebody else"):
        own()


def test_only_private_folders_of_owners_that_are_gone_are_deleted(folders: Path) -> None:
    for name, mode, line in (
        ("gone", 0o700, f"1:2 {NAMESPACE}"),
        ("elsewhere", 0o700, "1:2 pid:[7]"),
        ("lives", 0o700, f"{owner()} {NAMESPACE}"),
        ("open", 0o755, f"1:2 {NAMESPACE}"),
        ("odd", 0o700, "odd"),
    ):
        folder = folders / f"producerd-{os.geteuid()}-{name}"
        folder.mkdir(mode)
        (folder / "lock").write_text(f"{line}\n5.0\nits error")
    own_daemon.sweep()
    assert {path.name.rpartition("-")[2] for path in folders.iterdir()} == {"elsewhere", "lives", "open", "odd"}


def test_its_log_is_where_yarn_says_if_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = own()
    assert daemon.log == folder_of(daemon) / f"{folder_of(daemon).name}.log"
    for folders, its in ((f"{tmp_path}/nowhere,{tmp_path}", folder_of(daemon)), (f"{tmp_path},/nowhere", tmp_path)):
        monkeypatch.setenv("LOG_DIRS", folders)
        assert own().log == its / daemon.log.name


def test_its_log_is_beside_the_stderr_of_its_executor(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (proc / str(os.getpid()) / "cwd").symlink_to(tmp_path)
    assert own().log.parent == folder_of(own()), "it is not an executor's"
    (tmp_path / "stderr").touch()
    assert own().log.parent == tmp_path
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may always
    assert own().log.parent == folder_of(own())


# ---- its log


@pytest.mark.promise("daemon-says-cannot-start")
@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("", "it said nothing"),
        ("\n \n", "it said nothing"),
        ("a\n\nb\n \n", "b"),
        ("a\nproducerd: p\nx ERROR y\n", "producerd: p"),
        ("a\nx ERROR y\nproducerd: p\nb", "x ERROR y"),
        ("a\nFailed to find compatible interpreter on path\nb\n", "Failed to find compatible interpreter on path"),
        ("ab" * 300, "ab" * 250),
    ],
)
def test_the_first_error_of_a_start_is_quoted_from_its_log(
    log: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one of an earlier start."""
    monkeypatch.setenv("SAID", log)
    daemon = own('printf %s "$SAID" >&2')
    daemon.log.write_text("producerd: of an older one\n")
    with pytest.raises(ConnectionFailed, match=rf" has ended: {error}(: .*)? \(its log: ") as caught:
        daemon.start()
    assert caught.value.code == Code.DAEMON_ABSENT
    assert "\n" not in str(caught.value)


@pytest.mark.promise("daemon-says-cannot-start")
def test_what_the_shell_says_of_a_command_that_does_not_exist_is_quoted() -> None:
    with pytest.raises(ConnectionFailed, match=r" has ended: .*/no/such/python: not found \(its log: "):
        OwnDaemon(DaemonSettings.of({"command": "/no/such/python -I -m producerd"}), 20).start()


@pytest.mark.parametrize(
    ("log", "last"),
    [
        (None, "nothing"),
        (b"\n", "nothing"),
        (b"only", "only"),
        (b"a\nb\n", "b"),
        (b"x" * 600, "x" * 500),
        # Of a long log the last MiB is read.
        (b"head" + b"A" + b"t" * ((1 << 20) - 1), "A" + "t" * 499),
    ],
)
def test_its_last_line_is_what_it_has_logged_last(log: bytes | None, last: str) -> None:
    daemon = own()
    if log is not None:
        daemon.log.write_bytes(log)
    assert daemon.last_line() == last


# ---- the right to start it


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The deadlines of starts, which all succeed at once."""
    deadlines: list[float] = []

    def launch(_: OwnDaemon, deadline: float) -> str:
        deadlines.append(deadline)
        return ""

    monkeypatch.setattr(OwnDaemon, "_launch", launch)
    return deadlines


def test_the_lock_s_file_is_private_and_names_the_owner(clock: Clock, launched: list[float]) -> None:
    daemon, before = own(), open_files()
    daemon.start()
    path = folder_of(daemon) / "lock"
    assert path.read_text() == f"{owner()} {NAMESPACE}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (clock.slept, open_files()) == ([], before)


def test_a_copy_of_the_descriptor_as_a_forked_process_has_it_does_not_keep_the_lock(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []

    def launch(*_: object) -> str:
        open_now = [int(path.name) for path in Path("/proc/self/fd").iterdir() if path.resolve().name == "lock"]
        copies.extend(map(os.dup, open_now))
        return ""

    monkeypatch.setattr(OwnDaemon, "_launch", launch)
    own().start()
    own().start()
    assert copies
    assert clock.slept == []
    for copy in copies:
        os.close(copy)


@contextlib.contextmanager
def starting(daemon: OwnDaemon) -> Iterator[None]:
    """As if another task were starting it."""
    with (folder_of(daemon) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_start_by_another_task_is_waited_for_until_the_time_out(clock: Clock) -> None:
    daemon = own(seconds=2)
    with starting(daemon), pytest.raises(ConnectionFailed) as caught:
        daemon.start()
    assert clock.slept == [own_daemon.LOOK_SECONDS] * 2
    assert caught.value.code == Code.DAEMON_ABSENT
    assert str(caught.value) == (
        f"the daemon that a task started on host {HOST} does not answer within daemon_start_timeout_seconds=2: "
        f"another task is starting it (its log: {daemon.log})"
    )


def test_an_interrupt_while_it_waits_for_the_lock_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    daemon = own()
    with starting(daemon):
        before = open_files()
        monkeypatch.setattr(own_daemon, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=interrupted))
        with pytest.raises(KeyboardInterrupt):
            daemon.start()
        assert open_files() == before


# ---- its start


def test_its_owner_is_the_jvm_above_this_process_or_else_this_process(
    launched: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid, its in ((os.getppid(), os.getppid()), (None, os.getpid())):
        monkeypatch.setattr(own_daemon, "jvm_pid", lambda pid=pid: pid)
        daemon = own()
        daemon.start()
        said = (folder_of(daemon) / "lock").read_text()
        assert said == f"{Process.of(its)} {NAMESPACE}"


def test_a_start_makes_its_folder_again_and_deletes_those_of_owners_that_are_gone(
    launched: list[float], folders: Path
) -> None:
    gone = folders / f"producerd-{os.geteuid()}-gone"
    gone.mkdir(0o700)
    (gone / "lock").write_text(f"1:2 {NAMESPACE}")
    daemon = own()
    folder = folder_of(daemon)
    folder.rmdir()
    daemon.start()
    assert [*folders.iterdir()] == [folder]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(("failed_at", "starts"), [(99.0, True), (101.0, False)])
def test_a_start_that_failed_while_this_task_waited_is_not_tried_again(
    failed_at: float, starts: bool, clock: Clock, launched: list[float]
) -> None:
    daemon = own(seconds=5)
    (folder_of(daemon) / "lock").write_text(f"1:2 x\n{failed_at}\n{'a long ' * 50}error")
    if starts:
        daemon.start()
        assert (folder_of(daemon) / "lock").read_text() == f"{owner()} {NAMESPACE}"
    else:
        with pytest.raises(ConnectionFailed, match=r"has ended: a long .* error \(its log: "):
            daemon.start()
    assert launched == [105.0] * starts


def test_a_start_that_fails_is_noted_for_the_tasks_that_wait(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnDaemon, "_launch", lambda *_: "its error")
    daemon = own()
    with pytest.raises(ConnectionFailed, match=r"has ended: its error \(its log: "):
        daemon.start()
    said = (folder_of(daemon) / "lock").read_text()
    assert said == f"{owner()} {NAMESPACE}\n100.0\nits error"


def test_settings_that_the_daemon_refuses_are_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError) as caught:
        own("echo producerd: configuration: no such limit >&2").start()
    assert str(caught.value) == f"the tasks' daemon on host {HOST}: no such limit"


def test_a_start_is_given_its_time_and_says_how_long_it_took(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines = []

    def launch(_: OwnDaemon, deadline: float) -> str:
        deadlines.append(deadline)
        clock.now += 1.23456
        return ""

    monkeypatch.setattr(OwnDaemon, "_launch", launch)
    daemon = own(seconds=5)
    daemon.start()
    assert deadlines == [105.0]
    assert daemon.figures(os.getpid()).started_seconds == 1.235


def test_one_that_listens_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    time_outs = []

    class Watched(socket.socket):
        def connect(self, address: Any) -> None:
            time_outs.append(self.gettimeout())
            super().connect(address)

    monkeypatch.setattr(OwnDaemon, "_launch", lambda *_: pytest.fail("it is started again"))
    daemon = own()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(daemon.paths[0])
        listener.listen(1)
        monkeypatch.setattr(socket, "socket", Watched)
        daemon.start()
    assert time_outs == [1.0]


def test_one_that_greets_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnDaemon, "_listens", lambda _: False)
    daemon = own()
    with fake_daemon(Path(daemon.paths[0])) as its:
        its.runs(in_turn(Session.welcome, Session.await_end))
        daemon.start()
    assert [hello.client for hello in its.hellos] == [f"spark_client {__version__}, start"]


def test_it_has_the_variables_of_its_code_and_nothing_that_is_for_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {
        "PYTHONPATH": "/nowhere",
        "PEX_ROOT": "/theirs",
        "PRODUCERD_QUEUE_LIMIT": "none",
        "NOTIFY_SOCKET": "/theirs",
    }
    for name, value in {**theirs, "KEPT": "kept"}.items():
        monkeypatch.setenv(name, value)
    code = {"PEX_ROOT": "/unpacked"}
    monkeypatch.setattr("spark_client.daemon_code.find", lambda command, folder: DaemonCode(command, code))
    daemon = own("umask >&2; cut -d ' ' -f 1,4-6 /proc/$$/stat >&2; env >&2; ls -l /proc/$$/fd >&2")
    with socket.socket() as inherited:
        inherited.set_inheritable(True)
        with pytest.raises(ConnectionFailed):
            daemon.start()
        assert f"socket:[{os.fstat(inherited.fileno()).st_ino}]" not in daemon.log.read_text()
    umask, ids, *rest = daemon.log.read_text().splitlines()
    assert umask == "0077", "what it makes is private"
    pid, parent, group, session = map(int, ids.split())
    assert parent != os.getpid()
    assert os.getpgid(0) != group, "which PySpark signals"
    assert session not in (os.getsid(0), pid), "so it can never get a terminal"
    assert {"KEPT=kept", "PEX_ROOT=/unpacked"} <= {*rest}
    assert not {line.partition("=")[0] for line in rest} & (theirs.keys() - code.keys())


@pytest.mark.promise("settings-stand-neither")
def test_its_settings_are_in_a_private_file_while_it_starts(folders: Path) -> None:
    script = "for word; do file=${word#--sets-file=}; done; stat -c %a $file >&2; cat $file >&2"
    daemon = OwnDaemon(DaemonSettings.of({"command": ["sh", "-c", script, "sh"], "external_id": "s3cret"}), 20)
    with pytest.raises(ConnectionFailed, match=r"ended: \[\"exit_when_idle_seconds=60\", \"external_id=s3cret\", "):
        daemon.start()
    assert daemon.log.read_text().startswith("600\n")
    assert {path.name for path in folder_of(daemon).iterdir()} == {"lock", daemon.log.name}


def test_a_process_that_proc_does_not_show_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon is not dumpable, so a /proc that is mounted with hidepid shows it to root only."""
    with subprocess.Popen(["sleep", "60"]) as process:
        found = Process.of(process.pid)
        assert found is not None
        monkeypatch.setattr(own_daemon, "PROC", tmp_path)
        monkeypatch.setattr(own_daemon, "_fields_of", lambda _: None)
        assert found.lives
        process.kill()
        process.wait()
        assert not found.lives


def test_what_is_not_installed_is_named_with_the_cure() -> None:
    daemon = own("echo No module named x >&2")
    with pytest.raises(ConnectionFailed) as caught:
        daemon.start()
    assert str(caught.value) == (
        f"the daemon that a task started on host {HOST} has ended: No module named x: {INSTALL} (its log: {daemon.log})"
    )


def test_a_shell_that_cannot_start_it_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_daemon, "FORK_TWICE", "exit 3")
    with pytest.raises(ConnectionFailed, match="has ended: the shell cannot start it: CalledProcessError ") as caught:
        own().start()
    assert caught.value.code == Code.DAEMON_ABSENT


@pytest.mark.parametrize("serves", [True, False], ids=["another one serves", "none serves"])
@pytest.mark.parametrize("seen", [[None], [FIELDS, None]], ids=["at once", "later"])
def test_one_that_has_ended_is_no_error_if_another_one_serves(
    serves: bool, seen: list[Any], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a task had started that was then killed."""
    answers = iter([False, serves])
    daemon = own()
    daemon.log.write_text("producerd: of an older one\n")
    monkeypatch.setattr(OwnDaemon, "_serves", lambda *_: next(answers))
    monkeypatch.setattr(own_daemon, "sweep", lambda: None)  # it would find no owner that lives
    fields = iter(seen)
    monkeypatch.setattr(own_daemon, "_fields_of", lambda *_: next(fields))
    if serves:
        daemon.start()
    else:
        with pytest.raises(ConnectionFailed, match=r"has ended: it said nothing \(its log: "):
            daemon.start()
    assert [*answers, *fields] == []


@pytest.mark.parametrize("said", ["producerd: waiting for a place\n", ""])
def test_one_that_is_late_is_ended_at_the_deadline(said: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = own("exec sleep 30", seconds=2)

    def serves(*_: object) -> bool:
        daemon.log.write_text(said)
        return False

    ended = []
    monkeypatch.setattr(OwnDaemon, "_serves", serves)
    monkeypatch.setattr(os, "kill", lambda pid, number, kill=os.kill: ended.append((number, kill(pid, 9))))
    with pytest.raises(ConnectionFailed) as caught:
        daemon.start()
    assert str(caught.value) == (
        f"the daemon that a task started on host {HOST} does not answer within daemon_start_timeout_seconds=2: "
        f"{said.strip() or 'it has said nothing'} (its log: {daemon.log})"
    )
    assert clock.slept == [own_daemon.LOOK_SECONDS] * 2
    assert ended == [(15, None)]
