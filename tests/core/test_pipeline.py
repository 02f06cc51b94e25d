"""The pipeline seals each batch in time, does what each answer calls for, and ends every row once."""

from __future__ import annotations

import base64
from math import inf
from typing import Any

import pytest

from producerd.core.encoding.entries import encode
from producerd.core.failures import CREDENTIALS_LATE
from producerd.core.filling import SortJob
from producerd.core.kpl.aggregation import parse
from producerd.core.rows.frame import Frame, RowEnd
from producerd.core.rows.job import FEW_FRAMES
from producerd.core.sending.answers import RequestFailed
from producerd.core.sending.health import HealthState
from producerd.core.sending.in_flight import FAILURES_TO_HOLD
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.errors import Code, Outcome
from producerd.wire.columns import FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES
from tests.core.rows import even_map
from tests.core.stories import (
    BROKEN,
    GOOD,
    HALVES,
    HIGH,
    INVALID,
    LOST,
    LOW,
    REFUSED,
    UNSENT,
    Desk,
    Sent,
    ends_of,
    go_on,
    on_the_wire,
    spread,
)
from tests.simulation.setting import ADDRESS, make_rules

pytestmark = pytest.mark.law("Pipeline", "Lane", "RetryPolicy", "ShardMap", "Row", "Frame")


# ---- from a frame to its acknowledgement


def test_a_row_goes_from_its_frame_to_its_acknowledgement_and_leaves_nothing() -> None:
    desk = Desk()
    frame = desk.queue(10)
    sent = desk.send()
    assert sorted(sent.data) == [b"row %d" % i for i in range(10)]
    assert desk.finished() == []
    sent.stored()
    assert desk.finished() == [frame]
    assert desk.finished() == [], "once"
    desk.delivered(frame)


# ---- throttling, retries


@pytest.mark.promise("throttled-rows-return")
def test_throttled_rows_return_to_the_front_and_only_their_lane_holds_off() -> None:
    desk = Desk(even_map(2), request_max_records=4)
    desk.queue([(b"k", b"low %d" % i, LOW) for i in range(8)] + [(b"k", b"high %d" % i, HIGH) for i in range(8)])
    first, second = desk.send(), desk.send()
    assert first.data == [b"low %d" % i for i in range(4)]
    assert second.data == [b"high %d" % i for i in range(4)]
    first.throttle({1, 3})
    assert desk.stats.throttled_records == 2
    for sent in desk.send_all():  # the other lane goes on at once
        assert all(data.startswith(b"high") for data in sent.data)
    due = desk.due()
    assert desk.now + 0.01 <= due <= desk.now + 0.2
    desk.now = due
    assert desk.send().data == [b"low 1", b"low 3", b"low 4", b"low 5"]


@pytest.mark.promise("rows-fail-wait-out-delay")
def test_rows_that_fail_for_a_while_wait_out_a_delay_and_their_mates_are_stored() -> None:
    desk = Desk()
    frame = desk.queue(10)
    desk.send().answer([BROKEN if i in (2, 5) else GOOD for i in range(10)])
    assert desk.pipeline.queued_records == 2
    assert desk.try_send() is None
    assert desk.due() >= desk.now + 0.01
    sent_again: list[bytes] = []
    while not frame.finished:  # the two may have waited apart
        again = desk.send_when_due()
        sent_again += again.data
        again.stored()
    assert sorted(sent_again) == [b"row 2", b"row 5"]
    assert (frame.result().retries, frame.result().possible_duplicates) == (2, 0)
    assert desk.is_empty()


@pytest.mark.promise("service-hangs")
@pytest.mark.parametrize("failure", [LOST, UNSENT, RequestFailed("ThrottlingException", "slow down", False)])
def test_an_outage_makes_few_requests_a_second(failure: RequestFailed) -> None:
    desk = Desk(request_max_records=10)
    desk.queue(2_000)
    start, requests = desk.now, 0
    while desk.now < start + 60:
        for sent in desk.send_all():
            requests += 1
            sent.fail(failure)
        assert desk.due() > desk.now, "a pipeline never waits for a time that has passed"
        desk.now = desk.due()
    assert requests < 24 + 60, "at most one window, then about one every 2.5 s"


@pytest.mark.promise("service-hangs")
def test_a_stream_is_held_only_when_whole_requests_fail_with_no_success_between() -> None:
    desk = Desk(even_map(8), request_max_records=1)
    desk.queue([(b"key %d" % i, b"d", None) for i in range(100)])
    for _ in range(2):
        for _ in range(FAILURES_TO_HOLD - 1):
            desk.send().fail(LOST)
        desk.send().stored()
    for _ in range(FAILURES_TO_HOLD - 1):
        desk.send().fail(LOST)
    assert desk.holds_until == 0.0
    desk.send().fail(LOST)
    assert desk.now < desk.holds_until <= desk.now + 5.0


def test_a_hold_that_is_over_hides_no_later_time() -> None:
    """While one request is out after a hold, a batch that lingers is still told of."""
    desk = Desk(request_max_records=1, linger_seconds=0.5)
    desk.queue(8)
    for sent in desk.send_all():
        sent.fail(UNSENT)
    desk.now += 6
    assert desk.try_send() is not None
    assert desk.try_send() is None
    assert desk.holds_until == 0.0
    desk.now += 0.4
    desk.submit(1)
    assert desk.due() > desk.now


# ---- halving


@pytest.mark.promise("many-records-make-service")
@pytest.mark.parametrize("rules", [{}, {"aggregate": True, "aggregate_max_bytes": 2_000}], ids=["plain", "aggregates"])
def test_halving_finds_the_one_bad_row_among_500_and_stores_its_mates(rules: dict[str, Any]) -> None:
    desk = Desk(**rules)
    frame = desk.queue(500)
    requests = 0
    stored: list[bytes] = []
    while not frame.finished:
        sent = desk.send()
        requests += 1
        if b"row 321" in sent.users:
            sent.fail(INVALID)
        else:
            stored += sent.users
            sent.stored()
    assert ends_of(frame) == {321: (Outcome.NOT_STORED, Code.RECORD_INVALID, False)}
    assert sorted(stored) == sorted(b"row %d" % i for i in range(500) if i != 321)
    assert requests <= 2 * 10
    assert desk.health is HealthState.WORKING
    assert desk.is_empty()


@pytest.mark.parametrize("data_bytes", [1, 100, 1_024, 20_000])
def test_a_full_frame_leaves_in_one_request_where_it_is_aggregated(data_bytes: int) -> None:
    """And no request has more than was taken for it."""
    keys = 16
    rows = min(10_000, ((1 << 20) - FRAME_CHARGE_BYTES) // (keys + data_bytes + RECORD_CHARGE_BYTES))
    desk = Desk(aggregate=True, request_max_bytes=1 << 20, aggregate_max_bytes=51_200)
    desk.queue([(b"%016d" % number, bytes(data_bytes), None) for number in range(rows)])
    (sent,) = desk.send_all()
    assert len(sent.users) == rows
    assert sent.encoded.payload_bytes <= sent.request.bytes


@pytest.mark.parametrize("data_bytes", [0, 10, 1_000])
@pytest.mark.parametrize("earlier", [0, 1])
def test_no_request_has_more_than_was_taken_for_it_where_rows_have_hash_keys(earlier: int, data_bytes: int) -> None:
    """Also behind a row without one, of an earlier frame."""
    desk = Desk(aggregate=True, request_max_bytes=1 << 20, aggregate_max_bytes=51_200)
    for _ in range(earlier):
        desk.queue([(b"k", b"", None)])
    desk.queue([(b"k", bytes(data_bytes), b"%d" % (MAX_HASH_KEY - at)) for at in range(1_000)])
    for sent in desk.send_all():
        assert sent.encoded.payload_bytes <= sent.request.bytes


@pytest.mark.parametrize(("aggregate", "entries"), [(False, 50), (True, 10_000 // 1_024 + 1)])
def test_a_half_is_charged_to_its_lane_s_pace_by_its_entries(aggregate: bool, entries: int) -> None:
    """Not as one: a pacer takes a lane of large entries for a slow one."""
    desk = Desk(aggregate=aggregate, aggregate_max_bytes=1_024)
    desk.put([(b"k", b"x" * 199, None)] * 100).fail(INVALID)
    request = desk.take_request()
    assert [paid for paid, _ in request.paid.values()] == [entries]


def test_a_request_that_could_not_be_made_fails_only_the_row_that_raises() -> None:
    """An exception of ours is halved like a bad entry, before anything was encoded too."""
    desk = Desk()
    frame = desk.queue(20)
    internal = RequestFailed(Code.INTERNAL, "the daemon failed; see its log", maybe_stored=False)
    before = desk.allowances()
    desk.pipeline.complete(desk.take_request(), internal, desk.now)
    assert desk.allowances() == before, "it costs its lane no pace"
    while not frame.finished:
        request = desk.take_request()
        encoded = encode(ADDRESS, request.numbered, desk.pipeline.rules.entries)
        if base64.b64encode(b"row 7") + b'"' in encoded.body:
            desk.pipeline.complete(request, internal, desk.now)
        else:
            Sent(desk, request).stored()
    assert ends_of(frame) == {7: (Outcome.NOT_STORED, Code.INTERNAL, False)}
    assert desk.health is HealthState.WORKING
    assert desk.is_empty()


# ---- health


@pytest.mark.promise("credentials-come-late")
def test_credentials_that_come_late_end_rows_only_after_the_grace_also_where_nothing_was_stored() -> None:
    desk = Desk()
    desk.queue(3)
    late = RequestFailed(CREDENTIALS_LATE, "no answer", maybe_stored=False)
    began = desk.now
    desk.send().fail(late)
    assert (desk.finished(), desk.health) == ([], HealthState.SUSPECT)
    desk.now = began + 70.0
    desk.send().fail(late)
    (frame,) = desk.finished()
    assert set(ends_of(frame).values()) == {(Outcome.NOT_STORED, Code.CREDENTIALS, False)}


@pytest.mark.promise("stream-never-worked")
def test_a_stream_that_never_worked_breaks_at_once_and_every_queued_row_ends_with_the_service_s_message() -> None:
    desk = Desk(request_max_records=5)
    lanes = desk.queue(20, owner="a")
    sent, other = desk.send(), desk.send()
    sealed = desk.submit(3, owner="b")
    desk.pipeline.flush("b")
    sorting = desk.submit(3, owner="c")
    desk.pipeline.flush("c")
    jobs = [desk.job()]
    filling = desk.submit(3, owner="d")
    sent.fail(REFUSED)
    assert desk.refuses() is not None
    assert {frame.frame_id for frame in desk.finished()} == {sealed.frame_id, sorting.frame_id, filling.frame_id}
    assert not lanes.finished, "five of its rows are in a request"
    other.stored()
    assert desk.health is HealthState.WORKING, "the first stored record makes it work again"
    assert desk.finished() == [lanes]
    assert lanes.result().stored == 5
    for frame in (lanes, sealed, sorting, filling):
        assert set(ends_of(frame).values()) == {(Outcome.NOT_STORED, Code.ACCESS_DENIED, False)}
        assert on_the_wire(frame.result()).codes[0].message == "not authorized"
    for job in jobs:
        desk.sorted(job)
    while (more := desk.pipeline.take_job(desk.now + 1)) is not None:
        desk.sorted(more)
    assert desk.try_send() is None
    assert desk.is_empty()


def test_a_broken_stream_refuses_callers_with_its_message_and_lets_a_probe_in() -> None:
    desk = Desk()
    desk.put(1).fail(REFUSED)
    refusal = desk.refuses()
    assert refusal is not None
    assert (refusal.code, refusal.message) == (Code.ACCESS_DENIED, "not authorized")
    desk.now += 6
    assert desk.refuses(probes=False) is not None, "a question spends no probe"
    assert desk.refuses() is None
    assert desk.refuses() is not None, "one"
    probe = desk.queue(1)
    desk.send().stored()
    assert probe.result().stored == 1
    assert desk.health is HealthState.WORKING
    assert desk.refuses() is None


@pytest.mark.promise("stream-never-worked")
def test_a_stream_that_worked_keeps_its_rows_for_the_grace_and_sends_one_request_at_a_time() -> None:
    desk = Desk(request_max_records=5, permanent_error_grace_seconds=60.0)
    desk.put(1).stored()
    frame = desk.queue(50)
    start = desk.now
    desk.send().fail(REFUSED)
    while desk.health is HealthState.SUSPECT:
        assert not frame.finished
        sents = desk.send_all()
        assert len(sents) <= 1
        for sent in sents:
            desk.now += 0.5
            sent.fail(REFUSED)
        desk.now = max(desk.now, desk.pipeline.next_time() or desk.now)
    assert desk.now >= start + 60
    assert frame.finished
    assert {end[:2] for end in ends_of(frame).values()} == {(Outcome.NOT_STORED, Code.ACCESS_DENIED)}
    assert desk.is_empty()


# ---- the shard map


@pytest.mark.parametrize("denied", [False, True])
def test_without_a_map_plain_records_flow_through_one_lane_after_a_moment(denied: bool) -> None:
    """One lane has no pace of its own: so they wait until the first map has come or failed, or for a second."""
    desk = Desk(known=False)
    assert desk.wants_map
    frame = desk.submit(20)
    assert not desk.begin()
    assert desk.pipeline.next_time() == desk.now + 1.0
    assert desk.holding().cause == "shard_map"
    if denied:
        desk.map_failed("AccessDeniedException", "no ListShards for you")
    else:
        desk.now += 1.0
    desk.sort()
    sent = desk.send()
    assert len(sent.data) == 20
    sent.stored("shard-7")
    assert frame.finished
    assert desk.stats.shard_mispredictions == 0
    assert desk.pipeline.diagnosis.shards(desk.now) == []
    desk.put(20).stored("shard-7")
    assert desk.is_empty(), "nobody waits a second time"


def test_plain_records_go_out_by_the_map_that_comes_in_time() -> None:
    desk = Desk(known=False)
    desk.submit(20)
    assert not desk.begin()
    desk.set_map(even_map(1))
    desk.sort()
    desk.send().stored()
    assert [state.shard.shard_id for state in desk.pipeline.diagnosis.shards(desk.now)] == ["shard-0"]
    assert desk.is_empty()


@pytest.mark.promise("aggregate-unknown-shard")
def test_an_aggregate_that_an_unknown_shard_stored_waits_for_a_map_and_no_other_of_its_lane_is_sent_meanwhile() -> None:
    desk = Desk(even_map(2), aggregate=True, aggregate_max_bytes=300)
    first, second = Shard("c-0", 0, 2**126 - 1), Shard("c-1", 2**126, 2**127 - 1)
    frame = desk.submit([(b"k", b"%d" % i, b"%d" % i) for i in range(4)])  # all of them in c-0
    other = desk.queue([(b"k", b"x" * 200, b"0"), (b"k", b"y" * 200, b"1")])
    desk.send(one_entry=True).stored("c-0")
    assert (frame.finished, desk.wants_map) == (False, True)
    assert desk.try_send() is None
    desk.pipeline.set_shard_map(ShardMap([first, second, even_map(2).shards[1]]), desk.now + 5)
    assert desk.finished() == [frame], "the new map says that every hash lies in the shard that stored it"
    assert frame.result().possible_duplicates == 0
    desk.send().stored("c-0")
    assert other.finished
    assert desk.is_empty()


@pytest.mark.promise("aggregate-strayed-sent")
@pytest.mark.parametrize("newer", [False, True], ids=["no newer map", "a newer map"])
def test_an_aggregate_that_strayed_is_sent_once_more_by_the_newest_map_and_then_as_plain_records(newer: bool) -> None:
    """A lying map costs at most two copies, and each is counted.  No newer map is believed a third time."""
    desk = Desk(even_map(1), aggregate=True)
    frame = desk.queue(spread(10))
    desk.send().stored("c-0")  # the shard was split, unseen
    desk.set_map(ShardMap([Shard("c-0", 0, 2**127 - 1), Shard("c-1", 2**127, MAX_HASH_KEY)]))
    again = desk.send()
    assert [len(parse(data) or []) for data in again.data] == [5, 5], "sorted again"
    again.answer([{"SequenceNumber": "9", "ShardId": "c-1"}] * 2)  # split again, unseen
    assert not frame.finished
    if newer:
        desk.set_map(ShardMap([Shard("c-2", 0, 2**127 - 1), Shard("c-1", 2**127, MAX_HASH_KEY)]))
    else:
        desk.now += 11
    last = desk.send()
    assert sorted(last.data) == [b"%d" % i for i in range(5)], "plain records now; those in c-1 were right"
    last.stored("anywhere")
    assert frame.result().stored == 10
    assert frame.result().possible_duplicates == 10 + 5
    assert desk.stats.possible_duplicate_records["reshard"] == 10 + 5
    assert desk.is_empty()


@pytest.mark.promise("aggregate-strayed-sent")
def test_an_aggregate_in_an_unknown_shard_goes_raw_when_no_map_comes_in_time() -> None:
    desk = Desk(even_map(2), aggregate=True)
    frame = desk.queue([(b"k", b"%d" % i, b"0") for i in range(10)])
    desk.send().stored("shard-9")
    assert desk.stats.shard_mispredictions == 1
    assert desk.try_send() is None
    due = desk.pipeline.next_time()
    assert due == desk.now + 10.0
    desk.now = due
    again = desk.send()
    assert again.data == [b"%d" % i for i in range(10)], "ten records, and no aggregate"
    again.stored("shard-9")
    desk.delivered(frame, copies=10)


@pytest.mark.promise("rows-wait-lanes-sorted")
def test_rows_that_wait_in_lanes_are_sorted_anew_by_a_new_map() -> None:
    """After a split no aggregate mixes rows of both children; after a merge they make one line again, in order."""
    desk = Desk(even_map(1), aggregate=True)
    frame = desk.queue(spread(400))
    halves = even_map(2)
    desk.set_map(HALVES)
    assert len(halves) == len(desk.pipeline.sender.lanes)
    sent = desk.send()
    assert [int(data) for data in sent.users] == list(range(400))
    for entry, place in enumerate(sent.encoded.lanes.tolist()):
        assert sent.all_in(entry, sent.request.lanes[place].shard)
    sent.fail(UNSENT)
    desk.set_map(ShardMap([Shard("merged", 0, MAX_HASH_KEY)]))
    sent = desk.send_when_due()
    assert [int(data) for data in sent.users] == list(range(400))
    assert [lane.shard.shard_id for lane in desk.pipeline.sender.lanes] == ["merged"]
    sent.stored("merged")
    desk.delivered(frame)


@pytest.mark.promise("request-sent-before")
def test_a_request_sent_before_a_split_is_believed_when_the_closed_shard_answers() -> None:
    desk = Desk(even_map(1), aggregate=True)
    frame = desk.queue(spread(10))
    sent = desk.send()
    desk.set_map(HALVES)
    desk.set_map(HALVES)  # the same map changes nothing
    sent.stored("shard-0")
    assert frame.result().possible_duplicates == 0
    assert desk.is_empty()


@pytest.mark.promise("after-long-silence-aggregate")
@pytest.mark.parametrize("read", ["the same", "another", "not at all"])
def test_after_a_long_silence_an_aggregate_is_believed_only_by_a_map_read_anew(read: str) -> None:
    """The stream may have been deleted and made again meanwhile, with the same shard ids and other ranges."""
    desk = Desk(even_map(1), aggregate=True)
    desk.put(1).stored()
    frame = desk.queue(spread(10))
    desk.now += 60.0
    desk.send().stored()
    assert (frame.finished, desk.wants_map) == (False, True)
    if read == "not at all":
        desk.map_failed("AccessDeniedException", "no")
        assert desk.refuses() is None, "it keeps the map that it has"
    else:
        desk.set_map(even_map(1 if read == "the same" else 2))
    assert frame.finished is (read != "another"), "nothing but silence spoke against it"
    if read == "another":
        again = desk.send()
        assert len(again.entries) == 2
        again.stored_as_predicted()
        assert frame.result().possible_duplicates == 10
    assert desk.is_empty()


@pytest.mark.promise("after-long-silence-aggregate")
def test_while_a_doubted_map_cannot_be_read_aggregates_are_not_believed_and_plain_records_are_sent() -> None:
    """Throttled or broken readings settle nothing.  Without a limit each aggregate would be stored once for nothing."""
    desk = Desk(even_map(1), aggregate=True)
    desk.now += 60.0
    frame = desk.queue(spread(10))
    desk.send().stored()
    desk.map_failed("LimitExceededException", "slow down")
    assert not frame.finished
    later = desk.queue(spread(10))
    desk.send().stored()
    desk.queue(spread(10))
    assert desk.try_send() is None, "the lane waits for the map, too"
    desk.now += 10.0
    sent = desk.send_all()
    assert sum(len(one.entries) for one in sent) == 30
    for one in sent:
        one.stored()
    assert (frame.result().possible_duplicates, later.result().possible_duplicates) == (10, 10)
    again = desk.queue(spread(10))
    sent = [desk.send()]
    assert len(sent[0].entries) == 10, "until the map is read"
    sent[0].stored()
    desk.set_map(even_map(1))
    last = desk.queue(spread(10))
    sent = [desk.send()]
    assert len(sent[0].entries) == 1
    sent[0].stored()
    assert again.result().stored == last.result().stored == 10
    assert desk.is_empty()


@pytest.mark.promise("after-long-silence-aggregate")
def test_rows_that_wait_for_a_doubted_map_go_on_as_soon_as_it_is_read() -> None:
    desk = Desk(even_map(1), aggregate=True)
    desk.now += 60.0
    desk.map_failed(Code.UNREACHABLE, "no answer")
    desk.put(spread(10)).stored()
    desk.queue(spread(10))
    assert desk.try_send() is None
    desk.set_map(even_map(1))
    desk.send().stored()
    assert desk.is_empty()


@pytest.mark.promise("after-long-silence-aggregate")
def test_an_answer_that_was_long_on_its_way_does_not_shorten_the_silence_after_it() -> None:
    desk = Desk(even_map(1), aggregate=True)
    sent = desk.put(spread(10))
    desk.now += 5.0
    sent.stored()
    frame = desk.queue(spread(10))
    desk.now += 17.0
    desk.send().stored()
    assert not frame.finished
    desk.pipeline.set_shard_map(even_map(1), desk.now, desk.now - 5.0)
    assert frame.result().stored == 10
    frame = desk.queue(spread(10))
    desk.now += 17.0
    desk.send().stored()
    assert not frame.finished, "the map is as old as the question"
    desk.set_map(even_map(1))
    desk.delivered(frame)


@pytest.mark.promise("after-long-silence-aggregate")
def test_sequence_numbers_that_fall_say_that_the_shard_is_another_one() -> None:
    desk = Desk(even_map(1), aggregate=True)
    desk.put(spread(4)).answer([{"SequenceNumber": "500", "ShardId": "shard-0"}])
    frame = desk.queue(spread(10))
    desk.send().answer([{"SequenceNumber": "3", "ShardId": "shard-0"}])
    assert (frame.finished, desk.wants_map) == (False, True)
    for code in ("LimitExceededException", "AccessDeniedException"):
        desk.map_failed(code, "no")
        assert not frame.finished, "more than silence speaks against the map"
    desk.set_map(even_map(2))
    desk.send().stored_as_predicted()
    assert frame.result().stored == 10
    assert desk.is_empty()


@pytest.mark.promise("after-long-silence-aggregate")
@pytest.mark.parametrize("stage", ["in a lane", "in flight", "while it is sorted"])
@pytest.mark.parametrize("seen", ["by its listing", "by its refusal"])
def test_a_stream_made_again_with_the_same_shard_ids_gets_no_aggregate_of_the_old_one(stage: str, seen: str) -> None:
    """Its shard-0 has another range: an aggregate that it stores, and that the consumer drops, is not acknowledged."""
    desk = Desk(even_map(1), aggregate=True)
    other = even_map(2)
    assert other.shards[0].shard_id == even_map(1).shards[0].shard_id
    first = desk.queue(1)
    desk.send().stored()
    assert first.finished
    frame = desk.submit([(b"k%d" % i, b"%d" % i, None) for i in range(10)])

    def make_again() -> None:
        if seen == "by its refusal":
            desk.map_failed("ResourceNotFoundException", "gone")
            assert desk.wants_map
        desk.set_map(other)

    if stage == "while it is sorted":
        job = desk.pipeline.take_job(desk.now + 1)
        assert job is not None
        make_again()
        desk.sorted(job)
    else:
        desk.sort()
        if stage == "in flight":
            sent = desk.send()
            assert len(sent.entries) == 1
            make_again()
            sent.stored(other.shards[0].shard_id)
        else:
            make_again()
    assert not frame.finished
    desk.now += 11
    again = desk.send()
    assert sorted(again.users) == [b"%d" % i for i in range(10)]
    for entry, lane in enumerate(again.encoded.lanes.tolist()):
        assert again.all_in(entry, again.request.lanes[lane].shard)
    again.stored_as_predicted()
    assert frame.result().stored == 10
    assert desk.is_empty()


@pytest.mark.promise("raw-record-delivered")
def test_a_raw_record_is_delivered_wherever_it_was_stored() -> None:
    for aggregate in (False, True):
        desk = Desk(even_map(2), aggregate=aggregate)
        frame = desk.queue(1)
        desk.send().stored("shard-9")
        assert frame.result().stored == 1
        assert desk.wants_map
        assert desk.is_empty()


@pytest.mark.parametrize("caller_leaves", [False, True])
def test_lanes_of_closed_shards_are_forgotten_once_their_rows_are_gone(caller_leaves: bool) -> None:
    desk = Desk(even_map(4))
    frame = desk.queue(100)
    sent = desk.send()
    desk.set_map(ShardMap([Shard("merged", 0, MAX_HASH_KEY)]))
    sent.fail(UNSENT)
    if caller_leaves:
        desk.pipeline.discard("caller")
    desk.now += 6
    for again in desk.send_all():
        again.stored("merged")
    assert frame.finished
    assert {lane.shard.shard_id for lane in desk.pipeline.sender.lanes} <= {"merged"}
    assert desk.is_empty()


def test_requests_in_flight_are_bounded_by_count_and_bytes_or_are_exactly_one() -> None:
    desk = Desk(even_map(16), request_max_records=1, max_in_flight_requests=3)
    desk.queue([(b"key %d" % i, b"d", None) for i in range(100)])
    assert len(desk.send_all()) == 3
    desk = Desk(even_map(16), request_max_records=1, max_in_flight_bytes=1_000, request_max_bytes=400)
    desk.queue([(b"key %d" % i, b"x" * 200, None) for i in range(100)])
    sents = desk.send_all()
    assert len(sents) >= 2
    assert desk.pipeline.sender.in_flight.bytes <= 1_000
    desk = Desk(request_max_bytes=400, max_in_flight_bytes=1_000)
    desk.queue([(b"k", b"x" * 5_000, None)] * 2)
    assert len(desk.send_all()) == 1


def test_rows_that_did_not_fit_go_back_to_the_front() -> None:
    desk = Desk(aggregate=True, aggregate_max_bytes=60, request_max_records=3)
    frame = desk.queue([(b"k", b"%03d" % i, b"0") for i in range(40)])
    seen: list[bytes] = []
    while not frame.finished:
        sent = desk.send()
        assert len(sent.entries) <= 3
        seen += sent.users
        sent.stored_as_predicted()
    assert seen == [b"%03d" % i for i in range(40)]
    assert desk.is_empty()


# ---- owners that vanish, and the end


STAGES = ("filling", "sealed", "sorting", "lanes", "request", "encoded", "later", "alone", "held", "handed back")


def staged(stage: str) -> tuple[Desk, Frame, list[Any]]:
    """A frame of 20 rows that has come as far as a stage, and what is under way there."""
    desk = Desk(request_max_records=8)
    frame = desk.submit(20)
    if stage == "filling":
        return desk, frame, []
    desk.pipeline.flush("caller")
    if stage == "sealed":
        return desk, frame, []
    job = desk.job()
    if stage == "sorting":
        return desk, frame, [job]
    desk.sorted(job)
    if stage == "lanes":
        return desk, frame, []
    if stage == "request":
        request = desk.take_request()
        return desk, frame, [request]
    if stage == "handed back":
        request = desk.take_request()
        tight = make_rules(request_max_records=3).entries
        desk.pipeline.encoded(request, encode(ADDRESS, request.numbered, tight), desk.now)
        return desk, frame, [request]
    sent = desk.send()
    if stage == "encoded":
        return desk, frame, [sent]
    {"later": lambda: sent.fail(UNSENT), "alone": lambda: sent.fail(INVALID), "held": lambda: sent.throttle({0, 5})}[
        stage
    ]()
    return desk, frame, []


@pytest.mark.parametrize("stage", STAGES)
def test_rows_of_an_owner_that_is_gone_end_at_once_unless_they_are_in_a_request(stage: str) -> None:
    desk, frame, under_way = staged(stage)
    stored_before = desk.stats.delivered_records
    in_request = sum(request.records for request in desk.pipeline.sender.in_flight)
    desk.pipeline.discard("caller")
    assert desk.budget.used_records == in_request, "records are free at once"
    assert desk.stats.discarded_records["disconnected"] == 20 - in_request - stored_before
    assert go_on(desk, under_way) == 0, "none is sent again"
    assert desk.finished() == [], "no caller is there to acknowledge it to"
    assert frame.finished
    assert desk.is_empty()
    assert desk.pipeline.next_time() is None


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("failure", [LOST, UNSENT, INVALID, REFUSED])
def test_rows_in_a_request_that_fails_end_too_once_their_owner_is_gone(stage: str, failure: RequestFailed) -> None:
    desk, frame, under_way = staged(stage)
    desk.pipeline.discard("caller")
    for work in under_way:
        if isinstance(work, SortJob):
            desk.sorted(work)
        else:
            request = work.request if isinstance(work, Sent) else work
            desk.pipeline.complete(request, failure, desk.now)
    assert frame.finished
    discarded = 20 - sum(frame.tallies.values())
    assert desk.stats.discarded_records == {"disconnected": discarded}
    assert go_on(desk, []) == 0
    assert desk.is_empty()


@pytest.mark.parametrize(("deliver", "reason"), [(False, "disconnected"), (True, "abandoned")])
def test_a_row_that_is_refused_after_its_caller_has_left_is_lost_unless_the_caller_wanted_it_discarded(
    deliver: bool, reason: str
) -> None:
    desk = Desk(fail_if_throttled=True)
    desk.queue(2)
    sent = desk.send()
    desk.pipeline.disown("caller") if deliver else desk.pipeline.discard("caller")
    sent.throttle({0, 1})
    assert (desk.stats.failed_records, desk.stats.discarded_records) == ({}, {reason: 2})
    assert desk.is_empty()


@pytest.mark.parametrize("stage", STAGES)
def test_rows_whose_owner_is_gone_but_wants_them_delivered_are_delivered(stage: str) -> None:
    desk, frame, under_way = staged(stage)
    desk.pipeline.disown("caller")
    go_on(desk, under_way)
    assert frame.finished
    assert frame.tallies[Outcome.STORED] == 20
    assert desk.finished() == []
    assert desk.is_empty()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("failure", [None, LOST, UNSENT, INVALID])
def test_a_drain_gives_back_what_is_in_no_request(stage: str, failure: RequestFailed | None) -> None:
    desk, frame, under_way = staged(stage)
    stored = frame.tallies[Outcome.STORED]
    in_request = sum(request.records for request in desk.pipeline.sender.in_flight)
    desk.pipeline.return_rows()
    assert frame.tallies[Outcome.RETURNED] == 20 - in_request - stored
    for work in under_way:
        if isinstance(work, SortJob) or failure is None:
            assert go_on(desk, [work]) == 0
        else:
            desk.pipeline.complete(work.request if isinstance(work, Sent) else work, failure, desk.now)
    assert go_on(desk, []) == 0
    assert desk.finished() == [frame]
    if failure is None and in_request:
        assert frame.tallies[Outcome.STORED] == stored + in_request
    else:
        assert frame.tallies[Outcome.RETURNED] == 20 - stored
    maybe = sum(maybe_stored for _, _, maybe_stored in ends_of(frame).values())
    assert maybe == (in_request if failure is LOST else 0)
    assert desk.stats.discarded_records == {"returned": frame.tallies[Outcome.RETURNED]}
    assert desk.is_empty()


def test_a_drain_still_sends_rows_that_have_no_owner_and_returns_what_comes_late() -> None:
    desk = Desk()
    orphan = desk.submit(5, owner="gone")
    desk.pipeline.disown("gone")
    kept = desk.submit(5, owner="here")
    desk.pipeline.return_rows()
    late, late_orphan = desk.submit(5, owner="here"), desk.submit(5, owner=None)
    assert desk.finished() == [kept, late]
    for frame in (kept, late):
        assert frame.tallies[Outcome.RETURNED] == 5
    go_on(desk, [])
    assert orphan.tallies[Outcome.STORED] == late_orphan.tallies[Outcome.STORED] == 5
    assert desk.is_empty()


def test_at_the_deadline_every_row_ends_and_those_without_a_caller_are_counted() -> None:
    desk = Desk()
    orphan, kept = desk.submit(5, owner="gone"), desk.submit(3, owner="here")
    desk.pipeline.disown("gone")
    assert desk.pipeline.diagnosis.records_without_caller == 5
    desk.pipeline.abandon()
    assert orphan.finished
    assert desk.finished() == [kept]
    assert desk.stats.discarded_records == {"returned": 3, "abandoned": 5}
    assert desk.is_empty()


@pytest.mark.parametrize("leave", ["discard", "disown"])
def test_a_frame_whose_owner_left_after_it_was_finished_is_acknowledged_to_nobody(leave: str) -> None:
    desk = Desk()
    desk.put(5).stored()
    getattr(desk.pipeline, leave)("caller")
    assert desk.finished() == []


def test_a_lagging_row_pins_its_own_buffer_and_not_its_job() -> None:
    desk = Desk(even_map(2), request_max_bytes=100_000)
    desk.queue([(b"k", b"x" * 10_000, HIGH) for _ in range(50)] + [(b"k", b"slow", LOW)])
    for sent in desk.send_all():
        slow = {i for i, data in enumerate(sent.data) if data == b"slow"}
        sent.throttle(slow)
    for sent in desk.send_all():
        sent.stored_as_predicted()
    assert desk.pipeline.queued_records == 1
    assert desk.budget.used_bytes <= 64 * 1024 + FRAME_CHARGE_BYTES


def test_a_bad_row_is_released_at_once_and_its_mates_are_sent() -> None:
    desk = Desk()
    frame = desk.submit([(b"k", b"good", None), (b"k", None, None)], takes_good=True)
    assert desk.budget.used_records == 1
    desk.sort()
    sent = desk.send()
    assert sent.data == [b"good"]
    sent.stored()
    assert ends_of(frame) == {1: (Outcome.NOT_STORED, Code.RECORD_INVALID, False)}
    assert desk.is_empty()


def test_a_probe_that_gets_no_answer_ends_with_the_service_s_message() -> None:
    """A BROKEN stream keeps no caller waiting: it fails at once what it cannot send at once."""
    desk = Desk()
    desk.put(1).fail(REFUSED)
    desk.finished()
    probe = desk.queue(2)
    desk.send().fail(LOST)
    assert desk.finished() == [probe]
    assert ends_of(probe) == dict.fromkeys((0, 1), (Outcome.UNKNOWN, Code.ACCESS_DENIED, True))
    assert desk.is_empty()


def test_a_lane_whose_rows_are_all_handed_back_is_in_no_request() -> None:
    desk = Desk(even_map(2), aggregate=True, aggregate_max_bytes=60, request_max_records=50)
    frame = desk.queue(
        [(b"k", b"low %d" % i, LOW) for i in range(4)] + [(b"k", b"high %d" % i, HIGH) for i in range(9)]
    )
    sent = desk.send(one_entry=True)
    assert [lane.shard.shard_id for lane in sent.request.lanes] == ["shard-0"]
    assert [lane.in_flight for lane in desk.pipeline.sender.lanes] == [1, 0]
    sent.stored_as_predicted()
    while not frame.finished:
        desk.send().stored_as_predicted()
    assert all(lane.in_flight == 0 for lane in desk.pipeline.sender.lanes)
    assert desk.is_empty()


def test_rows_that_wait_alone_go_without_those_whose_owner_is_gone() -> None:
    desk = Desk()
    stays = desk.submit([(b"k%d" % i, b"a %d" % i, None) for i in range(8)], owner="a")
    gone = desk.queue([(b"k%d" % i, b"b %d" % i, None) for i in range(5)], owner="b")
    desk.send().fail(INVALID)
    desk.pipeline.discard("b")
    for sent in desk.send_all():
        assert all(data.startswith(b"a") for data in sent.data)
        sent.stored()
    assert gone.finished
    assert desk.finished() == [stays]
    desk.delivered(stays)


def test_after_ten_idle_minutes_lanes_and_map_go_and_they_come_back_with_the_next_row() -> None:
    desk = Desk(even_map(4), aggregate=True)
    desk.queue(100)
    sents = desk.send_all()
    assert not desk.pipeline.forget_shards(desk.now)
    assert not desk.pipeline.forget_shards(desk.now + 10**6), "rows are on their way"
    for sent in sents:
        sent.stored_as_predicted()
    assert not desk.pipeline.forget_shards(desk.now)
    assert not desk.pipeline.forget_shards(desk.now + 599)
    assert (len(desk.pipeline.sender.lanes), desk.wants_map) == (4, False)
    desk.now += 600
    assert desk.pipeline.forget_shards(desk.now)
    assert (len(desk.pipeline.sender.lanes), desk.pipeline.shard_map, desk.wants_map) == (0, None, False)
    frame = desk.submit(100)
    assert desk.wants_map
    desk.set_map(even_map(4))
    desk.sort()
    for sent in desk.send_all():
        sent.stored_as_predicted()
    assert frame.finished
    assert not desk.pipeline.forget_shards(desk.now + 10**6), "the count of idle time begins again"


@pytest.mark.promise("lanes-request-answer")
def test_lanes_of_a_request_that_has_no_answer_for_long_go_alone_until_they_answer_in_time() -> None:
    desk = Desk(even_map(2))
    both = [(b"k", b"low", LOW), (b"k", b"high", HIGH)]
    stuck = desk.put(both)
    assert len(stuck.request.lanes) == 2, "nothing is known yet"
    desk.now += 0.9
    desk.queue(both)
    assert len(desk.send().request.lanes) == 2
    desk.now += 1.0
    desk.queue(both)
    alone = desk.send_all()
    assert [len(sent.request.lanes) for sent in alone] == [1, 1], "and neither waits for the other"
    quick, slow = alone
    desk.now += 0.02
    quick.stored_as_predicted()
    assert [lane.alone for lane in (*quick.request.lanes, *slow.request.lanes)] == [False, True]
    desk.now += 6
    for sent in (stuck, slow):
        sent.stored_as_predicted()
    assert [lane.alone for lane in (*quick.request.lanes, *slow.request.lanes)] == [False, True], "a late answer"


# ---- the map, once more


def test_two_aggregates_in_shards_that_are_not_known_wait_for_the_map_each_for_itself() -> None:
    """They stand next to each other in one request."""
    desk = Desk(even_map(1), aggregate=True, aggregate_max_records=5)
    frame = desk.queue(spread(10))
    sent = desk.send()
    assert [len(parse(data) or []) for data in sent.data] == [5, 5]
    sent.answer([{"SequenceNumber": "1", "ShardId": shard_id} for shard_id in ("low", "high")])
    assert not frame.finished
    desk.set_map(HALVES)
    desk.delivered(frame)


@pytest.mark.parametrize("shard_id", ["low", "high"])
def test_an_aggregate_of_two_jobs_rows_that_awaits_a_map_is_looked_at_as_a_whole(shard_id: str) -> None:
    desk = Desk(even_map(1), aggregate=True)
    frames = []
    for hash_key in (b"%d" % MAX_HASH_KEY, b"0"):
        frames.append(desk.submit([(b"k", b"x", hash_key)]))
        desk.sort()
    sent = desk.send()
    assert (len(sent.entries), len(sent.request.pieces)) == (1, 2)
    sent.stored(shard_id)
    desk.set_map(HALVES)
    assert [frame.finished for frame in frames] == [False, False]
    desk.send().stored_as_predicted()
    assert [frame.result().possible_duplicates for frame in frames] == [1, 1]
    assert desk.is_empty()


def test_a_map_that_does_not_have_the_shard_that_answered_is_read_again_and_its_rows_wait_on() -> None:
    desk = Desk(even_map(1), aggregate=True)
    frame = desk.queue(spread(4))
    desk.send().stored("unknown")
    desk.set_map(HALVES)
    assert (desk.wants_map, desk.pipeline.diagnosis.census()["awaiting a map"]) == (True, 4)
    desk.map_failed("LimitExceededException", "slow down")
    assert desk.pipeline.diagnosis.census()["awaiting a map"] == 4
    desk.set_map(ShardMap([Shard("unknown", 0, MAX_HASH_KEY)]))
    assert (desk.wants_map, frame.result().stored) == (False, 4)
    assert desk.is_empty()


def test_a_map_is_read_again_while_a_lane_waits_because_a_plain_record_was_stored_elsewhere() -> None:
    desk = Desk(even_map(2), aggregate=True)
    desk.put(1).stored("unknown")
    assert desk.wants_map
    desk.set_map(even_map(2))
    assert desk.wants_map
    assert not desk.pipeline.awaits_map, "no row does"


@pytest.mark.parametrize("aggregates", [False, True])
def test_an_answer_of_a_shard_that_nobody_knows_to_a_closed_one_s_request_wants_a_newer_map(aggregates: bool) -> None:
    desk = Desk(even_map(1), aggregate=True)
    frame = desk.queue(spread(4 if aggregates else 1))
    sent = desk.send()
    desk.set_map(HALVES)
    assert not desk.wants_map
    sent.stored("unknown")
    assert desk.wants_map is aggregates, "what is plain is delivered"
    assert frame.finished is not aggregates


def test_while_a_doubted_map_cannot_be_read_an_answer_to_a_closed_shard_s_request_wants_a_newer_one() -> None:
    desk = Desk(even_map(1), aggregate=True)
    sent = desk.put(1)
    desk.set_map(HALVES)
    desk.now += 30.0
    desk.map_failed("LimitExceededException", "slow down")
    assert not desk.wants_map
    sent.stored("shard-0")
    assert desk.wants_map


def test_a_closed_shard_is_believed_until_the_last_request_that_was_sent_before_has_its_answer() -> None:
    desk = Desk(even_map(1), aggregate=True)
    first = desk.queue(spread(10))
    sent = desk.send()
    desk.set_map(HALVES)
    sent.stored("shard-0")
    assert first.finished
    later = desk.queue([(b"k", b"x", b"0")] * 2)
    desk.send().stored("shard-0")
    assert not later.finished, "no such shard is known any more"
    assert desk.wants_map


def test_an_aggregate_that_strayed_once_is_aggregated_again_by_the_next_map() -> None:
    desk = Desk(HALVES, aggregate=True)
    frame = desk.queue([(b"k", b"%d" % i, b"%d" % i) for i in range(2)])
    desk.send().stored("high")
    assert not frame.finished
    quarters = [Shard("a", 0, 2**126 - 1), Shard("b", 2**126, 2**127 - 1)]
    desk.set_map(ShardMap([*quarters, HALVES.shards[1]]))
    again = desk.send()
    assert [len(parse(data) or []) for data in again.data] == [2]
    again.stored("a")
    assert frame.result().possible_duplicates == 2
    assert desk.is_empty()


def test_rows_whose_map_was_late_stay_plain_also_by_the_map_that_comes_then() -> None:
    desk = Desk(even_map(1), aggregate=True)
    desk.put(spread(10)).stored("unknown")
    desk.now += 10.0
    desk.pipeline.pause()
    assert desk.try_send() is None
    desk.set_map(HALVES)
    desk.pipeline.resume()
    assert len(desk.send().entries) == 10


def test_of_many_frames_in_one_job_each_is_acknowledged_with_its_last_row() -> None:
    desk = Desk(even_map(1), request_max_records=30)
    frames = [desk.submit(2) for _ in range(FEW_FRAMES + 1)]
    desk.sort()
    sent = desk.send()
    sent.throttle({0})
    (late,) = [frame for frame in frames if frame.unsettled]
    assert (late.unsettled, desk.finished()) == (1, [frame for frame in frames if frame is not late])
    desk.send_when_due().stored()
    assert desk.finished() == [late]
    desk.delivered(*frames)


def test_rows_behind_an_aggregate_whose_doubt_no_map_settles_in_time_go_plain_with_it() -> None:
    desk = Desk(even_map(1), aggregate=True)
    desk.queue(spread(10))
    desk.now += 60.0
    desk.send().stored()
    assert desk.wants_map, "after such a silence"
    desk.pipeline.pause()
    desk.queue(spread(10))
    desk.now += 10.0
    assert desk.try_send() is None
    desk.pipeline.resume()
    assert [len(sent.entries) for sent in desk.send_all()] == [10, 10]


def test_a_lane_waits_for_a_map_though_an_earlier_request_is_answered_by_its_own_shard() -> None:
    desk = Desk(even_map(1), aggregate=True, aggregate_max_records=5, request_max_records=1)
    desk.queue(spread(40))
    first, *others = desk.send_all()
    first.stored("unknown")
    for sent in others:
        sent.stored()
    assert desk.try_send() is None
    desk.now += 10.0
    for _ in range(5):
        sent = desk.send()
        assert [len(parse(data) or [data]) for data in sent.data] == [1], "no map came in time"
        sent.stored()
    assert [len(parse(data) or [data]) for data in desk.send().data] == [5], "its own shard has answered since"


def test_an_answer_that_does_not_name_a_lane_s_shard_says_nothing_of_its_sequence_numbers() -> None:
    desk = Desk(even_map(1), aggregate=True)
    frames = []
    for results in ([("500", "shard-0")], None, [("501", "shard-0")]):
        frames.append(desk.submit(spread(4)))
        desk.sort()
        sent = desk.send()
        if results is None:
            sent.throttle({0})
            desk.now += 1.0
        else:
            sent.answer([{"SequenceNumber": number, "ShardId": shard_id} for number, shard_id in results])
    assert [frame.finished for frame in frames] == [True, True, True]
    assert not desk.wants_map


def test_an_aggregate_whose_rows_lost_their_caller_is_no_delivery_when_the_map_comes() -> None:
    desk = Desk(even_map(1), aggregate=True)
    desk.put(spread(4)).stored("unknown")
    desk.pipeline.discard("caller")
    desk.set_map(ShardMap([Shard("unknown", 0, MAX_HASH_KEY)]))
    assert desk.stats.delivered_at is None
    assert desk.pipeline.diagnosis.census()["awaiting a map"] == 0
    assert desk.is_empty()


@pytest.mark.parametrize(
    ("code", "known", "rows", "state"),
    [
        ("ResourceNotFoundException", False, 1, HealthState.BROKEN),
        ("ResourceNotFoundException", False, 0, HealthState.UNPROVEN),
        ("ResourceNotFoundException", True, 0, HealthState.BROKEN),
        ("UnrecognizedClientException", False, 1, HealthState.BROKEN),
        ("UnrecognizedClientException", True, 1, HealthState.UNPROVEN),
        (CREDENTIALS_LATE, False, 1, HealthState.SUSPECT),
        (Code.CONFIGURATION, False, 1, HealthState.BROKEN),
        ("RequestExpired", False, 1, HealthState.UNPROVEN),
        ("AccessDeniedException", False, 1, HealthState.UNPROVEN),
    ],
)
def test_a_reading_that_fails_speaks_against_the_stream_only_if_the_stream_is_the_cause(
    code: str, known: bool, rows: int, state: HealthState
) -> None:
    desk = Desk(known=known)
    if rows:
        desk.submit(rows)
    desk.map_failed(code, "no", request_id="r-1")
    assert desk.health is state
    assert desk.pipeline.health.request_id == ("" if state is HealthState.UNPROVEN else "r-1")
    assert desk.stats.shard_map_refreshes == ({"ok": 1, "failed": 1} if known else {"failed": 1})
    if code.startswith("Resource") and known:
        assert (desk.pipeline.shard_map, desk.wants_map) == (None, True)


def test_shards_are_not_forgotten_while_requests_may_name_them() -> None:
    desk = Desk()
    sent = desk.put(1)
    with pytest.raises(AssertionError, match="requests are in flight"):
        desk.pipeline.sender.forget_shards()
    sent.stored()
    desk.pipeline.sender.forget_shards()
    assert (desk.pipeline.shard_map, len(desk.pipeline.sender.lanes)) == (None, 0)


def test_shards_are_not_forgotten_while_rows_that_ended_are_still_being_sorted() -> None:
    desk = Desk()
    desk.submit(1)
    desk.pipeline.flush("caller")
    job = desk.job()
    desk.pipeline.discard("caller")
    assert desk.pipeline.idle
    assert not desk.pipeline.forget_shards(desk.now)
    assert not desk.pipeline.forget_shards(desk.now + 10_000.0)
    desk.sorted(job)
    assert not desk.pipeline.forget_shards(desk.now + 10_000.0)
    assert desk.pipeline.forget_shards(desk.now + 10_600.0)


def test_a_list_of_shards_is_read_at_most_six_times_a_minute() -> None:
    desk = Desk(known=False)
    assert desk.pipeline.next_reading() == -inf
    for _ in range(6):
        desk.pipeline.reading_began(desk.now)
    assert desk.pipeline.next_reading() == desk.now + 60.0


def test_a_list_is_read_regularly_and_soon_if_rows_want_it_and_not_for_an_idle_stream() -> None:
    desk = Desk(even_map(1), aggregate=True)
    desk.pipeline.reading_began(desk.now)
    desk.set_map(even_map(1))
    assert 47.0 < desk.pipeline.next_reading() - desk.now < 83.0
    desk.put(spread(4)).stored("unknown")
    assert 2.5 <= desk.pipeline.next_reading() - desk.now <= 3.75
    for code in [Code.UNREACHABLE] * 4 + ["AccessDeniedException"]:
        desk.map_failed(code, "no")
    assert desk.pipeline.next_reading() - desk.now <= 1.0, "the first failure after a time without the service"
    desk.now += 10.0
    for sent in desk.send_all():
        sent.stored()
    assert not desk.pipeline.forget_shards(desk.now)
    assert desk.pipeline.forget_shards(desk.now + 600.0)
    assert desk.pipeline.next_reading() == inf


# ---- what it says of itself


@pytest.mark.parametrize("aggregate", [False, True])
def test_a_stream_is_in_outage_while_nothing_passes_or_its_first_list_does_not_come(aggregate: bool) -> None:
    desk = Desk(known=False, aggregate=aggregate)
    desk.map_failed(Code.UNREACHABLE, "no route to host")
    assert desk.pipeline.diagnosis.map_error == "UNREACHABLE: no route to host"
    assert not desk.in_outage(), "no row waits"
    desk.submit(4)
    assert desk.in_outage() is aggregate
    desk.set_map(even_map(1))
    assert desk.pipeline.diagnosis.map_error == ""
    assert not desk.in_outage()
    desk = Desk(request_max_records=1, aggregate=aggregate, aggregate_max_records=1)
    desk.queue(4)
    sents = desk.send_all()
    for sent in sents[:FAILURES_TO_HOLD]:
        assert not desk.in_outage()
        sent.fail(UNSENT)
    assert desk.in_outage()
    sents[3].stored()
    assert not desk.in_outage()


def test_a_stream_whose_rows_go_plain_without_a_list_is_not_in_outage() -> None:
    desk = Desk(known=False, aggregate=True)
    desk.submit(4)
    assert not desk.in_outage(), "nothing has failed yet"
    desk.map_failed("LimitExceededException", "slow down")
    assert desk.in_outage()
    desk.now += 10.0
    desk.sort()
    assert desk.pipeline.goes_plain
    assert not desk.in_outage()
    assert desk.holding().cause == "shard_map"


@pytest.mark.parametrize("aggregate", [False, True])
def test_rows_await_a_newer_map_only_if_they_become_aggregates(aggregate: bool) -> None:
    desk = Desk(known=False, aggregate=aggregate)
    assert desk.wants_map
    assert not desk.pipeline.awaits_map
    desk.submit(1)
    assert desk.pipeline.awaits_map is aggregate
    desk.set_map(even_map(1))
    assert not desk.pipeline.awaits_map
    assert not desk.pipeline.goes_plain


def test_the_oldest_frame_that_is_not_finished_has_an_age() -> None:
    desk = Desk(request_max_records=1)
    assert desk.pipeline.diagnosis.oldest_seconds(desk.now) == 0.0
    desk.queue(1)
    desk.now += 2.0
    desk.submit(1)
    assert desk.pipeline.diagnosis.oldest_seconds(desk.now + 1.0) == 3.0
    desk.send().stored()
    assert desk.pipeline.diagnosis.oldest_seconds(desk.now + 1.0) == 1.0


def test_a_stream_that_does_not_aggregate_is_not_refused_because_it_cannot() -> None:
    desk = Desk()
    desk.pipeline.set_cannot_aggregate("the stream distributes its records itself")
    assert desk.refuses() is None
    desk.put(1).stored()
    assert desk.is_empty()
    desk = Desk(aggregate=True)
    desk.pipeline.set_cannot_aggregate("the stream distributes its records itself")
    end = desk.refuses()
    assert end == RowEnd(Outcome.NOT_STORED, Code.SHARD_MAP_MISSING, "the stream distributes its records itself")
    desk.pipeline.set_cannot_aggregate("")
    assert desk.refuses() is None
