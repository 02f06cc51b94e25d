"""Verdicts: what becomes of each row of a completed request, by the answer or the failure that ended it."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from producerd.core.failures import (
    CREDENTIALS_LATE,
    Kind,
    Meaning,
    meaning_of,
    meaning_of_answer,
    meaning_of_error,
    number_of_record,
)
from producerd.core.lanes.lane import Piece, spans_of
from producerd.core.lanes.lanes import Lanes
from producerd.core.ledger import Ledger
from producerd.core.rows.frame import RowEnd
from producerd.core.rules import PipelineRules
from producerd.core.sending.answers import NOT_KINESIS, Answer, RequestFailed
from producerd.core.sending.aside import Aside
from producerd.core.sending.backoff import RetryPolicy
from producerd.core.sending.body_limit import BodyLimit
from producerd.core.sending.format_choice import FormatChoice
from producerd.core.sending.health import StreamHealth
from producerd.core.sending.in_flight import InFlight
from producerd.core.sending.judging import STORED, STRAYED, UNSURE, judge
from producerd.core.sending.refusals import Refusals
from producerd.core.sending.requests import Request, cut_pieces, parts_of
from producerd.core.sending.strays import Strays
from producerd.core.shards.knowledge import KnownShards
from producerd.errors import Code, Outcome

WRONG_COUNTS_TO_GIVE_UP: Final = 3
"""Answers in a row with a wrong number of results after which rows end as UNKNOWN."""
NOT_KINESIS_TO_GIVE_UP: Final = 10
"""Answers in a row that are not from Kinesis, such as a proxy's page, after which rows end as UNKNOWN.  As failures
hold the stream, they come within half a minute."""


class Verdicts:
    """Does with each row of a completed request what the answer requires: the row ends, or it waits to be sent again.

    It keeps nothing between two requests.
    """

    def __init__(
        self,
        rules: PipelineRules,
        ledger: Ledger,
        known: KnownShards,
        health: StreamHealth,
        lanes: Lanes,
        in_flight: InFlight,
        policy: RetryPolicy,
        format_: FormatChoice,
        body_limit: BodyLimit,
        aside: Aside,
        strays: Strays,
        refusals: Refusals,
    ) -> None:
        self._rules = rules
        self._ledger = ledger
        self._stats = ledger.stats
        self._known = known
        self._health = health
        self._lanes = lanes
        self._in_flight = in_flight
        self._policy = policy
        self._format = format_
        self._body_limit = body_limit
        self._aside = aside
        self._strays = strays
        self._refusals = refusals

    def set_rules(self, rules: PipelineRules) -> None:
        """Follow new rules from now on."""
        self._rules = rules

    # ---- answers

    def on_answer(self, request: Request, answer: Answer, now: float) -> None:
        """Settle the rows of an answered request, or let them wait again."""
        encoded = request.encoded
        assert encoded is not None
        self._in_flight.request_answered(request, now)
        self._strays.check_sequences(request, answer)
        if not answer.error_table or (answer.errors < 0).any():
            self._known.seen_storing(request.sent_at, now)
            self._health.found_working()
            self._refusals.entry_was_stored(request.sent_at)
            self._body_limit.passed(request.bytes, len(encoded.body), now)
            if request.records == 1 and request.pieces[0].span.bytes > self._lanes.record_limit_bytes:
                self._lanes.set_record_limit(request.pieces[0].span.bytes)  # an operator has raised it
            if request.refused is not None:
                self._format.use_json(request.refused)
        else:
            self._health.tried(None, now)
        classes, elsewhere, partly = judge(request, answer, self._known)
        self._strays.check_map(request, encoded, elsewhere, now)
        self._stats.put_requests["partial" if answer.error_table else "ok"] += 1
        self._pace(request, answer, now)
        if not classes.any():
            self._stats.all_is_well()
            self._ledger.store(request.spans, now)
            return
        starts = np.concatenate(([0], encoded.ends))
        for entry in partly:
            rows = request.pieces_of(int(starts[entry]), int(starts[entry + 1]))
            self._ledger.mark_maybe_stored(spans_of(rows), "reshard")
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
                self._ledger.store(spans_of(pieces), now)
            elif verdict == UNSURE:
                if pieces:  # an entry without rows is a further fragment of the row before it
                    self._strays.await_map(answer, encoded, first, pieces, now)
            elif verdict == STRAYED:
                self._ledger.mark_maybe_stored(spans_of(pieces), "reshard")
                back += self._strays.strayed(pieces)
            else:
                back += self._entry_failed(pieces, *answer.error_table[verdict - 1], now)
        self._aside.requeue(back)

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

    def _entry_failed(self, pieces: list[Piece], code: str, message: str, now: float) -> list[Piece]:
        """Treat entries with an error.  Returns the rows that must return to the front of their lanes."""
        meaning = meaning_of_error(code, message)
        records = sum([piece.span.records for piece in pieces])
        self._stats.record_errors[meaning.code] += records
        self._stats.note_error(f"{code}: {message}")
        if code == NOT_KINESIS:
            self._ledger.mark_maybe_stored(spans_of(pieces), "service")
            pieces = self._count_wrong(pieces, message, NOT_KINESIS_TO_GIVE_UP)
        if meaning.kind is Kind.THROTTLED:
            self._ledger.throttled(spans_of(pieces))
            if not self._rules.fail_if_throttled:
                return self._aside.retried(pieces)
            for _, span in pieces:
                self._ledger.end_rows(span, RowEnd(Outcome.NOT_STORED, meaning.code, message))
            return []
        if meaning.kind in (Kind.INVALID, Kind.REFUSED):
            if records > 1:
                self._aside.send_apart(*cut_pieces(self._aside.retried(pieces), records // 2))
            elif meaning.judges:
                self._end_one(pieces, meaning, message)
            else:
                self._refusals.of_row(pieces[0], meaning, message, now, is_new=not pieces[0].span.refused_at)
            return []
        if meaning.kind is Kind.PERMANENT:
            self._refusals.of_stream(meaning.code, message, now)
        self._aside.retry_later(pieces, now)
        return []

    # ---- failures of whole requests

    def on_failure(self, request: Request, failed: RequestFailed, now: float) -> None:
        """Let the rows of a request that failed as a whole wait again, or end them."""
        meaning = meaning_of_answer(failed.code, failed.message, failed.status, failed.request_id)
        self._stats.put_requests["failed"] += 1
        self._stats.note_error(str(failed))
        if failed.maybe_stored:
            self._ledger.mark_maybe_stored(request.spans, _maybe_cause(failed))
        if request.encoded is not None and self._format.is_refused(request.encoded.content_type, failed):
            if not failed.maybe_stored:
                request.return_charge()
            self._aside.send_alone(self._aside.retried(request.pieces), refused=failed)
            return
        self._stats.record_errors[meaning.code] += request.records
        if meaning.kind is Kind.INVALID:
            self._halve(request, meaning, failed)
            return
        if meaning.kind is Kind.REFUSED:
            self._refusals.of_request(request, meaning, failed, now)
            return
        if meaning.kind is Kind.PERMANENT:
            at_once = failed.code != CREDENTIALS_LATE
            self._refusals.of_stream(meaning.code, failed.message, now, failed.request_id, at_once=at_once)
        else:
            self._in_flight.request_failed(request, failed, meaning.code, now)
        if meaning.kind is Kind.THROTTLED and self._rules.fail_if_throttled:
            for span in request.spans:
                self._ledger.end_rows(span, RowEnd(Outcome.NOT_STORED, meaning.code, failed.message))
        elif failed.code == Code.RESULT_COUNT:
            self._aside.retry_later(self._count_wrong(request.pieces, failed.message, WRONG_COUNTS_TO_GIVE_UP), now)
        elif failed.code == NOT_KINESIS:
            self._aside.retry_later(self._count_wrong(request.pieces, failed.message, NOT_KINESIS_TO_GIVE_UP), now)
        else:
            timeouts, faults = int(failed.timed_out), int(meaning.code == Code.SERVICE_FAULT)
            pieces = [
                Piece(lane, s._replace(wrong_counts=0, timeouts=s.timeouts + timeouts, faults=s.faults + faults))
                for lane, s in request.pieces
            ]
            if self._rules.entries.per_key and request.records == 1 and pieces[0].span.failing:
                self._aside.retry_apart(pieces[0], now)
            else:
                self._aside.retry_later(pieces, now)

    def _halve(self, request: Request, meaning: Meaning, failed: RequestFailed) -> None:
        """Halve a request that Kinesis refuses for a record.  A request of one row ends the row."""
        if not failed.maybe_stored:
            request.return_charge()
        if request.records == 1:
            self._end_one(request.pieces, meaning, failed.message)
            return
        named = number_of_record(failed.message) if meaning.judges else 0
        again = self._aside.retried(request.pieces) if request.encoded is not None else request.pieces
        self._aside.send_apart(*parts_of(request, again, named))

    def _end_one(self, pieces: list[Piece], meaning: Meaning, message: str) -> None:
        """End a row for which Kinesis refused a request or an entry.  A meaning that judges says that it is bad."""
        self._ledger.end_rows(pieces[0].span, RowEnd(Outcome.NOT_STORED, meaning.code, message, judged=meaning.judges))

    def _count_wrong(self, pieces: list[Piece], message: str, most: int) -> list[Piece]:
        """End rows as UNKNOWN whose answers had no usable result ``most`` times in a row.  Returns the other rows."""
        again = []
        for lane, span in pieces:
            if span.wrong_counts + 1 >= most:
                self._ledger.end_rows(span, RowEnd(Outcome.UNKNOWN, Code.RESULT_COUNT, message, maybe_stored=True))
            else:
                again.append(Piece(lane, span._replace(wrong_counts=span.wrong_counts + 1)))
        return again


def _maybe_cause(failed: RequestFailed) -> str:
    if failed.timed_out:
        return "timeout"
    if failed.code == Code.RESULT_COUNT:
        return "result_count"
    return "connection" if failed.code == Code.UNREACHABLE else "service"
