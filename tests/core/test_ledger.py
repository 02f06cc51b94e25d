"""A row settles once.  Its room comes free then, the counters name its end, and its frame keeps nothing of it."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest

from producerd.core.rows.frame import RowEnd
from producerd.core.rows.job import SETTLED
from producerd.errors import Code, Outcome
from tests.core.stories import LOST, Desk, ends_of

REFUSED_END = RowEnd(Outcome.NOT_STORED, Code.ACCESS_DENIED, "not authorized")


def test_a_frame_lets_go_of_the_buffers_it_came_in_once_its_rows_are_sorted_or_have_ended() -> None:
    desk = Desk()
    frame, gone = desk.submit(3), desk.submit(3, owner="gone")
    desk.pipeline.discard("gone")
    kept = frame.rows
    desk.sort()
    assert (kept is None, frame.rows is None, gone.rows is None) == (False, True, True)


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


def test_rows_that_expire_in_a_request_are_due_no_more_and_may_still_be_stored() -> None:
    desk = Desk(record_ttl_seconds=5.0)
    frame = desk.queue(3)
    sent = desk.send()
    ledger = desk.pipeline.ledger
    assert ledger.next_expiry() == 105.0
    desk.now = 105.0
    assert desk.try_send() is None
    assert ledger.next_expiry() == inf
    sent.stored()
    assert (frame.result().stored, frame.result().codes) == (3, ())
    assert desk.stats.failed_records == {}
    assert desk.is_empty()


def test_of_rows_that_expire_the_end_of_those_that_may_be_stored_is_unknown() -> None:
    desk = Desk(record_ttl_seconds=5.0, request_max_records=5)
    frame = desk.queue(10)
    desk.send().fail(LOST)
    desk.now += 5.0
    assert desk.try_send() is None
    unknown = dict.fromkeys(range(5), (Outcome.UNKNOWN, Code.EXPIRED, True))
    assert ends_of(frame) == unknown | dict.fromkeys(range(5, 10), (Outcome.NOT_STORED, Code.EXPIRED, False))
    assert desk.stats.failed_records == {Code.EXPIRED: 10}
    assert desk.is_empty()


@pytest.mark.parametrize("cause", ["timeout", "connection", "reshard"])
def test_of_rows_refused_in_a_request_the_end_of_those_that_may_be_stored_is_unknown(cause: str) -> None:
    desk = Desk()
    frame = desk.queue(4)
    (span,) = desk.send().request.spans
    ledger = desk.pipeline.ledger
    ledger.mark_maybe_stored(span.cut(1)[:1], cause)
    ledger.end(span, REFUSED_END)
    assert span.job.count(span.first, span.last, SETTLED) == 4
    not_stored = dict.fromkeys(range(1, 4), (Outcome.NOT_STORED, Code.ACCESS_DENIED, False))
    assert ends_of(frame) == {0: (Outcome.UNKNOWN, Code.ACCESS_DENIED, True)} | not_stored
    assert ledger.stats.failed_records == {Code.ACCESS_DENIED: 4}
    assert (desk.budget.used_records, desk.budget.used_bytes) == (0, 0)


def test_copies_and_retries_are_counted_for_the_frames_whose_rows_they_are() -> None:
    desk = Desk(request_max_records=4)
    frames = [desk.submit(4) for _ in range(3)]
    desk.sort()
    first, second, third = desk.send_all()
    second.fail(LOST)
    first.stored()
    third.stored()
    desk.now += 6.0
    desk.send().stored()
    results = [frame.result() for frame in frames]
    assert [(each.stored, each.retries, each.possible_duplicates) for each in results] == [
        (4, 0, 0),
        (4, 4, 4),
        (4, 0, 0),
    ]
    stats = desk.stats
    assert stats.possible_duplicate_records == Counter(connection=4)
    assert stats.retried_records == 4
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


def test_rows_that_left_a_request_end_as_their_stream_does_unless_their_frame_outlasts_that() -> None:
    desk = Desk()
    fresh, patient = desk.submit(2), desk.submit(2, "resumed", patient=True)
    desk.sort()
    ledger = desk.pipeline.ledger
    spans = [span for lane in desk.pipeline.lanes for span in lane.spans]
    ledger.left_request(spans, None)
    ended = [(fresh.finished, patient.finished)]
    for end in (REFUSED_END._replace(code=Code.UNREACHABLE), REFUSED_END):
        ledger.left_request(spans, end)
        ended.append((fresh.finished, patient.finished))
    assert ended == [(False, False), (True, False), (True, True)]
    assert ledger.stats.failed_records == {Code.UNREACHABLE: 2, Code.ACCESS_DENIED: 2}
    assert desk.is_empty()
