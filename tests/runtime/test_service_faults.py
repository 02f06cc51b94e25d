"""The daemon reports refusals of the service to the caller, and waits until an outage ends."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from producerd.ctl.daemon import AdminClient
from producerd.errors import BackpressureTimeout, Code, Outcome
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from producerd.wire import frames
from spark_client.connection import Connection
from tests.daemon import CREDENTIALS, conserved, daemon, data_of, idle, one, rows, session, until


def why(ack: frames.Ack) -> set[tuple[int, str]]:
    return {(line.outcome, line.code) for line in ack.codes}


@pytest.mark.promise("error-kinesis-logged")
def test_an_error_of_kinesis_is_logged_and_shown_with_its_request_id(kinesis: FakeKinesis, server: FakeServer) -> None:
    """AWS's support asks for it.  Callers get the message without it: many records have one message."""
    with daemon(server.url) as running, session(running, "flihgts") as client:
        client.put(one())
        (told,) = client.acks()[0].codes
        (stream,) = AdminClient(str(running.socket.with_suffix(".admin.sock"))).get("/status")["streams"]
        shown = re.search(r"^STREAM_NOT_FOUND: .* \(request id ([0-9a-f-]{36})\)$", stream["last_error"])
        assert shown is not None, stream["last_error"]
        assert shown[1] not in told.message
        line = re.compile("stream is refused by the service .* request_id=[0-9a-f-]{36}\n")
        until(lambda: line.search(running.log))


@pytest.mark.promise("list-shards-plain-records")
def test_without_list_shards_plain_records_flow_and_aggregates_are_refused(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    kinesis.denied = {"ListShards", "DescribeStreamSummary"}
    kinesis.create_stream("packed")
    packed: dict[str, Any] = {'streams."packed".aggregation': "kpl"}
    with (
        daemon(server.url, shard_map_wait_seconds=0.5, **packed) as running,
        session(running) as plain,
        session(running, "packed") as client,
    ):
        plain.put(rows(100))
        assert plain.acks()[0].stored == 100
        began = time.monotonic()
        client.put(rows(100))
        ack = client.acks()[0]
        assert 0.3 < time.monotonic() - began < 5
        assert why(ack) == {(Outcome.NOT_STORED, Code.SHARD_MAP_MISSING)}
        assert "kinesis:ListShards" in ack.codes[0].message
        assert "AccessDenied" in ack.codes[0].message
        client.reserve(one().layout)
        assert client.expect(frames.Refused).code == Code.SHARD_MAP_MISSING
        metrics = running.metrics()
        assert idle(metrics)
        assert metrics["refused_records_total"] == 1
        assert metrics["stream_up"] == 1, "of two streams, one is refused"


def test_kinesis_unreachable_at_start_blocks_callers_and_everything_arrives_when_it_comes_up(
    kinesis: FakeKinesis,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with daemon(f"http://127.0.0.1:{port}", queue_limit=200) as running:
        assert running.get("/-/ready") == (200, "ready\n")
        with Connection(frames.Hello(1, 1), [str(running.socket)]) as client, session(running):
            for first in range(0, 150, 50):
                client.put("flights", rows(50, name=f"frame{first}"), 5)
            sent = 150
            with pytest.raises(BackpressureTimeout) as raised:
                client.put("flights", rows(50), 1.5)
            assert "Could not connect" in str(raised.value)
            assert f"{sent} of 200 records" in str(raised.value)
            assert running.get("/-/ready") == (200, "ready\n")
            with serve_in_thread(kinesis, port=port):
                client.flush(20)
                assert client.tally.stored == sent
                assert idle(running.metrics())
    stored = Counter(user.data for user in kinesis.streams["flights"].read().records)
    assert stored == Counter(data for first in range(0, sent, 50) for data in data_of(rows(50, name=f"frame{first}")))


@pytest.mark.promise("lost-answers-resets")
def test_lost_answers_and_resets_are_counted_as_possible_duplicates(kinesis: FakeKinesis, server: FakeServer) -> None:
    kinesis.script(Fault("lost"), Fault("reset"), Fault("lost"))
    with daemon(server.url) as running, session(running) as client:
        client.put(rows(100))
        ack = client.acks()[0]
        assert (ack.stored, ack.possible_duplicates) == (100, 300), "each copy counts, and the reset may have made one"
        metrics = running.metrics()
        assert metrics["possible_duplicate_records_total"] == 300
        assert metrics["record_retries_total"] == 300
        assert conserved(metrics)
    copies = Counter(entry.data for entry in kinesis.streams["flights"].entries())
    assert set(copies) == set(data_of(rows(100)))
    assert set(copies.values()) == {3}


@pytest.mark.promise("refusal-kinesis-itself")
def test_a_record_that_is_stored_and_refused_by_a_proxy_counts_as_copies(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    """The daemon halves the request each time, and finds no bad record."""
    kinesis.script(Fault("replaced", status=413, requests=3), Fault("replaced", status=403))
    with daemon(server.url) as running, session(running) as client:
        client.put(rows(100))
        ack = client.acks()[0]
        assert ack.stored == 100
        assert running.metrics()["possible_duplicate_records_total"] == ack.possible_duplicates
    copies = Counter(entry.data for entry in kinesis.streams["flights"].entries())
    assert copies.keys() == set(data_of(rows(100)))
    assert copies.total() - 100 == ack.possible_duplicates > 100


@pytest.mark.promise("lost-answers-resets")
@pytest.mark.parametrize("fault", [Fault("lost", fraction=0.5), Fault("replaced", fraction=0.5, status=413)])
def test_where_half_of_the_answers_are_lost_every_surplus_copy_is_counted(
    kinesis: FakeKinesis, server: FakeServer, fault: Fault
) -> None:
    kinesis.standing.append(fault)
    with daemon(server.url, request_max_records=50) as running, session(running) as client:
        client.put(rows(1_000))
        ack = client.acks()[0]
        assert ack.stored == 1_000
        assert running.metrics()["possible_duplicate_records_total"] == ack.possible_duplicates
    copies = Counter(entry.data for entry in kinesis.streams["flights"].entries())
    assert copies.total() - 1_000 == ack.possible_duplicates
    assert ack.possible_duplicates > sum([count > 1 for count in copies.values()]), "some have several copies"


@pytest.mark.promise("time-out-before-connection")
def test_a_refused_connection_makes_no_possible_duplicates(kinesis: FakeKinesis, server: FakeServer) -> None:
    kinesis.script(Fault("error", status=400), Fault("throttle", entries=30))
    with daemon(server.url) as running, session(running) as client:
        client.put(rows(100))
        ack = client.acks()[0]
        assert (ack.stored, ack.possible_duplicates, ack.throttled) == (100, 0, 30)
        assert running.metrics()["possible_duplicate_records_total"] == 0
    assert len(kinesis.streams["flights"].entries()) == 100


@pytest.mark.promise("request-given-up-resets")
@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "tls"])
@pytest.mark.law("Dispatcher")
def test_a_request_that_is_given_up_resets_its_connection_at_once(kinesis: FakeKinesis, tls: bool) -> None:
    kinesis.standing.append(Fault("hang"))
    with serve_in_thread(kinesis, tls=tls) as serving:
        environ = CREDENTIALS | ({"AWS_CA_BUNDLE": str(serving.certificate)} if tls else {})
        with (
            daemon(serving.url, environ=environ, request_timeout_seconds=0.3) as running,
            session(running) as client,
        ):
            client.put(rows(100))
            until(lambda: serving.in_flight == 1)
            closed = serving.connections_closed
            until(lambda: serving.in_flight == 0, "the first request is given up", 3)
            until(lambda: serving.connections_closed > closed, "and its connection is gone", 1)
            until(lambda: kinesis.requests["PutRecords"] >= 2)
            assert serving.in_flight_peak <= 2
            kinesis.standing.clear()
            ack = client.acks()[0]
            assert ack.stored == 100
            assert ack.possible_duplicates >= 100, "each time-out makes a copy"


@pytest.mark.law("Row")
@pytest.mark.law("Frame")
@pytest.mark.parametrize("aggregation", ["none", "kpl"])
def test_nothing_is_lost_and_every_scrape_adds_up_while_everything_fails_now_and_then(
    kinesis: FakeKinesis, server: FakeServer, aggregation: str
) -> None:
    kinesis.latency_seconds = (0.0, 0.05)
    kinesis.standing += [
        Fault("reset", fraction=0.05),
        Fault("lost", fraction=0.05),
        Fault("error", status=503, fraction=0.05),
        Fault("hang", fraction=0.01),
        Fault("miscount", count=-1, fraction=0.03),
        Fault("throttle", fraction=0.05),
        Fault("fail", fraction=0.02),
    ]
    ended = threading.Event()
    scrapes: list[dict[str, float]] = []

    def watch() -> None:
        while not ended.wait(0.05):
            scrapes.append(running.metrics())

    def put(number: int) -> tuple[int, int]:
        with Connection(frames.Hello(1, 1), [str(running.socket)]) as client:
            for turn in range(6):
                client.put("flights", rows(60, name=f"c{number}t{turn}"), 30)
            client.flush(30)
            unknown = sum(failure.records for failure in client.tally.failures)
            assert {failure.code for failure in client.tally.failures} <= {Code.RESULT_COUNT}
            return client.tally.stored, unknown

    sets: dict[str, Any] = {
        "aggregation": aggregation,
        "request_timeout_seconds": 0.5,
        "queue_limit": 800,
        "aggregate_max_bytes": 1024,
    }
    with daemon(server.url, **sets) as running, ThreadPoolExecutor(7) as pool:
        watching = pool.submit(watch)
        gone = session(running)
        gone.put(rows(60, name="gone"))
        gone.close()
        try:
            tallies = list(pool.map(put, range(4)))
            until(lambda: idle(running.metrics()))
        finally:
            ended.set()
        watching.result()
        assert all(conserved(metrics) for metrics in scrapes)
        assert all(metrics["queue_peak_records"] <= 800 for metrics in scrapes)
        last = running.metrics()
    stored, unknown = (sum(column) for column in zip(*tallies, strict=True))
    assert stored + unknown == 1_440
    assert stored > 1_000
    copies = Counter(user.data for user in kinesis.streams["flights"].read().records)
    wanted = {data for c in range(4) for t in range(6) for data in data_of(rows(60, name=f"c{c}t{t}"))}
    assert wanted <= set(copies)  # UNKNOWN rows were stored too: the fake stores before it falsifies
    assert sum(copies.values()) - len(copies) <= last["possible_duplicate_records_total"]
