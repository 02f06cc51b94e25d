"""Commands in the foreground: one at a time, each in a process group of its own.

When ``./dev`` receives a signal, it passes the signal on and waits until the command has ended.  Whatever the command
started ends with it.  The exit code is then 128 + the signal's number.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys

GRACE_SECONDS = 20
"""Time that an interrupted command has to stop.  Spark needs some of it."""

_group = 0  # the process group that `run` waits for; -1 while the command is starting
_stopped_by = 0
_tidies_up = False


def handle_signals() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(signum, on_signal)


def on_signal(signum: int, _frame: object) -> None:
    """Pass the first signal on to the command.  At the second signal, or when the grace is over, kill the command."""
    global _stopped_by
    if not _group:
        sys.exit(128 + signum)
    signal_group(signal.SIGKILL if _stopped_by or signum == signal.SIGALRM else first_signal(signum))
    _stopped_by = _stopped_by or signum
    signal.alarm(GRACE_SECONDS)


def first_signal(signum: int) -> int:
    """Return the signal that lets the command end in order.  At SIGINT, pip and its like only print a traceback."""
    return signum if _tidies_up else signal.SIGTERM


def signal_group(signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of it has ended
        if _group > 0:
            os.killpg(_group, signum)


def run(
    command: list[str], env: dict[str, str] | None = None, *, stdin: str = "", show: str = "", tidies_up: bool = False
) -> int:
    """Run a command, kill what it leaves running, and return its exit code.

    With `show`, print only the lines of its output that match.  With `tidies_up`, the command receives Ctrl-C itself.
    """
    global _group, _tidies_up
    _group, _tidies_up, pipe = -1, tidies_up, subprocess.PIPE
    stdin_pipe, stdout_pipe = pipe if stdin else None, pipe if show else None
    with subprocess.Popen(command, env=env, text=True, process_group=0, stdin=stdin_pipe, stdout=stdout_pipe) as child:
        _group = child.pid
        if _stopped_by:  # while the command was starting
            signal_group(first_signal(_stopped_by))
        if child.stdin:
            child.stdin.write(stdin)
            child.stdin.close()
        for line in child.stdout or ():
            if match := re.match(show, line):
                print(f"  {match[1]} ...", flush=True)
        code = child.wait()
    signal_group(signal.SIGKILL)
    _group = 0
    if _stopped_by:
        sys.exit(128 + _stopped_by)
    return code
