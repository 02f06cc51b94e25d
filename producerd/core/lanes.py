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

    __slots__ = ("hold_until", "in_flight", "listed", "queued", "shard_id", "spans", "throttles")

    def __init__(self, shard_id: str) -> None:
        self.shard_id = shard_id
        self.spans: deque[Span] = deque()
        self.in_flight = 0
        self.hold_until = 0.0
        self.throttles = 0  # answers in a row that throttled it
        self.queued = 0
        self.listed = False  # whether the pipeline has it in line

    def may_send(self, now: float) -> bool:
        return self.queued > 0 and self.in_flight < MAX_REQUESTS_PER_LANE and self.hold_until <= now

    def append(self, span: Span) -> None:
        self.spans.append(span)
        self.queued += span.records

    def put_back(self, spans: list[Span]) -> None:
        """Rows that were taken return to the front, in their order."""
        self.spans.extendleft(reversed(spans))
        self.queued += sum(span.records for span in spans)

    def take(self, max_records: int, max_bytes: int, first_row_bytes: int = 0) -> tuple[list[Span], int]:
        """Rows from the front within both bounds, and their bytes (key + data + ENTRY_OVERHEAD_BYTES a row).

        The first row may have ``first_row_bytes``, where that is more: a row larger than a request goes alone.
        """
        taken: list[Span] = []
        used = records = 0
        while self.spans and records < max_records:
            span = self._first_live()
            if span is None:
                continue
            sizes = span.sizes() + ENTRY_OVERHEAD_BYTES * np.arange(span.records + 1)
            count = int(np.searchsorted(sizes, max_bytes - used, side="right")) - 1
            count = min(count, max_records - records, span.records)
            if count <= 0:
                if taken or int(sizes[1]) > first_row_bytes:
                    break
                count = 1
            now, rest = span.cut(span.first + count)
            self.spans.popleft()
            if rest.records:
                self.spans.appendleft(rest)
            taken.append(now)
            used += int(sizes[count])
            records += count
        self.queued -= records
        return taken, used

    def _first_live(self) -> Span | None:
        """The first span, cut to its first run of rows whose caller is still there; None where it has none."""
        span = self.spans[0]
        state = span.buffer.job.state[span.first : span.last]
        if not state.any():
            return span
        live = state == QUEUED
        start = int(live.argmax()) if live.any() else span.records
        stop = start + int((~live[start:]).argmax()) if not live[start:].all() else span.records
        self.spans.popleft()
        self.queued -= start
        run, rest = span._replace(first=span.first + start).cut(span.first + stop)
        if rest.records:
            self.spans.appendleft(rest)
        if run.records:
            self.spans.appendleft(run)
            return run
        return None
