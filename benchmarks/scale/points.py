"""Walk the points of the curves, under qemu or directly, and print a line of JSON for each."""

from __future__ import annotations

import gc
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

import structlog

from benchmarks.counter import Counter
from benchmarks.walk import KEY_BYTES, Case, walk
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
MIB: Final = 1024 * 1024
AGGREGATE_BYTES: Final = 51_200
QUEUE_BYTES: Final = 64 * MIB


class Dimension(NamedTuple):
    """A dimension.  Up to ``flat`` (0: never) a record should cost as much as at the ``reference``, within 15 %."""

    values: Sequence[int]
    reference: int
    flat: int


DIMENSIONS: Final = {
    "shards": Dimension((1, 4, 16, 64, 256, 1_000, 10_000), 1, 256),
    "clients": Dimension((1, 4, 16, 64), 1, 64),
    "queue_percent": Dimension((0, 25, 50, 75, 100), 0, 100),
    "keys": Dimension((100, 1_000, 10_000, 100_000), 100, 100_000),
    "frame_records": Dimension((10_000, 1_000, 100, 10, 1), 10_000, 0),
}
AGGREGATIONS: Final = ("none", "kpl")


@dataclass(frozen=True, slots=True)
class Point:
    dimension: str
    aggregation: str
    value: int
    unit: str
    per_record: float
    mean_entry_bytes: int


def case(dimension: str, aggregation: str, value: int) -> tuple[Case, int]:
    """Return the walk of a point, and its number of records."""
    if dimension == "shards":
        # At least one job, whose records grow with the shards up to a quarter of the queue.
        job_bytes = min(QUEUE_BYTES // 4, max(MIB, value * AGGREGATE_BYTES))
        job_records = job_bytes // (KEY_BYTES + RECORD_BYTES + RECORD_CHARGE_BYTES)
        jobs = JOBS if value <= DIMENSIONS["shards"].flat else 1
        records = max(RECORDS, job_records) * jobs
        return Case(aggregation, shards=value, frame_records=FRAME_RECORDS, steady=True), records
    if dimension == "clients":
        return Case(aggregation, sessions=value, frame_records=FRAME_RECORDS), MANY_RECORDS
    if dimension == "queue_percent":
        # The queue is empty: each client has one frame in flight.
        return Case(aggregation, frame_records=FRAME_RECORDS, queued_share=max(value, 1) / 100), RECORDS * JOBS
    if dimension == "keys":
        return Case(aggregation, keys=value), RECORDS
    return Case(aggregation, frame_records=value), min(RECORDS, FRAMES * value)


def main(arguments: Sequence[str]) -> None:
    """Run the points ``AGGREGATION DIMENSION [VALUE ...]``."""
    aggregation, dimension, *values = arguments
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    counter = Counter()
    gc.collect()
    gc.freeze()  # as the daemon does
    for value in [int(value) for value in values] or DIMENSIONS[dimension].values:
        what, records = case(dimension, aggregation, value)
        cost = walk(
            what, counter, records, records if what.steady else records // WARM_PART
        )  # a steady walk is one job
        point = Point(dimension, aggregation, value, counter.unit, cost.per_record, cost.mean_entry_bytes)
        print(json.dumps(asdict(point)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
