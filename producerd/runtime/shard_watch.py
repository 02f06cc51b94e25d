"""ShardWatch: keeps one stream's shards and its summary fresh.

It reads the shards (ListShards, all pages) when the pipeline wants a map, and otherwise about once a minute unless the
stream is idle.  It repeats a reading that fails, at the times that `producerd.core.shards.reading_times` sets.  The old
map serves until the new one is whole.

It reads the summary (DescribeStreamSummary) at the start, then after an hour and ever more rarely, and when the shards
show that the stream was made again.  If either call fails or is denied, one log line says when that begins, and one
when it ends.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from producerd.core.failures import meaning_of
from producerd.core.sending.answers import RequestFailed
from producerd.core.shards.map_wait import UNANSWERED
from producerd.core.shards.reading_times import SummaryReadings
from producerd.core.shards.shard_map import ShardMap, map_from_listing
from producerd.errors import Code
from producerd.runtime.kinesis import ControlPlane, StreamSummary
from producerd.runtime.logs import get_logger
from producerd.runtime.outage import Outage
from producerd.runtime.stream import SUMMARY_PATIENCE_SECONDS, Stream, within

log = get_logger("producerd.shard_watch")

NOT_BY_KEY: Final = (
    'aggregation = "kpl" is not possible: the stream has the RecordDistributionStrategy AUTO, which puts a record into '
    'any shard, where consumers would drop an aggregate; set aggregation = "none", or the stream to USER_PARTITION_KEY'
)


class ShardWatch:
    """The watch of one stream.  `run` ends when it is cancelled."""

    def __init__(self, stream: Stream, kinesis: ControlPlane) -> None:
        self._stream = stream
        self._kinesis = kinesis
        self._summaries = SummaryReadings(Random())
        self._summary_tried = asyncio.Event()
        self._made_again = asyncio.Event()
        self._last_map: ShardMap | None = None
        self._missing = False
        self._listing = Outage("ListShards", stream=stream.name)
        self._describing = Outage("DescribeStreamSummary", stream=stream.name)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_summary())  # in a task of its own, so that later maps never wait for it
            await self._keep_map()

    # ---- the shards

    async def _keep_map(self) -> None:
        if self._aggregates:
            await within(SUMMARY_PATIENCE_SECONDS, self._summary_tried)
        while True:
            await self._until_due()
            await self._read_map()

    async def _until_due(self) -> None:
        """Wait until a reading of the shards is due.  After a long time without rows, that is when rows come again."""
        while True:
            seconds = self._stream.next_reading() - _now()
            if seconds > 0:
                await within(seconds, self._stream.reading_changed)
            elif self._stream.pipeline.wants_shard_map or not self._stream.pipeline.forget_shards(_now()):
                return

    async def _read_map(self) -> None:
        stream, asked_at = self._stream, _now()
        stream.reading_began(asked_at)
        pages = await self._kinesis.list_shards(stream.address)
        now = _now()
        if isinstance(pages, RequestFailed):
            self._not_read(pages, now)
            return
        try:
            shard_map = map_from_listing(pages)
        except ValueError as error:
            message = f"an answer that is not a map of shards: {error}"
            self._not_read(RequestFailed("InternalFailure", message, maybe_stored=False), now)
            return
        self._listing.ended()
        if shard_map != self._last_map:
            log.info("shards read", stream=stream.name, shards=len(shard_map))
        if self._missing or (self._last_map is not None and self._last_map.contradicts(shard_map)):
            self._made_again.set()
        self._missing, self._last_map = False, shard_map
        stream.learn_shards(shard_map, now, asked_at)

    def _not_read(self, failed: RequestFailed, now: float) -> None:
        code, request_id = failed.code, failed.request_id
        self._listing.try_failed(code, failed.message, request_id)
        self._missing |= meaning_of(code).code == Code.STREAM_NOT_FOUND  # the next of that name is a different stream
        self._stream.shards_not_read(
            code, failed.message, now, wrong_endpoint=failed.wrong_endpoint, request_id=request_id
        )

    # ---- the summary

    async def _keep_summary(self) -> None:
        await within(self._summaries.first_seconds(aggregates=self._aggregates), self._stream.summary_wanted)
        while True:
            seconds = await self._read_summary()
            await within(seconds, self._made_again)
            if self._made_again.is_set():
                self._made_again.clear()
                self._summaries.made_again()

    async def _read_summary(self) -> float:
        """Read the summary.  Return the seconds until the next reading."""
        summary = await self._kinesis.describe_stream_summary(self._stream.address)
        self._summary_tried.set()
        if isinstance(summary, RequestFailed):
            self._describing.try_failed(summary.code, summary.message, summary.request_id)
            answered = summary.code not in UNANSWERED
            if answered:
                self._stream.service_answered(_now())
            return self._summaries.summary_failed(answered=answered)
        self._describing.ended()
        self._learn(summary)
        self._stream.service_answered(_now())
        return self._summaries.succeeded(refuses=bool(self._stream.pipeline.cannot_aggregate))

    def _learn(self, summary: StreamSummary) -> None:
        stream = self._stream
        reason = NOT_BY_KEY if self._aggregates and summary.record_distribution_strategy == "AUTO" else ""
        if reason != stream.pipeline.cannot_aggregate:
            if reason:
                log.error("the stream cannot be aggregated for", stream=stream.name, why=reason)
            else:
                log.info("the stream can be aggregated for", stream=stream.name)
        stream.learn_summary(summary.max_record_bytes, summary.mode, reason)

    # ---- when

    @property
    def _aggregates(self) -> bool:
        return self._stream.pipeline.rules.entries.aggregate


def _now() -> float:
    return asyncio.get_running_loop().time()
