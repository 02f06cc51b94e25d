"""Filling: gathers accepted frames into batches, and makes sort jobs of batches.

    add -> [filling] -> seal -> [batches] -> begin -> [sort jobs] -> end

A batch waits until its rows may be sorted.  While rows go plain, frames that hold aggregates as rows wait apart,
because splitting such a row needs the list of the shards.
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
    """Frames to sort with `sort_rows`.  ``results`` holds them in order, each part with its sorted rows or None."""

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
        self._jobs: deque[SortJob] = deque()  # jobs that have begun and not ended, in order

    def __repr__(self) -> str:
        return (
            f"<Filling: {len(self._frames)} frames with {self._records} records; {len(self._batches)} batches, "
            f"{len(self._only_by_map)} that wait for the map, {len(self._jobs)} being sorted>"
        )

    # ---- questions

    @property
    def rows(self) -> int:
        """Number of its rows that have not ended."""
        batches = (self._frames, *self._batches, *self._only_by_map)
        return sum([frame.unsettled for batch in batches for frame in batch])

    @property
    def has_batch(self) -> bool:
        """Whether a batch waits that may be sorted as soon as a list of the shards, or a substitute, is there."""
        return bool(self._batches)

    @property
    def has_only_by_map(self) -> bool:
        """Whether a batch waits for the list of the shards while other batches may go plain."""
        return bool(self._only_by_map)

    @property
    def lingers(self) -> bool:
        """Whether a batch is filling."""
        return bool(self._frames)

    def linger_ends_at(self, linger_seconds: float) -> float:
        """Return when the filling batch stops lingering, or ``inf`` if there is none."""
        return self._since + linger_seconds if self._frames else inf

    # ---- frames

    def add_frame(self, frame: Frame, now: float, largest_bytes: int) -> None:
        """Add an accepted frame.  Seal the batch if one more such frame would make it too large.

        The bounds are a quarter of the queue's limits, and ``largest_bytes`` or a MiB.  The last frame of a batch may
        pass them if it is larger than the frames before it.
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
        """Close the filling batch, so that it takes no more frames.  Return whether there was one."""
        if not self._frames:
            return False
        self._batches.append(self._frames)
        self._frames, self._records, self._bytes = [], 0, 0
        self._stats.flushed(trigger)
        return True

    def seal_of(self, owners: Container[object], trigger: str) -> bool:
        """Seal the filling batch if it has a frame of one of these owners.  Return whether it did."""
        return any(frame.owner in owners for frame in self._frames) and self.seal(trigger)

    def hasten(self) -> None:
        """Let nothing linger from now on."""
        self._hastens = True
        self.seal("drain")

    def drop_ended(self) -> None:
        """Drop all batches whose rows have all ended, because a batch that waits for a map would keep their memory."""
        for line in (self._batches, self._only_by_map):
            living = [frames for frames in line if _living(frames)]
            line.clear()
            line.extend(living)

    def skip_ended(self) -> None:
        """Drop the batches at the front whose rows have all ended."""
        for line in (self._batches, self._only_by_map):
            while line and not _living(line[0]):
                line.popleft()

    # ---- sort jobs

    def map_came(self) -> None:
        """Let the batches that waited for the list of the shards go first, because it has come."""
        self._batches.extendleft(reversed(self._only_by_map))
        self._only_by_map.clear()

    def next_batch(self, *, plain: bool) -> list[Frame]:
        """Take the next batch with rows that have not ended.  Return no frames if there is none.

        With ``plain``, frames that hold aggregates as rows stay behind and wait for the list of the shards.
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

    def begin_sorting(self, frames: list[Frame], shard_map: ShardMap, seed: int) -> SortJob:
        """Make a sort job of a batch that `next_batch` returned."""
        job = SortJob(frames, shard_map, seed)
        self._jobs.append(job)
        return job

    def sorting_ended(
        self, job: SortJob, results: Sequence[tuple[Sequence[Frame], SortedRows | None]]
    ) -> Iterator[SortJob]:
        """Note that a job is sorted.  Yield the jobs that end with it, in the order in which they began."""
        job.results = results
        while self._jobs and self._jobs[0].results is not None:
            yield self._jobs.popleft()


def _living(frames: list[Frame]) -> list[Frame]:
    """Return the frames that have rows left."""
    return [frame for frame in frames if frame.withdrawn_from != 0]
