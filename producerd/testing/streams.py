"""A Kinesis stream in memory: its shards, their records, and the records that a consumer reads.

The ranges of the open shards always cover 0..2^128-1 without gap or overlap.  `Stream.entries` lists exactly the stored
records, in the order of storing.  `Stream.read` returns the records that the Kinesis Client Library would return, and
counts the aggregates that it would drop.  Sequence numbers rise from one record to the next.  The module has no clock:
callers pass ``now``, in seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

from producerd.testing.aggregates import BrokenAggregate, UserRecord, deaggregate, hash_of
from producerd.testing.formats import Timestamp

ACCOUNT: Final = "000000000000"
REGION: Final = "us-east-1"
HASH_END: Final = 2**128

# https://docs.aws.amazon.com/streams/latest/dev/service-sizes-and-limits.html
SHARD_RECORDS_PER_SECOND: Final = 1_000
SHARD_BYTES_PER_SECOND: Final = 1024 * 1024
FIRST_CREATION: Final = 1_700_000_000.0
"""From when on streams are created, in seconds since 1970, where a test gives no time."""
FIRST_SEQUENCE: Final = 496 * 10**53
"""First sequence number.  It has 56 digits, as in Kinesis, so numbers and their texts sort in the same order."""

Strategy = Literal["USER_PARTITION_KEY", "AUTO"]
"""The way in which a record's shard is chosen: by its partition key, or by Kinesis."""


class ServiceError(Exception):
    """Kinesis refuses a whole request, with this code and HTTP status."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


class Entry(NamedTuple):
    """A stored record, as it was sent.  ``partition_key`` is "" if the record was sent without one."""

    shard_id: str
    partition_key: str
    explicit_hash_key: str | None
    data: bytes
    sequence_number: str
    stored_at: float


@dataclass(frozen=True, slots=True)
class Reading:
    """The records that a consumer receives, in the order of storing, and the number of aggregates that it silently
    drops.

    As with the Kinesis Client Library, a plain record comes without its explicit hash key.
    """

    records: list[UserRecord]
    dropped_aggregates: int


class TokenBucket:
    """A limit of ``rate`` per second over time, of which one second's worth may come at once.

    A larger cost needs a full bucket and leaves a debt, so that any legal record passes eventually.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.tokens = rate
        self._filled_at = 0.0

    def could_take(self, cost: float, now: float) -> bool:
        rate = self.rate
        if now > self._filled_at:
            self.tokens += (now - self._filled_at) * rate
            self._filled_at = now
        if self.tokens > rate:
            self.tokens = rate
        return self.tokens >= cost or self.tokens == rate

    def take(self, cost: float) -> None:
        self.tokens -= cost


@dataclass(slots=True, eq=False)
class FakeShard:
    """A shard: its range (both ends inclusive), the times of its life, its quota, and its records."""

    shard_id: str
    start: int
    end: int
    parents: tuple[str, ...]
    opened_at: float
    first_sequence: str
    closed_at: float = math.inf
    last_sequence: str = ""
    delay_seconds: float = 0.0  # the delay of the answer to a request that has a record for this shard
    entries: list[Entry] = field(default_factory=list)
    record_quota: TokenBucket = field(default_factory=lambda: TokenBucket(SHARD_RECORDS_PER_SECOND))
    byte_quota: TokenBucket = field(default_factory=lambda: TokenBucket(SHARD_BYTES_PER_SECOND))

    def admit(self, size: int, now: float) -> bool:
        """Take one record of ``size`` bytes (key and data) from the quota, and return whether it had room."""
        if not (self.record_quota.could_take(1, now) and self.byte_quota.could_take(size, now)):
            return False
        self.record_quota.take(1)
        self.byte_quota.take(size)
        return True

    def describe(self, at: float) -> dict[str, Any]:
        """Return the shard as ListShards shows it at a time."""
        sequences = {"StartingSequenceNumber": self.first_sequence}
        if self.closed_at <= at:
            sequences["EndingSequenceNumber"] = self.last_sequence
        return {
            "ShardId": self.shard_id,
            **dict(zip(("ParentShardId", "AdjacentParentShardId"), self.parents, strict=False)),
            "HashKeyRange": self.hash_key_range,
            "SequenceNumberRange": sequences,
        }

    @property
    def hash_key_range(self) -> dict[str, str]:
        return {"StartingHashKey": str(self.start), "EndingHashKey": str(self.end)}


def equal_edges(shards: int) -> list[int]:
    """Return the starting hash keys of this many shards of equal size."""
    return [number * HASH_END // shards for number in range(shards)]


class FakeStream:
    """A stream, with settings that a test may change at any time.

    ``edges`` are the starting hash keys of its first shards.  Sequence numbers begin above ``sequence``.
    """

    def __init__(self, name: str, edges: Sequence[int], max_record_kib: int, created_at: float, sequence: int) -> None:
        self.name = name
        self.max_record_kib = max_record_kib
        self.created_at = created_at
        self.record_distribution_strategy: Strategy | None = None  # None: a provisioned stream
        self.list_shards_lag_seconds = 0.0  # ListShards shows the shards as they were this long ago
        self.keeps_entries = True  # False: entries are counted and not kept, for long runs
        self.shards: list[FakeShard] = []  # open and closed, by id
        self.sequence = sequence  # the highest sequence number until now
        self._entries: list[Entry] = []
        for start, end in pairwise([*edges, HASH_END]):
            self._open(start, end - 1, (), -math.inf)
        self._index()

    @property
    def arn(self) -> str:
        return f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/{self.name}"

    @property
    def open_shards(self) -> list[FakeShard]:
        """The open shards, in the order of their ranges."""
        return list(self._open_shards)

    def shard(self, shard_id: str) -> FakeShard:
        """Return an open or closed shard.  Raise ServiceError if there is none with this id."""
        for shard in self.shards:
            if shard.shard_id == shard_id:
                return shard
        raise ServiceError(
            "ResourceNotFoundException",
            f"Could not find shard {shard_id} in stream {self.name} under account {ACCOUNT}.",
        )

    def shard_of(self, hash_key: int) -> FakeShard:
        """Return the open shard whose range contains the hash key."""
        return self._open_shards[bisect_right(self._starts, hash_key) - 1]

    def store(
        self, shard: FakeShard, partition_key: str, explicit_hash_key: str | None, data: bytes, now: float
    ) -> str:
        """Store a record and return its sequence number."""
        sequence_number = self._next_sequence()
        if self.keeps_entries:
            entry = Entry(shard.shard_id, partition_key, explicit_hash_key, data, sequence_number, now)
            shard.entries.append(entry)
            self._entries.append(entry)
        return sequence_number

    def entries(self, first: int = 0) -> list[Entry]:
        """Return the stored records from number ``first`` on, in the order of storing."""
        return self._entries[first:]

    def read(self) -> Reading:
        """Return the records that a consumer receives, with aggregates taken apart.

        If one record of an aggregate has a hash key outside the shard, the consumer drops the whole aggregate.  This is
        the rule of AggregatorUtil in the Kinesis Client Library.  It does not apply to plain records.
        """
        found = [self.records_of(entry) for entry in self._entries]
        return Reading([record for records in found for record in records or ()], found.count(None))

    def records_of(self, entry: Entry) -> list[UserRecord] | None:
        """Return the records that a consumer receives from one stored record, or None if it drops them."""
        try:
            found = deaggregate(entry.data)
        except BrokenAggregate:
            return None
        if found is None:
            return [UserRecord(entry.partition_key, None, entry.data)]
        shard = self.shard(entry.shard_id)
        fits = all(shard.start <= hash_of(user.partition_key, user.explicit_hash_key) <= shard.end for user in found)
        return found if fits else None

    def split_shard(self, shard_id: str, *, at: int | None = None, now: float = 0.0) -> tuple[str, str]:
        """Split a shard into two children, the second from ``at`` on (default: the middle), and return their ids."""
        parent = self._eligible(shard_id)
        at = (parent.start + parent.end + 1) // 2 if at is None else at
        if not parent.start < at <= parent.end:
            raise ServiceError(
                "InvalidArgumentException",
                f"NewStartingHashKey {at} used in SplitShard() on shard {shard_id} in stream {self.name} under account"
                f" {ACCOUNT} lies outside its range, {parent.start + 1} to {parent.end}.",
            )
        self._close(parent, now)
        first = self._open(parent.start, at - 1, (shard_id,), now)
        second = self._open(at, parent.end, (shard_id,), now)
        self._index()
        return first.shard_id, second.shard_id

    def merge_shards(self, shard_id: str, adjacent_shard_id: str, *, now: float = 0.0) -> str:
        """Merge two adjacent shards into one child, and return its id."""
        low, high = sorted((self._eligible(shard_id), self._eligible(adjacent_shard_id)), key=lambda shard: shard.start)
        if low.end + 1 != high.start:
            raise ServiceError(
                "InvalidArgumentException",
                f"Shards {shard_id} and {adjacent_shard_id} in stream {self.name} under account {ACCOUNT}"
                " are not an adjacent pair of shards eligible for merging",
            )
        self._close(low, now)
        self._close(high, now)
        child = self._open(low.start, high.end, (shard_id, adjacent_shard_id), now)
        self._index()
        return child.shard_id

    def scale(self, shards: int, *, now: float = 0.0) -> None:
        """Split and merge until there are this many open shards of equal size, as UpdateShardCount does."""
        edges = equal_edges(shards)
        for edge in edges:
            if (shard := self.shard_of(edge)).start != edge:
                self.split_shard(shard.shard_id, at=edge, now=now)
        for start, end in pairwise([*edges, HASH_END]):
            while (low := self.shard_of(start)).end < end - 1:
                self.merge_shards(low.shard_id, self.shard_of(low.end + 1).shard_id, now=now)

    def describe_shards(self, now: float) -> list[tuple[bool, dict[str, Any]]]:
        """Return for each shard that ListShards shows at this time whether it is open, and its description."""
        at = now - self.list_shards_lag_seconds
        return [(shard.closed_at > at, shard.describe(at)) for shard in self.shards if shard.opened_at <= at]

    def describe_children(self, shard_id: str) -> list[dict[str, Any]]:
        """Return the children of a closed shard, as GetRecords names them at its end."""
        return [
            {"ShardId": child.shard_id, "ParentShards": list(child.parents), "HashKeyRange": child.hash_key_range}
            for child in self.shards
            if shard_id in child.parents
        ]

    def describe(self) -> dict[str, Any]:
        """Return the stream as DescribeStreamSummary shows it."""
        strategy = self.record_distribution_strategy
        return {
            "StreamName": self.name,
            "StreamARN": self.arn,
            "StreamStatus": "ACTIVE",
            "StreamModeDetails": {"StreamMode": "PROVISIONED" if strategy is None else "ON_DEMAND"},
            "RetentionPeriodHours": 24,
            "StreamCreationTimestamp": Timestamp(self.created_at),
            "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
            "EncryptionType": "NONE",
            "OpenShardCount": len(self._open_shards),
            "ConsumerCount": 0,
            "MaxRecordSizeInKiB": self.max_record_kib,
            **({} if strategy is None else {"RecordDistributionStrategy": strategy}),
        }

    def _eligible(self, shard_id: str) -> FakeShard:
        shard = self.shard(shard_id)
        if shard.closed_at < math.inf:
            raise ServiceError(
                "InvalidArgumentException",
                f"Shard {shard_id} in stream {self.name} under account {ACCOUNT} has already been merged or split,"
                " and thus is not eligible for merging or splitting.",
            )
        return shard

    def _open(self, start: int, end: int, parents: tuple[str, ...], now: float) -> FakeShard:
        shard = FakeShard(f"shardId-{len(self.shards):012d}", start, end, parents, now, self._next_sequence())
        self.shards.append(shard)
        return shard

    def _close(self, shard: FakeShard, now: float) -> None:
        shard.closed_at, shard.last_sequence = now, self._next_sequence()

    def _index(self) -> None:
        self._open_shards = sorted((s for s in self.shards if s.closed_at == math.inf), key=lambda shard: shard.start)
        self._starts = [shard.start for shard in self._open_shards]

    def _next_sequence(self) -> str:
        # One counter for the stream: numbers rise within a shard, and from a parent to its children.
        self.sequence += 1
        return str(self.sequence)
