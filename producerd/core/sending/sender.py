"""The sender of one stream: it makes requests of the rows in the lanes, and does with the rows what answers require.

    lanes -> take_request -> [in flight] -> complete -> settled, or back

Outside of the lanes, rows may wait for a retry delay, for a new shard map, or for a request of their own.  Every
request that is taken is completed once, and then each of its rows has settled or waits again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from itertools import count, pairwise
from math import inf
from random import Random
from typing import Final, NamedTuple

import numpy as np

from producerd.core.budget import NodeInFlight
from producerd.core.encoding.entries import EncodedRequest
from producerd.core.failures import (
    CREDENTIALS_LATE,
    OF_THE_DAEMON,
    Kind,
    Meaning,
    meaning_of,
    meaning_of_answer,
    meaning_of_error,
    number_of_record,
)
from producerd.core.holding import Holding
from producerd.core.lanes.lane import ANY_BYTES, Piece, lanes_of, spans_of
from producerd.core.lanes.lanes import FAULTY_ROWS, Lanes, as_raw
from producerd.core.lanes.pacing import Pacer
from producerd.core.lanes.taken import Taken
from producerd.core.ledger import Ledger
from producerd.core.rows.columns import Bool
from producerd.core.rows.frame import RowEnd
from producerd.core.rows.job import AWAITING_MAP, IN_REQUEST, QUEUED, Job
from producerd.core.rows.spans import FAULTS_TO_SUSPECT, RAW_FROM_STRAYS, Span
from producerd.core.rules import PipelineRules
from producerd.core.sending.answers import NOT_KINESIS, Answer, RequestFailed, error_text
from producerd.core.sending.backoff import RetryPolicy
from producerd.core.sending.body_limit import BodyLimit
from producerd.core.sending.format_choice import FormatChoice
from producerd.core.sending.health import HealthState, StreamHealth
from producerd.core.sending.in_flight import InFlight
from producerd.core.sending.requests import Request, cut_pieces, first_of
from producerd.core.sending.verdicts import STORED, STRAYED, UNSURE, judge
from producerd.core.shards.knowledge import KnownShards
from producerd.core.shards.shard_map import ONE_LANE, ShardMap
from producerd.errors import Code, Outcome

WRONG_COUNTS_TO_GIVE_UP: Final = 3
"""Answers in a row with a wrong number of results after which rows end as UNKNOWN."""
NOT_KINESIS_TO_GIVE_UP: Final = 10
"""Answers in a row that are not from Kinesis, such as a proxy's page, after which rows end as UNKNOWN.  As failures
hold the stream, they come within half a minute."""
REFUSALS_TO_HOLD: Final = 16
"""Rows that a proxy refused in a row, each by itself, from which each further one counts as a failure of the stream."""
REFUSALS_TO_DOUBT_STREAM: Final = 8
"""Rows that Kinesis refused in a row, each by itself, without a word about a record, after which the stream is the
cause."""
STRAYS_TO_GIVE_UP: Final = 8
"""Strays after which rows end as UNKNOWN.  Only a given aggregate with more records than a request strays this often.
"""
ALONE_FAULTS: Final = FAULTY_ROWS.bit_length()
"""Faults of a row from which it is sent by itself."""
HOT_FACTOR: Final = 1.5
"""Multiple of its fair share of the waiting bytes from which a lane is hot."""
HOT_SHARE: Final = 0.1
"""Share of the waiting bytes from which a lane is hot, while other shards have room.

If no other shard has room, rows wait for all of them, and chance decides which lane has the most.
"""
LOW_USE: Final = 0.8
"""Use of a shard's quota by this daemon below which its throttles show that other producers write to it."""
_LOST_TRACK: Final = RowEnd(
    Outcome.UNKNOWN, Code.SHARD_MAP_MISSING, "stored, but not in the shards that the map names", maybe_stored=True
)


class _Awaiting(NamedTuple):
    """An aggregate that was stored in a shard whose range is not known.  The wait for a map ends at ``until``.

    ``copies`` holds the shard, and the lowest and the highest hash key in it.  The keys include rows whose caller
    leaves meanwhile, because a consumer drops the whole aggregate.  A row that was an aggregate itself has one copy for
    each of its parts.
    """

    pieces: list[Piece]
    copies: list[tuple[str, int, int]]
    until: float


class _Alone(NamedTuple):
    """Rows for a request of their own, with the bytes of the largest.  ``refused``: as for `Request`."""

    row_bytes: int
    pieces: list[Piece]
    refused: RequestFailed | None


class Sender:
    """The sender of one stream.  It settles each row of a completed request in the ledger, or lets it wait again."""

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
        self.record_limit_bytes = ANY_BYTES  # the stream's, or no limit while it is not known
        self.lanes = self._make_lanes()
        self._policy = RetryPolicy(random, rules.request_timeout_seconds)
        self.in_flight = InFlight(rules, self._policy, node)
        self.format = FormatChoice(rules.wire_format)
        self._later: list[tuple[float, int, list[Piece]]] = []  # rows that wait out a delay: a heap
        self._alone: deque[_Alone] = deque()
        self._awaiting: list[_Awaiting] = []
        self.body_limit = BodyLimit()
        self._refused_rows = 0  # that Kinesis refused by themselves since it stored an entry
        self._proxied_rows = 0  # that a proxy refused by themselves since Kinesis stored an entry
        self._lanes_next = False  # the last request had rows that were refused, so that other rows have their turn
        self._all_are_refused = False  # no entry was stored since rows were refused that never were before
        self._stored_sent_at = 0.0  # when the latest request was sent of which an entry was stored
        self._apart: dict[tuple[Job, int], object] = {}  # with ``per_key``: rows in `_later`, by job and position
        self._numbers = count()

    def _make_lanes(self) -> Lanes:
        return Lanes(self.rules.entries, lambda: Pacer(self.rules.shard_rate_fraction))

    # ---- questions

    def have_work(self, now: float) -> bool:
        """Return whether the lanes have rows that may be sent now.  Ignores the limits on requests in flight."""
        return bool(self._alone) or self.lanes.have_work(now)

    def next_time(self) -> float:
        """Return when something is due that no other call will cause, or ``inf`` if nothing is."""
        due, hold_until = self.in_flight.next_time(), self.in_flight.hold_until
        due = min(due, inf if self.paused else self.health.gives_up_at)
        # Without room an answer, or the operator, brings it about; a time that has passed would hide what is due later.
        if self._has_room:
            if hold_until and (self.lanes.waiting or self._alone):
                due = min(due, hold_until)
            else:
                due = min(due, max(self.lanes.next_time(), hold_until))
        if self._later and not self._lets_wait:
            due = min(due, self._later[0][0])
        if self._awaiting:
            due = min(due, *[awaiting.until for awaiting in self._awaiting])
        return due

    @property
    def held_by_node(self) -> bool:
        """Whether it has rows to send and the requests of all streams leave no room until one of them ends."""
        return (self.lanes.waiting or bool(self._alone)) and self.in_flight.held_by_node

    def holding(self, now: float) -> Holding:
        """Return what holds the queue.  Reads every span, so call it rarely."""
        if self.paused:
            return Holding("paused")
        refused = self.health.state in (HealthState.SUSPECT, HealthState.BROKEN)
        if refused or self.in_flight.fails(now) or now < self.in_flight.hold_until:
            return Holding("service")
        hottest = self.lanes.hottest()
        if hottest is None or (hottest.lane.ready_at(now) <= now and not hottest.lane.is_paced(now)):
            return Holding("in_flight" if self.held_by_node or not self._has_room else "daemon")
        lane, share = hottest
        if lane.map_until is not None and now < lane.map_until:
            return Holding("shard_map")
        if lane.waits_for_answers and not lane.is_paced(now):  # the shard would take more, if it answered
            return Holding("in_flight")
        by_records = lane.pacer is not None and lane.pacer.by_records
        throttled = lane.backs_off(now) and (lane.pacer is None or lane.pacer.use(now) < LOW_USE)
        holds_more = share >= max(HOT_FACTOR / len(self.lanes.map), HOT_SHARE)
        if holds_more and self.lanes.others_have_room(lane, now):
            return Holding("hot_shard", lane.shard.shard_id, share, by_records, throttled)
        if lane.waits_for_answers:
            return Holding("in_flight")
        return Holding("shard_rate", by_records=by_records, throttled=throttled)

    def census(self) -> dict[str, int]:
        """Return how many rows wait or travel in each of the sender's places.  Reads every row, so call it rarely."""
        return {
            "queued": sum([_count(lane.spans, QUEUED) for lane in self.lanes]),
            "held back": sum([_count(spans, QUEUED) for spans in self.lanes.held_back.values()]),
            "delayed": sum([_count(spans_of(pieces), QUEUED) for _, _, pieces in self._later]),
            "alone": sum([_count(spans_of(alone.pieces), QUEUED) for alone in self._alone]),
            "in flight": sum([_count(request.spans, IN_REQUEST) for request in self.in_flight]),
            "awaiting a map": sum([_count(spans_of(waiting.pieces), QUEUED) for waiting in self._awaiting]),
        }

    @property
    def silent_shards(self) -> int:
        """The number of shards for which rows wait, and whose last request had no answer in time.

        A shard is not asked again before there is another row for it, so without one it may answer by now.
        """
        later = {piece.lane for _, _, pieces in self._later for piece in pieces}
        silent = [lane for lane in self.lanes if lane.silent]
        return sum([bool(lane.queued or lane.in_flight or lane.set_aside or lane in later) for lane in silent])

    # ---- requests

    def take_request(self, now: float) -> Request | None:
        """Take rows for one request and start it.  Returns None if no row may be sent now."""
        if not self.paused and self.health.gives_up(now):
            self.ledger.withdraw_all(self.health.end)
        self._bring_back(now)
        self.body_limit.look(now)
        if not self.in_flight.may_send(now):
            return None
        while (request := self._take(now)) is None and self._may_bring_back(now):
            self._bring_back(now)
        return request

    def _take(self, now: float) -> Request | None:
        """Start a request of rows that wait in lanes, or for a request of their own."""
        while self._has_room:
            in_flight = self.in_flight
            alone = self._next_alone()
            if alone is None or ((self._refuses_all or self._lanes_next) and self.lanes.have_work(now)):
                self._lanes_next = False
                taken = self.lanes.take(
                    now,
                    in_flight.bytes_left,
                    request_bytes=min(in_flight.request_bytes, self.body_limit.bytes),
                    takes_slow=in_flight.takes_slow,
                    passes_larger=in_flight.waits_with_larger,
                )
                if taken is not None or alone is None:
                    return self._start(taken) if taken is not None else None
            self._alone.remove(alone)
            _, pieces, refused = alone
            lanes = lanes_of(pieces)
            for lane in lanes:
                lane.take_up()
            most_bytes = min(in_flight.request_bytes, self.body_limit.bytes)
            first, others = first_of(self.lanes.renewed(self._live(pieces)), most_bytes)
            self.lanes.put_back(others)
            # What a part of the rows shows is not shown for all of them.
            request = self._start(self._taken_of(first, now), None if others else refused) if first else None
            self._lanes_next = bool(pieces[0].span.refused_at)
            self.lanes.released(lanes)
            if not first and self._apart:
                self._let_go(self._no_longer_apart(pieces))
            if request is not None:
                return request
        return None

    def _next_alone(self) -> _Alone | None:
        """Return the next rows for a request of their own.  With ``per_key`` none of their shards has one in flight."""
        if not self.rules.entries.per_key:
            return self._alone[0] if self._alone else None
        return next((alone for alone in self._alone if self.lanes.are_free(alone.pieces)), None)

    def encoded(self, request: Request, encoded: EncodedRequest, now: float) -> None:
        """Note that a request is cut into entries.  Rows that did not fit return to the front of their lanes."""
        request.sent(encoded, now, self._policy.timeout(len(encoded.body), request.timeouts))
        self.in_flight.sent(request)
        for lane, sent in zip(request.lanes, encoded.of_lanes(len(request.lanes)), strict=True):
            entries, bytes_ = request.paid.get(lane, sent)
            lane.give_back(entries - sent[0], bytes_ - sent[1])
        written = int(encoded.ends[-1])
        if written == request.records:
            return
        before = request.lanes
        back = request.keep(written)
        left_out = before[len(request.lanes) :]
        for lane in left_out:
            lane.ended()
        self._requeue(back)
        self.lanes.released(left_out)

    def complete(self, request: Request, outcome: Answer | RequestFailed, now: float) -> None:
        """End a request: settle its rows, or let them wait again."""
        apart = self._no_longer_apart(request.pieces) if self._apart else ()
        self.in_flight.end(request)
        encoded = request.encoded
        if encoded is not None:
            seconds, split = now - request.sent_at, bool(encoded.fragments)
            self.stats.request_ended(len(encoded.body), encoded.ends, seconds, split=split)
        if isinstance(outcome, RequestFailed):
            self._tried(outcome, now)
            self._failed(request, outcome, now)
        else:
            self._answered(request, outcome, now)
        self.known.answered(request)
        self.lanes.released(request.lanes)
        if apart:
            self._let_go(apart)
        if self._later:
            self._bring_back(now)

    def set_rules(self, rules: PipelineRules, now: float) -> None:
        """Follow new rules from now on.  Requests keep their time-outs, and rows that wait for a map keep their end."""
        self.rules = rules
        self.health.set_times(rules.permanent_error_grace_seconds, rules.first_contact_timeout_seconds)
        self._policy.set_timeout(rules.request_timeout_seconds)
        self.in_flight.set_rules(rules)
        self.lanes.set_rules(rules.entries, rules.shard_rate_fraction, now)

    def pause(self) -> None:
        """Start no request until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Start requests again."""
        self.paused = False

    # ---- the shard map

    def set_shard_map(self, shard_map: ShardMap, now: float, asked_at: float) -> None:
        """Use a new map, whose reading began at ``asked_at``.  Rows of shards that it does not have are sorted again.

        Rows that waited for a map go on.  A stream that was deleted and made again has the same shard ids with other
        ranges, and the daemon treats these as other shards.
        """
        self.health.tried(None, now)
        was_blind = self.known.is_blind
        self.known.learn(shard_map, now, asked_at=asked_at, in_flight=self.in_flight)
        self.lanes.learn(shard_map)
        for lane in self.lanes if was_blind else ():
            lane.map_came()
        self._decide_all(now)
        if self._awaiting or any(lane.map_until is not None for lane in self.lanes):
            self.known.want()

    def shard_map_failed(
        self, code: str, message: str, now: float, *, wrong_endpoint: bool = False, request_id: str = ""
    ) -> None:
        """Note that ListShards failed.  If the stream does not exist or the credentials fail, the stream itself fails.

        If no row waits and no map was known, the stream's health stays as it is, and the next row has the list read
        again.
        """
        self._tried(RequestFailed(code, message, maybe_stored=False, wrong_endpoint=wrong_endpoint), now)
        meaning = meaning_of(code)
        unreadable = self.known.map is None and meaning.code in OF_THE_DAEMON and meaning.kind is Kind.PERMANENT
        concerns_stream = meaning.code == Code.STREAM_NOT_FOUND or unreadable
        if concerns_stream and (self.ledger.frames or self.known.map is not None):
            self._looks_permanent(meaning.code, message, now, request_id, at_once=code != CREDENTIALS_LATE)
        was_doubted = self.known.doubted
        wait_seconds = self.rules.shard_map_wait_seconds
        self.known.not_read(code, message, now, wait_seconds, concerns_stream=concerns_stream)
        if was_doubted and not self.known.doubted:
            self._decide_all(now)

    def go_plain(self) -> None:
        """Send rows through one lane as plain records until a list of the shards comes, because none came in time."""
        self.known.go_plain()
        self.lanes.learn(ONE_LANE)

    def forget_shards(self) -> None:
        """Forget the map and the lanes of an idle stream.  The map is read again when rows need it."""
        if self.in_flight:
            raise AssertionError("requests are in flight whose answers name these shards")
        self.known.rest()
        self.lanes = self._make_lanes()
        self.lanes.set_record_limit(self.record_limit_bytes)

    def set_record_limit(self, limit_bytes: int) -> None:
        """Use the stream's limit on a record, as it was last seen.  Kinesis itself judges larger rows."""
        self.record_limit_bytes = limit_bytes
        self.lanes.set_record_limit(limit_bytes)

    def _await_map(self, pieces: list[Piece], copies: list[tuple[str, int, int]], now: float) -> None:
        """Set aside an aggregate that was stored, perhaps in the wrong shard, until a newer map shows it."""
        self.known.want()
        self.ledger.mark_maybe_stored(spans_of(pieces), AWAITING_MAP)
        for lane in lanes_of(pieces):
            lane.put_aside()
        self._awaiting.append(_Awaiting(pieces, copies, now + self.rules.shard_map_wait_seconds))
        self._left_request(pieces)

    def _decide_all(self, now: float) -> None:
        awaiting, self._awaiting = self._awaiting, []
        for waiting in awaiting:
            self._decide(waiting, now)

    def _decide(self, waiting: _Awaiting, now: float) -> None:
        """Settle an aggregate that a newer map shows to be delivered.

        Otherwise, or if no map came in time, send it again.
        """
        shards = [None if self.known.doubted else self.known.get(shard_id) for shard_id, _, _ in waiting.copies]
        if None in shards and now < waiting.until:
            self._awaiting.append(waiting)
            return
        lanes = lanes_of(waiting.pieces)
        for lane in lanes:
            lane.take_up()
        pieces = self._live(waiting.pieces)
        delivered = all(
            shard is not None and shard.covers(lowest, highest)
            for shard, (_, lowest, highest) in zip(shards, waiting.copies, strict=True)
        )
        for _, span in pieces:
            span.job.mark_maybe_stored(span.first, span.last, "" if delivered else "reshard")
        _begin(pieces)
        if delivered and pieces:
            self.ledger.store(spans_of(pieces), now)
        else:
            if None in shards:  # rows behind them in their lanes have waited as long for the map
                for lane in lanes:
                    lane.map_is_late(now)
            self._requeue(self._strayed(pieces, RAW_FROM_STRAYS if None in shards else 1))
        self.lanes.released(lanes)

    def _strayed(self, pieces: list[Piece], times: int = 1) -> list[Piece]:
        """End rows as UNKNOWN if they were stored in the wrong shard too often.

        Return the others, to be sent again.
        """
        again = []
        for lane, span in pieces:
            if span.strays >= STRAYS_TO_GIVE_UP:
                self.ledger.end(span, _LOST_TRACK)
            else:
                again.append(Piece(lane, self.ledger.retried(span)._replace(strays=span.strays + times)))
        return again

    # ---- what may be sent

    @property
    def _has_room(self) -> bool:
        if self.paused:
            return False
        row_bytes = self._alone[0].row_bytes if self._alone else 0
        return self.in_flight.has_room(for_one=self.health.state is HealthState.SUSPECT, row_bytes=row_bytes)

    @property
    def _refuses_all(self) -> bool:
        """Whether it looks as if every row were refused.  Then rows in lanes, which may pass, go before others."""
        return self.in_flight.nothing_passes or self._refused_rows >= REFUSALS_TO_DOUBT_STREAM

    @property
    def _lets_wait(self) -> bool:
        """Whether rows whose delay is over wait until all others were tried: one request at a time is enough."""
        return self._refuses_all and (self.lanes.waiting or bool(self._alone))

    def _may_bring_back(self, now: float) -> bool:
        return bool(self._later) and self._later[0][0] <= now and not self._lets_wait

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
            taken.add(lane, spans, bytes_, entries, aggregate_bytes)
            taken.pay(lane, entries, bytes_, now)
        return taken

    def _start(self, taken: Taken, refused: RequestFailed | None = None) -> Request:
        _begin(taken.pieces)
        request = Request(taken, self.lanes.map, refused)
        self.in_flight.start(request)
        return request

    def _bring_back(self, now: float) -> None:
        """Return rows whose wait is over to their lanes."""
        self.lanes.released(self.in_flight.look(now))
        while self._may_bring_back(now):
            pieces = heapq.heappop(self._later)[2]
            lane, span = pieces[0]
            # What is sent by itself would run its lane into debt, and keep the lane's other rows waiting.
            ready_at = 0.0 if lane.pacer is None or span.records > 1 else lane.pacer.ready_at(now, span.bytes)
            if not self.rules.entries.per_key and not span.refused_at:
                self.lanes.put_back(pieces)
            elif ready_at > now and span.buffer.live:
                heapq.heappush(self._later, (ready_at, next(self._numbers), pieces))
            elif live := self._live(pieces):
                self._send_alone(live)
            else:
                self._let_go(self._no_longer_apart(pieces))
        if self._awaiting and min([awaiting.until for awaiting in self._awaiting]) <= now:
            self._decide_all(now)

    def _live(self, pieces: list[Piece]) -> list[Piece]:
        """Return the pieces of those rows that have not ended meanwhile."""
        live: list[Piece] = []
        for lane, span in pieces:
            for start, stop in span.job.queued_runs(span.first, span.last):
                live.append(Piece(lane, span.cut(stop)[0].cut(start)[1]))
        return live

    # ---- answers

    def _answered(self, request: Request, answer: Answer, now: float) -> None:
        encoded = request.encoded
        assert encoded is not None
        self.in_flight.answered(request, now)
        self._check_sequences(request, answer)
        if not answer.error_table or (answer.errors < 0).any():
            self.known.stored(request.sent_at, now)
            self.health.stored()
            self._refused_rows, self._proxied_rows, self._all_are_refused = 0, 0, False
            self._stored_sent_at = max(self._stored_sent_at, request.sent_at)
            self.body_limit.passed(request.bytes, len(encoded.body), now)
            if request.records == 1 and request.pieces[0].span.bytes > self.record_limit_bytes:
                self.set_record_limit(request.pieces[0].span.bytes)  # an operator has raised it
            if request.refused is not None:
                self.format.use_json(request.refused)
        else:
            self.health.tried(None, now)
        classes, elsewhere, partly = judge(request, answer, self.known)
        self._check_map(request, encoded, elsewhere, now)
        self.stats.put_requests["partial" if answer.error_table else "ok"] += 1
        self._pace(request, answer, now)
        if not classes.any():
            self.stats.all_is_well()
            self.ledger.store(request.spans, now)
            return
        starts = np.concatenate(([0], encoded.ends))
        for entry in partly:
            rows = request.pieces_of(int(starts[entry]), int(starts[entry + 1]))
            self.ledger.mark_maybe_stored(spans_of(rows), "reshard")
        # Neighbouring entries with one verdict end together, except aggregates that wait for a map.
        cuts = (np.diff(classes) != 0) | (classes[1:] == UNSURE)
        back: list[Piece] = []
        for first, last in pairwise([0, *(np.flatnonzero(cuts) + 1).tolist(), len(classes)]):
            rows = request.pieces_of(int(starts[first]), int(starts[last]))
            verdict = int(classes[first])
            is_read = verdict <= STORED or answer.error_table[verdict - 1][0] != NOT_KINESIS
            pieces = [
                Piece(lane, span._replace(timeouts=0, wrong_counts=0 if is_read else span.wrong_counts, faults=0))
                for lane, span in rows
            ]
            if verdict == STORED:
                self.ledger.store(spans_of(pieces), now)
            elif verdict == UNSURE:
                if pieces:  # an entry without rows is a further fragment of the row before it
                    self._await_map(pieces, _copies(encoded, answer, first, pieces), now)
            elif verdict == STRAYED:
                self.ledger.mark_maybe_stored(spans_of(pieces), "reshard")
                back += self._strayed(pieces)
            else:
                back += self._entry_failed(pieces, *answer.error_table[verdict - 1], now)
        self._requeue(back)

    def _entry_failed(self, pieces: list[Piece], code: str, message: str, now: float) -> list[Piece]:
        """Treat entries with an error.  Returns the rows that must return to the front of their lanes."""
        meaning = meaning_of_error(code, message)
        records = sum([piece.span.records for piece in pieces])
        self.stats.record_errors[meaning.code] += records
        self.stats.failed(f"{code}: {message}")
        if code == NOT_KINESIS:
            self.ledger.mark_maybe_stored(spans_of(pieces), "service")
            pieces = self._count_wrong(pieces, message, NOT_KINESIS_TO_GIVE_UP)
        if meaning.kind is Kind.THROTTLED:
            self.ledger.throttled(spans_of(pieces))
            if not self.rules.fail_if_throttled:
                return self._retried(pieces)
            for _, span in pieces:
                self.ledger.end(span, RowEnd(Outcome.NOT_STORED, meaning.code, message))
            return []
        if meaning.kind in (Kind.INVALID, Kind.REFUSED):
            if records > 1:
                self._send_apart(*cut_pieces(self._retried(pieces), records // 2))
            elif meaning.judges:
                self._judged(pieces[0].span, meaning, message)
            else:
                self._refused_alone(pieces[0], meaning, message, now, is_new=not pieces[0].span.refused_at)
            return []
        if meaning.kind is Kind.PERMANENT:
            self._looks_permanent(meaning.code, message, now)
        self._again_later(pieces, now)
        return []

    def _check_sequences(self, request: Request, answer: Answer) -> None:
        """Refute the map if a shard's sequence numbers fell.  They always rise, so the id now names another shard."""
        numbers = dict(zip(answer.shard_table, answer.sequences, strict=True))
        for lane, before in request.sequences.items():
            if lane.read(numbers.get(lane.shard.shard_id, 0), before):
                self.known.refute()

    def _check_map(self, request: Request, encoded: EncodedRequest, elsewhere: Bool, now: float) -> None:
        """Let lanes wait for a new map if another shard answered, or if the map is in doubt and cannot be read.

        When no map comes in time, their rows go as plain records.
        """
        blind = self.known.is_blind
        strayed = set(range(len(request.lanes)) if blind else encoded.lanes[elsewhere].tolist())
        self.stats.mispredicted(int(np.count_nonzero(elsewhere)))
        for number, lane in enumerate(request.lanes):
            if number not in strayed:
                if lane.map_until is not None and now >= lane.map_until:
                    lane.map_came()
            elif lane.shard in self.lanes.map or blind:  # otherwise a newer map has come already
                self.known.want()
                if self.rules.entries.aggregate:
                    lane.await_map(now + self.rules.shard_map_wait_seconds)

    def _pace(self, request: Request, answer: Answer, now: float) -> None:
        """Pace each lane by the number of its entries that were stored and throttled."""
        encoded = request.encoded
        assert encoded is not None
        lanes = len(request.lanes)
        refused, of_stored = [0] * lanes, encoded.lanes
        if answer.error_table:
            throttles = [meaning_of(code).kind is Kind.THROTTLED for code, _ in answer.error_table]
            throttled = np.array([*throttles, False])[answer.errors]
            refused = np.bincount(encoded.lanes[throttled], minlength=lanes).tolist()
            of_stored = of_stored[answer.errors < 0]
        stored = np.bincount(of_stored, minlength=lanes).tolist() if lanes > 1 else [len(of_stored)]
        for lane, lane_stored, lane_refused in zip(request.lanes, stored, refused, strict=True):
            lane.pace(lane_stored, lane_refused, request.sent_at, now, self._policy.delay)

    def _failed(self, request: Request, failed: RequestFailed, now: float) -> None:
        meaning = meaning_of_answer(failed.code, failed.message, failed.status, failed.request_id)
        self.stats.put_requests["failed"] += 1
        self.stats.failed(str(failed))
        if failed.maybe_stored:
            self.ledger.mark_maybe_stored(request.spans, _maybe_cause(failed))
        if request.encoded is not None and self.format.is_refused(request.encoded.content_type, failed):
            if not failed.maybe_stored:
                self._give_back(request)
            self._send_alone(self._retried(request.pieces), refused=failed)
            return
        self.stats.record_errors[meaning.code] += request.records
        if meaning.kind is Kind.INVALID:
            self._halve(request, meaning, failed)
            return
        if meaning.kind is Kind.REFUSED:
            self._refused(request, meaning, failed, now)
            return
        if meaning.kind is Kind.PERMANENT:
            self._looks_permanent(
                meaning.code, failed.message, now, failed.request_id, at_once=failed.code != CREDENTIALS_LATE
            )
        else:
            self.in_flight.failed(request, failed, meaning.code, now)
        if meaning.kind is Kind.THROTTLED and self.rules.fail_if_throttled:
            for span in request.spans:
                self.ledger.end(span, RowEnd(Outcome.NOT_STORED, meaning.code, failed.message))
        elif failed.code == Code.RESULT_COUNT:
            self._again_later(self._count_wrong(request.pieces, failed.message, WRONG_COUNTS_TO_GIVE_UP), now)
        elif failed.code == NOT_KINESIS:
            self._again_later(self._count_wrong(request.pieces, failed.message, NOT_KINESIS_TO_GIVE_UP), now)
        else:
            timeouts, faults = int(failed.timed_out), int(meaning.code == Code.SERVICE_FAULT)
            changed = [
                s._replace(wrong_counts=0, timeouts=s.timeouts + timeouts, faults=s.faults + faults)
                for _, s in request.pieces
            ]
            pieces = [Piece(lane, s) for (lane, _), s in zip(request.pieces, changed, strict=True)]
            if self.rules.entries.per_key and request.records == 1 and pieces[0].span.failing:
                self._again_apart(pieces[0], now)
            else:
                self._again_later(pieces, now)

    def _count_wrong(self, pieces: list[Piece], message: str, most: int) -> list[Piece]:
        """End rows as UNKNOWN whose answers had no usable result ``most`` times in a row.  Returns the other rows."""
        again = []
        for lane, span in pieces:
            if span.wrong_counts + 1 >= most:
                self.ledger.end(span, RowEnd(Outcome.UNKNOWN, Code.RESULT_COUNT, message, maybe_stored=True))
            else:
                again.append(Piece(lane, span._replace(wrong_counts=span.wrong_counts + 1)))
        return again

    def _halve(self, request: Request, meaning: Meaning, failed: RequestFailed) -> None:
        """Halve a request that Kinesis refuses for a record.  A request of one row ends the row."""
        if not failed.maybe_stored:
            self._give_back(request)
        if request.records > 1:
            named = number_of_record(failed.message) if meaning.judges else 0
            self._send_apart(*self._parts_of(request, request.pieces, named))
        elif meaning.judges:
            self._judged(request.pieces[0].span, meaning, failed.message)
        else:
            self.ledger.end(request.pieces[0].span, RowEnd(Outcome.NOT_STORED, meaning.code, failed.message))

    def _judged(self, span: Span, meaning: Meaning, message: str) -> None:
        """End a row that Kinesis found to be one that can never be stored."""
        self.ledger.end(span, RowEnd(Outcome.NOT_STORED, meaning.code, message, judged=True))

    def _parts_of(self, request: Request, pieces: list[Piece], named: int = 0) -> tuple[list[Piece], list[Piece]]:
        """Return the rows of a request in two parts, to be sent again in requests of their own.

        These are its halves, cut between two entries if it has two.  If Kinesis has ``named`` the number of an entry,
        they are that entry and all others.
        """
        starts = [0, *request.encoded.ends.tolist()] if request.encoded is not None else []
        again = self._retried(pieces) if starts else pieces
        first, last = (starts[named - 1], starts[named]) if 0 < named < len(starts) else (0, 0)
        if not 0 < last - first < request.records:
            first, last = 0, starts[(len(starts) - 1) // 2] if len(starts) > 2 else 0
        if not 0 < last - first < request.records:  # the last row may have been cut into most of the entries
            first, last = 0, request.records // 2
        before, others = cut_pieces(again, first)
        part, after = cut_pieces(others, last - first)
        return part, before + after

    def _send_apart(self, part: list[Piece], others: list[Piece]) -> None:
        """Send rows in two requests of their own, first ``part``."""
        if self.rules.entries.per_key:
            self._requeue(others)  # their lanes wait until the first request has ended
        else:
            self._send_alone(others)
        self._send_alone(part)

    def _refused(self, request: Request, meaning: Meaning, failed: RequestFailed, now: float) -> None:
        """Find the rows that make a service or a proxy refuse a request, which judges none of them.

        While all requests are refused, the refused rows are suspected and share no request with others.  Otherwise the
        rows of one caller would keep another caller's rows from being tried.
        """
        if not failed.maybe_stored:
            self._give_back(request)
        by_proxy = meaning.code == Code.PROXY_REFUSED
        if by_proxy and request.encoded is not None:
            self.body_limit.refused(request.bytes, len(request.encoded.body), now)
        is_new = any(not span.refused_at for span in request.spans)
        self._all_are_refused |= is_new
        if request.records == 1:
            self._proxied_rows += by_proxy
            if self._proxied_rows >= REFUSALS_TO_HOLD:
                self.in_flight.failed(request, failed, meaning.code, now, of_rows=True)
            ((_, span),) = request.pieces
            self._refused_alone(
                request.pieces[0], meaning, failed.message, now, failed.request_id, is_new=span.faults < ALONE_FAULTS
            )
            return
        doubted = self.in_flight.nothing_passes if by_proxy else self._refused_rows >= REFUSALS_TO_DOUBT_STREAM
        pieces = [Piece(lane, _refused_at(span, now, suspected=doubted)) for lane, span in request.pieces]
        if doubted and by_proxy:
            self.in_flight.failed(request, failed, meaning.code, now)
        elif doubted:
            self._doubt(meaning, failed.message, now, failed.request_id, is_new=is_new)
        part, others = self._parts_of(request, pieces)
        if doubted and not self.rules.entries.per_key:
            self._push_later(part, now)
            self._push_later(others, now)
        else:
            self._send_apart(part, others)

    def _refused_alone(
        self, piece: Piece, meaning: Meaning, message: str, now: float, request_id: str = "", *, is_new: bool
    ) -> None:
        """Let a row that was refused by itself, but not judged, wait for another attempt, or end it.

        ``is_new``: it was not refused by itself before.  What a proxy refuses ends after the stream's grace only if
        other rows pass.  What Kinesis itself refuses ends after it in any case.
        """
        lane, span = piece
        if is_new and span.refused_at:  # before, a request of many rows was refused, perhaps for another one
            span = span._replace(refused_at=max(span.refused_at, self._stored_sent_at))
        span = _refused_at(span, now)._replace(faults=ALONE_FAULTS)
        if meaning.code != Code.PROXY_REFUSED:
            self._refused_rows += is_new
            if self._refused_rows >= REFUSALS_TO_DOUBT_STREAM:
                self._doubt(meaning, message, now, request_id, is_new=not piece.span.refused_at)
            waits_on = False
        else:
            waits_on = self._all_are_refused or self._stored_sent_at < span.refused_at
        if not is_new and not waits_on and now >= span.refused_at + self.health.grace_seconds:
            if meaning.code == Code.PROXY_REFUSED:
                seconds = now - span.refused_at
                message = f"refused for {seconds:.0f} s, while other records were stored: {message}"
            self.ledger.end(span, RowEnd(Outcome.NOT_STORED, meaning.code, message))
            return
        self._again_apart(Piece(lane, span), now)

    def _doubt(self, meaning: Meaning, message: str, now: float, request_id: str, *, is_new: bool) -> None:
        """Note that Kinesis refuses rows without a word about a record, and stores none.

        Only rows that it has not refused before hold the stream.
        """
        self._looks_permanent(meaning.code, message, now, request_id, at_once=False, holds=is_new)
        if not is_new and self.health.state is HealthState.SUSPECT:
            self.in_flight.hold_briefly(now)

    def _again_apart(self, piece: Piece, now: float) -> None:
        """Let a row wait for a retry delay by itself, so that it holds back no row of another session."""
        span = piece.span
        if self.rules.entries.per_key:
            ((frame, _),) = span.job.frames_of(slice(span.first, span.last))
            self._apart[span.job, span.first] = frame.session
            self.lanes.hold_back(frame.session)
        self._push_later(self._retried([piece]), now)

    def _give_back(self, request: Request) -> None:
        """Return to the lanes their charge for a request that stored nothing."""
        if request.encoded is None:
            for lane, (entries, bytes_) in request.paid.items():
                lane.give_back(entries, bytes_)
            return
        charged = request.encoded.of_lanes(len(request.lanes))
        for lane, (entries, bytes_) in zip(request.lanes, charged, strict=True):
            lane.give_back(entries, bytes_)

    def _send_alone(self, pieces: list[Piece], refused: RequestFailed | None = None) -> None:
        """Set rows aside for the next request of their own.

        The newest such request goes first, so that a bad entry or a bad stream is found after few requests.
        """
        row_bytes = max([int(np.diff(span.sizes()).max()) for _, span in pieces])
        self._alone.appendleft(_Alone(row_bytes, pieces, refused))
        for lane in lanes_of(pieces):
            lane.put_aside()
        self._left_request(pieces)

    def _looks_permanent(
        self,
        code: str,
        message: str,
        now: float,
        request_id: str = "",
        *,
        at_once: bool = True,
        holds: bool = True,
    ) -> None:
        self.stats.failed(error_text(code, message, request_id))
        if code == Code.STREAM_NOT_FOUND and self.known.map is not None:
            self.known.forget()
        self.health.looks_permanent(code, message, now, request_id, at_once=at_once)
        if self.health.state is HealthState.BROKEN:
            self.in_flight.stop_holding()  # from now on probes set the pace
            self.ledger.withdraw_all(self.health.end)
        elif self.health.state is HealthState.SUSPECT and holds:
            self.in_flight.hold(now)

    def _tried(self, failed: RequestFailed, now: float) -> None:
        """Note a failed attempt to reach Kinesis.  If a wrong endpoint broke the stream, end all waiting rows."""
        self.health.tried(failed, now)
        if failed.wrong_endpoint and self.health.state is HealthState.BROKEN:
            self.ledger.withdraw_all(self.health.end)

    # ---- rows leave a request unsettled

    def _again_later(self, pieces: list[Piece], now: float) -> None:
        """Let rows wait for a retry delay outside of their lanes, or with ``per_key`` at the front of them."""
        if not pieces:
            return
        if self.rules.entries.per_key:
            retried = self.lanes.renewed(self._retried(pieces))
            due = now + self._policy.delay(max(piece.span.attempts for piece in pieces))
            for lane, _ in retried:
                lane.hold(due)
            self._requeue(retried)
        else:
            self._push_later(self._retried(pieces), now)

    def _push_later(self, pieces: list[Piece], now: float) -> None:
        due = now + self._policy.delay(max(piece.span.attempts for piece in pieces) - 1)
        heapq.heappush(self._later, (due, next(self._numbers), pieces))
        self._left_request(pieces)

    def _no_longer_apart(self, pieces: list[Piece]) -> list[object]:
        """Return the sessions whose rows waited for one of these, which no longer waits by itself."""
        places = [(span.job, span.first) for _, span in pieces if span.records == 1]
        return [self._apart.pop(place) for place in places if place in self._apart]

    def _let_go(self, sessions: Iterable[object]) -> None:
        """Send the rows of sessions again, except where another row of theirs still waits by itself."""
        for session in dict.fromkeys(sessions):
            if session not in self._apart.values() and session in self.lanes.held_back:
                self.lanes.let_go(session)

    def _retried(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Count rows that were sent and will be sent again.  Returns them with one more attempt."""
        return [Piece(lane, self.ledger.retried(span)) for lane, span in pieces]

    def _requeue(self, pieces: list[Piece]) -> None:
        """Return rows of a request to the front of their lanes."""
        if pieces:
            _requeue(pieces)
            self.lanes.put_back(pieces)
            self._left_request(pieces)

    def _left_request(self, pieces: list[Piece]) -> None:
        """Note that rows have left their request.  Rows that must not be sent again end."""
        _requeue(pieces)
        broken = self.health.state is HealthState.BROKEN
        self.ledger.left_request(spans_of(pieces), self.health.end if broken else None)


def _refused_at(span: Span, now: float, *, suspected: bool = False) -> Span:
    """Return rows of a request that was refused, which share no further request with others if they are suspected."""
    faults = max(span.faults + 1, FAULTS_TO_SUSPECT) if suspected else span.faults
    return span._replace(refused_at=span.refused_at or now, faults=faults)


def _begin(pieces: Iterable[Piece]) -> None:
    for _, span in pieces:
        span.job.begin(span.first, span.last)


def _requeue(pieces: Iterable[Piece]) -> None:
    for _, span in pieces:
        span.job.requeue(span.first, span.last)


def _count(spans: Iterable[Span], state: int) -> int:
    return sum([span.job.count(span.first, span.last, state) for span in spans])


def _copies(encoded: EncodedRequest, answer: Answer, entry: int, pieces: list[Piece]) -> list[tuple[str, int, int]]:
    """Return the shard and the lowest and highest hash key of an entry's rows, or of each fragment of its row."""

    def shard_of(entry: int) -> str:
        return answer.shard_table[int(answer.shards[entry])]

    if entry not in encoded.fragments:
        lowest, highest = zip(*[piece.span.hash_range() for piece in pieces], strict=True)
        return [(shard_of(entry), min(lowest), max(highest))]
    row = encoded.ends[entry]
    fragments = [(at, keys) for at, keys in encoded.fragments.items() if keys is not None and encoded.ends[at] == row]
    return [(shard_of(at), *keys) for at, keys in fragments]


def _maybe_cause(failed: RequestFailed) -> str:
    if failed.timed_out:
        return "timeout"
    if failed.code == Code.RESULT_COUNT:
        return "result_count"
    return "connection" if failed.code == Code.UNREACHABLE else "service"
