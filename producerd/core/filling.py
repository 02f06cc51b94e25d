"""Filling: accepted frames gathered into batches, and batches made into sort jobs.

    add -> [filling] -> seal -> [batches] -> begin -> [sort jobs] -> end

A batch waits until its rows may be sorted.  Batches that hold aggregates as rows wait apart while the others go plain,
because such a row is split by the list of the shards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from math import inf
from typing import Final

from producerd.core.budget import QueueBudget
from producerd.core.rows.frame import Frame
from producerd.core.rows.sorting import SortedRows
from producerd.core.shards.shard_map import ShardMap
from producerd.core.stats import StreamStats

MIB: Final = 1024 * 1024


class SortJob:
    """Work for `sort_rows`.  ``results``: its frames in order, each part with its rows, or None."""

    __slots__ = ("frames", "results", "seed", "shard_map")

    def __init__(self, frames: list[Frame], shard_map: ShardMap, seed: int) -> None:
        self.frames = frames
        self.shard_map = shard_map
        self.seed = seed
        self.results: Sequence[tuple[Sequence[Frame], SortedRows | None]] | None = None


class Filling:
    """The batches of one stream, from an accepted frame to its sort job."""

    def __init__(self, budget: QueueBudget, stats: StreamStats) -> None:
        self._budget = budget
        self._stats = stats
        self._hastens = False
        self._frames: list[Frame] = []
        self._records = 0
        self._bytes = 0
        self._since = 0.0
        self._batches: deque[list[Frame]] = deque()
        self._only_by_map: deque[list[Frame]] = deque()
        self._jobs: deque[SortJob] = deque()  # begun and not ended, in order

    def __repr__(self) -> str:
        return (
            f"<Filling: {len(self._frames)} frames with {self._records} records; {len(self._batches)} batches, "
            f"{len(self._only_by_map)} that wait for the map, {len(self._jobs)} being sorted>"
        )

    # ---- questions

    @property
    def rows(self) -> int:
        """Rows in it that have not ended."""
        batches = (self._frames, *self._batches, *self._only_by_map)
        return sum([frame.unsettled for batch in batches for frame in batch])

    @property
    def has_batch(self) -> bool:
        """Whether a batch may be sorted as soon as there is something to sort it by."""
        return bool(self._batches)

    @property
    def has_only_by_map(self) -> bool:
        """Whether a batch waits for the list of the shards, while others may go plain."""
        return bool(self._only_by_map)

    def linger_ends_at(self, linger_seconds: float) -> float:
        """When the filling batch has lingered; ``inf`` where there is none."""
        return self._since + linger_seconds if self._frames else inf

    # ---- frames

    def add(self, frame: Frame, now: float, largest_bytes: int) -> None:
        """Add an accepted frame.  The batch is sealed where one more such frame would make it too large.

        A batch has at most a quarter of the queue's limits, and at most ``largest_bytes`` or a MiB, or is one frame.
        """
        if not self._frames:
            self._since = now
        self._frames.append(frame)
        self._records += frame.records
        self._bytes += frame.charge_bytes
        if (
            self._bytes + frame.charge_bytes > min(self._budget.limit_bytes // 4, max(MIB, largest_bytes))
            or self._records >= self._budget.limit_records // 4
        ):
            self.seal("size")
        elif self._hastens:
            self.seal("drain")

    def seal(self, trigger: str) -> bool:
        """Add no more to the filling batch.  Returns whether there was one."""
        if not self._frames:
            return False
        self._batches.append(self._frames)
        self._frames, self._records, self._bytes = [], 0, 0
        self._stats.flushed(trigger)
        return True

    def seal_of(self, owners: Container[object], trigger: str) -> bool:
        """Seal the filling batch where it has a frame of one of these.  Returns whether it has."""
        return any(frame.owner in owners for frame in self._frames) and self.seal(trigger)

    def hasten(self) -> None:
        """From now on nothing lingers."""
        self._hastens = True
        self.seal("drain")

    def drop_ended(self) -> None:
        """Hold no batch whose rows have all ended: what waits for a map would keep its memory."""
        for line in (self._batches, self._only_by_map):
            living = [frames for frames in line if _living(frames)]
            line.clear()
            line.extend(living)

    def skip_ended(self) -> None:
        """The same, for the batches that are next."""
        for line in (self._batches, self._only_by_map):
            while line and not _living(line[0]):
                line.popleft()

    # ---- sort jobs

    def map_came(self) -> None:
        """The list of the shards has come: what waited for it goes first."""
        self._batches.extendleft(reversed(self._only_by_map))
        self._only_by_map.clear()

    def next_batch(self, *, plain: bool) -> list[Frame]:
        """Take the next batch of which not all rows have ended; empty where there is none.

        ``plain``: frames that hold aggregates as rows are left out, and wait for the list of the shards.
        """
        while self._batches:
            frames = _living(self._batches.popleft())
            if plain:
                waiting = [frame for frame in frames if frame.rows is not None and frame.rows.aggregates is not None]
                if waiting:
                    self._only_by_map.append(waiting)
                    frames = [frame for frame in frames if frame not in waiting]
            if frames:
                return frames
        return []

    def begin(self, frames: list[Frame], shard_map: ShardMap, seed: int) -> SortJob:
        """A batch that was taken is to be sorted."""
        job = SortJob(frames, shard_map, seed)
        self._jobs.append(job)
        return job

    def end(self, job: SortJob, results: Sequence[tuple[Sequence[Frame], SortedRows | None]]) -> Iterator[SortJob]:
        """A job is sorted.  Yields the jobs that are at an end with it, in the order in which they began."""
        job.results = results
        while self._jobs and self._jobs[0].results is not None:
            yield self._jobs.popleft()


def _living(frames: list[Frame]) -> list[Frame]:
    """Those of which not every row has ended."""
    return [frame for frame in frames if frame.withdrawn_from != 0]
