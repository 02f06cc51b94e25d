"""Run the walks of each dimension in a process of its own."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from benchmarks.instructions import qemu
from benchmarks.scale import points
from benchmarks.scale.points import DIMENSIONS, RECORD_BYTES, Point
from benchmarks.walk import ANSWER_SECONDS, KEY_BYTES

FLAT: Final = 0.15
PACKAGES: Final = ("numpy", "orjson", "pyarrow", "pybase64")


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


def conditions() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    how = qemu.missing() or f"qemu {qemu.version()} -cpu {qemu.CPU}"
    return (
        f"{platform.machine()}, load {os.getloadavg()[0]:.1f} before; {how}; Python {platform.python_version()}, "
        f"{versions}; {RECORD_BYTES} bytes a record, keys of {KEY_BYTES}, answers after {ANSWER_SECONDS * 1000:g} ms"
    )


def figures(
    dimensions: Sequence[str], aggregations: Sequence[str], say: Callable[[str], None], values: Sequence[str] = ()
) -> Iterator[Figures]:
    """Yield the figures of dimensions.  ``values`` are the only ones, the reference first.  Raise `qemu.Failed`."""
    for dimension in dimensions:
        for aggregation in aggregations:
            say(f"{dimension}, {aggregation} ...")
            yield from compared(_points([aggregation, dimension, *values]))


def compared(found: Sequence[Point]) -> list[Figures]:
    """Return the values of a dimension, with the reference first."""
    base = found[0].per_record
    return [
        Figures(
            point.dimension,
            point.aggregation,
            point.value,
            round(point.per_record),
            point.unit,
            point.mean_entry_bytes,
            round(point.per_record / base, 2),
        )
        for point in found
    ]


def not_flat(rows: Sequence[Figures]) -> list[Figures]:
    """Return the rows that should cost as much as their reference, within 15 %, and do not."""
    return [row for row in rows if row.value <= DIMENSIONS[row.dimension].flat and abs(row.ratio - 1) > FLAT]


def _points(arguments: Sequence[str]) -> list[Point]:
    if not qemu.missing():
        output = qemu.run(points.__name__, arguments)
    else:
        command = [sys.executable, "-m", points.__name__, *arguments]
        done = subprocess.run(command, cwd=qemu.ROOT, stdout=subprocess.PIPE, text=True, timeout=qemu.SECONDS)
        if done.returncode:
            raise qemu.Failed(f"{points.__name__} ended with exit code {done.returncode}")
        output = done.stdout
    return [Point(**json.loads(line)) for line in output.splitlines()]
