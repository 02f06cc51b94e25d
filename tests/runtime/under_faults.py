"""A daemon whose service throttles, fails, hangs and loses answers, while its clients send on or are killed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer
from producerd.wire import messages
from producerd.wire.columns import lay_out
from spark_client.connection import Connection
from tests.daemon import ROOT, DaemonProcess, daemon, rows

STREAMS: Final = ("flights", "packed", "impatient")
SETS: Final[dict[str, Any]] = {
    "request_timeout_seconds": 0.3,
    "queue_limit": 600,
    'streams."packed".aggregation': "kpl",
    'streams."packed".aggregate_max_bytes': 1024,
    'streams."impatient".on_throttle': "fail",
}
_CLIENT: Final = """
import sys
from producerd.wire import messages
from spark_client.connection import Connection
from tests.daemon import rows

with Connection(messages.Hello(1, 1), sys.argv[1:2]) as client:
    while True:
        client.put(sys.argv[2], rows(50), 30)
        print("put", flush=True)
"""


@contextlib.contextmanager
def daemon_under_faults(kinesis: FakeKinesis, server: FakeServer) -> Iterator[DaemonProcess]:
    """The fake has ``flights``.  Leaving the block ends the faults and the clients; what they sent is then settled."""
    for name in STREAMS[1:]:
        kinesis.create_stream(name, shards=2)
    kinesis.latency_seconds = (0.0, 0.02)
    kinesis.standing += [
        Fault("throttle", fraction=0.05),
        Fault("fail", fraction=0.03),
        Fault("hang", fraction=0.02),
        Fault("lost", fraction=0.05),
    ]
    ended = threading.Event()

    def send(stream: str) -> None:
        """Some rows of each frame are bad, and are left out."""
        hello = messages.Hello(1, 1, bad_rows=int(messages.BadRows.TAKE_GOOD))
        with Connection(hello, [str(running.socket)]) as client:
            number = 0
            while not ended.is_set():
                number += 1
                client.put(stream, rows(50, name=f"frame{number}"), 30)
                client.put(stream, lay_out([b"good", b"\xff"], [b"1", b"2"]), 30)
            client.flush(30)

    def be_killed(stream: str) -> None:
        command = [sys.executable, "-c", _CLIENT, str(running.socket), stream]
        while not ended.is_set():
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as client:
                assert client.stdout is not None
                client.stdout.readline()
                client.kill()

    with daemon(server.url, **SETS) as running, ThreadPoolExecutor(len(STREAMS) + 1) as pool:
        loads = [pool.submit(send, stream) for stream in STREAMS] + [pool.submit(be_killed, "flights")]
        try:
            yield running
        finally:
            ended.set()
            kinesis.standing.clear()
            server.release()
        for load in loads:
            load.result()
