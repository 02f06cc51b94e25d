"""Measure the time from put to acknowledgement, and compare it with bare round trips: ``./dev bench latency``.

It puts frames one after the other and waits for each acknowledgement, alone and next to a client that puts half as many
frames per second as it could.  Other work on the machine lengthens these times, above all the highest ones.  Each run
therefore also measures bare round trips: a PutRecords of one record over TLS to the same sink.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import logging
import socket
import ssl
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from pybase64 import b64encode

from benchmarks.arguments import at_least
from benchmarks.harness import (
    FASTER_THAN_ANY_SHARD,
    START_SECONDS,
    STOP_SECONDS,
    RecordsWrong,
    Rig,
    parser,
    report,
    rig,
    serve_with,
)
from benchmarks.load import KEY_BYTES, STREAM, connected, rows
from benchmarks.machine import conditions
from benchmarks.processes import cpu_seconds
from benchmarks.sink import CERTIFICATE, HOST
from benchmarks.table import say
from producerd.demo.children import Child
from producerd.wire.columns import lay_out
from spark_client.connection import Connection

PUTS: Final = 3_000
LEAST_PUTS: Final = 100
"""Fewest puts in a case, of which one is above the 99th percentile."""
RECORD_BYTES: Final = 100
RECORDS: Final = (1, 100)
WARM: Final = 100
"""Frames put before each case."""
LOAD_PART: Final = 0.5
LOAD_SECONDS: Final = 3.0
"""Time in which the load client puts as fast as it can, to find the highest rate."""
KEPT_PART: Final = 0.9


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results.

    ``ratio_to_bare`` is the median divided by the median of the bare round trips.  ``daemon_cpu_us`` is the
    daemon's CPU time per put, in cases without load.
    """

    case: str
    p50_us: int
    p99_us: int
    ratio_to_bare: float | None = None
    daemon_cpu_us: int | None = None


class Times(NamedTuple):
    """Percentiles of round trips, in microseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, trip: Callable[[], object], count: int) -> Times:
        for _ in range(WARM):
            trip()
        taken = []
        for _ in range(count):
            began = time.perf_counter_ns()
            trip()
            taken.append((time.perf_counter_ns() - began) / 1_000)
        return cls(statistics.median(taken), statistics.quantiles(taken, n=100, method="inclusive")[98])


def bare_round_trips(ready: Rig, puts: int) -> Times:
    """Measure round trips of a request with a record of the same size, on an open connection."""
    (key,), (data,) = rows(1, RECORD_BYTES)
    entry = {"Data": b64encode(data).decode(), "PartitionKey": key.decode()}
    body = json.dumps({"StreamName": STREAM, "Records": [entry]}, separators=(",", ":")).encode()
    headers = {"X-Amz-Target": "Kinesis_20131202.PutRecords", "Content-Type": "application/x-amz-json-1.1"}
    context = ssl.create_default_context(cafile=str(ready.work / CERTIFICATE))
    with contextlib.closing(http.client.HTTPSConnection(HOST, ready.port, context=context)) as connection:
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def trip() -> None:
            connection.request("POST", "/", body, headers)
            connection.getresponse().read()

        return Times.of(trip, puts)


class HalfLoad:
    """A client in another process, at half of its highest rate.  ``put`` counts its records after its end."""

    def __init__(self, ready: Rig) -> None:
        self._client = ready.client("paced", RECORD_BYTES)
        self.put = 0

    def __enter__(self) -> None:
        self._begin(inf)
        time.sleep(LOAD_SECONDS)
        most = self._end()
        self._rate = most * LOAD_PART
        say(f"without a pause {most:,.0f} records/s; half of it is {self._rate:,.0f}")
        self._begin(self._rate)

    def __exit__(self, *_: object) -> None:
        kept = self._end() / self._rate
        self._client.stop(STOP_SECONDS)
        say(f"the load kept {kept:.0%} of its rate{': THE DAEMON WAS OVERLOADED' * (kept < KEPT_PART)}")

    def _begin(self, records_per_second: float) -> None:
        self._client.tell(str(records_per_second))
        self._client.line(START_SECONDS)

    def _end(self) -> float:
        self._client.tell("end")
        put, rate = self._client.line(START_SECONDS).split()
        self.put += int(put)
        return float(rate)


def measured(options: argparse.Namespace) -> Iterator[Figures]:
    puts: int = options.puts
    say(
        conditions(
            f"records of {RECORD_BYTES} bytes, keys of {KEY_BYTES}, TLS, one shard, linger_seconds 0, "
            f"shard_rate_fraction {FASTER_THAN_ANY_SHARD:,}, other settings as they come",
            f"{puts:,} puts in each case",
        )
    )
    with (
        rig() as ready,
        ready.daemon(serve_with(ready.settings(linger_seconds=0))) as daemon,
        connected(ready.socket) as session,
    ):
        bare = bare_round_trips(ready, puts)
        yield Figures("bare PutRecords of one record", round(bare.p50), round(bare.p99))
        arrived = ready.arrived()
        for records in RECORDS:
            yield case(session, records, "idle", puts, bare.p50, daemon)
        load = HalfLoad(ready)
        with load:
            for records in RECORDS:
                yield case(session, records, f"{LOAD_PART:.0%} load", puts, bare.p50)
        put, arrived = session.tally.taken + load.put, ready.arrived() - arrived
        if not put == session.tally.stored + load.put == arrived:
            raise RecordsWrong(f"{put:,} records were put, and {arrived:,} arrived")
        again = bare_round_trips(ready, puts)
        say(f"the bare PutRecords once more: {again.p50:,.0f} us, {again.p99:,.0f} us")


def case(session: Connection, records: int, under: str, puts: int, bare: float, daemon: Child | None = None) -> Figures:
    """Return the figures of frames of this many records, with the CPU time of a daemon that has no other load."""
    name = f"{records} record{'s' * (records > 1)}, {under}"
    say(f"{name}: {puts:,} times ...")
    frame = lay_out(*rows(records, RECORD_BYTES))

    def put() -> None:
        session.put(STREAM, frame)
        session.flush()

    before = cpu_seconds(daemon.process.pid) if daemon else 0.0
    p50, p99 = Times.of(put, puts)
    used = cpu_seconds(daemon.process.pid) - before if daemon else None
    cpu_us = round(used / (puts + WARM) * 1e6) if used is not None else None
    return Figures(name, round(p50), round(p99), round(p50 / bare, 1), cpu_us)


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser("latency", "From put to acknowledgement.")
    made.add_argument(
        "--puts", type=at_least(LEAST_PUTS), default=PUTS, help=f"in each case, {LEAST_PUTS} or more ({PUTS:,})"
    )
    options = made.parse_args(arguments)
    logging.getLogger("producerd.client").setLevel(logging.ERROR)  # it would warn about the waits that we measure
    return report(Figures, measured(options), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
