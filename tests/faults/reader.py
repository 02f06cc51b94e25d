"""Read a whole stream as Amazon's consumer library does: parents before children, and aggregates by its rule.

boto3 reads, and protobuf's own library parses.  `handed_by_kcl` asks the library itself about the same entries.
Nothing of producerd is used here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from aws_kinesis_agg.deaggregator import messages_pb2  # by itself it does not find its neighbour
from google.protobuf.message import DecodeError

MAGIC: Final = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES: Final = 16
KCL_SECONDS: Final = 300.0


class Entry(NamedTuple):
    """One record as Kinesis stored it, and the hash keys of its shard."""

    shard_id: str
    hashes: range
    sequence_number: str
    key: str
    data: bytes


class Handed(NamedTuple):
    """One user's record that a consumer is handed."""

    key: str
    data: bytes


def entries_of(kinesis: Any, stream: str) -> Iterator[Entry]:
    """Every entry of every shard to its end.  A shard is read after the shards that it was made from."""
    shards: dict[str, dict[str, Any]] = {
        shard["ShardId"]: shard
        for page in kinesis.get_paginator("list_shards").paginate(StreamName=stream)
        for shard in page["Shards"]
    }
    read: set[str] = set()

    def in_order(shard_id: str) -> Iterator[Entry]:
        if shard_id in read or shard_id not in shards:
            return
        read.add(shard_id)
        for parent in ("ParentShardId", "AdjacentParentShardId"):
            yield from in_order(shards[shard_id].get(parent, ""))
        yield from _entries_of_shard(kinesis, stream, shards[shard_id])

    for shard_id in sorted(shards):
        yield from in_order(shard_id)


def _entries_of_shard(kinesis: Any, stream: str, shard: dict[str, Any]) -> Iterator[Entry]:
    hashes = shard["HashKeyRange"]
    owned = range(int(hashes["StartingHashKey"]), int(hashes["EndingHashKey"]) + 1)
    start = kinesis.get_shard_iterator(StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON")
    iterator = start["ShardIterator"]
    while iterator:
        answer = kinesis.get_records(ShardIterator=iterator)
        for record in answer["Records"]:
            key = record.get("PartitionKey", "")
            yield Entry(shard["ShardId"], owned, record["SequenceNumber"], key, record["Data"])
        more = answer["Records"] or answer["MillisBehindLatest"]
        iterator = answer.get("NextShardIterator") if more else None


def handed_by_rule(entry: Entry) -> list[Handed]:
    """Return what a consumer is handed of one entry.

    An aggregate of which one record lies outside of the shard's range is dropped as a whole:
    https://github.com/awslabs/amazon-kinesis-client (AggregatorUtil.deaggregate, KCL 3).
    """
    message = _message(entry.data)
    if message is None:
        return [Handed(entry.key, entry.data)]
    handed: list[Handed] = []
    for record in message.records:
        key = message.partition_key_table[record.partition_key_index]
        if record.HasField("explicit_hash_key_index"):
            hash_key = int(message.explicit_hash_key_table[record.explicit_hash_key_index])
        else:
            hash_key = int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest(), "big")
        if hash_key not in entry.hashes:
            return []
        handed.append(Handed(key, record.data))
    return handed


def _message(data: bytes) -> Any | None:
    """The protobuf message of an aggregate, or None for a plain record."""
    body, digest = data[len(MAGIC) : -DIGEST_BYTES], data[-DIGEST_BYTES:]
    sealed = data.startswith(MAGIC) and len(data) > len(MAGIC) + DIGEST_BYTES
    if not sealed or hashlib.md5(body, usedforsecurity=False).digest() != digest:
        return None
    message = messages_pb2.AggregatedRecord()
    try:
        message.ParseFromString(body)
    except DecodeError:
        return None
    return message


def handed_by_kcl(command: Sequence[str], entries: Sequence[Entry]) -> list[list[Handed]]:
    """Return what Amazon's own library hands on of each entry.  ``command`` starts the judge of benchmarks/judges/kcl.

    Raises CalledProcessError where the judge itself fails.
    """
    question = "\n".join(
        json.dumps(
            {
                "start": str(entry.hashes[0]),
                "end": str(entry.hashes[-1]),
                "sequence": str(place),
                "key": entry.key,
                "data": base64.b64encode(entry.data).decode(),
            }
        )
        for place, entry in enumerate(entries)
    )
    done = subprocess.run(command, input=question.encode(), capture_output=True, timeout=KCL_SECONDS, check=True)
    handed: list[list[Handed]] = [[] for _ in entries]
    for line in map(json.loads, done.stdout.splitlines()):
        if "error" not in line:
            handed[int(line["sequence"])].append(Handed(line["key"], base64.b64decode(line["data"])))
    return handed
