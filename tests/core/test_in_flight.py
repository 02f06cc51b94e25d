"""Requests in flight bound what may be sent next to them, and a request that is late is recognised."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from producerd.core.encoding.entries import encode
from producerd.core.lanes.lane import Lane
from producerd.core.lanes.taken import Taken
from producerd.core.rules import PipelineRules
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


def limits(max_in_flight_requests: int, request_max_bytes: int = 1_000) -> PipelineRules:
    return make_rules(
        request_max_bytes=request_max_bytes,
        max_in_flight_bytes=10_000,
        max_in_flight_requests=max_in_flight_requests,
    )


def send(in_flight: InFlight, request: Request, now: float) -> None:
    in_flight.start(request)
    request.sent(encode(ADDRESS, request.numbered, make_rules().entries), now, 60.0)
    in_flight.sent(request)


def fail(in_flight: InFlight, requests: int, now: float = 5.0) -> None:
    """Let this many requests fail without having reached the service."""
    for _ in range(requests):
        unreachable = RequestFailed(Code.UNREACHABLE, "", maybe_stored=False)
        in_flight.failed(request_of(1), unreachable, Code.UNREACHABLE, now)


def window_of(in_flight: InFlight, size: int) -> None:
    """Let the window grow from one request to this size."""
    in_flight.window.hold()
    while in_flight.window.size < size:
        in_flight.window.answered(0.02, 6.0)


@pytest.mark.law("RetryPolicy")
def test_what_nothing_waits_for_any_more_counts_against_the_limit_and_not_against_the_window() -> None:
    in_flight = InFlight(limits(10), RetryPolicy(Random(1)))
    for bytes_, sent_at in ((70, 0.0), (60, 5.0)):
        send(in_flight, request_of(bytes_), sent_at)
    fail(in_flight, FAILURES_TO_HOLD)
    assert in_flight.bytes_left == in_flight.window.bytes - 70 - 60
    in_flight.look(PROBE_SECONDS)
    assert in_flight.bytes_left == in_flight.window.bytes - 60
    in_flight.look(5.0 + PROBE_SECONDS)
    assert in_flight.bytes_left == 10_000 - 70 - 60
    assert in_flight.has_room(for_one=True)
    in_flight.set_rules(limits(2))
    assert not in_flight.has_room(for_one=True), "two requests are the limit whatever they hold back"
    in_flight.end(next(iter(in_flight)))
    in_flight.start(request_of(50))
    assert in_flight.bytes_left == in_flight.window.bytes - 50
    assert not in_flight.has_room(for_one=True)


def test_it_is_looked_at_when_a_request_becomes_slow_and_once_when_it_holds_others_back_no_more() -> None:
    in_flight, requests = InFlight(make_rules(), RetryPolicy(Random(1))), [request_of(70), request_of(60)]
    for request, sent_at in zip(requests, (0.0, 5.0), strict=True):
        send(in_flight, request, sent_at)
    in_flight.start(request_of(50))  # which is not encoded yet
    assert in_flight.next_time() == SLOW_SECONDS
    assert in_flight.look(SLOW_SECONDS) == list(requests[0].lanes)
    assert [request.slow for request in requests] == [True, False]
    assert in_flight.next_time() == 5.0 + SLOW_SECONDS
    assert in_flight.look(5.0 + SLOW_SECONDS) == list(requests[1].lanes)
    assert in_flight.next_time() == inf
    fail(in_flight, FAILURES_TO_HOLD)
    assert in_flight.next_time() == PROBE_SECONDS
    assert in_flight.look(PROBE_SECONDS) == list(requests[0].lanes)
    assert in_flight.look(PROBE_SECONDS) == []
    assert [request.lanes[0].overdue_in_flight for request in requests] == [1, 0]
    assert in_flight.next_time() == 5.0 + PROBE_SECONDS


def test_there_is_room_for_one_more_request_within_each_limit_also_after_a_reload() -> None:
    in_flight = InFlight(limits(3), RetryPolicy(Random(1)))
    window_of(in_flight, 2)
    assert in_flight.has_room(for_one=True)
    in_flight.start(request_of(70))
    assert not in_flight.has_room(for_one=True)
    assert in_flight.has_room(for_one=False)
    in_flight.start(request_of(70))
    assert not in_flight.has_room(for_one=False), "the window is full"
    window_of(in_flight, 3)
    in_flight.start(large := request_of(8_860))
    assert not in_flight.has_room(for_one=False), "three requests are the limit"
    in_flight.set_rules(limits(9))
    window_of(in_flight, 9)
    assert in_flight.has_room(for_one=False, row_bytes=1_000)
    assert not in_flight.has_room(for_one=False, row_bytes=1_001)
    in_flight.set_rules(limits(9, request_max_bytes=1_001))
    assert not in_flight.has_room(for_one=False), "a full request has no room"
    in_flight.end(large)
    assert in_flight.request_bytes == 1_001


def test_a_request_is_slow_after_four_times_what_answers_need() -> None:
    in_flight, request = InFlight(make_rules(), RetryPolicy(Random(1))), request_of(1)
    in_flight.answered(request_of(1), 16.0)  # a sixteenth of it counts
    in_flight.answered(request_of(1), 1.0)
    send(in_flight, request, 100.0)
    assert in_flight.next_time() == 104.0


def test_a_failure_counts_for_some_seconds_or_until_an_answer() -> None:
    in_flight = InFlight(make_rules(), RetryPolicy(Random(1)))
    assert not in_flight.fails(0.0)
    assert in_flight.may_send(0.0)
    fail(in_flight, FAILURES_TO_HOLD - 1, 4.0)
    assert not in_flight.nothing_passes
    in_flight.answered(request_of(1), 5.0)
    assert not in_flight.fails(5.0)
    fail(in_flight, FAILURES_TO_HOLD - 1)
    assert in_flight.may_send(5.0)
    assert not in_flight.nothing_passes
    assert [in_flight.fails(5.0 + after) for after in (0.0, PROBE_SECONDS - 0.001, PROBE_SECONDS)] == [
        True,
        True,
        False,
    ]
    fail(in_flight, FAILURES_TO_HOLD)
    assert in_flight.fails(1_000.0)
    assert in_flight.window.size == 1
    assert not in_flight.may_send(5.0)
    in_flight.stop_holding()
    assert in_flight.may_send(0.0)
    in_flight.hold(5.0)
    assert not in_flight.may_send(5.0)
    assert in_flight.may_send(in_flight.hold_until)
    assert in_flight.hold_until == 0.0, "a time that is past hides no later one"
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


@pytest.mark.parametrize(
    ("sent_at", "timed_out", "counts"), [(0.9, True, False), (1.0, True, True), (0.9, False, True)]
)
def test_a_time_out_counts_unless_a_later_request_was_answered_in_time(
    sent_at: float, timed_out: bool, counts: bool
) -> None:
    in_flight, request, prompt = InFlight(make_rules(), RetryPolicy(Random(1))), request_of(1), request_of(1)
    request.sent_at, prompt.sent_at = sent_at, 1.0
    in_flight.answered(prompt, 1.5)
    size = in_flight.window.size
    failed = RequestFailed(Code.UNREACHABLE, "", maybe_stored=True, timed_out=timed_out)
    in_flight.failed(request, failed, Code.UNREACHABLE, 9.0)
    assert in_flight.fails(9.0) is counts
    assert request.lanes[0].silent is timed_out
    assert in_flight.window.size == (size // 2 if counts and timed_out else size)


def test_one_request_of_a_slow_lane_may_always_be_sent_and_no_second_one_in_a_window_of_one() -> None:
    lane, in_flight = Lane(Shard("s", 0, 2**128 - 1), None), InFlight(make_rules(), RetryPolicy(Random(1)))
    in_flight.window.hold()
    assert in_flight.takes_slow
    in_flight.start(request_of(1, lane))
    assert in_flight.takes_slow, "the lane is not slow yet"
    lane.slowed()
    assert not in_flight.takes_slow


def test_a_request_that_was_slow_answers_late_even_if_answers_need_longer_by_now() -> None:
    lane = Lane(Shard("s", 0, 2**128 - 1), None)
    in_flight, request = InFlight(make_rules(), RetryPolicy(Random(1))), request_of(1, lane)
    in_flight.start(request)
    lane.slowed()
    request.slowed()
    in_flight.answered(request, 0.5)
    assert lane.alone
