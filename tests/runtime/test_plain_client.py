"""`KinesisClient` with a real daemon delivers what it has taken, whatever becomes of its caller."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer
from tests.daemon import ROOT, daemon, idle, until


def stored(kinesis: FakeKinesis) -> Counter[bytes]:
    return Counter(record.data for record in kinesis.streams["flights"].read().records)


@pytest.mark.promise("killed-process-put-delivered")
def test_what_a_killed_process_had_put_is_delivered(kinesis: FakeKinesis, server: FakeServer) -> None:
    """SIGKILL as soon as the daemon has taken it, while the service still hangs: accepted is accepted."""
    kinesis.standing.append(Fault("hang"))
    with daemon(server.url, aggregation="kpl", request_timeout_seconds=60) as running:
        script = (
            "import os, signal, sys\n"
            "from spark_client import KinesisClient\n"
            "client = KinesisClient('flights', socket=sys.argv[1])\n"
            "for i in range(50):\n"
            "    future = client.put(f'row {i}', f'k{i}')\n"
            "while not future.taken:\n"
            "    pass\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        done = subprocess.run([sys.executable, "-c", script, str(running.socket)], cwd=ROOT, timeout=60)
        assert done.returncode == -signal.SIGKILL
        until(lambda: running.metrics()["client_connections"] == 0)
        assert not stored(kinesis)
        kinesis.standing.clear()
        server.release()
        until(lambda: len(stored(kinesis)) == 50)
        assert stored(kinesis) == Counter(b"row %d" % i for i in range(50))
        until(lambda: idle(running.metrics()))


UNCLOSED = """
import multiprocessing, os, sys
from spark_client import KinesisClient

def put(name):
    global client
    client = KinesisClient("flights", socket=sys.argv[1])
    for row in range(100):
        client.put(f"{name} {row}")

if __name__ == "__main__":
    for method in ("fork", "spawn"):
        child = multiprocessing.get_context(method).Process(target=put, args=(method,))
        child.start()
        child.join()
    put("program")
    for puts in (False, True):
        if os.fork() == 0:
            if puts:
                put("fork of program")
            sys.exit()
        os.wait()
    sys.exit(3)
"""


@pytest.mark.promise("program-ends-close-stored")
def test_a_program_that_ends_without_close_has_stored_its_records(
    kinesis: FakeKinesis, server: FakeServer, tmp_path: Path
) -> None:
    """So has each of its children, and a forked one leaves its parent's records to the parent."""
    program = tmp_path / "program.py"
    program.write_text(UNCLOSED)
    with daemon(server.url, linger_seconds=3600) as running:
        command = [sys.executable, "-W", "ignore", str(program), str(running.socket)]
        done = subprocess.run(
            command, env={"PYTHONPATH": str(ROOT)}, timeout=60, stderr=subprocess.PIPE, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (3, "")
        names = ("fork", "spawn", "program", "fork of program")
        assert stored(kinesis) == Counter(f"{name} {row}".encode() for name in names for row in range(100))
