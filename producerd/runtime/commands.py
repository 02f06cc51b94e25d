"""Commands: what an operator asks and orders with `producerctl`, and the daemon's answers.

All answers are JSON's values.  None shows a record, a key or a secret.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import socket
import sys
import time
import traceback
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Protocol

from producerd import __version__
from producerd.config import Config
from producerd.config.text import as_toml
from producerd.errors import Code, Refused
from producerd.runtime import logs
from producerd.runtime.aside import aside
from producerd.runtime.sampling import MOST_SECONDS, StackSampler
from producerd.runtime.shutdown import Drained
from producerd.runtime.stream import Stream
from producerd.runtime.streams import Streams

JsonObject = dict[str, Any]
STARTED: Final = time.monotonic()
LIBRARIES: Final = ("aiobotocore", "aiohttp", "botocore", "numpy", "orjson", "pyarrow", "pydantic", "uvloop")
"""Packages whose versions a bundle names."""


class NoSuchStream(Exception):
    """No client has opened a stream of that name."""


class Node(Protocol):
    """The daemon, as commands see it."""

    config: Config

    @property
    def state_name(self) -> str: ...

    @property
    def unready(self) -> str | None: ...

    @property
    def troubles(self) -> list[str]: ...

    @property
    def connections(self) -> int: ...

    async def drain_and_stop(self, seconds: float | None) -> Drained: ...

    async def reload(self) -> JsonObject: ...

    async def render_metrics(self, *, everything: bool) -> bytes: ...


class Commands:
    """The commands of `producerctl`.

    They raise NoSuchStream for an unknown name, and ConfigurationError for wrong settings.
    """

    def __init__(self, node: Node, streams: Streams) -> None:
        self._node = node
        self._streams = streams
        self._loop = asyncio.get_running_loop()
        self._sampler = StackSampler()

    # ---- questions

    def status(self) -> JsonObject:
        now = self._loop.time()
        budget = self._streams.budget
        return {
            "version": __version__,
            "host": socket.gethostname(),
            "state": self._node.state_name,
            "unready": self._node.unready,
            "troubles": self._node.troubles,
            "uptime_seconds": round(time.monotonic() - STARTED, 1),
            "log_level": logs.level(),
            "drain_timeout_seconds": self._node.config.node.drain_timeout_seconds,
            "connections": self._node.connections,
            "node_queue_bytes": budget.used_bytes,
            "node_queue_limit_bytes": budget.limit_bytes,
            "streams": [stream.report.status(now) | _totals(stream, now) for stream in self._streams],
        }

    def shards(self, name: str) -> JsonObject:
        return self._stream(name).report.shards(self._loop.time())

    def dump(self) -> JsonObject:
        """Return everything that helps to find a fault."""
        frames = sys._current_frames()
        return {
            "status": self.status(),
            "shards": {stream.name: stream.report.shards(self._loop.time())["shards"] for stream in self._streams},
            "settings": as_toml(self._node.config, origins=True).splitlines(),
            "process": {
                "pid": os.getpid(),
                "python": sys.version,
                "platform": platform.platform(),
                "memory": _memory(),
                "open_files": len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else None,
                "garbage_collections": [generation["collections"] for generation in gc.get_stats()],
            },
            "threads": {str(number): _lines(traceback.extract_stack(frame)) for number, frame in frames.items()},
            "tasks": {
                task.get_name(): _lines(traceback.extract_stack(stack[-1])) if (stack := task.get_stack()) else []
                for task in asyncio.all_tasks()
            },
        }

    async def bundle(self) -> JsonObject:
        """Return `dump`, the metrics, the last lines of the log and the versions, for a report of a fault."""
        rendered, versions = await self._node.render_metrics(everything=True), await aside(_versions)
        return {
            **self.dump(),
            "metrics": rendered.decode(),
            "log": logs.recent_lines(),
            "versions": {"producerd": __version__, **versions},
        }

    # ---- orders

    async def profile(self, seconds: float | None) -> JsonObject:
        """Sample the stacks of the event loop's thread for this long."""
        if seconds is None or not 0 < seconds <= MOST_SECONDS:
            raise ValueError(f"seconds = {seconds!r}: allowed: more than 0, at most {MOST_SECONDS}")
        return await self._sampler.sample(seconds)

    async def flush(self, name: str | None, timeout_seconds: float | None) -> JsonObject:
        """Deliver all records accepted until now.  Return how they ended, and how many have not ended."""
        streams = list(self._streams) if name is None else [self._stream(name)]
        flushings = {stream.name: stream.flush_all() for stream in streams}
        try:
            async with asyncio.timeout(timeout_seconds):
                for flushing in flushings.values():
                    await flushing.done.wait()
        except TimeoutError:
            pass  # the counts show how many have not ended
        return {"streams": {name: flushing.counts() for name, flushing in flushings.items()}}

    async def drain(self, timeout_seconds: float | None) -> JsonObject:
        drained = await self._node.drain_and_stop(timeout_seconds)
        return {
            "returned_records": drained.returned_records,
            "undelivered_records": drained.undelivered_records,
        }

    async def reload(self) -> JsonObject:
        return await self._node.reload()

    def pause(self, name: str) -> JsonObject:
        """Send nothing of a stream, from its first record on if it has settings.

        Raise Refused for one too many, and while the daemon drains.
        """
        if self._node.state_name == "draining":
            raise Refused("the daemon stops, and sends what it has", code=Code.DRAINING)
        stream = self._streams.open_listed(name) or self._stream(name)
        stream.pause(self._loop.time())
        return {"stream": name, "paused": True}

    def resume(self, name: str) -> JsonObject:
        stream = self._stream(name)
        stream.resume(self._loop.time())
        return {"stream": name, "paused": False}

    def log_level(self, level: logs.Level, seconds: float | None) -> JsonObject:
        logs.set_level(level, seconds)
        return {"log_level": level, "seconds": seconds}

    def _stream(self, name: str) -> Stream:
        stream = self._streams.get(name)
        if stream is None:
            raise NoSuchStream(f"{name}: no client has opened a stream of that name")
        return stream


def _totals(stream: Stream, now: float) -> JsonObject:
    """Return the totals from which `producerctl top` computes rates."""
    stats = stream.stats
    return {
        "ingest_records": stats.ingest_records,
        "ingest_bytes": stats.ingest_bytes,
        "delivered_records": stats.delivered_records,
        "delivered_bytes": stats.delivered_bytes,
        "failed_records": sum(stats.failed_records.values()),
        "failed_reasons": dict(stats.failed_records),
        "lost_records": stats.discarded_records["abandoned"],
        "lost_as": stats.lost_as,
        "discarded_records": sum(stats.discarded_records.values()),
        "record_retries": stats.retried_records,
        "oldest_record_seconds": round(stream.diagnosis.oldest_seconds(now), 1),
        "blocked_seconds": round(stream.gate.active_seconds(now), 1),
    }


def _versions() -> dict[str, str]:
    libraries = {name: metadata.version(name) for name in LIBRARIES}
    return {"python": platform.python_version(), "platform": platform.platform(), **libraries}


def _memory() -> dict[str, str]:
    """Return the memory's numbers as Linux reports them."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return dict(line.split(":\t", 1) for line in lines if line.startswith(("Vm", "Rss", "Threads")))


def _lines(stack: Iterable[traceback.FrameSummary]) -> list[str]:
    """Return the places in a stack, without any values."""
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in stack]
