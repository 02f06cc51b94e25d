"""Measure the memory that sorting a job needs in addition to its frames, in a process of its own.

The process prints the number of bytes::

    python -m benchmarks.memory.job JOB_BYTES RECORD_BYTES SHARDS
"""

from __future__ import annotations

import os
import sys

from benchmarks.daemon.client import KEY_BYTES, rows
from benchmarks.daemon.run import forget_peak, peak_rss_bytes
from benchmarks.idle.run import memory
from producerd.core.rows.frame import Frame
from producerd.core.rows.intake import check
from producerd.core.rows.sorting import sort_rows
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.runtime import allocator
from producerd.wire.columns import RECORD_CHARGE_BYTES, lay_out, parse_body

FRAME_BYTES = 1 << 20


def equal_shards(count: int) -> ShardMap:
    edges = [(MAX_HASH_KEY + 1) * number // count for number in range(count + 1)]
    return ShardMap(Shard(f"s{number}", edges[number], edges[number + 1] - 1) for number in range(count))


def frames_of(job_bytes: int, record_bytes: int) -> list[Frame]:
    charge_bytes = KEY_BYTES + record_bytes + RECORD_CHARGE_BYTES
    columns = lay_out(*rows(max(1, FRAME_BYTES // charge_bytes), record_bytes))
    count = max(1, job_bytes // (charge_bytes * columns.layout.records))
    bodies = [b"".join((columns.body_prefix(number + 1), *map(bytes, columns.parts))) for number in range(count)]
    checked = [check(parse_body(body, columns.layout.flags), FRAME_BYTES) for body in bodies]
    return [Frame(None, 0, rows, columns.layout.charge_bytes) for rows in checked]


def main(job_bytes: int, record_bytes: int, shards: int) -> None:
    allocator.configure()
    shard_map, pid = equal_shards(shards), os.getpid()
    sort_rows(frames_of(FRAME_BYTES, record_bytes), shard_map, 0)  # loads modules
    frames = frames_of(job_bytes, record_bytes)
    before, _ = memory(pid)
    forget_peak(pid)
    sort_rows(frames, shard_map, 0)
    print(max(0, peak_rss_bytes(pid) - before))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
