"""The laws that hold when everything has settled and no caller waits.  Each function is a law."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, Final

from producerd.core.lanes.pacing import Pacer
from producerd.core.rules import PipelineRules
from producerd.core.sending.health import StreamHealth
from producerd.core.shards.reading_times import ShardReadings
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.core.stats import Histogram, StreamStats
from producerd.errors import Outcome
from producerd.testing.streams import SHARD_BYTES_PER_SECOND, SHARD_RECORDS_PER_SECOND
from tests.simulation.callers import Sent, Session
from tests.simulation.laws import LawBroken
from tests.simulation.rows import ordered_by

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

PACE_SLACK_SECONDS: Final = 0.02
"""Time between asking the pace and sending the request, at most."""
MOST_COPIES: Final = 3
"""One copy that a consumer receives, and two that none does: an aggregate, and one more by a newer map."""


def hold_at_the_end(sim: Simulation, *, only_resharded: bool, nothing_doubtful: bool) -> None:
    """Everything has settled and nobody waits."""
    sim.consume()
    every_frame_is_told(sim)
    counters_agree_with_frames(sim)
    nothing_is_left(sim)
    shards_are_sent_what_they_take(sim)
    for session in sim.sessions:
        for sent in session.sent.values():
            sim.laws.acknowledgement_is_true(sent)
            not_stored_is_not_there(sim, sent)
            copies_are_counted(sim, sent)
            if only_resharded:
                copies_are_few(sim, sent)
    counted = sim.pipeline.stats.possible_duplicate_records
    if nothing_doubtful and counted.total():
        raise LawBroken("possible_duplicates", f"nothing failed, and these were counted: {counted}")
    if sim.pipeline.rules.entries.per_key:
        the_order_is_kept(sim)


def every_frame_is_told(sim: Simulation) -> None:
    """Each accepted frame of a caller that stayed has been acknowledged; each row of the others has settled."""
    for session in sim.sessions:
        for frame in session.frames:
            if frame.unsettled:
                raise LawBroken("Row", f"{frame.unsettled} rows of frame {frame.frame_id} never settled")
            if frame.sent.result is None and not session.gone:
                raise LawBroken("Frame", f"frame {frame.frame_id} was never acknowledged")


def counters_agree_with_frames(sim: Simulation) -> None:
    """The metrics count what the callers were answered."""
    stats = sim.pipeline.stats
    frames = [frame for session in sim.sessions for frame in session.frames if frame.accepted]
    told = {
        "stored": (stats.delivered_records, sum([frame.tallies[Outcome.STORED] for frame in frames])),
        "retries": (stats.retried_records, sum([frame.retries for frame in frames])),
        "throttled": (stats.throttled_records, sum([frame.throttled for frame in frames])),
        "possible duplicates": (
            stats.possible_duplicate_records.total(),
            sum([frame.possible_duplicates for frame in frames]),
        ),
    }
    for name, (counted, in_frames) in told.items():
        if counted != in_frames:
            raise LawBroken("Pipeline", f"{name}: {counted} are counted, and {in_frames} told")


def nothing_is_left(sim: Simulation) -> None:
    """All numbers are zero and every collection is empty; what may stay does not grow with what was sent."""
    found = [
        *_leftovers("pipeline", sim.pipeline),
        *_leftovers("gate", sim.gate),
        *_leftovers("budget", sim.budget),
    ]
    if found:
        raise LawBroken("Pipeline", f"idle, and these are left: {found}")
    if (due := sim.pipeline.next_time()) is not None:
        raise LawBroken("Pipeline", f"idle, and something is due in {due - sim.now:g} s")


def shards_are_sent_what_they_take(sim: Simulation) -> None:
    """Over T seconds at most T x rate + the larger of one second's rate and the largest entry, for each shard."""
    most_fraction = max([fraction for _, fraction in sim.fractions])
    for shard, sent in sim.laws.reached.items():
        for unit, rate in (("records", SHARD_RECORDS_PER_SECOND), ("bytes", SHARD_BYTES_PER_SECOND)):
            above = before = 0.0
            largest = 1 if unit == "records" else max([int(sizes.max(initial=0)) for _, sizes in sent])
            most = max(most_fraction * rate, largest) + PACE_SLACK_SECONDS * rate
            for at, sizes in sorted(sent, key=lambda one: one[0]):
                above = max(0.0, above - rate * _fraction_seconds(sim, before, at))
                above += len(sizes) if unit == "records" else int(sizes.sum())
                before = at
                if above > most:
                    raise LawBroken("Pacer", f"{shard.shard_id} was sent {above:.0f} {unit} above its rate, not {most}")


def _fraction_seconds(sim: Simulation, first: float, last: float) -> float:
    """The part of a shard's rate that was ours, over a time."""
    ends = [*[since for since, _ in sim.fractions[1:]], inf]
    return sum(
        [
            fraction * max(0.0, min(last, end) - max(first, since))
            for (since, fraction), end in zip(sim.fractions, ends, strict=True)
        ]
    )


def not_stored_is_not_there(sim: Simulation, sent: Sent) -> None:
    """A row that an attempt may have stored is never told as NOT_STORED, or as returned for good."""
    for row, end in zip(sent.rows, sent.ends() or (), strict=False):
        if end is None or end.outcome is Outcome.UNKNOWN or end.maybe_stored:
            continue
        if sim.consumer.copies_of(row):
            raise LawBroken("acknowledgement", f"{row.users[0]} is acknowledged as {end}, and is in the stream")


def copies_are_counted(sim: Simulation, sent: Sent) -> None:
    """What the stream holds of a frame's rows beyond one copy of each was counted, copy by copy."""
    if sent.frame is None:
        return
    surplus = sum([max(0, sim.consumer.copies_of(row) - 1) for row in sent.rows])
    if surplus > (counted := sent.frame.possible_duplicates):
        raise LawBroken("possible_duplicates", f"a frame's rows have {surplus} surplus copies, {counted} were counted")


def copies_are_few(sim: Simulation, sent: Sent) -> None:
    """If shards split and merge and nothing else fails, each row has few copies."""
    for row in sent.rows:
        copies = sim.consumer.copies_of(row)
        as_one = len(row.users) > sim.least_request_records
        if copies > MOST_COPIES and not as_one:  # came as an aggregate, of more records than fit a request
            raise LawBroken("copies", f"{copies} copies of {row.users[0]} were stored, and nothing but shards changed")


def the_order_is_kept(sim: Simulation) -> None:
    """What a session sent of one key to one shard is first handed over in the order in which it was sent."""
    first, edges = sim.consumer.first, sim.edges()
    for session in sim.sessions:
        last: dict[tuple[bytes, int], int] = {}
        for frame in session.frames:
            for row in frame.sent.rows:
                place = first.get(row.users[0]) if row.users else None
                if place is None or row.hash is None:
                    continue
                ordered = ordered_by(edges, row.key, row.hash)
                if place < last.get(ordered, -1):
                    raise LawBroken("per_key", f"{row.users[0]} is read before one that was sent before it")
                last[ordered] = place


ZERO_WHEN_IDLE: Final = frozenset(
    [
        "used_records",
        "used_bytes",
        "_shared_bytes",
        "taken_bytes",
        "taken_records",
        "in_flight",
        "in_flight_bytes",
        "parcels",
        "queued",
        "live_buffers",
        "_waiting",
        "_unreceived_bytes",
        "_records",
        "_bytes",
    ]
)
MAY_STAY: Final = frozenset(["_members", "_sessions_of", "_streams", "_failed_sessions", "_lanes"])
"""Lanes: at most one for each open shard.  What is in all of these is looked at."""
VALUES: Final = (
    *(StreamStats, Histogram, ShardMap, PipelineRules, StreamHealth, Pacer, Shard, ShardReadings, Session, Random),
)
"""Bounded by what they are: codes, bounds, shards, settings, the last six readings."""


def _leftovers(path: str, thing: Any, seen: set[int] | None = None) -> Iterator[str]:
    """Collections that are not empty, and numbers that are not zero, in an owner's attributes and theirs."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, VALUES) or not type(thing).__module__.startswith("producerd."):
        return
    seen.add(id(thing))
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    for name in [*names, *getattr(thing, "__dict__", ())]:
        value = getattr(thing, name, None)
        where = f"{path}.{name}"
        if isinstance(value, dict | list | deque | set):
            if value and name not in MAY_STAY:
                yield f"{where} has {len(value)}"
            inside = [*value, *value.values()] if isinstance(value, dict) else [*value]
            for one in inside:
                yield from _leftovers(f"{where}[...]", one, seen)
        elif name in ZERO_WHEN_IDLE and value:
            yield f"{where} is {value}"
        else:
            yield from _leftovers(where, value, seen)
