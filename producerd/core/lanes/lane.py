"""Lanes: for each shard a queue of spans, which decides when it may send.

Rows leave at the front.  Throttled rows return to the front and slow their lane down.  No lane affects another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Final, NamedTuple

import numpy as np

from producerd.core.lanes.pacing import Pacer
from producerd.core.rows.spans import Span, records_of
from producerd.core.shards.shard_map import Shard

MAX_REQUESTS_PER_LANE: Final = 4
"""Most requests of a lane in flight.  With its 1 MiB/s a shard gains nothing from more; they only reorder its rows."""
MAX_REQUESTS_OF_SLOW_LANE: Final = 12
"""Most requests of a slow lane in flight.  A shard that answers in 6 s needs 12 of 500 rows to store 1,000 a second."""
SLOW_LANE_PAUSE_SECONDS: Final = 0.5
"""Pause between requests of a slow lane, so that each is full.  With 0.1 s a slow lane stored 530 of its 1,000 rows a
second.  Callers that mix their rows over 16 shards then had 55 % of the rate that they have with this pause."""
ENTRY_OVERHEAD_BYTES: Final = 40
"""Upper bound of the bytes that a row adds to its key and data, with an explicit hash key of 39 digits."""
AGGREGATED_OVERHEAD_BYTES: Final = 25
"""Upper bound of the bytes that a row without an explicit hash key adds in an aggregate of at least two: tags, lengths
and framing."""
EXPLICIT_OVERHEAD_BYTES: Final = 60
"""Upper bound of the bytes that a row with an explicit hash key adds in an aggregate of at least six.  The hash key
takes 41 of them."""
ANY_BYTES: Final = 2**62
"""A number of bytes that stands for no limit."""
LOOK_AHEAD_SPANS: Final = 32
"""Most spans that are searched for further rows behind rows that must wait for an earlier row of their key."""


class Lane:
    """The queue of rows for one shard.  While the shards are not known, one nameless lane has all rows.

    If the stream aggregates, the nameless lane keeps the pace of one shard; otherwise only throttles pace it.

    - ``queued``: the number of rows in ``spans``.  Some may have ended since; `take_rows` drops these.
    - ``in_flight``: the number of its requests without an answer.  ``slow_in_flight`` of them have waited for long, and
      ``overdue_in_flight`` no longer hold back other requests.
    - ``set_aside``: the number of requests with its rows that wait outside of the lane.
    - ``alone``: its last request was slow or timed out.  Until an answer comes in time, it shares no request.
    - ``silent``: its last request timed out.
    - ``map_until``: until when it waits for a new map, because an answer came from another shard.
    - ``sequence``: the highest sequence number in an answer of its shard.
    """

    __slots__ = (
        "_throttles",
        "aggregate_max_bytes",
        "alone",
        "hold_until",
        "in_flight",
        "map_until",
        "nameless",
        "overdue_in_flight",
        "pacer",
        "queued",
        "sequence",
        "set_aside",
        "shard",
        "silent",
        "slow_in_flight",
        "spans",
    )

    def __init__(self, shard: Shard, pacer: Pacer | None, aggregate_max_bytes: int = 0) -> None:
        self.shard = shard
        self.nameless = not shard.shard_id
        self.aggregate_max_bytes = aggregate_max_bytes
        self.spans: deque[Span] = deque()
        self.pacer = pacer
        self.in_flight = 0
        self.slow_in_flight = 0
        self.overdue_in_flight = 0
        self.set_aside = 0
        self.hold_until = 0.0
        self.queued = 0
        self.alone = False
        self.silent = False
        self.map_until: float | None = None
        self.sequence = 0
        self._throttles = 0  # answers in a row that throttled it; counted only without a pacer

    def __repr__(self) -> str:
        state = "".join([f", {name}" for name in ("alone", "silent") if getattr(self, name)])
        return (
            f"<Lane of {self.shard.shard_id or 'all shards'}: {self.queued} rows in {len(self.spans)} spans, "
            f"{self.in_flight} requests in flight, {self.set_aside} set aside{state}>"
        )

    # ---- questions

    @property
    def waits_for_answers(self) -> bool:
        """Whether it must wait for an answer before its next request.  Requests known to be slow block no others."""
        if self.silent:
            return self.in_flight > self.overdue_in_flight
        return (
            self.in_flight - self.slow_in_flight >= MAX_REQUESTS_PER_LANE or self.in_flight >= MAX_REQUESTS_OF_SLOW_LANE
        )

    def ready_at(self, now: float, sooner_seconds: float = 0.0) -> float:
        """Return when it may send, or ``inf`` if it has no rows or waits for an answer.

        ``sooner_seconds``: how much sooner than its pace lets it begin a request.
        """
        if not self.queued or self.waits_for_answers:
            return inf
        paced = 0.0
        if self.pacer is not None:  # plain records, for which this is 0, need not wait for a whole aggregate's bytes
            paced = self.pacer.ready_at(now, self.pacer.entry_bytes(self.aggregate_max_bytes)) - sooner_seconds
        return max(self.hold_until, paced, self.map_until or 0.0)

    def backs_off(self, now: float) -> bool:
        """Return whether it sends less than before, or nothing, because its shard throttled it."""
        return self.pacer.backs_off if self.pacer is not None else now < self.hold_until

    @property
    def bytes(self) -> int:
        """The size of its waiting rows (key + data), with those that have ended.  Reads every span."""
        return sum([span.bytes for span in self.spans])

    def use(self, now: float) -> float:
        """Return the share of its shard's quota that it has used recently; 0 while the shards are not known."""
        return self.pacer.use(now) if self.pacer is not None else 0.0

    def is_paced(self, now: float) -> bool:
        """Return whether its pace holds it back, though it may be free to send for a moment.

        That is the case while one of its pacer's buckets is less than half full.
        """
        if self.pacer is None:
            return False
        allowance = self.pacer.allowance(now)
        return allowance.records < self.pacer.rate_records / 2 or allowance.bytes < self.pacer.rate_bytes / 2

    # ---- its requests

    def request_began(self) -> None:
        """Count a request with the lane's rows."""
        self.in_flight += 1

    def request_left(self, *, slow: bool = False, overdue: bool = False) -> None:
        """Count a request that has none of its rows any more: it was answered, has failed or was too small for them."""
        self.in_flight -= 1
        self.slow_in_flight -= slow
        self.overdue_in_flight -= overdue

    def slowed(self) -> None:
        """Note that a request has waited for long."""
        self.alone = True
        self.slow_in_flight += 1

    def passed_over(self) -> None:
        """Note that one of its requests no longer holds back others."""
        self.overdue_in_flight += 1

    def answer_came(self, *, late: bool) -> None:
        """Note an answer to a request.  An answer in time lets the lane share requests again."""
        self.alone, self.silent = self.alone and late, False

    def timed_out(self) -> None:
        """Note that a request had no answer in time."""
        self.alone = self.silent = True

    def sequence_seen(self, number: int, before: int) -> bool:
        """Note a sequence number from its shard, 0 for none.  Returns whether the number is too low.

        A number is too low if the lane had a higher one when the request was sent, which is ``before``.
        """
        fell = 0 < number < before
        self.sequence = number if fell else max(self.sequence, number)
        return fell

    def pace(self, stored: int, throttled: int, sent_at: float, now: float, delay: Callable[[int], float]) -> None:
        """Adapt the lane's pace to an answer that stored and throttled this many of its entries.

        ``delay``: how many seconds a lane without a pacer waits after this many answers in a row that throttled it.
        """
        if self.pacer is not None:
            self.pacer.answered(stored, throttled, sent_at, now)
        elif throttled:
            self._throttles += 1
            self.hold_until = now + delay(self._throttles)
        else:
            self._throttles = 0

    def refund(self, entries: int, bytes_: int) -> None:
        """Return what a request sent less than its lane was charged for."""
        if self.pacer is not None:
            self.pacer.give_back(entries, bytes_)

    # ---- waits

    def wait_until(self, until: float) -> None:
        """Send nothing before this time."""
        self.hold_until = max(self.hold_until, until)

    def put_aside(self) -> None:
        """Count the lane's rows that wait outside, for a request of their own or for a map."""
        self.set_aside += 1

    def take_up(self) -> None:
        """Count the lane's rows that no longer wait outside."""
        self.set_aside -= 1

    def await_map(self, until: float) -> None:
        """Wait for a new map up to this time, because an answer came from another shard.

        A wait that has begun keeps its end.
        """
        if self.map_until is None:
            self.map_until = until

    def map_came(self) -> None:
        """End the wait for a map."""
        self.map_until = None

    def map_is_late(self, now: float) -> None:
        """Send again: no map came in time.  Until a map comes, its rows go as plain records."""
        self.map_until = now

    def set_rules(self, aggregate_max_bytes: int, shard_rate_fraction: float, now: float) -> None:
        """Follow new rules from now on."""
        self.aggregate_max_bytes = aggregate_max_bytes
        if self.pacer is not None:
            self.pacer.set_fraction(shard_rate_fraction, now)

    # ---- rows come and go

    def extend(self, spans: list[Span]) -> None:
        """Add rows at the end."""
        self.spans.extend(spans)
        self.queued += records_of(spans)

    def put_back(self, spans: list[Span]) -> None:
        """Return rows to the front, in their order."""
        self.spans.extendleft(reversed(spans))
        self.queued += records_of(spans)

    def take_all(self) -> list[Span]:
        """Take every span, for other lanes."""
        spans = list(self.spans)
        self.spans.clear()
        self.queued = 0
        return spans

    def take_rows(
        self,
        max_records: int,
        max_bytes: int,
        first_row_bytes: int,
        sole_bytes: int,
        *,
        aggregates: bool,
    ) -> tuple[list[Span], int]:
        """Take rows from the front within both limits.  Returns their spans and bytes (key + data + overhead a row).

        ``aggregates``: the rows share entries.  A row of more than ``sole_bytes`` is taken by itself.  If the first row
        is larger than ``max_bytes`` but not than ``first_row_bytes``, it is taken alone.
        """
        taken: list[Span] = []
        used = records = 0
        spans = self.spans
        while spans and records < max_records:
            if not self._first_is_live():
                continue
            span = spans[0]
            if taken and (not _alike(span, taken[0]) or max(span.bytes, taken[0].bytes) > sole_bytes):
                break
            count = span.last - span.first
            overhead_bytes = _overhead_bytes(span) if aggregates else ENTRY_OVERHEAD_BYTES
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

    def take_distinct(
        self, max_records: int, max_bytes: int, first_row_bytes: int, sole_bytes: int
    ) -> tuple[list[Span], int]:
        """Take rows as `take_rows` does, but at most one of a partition key, and none before an earlier row of its key.

        Keys are compared as `SpanBuffer.key_numbers` says, so two keys may count as one.
        """
        taken: list[Span] = []
        kept: list[Span] = []
        used = records = 0
        seen = np.empty(0, np.uint64)
        while self.spans and records < max_records and len(kept) < LOOK_AHEAD_SPANS:
            if not self._first_is_live():
                continue
            before = (taken or kept or [self.spans[0]])[0]
            if not _alike(self.spans[0], before):
                break
            if before is not self.spans[0] and max(self.spans[0].bytes, before.bytes) > sole_bytes:
                break
            span = self.spans.popleft()
            keys = span.buffer.key_numbers(span.first - span.buffer.first, span.last - span.buffer.first)
            known, firsts = np.unique(keys, return_index=True)
            firsts = firsts[~np.isin(known, seen, assume_unique=True)]
            if not len(firsts):  # every row waits for one before it
                kept.append(span)
                continue
            later = np.ones(span.records, np.bool_)
            later[firsts] = False
            if later[: len(firsts)].any():  # otherwise they are in front: moving a span's rows takes long
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

    def drop_ended(self) -> bool:
        """Drop the rows at the front that have ended.  Returns whether others are left."""
        while self.spans and not self._first_is_live():
            pass
        return bool(self.spans)

    def _first_is_live(self) -> bool:
        """Cut the first span to its first run of rows that have not ended.  Returns False if it had none."""
        span = self.spans[0]
        if not span.job.has_gaps:
            return True
        start, stop = span.job.first_queued_run(span.first, span.last)
        if (start, stop) == (span.first, span.last):
            return True
        self.spans.popleft()
        self.queued -= start - span.first
        if start == stop:
            return False  # its memory may be released
        run, rest = span.cut(start)[1].cut(stop)
        if rest.records:
            self.spans.appendleft(rest)
        self.spans.appendleft(run)
        return True


class Piece(NamedTuple):
    """A span of a request, with the lane that it was taken from."""

    lane: Lane
    span: Span


def _overhead_bytes(span: Span) -> int:
    """Return what each row of a span adds to its key and data in an aggregate."""
    return AGGREGATED_OVERHEAD_BYTES if span.buffer.explicit is None else EXPLICIT_OVERHEAD_BYTES


def _alike(one: Span, other: Span) -> bool:
    """Return whether two spans may share a request.

    Both must become aggregates or both plain records, and both or none must be suspected of failing their requests.
    """
    return one.raw is other.raw and one.failing is other.failing


def _rows_that_fit(
    span: Span, max_records: int, max_bytes: int, first_row_bytes: int, overhead_bytes: int = ENTRY_OVERHEAD_BYTES
) -> int:
    """Return how many rows of a span fit in both limits; a first row up to ``first_row_bytes`` always fits."""
    sizes = span.sizes(max_records)
    sizes += overhead_bytes * np.arange(len(sizes))
    count = int(sizes.searchsorted(max_bytes, side="right")) - 1
    return max(count, 1 if max_records and int(sizes[1]) <= first_row_bytes else 0)


def spans_of(pieces: Iterable[Piece]) -> list[Span]:
    """Return the spans of some pieces."""
    return [span for _, span in pieces]


def lanes_of(pieces: Iterable[Piece]) -> list[Lane]:
    """Return the lanes of some pieces, each once, in the order of their first pieces."""
    return list(dict.fromkeys([lane for lane, _ in pieces]))
