"""Rows wait no longer than throttles, slow shards and the window require, and expire by their time-to-live.

Every possible duplicate is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from producerd.core.budget import NodeInFlight
from producerd.core.diagnosis import others_have_room
from producerd.core.holding import Holding
from producerd.core.lanes.lane import (
    ENTRY_OVERHEAD_BYTES,
    MAX_REQUESTS_OF_SLOW_LANE,
    MAX_REQUESTS_PER_LANE,
    SLOW_LANE_PAUSE_SECONDS,
    Lane,
)
from producerd.core.lanes.pacing import Pacer
from producerd.core.rows.frame import Frame
from producerd.core.sending.answers import RequestFailed, parse_answer
from producerd.core.sending.backoff import RetryPolicy
from producerd.core.sending.health import HealthState
from producerd.core.sending.in_flight import FAILURES_TO_HOLD, PROBE_SECONDS, SLOW_SECONDS, SLOW_SHARE
from producerd.core.sending.verdicts import WRONG_COUNTS_TO_GIVE_UP
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.errors import Code, Outcome
from tests.core.refusals import serve
from tests.core.rows import even_map
from tests.core.stories import (
    BARE,
    BROKEN,
    GOOD,
    HIGH,
    INVALID,
    LOST,
    LOW,
    ODD,
    REFUSED,
    SLOW_DOWN,
    THROTTLED,
    TIMED_OUT,
    UNSENT,
    Desk,
    Sent,
    ends_of,
    go_on,
    reload,
    spread,
)

pytestmark = pytest.mark.law("Row", "Lane", "RetryPolicy")

SHARD_LIMIT = RequestFailed(THROTTLED, "slow down", maybe_stored=False)
SERVICE_FAULT = RequestFailed("InternalFailure", "500", maybe_stored=True)
TTL = 20.0


# ---- record_ttl_seconds


def sort_and(do: Callable[[Sent], object]) -> Callable[[Desk], None]:
    def move(desk: Desk) -> None:
        desk.sort()
        do(desk.send())

    return move


STAGES: dict[str, tuple[dict[str, Any], Callable[[Desk], None]]] = {
    "filling": ({"linger_seconds": 60.0}, lambda desk: None),
    "sealed": ({}, lambda desk: desk.pipeline.flush("caller")),
    "sealed, and no map": ({"aggregate": True, "shard_map_wait_seconds": 60.0}, lambda desk: desk.sort()),
    "a lane": ({"max_in_flight_requests": 1}, lambda desk: desk.sort()),
    "a lane that holds off": ({}, sort_and(lambda sent: sent.answer([SLOW_DOWN] * 8))),
    "a delay": ({}, sort_and(lambda sent: sent.fail(UNSENT))),
    "a half of its own": ({}, sort_and(lambda sent: sent.fail(INVALID))),
    "a wait for a map": (
        {"aggregate": True, "shard_map_wait_seconds": 60.0},
        sort_and(lambda sent: sent.stored("unknown")),
    ),
}
"""Where rows may be when they expire, with settings that keep them there, and how they get there."""


def staged(stage: str) -> tuple[Desk, Frame]:
    rules, move = STAGES[stage]
    desk = Desk(record_ttl_seconds=TTL, known="no map" not in stage, request_max_records=8, **rules)
    frame = desk.submit([(b"k%d" % i, b"row %d" % i, None) for i in range(8)])
    move(desk)
    return desk, frame


@pytest.mark.parametrize("stage", STAGES)
def test_rows_expire_wherever_they_wait_and_not_before(stage: str) -> None:
    desk, frame = staged(stage)
    start = 100.0
    assert desk.due() <= start + TTL, "the rows are looked at in time"
    desk.now = start + TTL - 0.001
    desk.pipeline.pause()
    assert desk.try_send() is None
    assert not frame.finished
    desk.pipeline.resume()
    desk.now = start + TTL
    assert desk.try_send() is None
    assert desk.finished() == [frame]
    maybe = stage == "a wait for a map"
    expected = (Outcome.UNKNOWN if maybe else Outcome.NOT_STORED, Code.EXPIRED, maybe)
    assert ends_of(frame) == dict.fromkeys(range(8), expected)
    assert desk.stats.failed_records == {Code.EXPIRED: 8}
    assert go_on(desk, []) == 0, "and none is sent after it"
    assert desk.is_empty()
    assert desk.pipeline.next_time() is None


@pytest.mark.parametrize(
    ("failure", "ends"),
    [
        (None, {}),
        (UNSENT, dict.fromkeys(range(5), (Outcome.NOT_STORED, Code.EXPIRED, False))),
        (LOST, dict.fromkeys(range(5), (Outcome.UNKNOWN, Code.EXPIRED, True))),
        (TIMED_OUT, dict.fromkeys(range(5), (Outcome.UNKNOWN, Code.EXPIRED, True))),
    ],
)
def test_rows_that_expire_on_their_way_end_when_their_request_does(
    failure: RequestFailed | None, ends: dict[int, tuple[Outcome, str, bool]]
) -> None:
    desk = Desk(record_ttl_seconds=TTL)
    frame = desk.queue(5)
    sent = desk.send()
    desk.now += TTL + 3
    assert desk.try_send() is None
    assert (frame.finished, desk.pipeline.next_time()) == (False, None), "they are due no more"
    sent.stored() if failure is None else sent.fail(failure)
    assert ends_of(frame) == ends
    assert desk.stats.failed_records == ({Code.EXPIRED: 5} if ends else {})
    assert desk.is_empty()


def test_a_row_that_an_earlier_request_may_have_stored_expires_as_unknown_and_its_mates_do_not() -> None:
    desk = Desk(record_ttl_seconds=TTL, request_max_records=3)
    frame = desk.queue(5)
    first = desk.send()
    second = desk.send()
    first.fail(LOST)
    second.fail(UNSENT)
    desk.now += TTL
    assert desk.try_send() is None
    unknown, not_stored = (Outcome.UNKNOWN, Code.EXPIRED, True), (Outcome.NOT_STORED, Code.EXPIRED, False)
    assert ends_of(frame) == {0: unknown, 1: unknown, 2: unknown, 3: not_stored, 4: not_stored}
    assert desk.is_empty()


def test_a_frame_expires_alone_and_the_younger_ones_of_its_job_are_delivered() -> None:
    desk = Desk(record_ttl_seconds=TTL)
    old = desk.submit(5)
    desk.now += 10
    young = desk.queue(5)
    desk.now = 100.0 + TTL
    sent = desk.send()
    assert old.finished
    assert len(sent.data) == 5
    sent.stored()
    desk.delivered(young)


@pytest.mark.promise("ttl-nothing-dropped")
def test_without_a_ttl_nothing_is_dropped_however_long_it_takes() -> None:
    desk = Desk()
    frame = desk.queue(5)
    for failure in (UNSENT, LOST, TIMED_OUT) * 5:
        desk.now += 86_400
        desk.send().fail(failure)
    desk.now += 86_400
    desk.send().answer([SLOW_DOWN] * 5)
    desk.now += 86_400
    desk.send().answer([BROKEN] * 5)
    desk.now += 86_400
    desk.send().stored()
    assert frame.result().stored == 5
    assert desk.is_empty()


def test_rows_without_a_caller_expire_too_and_nobody_is_told() -> None:
    desk = Desk(record_ttl_seconds=TTL)
    frame = desk.queue(5)
    desk.pipeline.disown("caller")
    desk.now += TTL
    assert desk.try_send() is None
    assert frame.finished
    assert desk.finished() == []
    assert desk.is_empty()


# ---- on_throttle = "fail"


@pytest.mark.promise("ttl-nothing-dropped")
def test_throttled_rows_fail_where_that_is_wanted_and_their_mates_are_stored() -> None:
    desk = Desk(fail_if_throttled=True)
    frame = desk.queue(5)
    desk.send().answer([GOOD, SLOW_DOWN, GOOD, SLOW_DOWN, GOOD])
    not_stored = (Outcome.NOT_STORED, Code.THROTTLED, False)
    assert ends_of(frame) == {1: not_stored, 3: not_stored}
    assert (frame.result().stored, frame.result().throttled) == (3, 2)
    assert "Rate exceeded" in frame.result().codes[0].message
    assert desk.stats.failed_records == {Code.THROTTLED: 2}
    assert desk.is_empty()


def test_the_last_error_is_forgotten_when_a_request_is_stored_whole() -> None:
    """Otherwise a caller would get the error of an outage of long ago."""
    desk = Desk()
    desk.put(2).answer([GOOD, BROKEN])
    assert desk.stats.last_error == "InternalFailure: m"
    desk.put(3).answer([GOOD] * 3)
    assert desk.stats.last_error == ""


@pytest.mark.parametrize(
    ("rules", "answers", "end"),
    [
        ({"aggregate": True}, [lambda sent: sent.throttle({0})], (Outcome.NOT_STORED, Code.THROTTLED, False)),
        ({}, [lambda sent: sent.fail(SHARD_LIMIT)], (Outcome.NOT_STORED, Code.THROTTLED, False)),
        (
            {},
            [lambda sent: sent.fail(LOST), lambda sent: sent.throttle({*range(5)})],
            (Outcome.UNKNOWN, Code.THROTTLED, True),
        ),
    ],
    ids=["in an aggregate", "by a whole request", "that may have been stored before"],
)
def test_all_throttled_rows_fail_where_that_is_wanted(
    rules: dict[str, Any], answers: list[Callable[[Sent], object]], end: tuple[Outcome, str, bool]
) -> None:
    desk = Desk(fail_if_throttled=True, **rules)
    frame = desk.queue(5)
    for answer in answers:
        answer(desk.send())
        desk.now += 6
    assert ends_of(frame) == dict.fromkeys(range(5), end)
    assert desk.is_empty()


def test_other_failures_and_whole_requests_that_are_throttled_are_tried_again_all_the_same() -> None:
    """The setting is about a shard's rate; a whole request meets the account's."""
    desk = Desk(fail_if_throttled=True)
    frame = desk.queue(2)
    desk.send().answer([BROKEN, GOOD])
    desk.send_when_due().fail(RequestFailed("ThrottlingException", "slow down", maybe_stored=False))
    desk.send_when_due().stored()
    desk.delivered(frame)


# ---- possible duplicates


CAUSES: dict[str, Callable[[Sent], object]] = {
    "timeout": lambda sent: sent.fail(TIMED_OUT),
    "connection": lambda sent: sent.fail(LOST),
    "service": lambda sent: sent.fail(SERVICE_FAULT),
    "result_count": lambda sent: sent.answer([GOOD] * 4),
}
NOT_STORED: dict[str, Callable[[Sent], object]] = {
    "refused connection": lambda sent: sent.fail(UNSENT),
    "throttled request": lambda sent: sent.fail(RequestFailed("ThrottlingException", "slow down", maybe_stored=False)),
    "throttled rows": lambda sent: sent.answer([SLOW_DOWN] * 5),
    "failed rows": lambda sent: sent.answer([BROKEN] * 5),
}


def test_rows_of_two_frames_between_others_that_are_sent_again_are_counted_each_by_its_own_frame() -> None:
    """Stored in several runs, throttled, and stored where an earlier copy may be."""
    desk = Desk()
    frames = [desk.submit(5), desk.queue(5)]
    unreadable = [{"ShardId": ""} if i in (6, 7, 8) else GOOD for i in range(10)]
    sent = desk.send()
    sent.answer([SLOW_DOWN if i in (1, 2, 5) else result for i, result in enumerate(unreadable)])
    assert [frame.unsettled for frame in frames] == [2, 4]
    assert sum(desk.stats.delivery_seconds.counts) == 4
    while not desk.is_empty():
        desk.send_when_due().stored()
    assert desk.finished() == frames
    results = [frame.result() for frame in frames]
    counted = [(each.stored, each.throttled, each.possible_duplicates, each.retries) for each in results]
    assert counted == [(5, 2, 0, 2), (5, 1, 3, 4)]
    assert sum(desk.stats.delivery_seconds.counts) == 10


@pytest.mark.promise("rows-stored-before-told", "send-stored-row-counts")
@pytest.mark.parametrize(
    ("failures", "copies"),
    [
        *(([cause], {cause: 5}) for cause in CAUSES),
        (["connection", "timeout", "refused connection", "connection"], {"connection": 10, "timeout": 5}),
        (["refused connection", "throttled request", "throttled rows", "failed rows"], {}),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, list) else "",
)
def test_each_send_that_may_have_stored_a_row_counts_as_a_copy_of_it_by_its_cause(
    failures: list[str], copies: dict[str, int]
) -> None:
    desk = Desk()
    frame = desk.queue(5)
    for failure in failures:
        (CAUSES | NOT_STORED)[failure](desk.send_when_due())
        desk.now += 6
    desk.store_all()
    assert +desk.stats.possible_duplicate_records == copies
    assert frame.result().retries == 5 * len(failures)
    desk.delivered(frame, copies=sum(copies.values()))


@pytest.mark.promise("refusal-kinesis-itself")
def test_a_row_whose_result_nobody_can_read_may_be_stored_and_its_mates_are_not_sent_again() -> None:
    desk = Desk()
    frame = desk.queue(3)
    desk.send().answer([GOOD, {"ShardId": ""}, BROKEN])
    desk.now += 6
    (again,) = desk.send_all()
    assert len(again.entries) == 2
    again.stored()
    assert +desk.stats.possible_duplicate_records == {"service": 1}
    assert frame.result().possible_duplicates == 1
    assert desk.is_empty()


def test_a_row_whose_result_nobody_can_ever_read_ends_unknown() -> None:
    """Each send may store one more copy of it.  A result that can be read begins the count again."""
    desk = Desk()
    frame = desk.queue(1)
    unreadable = {"ShardId": ""}
    for result in [*[unreadable] * 9, SLOW_DOWN, *[unreadable] * 10]:
        assert not frame.finished
        desk.send().answer([result])
        desk.now += 6
    assert ends_of(frame) == {0: (Outcome.UNKNOWN, Code.RESULT_COUNT, True)}
    assert desk.is_empty()


def test_rows_that_are_sent_again_in_halves_or_in_json_count_as_retried() -> None:
    desk = Desk(wire_format="cbor")
    refused = desk.queue(3)
    desk.send().fail(RequestFailed("SerializationException", "what is this?", maybe_stored=False, status=400))
    desk.send().stored()
    assert refused.result().retries == 3
    halved = desk.queue(2)
    desk.send().fail(INVALID)
    for sent in desk.send_all():
        sent.stored()
    assert halved.result().retries == 2
    assert desk.stats.retried_records == 5


@pytest.mark.promise("last-send-row-ends-unknown", "answers-wrong-number")
def test_answers_with_the_wrong_number_of_results_end_unknown_at_the_third() -> None:
    """The last send makes no surplus copy: one copy of the row is what its caller wants."""
    desk = Desk()
    frame = desk.queue(5)
    for _ in range(WRONG_COUNTS_TO_GIVE_UP):
        assert not frame.finished
        desk.send().answer([GOOD] * 4)
        desk.now += 6
    assert ends_of(frame) == dict.fromkeys(range(5), (Outcome.UNKNOWN, Code.RESULT_COUNT, True))
    assert +desk.stats.possible_duplicate_records == {"result_count": 10}
    assert frame.result().possible_duplicates == 10
    assert WRONG_COUNTS_TO_GIVE_UP == 3
    assert desk.is_empty()


@pytest.mark.promise("aggregate-awaits-map")
@pytest.mark.parametrize(
    ("new_map", "copies"),
    [
        ([Shard("child", 0, MAX_HASH_KEY)], {"connection": 5}),
        ([Shard("child", 0, 2**127 - 1), Shard("sibling", 2**127, MAX_HASH_KEY)], {"connection": 5, "reshard": 5}),
    ],
    ids=["delivered", "strayed"],
)
def test_an_aggregate_that_awaits_a_map_makes_what_was_sent_before_it_a_copy(
    new_map: list[Shard], copies: dict[str, int]
) -> None:
    """Whatever the map then says of the aggregate."""
    desk = Desk(even_map(1), aggregate=True)
    frame = desk.queue([(b"k", b"%d" % row, HIGH) for row in range(5)])
    desk.send().fail(LOST)
    desk.send_when_due().stored("child")
    desk.set_map(ShardMap(new_map))
    for sent in desk.send_all():
        sent.stored("sibling")
    assert +desk.stats.possible_duplicate_records == copies
    assert (frame.result().stored, frame.result().possible_duplicates) == (5, sum(copies.values()))


# ---- shards that are slow


def lanes_of(sent: Sent) -> set[str]:
    return {lane.shard.shard_id for lane in sent.request.lanes}


def two_lanes(rows: int = 400, **rules: Any) -> Desk:
    desk = Desk(even_map(2), request_max_records=20, **rules)
    desk.queue([(b"k", b"%d" % i, LOW if i % 2 else HIGH) for i in range(rows)])
    return desk


def test_somebody_looks_when_a_request_has_been_out_for_long() -> None:
    """Not its answer decides, which may come a minute later: the lanes' other rows would wait with it."""
    desk = two_lanes(10)
    sent = desk.send()
    assert desk.pipeline.next_time() == sent.request.sent_at + SLOW_SECONDS
    desk.now += SLOW_SECONDS
    assert desk.try_send() is None
    assert desk.pipeline.next_time() is None
    sent.stored_as_predicted()
    assert desk.is_empty()


def test_a_slow_lane_has_more_on_its_way_and_each_request_waits_to_be_full() -> None:
    """Else a shard that answers late would not get its rows: 4 requests in 6 s."""
    desk = Desk(request_max_records=20)
    desk.open_window()
    desk.queue(1_000)
    assert len(desk.send_all()) == MAX_REQUESTS_PER_LANE == 4
    start = desk.now
    desk.now += SLOW_SECONDS
    sent = 0
    while desk.now < start + 20:
        requests = desk.send_all()
        assert len(requests) <= 1
        sent += len(requests)
        desk.now += SLOW_LANE_PAUSE_SECONDS / 2
    assert MAX_REQUESTS_PER_LANE < MAX_REQUESTS_PER_LANE + sent == MAX_REQUESTS_OF_SLOW_LANE


def test_slow_lanes_leave_the_others_a_part_of_the_window() -> None:
    most = 8
    desk = Desk(even_map(8), request_max_records=5, max_in_flight_requests=most)
    edges = [b"%d" % shard.start for shard in even_map(8).shards]
    for edge in edges[:6]:
        desk.submit([(b"k", b"slow", edge)] * 50)
    desk.sort()
    desk.open_window()
    first = desk.send_all()
    assert len(first) == most
    desk.now += SLOW_SECONDS
    assert desk.try_send() is None
    for sent in first[:4]:
        sent.stored_as_predicted()
    desk.now += 1
    desk.queue([(b"k", b"quick", edges[7])] * 5)
    more = desk.send_all()
    assert [set(sent.data) for sent in more] == [{b"quick"}], "four slow ones are on their way"
    more[0].stored_as_predicted()
    assert desk.try_send() is None
    first[4].stored_as_predicted()
    assert set(desk.send().data) == {b"slow"}, "and none of them is forgotten"
    assert most * SLOW_SHARE == 4


def test_a_shard_that_hangs_neither_holds_the_stream_nor_shrinks_its_window() -> None:
    """Others were answered meanwhile: it is not the way there."""
    desk = Desk(even_map(2), request_max_records=5)
    desk.open_window()
    desk.queue([(b"k", b"hangs", LOW)] * 40)
    hanging = desk.send_all()
    assert len(hanging) >= 3
    desk.submit([(b"k", b"good", HIGH)] * 40)
    desk.now += 0.1
    desk.sort()
    size = desk.pipeline.sender.in_flight.window.size
    sent = desk.send()
    assert b"good" in sent.data
    desk.now += 0.02
    sent.stored_as_predicted()
    desk.now += 8
    for sent in hanging:
        sent.fail(TIMED_OUT)
    assert desk.pipeline.sender.in_flight.window.size >= size
    assert desk.holds_until <= desk.now


@pytest.mark.parametrize(
    ("failure", "answered_after", "counts"),
    [(TIMED_OUT, None, True), (TIMED_OUT, 0.0, True), (TIMED_OUT, 0.1, False), (LOST, 0.1, True)],
    ids=["nothing is answered", "one sent at once is answered", "a later one is answered", "but the others were lost"],
)
def test_time_outs_hold_the_stream_unless_a_later_request_was_answered_in_time(
    failure: RequestFailed, answered_after: float | None, counts: bool
) -> None:
    desk = Desk(even_map(8), request_max_records=5)
    desk.open_window()
    desk.queue([(b"key %d" % i, b"d", None) for i in range(200)])
    first, *others = [desk.send() for _ in range(FAILURES_TO_HOLD)]
    if answered_after is not None:
        desk.now += answered_after
        desk.send().stored_as_predicted()
    window = desk.pipeline.sender.in_flight.window
    size = window.size
    desk.now += 8
    first.fail(failure)
    assert window.size == (size // 2 if counts and failure is TIMED_OUT else size)
    for sent in others:
        sent.fail(failure)
    assert (desk.holds_until > desk.now, window.size == 1) == (counts, counts)


@pytest.mark.parametrize(("seconds", "alone"), [(SLOW_SECONDS - 0.001, False), (SLOW_SECONDS, True)])
def test_an_answer_is_late_from_the_moment_at_which_others_wait_for_it_no_more(seconds: float, alone: bool) -> None:
    desk = Desk()
    desk.put(1)
    desk.now += SLOW_SECONDS
    assert desk.try_send() is None
    sent = desk.put(1)
    desk.now += seconds
    sent.stored()
    assert desk.lane.alone is alone, "its first request is slow"


def test_a_request_is_slow_after_four_times_what_answers_need() -> None:
    desk = Desk()
    for seconds in (16.0, 1.0):  # a sixteenth of each counts
        sent = desk.put(1)
        desk.now += seconds
        sent.stored()
    desk.put(1)
    assert desk.due() == pytest.approx(desk.now + 4.0)


def test_a_request_that_was_slow_answers_late_even_if_answers_need_longer_by_now() -> None:
    desk = Desk(even_map(2))
    long = desk.put([(b"k", b"d", LOW)])
    desk.now += 40.0
    sent = desk.put([(b"k", b"d", HIGH)])
    desk.now += SLOW_SECONDS
    assert desk.try_send() is None
    long.stored_as_predicted()
    sent.stored_as_predicted()
    assert sent.request.lanes[0].alone


@pytest.mark.parametrize("limit", ["requests", "bytes"])
def test_while_nothing_passes_what_is_out_for_long_holds_up_no_other_and_counts_for_the_limits(limit: str) -> None:
    desk = Desk(even_map(8), request_max_records=1, request_max_bytes=1_000)
    desk.open_window()
    first = desk.put(spread(16))
    desk.now += 2.0
    second, *failing = [desk.send() for _ in range(1 + FAILURES_TO_HOLD)]
    for sent in failing:
        sent.fail(UNSENT)
    desk.now = max(desk.now, desk.holds_until)
    for request in (first.request, second.request):
        assert desk.try_send() is None
        assert desk.due() == request.sent_at + PROBE_SECONDS
        desk.now = desk.due()
    full, room = {
        "requests": ({"max_in_flight_requests": 2}, {"max_in_flight_requests": 3}),
        "bytes": [{"max_in_flight_bytes": desk.pipeline.sender.in_flight.bytes + more} for more in (999, 1_000)],
    }[limit]
    reload(desk, **full)
    assert desk.try_send() is None
    reload(desk, **room)
    assert len(desk.send_all()) == 1, "a new one, which counts"
    first.fail(UNSENT)
    desk.now = desk.holds_until
    assert desk.try_send() is None, "the new one counts on"


def test_after_an_outage_a_request_that_is_out_for_long_takes_nothing_of_the_window() -> None:
    desk = Desk(even_map(8), request_max_records=1, request_max_bytes=1_000, max_in_flight_bytes=24_000)
    desk.open_window()
    desk.queue([(b"key %d" % i, b"x" * 900, None) for i in range(20)])
    first, *failing = [desk.send() for _ in range(1 + FAILURES_TO_HOLD)]
    for sent in failing:
        sent.fail(UNSENT)
    desk.now = first.request.sent_at + PROBE_SECONDS
    (single,) = desk.send_all()
    single.stored_as_predicted()
    assert len(desk.send_all()) == 2, "the window has doubled"


def test_after_an_outage_what_was_sent_in_it_waits_no_longer_than_a_first_attempt() -> None:
    desk = Desk(even_map(8), request_max_records=1)
    desk.put(spread(16)).fail(TIMED_OUT)
    while not desk.in_outage():
        desk.send_when_due().fail(TIMED_OUT)
    while not (lost := desk.send_when_due()).request.timeouts:
        lost.fail(TIMED_OUT)
    long_seconds = lost.request.timeout_seconds
    passing, later = desk.send_when_due(), desk.send_when_due()
    assert passing.stored_as_predicted() == [lost.request]
    assert 1.9 * lost.request.timeout_seconds < long_seconds < later.request.timeout_seconds * 2.1
    assert later.stored_as_predicted() == []


# ---- when to look again


def test_while_the_stream_holds_a_lane_whose_time_has_come_hides_nothing() -> None:
    """Nothing is in flight then, and no answer would bring anybody to look."""
    desk = Desk(even_map(8), request_max_records=5)
    first = desk.put([(b"key %d" % i, b"d", None) for i in range(200)])
    first.answer([SLOW_DOWN] * len(first.entries))
    for sent in desk.send_all():
        sent.fail(UNSENT)
    start = desk.now
    while desk.pipeline.queued_records and desk.now < start + 600:
        for sent in desk.send_all():
            if desk.now < start + 60:
                sent.fail(UNSENT)
            else:
                sent.stored_as_predicted()
        due = desk.pipeline.next_time()
        if due is not None:
            assert due > desk.now, "a pipeline never waits for a time that has passed"
            desk.now = due
    assert not desk.pipeline.queued_records


def test_while_the_stream_holds_its_end_is_named_and_not_a_lane_s_time_before_it() -> None:
    desk = Desk()
    desk.put(5).answer([SLOW_DOWN] * 5)
    assert desk.try_send() is None
    due = desk.due()
    desk.hold(due + 2.0)
    assert desk.pipeline.next_time() == due + 2.0
    desk.now = due
    assert desk.try_send() is None
    assert desk.pipeline.next_time() == due + 2.0
    desk.now = due + 2.0
    desk.send().stored()
    assert desk.is_empty()


def test_a_full_window_hides_no_expiry_and_no_batch_that_lingers() -> None:
    """The pipeline must not wait for a time that has passed."""
    desk = Desk(
        even_map(2), record_ttl_seconds=TTL, max_in_flight_requests=1, request_max_records=2, linger_seconds=0.5
    )
    desk.put([(b"k", b"%d" % i, LOW) for i in range(4)]).answer([SLOW_DOWN] * 2)  # its lane waits for a time
    desk.put([(b"k", b"%d" % i, HIGH) for i in range(4)])  # and nothing else may go with it
    desk.now += 0.9
    assert desk.try_send() is None
    assert desk.now < desk.due() <= 100.0 + TTL
    desk.submit(1)
    assert desk.now < desk.due() <= desk.now + 0.5


# ---- the window in bytes


def test_the_window_in_bytes_lets_single_large_rows_go_one_by_one() -> None:
    """A row larger than what may be in flight goes when nothing else is."""
    desk = Desk(even_map(2), max_in_flight_bytes=100_000, request_max_bytes=50_000)
    frame = desk.queue([(b"k", b"x" * 300_000, LOW), (b"k", b"y" * 300_000, HIGH), (b"k", b"small", LOW)])
    for _ in range(3):
        sents = desk.send_all()
        assert len(sents) == 1
        assert desk.pipeline.sender.in_flight.bytes <= 100_000 or len(sents[0].entries) == 1
        sents[0].stored_as_predicted()
        desk.now += 2
    assert frame.finished
    assert desk.is_empty()


@pytest.mark.parametrize("missing", [0, 1])
def test_a_large_row_goes_next_to_others_if_the_window_has_exactly_its_bytes(missing: int) -> None:
    desk = Desk(even_map(2), request_max_bytes=1_000)
    desk.open_window()
    desk.put([(b"k", b"small", LOW)])
    desk.queue([(b"k", b"x" * 2_000, HIGH)])
    reload(desk, max_in_flight_bytes=desk.pipeline.sender.in_flight.bytes + 1 + 2_000 + ENTRY_OVERHEAD_BYTES - missing)
    desk.open_window()
    assert len(desk.send_all()) == (0 if missing else 1)


# ---- faults of the service, and answers that are not its


@pytest.mark.promise("many-records-make-service")
@pytest.mark.parametrize("status", [500, 400, 403, 413])
@pytest.mark.parametrize("aggregate", [False, True])
def test_a_record_that_makes_the_service_fail_does_not_sink_its_mates(status: int, aggregate: bool) -> None:
    """A row that a proxy refuses ends after the grace, and one for which Kinesis fails is sent forever."""
    desk = Desk(even_map(2), aggregate=aggregate)
    frame = desk.queue([(b"k%d" % i, b"bad" if i == 70 else b"row", None) for i in range(200)])
    failed = RequestFailed(str(status), "m", maybe_stored=True, status=status)
    seconds = serve(desk, lambda sent: failed if b"bad" in sent.users else None, frame)
    assert frame.tallies[Outcome.STORED] == 199
    assert frame.finished is (status < 500)
    if frame.finished:
        assert seconds < 60.0 + 6.0
        assert ends_of(frame) == {70: (Outcome.UNKNOWN, Code.PROXY_REFUSED, True)}
        assert not frame.result().judged


@pytest.mark.promise("many-records-make-service")
def test_many_records_that_make_the_service_fail_do_not_hold_the_stream() -> None:
    """Known ones stand at the end of their lane, and say nothing of the stream while others are answered."""
    desk = Desk(even_map(1), limit_records=100_000)
    bad = {b"row %d" % i for i in range(0, 10_000, 1_000)}

    def answer(sent: Sent) -> RequestFailed | None:
        return SERVICE_FAULT if bad & set(sent.users) else None

    frame, seconds = desk.queue(10_000), 0.0
    while frame.tallies[Outcome.STORED] < 9_990:
        seconds += serve(desk, answer, frame, seconds=0.1)
        assert seconds < 60.0
    for _ in range(50):
        good = desk.queue([(b"k", b"good", None)])
        assert serve(desk, answer, good) < 1.0, "a bad one or two may stand before it"
        assert not desk.pipeline.sender.in_flight.nothing_passes
        desk.now += 1.0


@pytest.mark.parametrize(
    ("failure", "is_given_back"),
    [
        (INVALID, True),
        (RequestFailed("SerializationException", "", maybe_stored=False, status=400), True),
        (RequestFailed("413", "Request Entity Too Large", maybe_stored=False, status=413), True),
        (RequestFailed("413", "Request Entity Too Large", maybe_stored=True, status=413), False),
    ],
)
def test_what_a_refused_request_took_of_its_pace_comes_back_only_if_surely_nothing_was_stored(
    failure: RequestFailed, is_given_back: bool
) -> None:
    desk = Desk(shard_rate_fraction=1.0, wire_format="cbor")
    desk.queue([(b"k", b"x" * 10_000, None)] * 20)
    before = desk.allowances()
    sent = desk.send()
    taken = desk.allowances()
    assert taken != before
    sent.fail(failure)
    assert desk.allowances() == (before if is_given_back else taken)


@pytest.mark.promise("answers-service-borne")
def test_answers_that_are_not_the_service_s_are_borne_longer_than_wrong_counts() -> None:
    """A proxy's page says nothing of what is stored; but nothing may be stored without end."""
    desk = Desk()
    frame = desk.queue(5)
    rows_sent = 0

    def answer(sent: Sent) -> RequestFailed:
        nonlocal rows_sent
        rows_sent += len(sent.entries)
        failed = parse_answer(b"<html>Sorry</html>", len(sent.entries))
        assert isinstance(failed, RequestFailed)
        return failed

    assert serve(desk, answer, frame) > 15.0
    assert rows_sent == 5 * 10
    assert set(ends_of(frame).values()) == {(Outcome.UNKNOWN, Code.RESULT_COUNT, True)}
    assert desk.stats.record_errors == {Code.SERVICE_FAULT: 50}


# ---- what holds the queue


def holding_of(desk: Desk) -> tuple[str, str]:
    cause, shard_id, *_ = desk.holding()
    return cause, shard_id


def test_what_holds_the_queue_is_named_by_its_cause() -> None:
    desk = Desk(even_map(4))
    assert holding_of(desk) == ("daemon", "")
    desk.queue(100)
    assert holding_of(desk) == ("daemon", ""), "it has rows that may be sent, and does not send them"

    desk = Desk(even_map(4), max_in_flight_requests=1, request_max_records=10)
    desk.put(100)
    assert holding_of(desk) == ("in_flight", "")
    assert sum(state.in_flight for state in desk.pipeline.diagnosis.shards(desk.now)) == 1

    desk = Desk(known=False, aggregate=True)
    desk.submit(10)
    desk.pipeline.flush("caller")
    assert desk.pipeline.take_job(desk.now) is None
    assert holding_of(desk) == ("shard_map", "")

    desk = Desk(even_map(4), request_max_records=10)
    desk.queue(100)
    for sent in desk.send_all():
        sent.fail(UNSENT)
    assert holding_of(desk) == ("service", "")


def test_a_shard_that_holds_more_than_its_share_is_named_with_it() -> None:
    desk = Desk(even_map(4), request_max_records=10)
    desk.queue([(b"k", b"x" * 100, LOW)] * 90 + [(b"k", b"x" * 100, HIGH)] * 20)
    for sent in desk.send_all():
        sent.answer([SLOW_DOWN] * len(sent.entries))
    cause, shard_id, share, *_ = desk.holding()
    assert (cause, shard_id) == ("hot_shard", "shard-0")
    assert 0.7 < share < 0.95
    hot, *others = desk.pipeline.diagnosis.shards(desk.now)
    assert (hot.share, hot.waiting_records, hot.waits_for, hot.backs_off) == (share, 90, "pace", True)
    assert [state.waiting_records for state in others] == [0, 0, 20]
    assert desk.pipeline.diagnosis.backing_off(desk.now) == 2
    assert desk.pipeline.diagnosis.most_used(desk.now) == 0.0, "nothing was stored"


@pytest.mark.promise("shard-answer-ticket")
def test_a_shard_that_does_not_answer_is_not_hot_however_much_waits_for_it() -> None:
    """It would take more, so its records wait for answers and not for its quota.  The other shards have room."""
    desk = Desk(even_map(4), shard_rate_fraction=1.0, request_max_records=10)
    desk.queue([(b"k", b"x" * 100, LOW)] * 90)
    assert desk.send_all()
    assert holding_of(desk) == ("in_flight", "")
    assert desk.holding().held_by == "other"


@pytest.mark.promise("shard-answer-ticket")
def test_shards_are_silent_from_a_time_out_to_the_next_answer() -> None:
    desk = Desk(even_map(4), request_max_records=10)
    desk.queue([(b"k", b"x", LOW)] * 5)
    assert desk.pipeline.diagnosis.silent_shards == 0
    desk.send().fail(TIMED_OUT)
    assert desk.pipeline.diagnosis.silent_shards == 1
    desk.now += 60.0
    again = desk.send()
    assert desk.pipeline.diagnosis.silent_shards == 1
    again.stored()
    assert desk.pipeline.diagnosis.silent_shards == 0


def test_a_shard_for_which_no_row_is_left_is_not_silent() -> None:
    """Nothing asks it again, so it would be silent until its stream closes."""
    desk = Desk(even_map(4), request_max_records=10, record_ttl_seconds=5.0)
    desk.put([(b"k", b"x", LOW)] * 5).fail(TIMED_OUT)
    assert desk.pipeline.diagnosis.silent_shards == 1
    desk.now += 60.0
    assert desk.try_send() is None
    assert desk.is_empty()
    assert desk.pipeline.diagnosis.silent_shards == 0
    (lane,) = [lane for lane in desk.pipeline.sender.lanes if lane.silent]
    lane.put_aside()
    assert desk.pipeline.diagnosis.silent_shards == 1, "a row waits for a request of its own"
    lane.take_up()
    desk.queue([(b"k", b"x", LOW)] * 5)
    assert desk.pipeline.diagnosis.silent_shards == 1, "there is a row for it again, and it has not answered yet"


@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize(("use", "throttled"), [(0.0, True), (0.79, True), (0.8, False), (1.0, False)])
def test_shards_that_throttle_though_we_send_less_than_they_take_have_others_who_write_to_them(
    monkeypatch: pytest.MonkeyPatch, hot: bool, use: float, throttled: bool
) -> None:
    """One that throttles at its quota is not told apart from one that is paced to it."""
    monkeypatch.setattr(Pacer, "use", lambda *_: use)
    desk = Desk(even_map(4), request_max_records=10)
    shards = even_map(4).shards[: 1 if hot else 4]
    desk.queue([(b"k", b"x" * 100, b"%d" % shard.start) for shard in shards for _ in range(40)])
    for sent in desk.send_all():
        sent.answer([SLOW_DOWN] * len(sent.entries))
    holding = desk.holding()
    assert (holding.cause, holding.throttled) == ("hot_shard" if hot else "shard_rate", throttled)
    assert holding.held_by == ("throttles" if throttled else "quota")


def test_a_paced_lane_that_uses_more_than_the_fullest_one_counts_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(even_map(4))
    desk.queue([(b"k", b"x", b"%d" % shard.start) for shard in even_map(4).shards[:2]])
    lanes = desk.pipeline.sender.lanes
    full, other = lanes
    uses = {full.pacer: 0.3, other.pacer: 1.0}
    monkeypatch.setattr(Pacer, "use", lambda pacer, _now: uses[pacer])
    for is_paced in (False, True):
        monkeypatch.setattr(Lane, "is_paced", lambda *_, is_paced=is_paced: is_paced)
        assert not others_have_room(lanes, full, desk.now)


def test_rows_wait_as_long_as_the_one_among_them_that_was_sent_most_often(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def delay(_: RetryPolicy, attempts: int) -> float:
        asked.append(attempts)
        return 1.0

    monkeypatch.setattr(RetryPolicy, "delay", delay)
    desk = Desk(max_in_flight_requests=1)
    desk.put(1).fail(UNSENT)
    desk.queue(1)
    desk.now += 2.0
    sent = desk.send()
    assert sorted(span.attempts for span in sent.request.spans) == [0, 1]
    sent.fail(UNSENT)
    assert asked == [0, 1]


@pytest.mark.parametrize(("records", "halves"), [(14, [6, 8]), (24, [12, 12]), (5, [2, 3])])
def test_a_refused_request_is_halved_by_its_entries_or_one_entry_by_its_rows(records: int, halves: list[int]) -> None:
    """Else the rows of one aggregate would be sent in two halves, and each half would hold what was refused."""
    desk = Desk(aggregate=True, aggregate_max_records=6, request_max_records=50)
    desk.put(records).fail(INVALID)
    assert [again.request.records for again in desk.send_all()] == halves


# ---- what holds the queue, one cause at a time


def paced(rows: int, size: int, taken: int) -> Desk:
    """One shard's lane that has sent this many rows of its first second's 250, or 256 KiB."""
    desk = Desk(shard_rate_fraction=1.0, request_max_records=taken)
    desk.queue([(b"k", b"x" * size, None)] * rows)
    assert len(desk.send().entries) == taken
    return desk


def test_a_lane_that_may_send_and_is_held_back_by_its_pace_names_what_it_has_less_of() -> None:
    assert paced(400, 10, 150).pipeline.diagnosis.holding(100.0) == Holding("shard_rate", by_records=True)
    assert paced(40, 10_000, 15).pipeline.diagnosis.holding(100.0) == Holding("shard_rate")
    assert paced(400, 10, 100).pipeline.diagnosis.holding(100.0) == Holding("daemon")


def test_one_failed_request_is_the_cause_for_six_seconds() -> None:
    desk = Desk(max_in_flight_requests=1)
    desk.put(5).fail(UNSENT)
    for now, cause in ((100.0, "service"), (105.999, "service"), (106.0, "daemon")):
        assert desk.pipeline.diagnosis.holding(now) == Holding(cause)  # type: ignore[arg-type]
    desk.put(1).stored()
    assert desk.holding() == Holding("daemon"), "an answer ends it"


def test_a_stream_that_is_refused_is_held_by_the_service_until_something_is_stored() -> None:
    desk = Desk()
    desk.put(1).stored()
    desk.put(1).fail(REFUSED)
    assert desk.health is HealthState.SUSPECT
    hold_until = desk.holds_until
    assert desk.now < hold_until < desk.now + 5.0
    for now in (desk.now, hold_until, hold_until + 100.0):
        assert desk.pipeline.diagnosis.holding(now) == Holding("service")
    desk.pipeline.health.forget_refusal()
    assert desk.pipeline.diagnosis.holding(hold_until - 0.001) == Holding("service"), "it still waits"
    assert desk.pipeline.diagnosis.holding(hold_until) == Holding("daemon")
    desk = Desk()
    desk.put(1).fail(REFUSED)
    assert desk.health is HealthState.BROKEN
    assert desk.pipeline.diagnosis.holding(desk.now + 100.0) == Holding("service")


def test_a_lane_waits_for_a_map_until_its_time_and_for_answers_after_it() -> None:
    desk = Desk(aggregate=True, request_max_records=1, aggregate_max_records=1)
    desk.queue(10)
    assert len(desk.send_all()) == MAX_REQUESTS_PER_LANE
    assert desk.holding() == Holding("in_flight")
    lane = desk.lane
    lane.await_map(desk.now + 1.0)
    assert desk.pipeline.diagnosis.holding(desk.now + 0.9) == Holding("shard_map")
    assert desk.pipeline.diagnosis.holding(desk.now + 1.0) == Holding("in_flight")


def test_where_the_shards_are_unknown_throttles_show_that_they_are_too_few() -> None:
    desk = Desk(known=False)
    desk.map_failed("AccessDeniedException", "no")
    desk.put(10).answer([SLOW_DOWN] * 10)
    assert desk.holding() == Holding("shard_rate", throttled=True)


@pytest.mark.parametrize(
    ("shards", "rows", "throttled", "expected"),
    [
        (3, (40, 40), 1, Holding("hot_shard", "shard-0", 0.5, throttled=True)),
        (3, (49, 50), 1, Holding("daemon")),
        (3, (40, 40, 1), 1, Holding("shard_rate", throttled=True)),
        (4, (34, 33, 33), 1, Holding("shard_rate", throttled=True)),
        (2, (90, 10), 2, Holding("shard_rate", throttled=True)),
        (2, (90, 10), 1, Holding("hot_shard", "shard-0", 0.9, throttled=True)),
    ],
)
def test_a_shard_is_hot_from_half_as_much_again_as_its_share_while_the_others_have_room(
    shards: int, rows: tuple[int, ...], throttled: int, expected: Holding
) -> None:
    desk = Desk(even_map(shards), request_max_records=10)
    starts = [b"%d" % shard.start for shard in even_map(shards).shards]
    desk.queue([(b"k", b"x" * 99, start) for start, count in zip(starts, rows, strict=False) for _ in range(count)])
    for sent in [desk.send() for _ in range(throttled)]:
        sent.answer([SLOW_DOWN] * len(sent.entries))
    holding = desk.holding()
    assert holding._replace(by_records=False) == expected


# ---- where rows are


def test_the_census_counts_each_row_where_it_is() -> None:
    desk = Desk(even_map(1), aggregate=True, aggregate_max_records=5, request_max_records=1, max_in_flight_requests=3)

    def places() -> dict[str, int]:
        return {place: rows for place, rows in desk.pipeline.diagnosis.census().items() if rows}

    assert places() == {}
    desk.queue(25)
    assert places() == {"queued": 25}
    first, second, third = desk.send_all()
    assert places() == {"queued": 10, "in flight": 15}
    first.fail(UNSENT)
    second.fail(INVALID)
    third.stored("unknown")
    outside = {"queued": 10, "delayed": 5, "alone": 5, "awaiting a map": 5}
    assert places() == outside
    desk.submit(2)
    desk.pipeline.flush("caller")
    desk.job()
    desk.submit(1)
    assert places() == {"filling": 1, "sorting": 2} | outside
    assert desk.pipeline.queued_records == 28
    ordered = Desk(per_key=True)
    ordered.put([(b"k", b"bad", None)]).fail(BARE)
    ordered.queue([(b"k", b"behind", None)])
    assert {place for place, rows in ordered.pipeline.diagnosis.census().items() if rows} == {"delayed", "held back"}


# ---- what a sent request costs its lanes


@pytest.mark.parametrize("rules", [{}, {"aggregate": True, "aggregate_max_bytes": 200}])
def test_a_lane_pays_for_the_entries_and_bytes_that_were_sent_of_it(rules: dict[str, Any]) -> None:
    desk = Desk(even_map(2), **rules)
    desk.queue([(b"key", b"x" * (20 + i), LOW if i % 3 else HIGH) for i in range(40)])
    before = desk.allowances()
    sent = desk.send()
    spent = [
        (left.records - now_left.records, left.bytes - now_left.bytes)
        for left, now_left in zip(before, desk.allowances(), strict=True)
    ]
    assert spent == sent.encoded.of_lanes(2)
    assert len(sent.entries) == sum(entries for entries, _ in spent)


def test_rows_of_a_request_that_is_refused_cost_as_many_entries_as_they_make_plain() -> None:
    """Where no list of the shards came, rows go plain though the stream aggregates."""
    desk = Desk(known=False, aggregate=True)
    desk.map_failed("LimitExceededException", "slow down")
    desk.submit(20)
    desk.now += 11.0
    desk.sort()
    desk.send().fail(INVALID)
    request = desk.take_request()
    assert [paid for paid, _ in request.paid.values()] == [10]
    assert request.aggregate_bytes == (0,)


# ---- what an answer teaches


def test_each_lane_learns_how_many_of_its_entries_were_stored_and_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int, float, float]] = []

    def pace(lane: Lane, stored: int, throttled: int, sent_at: float, now: float, _: object) -> None:
        told.append((lane.shard.shard_id, stored, throttled, sent_at, now))

    monkeypatch.setattr(Lane, "pace", pace)
    desk = Desk(even_map(2))
    sent = desk.put([(b"k", b"%d" % i, LOW if i < 4 else HIGH) for i in range(7)])
    desk.now += 0.5
    high = GOOD | {"ShardId": "shard-1"}
    sent.answer([GOOD, BROKEN, GOOD, SLOW_DOWN, SLOW_DOWN, high, SLOW_DOWN])
    assert told == [("shard-0", 2, 1, 100.0, 100.5), ("shard-1", 1, 2, 100.0, 100.5)]
    told.clear()
    sent = desk.put([(b"k", b"%d" % i, LOW if i < 4 else HIGH) for i in range(6)])
    sent.stored_as_predicted()
    assert told == [("shard-0", 5, 0, 100.5, 100.5), ("shard-1", 4, 0, 100.5, 100.5)]
    assert desk.pipeline.queued_records == 1, "which waits out a delay"


def test_requests_and_failed_sends_are_counted_by_how_they_ended() -> None:
    desk = Desk()
    stats = desk.stats
    desk.put(6).answer([GOOD, SLOW_DOWN, SLOW_DOWN, BROKEN, GOOD, GOOD])
    assert stats.put_requests == {"partial": 1}
    assert stats.record_errors == {Code.THROTTLED: 2, Code.SERVICE_FAULT: 1}
    assert (stats.throttled_records, stats.delivered_records, stats.retried_records) == (2, 3, 3)
    desk.send_when_due().fail(RequestFailed(THROTTLED, "slow down", maybe_stored=False, request_id="r-1"))
    assert stats.last_error == f"{THROTTLED}: slow down (request id r-1)"
    assert stats.put_requests == {"partial": 1, "failed": 1}
    assert stats.record_errors == {Code.THROTTLED: 5, Code.SERVICE_FAULT: 1}
    desk.send_when_due().stored()
    assert stats.put_requests == {"partial": 1, "failed": 1, "ok": 1}
    assert desk.is_empty()


def test_an_answer_that_stores_or_throttles_rows_ends_what_spoke_against_them() -> None:
    """Time-outs, faults and answers with a wrong number of results count in a row."""
    desk = Desk()
    desk.queue(5)
    counts = []

    def again() -> Sent:
        desk.now += 61.0
        sent = desk.send()
        (span,) = sent.request.spans
        counts.append((span.timeouts, span.faults, span.wrong_counts))
        return sent

    wrong_count = RequestFailed(Code.RESULT_COUNT, "4 results for 5 entries", maybe_stored=True)
    for failure in (TIMED_OUT, SERVICE_FAULT, TIMED_OUT, SERVICE_FAULT, wrong_count, wrong_count):
        again().fail(failure)
    again().answer([SLOW_DOWN] * 5)
    again().fail(wrong_count)
    again().fail(UNSENT)
    again().stored()
    assert counts == [
        (0, 0, 0),
        (1, 0, 0),
        (1, 1, 0),
        (2, 1, 0),
        (2, 2, 0),
        (2, 2, 1),
        (2, 2, 2),
        (0, 0, 0),
        (0, 0, 1),
        (0, 0, 0),
    ]
    assert desk.is_empty()


def test_an_entry_that_is_refused_for_good_breaks_a_stream_that_never_worked() -> None:
    desk = Desk()
    frame = desk.queue(2)
    desk.send().answer([{"ErrorCode": "KMSDisabledException", "ErrorMessage": "the key is disabled"}] * 2)
    assert desk.health is HealthState.BROKEN
    assert desk.stats.last_error == "KMS: the key is disabled"
    assert ends_of(frame) == dict.fromkeys((0, 1), (Outcome.NOT_STORED, Code.KMS, False))


def test_eight_rows_that_kinesis_refuses_in_a_row_without_a_word_about_a_record_make_the_stream_doubtful() -> None:
    """Neither a judged row nor a row that is refused once more is evidence against the stream."""
    desk = Desk(request_max_records=1)
    desk.queue(40)
    for failure, count in ((ODD, 7), (None, 1), (ODD, 7), (INVALID, 12)):
        for _ in range(count):
            sent = desk.send()
            if failure is None:
                sent.stored()
            else:
                sent.fail(failure)
        assert desk.health in (HealthState.UNPROVEN, HealthState.WORKING)
    desk.send().fail(ODD)
    assert desk.health is HealthState.SUSPECT
    assert desk.stats.last_error == f"REQUEST_REFUSED: {ODD.message} (request id d3f1)"


def test_failures_of_our_own_do_not_make_the_stream_doubtful_or_a_record_too_large() -> None:
    desk = Desk(request_max_records=1)
    frame = desk.queue(10)
    for _ in range(10):
        desk.send().fail(RequestFailed(Code.INTERNAL, "maximum record size", maybe_stored=False))
    assert desk.health is HealthState.UNPROVEN
    assert set(ends_of(frame).values()) == {(Outcome.NOT_STORED, Code.INTERNAL, False)}


def test_a_stream_that_breaks_after_it_was_suspected_waits_for_its_probes_and_not_for_a_hold() -> None:
    desk = Desk(request_max_records=1, permanent_error_grace_seconds=0.0)
    desk.put(3).stored()
    first, second = desk.send_all()
    refused = RequestFailed("AccessDeniedException", "not authorized", maybe_stored=False, request_id="r-2")
    first.fail(refused)
    assert desk.health.value == "suspect"
    assert desk.stats.last_error == "ACCESS_DENIED: not authorized (request id r-2)"
    assert desk.holds_until > desk.now
    second.fail(refused)
    assert desk.health.value == "broken"
    assert desk.holds_until == 0.0
    assert desk.pipeline.health.request_id == "r-2"


@pytest.mark.parametrize("fails", ["its mate's request", "a reading of the shards"])
def test_a_probe_of_a_broken_stream_does_not_end_because_something_else_fails_for_now(fails: str) -> None:
    desk = Desk()
    desk.put(1).fail(REFUSED)
    desk.finished()
    first = desk.queue(1)
    sent = desk.send()
    probe = desk.queue(1)
    if fails == "its mate's request":
        sent.fail(LOST)
        assert first.finished
    else:
        desk.map_failed("LimitExceededException", "slow down")
        assert not first.finished
    assert not probe.finished
    for other in desk.send_all():
        other.stored()
    assert probe.result().stored == 1


def test_rows_of_large_and_small_records_that_go_alone_wait_for_room_for_the_largest() -> None:
    node = NodeInFlight(800_000, 100_000)
    desk = Desk(even_map(2), in_flight=node)
    frame = desk.queue([*[(b"k", b"small", LOW)] * 3, (b"k", b"x" * 150_000, HIGH)])
    sent = desk.send()
    assert sent.request.records == 4
    sent.fail(INVALID)
    desk.send().stored_as_predicted()
    assert frame.unsettled == 2, "a small one and the large one"
    node.count_sent("another", 900_000)
    assert desk.try_send() is None
    assert desk.pipeline.held_by_node
    assert desk.holding() == Holding("in_flight")
    node.count_ended("another", 900_000)
    for more in desk.send_all():
        more.stored_as_predicted()
    assert desk.finished() == [frame]


# ---- when something is due


def test_rows_that_may_be_sent_now_are_no_time_to_wait_for() -> None:
    desk = Desk()
    desk.queue(5)
    assert desk.pipeline.next_time() is None
    assert not desk.pipeline.press(desk.now), "a batch gains nothing while they wait"
    desk.send().fail(INVALID)
    desk.submit(1)
    assert not desk.pipeline.press(desk.now), "and while they wait for a request of their own"
    desk.hold(101.0)
    desk.pipeline.flush("caller")
    assert desk.pipeline.take_job(desk.now) is not None
    assert desk.pipeline.next_time() == 101.0


def test_a_hold_hides_no_later_time_of_a_lane() -> None:
    desk = Desk()
    desk.put(5).answer([SLOW_DOWN] * 5)
    assert desk.try_send() is None
    due = desk.due()
    desk.hold(due - 0.001)
    assert desk.pipeline.next_time() == due


def test_two_aggregates_that_await_a_map_are_each_sent_again_in_time() -> None:
    desk = Desk(even_map(2), aggregate=True)
    for hash_key in (LOW, HIGH):
        desk.put([(b"k", b"x", hash_key)] * 2).stored("unknown")
        desk.now += 3.0
    for due, shard_id in ((110.0, "shard-0"), (113.0, "shard-1")):
        assert desk.pipeline.next_time() == due
        desk.now = due
        (sent,) = desk.send_all()
        assert lanes_of(sent) == {shard_id}
        assert len(sent.entries) == 2, "plain now"
        sent.stored(shard_id)
    assert desk.is_empty()
