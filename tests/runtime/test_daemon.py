"""As its clients meet the daemon, acknowledged records are in the stream, and a caller that finds no room waits."""

from __future__ import annotations

import base64
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from producerd.ctl.daemon import AdminClient
from producerd.errors import BackpressureTimeout, Code, Outcome
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer
from producerd.wire import frames
from producerd.wire.columns import lay_out
from spark_client.connection import Connection
from tests.daemon import conserved, daemon, data_of, idle, one, rows, session, until

HELLO = frames.Hello(1, 1)


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
        metrics = running.metrics()
        assert metrics["backpressure_blocked_clients"] == 1
        assert metrics["backpressure_active_seconds_total"] > 0.1
        assert metrics["queue_records"] == 95
        assert metrics["queue_limit_records"] == 100
        until(lambda: running.metrics()["inflight_requests"] > 0, "the request that hangs")
        second.send(frames.Status(1))
        status = second.expect(frames.Blocked)
        assert (status.queue_records, status.queue_limit_records) == (95, 100)
        assert status.requests_in_flight > 0
        assert "limit" in status.reason
        kinesis.standing.clear()
        server.release()
        told = [second.read(), second.read()]  # in which order, the shards decide
        assert [message.stored for message in told if isinstance(message, frames.Ack)] == [20]
        assert [message.frame_id for message in told if isinstance(message, frames.Grant)] == [blocked]
        second.send(second.body(blocked, rows(20)))
        assert second.acks()[0].stored == 20
        assert sum(ack.stored for ack in first.acks(3)) == 75
        metrics = running.metrics()
        assert metrics["backpressure_wait_seconds_count"] == 1
        assert metrics["backpressure_wait_seconds_sum"] > 0.1
        assert metrics["backpressure_blocked_clients"] == 0
        assert metrics["queue_peak_records"] <= 100
        assert idle(metrics)


@pytest.mark.law("AdmissionGate")
def test_a_caller_whose_time_is_over_leaves_nothing_and_is_told_the_numbers_and_the_last_error(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    kinesis.standing.append(Fault("error", status=500, message="the disks are on fire"))
    with daemon(server.url, queue_limit=10) as running:
        with session(running) as holder, Connection(HELLO, [str(running.socket)]) as caller:
            holder.put(rows(2))
            holder.put(rows(2))
            caller.open("flights")
            until(lambda: running.metrics()["put_requests_total[failed]"] > 0)
            before = running.metrics()
            for _ in range(2):
                caller.put("flights", rows(2), 5)
            with pytest.raises(BackpressureTimeout) as raised:
                caller.put("flights", rows(2), 0.3)
            text = str(raised.value)
            assert "8 of 10 records" in text
            assert "requests in flight" in text
            assert "the disks are on fire" in text
            after = running.metrics()
            assert after["queue_records"] == before["queue_records"] + 4
            assert after["backpressure_blocked_clients"] == 0
        until(lambda: idle(running.metrics()), "what the callers held is discarded")
        metrics = running.metrics()
        assert metrics["discarded_records_total[disconnected]"] == 8
        assert conserved(metrics)


@pytest.mark.law("Row")
def test_the_rows_of_a_caller_who_vanishes_are_discarded_and_others_go_on(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    kinesis.script(Fault("hang"))
    with daemon(server.url, max_in_flight_requests=1, queue_limit=1_000) as running, session(running) as other:
        other.put(rows(5, name="held"))  # the one request, which hangs
        until(lambda: kinesis.replies["hang"] == 1)
        gone = session(running)
        gone.put(rows(100, name="gone"))
        gone.put(rows(100, name="gone"))
        gone.close()
        until(lambda: running.metrics()["discarded_records_total[disconnected]"] == 200)
        other.put(rows(7, name="kept"))
        server.release()
        assert [ack.stored for ack in other.acks(2)] == [5, 7]
        until(lambda: idle(running.metrics()))
        assert conserved(running.metrics())
    read = [user.data for user in kinesis.streams["flights"].read().records]
    assert sorted(read) == sorted(data_of(rows(5, name="held")) + data_of(rows(7, name="kept")))


def test_queue_limit_1_carries_one_record_at_a_time(kinesis: FakeKinesis, server: FakeServer) -> None:
    with daemon(server.url, queue_limit=1, linger_seconds=60) as running:
        with session(running) as first, session(running) as second:
            for number in range(10):
                client = (first, second)[number % 2]
                client.put(one(b"%d" % number))
                assert client.acks()[0].stored == 1
            first.send(frames.Reserve(100, 1, rows(2).layout))
            refused = first.expect(frames.Refused)
            assert (refused.code, refused.max_frame_records) == (Code.TOO_LARGE, 1)
            metrics = running.metrics()
        assert metrics["queue_peak_records"] == 1
        assert metrics["delivered_records_total"] == 10


def test_a_large_record_is_carried_beside_other_sessions_and_one_over_the_limit_is_refused(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    """A large one is over an eighth of the limit.  The refusal names the setting."""
    kinesis.latency_seconds = 0.02
    large = one(b"x" * 60_000)

    def put(_: int) -> int:
        with session(running) as client:
            for _turn in range(4):
                client.put(large)
                assert client.acks()[0].stored == 1
            client.reserve(one(b"x" * 70_000).layout)
            refused = client.expect(frames.Refused)
            assert (refused.code, refused.judged) == (Code.CONFIGURATION, 0)
            assert "queue_limit_bytes = 65536" in refused.message
            return 4

    with daemon(server.url, queue_limit_bytes=65_536) as running, ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(put, range(3))) == 12
        metrics = running.metrics()
    assert metrics["queue_peak_bytes"] <= 65_536
    assert len(kinesis.streams["flights"].entries()) == 12


BAD: list[tuple[bytes, bytes | None, bytes | None, str, str]] = [
    (b"s3cret" * 50, b"ok", None, Code.RECORD_INVALID, "256 characters"),
    (b"\xff\xfes3cret", b"ok", None, Code.RECORD_INVALID, "UTF-8"),
    (b"k", b"s3cret", b"12s3cret", Code.RECORD_INVALID, "hash key"),
    (b"k", b"s3cret", b"%d" % 2**128, Code.RECORD_INVALID, "hash key"),
    (b"k", None, None, Code.RECORD_INVALID, "null"),
]


def test_kinesis_itself_judges_a_record_above_the_limit_that_the_daemon_knows(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    stream = kinesis.streams["flights"]
    frame = lay_out([b"a", b"b", b"c"], [b"good", b"x" * 1_200_000, b"good"])
    with (
        daemon(server.url, max_frame_bytes="4 MiB", node_queue_limit_bytes="1 GiB") as running,
        session(running, take_good=True) as client,
    ):
        until(lambda: "shards read" in running.log)  # the stream's size was read before
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


def test_a_bad_record_is_told_by_its_number_and_reason_and_never_by_its_data(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    with daemon(
        server.url, max_frame_bytes="4 MiB", node_queue_limit_bytes="1 GiB", log_level="debug", aggregation="kpl"
    ) as running:
        with session(running) as strict, session(running, take_good=True) as lenient:
            until(lambda: "shards read" in running.log)  # the stream's size was read before
            for key, data, hash_key, code, reason in BAD:
                hash_keys = None if hash_key is None else [b"7", hash_key, b""]
                frame = lay_out([b"a", key, b"c"], [b"good", data, b"good"], hash_keys)
                strict.put(frame)
                ack = strict.acks()[0]
                assert (ack.stored, ack.not_stored) == (0, 3)
                told = {row: (line.code, line.message) for row, line in ack.failed_rows()}
                assert told[1][0] == code
                assert reason in told[1][1]
                assert told[0] == told[2] == (Code.FRAME_REFUSED, "not taken, because other rows of its frame are bad")
                lenient.put(frame)
                ack = lenient.acks()[0]
                assert (ack.stored, ack.not_stored) == (2, 1)
                ((row, line),) = ack.failed_rows()
                assert (row, line.outcome, line.code) == (1, Outcome.NOT_STORED, code)
                assert "s3cret" not in line.message
            metrics = running.metrics()
        assert metrics["ingest_rejected_records_total"] == 20
        assert metrics["ingest_rejected_records_total[FRAME_REFUSED]"] == 10
        assert metrics["ingest_records_total"] == metrics["delivered_records_total"] == 10
        assert idle(metrics)
        assert conserved(metrics)
        assert "s3cret" not in running.log


def test_a_flush_sends_without_lingering(kinesis: FakeKinesis, server: FakeServer) -> None:
    """Records without a key are spread over the shards, and counted."""
    with daemon(server.url, linger_seconds=3_600) as running, session(running) as client:
        client.put(lay_out([None, b""] * 100, [b"d%d" % i for i in range(200)]))
        assert client.hears_nothing()
        client.send(frames.Flush())
        (ack,) = client.acks()
        assert (ack.stored, ack.spread_keys) == (200, 200)
        assert running.metrics()["flushes_total[flush]"] == 1
    shards = Counter(entry.shard_id for entry in kinesis.streams["flights"].entries())
    assert len(shards) == 4
    assert min(shards.values()) > 20


@pytest.mark.law("AdmissionGate")
def test_a_caller_who_waits_flushes_what_lingers(kinesis: FakeKinesis, server: FakeServer) -> None:
    kinesis.create_stream("narrow", shards=1)
    kinesis.standing.append(Fault("hang"))
    with (
        daemon(
            server.url, linger_seconds=3_600, queue_limit=20, max_in_flight_requests=1, request_timeout_seconds=0.5
        ) as running,
        session(running, "narrow") as first,
        session(running, "narrow") as second,
    ):
        for _ in range(3):
            first.put(rows(5))  # each seals by its size
        first.put(rows(2))
        until(lambda: server.in_flight == 1)
        assert running.metrics()["flushes_total[pressure]"] == 0
        waiting = second.reserve(rows(5).layout)
        # Not while sealed work waits that may be sent: so when that has been tried.
        until(lambda: running.metrics()["flushes_total[pressure]"] == 1)
        kinesis.standing.clear()
        server.release()
        assert second.expect(frames.Grant).frame_id == waiting
        second.send(second.body(waiting, rows(5)))
        assert second.acks()[0].stored == 5
        assert sum(ack.stored for ack in first.acks(4)) == 17


@pytest.mark.promise("listed-users-send")
def test_streams_allowed_listed_takes_no_other(kinesis: FakeKinesis, server: FakeServer) -> None:
    listed: dict[str, Any] = {'streams."flights".linger_seconds': 0.0}
    with daemon(server.url, streams_allowed="listed", **listed) as running, session(running) as client:
        client.send(frames.Open(2, "clicks"))
        refused = client.expect(frames.Refused)
        assert refused.code == Code.NOT_AUTHORIZED
        assert '[streams."clicks"]' in refused.message
        admin = running.socket.with_name("daemon.admin.sock")
        (trouble,) = AdminClient(str(admin)).get("/status")["troubles"]
        assert re.match(r"clients are turned away, the last \d+ s ago: the daemon takes listed streams only", trouble)
        client.put(rows(4))
        assert client.acks()[0].stored == 4
        assert running.metrics()["refused_opens_total[NOT_AUTHORIZED]"] == 1
