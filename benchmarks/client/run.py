"""Put records in each way by a program of its own through a daemon to a sink, and by the KPL to the same sink.

A run lasts from the first record to the last acknowledgement.  The first run of each way warms up, and of the others
the fastest counts.  CPU time is the program's, for the KPL with its native process.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.client import puts
from benchmarks.client.puts import WAYS
from benchmarks.daemon import client
from benchmarks.daemon import run as daemon
from benchmarks.daemon.client import KEY_BYTES, STREAM
from benchmarks.daemon.run import START_SECONDS, STOP_SECONDS, Case, RecordsWrong, serve_with
from benchmarks.machine import machine
from benchmarks.maven import Unavailable
from benchmarks.rivals import rows
from benchmarks.rivals.builds import HERE, Builds
from benchmarks.rivals.kpl import RUN
from benchmarks.rivals.producers import RIVALS
from benchmarks.rivals.run import family
from benchmarks.sink import CERTIFICATE
from benchmarks.spark.cost import cpu_seconds
from producerd import __version__
from producerd.demo.children import Child

RECORD_BYTES: Final = 100
RUN_SECONDS: Final = 300.0
FEWER: Final = {"put_with_a_timeout": 100, "alone": 200}
"""By how much fewer records a slow way puts."""
KPL: Final = next(rival for rival in RIVALS if rival.name == "official-kpl")


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results.

    ``cpu_ns_per_record`` is the program's.  ``acknowledged_us`` is the median time of a record that is put alone.  A
    producer that is ``absent`` has the reason, and no figures.
    """

    producer: str
    version: str
    way: str
    records_per_second: int | None = None
    cpu_ns_per_record: int | None = None
    acknowledged_us: int | None = None
    absent: str | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    """The benchmark.  The daemon benchmark has the sink, and says how many records and runs."""

    ours: daemon.Bench

    @property
    def conditions(self) -> str:
        return (
            f"{machine()}; Python {platform.python_version()}; records of {RECORD_BYTES} bytes, keys of {KEY_BYTES}, "
            f'aggregation = "kpl", linger_seconds = 0.01, TLS, one shard; the fastest of {self.ours.repeats} runs of '
            f"{self.ours.records:,} records, or of fewer of a slow way"
        )

    def figures(self) -> Iterator[Figures]:
        """Yield the figures.  Raise `ChildFailed` and `RecordsWrong`."""
        ours = self.ours
        settings = {**ours.settings(Case(RECORD_BYTES, "kpl")), "linger_seconds": 0.01}
        with ours.daemon(serve_with(settings)):
            program = ours.children.start("program", ["-m", puts.__name__, ours.socket, str(RECORD_BYTES)])
            program.line(START_SECONDS)
            for way in WAYS:
                count = max(200, ours.records // FEWER.get(way, 1))
                yield self._measured("producerd", __version__, way, program, f"{way} {{}}", count)
            program.stop(STOP_SECONDS)
        yield from self._kpl()

    def _kpl(self) -> Iterator[Figures]:
        ours = self.ours
        try:
            command = KPL.command(Builds(ours.children, ours.say))
        except Unavailable as reason:
            yield Figures(KPL.name, KPL.version, "addUserRecord", absent=str(reason))
            return
        path = ours.work / "records"
        rows.write(path, *client.rows(puts.DIFFERENT, RECORD_BYTES))
        authority = str(ours.work / CERTIFICATE)
        environ = {"AWS_CA_BUNDLE": authority, "SSL_CERT_FILE": authority, "PYTHONPATH": str(HERE.parents[1])}
        program = ours.children.start(
            KPL.name, ["-c", RUN, *command, ours.endpoint_url, str(path), STREAM, "kpl"], environ
        )
        program.line(START_SECONDS)
        yield self._measured(KPL.name, KPL.version, "addUserRecord", program, "{}", ours.records)
        program.stop(STOP_SECONDS)

    def _measured(self, producer: str, version: str, way: str, program: Child, order: str, count: int) -> Figures:
        ours = self.ours
        ours.say(f"{producer}, {way}: {1 + ours.repeats} runs of {count:,} records ...")
        runs = [self._run(program, order, count) for _ in range(1 + ours.repeats)][1:]
        seconds, cpu, said = min(runs)
        return Figures(
            producer,
            version,
            way,
            records_per_second=round(count / seconds),
            cpu_ns_per_record=round(cpu * 1e9 / count),
            acknowledged_us=said if way == "alone" else None,
        )

    def _run(self, program: Child, order: str, count: int) -> tuple[float, float, int]:
        ours, pids = self.ours, [*family(program.process.pid)]
        arrived, used, began = ours._arrived(), sum(map(cpu_seconds, pids)), time.perf_counter()
        program.tell(order.format(count))
        said = int(program.line(RUN_SECONDS))
        seconds = time.perf_counter() - began
        used, arrived = sum(map(cpu_seconds, pids)) - used, ours._arrived() - arrived
        if arrived < count:
            raise RecordsWrong(f"{count:,} records were acknowledged, and {arrived:,} arrived")
        return seconds, used, said


@contextlib.contextmanager
def bench(records: int, repeats: int, say: Callable[[str], None]) -> Iterator[Bench]:
    """Start the sink, and end everything after the block.  Raise `ChildFailed`."""
    with daemon.bench(records, repeats, say) as ours:
        yield Bench(ours)
