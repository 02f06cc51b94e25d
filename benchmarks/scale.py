"""Measure whether the cost of a record stays the same in small and large settings: ``./dev bench scale``.

For each value of a dimension, with all others fixed, records walk through a daemon (`benchmarks.walk`), in a process
for each dimension.  The cost is counted in instructions if qemu is there, otherwise in CPU time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

from benchmarks import walk
from benchmarks.harness import parser, report
from benchmarks.instructions import qemu
from benchmarks.machine import conditions
from benchmarks.table import say
from benchmarks.walk import ANSWER_SECONDS, KEY_BYTES, Case
from producerd.wire.columns import RECORD_CHARGE_BYTES

RECORD_BYTES: Final = 100
RECORDS: Final = 28_000
WARM_PART: Final = 2
JOBS: Final = 6
"""Jobs per walk.  There are several, because one is half done at each end of the counting."""
MANY_RECORDS: Final = 128_000
"""Records of a walk with many clients, so that each puts some frames."""
FRAMES: Final = 1_000
"""Frames of a walk with small frames."""
FRAME_RECORDS: Final = 1_000
"""Records of a frame in walks of other dimensions."""
MICRO_BATCH_RECORDS: Final = 4_000
TASKS: Final = 8
"""Most tasks of a micro-batch at once, each with a client."""
MIB: Final = 1024 * 1024
AGGREGATE_BYTES: Final = 51_200
QUEUE_BYTES: Final = 64 * MIB
FLAT: Final = 0.15
AGGREGATIONS: Final = ("none", "kpl")
PACKAGES: Final = ("numpy", "orjson", "pyarrow", "pybase64")


class Walk(NamedTuple):
    case: Case
    records: int
    warm_records: int


class Dimension(NamedTuple):
    """A dimension: its values, the reference first.

    Up to ``flat`` (0: never) a record should cost as much as at the reference, within 15 %.
    """

    values: Sequence[int]
    flat: int
    walk: Callable[[str, int], Walk]


def many_shards(aggregation: str, shards: int) -> Walk:
    # At least one job, whose records grow with the shards up to a quarter of the queue.
    job_bytes = min(QUEUE_BYTES // 4, max(MIB, shards * AGGREGATE_BYTES))
    job_records = job_bytes // (KEY_BYTES + RECORD_BYTES + RECORD_CHARGE_BYTES)
    records = max(RECORDS, job_records) * (JOBS if shards <= DIMENSIONS["shards"].flat else 1)
    case = Case(aggregation, shards=shards, frame_records=FRAME_RECORDS, steady=True)
    return Walk(case, records, records)  # a steady walk is one job


def many_clients(aggregation: str, sessions: int) -> Walk:
    return _warmed(Case(aggregation, sessions=sessions, frame_records=FRAME_RECORDS), MANY_RECORDS)


def full_queue(aggregation: str, percent: int) -> Walk:
    # In an empty queue each client has one frame in flight.
    case = Case(aggregation, frame_records=FRAME_RECORDS, queued_share=max(percent, 1) / 100)
    return _warmed(case, RECORDS * JOBS)


def many_keys(aggregation: str, keys: int) -> Walk:
    return _warmed(Case(aggregation, keys=keys), RECORDS)


def small_frames(aggregation: str, records: int) -> Walk:
    return _warmed(Case(aggregation, frame_records=records), min(RECORDS, FRAMES * records))


def micro_batch(aggregation: str, frames: int) -> Walk:
    # The same records in few frames or many, as from a micro-batch of few partitions or many.
    case = Case(aggregation, sessions=min(frames, TASKS), frame_records=MICRO_BATCH_RECORDS // frames)
    return _warmed(case, MICRO_BATCH_RECORDS)


def _warmed(case: Case, records: int) -> Walk:
    return Walk(case, records, records // WARM_PART)


DIMENSIONS: Final = {
    "shards": Dimension((1, 4, 16, 64, 256, 1_000, 10_000), 256, many_shards),
    "clients": Dimension((1, 4, 16, 64), 64, many_clients),
    "queue_percent": Dimension((0, 25, 50, 75, 100), 100, full_queue),
    "keys": Dimension((100, 1_000, 10_000, 100_000), 100_000, many_keys),
    "micro_batch_frames": Dimension((4, 20, 200), 0, micro_batch),
    "frame_records": Dimension((10_000, 1_000, 100, 10, 1), 0, small_frames),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results.  ``ratio`` compares with the reference value of the same dimension and aggregation."""

    dimension: str
    aggregation: str
    value: int
    instructions_or_cpu_ns_per_record: int
    unit: str
    mean_entry_bytes: int
    ratio: float


def figures(dimension: str, aggregation: str) -> Iterator[Figures]:
    """Yield the figures of a dimension, and name those that should be flat.  Raise `qemu.Failed`."""
    say(f"{dimension}, {aggregation} ...")
    values, flat, walk_of = DIMENSIONS[dimension]
    walks = [walk_of(aggregation, value) for value in values]
    output = _walked([json.dumps([asdict(case), *records]) for case, *records in walks])
    reference = None
    for value, line in zip(values, output.splitlines(), strict=True):
        unit, cost, entry_bytes = json.loads(line)
        reference = reference or cost
        ratio = round(cost / reference, 2)
        if value <= flat and abs(ratio - 1) > FLAT:
            say(f"NOT FLAT: {dimension} {aggregation} {value:,}: {ratio:g} of the reference")
        yield Figures(dimension, aggregation, value, round(cost), unit, entry_bytes, ratio)


def _walked(arguments: Sequence[str]) -> str:
    if not qemu.missing():
        return qemu.run(walk.__name__, arguments)
    command = [sys.executable, "-m", walk.__name__, *arguments]
    done = subprocess.run(command, cwd=qemu.ROOT, stdout=subprocess.PIPE, text=True, timeout=qemu.SECONDS)
    if done.returncode:
        raise qemu.Failed(f"{walk.__name__} ended with exit code {done.returncode}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser("scale", "What a record costs with many shards, clients, keys, small frames.")
    every, names = list(DIMENSIONS), ", ".join(DIMENSIONS)
    made.add_argument("--only", nargs="+", choices=every, default=every, metavar="DIMENSION", help=names)
    made.add_argument("--aggregation", nargs="+", choices=AGGREGATIONS, default=AGGREGATIONS)
    options = made.parse_args(arguments)
    say(
        conditions(
            qemu.missing() or f"qemu {qemu.version()} -cpu {qemu.CPU}",
            f"{RECORD_BYTES} bytes a record, keys of {KEY_BYTES}, answers after {ANSWER_SECONDS * 1000:g} ms",
            packages=PACKAGES,
        )
    )
    rows = (row for name in options.only for packed in options.aggregation for row in figures(name, packed))
    return report(Figures, rows, (qemu.Failed,), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
