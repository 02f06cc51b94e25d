"""An operator may change settings of a running pipeline, pause it and flush it, and no record is dropped."""

from __future__ import annotations

from math import inf

import pytest

from producerd.core.lanes.pacing import SHARD_BYTES_PER_SECOND
from producerd.errors import Code, Outcome
from tests.core.rows import even_map
from tests.core.stories import INVALID, LOST, UNSENT, Desk, Sent, ends_of, reload

pytestmark = pytest.mark.law("Row", "Pacer", "Frame", "Pipeline")

# ---- other settings


def test_what_lingers_goes_by_the_new_time() -> None:
    desk = Desk(linger_seconds=3_600.0)
    desk.submit(1)
    assert desk.pipeline.next_time() == 3_700.0
    reload(desk, linger_seconds=2.0)
    assert desk.pipeline.next_time() == 102.0
    assert desk.pipeline.take_job(101.9) is None
    assert len(desk.pipeline.take_job(102.0).frames) == 1  # type: ignore[union-attr]


def test_rows_accepted_before_keep_their_time_to_live_and_later_ones_have_the_new_one() -> None:
    desk = Desk(record_ttl_seconds=60.0)
    old = desk.submit(1)
    reload(desk, record_ttl_seconds=5.0, linger_seconds=1_000.0)
    desk.now = 110.0
    new = desk.submit(1)
    reload(desk, record_ttl_seconds=inf)
    last = desk.submit(1)
    assert desk.pipeline.next_time() == 115.0, "the younger one is due first"
    desk.now = 115.0
    assert desk.try_send() is None
    assert (old.finished, new.finished) == (False, True)
    assert desk.pipeline.next_time() == 160.0
    desk.now = 160.0
    assert desk.try_send() is None
    assert desk.finished() == [new, old]
    assert ends_of(old) == {0: (Outcome.NOT_STORED, Code.EXPIRED, False)}
    assert desk.pipeline.next_time() == 1_100.0
    assert not last.finished


def test_a_request_on_its_way_keeps_its_time_out_and_the_next_has_the_new_one() -> None:
    desk = Desk(request_max_records=5)
    before = desk.put(10)
    reload(desk, request_timeout_seconds=20.0)
    assert 6.0 < before.request.timeout_seconds < 7.0
    assert 20.0 < desk.send().request.timeout_seconds < 21.0


def test_a_request_that_was_taken_and_is_not_encoded_gives_back_what_the_new_rules_leave_out() -> None:
    desk = Desk()
    desk.queue(100)
    request = desk.take_request()
    reload(desk, request_max_records=7)
    sent = Sent(desk, request)
    assert (len(sent.entries), request.records) == (7, 7)
    assert len(desk.send().entries) == 7
    sent.stored()
    assert desk.pipeline.queued_records == 93


def test_aggregates_are_made_by_the_new_sizes() -> None:
    desk = Desk(aggregate=True)
    desk.queue([(b"k", b"x" * 90, None)] * 200)
    reload(desk, aggregate_max_bytes=1_024, aggregate_max_records=5)
    assert {len(data) > 1_100 for data in desk.send().data} == {False}
    assert [lane.aggregate_max_bytes for lane in desk.pipeline.sender.lanes] == [1_024]


def test_the_number_on_its_way_follows_the_new_limits_and_what_is_above_them_ends_as_always() -> None:
    desk = Desk(even_map(8), request_max_records=5, max_in_flight_requests=24)
    desk.queue([(b"k%d" % i, b"x", None) for i in range(1_000)])
    first = desk.send_all()
    assert len(first) == 4
    reload(desk, max_in_flight_requests=2)
    for left, sent in zip((3, 2, 1), first, strict=False):
        assert desk.try_send() is None
        sent.stored_as_predicted()
        assert desk.pipeline.diagnosis.requests_in_flight == left
    assert desk.pipeline.diagnosis.requests_in_flight == 1
    on_their_way = [first[3], *desk.send_all()]
    assert len(on_their_way) == 2
    reload(desk, max_in_flight_requests=24)
    for expected in (4, 8, 16):
        for sent in on_their_way:
            sent.stored_as_predicted()
        on_their_way = desk.send_all()
        assert len(on_their_way) == expected, "it doubles again: no time-out has taught it otherwise"


def test_bytes_on_their_way_follow_the_new_limits() -> None:
    desk = Desk(max_in_flight_bytes=5_000, request_max_bytes=4_096)
    desk.queue([(b"k", b"x" * 1_000, None)] * 100)
    assert len(desk.send_all()) == 1
    reload(desk, max_in_flight_bytes=64 << 20, request_max_bytes=8_192)
    more = desk.send_all()
    assert len(more) == 3
    assert 4_096 < more[0].encoded.payload_bytes <= 8_192


def test_throttled_rows_fail_or_do_not_by_the_new_setting() -> None:
    desk = Desk()
    frame = desk.queue(2)
    sent = desk.send()
    reload(desk, fail_if_throttled=True)
    sent.throttle({1})
    assert ends_of(frame) == {1: (Outcome.NOT_STORED, Code.THROTTLED, False)}


def test_a_lane_that_waits_for_its_pace_goes_on_at_once_where_it_may_send_more() -> None:
    desk = Desk(shard_rate_fraction=0.001)
    desk.put([(b"k", b"x" * 500, None)] * 20).stored()
    assert desk.try_send() is None
    assert desk.due() > desk.now + 0.5
    reload(desk, shard_rate_fraction=100.0)
    due = desk.pipeline.next_time()
    assert due is None or due < desk.now + 0.11
    desk.now += 0.11
    assert len(desk.send().entries) == 19


def test_a_pace_keeps_what_its_shards_throttles_have_taught_and_takes_that_of_another_rate() -> None:
    desk = Desk(shard_rate_fraction=1.0, request_max_records=5)
    desk.put(20).throttle({0, 1, 2, 3, 4})
    lane = desk.lane
    assert lane.pacer is not None
    share = lane.pacer.rate_bytes / SHARD_BYTES_PER_SECOND
    assert share < 0.25
    reload(desk, shard_rate_fraction=0.5)
    assert lane.pacer.rate_bytes == pytest.approx(0.5 * share * SHARD_BYTES_PER_SECOND)
    assert lane.backs_off(desk.now)
    reload(desk, shard_rate_fraction=2.0)
    assert lane.pacer.rate_bytes == pytest.approx(2.0 * share * SHARD_BYTES_PER_SECOND)


def test_how_records_are_packed_and_ordered_never_changes() -> None:
    desk = Desk()
    for change in ({"aggregate": True}, {"per_key": True}):
        with pytest.raises(AssertionError, match="made for these"):
            reload(desk, **change)


# ---- a pause


def test_in_a_pause_nothing_is_sent_and_what_is_on_its_way_ends() -> None:
    desk = Desk(request_max_records=5)
    frame = desk.queue(20)
    first, second = desk.send(), desk.send()
    desk.pipeline.pause()
    assert desk.try_send() is None
    first.stored()
    second.fail(UNSENT)
    assert frame.tallies[Outcome.STORED] == 5
    desk.now += 30.0
    assert desk.try_send() is None
    assert desk.pipeline.next_time() is None, "nothing is due before somebody resumes"
    assert desk.holding().cause == "paused"
    assert desk.pipeline.diagnosis.requests_in_flight == 0
    desk.pipeline.resume()
    assert desk.holding().cause == "daemon"
    for sent in desk.send_all():
        sent.stored()
    for sent in desk.send_all():
        sent.stored()
    assert desk.finished() == [frame]
    assert desk.is_empty()


def test_a_pause_is_named_whatever_else_is_waited_for() -> None:
    desk = Desk(known=False, aggregate=True)
    desk.queue(1)
    assert desk.holding().cause == "shard_map"
    desk.pipeline.pause()
    assert desk.holding().cause == "paused"


def test_in_a_pause_rows_expire() -> None:
    desk = Desk(record_ttl_seconds=5.0)
    frame = desk.queue(5)
    desk.pipeline.pause()
    assert desk.try_send() is None
    assert desk.pipeline.next_time() == 105.0
    desk.now = 105.0
    assert desk.try_send() is None
    assert desk.finished() == [frame]
    assert desk.is_empty()


def test_a_drain_ends_a_pause_and_lets_nobody_begin_one() -> None:
    desk = Desk()
    desk.submit(3, owner=None)
    returned = desk.queue(2)
    desk.pipeline.pause()
    desk.pipeline.return_rows()
    assert returned.tallies[Outcome.RETURNED] == 2
    sent = desk.send()
    desk.pipeline.pause()
    sent.throttle({0, 1, 2})
    desk.now += 1.0
    desk.send().stored()
    assert desk.is_empty()


# ---- a flush


class Flush:
    """One flush of the operator, which counts how often it was reported as done."""

    def __init__(self, desk: Desk) -> None:
        calls: list[None] = []
        self._calls = calls
        self.flushing = desk.pipeline.flush_all(lambda: calls.append(None))

    @property
    def done(self) -> int:
        return len(self._calls)

    def counts(self) -> dict[str, int]:
        """Without what is 0."""
        return {how: records for how, records in self.flushing.counts().items() if records}


def test_a_flush_sends_what_lingers_and_tells_how_each_row_ended_once_none_is_open() -> None:
    desk = Desk(even_map(2), linger_seconds=3_600.0, request_max_records=10)
    desk.submit(10, owner="a")
    desk.submit(4, owner="gone")
    flush = Flush(desk)
    assert desk.stats.flushes == {"flush": 1}
    later = desk.submit(5, owner="a")
    assert flush.counts() == {"records": 14, "open": 14}
    desk.sorted(desk.job())
    desk.pipeline.discard("gone")
    assert flush.counts() == {"records": 14, "discarded": 4, "open": 10}
    for sent in desk.send_all():
        sent.stored_as_predicted()
    assert flush.done == 1
    assert flush.counts() == {"records": 14, "discarded": 4, "stored": 10}
    assert not later.finished
    assert flush.done == 1


def test_rows_that_had_ended_before_a_flush_are_none_of_its_and_every_other_outcome_is_told() -> None:
    desk = Desk(request_max_records=2)
    frame = desk.queue(8)
    desk.send().stored()
    unknown, refused = desk.send(), desk.send()
    flush = Flush(desk)
    assert flush.counts() == {"records": 6, "open": 6}
    unknown.fail(LOST)
    refused.fail(INVALID)
    for _ in range(2):
        desk.send().fail(INVALID)
    assert flush.counts() == {"records": 6, "not_stored": 2, "open": 4}
    desk.pipeline.abandon()
    assert flush.done == 1
    assert flush.counts() == {"records": 6, "not_stored": 2, "returned": 4}
    assert desk.finished() == [frame]
    assert frame.result().stored == 2


def test_a_flush_of_nothing_is_done_at_once_and_one_that_nobody_waits_for_is_forgotten() -> None:
    desk = Desk()
    empty = Flush(desk)
    assert (empty.done, empty.counts()) == (1, {})
    desk.submit(3)
    first, second = Flush(desk), Flush(desk)
    assert len(desk.pipeline.ledger.flushings) == 3
    del first, empty
    assert len(desk.pipeline.ledger.flushings) == 1
    desk.sort()
    desk.send().stored()
    assert second.counts() == {"records": 3, "stored": 3}


def test_rows_that_a_session_leaves_behind_are_flushed_as_well() -> None:
    desk = Desk()
    desk.submit(3, owner="a")
    flush = Flush(desk)
    desk.pipeline.disown("a")
    desk.sort()
    desk.send().stored()
    assert (flush.done, flush.counts()) == (1, {"records": 3, "stored": 3})
