"""A Kinesis that answers at once and does as little as possible: the end of the way where producers are compared.

Over TLS.  PutRecords's answers are as long as Amazon's.  The stream has one shard, so that whatever a producer reckons
is right.  A thread for each connection reads into one buffer of its own, as that costs less than an event loop.

Records are counted, those inside of KPL aggregates too: each must begin with `MARK`.  In the given directory it leaves
`CERTIFICATE`, which clients verify with; it prints its port, and for each line that it is told the records so far::

    python -m benchmarks.sink DIRECTORY
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import ssl
import sys
import threading
from pathlib import Path
from typing import Any, Final

from pybase64 import b64decode

from benchmarks.spark.sink import CONTENT_LENGTH, FIXED, SEQUENCE_NUMBER, SHARD, TARGET
from producerd.testing.certificate import self_signed

HOST: Final = "127.0.0.1"
CERTIFICATE: Final = "certificate.pem"
MARK: Final = b"\0record\0"
"""No record holds it twice, nor does anything else of an aggregate."""
MOST_REQUEST_BYTES: Final = 16 << 20
"""Far above what the service takes, in base64.  Of such a buffer only what is used is memory."""
_KEY: Final = b'"PartitionKey"'
_DATA: Final = b'"Data":"'
_AGGREGATE: Final = _DATA + b"84ma"
"""The first bytes of an aggregate, in base64."""


class Sink:
    """``records`` counts those of all connections."""

    def __init__(self) -> None:
        self.records = 0
        self._counting = threading.Lock()

    def serve(self, connection: socket.socket) -> None:
        """Answer one request after the other until the client goes."""
        buffer = bytearray(MOST_REQUEST_BYTES)
        view = memoryview(buffer)
        while True:
            head_end, filled = -1, 0
            while head_end < 0:
                if not (received := connection.recv_into(view[filled:])):
                    return
                filled += received
                head_end = buffer.find(b"\r\n\r\n", 0, filled)
            head = bytes(view[:head_end])
            length = CONTENT_LENGTH.search(head)
            end = head_end + 4 + (int(length[1]) if length else 0)
            while filled < end:
                if not (received := connection.recv_into(view[filled:end])):
                    return
                filled += received
            connection.sendall(self._answer(head, buffer, end))

    def _answer(self, head: bytes, buffer: bytearray, end: int) -> bytes:
        target = TARGET.search(head)
        assert target is not None
        if target[1] != b"PutRecords":
            return _response(FIXED[target[1]])
        entries = buffer.count(_KEY, len(head), end)
        records = entries
        if buffer.find(_AGGREGATE, len(head), end) >= 0:
            records = _records_in(buffer, len(head), end)
        with self._counting:
            self.records += records
        return _stored(entries)


def _records_in(buffer: bytearray, at: int, end: int) -> int:
    """Those of a request's entries, plain or aggregates."""
    records, view = 0, memoryview(buffer)
    while (at := buffer.find(_DATA, at, end)) >= 0:
        first = at + len(_DATA)
        at = buffer.index(b'"', first, end)
        records += b64decode(view[first:at]).count(MARK)
    return records


@functools.cache
def _stored(entries: int) -> bytes:
    record = {"SequenceNumber": SEQUENCE_NUMBER, "ShardId": SHARD}
    return _response({"EncryptionType": "KMS", "FailedRecordCount": 0, "Records": [record] * entries})


def _response(answer: Any) -> bytes:
    body = json.dumps(answer, separators=(",", ":")).encode()
    head = (
        "HTTP/1.1 200 OK\r\nx-amzn-RequestId: 00000000-0000-0000-0000-000000000000\r\n"
        f"Content-Type: application/x-amz-json-1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def accept(listener: socket.socket, context: ssl.SSLContext, sink: Sink) -> None:
    def served(plain: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as connection:
            sink.serve(connection)

    while True:
        plain, _ = listener.accept()
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=served, args=(plain,), daemon=True).start()


def main(directory: str) -> None:
    context, _ = self_signed(Path(directory), HOST)
    sink = Sink()
    with socket.create_server((HOST, 0)) as listener:
        threading.Thread(target=accept, args=(listener, context, sink), daemon=True).start()
        print(listener.getsockname()[1], flush=True)
        for _ in sys.stdin:
            print(sink.records, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
