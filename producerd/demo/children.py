"""Start processes that end with the demo, even if the demo is killed.

Each child leads a session of its own, so that Ctrl-C reaches only the demo.  One more process, the warden, reads the
number of every session from a pipe.  The pipe closes when the demo leaves `Children` or is killed.  Then the warden
kills all processes that are left in these sessions.  Linux's PR_SET_PDEATHSIG is not enough: it ends Spark's driver,
but a JVM that is still starting then waits forever.

A child reads and writes lines on its standard input and output.  Everything else that it prints goes to its log.
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
GRACE_SECONDS: Final = 5.0
"""Time in which killed processes must disappear."""


class ChildFailed(Exception):
    """A child ended or stayed silent when it should have written a line.  ``tail`` has the end of its log."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message)
        text = log.read_text(errors="replace")  # now, because the log is in a temporary folder
        lines = [line for line in text.splitlines() if not line.startswith("\tat ")]  # Java's stack traces do not help
        self.tail = "\n".join(f"  | {line}" for line in lines[-TAIL_LINES:])


@dataclass(slots=True)
class Child:
    """A running child: it reads and writes lines, and logs everything else to a file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    _unread: bytes = field(default=b"", init=False)

    def tell(self, line: str) -> None:
        """Write a line to the child, which may have ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and the next `line` reports it
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def line(self, within_seconds: float) -> str:
        """Return the child's next line.  Raise `ChildFailed` if the child ends or stays silent."""
        deadline = time.monotonic() + within_seconds
        while (line := self.poll_line(max(0.0, deadline - time.monotonic()))) is None:
            if time.monotonic() >= deadline:
                raise ChildFailed(f"{self.name} said nothing for {within_seconds:.0f} s", self.log)
        return line

    def poll_line(self, within_seconds: float) -> str | None:
        """Return the child's next line, or None if there is none yet.  Raise `ChildFailed` if the child has ended."""
        assert self.process.stdout is not None
        if b"\n" not in self._unread:
            pipe = self.process.stdout.fileno()
            if not select.select([pipe], [], [], within_seconds)[0]:
                return None
            read = os.read(pipe, 65_536)
            if not read:
                raise ChildFailed(f"{self.name} ended with exit code {self.process.wait()}", self.log)
            self._unread += read
            if b"\n" not in self._unread:
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def stop(self, within_seconds: float) -> int | None:
        """Send SIGTERM.  Return the exit code, or None if the child does not end in time."""
        self.process.terminate()
        return self.ended(within_seconds)

    def ended(self, within_seconds: float) -> int | None:
        """Return the exit code, or None if the child still runs after this time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(within_seconds)
        return None


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Call handlers of signals only after the block.

    A handler may raise.  Between the start of a process and its entry with the warden, the process would be left
    behind.
    """
    handlers = {}
    if threading.current_thread() is threading.main_thread():  # the only thread in which Python calls handlers
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
    """A context that starts children and, at its end, leaves none of them running."""

    logs: Path
    environ: Mapping[str, str]
    _all: list[Child] = field(default_factory=list, init=False)
    _warden: subprocess.Popen[bytes] = field(init=False)

    def start(self, name: str, arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> Child:
        """Start Python with these arguments as a child with this name."""
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
            child.process.kill()  # the warden has done so already, unless it was killed itself
            child.process.wait()
            for pipe in (child.process.stdin, child.process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()


def take_stdout() -> TextIO:
    """Return the pipe to the demo, in a child.  From now on the output of print and of Java goes to the log."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return pipe


def wait_and_end(sessions_by_line: Iterable[str]) -> None:
    """Be the warden: read the sessions until the pipe closes, then end all their processes."""
    sessions = {int(line) for line in sessions_by_line}
    deadline = time.monotonic() + GRACE_SECONDS
    while _kill_sessions(sessions) and time.monotonic() < deadline:
        time.sleep(0.02)


def _kill_sessions(sessions: set[int]) -> bool:
    """Kill the processes of these sessions, and return whether there were any."""
    found = False
    for pid in _members(sessions):
        found = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def _members(sessions: set[int]) -> Iterator[int]:
    """Yield the processes of these sessions.  Groups are not enough: pyspark's workers make groups of their own."""
    if not Path("/proc/self/stat").exists():
        yield from _members_by_ps(sessions)
        return
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # the process has just ended
                state, _parent, _group, session, *_ = Path(entry.path, "stat").read_text().rpartition(") ")[2].split()
                if int(session) in sessions and state not in "ZX":
                    yield int(entry.name)


def _members_by_ps(sessions: set[int]) -> Iterator[int]:
    listed = subprocess.run(["ps", "-axo", "pid=,sess=,pgid="], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        pid, session, group = line.split()
        if sessions & {int(number) for number in (session, group) if number.isdigit()}:
            yield int(pid)


if __name__ == "__main__":
    wait_and_end(sys.stdin)
