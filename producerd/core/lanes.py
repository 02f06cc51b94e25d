"""Lane: one shard's line of spans, and when it may send.

Rows leave at the front.  Throttled rows come back to the front, and the lane holds off; nothing here touches another
lane.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from producerd.core.spans import QUEUED, Span

MAX_REQUESTS_PER_LANE: Final = 4
"""More in flight for one shard only reorders its rows; a shard takes 1 MiB/s."""
ENTRY_OVERHEAD_BYTES: Final = 40
"""Above what an entry adds to its key and data: an explicit hash key of 39 digits, or an aggregate's headers a row."""


class Lane:
    """One shard's line.  ``shard_id`` is empty while the shards are not known.

    ``queued`` counts the rows that stand in ``spans``, among them rows whose caller is gone: `take` drops those.
    """

    __slots__ = ("hold_until", "in_flight", "listed", "queued", "shard_id", "spans", "stale", "throttles")

    def __init__(self, shard_id: str) -> None:
        self.shard_id = shard_id
        self.spans: deque[Span] = deque()
        self.in_flight = 0
        self.hold_until = 0.0
        self.throttles = 0  # answers in a row that throttled it
        self.queued = 0
        self.listed = False  # whether the pipeline has it in line
        self.stale = False  # its shard id now means another range: what an answer names says nothing

    def may_send(self, now: float) -> bool:
        return self.queued > 0 and self.in_flight < MAX_REQUESTS_PER_LANE and self.hold_until <= now

    def extend(self, spans: list[Span]) -> None:
        self.spans.extend(spans)
        self.queued += records_of(spans)

    def put_back(self, spans: list[Span]) -> None:
        """Rows that were taken return to the front, in their order."""
        self.spans.extendleft(reversed(spans))
        self.queued += records_of(spans)

    def take(self, max_records: int, max_bytes: int, first_row_bytes: int = 0) -> tuple[list[Span], int]:
        """Rows from the front within both bounds, and their bytes (key + data + ENTRY_OVERHEAD_BYTES a row).

        The first row may have ``first_row_bytes``, where that is more: a row larger than a request goes alone.
        """
        taken: list[Span] = []
        used = records = 0
        spans = self.spans
        while spans and records < max_records:
            span = spans[0]
            if span.buffer.job.has_gaps:
                live = self._first_live()
                if live is None:
                    continue
                span = live
            count = span.last - span.first
            size = span.bytes + ENTRY_OVERHEAD_BYTES * count
            if records + count <= max_records and used + size <= max_bytes:
                spans.popleft()
            else:
                most_bytes = max_bytes - used if taken else max(max_bytes, first_row_bytes)
                count = self._rows_that_fit(span, max_records - records, max_bytes - used, most_bytes)
                if not count:
                    break
                spans.popleft()
                if count < span.last - span.first:
                    span, rest = span.cut(span.first + count)
                    spans.appendleft(rest)
                size = span.bytes + ENTRY_OVERHEAD_BYTES * count
            taken.append(span)
            used += size
            records += count
        self.queued -= records
        return taken, used

    @staticmethod
    def _rows_that_fit(span: Span, max_records: int, max_bytes: int, first_row_bytes: int) -> int:
        sizes = span.sizes() + ENTRY_OVERHEAD_BYTES * np.arange(span.records + 1)
        count = min(int(np.searchsorted(sizes, max_bytes, side="right")) - 1, max_records, span.records)
        return max(count, 1 if int(sizes[1]) <= first_row_bytes else 0)

    def _first_live(self) -> Span | None:
        """The first span, cut to its first run of rows whose caller is still there; None where it has none."""
        span = self.spans[0]
        state = span.buffer.job.state[span.first : span.last]
        if not state.any():
            return span
        self.spans.popleft()
        live = state == QUEUED
        start = int(live.argmax()) if live.any() else span.records
        self.queued -= start
        if start == span.records:
            return None  # and its memory may be gone
        stop = start + int((~live[start:]).argmax()) if not live[start:].all() else span.records
        run, rest = span.cut(span.first + start)[1].cut(span.first + stop)
        if rest.records:
            self.spans.appendleft(rest)
        self.spans.appendleft(run)
        return run


def records_of(spans: list[Span]) -> int:
    """The rows of some spans."""
    return sum([span.last - span.first for span in spans])  # a list: a generator is a call for each
