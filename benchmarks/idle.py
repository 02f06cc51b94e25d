"""Measure how soon a daemon serves, and what it uses while it sends nothing: ``./dev bench idle``.

The benchmark starts a daemon as a service manager does, a few times.  Then it watches one daemon that is left alone,
scraped, and connected to idle clients.
"""

from __future__ import annotations

import argparse
import contextlib
import select
import socket
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from benchmarks.arguments import at_least, seconds_at_least
from benchmarks.harness import START_SECONDS, Rig, parser, report, rig, serve_with, started
from benchmarks.load import STREAM, connected
from benchmarks.machine import conditions
from benchmarks.processes import cpu_seconds, memory, wakeups
from benchmarks.table import say
from producerd.demo.children import Child, ChildFailed
from producerd.demo.ports import free_port
from producerd.wire.columns import lay_out

STARTS: Final = 7
SECONDS: Final = 60.0
SESSIONS: Final = 10
SCRAPE_SECONDS: Final = 15.0
WATCHDOG_SECONDS: Final = 30
"""Interval of the watchdog, as in the unit in deploy/systemd."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results.  A field that has no meaning for a case is None.

    The case "imports alone" is a process that imports the daemon's modules and rests.  The case "start" has medians
    over the starts, from the call that starts the process to its READY=1.  ``pss_bytes`` is ``rss_bytes`` with a
    proportional share of memory that several processes use.  ``rss_ratio_to_imports`` is ``rss_bytes`` divided by the
    RSS of "imports alone".
    """

    case: str
    start_seconds: float | None = None
    start_cpu_seconds: float | None = None
    cpu_percent: float | None = None
    wakeups_per_second: float | None = None
    rss_bytes: int = 0
    pss_bytes: int = 0
    rss_ratio_to_imports: float | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    """The benchmark's processes.  ``ear`` is the service manager's socket."""

    rig: Rig
    ear: socket.socket

    def cases(self, starts: int, seconds: float) -> Iterator[Figures]:
        """Yield the figures of the imports alone, and of a daemon that starts and rests."""
        alone = self._imports()
        for row in (alone, self._starts(starts), *self._rests(seconds)):
            yield replace(row, rss_ratio_to_imports=round(row.rss_bytes / alone.rss_bytes, 2))

    def _imports(self) -> Figures:
        child = self.rig.children.start("imports", ["-c", "import producerd.runtime.app; print(flush=True); input()"])
        child.line(START_SECONDS)
        rss, pss = memory(child.process.pid)
        return Figures("imports alone", rss_bytes=rss, pss_bytes=pss)

    def _starts(self, count: int) -> Figures:
        say(f"start: {count} times ...")
        with self._daemon():
            pass  # the first start may compile modules
        runs = []
        for _ in range(count):
            began = time.perf_counter()
            with self._daemon() as daemon:
                seconds, pid = time.perf_counter() - began, daemon.process.pid
                runs.append((seconds, cpu_seconds(pid), *memory(pid)))
        seconds, cpu, rss, pss = map(statistics.median, zip(*runs, strict=True))
        return Figures("start", round(seconds, 2), round(cpu, 2), rss_bytes=int(rss), pss_bytes=int(pss))

    def _rests(self, seconds: float) -> Iterator[Figures]:
        """Yield the figures of one daemon, which rests for this long in each case."""
        address = f"127.0.0.1:{free_port()}"
        url = f"http://{address}/metrics"
        with self._daemon(metrics_listen=address) as daemon, contextlib.ExitStack() as sessions:
            yield self._watched(daemon, "alone", seconds)
            yield self._watched(daemon, "scraped", seconds, url)
            for _ in range(SESSIONS):
                session = sessions.enter_context(connected(self.rig.socket))
                session.put(STREAM, lay_out([b"key"], [b"data"]), START_SECONDS)
                session.flush(START_SECONDS)
            yield self._watched(daemon, f"{SESSIONS} sessions", seconds)
            yield self._watched(daemon, f"{SESSIONS} sessions, scraped", seconds, url)

    def _watched(self, daemon: Child, case: str, seconds: float, scraped: str = "") -> Figures:
        say(f"{case}: {seconds:.0f} s ...")
        pid, began = daemon.process.pid, time.monotonic()
        cpu, woken = cpu_seconds(pid), wakeups(pid)
        next_scrape = began if scraped else inf
        while (left := began + seconds - time.monotonic()) > 0:
            if time.monotonic() >= next_scrape:
                next_scrape += SCRAPE_SECONDS
                with urllib.request.urlopen(scraped, timeout=SCRAPE_SECONDS) as answer:
                    answer.read()
            self._hear(min(left, 1.0))
            daemon.poll_line(0.0)  # it raises if the daemon has ended
        took = time.monotonic() - began
        cpu_percent = round(100 * (cpu_seconds(pid) - cpu) / took, 3)
        return Figures(case, None, None, cpu_percent, round((wakeups(pid) - woken) / took, 1), *memory(pid))

    @contextlib.contextmanager
    def _daemon(self, **others: str) -> Iterator[Child]:
        """Start a daemon with default settings, wait until it is ready, and stop it after the block."""
        settings = {"socket": self.rig.socket, "endpoint_url": self.rig.endpoint_url, "metrics_listen": "127.0.0.1:0"}
        watched = {"NOTIFY_SOCKET": self.ear.getsockname(), "WATCHDOG_USEC": str(WATCHDOG_SECONDS * 1_000_000)}
        with started(self.rig.children, serve_with(settings | others), self.rig.trust | watched) as daemon:
            deadline = time.monotonic() + START_SECONDS
            while "READY=1" not in self._hear(0.1):
                daemon.poll_line(0.0)  # it raises if the daemon has ended
                if time.monotonic() > deadline:
                    raise ChildFailed(f"the daemon was not ready within {START_SECONDS:.0f} s", daemon.log)
            yield daemon
        while self._hear(0.0):
            pass  # drop its last messages before the next daemon starts

    def _hear(self, within_seconds: float) -> str:
        """Return the daemon's next message to the service manager, or ""."""
        if not select.select([self.ear], [], [], within_seconds)[0]:
            return ""
        return self.ear.recv(4096).decode()


def measured(options: argparse.Namespace) -> Iterator[Figures]:
    say(conditions(f"default settings, TLS, a watchdog of {WATCHDOG_SECONDS} s"))
    with rig() as ready, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(ready.work / "notify.sock"))
        yield from Bench(ready, ear).cases(options.starts, options.seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser("idle", "Measure a daemon that has nothing to do.  Only root may read a daemon's memory.")
    made.add_argument("--starts", type=at_least(1), default=STARTS, help="starts for the medians (%(default)s)")
    made.add_argument(
        "--seconds", type=seconds_at_least(1), default=SECONDS, help="of each case (%(default)g); scrapes come every 15"
    )
    options = made.parse_args(arguments)
    return report(Figures, measured(options), (ChildFailed, PermissionError), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
