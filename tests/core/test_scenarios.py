"""What one bad shard, a slow uplink or an outage costs, measured in virtual time.

Callers, gate, pipeline and the fake Kinesis are real; time is not, so each figure is the same on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from random import Random
from typing import Any, Final

import numpy as np

from producerd.core.entries import Answer, RequestFailed
from producerd.core.frame import Frame
from producerd.core.requests import Request
from producerd.testing import hash_of
from producerd.wire.columns import Columns, lay_out
from tests.simulation import Laws, Sent, Session, Simulation, WatchedFrame

MIB: Final = 1 << 20
SHARDS: Final = 16


class FewLaws(Laws):
    """The laws are other tests' matter: here they are looked at now and then, and nobody reads the stream."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._steps = 0

    def hold(self) -> None:
        self._steps += 1
        if self._steps % 1_000 == 0:
            super().hold()

    def acknowledgement_is_true(self, sent: Sent) -> None:
        pass

    def settled_frames_are_told(self) -> None:
        pass


@cache
def keys_of(shards: int) -> list[list[bytes]]:
    """For each of so many equal shards some keys that it owns."""
    found: list[list[bytes]] = [[] for _ in range(shards)]
    number = 0
    while min(map(len, found)) < 50:
        key = b"key %d" % number
        place = hash_of(key.decode(), None) * shards >> 128
        if len(found[place]) < 50:
            found[place].append(key)
        number += 1
    return found


@cache
def frame_for(records: int, record_bytes: int, shares: tuple[tuple[int, int], ...]) -> Columns:
    """Rows of so many bytes (key + data); ``shares``: (shard, weight): of so many rows that many go there."""
    random = Random(records)
    round_of = [shard for shard, weight in shares for _ in range(weight)]
    places = [round_of[i % len(round_of)] for i in range(records)]
    random.shuffle(places)
    keys = [random.choice(keys_of(SHARDS)[place]) for place in places]
    return lay_out(keys, [b"x" * (record_bytes - len(key)) for key in keys])


class World(Simulation):
    """A stream of 16 shards with their quotas, whose answers take 20 ms."""

    def __init__(self, *, shards: int = SHARDS, limits: bool = True, **options: Any) -> None:
        super().__init__(1, shards=shards, workers=2, **options)
        self.laws = FewLaws(self)
        self.kinesis.latency_seconds = (0.015, 0.025)
        self.kinesis.enforce_limits = limits
        self.stream.keeps_entries = False
        self.rows_of: Counter[str] = Counter()  # that were stored, by shard
        self.run(0.1)  # the shards are known

    def _complete(self, request: Request, outcome: Answer | RequestFailed) -> None:
        if isinstance(outcome, Answer) and request.encoded is not None:
            rows = np.diff(request.encoded.ends, prepend=0)
            for place, shard_id in enumerate(outcome.shard_table):
                self.rows_of[shard_id] += int(rows[outcome.shards == place].sum())
        super()._complete(request, outcome)

    def caller(self, frame: Columns) -> Caller:
        caller = Caller(self, frame)
        self.sessions.append(caller)
        return caller

    def callers(self, count: int, frame: Columns) -> list[Caller]:
        return [self.caller(frame) for _ in range(count)]


class Caller(Session):
    """Sends one frame over and over.  `steady`: the next one as soon as the last one was taken on."""

    def __init__(self, sim: World, frame: Columns) -> None:
        super().__init__(sim)
        self.frame = frame
        self.stored = 0  # rows
        self.latencies: list[float] = []  # of frames, from taken on until acknowledged
        self._began: dict[Frame, float] = {}
        self._next: Callable[[], None] = lambda: None
        self.stopped = False

    def put(self) -> None:
        """Ask for room for a frame."""
        frame_id = next(self._ids)
        sent = self.sent[frame_id] = Sent(self, frame_id, [])
        sent.columns = self.frame
        sent.ticket = self.sim.gate.ask(self.member, frame_id, self.frame.layout, self.sim.now)

    def steady(self) -> None:
        """As a task of a batch that never ends."""
        self._next = self.put
        self.put()

    def paced(self, frames_per_second: float) -> None:
        """At even distances, unless it is blocked."""

        def put() -> None:
            if not self.stopped:
                self.sim.after(1 / frames_per_second, put)
                if not self.waiting:
                    self.put()

        self.sim.after(self.sim.random.uniform(0, 1 / frames_per_second), put)

    def bursts(self, frames: int, pause_seconds: float) -> None:
        """As micro-batches do: so many frames, a flush, and a pause."""
        left = frames

        def go_on() -> None:
            nonlocal left
            left -= 1
            if left:
                self.put()
            else:
                self.flush()

        def begin() -> None:
            nonlocal left
            left = frames
            self.put()

        self._next = go_on
        self._idle = lambda: self.sim.after(pause_seconds, begin)
        self.put()

    _idle: Callable[[], None] = staticmethod(lambda: None)

    def stop(self) -> None:
        self.stopped = True
        self._next = self._idle = lambda: None

    def may_receive(self, charge_bytes: int) -> bool:
        return len(self.unacked) < 64 and super().may_receive(charge_bytes)

    def _body_arrives(self, ticket: Any) -> None:
        super()._body_arrives(ticket)
        frame = self.sent[ticket.frame_id].frame
        if frame is not None:
            self._began[frame] = self.sim.now
            self._next()

    def finished(self, frame: Frame) -> None:
        super().finished(frame)
        assert isinstance(frame, WatchedFrame)
        del self.sent[frame.frame_id]
        self.latencies.append(self.sim.now - self._began.pop(frame))
        self.stored += frame.result().stored
        if not self.unacked and not self.waiting:
            self._idle()


def rate(world: World, callers: Iterable[Caller], seconds: float) -> float:
    """Their stored rows a second, from now on for so long."""
    callers = list(callers)
    before = sum(caller.stored for caller in callers)
    world.run(seconds)
    return (sum(caller.stored for caller in callers) - before) / seconds


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[int(len(values) * part)]
