"""Requests in flight bound what may be sent next to them, and a request that is late is recognised."""

from __future__ import annotations

from random import Random

import pytest

from producerd.core.encoding.entries import encode
from producerd.core.lanes.lane import Lane
from producerd.core.lanes.taken import Taken
from producerd.core.sending.answers import RequestFailed
from producerd.core.sending.backoff import RetryPolicy
from producerd.core.sending.in_flight import FAILURES_TO_HOLD, PROBE_SECONDS, SLOW_SECONDS, InFlight
from producerd.core.sending.requests import Request
from producerd.core.shards.shard_map import Shard
from producerd.errors import Code
from tests.core.rows import even_map, rows_of, sorted_of
from tests.simulation.setting import ADDRESS, make_rules


def request_of(bytes_: int, lane: Lane | None = None) -> Request:
    """A request of one row, which counts as this many bytes."""
    shard_map = even_map(1)
    ((_, span),) = sorted_of([rows_of([(b"k", b"d", None)])], shard_map).spans
    taken = Taken()
    taken.add(lane or Lane(shard_map.shards[0], None), [span], bytes_, 1, 0)
    return Request(taken, shard_map)


@pytest.mark.law("RetryPolicy")
def test_what_nothing_waits_for_any_more_counts_against_the_limit_and_not_against_the_window() -> None:
    rules = make_rules(request_max_bytes=1_000, max_in_flight_bytes=10_000, max_in_flight_requests=10)
    in_flight = InFlight(rules, RetryPolicy(Random(1)))
    for bytes_, sent_at in ((70, 0.0), (60, 5.0)):
        request = request_of(bytes_)
        in_flight.start(request)
        request.sent(encode(ADDRESS, request.numbered, rules.entries), sent_at, 60.0)
        in_flight.sent(request)
    unreachable = RequestFailed(Code.UNREACHABLE, "", maybe_stored=False)
    for _ in range(FAILURES_TO_HOLD):
        in_flight.failed(request_of(1), unreachable, 5.0)
    assert in_flight.bytes_left == in_flight.window.bytes - 70 - 60
    in_flight.look(PROBE_SECONDS)
    assert in_flight.bytes_left == in_flight.window.bytes - 60


def test_a_failure_counts_for_some_seconds_or_until_an_answer() -> None:
    in_flight, unreachable = InFlight(make_rules(), RetryPolicy(Random(1))), RequestFailed(Code.UNREACHABLE, "", False)
    assert not in_flight.fails(0.0)
    in_flight.failed(request_of(1), unreachable, 5.0)
    assert in_flight.fails(5.0)
    assert in_flight.fails(5.0 + PROBE_SECONDS - 0.001)
    assert not in_flight.fails(5.0 + PROBE_SECONDS)
    for _ in range(FAILURES_TO_HOLD):
        in_flight.failed(request_of(1), unreachable, 5.0)
    assert in_flight.fails(1_000.0)
    in_flight.answered(request_of(1), 1_000.0)
    assert not in_flight.fails(1_000.0)


@pytest.mark.parametrize(("seconds", "is_late"), [(SLOW_SECONDS - 0.001, False), (SLOW_SECONDS, True)])
def test_an_answer_is_late_from_the_moment_at_which_others_wait_for_it_no_more(seconds: float, is_late: bool) -> None:
    lane = Lane(Shard("s", 0, 2**128 - 1), None)
    in_flight, request = InFlight(make_rules(), RetryPolicy(Random(1))), request_of(1, lane)
    in_flight.start(request)
    lane.slowed()
    in_flight.answered(request, seconds)
    assert lane.alone is is_late
