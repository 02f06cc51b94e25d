"""Reads the shards when the pipeline says, as `producerd.runtime.shard_watch` does, without tasks."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import orjson

from producerd.core.sending.answers import loads
from producerd.core.shards.shard_map import map_from_listing
from producerd.errors import Code
from tests.simulation.setting import ADDRESS

if TYPE_CHECKING:
    from tests.simulation.world import Simulation


def error_of(body: bytes) -> tuple[str, str]:
    """Code and message of an answer that is an error."""
    error = loads(body) if body else {"__type": "InternalFailure", "message": ""}
    return error["__type"], error["message"]


class ShardWatch:
    """One stream's."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self._reading = False
        self._looks_at = inf

    def look(self) -> None:
        """The pipeline may want a map, rows may await one, or it is time."""
        sim = self.sim
        if self._reading:
            return
        due = sim.pipeline.next_reading()
        if due > sim.now:
            self._look_at(due)
        elif sim.pipeline.wants_shard_map or not sim.pipeline.forget_shards(sim.now):
            self._read()

    def _look_at(self, due: float) -> None:
        """Plan one look, though several ask for one."""
        if due < self._looks_at:
            self._looks_at = due
            self.sim.after(due - self.sim.now, lambda: self._looked_at(due))

    def _looked_at(self, due: float) -> None:
        if due == self._looks_at:
            self._looks_at = inf
            self.look()

    def _read(self) -> None:
        sim, asked_at = self.sim, self.sim.now
        self._reading = True
        sim.pipeline.reading_began(asked_at)
        body = orjson.dumps({**ADDRESS, "ShardFilter": {"Type": "AT_LATEST"}})
        reply = sim.kinesis.handle("ListShards", body, asked_at)
        seconds = max(reply.delay_seconds, 0.01)
        if reply.how == "answer" and seconds < 6.0:
            sim.after(seconds, lambda: self._answered(reply.status, reply.body, asked_at))
        else:
            sim.after(min(seconds, 6.0), lambda: self._failed(Code.UNREACHABLE, reply.how))

    def _answered(self, status: int, body: bytes, asked_at: float) -> None:
        if status != 200:
            self._failed(*error_of(body))
            return
        self._reading = False
        shard_map = map_from_listing([orjson.loads(body)])
        self.sim.pipeline.set_shard_map(shard_map, self.sim.now, asked_at)
        self.sim.laws.map_is_learnt(shard_map)
        self.look()

    def _failed(self, code: str, message: str) -> None:
        pipeline, now = self.sim.pipeline, self.sim.now
        self._reading = False
        pipeline.shard_map_failed(code, message, now)
        self.look()
