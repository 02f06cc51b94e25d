"""ShardWatch: what a stream is made of, kept fresh: its shards, and its summary.

The shards are read (ListShards, all pages) when the pipeline wants a map, about once a minute otherwise unless the
stream is idle, and with a growing, jittered delay while that fails; never more than `READINGS_PER_MINUTE` times in any
minute.  The old map serves until the new one is whole.  The summary (DescribeStreamSummary) is read once at the start,
about every ten minutes from then on, and when the shards show that the stream was made anew.  Either may be denied: one
line says when that begins, and one when it ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from random import Random
from typing import Final

from producerd.core.entries import RequestFailed
from producerd.core.retry import meaning_of
from producerd.core.shards import ShardMap, map_from_listing
from producerd.errors import Code
from producerd.runtime.dispatcher import Dispatcher
from producerd.runtime.kinesis import Kinesis, StreamSummary
from producerd.runtime.logs import get_logger
from producerd.runtime.outage import Outage
from producerd.runtime.stream import Stream

log = get_logger("producerd.shard_watch")

READINGS_PER_MINUTE: Final = 6
"""ListShards allows 1,000 calls a second, and a split may wake hundreds of nodes at once."""
AFTER_READING_SECONDS: Final = 2.5
"""At least so long after a reading that succeeded, for each reading of the last minute: a split is followed soon, and a
stream that rouses suspicion all the time is read every 14 s or so."""
REFRESH_SECONDS: Final = 60.0
"""Between two readings that nobody asked for: a stream that was deleted and made again has the same shard ids."""
FIRST_RETRY_SECONDS: Final = 0.5
MAX_RETRY_SECONDS: Final = 30.0
SUMMARY_SECONDS: Final = 600.0
"""DescribeStreamSummary allows 20 calls a second in an account."""
SUMMARY_SPREAD_SECONDS: Final = 15.0
"""Over which the nodes of a fleet that begin at once spread their first: 300 nodes make 20 a second."""
SUMMARY_PATIENCE_SECONDS: Final = 2.0
"""How long the first map of a stream that aggregates waits to hear whether its shards follow the keys."""
NOT_BY_KEY: Final = (
    'aggregation = "kpl" is not possible: the stream has the RecordDistributionStrategy AUTO, which puts a record into '
    'any shard, where consumers would drop an aggregate; set aggregation = "none", or the stream to USER_PARTITION_KEY'
)


class ShardWatch:
    """One stream's watch.  `run` ends when it is cancelled."""

    def __init__(self, stream: Stream, kinesis: Kinesis, dispatcher: Dispatcher) -> None:
        self._stream = stream
        self._kinesis = kinesis
        self._dispatcher = dispatcher
        self._random = Random()
        self._wanted = asyncio.Event()
        self._summary_tried = asyncio.Event()
        self._made_anew = asyncio.Event()
        self._began: deque[float] = deque(maxlen=READINGS_PER_MINUTE)  # the latest readings
        self._last_map: ShardMap | None = None
        self._missing = False
        self._unreachable = self._answers_again = False
        self._listing = Outage("ListShards", stream=stream.name)
        self._describing = Outage("DescribeStreamSummary", stream=stream.name)

    def look(self) -> None:
        """The pipeline may want a map."""
        if self._stream.pipeline.wants_shard_map:
            self._wanted.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_summary())  # beside: where it hangs, the map must not wait for it
            await self._keep_map()

    # ---- the shards

    async def _keep_map(self) -> None:
        if self._aggregates:
            await _within(SUMMARY_PATIENCE_SECONDS, self._summary_tried)
        failures = 0
        while True:
            await _within(self._about(REFRESH_SECONDS), self._wanted)
            if not self._wanted.is_set() and self._forget_idle():
                await self._wanted.wait()
            await self._keep_the_pace()
            self._wanted.clear()
            if await self._read_map():
                failures = 0
                seconds = AFTER_READING_SECONDS * self._readings_of_the_last_minute
                await asyncio.sleep(seconds * self._random.uniform(1.0, 1.5))
            else:
                failures = 1 if self._answers_again else failures + 1
                await asyncio.sleep(self._backed_off(FIRST_RETRY_SECONDS, failures, MAX_RETRY_SECONDS))
            self.look()

    def _forget_idle(self) -> bool:
        """Nothing was sent for long: the shards are read again when something is."""
        return self._stream.pipeline.forget_shards(asyncio.get_running_loop().time())

    async def _keep_the_pace(self) -> None:
        """Wait until one reading more makes no more than are allowed in the minute that ends with it."""
        now = asyncio.get_running_loop().time
        if len(self._began) == READINGS_PER_MINUTE:
            await asyncio.sleep(self._began[0] + 60.0 - now())
        self._began.append(now())

    @property
    def _readings_of_the_last_minute(self) -> int:
        since = asyncio.get_running_loop().time() - 60.0
        return sum(began > since for began in self._began)

    async def _read_map(self) -> bool:
        stream = self._stream
        asked_at = asyncio.get_running_loop().time()
        pages = await self._kinesis.list_shards(stream.address)
        now = asyncio.get_running_loop().time()
        if isinstance(pages, RequestFailed):
            self._not_read(pages.code, pages.message, now, wrong_endpoint=pages.wrong_endpoint)
            return False
        try:
            shard_map = map_from_listing(pages)
        except ValueError as error:
            self._not_read("InternalFailure", f"an answer that is no map of shards: {error}", now)
            return False
        self._listing.ended()
        if shard_map != self._last_map:
            log.info("shards read", stream=stream.name, shards=len(shard_map))
        if self._missing or (self._last_map is not None and self._last_map.contradicts(shard_map)):
            self._made_anew.set()
        self._missing, self._last_map = False, shard_map
        stream.pipeline.set_shard_map(shard_map, now, asked_at)
        self._dispatcher.poke(stream)
        return True

    def _not_read(self, code: str, message: str, now: float, *, wrong_endpoint: bool = False) -> None:
        self._listing.failed(code, message)
        was_unreachable, self._unreachable = self._unreachable, code == Code.UNREACHABLE
        self._answers_again = was_unreachable and not self._unreachable  # then the next try is not far either
        self._missing |= meaning_of(code).code == Code.STREAM_NOT_FOUND  # the next one of that name is another
        self._stream.pipeline.shard_map_failed(code, message, now, wrong_endpoint=wrong_endpoint)
        self._dispatcher.poke(self._stream)

    # ---- the summary

    async def _keep_summary(self) -> None:
        if not self._aggregates:
            await asyncio.sleep(self._random.uniform(0, SUMMARY_SPREAD_SECONDS))
        failures = 0
        while True:
            summary = await self._kinesis.describe_stream_summary(self._stream.address)
            if isinstance(summary, RequestFailed):
                failures += 1
                self._describing.failed(summary.code, summary.message)
            else:
                failures = 0
                self._describing.ended()
                self._learn(summary)
            self._summary_tried.set()
            if failures:
                await asyncio.sleep(self._backed_off(SUMMARY_SPREAD_SECONDS, failures, SUMMARY_SECONDS))
            else:
                await _within(self._about(SUMMARY_SECONDS), self._made_anew)
            self._made_anew.clear()

    def _learn(self, summary: StreamSummary) -> None:
        stream = self._stream
        stream.max_record_bytes = summary.max_record_bytes
        reason = NOT_BY_KEY if self._aggregates and summary.record_distribution_strategy == "AUTO" else ""
        if reason != stream.pipeline.cannot_aggregate:
            if reason:
                log.error("the stream cannot be aggregated for", stream=stream.name, why=reason)
            else:
                log.info("the stream can be aggregated for", stream=stream.name)
            stream.pipeline.cannot_aggregate = reason
            self._dispatcher.poke(stream)

    # ---- when

    @property
    def _aggregates(self) -> bool:
        return self._stream.pipeline.rules.entries.aggregate

    def _about(self, seconds: float) -> float:
        return seconds * self._random.uniform(0.75, 1.25)

    def _backed_off(self, first: float, failures: int, most: float) -> float:
        """A delay that doubles with each failure, and of which half is chance."""
        ceiling = min(most, first * 2.0 ** min(failures, 16))
        return self._random.uniform(ceiling / 2, ceiling)


async def _within(seconds: float, event: asyncio.Event) -> None:
    """Wait for it, at most so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
