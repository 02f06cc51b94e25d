"""A stream of 16 shards with their quotas in virtual time, its callers and its uplink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from producerd.core.encoding.entries import EncodedRequest
from producerd.core.rows.frame import Frame
from producerd.core.sending.answers import Answer, RequestFailed
from producerd.core.sending.requests import Request
from producerd.wire.columns import Columns
from tests.simulation.callers import Sent, Session, WatchedFrame
from tests.simulation.laws import Laws
from tests.simulation.setting import make_rules
from tests.simulation.world import Simulation

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


class Uplink:
    """An uplink of ``bytes_per_second``, which all requests on their way share evenly.

    The bytes of a request that is given up on are lost.
    """

    def __init__(self, sim: Simulation, bytes_per_second: float) -> None:
        self.sim = sim
        self.bytes_per_second = bytes_per_second
        self._left: dict[Request, float] = {}
        self._arrive: dict[Request, Callable[[], None]] = {}
        self._looked_at = sim.now
        self._looks = 0

    def set_speed(self, bytes_per_second: float) -> None:
        self._go_on()
        self.bytes_per_second = bytes_per_second
        self._look_again()

    def send(self, request: Request, bytes_: int, arrive: Callable[[], None]) -> None:
        self._go_on()
        self._left[request], self._arrive[request] = bytes_, arrive
        self._look_again()

    def give_up(self, request: Request) -> None:
        if request in self._left:
            self._go_on()
            del self._left[request], self._arrive[request]
            self._look_again()

    def _go_on(self) -> None:
        sent = (self.sim.now - self._looked_at) * self.bytes_per_second / max(1, len(self._left))
        self._left = {request: left - sent for request, left in self._left.items()}
        self._looked_at = self.sim.now

    def _look_again(self) -> None:
        self._looks += 1
        if self._left:
            seconds = max(0.0, min(self._left.values())) * len(self._left) / self.bytes_per_second
            self.sim.after(seconds, partial(self._look, self._looks))

    def _look(self, looks: int) -> None:
        if looks != self._looks:
            return  # something came or went meanwhile
        self._go_on()
        whole = [request for request, left in self._left.items() if left < 1.0]
        arrived = [self._arrive.pop(request) for request in whole]
        for request in whole:
            del self._left[request]
        self._look_again()
        for arrive in arrived:
            arrive()


class World(Simulation):
    """A stream of 16 shards with their quotas, whose answers take 20 ms."""

    def __init__(self, *, shards: int = SHARDS, until_known: bool = True, **options: Any) -> None:
        names = ("aggregate", "per_key", "fail_if_throttled", "shard_rate_fraction")
        rules = make_rules(**{name: options.pop(name) for name in names if name in options})
        super().__init__(1, shards=shards, workers=2, rules=rules, **options)
        self.laws = FewLaws(self)
        self.kinesis.latency_seconds = (0.015, 0.025)
        self.kinesis.enforce_limits = True
        self.stream.keeps_entries = False
        self.rows_of: Counter[str] = Counter()  # that were stored, by shard
        self.uplink: Uplink | None = None
        if until_known:
            self.run(0.1)

    def arrive(self, request: Request, encoded: EncodedRequest, *rest: Any) -> None:
        arrive = super().arrive
        if self.uplink is None:
            arrive(request, encoded, *rest)
        else:
            self.uplink.send(request, len(encoded.body), lambda: arrive(request, encoded, *rest))

    def complete(self, request: Request, outcome: Answer | RequestFailed) -> None:
        if self.uplink is not None:
            self.uplink.give_up(request)
        if isinstance(outcome, Answer) and request.encoded is not None:
            rows = np.diff(request.encoded.ends, prepend=0)
            for place, shard_id in enumerate(outcome.shard_table):
                self.rows_of[shard_id] += int(rows[outcome.shards == place].sum())
        super().complete(request, outcome)

    def caller(self, frame: Columns) -> Caller:
        caller = Caller(self, frame)
        self.sessions.append(caller)
        return caller

    def callers(self, count: int, frame: Columns) -> list[Caller]:
        return [self.caller(frame) for _ in range(count)]

    def rates(self, seconds: float) -> tuple[float, float]:
        """Rows stored a second from now on, in the first shard and in the others together."""
        before = Counter(self.rows_of)
        self.run(seconds)
        first = self.stream.shards[0].shard_id
        rows = self.rows_of - before
        return rows[first] / seconds, (rows.total() - rows[first]) / seconds


class Caller(Session):
    """Sends one frame over and over.  `steady`: the next one as soon as the last one was taken on."""

    def __init__(self, sim: World, frame: Columns) -> None:
        super().__init__(sim)
        self.frame = frame
        self.stored = 0  # rows
        self.latencies: list[float] = []  # of frames, from taken on until acknowledged
        self._began: dict[Frame, float] = {}
        self.bursts_ended: list[float] = []
        self.stopped = False
        self._next: Callable[[], None] = lambda: None  # when a frame was taken on
        self._idle: Callable[[], None] = lambda: None  # when all of them are acknowledged

    def put(self) -> None:
        """Ask for room for a frame."""
        frame_id = next(self._ids)
        sent = self.sent[frame_id] = Sent(self, frame_id, [])
        sent.columns = self.frame
        sent.ticket = self.sim.gate.ask(self.member, frame_id, self.frame.layout, self.sim.now)

    def steady(self) -> None:
        """Send frame after frame, as a task of a batch that never ends."""
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
        """Send as micro-batches do: this many frames, a flush, and a pause."""
        left = frames

        def go_on() -> None:
            nonlocal left
            left -= 1
            if left:
                self.put()
            else:
                self.flush()

        def idle() -> None:
            nonlocal left
            left = frames
            self.bursts_ended.append(self.sim.now)
            self.sim.after(pause_seconds, self.put)

        self._next, self._idle = go_on, idle
        self.put()

    def burst_seconds(self) -> float:
        """Return the average time between the ends of two bursts."""
        return (self.bursts_ended[-1] - self.bursts_ended[0]) / (len(self.bursts_ended) - 1)

    def stop(self) -> None:
        self.stopped = True
        self._next = self._idle = lambda: None

    def may_receive(self, charge_bytes: int) -> bool:
        return len(self.unacked) < 64 and super().may_receive(charge_bytes)

    def body_arrives(self, ticket: Any) -> None:
        super().body_arrives(ticket)
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
