"""Compare the memory that a daemon may need with the memory limit of its cgroup.

The need is the law "process" of docs/build/laws.md, computed from the settings.  `producerd.config.cgroup` reads the
limit.  If the need is larger, the daemon does not start.  Otherwise the kernel would kill it during an incident, when
its queues fill.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from producerd.config.cgroup import MemoryLimit, memory_limit
from producerd.config.settings import LEAST_REQUEST_BYTES, Config, StreamSettings
from producerd.config.text import assignment
from producerd.config.tuning import TUNING
from producerd.config.values import KIB, MIB, Bytes, size
from producerd.errors import ConfigurationError

IDLE_BYTES: Final = 176 * MIB
"""Resident memory of a daemon that has sent nothing: 117 to 169 MiB by `./dev bench idle`, as the kernel maps more or
less of its libraries."""
QUEUED_FACTOR: Final = 1.2
"""Resident bytes per queued byte, measured."""
IN_FLIGHT_FACTOR: Final = 2.2
"""Resident bytes per byte of unanswered requests: a body, and what of it is encrypted and waits for the network."""
LARGEST_RECORD_BYTES: Final = 10 * MIB
"""Size of the largest record of any stream.  One such record may exceed node_max_in_flight_bytes (`NodeInFlight`)."""
JOB_FACTOR: Final = 8
"""Resident bytes per byte of a job in a worker, measured."""
CONNECTION_BYTES: Final = 32 * KIB
WAITING_FRAME_BYTES: Final = 1.1 * KIB
"""Memory of one waiting RESERVE.  A connection with 64 of them has 94 KiB; 250 with 4,096 each had 1,278 MiB."""
LEAST_CONNECTIONS: Final = 256
"""Connections that lower limits leave.  A task has one or two, and a node that has little memory few tasks."""
LANE_BYTES: Final = 4 * KIB
LANES_OF_A_STREAM: Final = 64
"""Open shards per stream, an assumption, because the settings do not count shards.  1,000 more need 4 MiB."""


class Term(NamedTuple):
    """One part of the sum: its name, its bytes, and the settings that it comes from."""

    name: str
    bytes: int
    of: str


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that a daemon needs, as a sum of terms."""

    terms: tuple[Term, ...]

    @property
    def bytes(self) -> int:
        return sum(term.bytes for term in self.terms)

    @property
    def mib(self) -> str:
        """The need in whole MiB, with which a limit is high enough."""
        return whole_mib(self.bytes)

    def __str__(self) -> str:
        return " + ".join(f"{term.name} {mib(term.bytes)} ({term.of})" for term in self.terms)


def needed_bytes(config: Config) -> Need:
    """Return the resident memory that a daemon with these settings needs at most."""
    node = config.node
    streams = [*config.streams.values()]
    if node.streams_allowed == "any":
        streams.append(config.defaults)
    # Filling closes a batch at a quarter of the stream's limit, after the frame that reached the quarter.
    job_bytes = min(
        node.node_queue_limit_bytes, max(s.queue_limit_bytes for s in streams) // 4 + TUNING.max_frame_bytes
    )
    connection_bytes = CONNECTION_BYTES + int(WAITING_FRAME_BYTES * TUNING.session_window_frames)
    lanes = node.max_streams * LANES_OF_A_STREAM
    return Need(
        (
            Term("idle", IDLE_BYTES, "measured"),
            Term(
                "queues",
                int(QUEUED_FACTOR * node.node_queue_limit_bytes),
                f"{QUEUED_FACTOR:g} x node_queue_limit_bytes = {size(node.node_queue_limit_bytes)}",
            ),
            Term(
                "requests",
                int(IN_FLIGHT_FACTOR * (node.node_max_in_flight_bytes + LARGEST_RECORD_BYTES)),
                f"{IN_FLIGHT_FACTOR:g} x ({size(LARGEST_RECORD_BYTES)} for one larger record + "
                f"node_max_in_flight_bytes = {size(node.node_max_in_flight_bytes)})",
            ),
            Term(
                "jobs",
                TUNING.worker_threads * JOB_FACTOR * job_bytes,
                f"{JOB_FACTOR} x {mib(job_bytes)}, a quarter of the largest queue_limit_bytes and a frame",
            ),
            Term(
                "connections",
                node.max_connections * connection_bytes,
                f"max_connections = {node.max_connections:,} x ({size(CONNECTION_BYTES)} + "
                f"{WAITING_FRAME_BYTES / KIB:g} KiB x {TUNING.session_window_frames} frames)",
            ),
            Term(
                "lanes",
                lanes * LANE_BYTES,
                f"{size(LANE_BYTES)} x max_streams = {node.max_streams:,} x {LANES_OF_A_STREAM} open shards, assumed",
            ),
        )
    )


def check_fits(config: Config, limit: MemoryLimit | None = None) -> None:
    """Raise ConfigurationError if the daemon may need more memory than its cgroup allows."""
    limit = memory_limit() if limit is None else limit
    need = needed_bytes(config)
    if limit.bytes is None or need.bytes <= limit.bytes:
        return
    fitting = lowered(config, limit.bytes)
    what = (
        f"set {assignment('memory', limit.bytes)}, by which {', '.join(_differences(config, fitting))}, or raise the "
        f"limit to {need.mib}"
        if fitting is not None
        else f"no lower limits of queues and requests are enough: raise the limit to {need.mib}"
    )
    problem = (
        f"memory: up to {need.mib} may be needed, and the limit of this cgroup is {mib(limit.bytes)} "
        f"({limit.path}): {what}. What may be needed: {need}"
    )
    raise ConfigurationError((problem,))


def given_limit(text: str) -> MemoryLimit:
    """Return the limit that ``--memory-limit`` names.  Raise ConfigurationError if it is not a size."""
    try:
        return MemoryLimit(TypeAdapter(Bytes).validate_python(text), "--memory-limit")
    except ValidationError:
        raise ConfigurationError((f'--memory-limit {text}: allowed: bytes or text such as "1 GiB"',)) from None


def in_words(config: Config, limit: MemoryLimit | None = None) -> str:
    """Return need and limit as a line for `producerd check`, after `check_fits` raised nothing."""
    limit = memory_limit() if limit is None else limit
    may = f"the limit of this cgroup is {mib(limit.bytes)}" if limit.bytes is not None else "no limit is set"
    if limit.problem:
        may = f"{may}, as far as is known: {limit.problem}"
    return f"needs at most {needed_bytes(config).mib}; {may}"


def within_memory(config: Config) -> Config:
    """Return the settings with all limits lowered until they fit into ``memory``, if that is set.

    Raise ConfigurationError if no limits are low enough.
    """
    most_bytes = config.node.memory
    if most_bytes is None or needed_bytes(config).bytes <= most_bytes:
        return config
    given, fitting = assignment("memory", most_bytes), lowered(config, most_bytes)
    if fitting is None:
        least = min(map(needed_bytes, _lower(config)), key=lambda need: need.bytes, default=needed_bytes(config))
        place = config.origins["memory"]
        problem = f"{given} ({place}): no limits are low enough; at least {least.mib} with these settings"
        raise ConfigurationError((problem,))
    tables = {"": (config.node, fitting.node), "defaults.": (config.defaults, fitting.defaults)}
    for name, settings in config.streams.items():
        tables[f"streams.{json.dumps(name)}."] = (settings, fitting.streams[name])
    lower = {
        place + key: f"lowered for {given}"
        for place, (before, after) in tables.items()
        for key, value in after
        if value != getattr(before, key)
    }
    return replace(fitting, origins=MappingProxyType({**config.origins, **lower}))


def lowered(config: Config, limit_bytes: int) -> Config | None:
    """Lower all limits by the same percentage until they fit.  Return None if no percentage fits."""
    return next((candidate for candidate in _lower(config) if needed_bytes(candidate).bytes <= limit_bytes), None)


def _lower(config: Config) -> Iterator[Config]:
    """Yield the settings with lower and lower limits, as long as each listed stream has its floor."""
    for percent in range(99, 0, -1):
        candidate = _scaled(config, percent)
        if candidate.node.max_streams < max(1, len(config.streams)):
            return
        yield candidate


def _scaled(config: Config, percent: int) -> Config:
    """Return the settings with the node's limits at this percentage, and with the settings that depend on them."""
    node = config.node
    queue_bytes, in_flight_bytes = (
        _rounded(limit * percent // 100) for limit in (node.node_queue_limit_bytes, node.node_max_in_flight_bytes)
    )
    floors = (queue_bytes // (2 * TUNING.max_frame_bytes), in_flight_bytes // (2 * LEAST_REQUEST_BYTES))

    def stream(settings: StreamSettings) -> StreamSettings:
        return settings.model_copy(update={"queue_limit_bytes": min(settings.queue_limit_bytes, queue_bytes)})

    return replace(
        config,
        node=node.model_copy(
            update={
                "node_queue_limit_bytes": queue_bytes,
                "node_max_in_flight_bytes": in_flight_bytes,
                "max_streams": min(node.max_streams, *floors),
                "max_connections": min(
                    node.max_connections, max(LEAST_CONNECTIONS, node.max_connections * percent // 100)
                ),
            }
        ),
        defaults=stream(config.defaults),
        streams={name: stream(settings) for name, settings in config.streams.items()},
    )


def _rounded(count: int) -> int:
    return count // MIB * MIB or count // KIB * KIB


def _differences(config: Config, lower: Config) -> Iterator[str]:
    for name, value in lower.node:
        if value != getattr(config.node, name):
            yield assignment(name, value)
    if (lower.defaults, lower.streams) != (config.defaults, config.streams):
        value = lower.node.node_queue_limit_bytes
        yield f"{assignment('queue_limit_bytes', value)} where a stream has more"


def whole_mib(count: int) -> str:
    return f"{-(-count // MIB):,} MiB"


def mib(count: int) -> str:
    return f"{count / MIB:,.0f} MiB"
