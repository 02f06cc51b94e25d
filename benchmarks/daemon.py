"""Measure the daemon's CPU time per record, from a client's socket to an acknowledgement: ``./dev bench daemon``.

A client that does almost nothing, `producerd serve`, and an endpoint that answers at once are processes of their own.
The same run also measures a naive daemon, as one would write it on a first day.  The run of a case with the least CPU
time counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Final, NamedTuple

from benchmarks.arguments import at_least
from benchmarks.harness import FASTER_THAN_ANY_SHARD, STOP_SECONDS, Rig, parser, report, rig, serve_with
from benchmarks.load import KEY_BYTES, SESSIONS, STREAM
from benchmarks.machine import conditions
from benchmarks.processes import cpu_seconds, forget_peak, main_thread_cpu_seconds, peak_rss_bytes
from benchmarks.rivals import naive
from benchmarks.table import say
from producerd.config import StreamSettings
from producerd.demo.children import Child

RECORDS: Final = 2_000_000
REPEATS: Final = 3
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


class Cost(NamedTuple):
    """CPU time in ns per record in one run, of the daemon and of the processes around it."""

    cpu_ns: float
    loop_cpu_ns: float
    sink_cpu_ns: float
    client_cpu_ns: float
    records_per_second: float


@dataclass(slots=True)
class Bench:
    """The benchmark: ``repeats`` runs with ``records`` of 100 bytes each."""

    rig: Rig
    records: int
    repeats: int
    wire_format: str = "cbor"
    _naive: dict[int, tuple[Cost, int]] = field(default_factory=dict, init=False)

    @property
    def conditions(self) -> str:
        return conditions(
            f"keys of {KEY_BYTES} bytes, {SESSIONS} sessions, TLS, one shard, shard_rate_fraction "
            f"{FASTER_THAN_ANY_SHARD:,}, wire_format {self.wire_format}, other settings as they come",
            f"the least of {self.repeats} runs, asked for {self.records:,} records of 100 bytes or fewer larger ones",
        )

    def figures(self, case: Case) -> Figures:
        """Return the figures of a case.  Raise `ChildFailed` and `RecordsWrong`."""
        naive_cost, _ = self.naive(case.record_bytes)
        best, peak = self.producerd(case)
        return Figures(
            *case,
            cpu_ns_per_record=round(best.cpu_ns),
            loop_cpu_ns_per_record=round(best.loop_cpu_ns),
            records_per_second=round(best.records_per_second),
            peak_rss_bytes=peak,
            queue_limit_bytes=StreamSettings().queue_limit_bytes,
            ratio_to_naive=round(naive_cost.cpu_ns / best.cpu_ns, 1),
        )

    def producerd(self, case: Case) -> tuple[Cost, int]:
        """Return the cost and the peak of RSS of a case."""
        records = self.records // WORTH[case.record_bytes]
        return self._best(str(case), "producerd", serve_with(self.settings(case)), case.record_bytes, records)

    def naive(self, record_bytes: int) -> tuple[Cost, int]:
        """Return the same of the naive daemon for a size, which is measured once."""
        if record_bytes not in self._naive:
            command = ["-m", naive.__name__, self.rig.socket, self.rig.endpoint_url, STREAM]
            records = self.records // WORTH[record_bytes] // NAIVE_WORTH
            self._naive[record_bytes] = self._best(f"{record_bytes},naive", "naive", command, record_bytes, records)
        return self._naive[record_bytes]

    def settings(self, case: Case) -> dict[str, object]:
        return self.rig.settings(aggregation=case.aggregation, wire_format=self.wire_format)

    def _best(self, name: str, way: str, command: list[str], record_bytes: int, records: int) -> tuple[Cost, int]:
        """Return the run with the least CPU time, and the highest resident memory in any run."""
        say(f"{name}: {self.repeats} runs of {records:,} records or a few more ...")
        with self.rig.daemon(command) as daemon:
            client, pid = self.rig.client(way, record_bytes), daemon.process.pid
            self.run(daemon, client, max(1, records // WARM_PART))
            forget_peak(pid)
            runs = [self.run(daemon, client, max(1, records)) for _ in range(self.repeats)]
            peak = peak_rss_bytes(pid)
            client.stop(STOP_SECONDS)
        best = min(runs)
        say(
            f"  {best.cpu_ns:,.0f} ns a record ({best.cpu_ns:,.0f} to {max(runs).cpu_ns:,.0f}), "
            f"sink {best.sink_cpu_ns:,.0f}, client {best.client_cpu_ns:,.0f}"
        )
        if best.sink_cpu_ns > best.cpu_ns:
            say("  THE SINK NEEDS MORE THAN THE DAEMON: records per second are the sink's")
        return best, peak

    def run(self, daemon: Child, client: Child, records: int) -> Cost:
        """Let a client put records through a daemon, and return what they cost.  Raise `RecordsWrong`."""
        pid, *others = [child.process.pid for child in (daemon, self.rig.sink, client)]
        counters = [partial(cpu_seconds, pid), partial(main_thread_cpu_seconds, pid)]
        counters += [partial(cpu_seconds, other) for other in others]
        run = self.rig.run(client, str(records), records, *counters)
        daemon_ns, loop_ns, sink_ns, client_ns = (seconds * 1e9 / run.records for seconds in run.used)
        return Cost(daemon_ns, loop_ns, sink_ns, client_ns, run.records / run.seconds)


def cases(text: str) -> tuple[Case, ...]:
    """Return the cases whose names begin with this text."""
    words = text.split(",")
    found = tuple(case for case in CASES if str(case).split(",")[: len(words)] == words)
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: no case is that; they are {' '.join(map(str, CASES))}")
    return found


def case_options(parser: argparse.ArgumentParser, records: int) -> None:
    """Add the options that choose cases and their size."""
    parser.add_argument("--records", type=at_least(1), default=records, help=f"of 100 bytes in each run ({records:,})")
    parser.add_argument("--wire-format", choices=("json", "cbor"), default="cbor", help="the setting (cbor, as to AWS)")
    parser.add_argument("--only", type=cases, nargs="+", metavar="BYTES[,AGGREGATION]", help="such as 100,kpl or 1024")


def chosen(options: argparse.Namespace) -> list[Case]:
    return [case for case in CASES if not options.only or any(case in some for some in options.only)]


def warn_of_few(records: int) -> None:
    if records < FEW_RECORDS:
        say(f"FEW RECORDS: below --records {FEW_RECORDS:,} a run ends before it is warm, and ratios say nothing")


def measured(options: argparse.Namespace) -> Iterator[Figures]:
    with rig() as ready:
        bench = Bench(ready, options.records, options.repeat, options.wire_format)
        say(bench.conditions)
        warn_of_few(options.records)
        for case in chosen(options):
            yield bench.figures(case)


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser("daemon", "What a record costs the daemon.")
    case_options(made, RECORDS)
    made.add_argument("--repeat", type=at_least(1), default=REPEATS, help=f"runs, of which the best counts ({REPEATS})")
    options = made.parse_args(arguments)
    return report(Figures, measured(options), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
