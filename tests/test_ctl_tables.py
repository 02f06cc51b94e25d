"""`producerctl` shows each number that the daemon answers in its column, and says what is missing in words."""

from __future__ import annotations

import pytest

from producerd.ctl.tables import rates, shards, status
from tests.ctl_asking import node, shard, stream

HEAD = "producerd 1.2 on n7: serving, 1 connection, queues 1.5 of 2,048 MiB"


def test_the_status_has_a_line_for_each_stream_and_below_it_why_records_wait() -> None:
    """Those in trouble come first."""
    shown = stream(paused=True, reason="the queue is full", last_error="no\x1b[31m such\nstream")
    calm, broken = stream(stream="a", blocked_callers=0), stream(stream="z", health="broken")
    assert list(status(node(calm, stream(stream="b"), shown, broken))) == [
        HEAD,
        "STREAM   HEALTH   RECORDS     OF  MIB   OF  BLOCKED  IN FLIGHT  SHARDS",
        "z        broken     1,500  6,000  1.5  3.0    2,001      1,007   1,004",
        "flights  paused     1,500  6,000  1.5  3.0    2,001      1,007   1,004",
        "b        working    1,500  6,000  1.5  3.0    2,001      1,007   1,004",
        "a        working    1,500  6,000  1.5  3.0        0      1,007   1,004",
        "z: callers fail and keep their records; the daemon tries again by itself",
        "flights: the queue is full",
        "flights: nothing is lost: callers wait when the queue is full",
        "flights: last error: no [31m such stream",
    ]
    left = stream(blocked_callers=0, records_without_caller=1, failed_reasons={"KMS": 1_000, "EXPIRED": 2})
    assert list(status(node(left)))[3:] == [
        "flights: 1 record of callers that have left: a stop loses those that the drain does not store",
        "flights: failed since the daemon's start, as their callers know: KMS 1,000, EXPIRED 2",
    ]


def test_the_status_says_what_the_daemon_as_a_whole_lacks() -> None:
    none = "no client has opened a stream yet"
    assert list(status(node())) == [HEAD, none]
    assert list(status(node(unready="it has no credentials"))) == [HEAD, "it has no credentials", none]
    wrong = ["its clock\nis off"]
    assert list(status(node(troubles=wrong))) == list(rates(node(troubles=wrong), node()))
    assert list(status(node(troubles=wrong))) == [HEAD, "its clock is off", none]
    draining = list(status(node(state="draining", unready="draining", log_level="debug", connections=1_002)))
    assert draining == [
        "producerd 1.2 on n7: draining, 1,002 connections, queues 1.5 of 2,048 MiB, log level debug",
        none,
    ], "why it is not ready stands in the first line"


def test_the_rates_are_what_came_since_the_reply_before() -> None:
    before = node(
        stream(
            ingest_records=10_000, delivered_records=15_000, delivered_bytes=0, record_retries=20, blocked_seconds=2.0
        ),
        uptime_seconds=16.0,
    )
    new = stream(stream="new", queue_records=0, queue_bytes=0, reason="it has just begun")
    assert list(rates(node(new, stream()), before)) == [
        HEAD,
        "STREAM   HEALTH    IN/S  STORED/S  MIB/S  QUEUE  OLDEST S  BLOCKED  OF TIME  RETRIES/S  FAILED",
        "flights  working  5,000     1,250   2.50    50%       8.2    2,001      25%          5   1,002",
        "new      working  7,500     5,000   2.50     0%       8.2    2,001      75%         10   1,002",
        "new: it has just begun",
    ]
    assert list(rates(node(), before)) == [HEAD, "no client has opened a stream yet"]


def test_rates_are_not_negative_and_no_caller_is_blocked_for_longer_than_always() -> None:
    before = node(stream(ingest_records=40_000, blocked_seconds=0.0), uptime_seconds=19.0)
    _, head, row = rates(node(stream()), before)
    values = dict(zip(head.replace(" S ", "-S ").replace("OF TIME", "OF-TIME").split(), row.split(), strict=True))
    assert (values["IN/S"], values["OF-TIME"]) == ("0", "100%")


@pytest.mark.parametrize(("records", "size", "full"), [(3_000, 0, "50%"), (0, 3 << 20, "100%")])
def test_a_queue_is_as_full_as_the_nearer_of_its_limits(records: int, size: int, full: str) -> None:
    _, head, row = rates(node(stream(queue_records=records, queue_bytes=size)), node(uptime_seconds=0.0))
    assert f" {full} " in row
    assert head.index("QUEUE") + len("QUEUE") == row.index(full) + len(full), "numbers end where their head ends"


def test_shards_are_shown_with_those_first_for_which_most_waits() -> None:
    hot = shard(
        2, waiting_records=2_000, waiting_bytes=5 << 19, share=0.9, waits_for="its rate", backs_off=True, use=1.0
    )
    sends = shard(1, in_flight=1_003)
    used = shard(3, use=0.005)
    waits = shard(5, waiting_records=1)
    assert list(shards({"stream": "flights", "shards": [shard(0), sends, used, hot, shard(4, use=0.004), waits]})) == [
        "SHARD        WAITING  MIB  SHARE  IN FLIGHT  RECORDS/S  MIB/S   USE  WAITS FOR",
        "shardId-002    2,000  2.5    90%          0      1,000   1.50  100%  its rate, throttled",
        "shardId-003        0  0.0     0%          0      1,000   1.50    0%  -",
        "shardId-001        0  0.0     0%      1,003      1,000   1.50    0%  -",
        "shardId-005        1  0.0     0%          0      1,000   1.50    0%  -",
        "2 shards with nothing to send",
    ]
    assert list(shards({"stream": "flights", "shards": []})) == ["flights: its shards are not known"]
    assert list(shards({"stream": "flights", "shards": [shard(0)]})) == ["1 shard with nothing to send"]
    of_retries = {"queue_records": 3_200, "reason": "the service does not take them"}
    assert list(shards({"stream": "flights", **of_retries, "shards": [shard(0)]}))[1:] == [
        "flights: 3,200 records in the queue, retries included: the service does not take them"
    ]


@pytest.mark.parametrize(("more", "said"), [(0, []), (1, ["1 shard with less: --json has them all"])])
def test_of_many_shards_the_busiest_are_shown_and_the_others_counted(more: int, said: list[str]) -> None:
    busy = [shard(number, waiting_records=1, waiting_bytes=number) for number in range(20 + more)]
    _, *lines = shards({"stream": "flights", "shards": busy})
    assert [line.split()[0] for line in lines[:20]] == [
        f"shardId-{number:03}" for number in range(19 + more, more - 1, -1)
    ]
    assert lines[20:] == said
