"""What benchmarks share: a sink and daemons as processes, loads on them, and a report.

A run is good only if the sink received each record once.  It lasts from the first record to the last acknowledgement.
A run that warms up goes before the runs that count.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks import load
from benchmarks.interrupts import interrupts
from benchmarks.sink import CERTIFICATE, HOST
from benchmarks.table import answer, say
from producerd.demo.children import Child, ChildFailed, Children
from producerd.demo.scenario import environment, folder

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FASTER_THAN_ANY_SHARD: Final = 10_000
"""Share of a shard's limit that the daemon may send.  Pacing is on, but never limits: the sink accepts any rate."""
START_SECONDS: Final = 60.0
RUN_SECONDS: Final = 300.0
STOP_SECONDS: Final = 20.0


class RecordsWrong(Exception):
    """The endpoint did not receive each record once, or not each was acknowledged."""


class Run(NamedTuple):
    """A run: its records, its seconds, how far each counter went on, and what else the client said."""

    records: int
    seconds: float
    used: Sequence[float]
    said: Sequence[str]


def parser(name: str, what: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"./dev bench {name}", description=what)
    made.add_argument("--json", action="store_true", help="one array of objects on stdout")
    return made


def report(
    kind: type[DataclassInstance],
    rows: Iterable[DataclassInstance],
    fails_by: tuple[type[Exception], ...] = (ChildFailed, RecordsWrong),
    *,
    as_json: bool,
) -> int:
    """Measure the rows, print them, and return 0, or 1 after an expected failure and the end of its log."""
    try:
        with interrupts():
            print(answer(kind, list(rows), as_json=as_json))
    except fails_by as error:
        say(f"FAILED: {error}\n{getattr(error, 'tail', '')}")
        return 1
    return 0


@contextlib.contextmanager
def started(children: Children, command: Sequence[str], environ: Mapping[str, str] | None = None) -> Iterator[Child]:
    """Start a daemon, and end it after the block.  Raise `ChildFailed` if it ends before, or not as it should."""
    daemon = children.start("daemon", command, environ)
    try:
        yield daemon
    finally:
        daemon.poll_line(0.0)  # it raises if the daemon has ended, which explains the failure of its client
    if (code := daemon.stop(STOP_SECONDS)) not in (0, -signal.SIGTERM):
        raise ChildFailed(f"the daemon ended with exit code {code}", daemon.log)


def serve_with(settings: Mapping[str, Any], program: Sequence[str] = ("-m", "producerd")) -> list[str]:
    """Return the command ``producerd serve`` with these settings."""
    return [*program, "serve", *(f"--set={name}={value}" for name, value in settings.items())]


@dataclass(frozen=True, slots=True)
class Rig:
    """A running sink, and what daemons and clients need to reach each other."""

    children: Children
    work: Path
    sink: Child
    port: int

    @property
    def endpoint_url(self) -> str:
        return f"https://{HOST}:{self.port}"

    @property
    def socket(self) -> str:
        """The path of the daemon's socket."""
        return str(self.work / "daemon.sock")

    @property
    def trust(self) -> dict[str, str]:
        """The variables by which every SDK trusts the sink's certificate."""
        return dict.fromkeys(("AWS_CA_BUNDLE", "SSL_CERT_FILE"), str(self.work / CERTIFICATE))

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return a daemon's settings.  The sink is not AWS's host, so they ask for CBOR, as the daemon sends to AWS."""
        return {
            "socket": self.socket,
            "metrics_listen": "",
            "endpoint_url": self.endpoint_url,
            "shard_rate_fraction": FASTER_THAN_ANY_SHARD,
            "wire_format": "cbor",
            **others,
        }

    def daemon(self, command: Sequence[str]) -> contextlib.AbstractContextManager[Child]:
        return started(self.children, command, self.trust)

    def client(self, way: str, record_bytes: int) -> Child:
        """Start a client of `benchmarks.load`, and wait until it is connected."""
        child = self.children.start(f"{way} client", ["-m", load.__name__, way, self.socket, str(record_bytes)])
        child.line(START_SECONDS)
        return child

    def arrived(self) -> int:
        self.sink.tell("")
        return int(self.sink.line(START_SECONDS))

    def run(self, client: Child, order: str, records: int, *counters: Callable[[], float]) -> Run:
        """Let a client put records, and return what was counted meanwhile.  Raise `RecordsWrong`."""
        arrived, before, began = self.arrived(), [counter() for counter in counters], time.perf_counter()
        client.tell(order)
        put, *said = client.line(RUN_SECONDS).split()
        seconds, after = time.perf_counter() - began, [counter() for counter in counters]
        arrived = self.arrived() - arrived
        if not arrived == int(put) >= records:
            raise RecordsWrong(f"{client.name} should put {records:,} records and put {put}; {arrived:,} arrived")
        return Run(arrived, seconds, [b - a for a, b in zip(before, after, strict=True)], said)


@contextlib.contextmanager
def rig() -> Iterator[Rig]:
    """Start the sink, and end it and everything else after the block.  Raise `ChildFailed`."""
    with folder() as work, Children(work, environment(work)) as children:
        sink = children.start("sink", ["-m", "benchmarks.sink", str(work)])
        yield Rig(children, work, sink, int(sink.line(START_SECONDS)))
