"""ShardWatch: keeps a stream's shard map fresh; the old map serves until the new one is whole.

ListShards is asked when the pipeline wants a map, though never more often than every few seconds, about once a minute
otherwise, and with a growing, jittered delay while it fails.  DescribeStreamSummary is asked once a minute, for the
largest record; it may be denied.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Final

from producerd.core.entries import RequestFailed
from producerd.core.shards import map_from_listing
from producerd.runtime.dispatcher import Dispatcher
from producerd.runtime.kinesis import Kinesis
from producerd.runtime.logs import get_logger
from producerd.runtime.stream import Stream

log = get_logger("producerd.shard_watch")

MIN_INTERVAL_SECONDS: Final = 10.0
"""Between two readings that succeeded: a few calls a minute, however many suspicions there are."""
REFRESH_SECONDS: Final = 60.0
"""Between two readings that nobody asked for: a stream that was deleted and made again has the same shard ids."""
FIRST_RETRY_SECONDS: Final = 0.5
MAX_RETRY_SECONDS: Final = 30.0


class ShardWatch:
    """One stream's watch.  `run` ends when it is cancelled."""

    def __init__(self, stream: Stream, kinesis: Kinesis, dispatcher: Dispatcher) -> None:
        self._stream = stream
        self._kinesis = kinesis
        self._dispatcher = dispatcher
        self._wanted = asyncio.Event()
        self._told = ""
        self._random = Random()

    def look(self) -> None:
        """The pipeline may want a map."""
        if self._stream.pipeline.wants_shard_map:
            self._wanted.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_summary())  # beside: where it hangs, the map must not wait for it
            await self._keep_map()

    async def _keep_map(self) -> None:
        failures = 0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._refresh_seconds()):
                    await self._wanted.wait()
            self._wanted.clear()
            if await self._read_map():
                failures = 0
                await asyncio.sleep(MIN_INTERVAL_SECONDS)
            else:
                failures += 1
                ceiling = min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures, 10))
                await asyncio.sleep(self._random.uniform(ceiling / 2, ceiling))
            self.look()

    def _refresh_seconds(self) -> float:
        return REFRESH_SECONDS * self._random.uniform(0.75, 1.25)

    async def _keep_summary(self) -> None:
        while True:
            answer = await self._kinesis.max_record_bytes(self._stream.name)
            if not isinstance(answer, RequestFailed):
                self._stream.max_record_bytes = answer
            await asyncio.sleep(self._refresh_seconds())

    async def _read_map(self) -> bool:
        stream = self._stream
        pages = await self._kinesis.list_shards(stream.name)
        now = asyncio.get_running_loop().time()
        if isinstance(pages, RequestFailed):
            self._failed(pages.code, pages.message, now)
            return False
        try:
            shard_map = map_from_listing(pages)
        except (ValueError, KeyError) as error:
            self._failed("InternalFailure", f"shards that do not fit together: {error}", now)
            return False
        self._told = ""
        changed = shard_map != stream.pipeline.shard_map
        stream.pipeline.set_shard_map(shard_map)
        if changed:
            log.info("shards read", stream=stream.name, shards=len(shard_map))
        self._dispatcher.poke(stream)
        return True

    def _failed(self, code: str, message: str, now: float) -> None:
        """Tell the pipeline, and the operator if it is news."""
        stream, told = self._stream, f"{code}: {message}"
        level = log.warning if told != self._told else log.debug
        level("ListShards failed", stream=stream.name, code=code, message=message)
        self._told = told
        stream.pipeline.shard_map_failed(code, message, now)
        self._dispatcher.poke(stream)
