"""Span: at most 64 KiB of one shard's rows, which lanes hold and requests take.

A row is named by its position in the job's sorted order; `Job.order` leads back to its frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from producerd.core.rows.buffers import SpanBuffer
from producerd.core.rows.job import Job
from producerd.core.shards.shard_map import Shard, ShardMap

NULL_KEY: Final = b"-"
"""The partition key of a row without one (Kinesis wants a character); its explicit hash key is random."""
RAW_FROM_STRAYS: Final = 2
"""So a row is stored at most twice in vain: as an aggregate, and once more by the newest map."""
FAULTS_TO_SUSPECT: Final = 2
"""Of the service, for the same rows: then it may be one of them that makes it fail."""


class Span(NamedTuple):
    """Rows ``first`` to ``last`` (excluded; positions in the job's sorted order), all in one buffer and one lane."""

    job: Job
    buffer: SpanBuffer
    first: int
    last: int
    bytes: int
    """Key and data of all its rows."""
    attempts: int = 0
    timeouts: int = 0
    """Requests in a row that were given up for want of an answer."""
    wrong_counts: int = 0
    """Answers in a row whose number of results did not match."""
    faults: int = 0
    """Requests that the service answered with a fault of its own, since it said something of these rows."""
    strays: int = 0
    """Aggregates of these rows that were stored where a consumer drops them."""

    @property
    def raw(self) -> bool:
        """To be sent as plain records, whatever the stream's aggregation: no map fault can store copies for ever."""
        return self.strays >= RAW_FROM_STRAYS

    @property
    def failing(self) -> bool:
        """Whether these rows, and not the service, are suspected."""
        return self.faults >= FAULTS_TO_SUSPECT

    @property
    def records(self) -> int:
        return self.last - self.first

    def cut(self, at: int) -> tuple[Span, Span]:
        """The rows before position ``at``, and those from it on."""
        before = self.bytes_to(at)
        return self._replace(last=at, bytes=before), self._replace(first=at, bytes=self.bytes - before)

    def bytes_to(self, at: int) -> int:
        """Key and data of its rows before position ``at``."""
        buffer = self.buffer
        start, end = self.first - buffer.first, at - buffer.first
        keys, data = buffer.key_offsets, buffer.data_offsets
        return int(keys[end] - keys[start]) + int(data[end] - data[start])

    def lies_in(self, shard: Shard) -> bool:
        """Whether a shard's range holds the hash keys of all its rows."""
        a, b = self.first - self.buffer.first, self.last - self.buffer.first
        return shard.holds(self.buffer.hashes[0][a:b], self.buffer.hashes[1][a:b])

    def hash_range(self) -> tuple[int, int]:
        """The lowest and the highest hash key of its rows."""
        a, b = self.first - self.buffer.first, self.last - self.buffer.first
        high, low = self.buffer.hashes[0][a:b], self.buffer.hashes[1][a:b]
        first, last = high.min(), high.max()
        return int(first) << 64 | int(low[high == first].min()), int(last) << 64 | int(low[high == last].max())

    def reorder(self, order: npt.NDArray[np.intp]) -> None:
        """Put its rows, which wait in a lane, in another order, in place."""
        self.job.reorder(self.first, self.last, order)
        self.buffer.reorder(self.first - self.buffer.first, self.last - self.buffer.first, order)

    def sizes(self) -> npt.NDArray[np.int64]:
        """Running total of key + data bytes, a value for each row and one for the end, from 0."""
        a, b = self.first - self.buffer.first, self.last - self.buffer.first + 1
        total: npt.NDArray[np.int64] = self.buffer.key_offsets[a:b].astype(np.int64) + self.buffer.data_offsets[a:b]
        total -= total[0]
        return total


def hash_key_of(span: Span, position: int) -> bytes:
    """A row's hash key, in decimal."""
    high, low = span.buffer.hashes
    at = position - span.buffer.first
    return b"%d" % (int(high[at]) << 64 | int(low[at]))


def explicit_hash_key_of(span: Span, position: int) -> bytes | None:
    """The same, where it is not that of the row's partition key."""
    explicit = span.buffer.explicit
    return hash_key_of(span, position) if explicit is not None and explicit[position - span.buffer.first] else None


def place(span: Span, shard_map: ShardMap) -> list[tuple[int, Span]]:
    """Sort the rows of a queued span again, in place, by another map.  Returns spans of one shard each, in its order.

    Rows keep their order within a shard.
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
    """The rows of some spans as (job, first, last): neighbouring spans of a job together, to be settled at once."""
    runs: list[tuple[Job, int, int]] = []
    for span in spans:
        if runs and runs[-1][0] is span.job and runs[-1][2] == span.first:
            runs[-1] = (span.job, runs[-1][1], span.last)
        else:
            runs.append((span.job, span.first, span.last))
    return runs


def records_of(spans: Sequence[Span]) -> int:
    """The number of rows of some spans."""
    return sum([span.last - span.first for span in spans])  # a list: a generator is a call for each
