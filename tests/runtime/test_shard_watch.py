"""The daemon reads shards and summary on time, but seldom enough for a fleet, and neither reading delays the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings, strategies
from structlog.testing import capture_logs

from producerd.config import StreamSettings
from producerd.core.rows.frame import Frame
from producerd.core.sending.answers import RequestFailed
from producerd.core.shards.reading_times import READINGS_PER_MINUTE
from producerd.core.shards.shard_map import map_from_listing
from producerd.errors import Code
from producerd.runtime import shard_watch as module
from producerd.runtime.dispatcher import Dispatcher
from producerd.runtime.kinesis import Address, StreamSummary
from producerd.runtime.shard_watch import ShardWatch
from producerd.runtime.stream import Stream
from producerd.testing import FakeKinesis
from tests.daemon import rows
from tests.runtime.odd_answers import variants
from tests.runtime.stand_ins import StandInKinesis
from tests.runtime.virtual_time import live
from tests.simulation.setting import make_body

DENIED = RequestFailed("AccessDeniedException", "no", maybe_stored=False, request_id="d3f1")
THROTTLED = RequestFailed("LimitExceededException", "slower", maybe_stored=False)
MISSING = RequestFailed("ResourceNotFoundException", "no such stream", maybe_stored=False)
UNREACHABLE = RequestFailed(Code.UNREACHABLE, "no answer within 6 s", maybe_stored=False)
BY_KEY = StreamSummary("arn", 10_485_760, mode="PROVISIONED")
AUTO = StreamSummary("arn", 1_048_576, "AUTO")
KPL = StreamSettings(aggregation="kpl")


class ListedKinesis(StandInKinesis):
    """Lists what the fake or ``listing`` says, and answers with ``summary``.  Without a summary it never answers."""

    def __init__(self, summary: StreamSummary | RequestFailed | None = BY_KEY) -> None:
        super().__init__()
        self.listed = FakeKinesis().create_stream("flights", shards=4)
        self.listing: Callable[[], list[dict[str, Any]] | RequestFailed | None] = lambda: None
        self.summary = summary
        self.listed_at: list[float] = []
        self.described_at: list[float] = []

    async def list_shards(self, address: Address) -> list[dict[str, Any]] | RequestFailed:
        assert address == {"StreamName": "flights"}
        self.listed_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.01)
        told = self.listing()
        return self.pages() if told is None else told

    async def describe_stream_summary(self, address: Address) -> StreamSummary | RequestFailed:
        assert address == {"StreamName": "flights"}
        self.described_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.1)
        if self.summary is None:
            await asyncio.Event().wait()
        assert self.summary is not None
        return self.summary

    def pages(self) -> list[dict[str, Any]]:
        return [{"Shards": [shard.describe(0.0) for shard in self.listed.open_shards]}]


@dataclass
class Watched:
    """A watch at work."""

    stream: Stream
    watch: ShardWatch

    def suspect(self) -> None:
        self.stream.pipeline.known.want()
        self.stream.settle(asyncio.get_running_loop().time())

    @property
    def shards(self) -> int:
        shard_map = self.stream.pipeline.shard_map
        return 0 if shard_map is None else len(shard_map)


def watch(
    kinesis: ListedKinesis, story: Callable[[Watched], Awaitable[None]], settings: StreamSettings | None = None
) -> list[Any]:
    """Live through a story, in its own time.  Returns what was logged and is not for debugging."""

    async def whole() -> None:
        with ThreadPoolExecutor(1) as pool:
            dispatcher = Dispatcher(pool, 1)
            touched = dispatcher.look_at
            stream = Stream("flights", settings or StreamSettings(), touched=touched)
            dispatcher.carry(stream, kinesis)
            watch = ShardWatch(stream, kinesis)
            async with asyncio.TaskGroup() as group:
                running = group.create_task(watch.run())
                await story(Watched(stream, watch))
                running.cancel()

    with capture_logs() as logs:
        live(whole())
    return [line for line in logs if line["log_level"] != "debug"]


# ---- the map


@pytest.mark.parametrize("settings", [StreamSettings(), KPL], ids=["plain", "kpl"])
@pytest.mark.parametrize("summary", [None, DENIED, BY_KEY], ids=["hung", "denied", "told"])
def test_the_map_does_not_wait_for_the_summary(
    summary: StreamSummary | RequestFailed | None, settings: StreamSettings
) -> None:
    async def story(watched: Watched) -> None:
        await asyncio.sleep(2.5 if summary is None else 0.2)
        assert watched.shards == 4

    watch(ListedKinesis(summary=summary), story, settings)


@pytest.mark.law("ShardMap")
def test_a_listing_that_fails_or_does_not_fit_together_is_asked_again_and_the_old_map_serves() -> None:
    kinesis = ListedKinesis()
    holed = [{"Shards": kinesis.pages()[0]["Shards"][1:]}]
    first: list[list[dict[str, Any]] | RequestFailed] = [DENIED, holed, [{}], DENIED]
    kinesis.listing = lambda: first.pop(0) if first else None

    async def story(watched: Watched) -> None:
        await asyncio.sleep(30)
        assert watched.shards == 4
        assert len(kinesis.listed_at) == 5
        assert len(kinesis.described_at) == 1, "it is the same stream"
        before = watched.stream.pipeline.shard_map
        kinesis.listing = lambda: holed
        watched.suspect()
        await asyncio.sleep(30)
        assert watched.stream.pipeline.shard_map is before
        kinesis.listing = lambda: None
        kinesis.listed.split_shard("shardId-000000000000")
        await asyncio.sleep(60)
        assert watched.shards == 5

    watch(kinesis, story)


ODD_SHARDS: list[Any] = [
    [None],
    None,
    5,
    [[]],
    ["shard"],
    [{"ShardId": 7, "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)}}],
    [{"ShardId": ["s"], "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)}}],
    [{"ShardId": "s", "HashKeyRange": {"StartingHashKey": ["1"], "EndingHashKey": str(2**128 - 1)}}],
    [{"ShardId": "s", "HashKeyRange": {"StartingHashKey": "²", "EndingHashKey": str(2**128 - 1)}}],
    [{"ShardId": "s", "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9" * 5_000}}],
    [{"ShardId": "s", "HashKeyRange": {"StartingHashKey": 0, "EndingHashKey": 2**128 - 1}}],
    [{"ShardId": "s", "HashKeyRange": None, "SequenceNumberRange": 1e999}],
]


@pytest.mark.law("ShardMap")
@settings(max_examples=25)
@given(odd=strategies.lists(variants(ListedKinesis().pages()), max_size=20))
def test_whatever_is_listed_the_watch_goes_on_and_tells_it_once(odd: list[Any]) -> None:
    kinesis = ListedKinesis()
    pages = [[{"Shards": shards}] for shards in ODD_SHARDS]
    pages += [listed for listed in odd if listed is not None and not covers(listed)]
    left = iter(pages)
    kinesis.listing = lambda: next(left, None)

    async def story(watched: Watched) -> None:
        while watched.shards == 0:
            watched.suspect()
            await asyncio.sleep(1)

    logs = [line for line in watch(kinesis, story) if line["event"].startswith("ListShards")]
    assert [line["event"] for line in logs] == ["ListShards failed", "ListShards works again"]
    assert logs[1]["failures"] == len(pages)


def covers(pages: Any) -> bool:
    with suppress(ValueError):
        return len(map_from_listing(pages)) > 0
    return False


def test_a_map_is_as_old_as_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored after the question was asked may be of another stream already."""
    kinesis = ListedKinesis()
    told: list[tuple[float, float]] = []

    async def story(watched: Watched) -> None:
        monkeypatch.setattr(watched.stream.pipeline, "set_shard_map", lambda _, *times: told.append(times))
        await asyncio.sleep(5)

    watch(kinesis, story)
    now, asked_at = told[0]
    assert asked_at == kinesis.listed_at[0] < now


@pytest.mark.law("RetryPolicy")
def test_an_hour_of_suspicions_makes_few_calls_a_minute_though_every_other_one_fails() -> None:
    kinesis = ListedKinesis()
    kinesis.listing = lambda: THROTTLED if len(kinesis.listed_at) % 2 else None

    async def story(watched: Watched) -> None:
        for _ in range(1_800):
            watched.suspect()
            await asyncio.sleep(2.0)

    watch(kinesis, story)
    times = kinesis.listed_at
    assert max(sum(start <= time < start + 59.999 for time in times) for start in times) <= READINGS_PER_MINUTE
    assert len(times) > 60, "and it is not given up"


def test_a_listing_that_is_denied_is_told_when_it_begins_and_when_it_ends() -> None:
    kinesis = ListedKinesis(summary=DENIED)
    kinesis.listing = lambda: DENIED

    async def story(watched: Watched) -> None:
        await asyncio.sleep(3_600)
        kinesis.listing, kinesis.summary = lambda: None, BY_KEY
        await asyncio.sleep(8 * 3_600)

    told = [(line["log_level"], line["event"], line.get("request_id", "")) for line in watch(kinesis, story)]
    assert sorted(told) == [
        ("info", "DescribeStreamSummary works again", ""),
        ("info", "ListShards works again", ""),
        ("info", "shards read", ""),
        ("warning", "DescribeStreamSummary failed", DENIED.request_id),
        ("warning", "ListShards failed", DENIED.request_id),
    ]


def rows_wait(watched: Watched) -> None:
    """A caller's rows are accepted, and the watch is asked as the dispatcher does it."""
    frame, stream, now = rows(10), watched.stream, asyncio.get_running_loop().time()
    stream.budget.charge(10, frame.layout.charge_bytes)
    stream.pipeline.submit(Frame(None, 1, stream.check(make_body(frame)), frame.layout.charge_bytes), now)
    stream.pipeline.press(now)
    stream.pipeline.take_job(now)
    stream.settle(now)


@pytest.mark.parametrize(("summary", "goes_plain"), [(BY_KEY, True), (THROTTLED, True), (UNREACHABLE, False)])
def test_a_list_that_alone_cannot_be_reached_is_not_waited_for_longer_than_one_that_fails(
    summary: StreamSummary | RequestFailed, goes_plain: bool
) -> None:
    """The summary shows that the service can be reached."""
    kinesis = ListedKinesis(summary=summary)
    kinesis.listing = lambda: UNREACHABLE

    async def story(watched: Watched) -> None:
        rows_wait(watched)
        await asyncio.sleep(10.5)
        job = watched.stream.pipeline.take_job(asyncio.get_running_loop().time())
        assert (job is not None, watched.stream.pipeline.goes_plain) == (goes_plain, goes_plain)

    watch(kinesis, story, KPL)


def test_a_stream_that_is_idle_is_not_read_and_its_next_row_has_it_read_at_once() -> None:
    kinesis = ListedKinesis()

    async def story(watched: Watched) -> None:
        await asyncio.sleep(1_000)
        before = len(kinesis.listed_at)
        assert watched.shards == 0
        await asyncio.sleep(10_000)
        assert len(kinesis.listed_at) == before
        rows_wait(watched)
        await asyncio.sleep(0.1)
        assert watched.shards == 4

    watch(kinesis, story, KPL)


def test_a_list_is_not_read_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    kinesis = ListedKinesis()

    async def story(watched: Watched) -> None:
        def next_reading() -> float:
            watched.stream.reading_changed.clear()
            return 100.5 if len(kinesis.listed_at) < 2 else inf

        await asyncio.sleep(1.0)
        monkeypatch.setattr(watched.stream, "next_reading", next_reading)
        watched.stream.reading_changed.set()
        await asyncio.sleep(98.9)
        watched.stream.reading_changed.set()
        await asyncio.sleep(10.0)
        assert kinesis.listed_at == [0.0, 100.5]

    watch(kinesis, story)


# ---- the summary


def test_the_summary_tells_the_largest_record_and_the_capacity_mode() -> None:
    async def story(watched: Watched) -> None:
        assert watched.stream.report.blocked(1, 0.0, 0.0).capacity_mode == ""
        await asyncio.sleep(16)
        assert watched.stream.max_record_bytes == 10_485_760
        assert watched.stream.report.blocked(1, 0.0, 0.0).capacity_mode == "PROVISIONED"

    watch(ListedKinesis(), story)


def test_the_summary_is_read_when_its_readings_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Times:
        """Stands for `SummaryReadings`."""

        def first_seconds(self, *, aggregates: bool) -> float:
            return 3.0

        def summary_failed(self, *, answered: bool) -> float:
            calls.append(f"failed, {answered}")
            return 1_000.0

        def succeeded(self, *, refuses: bool) -> float:
            calls.append(f"succeeded, {refuses}")
            return 100.0

        def made_again(self) -> None:
            calls.append("made again")

    monkeypatch.setattr(module, "SummaryReadings", lambda _: Times())
    kinesis = ListedKinesis(summary=THROTTLED)

    async def story(watched: Watched) -> None:
        await asyncio.sleep(500.0)
        kinesis.summary = BY_KEY
        await asyncio.sleep(610.0)
        kinesis.listed = FakeKinesis().create_stream("flights", shards=3)
        watched.suspect()
        await asyncio.sleep(30.0)

    watch(kinesis, story)
    assert [round(at, 3) for at in kinesis.described_at[:3]] == [3.0, 1_003.1, 1_103.2]
    assert calls == ["failed, True", *["succeeded, False"] * 2, "made again", "succeeded, False"]


@pytest.mark.parametrize("seen", [False, True], ids=["by its ranges", "by its absence"])
def test_a_stream_that_was_made_anew_is_described_anew(seen: bool) -> None:
    kinesis = ListedKinesis()

    async def story(watched: Watched) -> None:
        await asyncio.sleep(30)
        assert len(kinesis.described_at) == 1
        if seen:
            kinesis.listing = lambda: MISSING
            watched.suspect()
            await asyncio.sleep(30)
            assert len(kinesis.described_at) == 1
            kinesis.listing = lambda: None
        else:
            kinesis.listed = FakeKinesis().create_stream("flights", shards=3)
        watched.suspect()
        await asyncio.sleep(30)
        assert len(kinesis.described_at) == 2

    watch(kinesis, story)


@pytest.mark.promise("aggregates-refused-stream")
def test_aggregates_are_refused_where_shards_do_not_follow_the_keys_before_any_is_made() -> None:
    kinesis = ListedKinesis(summary=AUTO)

    async def story(watched: Watched) -> None:
        pipeline = watched.stream.pipeline
        while watched.shards == 0:
            refused = pipeline.cannot_aggregate
            await asyncio.sleep(0.001)
        assert "RecordDistributionStrategy AUTO" in refused, "known before there was a map to aggregate by"
        assert 'aggregation = "none"' in refused
        end = pipeline.refuses(asyncio.get_running_loop().time())
        assert end is not None
        assert refused in end.message
        kinesis.summary = BY_KEY
        await asyncio.sleep(1_000)
        assert pipeline.cannot_aggregate == ""
        assert pipeline.refuses(asyncio.get_running_loop().time()) is None

    logs = watch(kinesis, story, KPL)
    assert [line["log_level"] for line in logs if "aggregat" in line["event"]] == ["error", "info"]
