"""A batch is sealed before it grows too large, and batches are sorted in the order in which they came."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest

from producerd.core.budget import QueueBudget
from producerd.core.filling import Filling
from producerd.core.kpl.aggregation import InnerRecord
from producerd.core.rows import intake
from producerd.core.rows.frame import Frame
from producerd.core.shards.shard_map import ONE_LANE
from producerd.core.stats import StreamStats
from tests.core.given import LOW, aggregate_of, body_of
from tests.core.rows import rows_of


def a_filling(limit_records: int = 10**6, limit_bytes: int = 10**9) -> tuple[Filling, StreamStats]:
    stats = StreamStats()
    return Filling(QueueBudget(limit_records, limit_bytes), stats), stats


def a_frame(records: int = 1, charge_bytes: int = 1_000, owner: str = "caller") -> Frame:
    return Frame(owner, 1, rows_of([(b"k", b"d", None)] * records), charge_bytes)


def with_an_aggregate() -> Frame:
    payload = aggregate_of([InnerRecord(b"k", LOW, b"inside")])
    return Frame("caller", 1, intake.check(body_of([payload]), 1 << 20, takes_aggregates=True), 1_000)


def ended() -> Frame:
    frame = a_frame()
    frame.withdraw(0, None)
    return frame


def batches(filling: Filling, *each: list[Frame]) -> None:
    """Seal a batch of each of these lists of frames."""
    for frames in each:
        for frame in frames:
            filling.add(frame, 0.0, 0)
        assert filling.seal("flush")


def taken(filling: Filling, *, plain: bool = False) -> list[list[Frame]]:
    """Take every batch that may be sorted now."""
    found = []
    while frames := filling.next_batch(plain=plain):
        found.append(frames)
    return found


@pytest.mark.parametrize(
    ("limit_bytes", "largest_bytes", "most_bytes"),
    [
        (400_003, 0, 100_000),
        (400_003, 9 << 20, 100_000),
        (1 << 30, 0, 1 << 20),
        (1 << 30, 3 << 20, 3 << 20),
    ],
)
def test_a_batch_is_sealed_when_one_more_frame_like_its_last_would_take_it_over_its_bytes(
    limit_bytes: int, largest_bytes: int, most_bytes: int
) -> None:
    """They are a quarter of the queue's, or what is enough for a large aggregate of each shard."""
    filling, stats = a_filling(limit_bytes=limit_bytes)

    def seals(*charges: int) -> list[bool]:
        found = []
        for charge_bytes in charges:
            before = stats.flushes["size"]
            filling.add(a_frame(charge_bytes=charge_bytes), 0.0, largest_bytes)
            found.append(stats.flushes["size"] > before)
        return found

    for _ in range(2):
        assert seals(most_bytes // 2, most_bytes // 4, most_bytes // 8) == [False] * 3
        assert filling.seal("flush")
        assert seals(most_bytes // 2, 1, most_bytes // 4) == [False, False, True]


def test_a_batch_is_sealed_at_a_quarter_of_the_queue_s_records() -> None:
    filling, stats = a_filling(limit_records=43)
    for sealed in (1, 2):
        filling.add(a_frame(records=9), 0.0, 0)
        assert stats.flushes == Counter(size=sealed - 1)
        filling.add(a_frame(records=1), 0.0, 0)
        assert stats.flushes == Counter(size=sealed)


def test_a_batch_lingers_from_its_first_frame_on() -> None:
    filling, _ = a_filling()
    assert filling.linger_ends_at(2.0) == inf
    for began in (5.0, 9.0):
        filling.add(a_frame(), began, 0)
        filling.add(a_frame(), began + 1.0, 0)
        assert filling.linger_ends_at(2.0) == began + 2.0
        assert filling.seal("linger")
        assert filling.linger_ends_at(2.0) == inf


def test_only_a_batch_with_frames_is_sealed_and_only_for_an_owner_of_one() -> None:
    filling, stats = a_filling()
    sealed = [(filling.seal("flush"), filling.has_batch)]
    filling.add(a_frame(owner="a"), 0.0, 0)
    sealed += [(filling.seal_of(owners, "flush"), filling.has_batch) for owners in (["b"], ["b", "a"], ["a"])]
    assert sealed == [(False, False), (False, False), (True, True), (False, True)]
    assert stats.flushes == Counter(flush=1)


def test_once_it_hastens_nothing_lingers() -> None:
    filling, stats = a_filling()
    before, after = a_frame(), a_frame()
    filling.add(before, 0.0, 0)
    filling.hasten()
    filling.add(after, 0.0, 0)
    assert taken(filling) == [[before], [after]]
    assert stats.flushes == Counter(drain=2)


def test_batches_whose_rows_have_all_ended_are_dropped_and_the_others_keep_their_order() -> None:
    filling, _ = a_filling()
    first, second, third = a_frame(), a_frame(records=2), a_frame()
    batches(filling, [ended()], [first], [ended(), ended()], [second, ended(), third], [ended()])
    assert filling.rows == 1 + 2 + 1 + 5
    filling.drop_ended()
    assert filling.rows == 1 + 2 + 1 + 1, "a batch is dropped whole"
    assert taken(filling) == [[first], [second, third]]
    batches(filling, [ended()])
    filling.drop_ended()
    assert not filling.has_batch


def test_batches_in_front_whose_rows_have_all_ended_are_skipped() -> None:
    filling, _ = a_filling()
    frame = a_frame()
    batches(filling, [ended()], [ended()], [frame, ended()], [ended()])
    filling.skip_ended()
    assert filling.next_batch(plain=False) == [frame]
    left = [filling.has_batch]
    for _ in range(2):
        filling.skip_ended()
        left.append(filling.has_batch)
    assert left == [True, False, False]


def test_a_batch_without_rows_is_never_taken() -> None:
    filling, _ = a_filling()
    frame = a_frame()
    batches(filling, [ended()], [frame], [ended()])
    assert taken(filling) == [[frame]]
    assert not filling.has_batch


def test_frames_with_aggregates_wait_apart_while_rows_go_plain_and_are_first_when_the_list_comes() -> None:
    filling, _ = a_filling()
    (one, two), (plain, other, last) = (with_an_aggregate(), with_an_aggregate()), (a_frame(), a_frame(), a_frame())
    batches(filling, [one, plain], [two], [other])
    assert not filling.has_only_by_map
    assert taken(filling, plain=True) == [[plain], [other]]
    assert (filling.has_batch, filling.has_only_by_map, filling.rows) == (False, True, 2)
    batches(filling, [last])
    filling.map_came()
    assert not filling.has_only_by_map
    assert taken(filling) == [[one], [two], [last]]
    filling.map_came()
    assert not filling.has_batch


def test_frames_that_wait_apart_are_dropped_when_their_rows_have_ended() -> None:
    filling, _ = a_filling()
    one, two, three = with_an_aggregate(), with_an_aggregate(), with_an_aggregate()
    batches(filling, [one], [two], [three])
    assert taken(filling, plain=True) == []
    two.withdraw(0, None)
    filling.drop_ended()
    assert filling.rows == 2
    one.withdraw(0, None)
    filling.skip_ended()
    assert filling.rows == 1
    filling.map_came()
    assert taken(filling) == [[three]]


def test_sort_jobs_end_in_the_order_in_which_they_began() -> None:
    filling, _ = a_filling()
    jobs = [filling.begin([a_frame()], ONE_LANE, seed) for seed in range(3)]
    assert [(job.seed, len(job.frames), job.shard_map) for job in jobs] == [(n, 1, ONE_LANE) for n in range(3)]
    assert list(filling.end(jobs[1], [])) == []
    assert list(filling.end(jobs[0], [(jobs[0].frames, None)])) == jobs[:2]
    assert jobs[0].results == [(jobs[0].frames, None)]
    assert list(filling.end(jobs[2], [])) == jobs[2:]
