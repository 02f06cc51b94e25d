"""Commands answer what an operator asks, and what was ordered has happened when they return."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import re
import socket
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from producerd import __version__
from producerd.config import Config, StreamSettings
from producerd.config.text import as_toml
from producerd.core.budget import NodeBudget
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.errors import Refused
from producerd.runtime import commands as module
from producerd.runtime import logs
from producerd.runtime.commands import Commands, NoSuchStream
from producerd.runtime.page.page import Page
from producerd.runtime.stream import Stream


class Node:
    """Stands for the daemon, and keeps what it is asked to do."""

    def __init__(self) -> None:
        self.config = Config(streams={"orders": StreamSettings(queue_limit=777)})
        self.state_name = "serving"
        self.unready = "it lacks a role"
        self.troubles = ["its clock is off"]
        self.connections = 3


class Streams:
    """The streams that clients have opened."""

    def __init__(self, *streams: Any) -> None:
        self._known = {stream.name: stream for stream in streams}
        self.budget = NodeBudget(1 << 30, 1 << 20)
        self.budget.used_bytes = 12_345

    def __iter__(self) -> Iterator[Any]:
        return iter(self._known.values())

    def get(self, name: str) -> Any:
        return self._known.get(name)

    open_listed = get


class Flushed:
    """Stands for a stream whose rows end when the test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.flushes = 0
        self.done = asyncio.Event()

    def flush_all(self) -> Flushed:
        self.flushes += 1
        return self

    def counts(self) -> dict[str, int]:
        return {"open": 0 if self.done.is_set() else 5}


def commands_of(*streams: Any, state_name: str = "serving") -> Commands:
    node: Any = Node()
    node.state_name = state_name
    known: Any = Streams(*streams)
    return Commands(node, known)


def flights() -> Stream:
    stream = Stream("flights", StreamSettings())
    stream.pipeline.set_shard_map(ShardMap([Shard("shard-0", 0, MAX_HASH_KEY)]), 0.0)
    return stream


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon has run for 12.34 s."""
    monkeypatch.setattr(module, "STARTED", 100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 112.34))


# ---- questions


@pytest.mark.usefixtures("clock")
async def test_the_status_has_the_node_and_each_stream_with_its_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = flights()
    stats = stream.pipeline.stats
    stats.ingest_records, stats.ingest_bytes = 40, 4_000
    stats.delivered_records, stats.delivered_bytes, stats.retried_records = 30, 3_000, 6
    stats.failed_records.update({"KMS": 2, "EXPIRED": 3})
    stats.discarded_records.update({"returned": 4, "disconnected": 1})
    stats.lost(7, "EXPIRED")
    monkeypatch.setattr(type(stream.pipeline.diagnosis), "oldest_seconds", lambda *_: 12.3456)
    monkeypatch.setattr(type(stream.gate), "active_seconds", lambda *_: 10.3456)
    status = commands_of(stream).status()
    (of_stream,) = status.pop("streams")
    assert status == {
        "version": __version__,
        "host": socket.gethostname(),
        "state": "serving",
        "unready": "it lacks a role",
        "troubles": ["its clock is off"],
        "uptime_seconds": 12.3,
        "log_level": logs.level(),
        "drain_timeout_seconds": 60,
        "connections": 3,
        "node_queue_bytes": 12_345,
        "node_queue_limit_bytes": 1 << 30,
    }
    totals = {
        "stream": "flights",
        "ingest_records": 40,
        "ingest_bytes": 4_000,
        "delivered_records": 30,
        "delivered_bytes": 3_000,
        "failed_records": 5,
        "failed_reasons": {"KMS": 2, "EXPIRED": 3},
        "lost_records": 7,
        "lost_as": "EXPIRED",
        "discarded_records": 12,
        "record_retries": 6,
        "oldest_record_seconds": 12.3,
        "blocked_seconds": 10.3,
    }
    assert {name: of_stream[name] for name in totals} == totals


async def test_the_page_shows_what_the_status_tells() -> None:
    said = Page(commands_of(flights()).status).html()
    assert "it lacks a role" in said
    assert "unproven: nothing was stored yet" in said


async def test_a_stream_that_no_client_has_opened_is_named() -> None:
    orders = commands_of(flights())
    with pytest.raises(NoSuchStream, match=r"^orders: no client has opened a stream of that name$"):
        orders.shards("orders")
    told = orders.shards("flights")
    assert (told["stream"], [shard["shard_id"] for shard in told["shards"]]) == ("flights", ["shard-0"])


@pytest.mark.usefixtures("clock")
async def test_the_dump_has_settings_with_their_origin_and_where_threads_and_tasks_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc, "get_stats", lambda: [{"collections": 7}])  # a collection may begin at any moment
    orders = commands_of(flights())
    event = asyncio.Event()
    waiting = asyncio.create_task(event.wait(), name="waits")
    own = asyncio.current_task()
    assert own is not None
    await asyncio.sleep(0)
    told = orders.dump()
    assert told["status"] == orders.status()
    assert {name: [shard["shard_id"] for shard in shards] for name, shards in told["shards"].items()} == {
        "flights": ["shard-0"]
    }
    assert told["settings"] == as_toml(Node().config, origins=True).splitlines()
    memory, open_files = told["process"].pop("memory"), told["process"].pop("open_files")
    assert told["process"] == {
        "pid": os.getpid(),
        "python": sys.version,
        "platform": platform.platform(),
        "garbage_collections": [7],
    }
    assert re.fullmatch(r" *\d+ kB", memory["VmRSS"])
    assert {re.match("Vm|Rss|Threads", name)[0] for name in memory} == {"Vm", "Rss", "Threads"}  # type: ignore[index]
    assert open_files == len(os.listdir("/proc/self/fd"))
    assert re.fullmatch(rf"{re.escape(module.__file__)}:\d+ dump", told["threads"][str(threading.get_ident())][-1])
    assert re.fullmatch(r"/.*/asyncio/locks\.py:\d+ wait", told["tasks"]["waits"][-1])
    here = rf"{re.escape(__file__)}:\d+ test_the_dump_has_settings_with_their_origin_and_where_threads_and_tasks_are"
    assert re.fullmatch(here, told["tasks"][own.get_name()][-1])
    event.set()
    await waiting


# ---- orders


@pytest.mark.parametrize(
    ("seconds", "refusal"),
    [
        (None, "seconds = None: allowed: more than 0, at most 300"),
        (0.0, "seconds = 0.0: allowed: more than 0, at most 300"),
        (0.5, ""),
        (300.0, ""),
        (300.5, "seconds = 300.5: allowed: more than 0, at most 300"),
    ],
)
async def test_a_profile_takes_up_to_five_minutes(
    monkeypatch: pytest.MonkeyPatch, seconds: float | None, refusal: str
) -> None:
    class Sampler:
        async def sample(self, asked: float) -> dict[str, Any]:
            return {"seconds": asked}

    monkeypatch.setattr(module, "StackSampler", Sampler)
    orders = commands_of()
    if refusal:
        with pytest.raises(ValueError, match=f"^{re.escape(refusal)}$"):
            await orders.profile(seconds)
    else:
        assert await orders.profile(seconds) == {"seconds": seconds}


async def test_a_stream_is_paused_and_resumed() -> None:
    stream = flights()
    orders = commands_of(stream)
    assert orders.pause("flights") == {"stream": "flights", "paused": True}
    assert stream.pipeline.paused
    assert orders.resume("flights") == {"stream": "flights", "paused": False}
    assert not stream.pipeline.paused


async def test_a_draining_daemon_says_that_it_pauses_nothing() -> None:
    with pytest.raises(Refused, match="the daemon stops, and sends what it has"):
        commands_of(flights(), state_name="draining").pause("flights")


async def test_a_flush_of_all_streams_waits_for_each() -> None:
    a, b = Flushed("a"), Flushed("b")
    flushing = asyncio.create_task(commands_of(a, b).flush(None, None))
    for stream in (a, b):
        for _ in range(5):
            await asyncio.sleep(0)
        assert not flushing.done()
        stream.done.set()
    assert await flushing == {"streams": {"a": {"open": 0}, "b": {"open": 0}}}
    assert (a.flushes, b.flushes) == (1, 1)


async def test_a_flush_of_one_stream_that_takes_too_long_says_what_is_open() -> None:
    a, b = Flushed("a"), Flushed("b")
    assert await commands_of(a, b).flush("b", 0.0) == {"streams": {"b": {"open": 5}}}
    assert (a.flushes, b.flushes) == (0, 1)
