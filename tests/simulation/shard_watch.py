"""Reads the shards when the pipeline wants a map, as `producerd.runtime.shard_watch` does, but for its tasks."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

import orjson

from producerd.core.shards import map_from_listing
from producerd.errors import Code
from tests.simulation.setting import ADDRESS

if TYPE_CHECKING:
    from tests.simulation.world import Simulation


def error_of(body: bytes) -> tuple[str, str]:
    """Code and message of an answer that is an error."""
    error = orjson.loads(body) if body else {"__type": "InternalFailure", "message": ""}
    return error["__type"], error["message"]


class ShardWatch:
    """Reads the shards when the pipeline wants a map, as `producerd.runtime.shard_watch` does, but for its tasks."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self._began: deque[float] = deque([-inf] * 6, maxlen=6)  # readings in the last minute
        self._reading = False
        self._failures = 0
        self._not_before = 0.0
        self._looks_at = -inf

    def look(self) -> None:
        """The pipeline may want a map."""
        now = self.sim.now
        if self._reading or not self.sim.pipeline.wants_shard_map:
            return
        due = max(self._not_before, self._began[0] + 60.0)
        if due <= now:
            self._read()
        elif self._looks_at < now:
            self._looks_at = due
            self.sim.after(due - now, self.look)

    def _read(self) -> None:
        sim = self.sim
        self._reading = True
        self._began.append(sim.now)
        reply = sim.kinesis.handle(
            "ListShards", orjson.dumps({**ADDRESS, "ShardFilter": {"Type": "AT_LATEST"}}), sim.now
        )
        seconds = max(reply.delay_seconds, 0.01)
        if reply.how == "answer" and seconds < 6.0:
            sim.after(seconds, lambda: self._answered(reply.status, reply.body))
        else:
            sim.after(min(seconds, 6.0), lambda: self._failed(Code.UNREACHABLE, reply.how))

    def _answered(self, status: int, body: bytes) -> None:
        if status != 200:
            self._failed(*error_of(body))
            return
        self._reading, self._failures = False, 0
        shard_map = map_from_listing([orjson.loads(body)])
        self.sim.pipeline.set_shard_map(shard_map, self.sim.now, self._began[-1])
        self.sim.laws.map_is_learnt(shard_map)
        self._not_before = self.sim.now + 10.0 * self.sim.random.uniform(0.75, 1.25)
        self._again_in(60.0 * self.sim.random.uniform(0.75, 1.25))

    def _failed(self, code: str, message: str) -> None:
        self._reading = False
        self._failures += 1
        self.sim.pipeline.shard_map_failed(code, message, self.sim.now)
        ceiling = min(30.0, 0.5 * 2.0 ** min(self._failures, 16))
        self._not_before = self.sim.now + self.sim.random.uniform(ceiling / 2, ceiling)
        self._again_in(60.0 * self.sim.random.uniform(0.75, 1.25))

    def _again_in(self, seconds: float) -> None:
        """Unasked, if nobody asks before."""
        readings = self._began[-1]

        def read() -> None:
            if self._began[-1] == readings and not self._reading and not self.sim.pipeline.forget_shards(self.sim.now):
                self._read()

        self.sim.after(seconds, read)
