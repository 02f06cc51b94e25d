"""Refusals without a word about a record: the daemon finds out whether rows are refused, or the whole stream."""

from __future__ import annotations

from typing import Final

from producerd.core.failures import Meaning
from producerd.core.lanes.lane import Piece
from producerd.core.lanes.lanes import FAULTY_ROWS
from producerd.core.ledger import Ledger
from producerd.core.rows.frame import RowEnd
from producerd.core.rows.spans import FAULTS_TO_SUSPECT, Span
from producerd.core.sending.answers import RequestFailed, error_text
from producerd.core.sending.aside import Aside
from producerd.core.sending.body_limit import BodyLimit
from producerd.core.sending.health import HealthState, StreamHealth
from producerd.core.sending.in_flight import InFlight
from producerd.core.sending.requests import Request, parts_of
from producerd.core.shards.knowledge import KnownShards
from producerd.errors import Code, Outcome

REFUSALS_TO_HOLD: Final = 16
"""Rows that a proxy refused in a row, each by itself, from which each further one counts as a failure of the stream."""
REFUSALS_TO_DOUBT_STREAM: Final = 8
"""Rows that Kinesis refused in a row, each by itself, without a word about a record, after which the stream is the
cause."""
ALONE_FAULTS: Final = FAULTY_ROWS.bit_length()
"""Faults of a row from which it is sent by itself."""


class Refusals:
    """The only owner of the doubt whether what is refused is some rows, or the whole stream.

    It halves refused requests until single rows are refused by themselves, ends those that stay refused while others
    are stored, and tells `StreamHealth` when the stream looks refused.
    """

    def __init__(
        self,
        ledger: Ledger,
        known: KnownShards,
        health: StreamHealth,
        in_flight: InFlight,
        body_limit: BodyLimit,
        aside: Aside,
        *,
        per_key: bool,
    ) -> None:
        self._ledger = ledger
        self._known = known
        self._health = health
        self._in_flight = in_flight
        self._body_limit = body_limit
        self._aside = aside
        self._per_key = per_key
        self._refused_rows = 0  # that Kinesis refused by themselves since it stored an entry
        self._proxied_rows = 0  # that a proxy refused by themselves since Kinesis stored an entry
        self.rows_refused_as = ""  # the code of rows that never were refused before, if no entry was stored since
        self._stored_sent_at = 0.0  # when the latest request was sent of which an entry was stored

    @property
    def refuse_all(self) -> bool:
        """Whether it looks as if every row were refused.  Then rows in lanes, which may pass, go before others."""
        return self._in_flight.nothing_passes or self._refused_rows >= REFUSALS_TO_DOUBT_STREAM

    def entry_was_stored(self, sent_at: float) -> None:
        """Note that Kinesis stored an entry of a request that was sent then."""
        self._refused_rows, self._proxied_rows, self.rows_refused_as = 0, 0, ""
        self._stored_sent_at = max(self._stored_sent_at, sent_at)

    def of_request(self, request: Request, meaning: Meaning, failed: RequestFailed, now: float) -> None:
        """Find the rows that make a service or a proxy refuse a request, which judges none of them.

        While all requests are refused, the refused rows are suspected and share no request with others.  Otherwise the
        rows of one caller would keep another caller's rows from being tried.
        """
        if not failed.maybe_stored:
            request.return_charge()
        by_proxy = meaning.code == Code.PROXY_REFUSED
        if by_proxy and request.encoded is not None:
            self._body_limit.body_refused(request.bytes, len(request.encoded.body), now)
        is_new = any(not span.refused_at for span in request.spans)
        if is_new:
            self.rows_refused_as = meaning.code
        if request.records == 1:
            self._proxied_rows += by_proxy
            if self._proxied_rows >= REFUSALS_TO_HOLD:
                self._in_flight.request_failed(request, failed, meaning.code, now, of_rows=True)
            ((_, span),) = request.pieces
            was_alone = span.faults >= ALONE_FAULTS
            self.of_row(request.pieces[0], meaning, failed.message, now, failed.request_id, is_new=not was_alone)
            return
        doubted = self._in_flight.nothing_passes if by_proxy else self._refused_rows >= REFUSALS_TO_DOUBT_STREAM
        pieces = [Piece(lane, _refused_at(span, now, suspected=doubted)) for lane, span in request.pieces]
        if doubted and by_proxy:
            self._in_flight.request_failed(request, failed, meaning.code, now)
        elif doubted:
            self._doubt(meaning, failed.message, now, failed.request_id, is_new=is_new)
        part, others = parts_of(request, self._aside.retried(pieces) if request.encoded is not None else pieces)
        if doubted and not self._per_key:
            self._aside.delay(part, now)
            self._aside.delay(others, now)
        else:
            self._aside.send_apart(part, others)

    def of_row(
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
            waits_on = bool(self.rows_refused_as) or self._stored_sent_at < span.refused_at
        if not is_new and not waits_on and now >= span.refused_at + self._health.grace_seconds:
            if meaning.code == Code.PROXY_REFUSED:
                seconds = now - span.refused_at
                message = f"refused for {seconds:.0f} s, while other records were stored: {message}"
            self._ledger.end_rows(span, RowEnd(Outcome.NOT_STORED, meaning.code, message))
            return
        self._aside.retry_apart(Piece(lane, span), now)

    def of_stream(
        self,
        code: str,
        message: str,
        now: float,
        request_id: str = "",
        *,
        at_once: bool = True,
        holds: bool = True,
    ) -> None:
        """Note that the stream looks refused, and end all waiting rows if it is.  ``at_once``: as for `StreamHealth`.

        ``holds``: send nothing for a while.
        """
        self._ledger.stats.note_error(error_text(code, message, request_id))
        if code == Code.STREAM_NOT_FOUND and self._known.map is not None:
            self._known.forget_stream()
        self._health.looks_permanent(code, message, now, request_id, at_once=at_once)
        if self._health.state is HealthState.BROKEN:
            self._in_flight.stop_holding()  # from now on probes set the pace
            self._ledger.withdraw_all(self._health.row_end)
        elif self._health.state is HealthState.SUSPECT and holds:
            self._in_flight.hold_all(now)

    def tried(self, failed: RequestFailed, now: float) -> None:
        """Note a failed attempt to reach Kinesis.  If a wrong endpoint broke the stream, end all waiting rows."""
        self._health.tried(failed, now)
        if failed.wrong_endpoint and self._health.state is HealthState.BROKEN:
            self._ledger.withdraw_all(self._health.row_end)

    def _doubt(self, meaning: Meaning, message: str, now: float, request_id: str, *, is_new: bool) -> None:
        """Note that Kinesis refuses rows without a word about a record, and stores none.

        Only rows that it has not refused before hold the stream.
        """
        self.of_stream(meaning.code, message, now, request_id, at_once=False, holds=is_new)
        if not is_new and self._health.state is HealthState.SUSPECT:
            self._in_flight.hold_briefly(now)


def _refused_at(span: Span, now: float, *, suspected: bool = False) -> Span:
    """Return rows of a request that was refused, which share no further request with others if they are suspected."""
    faults = max(span.faults + 1, FAULTS_TO_SUSPECT) if suspected else span.faults
    return span._replace(refused_at=span.refused_at or now, faults=faults)
