"""A daemon that a task starts where none can be installed: one for each executor and its settings.

Its owner is the JVM above the Python worker, or in plain Python the process itself.  It ends with its owner, and when
it has been idle for long (`producerd.runtime.leaving`).  decisions/0011 says why each step is as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from producerd import __version__
from producerd.errors import Code, ConfigurationError, ConnectionFailed
from producerd.wire import messages
from spark_client import daemon_code
from spark_client.channel import Late, Lost, greet
from spark_client.daemon_code import INSTALL, NEEDS_INSTALL
from spark_client.daemon_settings import DaemonSettings
from spark_client.results import DaemonFigures

PROC: Final = Path("/proc")
FOLDERS: Final = Path("/tmp")
"""Where the folders of sockets are.  TMPDIR may differ between workers, and be too long for a socket's path."""
NAMES: Final = 10
"""How many names a folder may have, because another user may have taken the first ones."""
LOOK_SECONDS: Final = 0.02
HELLO: Final = messages.Hello(messages.VERSION, messages.VERSION, client=f"spark_client {__version__}, start")
NOT_ITS: Final = ("PYTHON", "PEX_", "PRODUCERD_", "NOTIFY_SOCKET", "LISTEN_")
"""Prefixes of variables that are meant for this process and not for a daemon that it starts."""
FORK_TWICE: Final = 'umask 077; "$@" >&2 & echo $!'
"""The shell's script: the daemon writes only to the log, what it makes is private, and the shell says its id."""
MOST_LINE_CHARACTERS: Final = 500
FIRST_ERRORS: Final = ("producerd: ", "Failed to find compatible interpreter")
"""What an error on stderr begins with, if it is the daemon's, or pex's where its packages are for another machine."""
OF_SETTINGS: Final = "producerd: configuration: "


class Process(NamedTuple):
    """A process, by its id and its start in clock ticks since the boot (proc_pid_stat(5), field 22)."""

    pid: int
    started_at: int

    @staticmethod
    def of(pid: int) -> Process | None:
        """Return the process that has this id now; None if there is none, or only a zombie."""
        fields = _fields_of(pid)
        return None if fields is None or fields[1] in "ZX" else Process(pid, int(fields[20]))

    @property
    def lives(self) -> bool:
        found = Process.of(self.pid)
        return found == self or (found is None and _is_hidden(self.pid))

    def __str__(self) -> str:
        return f"{self.pid}:{self.started_at}"


class OwnDaemon:
    """The daemon of this process's executor with these settings, or of the process ``owner_pid``.

    ``paths`` is where it listens, or will.  The constructor makes the folder of its socket.
    """

    def __init__(self, settings: DaemonSettings, start_timeout_seconds: float, owner_pid: int | None = None) -> None:
        owner = Process.of(owner_pid or jvm_pid() or os.getpid())
        if owner is None:
            text = f"daemon={{...}}: a task can start a daemon on Linux only, and this is {sys.platform}"
            raise ConfigurationError([text])
        self._settings = settings
        self._start_timeout_seconds = start_timeout_seconds
        self._started_seconds: float | None = None
        self._owner = owner
        name = _name_of(owner, settings)
        try:
            self._folder = _folder(name)
        except OSError as error:
            text = f"daemon={{...}}: no folder for its socket on host {socket.gethostname()}: {error}"
            raise ConfigurationError([text]) from None
        self._socket = str(self._folder / "producerd.sock")
        self._sets = self._folder / "sets"  # only while the daemon starts; `ps` shows arguments to all users
        self.paths: Sequence[str] = (self._socket,)
        self.log = _log_folder(owner, self._folder) / f"{name}.log"

    def start(self) -> None:
        """Start the daemon unless it answers, and return when it does.

        Of all tasks that call it at once, one starts it, and the others wait.  Raises ConfigurationError if its
        settings are wrong, and ConnectionFailed with its first error if it ends or does not answer in time.
        """
        try:
            self._start()
        except OSError as error:
            raise self._failed(f"its folder or log cannot be used: {error}") from None

    def _start(self) -> None:
        began = time.monotonic()
        deadline = began + self._start_timeout_seconds
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)  # it may have been cleaned up since
        with _Lock(self._folder / "lock", deadline) as lock:
            if not lock.held:
                raise self._late("another task is starting it")
            failed_at, error = lock.last_failure()
            if failed_at > began:  # while this task waited: it need not try again
                raise self._failed(error)
            if self._listens():
                return
            lock.write(self._owner)
            sweep()
            try:
                error = self._launch(deadline)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    self._sets.unlink()
            if error:
                lock.write(self._owner, error)
                raise self._failed(error)
            self._started_seconds = round(time.monotonic() - began, 3)

    @property
    def memory_bytes(self) -> int:
        """What the daemon may use at most, by its settings."""
        return self._settings.memory_bytes

    def heap_bytes(self) -> int:
        """Return the owner's largest heap, by its -Xmx; 0 if it has none."""
        words = (PROC / str(self._owner.pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        sizes = [word[4:] for word in words if re.fullmatch("-Xmx[0-9]+[kKmMgG]?", word)]
        units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
        return sum(int(size.rstrip("kKmMgG")) * units.get(size[-1].lower(), 1) for size in sizes[-1:])

    def last_line(self) -> str:
        """Return what the daemon has logged last, or "nothing"."""
        return (_lines(self.log, 0) or ["nothing"])[-1][:MOST_LINE_CHARACTERS]

    def figures(self, pid: int) -> DaemonFigures:
        """Return what the daemon with this id has used until now."""
        fields, status = _fields_of(pid), ""
        with contextlib.suppress(OSError):
            status = (PROC / str(pid) / "status").read_text()
        peak_kb = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)
        ticks = 0 if fields is None else sum(map(int, fields[12:14]))
        cpu_seconds = round(ticks / os.sysconf("SC_CLK_TCK"), 2)
        host = socket.gethostname()
        return DaemonFigures(host, pid, self._started_seconds, peak_kb * 1024, cpu_seconds, str(self.log))

    def _listens(self) -> bool:
        """Whether there is a daemon.  One that ends has let go of its socket before it said so."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(self._socket)
            except OSError:
                return False
        return True

    def _serves(self, deadline: float) -> bool:
        """Whether a daemon greets.  One that listens does so soon."""
        try:
            channel, _ = greet(self._socket, HELLO, deadline)
        except (OSError, Late, Lost):
            return False
        channel.close()
        return True

    def _launch(self, deadline: float) -> str:
        """Start a daemon and wait until one answers.  Return "", or the first error of the one that ended."""
        serve = ["serve", "--owner", str(self._owner), "--log", str(self.log), f"--set=socket={self._socket}"]
        code = daemon_code.find(self._settings.command, self._folder)
        command = [*code.command, *serve, f"--sets-file={self._sets}"]
        new = self._sets.with_suffix(".new")  # a daemon that starts already may read the file
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(self._settings.sets, file)
        new.replace(self._sets)
        environ = {name: value for name, value in os.environ.items() if not name.startswith(NOT_ITS)}
        environ.update(code.variables)
        with self.log.open("ab") as log:
            start = log.tell()
            try:
                shell = subprocess.run(
                    ["/bin/sh", "-c", FORK_TWICE, "sh", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd="/",
                    env=environ,
                    start_new_session=True,  # PySpark ends its workers by signals to their process group
                    check=True,
                )
            except (OSError, ValueError, subprocess.CalledProcessError) as error:
                return f"the shell cannot start it: {type(error).__name__}"
        process = Process.of(int(shell.stdout))
        while not self._serves(deadline):
            if process is None or not process.lives:
                # Another one may serve there by now: one that a task had started that was then killed.
                return "" if self._serves(deadline) else _first_error(self.log, start) or "it said nothing"
            if time.monotonic() >= deadline:
                os.kill(process.pid, signal.SIGTERM)  # otherwise each attempt would leave one more
                raise self._late(_first_error(self.log, start) or "it has said nothing")
            time.sleep(LOOK_SECONDS)
        return ""

    def _failed(self, error: str) -> ConnectionFailed | ConfigurationError:
        host = socket.gethostname()
        if error.startswith(OF_SETTINGS):
            return ConfigurationError([f"the tasks' daemon on host {host}: {error[len(OF_SETTINGS) :]}"])
        cure = f": {INSTALL}" if any(sign in error for sign in NEEDS_INSTALL) else ""
        text = f"the daemon that a task started on host {host} has ended: {error}{cure} (its log: {self.log})"
        return ConnectionFailed(text, code=Code.DAEMON_ABSENT)

    def _late(self, why: str) -> ConnectionFailed:
        text = (
            f"the daemon that a task started on host {socket.gethostname()} does not answer within "
            f"daemon_start_timeout_seconds={self._start_timeout_seconds:g}: {why} (its log: {self.log})"
        )
        return ConnectionFailed(text, code=Code.DAEMON_ABSENT)


class _Lock:
    """The right to start a daemon.  The kernel takes it back when its holder ends.

    The file says who the daemon's owner is and, where the last start failed, when (by `time.monotonic`) and why.
    """

    def __init__(self, path: Path, deadline: float) -> None:
        import fcntl  # not on Windows, where a client of Spark Connect may run

        self.held = False
        self._flock, self._unlock = fcntl.flock, fcntl.LOCK_UN
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            while not self.held and time.monotonic() < deadline:
                try:
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self.held = True
                except BlockingIOError:
                    time.sleep(LOOK_SECONDS)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> _Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self._flock(self._descriptor, self._unlock)  # a process that was forked meanwhile has the descriptor, too
        os.close(self._descriptor)

    def last_failure(self) -> tuple[float, str]:
        _, *failure = os.pread(self._descriptor, 8192, 0).decode(errors="replace").split("\n", 2)
        try:
            return float(failure[0]), failure[1]
        except (ValueError, IndexError):
            return 0.0, ""

    def write(self, owner: Process, error: str = "") -> None:
        os.ftruncate(self._descriptor, 0)
        lines = [f"{owner} {_namespace()}", *([str(time.monotonic()), error] if error else [])]
        os.pwrite(self._descriptor, "\n".join(lines).encode(), 0)


def jvm_pid(proc: Path = PROC) -> int | None:
    """Return the id of the JVM above this process, or None if there is none, or if /proc does not say."""
    pid = os.getppid()
    while pid and (fields := _fields_of(pid, proc)) is not None:
        if fields[0] == "java":
            return pid
        pid = int(fields[2])
    return None


def _is_hidden(pid: int) -> bool:
    """Return whether this user has a process with this id that /proc does not show.

    A /proc that is mounted with hidepid hides processes that are not dumpable, as a daemon is, from all but root.
    """
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return not (PROC / str(pid)).exists()


def _fields_of(pid: int, proc: Path = PROC) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the name on (proc_pid_stat(5)); None if there is no such process."""
    try:
        name, _, rest = (proc / str(pid) / "stat").read_text().partition("(")[2].rpartition(")")
    except OSError:
        return None
    return [name, *rest.split()]


def _name_of(owner: Process, settings: DaemonSettings) -> str:
    """Return the name of a daemon's folder and log, which differs for each owner, settings, release and access to AWS.

    The values of AWS's variables are secrets, so only the hash of all is used.
    """
    access = sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))
    boot = (PROC / "sys/kernel/random/boot_id").read_text()
    known = json.dumps([boot, _namespace(), *owner, __version__, *settings, access])
    return f"producerd-{os.geteuid()}-{hashlib.sha256(known.encode()).hexdigest()[:16]}"


def _namespace() -> str:
    """Return the namespace of this process's ids: containers may share a folder, and not the ids."""
    return os.readlink(PROC / "self/ns/pid")


def _folder(name: str) -> Path:
    """Return the folder of the socket, and make it if it is not there."""
    for number in range(NAMES):
        path = FOLDERS / (f"{name}-{number}" if number else name)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        if _is_private(path):
            return path
    raise ConfigurationError([f"daemon={{...}}: the first {NAMES} names of {FOLDERS / name} belong to somebody else"])


def _is_private(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _log_folder(owner: Process, folder: Path) -> Path:
    """Return where the executor's own logs are, otherwise the socket's folder.

    YARN names it in LOG_DIRS.  A standalone worker runs each executor in a folder of its own, with its stderr.
    """
    of_yarn = os.environ.get("LOG_DIRS", "").split(",")[0]
    if of_yarn and os.access(of_yarn, os.W_OK):
        return Path(of_yarn)
    with contextlib.suppress(OSError):
        of_executor = (PROC / str(owner.pid) / "cwd").readlink()
        if (of_executor / "stderr").is_file() and os.access(of_executor, os.W_OK):
            return of_executor
    return folder


def sweep() -> None:
    """Delete the folders of this user's daemons whose owner is gone: no task is left that could start them again."""
    for path in FOLDERS.glob(f"producerd-{os.geteuid()}-*"):
        with contextlib.suppress(OSError, ValueError):
            if _is_private(path):
                owner, namespace = (path / "lock").read_text().split("\n")[0].split(" ")
                if namespace == _namespace() and not Process(*map(int, owner.split(":"))).lives:
                    shutil.rmtree(path)


def _first_error(log: Path, start: int) -> str:
    """Return the line behind ``start`` that says why the daemon ended, or "" if there is none."""
    lines = _lines(log, start)
    said = [line for line in lines if line.startswith(FIRST_ERRORS) or " ERROR " in line]
    return (said or lines[-1:] or [""])[0][:MOST_LINE_CHARACTERS]


def _lines(log: Path, start: int) -> list[str]:
    """Return the lines of a log behind ``start``, of those in its last MiB."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - (1 << 20)))
        return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return []
