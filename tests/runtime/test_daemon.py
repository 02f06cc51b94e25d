"""As its clients meet the daemon, acknowledged records are in the stream, and a caller that finds no room waits."""

from __future__ import annotations

import base64
import re
from collections import Counter
from typing import Any

import pytest

from producerd.ctl.daemon import AdminClient
from producerd.errors import Code
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer
from producerd.wire import messages
from producerd.wire.columns import lay_out
from spark_client.connection import Connection
from tests.daemon import WireClient, conserved, daemon, data_of, idle, rows, session, until

HELLO = messages.Hello(1, 1)


def read_with_boto3(server: FakeServer, stream: str) -> list[dict[str, Any]]:
    import boto3

    client = boto3.client(
        "kinesis",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    records: list[dict[str, Any]] = []
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        records += client.get_records(ShardIterator=iterator)["Records"]
    client.close()
    return records


@pytest.mark.parametrize("aggregation", ["none", "kpl"])
@pytest.mark.law("Frame")
def test_what_is_acknowledged_is_read_back_by_a_consumer_that_is_not_ours(
    kinesis: FakeKinesis, server: FakeServer, aggregation: str
) -> None:
    from aws_kinesis_agg.deaggregator import deaggregate_records

    sent = [rows(700, name=f"frame{i}") for i in range(5)]
    with daemon(server.url, aggregation=aggregation) as running, Connection(HELLO, [str(running.socket)]) as client:
        for columns in sent:
            client.put("flights", columns)
        client.flush(20)
        assert client.tally.stored == 3_500
        assert (client.tally.failures, client.tally.returned) == ((), 0)
        raw = read_with_boto3(server, "flights")
        metrics = running.metrics()
        assert running.get("/-/ready") == (200, "ready\n")
    # aws_kinesis_agg takes the records as a Lambda function gets them.
    events = [
        {
            "kinesis": {
                "data": base64.b64encode(record["Data"]).decode(),
                "partitionKey": record["PartitionKey"],
                "sequenceNumber": record["SequenceNumber"],
                "kinesisSchemaVersion": "1.0",
                "approximateArrivalTimestamp": 0.0,
            }
        }
        for record in raw
    ]
    users = [event["kinesis"] for event in deaggregate_records(events)]
    read = Counter(base64.b64decode(user["data"]) for user in users)
    assert read == Counter(data for columns in sent for data in data_of(columns))
    assert {user["partitionKey"] for user in users} == {f"key-{i}" for i in range(97)}
    assert (len(raw) == 3_500) == (aggregation == "none")
    assert conserved(metrics)
    assert metrics["delivered_records_total"] == 3_500
    assert idle(metrics)


@pytest.mark.law("AdmissionGate")
@pytest.mark.law("QueueBudget")
def test_a_full_queue_blocks_the_second_caller_until_there_is_room(kinesis: FakeKinesis, server: FakeServer) -> None:
    kinesis.standing.append(Fault("hang"))
    with (
        daemon(server.url, queue_limit=100) as running,
        session(running) as first,
        session(running) as second,
    ):
        first.put(rows(25))
        first.put(rows(25))
        first.put(rows(25))
        second.put(rows(20))
        blocked = second.reserve(rows(20).layout)
        assert second.hears_nothing()
        assert running.metrics()["backpressure_blocked_clients"] == 1
        until(lambda: running.metrics()["inflight_requests"] > 0, "the request that hangs")
        second.send(messages.Status(1))
        status = second.expect(messages.Blocked)
        assert (status.queue_records, status.queue_limit_records) == (95, 100)
        kinesis.standing.clear()
        server.release()
        told = [second.read(), second.read()]  # in which order, the shards decide
        assert [message.stored for message in told if isinstance(message, messages.Ack)] == [20]
        assert [message.frame_id for message in told if isinstance(message, messages.Grant)] == [blocked]
        second.send(second.body(blocked, rows(20)))
        assert second.acks()[0].stored == 20
        assert sum(ack.stored for ack in first.acks(3)) == 75
        metrics = running.metrics()
        assert metrics["backpressure_wait_seconds_count"] == 1
        assert idle(metrics)


@pytest.mark.parametrize("record_bytes", [3 << 20, (10 << 20) + 5_000], ids=["by a setting", "judged"])
def test_a_record_for_which_there_is_never_room_fails_what_its_session_sends_later(
    server: FakeServer, record_bytes: int
) -> None:
    """With ``per_key``, as a bad row of a frame does.  A judged one fails nothing where good rows are to be taken."""
    with daemon(server.url, ordering="per_key", queue_limit_bytes="2MiB") as running:
        for takes_good in (False, True):
            with session(running, take_good=takes_good) as client:
                client.reserve(lay_out([b"k"], [bytes(record_bytes)]).layout)
                refused = client.expect(messages.Refused)
                client.put(rows(1))
                (ack,) = client.acks()
            assert ack.stored == int(takes_good and refused.judged)


def test_kinesis_itself_judges_a_record_above_the_limit_that_the_daemon_knows(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    stream = kinesis.streams["flights"]
    frame = lay_out([b"a", b"b", b"c"], [b"good", b"x" * 1_200_000, b"good"])
    with (
        daemon(server.url, tuning={"max_frame_bytes": 4 << 20}, node_queue_limit_bytes="1 GiB") as running,
        session(running, take_good=True) as client,
        WireClient(running.socket).hello() as other,
    ):
        other.send(messages.Open(1, "flights", dry_run=1))  # which has the stream's limit read at once
        until(lambda: kinesis.requests["DescribeStreamSummary"] == 1)
        client.put(frame)
        (ack,) = client.acks()
        assert ack.stored == 2
        ((row, why),) = ack.failed_rows()
        assert (row, why.code, why.judged) == (1, Code.RECORD_TOO_LARGE, True)
        stream.max_record_kib = 10_240
        asked = kinesis.requests["DescribeStreamSummary"]
        client.put(frame)
        assert client.acks()[0].stored == 3
        stream.max_record_kib = 1_024
        client.put(frame)
        assert client.acks()[0].stored == 2
        assert kinesis.requests["DescribeStreamSummary"] == asked


@pytest.mark.promise("listed-users-send")
def test_streams_allowed_listed_takes_no_other(kinesis: FakeKinesis, server: FakeServer) -> None:
    listed: dict[str, Any] = {'streams."flights".linger_seconds': 0.0}
    with daemon(server.url, streams_allowed="listed", **listed) as running, session(running) as client:
        client.send(messages.Open(2, "clicks"))
        refused = client.expect(messages.Refused)
        assert refused.code == Code.NOT_AUTHORIZED
        assert '[streams."clicks"]' in refused.message
        admin = running.socket.with_name("daemon.admin.sock")
        (trouble,) = AdminClient(str(admin)).get("/status")["troubles"]
        assert re.match(r"clients are turned away, the last \d+ s ago: the daemon takes listed streams only", trouble)
        client.put(rows(4))
        assert client.acks()[0].stored == 4
        assert running.metrics()["refused_opens_total[NOT_AUTHORIZED]"] == 1
