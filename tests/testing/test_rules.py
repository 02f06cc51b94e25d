"""The fake Kinesis stores what it acknowledges, answers as Kinesis does, and fails by its faults, in virtual time."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from itertools import pairwise
from typing import Any

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from hypothesis import given, settings
from hypothesis import strategies as st

from producerd.testing import FakeKinesis, Fault, UserRecord, deaggregate, hash_of
from producerd.testing.aggregates import MAGIC, BrokenAggregate
from producerd.testing.faults import ACTIONS
from producerd.testing.rules import Kind
from producerd.testing.streams import HASH_END, TokenBucket
from tests.testing.calls import SHARDS, answer, call, codes, entry, error, put, results, service, shards_listed

# What is stored, and where


def test_records_land_where_their_hash_lies_and_are_kept_in_order() -> None:
    kinesis, stream = service()
    edges = [shard.start for shard in stream.open_shards] + [HASH_END]
    placed = results(put(kinesis, *(entry(f"key-{i}", b"%d" % i) for i in range(200)), now=5.0))
    for i, result in enumerate(placed):
        number = int.from_bytes(hashlib.md5(f"key-{i}".encode()).digest(), "big")
        shard = sum(edge <= number for edge in edges) - 1
        assert result["ShardId"] == SHARDS[shard]
    stored = stream.entries()
    assert [(e.shard_id, e.sequence_number) for e in stored] == [(r["ShardId"], r["SequenceNumber"]) for r in placed]
    assert [(e.partition_key, e.data, e.stored_at) for e in stored] == [
        (f"key-{i}", b"%d" % i, 5.0) for i in range(200)
    ]
    assert {e.shard_id for e in stored} == set(SHARDS[:4])
    assert [int(e.sequence_number) for e in stored] == sorted({int(e.sequence_number) for e in stored})


def test_ranges_are_inclusive_at_both_ends_and_an_explicit_hash_key_wins() -> None:
    kinesis, stream = service(shards=3)
    ends = [(shard.start, shard.end) for shard in stream.open_shards]
    assert ends[0][0] == 0
    assert ends[-1][1] == HASH_END - 1
    assert all(low[1] + 1 == high[0] for low, high in pairwise(ends))
    reply = put(kinesis, *(entry("same", hash_key=end) for pair in ends for end in pair))
    assert [result["ShardId"] for result in results(reply)] == [SHARDS[i] for i in (0, 0, 1, 1, 2, 2)]
    assert stream.entries()[1].explicit_hash_key == str(ends[0][1])


def test_a_forgetful_stream_answers_and_counts_but_keeps_nothing() -> None:
    kinesis, stream = service()
    stream.keeps_entries = False
    assert codes(put(kinesis, entry(), entry())) == ["stored", "stored"]
    assert stream.entries() == []
    assert kinesis.results == {"stored": 2}


# Requests that the service refuses as a whole

TOO_LONG = "x" * 257
BAD_REQUESTS = [
    ([], "ValidationException", "length greater than or equal to 1"),
    (None, "ValidationException", "must not be null"),
    ("text", "SerializationException", "Expected list"),
    ([entry()] * 501, "ValidationException", "length less than or equal to 500"),
    ([entry(), 7], "SerializationException", "structure"),
    ([entry(), {"Data": ""}], "ValidationException", "'records.2.member.partitionKey' failed"),
    ([entry(), {"PartitionKey": "k"}], "ValidationException", "'records.2.member.data' failed"),
    ([entry(), {"PartitionKey": 1, "Data": ""}], "SerializationException", "converted"),
    ([entry(), entry("")], "ValidationException", "length greater than or equal to 1"),
    ([entry(), entry(TOO_LONG)], "ValidationException", "length less than or equal to 256"),
    ([entry(), entry(hash_key="-1")], "ValidationException", "regular expression"),
    ([entry(), entry(hash_key="01")], "ValidationException", "regular expression"),
    ([entry(), entry(hash_key="1\n")], "ValidationException", "regular expression"),
    ([entry(), entry(hash_key="\u0661")], "ValidationException", "regular expression"),
    ([entry(), entry(hash_key=HASH_END)], "InvalidArgumentException", "[0, 2^128-1]"),
    ([entry(), {"PartitionKey": "k", "Data": "ab="}], "SerializationException", "Blob"),
    ([entry(), {"PartitionKey": "k", "Data": "Zm9v!"}], "SerializationException", "Blob"),
    ([entry(), {"PartitionKey": "k", "Data": "\u00e9"}], "SerializationException", "Blob"),
    ([entry(), entry("kk", bytes(1024 * 1024 - 1))], "InvalidArgumentException", "maximum record size of 1048576"),
    ([entry("k", bytes(1024 * 1024 - 1))] * 10 + [entry(data=b"")], "InvalidArgumentException", "exceeds 10 MB"),
]


@pytest.mark.parametrize(("records", "code", "text"), BAD_REQUESTS, ids=range(len(BAD_REQUESTS)))
def test_a_bad_request_is_refused_whole_and_nothing_of_it_is_stored(records: Any, code: str, text: str) -> None:
    kinesis, stream = service()
    status, actual, message = error(call(kinesis, "PutRecords", Records=records))
    assert (status, actual) == (400, code)
    assert text in message
    assert stream.entries() == []
    assert kinesis.replies == {code: 1}


def test_the_largest_legal_request_is_taken() -> None:
    kinesis, stream = service()
    assert codes(put(kinesis, *[entry("k", bytes(1024 * 1024 - 1))] * 10)) == ["stored"] * 10
    assert codes(put(kinesis, *[entry("\u00e9" * 256, b"", HASH_END - 1)] * 500)) == ["stored"] * 500
    stream.max_record_kib = 10 * 1024
    assert codes(put(kinesis, entry("k", bytes(10 * 1024 * 1024 - 1)))) == ["stored"]


def test_unknown_things_are_told_apart() -> None:
    kinesis, stream = service()
    assert error(kinesis.handle("PutRecord", b"{}", 0.0))[:2] == (400, "UnknownOperationException")
    for body in (b"", b"{", b"[]", b'{"a":"\xff"}'):
        assert error(kinesis.handle("PutRecords", body, 0.0))[1] == "SerializationException"
    missing = error(call(kinesis, "PutRecords", StreamName="other", Records=[entry()]))
    assert missing == (400, "ResourceNotFoundException", "Stream other under account 000000000000 not found.")
    by_arn = kinesis.handle("PutRecords", json.dumps({"StreamARN": stream.arn, "Records": [entry()]}).encode(), 0.0)
    assert codes(by_arn) == ["stored"]


def test_denied_operations_and_only_those() -> None:
    kinesis, stream = service()
    kinesis.denied.add("ListShards")
    status, code, message = error(call(kinesis, "ListShards"))
    assert (status, code) == (400, "AccessDeniedException")
    assert "not authorized to perform: kinesis:ListShards on resource: " + stream.arn in message
    assert codes(put(kinesis)) == ["stored"]
    kinesis.denied.clear()
    assert len(shards_listed(kinesis, 0.0)) == 4


# Shards: listing, resharding


def test_list_shards_pages_through_ten_thousand() -> None:
    kinesis, _ = service(shards=10_000)
    seen: list[str] = []
    page = answer(call(kinesis, "ListShards"))
    while True:
        seen += [shard["ShardId"] for shard in page["Shards"]]
        assert len(page["Shards"]) == 1_000
        if "NextToken" not in page:
            break
        page = answer(call(kinesis, "ListShards", StreamName=None, NextToken=page["NextToken"]))
        assert len(seen) < 10_000
    assert seen == [f"shardId-{number:012d}" for number in range(10_000)]
    assert kinesis.requests == {"ListShards": 10}


def test_list_shards_refuses_a_token_beside_a_name_and_a_token_of_nobody() -> None:
    kinesis, _ = service()
    token = answer(call(kinesis, "ListShards", MaxResults=1))["NextToken"]
    foreign = [{"NextToken": text, "StreamName": None} for text in ("bm8=", "WzFd", "?")]
    for request in ({"NextToken": token}, *foreign):
        assert error(call(kinesis, "ListShards", **request))[1] == "InvalidArgumentException"
    assert error(call(kinesis, "ListShards", MaxResults=0))[1] == "ValidationException"


def test_after_a_split_the_children_own_the_range_at_once_though_list_shards_lags() -> None:
    kinesis, stream = service(shards=2)
    stream.list_shards_lag_seconds = 3.0
    assert stream.split_shard(SHARDS[0], now=10.0) == (SHARDS[2], SHARDS[3])
    assert results(put(kinesis, entry(hash_key=0), now=10.0))[0]["ShardId"] == SHARDS[2]
    assert results(put(kinesis, entry(hash_key=HASH_END // 2 - 1), now=10.0))[0]["ShardId"] == SHARDS[3]
    latest = {"ShardFilter": {"Type": "AT_LATEST"}}
    assert shards_listed(kinesis, 12.9, **latest) == SHARDS[:2]
    assert shards_listed(kinesis, 13.0, **latest) == SHARDS[1:4]
    assert shards_listed(kinesis, 13.0) == SHARDS[:4]
    parent, _, child, _ = answer(call(kinesis, "ListShards", 13.0))["Shards"]
    assert child["ParentShardId"] == SHARDS[0]
    assert int(parent["SequenceNumberRange"]["EndingSequenceNumber"]) < int(
        child["SequenceNumberRange"]["StartingSequenceNumber"]
    )


def test_after_a_merge_one_child_owns_both_ranges() -> None:
    kinesis, stream = service(shards=4)
    assert stream.merge_shards(SHARDS[2], SHARDS[1], now=1.0) == SHARDS[4]
    ends = [(shard.shard_id, shard.start, shard.end) for shard in stream.open_shards]
    quarter = HASH_END // 4
    assert ends == [
        (SHARDS[0], 0, quarter - 1),
        (SHARDS[4], quarter, 3 * quarter - 1),
        (SHARDS[3], 3 * quarter, HASH_END - 1),
    ]
    (child,) = [shard for shard in answer(call(kinesis, "ListShards", 1.0))["Shards"] if shard["ShardId"] == SHARDS[4]]
    assert (child["ParentShardId"], child["AdjacentParentShardId"]) == (SHARDS[2], SHARDS[1])


def test_resharding_refuses_what_the_service_refuses() -> None:
    kinesis, stream = service(shards=4)
    stream.split_shard(SHARDS[0])
    refused: list[tuple[str, dict[str, Any]]] = [
        ("SplitShard", {"ShardToSplit": SHARDS[0], "NewStartingHashKey": "5"}),
        ("SplitShard", {"ShardToSplit": SHARDS[1], "NewStartingHashKey": "5"}),
        ("SplitShard", {"ShardToSplit": SHARDS[1], "NewStartingHashKey": str(HASH_END // 4)}),
        ("SplitShard", {"ShardToSplit": SHARDS[1], "NewStartingHashKey": str(HASH_END // 2)}),
        ("MergeShards", {"ShardToMerge": SHARDS[1], "AdjacentShardToMerge": SHARDS[3]}),
    ]
    for action, request in refused:
        assert error(call(kinesis, action, **request))[1] == "InvalidArgumentException"
    assert (
        error(call(kinesis, "SplitShard", ShardToSplit="x", NewStartingHashKey="5"))[1] == "ResourceNotFoundException"
    )


@given(steps=st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.floats(0, 1)), max_size=60))
@settings(max_examples=20)
def test_ranges_cover_everything_after_any_splits_and_merges(steps: list[tuple[bool, float, float]]) -> None:
    _, stream = service(shards=3)
    for merges, which, where in steps:
        shards = stream.open_shards
        place = int(which * (len(shards) - 1))
        shard = shards[place]
        if merges and place:
            stream.merge_shards(shard.shard_id, shards[place - 1].shard_id)
        elif shard.start < shard.end:
            stream.split_shard(shard.shard_id, at=min(shard.end, shard.start + 1 + int(where * shard.end)))
        ends = [(shard.start, shard.end) for shard in stream.open_shards]
        assert (ends[0][0], ends[-1][1]) == (0, HASH_END - 1)
        assert all(low[1] + 1 == high[0] for low, high in pairwise(ends))


def test_a_stream_created_anew_has_the_same_shard_ids_and_another_birthday() -> None:
    kinesis, _ = service(shards=2)
    with pytest.raises(ValueError, match="exists already"):
        kinesis.create_stream("s")
    kinesis.delete_stream("s")
    assert error(call(kinesis, "DescribeStreamSummary"))[1] == "ResourceNotFoundException"
    kinesis.create_stream("s", 3, max_record_kib=2048, now=9.0)
    summary = answer(call(kinesis, "DescribeStreamSummary"))["StreamDescriptionSummary"]
    assert (summary["StreamCreationTimestamp"], summary["OpenShardCount"], summary["MaxRecordSizeInKiB"]) == (
        9.0,
        3,
        2048,
    )
    assert shards_listed(kinesis, 9.0) == SHARDS[:3]


# Limits


def test_what_is_larger_than_a_second_needs_a_full_bucket_and_leaves_a_debt() -> None:
    bucket = TokenBucket(10.0)
    assert bucket.could_take(25.0, now=1.0)
    bucket.take(25.0)
    assert not bucket.could_take(1.0, now=2.5)
    assert bucket.could_take(1.0, now=2.61)
    assert not bucket.could_take(25.0, now=3.4)
    assert bucket.could_take(25.0, now=3.51)


def test_a_shard_takes_a_thousand_records_a_second_and_throttles_no_other() -> None:
    kinesis, stream = service(shards=2)
    kinesis.enforce_limits = True
    low, high = entry(hash_key=0), entry(hash_key=HASH_END - 1)
    assert codes(put(kinesis, *[low] * 500)) == codes(put(kinesis, *[low] * 500)) == ["stored"] * 500
    refused, taken = results(put(kinesis, low, high))
    assert refused == {
        "ErrorCode": "ProvisionedThroughputExceededException",
        "ErrorMessage": "Rate exceeded for shard shardId-000000000000 in stream s under account 000000000000.",
    }
    assert taken["ShardId"] == SHARDS[1]
    assert codes(put(kinesis, *[low] * 500, now=0.25)).count("stored") == 250
    assert len(stream.entries()) == kinesis.results["stored"] == 1251


def test_a_shard_takes_a_mebibyte_a_second_keys_included() -> None:
    kinesis, _ = service(shards=1)
    kinesis.enforce_limits = True
    half = entry("k" * 24, bytes(512 * 1024 - 24))
    assert codes(put(kinesis, half, half, entry(data=b""))) == [
        "stored",
        "stored",
        "ProvisionedThroughputExceededException",
    ]
    assert codes(put(kinesis, half, half, now=0.5)) == ["stored", "ProvisionedThroughputExceededException"]


# Faults


def test_latency_is_constant_or_drawn_and_the_slow_shard_adds_its_own() -> None:
    kinesis, stream = service(shards=2)
    kinesis.latency_seconds = 0.02
    stream.shard(SHARDS[1]).delay_seconds = 6.0
    assert put(kinesis, entry(hash_key=0)).delay_seconds == 0.02
    assert put(kinesis, entry(hash_key=0), entry(hash_key=HASH_END - 1)).delay_seconds == 6.02
    kinesis.latency_seconds = (0.1, 0.3)
    drawn = [put(kinesis, entry(hash_key=0)).delay_seconds for _ in range(50)]
    assert 0.1 <= min(drawn) < 0.15 < 0.25 < max(drawn) <= 0.3


@pytest.mark.parametrize(
    ("kind", "how", "stored"),
    [
        ("reset", "reset", 0),
        ("hang", "hang", 0),
        ("lost", "lost", 1),
        ("replaced", "replaced", 1),
        ("answer", "answer", 1),
    ],
)
def test_what_a_fault_leaves_in_the_stream(kind: Kind, how: str, stored: int) -> None:
    kinesis, stream = service()
    kinesis.script(Fault(kind, delay_seconds=2.0))
    reply = put(kinesis)
    assert (reply.how, reply.delay_seconds) == (how, 2.0)
    assert len(stream.entries()) == stored
    assert kinesis.replies == {"ok" if kind == "answer" else kind: 1}
    assert put(kinesis).how == "answer"
    assert len(stream.entries()) == stored + 1


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault("error"), (500, "InternalFailure", "Internal service failure.")),
        (Fault("error", status=503), (503, "ServiceUnavailable", "Service is unable to handle request.")),
        (Fault("error", status=400), (400, "LimitExceededException", "Rate exceeded under account 000000000000.")),
        (Fault("error", status=400, code="KMSDisabledException", message="no"), (400, "KMSDisabledException", "no")),
        (Fault("error", status=413), 413),
    ],
)
def test_a_whole_request_fails_as_scripted_and_stores_nothing(
    fault: Fault, expected: tuple[int, str, str] | int
) -> None:
    """A status without a code comes with an empty body."""
    kinesis, stream = service()
    kinesis.script(fault)
    reply = put(kinesis)
    assert (error(reply) if reply.body else reply.status) == expected
    assert stream.entries() == []
    assert codes(put(kinesis)) == ["stored"]


def test_a_script_is_walked_in_order_for_each_action() -> None:
    kinesis, _ = service()
    kinesis.script(
        Fault("error", requests=2),
        Fault("answer"),
        Fault("error", action="ListShards", status=400, code="LimitExceededException"),
        Fault("reset", action="*"),
    )
    assert put(kinesis).status == 500
    assert error(call(kinesis, "ListShards"))[1] == "LimitExceededException"
    assert [put(kinesis).status for _ in range(2)] == [500, 200]
    assert [fault.kind for fault in kinesis.scripted] == ["reset"]
    assert call(kinesis, "ListShards").how == "reset"
    assert kinesis.scripted == []
    assert put(kinesis).how == "answer"


def test_a_standing_fault_holds_for_its_action_only_until_it_is_taken_away() -> None:
    kinesis, _ = service()
    kinesis.standing.append(Fault("hang", action="ListShards"))
    assert [call(kinesis, "ListShards").how, call(kinesis, "ListShards").how, put(kinesis).how] == [
        "hang",
        "hang",
        "answer",
    ]
    kinesis.standing.clear()
    assert call(kinesis, "ListShards").how == "answer"


def test_throttling_hits_the_next_n_entries_across_requests() -> None:
    kinesis, stream = service()
    kinesis.script(Fault("throttle", entries=5))
    throttled = "ProvisionedThroughputExceededException"
    first = put(kinesis, *[entry()] * 3)
    assert codes(first) == [throttled] * 3
    assert answer(first)["FailedRecordCount"] == 3
    assert codes(put(kinesis, *[entry()] * 3)) == [throttled, throttled, "stored"]
    assert codes(put(kinesis)) == ["stored"]
    assert kinesis.results == {throttled: 5, "stored": 2}
    assert len(stream.entries()) == 2


def test_entries_of_one_shard_fail_with_any_code_while_the_fault_stands() -> None:
    kinesis, _ = service(shards=2)
    fault = Fault("fail", shard_id=SHARDS[1])
    kinesis.standing.append(fault)
    low, high = entry(hash_key=0), entry(hash_key=HASH_END - 1)
    assert [codes(put(kinesis, high, low, high)) for _ in range(2)] == [
        ["InternalFailure", "stored", "InternalFailure"]
    ] * 2
    kinesis.standing[:] = [Fault("fail", code="KMSThrottlingException", message="slow down", entries=1)]
    assert codes(put(kinesis, low, high)) == ["KMSThrottlingException", "stored"]
    assert results(put(kinesis, low))[0] == {"ErrorCode": "KMSThrottlingException", "ErrorMessage": "slow down"}
    kinesis.standing.clear()
    assert codes(put(kinesis, high)) == ["stored"]


def test_a_fraction_is_drawn_by_the_seed() -> None:
    def run(seed: int) -> list[str]:
        kinesis = FakeKinesis(seed)
        kinesis.create_stream("s")
        kinesis.standing += [Fault("throttle", fraction=0.1), Fault("lost", fraction=0.5)]
        replies = [put(kinesis, *[entry()] * 50) for _ in range(40)]
        assert 12 <= sum(reply.how == "lost" for reply in replies) <= 28
        assert 140 <= kinesis.results["ProvisionedThroughputExceededException"] <= 260
        return [reply.how for reply in replies]

    assert run(1) == run(1) != run(2)


@pytest.mark.parametrize(("count", "given"), [(-1, 1), (-5, 0), (2, 4)])
def test_a_wrong_count_of_results_does_not_change_what_is_stored(count: int, given: int) -> None:
    kinesis, stream = service()
    kinesis.script(Fault("miscount", count=count))
    assert len(results(put(kinesis, entry(), entry()))) == given
    assert len(stream.entries()) == 2


def test_failed_record_count_can_lie() -> None:
    kinesis, _ = service()
    kinesis.script(Fault("failed_count", count=0))
    kinesis.standing.append(Fault("fail"))
    reply = put(kinesis, entry(), entry())
    assert answer(reply)["FailedRecordCount"] == 0
    assert codes(reply) == ["InternalFailure"] * 2


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kind": "trottle"}, "unknown kind 'trottle'; known are answer, error"),
        ({"kind": "lost", "entries": 3}, "lost with entries=3, which is for throttle and fail only"),
        ({"kind": "reset", "status": 503}, "reset with status=503, which is for error and replaced only"),
        ({"kind": "error", "count": 2}, "error with count=2, which is for miscount and failed_count only"),
        ({"kind": "throttle", "code": "KMSDisabledException"}, "throttle with code='KMSDisabledException'"),
        ({"kind": "lost", "action": "PutRecordz"}, "no action 'PutRecordz'; there are PutRecords, ListShards"),
        ({"kind": "throttle", "action": "ListShards"}, "throttle with action='ListShards': it is for PutRecords only"),
        ({"kind": "lost", "requests": 0}, "requests=0: a whole number from 1 on"),
        ({"kind": "fail", "entries": -1}, "entries=-1: a whole number from 1 on"),
        ({"kind": "fail", "entries": 1.5}, "entries=1.5: a whole number from 1 on"),
        ({"kind": "lost", "fraction": 2}, "fraction=2: above 0, and at most 1"),
        ({"kind": "lost", "fraction": 0.0}, "fraction=0.0: above 0, and at most 1"),
        ({"kind": "lost", "fraction": float("nan")}, "fraction=nan: above 0, and at most 1"),
        ({"kind": "answer", "delay_seconds": -1}, "delay_seconds=-1: 0 or more"),
        ({"kind": "error", "status": 200}, "status=200: of an error, 400 to 599"),
        ({"kind": "miscount"}, "miscount with count=0: how many results too many, or (negative) too few"),
    ],
    ids=lambda value: " ".join(f"{one}" for one in value.values()) if isinstance(value, dict) else "",
)
def test_a_fault_that_could_never_hit_or_means_nothing_is_refused(fault: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Fault(**fault)


def test_every_action_of_the_fake_may_fail_be_denied_and_be_limited() -> None:
    kinesis = FakeKinesis()
    assert not any(b"UnknownOperationException" in call(kinesis, action).body for action in ACTIONS)
    kinesis.denied = set(ACTIONS)
    kinesis.calls_per_second = dict.fromkeys(ACTIONS, 1.0)
    kinesis.standing = [Fault("reset", action=action) for action in (*ACTIONS, "*")]
    assert {call(kinesis, action).how for action in ACTIONS} == {"reset"}


def test_a_setting_that_means_nothing_is_refused_and_the_old_one_stays() -> None:
    kinesis = FakeKinesis()
    for name, value, message in (
        ("latency_seconds", -1.0, "latency_seconds=-1.0: 0 or more"),
        ("latency_seconds", (3.0, 1.0), "latency_seconds=(3.0, 1.0): 0 or more, or a pair of such with the lower"),
        ("denied", {"Nope"}, "no action 'Nope'; there are PutRecords, ListShards"),
        ("calls_per_second", {"Nope": 1.0}, "no action 'Nope'; there are PutRecords, ListShards"),
        ("calls_per_second", {"ListShards": 0.0}, "calls_per_second of ListShards is 0.0: above 0"),
    ):
        before = getattr(kinesis, name)
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            setattr(kinesis, name, value)
        assert getattr(kinesis, name) == before
    for add in (kinesis.denied.add, lambda name: kinesis.denied.update([name])):
        with pytest.raises(ValueError, match="no action 'Nope'; there are PutRecords"):
            add("Nope")
    assert kinesis.denied == set()


# The consumer's side


def aggregate(*users: tuple[str, bytes, str | None]) -> tuple[str, str, bytes]:
    aggregator = RecordAggregator()
    for key, data, hash_key in users:
        aggregator.add_user_record(key, data, hash_key)
    key, hash_key, payload = aggregator.clear_and_get().get_contents()
    return str(key), str(hash_key), bytes(payload)


def sealed(message: bytes) -> bytes:
    return MAGIC + message + hashlib.md5(message).digest()


def test_an_aggregate_is_read_when_every_hash_lies_in_its_shard_and_dropped_whole_otherwise() -> None:
    kinesis, stream = service(shards=2)
    middle = HASH_END // 2
    inside = [("a", b"1", str(0)), ("b", b"2", str(middle - 1))]
    outside = [("c", b"3", str(5)), ("d", b"4", str(middle)), ("e", b"5", str(6))]
    for users in (inside, outside):
        key, _, payload = aggregate(*users)
        put(kinesis, entry(key, payload, 7))
    put(kinesis, entry("plain", b"x", middle))
    reading = stream.read()
    assert reading.records == [
        UserRecord("a", "0", b"1"),
        UserRecord("b", str(middle - 1), b"2"),
        UserRecord("plain", None, b"x"),
    ]
    assert reading.dropped_aggregates == 1


def test_keys_without_an_explicit_hash_are_judged_by_their_md5() -> None:
    kinesis, stream = service(shards=2)
    # Made by hand: the aggregator of the test above always writes explicit hash keys.
    keys = ["key-0", "key-1", "key-2", "key-3", "key-4"]
    low = [key for key in keys if hash_of(key, None) < HASH_END // 2]
    high = [key for key in keys if key not in low]
    assert low
    assert high
    for chosen in (low, low + high[:1]):
        table = b"".join(b"\x0a" + bytes([len(key)]) + key.encode() for key in chosen)
        rows = b"".join(b"\x1a\x05\x08" + bytes([i]) + b"\x1a\x01D" for i in range(len(chosen)))
        put(kinesis, entry("a", sealed(table + rows), 0))
    assert [record.partition_key for record in stream.read().records] == low
    assert stream.read().dropped_aggregates == 1


def test_an_aggregate_stays_readable_after_its_shard_was_split() -> None:
    kinesis, stream = service(shards=1)
    key, _, payload = aggregate(("a", b"1", "0"), ("b", b"2", str(HASH_END - 1)))
    put(kinesis, entry(key, payload, 0))
    stream.split_shard(SHARDS[0])
    put(kinesis, entry(key, payload, 0))
    assert [record.data for record in stream.read().records] == [b"1", b"2"]
    assert stream.read().dropped_aggregates == 1


@pytest.mark.parametrize("message", [b"\x1a\x05\x08\x07\x1a\x01D", b"\x12\x02 5\x1a\x07\x08\x00\x10\x00\x1a\x01D"])
def test_an_aggregate_that_a_consumer_fails_on_is_lost_to_it(message: bytes) -> None:
    """A record points outside the tables, or its hash key is not a number."""
    kinesis, stream = service()
    broken = sealed(b"\x0a\x01k" + message)
    with pytest.raises(BrokenAggregate):
        deaggregate(broken)
    put(kinesis, entry("a", broken))
    assert stream.read().records == []
    assert stream.read().dropped_aggregates == 1


def test_get_records_reads_a_shard_to_its_end_and_names_its_children() -> None:
    kinesis, stream = service(shards=1)
    placed = results(put(kinesis, *(entry(f"k{i}", b"%d" % i) for i in range(10)), now=4.0))

    def read(iterator_type: str, **request: Any) -> Any:
        got = call(kinesis, "GetShardIterator", ShardId=SHARDS[0], ShardIteratorType=iterator_type, **request)
        return answer(call(kinesis, "GetRecords", ShardIterator=answer(got)["ShardIterator"], Limit=7))

    page = read("TRIM_HORIZON")
    assert [base64.b64decode(record["Data"]) for record in page["Records"]] == [b"%d" % i for i in range(7)]
    assert "ChildShards" not in page
    third = placed[2]["SequenceNumber"]
    assert read("AT_SEQUENCE_NUMBER", StartingSequenceNumber=third)["Records"][0]["PartitionKey"] == "k2"
    assert read("AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=third)["Records"][0]["PartitionKey"] == "k3"
    assert len(read("AT_TIMESTAMP", Timestamp=4.0)["Records"]) == 7
    assert read("AT_TIMESTAMP", Timestamp=4.1)["Records"] == read("LATEST")["Records"] == []
    stream.split_shard(SHARDS[0])
    page = answer(call(kinesis, "GetRecords", ShardIterator=page["NextShardIterator"]))
    assert len(page["Records"]) == 3
    assert "NextShardIterator" not in page
    assert [child["ShardId"] for child in page["ChildShards"]] == SHARDS[1:3]
    assert error(call(kinesis, "GetRecords", ShardIterator="bm8="))[1] == "InvalidArgumentException"
    assert error(call(kinesis, "GetShardIterator", ShardId=SHARDS[0]))[1] == "ValidationException"


def test_get_records_answers_with_ten_mebibytes_at_most_and_always_with_one_record() -> None:
    kinesis, _ = service(shards=1)
    for _ in range(12):
        put(kinesis, entry("k", bytes(1024 * 1024 - 1)))
    got = call(kinesis, "GetShardIterator", ShardId=SHARDS[0], ShardIteratorType="TRIM_HORIZON")
    assert len(answer(call(kinesis, "GetRecords", ShardIterator=answer(got)["ShardIterator"]))["Records"]) == 10


# Where the service chooses the shard


def test_with_auto_keys_are_ignored_and_the_seed_chooses_the_shard() -> None:
    def run(seed: int) -> list[str]:
        kinesis = FakeKinesis(seed)
        kinesis.create_stream("s", 4, record_distribution_strategy="AUTO")
        return [result["ShardId"] for result in results(put(kinesis, *[entry("k", hash_key=0)] * 200))]

    assert run(1) == run(1) != run(2)
    assert all(30 < run(1).count(shard_id) < 70 for shard_id in SHARDS[:4])


def test_the_strategy_is_shown_where_there_is_one_and_may_change_under_way() -> None:
    kinesis, stream = service(shards=2)

    def summary() -> Any:
        return answer(call(kinesis, "DescribeStreamSummary"))["StreamDescriptionSummary"]

    assert "RecordDistributionStrategy" not in summary()
    assert summary()["StreamModeDetails"] == {"StreamMode": "PROVISIONED"}
    stream.record_distribution_strategy = "AUTO"
    assert summary()["RecordDistributionStrategy"] == "AUTO"
    assert summary()["StreamModeDetails"] == {"StreamMode": "ON_DEMAND"}
    stream.record_distribution_strategy = "USER_PARTITION_KEY"
    placed = results(put(kinesis, *[entry(hash_key=0)] * 20))
    assert {result["ShardId"] for result in placed} == {SHARDS[0]}
    with pytest.raises(ValueError, match="'ROUND_ROBIN'"):
        kinesis.create_stream("t", record_distribution_strategy="ROUND_ROBIN")  # type: ignore[arg-type]


# How often an action may be called


def test_calls_beyond_their_rate_are_refused_for_each_stream_or_for_the_account() -> None:
    kinesis, _ = service()
    kinesis.create_stream("t")
    kinesis.calls_per_second = {"ListShards": 2, "DescribeStreamSummary": 2}

    def refusals(action: str, now: float, stream: str = "s") -> int:
        return [call(kinesis, action, now, StreamName=stream).status for _ in range(4)].count(400)

    for action in ("ListShards", "DescribeStreamSummary"):
        assert refusals(action, 10.0) == 2
        assert refusals(action, 10.5) == 3
    assert refusals("ListShards", 10.5, "t") == 2
    assert refusals("DescribeStreamSummary", 10.5, "t") == 4
    assert error(call(kinesis, "ListShards", 10.5)) == (
        400,
        "LimitExceededException",
        "Rate exceeded for stream s under account 000000000000.",
    )
    assert codes(put(kinesis, entry(), now=10.5)) == ["stored"]
    kinesis.calls_per_second["ListShards"] = 4
    assert refusals("ListShards", 12.0) == 0
    kinesis.calls_per_second.clear()
    assert refusals("DescribeStreamSummary", 12.0) == 0


def test_pages_count_as_calls_of_their_stream() -> None:
    kinesis, _ = service()
    kinesis.calls_per_second = {"ListShards": 1}
    token = answer(call(kinesis, "ListShards", MaxResults=1))["NextToken"]
    assert error(call(kinesis, "ListShards", StreamName=None, NextToken=token))[1] == "LimitExceededException"


def test_the_most_calls_of_any_span_are_counted() -> None:
    kinesis, _ = service()
    for now in (0.0, 30.0, 59.0, 60.0, 61.0, 62.0, 200.0):
        call(kinesis, "ListShards", now)
    assert [kinesis.most_calls("ListShards", seconds) for seconds in (1.0, 3.0, 60.0, 1e9)] == [1, 3, 5, 7]
    assert kinesis.most_calls("PutRecords", 60.0) == 0


# The administrator's side


def test_streams_are_created_and_deleted_by_the_services_own_actions() -> None:
    kinesis, _ = service()
    created = call(kinesis, "CreateStream", 5.0, StreamName="t", ShardCount=3, MaxRecordSizeInKiB=2048)
    assert answer(created) == {}
    stream = kinesis.streams["t"]
    assert (len(stream.shards), stream.max_record_kib, stream.created_at) == (3, 2048, 5.0)
    assert error(call(kinesis, "CreateStream", StreamName="t", ShardCount=1)) == (
        400,
        "ResourceInUseException",
        "Stream t under account 000000000000 already exists.",
    )
    assert answer(call(kinesis, "DeleteStream", StreamName="t")) == {}
    assert error(call(kinesis, "DeleteStream", StreamName="t"))[1] == "ResourceNotFoundException"
    for name, shards in (("?", 1), (None, 1), ("t", 0), ("t", "3")):
        refused = call(kinesis, "CreateStream", StreamName=name, ShardCount=shards)
        assert error(refused)[1] == "ValidationException"
    assert list(kinesis.streams) == ["s"]


def test_only_streams_on_demand_have_a_strategy() -> None:
    kinesis, _ = service()
    on_demand = {"StreamMode": "ON_DEMAND"}
    answer(call(kinesis, "CreateStream", StreamName="t", StreamModeDetails=on_demand))
    assert kinesis.streams["t"].record_distribution_strategy == "USER_PARTITION_KEY"
    auto = call(kinesis, "CreateStream", StreamName="u", RecordDistributionStrategy="AUTO", StreamModeDetails=on_demand)
    assert answer(auto) == {}
    assert kinesis.streams["u"].record_distribution_strategy == "AUTO"
    refused = call(kinesis, "CreateStream", StreamName="v", ShardCount=1, RecordDistributionStrategy="AUTO")
    assert error(refused)[1] == "InvalidArgumentException"
    answer(call(kinesis, "CreateStream", StreamName="v", RecordDistributionStrategy="USER_PARTITION_KEY"))
    assert kinesis.streams["v"].record_distribution_strategy is None


def test_a_stream_is_described_with_its_shards_page_by_page() -> None:
    kinesis, _ = service(shards=5)
    first = answer(call(kinesis, "DescribeStream", Limit=3))["StreamDescription"]
    assert (first["StreamStatus"], first["HasMoreShards"]) == ("ACTIVE", True)
    last = first["Shards"][-1]["ShardId"]
    rest = answer(call(kinesis, "DescribeStream", ExclusiveStartShardId=last))["StreamDescription"]
    assert not rest["HasMoreShards"]
    assert [shard["ShardId"] for page in (first, rest) for shard in page["Shards"]] == SHARDS[:5]
