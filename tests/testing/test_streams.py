"""A stream's shards are those asked for, its sequence numbers rise, and a stream made again goes on above the old."""

from __future__ import annotations

import pytest

from producerd.testing import FakeKinesis
from producerd.testing.streams import HASH_END, equal_edges
from tests.testing.calls import SHARDS, call, entry, error, put, results, service


def numbers(reply: object) -> list[int]:
    return [int(result["SequenceNumber"]) for result in results(reply)]  # type: ignore[arg-type]


def test_edges_are_the_starting_hash_keys_of_the_first_shards() -> None:
    kinesis = FakeKinesis()
    stream = kinesis.create_stream("s", edges=[0, 10, HASH_END - 1])
    assert [(shard.start, shard.end) for shard in stream.open_shards] == [
        (0, 9),
        (10, HASH_END - 2),
        (HASH_END - 1, HASH_END - 1),
    ]
    placed = results(put(kinesis, entry(hash_key=9), entry(hash_key=10), entry(hash_key=HASH_END - 1)))
    assert [result["ShardId"] for result in placed] == SHARDS[:3]


@pytest.mark.parametrize("edges", [[], [1], [0, 0], [0, 5, 4], [0, HASH_END], [-1, 0]])
def test_edges_that_leave_a_gap_are_refused(edges: list[int]) -> None:
    kinesis = FakeKinesis()
    with pytest.raises(ValueError, match="edges"):
        kinesis.create_stream("s", edges=edges)
    with pytest.raises(ValueError, match="3 shards and 2 edges"):
        kinesis.create_stream("s", 3, edges=[0, 1])
    assert kinesis.streams == {}


def test_sequence_numbers_begin_above_the_time_of_creation_so_that_those_of_an_earlier_process_are_lower() -> None:
    placed = []
    for now in (1_700_000_000.0, 1_700_000_001.0):
        kinesis, _ = service(shards=1, now=now)
        placed += numbers(put(kinesis, *[entry()] * 500, now=now))
    assert placed == sorted(placed)


def test_sequence_numbers_restart_where_that_is_asked_for_and_else_rise_over_deletion() -> None:
    kinesis, _ = service(shards=1)
    first = numbers(put(kinesis, *[entry()] * 9))
    kinesis.delete_stream("s")
    kinesis.create_stream("s", 1, restart_sequences=True, now=9.0)
    assert numbers(put(kinesis, entry())) == first[:1]
    kinesis.delete_stream("s")
    stream = kinesis.create_stream("s", 1)
    (last,) = numbers(put(kinesis, entry()))
    assert first[-1] < int(stream.shards[0].first_sequence) < last
    assert {len(str(number)) for number in (*first, last)} == {56}


@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 8), (4, 2), (3, 2), (2, 3), (5, 5), (7, 10)])
def test_scaling_ends_with_equal_shards_whose_parents_are_all_closed(before: int, after: int) -> None:
    _, stream = service(shards=before)
    stream.scale(after, now=3.0)
    assert [shard.start for shard in stream.open_shards] == equal_edges(after)
    assert {shard.opened_at for shard in stream.open_shards} <= {3.0, float("-inf")}
    closed = {shard.shard_id for shard in stream.shards if shard.last_sequence}
    assert closed == {parent for shard in stream.shards for parent in shard.parents}


def test_update_shard_count_at_most_doubles_or_halves() -> None:
    kinesis, stream = service(shards=3)
    for target, words in ((7, "up over double"), (1, "down below half")):
        status, code, message = error(call(kinesis, "UpdateShardCount", TargetShardCount=target))
        assert (status, code) == (400, "LimitExceededException")
        assert f"cannot scale {words} your current open shard count." in message
        assert f"Current open shard count: 3, Target shard count: {target}" in message
    for wrong in (0, None, "6"):
        assert error(call(kinesis, "UpdateShardCount", TargetShardCount=wrong))[1] == "ValidationException"
    for target in (6, 3, 2):
        assert call(kinesis, "UpdateShardCount", TargetShardCount=target).status == 200
        assert len(stream.open_shards) == target
