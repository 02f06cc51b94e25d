"""Start daemons and watch one of them.

CPU time is the time that the kernel has charged to the process, in nanoseconds, so other work on the machine changes it
little.  A wake-up is a voluntary context switch: a thread that had gone to sleep runs again.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import select
import socket
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.spark.cost import cpu_seconds
from producerd.demo.children import Child, ChildFailed, Children
from producerd.demo.scenario import environment, folder, free_port
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import serve_in_thread
from producerd.wire.columns import lay_out
from producerd.wire.messages import Hello
from spark_client.connection import Connection

STREAM: Final = "flights"
SESSIONS: Final = 10
SCRAPE_SECONDS: Final = 15.0
WATCHDOG_SECONDS: Final = 30
"""Interval of the watchdog, as in the unit in deploy/systemd."""
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 20.0
PACKAGES: Final = ("aiobotocore", "aiohttp", "numpy", "pyarrow", "pydantic", "uvloop")


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results.  A field that has no meaning for a case is None.

    The case "imports alone" is a process that imports the daemon's modules and rests.  The case "start" has medians
    over the
    starts, from the call that starts the process to its READY=1.  ``pss_bytes`` is ``rss_bytes`` with a proportional
    share
    of memory that several processes use.  ``rss_ratio_to_imports`` is ``rss_bytes`` divided by the RSS of "imports
    alone".
    """

    case: str
    start_seconds: float | None = None
    start_cpu_seconds: float | None = None
    cpu_percent: float | None = None
    wakeups_per_second: float | None = None
    rss_bytes: int | None = None
    pss_bytes: int | None = None
    rss_ratio_to_imports: float | None = None


class Used(NamedTuple):
    """The CPU time and the wake-ups of a process up to a moment."""

    at: float
    cpu_seconds: float
    wakeups: int


def used(pid: int) -> Used:
    tasks = Path(f"/proc/{pid}/task").glob("*/status")
    return Used(time.monotonic(), cpu_seconds(pid), sum(_numbers(task)["voluntary_ctxt_switches"] for task in tasks))


def memory(pid: int) -> tuple[int, int]:
    """Return RSS and PSS of a process in bytes."""
    try:
        kib = _numbers(Path(f"/proc/{pid}/smaps_rollup"))
    except PermissionError:
        raise SystemExit("bench idle: run it as root, because only root may read a daemon's memory") from None
    return kib["Rss"] * 1024, kib["Pss"] * 1024


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers in the lines ``name: number [unit]``."""
    return {name: int(number) for name, number in re.findall(r"^(\w+):\s+(\d+)\b", path.read_text(), re.MULTILINE)}


@dataclass(frozen=True, slots=True)
class Bench:
    """The benchmark's processes.  ``ear`` is the service manager's socket, and ``say`` reports the progress."""

    children: Children
    work: Path
    ear: socket.socket
    endpoint_url: str
    say: Callable[[str], None]

    @property
    def conditions(self) -> str:
        versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
        return (
            f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f} before; Python "
            f"{platform.python_version()}, {versions}; default settings, a watchdog of {WATCHDOG_SECONDS} s"
        )

    def cases(self, starts: int, seconds: float) -> list[Figures]:
        """Return the figures of the imports alone, and of a daemon that starts and rests."""
        alone = self._imports()
        rows = [alone, self._starts(starts), *self._rests(seconds)]
        assert alone.rss_bytes is not None
        return [replace(row, rss_ratio_to_imports=round((row.rss_bytes or 0) / alone.rss_bytes, 2)) for row in rows]

    def _imports(self) -> Figures:
        child = self.children.start("imports", ["-c", "import producerd.runtime.app; print(flush=True); input()"])
        child.line(START_SECONDS)
        rss, pss = memory(child.process.pid)
        return Figures("imports alone", rss_bytes=rss, pss_bytes=pss)

    def _starts(self, count: int) -> Figures:
        self.say(f"start: {count} times ...")
        with self.daemon():
            pass  # the first start may compile modules
        runs = []
        for _ in range(count):
            began = time.perf_counter()
            with self.daemon() as daemon:
                seconds, pid = time.perf_counter() - began, daemon.process.pid
                runs.append((seconds, cpu_seconds(pid), *memory(pid)))
        seconds, cpu, rss, pss = map(statistics.median, zip(*runs, strict=True))
        return Figures("start", round(seconds, 2), round(cpu, 2), rss_bytes=int(rss), pss_bytes=int(pss))

    def _rests(self, seconds: float) -> Iterator[Figures]:
        """Yield the figures of one daemon, which rests for this long in each case."""
        port = free_port()
        with self.daemon(metrics_listen=f"127.0.0.1:{port}") as daemon:
            url = f"http://127.0.0.1:{port}/metrics"
            yield self._watched(daemon, "alone", seconds)
            yield self._watched(daemon, "scraped", seconds, url)
            with self._sessions():
                yield self._watched(daemon, f"{SESSIONS} sessions", seconds)
                yield self._watched(daemon, f"{SESSIONS} sessions, scraped", seconds, url)

    def _watched(self, daemon: Child, case: str, seconds: float, scraped: str = "") -> Figures:
        self.say(f"{case}: {seconds:.0f} s ...")
        pid = daemon.process.pid
        before = used(pid)
        next_scrape = before.at if scraped else inf
        while (left := before.at + seconds - time.monotonic()) > 0:
            if time.monotonic() >= next_scrape:
                next_scrape += SCRAPE_SECONDS
                with urllib.request.urlopen(scraped, timeout=SCRAPE_SECONDS) as answer:
                    answer.read()
            self._hear(min(left, 1.0))
            daemon.poll_line(0.0)  # it raises if the daemon has ended
        after = used(pid)
        took = after.at - before.at
        cpu_percent = round(100 * (after.cpu_seconds - before.cpu_seconds) / took, 3)
        wakeups = round((after.wakeups - before.wakeups) / took, 1)
        return Figures(case, None, None, cpu_percent, wakeups, *memory(pid))

    @contextlib.contextmanager
    def daemon(self, **settings: str) -> Iterator[Child]:
        """Start a daemon and wait until it is ready; stop it after the block.  Raise `ChildFailed`."""
        all_settings = {"socket": self._socket, "endpoint_url": self.endpoint_url, "metrics_listen": "127.0.0.1:0"}
        sets = [f"--set={name}={value}" for name, value in {**all_settings, **settings}.items()]
        environ = {"NOTIFY_SOCKET": self.ear.getsockname(), "WATCHDOG_USEC": str(WATCHDOG_SECONDS * 1_000_000)}
        daemon = self.children.start("daemon", ["-m", "producerd", "serve", *sets], environ)
        deadline = time.monotonic() + START_SECONDS
        while "READY=1" not in self._hear(0.1):
            daemon.poll_line(0.0)  # it raises if the daemon has ended
            if time.monotonic() > deadline:
                raise ChildFailed(f"the daemon was not ready within {START_SECONDS:.0f} s", daemon.log)
        yield daemon
        if (code := daemon.stop(STOP_SECONDS)) != 0:
            raise ChildFailed(f"the daemon ended with exit code {code}", daemon.log)
        while self._hear(0.0):
            pass  # drop its last messages before the next daemon starts

    def _hear(self, within_seconds: float) -> str:
        """Return the daemon's next message to the service manager, or ""."""
        if not select.select([self.ear], [], [], within_seconds)[0]:
            return ""
        return self.ear.recv(4096).decode()

    @contextlib.contextmanager
    def _sessions(self) -> Iterator[None]:
        """Connect clients that each send a record and then rest."""
        with contextlib.ExitStack() as open_ones:
            for number in range(SESSIONS):
                hello = Hello(1, 1, client="bench", pid=os.getpid())
                session = open_ones.enter_context(Connection(hello, [self._socket]))
                session.open(STREAM, START_SECONDS)
                session.put(STREAM, lay_out([b"key-%d" % number], [b"data"]), START_SECONDS)
                session.flush(START_SECONDS)
            yield

    @property
    def _socket(self) -> str:
        return str(self.work / "daemon.sock")


@contextlib.contextmanager
def bench(say: Callable[[str], None]) -> Iterator[Bench]:
    """Start everything that a daemon needs, and end all of it after the block."""
    kinesis = FakeKinesis()
    kinesis.create_stream(STREAM, shards=4)
    with (
        serve_in_thread(kinesis) as server,
        folder() as work,
        Children(work, environment(work)) as children,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear,
    ):
        ear.bind(str(work / "notify.sock"))
        yield Bench(children, work, ear, server.url, say)
