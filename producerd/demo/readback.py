"""Compare the records in the stream with the records in the files, without producerd's own code.

This process reads the stream with boto3 and takes aggregates apart with aws-kinesis-agg.  It computes the expected
records, prints ``ready`` and waits for a line on stdin.  Then it reads every shard to its end and prints a `Comparison`
as one line of JSON::

    python -m producerd.demo.readback FOLDER ENDPOINT STREAM [drop|duplicate|corrupt]
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from aws_kinesis_agg.deaggregator import iter_deaggregate_records

from producerd.demo import flights
from producerd.demo.flights import Record
from producerd.demo.stream import client

EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """The counts of expected records that were found, missing and found twice, and of strangers, which no file has."""

    expected: int
    delivered: int
    missing: int
    duplicates: int
    strangers: int
    examples: tuple[str, ...]

    @property
    def line(self) -> str:
        return (
            f"delivered {self.delivered} of {self.expected} records, "
            f"{self.missing} missing, {self.duplicates} duplicates"
        )


def compare(expected: Counter[Record], found: Iterable[Record]) -> Comparison:
    """Compare the expected records, with how often each occurs, with the records found."""
    left = Counter(expected)
    duplicates = 0
    strangers: list[Record] = []
    for record in found:
        if left[record] > 0:
            left[record] -= 1
        elif record in expected:
            duplicates += 1
        else:
            strangers.append(record)
    missing = [record for record, count in left.items() if count > 0]
    count = expected.total()
    return Comparison(
        expected=count,
        delivered=count - left.total(),
        missing=left.total(),
        duplicates=duplicates,
        strangers=len(strangers),
        examples=(
            *(f"missing: {key} {data.decode()}" for key, data in missing[:EXAMPLES]),
            *(f"in no file: {key} {data.decode(errors='replace')}" for key, data in strangers[:EXAMPLES]),
        ),
    )


def tampered(records: Iterable[Record], how: str) -> Iterator[Record]:
    """Yield the records with the first one dropped, duplicated or corrupted, for the tests."""
    rest = iter(records)
    for key, data in rest:
        if how == "duplicate":
            yield key, data
            yield key, data
        elif how == "corrupt":
            yield key, bytes([data[0] ^ 1]) + data[1:]
        break
    yield from rest


def entries_of(kinesis: Any, stream: str) -> Iterator[tuple[range, dict[str, Any]]]:
    """Yield every Kinesis record of every shard, with the range of hash keys that the shard owns."""
    for page in kinesis.get_paginator("list_shards").paginate(StreamName=stream):
        for shard in page["Shards"]:
            hashes = shard["HashKeyRange"]
            owned = range(int(hashes["StartingHashKey"]), int(hashes["EndingHashKey"]) + 1)
            start = kinesis.get_shard_iterator(
                StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )
            iterator = start["ShardIterator"]
            while iterator:
                answer = kinesis.get_records(ShardIterator=iterator)
                yield from ((owned, entry) for entry in answer["Records"])
                more = answer["Records"] or answer["MillisBehindLatest"]
                iterator = answer.get("NextShardIterator") if more else None


def records_of(owned: range, entry: dict[str, Any]) -> Iterator[Record]:
    """Yield the user records in one Kinesis record.

    Skip a record of an aggregate if its hash key belongs to another shard.  KCL drops such a record, so its users never
    see it.  aws-kinesis-agg does not check that.
    """
    for each in iter_deaggregate_records([entry], data_format="Boto3"):
        record = each["kinesis"]
        if not record.get("aggregated"):
            yield record["partitionKey"], record["data"]
        elif hash_of(record) in owned:
            yield record["partitionKey"], base64.b64decode(record["data"])


def hash_of(record: dict[str, Any]) -> int:
    """Return the hash key that decides the shard of a record in an aggregate.

    Only rows without a key have an explicit hash key.  aws-kinesis-agg also reports one for other rows, because it
    takes a missing index for index 0.
    """
    key: str = record["partitionKey"]
    if key == flights.SPREAD_KEY:
        return int(record["explicitHashKey"])
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest(), "big")


def main(folder: Path, endpoint_url: str, stream: str, tamper: str = "") -> None:
    expected = flights.expected(folder)
    print("ready", flush=True)
    sys.stdin.readline()
    entries = 0

    def found() -> Iterator[Record]:
        nonlocal entries
        for owned, entry in entries_of(client(endpoint_url), stream):
            entries += 1
            yield from records_of(owned, entry)

    records = tampered(found(), tamper) if tamper else found()
    comparison = compare(expected, records)
    print(json.dumps(asdict(comparison) | {"entries": entries}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
