"""A client that keeps a daemon busy, either at its highest rate for a time or at a fixed rate.

::

    python -m benchmarks.latency.load SOCKET RECORD_BYTES

After the line ``all SECONDS`` it puts as fast as it can, and prints its records per second.  After the line ``rate N``
it
puts N records per second and prints a line when it has begun.  At the next line it ends, and prints the number of its
records and the share of the rate that it reached.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Final

from benchmarks.daemon.client import CONNECT_SECONDS, STREAM, rows
from producerd.wire.columns import Columns, lay_out
from producerd.wire.messages import Hello
from spark_client.connection import Connection

FRAME_RECORDS: Final = 1_000


class Load:
    """A client that puts frames of `FRAME_RECORDS`.  ``put`` counts the records."""

    def __init__(self, path: str, record_bytes: int) -> None:
        hello = Hello(1, 1, client="load", pid=os.getpid())
        self._session = Connection(hello, [path], connect_timeout_seconds=CONNECT_SECONDS)
        self._session.open(STREAM, CONNECT_SECONDS)
        self._frame: Columns = lay_out(*rows(FRAME_RECORDS, record_bytes))
        self.put = 0

    def put_until(self, ended: Callable[[float], bool], records_per_second: float = inf) -> float:
        """Put at most this many records per second, make up for delays, and return the rate of acknowledged records.

        Call ``ended`` before each frame, with the longest time that it may wait.
        """
        before, began = self.put, time.perf_counter()
        while not ended(max(0.0, began + (self.put - before) / records_per_second - time.perf_counter())):
            self._session.put(STREAM, self._frame)
            self.put += FRAME_RECORDS
        self._session.flush()
        return (self.put - before) / (time.perf_counter() - began)


def is_over(ends: float, _: float) -> bool:
    return time.perf_counter() >= ends


def told_something(within_seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], within_seconds)[0])


def main(arguments: Sequence[str]) -> None:
    path, record_bytes = arguments
    load = Load(path, int(record_bytes))
    print("ready", flush=True)
    while words := sys.stdin.readline().split():
        if words[0] == "all":
            ends = time.perf_counter() + float(words[1])
            print(load.put_until(partial(is_over, ends)), flush=True)
        elif words[0] == "rate":
            print("begun", flush=True)
            kept = load.put_until(told_something, float(words[1])) / float(words[1])
            sys.stdin.readline()
            print(load.put, kept, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
