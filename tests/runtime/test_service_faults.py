"""The daemon reports refusals of the service to the caller, and waits until an outage ends."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from producerd.ctl.daemon import AdminClient
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer
from tests.daemon import conserved, daemon, data_of, one, rows, session, until


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


@pytest.mark.promise("lost-answers-resets")
def test_lost_answers_resets_and_throttled_rows_are_counted_for_their_caller(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    kinesis.script(Fault("lost"), Fault("reset"), Fault("lost"), Fault("throttle", entries=30))
    with daemon(server.url) as running, session(running) as client:
        client.put(rows(100))
        ack = client.acks()[0]
        assert (ack.stored, ack.possible_duplicates) == (100, 300), "each copy counts, and the reset may have made one"
        assert (ack.retries, ack.throttled) == (330, 30)
        metrics = running.metrics()
        assert metrics["possible_duplicate_records_total"] == 300
        assert metrics["record_retries_total"] == 330
        assert conserved(metrics)
    copies = Counter(entry.data for entry in kinesis.streams["flights"].entries())
    assert set(copies) == set(data_of(rows(100)))
    assert set(copies.values()) == {3}


@pytest.mark.promise("request-given-up-resets")
@pytest.mark.law("Dispatcher")
def test_a_request_that_is_given_up_resets_its_connection_at_once(kinesis: FakeKinesis, server: FakeServer) -> None:
    kinesis.standing.append(Fault("hang"))
    with daemon(server.url, request_timeout_seconds=0.3) as running, session(running) as client:
        client.put(rows(100))
        until(lambda: server.in_flight == 1)
        closed = server.connections_closed
        until(lambda: server.in_flight == 0, "the first request is given up", 3)
        until(lambda: server.connections_closed > closed, "and its connection is gone", 1)
        until(lambda: kinesis.requests["PutRecords"] >= 2)
        assert server.in_flight_peak <= 2
        kinesis.standing.clear()
        ack = client.acks()[0]
        assert ack.stored == 100
        assert ack.possible_duplicates >= 100, "each time-out makes a copy"
