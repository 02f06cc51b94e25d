"""After SIGTERM every row of every caller ends exactly once: as stored, as returned, or as possibly stored."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from producerd.errors import Code, Outcome
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer
from producerd.wire import frames
from producerd.wire.columns import lay_out
from tests.daemon import WireClient, daemon, data_of, one, rows, session, until


def outcomes(messages: list[frames.Message]) -> dict[int, frames.Ack]:
    """The acknowledgements by frame; each frame has one."""
    acks = [message for message in messages if isinstance(message, frames.Ack)]
    by_frame = {ack.frame_id: ack for ack in acks}
    assert len(by_frame) == len(acks), "a frame was acknowledged twice"
    return by_frame


@pytest.mark.law("Frame")
@pytest.mark.law("Row")
def test_a_full_queue_is_finished_or_returned_and_every_row_has_one_outcome(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    kinesis.latency_seconds = 0.4
    frame = rows(50)
    with daemon(server.url, queue_limit=400, max_in_flight_requests=1, drain_timeout_seconds=10) as running:
        with session(running) as client, session(running):
            sent = [client.put(frame) for _ in range(6)]
            until(lambda: running.metrics()["inflight_requests"] == 1)
            blocked = client.reserve(rows(90).layout)
            began = time.monotonic()
            running.signal()
            messages = client.read_to_end()
            assert running.wait() == 0
            assert time.monotonic() - began < 5, "it waits for nothing when all is settled"
        draining = next(message for message in messages if isinstance(message, frames.Draining))
        assert draining.deadline_seconds == 10
        refused = [message for message in messages if isinstance(message, frames.Refused)]
        assert [(message.frame_id, message.code) for message in refused] == [(blocked, Code.DRAINING)]
        assert isinstance(messages[-1], frames.Close)
        assert messages[-1].code == Code.DRAINING
        log = running.log
    acks = outcomes(messages)
    assert set(acks) == set(sent)
    stored = sum(ack.stored for ack in acks.values())
    assert 0 < stored < 300
    assert sum(ack.returned for ack in acks.values()) == 300 - stored
    assert f"stopped records_returned={300 - stored} records_without_a_caller_undelivered=0" in log
    assert stored == len(kinesis.streams["flights"].entries())
    lines = [line for ack in acks.values() for line in ack.codes]
    assert {(line.outcome, line.code, line.maybe_stored) for line in lines} == {
        (Outcome.RETURNED, Code.DRAINING, False)
    }


@pytest.mark.law("Row")
def test_a_hung_endpoint_ends_the_draining_at_its_deadline_and_rows_may_be_stored(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    kinesis.standing.append(Fault("hang"))
    with (
        daemon(server.url, max_in_flight_requests=1, drain_timeout_seconds=1) as running,
        session(running) as client,
    ):
        in_request = client.put(rows(10))
        until(lambda: running.metrics()["inflight_requests"] == 1)
        queued = client.put(rows(10))
        began = time.monotonic()
        running.signal()
        client.expect(frames.Draining)
        assert running.get("/-/ready") == (503, "draining\n")
        acks = outcomes(client.read_to_end())
        assert running.wait() == 0
        assert 0.8 < time.monotonic() - began < 3
    assert acks[in_request].returned == acks[queued].returned == 10
    assert [line.maybe_stored for line in acks[in_request].codes] == [True]
    assert [line.maybe_stored for line in acks[queued].codes] == [False]


def test_a_second_signal_ends_it_at_once_and_still_tells_every_caller(kinesis: FakeKinesis, server: FakeServer) -> None:
    kinesis.standing.append(Fault("hang"))
    with daemon(server.url, drain_timeout_seconds=60) as running, session(running) as client:
        frame_id = client.put(rows(10))
        until(lambda: running.metrics()["inflight_requests"] == 1)
        running.signal()
        client.expect(frames.Draining)
        began = time.monotonic()
        running.signal(signal.SIGINT)
        assert outcomes(client.read_to_end())[frame_id].returned == 10
        assert running.wait() == 0
        assert time.monotonic() - began < 3


def test_the_end_comes_with_the_last_answer_though_clients_stay(kinesis: FakeKinesis, server: FakeServer) -> None:
    kinesis.latency_seconds = 0.3
    with daemon(server.url, drain_timeout_seconds=60) as running, session(running) as client:
        frame_id = client.put(rows(3))
        until(lambda: running.metrics()["inflight_requests"] == 1)
        began = time.monotonic()
        running.signal()
        assert outcomes(client.read_to_end())[frame_id].stored == 3
        assert running.wait() == 0
        assert time.monotonic() - began < 3


def test_the_last_acknowledgements_leave_though_all_clients_were_gone_once(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    kinesis.standing.append(Fault("hang", action="*"))  # nothing is even sorted
    frame = lay_out([b""] * 1_000_000, [b"x"] * 1_000_000)  # acknowledged in 125 kB: two pass the socket's buffer
    frame_limits: dict[str, Any] = {
        "max_frame_records": 1_000_000,
        "max_frame_bytes": "64 MiB",
        "node_queue_limit_bytes": "8 GiB",
        "session_window_bytes": "256 MiB",
    }
    queue_limits: dict[str, Any] = {"queue_limit": 10_000_000, "queue_limit_bytes": "512 MiB"}
    with daemon(server.url, aggregation="kpl", **frame_limits, **queue_limits) as running:
        WireClient(running.socket).hello().close()
        until(lambda: running.metrics()["client_connections"] == 0)
        with session(running) as client:
            sent = [client.put(frame) for _ in range(3)]
            until(lambda: running.metrics()["queue_records"] == 3_000_000)
            running.signal()
            assert isinstance(client.read(), frames.Draining)
            time.sleep(0.3)  # a caller that is busy; it has a second
            messages = client.read_to_end()
            assert running.wait() == 0
    assert set(outcomes(messages)) == set(sent)
    assert isinstance(messages[-1], frames.Close)


def test_a_body_on_its_way_is_returned_when_it_is_whole(kinesis: FakeKinesis, server: FakeServer) -> None:
    frame = rows(20)
    with daemon(server.url) as running, session(running) as client:
        frame_id = client.reserve(frame.layout)
        client.expect(frames.Grant)
        body = client.body(frame_id, frame)
        client.send(body[:100])
        running.signal()
        client.expect(frames.Draining)
        client.send(body[100:])
        ack = client.expect(frames.Ack)
        assert (ack.frame_id, ack.returned) == (frame_id, 20)
        client.read_to_end()
        assert running.wait() == 0
    assert not kinesis.streams["flights"].entries()


def test_a_body_on_its_way_is_delivered_when_the_daemon_empties_its_queues_first(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    """What comes while it does so lingers no more."""
    frame = rows(20)
    with daemon(server.url, linger_seconds=3_600) as running, session(running) as client:
        frame_id = client.reserve(frame.layout)
        client.expect(frames.Grant)
        body = client.body(frame_id, frame)
        client.send(body[:100])
        admin_socket = str(running.socket.with_suffix(".admin.sock"))
        drain = [sys.executable, "-m", "producerd.ctl", "--admin-socket", admin_socket, "drain"]
        with subprocess.Popen(drain, stdout=subprocess.PIPE, text=True) as asked:
            client.expect(frames.Draining)
            client.send(body[100:])
            ack = client.expect(frames.Ack)
            assert (ack.frame_id, ack.stored) == (frame_id, 20)
            assert asked.communicate(timeout=30)[0] == "the daemon stops, all delivered\n"
        client.read_to_end()
        assert running.wait() == 0
    assert kinesis.streams["flights"].entries()


def test_a_body_that_never_comes_does_not_hold_up_the_end(kinesis: FakeKinesis, server: FakeServer) -> None:
    with daemon(server.url, body_timeout_seconds=0.5, drain_timeout_seconds=30) as running, session(running) as client:
        client.reserve(rows(20).layout)
        client.expect(frames.Grant)
        began = time.monotonic()
        running.signal()
        messages = client.read_to_end()
        assert running.wait() == 0
        assert time.monotonic() - began < 5
        assert isinstance(messages[-1], frames.Close)


def test_a_draining_daemon_takes_no_stream_and_no_client(kinesis: FakeKinesis, server: FakeServer) -> None:
    kinesis.latency_seconds = 0.8
    with daemon(server.url) as running, session(running) as client, WireClient(running.socket).hello() as other:
        client.put(rows(3))
        until(lambda: running.metrics()["inflight_requests"] == 1)
        running.signal()
        client.expect(frames.Draining)
        other.expect(frames.Draining)
        other.send(frames.Open(1, "flights"))
        assert other.expect(frames.Refused).code == Code.DRAINING
        client.reserve(rows(3).layout)
        assert client.expect(frames.Refused).code == Code.DRAINING
        with pytest.raises(ConnectionRefusedError):
            WireClient(running.socket)
        assert client.expect(frames.Ack).stored == 3
        assert running.wait() == 0
        assert not running.socket.exists()


def test_rows_to_be_delivered_are_though_their_client_is_gone(kinesis: FakeKinesis, server: FakeServer) -> None:
    kinesis.latency_seconds = 0.2
    frame = rows(1_200)
    with daemon(server.url, max_in_flight_requests=1, linger_seconds=1) as running:
        client = session(running, deliver=True)
        client.put(frame)
        client.close()
        until(lambda: running.metrics()["client_connections"] == 0)
        assert running.metrics()["queue_records"] == 1_200
        running.signal()
        assert running.wait() == 0
    stored = [entry.data for entry in kinesis.streams["flights"].entries()]
    assert sorted(stored) == sorted(data_of(frame))


@pytest.mark.promise("rows-nobody-given-back")
def test_rows_that_nobody_can_be_given_back_make_the_exit_code_1(kinesis: FakeKinesis, server: FakeServer) -> None:
    kinesis.standing.append(Fault("hang"))
    with daemon(server.url, max_in_flight_requests=2, drain_timeout_seconds=0.5, exit_code=1) as running:
        client = session(running, deliver=True)
        client.put(rows(1_200))
        client.close()
        until(lambda: running.metrics()["client_connections"] == 0)
        running.signal()
        lost = "ERROR   producerd: records were lost: their callers had gone records=1200"
        until(lambda: lost in running.log, "the log has it before the daemon waits for a scrape")
        for _ in range(2):
            assert running.metrics()["discarded_records_total[abandoned]"] == 1_200
        running.signal()
        assert running.wait() == 1
        assert "stopped records_returned=0 records_without_a_caller_undelivered=1200" in running.log


@pytest.mark.promise("daemon-killed-loses")
@pytest.mark.law("Frame")
def test_a_daemon_that_is_killed_loses_no_acknowledged_row_and_its_socket_is_taken_over(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    kinesis.latency_seconds = 0.02
    with daemon(server.url, exit_code=-signal.SIGKILL) as killed:
        client = session(killed)
        for _ in range(20):
            client.put(rows(50))
        acknowledged = {ack.frame_id: ack.stored for ack in client.acks(5)}
        killed.signal(signal.SIGKILL)
        killed.wait()
        acknowledged |= {ack.frame_id: ack.stored for ack in client.read_to_end() if isinstance(ack, frames.Ack)}
        client.close()
        assert killed.socket.exists()
        assert sum(acknowledged.values()) <= len(kinesis.streams["flights"].entries())
        with daemon(server.url, socket_path=killed.socket) as running, session(running) as again:
            again.put(one())
            assert again.acks()[0].stored == 1
