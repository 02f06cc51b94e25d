"""A batch is sealed before it grows too large, and batches are sorted in the order in which they came."""

from __future__ import annotations

from typing import Any

import pytest

from producerd.core.kpl.aggregation import InnerRecord
from producerd.core.rows.sorting import sort_rows
from producerd.errors import Code, Outcome
from tests.core.given import Service, aggregate_of
from tests.core.rows import even_map
from tests.core.stories import LOW, Desk, ends_of

LARGE = [(b"k", b"x" * 100_000, None)]


# ---- when a batch is sealed


@pytest.mark.parametrize(
    ("limit_bytes", "shards", "frames"),
    [
        pytest.param(1 << 20, 1, 2, id="a quarter of the queue"),
        pytest.param(1 << 20, 40, 2, id="a quarter of the queue, however many shards there are"),
        pytest.param(64 << 20, 1, 10, id="a mebibyte of a large queue"),
        pytest.param(64 << 20, 40, 20, id="a large aggregate for each shard"),
    ],
)
def test_a_batch_seals_when_one_more_frame_like_its_last_would_take_it_over_its_bytes(
    limit_bytes: int, shards: int, frames: int
) -> None:
    desk = Desk(even_map(shards), limit_bytes=limit_bytes)
    for count in range(1, frames + 1):
        assert desk.pipeline.take_job(desk.now) is None, f"sealed before frame {count}"
        desk.submit(LARGE)
    assert len(desk.job().frames) == frames
    assert desk.stats.flushes == {"size": 1}


def test_only_a_frame_like_the_last_one_would_take_a_batch_over_its_bytes() -> None:
    desk = Desk(limit_bytes=1 << 20)
    desk.submit(LARGE)
    desk.submit([(b"k", b"x" * 50_000, None)])
    assert desk.pipeline.take_job(desk.now) is None
    desk.submit([(b"k", b"x" * 60_000, None)])
    assert len(desk.job().frames) == 3


@pytest.mark.parametrize(("limit_records", "frames"), [(43, (9, 1)), (40, (9, 1)), (1, (1,))])
def test_a_batch_seals_at_a_quarter_of_the_record_limit(limit_records: int, frames: tuple[int, ...]) -> None:
    desk = Desk(limit_records=limit_records)
    for sealed in range(2 if limit_records > 1 else 1):
        for records in frames:
            assert desk.stats.flushes["size"] == sealed
            desk.submit(records)
        assert len(desk.job().frames) == len(frames)


def test_a_batch_seals_when_it_has_lingered_since_its_first_frame_and_says_when_that_is() -> None:
    desk = Desk(linger_seconds=0.25)
    assert desk.pipeline.next_time() is None
    for began in (100.0, 200.0):
        desk.now = began
        desk.submit(1)
        desk.now = began + 0.2
        desk.submit(1)
        assert desk.pipeline.next_time() == began + 0.25
        assert desk.pipeline.take_job(began + 0.249) is None
        desk.now = began + 0.25
        assert len(desk.job().frames) == 2
        assert desk.pipeline.next_time() is None
    assert desk.stats.flushes == {"linger": 2}


@pytest.mark.promise("flush-seals-owner-rows")
def test_a_flush_seals_only_what_its_owner_has_rows_in() -> None:
    desk = Desk()
    desk.submit(1, owner="a")
    desk.pipeline.flush("b")
    assert desk.pipeline.take_job(desk.now) is None
    desk.pipeline.flush("a")
    assert len(desk.job().frames) == 1
    desk.pipeline.flush("a")
    assert desk.stats.flushes == {"flush": 1}


def test_a_queue_that_is_emptied_lets_nothing_linger_nor_what_comes_meanwhile() -> None:
    desk = Desk(linger_seconds=3_600.0)
    desk.submit(1)
    desk.pipeline.hasten()
    assert len(desk.job().frames) == 1
    desk.submit(1)
    assert len(desk.job().frames) == 1
    assert desk.stats.flushes == {"drain": 2}


def test_of_a_stream_that_stops_nothing_lingers_and_what_comes_late_is_not_gathered() -> None:
    desk = Desk(linger_seconds=3_600.0)
    desk.submit(1, owner=None)
    desk.pipeline.return_rows()
    assert desk.stats.flushes == {"drain": 1}
    assert len(desk.job().frames) == 1
    late = desk.submit(2, owner="here")
    assert desk.finished() == [late]
    assert desk.pipeline.next_time() is None
    desk = Desk()
    desk.pipeline.abandon()
    after = desk.submit(1)
    assert desk.finished() == [after]
    assert after.tallies[Outcome.RETURNED] == 1


@pytest.mark.law("AdmissionGate")
def test_pressure_seals_unless_work_that_may_be_sent_waits_already() -> None:
    desk = Desk()
    assert not desk.pipeline.press(desk.now)
    desk.submit(1)
    assert desk.pipeline.press(desk.now)
    desk.submit(1)
    assert not desk.pipeline.press(desk.now), "a sealed batch waits"
    job = desk.job()
    assert not desk.pipeline.press(desk.now), "one is being sorted"
    desk.sorted(job)
    assert not desk.pipeline.press(desk.now), "a lane may send"
    assert desk.stats.flushes == {"pressure": 1}
    desk.send().throttle({0})
    assert desk.pipeline.press(desk.now), "the only lane holds off"
    assert desk.stats.flushes == {"pressure": 2}


@pytest.mark.law("AdmissionGate")
def test_pressure_of_callers_that_wait_for_what_they_sent_seals_only_what_they_have_rows_in() -> None:
    desk = Desk(linger_seconds=3_600.0)
    desk.submit(1, owner="a")
    assert not desk.pipeline.press(desk.now, {"b": None})
    assert desk.pipeline.take_job(desk.now) is None
    assert desk.pipeline.press(desk.now, {"b": None, "a": None})
    desk.submit(1, owner="a")
    assert not desk.pipeline.press(desk.now, {"a": None}), "a sealed batch waits"
    assert len(desk.job().frames) == 1


# ---- in which order batches are sorted


def seal(desk: Desk, *owners: str) -> list[Any]:
    """Seal one batch with a frame of each of these owners."""
    frames = [desk.submit([(b"k", owner.encode(), None)], owner) for owner in owners]
    desk.pipeline.flush(owners[0])
    return frames


def test_batches_go_to_their_lanes_in_the_order_in_which_they_were_sealed() -> None:
    desk = Desk()
    jobs = []
    for owner in ("first", "second", "third"):
        seal(desk, owner)
        jobs.append(desk.job())
    assert len({job.seed for job in jobs}) == 3
    desk.sorted(jobs[1])
    assert desk.try_send() is None
    desk.sorted(jobs[0])
    assert desk.send().data == [b"first", b"second"]
    desk.sorted(jobs[2])
    assert desk.send().data == [b"third"]


def test_batches_whose_rows_have_all_ended_are_skipped_and_the_others_keep_their_order() -> None:
    desk = Desk()
    seal(desk, "gone")
    (first,) = seal(desk, "first")
    seal(desk, "gone", "gone")
    second = seal(desk, "second", "gone", "third")
    seal(desk, "gone")
    desk.pipeline.discard("gone")
    assert desk.pipeline.diagnosis.census()["filling"] == 3
    assert [list(desk.job().frames) for _ in range(2)] == [[first], [second[0], second[2]]]
    assert desk.pipeline.take_job(desk.now) is None
    assert desk.pipeline.diagnosis.census()["filling"] == 0


def test_batches_whose_rows_have_expired_are_skipped() -> None:
    desk = Desk(record_ttl_seconds=5.0)
    seal(desk, "a")
    seal(desk, "b")
    desk.now += 5.0
    (later,) = seal(desk, "c")
    assert desk.try_send() is None
    assert desk.job().frames == [later]
    assert desk.pipeline.take_job(desk.now) is None


@pytest.mark.parametrize("ends", ["leaves", "expires"])
def test_rows_that_are_aggregates_wait_apart_while_rows_go_plain_and_are_first_when_the_list_comes(ends: str) -> None:
    ttl: dict[str, Any] = {"record_ttl_seconds": 30.0} if ends == "expires" else {}
    service = Service(1, **ttl)
    desk = service.desk = Desk(known=False, aggregate=True, **ttl)
    inside = aggregate_of([InnerRecord(b"k", LOW, b"inside")])
    ended = service.submit([inside], "gone")
    desk.map_failed("LimitExceededException", "slow down")
    desk.now += 11.0
    waiting = service.submit([inside], "stays")
    plain = service.submit([b"plain"], "plain")
    desk.send().stored()
    assert (plain.finished, waiting.finished, desk.pipeline.diagnosis.census()["filling"]) == (True, False, 2)
    if ends == "leaves":
        desk.pipeline.discard("gone")
    else:
        desk.now = 130.0
        assert desk.try_send() is None
    assert (ended.finished, desk.pipeline.take_job(desk.now)) == (True, None)
    assert desk.pipeline.diagnosis.census()["filling"] == 1
    last = desk.submit(1)
    desk.set_map(service.map())
    desk.pipeline.flush("caller")
    assert [list(desk.job().frames) for _ in range(2)] == [[waiting], [last]]


def test_only_the_frame_that_cannot_be_sorted_gets_internal() -> None:
    desk = Desk()
    first, poison, last = desk.submit(5), desk.submit(5), desk.submit(5)
    desk.pipeline.press(desk.now)
    job = desk.job()
    parts = [([frame], None if frame is poison else sort_rows([frame], job.shard_map, 1)) for frame in job.frames]
    desk.pipeline.sorted(job, parts)
    assert desk.finished() == [poison]
    assert set(ends_of(poison).values()) == {(Outcome.NOT_STORED, Code.INTERNAL, False)}
    desk.send().stored()
    assert desk.finished() == [first, last]
    assert desk.is_empty()


def test_a_batch_whose_caller_has_left_waits_for_no_list_of_shards() -> None:
    desk = Desk(known=False, aggregate=True)
    desk.submit(1)
    desk.pipeline.flush("caller")
    assert desk.holding().cause == "shard_map"
    desk.pipeline.discard("caller")
    assert desk.holding().cause == "daemon"
