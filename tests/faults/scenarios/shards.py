"""Shards split and merge, lists of shards lag and fail, and streams are made again with the same shard ids."""

from __future__ import annotations

import random
from typing import Final

from tests.faults.scenarios import scenario
from tests.faults.service import Service
from tests.faults.stage import STREAMS, Stage

LAG_SECONDS: Final = 3.0
MOST_SHARDS: Final = 8
STEP_SECONDS: Final = 0.3
MAP_WAIT_SECONDS: Final = 2
WHOLE: Final = 2**128


class Owner:
    """Splits and merges the shards of one stream, and knows them without asking: nobody could believe ListShards here.

    A new shard has the next free number, as with Kinesis.
    """

    def __init__(self, service: Service, stream: str) -> None:
        self._kinesis = service.client
        self._stream = stream
        shards = service.open_shards(stream)
        self._starts = {int(shard["HashKeyRange"]["StartingHashKey"]): str(shard["ShardId"]) for shard in shards}
        self._made = 1 + max(int(shard["ShardId"].rpartition("-")[2]) for shard in shards)

    def step(self, chance: random.Random) -> None:
        """Split a shard or merge two, as chance has it; there stay 2 to `MOST_SHARDS`."""
        if len(self._starts) < MOST_SHARDS and (len(self._starts) == 2 or chance.random() < 0.5):
            self._split(chance)
        else:
            self._merge(chance)

    def _split(self, chance: random.Random) -> None:
        start = chance.choice(sorted(self._starts))
        end = min((other for other in self._starts if other > start), default=WHOLE)
        middle = (start + end) // 2
        self._kinesis.split_shard(
            StreamName=self._stream, ShardToSplit=self._starts[start], NewStartingHashKey=str(middle)
        )
        self._starts |= {start: self._new(), middle: self._new()}

    def _merge(self, chance: random.Random) -> None:
        starts = sorted(self._starts)
        place = chance.randrange(len(starts) - 1)
        low, high = starts[place : place + 2]
        self._kinesis.merge_shards(
            StreamName=self._stream, ShardToMerge=self._starts[low], AdjacentShardToMerge=self._starts.pop(high)
        )
        self._starts[low] = self._new()

    def _new(self) -> str:
        self._made += 1
        return f"shardId-{self._made - 1:012d}"


def owners(stage: Stage) -> list[Owner]:
    return [Owner(stage.service, stream) for stream in STREAMS]


def reshard(stage: Stage, owners: list[Owner], full: int, short: int) -> None:
    """Split or merge in each stream, this many times, densely."""
    for _ in stage.times(full, short):
        for owner in owners:
            owner.step(stage.chance)
        stage.wait(STEP_SECONDS)


def lag(stage: Stage, seconds: float) -> None:
    stage.service.control("settings", streams={name: {"list_shards_lag_seconds": seconds} for name in STREAMS})


@scenario(f"300 splits and merges in 30 s, and a ListShards that lags by {LAG_SECONDS:g} s")
def lagging_shards(stage: Stage) -> None:
    resharding = owners(stage)
    with stage.spares_callers():
        lag(stage, LAG_SECONDS)
        reshard(stage, resharding, 100, 6)
        lag(stage, 0)


@scenario(
    "300 splits and merges in 30 s, in which ListShards is throttled, wholly for 20 s and once in two calls then",
    tuning={"shard_map_wait_seconds": MAP_WAIT_SECONDS},
)
def throttled_shards(stage: Stage) -> None:
    resharding = owners(stage)
    throttle = {"kind": "error", "status": 400, "code": "LimitExceededException", "action": "ListShards"}
    with stage.spares_callers():
        stage.service.fails(throttle)
        reshard(stage, resharding, 66, 4)
        stage.service.fails(throttle | {"fraction": 0.5})
        reshard(stage, resharding, 34, 2)


@scenario(
    "all streams deleted and made again with other ranges, twice: 25 s later, and at once with the first numbers",
    tuning={"shard_map_wait_seconds": MAP_WAIT_SECONDS},
)
def recreated_streams(stage: Stage) -> None:
    with stage.spares_callers():
        for shards in (5, 3)[: 1 if stage.short else 2]:
            if not stage.short:
                for stream in STREAMS:
                    stage.service.client.delete_stream(StreamName=stream)
                stage.forgive()
                stage.wait(25)
                make(stage, shards)
                stage.wait(10)
            make(stage, 3 if stage.short else shards - 1, restart_sequences=True)
            stage.forgive()
            stage.wait(10, 1)


def make(stage: Stage, shards: int, **options: bool) -> None:
    """Make all streams in the place of what has their names."""
    for stream in STREAMS:
        stage.service.control("streams", name=stream, shards=shards, **options)
