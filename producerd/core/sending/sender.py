"""The sender of one stream: it makes requests of the rows in the lanes, and completes them.

    lanes -> take_request -> [in flight] -> complete -> settled, or back

Every request that is taken is completed once, and then each of its rows has settled or waits again.  What an answer
means for the rows is decided by `Verdicts`, with `Refusals` and `Strays`.  Rows that wait outside of the lanes are in
`Aside`, or with `Strays`.
"""

from __future__ import annotations

from math import inf
from random import Random

from producerd.core.budget import NodeInFlight
from producerd.core.encoding.entries import EncodedRequest
from producerd.core.failures import CREDENTIALS_LATE, OF_THE_DAEMON, Kind, meaning_of
from producerd.core.lanes.lane import Piece, lanes_of
from producerd.core.lanes.lanes import Lanes, as_raw
from producerd.core.lanes.pacing import Pacer
from producerd.core.lanes.taken import Taken
from producerd.core.ledger import Ledger
from producerd.core.rules import PipelineRules
from producerd.core.sending.answers import Answer, RequestFailed
from producerd.core.sending.aside import Alone, Aside, live_of
from producerd.core.sending.backoff import RetryPolicy
from producerd.core.sending.body_limit import BodyLimit
from producerd.core.sending.format_choice import FormatChoice
from producerd.core.sending.health import HealthState, StreamHealth
from producerd.core.sending.in_flight import InFlight
from producerd.core.sending.refusals import Refusals
from producerd.core.sending.requests import Request, begin, first_of
from producerd.core.sending.strays import Strays
from producerd.core.sending.verdicts import Verdicts
from producerd.core.shards.knowledge import KnownShards
from producerd.core.shards.shard_map import ONE_LANE, ShardMap
from producerd.errors import Code


class Sender:
    """Decides which rows go next, in lanes or in a request of their own, and whether a request may be sent now."""

    def __init__(
        self,
        rules: PipelineRules,
        ledger: Ledger,
        known: KnownShards,
        random: Random,
        node: NodeInFlight | None = None,
    ) -> None:
        self.rules = rules
        self.paused = False
        self.ledger = ledger
        self.stats = ledger.stats
        self.health = StreamHealth(rules.permanent_error_grace_seconds, random, rules.first_contact_timeout_seconds)
        self.known = known
        self.lanes = Lanes(rules.entries, lambda: Pacer(self.rules.shard_rate_fraction))
        self._policy = RetryPolicy(random, rules.request_timeout_seconds)
        self.in_flight = InFlight(rules, self._policy, node)
        self.format = FormatChoice(rules.wire_format)
        self.body_limit = BodyLimit()
        per_key = rules.entries.per_key
        self.aside = Aside(self.lanes, ledger, self.health, self._policy, per_key=per_key)
        self.strays = Strays(rules, ledger, known, self.lanes, self.aside)
        self._refusals = Refusals(
            ledger, known, self.health, self.in_flight, self.body_limit, self.aside, per_key=per_key
        )
        self._verdicts = Verdicts(
            rules,
            ledger,
            known,
            self.health,
            self.lanes,
            self.in_flight,
            self._policy,
            self.format,
            self.body_limit,
            self.aside,
            self.strays,
            self._refusals,
        )
        self._lanes_next = False  # the last request had rows that were refused, so that other rows have their turn

    # ---- questions

    def have_work(self, now: float) -> bool:
        """Return whether the lanes have rows that may be sent now.  Ignores the limits on requests in flight."""
        return self.aside.has_alone or self.lanes.have_work(now)

    def next_time(self) -> float:
        """Return when something is due that no other call will cause, or ``inf`` if nothing is."""
        due = min(self.in_flight.next_time(), inf if self.paused else self.health.gives_up_at)
        sends_at = hold_until = self.in_flight.hold_until
        if not (hold_until and (self.lanes.waiting or self.aside.has_alone)):
            sends_at = max(self.lanes.next_time(), hold_until)
        # Without room an answer, or the operator, brings it about; a time that has passed would hide what is due later.
        if sends_at < due and self.has_room:
            due = sends_at
        if not self._lets_wait:
            due = min(due, self.aside.due)
        return min(due, self.strays.next_time)

    @property
    def held_by_node(self) -> bool:
        """Whether it has rows to send and the requests of all streams leave no room until one of them ends."""
        return (self.lanes.waiting or self.aside.has_alone) and self.in_flight.held_by_node

    @property
    def rows_refused_as(self) -> str:
        """The code under which rows are refused without being judged, while no other is stored; otherwise ""."""
        return self._refusals.rows_refused_as

    @property
    def has_room(self) -> bool:
        """Whether one more request may be in flight, unless failures hold the stream."""
        if self.paused:
            return False
        for_one = self.health.state is HealthState.SUSPECT
        return self.in_flight.has_room(for_one=for_one, row_bytes=self.aside.row_bytes)

    # ---- requests

    def take_request(self, now: float) -> Request | None:
        """Take rows for one request and start it.  Returns None if no row may be sent now."""
        if not self.paused and self.health.gives_up(now):
            self.ledger.withdraw_all(self.health.row_end)
        self._bring_back(now)
        self.body_limit.try_larger(now)
        if not self.in_flight.may_send(now):
            return None
        while (request := self._take(now)) is None and self._may_bring_back(now):
            self._bring_back(now)
        return request

    def _take(self, now: float) -> Request | None:
        """Start a request of rows that wait in lanes, or for a request of their own."""
        if not (self.lanes.waiting or self.aside.has_alone or self.lanes.next_time() <= now):
            return None  # as nearly always: each frame, request and answer has the daemon look here
        while self.has_room:
            in_flight = self.in_flight
            alone = self.aside.next_alone()
            if alone is None or ((self._refusals.refuse_all or self._lanes_next) and self.lanes.have_work(now)):
                self._lanes_next = False
                taken = self.lanes.take_for_request(
                    now,
                    in_flight.bytes_left,
                    request_bytes=min(in_flight.request_bytes, self.body_limit.bytes),
                    takes_slow=in_flight.takes_slow,
                    passes_larger=in_flight.waits_with_larger,
                )
                if taken is not None or alone is None:
                    return self._start(taken) if taken is not None else None
            if (request := self._take_alone(alone, now)) is not None:
                return request
        return None

    def _take_alone(self, alone: Alone, now: float) -> Request | None:
        """Start a request of rows that wait for one of their own, unless all of them have ended meanwhile."""
        self.aside.remove(alone)
        most_bytes = min(self.in_flight.request_bytes, self.body_limit.bytes)
        first, others = first_of(self.lanes.renewed(live_of(alone.pieces)), most_bytes)
        self.lanes.put_back(others)
        # What a part of the rows shows is not shown for all of them.
        request = self._start(self._taken_of(first, now), None if others else alone.refused) if first else None
        self._lanes_next = bool(alone.pieces[0].span.refused_at)
        self.lanes.released(lanes_of(alone.pieces))
        if not first:
            self.aside.let_go(self.aside.no_longer_apart(alone.pieces))
        return request

    def _taken_of(self, pieces: list[Piece], now: float) -> Taken:
        """Take exactly these rows, which may be more than their lanes' pace allows."""
        taken = Taken()
        for lane in lanes_of(pieces):
            spans = [piece.span for piece in pieces if piece.lane is lane]
            spans = as_raw(spans) if lane.nameless else spans
            bytes_, entries = sum([span.bytes for span in spans]), sum([span.records for span in spans])
            aggregate_bytes = 0
            if self.rules.entries.aggregate and not spans[0].raw:
                aggregate_bytes = self.rules.entries.aggregate_max_bytes
                entries = min(entries, bytes_ // aggregate_bytes + 1)
            taken.add_rows(lane, spans, bytes_, entries, aggregate_bytes)
            taken.pay(lane, entries, bytes_, now)
        return taken

    def _start(self, taken: Taken, refused: RequestFailed | None = None) -> Request:
        begin(taken.pieces)
        request = Request(taken, self.lanes.map, refused)
        self.in_flight.add_request(request)
        return request

    def encoded(self, request: Request, encoded: EncodedRequest, now: float) -> None:
        """Note that a request is cut into entries.  Rows that did not fit return to the front of their lanes."""
        request.mark_sent(encoded, now, self._policy.timeout(len(encoded.body), request.timeouts))
        self.in_flight.request_sent(request)
        for lane, sent in zip(request.lanes, encoded.of_lanes(len(request.lanes)), strict=True):
            entries, bytes_ = request.paid.get(lane, sent)
            lane.refund(entries - sent[0], bytes_ - sent[1])
        written = int(encoded.ends[-1])
        if written == request.records:
            return
        before = request.lanes
        back = request.keep(written)
        left_out = before[len(request.lanes) :]
        for lane in left_out:
            lane.request_left()
        self.aside.requeue(back)
        self.lanes.released(left_out)

    def complete(self, request: Request, outcome: Answer | RequestFailed, now: float) -> list[Request]:
        """End a request: settle its rows, or let them wait again.  Returns the requests whose time-outs it cut."""
        nothing_passed = self.in_flight.nothing_passes
        apart = self.aside.no_longer_apart(request.pieces)
        self.in_flight.remove_request(request)
        encoded = request.encoded
        if encoded is not None:
            seconds, split = now - request.sent_at, bool(encoded.fragments)
            self.stats.request_ended(len(encoded.body), encoded.ends, seconds, split=split)
        if isinstance(outcome, RequestFailed):
            self._refusals.tried(outcome, now)
            self._verdicts.on_failure(request, outcome, now)
        else:
            self._verdicts.on_answer(request, outcome, now)
        self.known.request_ended(request)
        self.lanes.released(request.lanes)
        self.aside.let_go(apart)
        if self.aside.due < inf:
            self._bring_back(now)
        recovers = nothing_passed and not self.in_flight.nothing_passes
        return self.in_flight.overtaken(request.sent_at) if recovers else []

    # ---- rows that wait outside of the lanes

    @property
    def _lets_wait(self) -> bool:
        """Whether rows whose delay is over wait until all others were tried: one request at a time is enough."""
        return self._refusals.refuse_all and (self.lanes.waiting or self.aside.has_alone)

    def _may_bring_back(self, now: float) -> bool:
        return self.aside.due <= now and not self._lets_wait

    def _bring_back(self, now: float) -> None:
        """Return rows whose wait is over to their lanes."""
        if slow := self.in_flight.find_slow(now):
            self.lanes.released(slow)
        while self._may_bring_back(now):
            self.aside.bring_back(now)
        if self.strays.next_time <= now:
            self.strays.decide_all(now)

    # ---- the shard map

    def set_shard_map(self, shard_map: ShardMap, now: float, asked_at: float) -> None:
        """Use a new map, whose reading began at ``asked_at``.  Rows of shards that it does not have are sorted again.

        Rows that waited for a map go on.  A stream that was deleted and made again has the same shard ids with other
        ranges, and the daemon treats these as other shards.
        """
        self.health.tried(None, now)
        was_blind = self.known.is_blind
        self.known.learn_map(shard_map, now, asked_at=asked_at, in_flight=self.in_flight)
        self.lanes.follow_map(shard_map)
        if was_blind:
            self.lanes.map_came()
        self.strays.decide_all(now)
        if self.strays.next_time < inf or any(lane.map_until is not None for lane in self.lanes):
            self.known.want()

    def shard_map_failed(
        self, code: str, message: str, now: float, *, wrong_endpoint: bool = False, request_id: str = ""
    ) -> None:
        """Note that ListShards failed.  If the stream does not exist or the credentials fail, the stream itself fails.

        If no row waits and no map was known, the stream's health stays as it is, and the next row has the list read
        again.
        """
        self._refusals.tried(RequestFailed(code, message, maybe_stored=False, wrong_endpoint=wrong_endpoint), now)
        meaning = meaning_of(code)
        unreadable = self.known.map is None and meaning.code in OF_THE_DAEMON and meaning.kind is Kind.PERMANENT
        concerns_stream = meaning.code == Code.STREAM_NOT_FOUND or unreadable
        if concerns_stream and (self.ledger.frames or self.known.map is not None):
            self._refusals.of_stream(meaning.code, message, now, request_id, at_once=code != CREDENTIALS_LATE)
        was_doubted = self.known.doubted
        wait_seconds = self.rules.shard_map_wait_seconds
        self.known.not_read(code, message, now, wait_seconds, concerns_stream=concerns_stream)
        if was_doubted and not self.known.doubted:
            self.strays.decide_all(now)

    def go_plain(self) -> None:
        """Send rows through one lane as plain records until a list of the shards comes, because none came in time."""
        self.known.go_plain()
        self.lanes.follow_map(ONE_LANE)

    def forget_shards(self) -> None:
        """Forget the map and the lanes of an idle stream.  The map is read again when rows need it."""
        if self.in_flight:
            raise AssertionError("requests are in flight whose answers name these shards")
        self.known.rest()
        self.lanes.forget_all()

    # ---- the operator

    def set_rules(self, rules: PipelineRules, now: float) -> None:
        """Follow new rules from now on.  Requests keep their time-outs, and the stream's health its times."""
        self.rules = rules
        self._policy.set_timeout(rules.request_timeout_seconds)
        self.in_flight.set_rules(rules)
        self.lanes.set_rules(rules.entries, rules.shard_rate_fraction, now)
        self.strays.set_rules(rules)
        self._verdicts.set_rules(rules)

    def pause(self) -> None:
        """Start no request until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Start requests again."""
        self.paused = False
