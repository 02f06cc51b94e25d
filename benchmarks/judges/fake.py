"""The reading rule of the fake Kinesis, entry by entry."""

from __future__ import annotations

from benchmarks.judges import Handed
from producerd.testing import Entry, Stream, UserRecord, deaggregate, hash_of
from producerd.testing.aggregates import BrokenAggregate


def hand_over(stream: Stream) -> list[Handed]:
    """As `Stream.read`, which does not say from which entry a record came; the two are held against each other."""
    handed = [_handed(stream, entry) for entry in stream.entries()]
    if [record for each in handed for record in each.records] != stream.read().records:
        raise AssertionError("Stream.read hands over other records")
    return handed


def _handed(stream: Stream, entry: Entry) -> Handed:
    shard = stream.shard(entry.shard_id)
    try:
        found = deaggregate(entry.data)
    except BrokenAggregate as error:
        return Handed(entry, [], str(error))
    if found is None:
        return Handed(entry, [UserRecord(entry.partition_key, None, entry.data)])
    fits = all(shard.start <= hash_of(user.partition_key, user.explicit_hash_key) <= shard.end for user in found)
    return Handed(entry, found if fits else [])
