"""Lane: one shard's line of spans, and when it may send.

Rows leave at the front.  Throttled rows come back to the front, and the lane slows down; nothing here touches another
lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
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
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


class Lane:
    """One shard's line of rows, or the nameless one of all rows while the shards are not known.

    Where records are aggregated the nameless lane keeps one shard's pace; otherwise only throttles pace it.

    - ``queued``: the rows in ``spans``, also those whose caller is gone: `take` drops these.
    - ``in_flight``: its requests without an answer.  Of them ``slow_in_flight`` have been out for long, and nothing
      waits for ``overdue_in_flight`` any more.
    - ``set_aside``: requests of its rows that wait outside of the lane.
    - ``alone``: its last request was slow or had no answer, so that it shares none until it answers in time.
    - ``silent``: its last request had no answer.
    - ``map_until``: an answer came from another shard, and a new map is awaited until then.
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
        self.nameless = not shard.shard_id  # it stands in for all shards: its rows go as plain records
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
        self._throttles = 0  # answers in a row that throttled it, where no pacer counts them

    def __repr__(self) -> str:
        state = "".join([f", {name}" for name in ("alone", "silent") if getattr(self, name)])
        return (
            f"<Lane of {self.shard.shard_id or 'all shards'}: {self.queued} rows in {len(self.spans)} spans, "
            f"{self.in_flight} requests in flight, {self.set_aside} set aside{state}>"
        )

    # ---- questions

    @property
    def waits_for_answers(self) -> bool:
        """Whether as many of its requests are in flight as may be.  Those known to be slow hold up no others."""
        if self.silent:
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

    # ---- what happens to its requests

    def sent(self) -> None:
        """A request has rows of it."""
        self.in_flight += 1

    def ended(self, *, slow: bool = False, overdue: bool = False) -> None:
        """A request has none of its rows any more: it has its answer or has failed, or they did not fit."""
        self.in_flight -= 1
        self.slow_in_flight -= slow
        self.overdue_in_flight -= overdue

    def slowed(self) -> None:
        """A request has been out for long."""
        self.alone = True
        self.slow_in_flight += 1

    def passed_over(self) -> None:
        """Nothing waits for one of its requests any more."""
        self.overdue_in_flight += 1

    def answered(self, *, late: bool) -> None:
        """A request was answered.  If the lane answers in time while it is alone, it may share requests again."""
        self.alone, self.silent = self.alone and late, False

    def timed_out(self) -> None:
        """A request had no answer in time."""
        self.alone = self.silent = True

    def read(self, number: int, before: int) -> bool:
        """An answer has a sequence number of its shard, 0 for none.  Returns whether the number is too low.

        ``before``: the lane's ``sequence`` when the request was sent.
        """
        fell = 0 < number < before
        self.sequence = number if fell else max(self.sequence, number)
        return fell

    def pace(self, stored: int, throttled: int, sent_at: float, now: float, delay: Callable[[int], float]) -> None:
        """An answer stored and throttled this many of its entries.

        ``delay``: how many seconds a lane without a pacer waits after this many answers in a row that throttled it.
        """
        if self.pacer is not None:
            self.pacer.answered(stored, throttled, sent_at, now)
        elif throttled:
            self._throttles += 1
            self.hold_until = now + delay(self._throttles)
        else:
            self._throttles = 0

    def give_back(self, entries: int, bytes_: int) -> None:
        """A request sent this much less than the lane was charged for."""
        if self.pacer is not None:
            self.pacer.give_back(entries, bytes_)

    # ---- what it waits for

    def hold(self, until: float) -> None:
        """It sends nothing before this time."""
        self.hold_until = max(self.hold_until, until)

    def put_aside(self) -> None:
        """Rows of it wait outside, for a request of their own or for a map."""
        self.set_aside += 1

    def take_up(self) -> None:
        """Rows that waited outside do so no more."""
        self.set_aside -= 1

    def await_map(self, until: float) -> None:
        """An answer came from another shard: the lane waits for a new map, at most until this time.

        A wait that has begun goes on as it is.
        """
        if self.map_until is None:
            self.map_until = until

    def map_came(self) -> None:
        """It waits for a map no more."""
        self.map_until = None

    def map_is_late(self, now: float) -> None:
        """No map came in time, and the next answer decides again."""
        self.map_until = now

    def set_rules(self, aggregate_max_bytes: int, shard_rate_fraction: float, now: float) -> None:
        """Other rules, from now on."""
        self.aggregate_max_bytes = aggregate_max_bytes
        if self.pacer is not None:
            self.pacer.set_fraction(shard_rate_fraction, now)

    # ---- rows come and go

    def extend(self, spans: list[Span]) -> None:
        """Rows join at the end."""
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


def lanes_of(pieces: Iterable[Piece]) -> list[Lane]:
    """The lanes of some pieces, each once, in the order of their first pieces."""
    return list(dict.fromkeys([lane for lane, _ in pieces]))
