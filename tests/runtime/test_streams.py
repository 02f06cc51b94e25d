"""A node makes a stream when a client asks for it, and forgets it when no client wants it any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from producerd.config import Config, NodeSettings, StreamSettings
from producerd.core.sending.health import HealthState
from producerd.errors import Code, Refused
from producerd.runtime import streams as module
from producerd.runtime.dispatcher import Dispatcher
from producerd.runtime.stream import Stream
from producerd.runtime.streams import Streams
from tests.daemon import until_on_loop


class Watch:
    """Of a service that is never asked."""

    ended: list[str]

    def __init__(self, stream: Stream, kinesis: Any) -> None:
        self.stream = stream

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            Watch.ended.append(self.stream.name)


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    Watch.ended = []
    monkeypatch.setattr(module, "ShardWatch", Watch)


@asynccontextmanager
async def streams_of(config: Config) -> AsyncIterator[Streams]:
    stopped = asyncio.Event()
    clients: Any = SimpleNamespace(of=lambda access: SimpleNamespace(credentials=None))
    with ThreadPoolExecutor(1) as executor:
        dispatcher = Dispatcher(executor, 1)
        streams = Streams(config, dispatcher, clients, executor)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(dispatcher.run(stopped))
            tasks.create_task(streams.run(stopped))
            await asyncio.sleep(0)
            yield streams
            stopped.set()


async def test_a_stream_that_nobody_uses_is_forgotten_unless_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that jobs make up by day must not pile up."""
    monkeypatch.setattr(module, "FORGET_SECONDS", 0.2)
    monkeypatch.setattr(module, "FORGET_BROKEN_SECONDS", 3_600)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    async with streams_of(Config(streams={"listed": StreamSettings()})) as streams:
        for name in ("listed", "idle", "open", "paused"):
            streams.open(name)
        for stream in streams:
            stream.pipeline.health.stored()
        opened, paused = streams.get("open"), streams.get("paused")
        assert opened is not None
        assert paused is not None
        caller: Any = SimpleNamespace()
        member = opened.join(caller, patient=False)
        paused.pause(0.0)
        await until_on_loop(lambda: streams.get("idle") is None)
        assert [stream.name for stream in streams] == ["listed", "open", "paused"]
        await until_on_loop(lambda: Watch.ended == ["idle"])
        opened.leave(member, 0.0, deliver=False)
        await until_on_loop(lambda: streams.get("open") is None)
        assert streams.open("idle") is not None, "it may come again"
    assert sorted(Watch.ended) == ["idle", "idle", "listed", "open", "paused"]


async def test_a_name_that_never_worked_is_forgotten_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typing error must not be an alert for a day."""
    monkeypatch.setattr(module, "FORGET_BROKEN_SECONDS", 0.1)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    async with streams_of(Config()) as streams:
        streams.open("works").pipeline.health.stored()
        streams.open("typo").pipeline.health.looks_permanent("STREAM_NOT_FOUND", "", 0.0)
        streams.open("unproven")
        await until_on_loop(lambda: [stream.name for stream in streams] == ["works"])


async def test_a_refusal_that_nobody_has_met_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row of an idle stream shows that the cause was fixed, and an alert must not wait for one."""
    monkeypatch.setattr(module, "FORGET_BROKEN_SECONDS", 0.1)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    async with streams_of(Config(streams={name: StreamSettings() for name in ("new", "old", "used")})) as streams:
        new, old, used = (streams.open(name) for name in ("new", "old", "used"))
        old.pipeline.health.stored()
        for stream in (new, old, used):
            stream.pipeline.health.looks_permanent("ACCESS_DENIED", "not allowed", 0.0)
        caller: Any = SimpleNamespace()
        used.join(caller, patient=False)
        assert not any(stream.is_up for stream in streams)
        await until_on_loop(lambda: new.is_up and old.is_up)
        assert (new.pipeline.health.state, old.pipeline.health.state) == (HealthState.UNPROVEN, HealthState.WORKING)
        assert (used.pipeline.health.state, used.pipeline.health.code) == (HealthState.BROKEN, "ACCESS_DENIED")
        new.pipeline.health.looks_permanent("ACCESS_DENIED", "not allowed", 1.0)
        assert not new.is_up, "the next row finds it refused once more"


async def test_a_name_that_never_worked_makes_place_for_another_one() -> None:
    """Unless somebody has it open, or has paused it."""
    async with streams_of(Config(node=NodeSettings(max_streams=2))) as streams:
        paused, worked = streams.open("paused"), streams.open("worked")
        paused.pause(0.0)
        worked.pipeline.health.stored()
        with pytest.raises(Refused, match="max_streams = 2") as refused:
            streams.open("one-more")
        assert refused.value.code == Code.STREAM_LIMIT
        paused.resume(0.0)
        assert paused.pipeline.health.state is HealthState.UNPROVEN
        streams.open("one-more")
        assert [stream.name for stream in streams] == ["worked", "one-more"]


async def test_with_fewer_streams_allowed_than_there_are_their_parts_still_fit() -> None:
    """Of what is in flight, else the bound on memory would be none; of the queues, else who comes last has none."""
    async with streams_of(Config(node=NodeSettings(max_streams=8))) as streams:
        for number in range(8):
            streams.open(f"stream-{number}")
        streams.reload(Config(node=NodeSettings(max_streams=2)), 0.0)
        assert 8 * streams.in_flight.floor_bytes <= streams.in_flight.limit_bytes / 2
        assert 8 * streams.budget.floor_bytes <= streams.budget.limit_bytes / 2


def opens(streams: Streams, name: str, uid: int) -> None:
    caller: Any = SimpleNamespace()
    streams.open(name, uid).join(caller, patient=False, uid=uid)


async def test_one_user_does_not_have_all_streams_and_listed_ones_do_not_count() -> None:
    node = NodeSettings(max_streams=6, max_streams_per_user=2)
    async with streams_of(Config(node=node, streams={"listed": StreamSettings(), "too": StreamSettings()})) as streams:
        for name in ("listed", "a", "b", "a", "too"):
            opens(streams, name, 7)
        with pytest.raises(Refused, match="max_streams_per_user = 2 streams are open for user id 7") as refused:
            streams.open("c", 7)
        assert refused.value.code == Code.STREAM_LIMIT
        assert streams.get("c") is None
        opens(streams, "c", 8)
        with pytest.raises(Refused, match="max_streams_per_user"):
            streams.open("c", 7)
        opens(streams, "listed", 8)
        opens(streams, "b", 8)
        with pytest.raises(Refused, match="max_streams_per_user"):
            streams.open("a", 8)


async def test_a_stream_takes_records_of_its_users_alone() -> None:
    """The settings of all streams hold for one without a table."""
    config = Config(
        defaults=StreamSettings(allowed_uids=frozenset({1})),
        streams={"hers": StreamSettings(allowed_uids=frozenset({7}), stream_name="one"), "theirs": StreamSettings()},
    )
    async with streams_of(config) as streams:
        opens(streams, "hers", 7)
        opens(streams, "theirs", 8)
        for name, uid in (("hers", 8), ("hers", None), ("hers", 0), ("other", 7), ("one", 1)):
            with pytest.raises(Refused, match=f"user id {uid} may not write to {name}") as refused:
                streams.open(name, uid)
            assert refused.value.code == Code.NOT_AUTHORIZED
        opens(streams, "other", 1)
        assert len(streams) == 3
        streams.reload(Config(), 0.0)
        opens(streams, "hers", 8)


async def test_an_open_stream_that_is_not_listed_any_more_takes_no_new_client() -> None:
    listed = Config(streams={"orders": StreamSettings(), "other": StreamSettings()})
    async with streams_of(listed) as streams:
        opens(streams, "orders", 7)
        node = NodeSettings(streams_allowed="listed")
        streams.reload(Config(node=node, streams={"other": StreamSettings()}), 0.0)
        with pytest.raises(Refused, match="listed streams only"):
            streams.open("orders", 8)


async def test_names_that_a_user_left_behind_still_count_until_they_work() -> None:
    """Records that nobody waits for would keep each of them, and one user would have all streams."""
    node = NodeSettings(max_streams=6, max_streams_per_user=2)
    async with streams_of(Config(node=node)) as streams:
        caller: Any = SimpleNamespace()
        for name in ("a", "b"):
            stream = streams.open(name, 7)
            stream.leave(stream.join(caller, patient=False, uid=7), 0.0, deliver=True)
        with pytest.raises(Refused, match="max_streams_per_user"):
            streams.open("c", 7)
        opens(streams, "c", 8)
        first = streams.get("a")
        assert first is not None
        first.pipeline.health.stored()
        opens(streams, "d", 7)
