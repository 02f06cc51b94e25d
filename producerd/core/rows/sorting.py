"""Sort the rows of some frames by shard and copy them to span buffers.

`sort_rows` is pure and may run in a worker thread.  It hashes the keys, finds each row's shard, sorts the rows by shard
and copies them.  The sort is stable, so rows of one key keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from producerd.core.kpl.aggregation import parse
from producerd.core.rows.buffers import SpanBuffer
from producerd.core.rows.columns import Bool, Column, copy, gather
from producerd.core.rows.frame import Frame
from producerd.core.rows.intake import CheckedRows
from producerd.core.rows.job import Job
from producerd.core.rows.spans import Span
from producerd.core.shards.hash_keys import I32, U64, hash_keys, parse_hash_keys
from producerd.core.shards.md5 import MOST_BYTES, TEXTS_AT_ONCE
from producerd.core.shards.shard_map import ShardMap
from producerd.wire.columns import RECORD_CHARGE_BYTES

SPAN_BYTES: Final = 256 * 1024
"""Largest charge of a span, and of its buffer, unless a single row is larger."""
SHARED_BYTES: Final = 64 * 1024
"""Largest charge of a buffer that holds spans of several shards."""

SMALL_RECORDS: Final = 500
SMALL_BYTES: Final = 64 * 1024
"""Most records, and most bytes of data, of a frame that is joined with others: their copy takes less time than each
frame's share of the sort."""
MOST_JOINED: Final = 1_000
"""Most frames that are joined, so that the offsets of their rows fit in 32 bits."""


_Run = tuple[int, int, int, int]
"""A span to be: its shard's index, its first row and the one after its last, and its charge in bytes."""


class SortedRows(NamedTuple):
    """The result of `sort_rows`: a job and its spans, each with the index of its shard in the map."""

    job: Job
    spans: list[tuple[int, Span]]


def sort_rows(frames: Sequence[Frame], shard_map: ShardMap, seed: int) -> SortedRows:
    """Sort the rows of some frames by shard into span buffers.

    Leaves out bad rows.  Rows without a key get random hash keys, which ``seed`` determines.
    """
    checked = _join_small([frame.rows for frame in frames if frame.rows is not None])
    high, low, explicit, aggregates = _hashes(checked, seed)
    good = _good(checked)
    shards = shard_map.locate(high, low)
    is_sorted = len(shard_map) == 1 or len(high) == 1
    if not is_sorted:
        by_shard = np.argsort(shards.astype(np.uint16 if len(shard_map) < 65536 else np.uint32), kind="stable")
        order = (by_shard if good is None else by_shard[good[by_shard]]).astype(np.int32)
    else:
        order = np.arange(len(high), dtype=np.int32) if good is None else np.flatnonzero(good).astype(np.int32)
    keys: Column
    data: Column
    hashes = high, low
    if is_sorted and good is None and len(checked) == 1:
        keys, data = (checked[0].keys, checked[0].key_offsets), (checked[0].data, checked[0].data_offsets)
    else:
        keys = gather([(rows.keys, rows.key_offsets) for rows in checked], order)
        data = gather([(rows.data, rows.data_offsets) for rows in checked], order)
        shards, hashes = shards[order], (high[order], low[order])
        explicit = explicit[order] if explicit is not None else None
        aggregates = aggregates[order] if aggregates is not None else None
    sizes = np.arange(len(order) + 1) * RECORD_CHARGE_BYTES + keys[1] + data[1]  # offsets begin with 0
    groups = list(_pack(_cut_spans(shards, sizes)))
    buffers = []
    for group in groups:
        first, last = group[0][1], group[-1][2]
        buffer = SpanBuffer(
            first,
            *copy(keys, first, last),
            *copy(data, first, last),
            (hashes[0][first:last].copy(), hashes[1][first:last].copy()),
            _marks(explicit, first, last),
            _marks(aggregates, first, last),
        )
        buffers.append(buffer)
    job = Job(frames, order, buffers)
    spans = [
        (shard, Span(job, buffer, a, b, charge_bytes - RECORD_CHARGE_BYTES * (b - a)))
        for buffer, group in zip(buffers, groups, strict=True)
        for shard, a, b, charge_bytes in group
    ]
    return SortedRows(job, spans)


def _marks(marks: Bool | None, first: int, last: int) -> Bool | None:
    return marks[first:last].copy() if marks is not None and marks[first:last].any() else None


def _hashes(frames: Sequence[CheckedRows], seed: int) -> tuple[U64, U64, Bool | None, Bool | None]:
    """Return the high and the low halves of every row's hash key, and two masks, each None if it would be empty.

    The masks mark the rows with an explicit hash key, which may be random, and the rows that are given aggregates.
    A given aggregate has the hash key of its first record.
    """
    all_high, all_low = _hash_keys(frames)
    if not any(rows.null_keys or rows.hash_keys is not None or rows.aggregates is not None for rows in frames):
        return all_high, all_low, None, None
    all_explicit, all_aggregates = np.zeros((2, len(all_high)), np.bool_)
    random: np.random.Generator | None = None
    end = 0
    for rows in frames:
        start, end = end, end + rows.records
        high, low = all_high[start:end], all_low[start:end]
        explicit, aggregates = all_explicit[start:end], all_aggregates[start:end]
        if rows.null_keys:
            null = rows.key_offsets[1:] == rows.key_offsets[:-1]
            random = random or np.random.default_rng(seed)  # takes 20 µs, so only if a job needs it
            count = int(null.sum())
            high[null], low[null] = random.integers(0, 2**64, (2, count), dtype=np.uint64)
            explicit |= null
        if rows.hash_keys is not None and rows.hash_key_offsets is not None:
            given = np.diff(rows.hash_key_offsets) > 0
            for bad in rows.bad:
                given[bad.rows] = False  # the text of a bad row may not be a number
            if given.any():
                given_high, given_low = _parse_given(rows.hash_keys, rows.hash_key_offsets, given)
                high[given], low[given] = given_high, given_low
                explicit |= given
        for row in rows.aggregates.tolist() if rows.aggregates is not None else ():
            inside = parse(bytes(rows.data[rows.data_offsets[row] : rows.data_offsets[row + 1]]))
            if not inside:
                raise AssertionError("intake names only rows that can be split")
            high[row], low[row] = divmod(inside[0].hash_key, 2**64)
            aggregates[row] = explicit[row] = True
    return (
        all_high,
        all_low,
        all_explicit if all_explicit.any() else None,
        all_aggregates if all_aggregates.any() else None,
    )


def _hash_keys(frames: Sequence[CheckedRows]) -> tuple[U64, U64]:
    """Hash the partition keys.  Keys of several frames are joined and hashed together, which takes half the time."""
    groups: list[list[CheckedRows]] = [[]]
    records = key_bytes = 0
    for rows in frames:
        records += rows.records
        key_bytes += len(rows.keys)
        if groups[-1] and (records > TEXTS_AT_ONCE or key_bytes > TEXTS_AT_ONCE * MOST_BYTES):
            groups.append([])
            records, key_bytes = rows.records, len(rows.keys)
        groups[-1].append(rows)
    highs, lows = zip(*[hash_keys(*_join_keys(group)) for group in groups], strict=True)
    return (np.concatenate(highs), np.concatenate(lows)) if len(groups) > 1 else (highs[0], lows[0])


def _join_small(frames: Sequence[CheckedRows]) -> list[CheckedRows]:
    """Return the same rows with small frames joined, because each frame takes some fixed time, whatever its size."""
    joined: list[CheckedRows] = []
    run: list[CheckedRows] = []
    for rows in frames:
        plain = rows.hash_keys is None and not rows.bad and rows.aggregates is None
        if not plain or rows.records > SMALL_RECORDS or len(rows.data) > SMALL_BYTES:
            joined += [*_join(run), rows]
            run = []
        else:
            run.append(rows)
            if len(run) == MOST_JOINED:
                joined += _join(run)
                run = []
    return joined + _join(run)


def _join(run: Sequence[CheckedRows]) -> list[CheckedRows]:
    if len(run) < 2:
        return [*run]
    records, null_keys = sum([rows.records for rows in run]), sum([rows.null_keys for rows in run])
    data = _join_columns([rows.data for rows in run], [rows.data_offsets for rows in run])
    return [CheckedRows(records, *_join_keys(run), *data, None, None, (), null_keys)]


def _join_keys(run: Sequence[CheckedRows]) -> tuple[memoryview, I32]:
    return _join_columns([rows.keys for rows in run], [rows.key_offsets for rows in run])


def _join_columns(values: Sequence[memoryview], offsets: Sequence[I32]) -> tuple[memoryview, I32]:
    if len(values) == 1:
        return values[0], offsets[0]
    begins = np.repeat(np.cumsum([0, *map(len, values[:-1])]), [len(each) - 1 for each in offsets])
    joined = np.zeros(len(begins) + 1, np.int32)
    joined[1:] = np.concatenate([each[1:] for each in offsets]) + begins
    return memoryview(b"".join(values)), joined


def _parse_given(hash_keys: memoryview, offsets: I32, given: Bool) -> tuple[U64, U64]:
    texts, text_offsets = gather([(hash_keys, offsets)], np.flatnonzero(given).astype(np.int32))
    return parse_hash_keys(texts, text_offsets)


def _good(frames: Sequence[CheckedRows]) -> Bool | None:
    """Return a mask of the rows that are not bad, or None if all are good."""
    if not any(rows.bad for rows in frames):
        return None
    masks = []
    for rows in frames:
        mask = np.ones(rows.records, np.bool_)
        for bad in rows.bad:
            mask[bad.rows] = False
        masks.append(mask)
    return np.concatenate(masks)


def _cut_spans(shards: I32, sizes: npt.NDArray[np.int64]) -> list[_Run]:
    """Cut sorted rows into spans of one shard, in order."""
    if len(shards) < 2:
        return [(int(shards[0]), 0, 1, int(sizes[1]))] if len(shards) else []
    spans = []
    edges = np.concatenate(([0], (shards[1:] != shards[:-1]).nonzero()[0] + 1, [len(shards)]))
    of_one = zip(shards[edges[:-1]].tolist(), pairwise(edges.tolist()), np.diff(sizes[edges]).tolist(), strict=True)
    for shard, (first, end), charge_bytes in of_one:
        while charge_bytes > SPAN_BYTES and end - first > 1:
            last = int(sizes.searchsorted(sizes[first] + SPAN_BYTES, side="right")) - 1
            last = max(last, first + 1)
            part = int(sizes[last] - sizes[first])
            spans.append((shard, first, last, part))
            first, charge_bytes = last, charge_bytes - part
        spans.append((shard, first, end, charge_bytes))
    return spans


def _pack(spans: Sequence[_Run]) -> Iterator[list[_Run]]:
    """Yield groups of neighbouring spans that share a buffer, which a lagging shard then keeps for all of them."""
    group: list[_Run] = []
    group_bytes = 0
    for span in spans:
        group_bytes += span[3]
        if group and group_bytes > SHARED_BYTES:
            yield group
            group, group_bytes = [], span[3]
        group.append(span)
    if group:
        yield group
