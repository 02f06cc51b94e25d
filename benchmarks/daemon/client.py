"""A client that puts the same records again and again, so that it does almost nothing for each.

For each number on stdin it puts that many records or a few more, through several sessions at once.  It prints how many
when all are acknowledged::

    python -m benchmarks.daemon.client producerd|naive SOCKET RECORD_BYTES
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from benchmarks.rivals.naive import ACK, HEAD
from benchmarks.sink import MARK
from producerd.wire.columns import FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES, lay_out
from producerd.wire.messages import Hello
from spark_client.connection import Connection

STREAM: Final = "bench"
SESSIONS: Final = 4
KEY_BYTES: Final = 16
CHUNK_BYTES: Final = 1 << 20
"""Size of a frame: the largest that producerd accepts."""
CONNECT_SECONDS: Final = 30.0


class Session(Protocol):
    def put(self, records: int) -> int:
        """Put this many records or a few more, and return how many when all are acknowledged."""


def rows(count: int, record_bytes: int) -> tuple[list[bytes], list[bytes]]:
    """Return different keys, and data that cannot be compressed."""
    keys = [os.urandom(KEY_BYTES // 2).hex().encode() for _ in range(count)]
    return keys, [MARK + os.urandom(record_bytes - len(MARK)) for _ in range(count)]


class Frames:
    """A session with producerd."""

    def __init__(self, path: str, record_bytes: int) -> None:
        hello = Hello(1, 1, client="bench", pid=os.getpid())
        self._connection = Connection(hello, [path], connect_timeout_seconds=CONNECT_SECONDS)
        self._connection.open(STREAM, CONNECT_SECONDS)
        largest_bytes, largest_records = self._connection.largest_frame(STREAM)
        fit = (largest_bytes - FRAME_CHARGE_BYTES) // (KEY_BYTES + record_bytes + RECORD_CHARGE_BYTES)
        self._columns = lay_out(*rows(min(fit, largest_records), record_bytes))

    def put(self, records: int) -> int:
        tally = self._connection.tally
        before = tally.stored
        for _ in range(-(-records // self._columns.layout.records)):
            self._connection.put(STREAM, self._columns)
        self._connection.flush()
        return tally.stored - before


class Records:
    """A connection to `benchmarks.rivals.naive`."""

    def __init__(self, path: str, record_bytes: int) -> None:
        self._socket = _connected(path)
        self._count = CHUNK_BYTES // (KEY_BYTES + record_bytes)
        keys, data = rows(self._count, record_bytes)
        self._chunk = b"".join(
            HEAD.pack(len(key), len(value)) + key + value for key, value in zip(keys, data, strict=True)
        )

    def put(self, records: int) -> int:
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


def _connected(path: str) -> socket.socket:
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


WAYS: Final[dict[str, type[Frames | Records]]] = {"producerd": Frames, "naive": Records}


def put_all(sessions: Sequence[Session], records: int) -> int:
    """Put records through all sessions at once."""
    with ThreadPoolExecutor(len(sessions)) as threads:
        return sum(threads.map(lambda session: session.put(-(-records // len(sessions))), sessions))


def main(arguments: Sequence[str], lines: Iterable[str]) -> None:
    way, path, record_bytes = arguments
    sessions: list[Session] = [WAYS[way](path, int(record_bytes)) for _ in range(SESSIONS)]
    print("ready", flush=True)
    for line in lines:
        print(put_all(sessions, int(line)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:], sys.stdin)
