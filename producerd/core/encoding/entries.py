"""Cut ranges of rows into entries, and write the body of a PutRecords request.

An *entry* is one future Kinesis record: a plain record, or a KPL aggregate of rows of one lane.  The rows of a request
are numbered through all its pieces, and an entry is a range of these numbers.  The sender therefore settles ranges and
never single rows.  Encoding is pure and may run in worker threads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate, compress, groupby, pairwise
from operator import itemgetter

import numpy as np

from producerd.core.encoding import columnar
from producerd.core.encoding.columnar import AggregatedRows, LaneRows
from producerd.core.encoding.formats import JSON, Format
from producerd.core.encoding.gather import Buffer
from producerd.core.kpl.aggregation import AGGREGATE_KEY, Aggregate, split
from producerd.core.rows.spans import NULL_KEY, Span, explicit_hash_key_of, hash_key_of
from producerd.core.rules import EntryRules
from producerd.core.shards.hash_keys import I32
from producerd.core.shards.shard_map import ShardMap


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A PutRecords body and what its entries hold.

    - ``ends``: for each entry the number of the request's rows up to its end.  Rows from ``ends[-1]`` on did not fit,
      and return to their lanes.
    - ``lanes``: for each entry the number of its lane.
    - ``sizes``: for each entry its data + key, in bytes.
    - ``content_type``: the format of the body, as the header Content-Type names it.
    - ``fragments``: the entries made of given aggregates.  Each has the range of the hash keys in it if it is an
      aggregate again, otherwise None.  The first entry of a given aggregate holds its row; the others repeat ``ends``.
    """

    body: Buffer
    sha256: str
    content_type: str
    ends: I32
    lanes: I32
    sizes: I32
    fragments: Mapping[int, tuple[int, int] | None]

    @property
    def entries(self) -> int:
        """The number of its entries."""
        return len(self.ends)

    @property
    def payload_bytes(self) -> int:
        """The size of the data and keys of all its entries."""
        return int(self.sizes.sum())

    def of_lanes(self, lanes: int) -> list[tuple[int, int]]:
        """Return the entries and the payload bytes of each lane, by the lane's number."""
        if lanes == 1:
            return [(self.entries, self.payload_bytes)]
        entries = np.bincount(self.lanes, minlength=lanes).tolist()
        sizes = np.bincount(self.lanes, self.sizes, minlength=lanes).tolist()
        return [(count, int(size)) for count, size in zip(entries, sizes, strict=True)]


def encode(
    address: Mapping[str, str],
    numbered: Sequence[tuple[int, Span]],
    rules: EntryRules,
    aggregate_bytes: Sequence[int] = (),
    shard_map: ShardMap | None = None,
    format_: Format = JSON,
) -> EncodedRequest:
    """Cut the rows of a request into entries and write its body.  Writes at least one entry, however large it is.

    - ``address``: the members that name the stream, ``{"StreamName": ...}`` or ``{"StreamARN": ...}``.
    - ``numbered``: each span with the number of its lane.
    - ``aggregate_bytes``: for each lane the size of the largest aggregate of its rows; 0 means the rules' own limit.
    - ``shard_map``: the map by which given aggregates are split.
    - ``format_``: the format of the body.
    """
    all_spans = [span for _, span in numbered]
    if all(not rules.aggregate or span.raw for span in all_spans) and columnar.suits(all_spans):
        found = columnar.raw_request(all_spans, rules.request_max_records, rules.request_max_bytes, address, format_)
        if found is not None:
            return _raw_request(numbered, *found, format_)
    writer = _Writer(address, rules, shard_map, format_)
    by_lane = list(_by_lane(numbered))
    most_bytes = dict(enumerate(aggregate_bytes))
    lanes = [
        LaneRows(spans, most_bytes.get(lane, 0) or rules.aggregate_max_bytes, rules.aggregate_max_records)
        for lane, spans in by_lane
    ]
    for (lane, spans), rows, aggregates in zip(by_lane, lanes, _aggregates(lanes, rules), strict=True):
        writer.lane(lane, rows.most_bytes)
        fits = all(map(writer.span, spans)) if aggregates is None else writer.aggregates(spans, aggregates)
        if not fits or not writer.close():
            break
    return writer.request()


def _aggregates(lanes: Sequence[LaneRows], rules: EntryRules) -> Iterator[list[AggregatedRows] | None]:
    """Yield for each lane the aggregates that the columnar twin made of its rows, or None where the loop is faster."""
    suited = columnar.suited(lanes) if rules.aggregate else [False] * len(lanes)
    made = columnar.aggregates(list(compress(lanes, suited)))
    return (next(made) if suits else None for suits in suited)


def _raw_request(numbered: Sequence[tuple[int, Span]], body: Buffer, sizes: I32, format_: Format) -> EncodedRequest:
    written = np.arange(1, len(sizes) + 1, dtype=np.int32)
    lanes = np.array([lane for lane, _ in numbered], np.int32).repeat([span.last - span.first for _, span in numbered])
    return EncodedRequest(
        body=body,
        sha256=sha256(body).hexdigest(),
        content_type=format_.content_type,
        ends=written,
        lanes=lanes[: len(sizes)],
        sizes=sizes,
        fragments={},
    )


def _by_lane(numbered: Sequence[tuple[int, Span]]) -> Iterator[tuple[int, list[Span]]]:
    for lane, run in groupby(numbered, itemgetter(0)):
        yield lane, [span for _, span in run]


class _Writer:
    """The plain twin: a loop over the rows.  Methods that write return whether everything has fitted."""

    def __init__(
        self, address: Mapping[str, str], rules: EntryRules, shard_map: ShardMap | None, format_: Format
    ) -> None:
        self._rules = rules
        self._shard_map = shard_map
        self._address = address
        self._format = format_
        self._fragments: dict[int, tuple[int, int] | None] = {}
        self._chunks: list[Buffer] = [format_.start(address)]
        self._ends: list[int] = []
        self._lanes: list[int] = []
        self._lane = 0
        self._sizes: list[int] = []
        self._payload_bytes = 0
        self._aggregate_bytes = rules.aggregate_max_bytes
        self._rows = 0  # rows written or in the open aggregate
        self._open: Aggregate | None = None
        self._first: tuple[bytes, bytes | None, bytes, bytes | memoryview] | None = None

    def lane(self, number: int, aggregate_bytes: int) -> None:
        """Begin the rows of a lane, whose aggregates have at most ``aggregate_bytes``."""
        self._lane = number
        self._aggregate_bytes = aggregate_bytes

    def aggregates(self, spans: Sequence[Span], aggregates: Sequence[AggregatedRows]) -> bool:
        """Write the aggregates that the columnar twin made of the lane's rows."""
        following = iter(spans)
        span = next(following)
        position = span.first
        for number, (records, chunks) in enumerate(aggregates):
            if number and self._rules.per_key:
                return False
            while position >= span.last:
                past, span = position - span.last, next(following)
                position = span.first + past
            if records == 1:
                if not self.span(span.cut(position)[1].cut(position + 1)[0]) or not self.close():
                    return False
            else:
                self._rows += records
                if not self._entry(AGGREGATE_KEY, hash_key_of(span, position), chunks, self._rows):
                    return False
            position += records
        return True

    def span(self, span: Span) -> bool:
        """Write the rows of a span of the lane."""
        rules = self._rules
        aggregate = rules.aggregate and not span.raw
        if not aggregate and not self.close():
            return False
        buffer = span.buffer
        base, first, last = buffer.first, span.first, span.last
        key_at = buffer.key_offsets[first - base : last - base + 1].tolist()
        data_at = buffer.data_offsets[first - base : last - base + 1].tolist()
        keys, data = buffer.keys, memoryview(buffer.data)
        # A given aggregate has an explicit hash key.
        if not aggregate and buffer.explicit is None and self._format.takes(keys[key_at[0] : key_at[-1]]):
            return self._plain_rows(keys, key_at, data, data_at)
        for i in range(last - first):
            key = keys[key_at[i] : key_at[i + 1]] or NULL_KEY
            value = data[data_at[i] : data_at[i + 1]]
            hash_key = explicit_hash_key_of(span, first + i)
            if buffer.aggregates is not None and buffer.aggregates[first + i - base]:
                if not self.close() or not self._split(bytes(value), span):
                    return False
            elif aggregate:
                if not self._aggregate(key, hash_key, value, span, first + i):
                    return False
            elif not self._entry(key, hash_key, (value,), self._rows + 1):
                return False
            else:
                self._rows += 1
        return True

    def close(self) -> bool:
        """Write the open aggregate.  A row that is alone in it becomes a plain record."""
        aggregate, self._open = self._open, None
        if aggregate is None or self._first is None:
            return True
        if aggregate.records == 1:
            key, hash_key, _, value = self._first
            return self._entry(key, hash_key, (value,), self._rows)
        return self._entry(AGGREGATE_KEY, self._first[2], aggregate.chunks(), self._rows)

    def request(self) -> EncodedRequest:
        """Return the request with all written entries."""
        self._chunks[-1] = self._format.end(self._address)
        body = b"".join(self._chunks)
        return EncodedRequest(
            body=body,
            sha256=sha256(body).hexdigest(),
            content_type=self._format.content_type,
            ends=np.array(self._ends, np.int32),
            lanes=np.array(self._lanes, np.int32),
            sizes=np.array(self._sizes, np.int32),
            fragments=self._fragments,
        )

    def _plain_rows(self, keys: bytes, key_at: list[int], data: memoryview, data_at: list[int]) -> bool:
        """Write rows whose keys the format takes as they are.  Does what `_entry` does row by row, in half the time."""
        rules = self._rules
        own_keys = [keys[a:b] or NULL_KEY for a, b in pairwise(key_at)]
        sizes = [len(key) + b - a for key, (a, b) in zip(own_keys, pairwise(data_at), strict=True)]
        room = rules.request_max_records - len(self._ends), rules.request_max_bytes - self._payload_bytes
        rows = max(min(room[0], bisect_right([*accumulate(sizes)], room[1])), not self._ends)
        self._chunks += self._format.entries(own_keys[:rows], [data[a:b] for a, b in pairwise(data_at[: rows + 1])])
        self._sizes += sizes[:rows]
        self._payload_bytes += sum(sizes[:rows])
        self._ends += range(self._rows + 1, self._rows + rows + 1)
        self._lanes += [self._lane] * rows
        self._rows += rows
        return rows == len(sizes)

    def _aggregate(self, key: bytes, hash_key: bytes | None, value: memoryview, span: Span, position: int) -> bool:
        rules = self._rules
        if self._open is not None and (
            self._open.records >= rules.aggregate_max_records
            or not self._open.try_add(key, hash_key, value, self._aggregate_bytes)
        ):
            if not self.close() or rules.per_key:
                return False
        elif self._open is not None:
            self._rows += 1
            return True
        self._open = Aggregate()
        self._open.try_add(key, hash_key, value, self._aggregate_bytes)
        self._first = (key, hash_key, hash_key_of(span, position), value)
        self._rows += 1
        return True

    def _split(self, blob: bytes, span: Span) -> bool:
        """Write all fragments of a given aggregate, or none if they do not all fit."""
        rules, locate = self._rules, self._shard_map.locate_one if self._shard_map else None
        fragments = split(blob, None) if span.raw else split(blob, locate)
        if len(fragments) > rules.request_max_records:
            fragments = split(blob, locate)
        size = self._payload_bytes + sum([len(fragment.partition_key) + len(fragment.data) for fragment in fragments])
        if self._ends and (
            len(self._ends) + len(fragments) > rules.request_max_records or size > rules.request_max_bytes
        ):
            return False
        if len(fragments) > rules.request_max_records:
            raise ValueError(
                f"an aggregate of {len(fragments)} shards in a request of {rules.request_max_records} entries"
            )
        self._rows += 1
        for fragment in fragments:
            self._fragments[len(self._ends)] = fragment.hash_keys
            fragment_bytes = len(fragment.partition_key) + len(fragment.data)
            self._write(
                fragment.partition_key, fragment.explicit_hash_key, (fragment.data,), self._rows, fragment_bytes
            )
        return True

    def _entry(self, key: bytes, hash_key: bytes | None, data: Sequence[Buffer], end: int) -> bool:
        """Write one entry, with data in chunks, unless the request would pass its limits."""
        rules = self._rules
        size = len(key) + sum(map(len, data))
        if self._ends and (
            len(self._ends) >= rules.request_max_records or self._payload_bytes + size > rules.request_max_bytes
        ):
            return False
        self._write(key, hash_key, data, end, size)
        return True

    def _write(self, key: bytes, hash_key: bytes | None, data: Sequence[Buffer], end: int, size: int) -> None:
        self._chunks += self._format.entry(key, hash_key, data)
        self._sizes.append(size)
        self._payload_bytes += size
        self._ends.append(end)
        self._lanes.append(self._lane)
