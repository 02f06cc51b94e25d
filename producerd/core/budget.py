"""The limits on memory: queues by rows and charged bytes, and requests in flight by bytes.

The gate admits nothing past a limit of the stream or, in bytes, of the node.  It takes room of both together or not at
all.  The room of a row comes free when it settles, the bytes when the buffer that holds them is released.  After a
limit was lowered, use only falls until it is below the new limit.

`NodeInFlight` likewise counts the requests of all streams of the node.
"""

from __future__ import annotations

from typing import Final

NO_LIMIT: Final = 2**62
"""A number of bytes that stands for no limit."""


class NodeBudget:
    """The charged bytes that all queues of a node hold together, and their limit.

    Each stream that has callers owns a floor, whose unused part the others leave free.  A stream that holds nothing may
    take one frame of any size.  While such a frame waits, the others leave free what it needs.
    """

    def __init__(self, limit_bytes: int, floor_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.floor_bytes = floor_bytes
        self.used_bytes = 0
        self.has_freed = False  # whether room has come free since `take_freed`
        self.wanted_by: dict[QueueBudget, int] = {}  # by stream the charge of the frame that waits for room here
        self._streams: dict[QueueBudget, None] = {}

    def join(self, stream: QueueBudget) -> None:
        """Give a stream its floor, because it has a caller.  Repeated calls change nothing."""
        self._streams[stream] = None

    def leave(self, stream: QueueBudget) -> None:
        """Take back a stream's floor, because its last caller is gone.  The bytes that it holds still count."""
        self._streams.pop(stream, None)
        self.has_freed = True

    def want(self, stream: QueueBudget, charge_bytes: int) -> None:
        """Note the charge of a stream's frame that waits for room in the node, or 0 if none does."""
        if charge_bytes < self.wanted_by.get(stream, 0):
            self.has_freed = True  # the others leave less free for it
        if charge_bytes:
            self.wanted_by[stream] = charge_bytes
        else:
            self.wanted_by.pop(stream, None)

    def take_freed(self) -> bool:
        """Return whether room has come free since the last call."""
        freed, self.has_freed = self.has_freed, False
        return freed

    def fits(self, stream: QueueBudget, charge_bytes: int) -> bool:
        """Return whether the node has room for this many more bytes of the stream."""
        left = self.limit_bytes - self.used_bytes - charge_bytes
        if left < 0:
            return False
        if not stream.used_bytes or stream.used_bytes + charge_bytes <= self.floor_bytes:
            return True
        return left >= sum([self._claim_of(other) for other in self._streams if other is not stream])

    def set_limits(self, limit_bytes: int, floor_bytes: int) -> None:
        """Follow new limits.  Rows beyond them stay until they settle.  The caller then pumps the streams' gates."""
        self.limit_bytes = limit_bytes
        self.floor_bytes = floor_bytes
        self.has_freed = True

    def _claim_of(self, stream: QueueBudget) -> int:
        if stream.used_bytes:
            return max(0, self.floor_bytes - stream.used_bytes)
        return max(self.floor_bytes, self.wanted_by.get(stream, self.floor_bytes))


class QueueBudget:
    """The rows and charged bytes that a stream's queue holds, and their limits.

    Only `charge` and `release` change them.  Both raise AssertionError instead of passing a limit or falling below 0.
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
        """Return whether the stream has room for a frame, with ``keep_free_share`` of each of its limits left free."""
        kept = 1.0 - keep_free_share
        return (
            self.used_records + records <= self.limit_records * kept
            and self.used_bytes + charge_bytes <= self.limit_bytes * kept
        )

    def charge(self, records: int, charge_bytes: int) -> None:
        """Take room for a frame.  The caller has asked `fits` here and of the node in the same step."""
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
        """Release room of rows that settled and of buffers that were released."""
        self.used_records -= records
        self.used_bytes -= charge_bytes
        if self.used_records < 0 or self.used_bytes < 0:
            raise AssertionError("released more than was taken")
        if charge_bytes:
            self.node.used_bytes -= charge_bytes
            self.node.has_freed = True

    def set_limits(self, limit_records: int, limit_bytes: int) -> None:
        """Follow new limits.  Rows beyond them stay until they settle, and nothing is admitted before."""
        self.limit_records = limit_records
        self.limit_bytes = limit_bytes


class NodeInFlight:
    """The bytes of all unanswered requests of a node's streams, and their limit.

    Half of the limit is shared: the first stream that asks gets it.  The other half is the streams' floors, which no
    other stream takes.  A stream with nothing on its way may therefore always send a request of up to its floor,
    however long requests of others hang.

    A stream may send one record larger than its room, but only while no such record overfills the shared half.  At most
    one such record exceeds the limit, and not one of each stream.

    ``floor_bytes``: up to the limit / (2 x the largest number of streams).
    """

    def __init__(self, limit_bytes: int = NO_LIMIT, floor_bytes: int = 0) -> None:
        self.used_bytes = 0
        self._used: dict[object, int] = {}  # the bytes of each stream that has requests on their way
        self.set_limits(limit_bytes, floor_bytes)

    def room(self, stream: object) -> int:
        """Return how many more bytes the stream may send now.  Below zero: it has more on its way than its room."""
        used = self._used.get(stream, 0)
        taken_by_others = self._shared_bytes - max(0, used - self.floor_bytes)
        left_to_share = max(0, self._limit_shared_bytes - taken_by_others)
        return self.floor_bytes + left_to_share - used

    @property
    def takes_larger(self) -> bool:
        """Whether a stream with nothing on its way may send one record that is larger than its room."""
        return self._shared_bytes <= self._limit_shared_bytes

    def count_sent(self, stream: object, bytes_: int) -> None:
        """Count a request that is sent.

        The caller has asked `room` in the same step.  A request beyond it must be the stream's only one and have one
        record, while `takes_larger` is true.
        """
        larger = stream not in self._used and self.takes_larger
        if not larger and bytes_ > self.room(stream):
            raise AssertionError("sent past the node's limit")
        self._change(stream, bytes_)

    def count_ended(self, stream: object, bytes_: int) -> None:
        """Release the bytes of a request that has ended."""
        self._change(stream, -bytes_)

    def set_limits(self, limit_bytes: int, floor_bytes: int) -> None:
        """Follow new limits.  Until requests beyond them have ended, streams send within their floors only."""
        self.limit_bytes = limit_bytes
        self.floor_bytes = floor_bytes
        self._limit_shared_bytes = limit_bytes - limit_bytes // 2
        beyond_floors = [max(0, used - floor_bytes) for used in self._used.values()]
        self._shared_bytes = sum(beyond_floors)  # the bytes taken of the shared half

    def _change(self, stream: object, bytes_: int) -> None:
        before = self._used.pop(stream, 0)
        after = before + bytes_
        if after < 0:
            raise AssertionError("released more than was sent")
        if after:
            self._used[stream] = after
        self.used_bytes += bytes_
        self._shared_bytes += max(0, after - self.floor_bytes) - max(0, before - self.floor_bytes)
