"""After SIGTERM every row of every caller ends exactly once: as stored, as returned, or as possibly stored."""

from __future__ import annotations

import signal
import time

import pytest

from producerd.errors import Code, Outcome
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import FakeServer
from producerd.wire import messages
from tests.daemon import daemon, one, rows, session, until


def outcomes(said: list[messages.Message]) -> dict[int, messages.Ack]:
    """The acknowledgements by frame; each frame has one."""
    acks = [message for message in said if isinstance(message, messages.Ack)]
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
            said = client.read_to_end()
            assert running.wait() == 0
            assert time.monotonic() - began < 5, "it waits for nothing when all is settled"
        draining = next(message for message in said if isinstance(message, messages.Draining))
        assert draining.deadline_seconds == 10
        refused = [message for message in said if isinstance(message, messages.Refused)]
        assert [(message.frame_id, message.code) for message in refused] == [(blocked, Code.DRAINING)]
        assert isinstance(said[-1], messages.Close)
        assert said[-1].code == Code.DRAINING
        log = running.log
    acks = outcomes(said)
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
        acknowledged |= {ack.frame_id: ack.stored for ack in client.read_to_end() if isinstance(ack, messages.Ack)}
        client.close()
        assert killed.socket.exists()
        assert sum(acknowledged.values()) <= len(kinesis.streams["flights"].entries())
        with daemon(server.url, socket_path=killed.socket) as running, session(running) as again:
            again.put(one())
            assert again.acks()[0].stored == 1
