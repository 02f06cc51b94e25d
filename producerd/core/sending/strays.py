"""Doubt about shards: answers that show another shard than the map names, and aggregates that wait for a newer map."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final, NamedTuple

import numpy as np

from producerd.core.encoding.entries import EncodedRequest
from producerd.core.lanes.lane import Piece, lanes_of, spans_of
from producerd.core.lanes.lanes import Lanes
from producerd.core.ledger import Ledger
from producerd.core.rows.columns import Bool
from producerd.core.rows.frame import RowEnd
from producerd.core.rows.job import AWAITING_MAP
from producerd.core.rows.spans import RAW_FROM_STRAYS
from producerd.core.rules import PipelineRules
from producerd.core.sending.answers import Answer
from producerd.core.sending.aside import Aside, live_of
from producerd.core.sending.requests import Request, begin
from producerd.core.shards.knowledge import KnownShards
from producerd.errors import Code, Outcome

STRAYS_TO_GIVE_UP: Final = 8
"""Strays after which rows end as UNKNOWN.  Only a given aggregate with more records than a request strays this often.
"""
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


class Strays:
    """The only owner of aggregates that were stored, perhaps in a shard where a consumer drops them."""

    def __init__(self, rules: PipelineRules, ledger: Ledger, known: KnownShards, lanes: Lanes, aside: Aside) -> None:
        self._rules = rules
        self._ledger = ledger
        self._known = known
        self._lanes = lanes
        self._aside = aside
        self._awaiting: list[_Awaiting] = []

    def set_rules(self, rules: PipelineRules) -> None:
        """Follow new rules from now on."""
        self._rules = rules

    @property
    def next_time(self) -> float:
        """When the next wait for a map ends; ``inf`` if no row waits for one."""
        return min([awaiting.until for awaiting in self._awaiting]) if self._awaiting else inf

    @property
    def awaiting(self) -> Iterator[Piece]:
        """The rows that wait for a map."""
        return (piece for awaiting in self._awaiting for piece in awaiting.pieces)

    # ---- what an answer shows

    def check_sequences(self, request: Request, answer: Answer) -> None:
        """Refute the map if a shard's sequence numbers fell.  They always rise, so the id now names another shard."""
        numbers = dict(zip(answer.shard_table, answer.sequences, strict=True))
        for lane, before in request.sequences.items():
            if lane.sequence_seen(numbers.get(lane.shard.shard_id, 0), before):
                self._known.refute()

    def check_map(self, request: Request, encoded: EncodedRequest, elsewhere: Bool, now: float) -> None:
        """Let lanes wait for a new map if another shard answered, or if the map is in doubt and cannot be read.

        When no map comes in time, their rows go as plain records.
        """
        blind = self._known.is_blind
        strayed = set(range(len(request.lanes)) if blind else encoded.lanes[elsewhere].tolist())
        self._ledger.stats.mispredicted(int(np.count_nonzero(elsewhere)))
        for number, lane in enumerate(request.lanes):
            if number not in strayed:
                if lane.map_until is not None and now >= lane.map_until:
                    lane.map_came()
            elif lane.shard in self._lanes.map or blind:  # otherwise a newer map has come already
                self._known.want()
                if self._rules.entries.aggregate:
                    lane.await_map(now + self._rules.shard_map_wait_seconds)

    # ---- rows that strayed, perhaps

    def await_map(self, answer: Answer, encoded: EncodedRequest, entry: int, pieces: list[Piece], now: float) -> None:
        """Set aside an aggregate that was stored, perhaps in the wrong shard, until a newer map shows it."""
        self._known.want()
        self._ledger.mark_maybe_stored(spans_of(pieces), AWAITING_MAP)
        for lane in lanes_of(pieces):
            lane.put_aside()
        copies = _copies(encoded, answer, entry, pieces)
        self._awaiting.append(_Awaiting(pieces, copies, now + self._rules.shard_map_wait_seconds))
        self._aside.left_request(pieces)

    def strayed(self, pieces: list[Piece], times: int = 1) -> list[Piece]:
        """End rows as UNKNOWN if they were stored in the wrong shard too often.

        Return the others, to be sent again.
        """
        again = []
        for lane, span in pieces:
            if span.strays >= STRAYS_TO_GIVE_UP:
                self._ledger.end_rows(span, _LOST_TRACK)
            else:
                again.append(Piece(lane, self._ledger.retried(span)._replace(strays=span.strays + times)))
        return again

    def decide_all(self, now: float) -> None:
        """Settle or send again what waited for a map, because a map has come or a wait has ended."""
        awaiting, self._awaiting = self._awaiting, []
        for waiting in awaiting:
            self._decide(waiting, now)

    def _decide(self, waiting: _Awaiting, now: float) -> None:
        """Settle an aggregate that a newer map shows to be delivered.

        Otherwise, or if no map came in time, send it again.
        """
        shards = [None if self._known.doubted else self._known.get(shard_id) for shard_id, _, _ in waiting.copies]
        if None in shards and now < waiting.until:
            self._awaiting.append(waiting)
            return
        lanes = lanes_of(waiting.pieces)
        for lane in lanes:
            lane.take_up()
        pieces = live_of(waiting.pieces)
        delivered = all(
            shard is not None and shard.covers(lowest, highest)
            for shard, (_, lowest, highest) in zip(shards, waiting.copies, strict=True)
        )
        for _, span in pieces:
            span.job.mark_maybe_stored(span.first, span.last, "" if delivered else "reshard")
        begin(pieces)
        if delivered and pieces:
            self._ledger.store(spans_of(pieces), now)
        else:
            if None in shards:  # rows behind them in their lanes have waited as long for the map
                for lane in lanes:
                    lane.map_is_late(now)
            self._aside.requeue(self.strayed(pieces, RAW_FROM_STRAYS if None in shards else 1))
        self._lanes.released(lanes)


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
