"""Pipeline: one stream's whole producer as a state machine, from an accepted frame to its acknowledgement.

A frame joins the *filling* batch; a sealed batch becomes a *job*, whose rows are sorted into spans; spans wait in
their shard's *lane*; a *request* takes rows from a few lanes, is cut into entries, and its answer settles rows or puts
them back.  The caller of these methods carries jobs and requests to worker threads and to Kinesis, and tells the time.

    submit -> [filling] -> take_job -> [sorting] -> sorted -> [lanes] -> take_request -> [in flight] -> complete

What happens from the lanes on is the `Sender`'s; how rows end is the `Ledger`'s.
accepted = settled + filling + sorting + queued + in flight, in records and in bytes, after every step.  A row settles
exactly once.  A frame is handed out by `take_finished` exactly once, after its last row settled.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from math import inf
from random import Random
from typing import Final

from producerd.core.budget import NodeInFlight, QueueBudget
from producerd.core.encoding.entries import EncodedRequest
from producerd.core.filling import Filling, SortJob
from producerd.core.holding import Holding
from producerd.core.lanes.lanes import Lanes, ShardState
from producerd.core.ledger import RETURNED, Ledger
from producerd.core.rows.flushing import Flushing
from producerd.core.rows.frame import Frame, RowEnd
from producerd.core.rows.sorting import SortedRows
from producerd.core.rules import PipelineRules
from producerd.core.sending.answers import Answer, RequestFailed
from producerd.core.sending.requests import Request
from producerd.core.sending.sender import Sender
from producerd.core.shards.knowledge import KnownShards
from producerd.core.shards.shard_map import ShardMap
from producerd.core.stats import StreamStats
from producerd.errors import Code, Outcome

IDLE_SECONDS: Final = 600.0
_EXPIRED: Final = RowEnd(Outcome.NOT_STORED, Code.EXPIRED, "not stored within record_ttl_seconds")
_UNSORTABLE: Final = RowEnd(Outcome.NOT_STORED, Code.INTERNAL, "the daemon could not sort these rows; see its log")


class Pipeline:
    """See the module's text.  ``budget`` is shared with the gate, which takes; the pipeline releases.

    ``in_flight``: what all streams of the node have on their way, where that has a limit.
    """

    def __init__(
        self, rules: PipelineRules, budget: QueueBudget, random: Random, in_flight: NodeInFlight | None = None
    ) -> None:
        self.rules = rules
        self.budget = budget
        self.stats = StreamStats()
        self.ledger = Ledger(budget, self.stats, keeps_order=rules.entries.per_key)
        self.known = KnownShards(random, aggregates=rules.entries.aggregate)
        self.sender = Sender(rules, self.ledger, self.known, random, in_flight)
        self.health = self.sender.health
        self.cannot_aggregate = ""  # why not, where the stream's shards do not follow the keys
        self._random = random
        self._idle_since: float | None = None  # as far as `forget_shards` has seen
        self._filling = Filling(budget, self.stats)

    def __repr__(self) -> str:
        places = ", ".join([f"{rows} {place}" for place, rows in self.census().items() if rows])
        return f"<Pipeline, {self.health.state.value}: {places or 'no rows'}>"

    # ---- questions

    @property
    def queued_records(self) -> int:
        """Rows accepted and not settled."""
        return sum(frame.unsettled for frame in self.ledger.frames)

    @property
    def requests_in_flight(self) -> int:
        return len(self.sender.in_flight)

    @property
    def in_flight_bytes(self) -> int:
        return self.sender.in_flight.bytes

    @property
    def held_by_node(self) -> bool:
        """Whether it has rows to send when another stream's request ends: what all have on their way leaves no room."""
        return self.sender.held_by_node

    @property
    def paused(self) -> bool:
        return self.sender.paused

    @property
    def idle(self) -> bool:
        return not self.ledger.frames

    @property
    def in_outage(self) -> bool:
        """Whether rows wait and nothing of the service's answers gets through, be it requests or the first map."""
        waits_for_map = self.rules.entries.aggregate and self.shard_map is None and not self.goes_plain
        return not self.idle and (self.sender.in_flight.nothing_passes or (waits_for_map and bool(self.map_error)))

    @property
    def shard_map(self) -> ShardMap | None:
        return self.known.map

    @property
    def wants_shard_map(self) -> bool:
        return self.known.wanted

    @property
    def awaits_map(self) -> bool:
        """Whether rows wait for a newer list of the shards, or go plain until it comes: then it is read again soon."""
        return self.rules.entries.aggregate and self.wants_shard_map and not self.idle

    @property
    def goes_plain(self) -> bool:
        """Whether rows to be aggregated go as plain records, at one shard's pace, for lack of a list of the shards."""
        return self.known.goes_plain

    def refuses(self, now: float, *, patient: bool = False, probes: bool = True, owner: object = None) -> RowEnd | None:
        """Why a caller's frame is not to be taken on now, or None.  Asked once for each frame: it spends the probe.

        ``patient``: as for `Frame`.  Without ``probes`` it may be asked at any time, and spends nothing.  Nor does
        ``owner``, a session, where none of its rows would be sent: such a probe would tell nothing of the service.
        """
        if self._cannot_sort(now):
            return self._map_missing_end()
        if not self.health.admits(now, patient=patient, probes=probes and not self.ledger.has_failed(owner)):
            return self.health.end
        return None

    def next_time(self) -> float | None:
        """When something is due that no other call will bring about."""
        filling = self._filling
        lingers_until = filling.linger_ends_at(self.rules.linger_seconds)
        due = min(self.sender.next_time(), self.ledger.next_expiry(), lingers_until)
        if filling.has_batch or filling.has_only_by_map:
            due = min(due, self.known.next_time(of_refusal=not filling.has_batch))
        return due if due < inf else None

    def census(self) -> dict[str, int]:
        """How many rows there are in each place.  Together they are `queued_records`; looks at every row."""
        return {
            "filling": self._filling.rows,
            "sorting": sum([frame.unsettled for frame in self.ledger.sorting]),
            **self.sender.census(),
        }

    def oldest_seconds(self, now: float) -> float:
        """How long ago the oldest frame was accepted that has rows left; 0 where there is none."""
        return now - next(iter(self.ledger.frames)).accepted_at if self.ledger.frames else 0.0

    def holding(self, now: float) -> Holding:
        """What holds the queue.  Looks at every span: ask it seldom."""
        waits = self._filling.has_batch and self.known.waits(now)
        holding = self.sender.holding(now)
        if (waits or self.goes_plain) and holding.cause not in ("paused", "service", "in_flight"):
            return Holding("shard_map")
        return holding

    @property
    def map_error(self) -> str:
        """Why the last reading of the shards failed, or ""."""
        return self.known.error

    @property
    def lanes(self) -> Lanes:
        """What waits, by shard; to be looked at only."""
        return self.sender.lanes

    def shards(self, now: float) -> list[ShardState]:
        """What is to be known of each open shard; empty while they are not known.  Looks at every span."""
        return list(self.lanes.states(now)) if self.shard_map is not None else []

    # ---- the operator

    def set_rules(self, rules: PipelineRules, now: float) -> None:
        """Other rules, from now on; nothing is dropped.

        Rows accepted before keep their time-to-live, a request its time-out, what waits for a map its patience.
        """
        new, old = rules.entries, self.rules.entries
        if (new.aggregate, new.per_key) != (old.aggregate, old.per_key):
            raise AssertionError("rows that wait were made for these")
        self.rules = rules
        self.sender.set_rules(rules, now)

    def pause(self) -> None:
        """Start no request until `resume`, or until the daemon stops.  What is on its way ends as always."""
        if not self.ledger.draining:
            self.sender.pause()

    def resume(self) -> None:
        self.sender.resume()

    # ---- frames come in

    def submit(self, frame: Frame, now: float) -> None:
        """Accept a whole frame, granted by the gate.  Rows that ended already (bad ones) are not accepted."""
        self._idle_since = None
        self.ledger.accept(frame, now, self.rules.record_ttl_seconds)
        if self.shard_map is None:
            self.known.want()
        if frame.withdrawn_from == 0:
            return
        self._filling.add(frame, now, len(self.sender.lanes.map) * self.rules.entries.aggregate_max_bytes)

    def refused(self, owner: object) -> None:
        """A frame of this owner was not accepted, for its bad rows: with ``per_key`` none of its later rows is."""
        self.ledger.fail_session(owner)

    def flush(self, owner: object) -> None:
        """Send what an owner has in the filling batch without lingering."""
        self._filling.seal_of((owner,), "flush")

    def flush_all(self, done: Callable[[], object]) -> Flushing:
        """Send what was accepted until now without lingering; ``done`` is called when the last row of it has ended."""
        self._filling.seal("flush")
        flushing = Flushing(self.ledger.frames, done)
        self.ledger.flushings.add(flushing)
        return flushing

    def press(self, now: float, owners: Container[object] | None = None) -> bool:
        """A caller waits for room: seal, unless work that may be sent waits already (crumbs gain nothing then).

        ``owners``: nobody but these waits, for what they sent.  Returns whether it did.
        """
        if self._filling.has_batch or self.ledger.sorting or self.sender.have_work(now):
            return False
        if owners is not None:
            return self._filling.seal_of(owners, "pressure")
        return self._filling.seal("pressure")

    def discard(self, owner: object) -> None:
        """An owner is gone and wants nothing more: its rows that are in no request end now."""
        self.ledger.forget_session(owner)
        for frame in [frame for frame in self.ledger.frames if frame.owner is owner]:
            frame.disown()
            self.ledger.withdraw(frame, None, "disconnected")
        self._filling.drop_ended()

    def disown(self, owner: object) -> None:
        """An owner is gone, and its rows are still to be delivered."""
        self.ledger.forget_session(owner)
        for frame in self.ledger.frames:
            if frame.owner is owner:
                frame.disown()

    def hasten(self) -> None:
        """The queue is to be emptied: from now on nothing lingers, neither what is accepted later."""
        self._filling.hasten()

    def drain(self) -> None:
        """The daemon stops: rows with an owner that are in no request go back to it; the others are still sent."""
        self.ledger.drain()
        self.sender.resume()
        for frame in [frame for frame in self.ledger.frames if frame.owner is not None]:
            self.ledger.withdraw(frame, RETURNED, "returned")
        self._filling.seal("drain")

    def abandon(self) -> int:
        """The deadline: nothing in flight is left, every other row ends.  Returns how many had no caller to go to."""
        self.ledger.drain()
        orphans = 0
        for frame in list(self.ledger.frames):
            if frame.owner is None and frame.withdrawn_from != 0:
                orphans += frame.unsettled
            self.ledger.withdraw(frame, RETURNED, "returned" if frame.owner is not None else "abandoned")
        return orphans

    def take_finished(self) -> list[Frame]:
        """Frames whose last row settled and whose owner is still there, each once."""
        return self.ledger.take_finished()

    # ---- jobs

    def take_job(self, now: float) -> SortJob | None:
        """The next batch to sort, if there is one and it can be sorted now."""
        filling = self._filling
        if now >= filling.linger_ends_at(self.rules.linger_seconds):
            filling.seal("linger")
        if filling.has_only_by_map and self._cannot_sort(now):
            self._refuse_unsorted()
        filling.skip_ended()
        if not filling.has_batch or (shard_map := self._map_for_sorting(now)) is None:
            return None
        if not (frames := filling.next_batch(plain=self.goes_plain)):
            return None
        self.ledger.sort(frames)
        return filling.begin(frames, shard_map, self._random.getrandbits(63))

    def sorted(self, job: SortJob, results: Sequence[tuple[Sequence[Frame], SortedRows | None]]) -> None:
        """A job is sorted, as a whole or in parts; None for one that could not be.  Lanes get jobs in their order."""
        for ended in self._filling.end(job, results):
            for frames, rows in ended.results or ():
                if rows is not None:
                    self.ledger.sorted(rows.job)
                    self.sender.lanes.append(ended.shard_map, rows.spans)
                else:
                    for frame in frames:
                        self.ledger.unsortable(frame, _UNSORTABLE)

    # ---- requests

    def take_request(self, now: float) -> Request | None:
        """Rows for one request, if there are any that may be sent now."""
        self.ledger.expire(now, _EXPIRED)
        return self.sender.take_request(now)

    def encoded(self, request: Request, encoded: EncodedRequest, now: float) -> None:
        """A request was cut into entries; rows that did not fit go back to the front of their lanes."""
        self.sender.encoded(request, encoded, now)

    def complete(self, request: Request, outcome: Answer | RequestFailed, now: float) -> None:
        """A request's end: settles its rows, or puts them back."""
        self.sender.complete(request, outcome, now)

    # ---- the shard map

    def set_shard_map(self, shard_map: ShardMap, now: float, asked_at: float | None = None) -> None:
        """A new map; what it says held after ``asked_at``, when the reading began."""
        self._filling.map_came()
        self.stats.shard_map_refreshes["ok"] += 1
        self.sender.set_shard_map(shard_map, now, now if asked_at is None else asked_at)

    def shard_map_failed(self, code: str, message: str, now: float, *, wrong_endpoint: bool = False) -> None:
        """ListShards failed.  ``wrong_endpoint``: as for `RequestFailed`."""
        self.stats.shard_map_refreshes["failed"] += 1
        self.sender.shard_map_failed(code, message, now, wrong_endpoint=wrong_endpoint)

    def set_cannot_aggregate(self, reason: str) -> None:
        """Why the stream's rows must not be aggregated, as its shards do not follow the keys; "" where they may be."""
        self.cannot_aggregate = reason

    def next_reading(self) -> float:
        """Return when the list of the shards is to be read; ``inf`` where nothing needs it."""
        return self.known.next_reading(awaited=self.awaits_map)

    def reading_began(self, now: float) -> None:
        """The list of the shards is being read."""
        self.known.reading_began(now, awaited=self.awaits_map)

    def service_answered(self, now: float) -> None:
        """The service answered a call about this stream, whatever it said."""
        self.known.service_answered(now)

    def forget_shards(self, now: float) -> bool:
        """Asked now and then: once nothing came for long, the map and the lanes go; says whether they did."""
        if not self.idle or self.ledger.sorting:
            return False
        if self._idle_since is None:
            self._idle_since = now
        if now < self._idle_since + IDLE_SECONDS:
            return False
        self.sender.forget_shards()
        return True

    def _map_for_sorting(self, now: float) -> ShardMap | None:
        if self.shard_map is not None:
            return self.shard_map
        shard_map = self.known.for_sorting(now, self.rules.shard_map_wait_seconds)
        if self._cannot_sort(now):
            self._refuse_unsorted()
            return None
        if shard_map is not None and self.rules.entries.aggregate:
            self.known.go_plain()
            self.sender.go_plain()
        return shard_map

    def _cannot_sort(self, now: float) -> bool:
        """Whether rows are refused: shards do not follow the keys, or nobody may read their list."""
        return self.known.is_denied(now) or (self.rules.entries.aggregate and bool(self.cannot_aggregate))

    def _refuse_unsorted(self) -> None:
        """Rows that need the list end.  Those that went plain before are sent, unless shards do not follow the keys."""
        self.ledger.withdraw_all(self._map_missing_end(), unsorted=not self.cannot_aggregate)
        self._filling.drop_ended()

    def _map_missing_end(self) -> RowEnd:
        return RowEnd(
            Outcome.NOT_STORED,
            Code.SHARD_MAP_MISSING,
            self.cannot_aggregate
            or f'aggregation = "kpl" needs the stream\'s shards, and ListShards is denied ({self.map_error}); '
            'allow kinesis:ListShards, or set aggregation = "none"',
        )
