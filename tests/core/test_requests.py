"""A request is its rows in the order in which they were taken, and any part of them can be found and cut off."""

from __future__ import annotations

import pytest

from producerd.core.lanes.lane import Lane, Piece
from producerd.core.lanes.taken import Taken
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
        taken.add_rows(lane, [span], span.bytes, span.records, 7)
    return Request(taken, SHARDS)


# ---- rows that are taken


@pytest.mark.parametrize(
    ("bytes_", "entries", "is_full"), [(99, 4, False), (100, 4, True), (101, 4, True), (99, 5, True), (99, 6, True)]
)
def test_a_request_is_full_by_its_bytes_or_its_entries(bytes_: int, entries: int, is_full: bool) -> None:
    taken = Taken(100)
    taken.add_rows(LANES[0], [piece("a").span], bytes_, entries, 0)
    assert taken.is_full(make_rules(request_max_records=5).entries) is is_full


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 5, ["abc", "de"]),
        (0, 3, ["abc"]),
        (3, 5, ["de"]),
        (2, 4, ["c", "d"]),
        (3, 3, []),
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
        (60, ["abc", "de", "f"], []),
        (59, ["abc", "de"], ["f"]),
        (49, ["abc", "d"], ["e", "f"]),
        (39, ["abc"], ["de", "f"]),
        (10, ["a"], ["bc", "de", "f"]),
        (9, ["a"], ["bc", "de", "f"]),
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
