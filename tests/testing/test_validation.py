"""Requests are checked as the service does: whose stream, which entries, and whether they are meant."""

from __future__ import annotations

import json
from typing import Any

import pytest

from producerd.testing import FakeKinesis
from tests.testing.calls import SHARDS, answer, call, codes, entry, error, put, service

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/s"
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("PutRecords", {"Records": [entry()]}),
    ("ListShards", {}),
    ("DescribeStreamSummary", {}),
    ("DescribeStream", {}),
    ("GetShardIterator", {"ShardId": SHARDS[0], "ShardIteratorType": "LATEST"}),
    ("SplitShard", {"ShardToSplit": SHARDS[0], "NewStartingHashKey": "5"}),
    ("MergeShards", {"ShardToMerge": SHARDS[0], "AdjacentShardToMerge": SHARDS[1]}),
    ("UpdateShardCount", {"TargetShardCount": 4, "ScalingType": "UNIFORM_SCALING"}),
    ("DeleteStream", {}),
]


def ask(kinesis: FakeKinesis, action: str, **request: Any) -> Any:
    return kinesis.handle(action, json.dumps(request).encode(), 0.0)


@pytest.mark.parametrize(("action", "request_"), REQUESTS, ids=[action for action, _ in REQUESTS])
def test_a_stream_is_found_by_its_arn_alone_or_beside_its_name(action: str, request_: dict[str, Any]) -> None:
    for name in ({}, {"StreamName": "s"}):
        kinesis, _ = service(shards=2)
        assert ask(kinesis, action, StreamARN=ARN, **name, **request_).status == 200
    kinesis, _ = service(shards=2)
    for other in (ARN + "x", ARN.replace("0" * 12, "1" * 12), ARN.replace("us-east-1", "eu-west-1")):
        assert error(ask(kinesis, action, StreamARN=other, **request_))[:2] == (400, "ResourceNotFoundException")
    assert error(ask(kinesis, action, StreamARN="s", **request_))[1] == "ValidationException"
    assert error(ask(kinesis, action, StreamARN=ARN, StreamName="t", **request_))[1] == "InvalidArgumentException"
    assert error(ask(kinesis, action, **request_))[1] == "InvalidArgumentException"
    assert list(kinesis.streams) == ["s"]


def test_the_account_of_another_arn_is_named() -> None:
    kinesis, _ = service()
    message = error(ask(kinesis, "ListShards", StreamARN=ARN.replace("0" * 12, "123456789012")))[2]
    assert message == "Stream s under account 123456789012 not found."


def test_reading_goes_by_the_iterator_and_an_arn_must_not_contradict_it() -> None:
    kinesis, _ = service(shards=1)
    kinesis.create_stream("t", 1)
    found = answer(call(kinesis, "GetShardIterator", ShardId=SHARDS[0], ShardIteratorType="LATEST"))
    assert ask(kinesis, "GetRecords", StreamARN=ARN, **found).status == 200
    assert error(ask(kinesis, "GetRecords", StreamARN=ARN[:-1] + "t", **found))[1] == "InvalidArgumentException"


def test_a_page_of_shards_is_asked_for_by_its_token_alone() -> None:
    kinesis, _ = service()
    token = answer(call(kinesis, "ListShards", MaxResults=1))["NextToken"]
    for beside, value in (("StreamName", "s"), ("StreamARN", ARN), ("ExclusiveStartShardId", SHARDS[0])):
        refused = error(ask(kinesis, "ListShards", NextToken=token, **{beside: value}))
        assert refused == (400, "InvalidArgumentException", f"NextToken and {beside} cannot be provided together.")
    assert len(answer(ask(kinesis, "ListShards", NextToken=token))["Shards"]) == 3


def test_a_dry_run_answers_as_the_request_would_and_stores_nothing() -> None:
    kinesis, stream = service()
    success = (400, "DryRunOperationException")
    assert error(call(kinesis, "PutRecords", Records=[entry()], DryRun=True))[:2] == success
    assert error(call(kinesis, "PutRecords", Records=[], DryRun=True))[1] == "ValidationException"
    assert error(call(kinesis, "PutRecords", StreamName="t", Records=[entry()], DryRun=True))[1] == (
        "ResourceNotFoundException"
    )
    kinesis.denied.add("PutRecords")
    assert error(call(kinesis, "PutRecords", Records=[entry()], DryRun=True))[1] == "AccessDeniedException"
    kinesis.denied.clear()
    assert stream.entries() == []
    assert kinesis.results == {}
    assert codes(call(kinesis, "PutRecords", Records=[entry()], DryRun=False)) == ["stored"]
    where: dict[str, Any] = {"ShardId": SHARDS[0], "ShardIteratorType": "TRIM_HORIZON"}
    assert error(call(kinesis, "GetShardIterator", **where, DryRun=True))[:2] == success
    iterator = answer(call(kinesis, "GetShardIterator", **where))
    assert error(call(kinesis, "GetRecords", **iterator, DryRun=True))[:2] == success


def test_a_key_may_be_left_out_only_where_the_service_chooses_the_shard() -> None:
    kinesis, stream = service(shards=1)
    keyless = {"Data": "ZA=="}
    assert error(put(kinesis, keyless))[1] == "ValidationException"
    stream.record_distribution_strategy = "AUTO"
    assert codes(put(kinesis, keyless, entry("k"))) == ["stored", "stored"]
    assert [stored.partition_key for stored in stream.entries()] == ["", "k"]
    where: dict[str, Any] = {"ShardId": SHARDS[0], "ShardIteratorType": "TRIM_HORIZON"}
    iterator = answer(call(kinesis, "GetShardIterator", **where))
    records = answer(call(kinesis, "GetRecords", **iterator))["Records"]
    assert [record.get("PartitionKey") for record in records] == [None, "k"]
    assert error(put(kinesis, entry("")))[1] == error(put(kinesis, entry("x" * 257)))[1] == "ValidationException"
