"""Run two daemons under faults, in front of a Prometheus that scrapes them each second.

One daemon has the labels ``cluster`` and ``region``, and the other one does not.  The run has phases of one length:

- ``calm``: jobs write less than the shards take.
- ``too much``: jobs write as fast as they can.  Queues fill, callers wait and shards throttle.
- ``errors``: entries and whole requests fail, and answers are lost.
- ``outage``: the service answers nothing.
- ``after``: the service answers, one daemon is restarted, and the other one reads its settings again.

After the first phase there are also clients with bad rows, with a misspelt stream, and with a stream that does not
exist.  Some end without waiting for their acknowledgements.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from producerd.demo.children import Child, ChildFailed, Children
from producerd.demo.ports import free_port
from producerd.demo.scenario import environment, folder
from producerd.errors import ProducerdError
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from producerd.wire.columns import Columns, lay_out
from producerd.wire.messages import BadRows, Hello
from spark_client.connection import Connection
from tests.prometheus import Prometheus
from tools import ROOT

STREAM: Final = "flights"
GONE: Final = "gone"
"""A stream of the settings that does not exist."""
ODD: Final = (STREAM, GONE, "flihgts")
"""Streams to which odd clients write."""
SHARDS: Final = 4
NODES: Final = 2
JOBS: Final = 2
"""Jobs that write to each daemon."""
FRAME_RECORDS: Final = 100
CALM_RECORDS_PER_SECOND: Final = 500
"""Of one job; all four write half of what the shards take."""
ODD_SECONDS: Final = 0.5
SCRAPE_SECONDS: Final = 1
RATE_SECONDS: Final = 4 * SCRAPE_SECONDS
"""Grafana's $__rate_interval."""
START_SECONDS: Final = 60.0
PHASES: Final = ("calm", "too much", "errors", "outage", "after")
CALM: Final = ("calm", "after")
"""Phases in which jobs write less than the shards take."""
SETTINGS: Final[dict[str, Any]] = {
    f"streams.{STREAM}.queue_limit": 4_000,
    f"streams.{GONE}.queue_limit": 4_000,
    "streams.impatient.on_throttle": "fail",
    "request_timeout_seconds": 1,
    "drain_timeout_seconds": 2,
}
RULES: Final = ROOT / "deploy/prometheus/alerts.yml"


@dataclass(slots=True)
class ScrapedDaemon:
    """A daemon, which can be started again at the same place."""

    name: str
    children: Children
    sets: list[str]
    address: str
    socket: str
    daemon: Child = field(init=False)

    def start(self) -> None:
        self.daemon = self.children.start(self.name, ["-m", "producerd", "serve", *self.sets])
        _wait_for(f"http://{self.address}/-/ready", self.daemon)


@dataclass(frozen=True, slots=True)
class FaultyRun:
    """A run that has ended, while Prometheus still answers.  ``phases`` has the end of each, as Unix time."""

    prometheus: Prometheus
    began: float
    phases: dict[str, float]

    @property
    def ended(self) -> float:
        return self.phases[PHASES[-1]]


@contextlib.contextmanager
def faulty_run(phase_seconds: float, say: Callable[[str], None]) -> Iterator[FaultyRun]:
    """Make a run.  Raise `ChildFailed` if a process does not start."""
    kinesis = FakeKinesis()
    kinesis.enforce_limits = True
    kinesis.latency_seconds = (0.005, 0.03)
    for name, shards in ((STREAM, SHARDS), ("impatient", 1)):
        kinesis.create_stream(name, shards=shards)
    with folder() as work, serve_in_thread(kinesis) as server, Children(work, _environment(work)) as children:
        nodes = [_node(children, work, server.url, number) for number in range(NODES)]
        for node in nodes:
            node.start()
        prometheus = _prometheus(children, work, nodes)
        began, phases = time.time(), {}
        with _jobs(nodes) as pace:
            for phase in PHASES:
                say(f"{phase}: {phase_seconds:g} s")
                _begin(phase, kinesis, server, pace, nodes)
                time.sleep(phase_seconds)
                phases[phase] = time.time()
        yield FaultyRun(prometheus, began, phases)


def _begin(phase: str, kinesis: FakeKinesis, server: FakeServer, pace: Pace, nodes: list[ScrapedDaemon]) -> None:
    pace.phase = phase
    if phase == "errors":
        kinesis.standing += [Fault("fail", fraction=0.05), Fault("error", fraction=0.1), Fault("lost", fraction=0.1)]
    elif phase == "outage":
        kinesis.standing[:] = [Fault("hang", action="*")]
    elif phase == "after":
        kinesis.standing.clear()
        server.release()
        again, other = nodes
        again.daemon.stop(START_SECONDS)
        again.start()
        other.daemon.process.send_signal(signal.SIGHUP)


@dataclass(slots=True)
class Pace:
    """What the jobs go by: the phase, and whether the run has ended."""

    phase: str = PHASES[0]
    ended: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def _jobs(nodes: list[ScrapedDaemon]) -> Iterator[Pace]:
    """Write to all daemons until the end of the block."""
    pace = Pace()
    hello = Hello(1, 1, bad_rows=int(BadRows.TAKE_GOOD))
    # The odd jobs must fail ten records and more, from which on alerts page, also in phases of seconds.
    good, bad = _rows(FRAME_RECORDS), lay_out([b"good"] * 9 + [b"\xff"], [b"1"] * 10)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(NODES * (JOBS + len(ODD))) as pool:

        def connected(node: ScrapedDaemon) -> Connection:
            connection = Connection(hello, [node.socket], reconnect_timeout_seconds=START_SECONDS)
            stack.callback(connection.close)
            return connection

        def write(connection: Connection) -> None:
            try:
                while not pace.ended.is_set():
                    connection.put(STREAM, good)
                    if pace.phase in CALM:
                        pace.ended.wait(FRAME_RECORDS / CALM_RECORDS_PER_SECOND)
            except ProducerdError:
                if not pace.ended.is_set():  # otherwise it was abandoned
                    raise

        def odd(node: ScrapedDaemon, stream: str, columns: Columns) -> None:
            """Write and leave at once, again and again."""
            while not pace.ended.wait(ODD_SECONDS):
                if pace.phase == PHASES[0]:
                    continue
                with contextlib.suppress(ProducerdError), Connection(hello, [node.socket]) as connection:
                    connection.put(stream, columns, ODD_SECONDS)
                    if stream != STREAM:
                        connection.flush(ODD_SECONDS)

        connections = [connected(node) for node in nodes for _ in range(JOBS)]
        jobs = [pool.submit(write, connection) for connection in connections]
        jobs += [pool.submit(odd, node, stream, bad) for node in nodes for stream in ODD]
        try:
            yield pace
        finally:
            pace.ended.set()
            for connection in connections:
                connection.abandon()
        for job in jobs:
            job.result()


def _rows(count: int) -> Columns:
    return lay_out([f"key-{i}".encode() for i in range(count)], [b"." * 200] * count)


def _environment(work: Path) -> dict[str, str]:
    """Return an environment whose credentials end in an hour."""
    keys = work / "keys.json"
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    keys.write_text(json.dumps({"Version": 1, "AccessKeyId": "key", "SecretAccessKey": "secret", "Expiration": ends}))
    config = work / "aws"
    config.write_text(f"[default]\nregion = us-east-1\ncredential_process = cat {keys}\n")
    kept = {name: value for name, value in environment(work).items() if not name.startswith("AWS_")}
    return {**kept, "AWS_CONFIG_FILE": str(config)}


def _node(children: Children, work: Path, endpoint_url: str, number: int) -> ScrapedDaemon:
    address, socket = f"127.0.0.1:{free_port()}", str(work / f"{number}.sock")
    own = {"socket": socket, "metrics_listen": address, "endpoint_url": endpoint_url, **SETTINGS}
    return ScrapedDaemon(
        f"daemon {number}", children, [f"--set={name}={value}" for name, value in own.items()], address, socket
    )


def _prometheus(children: Children, work: Path, nodes: list[ScrapedDaemon]) -> Prometheus:
    # No phase is as long as an alert waits.
    (work / RULES.name).write_text(re.sub(r"^( +for: )\d+m", r"\g<1>1s", RULES.read_text(), flags=re.MULTILINE))
    labelled, plain = nodes
    targets = [
        {"targets": [labelled.address], "labels": {"cluster": "spark", "region": "eu-west-1"}},
        {"targets": [plain.address]},
    ]
    every = f"{SCRAPE_SECONDS}s"
    config = {
        "global": {"scrape_interval": every, "evaluation_interval": every},
        "scrape_configs": [{"job_name": "producerd", "static_configs": targets}],
        "rule_files": [RULES.name],
    }
    (work / "prometheus.yml").write_text(json.dumps(config))
    address = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={work}/prometheus.yml", f"--storage.tsdb.path={work}/data"]
    # Children start Python, which becomes Prometheus.
    become = ["-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])", "prometheus"]
    process = children.start("prometheus", [*become, *options, f"--web.listen-address={address}"])
    _wait_for(f"http://{address}/-/ready", process)
    prometheus, deadline = Prometheus(f"http://{address}"), time.monotonic() + START_SECONDS
    while not prometheus.now(f"count(up == 1) == {NODES}", time.time()):
        process.poll_line(SCRAPE_SECONDS / 4)  # it raises if Prometheus has ended
        if time.monotonic() > deadline:
            raise ChildFailed("Prometheus did not scrape the daemons", process.log)
    return prometheus


def _wait_for(url: str, child: Child) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=1):
            return
        child.poll_line(0.05)  # it raises if the child has ended
        if time.monotonic() > deadline:
            raise ChildFailed(f"{child.name} was not ready within {START_SECONDS:.0f} s", child.log)
