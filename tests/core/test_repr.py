"""The stateful objects print themselves with their numbers, so that a failed test or a debugger shows their state."""

from __future__ import annotations

from tests.core.stories import Desk, Sent


def test_a_row_s_way_shows_in_what_each_owner_prints() -> None:
    desk = Desk()
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
