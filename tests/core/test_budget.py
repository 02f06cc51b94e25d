"""A budget admits nothing past a limit, and gets back once whatever was taken.  A lowered limit only lets use fall."""

from __future__ import annotations

from collections.abc import Callable

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
    budget.charge(10, 400)
    assert not budget.fits(1, 1)
    budget.release(1, 0)
    assert budget.fits(1, 600)
    assert not budget.fits(1, 601)
    budget.charge(1, 100)
    budget.release(10, 500)
    assert (budget.peak_records, budget.peak_bytes) == (10, 500)


def test_taking_past_a_limit_and_releasing_what_was_not_taken_are_refused_loudly() -> None:
    budget = QueueBudget(10, 1_000)
    for records, charge in ((11, 1), (1, 1_001)):
        with pytest.raises(AssertionError, match="past the limit"):
            budget.charge(records, charge)
    assert (budget.used_records, budget.used_bytes) == (0, 0)
    with pytest.raises(AssertionError, match="past the node's limit"):
        QueueBudget(10, 1_000, NodeBudget(500, 0)).charge(1, 501)
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
    budget.charge(8, 800)
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


def test_a_node_reports_room_that_came_free_once() -> None:
    node = NodeBudget(1_000, 200)
    stream, other = streams_of(node, 2)
    stream.charge(2, 200)
    stream.release(1, 0)
    assert not node.take_freed(), "a row that settles frees no bytes"
    node.want(other, 500)
    assert not node.take_freed(), "the others leave more free"
    frees: list[Callable[[], None]] = [
        lambda: stream.release(1, 100),
        lambda: node.want(other, 300),
        lambda: node.want(other, 0),
        lambda: node.set_limits(600, 60),
        lambda: node.leave(stream),
    ]
    for free in frees:
        free()
        assert [node.take_freed(), node.take_freed()] == [True, False]


@settings(max_examples=60)
@given(count=st.integers(1, 6), steps=STEPS, leaver=st.integers(0, 5), wanted=st.integers(0, 900))
def test_any_use_of_a_node_keeps_its_limit_and_what_the_others_claim(
    count: int, steps: list[tuple[int, int, int]], leaver: int, wanted: int
) -> None:
    """A stream that holds rows claims the rest of its floor.  Another one claims its floor, or the frame that waits."""
    node = NodeBudget(2_000, 2_000 // (2 * count))
    streams = streams_of(node, count)
    joined = set(streams)
    taken: list[tuple[QueueBudget, int]] = []

    def claim(stream: QueueBudget) -> int:
        if stream.used_bytes:
            return max(0, node.floor_bytes - stream.used_bytes)
        return max(node.floor_bytes, wanted) if stream is streams[0] else node.floor_bytes

    def most(stream: QueueBudget) -> int:
        """What it may take: all that is left, but not what others claim, unless it is in its floor or has nothing."""
        left = node.limit_bytes - node.used_bytes
        if not stream.used_bytes:
            return left
        unclaimed = left - sum(map(claim, joined - {stream}))
        return min(left, max(unclaimed, node.floor_bytes - stream.used_bytes))

    node.want(streams[0], wanted)
    for number, (place, bytes_, victim) in enumerate(steps):
        stream, charge = streams[place % count], 1 + bytes_
        if number == 4:
            node.leave(streams[leaver % count])
            joined.discard(streams[leaver % count])
        if number == 8:
            node.set_limits(1_500, 1_500 // (2 * count))
            assert (node.limit_bytes, node.floor_bytes) == (1_500, 1_500 // (2 * count))
        if number == 12:
            node.join(streams[leaver % count])
            joined.add(streams[leaver % count])
        if charge <= most(stream):
            stream.charge(1, charge)
            taken.append((stream, charge))
            assert node.used_bytes <= node.limit_bytes
        elif taken and bytes_ % 2:
            other, charge = taken.pop(victim % len(taken))
            other.release(1, charge)
        assert node.used_bytes == sum(charge for _, charge in taken)
        for stream in streams:
            room = max(0, most(stream))
            assert (not room or node.fits(stream, room), node.fits(stream, room + 1)) == (True, False)


# ---- what is on its way


def test_sending_past_the_nodes_limit_and_releasing_what_was_not_sent_are_refused_loudly() -> None:
    node = NodeInFlight(1_000, 100)
    node.count_sent("stream", 500)
    with pytest.raises(AssertionError, match="past the node's limit"):
        node.count_sent("stream", 101)
    node.count_sent("another with one large record", 700)
    with pytest.raises(AssertionError, match="past the node's limit"):
        node.count_sent("a third with one more", 700)
    with pytest.raises(AssertionError, match="more than was sent"):
        node.count_ended("stream", 501)


@settings(max_examples=60)
@given(count=st.integers(1, 6), limits=st.sampled_from([(1_999, 20_000), (20_000, 1_999)]), steps=STEPS)
def test_any_use_of_what_may_be_on_its_way_shares_half_of_the_limit_and_leaves_each_stream_its_floor(
    count: int, limits: tuple[int, int], steps: list[tuple[int, int, int]]
) -> None:
    """A stream with nothing on its way may send one larger record while the shared half is not overfilled."""
    node = NodeInFlight(limits[0], limits[0] // (2 * count))
    sent: list[tuple[int, int]] = []

    def used(stream: object) -> int:
        return sum(size for at, size in sent if at == stream)

    def beyond_floor(stream: int) -> int:
        return max(0, used(stream) - node.floor_bytes)

    for number, (place, bytes_, victim) in enumerate(steps):
        stream = place % count
        if number == 20:
            node.set_limits(limits[1], limits[1] // (2 * count))
        larger = bytes_ > 600 and not used(stream) and node.takes_larger
        if larger or bytes_ <= node.room(stream):
            node.count_sent(stream, size := bytes_ * (5 if larger else 1))
            sent.append((stream, size))
        elif sent:
            node.count_ended(*sent.pop(victim % len(sent)))
        assert (node.used_bytes, node.limit_bytes) == (sum(size for _, size in sent), limits[number >= 20])
        shared = node.limit_bytes - node.limit_bytes // 2
        assert node.takes_larger == (sum(map(beyond_floor, range(count))) <= shared)
        for other in (*range(count), "new"):
            of_others = sum(beyond_floor(each) for each in range(count) if each != other)
            assert node.room(other) == node.floor_bytes + max(0, shared - of_others) - used(other)
