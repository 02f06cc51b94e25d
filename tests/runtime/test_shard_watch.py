"""A map is read when it is wanted, and neither a denied nor a hung summary keeps it away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

import producerd.runtime.shard_watch as module
from producerd.config import StreamSettings
from producerd.core.entries import Answer, EncodedRequest, RequestFailed
from producerd.runtime.dispatcher import Dispatcher
from producerd.runtime.shard_watch import ShardWatch
from producerd.runtime.stream import Stream
from producerd.testing import FakeKinesis
from tests.daemon import until_on_loop

DENIED = RequestFailed("AccessDeniedException", "no", maybe_stored=False)


class StandInKinesis:
    """Lists what the fake lists; says what it is told of the summary, or nothing."""

    def __init__(self, shards: int = 4) -> None:
        self.listed = FakeKinesis().create_stream("flights", shards=shards)
        self.listings: list[list[dict[str, Any]] | RequestFailed] = []
        self.summary: int | RequestFailed | None = None
        self.asked = 0

    async def put_records(self, stream: str, request: EncodedRequest, timeout_seconds: float) -> Answer | RequestFailed:
        return DENIED

    async def list_shards(self, stream: str) -> list[dict[str, Any]] | RequestFailed:
        self.asked += 1
        if self.listings:
            return self.listings.pop(0)
        return [{"Shards": [shard.describe(0.0) for shard in self.listed.open_shards]}]

    async def max_record_bytes(self, stream: str) -> int | RequestFailed:
        if self.summary is None:
            await asyncio.Event().wait()
        assert self.summary is not None
        return self.summary


@asynccontextmanager
async def watching(kinesis: StandInKinesis) -> AsyncIterator[tuple[Stream, ShardWatch]]:
    with ThreadPoolExecutor(1) as pool:
        stream = Stream("flights", StreamSettings(), 1 << 20, 10_000)
        watch = ShardWatch(stream, kinesis, Dispatcher(kinesis, pool, 1))
        task = asyncio.create_task(watch.run())
        watch.look()
        yield stream, watch
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("summary", [None, DENIED, 10_485_760], ids=["hung", "denied", "told"])
async def test_the_map_does_not_wait_for_the_summary(summary: int | RequestFailed | None) -> None:
    kinesis = StandInKinesis()
    kinesis.summary = summary
    async with watching(kinesis) as (stream, _):
        before = stream.max_record_bytes
        await until_on_loop(lambda: stream.pipeline.shard_map is not None)
        assert stream.pipeline.shard_map is not None
        assert len(stream.pipeline.shard_map) == 4
        assert stream.max_record_bytes == (summary if isinstance(summary, int) else before)


@pytest.mark.law("ShardMap")
async def test_a_listing_that_fails_or_does_not_fit_together_is_asked_again_and_the_old_map_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(module, "MIN_INTERVAL_SECONDS", 0.0)
    kinesis = StandInKinesis()
    holed = [{"Shards": [shard.describe(0.0) for shard in kinesis.listed.open_shards[1:]]}]
    kinesis.listings = [DENIED, holed, DENIED]
    async with watching(kinesis) as (stream, watch):
        await until_on_loop(lambda: stream.pipeline.shard_map is not None)
        assert kinesis.asked == 4
        before = stream.pipeline.shard_map
        kinesis.listings = [holed]
        stream.pipeline.wants_shard_map = True
        watch.look()
        await until_on_loop(lambda: kinesis.asked == 5)
        assert stream.pipeline.shard_map is before
        await until_on_loop(lambda: not stream.pipeline.wants_shard_map)
        assert stream.pipeline.shard_map == before


async def test_nobody_is_asked_while_the_map_is_good() -> None:
    kinesis = StandInKinesis()
    async with watching(kinesis) as (stream, watch):
        await until_on_loop(lambda: stream.pipeline.shard_map is not None)
        for _ in range(20):
            watch.look()
            await asyncio.sleep(0)
        assert kinesis.asked == 1
