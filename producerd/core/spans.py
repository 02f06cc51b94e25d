"""Rows of a job sorted by shard and copied to span buffers: what lanes hold.

A *job* is a batch of frames.  `sort_rows` is pure and may run in a worker thread: it hashes the keys, finds each row's
shard, sorts stably (the order per key stays) and copies the rows to buffers of their own.  A *span* is at most 64 KiB
of one shard's rows; a *buffer* holds whole spans and is closed at 64 KiB, so that room comes free in small steps and a
lagging shard pins little more than its own rows.  (Views into one shared buffer pinned 17.7 times the limit.)

From here on a row is named by its position in sorted order; `Job.order` leads back to its frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from producerd.core.aggregation import parse
from producerd.core.frame import Frame
from producerd.core.intake import Bool, Rows
from producerd.core.md5 import LEAST_TEXTS
from producerd.core.shards import I32, U64, Shard, ShardMap, hash_keys, parse_hash_keys
from producerd.wire.columns import RECORD_CHARGE_BYTES

SPAN_BYTES: Final = 64 * 1024
"""Charge of one span, and of one buffer, unless a single row is larger."""

JOB_CHARGE_BYTES: Final = 5
"""Of a record's charge, what its job holds until its last row settles: order 4, state 1.  The rest is its buffer's."""

MAYBE_CAUSES: Final = ("", "timeout", "connection", "service", "result_count", "reshard")
"""What may have stored a row that is sent again: no answer in time; a connection that broke; an error of the service
or of a proxy; the wrong number of results; an aggregate in a shard where a consumer drops it."""
AWAITING_MAP: Final = "awaiting a map"
"""An aggregate was stored in a shard whose range is not known: until that is decided its rows count as maybe stored."""
_MARKS: Final = (*MAYBE_CAUSES, AWAITING_MAP)

QUEUED: Final = 0
IN_REQUEST: Final = 1
SETTLED: Final = 2


NULL_KEY: Final = b"-"
"""The partition key of a row without one (Kinesis wants a character); its explicit hash key is random."""
RAW_FROM_STRAYS: Final = 2
"""So a row is stored at most twice in vain: as an aggregate, and once more by the newest map."""
FAULTS_TO_SUSPECT: Final = 2
"""Of the service, for the same rows: then it may be one of them that makes it fail."""


_Column = tuple[memoryview, npt.NDArray[np.integer[Any]]]
"""Bytes, and where each row begins in them and the last one ends."""


class SpanBuffer:
    """Some consecutive rows of a job, in memory of their own.  Charged whole until the last of them settles."""

    __slots__ = (
        "charge_bytes",
        "data",
        "data_offsets",
        "explicit",
        "first",
        "hashes",
        "job",
        "key_offsets",
        "keys",
        "live",
        "sealed",
    )

    def __init__(
        self,
        first: int,
        keys: bytes,
        key_offsets: I32,
        data: bytes,
        data_offsets: I32,
        hashes: tuple[U64, U64],
        explicit: Bool | None,
        sealed: Bool | None = None,
    ) -> None:
        self.job: Job
        self.first = first
        self.keys = keys
        self.key_offsets = key_offsets
        self.data = data
        self.data_offsets = data_offsets
        self.hashes = hashes
        self.explicit = explicit
        self.sealed = sealed  # rows whose data is itself an aggregate
        self.live = len(key_offsets) - 1
        self.charge_bytes = len(keys) + len(data) + (RECORD_CHARGE_BYTES - JOB_CHARGE_BYTES) * self.live

    def let_go(self) -> int:
        """Free the memory; returns the charge that it held, and that of the job with the job's last buffer."""
        self.keys = self.data = b""
        self.key_offsets = self.data_offsets = _NO_OFFSETS
        self.hashes, self.explicit, self.sealed = _NO_HASHES, None, None
        charge, self.charge_bytes = self.charge_bytes, 0
        return charge + self.job.lost_a_buffer()


_NO_OFFSETS: Final = np.zeros(1, np.int32)
_NO_HASHES: Final = (np.zeros(0, np.uint64), np.zeros(0, np.uint64))


class Span(NamedTuple):
    """Rows ``first`` to ``last`` (excluded; positions in the job's sorted order), all in one buffer and one lane."""

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


class SortedRows(NamedTuple):
    """What `sort_rows` gives.  ``spans`` names its shard by index in the map; row numbers count through all frames."""

    order: I32
    spans: list[tuple[int, Span]]
    buffers: list[SpanBuffer]


class Job:
    """A batch of frames after sorting: where each row is, and which have settled.

    ``state`` has one byte a row, by position: QUEUED, IN_REQUEST or SETTLED; it is what makes "settles exactly once" a
    check and not a hope.  ``has_gaps``: some rows settled where they stood in their lanes.  ``maybe_stored`` has, once
    there is any, for each row the place in `MAYBE_CAUSES` of what may have stored its last copy until now, or 0.
    """

    __slots__ = (
        "buffers",
        "charge_bytes",
        "frames",
        "has_gaps",
        "live_buffers",
        "maybe_stored",
        "order",
        "starts",
        "state",
    )

    def __init__(self, frames: Sequence[Frame], rows: SortedRows) -> None:
        self.frames = tuple(frames)
        self.starts = np.cumsum([0, *(frame.records for frame in frames)])
        self.order = rows.order
        self.state = np.zeros(len(rows.order), np.uint8)
        self.has_gaps = False
        self.maybe_stored: npt.NDArray[np.uint8] | None = None
        self.buffers = rows.buffers
        self.live_buffers = len(rows.buffers)
        self.charge_bytes = JOB_CHARGE_BYTES * len(rows.order)
        for buffer in rows.buffers:
            buffer.job = self

    def lost_a_buffer(self) -> int:
        """The charge that comes free with it: none, but for the last one."""
        self.live_buffers -= 1
        if self.live_buffers:
            return 0
        self.buffers = []  # they refer to the job: without that only the garbage collector would free both
        charge, self.charge_bytes = self.charge_bytes, 0
        return charge

    def mark_maybe_stored(self, first: int, last: int, cause: str) -> None:
        """Note what may have stored these rows: one of `MAYBE_CAUSES`, or `AWAITING_MAP`.  "" takes a mark away."""
        if self.maybe_stored is None:
            self.maybe_stored = np.zeros(len(self.order), np.uint8)
        self.maybe_stored[first:last] = _MARKS.index(cause)

    def frames_of(self, positions: slice | npt.NDArray[np.intp]) -> Iterator[tuple[Frame, I32]]:
        """The frames of some rows, each with its own numbers for them."""
        rows = self.order[positions]
        if len(self.frames) == 1:
            yield self.frames[0], rows
            return
        places = np.searchsorted(self.starts, rows, side="right") - 1
        for place in np.flatnonzero(np.bincount(places)).tolist():
            yield self.frames[place], rows[places == place] - np.int32(self.starts[place])

    def records_by_frame(self, *positions: slice | npt.NDArray[np.intp]) -> Iterator[tuple[Frame, int]]:
        """The frames of some rows, each with how many of them it has."""
        parts = [self.order[part] for part in positions]
        if len(self.frames) == 1:
            yield self.frames[0], sum(map(len, parts))
            return
        counts = np.bincount(self.starts.searchsorted(np.concatenate(parts), side="right") - 1)
        for place in counts.nonzero()[0].tolist():
            yield self.frames[place], int(counts[place])

    def positions_of(self, frame: Frame, from_row: int = 0) -> npt.NDArray[np.intp]:
        """Where a frame's rows are, from one of its numbers on."""
        start = self.starts[self.frames.index(frame)]
        return np.flatnonzero((self.order >= start + from_row) & (self.order < start + frame.records))

    def buffers_of(self, positions: npt.NDArray[np.intp]) -> Iterator[tuple[SpanBuffer, int]]:
        """The buffers of some rows, each with how many of them it holds."""
        firsts = [buffer.first for buffer in self.buffers]
        counts = np.bincount(np.searchsorted(firsts, positions, side="right") - 1)
        for place in np.flatnonzero(counts).tolist():
            yield self.buffers[place], int(counts[place])


def sort_rows(frames: Sequence[Rows], shard_map: ShardMap, seed: int) -> SortedRows:
    """Sort the rows of some frames by shard into span buffers.  Bad rows are left out; ``seed`` spreads null keys."""
    high, low, explicit, sealed = _hashes(frames, seed)
    good = _good(frames)
    shards = shard_map.locate(high, low)
    if len(shard_map) > 1:
        by_shard = np.argsort(shards.astype(np.uint16 if len(shard_map) < 65536 else np.uint32), kind="stable")
        order = (by_shard if good is None else by_shard[good[by_shard]]).astype(np.int32)
    else:
        order = (np.arange(len(high)) if good is None else np.flatnonzero(good)).astype(np.int32)
    keys: _Column
    data: _Column
    if len(frames) == 1 and good is None and (len(shard_map) == 1 or len(high) == 1):  # in order; buffers copy them
        keys, data = (frames[0].keys, frames[0].key_offsets), (frames[0].data, frames[0].data_offsets)
    else:
        keys = _gather([(rows.keys, rows.key_offsets) for rows in frames], order)
        data = _gather([(rows.data, rows.data_offsets) for rows in frames], order)
    sizes = np.zeros(len(order) + 1, np.int64)
    np.cumsum(np.diff(keys[1]) + np.diff(data[1]) + RECORD_CHARGE_BYTES, out=sizes[1:])
    cuts = _cut_spans(shards[order], sizes)
    hashes = (high[order], low[order])
    explicit = explicit[order] if explicit is not None else None
    sealed = sealed[order] if sealed is not None else None
    payload = sizes - RECORD_CHARGE_BYTES * np.arange(len(sizes))
    spans: list[tuple[int, Span]] = []
    buffers: list[SpanBuffer] = []
    for group in _pack(cuts, sizes):
        first, last = group[0][1], group[-1][2]
        buffer = SpanBuffer(
            first,
            *_copy(keys, first, last),
            *_copy(data, first, last),
            (hashes[0][first:last].copy(), hashes[1][first:last].copy()),
            _marks(explicit, first, last),
            _marks(sealed, first, last),
        )
        buffers.append(buffer)
        spans += [(shard, Span(buffer, a, b, int(payload[b] - payload[a]))) for shard, a, b in group]
    return SortedRows(order, spans, buffers)


def _marks(marks: Bool | None, first: int, last: int) -> Bool | None:
    return marks[first:last].copy() if marks is not None and marks[first:last].any() else None


def place(span: Span, shard_map: ShardMap) -> list[tuple[int, Span]]:
    """A queued span's rows sorted anew, in place, by another map: as spans of one shard each, in the shards' order.

    Rows keep their order within a shard.  A worker may be reading other rows of the buffer meanwhile: these stay where
    they are, and every array is replaced and not written to.
    """
    buffer = span.buffer
    a, b = span.first - buffer.first, span.last - buffer.first
    shards = shard_map.locate(buffer.hashes[0][a:b], buffer.hashes[1][a:b])
    if (shards == shards[0]).all():
        return [(int(shards[0]), span)]
    reorder(span, np.argsort(shards, kind="stable"))
    shards.sort()
    placed = []
    for edge in [*(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(shards)]:
        before, span = span.cut(buffer.first + a + edge)
        placed.append((int(shards[edge - 1]), before))
    return placed


def reorder(span: Span, order: npt.NDArray[np.intp]) -> None:
    """Put a queued span's rows in another order, in place; see `place`."""
    buffer, job = span.buffer, span.buffer.job
    a, b = span.first - buffer.first, span.last - buffer.first
    for rows in (job.order, job.state, job.maybe_stored):
        if rows is not None:
            rows[span.first : span.last] = rows[span.first : span.last][order]
    buffer.keys, buffer.key_offsets = _reordered(buffer.keys, buffer.key_offsets, a, b, order)
    buffer.data, buffer.data_offsets = _reordered(buffer.data, buffer.data_offsets, a, b, order)
    high, low = buffer.hashes[0].copy(), buffer.hashes[1].copy()
    high[a:b], low[a:b] = high[a:b][order], low[a:b][order]
    buffer.hashes = high, low
    buffer.explicit, buffer.sealed = [_remarked(marks, a, b, order) for marks in (buffer.explicit, buffer.sealed)]


def _remarked(marks: Bool | None, a: int, b: int, order: npt.NDArray[np.intp]) -> Bool | None:
    if marks is not None:
        marks = marks.copy()
        marks[a:b] = marks[a:b][order]
    return marks


def _reordered(values: bytes, offsets: I32, a: int, b: int, order: npt.NDArray[np.intp]) -> tuple[bytes, I32]:
    part = offsets[a : b + 1]
    moved, moved_offsets = _gather([(memoryview(values), part)], order.astype(np.int32))
    offsets = offsets.copy()
    offsets[a : b + 1] = moved_offsets + part[0]
    return b"".join((values[: part[0]], moved, values[part[-1] :])), offsets


def _hashes(frames: Sequence[Rows], seed: int) -> tuple[U64, U64, Bool | None, Bool | None]:
    """High and low halves of every row's hash key; which rows have theirs explicitly (given, or spread); which rows are
    aggregates themselves: these have the hash key of their first record."""
    all_high, all_low = _hash_keys(frames)
    all_explicit, all_sealed = np.zeros((2, len(all_high)), np.bool_)
    random: np.random.Generator | None = None
    end = 0
    for rows in frames:
        start, end = end, end + rows.records
        high, low = all_high[start:end], all_low[start:end]
        explicit, sealed = all_explicit[start:end], all_sealed[start:end]
        null = rows.key_offsets[1:] == rows.key_offsets[:-1]
        if null.any():
            random = random or np.random.default_rng(seed)  # 20 us: not for each job
            count = int(null.sum())
            high[null], low[null] = random.integers(0, 2**64, (2, count), dtype=np.uint64)
            explicit |= null
        if rows.hash_keys is not None and rows.hash_key_offsets is not None:
            given = np.diff(rows.hash_key_offsets) > 0
            for bad in rows.bad:
                given[bad.rows] = False  # it may not even be a number
            if given.any():
                given_high, given_low = _parse_given(rows.hash_keys, rows.hash_key_offsets, given)
                high[given], low[given] = given_high, given_low
                explicit |= given
        for row in rows.aggregates.tolist() if rows.aggregates is not None else ():
            inside = parse(bytes(rows.data[rows.data_offsets[row] : rows.data_offsets[row + 1]]))
            if not inside:
                raise AssertionError("intake names only rows that can be split")
            high[row], low[row] = divmod(inside[0].hash_key, 2**64)
            sealed[row] = explicit[row] = True
    return (
        all_high,
        all_low,
        all_explicit if all_explicit.any() else None,
        all_sealed if all_sealed.any() else None,
    )


def _hash_keys(frames: Sequence[Rows]) -> tuple[U64, U64]:
    """Of the partition keys.  Those of small frames are hashed together: many keys at once cost half as much."""
    groups: list[list[Rows]] = [[]]
    records = 0
    for rows in frames:
        if groups[-1] and max(records, rows.records) >= LEAST_TEXTS:
            groups.append([])
            records = 0
        groups[-1].append(rows)
        records += rows.records
    highs, lows = zip(*map(_hash_keys_together, groups), strict=True)
    return np.concatenate(highs), np.concatenate(lows)


def _hash_keys_together(frames: Sequence[Rows]) -> tuple[U64, U64]:
    if len(frames) == 1:
        return hash_keys(frames[0].keys, frames[0].key_offsets)
    keys = b"".join([rows.keys[rows.key_offsets[0] : rows.key_offsets[-1]] for rows in frames])
    offsets = np.zeros(sum([rows.records for rows in frames]) + 1, np.int32)
    np.concatenate([rows.key_offsets[1:] - rows.key_offsets[:-1] for rows in frames]).cumsum(out=offsets[1:])
    return hash_keys(memoryview(keys), offsets)


def _parse_given(hash_keys: memoryview, offsets: I32, given: Bool) -> tuple[U64, U64]:
    texts, text_offsets = _gather([(hash_keys, offsets)], np.flatnonzero(given).astype(np.int32))
    return parse_hash_keys(texts, text_offsets)


def _good(frames: Sequence[Rows]) -> Bool | None:
    """Which rows are not bad, or None where all are good."""
    if not any(rows.bad for rows in frames):
        return None
    masks = []
    for rows in frames:
        mask = np.ones(rows.records, np.bool_)
        for bad in rows.bad:
            mask[bad.rows] = False
        masks.append(mask)
    return np.concatenate(masks)


def _gather(columns: Sequence[tuple[memoryview, I32]], order: I32) -> _Column:
    """A column of some frames, its rows in the given order: its bytes, and offsets from 0."""
    arrays = [
        pa.Array.from_buffers(
            pa.large_binary(),
            len(offsets) - 1,
            [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(values)],
        )
        for values, offsets in columns
    ]
    # Not pa.array: where pandas is installed it would load that, 0.3 s and 35 MiB.
    places = pa.Array.from_buffers(pa.int32(), len(order), [None, pa.py_buffer(np.ascontiguousarray(order, np.int32))])
    # Large offsets: a job may hold frames of 10 MiB records; after the sort each buffer has small ones again.
    taken: Any = pa.concat_arrays(arrays).take(places)
    offsets = np.frombuffer(taken.buffers()[1], np.int64, len(order) + 1, taken.offset * 8)
    values = taken.buffers()[2]
    return memoryview(values if values is not None else b"").cast("B"), offsets


def _cut_spans(shards: I32, sizes: npt.NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """(shard, first, last) of each span, in order."""
    spans = []
    edges = [0, *((shards[1:] != shards[:-1]).nonzero()[0] + 1).tolist(), len(shards)] if len(shards) else []
    for start, end in pairwise(edges):
        first = start
        while first < end:
            last = int(sizes.searchsorted(sizes[first] + SPAN_BYTES, side="right")) - 1
            last = min(max(last, first + 1), end)
            spans.append((int(shards[start]), first, last))
            first = last
    return spans


def _pack(spans: Sequence[tuple[int, int, int]], sizes: npt.NDArray[np.int64]) -> Iterator[list[tuple[int, int, int]]]:
    """Neighbouring spans that share a buffer."""
    group: list[tuple[int, int, int]] = []
    for span in spans:
        if group and sizes[span[2]] - sizes[group[0][1]] > SPAN_BYTES:
            yield group
            group = []
        group.append(span)
    if group:
        yield group


def _copy(column: _Column, first: int, last: int) -> tuple[bytes, I32]:
    values, offsets = column
    part = offsets[first : last + 1]
    return bytes(values[part[0] : part[-1]]), (part - part[0]).astype(np.int32)
