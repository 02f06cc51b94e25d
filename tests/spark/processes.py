"""Processes that a test has started, and those that these have started: found in /proc, ended by their ids."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import NamedTuple


class Process(NamedTuple):
    pid: int
    parent: int
    session: int
    command: str

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(self.pid, signal.SIGKILL)


def processes() -> list[Process]:
    """Every process that has not ended."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended meanwhile
            with open(f"/proc/{name}/stat") as stat:
                state, parent, _, session = stat.read().rsplit(")", 1)[1].split()[:4]
            with open(f"/proc/{name}/cmdline") as line:
                command = line.read().replace("\0", " ").strip()
            if state not in "ZX":
                found.append(Process(int(name), int(parent), int(session), command))
    return found


def of_session(leader: int, command: str = "") -> list[Process]:
    """A process started with ``start_new_session=True`` and all that came of it, as Spark makes no sessions.

    Those whose command line has ``command`` in it.
    """
    return [process for process in processes() if process.session == leader and command in process.command]


def descendants(pid: int) -> list[Process]:
    every, found = processes(), [pid]
    for parent in found:
        found += [process.pid for process in every if process.parent == parent]
    return [process for process in every if process.pid in found[1:]]


def holds_unix_socket(process: Process) -> bool:
    """Whether it has a unix socket open, as a Python worker has that is connected to a daemon."""
    with open("/proc/net/unix") as table:
        inodes = {f"socket:[{line.split()[6]}]" for line in table.readlines()[1:]}
    with contextlib.suppress(OSError):
        folder = f"/proc/{process.pid}/fd"
        return any(os.readlink(f"{folder}/{number}") in inodes for number in os.listdir(folder))
    return False
