"""The clients of benchmarks, each a program that puts the same records again and again, as lines on stdin say.

::

    python -m benchmarks.load WAY SOCKET RECORD_BYTES

Of the ways, ``producerd`` and ``naive`` do almost nothing for a record.  For a number on stdin they put that many
records or a few more, through several sessions at once.  They print how many when all are acknowledged.

``paced`` puts at most as many records per second as the first line says, until the next one comes.  It prints when it
has begun, and at the end how many it put, and how many per second.

``library`` puts with `KinesisClient`, by the method and the number that a line names.  It prints the number and for
`alone` the median time to an acknowledgement in us.
"""

from __future__ import annotations

import os
import select
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from typing import Final

from benchmarks.rivals.naive import ACK, HEAD
from benchmarks.sink import MARK
from producerd.wire.columns import FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES, lay_out
from producerd.wire.messages import Hello
from spark_client import KinesisClient
from spark_client.connection import Connection

STREAM: Final = "bench"
SESSIONS: Final = 4
KEY_BYTES: Final = 16
CHUNK_BYTES: Final = 1 << 20
"""Size of a frame: the largest that producerd accepts."""
CONNECT_SECONDS: Final = 30.0
PACED_RECORDS: Final = 1_000
"""Records of a frame of the way ``paced``."""
DIFFERENT: Final = 10_000
"""Different records that `KinesisClient` puts, and the number in one `put_many`."""
THREADS: Final = 8
TIMEOUT_SECONDS: Final = 60.0


def rows(count: int, record_bytes: int) -> tuple[list[bytes], list[bytes]]:
    """Return different keys, and data that cannot be compressed."""
    keys = [os.urandom(KEY_BYTES // 2).hex().encode() for _ in range(count)]
    return keys, [MARK + os.urandom(record_bytes - len(MARK)) for _ in range(count)]


def connected(path: str) -> Connection:
    """Return a session with producerd that has opened the stream."""
    hello = Hello(1, 1, client="bench", pid=os.getpid())
    connection = Connection(hello, [path], connect_timeout_seconds=CONNECT_SECONDS)
    connection.open(STREAM, CONNECT_SECONDS)
    return connection


class Frames:
    """A session with producerd."""

    def __init__(self, path: str, record_bytes: int) -> None:
        self._connection = connected(path)
        largest_bytes, largest_records = self._connection.largest_frame(STREAM)
        fit = (largest_bytes - FRAME_CHARGE_BYTES) // (KEY_BYTES + record_bytes + RECORD_CHARGE_BYTES)
        self._columns = lay_out(*rows(min(fit, largest_records), record_bytes))

    def put(self, records: int) -> int:
        """Put this many records or a few more, and return how many when all are acknowledged."""
        tally = self._connection.tally
        before = tally.stored
        for _ in range(-(-records // self._columns.layout.records)):
            self._connection.put(STREAM, self._columns)
        self._connection.flush()
        return tally.stored - before


class Records:
    """A connection to `benchmarks.rivals.naive`."""

    def __init__(self, path: str, record_bytes: int) -> None:
        self._socket = _dialled(path)
        self._count = CHUNK_BYTES // (KEY_BYTES + record_bytes)
        keys, data = rows(self._count, record_bytes)
        self._chunk = b"".join(
            HEAD.pack(len(key), len(value)) + key + value for key, value in zip(keys, data, strict=True)
        )

    def put(self, records: int) -> int:
        """Put this many records or a few more, and return how many when all are acknowledged."""
        chunks = -(-records // self._count)
        for _ in range(chunks):
            self._socket.sendall(self._chunk)
        self._socket.sendall(bytes(HEAD.size))
        left = chunks * self._count
        while left:
            ack = self._socket.recv(ACK.size, socket.MSG_WAITALL)
            if len(ack) < ACK.size:
                raise EOFError("the daemon has ended")
            left -= ACK.unpack(ack)[0]
        return chunks * self._count


def _dialled(path: str) -> socket.socket:
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
            return connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Together:
    """Several sessions that put at once."""

    def __init__(self, kind: type[Frames | Records], path: str, record_bytes: int) -> None:
        self._sessions = [kind(path, record_bytes) for _ in range(SESSIONS)]

    def obey(self, line: str) -> str:
        each = -(-int(line) // SESSIONS)
        with ThreadPoolExecutor(SESSIONS) as threads:
            return str(sum(threads.map(lambda session: session.put(each), self._sessions)))


class Paced:
    """A session that keeps a rate, and makes up for delays."""

    def __init__(self, path: str, record_bytes: int) -> None:
        self._connection = connected(path)
        self._columns = lay_out(*rows(PACED_RECORDS, record_bytes))

    def obey(self, line: str) -> str:
        print("begun", flush=True)
        per_second, put, began = float(line), 0, time.perf_counter()
        while not told_something(max(0.0, began + put / per_second - time.perf_counter())):
            self._connection.put(STREAM, self._columns)
            put += PACED_RECORDS
        sys.stdin.readline()
        self._connection.flush()
        return f"{put} {put / (time.perf_counter() - began)}"


def told_something(within_seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], within_seconds)[0])


class Library:
    """A program that uses `KinesisClient`.  Each method puts records, and returns when all are acknowledged."""

    def __init__(self, path: str, record_bytes: int) -> None:
        self._client = KinesisClient(STREAM, socket=path, connect_timeout_seconds=CONNECT_SECONDS)
        keys, data = rows(DIFFERENT, record_bytes)
        self._rows = list(zip(data, [key.decode() for key in keys], strict=True))

    def obey(self, line: str) -> str:
        way, count = line.split()
        said = LIBRARY_WAYS[way](self, int(count))
        self._client.flush()
        return f"{count} {said or ''}"

    def _first(self, count: int) -> Iterator[tuple[bytes, str]]:
        return islice(cycle(self._rows), count)

    def put(self, count: int) -> None:
        """One thread, one record a call."""
        for data, key in self._first(count):
            self._client.put(data, key)

    def put_in_threads(self, count: int) -> None:
        """The same in several threads."""
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(self.put, [count // THREADS + (i < count % THREADS) for i in range(THREADS)]))

    def put_with_a_timeout(self, count: int) -> None:
        """Each call waits until the daemon has the record."""
        for data, key in self._first(count):
            self._client.put(data, key, timeout_seconds=TIMEOUT_SECONDS)

    def put_many(self, count: int) -> None:
        """Many records a call."""
        for start in range(0, count, DIFFERENT):
            self._client.put_many(self._rows[: min(DIFFERENT, count - start)])

    def alone(self, count: int) -> int:
        """One record after the other, each when the one before is acknowledged.  Return the median time in us."""
        times = []
        for data, key in self._first(count):
            began = time.perf_counter()
            self._client.put(data, key).result()
            times.append(time.perf_counter() - began)
        return round(statistics.median(times) * 1e6)


LIBRARY_WAYS: Final[dict[str, Callable[[Library, int], int | None]]] = {
    way.__name__: way
    for way in (Library.put, Library.put_in_threads, Library.put_with_a_timeout, Library.put_many, Library.alone)
}


WAYS: Final[dict[str, Callable[[str, int], Together | Paced | Library]]] = {
    "producerd": partial(Together, Frames),
    "naive": partial(Together, Records),
    "paced": Paced,
    "library": Library,
}


def main(arguments: Sequence[str], lines: Iterable[str]) -> None:
    way, path, record_bytes = arguments[0], arguments[1], int(arguments[2])
    client = WAYS[way](path, record_bytes)
    print("ready", flush=True)
    for line in lines:
        print(client.obey(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:], iter(sys.stdin.readline, ""))
