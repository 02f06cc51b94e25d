"""Network and mount namespaces that stand for the machines of a cluster, and the programs that run in them.

A namespace lives as long as a process that sleeps in it.  The ids of processes are in files, so that a later command
finds them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.daemon import ROOT

FOLDER: Final = ROOT / "build/cluster"
RUN: Final = FOLDER / "run"
END_SECONDS: Final = 10.0


class Failed(Exception):
    """A command in a place failed, or did not come to its end."""


def until(holds: Callable[[], object], what: str, seconds: float) -> None:
    """Wait until something holds, whatever it raises meanwhile."""
    deadline = time.monotonic() + seconds
    while True:
        why = ""
        try:
            if holds():
                return
        except (Failed, OSError, KeyError, IndexError, StopIteration) as error:
            why = f" ({error})"
        if time.monotonic() > deadline:
            raise Failed(f"not within {seconds:g} s: {what}{why}")
        time.sleep(0.5)


def pid_of(name: str) -> int | None:
    """Return the id of a process that was started under this name, if it still runs."""
    try:
        pid = int((RUN / f"{name}.pid").read_text())
        with contextlib.suppress(ChildProcessError):  # an earlier command has started it
            os.waitpid(pid, os.WNOHANG)
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid


def end(name: str, number: int = signal.SIGTERM) -> None:
    """End a process that was started under this name."""
    if pid := pid_of(name):
        os.kill(pid, number)
        deadline = time.monotonic() + END_SECONDS
        while pid_of(name) and time.monotonic() < deadline:
            time.sleep(0.1)
        if pid_of(name):
            os.kill(pid, signal.SIGKILL)
    (RUN / f"{name}.pid").unlink(missing_ok=True)


class Place:
    """A machine of the cluster, by its name and address."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.folder = RUN / name

    @property
    def holder(self) -> int:
        """The process that keeps the namespaces."""
        if pid := pid_of(f"{self.name}.holder"):
            return pid
        raise Failed(f"{self.name} is not there: ./dev cluster up")

    def make(self) -> bool:
        """Make the namespaces, and return whether they were not there yet."""
        if pid_of(f"{self.name}.holder"):
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        command = ["unshare", "--net", "--mount", "--propagation", "private", "sleep", "infinity"]
        self._begin(f"{self.name}.holder", command)
        time.sleep(0.3)
        for order in ("mount --make-rshared /", "ip link set lo up", "sysctl -qw net.ipv4.ip_forward=1"):
            self.run(*order.split())
        return True

    def run(self, *command: str | Path, text: str = "", seconds: float = 120.0) -> str:
        """Return what a command says.  Raise `Failed` with its errors."""
        try:
            done = subprocess.run(
                self._inside(*command), input=text, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{command}: not within {seconds:g} s") from None
        if done.returncode:
            raise Failed(f"{' '.join(map(str, command))}: exit code {done.returncode}: {done.stderr[-2_000:]}")
        return done.stdout

    def start(self, name: str, *command: str | Path) -> None:
        """Start a program that goes on, unless it runs already."""
        if not pid_of(name):
            self._begin(name, self._inside(*command))

    def _inside(self, *command: str | Path) -> list[str]:
        return ["nsenter", "-t", str(self.holder), "-n", "-m", "--", *map(str, command)]

    def _begin(self, name: str, command: list[str]) -> None:
        (RUN / "log").mkdir(parents=True, exist_ok=True)
        with (RUN / "log" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        (RUN / f"{name}.pid").write_text(str(process.pid))
