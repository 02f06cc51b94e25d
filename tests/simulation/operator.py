"""The operator of a story, who reloads settings, pauses and flushes, and the other streams of the node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, Final

from producerd.core.rows.flushing import Flushing
from producerd.core.rows.frame import Frame
from producerd.core.rules import PipelineRules
from producerd.errors import Outcome
from tests.simulation.laws import LawBroken
from tests.simulation.rows import MIB

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

SECONDS: Final = 6.0
"""Time in which the operator begins to act."""
LONGEST_SECONDS: Final = 60.0
AT_WORK_SECONDS: Final = SECONDS + LONGEST_SECONDS


class Watched:
    """A flush, and the frames that it is about as they were when it began."""

    def __init__(self, sim: Simulation) -> None:
        self.frames = list(sim.pipeline.ledger.frames)
        self.before = [_ends_of(frame) for frame in self.frames]
        self.records = sum([frame.unsettled for frame in self.frames])
        self.done = 0
        self.flushing: Flushing = sim.pipeline.flush_all(self._is_done)

    def _is_done(self) -> None:
        self.done += 1

    def hold(self) -> None:
        """It is done, once, when the last row of the last frame has ended; and says at any time how each ended."""
        left = sum([frame.unsettled for frame in self.frames])
        if self.done != (left == 0):
            raise LawBroken("flush", f"the operator's: told {self.done} times, and {left} rows are open")
        ended = dict.fromkeys((*[outcome.name.lower() for outcome in Outcome], "discarded"), 0)
        for frame, before in zip(self.frames, self.before, strict=True):
            for how, records in _ends_of(frame).items():
                ended[how] += records - before[how]
        if self.flushing.counts() != {"records": self.records, **ended, "open": left}:
            raise LawBroken(
                "flush", f"the operator's: {ended} ended, {left} left, and it says {self.flushing.counts()}"
            )


def _ends_of(frame: Frame) -> dict[str, int]:
    dropped: int = getattr(frame, "dropped", 0)
    return {**{outcome.name.lower(): frame.tallies[outcome] for outcome in Outcome}, "discarded": dropped}


class Operator:
    """Does what one seed draws, with a generator of its own.  ``fixed``: settings that stay.  It calls ``reloaded``."""

    def __init__(
        self, sim: Simulation, seed: int, *, fixed: frozenset[str], reloaded: Callable[[PipelineRules], None]
    ) -> None:
        self.sim = sim
        self.random = Random(f"operator {seed}")
        self.met: set[str] = set()
        self._fixed = fixed
        self._reloaded = reloaded
        self._others = [object() for _ in range(3)]
        acts = [self._reload, self._reload, self._pause, self._flush]
        for _ in range(self.random.randint(1, 6)):
            sim.after(self.random.uniform(0, SECONDS), self.random.choice(acts))
        if self.random.random() < 0.5:
            limit = self.random.choice([40_000, 400_000, 4 * MIB])
            sim.pipeline.sender.in_flight.node.set_limits(limit, limit // 8)  # four streams
            for _ in range(8):
                sim.after(self.random.uniform(0, SECONDS), self._others_send)

    def _reload(self) -> None:
        sim, random = self.sim, self.random
        drawn = dict(self._settings())
        changed: dict[str, Any] = dict(random.sample(sorted(drawn.items()), random.randint(0, len(drawn))))
        rules = sim.pipeline.rules
        entries = {name: changed.pop(name) for name in list(changed) if hasattr(rules.entries, name)}
        limit_records, limit_bytes = sim.budget.limit_records, sim.budget.limit_bytes
        if not self._fixed & {"limit_records", "limit_bytes"}:
            limit_records = max(1, int(limit_records * random.choice([0.3, 1, 3])))
            limit_bytes = max(20_000, int(limit_bytes * random.choice([0.3, 1, 3])))
        rules = replace(rules, entries=replace(rules.entries, **entries), **changed)
        self._reloaded(rules)
        sim.reload(rules, limit_records, limit_bytes)
        self.met.add("reload")

    def _settings(self) -> Iterator[tuple[str, Any]]:
        random = self.random
        drawn = {
            "record_ttl_seconds": random.choice([inf, random.uniform(2.5, 5), random.uniform(5, 60)]),
            "fail_if_throttled": random.random() < 0.1,
            "aggregate_max_bytes": random.choice([300, 5_000, 51_200]),
            "aggregate_max_records": random.choice([2, 2**32 - 1]),
            "request_max_bytes": random.choice([4_096, 70_000, MIB]),
            "request_max_records": random.choice([5, 50, 500]),
            "max_in_flight_requests": random.choice([1, 4, 24]),
            "max_in_flight_bytes": random.choice([5_000, 32 * MIB]),
            "linger_seconds": random.choice([0.01, 0.1, 2.0]),
            "shard_rate_fraction": random.choice([0.3, 1.0, 3.0]),
            "request_timeout_seconds": random.choice([1.0, 6.0, 20.0]),
            "shard_map_wait_seconds": random.choice([5.0, 10.0, 20.0]),
        }
        yield from ((name, value) for name, value in drawn.items() if name not in self._fixed)

    def _pause(self) -> None:
        sim = self.sim
        sim.pipeline.pause()
        self.met.add("pause")
        sim.after(self.random.choice([0.5, 5.0, LONGEST_SECONDS]), sim.pipeline.resume)

    def _flush(self) -> None:
        self.sim.laws.flushes.append(Watched(self.sim))
        self.met.add("flush")

    def _others_send(self) -> None:
        """A stream of the same node has a request on its way for a while, or a row larger than its room."""
        node, other = self.sim.pipeline.sender.in_flight.node, self.random.choice(self._others)
        sent, single = self.sim.laws.others_bytes, self.sim.laws.others_single
        bytes_ = self.random.randint(0, max(0, node.room(other)))
        is_single = node.takes_larger and not sent[other] and self.random.random() < 0.3
        if is_single:
            bytes_ = node.limit_bytes
            single.append(bytes_)
            self.met.add("larger rows of others")

        def end() -> None:
            node.count_ended(other, bytes_)
            sent[other] -= bytes_
            if is_single:
                single.remove(bytes_)

        if bytes_ > 0:
            node.count_sent(other, bytes_)
            sent[other] += bytes_
            self.sim.after(self.random.choice([0.1, 5.0, LONGEST_SECONDS]), end)
            self.met.add("others")
