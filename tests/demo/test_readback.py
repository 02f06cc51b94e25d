"""The comparison can fail, and a reader from outside reads what boto3 wrote."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator

from producerd.demo import flights, scenario
from producerd.demo.children import Child, Children
from producerd.demo.flights import Record
from producerd.demo.readback import Comparison, compare, entries_of, records_of, tampered

RECORDS: list[Record] = [("N1", b'{"a":1}'), ("N2", b'{"a":2}'), ("N2", b'{"a":2}'), ("-", b'{"a":3}')]
EXPECTED = Counter(RECORDS)
CLEAN = Comparison(expected=4, delivered=4, missing=0, duplicates=0, strangers=0, examples=())
EVERY_HASH = range(2**128)


def hash_of(key: str) -> int:
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest(), "big")


def aggregate(*records: tuple[str, bytes, int | None]) -> dict[str, Any]:
    """One Kinesis record as boto3 returns it, made by aws-kinesis-agg."""
    aggregator = RecordAggregator()
    for key, data, explicit in records:
        aggregator.add_user_record(key, data, None if explicit is None else str(explicit))
    key, _, data = aggregator.clear_and_get().get_contents()
    return entry(key, data)


def entry(key: str, data: bytes) -> dict[str, Any]:
    return {"SequenceNumber": "1", "ApproximateArrivalTimestamp": 0, "PartitionKey": key, "Data": data}


FIRST, SECOND, TWIN, LAST = RECORDS
STRANGERS: list[Record] = [("N9", b'{"a":1}'), ("N1", b'{"a":1 }'), ("N1", b"\xff")]
COMPARED: dict[str, tuple[list[Record], Comparison]] = {
    "the same records in any order": ([LAST, TWIN, SECOND, FIRST], CLEAN),
    "a record is missing, though another one is the same": (
        [FIRST, SECOND, LAST],
        dataclasses.replace(CLEAN, delivered=3, missing=1, examples=('missing: N2 {"a":2}',)),
    ),
    "one copy more is a duplicate": ([*RECORDS, SECOND], dataclasses.replace(CLEAN, duplicates=1)),
    "a duplicate does not make up for a missing record": (
        [FIRST, FIRST, SECOND, TWIN],
        dataclasses.replace(CLEAN, delivered=3, missing=1, duplicates=1, examples=('missing: - {"a":3}',)),
    ),
}


@pytest.mark.parametrize("name", COMPARED)
def test_what_is_found_is_compared_as_a_multiset(name: str) -> None:
    found, comparison = COMPARED[name]
    assert compare(EXPECTED, found) == comparison


@pytest.mark.parametrize("changed", STRANGERS)
def test_another_key_or_another_byte_is_a_stranger_and_the_record_is_missing(changed: Record) -> None:
    found = compare(EXPECTED, [changed, *RECORDS[1:]])
    assert (found.missing, found.strangers) == (1, 1)


@pytest.mark.parametrize(
    ("how", "seen"),
    [
        ("drop", {"delivered": 3, "missing": 1}),
        ("duplicate", {"duplicates": 1}),
        ("corrupt", {"delivered": 3, "missing": 1, "strangers": 1}),
    ],
)
def test_tampering_is_seen(how: str, seen: dict[str, int]) -> None:
    found = compare(EXPECTED, tampered(RECORDS, how))
    assert dataclasses.asdict(found) | {"examples": ()} == dataclasses.asdict(CLEAN) | seen


class TestRecordsOf:
    def test_a_plain_record_is_itself(self) -> None:
        assert list(records_of(range(0), entry("N1", b"data"))) == [("N1", b"data")]

    def test_an_aggregate_is_taken_apart(self) -> None:
        packed = aggregate(("N1", b"1", None), ("N2", b"2", None), ("-", b"3", 7))
        assert list(records_of(EVERY_HASH, packed)) == [("N1", b"1"), ("N2", b"2"), ("-", b"3")]

    def test_what_an_aggregate_holds_for_another_shard_is_lost_as_it_is_to_kcl(self) -> None:
        packed = aggregate(("N1", b"1", None), ("N2", b"2", None), ("-", b"3", 7))
        assert list(records_of(range(8), packed)) == [("-", b"3")]
        assert list(records_of(range(hash_of("N1"), hash_of("N1") + 1), packed)) == [("N1", b"1")]


class Pages:
    """boto3's calls over two shards; the first has a page that is empty though it is not the last."""

    shards: ClassVar = {"a": [[{"n": 1}], [], [{"n": 2}, {"n": 3}], []], "b": [[{"n": 4}], []]}

    def get_paginator(self, _call: str) -> Pages:
        return self

    def paginate(self, StreamName: str) -> list[dict[str, Any]]:  # noqa: N803
        half = {"StartingHashKey": "0", "EndingHashKey": "9"}
        return [{"Shards": [{"ShardId": name, "HashKeyRange": half}]} for name in self.shards]

    def get_shard_iterator(self, ShardId: str, **_: str) -> dict[str, str]:  # noqa: N803
        return {"ShardIterator": f"{ShardId}0"}

    def get_records(self, ShardIterator: str) -> dict[str, Any]:  # noqa: N803
        name, page = ShardIterator[0], int(ShardIterator[1:])
        pages = self.shards[name]
        behind = len(pages) - 1 - page
        return {"Records": pages[page], "MillisBehindLatest": behind, "NextShardIterator": f"{name}{page + 1}"}


def test_every_shard_is_read_to_its_end_past_empty_pages() -> None:
    assert list(entries_of(Pages(), "flights")) == [(range(10), {"n": n}) for n in (1, 2, 3, 4)]


@pytest.fixture(scope="module")
def kinesis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Children, str]]:
    work = tmp_path_factory.mktemp("kinesis")
    with Children(work, scenario.environment(work)) as children:
        child = children.start("embedded kinesis", ["-m", "producerd.demo.embedded_kinesis", "flights", "4"])
        yield children, f"http://127.0.0.1:{child.line(60)}"


WRITE = """
import sys
from pathlib import Path
from producerd.demo import flights
from producerd.demo.embedded_kinesis import client
kinesis = client(sys.argv[2])
rows = [{"PartitionKey": key, "Data": data} for key, data in flights.expected(Path(sys.argv[1]))]
for first in range(0, len(rows), 500):
    assert kinesis.put_records(StreamName="flights", Records=rows[first:first + 500])["FailedRecordCount"] == 0
print("written")
"""


def test_what_boto3_wrote_is_read_back_from_every_shard(kinesis: tuple[Children, str], tmp_path: Path) -> None:
    children, endpoint_url = kinesis
    flights.write_files(tmp_path, 2_000, 2)

    def readback(*tamper: str) -> Child:
        arguments = ["-m", "producerd.demo.readback", str(tmp_path), endpoint_url, "flights", *tamper]
        child = children.start(f"readback {''.join(tamper)}", arguments)
        assert child.line(60) == "ready"
        child.tell("go")
        return child

    before = json.loads(readback().line(60))
    assert (before["delivered"], before["missing"]) == (0, 2_000), "an empty stream holds nothing"
    assert children.start("writer", ["-c", WRITE, str(tmp_path), endpoint_url]).line(60) == "written"
    after = json.loads(readback().line(60))
    assert after == dataclasses.asdict(
        Comparison(expected=2_000, delivered=2_000, missing=0, duplicates=0, strangers=0, examples=())
    ) | {"entries": 2_000, "examples": []}
    assert json.loads(readback("drop").line(60))["missing"] == 1
