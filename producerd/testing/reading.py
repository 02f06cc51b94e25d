"""Answer GetShardIterator and GetRecords, the calls of consumers.

A consumer that follows NextShardIterator receives each record of a shard once, in the order of storing.  At the end of
a closed shard it receives the shard's children.  Iterators do not expire.
"""

from __future__ import annotations

import base64
from bisect import bisect_left, bisect_right
from typing import Any, Final

import orjson

from producerd.testing.formats import Timestamp
from producerd.testing.streams import Entry, FakeShard, FakeStream, ServiceError
from producerd.testing.validation import MAX_REQUEST_BYTES, violation

GET_RECORDS_PAGE: Final = 10_000


def shard_iterator(stream: FakeStream, request: dict[str, Any]) -> str:
    """Return an iterator for the position that a GetShardIterator asks for."""
    shard = stream.shard(str(request.get("ShardId")))
    return pack(stream.name, shard.shard_id, _position(shard, request))


def records(stream: FakeStream, shard_id: str, position: int, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to GetRecords: at most 10 MiB, but always at least one record if there is one."""
    shard = stream.shard(shard_id)
    found: list[dict[str, Any]] = []
    size = 0
    for entry in shard.entries[position : position + request.get("Limit", GET_RECORDS_PAGE)]:
        size += len(entry.data)
        if found and size > MAX_REQUEST_BYTES:
            break
        found.append(_record(entry))
    position += len(found)
    answer: dict[str, Any] = {"Records": found, "MillisBehindLatest": 0}
    if shard.last_sequence and position == len(shard.entries):
        answer["ChildShards"] = stream.describe_children(shard_id)
    else:
        answer["NextShardIterator"] = pack(stream.name, shard_id, position)
    return answer


def pack(*values: Any) -> str:
    """Return a token or an iterator with these values.  It is opaque to clients and valid forever."""
    return base64.b64encode(orjson.dumps(values)).decode()


def unpack(name: str, token: Any, length: int) -> list[Any]:
    """Return the values of a token.  Raise ServiceError, with the token's name, if they are not this many."""
    try:
        values = orjson.loads(base64.b64decode(str(token)))
    except ValueError:
        values = None
    if not isinstance(values, list) or len(values) != length:
        raise ServiceError("InvalidArgumentException", f"The provided {name} is invalid.")
    return values


def _position(shard: FakeShard, request: dict[str, Any]) -> int:
    sequence_number = str(request.get("StartingSequenceNumber", ""))
    match request.get("ShardIteratorType"):
        case "TRIM_HORIZON":
            return 0
        case "LATEST":
            return len(shard.entries)
        case "AT_SEQUENCE_NUMBER":
            return bisect_left(shard.entries, sequence_number, key=lambda entry: entry.sequence_number)
        case "AFTER_SEQUENCE_NUMBER":
            return bisect_right(shard.entries, sequence_number, key=lambda entry: entry.sequence_number)
        case "AT_TIMESTAMP":
            at = float(request.get("Timestamp", 0.0))
            return bisect_left(shard.entries, at, key=lambda entry: entry.stored_at)
        case other:
            raise violation(f"Value '{other}' at 'shardIteratorType'", "Member must satisfy enum value set")


def _record(entry: Entry) -> dict[str, Any]:
    record = {
        "SequenceNumber": entry.sequence_number,
        "Data": entry.data,
        "ApproximateArrivalTimestamp": Timestamp(entry.stored_at),
    }
    # A record sent without a partition key is returned without one: https://docs.aws.amazon.com/streams/latest/dev/service-managed-pk-considerations.html
    return {**record, "PartitionKey": entry.partition_key} if entry.partition_key else record
