"""Run the cases one after the other, each with a daemon of its own, all against one sink.

CPU time is the time that the kernel has charged to all threads of a process, between two moments at which every record
is acknowledged.  A run on few records goes before.  The run of a case with the least CPU time counts, because other
work on the machine can only add to it.
"""

from __future__ import annotations

import contextlib
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.daemon import client
from benchmarks.daemon.client import KEY_BYTES, SESSIONS, STREAM
from benchmarks.machine import machine
from benchmarks.rivals import naive
from benchmarks.sink import CERTIFICATE
from benchmarks.spark.cost import cpu_seconds
from producerd.config import StreamSettings
from producerd.demo.children import Child, Children
from producerd.demo.scenario import environment, folder

WORTH: Final = {100: 1, 1_024: 5, 10_240: 50}
"""The sizes of records, each with the number of records of 100 bytes that take about as long as one."""
AGGREGATIONS: Final = ("none", "kpl")
NAIVE_WORTH: Final = 10
"""Slowdown of the naive daemon at 100 bytes.  It receives fewer records by this factor."""
WARM_PART: Final = 4
"""Divisor of the records of the run that warms up."""
FEW_RECORDS: Final = 400_000
"""Fewest records at which the figures mean something.

With fewer, the naive daemon puts only one chunk in each session, as many as in the run that warms up.  Then it needs up
to 60 % more CPU time per record.  More records do not change the figure.
"""
FASTER_THAN_ANY_SHARD: Final = 10_000
"""Share of a shard's limit that the daemon may send.  Pacing is on, but never limits: the sink accepts any rate."""
START_SECONDS: Final = 60.0
RUN_SECONDS: Final = 300.0
STOP_SECONDS: Final = 20.0
PACKAGES: Final = ("aiobotocore", "aiohttp", "numpy", "orjson", "pyarrow", "pybase64", "uvloop")


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results.

    ``cpu_ns_per_record`` is the daemon's CPU time.  ``loop_cpu_ns_per_record`` is the share of the event loop's thread,
    which no second core can take over.  ``records_per_second`` is measured with client and sink on the same cores.
    ``peak_rss_bytes`` is the highest resident memory in any run.  ``ratio_to_naive`` is the CPU time of
    `benchmarks.rivals.naive`, divided by the CPU time of this case.
    """

    record_bytes: int
    aggregation: str
    cpu_ns_per_record: int
    loop_cpu_ns_per_record: int
    records_per_second: int
    peak_rss_bytes: int
    queue_limit_bytes: int
    ratio_to_naive: float


class Case(NamedTuple):
    """The case as text, which `--only` takes."""

    record_bytes: int
    aggregation: str

    def __str__(self) -> str:
        return ",".join(map(str, self[:]))


CASES: Final = tuple(Case(*case) for case in product(WORTH, AGGREGATIONS))


class RecordsWrong(Exception):
    """The sink did not receive each record once."""


class Run(NamedTuple):
    """CPU time in ns per record in one run, of the daemon and of the processes around it."""

    cpu_ns: float
    loop_cpu_ns: float
    sink_cpu_ns: float
    client_cpu_ns: float
    records_per_second: float
    records: int


def thread_cpu_seconds(pid: int, thread: int) -> float:
    """Return the CPU seconds of one thread, from the scheduler's count in ns.  The main thread has the process's id."""
    return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0]) / 1e9


def forget_peak(pid: int) -> None:
    """Begin a new peak of resident memory, if the kernel allows it."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_rss_bytes(pid: int) -> int:
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


@dataclass(slots=True)
class Bench:
    """The benchmark: ``repeats`` runs with ``records`` of 100 bytes each.  ``say`` reports the progress."""

    children: Children
    work: Path
    sink: Child
    endpoint_url: str
    records: int
    repeats: int
    say: Callable[[str], None]
    wire_format: str = "cbor"
    _naive_ns: dict[int, float] = field(default_factory=dict, init=False)

    @property
    def conditions(self) -> str:
        versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
        return (
            f"{machine()}; Python {platform.python_version()}, {versions}; "
            f"keys of {KEY_BYTES} bytes, {SESSIONS} sessions, TLS, one shard, "
            f"shard_rate_fraction {FASTER_THAN_ANY_SHARD:,}, "
            f"wire_format {self.wire_format}, other settings as they come; "
            f"the least of {self.repeats} runs, asked for {self.records:,} records of 100 bytes or fewer larger ones"
        )

    def figures(self, case: Case) -> Figures:
        """Yield the figures of the cases.  Raise `ChildFailed` and `RecordsWrong`."""
        naive_ns = self._naive_cpu_ns(case.record_bytes)
        command = serve_with(self.settings(case))
        records = self.records // WORTH[case.record_bytes]
        best, peak = self._best(str(case), "producerd", command, case.record_bytes, records)
        return Figures(
            *case,
            cpu_ns_per_record=round(best.cpu_ns),
            loop_cpu_ns_per_record=round(best.loop_cpu_ns),
            records_per_second=round(best.records_per_second),
            peak_rss_bytes=peak,
            queue_limit_bytes=StreamSettings().queue_limit_bytes,
            ratio_to_naive=round(naive_ns / best.cpu_ns, 1),
        )

    def settings(self, case: Case) -> dict[str, object]:
        """Return the settings of the daemon in a case."""
        return {
            "socket": self.socket,
            "metrics_listen": "",
            "endpoint_url": self.endpoint_url,
            "shard_rate_fraction": FASTER_THAN_ANY_SHARD,
            "aggregation": case.aggregation,
            "wire_format": self.wire_format,
        }

    def _naive_cpu_ns(self, record_bytes: int) -> float:
        """Return the naive daemon's CPU time for a size, which is measured once."""
        if record_bytes not in self._naive_ns:
            command = ["-m", naive.__name__, self.socket, self.endpoint_url, STREAM]
            records = self.records // WORTH[record_bytes] // NAIVE_WORTH
            best, _ = self._best(f"{record_bytes},naive", "naive", command, record_bytes, records)
            self._naive_ns[record_bytes] = best.cpu_ns
        return self._naive_ns[record_bytes]

    def _best(self, name: str, way: str, command: list[str], record_bytes: int, records: int) -> tuple[Run, int]:
        """Return the run with the least CPU time, and the highest resident memory in any run."""
        self.say(f"{name}: {self.repeats} runs ...")
        with self.daemon(command) as daemon:
            arguments = ["-m", client.__name__, way, self.socket, str(record_bytes)]
            putting = self.children.start("client", arguments)
            putting.line(START_SECONDS)
            self.run(daemon, putting, max(1, records // WARM_PART))
            forget_peak(daemon.process.pid)
            runs = [self.run(daemon, putting, max(1, records)) for _ in range(self.repeats)]
            peak = peak_rss_bytes(daemon.process.pid)
            putting.stop(STOP_SECONDS)
        best = min(runs)
        self.say(
            f"  {best.records:,} records in each: {best.cpu_ns:,.0f} ns a record "
            f"({best.cpu_ns:,.0f} to {max(runs).cpu_ns:,.0f}), "
            f"sink {best.sink_cpu_ns:,.0f}, client {best.client_cpu_ns:,.0f}"
        )
        if best.sink_cpu_ns > best.cpu_ns:
            self.say("  THE SINK NEEDS MORE THAN THE DAEMON: records per second are the sink's")
        return best, peak

    def run(self, daemon: Child, putting: Child, records: int) -> Run:
        """Let a client put records through a daemon, and return what they cost.  Raise `RecordsWrong`."""
        pids = [child.process.pid for child in (daemon, self.sink, putting)]

        def used() -> tuple[float, ...]:
            return (*map(cpu_seconds, pids), thread_cpu_seconds(pids[0], pids[0]), time.perf_counter())

        arrived, before = self._arrived(), used()
        putting.tell(str(records))
        put = int(putting.line(RUN_SECONDS))
        after, arrived = used(), self._arrived() - arrived
        if not arrived == put >= records:
            raise RecordsWrong(f"{put:,} records were acknowledged, and {arrived:,} arrived")
        daemon_s, sink_s, client_s, loop_s, seconds = (b - a for a, b in zip(before, after, strict=True))
        ns = 1e9 / put
        return Run(daemon_s * ns, loop_s * ns, sink_s * ns, client_s * ns, put / seconds, put)

    def _arrived(self) -> int:
        self.sink.tell("")
        return int(self.sink.line(START_SECONDS))

    def daemon(self, command: list[str]) -> contextlib.AbstractContextManager[Child]:
        """Start a daemon that trusts the sink's certificate, and end it after the block."""
        return daemon_of(self.children, self.work, command)

    @property
    def socket(self) -> str:
        """The path of the daemon's socket."""
        return str(self.work / "daemon.sock")


@contextlib.contextmanager
def daemon_of(children: Children, work: Path, command: list[str]) -> Iterator[Child]:
    """Start a daemon that trusts the sink's certificate in ``work``, and wait until it listens."""
    daemon = children.start("daemon", command, {"AWS_CA_BUNDLE": str(work / CERTIFICATE)})
    try:
        yield daemon
    finally:
        daemon.poll_line(0.0)  # it raises if the daemon has ended, which explains the failure of its client
    daemon.stop(STOP_SECONDS)


def warn_of_few(records: int, say: Callable[[str], None]) -> None:
    if records < FEW_RECORDS:
        say(f"FEW RECORDS: below --records {FEW_RECORDS:,} a run ends before it is warm, and ratios say nothing")


def serve_with(settings: Mapping[str, object]) -> list[str]:
    """Return the command ``producerd serve`` with these settings."""
    return ["-m", "producerd", "serve", *(f"--set={name}={value}" for name, value in settings.items())]


@contextlib.contextmanager
def bench(
    records: int,
    repeats: int,
    say: Callable[[str], None],
    wire_format: str = "cbor",
) -> Iterator[Bench]:
    """Start the sink and what daemons need, and end all of it after the block.  Raise `ChildFailed`.

    The sink is not AWS's host, so the setting makes the daemon speak CBOR, as it does to AWS.
    """
    with folder() as work, Children(work, environment(work)) as children:
        sink = children.start("sink", ["-m", "benchmarks.sink", str(work)])
        endpoint_url = f"https://127.0.0.1:{sink.line(START_SECONDS)}"
        yield Bench(children, work, sink, endpoint_url, records, repeats, say, wire_format)
