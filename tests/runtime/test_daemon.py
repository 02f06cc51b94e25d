"""As its clients meet the daemon, acknowledged records are in the stream, and a caller that finds no room waits."""

from __future__ import annotations

import base64
import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from producerd.ctl.daemon import AdminClient
from producerd.errors import BackpressureTimeout, Code, Outcome
from producerd.runtime.metrics import NEVER_STORED
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer
from producerd.wire import frames
from producerd.wire.columns import lay_out
from spark_client.connection import Connection
from tests.daemon import WireClient, conserved, daemon, data_of, idle, one, rows, session, until

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


def test_many_streams_are_carried_at_once_and_each_has_numbers_of_its_own(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    streams = [kinesis.create_stream(f"s{i}", shards=2) for i in range(12)]

    def put(number: int) -> int:
        with Connection(HELLO, [str(running.socket)]) as client:
            for stream in range(number, number + 4):
                client.put(f"s{stream % 12}", rows(100, name=f"c{number}"), 10)
            client.flush(20)
            return client.tally.stored

    with daemon(server.url) as running, ThreadPoolExecutor(12) as pool:
        assert list(pool.map(put, range(12))) == [400] * 12
        text = running.get("/metrics")[1]
    delivered = {
        sample.labels["stream"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "producerd_delivered_records_total"
    }
    assert delivered == {f"s{i}": 400 for i in range(12)} | {NEVER_STORED: 0}
    assert [len(stream.read().records) for stream in streams] == [400] * 12


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


def test_a_record_over_an_eighth_of_the_limit_is_carried_beside_other_sessions(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    kinesis.latency_seconds = 0.02
    large = one(b"x" * 60_000)

    def put(_: int) -> int:
        with session(running) as client:
            for _turn in range(4):
                client.put(large)
                assert client.acks()[0].stored == 1
            return 4

    with daemon(server.url, queue_limit_bytes=65_536) as running, ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(put, range(3))) == 12
        metrics = running.metrics()
    assert metrics["queue_peak_bytes"] <= 65_536
    assert len(kinesis.streams["flights"].entries()) == 12


def test_a_record_over_the_whole_limit_is_refused_and_the_setting_is_named(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    with daemon(server.url, queue_limit_bytes=65_536) as running, session(running) as client:
        client.reserve(one(b"x" * 70_000).layout)
        refused = client.expect(frames.Refused)
        assert (refused.code, refused.judged) == (Code.CONFIGURATION, 0)
        assert "queue_limit_bytes = 65536" in refused.message
        client.put(one())
        assert client.acks()[0].stored == 1


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


def test_a_client_appears_in_the_log_as_its_process_and_as_the_task_that_it_says(server: FakeServer) -> None:
    task = frames.Hello(1, 1, client="spark", pid=7, application_id="app-1", stage_id=3, partition=5, attempt=1)
    with (
        daemon(server.url, log_level="debug") as running,
        WireClient(running.socket) as one,
        WireClient(running.socket) as other,
    ):
        one.send(task)
        own = f"uid {os.getuid()} pid {os.getpid()}, which calls itself"
        until(lambda: f"client=\"{own} 'spark pid 7 app-1 stage 3 partition 5 attempt 1'\" " in running.log)
        other.send(frames.Hello(1, 1, pid=8))
        until(lambda: f"client=\"{own} 'client pid 8'\" " in running.log)


def test_null_and_empty_keys_are_spread_over_the_shards_and_counted(kinesis: FakeKinesis, server: FakeServer) -> None:
    with daemon(server.url) as running, session(running) as client:
        client.put(lay_out([None, b""] * 100, [b"d%d" % i for i in range(200)]))
        ack = client.acks()[0]
        assert (ack.stored, ack.spread_keys) == (200, 200)
    shards = Counter(entry.shard_id for entry in kinesis.streams["flights"].entries())
    assert len(shards) == 4
    assert min(shards.values()) > 20


def test_a_flush_sends_without_lingering(kinesis: FakeKinesis, server: FakeServer) -> None:
    with daemon(server.url, linger_seconds=3_600) as running, session(running) as client:
        client.put(rows(10))
        assert client.hears_nothing()
        client.send(frames.Flush())
        assert client.acks()[0].stored == 10
        assert running.metrics()["flushes_total[flush]"] == 1


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


def test_metrics_and_ready_speak_what_prometheus_reads(kinesis: FakeKinesis, server: FakeServer) -> None:
    with daemon(server.url) as running, session(running) as client:
        client.put(rows(10))
        client.acks()
        assert running.get("/-/ready") == (200, "ready\n")
        assert running.get("/-/healthy")[0] == running.get("/version")[0] == 200
        assert running.get("/nothing")[0] == 404
        names = {family.name for family in text_string_to_metric_families(running.get("/metrics")[1])}
    families = {"ingest_records", "ingest_bytes", "delivered_records", "failed_records", "discarded_records"}
    families |= {"queue_records", "queue_bytes", "queue_limit_records", "queue_limit_bytes"}
    families |= {"backpressure_blocked_clients", "backpressure_active_seconds", "backpressure_wait_seconds"}
    assert {f"producerd_{family}" for family in families} <= names


def test_max_connections_refuses_one_client_more_and_takes_the_next_when_one_has_gone(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    with daemon(server.url, max_connections=2, linger_seconds=5) as running:
        first, second = session(running), session(running)
        for client in (first, second):
            client.put(rows(3))  # so it is owed an acknowledgement, and not idle
        with WireClient(running.socket) as third:
            (close,) = third.read_to_end()
            assert isinstance(close, frames.Close)
            why = "max_connections = 2 clients are connected, and none of them makes place now"
            assert (close.code, close.message) == (Code.CONNECTION_LIMIT, why)
        first.send(frames.Flush())
        first.acks()
        with session(running) as fourth:
            (close,) = first.read_to_end()
            assert isinstance(close, frames.Close)
            assert close.code == Code.TABLE_FULL
            fourth.put(rows(3))
            fourth.send(frames.Flush())
            assert fourth.acks()[0].stored == 3
        first.close()
        second.send(frames.Flush())
        assert second.acks()[0].stored == 3
        second.close()


def test_max_streams_refuses_one_more_and_a_name_that_never_worked_makes_place(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    kinesis.create_stream("clicks")
    with (
        daemon(server.url, max_streams=2) as running,
        session(running) as client,
        session(running, stream="flihgts") as mistaken,
    ):
        client.put(rows(1))
        client.acks()
        client.send(frames.Open(2, "clicks"))
        refused = client.expect(frames.Refused)
        assert (refused.frame_id, refused.stream_id, refused.code) == (0, 2, Code.STREAM_LIMIT)
        assert "max_streams = 2" in refused.message
        mistaken.close()
        until(lambda: running.metrics()["client_connections"] == 1)
        client.open("clicks", 2)
        client.put(rows(4), stream_id=2)
        assert client.acks()[0].stored == 4


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


def test_each_session_has_a_number_of_its_own(kinesis: FakeKinesis, server: FakeServer) -> None:
    """By which the log tells the clients apart."""
    with daemon(server.url) as running, session(running) as first, session(running) as second:
        assert first.welcome is not None
        assert second.welcome is not None
        assert first.welcome.session_id < second.welcome.session_id
