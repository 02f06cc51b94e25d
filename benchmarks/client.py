"""Measure how many records a program with `KinesisClient` puts, and one with the KPL: ``./dev bench client``.

A program of its own puts the records through a daemon to a sink, one by one or together, and the KPL's addUserRecord
to the same sink.  The fastest run of each way counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.arguments import at_least
from benchmarks.harness import STOP_SECONDS, Rig, parser, report, rig, serve_with
from benchmarks.load import KEY_BYTES, LIBRARY_WAYS
from benchmarks.machine import conditions
from benchmarks.maven import Unavailable
from benchmarks.processes import cpu_seconds, family
from benchmarks.rivals.builds import Builds
from benchmarks.rivals.producers import KPL, start
from benchmarks.table import say
from producerd import __version__
from producerd.demo.children import Child

RECORDS: Final = 500_000
LEAST_RECORDS: Final = 20_000
REPEATS: Final = 3
RECORD_BYTES: Final = 100
FEWER: Final = {"put_with_a_timeout": 100, "alone": 200}
"""By how much fewer records a slow way puts."""
LEAST_OF_A_WAY: Final = 50
OF_KPL: Final = "addUserRecord"
WAYS: Final = (*LIBRARY_WAYS, OF_KPL)


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results.

    ``cpu_ns_per_record`` is the program's, for the KPL with its native process.  ``acknowledged_us`` is the median time
    of a record that is put alone.  A producer that is ``absent`` has the reason, and no figures.
    """

    producer: str
    version: str
    way: str
    records_per_second: int | None = None
    cpu_ns_per_record: int | None = None
    acknowledged_us: int | None = None
    absent: str | None = None


def ours(ready: Rig, records: int, ways: Sequence[str]) -> Iterator[Figures]:
    with ready.daemon(serve_with(ready.settings(aggregation="kpl", linger_seconds=0.01))):
        program = ready.client("library", RECORD_BYTES)
        for way in ways:
            count = max(LEAST_OF_A_WAY, records // FEWER.get(way, 1))
            yield fastest(ready, ("producerd", __version__, way), program, f"{way} {count}", count)
        program.stop(STOP_SECONDS)


def kpl(ready: Rig, records: int) -> Figures:
    who = (KPL.name, KPL.version, OF_KPL)
    try:
        command = KPL.command(Builds(ready.children, say))
    except Unavailable as reason:
        return Figures(*who, absent=str(reason))
    program = start(KPL, command, ready, RECORD_BYTES, "kpl")
    found = fastest(ready, who, program, str(records), records)
    program.stop(STOP_SECONDS)
    return found


def fastest(ready: Rig, who: tuple[str, str, str], program: Child, order: str, count: int) -> Figures:
    """Return the figures of the fastest run.  Raise `RecordsWrong`."""
    say(f"{who[0]}, {who[2]}: {1 + REPEATS} runs of {count:,} records ...")
    runs = []
    for _ in range(1 + REPEATS):
        counters = [partial(cpu_seconds, pid) for pid in family(program.process.pid)]
        runs.append(ready.run(program, order, count, *counters))
    best = min(runs[1:], key=lambda run: run.seconds)
    return Figures(
        *who,
        records_per_second=round(best.records / best.seconds),
        cpu_ns_per_record=round(sum(best.used) * 1e9 / best.records),
        acknowledged_us=int(best.said[0]) if best.said else None,
    )


def measured(options: argparse.Namespace) -> Iterator[Figures]:
    say(
        conditions(
            f"records of {RECORD_BYTES} bytes, keys of {KEY_BYTES}, aggregation kpl, linger_seconds 0.01",
            "TLS, one shard",
            f"the fastest of {REPEATS} runs of {options.records:,} records, or of fewer of a slow way",
        )
    )
    with rig() as ready:
        yield from ours(ready, options.records, [way for way in options.only if way in LIBRARY_WAYS])
        if OF_KPL in options.only:
            yield kpl(ready, options.records)


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser("client", "Records per second of one program.")
    made.add_argument("--records", type=at_least(LEAST_RECORDS), default=RECORDS, help=f"in each run ({RECORDS:,})")
    made.add_argument("--only", nargs="+", choices=WAYS, default=WAYS, metavar="WAY", help=f"of {', '.join(WAYS)}")
    options = made.parse_args(arguments)
    return report(Figures, measured(options), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
