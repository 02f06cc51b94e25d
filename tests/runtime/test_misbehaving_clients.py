"""Clients that are mute, slow or greedy, or that send garbage, harm only themselves and no other session."""

from __future__ import annotations

import signal
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat

import pytest

from producerd.errors import Code
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from producerd.wire import frames
from producerd.wire.columns import FLAG_HASH_KEYS, Layout
from producerd.wire.frames import MessageType
from tests.daemon import DaemonProcess, WireClient, conserved, daemon, idle, one, rows, session, until

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def shared() -> Iterator[DaemonProcess]:
    """One daemon for every kind of garbage: each test leaves it as it was."""
    fake = FakeKinesis()
    fake.create_stream("flights", shards=4)
    with (
        serve_in_thread(fake) as serving,
        daemon(serving.url, body_timeout_seconds=1, session_window_frames=4, session_window_bytes=8192) as running,
    ):
        yield running


@pytest.fixture
def neighbour(shared: DaemonProcess) -> Iterator[WireClient]:
    """A session that must not notice; in the end it works and nothing of the other one is left."""
    with session(shared) as client:
        client.put(rows(5))
        assert client.acks()[0].stored == 5
        yield client
        client.put(rows(5))
        assert client.acks()[0].stored == 5
        until(lambda: shared.metrics()["client_connections"] == 1)
        metrics = shared.metrics()
        assert idle(metrics)
        assert conserved(metrics)


def connected(shared: DaemonProcess) -> WireClient:
    return WireClient(shared.socket)


def greeted(shared: DaemonProcess) -> WireClient:
    return connected(shared).hello()


def opened(shared: DaemonProcess) -> WireClient:
    return session(shared)


def granted(shared: DaemonProcess) -> WireClient:
    client = session(shared)
    client.reserve(one().layout)
    client.expect(frames.Grant)
    return client


def header(type_: int, length: int, flags: int = 0, zero: int = 0) -> bytes:
    return struct.pack("<BBHI", type_, flags, zero, length)


def body_with(**changes: int) -> bytes:
    """The body of `granted`'s frame, with another prefix."""
    values = {"frame_id": 1, "records": 1, "key_bytes": 1, "data_bytes": 1, "hash_key_bytes": 0, **changes}
    layout = one().layout
    parts = b"".join(map(bytes, one().parts))
    return frames.body_header(layout) + struct.pack("<QIIII", *values.values()) + parts


def body_offsets(offsets: bytes) -> bytes:
    """The same, with other key offsets."""
    columns = one()
    parts = b"".join(map(bytes, columns.parts[1:]))
    return frames.body_header(columns.layout) + columns.body_prefix(1) + offsets + parts


RESERVED = frames.encode(frames.Reserve(1, 1, one().layout))
GARBAGE = [
    pytest.param(connected, b"GET / HTTP/1.1\r\n\r\n", id="http"),
    pytest.param(connected, b"\0" * 64, id="zeros"),
    pytest.param(connected, b"\xff" * 64, id="ones"),
    pytest.param(connected, frames.encode(frames.Open(1, "flights")), id="open before hello"),
    pytest.param(connected, header(MessageType.HELLO, 16 * 1024 + 1), id="hello too long"),
    pytest.param(connected, header(MessageType.HELLO, 3) + b"abc", id="hello too short"),
    pytest.param(connected, header(MessageType.BODY, 2**32 - 1), id="body before hello"),
    pytest.param(greeted, frames.encode(frames.Hello(1, 1)), id="hello twice"),
    pytest.param(greeted, RESERVED, id="reserve before open"),
    pytest.param(greeted, frames.encode(frames.Status(1)), id="status before open"),
    pytest.param(greeted, frames.encode(frames.Flush(7)), id="flush of a stream that is not open"),
    pytest.param(greeted, frames.encode(frames.Open(0, "flights")), id="stream number 0"),
    pytest.param(greeted, frames.encode(frames.Grant(1)), id="a daemon's message"),
    pytest.param(greeted, frames.encode(frames.Cancel(9)), id="cancel of what was never reserved"),
    pytest.param(greeted, header(MessageType.OPEN, 4, flags=1) + b"\0" * 4, id="flags"),
    pytest.param(greeted, header(MessageType.OPEN, 4, zero=1) + b"\0" * 4, id="reserved bytes"),
    pytest.param(greeted, header(MessageType.OPEN, 12) + struct.pack("<II4s", 1, 4, b"\xff" * 4), id="no UTF-8"),
    pytest.param(opened, frames.encode(frames.Open(1, "clicks")), id="stream number twice"),
    pytest.param(opened, frames.encode(frames.Open(2, "flights")), id="stream twice"),
    pytest.param(opened, frames.encode(frames.Reserve(1, 1, Layout(0, 0, 0))), id="no records"),
    pytest.param(opened, frames.encode(frames.Reserve(1, 2, one().layout)), id="another stream"),
    pytest.param(opened, frames.encode(frames.Reserve(1, 1, Layout(1, 2**31, 0))), id="2 GiB of keys"),
    pytest.param(opened, frames.body_header(one().layout), id="body without grant"),
    pytest.param(granted, RESERVED, id="a frame twice"),
    pytest.param(granted, header(MessageType.BODY, one().layout.body_bytes + 1), id="body too long"),
    pytest.param(granted, header(MessageType.BODY, one().layout.body_bytes - 1), id="body too short"),
    pytest.param(granted, header(MessageType.BODY, one().layout.body_bytes, FLAG_HASH_KEYS), id="other body flags"),
    pytest.param(granted, body_with(frame_id=2), id="another frame's body"),
    pytest.param(granted, body_with(records=2), id="other records"),
    pytest.param(granted, body_with(key_bytes=0, data_bytes=2), id="other columns"),
    pytest.param(granted, body_offsets(struct.pack("<ii", 0, 2)), id="offsets too far"),
    pytest.param(granted, body_offsets(struct.pack("<ii", -1, 0)), id="negative offsets"),
    pytest.param(granted, body_offsets(struct.pack("<ii", 1, 0)), id="falling offsets"),
]


@pytest.mark.promise("garbage-ends-session")
@pytest.mark.parametrize(("stage", "garbage"), GARBAGE)
@pytest.mark.law("Session")
def test_garbage_ends_its_session_with_a_reason(
    shared: DaemonProcess, neighbour: WireClient, stage: Callable[[DaemonProcess], WireClient], garbage: bytes
) -> None:
    with stage(shared) as client:
        client.send(garbage)
        messages = client.read_to_end()
        assert isinstance(messages[-1], frames.Close)
        assert messages[-1].code == Code.PROTOCOL
        assert messages[-1].message


def test_versions_that_do_not_meet_are_both_named(shared: DaemonProcess, neighbour: WireClient) -> None:
    with connected(shared) as client:
        client.send(frames.Hello(7, 9))
        (close,) = client.read_to_end()
        assert isinstance(close, frames.Close)
        assert close.code == Code.VERSION_MISMATCH
        assert "7 to 9" in close.message
        assert "version 1" in close.message


def test_what_follows_a_clients_close_is_not_listened_to(shared: DaemonProcess, neighbour: WireClient) -> None:
    with opened(shared) as client:
        client.send(frames.Close("BYE", "enough"), b"\xff" * 100)
        assert client.read_to_end() == []


@pytest.mark.law("Session")
def test_a_body_that_stalls_ends_its_session_and_frees_its_room(shared: DaemonProcess, neighbour: WireClient) -> None:
    with opened(shared) as client:
        frame = rows(100)
        frame_id = client.reserve(frame.layout)
        client.expect(frames.Grant)
        client.send(client.body(frame_id, frame)[:-1])
        assert shared.metrics()["queue_bytes"] >= frame.layout.charge_bytes
        began = time.monotonic()
        (close,) = client.read_to_end()
        assert 0.5 < time.monotonic() - began < 5
        assert isinstance(close, frames.Close)
        assert close.message.startswith("a body was not whole within 1.0")


@pytest.mark.law("Session")
def test_a_body_that_waits_while_the_daemon_is_stopped_is_taken(shared: DaemonProcess, neighbour: WireClient) -> None:
    """Also one that the socket has no room for: the rest comes when the daemon reads."""
    frame = rows(4, size=200_000)
    with opened(shared) as client:
        frame_id = client.reserve(frame.layout)
        client.expect(frames.Grant)
        shared.signal(signal.SIGSTOP)
        sends = threading.Thread(target=client.send, args=(client.body(frame_id, frame),))
        sends.start()
        time.sleep(3)  # three times what a body may take
        shared.signal(signal.SIGCONT)
        sends.join()
        assert client.acks()[0].stored == 4


def test_a_client_that_says_nothing_is_sent_away(shared: DaemonProcess, neighbour: WireClient) -> None:
    with connected(shared) as client:
        (close,) = client.read_to_end()
        assert isinstance(close, frames.Close)
        assert "HELLO" in close.message


@pytest.mark.law("Session")
def test_more_reserves_than_the_window_are_a_protocol_error(shared: DaemonProcess, neighbour: WireClient) -> None:
    with opened(shared) as client:
        for _ in range(5):
            client.reserve(one().layout)
        messages = client.read_to_end()
        assert [type(message) for message in messages] == [frames.Grant, frames.Close]


@pytest.mark.law("Session")
def test_a_reserve_beyond_the_windows_bytes_waits_for_an_acknowledgement(
    shared: DaemonProcess, neighbour: WireClient
) -> None:
    frame = one(b"x" * 5_000)
    with opened(shared) as client:
        first, second = client.reserve(frame.layout), client.reserve(frame.layout)
        assert client.expect(frames.Grant).frame_id == first
        client.send(client.body(first, frame))
        assert client.expect(frames.Ack).frame_id == first
        assert client.expect(frames.Grant).frame_id == second
        client.send(client.body(second, frame))
        assert client.expect(frames.Ack).frame_id == second


def test_one_body_at_a_time_is_granted(shared: DaemonProcess, neighbour: WireClient) -> None:
    with opened(shared) as client:
        first, second = client.reserve(one().layout), client.reserve(one().layout)
        assert client.expect(frames.Grant).frame_id == first
        assert client.hears_nothing()
        client.send(client.body(first, one()))
        assert {client.read().frame_id for _ in range(2)} == {first, second}  # type: ignore[union-attr]
        client.send(client.body(second, one()))
        client.acks()


def test_a_cancel_that_crosses_its_grant_takes_nothing(shared: DaemonProcess, neighbour: WireClient) -> None:
    with opened(shared) as client:
        for _ in range(3):
            frame_id = client.reserve(one().layout)
            client.send(frames.Cancel(frame_id))
            assert client.expect(frames.Grant).frame_id == frame_id
        client.put(one())
        assert client.acks()[0].stored == 1


@pytest.mark.promise("garbage-ends-session")
def test_a_client_that_vanishes_in_mid_body_leaves_nothing(shared: DaemonProcess, neighbour: WireClient) -> None:
    for _ in range(20):
        client = opened(shared)
        frame = rows(100)
        frame_id = client.reserve(frame.layout)
        client.expect(frames.Grant)
        client.send(client.body(frame_id, frame)[:500])
        client.close()


def flood(client: WireClient, chunks: Iterable[bytes]) -> int:
    """Send without reading until the daemon listens no more; how many chunks that took."""
    client.socket.settimeout(0.5)
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
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    storm = frames.encode(frames.Status(1)) * 2_000
    with (
        daemon(server.url, forked=False) as running,
        session(running) as mute,
        session(running) as other,
    ):
        other.put(rows(5))
        other.acks()
        before = running.rss_bytes()
        sent = flood(mute, repeat(storm, 1_000))
        assert running.rss_bytes() - before < 4 * MIB
        other.put(rows(5))
        assert other.acks()[0].stored == 5
        answers = [mute.expect(frames.Blocked) for _ in range(sent * 2_000)]  # it reads at last, and is heard again
        assert len(answers) == sent * 2_000


@pytest.mark.law("Session")
def test_acknowledgements_that_nobody_reads_are_bounded_by_the_window(kinesis: FakeKinesis, server: FakeServer) -> None:
    kinesis.standing.append(Fault("fail", code="AccessDeniedException", message="n" * 1_000))
    bad = one(b"x", key=b"k" * 300)
    with (
        daemon(server.url, forked=False, session_window_frames=4_096) as running,
        session(running) as mute,
        session(running) as other,
    ):
        before = running.rss_bytes()
        # It knows that each is granted, and does not look.
        pairs = (
            frames.encode(frames.Reserve(number, 1, bad.layout)) + mute.body(number, bad) for number in range(1, 50_000)
        )
        assert flood(mute, pairs) > 100
        assert running.rss_bytes() - before < 16 * MIB
        kinesis.standing.clear()
        other.put(rows(5))
        assert other.acks()[0].stored == 5
        mute.close()
        until(lambda: running.metrics()["client_connections"] == 1)
        until(lambda: idle(running.metrics()))


def test_a_storm_of_cancels_without_reading_grows_nothing(kinesis: FakeKinesis, server: FakeServer) -> None:
    kinesis.standing.append(Fault("hang"))
    with daemon(server.url, forked=False, queue_limit=2, body_timeout_seconds=60) as running:
        with session(running) as holder, session(running) as stormy:
            holder.put(one())
            # No room for anybody else but one: the storm's RESERVEs wait behind this one.
            other = session(running)
            other.put(one())
            before = running.rss_bytes()
            pairs = (
                frames.encode(frames.Reserve(number, 1, one().layout)) + frames.encode(frames.Cancel(number))
                for number in range(1, 200_000)
            )
            assert flood(stormy, pairs) > 100
            assert running.rss_bytes() - before < 4 * MIB
            metrics = running.metrics()
            assert metrics["queue_records"] == 2
            other.close()
        kinesis.standing.clear()
        server.release()
        until(lambda: idle(running.metrics()))


def test_opening_a_thousand_streams_is_bounded(kinesis: FakeKinesis, server: FakeServer) -> None:
    with daemon(server.url, max_streams=8) as running, session(running) as other:
        with WireClient(running.socket).hello() as greedy:
            answers = []
            for number in range(1, 1_001):
                greedy.send(frames.Open(number, f"stream-{number}"))
                answers.append(greedy.read())
        assert sum(isinstance(answer, frames.Opened) for answer in answers) == 7
        assert all(answer.code == Code.STREAM_LIMIT for answer in answers if isinstance(answer, frames.Refused))
        other.put(rows(5))
        assert other.acks()[0].stored == 5


def test_sessions_leave_no_descriptor_and_no_memory_behind(kinesis: FakeKinesis, server: FakeServer) -> None:
    def come_and_go(times: int) -> None:
        for number in range(times):
            client = session(running)
            if number % 3:
                client.put(one())
                if number % 3 == 1:
                    client.acks()
            client.close()

    with daemon(server.url, forked=False, linger_seconds=0) as running:
        come_and_go(200)
        until(lambda: running.metrics()["client_connections"] == 0)
        descriptors, memory = running.descriptors(), running.rss_bytes()
        come_and_go(400)
        until(lambda: running.metrics()["client_connections"] == 0)
        assert running.descriptors() <= descriptors + 2
        assert running.rss_bytes() - memory < 2 * MIB
        metrics = running.metrics()
        assert conserved(metrics)
        assert idle(metrics)


def test_clients_that_are_turned_away_leave_no_memory() -> None:
    """Each one left 1 KB for `body_timeout_seconds`: the timer that would have cut its connection."""
    with daemon(None, max_connections=1, body_timeout_seconds=600, forked=False) as running, session(running) as busy:
        busy.put(one())  # nothing ever stores it, so the client is not idle

        def turned_away(count: int) -> None:
            for _ in range(count):
                with WireClient(running.socket) as client:
                    assert client.expect(frames.Close).code == "CONNECTION_LIMIT"

        turned_away(1_000)
        before = running.rss_bytes()
        turned_away(4_000)
        assert running.rss_bytes() - before < 1 << 21
