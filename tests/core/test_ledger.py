"""A row settles once.  Its room comes free then, the counters name its end, and its frame keeps nothing of it."""

from __future__ import annotations

import weakref

import pytest

from producerd.core.rows.job import SETTLED
from producerd.errors import Code, Outcome
from tests.core.stories import LOST, REFUSED, TIMED_OUT, UNSENT, Desk, Sent, ends_of


def test_a_frame_lets_go_of_the_buffers_it_came_in_once_its_rows_are_sorted_or_have_ended() -> None:
    desk = Desk()
    frame, gone = desk.submit(3), desk.submit(3, owner="gone")
    desk.pipeline.discard("gone")
    kept = frame.rows
    desk.sort()
    assert (kept is None, frame.rows is None, gone.rows is None) == (False, True, True)


def test_a_frame_that_is_finished_keeps_no_job() -> None:
    desk = Desk()
    frame = desk.queue(3)
    states = weakref.ref(desk.lane.spans[0].job.state)
    desk.send().stored()
    assert desk.finished() == [frame]
    assert states() is None


@pytest.mark.parametrize("sortable", [True, False])
def test_a_frame_whose_caller_leaves_while_it_is_sorted_keeps_its_buffers_until_that_is_done(sortable: bool) -> None:
    desk = Desk()
    frame = desk.submit(3)
    desk.pipeline.press(desk.now)
    job = desk.job()
    desk.pipeline.discard("caller")
    kept = frame.rows
    if sortable:
        desk.sorted(job)
    else:
        desk.pipeline.sorted(job, [(job.frames, None)])
    assert (kept is None, frame.rows is None) == (False, True)
    assert desk.stats.discarded_records == {"disconnected": 3}
    assert desk.stats.failed_records == {}
    assert desk.is_empty()


def test_of_rows_that_a_broken_stream_ends_those_that_may_be_stored_end_unknown() -> None:
    desk = Desk(request_max_records=4)
    frame = desk.queue(12, patient=True)
    lost, other, refused = desk.send_all()
    job = other.request.pieces[0].span.job
    lost.fail(LOST)
    refused.fail(REFUSED)
    assert frame.unsettled == 4
    other.fail(UNSENT)
    unknown = dict.fromkeys(range(4), (Outcome.UNKNOWN, Code.ACCESS_DENIED, True))
    assert ends_of(frame) == unknown | dict.fromkeys(range(4, 12), (Outcome.NOT_STORED, Code.ACCESS_DENIED, False))
    assert job.count(0, 12, SETTLED) == 12
    assert desk.stats.failed_records == {Code.ACCESS_DENIED: 12}
    assert desk.is_empty()


@pytest.mark.parametrize("throttles", [False, True])
def test_of_rows_that_end_in_their_request_those_that_may_be_stored_end_unknown(throttles: bool) -> None:
    """Two jobs share the request, and only rows of the first may be stored."""
    desk = Desk(fail_if_throttled=True)
    first = desk.queue(2)
    desk.send().fail(LOST)
    desk.now += 6.0
    second = desk.queue(2)
    sent = desk.send()
    assert len(sent.entries) == 4
    bad = "ProvisionedThroughputExceededException" if throttles else "KMSDisabledException"
    sent.answer([{"ErrorCode": bad, "ErrorMessage": "m"}] * 4)
    code = Code.THROTTLED if throttles else Code.KMS
    assert ends_of(first) == dict.fromkeys(range(2), (Outcome.UNKNOWN, code, True))
    assert ends_of(second) == dict.fromkeys(range(2), (Outcome.NOT_STORED, code, False))
    assert [span.job.count(0, 2, SETTLED) for span in sent.request.spans] == [2, 2]
    assert desk.stats.failed_records == {code: 4}
    assert desk.is_empty()


def test_rows_wait_while_they_are_in_no_request_and_have_not_ended() -> None:
    desk = Desk(request_max_records=2)
    frame = desk.submit(5)
    ledger = desk.pipeline.ledger
    waiting = [ledger.waiting_rows(frame)]
    desk.sort()
    waiting.append(ledger.waiting_rows(frame))
    sent = desk.send()
    waiting.append(ledger.waiting_rows(frame))
    sent.stored()
    waiting.append(ledger.waiting_rows(frame))
    assert waiting == [5, 5, 3, 3]


def test_each_owner_of_rows_prints_where_they_are() -> None:
    """A failed test or a debugger shows the state of the objects."""
    desk = Desk()
    assert repr(desk.pipeline) == "<Pipeline, unproven: no rows>"
    frame = desk.submit(5)
    assert repr(desk.pipeline) == "<Pipeline, unproven: 5 filling>"
    assert repr(frame) == "<Frame 1: 5 of 5 rows unsettled>"
    desk.sort()
    lane = desk.lane
    assert repr(lane) == "<Lane of shard-0: 5 rows in 1 spans, 0 requests in flight, 0 set aside>"
    job = lane.spans[0].job
    assert repr(job) == "<Job of 1 frames: 5 rows queued, 0 in requests, 0 settled, 1 of 1 buffers>"
    request = desk.take_request()
    assert repr(request) == "<Request of 5 rows, 235 bytes, 1 lanes, to be encoded>"
    sent = Sent(desk, request)
    assert repr(sent.request) == "<Request of 5 rows, 235 bytes, 1 lanes, sent at 100.000>"
    assert repr(desk.pipeline) == "<Pipeline, unproven: 5 in flight>"
    sent.throttle({0, 1})
    assert repr(desk.pipeline) == "<Pipeline, working: 2 queued>"
    assert repr(frame) == "<Frame 1: 2 of 5 rows unsettled, 3 stored>"
    assert repr(job) == "<Job of 1 frames: 2 rows queued, 0 in requests, 3 settled, 1 of 1 buffers>"
    assert repr(lane.spans[0].buffer).startswith("<SpanBuffer from 0: 2 rows, ")
    desk = Desk(known=False)
    desk.map_failed("AccessDeniedException", "no")
    sent = desk.put(1)
    sent.fail(TIMED_OUT)
    described = "<Lane of all shards: 0 rows in 0 spans, 0 requests in flight, 0 set aside, alone, silent>"
    assert repr(sent.request.lanes[0]) == described
