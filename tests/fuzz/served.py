"""Send inputs to a real daemon while honest clients put records, and see that it keeps its promises to them.

::

    python -m tests.fuzz.served NAME FOLDER SEED

Half of the inputs are from the folder, and the others are such with a byte changed.  For `wire` and `http` they come to
its socket and its address.  For `answer` and `cbor` a service gives them as answers to some requests, after it has
stored the records.  The last line is what happened, as a JSON object.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from producerd.testing import FakeKinesis, formats
from tests.daemon import DaemonProcess, daemon, until
from tests.faults.records import Book, Shape
from tests.faults.senders import Sender

SECONDS: Final = 15.0
"""The time for which inputs are sent."""
PATIENCE_SECONDS: Final = 90.0
"""The longest that what is promised may take after the last input."""
SENDERS: Final = 4
RECORDS_PER_SECOND: Final = 200.0
ODD_ANSWERS: Final = 0.5
LOOK_SECONDS: Final = 0.05
_OF_SERVICE: Final = "answer", "cbor"


class Inputs:
    """Endless inputs for one target.  ``taken`` counts them."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self.name = name
        self.taken = 0
        self.are_sent = True
        self._found = [path.read_bytes() for path in sorted(folder.iterdir())]
        self._chance = random.Random(seed)

    def next(self) -> bytes:
        """Return the next input, without the byte that is for the target alone."""
        self.taken += 1
        said = bytearray(self._chance.choice(self._found)[1:])
        if said and self._chance.random() < 0.5:
            said[self._chance.randrange(len(said))] = self._chance.randrange(256)
        return bytes(said)

    def is_due(self) -> bool:
        """Return whether the next answer is to be an input."""
        return self.are_sent and self.name in _OF_SERVICE and self._chance.random() < ODD_ANSWERS

    def end(self) -> None:
        """Answer as Kinesis does from now on."""
        self.are_sent = False


@contextlib.contextmanager
def service(kinesis: FakeKinesis, inputs: Inputs) -> Iterator[str]:
    """Serve the fake Kinesis, whose answers to PutRecords are inputs where those are due, and yield its URL."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            action = self.headers["X-Amz-Target"].rpartition(".")[2]
            with lock:
                content_type = formats.format_of(self.headers["Content-Type"])
                reply = kinesis.handle(action, body, time.time(), content_type=content_type)
                odd = inputs.next() if action == "PutRecords" and inputs.is_due() else None
            if odd is not None and inputs.name == "answer":
                self.wfile.write(odd)
                self.close_connection = True
                return
            said = reply.body if odd is None else odd
            self.send_response(reply.status)
            self.send_header("x-amzn-RequestId", "c0ffee00-0000-0000-0000-000000000000")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def send_to(running: DaemonProcess, inputs: Inputs) -> None:
    """Send inputs to the daemon's own ends for a while, or only wait if the service answers with them."""
    url, deadline = urlsplit(running.url), time.monotonic() + SECONDS
    connects: dict[str, Callable[[], socket.socket]] = {
        "http": lambda: socket.create_connection((url.hostname or "", url.port or 0)),
        "wire": lambda: _unix(running.socket),
    }
    while (left := deadline - time.monotonic()) > 0:
        if inputs.name in _OF_SERVICE:
            time.sleep(left)
            continue
        with connects[inputs.name]() as connected, contextlib.suppress(OSError):
            connected.settimeout(LOOK_SECONDS)  # the daemon may wait for more, and so may an answer
            connected.sendall(inputs.next())
            connected.shutdown(socket.SHUT_WR)
            while connected.recv(65_536):
                pass


def _unix(path: Path) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(str(path))
    return connected


def _passes(sender: Sender) -> bool:
    return sender.put(PATIENCE_SECONDS).exception(PATIENCE_SECONDS) is None


def main(name: str, folder: str, seed: str) -> None:
    kinesis, inputs = FakeKinesis(), Inputs(name, Path(folder), int(seed))
    numbers = range(SENDERS)
    streams = [kinesis.create_stream(f"honest-{number}", shards=2, now=time.time()) for number in numbers]
    book = Book(int(seed), dict.fromkeys(numbers, Shape()))
    with service(kinesis, inputs) as url, daemon(url, forked=False) as running:
        senders = [
            Sender(number, stream.name, book, running.socket, RECORDS_PER_SECOND)
            for number, stream in zip(numbers, streams, strict=True)
        ]
        for sender in senders:
            sender.start()
        send_to(running, inputs)
        inputs.end()
        for sender in senders:
            sender.stop()
            sender.join()
            sender.flush(PATIENCE_SECONDS)
            until(partial(_passes, sender), "a fresh record is stored", PATIENCE_SECONDS)
            sender.close()
    lost = errors = acknowledged = 0
    for sender, stream in zip(senders, streams, strict=True):
        read = {book.identify(record.partition_key, record.data) for record in stream.read().records}
        assert None not in read, "a record that no client has sent"
        found = {identity.number for identity in read if identity is not None}
        lost += len(sender.acknowledged - found)
        acknowledged += len(sender.acknowledged)
        errors += sum(sender.errors_told.values())
        assert not sender.failure, sender.failure
    assert not lost, f"{lost} acknowledged records are lost"
    assert not errors or name in _OF_SERVICE, f"{errors} records with an error"
    print(json.dumps({"sent": inputs.taken, "honest": acknowledged, "refused": errors}))


if __name__ == "__main__":
    main(*sys.argv[1:])
