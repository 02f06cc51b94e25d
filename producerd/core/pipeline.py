"""Pipeline: one stream's whole producer as a state machine, from an accepted frame to its acknowledgement.

A frame joins the *filling* batch.  A sealed batch becomes a *job*, whose rows are sorted into spans.  Spans wait in
their shard's *lane*.  A *request* takes rows from a few lanes and is cut into entries.  Its answer settles the rows or
puts them back.  The caller of these methods carries jobs to worker threads and requests to Kinesis, and passes the
time.

    submit -> [filling] -> take_job -> [sorting] -> sorted -> [lanes] -> take_request -> [in flight] -> complete

The `Sender` handles rows from the lanes on, and the `Ledger` records how they end.  After every step, in records and in
bytes, accepted = settled + filling + sorting + queued + in flight.  A row settles exactly once.  `take_finished`
returns a frame exactly once, after its last row settled.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from math import inf
from random import Random
from typing import Final

from producerd.core.budget import NodeInFlight, QueueBudget
from producerd.core.diagnosis import Diagnosis
from producerd.core.encoding.entries import EncodedRequest
from producerd.core.encoding.formats import Format
from producerd.core.filling import Filling, SortJob
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
    """One stream's producer.  It settles each accepted row once, and returns each finished frame once.

    ``budget`` is shared with the gate: the gate charges it, and the pipeline releases it.  ``in_flight`` counts what
    all streams of the node have in flight, if that has a limit.
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
        self.cannot_aggregate = ""  # the reason, if the stream's shards do not follow the keys
        self._random = random
        self._idle_since: float | None = None  # as `forget_shards` last saw it
        self._filling = Filling(budget, self.stats)
        self.diagnosis = Diagnosis(self.sender, self._filling)

    def __repr__(self) -> str:
        places = ", ".join([f"{rows} {place}" for place, rows in self.diagnosis.census().items() if rows])
        return f"<Pipeline, {self.health.state.value}: {places or 'no rows'}>"

    # ---- questions

    @property
    def queued_records(self) -> int:
        """Number of rows that were accepted and have not settled."""
        return sum(frame.unsettled for frame in self.ledger.frames)

    @property
    def held_by_node(self) -> bool:
        """Whether it has rows to send, but requests of all streams use up the node's limit until one of them ends."""
        return self.sender.held_by_node

    @property
    def paused(self) -> bool:
        return self.sender.paused

    @property
    def idle(self) -> bool:
        return not self.ledger.frames

    @property
    def lingers(self) -> bool:
        """Whether accepted rows linger, which `press` may end."""
        return self._filling.lingers

    @property
    def shard_map(self) -> ShardMap | None:
        return self.known.map

    @property
    def wants_shard_map(self) -> bool:
        return self.known.wanted

    @property
    def awaits_map(self) -> bool:
        """Whether rows wait for a newer list of the shards, or go plain until it comes.

        The list is then read again soon.
        """
        return self.rules.entries.aggregate and self.wants_shard_map and not self.idle

    @property
    def goes_plain(self) -> bool:
        """Whether rows to be aggregated go as plain records, at one shard's pace, because the shards are unknown."""
        return self.known.goes_plain

    def refuses(self, now: float, *, patient: bool = False, probes: bool = True, owner: object = None) -> RowEnd | None:
        """Return why a caller's frame must be refused, or None.

        Call it once for each frame, because it may spend a probe.  ``patient``: as for `Frame`.  Without ``probes`` the
        call spends nothing and may be made at any time.  A session ``owner`` whose rows would all fail spends nothing
        either, because no row of its frame would reach Kinesis.
        """
        if (end := self.map_missing(now)) is not None:
            return end
        if not self.health.admits(now, patient=patient, probes=probes and not self.ledger.has_failed(owner)):
            return self.health.row_end
        return None

    def map_missing(self, now: float) -> RowEnd | None:
        """Return how rows end that need the list of shards, while they are refused, or None."""
        return self._map_missing_end() if self._cannot_sort(now) else None

    def next_time(self) -> float | None:
        """Return when something is due that no other call will cause, or None."""
        filling = self._filling
        lingers_until = filling.linger_ends_at(self.rules.linger_seconds)
        due = min(self.sender.next_time(), self.ledger.next_expiry(), lingers_until)
        if filling.has_batch or filling.has_only_by_map:
            due = min(due, self.known.next_time(of_refusal=not filling.has_batch))
        return due if due < inf else None

    # ---- the operator

    def set_rules(self, rules: PipelineRules, now: float) -> None:
        """Follow new rules from now on.  No row is dropped.

        Rows accepted before keep their time-to-live, requests keep their time-outs, and rows that wait for a map keep
        their end.
        """
        new, old = rules.entries, self.rules.entries
        if (new.aggregate, new.per_key) != (old.aggregate, old.per_key):
            raise AssertionError("rows that wait were made for these")
        self.rules = rules
        self.sender.set_rules(rules, now)

    def pause(self) -> None:
        """Start no request until `resume`, or until the daemon stops.  Requests in flight end as usual."""
        if not self.ledger.draining:
            self.sender.pause()

    def resume(self) -> None:
        self.sender.resume()

    # ---- frames come in

    def submit(self, frame: Frame, now: float) -> None:
        """Accept a whole frame that the gate has granted.  Bad rows, which have ended already, are not accepted."""
        self._idle_since = None
        self.ledger.accept_frame(frame, now, self.rules.record_ttl_seconds)
        if self.shard_map is None:
            self.known.want()
        if frame.withdrawn_from == 0:
            return
        self._filling.add_frame(frame, now, len(self.sender.lanes.map) * self.rules.entries.aggregate_max_bytes)

    def frame_refused(self, owner: object) -> None:
        """Note that a frame of this owner was refused for its bad rows.  With ``per_key`` its later rows fail, too."""
        self.ledger.fail_session(owner)

    def flush(self, owner: object) -> None:
        """Send an owner's rows in the filling batch without lingering."""
        self._filling.seal_of((owner,), "flush")

    def flush_all(self, done: Callable[[], object]) -> Flushing:
        """Send every row accepted until now without lingering.  Call ``done`` when the last of them has ended."""
        self._filling.seal("flush")
        flushing = Flushing(self.ledger.frames, done)
        self.ledger.flushings.add(flushing)
        return flushing

    def press(self, now: float, owners: Container[object] | None = None) -> bool:
        """Seal the filling batch because a caller waits, unless rows that may be sent wait already.

        Return whether it did.  Small batches gain nothing while other rows wait.  With ``owners``, only these wait, and
        for their own rows.
        """
        if self._filling.has_batch or self.ledger.sorting or self.sender.have_work(now):
            return False
        if owners is not None:
            return self._filling.seal_of(owners, "pressure")
        return self._filling.seal("pressure")

    def discard(self, owner: object) -> None:
        """End the rows of an owner that has gone and wants nothing delivered, except those in a request."""
        self.ledger.forget_session(owner)
        for frame in [frame for frame in self.ledger.frames if frame.owner is owner]:
            frame.disown()
            self.ledger.withdraw(frame, None)
        self._filling.drop_ended()

    def disown(self, owner: object) -> None:
        """Keep delivering the rows of an owner that has gone."""
        self.ledger.forget_session(owner)
        for frame in self.ledger.frames:
            if frame.owner is owner:
                frame.disown()

    def hasten(self) -> None:
        """Let nothing linger from now on, so that the queue empties.  This includes frames accepted later."""
        self._filling.hasten()

    def return_rows(self) -> None:
        """Return to their owners the rows that are in no request, because the daemon stops.

        Send rows without an owner.
        """
        self.ledger.return_new_frames()
        self.sender.resume()
        for frame in [frame for frame in self.ledger.frames if frame.owner is not None]:
            self.ledger.withdraw(frame, RETURNED)
        self._filling.seal("drain")

    def abandon(self) -> None:
        """End every row at the deadline, when nothing is in flight.  A row that has no caller to return to is lost."""
        self.ledger.return_new_frames()
        for frame in list(self.ledger.frames):
            self.ledger.withdraw(frame, RETURNED)

    def take_finished(self) -> list[Frame]:
        """Return the frames whose last row has settled and whose owner is still connected, each frame once."""
        return self.ledger.take_finished()

    # ---- jobs

    def take_job(self, now: float) -> SortJob | None:
        """Return the next batch to sort, or None if none can be sorted now."""
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
        return filling.begin_sorting(frames, shard_map, self._random.getrandbits(63))

    def sorted(self, job: SortJob, results: Sequence[tuple[Sequence[Frame], SortedRows | None]]) -> None:
        """Take a sorted job, whole or in parts.  Lanes get jobs in their order.

        A part that could not be sorted is None.
        """
        for ended in self._filling.sorting_ended(job, results):
            for frames, rows in ended.results or ():
                if rows is not None:
                    self.ledger.sorted(rows.job)
                    self.sender.lanes.append(ended.shard_map, rows.spans)
                else:
                    for frame in frames:
                        self.ledger.unsortable(frame, _UNSORTABLE)

    # ---- requests

    def take_request(self, now: float) -> Request | None:
        """Take rows for one request, or return None if no row may be sent now."""
        self.ledger.expire(now, _EXPIRED)
        return self.sender.take_request(now)

    def format_of(self, request: Request, *, is_aws: bool) -> Format:
        """Return the format in which to encode a request.  ``is_aws``: the endpoint is AWS's own."""
        return self.sender.format.choose(request.refused, is_aws=is_aws)

    def encoded(self, request: Request, encoded: EncodedRequest, now: float) -> None:
        """Note that a request is cut into entries.  Rows that did not fit return to the front of their lanes."""
        self.sender.encoded(request, encoded, now)

    def complete(self, request: Request, outcome: Answer | RequestFailed, now: float) -> list[Request]:
        """End a request: settle its rows, or put them back.  Returns the requests whose time-outs it cut."""
        return self.sender.complete(request, outcome, now)

    # ---- the shard map

    def set_shard_map(self, shard_map: ShardMap, now: float, asked_at: float | None = None) -> None:
        """Use a new map.  ``asked_at``: when its reading began."""
        self._filling.map_came()
        self.stats.shard_map_refreshes["ok"] += 1
        self.sender.set_shard_map(shard_map, now, now if asked_at is None else asked_at)

    def shard_map_failed(
        self, code: str, message: str, now: float, *, wrong_endpoint: bool = False, request_id: str = ""
    ) -> None:
        """Note that ListShards failed.  ``wrong_endpoint`` and ``request_id``: as for `RequestFailed`."""
        self.stats.shard_map_refreshes["failed"] += 1
        self.sender.shard_map_failed(code, message, now, wrong_endpoint=wrong_endpoint, request_id=request_id)

    @property
    def record_limit_bytes(self) -> int:
        """The stream's limit on a record, as the summary or a stored record last showed it."""
        return self.sender.lanes.record_limit_bytes

    def set_record_limit(self, limit_bytes: int) -> None:
        """Note the stream's limit on a record.  A larger row goes to Kinesis by itself, which judges it."""
        self.sender.lanes.set_record_limit(limit_bytes)

    def set_cannot_aggregate(self, reason: str) -> None:
        """Set the reason why the stream's rows must not be aggregated, or "" if they may be."""
        self.cannot_aggregate = reason

    def next_reading(self) -> float:
        """Return when to read the list of the shards, or ``inf`` if nothing needs it."""
        return self.known.next_reading(awaited=self.awaits_map)

    def reading_began(self, now: float) -> None:
        """Note that a reading of the shards has begun."""
        self.known.reading_began(now, awaited=self.awaits_map)

    def service_answered(self, now: float) -> None:
        """Note that the service answered a call about this stream, with success or failure."""
        self.known.service_answered(now)

    def forget_shards(self, now: float) -> bool:
        """Forget the map and the lanes if no row came for a long time.  Return whether it did.

        Call it now and then.
        """
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
            self.sender.go_plain()
        return shard_map

    def _cannot_sort(self, now: float) -> bool:
        """Return whether rows are refused because shards do not follow the keys, or because ListShards is denied."""
        return self.known.is_denied(now) or (self.rules.entries.aggregate and bool(self.cannot_aggregate))

    def _refuse_unsorted(self) -> None:
        """End the rows that need the list.

        Rows that went plain before are sent, unless shards do not follow the keys.
        """
        self.ledger.withdraw_all(self._map_missing_end(), unsorted=not self.cannot_aggregate)
        self._filling.drop_ended()

    def _map_missing_end(self) -> RowEnd:
        return RowEnd(
            Outcome.NOT_STORED,
            Code.SHARD_MAP_MISSING,
            self.cannot_aggregate
            or f'aggregation = "kpl" needs the stream\'s shards, and ListShards is denied ({self.known.error}); '
            'allow kinesis:ListShards, or set aggregation = "none"',
        )
