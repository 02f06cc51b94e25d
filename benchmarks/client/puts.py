"""A program that puts records with `KinesisClient`, in the way that each line on stdin says: ``WAY RECORDS``.

It prints how many were acknowledged, and for ``alone`` the median time of a put to its acknowledgement in us::

    python -m benchmarks.client.puts SOCKET RECORD_BYTES
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final

from benchmarks.daemon.client import CONNECT_SECONDS, STREAM, rows
from spark_client import KinesisClient

DIFFERENT: Final = 10_000
"""Records that are put again and again."""
THREADS: Final = 8
TOGETHER: Final = 10_000
"""Records in one `put_many`."""
TIMEOUT_SECONDS: Final = 60.0


class Puts:
    """The ways to put.  Each puts ``count`` records, and returns when all are acknowledged."""

    def __init__(self, socket: str, record_bytes: int) -> None:
        self._client = KinesisClient(STREAM, socket=socket, connect_timeout_seconds=CONNECT_SECONDS)
        keys, data = rows(DIFFERENT, record_bytes)
        self._rows = list(zip(data, [key.decode() for key in keys], strict=True))

    def _first(self, count: int) -> Iterator[tuple[bytes, str]]:
        return (row for _ in range(0, count, DIFFERENT) for row in self._rows[:count])

    def put(self, count: int) -> None:
        """One thread, one record a call."""
        for data, key in islice(self._first(count), count):
            self._client.put(data, key)
        self._client.flush()

    def put_in_threads(self, count: int) -> None:
        """The same in several threads."""

        def puts(part: int) -> None:
            for data, key in islice(self._first(part), part):
                self._client.put(data, key)

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(puts, [count // THREADS] * THREADS))
        self._client.flush()

    def put_with_a_timeout(self, count: int) -> None:
        """Each call waits until the daemon has the record."""
        for data, key in islice(self._first(count), count):
            self._client.put(data, key, timeout_seconds=TIMEOUT_SECONDS)
        self._client.flush()

    def put_many(self, count: int) -> None:
        """Many records a call."""
        for start in range(0, count, TOGETHER):
            self._client.put_many(self._rows[: min(TOGETHER, count - start)])
        self._client.flush()

    def alone(self, count: int) -> int:
        """One record after the other, each when the one before is acknowledged.  Return the median time in us."""
        times = []
        for data, key in islice(self._first(count), count):
            began = time.perf_counter()
            self._client.put(data, key).result()
            times.append(time.perf_counter() - began)
        return round(statistics.median(times) * 1e6)

    def close(self) -> None:
        self._client.close()


WAYS: Final[Mapping[str, Callable[[Puts, int], int | None]]] = {
    way.__name__: way for way in (Puts.put, Puts.put_in_threads, Puts.put_with_a_timeout, Puts.put_many, Puts.alone)
}


def main(socket: str, record_bytes: str) -> None:
    puts = Puts(socket, int(record_bytes))
    print("ready", flush=True)
    for line in sys.stdin:
        way, count = line.split()
        print(WAYS[way](puts, int(count)) or 0, flush=True)
    puts.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
