"""Clients that are mute, greedy or gone, or that send garbage, harm only themselves and no other session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat

import pytest

from producerd.errors import Code
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import serve_in_thread
from producerd.wire import messages
from producerd.wire.messages import MessageType
from tests.daemon import DaemonProcess, WireClient, conserved, daemon, idle, one, rows, session, until

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def running() -> Iterator[DaemonProcess]:
    """One daemon for all tests.  Each leaves it as it was."""
    kinesis = FakeKinesis()
    kinesis.create_stream("flights", shards=4)
    with (
        serve_in_thread(kinesis) as served,
        daemon(served.url, forked=False, linger_seconds=0, tuning={"body_timeout_seconds": 60.0}) as process,
    ):
        yield process


@pytest.fixture
def neighbour(running: DaemonProcess) -> Iterator[WireClient]:
    """A session that must not notice.  In the end it works, and nothing of the others is left."""
    with session(running) as client:
        client.put(rows(5))
        assert client.acks()[0].stored == 5
        yield client
        client.put(rows(5))
        assert client.acks()[0].stored == 5
        until(lambda: is_left_with_one(running.metrics()))


def is_left_with_one(metrics: dict[str, float]) -> bool:
    """Whether one client is connected, and nothing of the others is left."""
    assert conserved(metrics)
    return metrics["client_connections"] == 1 and idle(metrics)


def connected(running: DaemonProcess) -> WireClient:
    return WireClient(running.socket)


def greeted(running: DaemonProcess) -> WireClient:
    return connected(running).hello()


def granted(running: DaemonProcess) -> WireClient:
    client = session(running)
    client.reserve(one().layout)
    client.expect(messages.Grant)
    return client


GARBAGE = {
    "HTTP": (connected, b"GET / HTTP/1.1\r\n\r\n"),
    "a daemon's message": (greeted, messages.encode(messages.Grant(1))),
    "a stream twice": (session, messages.encode(messages.Open(2, "flights"))),
    "a body too long": (granted, messages.HEADER.pack(MessageType.BODY, 0, 0, one().layout.body_bytes + 1)),
}


@pytest.mark.promise("garbage-ends-session")
@pytest.mark.law("Session")
@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_ends_its_session_with_a_reason(running: DaemonProcess, neighbour: WireClient, what: str) -> None:
    reach, garbage = GARBAGE[what]
    with reach(running) as client:
        client.send(garbage)
        close = client.read_to_end()[-1]
        assert isinstance(close, messages.Close)
        assert close.code == Code.PROTOCOL
        assert close.message


@pytest.mark.promise("garbage-ends-session")
def test_a_client_that_vanishes_in_mid_body_leaves_nothing(running: DaemonProcess, neighbour: WireClient) -> None:
    with session(running) as client:
        frame = rows(100)
        frame_id = client.reserve(frame.layout)
        client.expect(messages.Grant)
        client.send(client.body(frame_id, frame)[:500])


def flood(client: WireClient, chunks: Iterable[bytes]) -> int:
    """Send without reading until the daemon listens no more.  Return how many chunks that took."""
    client.socket.settimeout(1.5)  # longer than a busy machine keeps the daemon from reading
    for sent, chunk in enumerate(chunks):
        try:
            client.send(chunk)
        except TimeoutError:
            client.socket.settimeout(client.patience_seconds)
            return sent
    raise AssertionError("the daemon listens without end")


@pytest.mark.promise("garbage-ends-session")
@pytest.mark.law("Session")
def test_a_client_that_never_reads_is_not_listened_to_and_others_go_on(
    running: DaemonProcess, neighbour: WireClient
) -> None:
    with session(running) as mute:
        before = running.rss_bytes()
        sent = flood(mute, repeat(messages.encode(messages.Status(1)) * 2_000, 1_000))
        assert running.rss_bytes() - before < 4 * MIB
        neighbour.put(rows(5))
        assert neighbour.acks()[0].stored == 5
        for _ in range(sent * 2_000):  # it reads at last, and is heard again
            mute.expect(messages.Blocked)


def test_sessions_leave_no_descriptor_and_no_memory_behind(running: DaemonProcess, neighbour: WireClient) -> None:
    def come_and_go(times: int) -> None:
        for number in range(times):
            with session(running) as client:
                if number % 3:
                    client.put(one())
                if number % 3 == 1:
                    client.acks()
        until(lambda: running.metrics()["client_connections"] == 1)

    come_and_go(200)
    descriptors, memory = running.descriptors(), running.rss_bytes()
    come_and_go(400)
    assert running.descriptors() <= descriptors + 2
    assert running.rss_bytes() - memory < 2 * MIB
