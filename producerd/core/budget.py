"""QueueBudget: how much of a stream's memory is taken on and not settled, in records and in charged bytes.

Nothing is admitted that would pass a limit.  Records come free row by row; bytes when the buffer that holds them is
let go.  After a limit was lowered, use only falls until it is below the new one.
"""

from __future__ import annotations


class QueueBudget:
    """Counts what is taken on against two hard limits.

    `take` and `release` are the only ways to change it, and each asserts that the sums stay possible.
    """

    def __init__(self, limit_records: int, limit_bytes: int) -> None:
        self.limit_records = limit_records
        self.limit_bytes = limit_bytes
        self.used_records = 0
        self.used_bytes = 0
        self.peak_records = 0
        self.peak_bytes = 0

    def fits(self, records: int, charge_bytes: int, *, keep_free_share: float = 0.0) -> bool:
        """Whether this much may be taken now, leaving ``keep_free_share`` of each limit free."""
        kept = 1.0 - keep_free_share
        return (
            self.used_records + records <= self.limit_records * kept
            and self.used_bytes + charge_bytes <= self.limit_bytes * kept
        )

    def take(self, records: int, charge_bytes: int) -> None:
        """Take on a frame.  The caller has asked `fits` in the same step."""
        assert self.fits(records, charge_bytes), "admitted past the limit"
        self.used_records += records
        self.used_bytes += charge_bytes
        self.peak_records = max(self.peak_records, self.used_records)
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def release(self, records: int, charge_bytes: int) -> None:
        """Give back what was taken: rows that settled, buffers that were let go."""
        self.used_records -= records
        self.used_bytes -= charge_bytes
        assert min(self.used_records, self.used_bytes) >= 0, "released more than was taken"

    def set_limits(self, limit_records: int, limit_bytes: int) -> None:
        """New limits.  What is over them stays until it settles; nothing is admitted before."""
        self.limit_records = limit_records
        self.limit_bytes = limit_bytes
