"""All streams of a node together have a bounded amount in flight, and no stream waits for another's answers."""

from __future__ import annotations

from typing import Any

import pytest

from producerd.core.budget import NodeInFlight
from tests.core.rows import Row, even_map
from tests.core.stories import INVALID, UNSENT, Desk, reload

pytestmark = pytest.mark.law("NodeInFlight")
FLOOR: int = 100_000


def desks(count: int, node: NodeInFlight, **rules: Any) -> list[Desk]:
    """Streams of one node, each with much to send."""
    rules = {"request_max_bytes": 200_000, "max_in_flight_requests": 100} | rules
    return [Desk(even_map(16), in_flight=node, **rules) for _ in range(count)]


def fill(desk: Desk, rows: int, size: int = 1_000) -> None:
    desk.queue([(b"k%d" % i, b"x" * size, None) for i in range(rows)])
    desk.open_window()


def is_unused(node: NodeInFlight) -> bool:
    """Whether every stream may send what it may in a node in which nothing was sent yet."""
    fresh = NodeInFlight(node.limit_bytes, node.floor_bytes)
    return (node.used_bytes, node.room("any stream")) == (0, fresh.room("any stream"))


def is_held(desk: Desk) -> bool:
    return desk.pipeline.held_by_node


def test_a_stream_goes_on_while_another_hangs_with_all_that_it_may_have() -> None:
    node = NodeInFlight(8 * FLOOR, FLOOR)
    hung, other = desks(2, node)
    fill(hung, 2_000)
    fill(other, 400)
    hanging = hung.send_all()
    assert 3.5 * FLOOR < node.used_bytes <= 5 * FLOOR
    assert is_held(hung)
    assert hung.pipeline.diagnosis.holding(hung.now).cause == "in_flight"
    room = node.room(other.pipeline.sender.in_flight)
    assert FLOOR <= room < FLOOR + 200_000, "what is left of the shared half is less than a request"
    while (sent := other.try_send()) is not None:
        assert sent.request.bytes <= room
        assert sent.request.bytes > 0.9 * room or not other.pipeline.sender.lanes.waiting, "no crumb"
        assert other.try_send() is None
        assert is_held(other) == bool(other.pipeline.sender.lanes.waiting)
        assert node.used_bytes <= 8 * FLOOR
        sent.stored_as_predicted()
    other.finished()
    assert other.is_empty()
    for sent in hanging:
        sent.fail(UNSENT)
    assert is_unused(node)


def test_room_that_comes_free_is_there_for_whoever_was_held_back() -> None:
    node = NodeInFlight(8 * FLOOR, FLOOR)
    first, second = desks(2, node)
    fill(first, 2_000)
    fill(second, 400)
    hanging = first.send_all()
    second.send()
    assert is_held(second)
    for sent in hanging[:2]:
        sent.stored_as_predicted()
    assert not is_held(second)
    assert second.send().request.bytes > FLOOR


def test_a_record_larger_than_a_floor_goes_alone_and_only_with_nothing_on_its_way() -> None:
    node = NodeInFlight(8 * FLOOR, FLOOR)
    hung, other = desks(2, node)
    fill(hung, 2_000)
    hung.send_all()
    fill(other, 2, 500_000)
    sent = other.send()
    assert sent.request.records == 1
    assert node.used_bytes > 8 * FLOOR
    assert other.try_send() is None
    sent.stored_as_predicted()
    other.send().stored_as_predicted()
    other.finished()
    assert other.is_empty()


def test_one_record_larger_than_a_stream_s_room_is_on_its_way_in_the_whole_node() -> None:
    """Else each stream could pass the limit by one.  Who waits is looked at when any request ends, and has no timer."""
    node = NodeInFlight(8 * FLOOR, FLOOR)
    streams = desks(3, node)
    for stream in streams:
        fill(stream, 2, 500_000)
    hung = streams[0].send()
    assert node.used_bytes > 4 * FLOOR
    for stream in streams[1:]:
        assert stream.try_send() is None
        assert is_held(stream)
        assert stream.pipeline.next_time() is None
        assert stream.holding().cause == "in_flight"
    hung.stored_as_predicted()
    second = streams[1].send()
    assert streams[0].try_send() is None
    assert streams[2].try_send() is None
    second.fail(UNSENT)
    streams[2].send()


def test_a_larger_record_that_waits_for_another_stream_s_holds_up_no_other_lane() -> None:
    node = NodeInFlight(8 * FLOOR, FLOOR)
    node.count_sent("another", 9 * FLOOR)
    (desk,) = desks(1, node)
    frame = desk.queue([(b"k", b"x" * 150_000, b"0"), *[(b"k", b"small", b"%d" % 2**127)] * 10])
    small = desk.send()
    assert small.request.records == 10
    assert desk.try_send() is None
    small.stored_as_predicted()
    assert desk.try_send() is None
    node.count_ended("another", 9 * FLOOR)
    desk.send().stored_as_predicted()
    assert desk.finished() == [frame]


def test_a_larger_record_that_waits_for_another_stream_s_expires_in_time() -> None:
    node = NodeInFlight(8 * FLOOR, FLOOR)
    node.count_sent("another", 9 * FLOOR)
    (desk,) = desks(1, node, record_ttl_seconds=5.0)
    frame = desk.queue([(b"k", b"x" * 150_000, None)])
    assert desk.try_send() is None
    due = desk.due()
    assert due > desk.now
    desk.now = due
    assert desk.try_send() is None
    assert desk.finished() == [frame]


def test_a_larger_record_in_a_refused_request_waits_for_another_stream_s() -> None:
    """A record that is sent alone keeps to the limit, too."""
    node = NodeInFlight(80 * FLOOR, FLOOR)
    (desk,) = desks(1, node, request_max_bytes=1_000_000)
    frame = desk.queue([(b"k", b"large" * 120_000, b"0"), (b"k", b"small", b"0")])
    refused = desk.send()
    node.set_limits(8 * FLOOR, FLOOR)
    node.count_sent("another", node.room("another"))
    refused.fail(INVALID)
    node.count_sent("yet another", 9 * FLOOR)
    assert desk.try_send() is None
    assert is_held(desk)
    assert desk.pipeline.next_time() is None
    node.count_ended("yet another", 9 * FLOOR)
    large = desk.send()
    assert large.request.records == 1
    large.stored_as_predicted()
    desk.send().stored_as_predicted()
    assert desk.finished() == [frame]


@pytest.mark.parametrize("per_key", [False, True])
def test_what_goes_alone_is_cut_to_what_there_is_room_for(per_key: bool) -> None:
    """A request of 200 kB is refused, and the halves are sent while another stream has all but the floor."""
    node = NodeInFlight(8 * FLOOR, FLOOR // 2)
    (other,) = desks(1, node, per_key=per_key, aggregate=per_key, aggregate_max_bytes=150_000)
    frame = other.queue([(b"k%d" % i, b"x" * 1_000, b"0" if per_key else None) for i in range(150)])
    refused = other.send()
    assert refused.request.bytes > 1.2 * FLOOR
    refused.fail(INVALID)
    node.count_sent("another", node.room("another"))
    halves = 0
    while (sent := other.try_send()) is not None:
        assert sent.request.bytes <= FLOOR // 2
        halves += 1
        sent.stored_as_predicted()
    assert halves >= 3
    assert other.finished() == [frame]
    assert frame.result().stored == 150


def test_a_record_larger_than_a_request_in_a_refused_one_waits_until_nothing_is_on_its_way() -> None:
    """It came into one when that might have more: before a reload."""
    node = NodeInFlight(80 * FLOOR, FLOOR)
    (desk,) = desks(1, node, request_max_bytes=1_000_000)
    small: Row = (b"k", b"small", b"0")
    frame = desk.queue([*[small] * 10, (b"k", b"large" * 120_000, b"0"), *[small] * 10])
    refused = desk.send()
    assert refused.request.records == 21
    node.set_limits(8 * FLOOR, FLOOR)
    reload(desk, request_max_bytes=64_000)
    refused.fail(INVALID)
    half = desk.send()
    assert half.request.records == 10
    assert desk.try_send() is None
    half.stored_as_predicted()
    large = desk.send()
    assert large.request.records == 1
    large.stored_as_predicted()
    for sent in desk.send_all():
        sent.stored_as_predicted()
    assert desk.finished() == [frame]
    assert desk.is_empty()
