"""Measure the daemon's memory, and compare it with its own accounting and its limit: ``./dev bench memory``.

Each case has a daemon and a fake Kinesis of its own.  Callers are threads that put the same frame again and again,
until there has been no room for `BLOCKED_SECONDS`.  Then the endpoint recovers and the daemon delivers everything.  A
run is good only if every record is acknowledged, and the endpoint has stored no more records than were put, except
possible duplicates that the daemon reported.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.arguments import MOST_RECORD_BYTES, assignment, at_least
from benchmarks.harness import (
    FASTER_THAN_ANY_SHARD,
    START_SECONDS,
    RecordsWrong,
    parser,
    report,
    serve_with,
    started,
)
from benchmarks.load import CHUNK_BYTES, KEY_BYTES, STREAM, connected, rows
from benchmarks.machine import conditions
from benchmarks.processes import forget_peak, peak_rss_bytes, rss_bytes
from benchmarks.sink import MARK
from benchmarks.table import say
from benchmarks.walk import shard_map
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
from producerd.core.rows.frame import Frame
from producerd.core.rows.intake import check
from producerd.core.rows.sorting import sort_rows
from producerd.demo.children import Child, ChildFailed, Children
from producerd.demo.ports import free_port
from producerd.demo.scenario import environment, folder
from producerd.errors import BackpressureTimeout, ConfigurationError
from producerd.runtime import allocator
from producerd.wire import messages
from producerd.wire.columns import FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES, Columns, lay_out, parse_body
from spark_client.connection import Connection

STUCK_BYTES: Final = (100, 1_024, 10_240, 102_400)
LAGGING_BYTES: Final = 10_240
LARGE_BYTES: Final = 1_000_000
LARGE_RECORDS: Final = 24
"""Number of large records, each of which is a request.  The queue needs 32 MiB for them."""
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
FILL_SECONDS: Final = 120.0
DRAIN_SECONDS: Final = 120.0
REST_SECONDS: Final = 1.0
THROTTLED: Final = {"kind": "throttle", "shard_id": "shardId-000000000000"}
HANGING: Final = {"kind": "hang"}
TRIMMING: Final = """
import ctypes, signal, sys
from producerd.cli import main
signal.signal(signal.SIGUSR2, lambda *_: ctypes.CDLL(None).malloc_trim(0))
sys.exit(main())
"""
"""A program that is `producerd`, and lets glibc return freed memory at SIGUSR2, so that the rest is memory in use."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results, in bytes.  A field that has no meaning for a case is None.

    ``rss_bytes`` is the highest resident memory during the case.  ``formula_bytes`` is the memory that the law allows
    with these settings.  If the case shows a single term of the law, it is "idle" plus that term.  ``grown_bytes`` is
    the difference between ``rss_bytes`` and the memory before the case.  ``charged_bytes`` are the bytes that the
    daemon had accepted, and ``ratio_to_charged`` is ``grown_bytes`` divided by them.

    ``rss_after_drain_bytes`` is the resident memory after the daemon has delivered everything.
    ``rss_after_trim_bytes`` is the same after glibc has returned all freed memory, for which only this benchmark asks.
    """

    case: str
    record_bytes: int | None
    charged_bytes: int | None
    rss_bytes: int
    formula_bytes: int
    grown_bytes: int
    ratio_to_charged: float | None = None
    rss_after_drain_bytes: int | None = None
    rss_after_trim_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running daemon, and its fake Kinesis over TLS, which counts records and does not keep them."""

    child: Child
    socket: str
    metrics_url: str
    endpoint_url: str
    certificate: str

    @property
    def pid(self) -> int:
        return self.child.process.pid

    def gauge(self, name: str) -> int:
        with urllib.request.urlopen(self.metrics_url, timeout=START_SECONDS) as answer:
            found = re.findall(rf"^producerd_{name}{{.*}} (\S+)$", answer.read().decode(), re.MULTILINE)
        return int(sum(map(float, found)))

    def trimmed_rss_bytes(self) -> int:
        self.child.process.send_signal(signal.SIGUSR2)
        time.sleep(REST_SECONDS)
        return rss_bytes(self.pid)

    def set_faults(self, *faults: dict[str, Any]) -> None:
        """Replace all faults by these, and let the rules decide again about requests that hang."""
        self.ask("faults", {"standing": faults})
        self.ask("release", {})

    def never_read(self, never: bool) -> None:
        """Set whether Kinesis leaves the bodies of requests unread, in the daemon's memory and in the sockets."""
        self.ask("settings", {"uplink_bytes_per_second": 0 if never else None})

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        context = ssl.create_default_context(cafile=self.certificate)
        with urllib.request.urlopen(
            f"{self.endpoint_url}/_fake/{path}", data, START_SECONDS, context=context
        ) as answer:
            return json.load(answer)

    def drain(self, callers: Sequence[Connection]) -> tuple[int, int]:
        """Let everything be delivered, check it, and return the memory after it, and after a trim."""
        at_once(callers, lambda caller: caller.flush(DRAIN_SECONDS))
        time.sleep(REST_SECONDS)
        after, trimmed = rss_bytes(self.pid), self.trimmed_rss_bytes()
        taken, stored = (sum(getattr(caller.tally, name) for caller in callers) for name in ("taken", "stored"))
        twice = sum(caller.tally.possible_duplicates for caller in callers)
        arrived = self.ask("counters")["results"].get("stored", 0)
        for caller in callers:
            caller.close()
        if not taken == stored <= arrived <= stored + twice:
            raise RecordsWrong(f"{taken:,} records were taken, {stored:,} acknowledged, and {arrived:,} arrived")
        return after, trimmed


@dataclass(frozen=True, slots=True)
class Bench:
    """The benchmark.  Every daemon has ``settings``, and the case `stuck` has records of ``record_bytes``."""

    settings: dict[str, Any]
    record_bytes: Sequence[int]
    rounds: int

    # ---- the whole

    def stuck(self) -> Iterator[Figures]:
        """Measure daemons whose endpoint works at first, then accepts requests and answers none."""
        for size in self.record_bytes:
            yield self._filled(f"stuck, {size} B", size, 1, SESSIONS, HANGING, self.rounds)

    def lagging(self) -> Iterator[Figures]:
        """Measure a daemon with keys on 16 shards, of which one throttles everything."""
        name, rounds = f"one lagging shard of {SHARDS}", min(self.rounds, LAGGING_ROUNDS)
        yield self._filled(name, LAGGING_BYTES, SHARDS, LAGGING_SESSIONS, THROTTLED, rounds)

    def _filled(
        self, case: str, record_bytes: int, shards: int, sessions: int, fault: dict[str, Any], rounds: int
    ) -> Figures:
        with self._daemon(shards) as daemon:
            before = rss_bytes(daemon.pid)
            callers = [connected(daemon.socket) for _ in range(sessions)]
            largest = callers[-1].largest_frame(STREAM)  # the more sessions, the smaller
            frame = full_frame(*largest, record_bytes)
            at_once(callers, lambda caller: put_some(caller, frame, 1))
            charged = peak = 0
            for number in range(rounds):
                forget_peak(daemon.pid)
                daemon.set_faults(fault)
                at_once(callers, lambda caller: put_until_blocked(caller, frame))
                charged = max(charged, daemon.gauge("queue_bytes"))
                peak = max(peak, peak_rss_bytes(daemon.pid))
                daemon.set_faults()
                at_once(callers, lambda caller: caller.flush(DRAIN_SECONDS))
                say(f"  {case}, round {number + 1}: {mib(peak)}, {mib(charged)} charged")
            after, trimmed = daemon.drain(callers)
        formula, grown = needed_bytes(self.config()).bytes, peak - before
        return Figures(case, record_bytes, charged, peak, formula, grown, round(grown / charged, 2), after, trimmed)

    # ---- the terms of the law, one by one

    def requests(self) -> Iterator[Figures]:
        """Measure a daemon with as many large records in flight as possible, and nothing else.

        The endpoint either reads them and does not answer, or does not even read them.
        """
        for read in (True, False):
            with self._daemon(SHARDS) as daemon:
                callers = [connected(daemon.socket) for _ in range(SESSIONS)]
                for _ in range(StreamSettings().max_in_flight_requests):
                    put_some(callers[0], frame_of(1, 1), 1)  # each answer lets the daemon send one more at once
                before = rss_bytes(daemon.pid)
                forget_peak(daemon.pid)
                if read:
                    daemon.set_faults(HANGING)
                else:
                    daemon.never_read(True)
                at_once(callers, put_large)
                time.sleep(BLOCKED_SECONDS)
                in_flight, charged = daemon.gauge("inflight_requests"), daemon.gauge("queue_bytes")
                peak = peak_rss_bytes(daemon.pid)
                daemon.never_read(False)
                daemon.set_faults()
                after, trimmed = daemon.drain(callers)
            name = f"{in_flight} requests that are {'not answered' if read else 'not read'}"
            formula = IDLE_BYTES + int(QUEUED_FACTOR * charged + IN_FLIGHT_FACTOR * in_flight * LARGE_BYTES)
            grown = peak - before
            ratio = round(grown / max(1, charged), 2)
            yield Figures(name, LARGE_BYTES, charged, peak, formula, grown, ratio, after, trimmed)

    def jobs(self) -> Iterator[Figures]:
        """Measure the sorting of the largest job that these settings allow, in processes of its own."""
        job_bytes = self.config().defaults.queue_limit_bytes // 4 + TUNING.max_frame_bytes
        for record_bytes in (10, 100, 1_024):
            for shards in (16, 1_000):
                say(f"a job of {mib(job_bytes)}, {shards:,} shards ...")
                code = f"from benchmarks.memory import sort_job; sort_job({job_bytes}, {record_bytes}, {shards})"
                grown = int(subprocess.check_output([sys.executable, "-c", code]))
                name, formula = f"a job for {shards:,} shards", IDLE_BYTES + JOB_FACTOR * job_bytes
                ratio = round(grown / job_bytes, 2)
                yield Figures(name, record_bytes, job_bytes, IDLE_BYTES + grown, formula, grown, ratio)

    def connections(self) -> Iterator[Figures]:
        """Measure this many idle connections, then the same ones with as many waiting RESERVEs as each may have."""
        with self._daemon(1) as daemon, contextlib.ExitStack() as sockets:
            before = rss_bytes(daemon.pid)
            dialled = [sockets.enter_context(dialled_to(daemon.socket)) for _ in range(CONNECTIONS)]
            time.sleep(REST_SECONDS)
            rss, formula = rss_bytes(daemon.pid), IDLE_BYTES + CONNECTIONS * CONNECTION_BYTES
            yield Figures(f"{CONNECTIONS} connections", None, None, rss, formula, rss - before)
            daemon.set_faults(HANGING)
            waiting = TUNING.session_window_frames
            layout = frame_of(1, LARGE_BYTES).layout
            for connection in dialled:
                for frame_id in range(1, waiting + 1):
                    connection.sendall(messages.encode(messages.Reserve(frame_id, 1, layout)))
            time.sleep(BLOCKED_SECONDS)
            rss, charged = rss_bytes(daemon.pid), daemon.gauge("queue_bytes")
            formula += int(CONNECTIONS * waiting * WAITING_FRAME_BYTES + QUEUED_FACTOR * charged)
            name = f"{CONNECTIONS} connections, {waiting} RESERVEs each"
            yield Figures(name, None, charged, rss, formula, rss - before)

    def lanes(self) -> Iterator[Figures]:
        """Measure what a stream of many shards needs, after at least one record for nearly each of them.

        Freed memory does not count, and the memory of a stream with one shard after the same records is subtracted.
        """
        found = []
        for shards in (1, MANY_SHARDS):
            with self._daemon(shards) as daemon:
                caller = connected(daemon.socket)
                put_some(caller, frame_of(2 * MANY_SHARDS, 1), 1)
                found.append(daemon.drain([caller]))
        (_, one), (after, many) = found
        name, formula = f"{MANY_SHARDS:,} lanes", IDLE_BYTES + MANY_SHARDS * LANE_BYTES
        yield Figures(name, 1, 0, after, formula, many - one, None, after, many)

    # ---- inside

    def config(self) -> Config:
        return load(None, [f"{name}={value}" for name, value in self.settings.items()], {})

    @contextlib.contextmanager
    def _daemon(self, shards: int) -> Iterator[Daemon]:
        """Start a daemon with its endpoint, and end both after the block.  Raise `ChildFailed`."""
        with folder() as work, Children(work, environment(work)) as children:
            options = ["--tls", "--forget", f"--stream={STREAM}", f"--shards={shards}"]
            kinesis = children.start("kinesis", ["-m", "producerd.testing.fake_kinesis", *options])
            url, certificate = kinesis.line(START_SECONDS), kinesis.line(START_SECONDS)
            address = f"127.0.0.1:{free_port()}"
            settings = {
                "socket": work / "daemon.sock",
                "metrics_listen": address,
                "endpoint_url": url,
                "shard_rate_fraction": FASTER_THAN_ANY_SHARD,
                **self.settings,
            }
            with started(children, serve_with(settings, ("-c", TRIMMING)), {"AWS_CA_BUNDLE": certificate}) as child:
                deadline = time.monotonic() + START_SECONDS
                while b" serving " not in child.log.read_bytes():
                    child.poll_line(0.05)  # it raises if the daemon has ended
                    if time.monotonic() > deadline:
                        raise ChildFailed(f"the daemon did not serve within {START_SECONDS:.0f} s", child.log)
                yield Daemon(child, str(work / "daemon.sock"), f"http://{address}/metrics", url, certificate)


def frame_of(records: int, record_bytes: int) -> Columns:
    return lay_out(*rows(records, max(record_bytes, len(MARK))))


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


def put_large(caller: Connection) -> None:
    for _ in range(LARGE_RECORDS // SESSIONS):
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


def sort_job(job_bytes: int, record_bytes: int, shards: int) -> None:
    """Print the memory that sorting a job needs in addition to its frames, in a process of its own."""
    allocator.configure()
    pid, shards_ = os.getpid(), shard_map(shards)
    fit = (CHUNK_BYTES - FRAME_CHARGE_BYTES) // (KEY_BYTES + record_bytes + RECORD_CHARGE_BYTES)
    columns = lay_out(*rows(fit, record_bytes))

    def frames(count: int) -> list[Frame]:
        bodies = [b"".join((columns.body_prefix(number + 1), *map(bytes, columns.parts))) for number in range(count)]
        checked = [check(parse_body(body, columns.layout.flags), CHUNK_BYTES) for body in bodies]
        return [Frame(None, 0, found, columns.layout.charge_bytes) for found in checked]

    sort_rows(frames(1), shards_, 0)  # loads modules
    job = frames(max(1, job_bytes // columns.layout.charge_bytes))
    ctypes.CDLL(None).malloc_trim(0)  # what imports have freed must not hide what the job takes
    before = rss_bytes(pid)
    forget_peak(pid)
    sort_rows(job, shards_, 0)
    print(max(0, peak_rss_bytes(pid) - before))


CASES: Final[dict[str, Callable[[Bench], Iterable[Figures]]]] = {
    case.__name__: case
    for case in (Bench.stuck, Bench.lagging, Bench.requests, Bench.jobs, Bench.connections, Bench.lanes)
}


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser("memory", "How much memory the daemon takes.")
    made.add_argument("--only", choices=CASES, nargs="+", default=CASES, metavar="NAME", help=" ".join(CASES))
    made.add_argument(
        "--record-bytes",
        type=at_least(len(MARK), MOST_RECORD_BYTES),
        nargs="+",
        default=STUCK_BYTES,
        metavar="N",
        help=f"of the case stuck ({' '.join(map(str, STUCK_BYTES))})",
    )
    made.add_argument("--rounds", type=at_least(1), default=ROUNDS, help="of filling and draining (%(default)s)")
    made.add_argument(
        "--set",
        type=assignment,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help='a setting of the daemon, such as queue_limit_bytes="16 MiB"; may be repeated',
    )
    options = made.parse_args(arguments)
    logging.getLogger("producerd.client").setLevel(logging.ERROR)  # it would warn about callers that wait, as intended
    bench = Bench(dict(options.set), options.record_bytes, options.rounds)
    try:
        bench.config()
    except ConfigurationError as error:
        made.error(str(error))
    say(
        conditions(
            f"keys of {KEY_BYTES} bytes, TLS, shard_rate_fraction {FASTER_THAN_ANY_SHARD:,}, "
            f"{bench.settings or 'other settings as they come'}; {bench.rounds} rounds"
        )
    )
    rows = (row for name in options.only for row in CASES[name](bench))
    return report(Figures, rows, (ChildFailed, RecordsWrong, BackpressureTimeout), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
