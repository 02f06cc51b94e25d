"""Rows that left a request unsettled and wait aside of the lanes: for a delay, or for a request of their own."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count
from math import inf
from typing import NamedTuple

import numpy as np

from producerd.core.lanes.lane import Piece, lanes_of, spans_of
from producerd.core.lanes.lanes import Lanes
from producerd.core.ledger import Ledger
from producerd.core.rows.job import Job
from producerd.core.sending.answers import RequestFailed
from producerd.core.sending.backoff import RetryPolicy
from producerd.core.sending.health import HealthState, StreamHealth


class Alone(NamedTuple):
    """Rows for a request of their own, with the bytes of the largest.  ``refused``: as for `Request`."""

    row_bytes: int
    pieces: list[Piece]
    refused: RequestFailed | None


class Aside:
    """The only owner of rows that will be sent again and are in no lane, except those that wait for a map.

    Each way out of a request that does not settle its rows passes here: to the front of their lanes (`requeue`), to a
    retry delay (`retry_later`), or to a request of their own (`send_alone`).
    """

    def __init__(
        self, lanes: Lanes, ledger: Ledger, health: StreamHealth, policy: RetryPolicy, *, per_key: bool
    ) -> None:
        self._lanes = lanes
        self._ledger = ledger
        self._health = health
        self._policy = policy
        self._per_key = per_key
        self._later: list[tuple[float, int, list[Piece]]] = []  # rows that wait out a delay: a heap
        self._alone: deque[Alone] = deque()
        self._apart: dict[tuple[Job, int], object] = {}  # with ``per_key``: rows in `_later`, by job and position
        self._numbers = count()

    # ---- questions

    @property
    def has_alone(self) -> bool:
        """Whether rows wait for a request of their own."""
        return bool(self._alone)

    @property
    def row_bytes(self) -> int:
        """The bytes of the largest row that goes next in a request of its own, or 0."""
        return self._alone[0].row_bytes if self._alone else 0

    @property
    def due(self) -> float:
        """When the next retry delay is over; ``inf`` if no row waits one out."""
        return self._later[0][0] if self._later else inf

    @property
    def delayed(self) -> Iterator[Piece]:
        """The rows that wait out a delay."""
        return (piece for _, _, pieces in self._later for piece in pieces)

    @property
    def alone(self) -> Iterator[Piece]:
        """The rows that wait for a request of their own."""
        return (piece for alone in self._alone for piece in alone.pieces)

    def next_alone(self) -> Alone | None:
        """Return the next rows for a request of their own.  With ``per_key`` none of their shards has one in flight."""
        if not self._per_key:
            return self._alone[0] if self._alone else None
        return next((alone for alone in self._alone if self._lanes.are_free(alone.pieces)), None)

    # ---- rows leave a request unsettled

    def requeue(self, pieces: list[Piece]) -> None:
        """Return rows of a request to the front of their lanes."""
        if pieces:
            _requeue(pieces)
            self._lanes.put_back(pieces)
            self.left_request(pieces)

    def retry_later(self, pieces: list[Piece], now: float) -> None:
        """Let rows wait for a retry delay outside of their lanes, or with ``per_key`` at the front of them."""
        if not pieces:
            return
        if self._per_key:
            retried = self._lanes.renewed(self.retried(pieces))
            due = now + self._policy.delay(max(piece.span.attempts for piece in pieces))
            for lane, _ in retried:
                lane.wait_until(due)
            self.requeue(retried)
        else:
            self.delay(self.retried(pieces), now)

    def retry_apart(self, piece: Piece, now: float) -> None:
        """Let a row wait for a retry delay by itself, so that it holds back no row of another session."""
        span = piece.span
        if self._per_key:
            ((frame, _),) = span.job.frames_of(slice(span.first, span.last))
            self._apart[span.job, span.first] = frame.session
            self._lanes.hold_back(frame.session)
        self.delay(self.retried([piece]), now)

    def delay(self, pieces: list[Piece], now: float) -> None:
        """Let rows that were counted as retried wait for a delay outside of their lanes."""
        due = now + self._policy.delay(max(piece.span.attempts for piece in pieces) - 1)
        heapq.heappush(self._later, (due, next(self._numbers), pieces))
        self.left_request(pieces)

    def send_alone(self, pieces: list[Piece], refused: RequestFailed | None = None) -> None:
        """Set rows aside for the next request of their own.

        The newest such request goes first, so that a bad entry or a bad stream is found after few requests.
        """
        row_bytes = max([int(np.diff(span.sizes()).max()) for _, span in pieces])
        self._alone.appendleft(Alone(row_bytes, pieces, refused))
        for lane in lanes_of(pieces):
            lane.put_aside()
        self.left_request(pieces)

    def send_apart(self, part: list[Piece], others: list[Piece]) -> None:
        """Send rows in two requests of their own, first ``part``."""
        if self._per_key:
            self.requeue(others)  # their lanes wait until the first request has ended
        else:
            self.send_alone(others)
        self.send_alone(part)

    def retried(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Count rows that were sent and will be sent again.  Returns them with one more attempt."""
        return [Piece(lane, self._ledger.retried(span)) for lane, span in pieces]

    def left_request(self, pieces: list[Piece]) -> None:
        """Note that rows have left their request.  Rows that must not be sent again end."""
        _requeue(pieces)
        broken = self._health.state is HealthState.BROKEN
        self._ledger.left_request(spans_of(pieces), self._health.row_end if broken else None)

    # ---- rows are sent again

    def bring_back(self, now: float) -> None:
        """Return the rows whose delay was over first to their lanes, or to a request of their own."""
        pieces = heapq.heappop(self._later)[2]
        lane, span = pieces[0]
        # What is sent by itself would run its lane into debt, and keep the lane's other rows waiting.
        ready_at = 0.0 if lane.pacer is None or span.records > 1 else lane.pacer.ready_at(now, span.bytes)
        if not self._per_key and not span.refused_at:
            self._lanes.put_back(pieces)
        elif ready_at > now and span.buffer.live:
            heapq.heappush(self._later, (ready_at, next(self._numbers), pieces))
        elif live := live_of(pieces):
            self.send_alone(live)
        else:
            self.let_go(self.no_longer_apart(pieces))

    def remove(self, alone: Alone) -> None:
        """Note that rows have their request.  Their lanes need no longer wait for them."""
        self._alone.remove(alone)
        for lane in lanes_of(alone.pieces):
            lane.take_up()

    def no_longer_apart(self, pieces: list[Piece]) -> list[object]:
        """Return the sessions whose rows waited for one of these, which no longer waits by itself."""
        if not self._apart:
            return []
        places = [(span.job, span.first) for _, span in pieces if span.records == 1]
        return [self._apart.pop(place) for place in places if place in self._apart]

    def let_go(self, sessions: Iterable[object]) -> None:
        """Send the rows of sessions again, except where another row of theirs still waits by itself."""
        for session in dict.fromkeys(sessions):
            if session not in self._apart.values() and session in self._lanes.held_back:
                self._lanes.let_go(session)


def live_of(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces of those rows that have not ended meanwhile."""
    live: list[Piece] = []
    for lane, span in pieces:
        for start, stop in span.job.queued_runs(span.first, span.last):
            live.append(Piece(lane, span.cut(stop)[0].cut(start)[1]))
    return live


def _requeue(pieces: Iterable[Piece]) -> None:
    for _, span in pieces:
        span.job.requeue(span.first, span.last)
