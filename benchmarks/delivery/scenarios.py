"""The scenarios: how many rows go to which shards, and what fails when.  Seconds count from the first row on.

All end within `LONGEST_SECONDS`.  The fake enforces the quotas of shards, except in `split` and `merge`.  These are the
scenarios in which the official KPL loses rows.  There the producers limit themselves to four times a shard's quota, so
that a backlog waits.
"""

from __future__ import annotations

import json
import math
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from producerd.testing import FakeKinesis, FakeStream, Fault, hash_of
from producerd.testing.fake_kinesis import FakeServer
from producerd.testing.streams import HASH_END

LONGEST_SECONDS: Final = 40.0
SOCKET: Final = "daemon.sock"
KEYS_PER_SHARD: Final = 50
SLOW_SHARD_SECONDS: Final = 6.0
UPLINK_BYTES_PER_SECOND: Final = 20_000_000 // 8
RESHARD_RATE_FRACTION: Final = 4
RESHARDS: Final = 20
RESHARD_EVERY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """The rows that one session puts from one time to another, at most ``rows``; without a rate as fast as possible.

    The rows use ``keys`` in turn.  Without keys, each row has a key of its own.
    """

    rows: int = 10**9
    row_bytes: int = 1_000
    keys: tuple[bytes, ...] = ()
    rows_per_second: float = math.inf
    begins: float = 0.0
    ends: float = LONGEST_SECONDS
    is_other: bool = False  # its rows are for shards without a fault
    connects_late: bool = False  # it connects when it begins, not before all loads


@dataclass(frozen=True, slots=True)
class Stage:
    """The objects that a fault acts on."""

    kinesis: FakeKinesis
    stream: FakeStream
    server: FakeServer
    folder: Path
    """Return the path of the producer's socket."""

    def call(self, action: str, **request: str) -> None:
        """Call an action of the fake from outside, in order with all other calls."""
        request["StreamName"] = self.stream.name
        headers = {"X-Amz-Target": f"Kinesis_20131202.{action}"}
        asked = urllib.request.Request(self.server.url, json.dumps(request).encode(), headers)
        direct = urllib.request.ProxyHandler({})  # ignore a proxy in the environment for 127.0.0.1
        trusting = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.server.certificate))
        with urllib.request.build_opener(direct, trusting).open(asked, timeout=LONGEST_SECONDS):
            pass


def nothing(_stage: Stage) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    aggregation: str
    shards: int
    loads: tuple[Load, ...]
    begins: float
    """Begin and end of the fault in seconds.  For a reshard both are the same."""
    ends: float
    begin: Callable[[Stage], None] = nothing
    end: Callable[[Stage], None] = nothing
    begins_before_start: bool = False
    """Whether the fault exists before the producer starts.  Then ``begins`` is 0."""
    settings: Mapping[str, object] = field(default_factory=dict)
    latency_seconds: float = 0.02
    enforce_limits: bool = True
    quota_ratio: float = 1.0
    """Quota of the shards after the fault, divided by their quota before."""
    recovers: bool = True
    counts_others: bool = False
    counts_goodput: bool = False


def keys_for(shards: int, wanted: Iterable[int]) -> tuple[bytes, ...]:
    """Return keys for the wanted shards of a new stream (numbered from 0), equally many for each shard."""
    left = dict.fromkeys(wanted, KEYS_PER_SHARD)
    found: list[bytes] = []
    number = 0
    while any(left.values()):
        key = f"key-{number}"
        shard = hash_of(key, None) * shards // HASH_END
        if left.get(shard):
            left[shard] -= 1
            found.append(key.encode())
        number += 1
    return tuple(found)


def all_scenarios() -> list[Scenario]:
    return [
        *(split(aggregation) for aggregation in ("kpl", "none")),
        *(merge(aggregation) for aggregation in ("kpl", "none")),
        reshards(),
        *(hot_shard(aggregation) for aggregation in ("kpl", "none")),
        slow_shard(),
        *(partial_failures(aggregation) for aggregation in ("kpl", "none")),
        *(lost_replies(aggregation) for aggregation in ("kpl", "none")),
        slow_uplink(),
        outage(),
        throttled_start(),
        socket_deleted(),
        *(storm(aggregation) for aggregation in ("kpl", "none")),
    ]


# --- resharding, with a backlog ----------------------------------------------------------------------------------


def split(aggregation: str) -> Scenario:
    """Split the only shard in the middle, with a backlog."""

    def begin(stage: Stage) -> None:
        (parent,) = stage.stream.open_shards
        middle = (parent.start + parent.end + 1) // 2
        stage.call("SplitShard", ShardToSplit=parent.shard_id, NewStartingHashKey=str(middle))

    return _reshard("split", aggregation, 1, begin)


def merge(aggregation: str) -> Scenario:
    """Merge the two shards into one, with a backlog."""

    def begin(stage: Stage) -> None:
        low, high = stage.stream.open_shards
        stage.call("MergeShards", ShardToMerge=low.shard_id, AdjacentShardToMerge=high.shard_id)

    return replace(_reshard("merge", aggregation, 2, begin), quota_ratio=0.5)


def reshards() -> Scenario:
    """Split and merge shards faster than a client may list them, so that a child is closed when the list shows it."""

    def begin(stage: Stage) -> None:
        for turn in range(RESHARDS):
            shards = sorted(stage.stream.open_shards, key=lambda shard: shard.start)
            place = turn // 2 % (len(shards) - 1)
            if turn % 2:
                low, high = shards[place : place + 2]
                stage.call("MergeShards", ShardToMerge=low.shard_id, AdjacentShardToMerge=high.shard_id)
            else:
                middle = (shards[place].start + shards[place].end + 1) // 2
                stage.call("SplitShard", ShardToSplit=shards[place].shard_id, NewStartingHashKey=str(middle))
            time.sleep(RESHARD_EVERY_SECONDS)

    ends = 1.5 + RESHARDS * RESHARD_EVERY_SECONDS
    scenario = replace(_reshard("reshards", "kpl", 2, begin), ends=ends, recovers=False)
    return replace(scenario, loads=(Load(rows=15_000),) * 4)


def _reshard(name: str, aggregation: str, shards: int, begin: Callable[[Stage], None]) -> Scenario:
    """Put 30,000 rows of 1,000 bytes, each with a key of its own, from four sessions."""
    return Scenario(
        name,
        aggregation,
        shards,
        loads=(Load(rows=7_500),) * 4,
        begins=1.5,
        ends=1.5,
        begin=begin,
        settings={"shard_rate_fraction": RESHARD_RATE_FRACTION},
        latency_seconds=0.01,
        enforce_limits=False,
    )


# --- one shard among others --------------------------------------------------------------------------------------


def hot_shard(aggregation: str) -> Scenario:
    """Let five sessions offer one shard five times its quota, and seven other shards half of theirs."""
    shards, begins, ends, watched_until = 8, 3.0, 8.0, 10.0
    hot = Load(keys=keys_for(shards, [0]), rows_per_second=1_000, begins=begins, ends=ends)
    keys = keys_for(shards, range(1, shards))
    other = Load(keys=keys, rows_per_second=500 * (shards - 1) / 4, ends=watched_until, is_other=True)
    # The hot shard's backlog drains in 3 s.
    settings = {"queue_limit_bytes": "3 MiB"}
    loads = (*[hot] * 5, *[other] * 4)
    return Scenario("hot_shard", aggregation, shards, loads, begins, ends, settings=settings, counts_others=True)


def slow_shard() -> Scenario:
    """Delay the answers to all requests with a record for one shard by 6 s."""
    shards = 4

    def begin(stage: Stage) -> None:
        stage.stream.open_shards[0].delay_seconds = SLOW_SHARD_SECONDS

    def end(stage: Stage) -> None:
        stage.stream.open_shards[0].delay_seconds = 0.0

    steady = Load(row_bytes=500, rows_per_second=500, ends=13.0)
    loads = (
        replace(steady, keys=keys_for(shards, [0])),
        *[replace(steady, keys=keys_for(shards, range(1, shards)), is_other=True)] * 3,
    )
    return Scenario("slow_shard", "none", shards, loads, 3.0, 11.0, begin, end, counts_others=True)


# --- all shards --------------------------------------------------------------------------------------------------


def partial_failures(aggregation: str) -> Scenario:
    """Let one entry in ten fail with InternalFailure."""
    return _standing("partial_failures", aggregation, Fault("fail", fraction=0.1))


def lost_replies(aggregation: str) -> Scenario:
    """Store one request in ten and reset its connection without an answer."""
    return _standing("lost_replies", aggregation, Fault("lost", fraction=0.1))


def outage() -> Scenario:
    """Reset every connection for 20 s."""
    fault = Fault("reset", action="*")
    return _standing("outage", "none", fault, rows_per_second=150, begins=2.0, ends=22.0, watched_until=25.0)


def throttled_start() -> Scenario:
    """Throttle only ListShards, from before the daemon's start until 20 s after the first row.

    The load is less than the limit of one shard.
    """
    fault = Fault("error", status=400, action="ListShards")
    scenario = _standing(
        "throttled_start", "kpl", fault, rows_per_second=150, begins=0.0, ends=20.0, watched_until=25.0
    )
    loads = tuple([replace(load, is_other=True) for load in scenario.loads])  # no shard has a fault
    return replace(scenario, loads=loads, begins_before_start=True, recovers=False, counts_others=True)


def storm(aggregation: str) -> Scenario:
    """Throttle every entry for 25 s, while four shards have a load at their limit before and after."""

    def begin(stage: Stage) -> None:
        stage.kinesis.standing = [Fault("throttle")]

    busy = Load(row_bytes=500, keys=keys_for(4, range(4)), ends=36.0)
    # The backlog at the end of the load drains in 2 s.
    settings = {"queue_limit_bytes": "4 MiB"}
    return Scenario("storm", aggregation, 4, (busy,) * 4, 4.5, 29.5, begin, _end_standing, settings=settings)


def _standing(
    name: str,
    aggregation: str,
    fault: Fault,
    *,
    rows_per_second: float = 500,
    begins: float = 3.0,
    ends: float = 7.0,
    watched_until: float = 9.0,
) -> Scenario:
    """Let a fault last for a while, with at most half the quota of four shards as load."""

    def begin(stage: Stage) -> None:
        stage.kinesis.standing = [fault]

    steady = Load(row_bytes=500, keys=keys_for(4, range(4)), rows_per_second=rows_per_second, ends=watched_until)
    return Scenario(name, aggregation, 4, (steady,) * 4, begins, ends, begin, _end_standing)


def _end_standing(stage: Stage) -> None:
    stage.kinesis.standing = []


def socket_deleted() -> Scenario:
    """Delete the file of the daemon's socket; then half of the sessions end, and as many connect."""
    deleted, ends = 3.0, 9.0

    def begin(stage: Stage) -> None:
        (stage.folder / SOCKET).unlink()

    steady = Load(row_bytes=500, keys=keys_for(4, range(4)), rows_per_second=500, ends=ends)
    leaving = replace(steady, ends=deleted)
    coming = replace(steady, begins=deleted + 0.1, connects_late=True)
    loads = (*[steady] * 2, *[leaving] * 2, *[coming] * 2)
    return Scenario("socket_deleted", "none", 4, loads, deleted, deleted, begin)


def slow_uplink() -> Scenario:
    """Limit the uplink to 20 Mbit/s, a sixth of what Kinesis would accept."""

    def begin(stage: Stage) -> None:
        stage.server.uplink_bytes_per_second = UPLINK_BYTES_PER_SECOND

    busy = Load(keys=keys_for(16, range(16)), ends=10.0)
    # The backlog at the end of the load drains in 4 s.
    settings = {"queue_limit_bytes": "8 MiB"}
    return Scenario(
        "slow_uplink",
        "none",
        16,
        (busy,) * 4,
        begins=0.0,
        ends=10.0,
        begin=begin,
        settings=settings,
        recovers=False,
        counts_goodput=True,
    )
