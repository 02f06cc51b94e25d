"""What is said about a stream: one line where its rows stay for long, with what holds them."""

from __future__ import annotations

from typing import Any

import structlog

from producerd.config import StreamSettings
from producerd.core import intake
from producerd.core.frame import Frame
from producerd.core.shards import MAX_HASH_KEY, Shard, ShardMap
from producerd.core.spans import sort_rows
from producerd.runtime.gate import Refusal, Ticket
from producerd.runtime.stream import Stream
from producerd.wire import columns
from tests.daemon import rows


class Owner:
    """A caller that takes whatever it is told."""

    def finished(self, frame: Frame) -> None:
        pass

    def may_receive(self, charge_bytes: int) -> bool:
        return True

    def granted(self, ticket: Ticket) -> None:
        pass

    def refused(self, ticket: Ticket, refusal: Refusal) -> None:
        pass


def with_a_frame(records: int = 100, **settings: Any) -> tuple[Stream, Owner]:
    """A stream whose rows nobody sends, since the time 0."""
    stream, owner = Stream("flights", StreamSettings(**settings), 1 << 20, 10_000), Owner()
    stream.pipeline.set_shard_map(ShardMap([Shard("shard-0", 0, MAX_HASH_KEY)]), 0.0)
    frame = rows(records)
    parts = b"".join((frame.body_prefix(1), *map(bytes, frame.parts)))
    checked = intake.check(columns.parse_body(parts, frame.layout.flags), 1 << 20)
    stream.budget.take(records, frame.layout.charge_bytes)
    stream.pipeline.submit(Frame(owner, 1, checked, frame.layout.charge_bytes), 0.0)
    return stream, owner


def told_at(stream: Stream, times: list[float]) -> dict[float, dict[str, Any]]:
    """The warnings, by when they were told."""
    told: dict[float, dict[str, Any]] = {}
    for now in times:
        with structlog.testing.capture_logs() as log:
            stream.settle(now)
        for line in log:
            if line["log_level"] == "warning":
                told[now] = dict(line)
    return told


def test_a_record_that_stays_for_half_a_minute_is_told_and_again_every_five_minutes() -> None:
    stream, _ = with_a_frame()
    told = told_at(stream, [float(second) for second in range(700)])
    assert list(told) == [30.0, 330.0, 630.0]
    assert told[30.0]["event"] == "stream is slow"
    assert told[30.0]["stream"] == "flights"
    assert told[30.0]["oldest_record_seconds"] == 30
    assert "100 of 1000000 records" in told[30.0]["why"]


def test_callers_that_wait_again_and_again_are_told_too() -> None:
    """None of them for long; the queue's one record is never older than a second."""
    stream, owner = with_a_frame(queue_limit=100)
    member = stream.gate.join(owner)
    told: dict[float, dict[str, Any]] = {}
    for second in range(100):
        waiting = stream.gate.ask(member, second, rows(50).layout, float(second))
        next(iter(stream.pipeline.ledger.frames)).accepted_at = float(second)
        told |= told_at(stream, [second + 0.25, second + 0.75])
        stream.gate.cancel(waiting, second + 0.8)
    (line,) = told.values()
    assert line["callers_waited_seconds"] >= 30
    assert line["oldest_record_seconds"] <= 1


def test_rows_that_flow_are_not_told() -> None:
    stream, _ = with_a_frame()
    assert not told_at(stream, [1.0, 10.0, 29.0])
    stream.pipeline.press(29.0)
    job = stream.pipeline.take_job(29.0)
    assert job is not None
    stream.pipeline.sorted(job, [(job.frames, sort_rows(job.rows, job.shard_map, job.seed))])
    stream.pipeline.abandon()
    assert not told_at(stream, [31.0, 400.0])
    assert stream.pipeline.oldest_seconds(400.0) == 0.0
