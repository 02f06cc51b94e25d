"""Spans: runs of one shard's rows, up to 256 KiB, which wait in lanes and travel in requests.

A row is named by its position in the job's sorted order.  `Job.order` leads back to its frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from producerd.core.rows.buffers import SpanBuffer
from producerd.core.rows.job import Job
from producerd.core.shards.shard_map import Shard, ShardMap

_Whole = TypeVar("_Whole", Job, SpanBuffer)

NULL_KEY: Final = b"-"
"""The partition key of a row that has none, because Kinesis requires one.  The row's explicit hash key is random."""
RAW_FROM_STRAYS: Final = 2
"""Strays after which rows go as plain records: at most two copies of a row are stored that no consumer reads."""
FAULTS_TO_SUSPECT: Final = 2
"""Faults of Kinesis on the same rows after which the rows are suspected to cause them."""


class Span(NamedTuple):
    """The rows of a job from position ``first`` up to ``last`` (excluded), all in one buffer and one lane."""

    job: Job
    buffer: SpanBuffer
    first: int
    last: int
    bytes: int
    """Size of the keys and data of all its rows."""
    attempts: int = 0
    timeouts: int = 0
    """Requests in a row that had no answer in time."""
    wrong_counts: int = 0
    """Answers in a row with a wrong number of results."""
    faults: int = 0
    """Requests that Kinesis answered with a fault of its own, since its last result for these rows."""
    strays: int = 0
    """Aggregates of these rows that were stored in a shard where a consumer drops them."""
    refused_at: float = 0.0
    """When a request with these rows was first refused without judging any record; 0 if none was."""

    @property
    def raw(self) -> bool:
        """Whether to send its rows as plain records even if the stream aggregates.

        This keeps a wrong shard map from storing one copy after the other that consumers drop.
        """
        return self.strays >= RAW_FROM_STRAYS

    @property
    def failing(self) -> bool:
        """Whether these rows are suspected to be the cause of faults of Kinesis."""
        return self.faults >= FAULTS_TO_SUSPECT

    @property
    def records(self) -> int:
        """The number of its rows."""
        return self.last - self.first

    def cut(self, at: int) -> tuple[Span, Span]:
        """Return two spans: the rows before position ``at``, and the rows from it on."""
        before = self.bytes_to(at)
        return self._replace(last=at, bytes=before), self._replace(first=at, bytes=self.bytes - before)

    def bytes_to(self, at: int) -> int:
        """Return the size of keys and data of its rows before position ``at``."""
        buffer = self.buffer
        start, end = self.first - buffer.first, at - buffer.first
        keys, data = buffer.key_offsets, buffer.data_offsets
        return int(keys[end] - keys[start]) + int(data[end] - data[start])

    def lies_in(self, shard: Shard) -> bool:
        """Return whether a shard's range contains the hash keys of all its rows."""
        a, b = self.first - self.buffer.first, self.last - self.buffer.first
        return shard.holds(self.buffer.hashes[0][a:b], self.buffer.hashes[1][a:b])

    def hash_range(self) -> tuple[int, int]:
        """Return the lowest and the highest hash key of its rows."""
        a, b = self.first - self.buffer.first, self.last - self.buffer.first
        high, low = self.buffer.hashes[0][a:b], self.buffer.hashes[1][a:b]
        first, last = high.min(), high.max()
        return int(first) << 64 | int(low[high == first].min()), int(last) << 64 | int(low[high == last].max())

    def reorder(self, order: npt.NDArray[np.intp]) -> None:
        """Put its rows in another order, in place.  They must be in a lane, not in a request."""
        self.job.reorder(self.first, self.last, order)
        self.buffer.reorder(self.first - self.buffer.first, self.last - self.buffer.first, order)

    def sizes(self, most: int | None = None) -> npt.NDArray[np.int64]:
        """Return the running total of key + data bytes from 0: a value for each row and one for the end.

        With ``most``, of the first rows only, at most that many.
        """
        rows = self.records if most is None else min(most, self.records)
        a = self.first - self.buffer.first
        b = a + rows + 1
        total: npt.NDArray[np.int64] = self.buffer.key_offsets[a:b].astype(np.int64) + self.buffer.data_offsets[a:b]
        total -= total[0]
        return total


def hash_key_of(span: Span, position: int) -> bytes:
    """Return the hash key of the row at a position, in decimal."""
    high, low = span.buffer.hashes
    at = position - span.buffer.first
    return b"%d" % (high.item(at) << 64 | low.item(at))


def explicit_hash_key_of(span: Span, position: int) -> bytes | None:
    """Return the hash key of the row at a position, or None if it is the MD5 of the row's partition key."""
    explicit = span.buffer.explicit
    return hash_key_of(span, position) if explicit is not None and explicit[position - span.buffer.first] else None


def place(span: Span, shard_map: ShardMap) -> list[tuple[int, Span]]:
    """Sort the rows of a queued span by another map, in place.

    Returns (index of the shard, span) for each shard, in the map's order.  Rows keep their order within a shard.
    """
    buffer = span.buffer
    a, b = span.first - buffer.first, span.last - buffer.first
    shards = shard_map.locate(buffer.hashes[0][a:b], buffer.hashes[1][a:b])
    if (shards == shards[0]).all():
        return [(int(shards[0]), span)]
    span.reorder(np.argsort(shards, kind="stable"))
    shards.sort()
    placed = []
    for edge in [*(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(shards)]:
        before, span = span.cut(buffer.first + a + edge)
        placed.append((int(shards[edge - 1]), before))
    return placed


def runs_of(spans: Sequence[Span]) -> list[tuple[Job, int, int]]:
    """Return the rows of some spans as runs (job, first, last), with neighbouring spans of a job in one run."""
    return _joined([(span.job, span.first, span.last) for span in spans])


def buffer_runs_of(spans: Sequence[Span]) -> list[tuple[SpanBuffer, int, int]]:
    """Return the rows of some spans as runs (buffer, first, last), with neighbouring spans of a buffer in one run."""
    return _joined([(span.buffer, span.first, span.last) for span in spans])


def _joined(parts: Sequence[tuple[_Whole, int, int]]) -> list[tuple[_Whole, int, int]]:
    runs: list[tuple[_Whole, int, int]] = []
    if not parts:
        return runs
    whole, begin, end = parts[0]
    for of, first, last in parts[1:]:
        if of is not whole or first != end:
            runs.append((whole, begin, end))
            whole, begin = of, first
        end = last
    runs.append((whole, begin, end))
    return runs


def records_of(spans: Sequence[Span]) -> int:
    """Return the number of rows of some spans."""
    return sum([span.last - span.first for span in spans])  # a generator would need one call for each span
