"""Fill daemons until they accept nothing more, and read their resident memory.

Each case has an endpoint and a daemon of its own.  Callers are threads that put the same frame again and again, until
there has been no room for `BLOCKED_SECONDS`.  Then the endpoint recovers and the daemon delivers everything.  A run is
good only if every record is acknowledged, and the endpoint has stored no more records than were put, except possible
duplicates that the daemon reported.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from benchmarks.daemon.client import KEY_BYTES, rows
from benchmarks.daemon.run import FASTER_THAN_ANY_SHARD, RecordsWrong, forget_peak, peak_rss_bytes
from benchmarks.idle.run import memory
from benchmarks.machine import machine
from benchmarks.memory import job as sorting
from benchmarks.memory import trimming
from benchmarks.memory.endpoint import STREAM, Endpoint, start_endpoint
from benchmarks.sink import MARK
from producerd.config import Config, StreamSettings, load
from producerd.config.memory import (
    CONNECTION_BYTES,
    IDLE_BYTES,
    IN_FLIGHT_FACTOR,
    JOB_FACTOR,
    LANE_BYTES,
    QUEUED_FACTOR,
    WAITING_FRAME_BYTES,
    mib,
    needed_bytes,
)
from producerd.config.tuning import TUNING
from producerd.demo.children import Child, ChildFailed, Children
from producerd.demo.scenario import environment, folder, free_port
from producerd.errors import BackpressureTimeout
from producerd.wire import messages
from producerd.wire.columns import FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES, Columns, lay_out
from spark_client.connection import Connection

STUCK_BYTES: Final = (100, 1_024, 10_240, 102_400)
LAGGING_BYTES: Final = 10_240
LARGE_BYTES: Final = 1_000_000
LARGE_RECORDS: Final = 24
"""Number of large records, each of which is a request."""
SHARDS: Final = 16
MOST_DIGITS: Final = 39
"""Digits of the longest hash key."""
SESSIONS: Final = 12
"""Number of sessions.  Their windows of 8 MiB together exceed a stream's queue."""
LAGGING_SESSIONS: Final = 128
"""Number of sessions with a lagging shard.  A frame with rows for all shards waits in its session's window for it."""
CONNECTIONS: Final = 250
MANY_SHARDS: Final = 4_000
ROUNDS: Final = 5
"""Number of rounds of filling and draining.  The memory that the allocator keeps grows only during the first ones."""
LAGGING_ROUNDS: Final = 2
"""Number of rounds with a lagging shard.  In each round 16 times its queue passes through the daemon."""
BLOCKED_SECONDS: Final = 2.0
START_SECONDS: Final = 60.0
FILL_SECONDS: Final = 120.0
DRAIN_SECONDS: Final = 120.0
REST_SECONDS: Final = 1.0
STOP_SECONDS: Final = 20.0
PACKAGES: Final = ("aiobotocore", "aiohttp", "numpy", "pyarrow", "pydantic", "uvloop")
THROTTLED: Final = {"kind": "throttle", "shard_id": "shardId-000000000000"}
HANGING: Final = {"kind": "hang"}


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results, in bytes.  A field that has no meaning for a case is None.

    ``rss_bytes`` is the highest resident memory during the case.  ``formula_bytes`` is the memory that the law allows
    with
    these settings.  If the case shows a single term of the law, it is "idle" plus that term.  ``grown_bytes`` is the
    difference between ``rss_bytes`` and the memory before the case.  ``charged_bytes`` are the bytes that the daemon
    had
    accepted, and ``ratio_to_charged`` is ``grown_bytes`` divided by them.

    ``rss_after_drain_bytes`` is the resident memory after the daemon has delivered everything.
    ``rss_after_trim_bytes`` is
    the same after glibc has returned all freed memory, for which only this benchmark asks.
    """

    case: str
    record_bytes: int | None
    queue_limit_bytes: int | None
    charged_bytes: int | None
    rss_bytes: int
    formula_bytes: int
    grown_bytes: int | None = None
    ratio_to_charged: float | None = None
    rss_after_drain_bytes: int | None = None
    rss_after_trim_bytes: int | None = None


@dataclass(slots=True)
class Daemon:
    """A running daemon and its endpoint."""

    child: Child
    endpoint: Endpoint
    socket: str
    metrics_url: str

    @property
    def pid(self) -> int:
        return self.child.process.pid

    @property
    def rss_bytes(self) -> int:
        return memory(self.pid)[0]

    def gauge(self, name: str) -> int:
        with urllib.request.urlopen(self.metrics_url, timeout=START_SECONDS) as answer:
            found = re.findall(rf"^producerd_{name}{{.*}} (\S+)$", answer.read().decode(), re.MULTILINE)
        return int(sum(map(float, found)))

    def trimmed_rss_bytes(self) -> int:
        self.child.process.send_signal(signal.SIGUSR2)
        time.sleep(REST_SECONDS)
        return self.rss_bytes

    def sessions(self, count: int) -> list[Connection]:
        hello = messages.Hello(1, 1, client="bench", pid=os.getpid())
        sessions = [Connection(hello, [self.socket], connect_timeout_seconds=START_SECONDS) for _ in range(count)]
        for session in sessions:
            session.open(STREAM, START_SECONDS)
        return sessions


@dataclass(frozen=True, slots=True)
class Bench:
    """The benchmark.  Every daemon has ``settings``, and the case `stuck` has records of ``record_bytes``."""

    settings: dict[str, Any]
    record_bytes: Sequence[int]
    rounds: int
    say: Callable[[str], None]

    @property
    def conditions(self) -> str:
        versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
        return (
            f"{machine()}; Python {platform.python_version()}, {versions}; "
            f"keys of {KEY_BYTES} bytes, TLS, shard_rate_fraction {FASTER_THAN_ANY_SHARD:,}, "
            f"{self.settings or 'other settings as they come'}; {self.rounds} rounds"
        )

    # ---- the whole

    def start(self) -> Figures:
        """Measure a daemon that has sent nothing."""
        with self._daemon(1) as daemon:
            return Figures("start", None, None, None, daemon.rss_bytes, IDLE_BYTES)

    def stuck(self, record_bytes: int) -> Figures:
        """Measure a daemon whose endpoint works at first, then accepts requests and answers none."""
        return self._filled(f"stuck, {record_bytes} B", record_bytes, 1, SESSIONS, HANGING, self.rounds)

    def lagging(self) -> Figures:
        """Measure a daemon with keys on 16 shards, of which one throttles everything."""
        name = f"one lagging shard of {SHARDS}"
        return self._filled(name, LAGGING_BYTES, SHARDS, LAGGING_SESSIONS, THROTTLED, min(self.rounds, LAGGING_ROUNDS))

    def _filled(
        self, case: str, record_bytes: int, shards: int, sessions: int, fault: dict[str, Any], rounds: int
    ) -> Figures:
        config = self.config()
        with self._daemon(shards) as daemon:
            before = daemon.rss_bytes
            callers = daemon.sessions(sessions)
            largest = callers[-1].largest_frame(STREAM)  # the more sessions, the smaller
            frame = full_frame(*largest, record_bytes)
            at_once(callers, lambda caller: put_some(caller, frame, 1))
            charged = peak = after = 0
            for number in range(rounds):
                forget_peak(daemon.pid)
                daemon.endpoint.set_faults(fault)
                at_once(callers, lambda caller: put_until_blocked(caller, frame))
                charged = max(charged, daemon.gauge("queue_bytes"))
                peak = max(peak, peak_rss_bytes(daemon.pid))
                daemon.endpoint.set_faults()
                at_once(callers, lambda caller: caller.flush(DRAIN_SECONDS))
                time.sleep(REST_SECONDS)
                after = daemon.rss_bytes
                self.say(f"  {case}, round {number + 1}: {mib(peak)}, {mib(charged)} charged, {mib(after)} drained")
            trimmed = daemon.trimmed_rss_bytes()
            self._check(daemon, callers)
        grown = peak - before
        ratio = round(grown / charged, 2)
        limit, formula = config.defaults.queue_limit_bytes, needed_bytes(config).bytes
        return Figures(case, record_bytes, limit, charged, peak, formula, grown, ratio, after, trimmed)

    def _check(self, daemon: Daemon, callers: Sequence[Connection]) -> None:
        taken, stored = (sum(getattr(caller.tally, name) for caller in callers) for name in ("taken", "stored"))
        twice = sum(caller.tally.possible_duplicates for caller in callers)
        arrived = daemon.endpoint.stored()
        for caller in callers:
            caller.close()
        if not taken == stored <= arrived <= stored + twice:
            raise RecordsWrong(f"{taken:,} records were taken, {stored:,} acknowledged, and {arrived:,} arrived")

    # ---- the terms of the law, one by one

    def requests(self, *, read: bool) -> Figures:
        """Measure a daemon with as many large records in flight as possible, and nothing else.

        The endpoint either reads them and does not answer, or does not even read them.
        """
        with self._daemon(SHARDS) as daemon:
            callers = daemon.sessions(SESSIONS)
            small = frame_of(1, 1)
            for _ in range(StreamSettings().max_in_flight_requests):
                put_some(callers[0], small, 1)  # each answer lets the daemon send one more request at once
            before = daemon.rss_bytes
            forget_peak(daemon.pid)
            if read:
                daemon.endpoint.set_faults(HANGING)
            else:
                daemon.endpoint.never_read(True)
            at_once(callers, lambda caller: put_large(caller, LARGE_RECORDS // SESSIONS))
            time.sleep(BLOCKED_SECONDS)
            in_flight, charged = daemon.gauge("inflight_requests"), daemon.gauge("queue_bytes")
            peak = peak_rss_bytes(daemon.pid)
            daemon.endpoint.never_read(False)
            daemon.endpoint.set_faults()
            at_once(callers, lambda caller: caller.flush(DRAIN_SECONDS))
            time.sleep(REST_SECONDS)
            after, trimmed = daemon.rss_bytes, daemon.trimmed_rss_bytes()
            self._check(daemon, callers)
        name = f"{in_flight} requests that are {'not answered' if read else 'not read'}"
        formula = IDLE_BYTES + int(QUEUED_FACTOR * charged + IN_FLIGHT_FACTOR * in_flight * LARGE_BYTES)
        grown = peak - before
        return Figures(
            name, LARGE_BYTES, None, charged, peak, formula, grown, round(grown / max(1, charged), 2), after, trimmed
        )

    def job(self, record_bytes: int, shards: int) -> Figures:
        """Measure the sorting of the largest job that these settings allow."""
        config = self.config()
        job_bytes = config.defaults.queue_limit_bytes // 4 + TUNING.max_frame_bytes
        self.say(f"a job of {mib(job_bytes)}, {shards:,} shards ...")
        command = [sys.executable, "-m", sorting.__name__, *map(str, (job_bytes, record_bytes, shards))]
        grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        ratio = round(grown / job_bytes, 2)
        name = f"a job for {shards:,} shards"
        formula = IDLE_BYTES + JOB_FACTOR * job_bytes
        return Figures(name, record_bytes, None, job_bytes, IDLE_BYTES + grown, formula, grown, ratio)

    def connections(self) -> Iterator[Figures]:
        """Measure this many idle connections, then the same ones with as many waiting RESERVEs as each may have."""
        with self._daemon(1) as daemon, contextlib.ExitStack() as sockets:
            before = daemon.rss_bytes
            dialled = [sockets.enter_context(dialled_to(daemon.socket)) for _ in range(CONNECTIONS)]
            time.sleep(REST_SECONDS)
            rss, formula = daemon.rss_bytes, IDLE_BYTES + CONNECTIONS * CONNECTION_BYTES
            yield Figures(f"{CONNECTIONS} connections", None, None, None, rss, formula, rss - before)
            daemon.endpoint.set_faults(HANGING)
            waiting = TUNING.session_window_frames
            layout = frame_of(1, LARGE_BYTES).layout
            for connection in dialled:
                for frame_id in range(1, waiting + 1):
                    connection.sendall(messages.encode(messages.Reserve(frame_id, 1, layout)))
            time.sleep(BLOCKED_SECONDS)
            rss, charged = daemon.rss_bytes, daemon.gauge("queue_bytes")
            formula += int(CONNECTIONS * waiting * WAITING_FRAME_BYTES + QUEUED_FACTOR * charged)
            name = f"{CONNECTIONS} connections, {waiting} RESERVEs each"
            yield Figures(name, None, None, charged, rss, formula, rss - before)

    def lanes(self) -> Figures:
        """Measure what a stream of many shards needs, after at least one record for nearly each of them.

        Freed memory does not count, and the memory of a stream with one shard after the same records is subtracted.
        """
        trimmed = []
        for shards in (1, MANY_SHARDS):
            with self._daemon(shards) as daemon:
                callers = daemon.sessions(1)
                put_some(callers[0], frame_of(2 * MANY_SHARDS, 1), 1)
                time.sleep(REST_SECONDS)
                rss = daemon.rss_bytes
                trimmed.append(daemon.trimmed_rss_bytes())
                self._check(daemon, callers)
        name, formula = f"{MANY_SHARDS:,} lanes", IDLE_BYTES + MANY_SHARDS * LANE_BYTES
        return Figures(name, 1, None, 0, rss, formula, trimmed[1] - trimmed[0], None, rss, trimmed[1])

    # ---- inside

    def config(self) -> Config:
        return load(None, [f"{name}={value}" for name, value in self.settings.items()], {})

    @contextlib.contextmanager
    def _daemon(self, shards: int) -> Iterator[Daemon]:
        """Start a daemon with its endpoint, and end both after the block.  Raise `ChildFailed`."""
        with folder() as work, Children(work, environment(work)) as children:
            endpoint, port = start_endpoint(children, shards), free_port()
            settings = {
                "socket": work / "daemon.sock",
                "metrics_listen": f"127.0.0.1:{port}",
                "endpoint_url": endpoint.url,
                "shard_rate_fraction": FASTER_THAN_ANY_SHARD,
                **self.settings,
            }
            command = ["-m", trimming.__name__, "serve", *(f"--set={name}={value}" for name, value in settings.items())]
            child = children.start("daemon", command, {"AWS_CA_BUNDLE": endpoint.certificate})
            daemon = Daemon(child, endpoint, str(work / "daemon.sock"), f"http://127.0.0.1:{port}/metrics")
            deadline = time.monotonic() + START_SECONDS
            while b" serving " not in child.log.read_bytes():
                child.poll_line(0.05)  # it raises if the daemon has ended
                if time.monotonic() > deadline:
                    raise ChildFailed(f"the daemon did not serve within {START_SECONDS:.0f} s", child.log)
            try:
                yield daemon
            finally:
                child.poll_line(0.0)  # it raises if the daemon has ended, which explains the failure of its callers
            child.stop(STOP_SECONDS)


def frame_of(records: int, record_bytes: int) -> Columns:
    keys, data = rows(records, max(record_bytes, len(MARK)))
    return lay_out(keys, data)


def full_frame(largest_bytes: int, most_records: int, record_bytes: int) -> Columns:
    """Return a frame of as many records as fit, or one, spread evenly over all of `SHARDS`."""
    row_bytes = KEY_BYTES + MOST_DIGITS + record_bytes + RECORD_CHARGE_BYTES
    count = max(1, min((largest_bytes - FRAME_CHARGE_BYTES) // row_bytes, most_records))
    hash_keys: list[bytes | None] = [b"%d" % (number % SHARDS * 2**128 // SHARDS) for number in range(count)]
    keys, data = rows(count, record_bytes)
    return lay_out(keys, data, hash_keys)


def at_once(callers: Sequence[Connection], act: Callable[[Connection], object]) -> None:
    with ThreadPoolExecutor(len(callers)) as threads:
        list(threads.map(act, callers))


def put_some(caller: Connection, frame: Columns, count: int) -> None:
    """Put a frame this many times, and wait until all its records are acknowledged."""
    for _ in range(count):
        caller.put(STREAM, frame, START_SECONDS)
    caller.flush(DRAIN_SECONDS)


def put_large(caller: Connection, count: int) -> None:
    for _ in range(count):
        caller.put(STREAM, frame_of(1, LARGE_BYTES), START_SECONDS)


def put_until_blocked(caller: Connection, frame: Columns) -> None:
    """Put frames until there is no more room.  Raise `RecordsWrong` if there is always room."""
    ends = time.monotonic() + FILL_SECONDS
    with contextlib.suppress(BackpressureTimeout):
        while time.monotonic() < ends:
            caller.put(STREAM, frame, BLOCKED_SECONDS)
        raise RecordsWrong(f"a caller was not blocked within {FILL_SECONDS:.0f} s")


@contextlib.contextmanager
def dialled_to(path: str) -> Iterator[socket.socket]:
    """Return a session that has opened the stream."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(messages.encode(messages.Hello(1, 1, client="bench", pid=os.getpid())))
        connection.sendall(messages.encode(messages.Open(1, STREAM)))
        yield connection
