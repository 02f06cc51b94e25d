"""Processes that end with the demo, whatever ends it.

Each child leads a session of its own, so that Ctrl-C reaches the demo alone.  One more process, the warden, is told
every session and reads a pipe that the demo holds: when that closes, because `Children` is left or because the demo
was killed outright, it kills whatever is left of them.  (Linux's PR_SET_PDEATHSIG is not enough: it ends Spark's
driver, but a JVM that was still starting then waits for ever.)

A child talks on its standard input and output in lines; what else it and its own children print goes to its log.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TextIO

INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TAIL_LINES: Final = 25
GRACE_SECONDS: Final = 5.0  # for what was killed to be gone


class ChildFailed(Exception):
    """A child ended, or was silent, where it should have said something."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message)
        text = log.read_text(errors="replace")  # now: the log is in a temporary folder
        lines = [line for line in text.splitlines() if not line.startswith("\tat ")]  # Java's say nothing to a user
        self.tail = "\n".join(f"  | {line}" for line in lines[-TAIL_LINES:])


@dataclass(slots=True)
class Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path
    _unread: bytes = field(default=b"", init=False)

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: the next `line` says so
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def line(self, within_seconds: float) -> str:
        """The next line it says.  Raises `ChildFailed` if it ends or stays silent."""
        deadline = time.monotonic() + within_seconds
        while (line := self.poll_line(max(0.0, deadline - time.monotonic()))) is None:
            if time.monotonic() >= deadline:
                raise ChildFailed(f"{self.name} said nothing for {within_seconds:.0f} s", self.log)
        return line

    def poll_line(self, within_seconds: float) -> str | None:
        """The next line, or None if there is none yet.  Raises `ChildFailed` if there will be none."""
        assert self.process.stdout is not None
        if b"\n" not in self._unread:
            pipe = self.process.stdout.fileno()
            if not select.select([pipe], [], [], within_seconds)[0]:
                return None
            said = os.read(pipe, 65_536)
            if not said:
                raise ChildFailed(f"{self.name} ended with exit code {self.process.wait()}", self.log)
            self._unread += said
            if b"\n" not in self._unread:
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def stop(self, within_seconds: float) -> int | None:
        """Ask it to end.  Its exit code, or None if it did not end in time."""
        self.process.terminate()
        return self.ended(within_seconds)

    def ended(self, within_seconds: float) -> int | None:
        """Its exit code, or None if it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(within_seconds)
        return None


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A signal's handler that raises is called at the end: between its start and its entry with the warden nobody would
    know a process."""
    handlers = {}
    if threading.current_thread() is threading.main_thread():  # where handlers are called
        handlers = {each: handler for each in INTERRUPTS if callable(handler := signal.getsignal(each))}
    caught: list[int] = []
    for each in handlers:
        signal.signal(each, lambda number, _: caught.append(number))
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        for number in caught[:1]:
            handlers[signal.Signals(number)](number, None)


@dataclass(slots=True)
class Children:
    """A context: at its end none of them is left."""

    logs: Path
    environ: Mapping[str, str]
    _all: list[Child] = field(default_factory=list, init=False)
    _warden: subprocess.Popen[bytes] = field(init=False)

    def start(self, name: str, arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> Child:
        """Run Python with these arguments."""
        log = self.logs / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as file, _undisturbed():
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**self.environ, **(environ or {})},
                start_new_session=True,
            )
            assert self._warden.stdin is not None
            self._warden.stdin.write(b"%d\n" % process.pid)
            self._warden.stdin.flush()
            child = Child(name, process, log)
            self._all.append(child)
        return child

    def __enter__(self) -> Self:
        self._warden = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, start_new_session=True, env=dict(self.environ)
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._warden.stdin is not None
        self._warden.stdin.close()
        self._warden.wait()
        for child in self._all:
            child.process.kill()  # no more than the warden did, if that lives
            child.process.wait()
            for pipe in (child.process.stdin, child.process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()


def take_stdout() -> TextIO:
    """Called by a child: the pipe to the demo.  Print goes to the log from now on, as does what Java says."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return pipe


def wait_and_end(sessions_by_line: Iterable[str]) -> None:
    """The warden: end every session named, once the pipe on which they are named is closed, by whatever closed it."""
    sessions = {int(line) for line in sessions_by_line}
    deadline = time.monotonic() + GRACE_SECONDS
    while _kill_sessions(sessions) and time.monotonic() < deadline:
        time.sleep(0.02)


def _kill_sessions(sessions: set[int]) -> bool:
    """Kill what is left of them.  Whether anything was."""
    found = False
    for pid in _members(sessions):
        found = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def _members(sessions: set[int]) -> Iterator[int]:
    """Processes of these sessions.  Process groups are not enough: pyspark's workers make one of their own."""
    if not Path("/proc/self/stat").exists():
        yield from _members_by_ps(sessions)
        return
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                state, _parent, _group, session, *_ = Path(entry.path, "stat").read_text().rpartition(") ")[2].split()
                if int(session) in sessions and state not in "ZX":
                    yield int(entry.name)


def _members_by_ps(sessions: set[int]) -> Iterator[int]:
    listed = subprocess.run(["ps", "-axo", "pid=,sess=,pgid="], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        pid, session, group = line.split()
        if sessions & {int(part) for part in (session, group) if part.isdigit()}:
            yield int(pid)


if __name__ == "__main__":
    wait_and_end(sys.stdin)
