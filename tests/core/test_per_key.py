"""With `ordering = "per_key"` the rows of a key are stored in their order, and no row after a failed one is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producerd.core.kpl.aggregation import parse
from producerd.core.lanes.lane import Lane
from producerd.core.rows.frame import Frame
from producerd.core.rows.sorting import sort_rows
from producerd.core.sending.answers import RequestFailed
from producerd.core.sending.health import HealthState
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.errors import Code, Outcome
from tests.core.rows import Row, even_map
from tests.core.stories import (
    BROKEN,
    GOOD,
    HALVES,
    HIGH,
    INVALID,
    LOST,
    LOW,
    MERGED,
    REFUSED,
    SLOW_DOWN,
    UNSENT,
    Desk,
    Sent,
    ends_of,
)
from tests.simulation.story import first_broken

pytestmark = pytest.mark.law("Lane", "Row")

PREDECESSOR = (Outcome.NOT_STORED, Code.PREDECESSOR_FAILED, False)


def ordered(shard_map: ShardMap | None = None, **rules: Any) -> Desk:
    return Desk(shard_map, per_key=True, **rules)


def rows_named(names: str) -> list[Row]:
    """ "a1 b1" becomes a row of key a and one of key b; the name is the data."""
    return [(name[:1].encode(), name.encode(), None) for name in names.split()]


def names(sent: Sent) -> str:
    return " ".join(data.decode() for data in sent.users)


def until_finished(frame: Frame) -> Iterator[None]:
    """Yield for each turn until the frame is finished, and fail after 300 turns instead of waiting forever."""
    for _ in range(300):
        if frame.finished:
            return
        yield
    pytest.fail("rows were lost")


def entries_of(sent: Sent) -> list[tuple[Lane, list[bytes]]]:
    """Each entry's lane, and the rows in it."""
    lanes = [sent.request.lanes[lane] for lane in sent.encoded.lanes.tolist()]
    inside = [[user.data for user in parse(data) or []] or [data] for data in sent.data]
    return list(zip(lanes, inside, strict=True))


# ---- plain records


@pytest.mark.promise("order-per-key-costs")
def test_one_row_of_a_key_is_in_flight_and_other_keys_overtake_those_that_wait() -> None:
    desk = ordered()
    frame = desk.queue(rows_named("a1 a2 b1 a3 c1 b2"))
    sent = desk.send()
    assert names(sent) == "a1 b1 c1", "the first of each key, in the order of their first rows"
    assert desk.try_send() is None
    assert desk.pipeline.next_time() == desk.now + 1.0, "when it would be slow"
    sent.stored()
    sent = desk.send()
    assert names(sent) == "a2 b2"
    sent.stored()
    desk.send().stored()
    desk.delivered(frame)


@pytest.mark.promise("consumer-reads-key-order")
def test_rows_wait_for_earlier_ones_of_their_partition_key_whatever_their_hash_keys() -> None:
    """A row without a partition key waits for earlier ones of its hash key."""
    desk = ordered()
    desk.submit([(b"a", b"1", LOW), (b"b", b"2", LOW), (b"a", b"3", b"1"), (b"a", b"4", None)])
    desk.queue([(None, b"5", LOW), (None, b"6", LOW), (None, b"7", b"%d" % 2**64)])
    desk.queue([(b"a", b"8", None), (b"c", b"9", None)])
    found = []
    while (sent := desk.try_send()) is not None:
        found.append(b" ".join(sent.data))
        sent.stored()
    assert found == [b"1 2 5 7 9", b"3 6", b"4", b"8"]


def test_rows_without_a_key_wait_for_nobody() -> None:
    desk = ordered()
    desk.queue([(None, b"%d" % i, None) for i in range(50)])
    assert len(desk.send().data) == 50


@pytest.mark.parametrize("failure", [LOST, UNSENT])
def test_after_a_failure_that_passes_rows_wait_in_front_of_their_lane_and_nothing_overtakes_them(
    failure: RequestFailed,
) -> None:
    """Without an order they would wait next to the lane, and later rows would overtake them."""
    desk = ordered()
    desk.put(rows_named("a1 b1 a2")).fail(failure)
    assert desk.try_send() is None
    due = desk.due()
    assert desk.now + 0.01 <= due <= desk.now + 5
    desk.queue(rows_named("c1"))
    assert desk.try_send() is None
    desk.now = due
    assert names(desk.send()) == "a1 b1 c1"


def test_halving_keeps_the_order_and_finds_the_one_bad_row() -> None:
    desk = ordered()
    frame = desk.queue([(b"%c" % (97 + i % 20), b"%c%d" % (97 + i % 20, i // 20), None) for i in range(100)])
    stored: dict[str, list[int]] = defaultdict(list)
    for _ in until_finished(frame):
        sent = desk.send()
        assert desk.try_send() is None, "one lane, one request"
        if b"c2" in sent.data:
            sent.fail(INVALID)
        else:
            for data in sent.data:
                stored[data[:1].decode()].append(int(data[1:]))
            sent.stored()
    assert frame.finished
    ends = ends_of(frame)
    assert ends[42] == (Outcome.NOT_STORED, Code.RECORD_INVALID, False)
    assert all(ends[row] == PREDECESSOR for row in ends if row != 42)
    assert min(ends) == 42, "all rows before the bad one are stored"
    assert all(numbers == sorted(numbers) for numbers in stored.values())
    assert desk.is_empty()


def test_a_row_that_no_longer_fits_the_request_goes_with_the_next_one() -> None:
    """It is not forgotten, although nothing is in flight that would wake its lane."""
    desk = ordered(even_map(2))
    frame = desk.queue([(b"a", b"x" * 700_000, LOW), (b"b", b"y" * 700_000, HIGH)])
    for _ in range(2):
        sent = desk.send()
        assert len(sent.entries) == 1
        sent.stored_as_predicted()
        desk.now += 2
    desk.delivered(frame)


# ---- aggregates


def test_the_halves_of_an_aggregate_that_is_refused_go_one_after_the_other() -> None:
    """They have keys in common: the second must not be stored before the first."""
    desk = ordered(aggregate=True)
    frame = desk.queue([(b"k", b"%d" % i, None) for i in range(10)])
    desk.send().fail(INVALID)
    half = desk.send()
    assert half.users == [b"%d" % i for i in range(5)]
    assert desk.try_send() is None
    half.fail(UNSENT)
    again = desk.send_when_due()
    assert again.users[:5] == [b"%d" % i for i in range(5)], "nothing overtakes it, whatever happens to it"
    again.stored()
    desk.now += 6
    for sent in desk.send_all():
        sent.stored()
    desk.delivered(frame)


def test_an_aggregate_in_an_unknown_shard_holds_its_lane_until_a_map_tells() -> None:
    desk = ordered(even_map(1), aggregate=True, aggregate_max_bytes=100)
    frame = desk.queue([(b"k", b"%02d" % i, LOW) for i in range(8)])
    sent = desk.send()
    first = sent.users
    assert len(first) < 8
    sent.stored("low")
    assert desk.try_send() is None
    desk.now += 3
    assert desk.try_send() is None
    desk.set_map(HALVES)
    again = desk.send()
    assert again.users[0] == b"%02d" % len(first)
    for _ in until_finished(frame):
        again.stored("low")
        if not frame.finished:
            desk.now += 1
            again = desk.send()
    assert frame.result().possible_duplicates == 0
    assert desk.is_empty()


def test_an_aggregate_that_is_in_doubt_holds_its_lane() -> None:
    """After a silence only a new reading of the map shows whether a consumer receives it."""
    desk = ordered(even_map(1), aggregate=True, aggregate_max_bytes=200)
    sent = desk.put([(b"k", b"%02d" % i, LOW) for i in range(8)])
    desk.now += 60
    sent.stored()
    assert desk.wants_map
    assert desk.try_send() is None
    desk.set_map(even_map(1))
    assert desk.send().users[0] == b"%02d" % len(sent.users)


# ---- shards that split and merge


@pytest.mark.promise("consumer-reads-key-order")
@pytest.mark.parametrize("aggregate", [False, True])
@pytest.mark.parametrize(("before", "after"), [(even_map(1), HALVES), (even_map(2), MERGED)])
def test_children_wait_for_what_is_on_its_way_to_their_parents(
    before: ShardMap, after: ShardMap, aggregate: bool
) -> None:
    desk = ordered(before, aggregate=aggregate, aggregate_max_bytes=150)
    desk.queue([(b"%d" % (i % 10), b"%03d" % i, None) for i in range(60)])
    *others, last = desk.send_all()
    desk.set_map(after)
    assert desk.try_send() is None
    for sent in others:
        sent.stored_as_predicted()
        assert desk.try_send() is None, "the other parent's rows are still on their way"
    last.stored_as_predicted()
    assert desk.try_send() is not None


def test_children_of_a_shard_with_nothing_on_its_way_do_not_wait() -> None:
    desk = ordered(even_map(1))
    desk.queue(rows_named("a1 b1 c1 d1"))
    desk.set_map(HALVES)
    assert sorted(names(desk.send()).split()) == ["a1", "b1", "c1", "d1"]


def test_a_shard_beside_those_that_split_does_not_wait() -> None:
    desk = ordered(even_map(2))
    desk.queue([(b"a", b"1", LOW), (b"a", b"2", LOW), (b"b", b"1", HIGH), (b"b", b"2", HIGH)])
    desk.send(one_entry=True)  # only the low shard's row is on its way
    low, high = even_map(2).shards
    middle = 2**126
    desk.set_map(ShardMap([Shard("c", 0, middle - 1), Shard("d", middle, low.end), high]))
    assert desk.send().data == [b"1"]
    assert desk.try_send() is None


def test_the_halves_of_a_refused_request_and_what_follows_go_on_after_their_shard_split() -> None:
    desk = ordered()
    frame = desk.queue(rows_named("a1 b1 c1 d1 a2"))
    desk.send().fail(INVALID)
    desk.set_map(HALVES)
    for _ in until_finished(frame):
        for sent in desk.send_all():
            sent.stored_as_predicted()
    desk.delivered(frame)


def test_children_do_not_wait_for_rows_that_were_handed_back_before_they_were_sent() -> None:
    desk = ordered(even_map(2))
    desk.queue([(b"a", b"low", LOW), (b"b", b"high", HIGH)])
    request = desk.take_request()
    low, high = even_map(2).shards
    middle = high.start + 2**126
    desk.set_map(ShardMap([low, Shard("c", high.start, middle - 1), Shard("d", middle, high.end)]))
    Sent(desk, request, one_entry=True)
    assert desk.send().data == [b"high"], "only the low shard's row is on its way"


def test_children_wait_for_an_aggregate_of_their_parent_that_awaits_a_map() -> None:
    desk = ordered(aggregate=True, aggregate_max_bytes=200)
    sent = desk.put([(b"k", b"%02d" % i, LOW) for i in range(8)])
    assert len(sent.users) < 8
    sent.stored("unknown")
    desk.set_map(HALVES)
    assert desk.try_send() is None
    desk.set_map(ShardMap([Shard("unknown", 0, 2**127 - 1), HALVES.shards[1]]))
    assert desk.send().users[0] == b"%02d" % len(sent.users)


@settings(max_examples=20)
@given(st.randoms(use_true_random=True), st.booleans(), st.booleans(), st.sampled_from([3, 500]))
def test_whatever_is_answered_the_rows_of_a_key_are_delivered_in_their_order_and_one_at_a_time(
    random: Random, aggregate: bool, explicit: bool, request_max_records: int
) -> None:
    maps = [even_map(1), HALVES, MERGED, even_map(4)]
    desk = ordered(maps[0], aggregate=aggregate, aggregate_max_bytes=300, request_max_records=request_max_records)
    hash_keys = [LOW, b"1", b"2"] if explicit else [None]
    keys = [b"%d" % random.randrange(12) for _ in range(200)]
    rows: list[Row] = [(key, b"%04d" % i, random.choice(hash_keys)) for i, key in enumerate(keys)]
    first: dict[int, None] = {}  # an aggregate that another shard than predicted stored is sent again
    under_way: list[tuple[Sent, list[tuple[Lane, list[bytes]]]]] = []
    while rows or under_way or desk.pipeline.queued_records:
        assert desk.now < 10_000, "stuck"
        if rows and random.random() < 0.5:
            desk.queue(rows[:60])
            rows = rows[60:]
        if random.random() < 0.1:
            desk.set_map(random.choice(maps))
        under_way += [(sent, entries_of(sent)) for sent in desk.send_all()]
        entries = [(lane.shard, inside) for _, in_request in under_way for lane, inside in in_request]
        for shard, sent_to in Counter(shard for shard, _ in entries).items():
            plain = all(len(inside) == 1 for of, inside in entries if of == shard)
            assert sent_to == 1 or plain, "an aggregate goes alone"
        in_flight = Counter(keys[int(inside[0])] for _, inside in entries if len(inside) == 1)
        assert max(in_flight.values(), default=0) <= 1
        random.shuffle(under_way)
        for sent, in_request in [under_way.pop() for _ in range(random.randint(0, len(under_way)))]:
            if random.random() < 0.3:
                sent.fail(random.choice([LOST, UNSENT, UNSENT]))
                continue
            results = []
            for lane, inside in in_request:
                if random.random() < 0.7:
                    results.append({"SequenceNumber": "1", "ShardId": lane.shard.shard_id})
                    for row in inside:
                        first.setdefault(int(row))
                else:
                    results.append(random.choice([SLOW_DOWN, BROKEN]))
            sent.answer(results)
        desk.now += random.choice([0.0, 0.5, 3.0])
    delivered, expected = ({key: [n for n in order if keys[n] == key] for key in keys} for order in (first, range(200)))
    assert delivered == expected
    assert desk.is_empty()


@pytest.mark.promise("consumer-reads-key-order")
@pytest.mark.parametrize("aggregate", [False, True])
def test_a_consumer_reads_each_key_in_order_through_faults_splits_and_merges(aggregate: bool) -> None:
    mixed: dict[str, Any] = {"kind": "mixed", "reshards": True, "made_again": False, "ending": "idle"}
    broken = first_broken(range(6), per_key=True, aggregate=aggregate, **mixed)
    assert broken is None, broken


# ---- PREDECESSOR_FAILED


def fail_row(desk: Desk, name: bytes) -> Sent:
    """The service refuses one row, alone in its request."""
    sent = desk.send()
    assert sent.users == [name]
    sent.fail(INVALID)
    return sent


@pytest.mark.promise("session-failed-spends")
def test_after_a_row_that_failed_nothing_that_its_session_sent_later_is_sent() -> None:
    desk = ordered(request_max_records=1)
    first = desk.submit(rows_named("a1 b1 c1 d1"), owner="me")
    later = desk.submit(rows_named("e1 f1"), owner="me")
    other = desk.queue(rows_named("g1 h1"), owner="other")
    desk.send().stored()
    fail_row(desk, b"b1")
    assert ends_of(first) == {1: (Outcome.NOT_STORED, Code.RECORD_INVALID, False), 2: PREDECESSOR, 3: PREDECESSOR}
    assert ends_of(later) == {0: PREDECESSOR, 1: PREDECESSOR}
    after = desk.submit(rows_named("a2"), owner="me")
    assert ends_of(after) == {0: PREDECESSOR}
    assert desk.finished() == [first, later, after]
    for _ in until_finished(other):
        sent = desk.send()
        assert sent.users[0] in (b"g1", b"h1")
        sent.stored()
    desk.delivered(other)


@pytest.mark.promise("session-failed-spends")
def test_a_session_that_has_failed_spends_no_probe_of_a_stream_that_is_refused() -> None:
    """None of its rows is sent, so its frames would keep the stream refused for everybody."""
    desk = ordered(permanent_error_grace_seconds=0.0)
    failed = desk.queue(rows_named("a1"), owner="me")
    desk.send().fail(REFUSED)
    assert ends_of(failed) == {0: (Outcome.NOT_STORED, Code.ACCESS_DENIED, False)}
    desk.now += 6
    assert desk.refuses(owner="me") is not None
    assert desk.refuses(owner="other") is None, "the probe is still there"


@pytest.mark.promise("session-failed-spends")
def test_rows_before_the_one_that_failed_are_still_sent() -> None:
    """They may come later in the line: the rows of a frame are sorted by shard."""
    desk = ordered(even_map(2), request_max_records=1)
    rows: list[Row] = [(b"a", b"before", HIGH), (b"b", b"bad", LOW), (b"c", b"after", HIGH), (b"d", b"after", LOW)]
    frame = desk.queue(rows)
    fail_row(desk, b"bad")
    sent = desk.send()
    assert sent.users == [b"before"]
    sent.fail(UNSENT)
    sent = desk.send_when_due()
    assert sent.users == [b"before"], "however often it takes"
    sent.stored_as_predicted()
    assert frame.result().stored == 1
    assert {row: end[1] for row, end in ends_of(frame).items()} == {
        1: Code.RECORD_INVALID,
        2: Code.PREDECESSOR_FAILED,
        3: Code.PREDECESSOR_FAILED,
    }
    assert desk.is_empty()


@pytest.mark.parametrize("is_stored", [True, False])
def test_rows_that_are_on_their_way_already_end_as_they_are_answered(is_stored: bool) -> None:
    desk = ordered(even_map(2), request_max_records=1)
    frame = desk.submit([(b"a", b"bad", LOW), (b"b", b"sent", HIGH)])
    later = desk.queue([(b"c", b"waits", b"1"), (b"d", b"waits", b"2")])
    bad, sent = desk.send_all()
    bad.fail(INVALID)
    assert not frame.finished
    sent.stored_as_predicted() if is_stored else sent.fail(LOST)
    assert frame.result().stored == is_stored
    maybe_stored = {1: (Outcome.UNKNOWN, Code.PREDECESSOR_FAILED, True)}
    assert ends_of(frame) == {0: (Outcome.NOT_STORED, Code.RECORD_INVALID, False)} | ({} if is_stored else maybe_stored)
    assert set(ends_of(later).values()) == {PREDECESSOR}
    assert desk.is_empty()


@pytest.mark.parametrize("stage", ["filling", "sealed", "sorting"])
def test_later_frames_fail_wherever_they_are(stage: str) -> None:
    desk = ordered()
    desk.queue(rows_named("a1"))
    later = desk.submit(rows_named("b1 c1"))
    jobs = []
    if stage != "filling":
        desk.pipeline.flush("caller")
    if stage == "sorting":
        jobs = [desk.job()]
    fail_row(desk, b"a1")
    assert ends_of(later) == {0: PREDECESSOR, 1: PREDECESSOR}
    for job in jobs:
        desk.sorted(job)
    while (job_left := desk.pipeline.take_job(desk.now + 1)) is not None:
        desk.sorted(job_left)
    assert desk.try_send() is None
    assert desk.is_empty()


def test_a_row_that_expired_on_its_way_and_was_stored_is_no_failure() -> None:
    desk = ordered(record_ttl_seconds=5.0)
    first = desk.queue(rows_named("a1"))
    sent = desk.send()
    desk.now += 3
    later = desk.queue(rows_named("b1"))
    desk.now += 2
    assert desk.try_send() is None
    sent.stored()
    desk.send().stored()
    desk.delivered(first, later)


def be_refused(desk: Desk) -> None:
    desk.pipeline.frame_refused("caller")
    desk.put(rows_named("b1"), owner="other").stored()


def be_throttled(desk: Desk) -> None:
    desk.put(rows_named("a1 b1 a2")).answer([SLOW_DOWN, GOOD])


def be_throttled_though_good_rows_are_taken(desk: Desk) -> None:
    """No row was judged, so none may be left out."""
    desk.put(rows_named("a1"), takes_good=True).throttle({0})


def expire(desk: Desk) -> None:
    desk.queue(rows_named("a1"))
    desk.now += 5
    assert desk.try_send() is None


def expire_on_the_way(desk: Desk) -> None:
    sent = desk.put(rows_named("a1"))
    desk.now += 5
    assert desk.try_send() is None
    sent.fail(LOST)


def be_unsortable(desk: Desk) -> None:
    poison, later = desk.submit(rows_named("a1")), desk.submit(rows_named("a2"))
    desk.pipeline.press(desk.now)
    job = desk.job()
    good = sort_rows([later], job.shard_map, 1)
    desk.pipeline.sorted(job, [([poison], None), ([later], good)])
    assert ends_of(later) == {0: PREDECESSOR}


@pytest.mark.parametrize(
    "fail",
    [be_refused, be_throttled, be_throttled_though_good_rows_are_taken, expire, expire_on_the_way, be_unsortable],
)
def test_what_its_session_sends_after_a_frame_that_failed_is_not_sent(fail: Callable[[Desk], None]) -> None:
    desk = ordered(record_ttl_seconds=5.0, fail_if_throttled=True)
    fail(desk)
    assert ends_of(desk.submit(rows_named("c1"))) == {0: PREDECESSOR}
    assert desk.try_send() is None
    assert desk.is_empty()


def test_what_a_session_sent_before_a_frame_that_is_refused_is_stored() -> None:
    desk = ordered()
    before = desk.submit(rows_named("a1"))
    desk.pipeline.frame_refused("caller")
    desk.sort()
    desk.send().stored()
    desk.delivered(before)


def test_rows_of_a_stream_that_broke_are_told_so_and_what_their_session_sends_after_it_mended_is_not_sent() -> None:
    desk = ordered()
    first = desk.queue(rows_named("a1"))
    sent = desk.send()
    second = desk.submit(rows_named("a2"))
    third = desk.submit(rows_named("a3"))
    sent.fail(REFUSED)
    denied = (Outcome.NOT_STORED, Code.ACCESS_DENIED, False)
    assert [ends_of(frame) for frame in (first, second, third)] == [{0: denied}] * 3
    desk.now += 7
    assert desk.refuses() is None
    probe = desk.queue(rows_named("z1"), owner="other")
    desk.send().stored()
    assert probe.result().stored == 1
    assert desk.health is HealthState.WORKING
    assert ends_of(desk.submit(rows_named("a4"))) == {0: PREDECESSOR}
    assert desk.is_empty()


@pytest.mark.promise("rows-given-back-failure")
def test_rows_that_were_given_back_are_no_failure() -> None:
    desk = ordered()
    frames = [desk.submit(rows_named("a1 b1")), desk.submit(rows_named("a2"))]
    desk.pipeline.return_rows()
    frames.append(desk.submit(rows_named("a3")))
    for frame in frames:
        assert {end[:2] for end in ends_of(frame).values()} == {(Outcome.RETURNED, Code.DRAINING)}


@pytest.mark.promise("rows-given-back-failure")
def test_the_bad_rows_of_a_frame_whose_good_ones_are_taken_are_no_failure() -> None:
    desk = ordered()
    frame = desk.submit([(b"a", None, None), (b"a", b"good", None)], takes_good=True)
    later = desk.queue(rows_named("a2"))
    desk.store_all()
    assert (frame.result().stored, later.result().stored) == (1, 1)
    assert desk.is_empty()


@pytest.mark.parametrize("leave", ["discard", "disown"])
def test_nothing_is_kept_of_a_session_that_failed_and_left(leave: str) -> None:
    desk = ordered(request_max_records=1)
    desk.queue(rows_named("a1 b1"))
    fail_row(desk, b"a1")
    assert desk.pipeline.ledger.has_failed("caller")
    getattr(desk.pipeline, leave)("caller")
    assert desk.finished() == []
    assert not desk.pipeline.ledger.has_failed("caller")
    assert desk.is_empty()


def test_a_session_that_fails_after_it_left_is_not_remembered() -> None:
    desk = ordered(request_max_records=1)
    frame = desk.queue(rows_named("a1 b1"))
    sent = desk.send()
    desk.pipeline.disown("caller")
    sent.fail(INVALID)
    assert frame.tallies[Outcome.NOT_STORED] == 2, "the order holds for rows without a caller too"
    assert not desk.pipeline.ledger.has_failed("caller")
    assert desk.is_empty()


def test_without_an_order_a_failed_row_fails_alone() -> None:
    desk = Desk(request_max_records=1)
    frame = desk.queue(rows_named("a1 a2"))
    desk.send().fail(INVALID)
    desk.send().stored()
    desk.pipeline.frame_refused("caller")
    assert not desk.submit(rows_named("a3")).finished
    assert frame.result().stored == 1


def test_however_many_frames_a_session_sent_after_a_failed_row_each_of_them_ends() -> None:
    desk = ordered()
    desk.queue(rows_named("a1"))
    later = [desk.submit(rows_named("b1")) for _ in range(1_000)]
    fail_row(desk, b"a1")
    assert [ends_of(frame) for frame in later] == [{0: PREDECESSOR}] * 1_000
