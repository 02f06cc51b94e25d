"""Put frames one after the other and wait for each acknowledgement, alone and under load.

Other work on the machine lengthens these times, above all the highest ones.  Each run therefore also measures bare
round trips between the cases: a few bytes over a unix socket, and a PutRecords of one record over TLS to the same sink.
The load is a client in a process of its own, which puts half as many frames per second as it could.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import platform
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

from pybase64 import b64encode

from benchmarks.daemon.client import CONNECT_SECONDS, KEY_BYTES, STREAM, rows
from benchmarks.daemon.run import FASTER_THAN_ANY_SHARD, PACKAGES, RecordsWrong, daemon_of, serve_with
from benchmarks.latency import load
from benchmarks.machine import machine
from benchmarks.sink import CERTIFICATE, HOST
from benchmarks.spark.cost import cpu_seconds
from producerd.demo.children import Child, Children
from producerd.demo.scenario import environment, folder
from producerd.wire.columns import Columns, lay_out
from producerd.wire.messages import Hello
from spark_client.connection import Connection

RECORD_BYTES: Final = 100
RECORDS: Final = (1, 100)
WARM: Final = 100
"""Frames put before each case."""
LOAD_PART: Final = 0.5
LOAD_SECONDS: Final = 3.0
"""Time in which the load client puts as fast as it can, to find the highest rate."""
KEPT_PART: Final = 0.9
ECHO_BYTES: Final = 64
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results.

    ``ratio_to_bare`` is the median divided by the median of both bare round trips together.  ``daemon_cpu_us`` is the
    daemon's CPU time per put, in cases without load.
    """

    case: str
    p50_us: int
    p99_us: int
    ratio_to_bare: float | None = None
    daemon_cpu_us: int | None = None


class Times(NamedTuple):
    """Return the percentiles of round trips, in microseconds."""

    p50: float
    p99: float


def times(trip: Callable[[], object], count: int) -> Times:
    for _ in range(min(WARM, count)):
        trip()
    taken = []
    for _ in range(count):
        began = time.perf_counter_ns()
        trip()
        taken.append((time.perf_counter_ns() - began) / 1_000)
    return Times(statistics.median(taken), statistics.quantiles(taken, n=100, method="inclusive")[98])


@dataclass(slots=True)
class HalfLoad:
    """A load client in another process, at half of its highest rate.  ``put`` counts its records after its end."""

    children: Children
    socket: str
    say: Callable[[str], None]
    put: int = 0
    _client: Child = field(init=False)

    def __enter__(self) -> str:
        self._client = self.children.start("load", ["-m", load.__name__, self.socket, str(RECORD_BYTES)])
        self._client.line(START_SECONDS)
        self._client.tell(f"all {LOAD_SECONDS}")
        most = float(self._client.line(START_SECONDS))
        rate = most * LOAD_PART
        self.say(f"without a pause {most:,.0f} records/s; half of it is {rate:,.0f}")
        self._client.tell(f"rate {rate}")
        self._client.line(START_SECONDS)
        return f"{LOAD_PART:.0%} load"

    def __exit__(self, *_: object) -> None:
        self._client.tell("end")
        put, kept = self._client.line(START_SECONDS).split()
        self.put = int(put)
        late = float(kept) < KEPT_PART
        self.say(f"the load kept {float(kept):.0%} of its rate{': THE DAEMON WAS OVERLOADED' * late}")


@dataclass(frozen=True, slots=True)
class Bench:
    """The benchmark, with ``puts`` frames in each case.  ``say`` reports the progress."""

    children: Children
    work: Path
    sink: Child
    port: int
    puts: int
    say: Callable[[str], None]

    @property
    def conditions(self) -> str:
        versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
        return (
            f"{machine()}; Python {platform.python_version()}, {versions}; "
            f"records of {RECORD_BYTES} bytes, keys of {KEY_BYTES}, TLS, one "
            f"shard, linger 0, shard_rate_fraction {FASTER_THAN_ANY_SHARD:,}, other settings as they come; "
            f"{self.puts:,} puts in each case"
        )

    def figures(self) -> Iterator[Figures]:
        """Yield the figures of the cases.  Raise `ChildFailed` and `RecordsWrong`."""
        with self._daemon() as daemon, self._session() as session:
            echo, https = self._bare(), self._bare_https()
            yield Figures("bare round trip, unix socket", round(echo.p50), round(echo.p99))
            yield Figures("bare PutRecords of one record", round(https.p50), round(https.p99))
            bare, arrived = echo.p50 + https.p50, self._arrived()
            for records in RECORDS:
                before = cpu_seconds(daemon.process.pid)
                found = self._measured(session, records, "idle", bare)
                used = (cpu_seconds(daemon.process.pid) - before) / (self.puts + min(WARM, self.puts))
                yield replace(found, daemon_cpu_us=round(used * 1e6))
            beside = HalfLoad(self.children, self._socket, self.say)
            with beside as under:
                for records in RECORDS:
                    yield self._measured(session, records, under, bare)
            put, arrived = session.tally.taken + beside.put, self._arrived() - arrived
            if not put == session.tally.stored + beside.put == arrived:
                raise RecordsWrong(f"{put:,} records were put, and {arrived:,} arrived")
            again = self._bare_https()
            self.say(f"the bare PutRecords once more: {again.p50:,.0f} us, {again.p99:,.0f} us")

    def _measured(self, session: Connection, records: int, under: str, bare: float) -> Figures:
        name = f"{records} record{'s' * (records > 1)}, {under}"
        self.say(f"{name}: {self.puts:,} times ...")
        frame: Columns = lay_out(*rows(records, RECORD_BYTES))

        def put() -> None:
            session.put(STREAM, frame)
            session.flush()

        p50, p99 = times(put, self.puts)
        return Figures(name, round(p50), round(p99), round(p50 / bare, 1))

    def _bare(self) -> Times:
        """Measure round trips of a few bytes to a thread and back, as a frame and its acknowledgement go."""
        near, far = socket.socketpair()
        with near, far:
            echo = threading.Thread(target=echo_until_closed, args=(far,))
            echo.start()

            def trip() -> None:
                near.sendall(b"x" * ECHO_BYTES)
                near.recv(ECHO_BYTES)

            found = times(trip, self.puts)
            near.shutdown(socket.SHUT_WR)
            echo.join()
        return found

    def _bare_https(self) -> Times:
        """Measure round trips of a request with a record of the same size, on an open connection."""
        (key,), (data,) = rows(1, RECORD_BYTES)
        entry = {"Data": b64encode(data).decode(), "PartitionKey": key.decode()}
        body = json.dumps({"StreamName": STREAM, "Records": [entry]}, separators=(",", ":")).encode()
        headers = {"X-Amz-Target": "Kinesis_20131202.PutRecords", "Content-Type": "application/x-amz-json-1.1"}
        context = ssl.create_default_context(cafile=str(self.work / CERTIFICATE))
        connection = http.client.HTTPSConnection(HOST, self.port, context=context)
        with contextlib.closing(connection):
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def put() -> None:
                connection.request("POST", "/", body, headers)
                connection.getresponse().read()

            return times(put, self.puts)

    def _arrived(self) -> int:
        self.sink.tell("")
        return int(self.sink.line(START_SECONDS))

    @contextlib.contextmanager
    def _session(self) -> Iterator[Connection]:
        hello = Hello(1, 1, client="bench", pid=os.getpid())
        with Connection(hello, [self._socket], connect_timeout_seconds=CONNECT_SECONDS) as session:
            session.open(STREAM, CONNECT_SECONDS)
            yield session

    def _daemon(self) -> contextlib.AbstractContextManager[Child]:
        settings = {
            "socket": self._socket,
            "metrics_listen": "",
            "endpoint_url": f"https://{HOST}:{self.port}",
            "linger_seconds": 0,
            "shard_rate_fraction": FASTER_THAN_ANY_SHARD,
            "wire_format": "cbor",  # as to AWS
        }
        return daemon_of(self.children, self.work, serve_with(settings))

    @property
    def _socket(self) -> str:
        return str(self.work / "daemon.sock")


def echo_until_closed(connection: socket.socket) -> None:
    while data := connection.recv(ECHO_BYTES):
        connection.sendall(data)


@contextlib.contextmanager
def bench(puts: int, say: Callable[[str], None]) -> Iterator[Bench]:
    """Start the sink and what a daemon needs, and end all of it after the block.  Raise `ChildFailed`."""
    with folder() as work, Children(work, environment(work)) as children:
        sink = children.start("sink", ["-m", "benchmarks.sink", str(work)])
        yield Bench(children, work, sink, int(sink.line(START_SECONDS)), puts, say)
