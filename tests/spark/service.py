"""The fake Kinesis and the daemon as processes, and what they say: all that a test of Spark needs of them.

Runs where Spark runs: Python 3.9 suffices here, while the processes are started by ``SERVICE_PYTHON``.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.daemon import NEVER_STORED, PATIENCE_SECONDS, ROOT, SERVICE_PYTHON, DaemonProcess, idle, until
from tests.spark.processes import Process, processes

CALL_SECONDS = 30
UNPACKING = {"daemon_start_timeout_seconds": 200}
"""For a write whose tasks unpack the pex first: 300 MB for each executor, and the disk may be busy."""


class Kinesis:
    """The fake Kinesis in a process of its own, by its HTTP API (docs/use/testing.md)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._streams = 0

    def call(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(f"{self.url}/_fake/{path}", data, timeout=CALL_SECONDS) as answer:
            return json.load(answer)

    def stream(self, shards: int = 4) -> str:
        """A new stream's name."""
        self._streams += 1
        name = f"stream-{self._streams}"
        self.call("streams", {"name": name, "shards": shards})
        return name

    def answer_after(self, seconds: float) -> None:
        self.call("settings", {"latency_seconds": seconds})

    def hang(self) -> None:
        """Answer nothing any more."""
        self.call("faults", {"standing": [{"kind": "hang"}]})

    def recover(self) -> None:
        """Answer everything, also what hangs, at once."""
        self.answer_after(0.0)
        self.call("faults", {"standing": [], "script": []})
        self.call("release", {})

    def data(self, stream: str) -> list[bytes]:
        """What a consumer is handed."""
        records = self.call(f"records?stream={stream}")
        assert records["dropped_aggregates"] == 0
        return [base64.b64decode(record["data"]) for record in records["records"]]

    def ids(self, stream: str) -> Counter[int]:
        """How often each row's id can be read."""
        return Counter(json.loads(data)["id"] for data in self.data(stream))


@contextlib.contextmanager
def fake_kinesis() -> Iterator[Kinesis]:
    command = [SERVICE_PYTHON, "-m", "producerd.testing.fake_kinesis", "--port", "0", "--stream", "unused"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, "the fake Kinesis did not start"
            yield Kinesis(url)
        finally:
            process.kill()


def own_settings(kinesis: Kinesis, **more: Any) -> dict[str, Any]:
    """Settings of a daemon that tasks start, for which Spark's own Python may be too old.

    Its arguments have the service's URL, which Python ignores there, so that `own_daemons` finds it.
    """
    command = f"{SERVICE_PYTHON} -I -X {kinesis.url} -m producerd"
    return {**plain_settings(kinesis), "command": command, **more}


def plain_settings(kinesis: Kinesis) -> dict[str, Any]:
    """Settings of a daemon that tasks start with the code that they find on their executor."""
    return {"region": "us-east-1", "endpoint_url": kinesis.url}


def commands_of(result: Any) -> list[str]:
    """The command lines of the daemons that a batch's tasks have started, and that are still there."""
    return [found.command for found in processes() if found.pid in result["daemons"]]


def assert_all_stored(result: Any, kinesis: Kinesis, stream: str, rows: int) -> None:
    assert result.get("records") == rows, result
    assert kinesis.ids(stream) == Counter(range(rows))


def own_daemons(kinesis: Kinesis) -> list[Process]:
    return [found for found in processes() if kinesis.url in found.command and "--sets-file=" in found.command]


def counted(daemon: DaemonProcess, stream: str) -> Counter[str]:
    """The metrics of one stream, summed over their other labels.

    Until it has stored a record, they are the numbers of all streams that have not.
    """
    found = re.findall(r"^producerd_(\w+)\{(.*)\} (\S+)$", daemon.get("/metrics?collect=all")[1], re.MULTILINE)
    for label in (f'stream="{stream}"', f'stream="{NEVER_STORED}"'):
        values: Counter[str] = Counter()
        for name, labels, value in found:
            if label in labels:
                values[name] += float(value)  # type: ignore[assignment]  # whole numbers, except seconds
        if values:
            break
    return values


def wait_for_records(daemon: DaemonProcess, stream: str, records: float) -> None:
    """Wait until this many are delivered, for which Spark may have to start."""
    until(lambda: counted(daemon, stream)["delivered_records_total"] >= records, f"{records:g} records", 90)


def threads(daemon: DaemonProcess) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/task"))


def wait_until_left_alone(daemon: DaemonProcess, seconds: float = 2 * PATIENCE_SECONDS) -> None:
    """Wait until it has no client and holds nothing: everything of those that are gone is freed."""

    def free() -> bool:
        metrics = daemon.metrics()
        if "queue_records" not in metrics:  # no stream has been opened
            return not metrics["client_connections"]
        return idle(metrics) and not metrics["client_connections"] and not metrics["backpressure_blocked_clients"]

    until(free, "no client is left, and nothing of one", seconds)
