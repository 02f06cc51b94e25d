"""Tuning: the values of a daemon that are not settings, because no user has to choose them.

No file, variable or option changes one.  Only a caller in Python can, such as a test that must not wait for a minute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from producerd.config.values import MIB


@dataclass(frozen=True, slots=True)
class Tuning:
    """Every such value, each with the reason for it."""

    worker_threads: int = 1
    """Threads that sort and encode large batches.  More would take the interpreter from the loop (decision 0007)."""
    others_fraction: float = 1 / 16
    """Part of ``max_connections`` and of ``max_streams`` that one user leaves to others, so that none has all."""
    max_frame_bytes: int = MIB
    """Largest frame, except of one larger record.  A larger one keeps other clients waiting on the loop."""
    max_frame_records: int = 10_000
    """Most records of a frame, which the daemon checks in one step of the loop."""
    session_window_bytes: int = 8 * MIB
    """Bytes that a connection may have unacknowledged: 8 s of one shard, far more than an answer takes."""
    session_window_frames: int = 64
    """Frames that a connection may have reserved or unacknowledged.  Each waiting RESERVE needs 1.1 KiB of memory."""
    body_timeout_seconds: float = 10.0
    """Time in which a client must send a granted frame, and a second for each MiB more: its room waits for it."""
    aggregate_max_records: int = 2**32 - 1
    """Most records of an aggregate, as in the KPL: its size in bytes limits it first."""
    request_max_records: int = 500
    """Most entries of a PutRecords, Kinesis's own limit."""
    max_in_flight_bytes: int = 32 * MIB
    """Bytes of a stream's unanswered PutRecords, more than the default 24 requests of 1 MiB have."""
    connect_timeout_seconds: float = 5.0
    """Time for an attempt to connect to Kinesis: the kernel sends the first packet again after 1 s and 3 s."""
    shard_map_wait_seconds: float = 10.0
    """Longest wait for a list of shards, in which some throttled calls of ListShards are repeated."""
    permanent_error_grace_seconds: float = 60.0
    """Time for which Kinesis may refuse a stream that has worked: a policy or a key may be changed meanwhile."""
    first_contact_timeout_seconds: float = 60.0
    """Time for an endpoint that never answered, and whose name or certificate is wrong, for DNS may come late."""

    def most_of_a_user(self, count: int) -> int:
        """Return how many of the node's connections or streams one user may have."""
        return count - int(count * self.others_fraction)


TUNING: Final = Tuning()
"""The values of every daemon outside of tests and benchmarks."""
