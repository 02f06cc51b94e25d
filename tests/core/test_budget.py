"""A budget admits nothing past a limit, and gets back once whatever was taken.  A lowered limit only lets use fall."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producerd.core.budget import NodeBudget, NodeInFlight, QueueBudget

pytestmark = pytest.mark.law("QueueBudget", "NodeInFlight")


def test_a_limit_may_be_reached_and_not_passed_in_records_or_bytes() -> None:
    budget = QueueBudget(10, 1_000)
    assert (budget.peak_records, budget.peak_bytes) == (0, 0)
    assert budget.fits(10, 1_000)
    assert not budget.fits(11, 1)
    assert not budget.fits(1, 1_001)
    budget.take(10, 400)
    assert not budget.fits(1, 1)
    budget.release(1, 0)
    assert budget.fits(1, 600)
    assert not budget.fits(1, 601)
    budget.take(1, 100)
    budget.release(10, 500)
    assert (budget.peak_records, budget.peak_bytes) == (10, 500)


def test_taking_past_a_limit_and_releasing_what_was_not_taken_are_refused_loudly() -> None:
    budget = QueueBudget(10, 1_000)
    for records, charge in ((11, 1), (1, 1_001)):
        with pytest.raises(AssertionError, match="past the limit"):
            budget.take(records, charge)
    assert (budget.used_records, budget.used_bytes) == (0, 0)
    with pytest.raises(AssertionError, match="past the node's limit"):
        QueueBudget(10, 1_000, NodeBudget(500, 0)).take(1, 501)
    for records, charge in ((1, 0), (0, 1)):
        budget = QueueBudget(10, 1_000)
        with pytest.raises(AssertionError, match="more than was taken"):
            budget.release(records, charge)


def test_a_share_can_be_kept_free_of_each_limit() -> None:
    budget = QueueBudget(80, 8_000)
    assert budget.fits(70, 7_000, keep_free_share=1 / 8)
    assert not budget.fits(71, 1, keep_free_share=1 / 8)
    assert not budget.fits(1, 7_001, keep_free_share=1 / 8)


def test_after_a_limit_was_lowered_use_only_falls() -> None:
    budget = QueueBudget(10, 1_000)
    budget.take(8, 800)
    budget.set_limits(4, 400)
    assert not budget.fits(0, 1)
    assert not budget.fits(1, 0)
    budget.release(4, 500)
    assert not budget.fits(1, 1)
    budget.release(1, 0)
    assert budget.fits(1, 100)
    assert not budget.fits(1, 101)


STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 700), st.integers(0, 99)), max_size=60)
"""Each: which stream sends, how many bytes, and which of those that are there is released if there is no room."""


def streams_of(node: NodeBudget, count: int) -> list[QueueBudget]:
    streams = [QueueBudget(10**6, 10**6, node) for _ in range(count)]
    for stream in streams:
        node.join(stream)
    return streams


def test_what_a_stream_with_callers_has_not_taken_of_its_floor_stays_free_for_it() -> None:
    node = NodeBudget(1_000, 200)
    first, second, third = streams_of(node, 3)
    first.take(1, 600)
    assert not node.fits(first, 1), "two floors of 200 are left"
    second.take(1, 150)
    assert node.fits(second, 50)
    assert not node.fits(second, 51), "the third's 200 are left"
    third.take(1, 200)
    assert node.used_bytes == 950
    assert node.fits(second, 50)
    second.take(1, 50)
    assert not any(node.fits(stream, 1) for stream in (first, second, third))
    assert node.used_bytes == 1_000


def test_a_stream_without_callers_owns_nothing_and_what_it_holds_still_counts() -> None:
    node = NodeBudget(1_000, 200)
    first, second = streams_of(node, 2)
    second.take(1, 300)
    node.leave(second)
    assert node.fits(first, 700)
    assert not node.fits(first, 701)
    second.release(1, 300)
    assert node.fits(first, 1_000)
    node.join(second)
    first.take(1, 100)
    assert not node.fits(first, 701)
    node.leave(second)
    assert node.fits(first, 900)


def test_within_its_floor_a_stream_need_leave_nothing_to_others() -> None:
    node = NodeBudget(1_000, 200)
    first, _, gone = streams_of(node, 3)
    gone.take(1, 650)
    node.leave(gone)
    first.take(1, 100)
    assert node.fits(first, 100), "of the 250 that are left"
    assert not node.fits(first, 101), "the other's 200 stay free"


def test_a_stream_that_holds_nothing_may_take_one_frame_of_any_size_and_others_leave_it_room() -> None:
    node = NodeBudget(1_000, 200)
    first, second = streams_of(node, 2)
    first.take(1, 700)
    assert not node.fits(second, 500)
    node.want(second, 500)
    first.release(0, 150)
    assert not node.fits(first, 1), "the next room that comes free is the large frame's"
    assert not node.fits(second, 500)
    first.release(0, 100)
    assert node.fits(second, 500)
    second.take(1, 500)
    node.want(second, 0)
    assert not node.fits(second, 51)
    assert node.fits(first, 50)
    second.release(1, 500)
    assert node.fits(first, 350), "only the floor of 200 stays free again"


def test_a_stream_that_holds_rows_has_only_its_floor_left_free_whatever_it_waits_for() -> None:
    node = NodeBudget(1_000, 200)
    first, second = streams_of(node, 2)
    first.take(1, 300)
    second.take(1, 100)
    node.want(second, 500)
    assert node.fits(first, 500)
    assert not node.fits(first, 501)


def test_a_node_reports_room_that_came_free_once() -> None:
    node = NodeBudget(1_000, 200)
    (stream,) = streams_of(node, 1)
    stream.take(2, 200)
    stream.release(1, 0)
    assert not node.take_freed(), "a row that settles frees no bytes"
    stream.release(1, 100)
    assert [node.take_freed(), node.take_freed()] == [True, False]
    node.leave(stream)
    assert [node.take_freed(), node.take_freed()] == [True, False]


@settings(max_examples=60)
@given(count=st.integers(1, 6), steps=STEPS)
def test_any_use_of_a_node_keeps_its_limit_and_leaves_each_stream_its_floor(
    count: int, steps: list[tuple[int, int, int]]
) -> None:
    node = NodeBudget(2_000, 2_000 // (2 * count))
    streams = streams_of(node, count)
    taken: list[tuple[QueueBudget, int]] = []
    for place, bytes_, victim in steps:
        stream, charge = streams[place % count], 1 + bytes_ % node.floor_bytes
        if node.fits(stream, charge):
            stream.take(1, charge)
            taken.append((stream, charge))
        elif taken and bytes_ % 2:
            other, charge = taken.pop(victim % len(taken))
            other.release(1, charge)
        assert node.used_bytes == sum(charge for _, charge in taken) <= node.limit_bytes
        for stream in streams:
            assert node.fits(stream, max(0, node.floor_bytes - stream.used_bytes))


def test_after_a_nodes_limit_was_lowered_its_use_only_falls_and_a_raised_one_is_handed_on() -> None:
    node = NodeBudget(1_000, 100)
    first, second = streams_of(node, 2)
    first.take(1, 800)
    node.has_freed = False
    node.set_limits(600, 60)
    assert node.has_freed, "the gate looks again at the callers that wait"
    assert not node.fits(first, 1)
    assert not node.fits(second, 1)
    first.release(0, 300)
    assert node.fits(second, 60)
    assert not node.fits(first, 41), "the other's new floor stays free"
    assert node.fits(first, 40)
    node.set_limits(2_000, 100)
    assert node.fits(first, 1_000)


# ---- what is on its way


def test_half_of_what_may_be_on_its_way_is_shared_and_of_the_rest_each_stream_has_its_floor() -> None:
    node = NodeInFlight(1_000, 100)
    first, second = object(), object()
    assert node.room(first) == 600
    node.take(first, 450)
    node.take(first, 150)
    assert (node.room(first), node.room(second)) == (0, 100)
    node.take(second, 70)
    assert (node.room(first), node.room(second)) == (0, 30)
    node.release(first, 450)
    assert (node.room(first), node.room(second)) == (450, 480)
    node.release(first, 150)
    node.release(second, 70)
    assert (node.used_bytes, node.room(first), node.room(object())) == (0, 600, 600)


def test_one_larger_record_may_pass_what_is_shared_and_takes_nobodys_floor() -> None:
    node = NodeInFlight(1_000, 100)
    first, second, third = object(), object(), object()
    node.take(first, 600)
    node.take(second, 700)
    assert [node.room(stream) for stream in (first, second, third)] == [-500, -600, 100]
    node.take(third, 100)
    node.release(second, 700)
    assert node.room(second) == 100
    assert node.used_bytes == 700


def test_sending_past_the_nodes_limit_and_releasing_what_was_not_sent_are_refused_loudly() -> None:
    node = NodeInFlight(1_000, 100)
    node.take("stream", 500)
    with pytest.raises(AssertionError, match="past the node's limit"):
        node.take("stream", 101)
    node.take("another with one large record", 700)
    with pytest.raises(AssertionError, match="past the node's limit"):
        node.take("a third with one more", 700)
    with pytest.raises(AssertionError, match="more than was sent"):
        node.release("stream", 501)


@settings(max_examples=60)
@given(count=st.integers(1, 6), limits=st.sampled_from([(1_999, 20_000), (20_000, 1_999)]), steps=STEPS)
def test_any_use_of_what_may_be_on_its_way_keeps_the_limit_and_leaves_each_stream_its_floor(
    count: int, limits: tuple[int, int], steps: list[tuple[int, int, int]]
) -> None:
    node = NodeInFlight(limits[0], limits[0] // (2 * count))
    sent: list[tuple[int, int]] = []
    for number, (place, bytes_, victim) in enumerate(steps):
        stream = place % count
        if number == 20:
            node.set_limits(limits[1], limits[1] // (2 * count))
        if bytes_ <= node.room(stream):
            node.take(stream, bytes_)
            sent.append((stream, bytes_))
            assert node.used_bytes <= max(limits)
        elif sent:
            node.release(*sent.pop(victim % len(sent)))
        assert node.used_bytes == sum(size for _, size in sent)
        for other in range(count):
            assert node.room(other) >= node.floor_bytes - sum(size for at, size in sent if at == other)
    for one in sent:
        node.release(*one)
    shared_bytes = node.limit_bytes - node.limit_bytes // 2
    assert (node.used_bytes, node.room(0), node.room("new")) == (0, *[shared_bytes + node.floor_bytes] * 2)


def test_after_the_limit_was_lowered_nothing_is_sent_beside_the_floors_until_use_is_below_it() -> None:
    node = NodeInFlight(1_000, 100)
    first, second = object(), object()
    node.take(first, 500)
    node.set_limits(400, 40)
    assert (node.room(first), node.room(second)) == (-260, 40)
    assert node.limit_bytes == 400, "the status names it"
    node.release(first, 460)
    assert (node.room(first), node.room(second)) == (200, 240)
