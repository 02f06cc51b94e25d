"""Diagnosis: why the rows of a stream wait, and which of its shards are hot, silent or throttled.

It only reads, and for most answers every span, so it is asked rarely.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from producerd.core.filling import Filling
from producerd.core.holding import Holding
from producerd.core.lanes.lane import Lane, spans_of
from producerd.core.lanes.lanes import Lanes
from producerd.core.rows.job import IN_REQUEST, QUEUED
from producerd.core.rows.spans import Span
from producerd.core.sending.answers import RequestFailed
from producerd.core.sending.body_limit import BodyLimit
from producerd.core.sending.health import HealthState
from producerd.core.sending.sender import Sender
from producerd.core.shards.shard_map import Shard

HOT_FACTOR: Final = 1.5
"""Multiple of its fair share of the waiting bytes from which a lane is hot."""
HOT_SHARE: Final = 0.1
"""Share of the waiting bytes from which a lane is hot, while other shards have room.

If no other shard has room, rows wait for all of them, and chance decides which lane has the most.
"""
LOW_USE: Final = 0.8
"""Use of a shard's quota by this daemon below which its throttles show that other producers write to it."""
EVEN_USE: Final = 0.8
"""Mean use of the other shards, as a share of the fullest one's, from which all count as full.

Random keys load shards more evenly than this, and a hot shard differs from the others by more.
"""


class ShardState(NamedTuple):
    """The state of an open shard, for the status.

    - ``share``: its share of all waiting bytes.  ``use``: the share of its quota that was used recently.
    - ``rate_records``, ``rate_bytes``: the entries and bytes that its lane may send in a second; 0 before its first
      row.
    - ``waits_for``: what keeps its rows from being sent, "" if nothing does or no row waits.
    """

    shard: Shard
    waiting_records: int = 0
    waiting_bytes: int = 0
    share: float = 0.0
    in_flight: int = 0
    rate_records: float = 0.0
    rate_bytes: float = 0.0
    use: float = 0.0
    backs_off: bool = False
    waits_for: str = ""


class Diagnosis:
    """What reports read of a stream: what holds its queue, and how its requests and its shards do.  It owns no fact."""

    def __init__(self, sender: Sender, filling: Filling) -> None:
        self._sender = sender
        self._filling = filling

    def census(self) -> dict[str, int]:
        """Return how many rows are in each place.  Their sum is `Pipeline.queued_records`."""
        sender, aside = self._sender, self._sender.aside
        return {
            "filling": self._filling.rows,
            "sorting": sum([frame.unsettled for frame in sender.ledger.sorting]),
            "queued": sum([_count(lane.spans, QUEUED) for lane in sender.lanes]),
            "held back": sum([_count(spans, QUEUED) for spans in sender.lanes.held_back.values()]),
            "delayed": _count(spans_of(aside.delayed), QUEUED),
            "alone": _count(spans_of(aside.alone), QUEUED),
            "in flight": sum([_count(request.spans, IN_REQUEST) for request in sender.in_flight]),
            "awaiting a map": _count(spans_of(sender.strays.awaiting), QUEUED),
        }

    @property
    def in_outage(self) -> bool:
        """Whether rows wait and nothing gets through: their requests fail, or the first reading of the shards does."""
        sender, known = self._sender, self._sender.known
        waits_for_map = sender.rules.entries.aggregate and known.map is None and not known.goes_plain
        return bool(sender.ledger.frames) and (sender.in_flight.nothing_passes or (waits_for_map and bool(known.error)))

    def holding(self, now: float) -> Holding:
        """Return what holds the queue."""
        known = self._sender.known
        waits = self._filling.has_batch and known.waits(now)
        holding = self._holding(now)
        if (waits or known.goes_plain) and holding.cause not in ("paused", "service", "in_flight"):
            return Holding("shard_map")
        return holding

    def _holding(self, now: float) -> Holding:
        sender = self._sender
        if sender.paused:
            return Holding("paused")
        refused = sender.health.state in (HealthState.SUSPECT, HealthState.BROKEN)
        if refused or sender.rows_refused_as or sender.in_flight.fails(now) or now < sender.in_flight.hold_until:
            return Holding("service")
        fullest = fullest_of(sender.lanes)
        if fullest is None or (fullest.lane.ready_at(now) <= now and not fullest.lane.is_paced(now)):
            waits = sender.held_by_node or not sender.has_room or self._most_are_in_flight
            slow = fullest is not None and fullest.lane.alone and not sender.in_flight.takes_slow
            return Holding("in_flight" if waits or slow else "daemon")
        lane, share = fullest
        if lane.map_until is not None and now < lane.map_until:
            return Holding("shard_map")
        if lane.waits_for_answers and not lane.is_paced(now):  # the shard would take more, if it answered
            return Holding("in_flight")
        by_records = lane.pacer is not None and lane.pacer.by_records
        throttled = lane.backs_off(now) and (lane.pacer is None or lane.pacer.use(now) < LOW_USE)
        holds_more = share >= max(HOT_FACTOR / len(sender.lanes.map), HOT_SHARE)
        if holds_more and others_have_room(sender.lanes, lane, now):
            return Holding("hot_shard", lane.shard.shard_id, share, by_records, throttled)
        if lane.waits_for_answers:
            return Holding("in_flight")
        return Holding("shard_rate", by_records=by_records, throttled=throttled)

    @property
    def _most_are_in_flight(self) -> bool:
        in_flight = sum([_count(request.spans, IN_REQUEST) for request in self._sender.in_flight])
        return 2 * in_flight > self._sender.ledger.budget.used_records

    # ---- rows and requests

    @property
    def records_without_caller(self) -> int:
        """The number of unfinished records whose callers have left."""
        return sum([f.unsettled for f in self._sender.ledger.frames if f.owner is None and f.withdrawn_from != 0])

    def oldest_seconds(self, now: float) -> float:
        """Return how long ago the oldest unfinished frame was accepted, or 0 if there is none."""
        frames = self._sender.ledger.frames
        return now - next(iter(frames)).accepted_at if frames else 0.0

    @property
    def requests_in_flight(self) -> int:
        """The number of requests that wait for their answer."""
        return len(self._sender.in_flight)

    @property
    def wire_format(self) -> str:
        """The name of the last request's format, or ""."""
        last = self._sender.format.last
        return "" if last is None else last.name

    @property
    def cbor_refused_as(self) -> RequestFailed | None:
        """How the service refused CBOR, if requests go in JSON because of that."""
        return self._sender.format.refusal

    @property
    def body_limit(self) -> BodyLimit:
        """The size of the requests that a proxy lets through."""
        return self._sender.body_limit

    # ---- the shards

    @property
    def map_error(self) -> str:
        """The reason why the last reading of the shards failed, or ""."""
        return self._sender.known.error

    @property
    def silent_shards(self) -> int:
        """The number of shards for which rows wait, and whose last request had no answer in time.

        A shard is not asked again before there is another row for it, so without one it may answer by now.
        """
        delayed = {piece.lane for piece in self._sender.aside.delayed}
        silent = [lane for lane in self._sender.lanes if lane.silent]
        return sum([bool(lane.queued or lane.in_flight or lane.set_aside or lane in delayed) for lane in silent])

    def backing_off(self, now: float) -> int:
        """Return to how many shards less is sent than before because they throttled."""
        return sum([lane.backs_off(now) for lane in self._sender.lanes])

    def most_used(self, now: float) -> float:
        """Return the share of its quota that the busiest shard was sent recently."""
        return max([lane.use(now) for lane in self._sender.lanes if not lane.nameless], default=0.0)

    def shards(self, now: float) -> list[ShardState]:
        """Return the state of each open shard, in the map's order, or nothing while the shards are unknown."""
        return list(shard_states(self._sender.lanes, now)) if self._sender.known.map is not None else []


class Fullest(NamedTuple):
    """The lane with the most waiting bytes, and its share of all waiting bytes."""

    lane: Lane
    share: float


def fullest_of(lanes: Lanes) -> Fullest | None:
    """Return the lane with the most bytes of waiting rows, or None if no row waits."""
    bytes_of = {lane: lane.bytes for lane in lanes}
    total = sum(bytes_of.values())
    if not total:
        return None
    lane = max(bytes_of, key=bytes_of.__getitem__)
    return Fullest(lane, bytes_of[lane] / total)


def others_have_room(lanes: Lanes, full: Lane, now: float) -> bool:
    """Return whether the shards other than the one of ``full`` could store clearly more.

    A lane that its pace or its shard's throttles hold back counts as full: at least as much in use as the fullest one,
    since a daemon may be given a part of the quota only.
    """
    others = [lane for lane in lanes if lane is not full]
    most = 1.0 if full.backs_off(now) else full.use(now)
    used = sum([max(lane.use(now), most * (lane.is_paced(now) or lane.backs_off(now))) for lane in others])
    return used < EVEN_USE * most * (len(lanes.map) - 1)


def shard_states(lanes: Lanes, now: float) -> Iterator[ShardState]:
    """Yield the state of each shard of the lanes' map, in its order."""
    lane_of = {lane.shard: lane for lane in lanes}
    total = max(1, sum([lane.bytes for lane in lanes]))
    for shard in lanes.map.shards:
        lane = lane_of.get(shard)
        if lane is None or lane.pacer is None:
            yield ShardState(shard)
            continue
        bytes_ = lane.bytes
        yield ShardState(
            shard=shard,
            waiting_records=lane.queued,
            waiting_bytes=bytes_,
            share=bytes_ / total,
            in_flight=lane.in_flight,
            rate_records=lane.pacer.rate_records,
            rate_bytes=lane.pacer.rate_bytes,
            use=lane.pacer.use(now),
            backs_off=lane.backs_off(now),
            waits_for=_waits_for(lane, now),
        )


def _waits_for(lane: Lane, now: float) -> str:
    if lane.silent and lane.in_flight:
        return "answers"
    if lane.ready_at(now) <= now or not lane.queued:
        return ""
    if lane.map_until is not None and now < lane.map_until:
        return "shard map"
    return "answers" if lane.waits_for_answers else "pace"


def _count(spans: Iterable[Span], state: int) -> int:
    return sum([span.job.count(span.first, span.last, state) for span in spans])
