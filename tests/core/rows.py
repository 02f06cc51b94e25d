"""Helpers that make, sort and inspect rows for tests of the core."""

from __future__ import annotations

from collections.abc import Sequence

from producerd.core.rows import intake
from producerd.core.rows.frame import Frame
from producerd.core.rows.intake import CheckedRows
from producerd.core.rows.sorting import SortedRows, sort_rows
from producerd.core.rows.spans import Span
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.wire.columns import lay_out
from tests.simulation.setting import make_body

Row = tuple[bytes | None, bytes | None, bytes | None]
"""Partition key, data, explicit hash key."""


def even_map(shards: int) -> ShardMap:
    """A map of this many shards, as large as each other."""
    edges = [i * 2**128 // shards for i in range(shards + 1)]
    return ShardMap(Shard(f"shard-{i}", edges[i], edges[i + 1] - 1) for i in range(shards))


def rows_of(rows: list[Row]) -> CheckedRows:
    """Some rows, checked as a frame of them is."""
    keys, data, hashes = ([row[i] for row in rows] for i in range(3))
    explicit = hashes if any(value is not None for value in hashes) else None
    return intake.check(make_body(lay_out(keys, data, explicit)), 1 << 20)


def sorted_of(
    checked: Sequence[CheckedRows], shard_map: ShardMap, seed: int = 1, charge_bytes: int = 10**9
) -> SortedRows:
    """The rows of some frames, numbered from 0, after sorting."""
    frames = [Frame(None, number, rows, charge_bytes) for number, rows in enumerate(checked)]
    return sort_rows(frames, shard_map, seed)


def content(span: Span, position: int) -> tuple[bytes, bytes, int, bool]:
    """Key, data and hash key of one row of a span, and whether the hash key is explicit."""
    buffer = span.buffer
    at = position - buffer.first
    key = buffer.keys[buffer.key_offsets[at] : buffer.key_offsets[at + 1]]
    data = buffer.data[buffer.data_offsets[at] : buffer.data_offsets[at + 1]]
    number = int(buffer.hashes[0][at]) << 64 | int(buffer.hashes[1][at])
    return key, data, number, buffer.explicit is not None and bool(buffer.explicit[at])
