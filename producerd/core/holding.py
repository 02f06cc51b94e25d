"""Holding: what holds a stream's queue."""

from __future__ import annotations

from typing import Literal, NamedTuple

Cause = Literal["hot_shard", "shard_rate", "service", "shard_map", "in_flight", "node_limit", "paused", "daemon"]


class Holding(NamedTuple):
    """What holds the queue: the cause, and with ``hot_shard`` the shard and its share of the waiting bytes.

    ``by_records``: it is the number of records that the shards refuse, and not their bytes.  ``throttled``: and
    that below a shard's quota.
    """

    cause: Cause
    shard_id: str = ""
    share: float = 0.0
    by_records: bool = False
    throttled: bool = False
