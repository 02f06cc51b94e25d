"""Describe settings in words, for `producerd check`."""

from __future__ import annotations

from collections.abc import Iterator

from producerd.config import memory
from producerd.config.cgroup import MemoryLimit
from producerd.config.settings import Config, StreamSettings
from producerd.config.text import differing
from producerd.config.values import MIB, size

_IN_WORDS = ("queue_limit", "queue_limit_bytes", "max_in_flight_requests", "aggregation")


def summary(config: Config, limit: MemoryLimit | None = None) -> Iterator[str]:
    """Yield the lines that describe valid settings, with the warnings last.

    ``limit`` is the memory limit of the daemon, or None for the limit of this process.
    """
    node = config.node
    yield "OK: the settings hold"
    yield f"region: {node.region or 'not set here: AWS_REGION or a profile of AWS must name one'}"
    yield f"endpoint: {node.endpoint_url or 'the default of the region'}"
    users = f"; user ids {', '.join(map(str, sorted(node.allowed_uids)))} only" if node.allowed_uids else ""
    yield f"socket: {node.socket}, mode {node.socket_mode:04o}{users}; at most {node.max_connections:,} connections"
    yield f"producerctl: {node.admin_path}"
    yield f"metrics: {node.metrics_listen or 'off'}"
    yield f"memory: {memory.in_words(config, limit)}"
    which = "listed streams only" if node.streams_allowed == "listed" else "any stream"
    yield f"streams: {which}, at most {node.max_streams:,} at a time"
    named = {"each stream": config.defaults, **{f"stream {name}": of for name, of in sorted(config.streams.items())}}
    yield from (f"{name}: {_stream(settings)}" for name, settings in named.items())
    for name, settings in named.items():
        if warning := queue_warning(settings):
            yield f"WARNING {name}: {warning}"


def _stream(settings: StreamSettings) -> str:
    others = differing(settings, without=_IN_WORDS)
    return (
        f"queue {settings.queue_limit:,} records, {size(settings.queue_limit_bytes)} "
        f"({in_seconds(settings.queue_seconds(1))} of one shard, {in_seconds(settings.queue_seconds(4))} of four); "
        f"in flight {settings.max_in_flight_requests:,} requests; "
        f"aggregation {settings.aggregation}" + (f"\n  {', '.join(others)}" if others else "")
    )


def in_seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"


def queue_warning(settings: StreamSettings, shards: int | None = None) -> str:
    """Return a warning if a stream's queue is too short or too long for its rate, or "".

    ``shards`` is None if the number of shards is not known.
    """
    seconds = settings.queue_seconds(shards or 1)
    of = "one shard, and less of more (--online counts them)" if shards is None else f"its {shards:,} shards"
    by_records = settings.queue_seconds(1) < settings.queue_limit_bytes / MIB / settings.shard_rate_fraction
    key = "queue_limit" if by_records else "queue_limit_bytes"
    if seconds < 1:
        return f"a full queue is {in_seconds(seconds)} of {of}: they will wait for callers; raise {key}"
    if seconds > 100:
        return f"a full queue is {in_seconds(seconds)} of {of}: records may wait that long; lower {key}"
    return ""
