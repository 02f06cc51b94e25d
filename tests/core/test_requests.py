"""A request is its rows in the order in which they were taken, and any part of them can be found and cut off."""

from __future__ import annotations

import numpy as np
import pytest

from producerd.core.encoding.entries import EncodedRequest
from producerd.core.lanes.lane import Lane, Piece
from producerd.core.lanes.pacing import Pacer
from producerd.core.lanes.taken import Taken
from producerd.core.rows.spans import Span
from producerd.core.sending.requests import Request, first_of
from producerd.core.shards.shard_map import ShardMap
from tests.core.rows import content, even_map, rows_of, sorted_of
from tests.simulation.setting import make_rules

SHARDS: ShardMap = even_map(3)
LANES: list[Lane] = [Lane(shard, None) for shard in SHARDS.shards]


def piece(text: str, lane: int = 0, size: int = 10) -> Piece:
    """A piece with a row for each of these characters, which are the keys."""
    rows = rows_of([(key.encode(), b"x" * (size - 1), None) for key in text])
    ((_, span),) = sorted_of([rows], even_map(1), 1).spans
    return Piece(LANES[lane], span)


def keys_in(pieces: list[Piece]) -> list[str]:
    return ["".join([content(span, at)[0].decode() for at in range(span.first, span.last)]) for _, span in pieces]


def request_of(*pieces: Piece) -> Request:
    taken = Taken()
    for lane, span in pieces:
        taken.add(lane, [span], span.bytes, span.records, 7)
    return Request(taken, SHARDS)


# ---- rows that are taken


def test_what_is_taken_counts_its_rows_and_what_is_paid_for_each_lane() -> None:
    taken = Taken(100)
    assert (taken.bytes, taken.entries, taken.timeouts, taken.max_bytes) == (0, 0, 0, 100)
    paced, free = Lane(SHARDS.shards[0], Pacer()), LANES[1]
    spans: list[Span] = [piece(text).span for text in ("ab", "c")]
    taken.add(paced, [spans[0]._replace(timeouts=2), spans[1]], 30, 3, 7)
    assert taken.timeouts == 2
    taken.add(free, [spans[1]._replace(timeouts=1)], 10, 1, 0)
    assert (taken.bytes, taken.entries, taken.timeouts) == (40, 4, 2)
    assert taken.aggregate_bytes == {paced: 7, free: 0}
    assert keys_in(taken.pieces) == ["ab", "c", "c"]
    for lane in (paced, free, paced):
        taken.pay(lane, 2, 20, 5.0)
    assert taken.paid == {paced: (4, 40)}
    assert paced.pacer is not None
    assert paced.pacer.allowance(5.0)[:2] == (246, 262_144 - 40)


@pytest.mark.parametrize(
    ("bytes_", "entries", "is_full"), [(99, 4, False), (100, 4, True), (101, 4, True), (99, 5, True), (99, 6, True)]
)
def test_a_request_is_full_by_its_bytes_or_its_entries(bytes_: int, entries: int, is_full: bool) -> None:
    taken = Taken(100)
    taken.add(LANES[0], [piece("a").span], bytes_, entries, 0)
    assert taken.is_full(make_rules(request_max_records=5).entries) is is_full


# ---- requests


def test_a_request_that_is_not_sent_yet_has_no_times() -> None:
    request = request_of(piece("ab", 1), piece("c", 2), piece("de", 1))
    assert (request.sent_at, request.timeout_seconds, request.slow, request.timeouts) == (0.0, 0.0, False, 0)
    assert (request.records, request.bytes, request.ends) == (5, 50, [2, 3, 5])
    assert (request.lanes, request.aggregate_bytes) == ((LANES[1], LANES[2]), (7, 7))
    assert [number for number, _ in request.numbered] == [0, 1, 0]
    assert repr(request) == "<Request of 5 rows, 50 bytes, 2 lanes, to be encoded>"
    nothing = np.empty(0, np.int32)
    request.sent(EncodedRequest(b"", "", "", nothing, nothing, nothing, {}), 12.3456, 6.5)
    assert repr(request) == "<Request of 5 rows, 50 bytes, 2 lanes, sent at 12.346>"
    assert (request.sent_at, request.timeout_seconds) == (12.3456, 6.5)
    request.slowed()
    assert request.slow


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 5, ["abc", "de"]),
        (0, 3, ["abc"]),
        (3, 5, ["de"]),
        (1, 2, ["b"]),
        (2, 4, ["c", "d"]),
        (4, 5, ["e"]),
        (0, 0, []),
        (3, 3, []),
        (5, 5, []),
    ],
)
def test_any_of_its_rows_are_found_as_pieces(first: int, last: int, expected: list[str]) -> None:
    assert keys_in(list(request_of(piece("abc"), piece("de", 1)).pieces_of(first, last))) == expected


def test_rows_that_are_left_out_come_back_and_the_others_keep_their_lanes_numbers() -> None:
    request = request_of(piece("abc"), piece("de", 1), piece("f", 2))
    assert request.ends == [3, 5, 6]
    back = request.keep(4)
    assert keys_in(back) == ["e", "f"]
    assert [back_lane for back_lane, _ in back] == [LANES[1], LANES[2]]
    assert keys_in(request.pieces) == ["abc", "d"]
    assert (request.ends, request.records, request.lanes) == ([3, 4], 4, (LANES[0], LANES[1]))


# ---- the first rows of some pieces


@pytest.mark.parametrize(
    ("max_bytes", "first", "others"),
    [
        (100, ["abc", "de", "f"], []),
        (60, ["abc", "de", "f"], []),
        (59, ["abc", "de"], ["f"]),
        (50, ["abc", "de"], ["f"]),
        (49, ["abc", "d"], ["e", "f"]),
        (40, ["abc", "d"], ["e", "f"]),
        (39, ["abc"], ["de", "f"]),
        (20, ["ab"], ["c", "de", "f"]),
        (10, ["a"], ["bc", "de", "f"]),
        (9, ["a"], ["bc", "de", "f"]),
        (0, ["a"], ["bc", "de", "f"]),
    ],
)
def test_the_first_rows_go_up_to_a_number_of_bytes_or_a_single_larger_one(
    max_bytes: int, first: list[str], others: list[str]
) -> None:
    found = first_of([piece("abc"), piece("de", 1), piece("f", 2)], max_bytes)
    assert tuple(map(keys_in, found)) == (first, others)


def test_rows_without_a_byte_go_with_those_that_fill_the_bound() -> None:
    rows = rows_of([(None, b"", None)])
    ((_, empty),) = sorted_of([rows], even_map(1), 1).spans
    pieces = [piece("ab"), Piece(LANES[1], empty)]
    assert first_of(pieces, 20) == (pieces, [])
