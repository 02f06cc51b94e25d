"""Lane: one shard's line of spans, and when it may send.

Rows leave at the front.  Throttled rows come back to the front, and the lane slows down; nothing here touches another
lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf
from typing import Final, NamedTuple

import numpy as np

from producerd.core.lanes.pacing import Pacer
from producerd.core.rows.spans import Span, records_of
from producerd.core.shards.hash_keys import U64
from producerd.core.shards.shard_map import Shard

MAX_REQUESTS_PER_LANE: Final = 4
"""More in flight for one shard only reorders its rows; a shard takes 1 MiB/s."""
MAX_REQUESTS_OF_SLOW_LANE: Final = 12
"""A shard that answers in 6 s gives its quota only with more on the way: 1,000 records/s in requests of 500."""
SLOW_LANE_PAUSE_SECONDS: Final = 0.5
"""Between its requests, so that each is full: with one every tenth of a second it had 530 of its 1,000 records/s, and
callers that mix their rows over 16 shards 55 % of what they have with the pause."""
ENTRY_OVERHEAD_BYTES: Final = 40
"""Above what an entry adds to its key and data: an explicit hash key of 39 digits; in an aggregate it is about that."""
AGGREGATED_OVERHEAD_BYTES: Final = 25
"""The same of a row without one in an aggregate of two or more: tags, lengths, and its part of what frames them."""
LOOK_AHEAD_SPANS: Final = 32
"""How far behind rows that wait for their key's earlier row others are looked for."""
ANY: Final = 2**62
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


class Lane:
    """One shard's line, or the nameless one of all rows while the shards are not known.

    Where records are aggregated the nameless lane keeps one shard's pace; otherwise only throttles pace it.

    ``queued`` counts the rows that stand in ``spans``, among them rows whose caller is gone: `take` drops those.
    """

    __slots__ = (
        "aggregate_max_bytes",
        "alone",
        "hold_until",
        "in_flight",
        "listed",
        "map_until",
        "nameless",
        "overdue_in_flight",
        "pacer",
        "parcels",
        "queued",
        "sequence",
        "shard",
        "slow_in_flight",
        "spans",
        "throttles",
        "timed_out",
    )

    def __init__(self, shard: Shard, pacer: Pacer | None, aggregate_max_bytes: int = 0) -> None:
        self.shard = shard
        self.nameless = not shard.shard_id  # it stands in for all shards: its rows go as plain records
        self.aggregate_max_bytes = aggregate_max_bytes
        self.spans: deque[Span] = deque()
        self.pacer = pacer
        self.in_flight = 0
        self.slow_in_flight = 0  # of them, those that have been out for long
        self.overdue_in_flight = 0  # of them, those that nothing waits for any more
        self.parcels = 0  # requests of its rows that wait outside of the lane
        self.hold_until = 0.0
        self.throttles = 0  # answers in a row that throttled it, where no pacer counts them
        self.queued = 0
        self.listed = False  # whether it stands in line
        self.alone = False  # its last request was slow or gave no answer: it shares none until it answers in time
        self.timed_out = False  # of the two, it gave no answer
        self.map_until: float | None = None  # an answer came from another shard: a new map is awaited until then
        self.sequence = 0  # the highest sequence number seen in an answer

    @property
    def waits_for_answers(self) -> bool:
        """Whether as many of its requests are in flight as may be.  Those known to be slow hold up no others."""
        if self.timed_out:
            return self.in_flight > self.overdue_in_flight
        return (
            self.in_flight - self.slow_in_flight >= MAX_REQUESTS_PER_LANE or self.in_flight >= MAX_REQUESTS_OF_SLOW_LANE
        )

    def ready_at(self, now: float) -> float:
        """When it may send, as far as time decides; ``inf`` where it has no rows or waits for an answer."""
        if not self.queued or self.waits_for_answers:
            return inf
        paced = self.pacer.ready_at(now, self._entry_bytes) if self.pacer is not None else 0.0
        return max(self.hold_until, paced, self.map_until or 0.0)

    def backs_off(self, now: float) -> bool:
        """Whether it sends less than before, or nothing, because its shard throttled it."""
        return self.pacer.backs_off if self.pacer is not None else now < self.hold_until

    @property
    def bytes(self) -> int:
        """Of the rows that wait, with those whose caller is gone.  Looks at every span."""
        return sum([span.bytes for span in self.spans])

    @property
    def _entry_bytes(self) -> int:
        """What it waits for the bucket to hold: a whole aggregate; plain records have a size each."""
        if self.pacer is None or not self.aggregate_max_bytes:
            return 0
        return self.pacer.entry_bytes(self.aggregate_max_bytes)

    def use(self, now: float) -> float:
        """What its shard had stored recently, as a share of the shard's quota; 0 while the shards are not known."""
        return self.pacer.use(now) if self.pacer is not None else 0.0

    def is_paced(self, now: float) -> bool:
        """Whether a bucket is less than half full: then its pace holds it, though it may send for a moment."""
        if self.pacer is None:
            return False
        allowance = self.pacer.allowance(now)
        return allowance.records < self.pacer.rate_records / 2 or allowance.bytes < self.pacer.rate_bytes / 2

    def extend(self, spans: list[Span]) -> None:
        self.spans.extend(spans)
        self.queued += records_of(spans)

    def put_back(self, spans: list[Span]) -> None:
        """Rows that were taken return to the front, in their order."""
        self.spans.extendleft(reversed(spans))
        self.queued += records_of(spans)

    def take_all(self) -> list[Span]:
        """Every span, for other lanes."""
        spans = list(self.spans)
        self.spans.clear()
        self.queued = 0
        return spans

    def take(
        self, max_records: int, max_bytes: int, first_row_bytes: int = 0, overhead_bytes: int = ENTRY_OVERHEAD_BYTES
    ) -> tuple[list[Span], int]:
        """Rows from the front within both bounds, and their bytes (key + data + overhead, a row).

        The first row may have ``first_row_bytes``, where that is more: a row larger than a request goes alone.
        """
        taken: list[Span] = []
        used = records = 0
        spans = self.spans
        while spans and records < max_records:
            if not self._first_is_live():
                continue
            span = spans[0]
            if taken and not _alike(span, taken[0]):
                break
            count = span.last - span.first
            size = span.bytes + overhead_bytes * count
            if records + count <= max_records and used + size <= max_bytes:
                spans.popleft()
            else:
                most_bytes = max_bytes - used if taken else max(max_bytes, first_row_bytes)
                count = _rows_that_fit(span, max_records - records, max_bytes - used, most_bytes, overhead_bytes)
                if not count:
                    break
                spans.popleft()
                if count < span.last - span.first:
                    span, rest = span.cut(span.first + count)
                    spans.appendleft(rest)
                size = span.bytes + overhead_bytes * count
            taken.append(span)
            used += size
            records += count
        self.queued -= records
        return taken, used

    def take_distinct(self, max_records: int, max_bytes: int, first_row_bytes: int = 0) -> tuple[list[Span], int]:
        """As `take`, but at most one row of a key (of a hash), and none of a key that a waiting row before it has."""
        taken: list[Span] = []
        kept: list[Span] = []
        used = records = 0
        seen = np.empty(0, np.uint64)
        while self.spans and records < max_records and len(kept) < LOOK_AHEAD_SPANS:
            if not self._first_is_live():
                continue
            if (taken or kept) and not _alike(self.spans[0], (taken or kept)[0]):
                break
            span = self.spans.popleft()
            keys = _keys_of(span)
            known, firsts = np.unique(keys, return_index=True)
            firsts = firsts[~np.isin(known, seen, assume_unique=True)]
            if len(firsts) < span.records:
                later = np.ones(span.records, np.bool_)
                later[firsts] = False
                span.reorder(np.argsort(later, kind="stable"))
            most_bytes = max_bytes - used if taken else max(max_bytes, first_row_bytes)
            count = _rows_that_fit(span, min(max_records - records, len(firsts)), max_bytes - used, most_bytes)
            front, rest = span.cut(span.first + count)
            if count:
                taken.append(front)
                used += front.bytes + ENTRY_OVERHEAD_BYTES * count
                records += count
            if rest.records:
                kept.append(rest)
            if count < len(firsts):
                break
            seen = np.concatenate((seen, known))
        self.spans.extendleft(reversed(kept))
        self.queued -= records
        return taken, used

    def _first_is_live(self) -> bool:
        """Cut the first span to its first run of rows whose caller is still there; False where it had none."""
        span = self.spans[0]
        if not span.job.has_gaps:
            return True
        start, stop = span.job.first_queued_run(span.first, span.last)
        if (start, stop) == (span.first, span.last):
            return True
        self.spans.popleft()
        self.queued -= start - span.first
        if start == stop:
            return False  # and its memory may be gone
        run, rest = span.cut(start)[1].cut(stop)
        if rest.records:
            self.spans.appendleft(rest)
        self.spans.appendleft(run)
        return True


class Piece(NamedTuple):
    """Some rows of a request: a span, and the lane that it was taken from."""

    lane: Lane
    span: Span


def _alike(one: Span, other: Span) -> bool:
    """Whether both become plain records, or aggregates, and both or none are suspected of failing their requests."""
    return one.raw is other.raw and one.failing is other.failing


def _keys_of(span: Span) -> U64:
    """A number for each row, equal for rows of one key; where two keys share one, a row waits longer than it must."""
    a, b = span.first - span.buffer.first, span.last - span.buffer.first
    keys: U64 = span.buffer.hashes[0][a:b] * _ODD + span.buffer.hashes[1][a:b]
    return keys


def _rows_that_fit(
    span: Span, max_records: int, max_bytes: int, first_row_bytes: int, overhead_bytes: int = ENTRY_OVERHEAD_BYTES
) -> int:
    sizes = span.sizes() + overhead_bytes * np.arange(span.records + 1)
    count = min(int(sizes.searchsorted(max_bytes, side="right")) - 1, max_records, span.records)
    return max(count, 1 if max_records and int(sizes[1]) <= first_row_bytes else 0)


def spans_of(pieces: Iterable[Piece]) -> list[Span]:
    """The spans of some pieces, without their lanes."""
    return [span for _, span in pieces]
