"""QueueBudget: how much of a stream's memory is taken on and not settled, in records and in charged bytes.

Nothing is admitted that would pass a limit, be it the stream's or, in bytes, that of the whole node: room of both is
taken together or not at all.  Records come free row by row; bytes when the buffer that holds them is let go.  After a
limit was lowered, use only falls until it is below the new one.

`NodeInFlight` counts likewise what all streams of the node have on their way.
"""

from __future__ import annotations

from typing import Final

NO_LIMIT: Final = 2**62


class NodeBudget:
    """What all streams of a node hold together, in charged bytes.

    Each stream that has callers owns a floor: others leave free what it has not taken of that.  A stream that holds
    nothing may take one frame of any size, and others leave free what such a frame waits for.
    """

    def __init__(self, limit_bytes: int, floor_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.floor_bytes = floor_bytes
        self.used_bytes = 0
        self.has_freed = False  # since `take_freed`
        self.wanted_by: dict[QueueBudget, int] = {}  # streams with a frame that waits for room here, and its charge
        self._streams: dict[QueueBudget, None] = {}

    def join(self, stream: QueueBudget) -> None:
        """A stream has its first caller."""
        self._streams[stream] = None

    def leave(self, stream: QueueBudget) -> None:
        """Its last caller is gone; what it holds still counts."""
        self._streams.pop(stream, None)
        self.has_freed = True

    def want(self, stream: QueueBudget, charge_bytes: int) -> None:
        """The frame of the stream that waits for room here; 0: none does."""
        if charge_bytes:
            self.wanted_by[stream] = charge_bytes
        else:
            self.wanted_by.pop(stream, None)

    def take_freed(self) -> bool:
        """Whether room has come free since this was asked last."""
        freed, self.has_freed = self.has_freed, False
        return freed

    def fits(self, stream: QueueBudget, charge_bytes: int) -> bool:
        """Whether the stream may take this much more, as far as the node goes."""
        left = self.limit_bytes - self.used_bytes - charge_bytes
        if left < 0:
            return False
        if not stream.used_bytes or stream.used_bytes + charge_bytes <= self.floor_bytes:
            return True
        return left >= sum([self._claim_of(other) for other in self._streams if other is not stream])

    def set_limits(self, limit_bytes: int, floor_bytes: int) -> None:
        """New limits; the streams' gates are to be asked anew.  What is over them stays until it settles."""
        self.limit_bytes = limit_bytes
        self.floor_bytes = floor_bytes
        self.has_freed = True

    def _claim_of(self, stream: QueueBudget) -> int:
        wanted = 0 if stream.used_bytes else self.wanted_by.get(stream, 0)
        return max(0, max(self.floor_bytes, wanted) - stream.used_bytes)


class QueueBudget:
    """Counts what is taken on against two hard limits, and the node's.

    `take` and `release` are the only ways to change it, and each asserts that the sums stay possible.
    """

    def __init__(self, limit_records: int, limit_bytes: int, node: NodeBudget | None = None) -> None:
        self.limit_records = limit_records
        self.limit_bytes = limit_bytes
        self.node = NodeBudget(NO_LIMIT, 0) if node is None else node
        self.used_records = 0
        self.used_bytes = 0
        self.peak_records = 0
        self.peak_bytes = 0

    def fits(self, records: int, charge_bytes: int, *, keep_free_share: float = 0.0) -> bool:
        """Whether the stream has room for this much now, leaving ``keep_free_share`` of each of its limits free."""
        kept = 1.0 - keep_free_share
        return (
            self.used_records + records <= self.limit_records * kept
            and self.used_bytes + charge_bytes <= self.limit_bytes * kept
        )

    def take(self, records: int, charge_bytes: int) -> None:
        """Take on a frame.  The caller has asked `fits`, and the node's, in the same step."""
        if not self.fits(records, charge_bytes):
            raise AssertionError("admitted past the limit")
        if not self.node.fits(self, charge_bytes):
            raise AssertionError("admitted past the node's limit")
        self.used_records += records
        self.used_bytes += charge_bytes
        self.peak_records = max(self.peak_records, self.used_records)
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self.node.used_bytes += charge_bytes

    def release(self, records: int, charge_bytes: int) -> None:
        """Give back what was taken: rows that settled, buffers that were let go."""
        self.used_records -= records
        self.used_bytes -= charge_bytes
        if min(self.used_records, self.used_bytes) < 0:
            raise AssertionError("released more than was taken")
        if charge_bytes:
            self.node.used_bytes -= charge_bytes
            self.node.has_freed = True

    def set_limits(self, limit_records: int, limit_bytes: int) -> None:
        """New limits.  What is over them stays until it settles; nothing is admitted before."""
        self.limit_records = limit_records
        self.limit_bytes = limit_bytes


class NodeInFlight:
    """What all streams of a node have on their way together, in bytes of requests without an answer.

    Half of the limit is shared: whoever comes first has it.  The other half is the streams' floors, and nobody takes
    another's: so a stream with nothing on its way may always send a request of up to its floor, however long the
    others' hang.  One record larger than its room it may send only while nobody else's has made the shared half
    overfull: such records pass the limit by one of them, and not by one of each stream.

    ``floor_bytes``: at most the limit / (2 x the streams that there may be).
    """

    def __init__(self, limit_bytes: int = NO_LIMIT, floor_bytes: int = 0) -> None:
        self.used_bytes = 0
        self._used: dict[object, int] = {}  # of each stream with anything on its way
        self.set_limits(limit_bytes, floor_bytes)

    def room(self, stream: object) -> int:
        """How much more the stream may send now; below zero where it has more than it would get."""
        used = self._used.get(stream, 0)
        taken_by_others = self._shared_bytes - max(0, used - self.floor_bytes)
        left_to_share = max(0, self._limit_shared_bytes - taken_by_others)
        return self.floor_bytes + left_to_share - used

    @property
    def takes_larger(self) -> bool:
        """Whether a stream with nothing on its way may send one record that is larger than its room."""
        return self._shared_bytes <= self._limit_shared_bytes

    def take(self, stream: object, bytes_: int) -> None:
        """A request is on its way: within `room`, asked in the same step, or the stream's only one, a larger record."""
        larger = stream not in self._used and self.takes_larger
        if not larger and bytes_ > self.room(stream):
            raise AssertionError("sent past the node's limit")
        self._change(stream, bytes_)

    def release(self, stream: object, bytes_: int) -> None:
        """It has ended, and its slot is free."""
        self._change(stream, -bytes_)

    def set_limits(self, limit_bytes: int, floor_bytes: int) -> None:
        """New limits.  What is over them stays until it ends; nothing is sent before, but for each stream's floor."""
        self.limit_bytes = limit_bytes
        self.floor_bytes = floor_bytes
        self._limit_shared_bytes = limit_bytes - limit_bytes // 2
        beyond_floors = [max(0, used - floor_bytes) for used in self._used.values()]
        self._shared_bytes = sum(beyond_floors)  # taken of the shared half

    def _change(self, stream: object, bytes_: int) -> None:
        before = self._used.pop(stream, 0)
        after = before + bytes_
        if after < 0:
            raise AssertionError("released more than was sent")
        if after:
            self._used[stream] = after
        self.used_bytes += bytes_
        self._shared_bytes += max(0, after - self.floor_bytes) - max(0, before - self.floor_bytes)
