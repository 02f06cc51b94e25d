"""Stream: one stream's pipeline and gate wired together, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from producerd.config import StreamSettings
from producerd.core.budget import QueueBudget
from producerd.core.entries import EntryRules
from producerd.core.frame import Frame
from producerd.core.pipeline import Pipeline, PipelineRules
from producerd.core.retry import HealthState
from producerd.runtime.gate import AdmissionGate
from producerd.runtime.logs import get_logger
from producerd.wire import frames

log = get_logger("producerd.stream")

REQUEST_TIMEOUT_BYTES_PER_SECOND = 256 * 1024
"""A request's time-out grows with its size: a slow uplink is not an outage."""
MAX_REQUEST_TIMEOUT_SECONDS = 60.0
MAX_RECORD_BYTES_UNTIL_KNOWN = 10 * 1024 * 1024
"""The most that any stream takes; a stream that takes less says so in DescribeStreamSummary, or in its answer."""


class Owner(Protocol):
    """Whoever sent a frame and is still there."""

    def finished(self, frame: Frame) -> None:
        """Its last row has ended."""


class Stream:
    """One stream.  Its pipeline and gate are told things by sessions and by the dispatcher, both on the loop thread."""

    def __init__(self, name: str, settings: StreamSettings, max_frame_bytes: int, max_frame_records: int) -> None:
        self.name = name
        self.settings = settings
        self.budget = QueueBudget(settings.queue_limit, settings.queue_limit_bytes)
        self.pipeline = Pipeline(_rules(settings), self.budget, Random())
        self.gate = AdmissionGate(
            self.budget, self.pipeline.refuses, max_frame_bytes=max_frame_bytes, max_frame_records=max_frame_records
        )
        self.max_record_bytes = MAX_RECORD_BYTES_UNTIL_KNOWN
        self.rejected_records: dict[str, int] = {}
        self.wants_map: Callable[[], None] = lambda: None  # the watch of its shards
        self._told_health = HealthState.UNPROVEN

    def settle(self, now: float) -> None:
        """Acknowledge what is finished, hand the room to whoever waits for it, and have the shards looked at."""
        for frame in self.pipeline.take_finished():
            owner: Owner = frame.owner
            owner.finished(frame)
        self.gate.pump(now)
        if self.gate.wants_room():
            self.pipeline.press(now)
        if self.pipeline.wants_shard_map:
            self.wants_map()
        self._tell_health()

    def request_timeout_seconds(self, bytes_: int, attempts: int) -> float:
        """The base, plus its size over 256 KiB/s, doubled by each attempt before it."""
        base = self.settings.request_timeout_seconds + bytes_ / REQUEST_TIMEOUT_BYTES_PER_SECOND
        return max(base, min(MAX_REQUEST_TIMEOUT_SECONDS, base * 2.0 ** min(attempts, 10)))

    def blocked(self, stream_id: int, seconds: float) -> frames.Blocked:
        """Why rows of this stream wait, with the numbers."""
        stats = self.pipeline.stats
        return frames.Blocked(
            stream_id,
            seconds,
            self.reason(),
            self.budget.used_records,
            self.budget.limit_records,
            self.budget.used_bytes,
            self.budget.limit_bytes,
            self.pipeline.requests_in_flight,
            stats.last_error,
        )

    def reason(self) -> str:
        """One sentence for people: what holds the queue, as far as is known."""
        health = self.pipeline.health
        if health.state is HealthState.BROKEN:
            return f"the stream is refused by the service: {health.code}: {health.message}"
        if self.pipeline.wants_shard_map and self.pipeline.rules.entries.aggregate:
            return "the stream's shards are not known yet"
        if self.gate.wants_room():
            return "the queue is at its limit"
        return "records wait for their answers"

    def describe(self) -> str:
        """The numbers in one line: queue against limits, requests in flight, last error."""
        budget, stats = self.budget, self.pipeline.stats
        return (
            f"{self.reason()}: {budget.used_records} of {budget.limit_records} records, "
            f"{budget.used_bytes} of {budget.limit_bytes} bytes taken on, "
            f"{self.pipeline.requests_in_flight} requests in flight, last error: {stats.last_error or 'none'}"
        )

    def _tell_health(self) -> None:
        health = self.pipeline.health
        if health.state is self._told_health:
            return
        self._told_health = health.state
        if health.state is HealthState.BROKEN:
            log.error("stream is refused by the service", stream=self.name, code=health.code, message=health.message)
        elif health.state is HealthState.SUSPECT:
            log.warning("stream looks refused", stream=self.name, code=health.code, message=health.message)
        else:
            log.info("stream works", stream=self.name)


def _rules(settings: StreamSettings) -> PipelineRules:
    return PipelineRules(
        EntryRules(
            aggregate=settings.aggregation == "kpl",
            aggregate_max_bytes=settings.aggregate_max_bytes,
            aggregate_max_records=settings.aggregate_max_records,
            request_max_records=settings.request_max_records,
            request_max_bytes=settings.request_max_bytes,
        ),
        linger_seconds=settings.linger_seconds,
        max_in_flight_requests=settings.max_in_flight_requests,
        max_in_flight_bytes=settings.max_in_flight_bytes,
        shard_map_wait_seconds=settings.shard_map_wait_seconds,
        permanent_error_grace_seconds=settings.permanent_error_grace_seconds,
    )
