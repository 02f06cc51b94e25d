"""Run every producer against one sink, and ours in between with the code of the daemon benchmark.

CPU time includes a producer's process and the processes below it, from the first record to the last acknowledgement.
The first run warms up and does not count.  For a JVM the runs that warm up go on until it has compiled most of its
code.  Of the other runs the one with the least CPU time counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Final, NamedTuple

from benchmarks import daemon
from benchmarks.daemon import WORTH, Case
from benchmarks.harness import STOP_SECONDS, RecordsWrong
from benchmarks.maven import Unavailable
from benchmarks.processes import cpu_seconds, family, forget_peak, peak_rss_bytes
from benchmarks.rivals.builds import Builds, told_version
from benchmarks.rivals.producers import RIVALS, Rival, start
from benchmarks.table import say
from producerd import __version__
from producerd.demo.children import Child, ChildFailed

OURS: Final = "producerd"
NAIVE: Final = "naive-daemon"
RUST: Final = "aws-sdk-rust"
NAMES: Final = (OURS, NAIVE, *(rival.name for rival in RIVALS))
LEAST_RECORDS: Final = 1_000
"""Fewest records of a run, for slow rivals."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results.  A producer that is ``absent`` has one line with the reason, and no figures.

    ``cpu_ns_per_record`` and ``peak_rss_bytes`` belong to the producer's process and the processes below it.
    ``ratio_to_ours`` is their CPU time divided by ours in the same run, for the same records and aggregation.
    ``ratio_to_rust`` is the same divided by the CPU time of the bare loop around AWS's SDK for Rust, plain records.
    """

    producer: str
    version: str
    record_bytes: int | None = None
    aggregation: str | None = None
    cpu_ns_per_record: int | None = None
    peak_rss_bytes: int | None = None
    ratio_to_ours: float | None = None
    ratio_to_rust: float | None = None
    absent: str | None = None


ATTEMPTS: Final = 5
"""Attempts to measure a rival."""


class Cost(NamedTuple):
    cpu_ns: float
    peak_rss_bytes: int

    @classmethod
    def of(cls, best: tuple[daemon.Cost, int]) -> Cost:
        return cls(best[0].cpu_ns, best[1])


@dataclass(slots=True)
class Bench:
    """The benchmark.  ``ours`` is the daemon benchmark, which has the sink, and ``names`` are the chosen producers."""

    ours: daemon.Bench
    names: Sequence[str]

    @property
    def conditions(self) -> str:
        """Our conditions, and the versions of the toolchains of the others."""
        found = {}  # in order, each once
        for rival in self._asked:
            with contextlib.suppress(Unavailable):
                found[told_version(rival.toolchain()) if rival.toolchain else ""] = True
        return "; ".join([self.ours.conditions, *filter(None, found)])

    def rows(self, sizes: Sequence[int]) -> Iterator[Figures]:
        """Yield the figures.  Raise `ChildFailed` and `RecordsWrong`: at once for ours, at the end for others."""
        commands: dict[str, list[str]] = {}
        for rival in self._asked:
            try:
                commands[rival.name] = rival.command(Builds(self.ours.rig.children, say))
            except Unavailable as reason:
                say(f"{rival.name} is absent: {reason}")
                yield Figures(rival.name, rival.version, absent=str(reason))
        for record_bytes in sizes:
            rows = list(self._rows(record_bytes, commands))
            bare_ns = next((row.cpu_ns_per_record for row in rows if row.producer == RUST), None)
            for row in rows:
                if bare_ns and row.cpu_ns_per_record:
                    row = replace(row, ratio_to_rust=round(row.cpu_ns_per_record / bare_ns, 2))
                yield row

    @property
    def _asked(self) -> list[Rival]:
        return [rival for rival in RIVALS if rival.name in self.names]

    def _rows(self, record_bytes: int, commands: dict[str, list[str]]) -> Iterator[Figures]:
        naive_cost = Cost.of(self.ours.naive(record_bytes)) if NAIVE in self.names else None
        costs = {each: Cost.of(self.ours.producerd(Case(record_bytes, each))) for each in self._aggregations}

        def row(producer: str, of_version: str, aggregation: str, cost: Cost) -> Figures:
            ratio = round(cost.cpu_ns / costs[aggregation].cpu_ns, 2)
            return Figures(
                producer, of_version, record_bytes, aggregation, round(cost.cpu_ns), cost.peak_rss_bytes, ratio
            )

        yield from (row(OURS, __version__, aggregation, cost) for aggregation, cost in costs.items())
        if naive_cost:
            yield row(NAIVE, f"aiobotocore {version('aiobotocore')}", "none", naive_cost)
        for rival in self._asked:
            for aggregation in rival.aggregations if rival.name in commands else ():
                cost = self._at_last(rival, commands[rival.name], record_bytes, aggregation)
                yield row(rival.name, rival.version, aggregation, cost)

    @property
    def _aggregations(self) -> list[str]:
        """Aggregations that the chosen producers have.  Ours has both."""
        if OURS in self.names:
            return ["none", "kpl"]
        plain = ["none"] if NAIVE in self.names else []
        return list(dict.fromkeys([*plain, *(each for rival in self._asked for each in rival.aggregations)]))

    def _at_last(self, rival: Rival, command: list[str], record_bytes: int, aggregation: str) -> Cost:
        """Measure a rival, in several attempts if needed.

        Amazon's SDK for Go fails in one of about 10,000 requests that are answered at once.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return self._rival(rival, command, record_bytes, aggregation)
            except (ChildFailed, RecordsWrong) as failure:
                say(f"  {rival.name} is measured once more: {failure}")
        return self._rival(rival, command, record_bytes, aggregation)

    def _rival(self, rival: Rival, command: list[str], record_bytes: int, aggregation: str) -> Cost:
        repeats, records = self.ours.repeats, self.ours.records // WORTH[record_bytes]
        records = max(1, records // rival.worth, min(records, LEAST_RECORDS))
        say(f"{record_bytes},{aggregation},{rival.name}: {repeats} times {records:,} records ...")
        child = start(rival, command, self.ours.rig, record_bytes, aggregation)
        self.run(child, records)
        pids = list(family(child.process.pid))
        while sum(map(cpu_seconds, pids)) < rival.warm_seconds:
            self.run(child, records)
        for pid in pids:
            forget_peak(pid)
        runs = [self.run(child, records) for _ in range(repeats)]
        peak = sum(map(peak_rss_bytes, pids))
        child.stop(STOP_SECONDS)
        say(f"  {min(runs):,.0f} ns a record ({min(runs):,.0f} to {max(runs):,.0f}), {peak / 1e6:,.0f} MB")
        return Cost(min(runs), peak)

    def run(self, child: Child, records: int) -> float:
        """Measure a run, and return its CPU time in ns per record."""
        counters = [partial(cpu_seconds, pid) for pid in family(child.process.pid)]
        run = self.ours.rig.run(child, str(records), records, *counters)
        return sum(run.used) * 1e9 / run.records
