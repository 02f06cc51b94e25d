"""What put() returned from is the daemon's, what it raised from was not taken; nobody hangs, whatever it does."""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from producerd.errors import (
    BackpressureTimeout,
    Code,
    ConfigurationError,
    ConnectionFailed,
    FlushTimeout,
    Outcome,
    ProtocolError,
    Refused,
    RowFailure,
)
from producerd.wire import frames
from producerd.wire.columns import Body, Columns, lay_out
from spark_client import channel
from spark_client.batches import PlainRows
from spark_client.channel import socket_paths
from spark_client.connection import Connection
from spark_client.session import WaitTime
from spark_client.tally import Tally
from tests.spark_client.fake_daemon import (
    EXPIRED,
    INVALID,
    RETURNED,
    FakeDaemon,
    Session,
    close_with,
    in_turn,
    refuses_the_first_stream,
    rows_of,
    serve,
)

HELLO = frames.Hello(1, 1, batch_id=7, partition=3, attempt=1)
BLOCKED = frames.Blocked(1, 31.0, "the queue is full", 100, 100, 5_000, 64_000, 24, "throttled", "shardId-0", 0.9)


def connect(daemon: FakeDaemon, seconds: float = 5.0) -> Connection:
    return Connection(HELLO, [daemon.path], connect_timeout_seconds=seconds)


def plain(count: int) -> PlainRows:
    return PlainRows([(b"%d" % i, b"k", None) for i in range(count)])


def rows(count: int, size: int = 10) -> Columns:
    return lay_out([b"k%d" % i for i in range(count)], [bytes([65 + i % 26]) * size for i in range(count)])


@pytest.fixture(autouse=True)
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_client.session.ANSWER_SECONDS", 0.3)


def test_hello_says_who_the_task_is(daemon: FakeDaemon) -> None:
    seen: list[frames.Hello] = []
    daemon.runs(lambda session: seen.append(session.welcome()))
    connect(daemon).close()
    daemon_has(lambda: seen == [replace(HELLO, comes_back=1)])


def test_the_socket_is_looked_up_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRODUCERD_SOCKET", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert socket_paths() == ("/run/producerd/producerd.sock",)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert socket_paths() == ("/run/producerd/producerd.sock", "/run/user/7/producerd/producerd.sock")
    assert socket_paths(None, "/configured") == ("/configured",)
    monkeypatch.setenv("PRODUCERD_SOCKET", "/environment")
    assert socket_paths(None, "/configured") == ("/environment",)
    assert socket_paths("/argument", "/configured") == ("/argument",)
    assert socket_paths("/" + "x" * 106) == ("/" + "x" * 106,)
    with pytest.raises(ConfigurationError, match="at most 107 bytes"):
        socket_paths("/" + "x" * 107)


def test_without_a_daemon_one_line_names_host_path_and_cure(tmp_path: Path) -> None:
    path = str(tmp_path / "nobody.sock")
    with pytest.raises(ConnectionFailed) as caught:
        Connection(HELLO, [path], connect_timeout_seconds=0.2)
    assert caught.value.code == Code.DAEMON_ABSENT
    assert str(caught.value) == (
        f"no daemon to talk to on host {socket.gethostname()} within 0.2 s ({path}: No such file or directory): "
        "start it there with `producerd serve`, name its socket (socket=, PRODUCERD_SOCKET, spark.producerd.socket), "
        "or have tasks start one (daemon={...}; data source: daemon.region)"
    )


def test_a_daemon_that_is_just_starting_is_waited_for(daemon: FakeDaemon) -> None:
    late = daemon.path + ".late"
    threading.Timer(0.3, os.link, (daemon.path, late)).start()
    Connection(HELLO, [late], connect_timeout_seconds=10).close()


def test_the_second_usual_place_is_tried_too(daemon: FakeDaemon, tmp_path: Path) -> None:
    Connection(HELLO, [str(tmp_path / "nobody.sock"), daemon.path], connect_timeout_seconds=10).close()


def test_a_daemon_that_dies_before_its_welcome_is_dialled_again(daemon: FakeDaemon) -> None:
    daemon.runs(lambda session: session.socket.close(), serve)
    with connect(daemon) as session:
        session.put("s", rows(1))
        session.flush()


def test_a_daemon_that_accepts_but_does_not_answer_is_absent(daemon: FakeDaemon) -> None:
    daemon.runs(in_turn(lambda session: session.expect(frames.Hello), Session.await_end))
    with pytest.raises(ConnectionFailed, match="connected, but nobody answers") as caught:
        connect(daemon, 0.3)
    assert caught.value.code == Code.DAEMON_ABSENT


def test_a_forbidden_socket_is_said_at_once(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(channel, "Channel", forbid)
    began = time.monotonic()
    with pytest.raises(ConnectionFailed, match=r"Permission denied.*socket_group") as caught:
        connect(daemon, 30)
    assert caught.value.code == Code.NOT_AUTHORIZED
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("name", ["node.admin.sock", "orders"])
def test_the_admin_socket_is_named_with_the_one_to_give(daemon: FakeDaemon, name: str) -> None:
    """By what answers there, not by its name."""
    path = str(Path(daemon.path).with_name(name))
    os.link(daemon.path, path)

    def answers_in_http(session: Session) -> None:
        session.expect(frames.Hello)
        session.socket.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

    daemon.runs(in_turn(answers_in_http, lambda session: session.socket.close()))
    right = path.replace(".admin", "") if name.endswith(".admin.sock") else channel.DEFAULT_SOCKET
    with pytest.raises(ConfigurationError) as caught:
        Connection(HELLO, [path], connect_timeout_seconds=10)
    text = str(caught.value)
    assert text.startswith(f"{path} is the admin socket on host {socket.gethostname()}: ")
    assert f"by default {right} (socket=" in text
    assert "\n" not in text


def test_a_forbidden_admin_socket_is_not_to_be_opened_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(channel, "Channel", forbid)
    with pytest.raises(ConnectionFailed, match="by its name this is the admin socket") as caught:
        Connection(HELLO, ["/run/node.admin.sock"], connect_timeout_seconds=30)
    assert "socket_group" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.VERSION_MISMATCH, ConnectionFailed),
        (Code.NOT_AUTHORIZED, ConnectionFailed),
        (Code.PROTOCOL, ProtocolError),
    ],
)
def test_a_close_instead_of_welcome_is_its_error(daemon: FakeDaemon, code: str, error: type[ConnectionFailed]) -> None:
    daemon.runs(close_with(code))
    with pytest.raises(error, match=f"because of {code}") as caught:
        connect(daemon)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"version": 2}, "WELCOME: version 2, a window of 64 frames"),
        ({"window_frames": 0}, "WELCOME: version 1, a window of 0 frames"),
    ],
)
def test_a_welcome_that_cannot_be_is_a_protocol_error(daemon: FakeDaemon, odd: dict[str, int], said: str) -> None:
    daemon.runs(in_turn(lambda session: session.welcome(**odd), Session.await_end))
    with pytest.raises(ProtocolError, match=f"^{said}$"):
        connect(daemon)


def test_rows_arrive_and_the_tally_says_how_they_ended(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start()
        for _ in range(2):
            session.ack(session.take_frame(), retries=2, throttled=1, possible_duplicates=1, spread_keys=3)
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(3))
        session.put("s", rows(5))
        session.flush()
    tally = session.tally
    assert [key for key, _, _ in daemon.rows] == [b"k0", b"k1", b"k2", b"k0", b"k1", b"k2", b"k3", b"k4"]
    assert (tally.records, tally.stored, tally.payload_bytes, tally.failures) == (8, 8, 8 * 12, ())
    assert (tally.retries, tally.throttled, tally.possible_duplicates, tally.spread_keys) == (4, 2, 2, 6)


def test_the_bytes_of_a_tally_are_those_of_stored_rows(daemon: FakeDaemon) -> None:
    """Also of a row that came back and was stored by the next daemon; never of one that failed."""

    def gives_back(session: Session) -> None:
        session.start()
        body = session.take_frame()
        session.send(frames.Draining(5.0))
        session.fail(body, {1: INVALID, 2: RETURNED})
        session.await_end()

    daemon.runs(gives_back, serve)
    with Connection(HELLO, [daemon.path], reconnect_timeout_seconds=1) as session:
        session.put("s", lay_out([b"k0", b"key 1", b"k2"], [b"data 0", b"d", b"data two"], [b"7", b"8", b"9"]))
        session.flush(10)
        assert session.draining is None, "the next daemon does not stop"
        assert session.reason("another") == "there is no daemon that knows of them"
        assert repr(session) == (
            f"<Connection with 0 frames to be sent again: <DaemonSession 1 with a daemon at {daemon.path}: streams s, "
            "0 of 64 frames open, 0 of 8388608 bytes sent>>"
        )
    tally = session.tally
    assert (tally.records, tally.stored) == (3, 2)
    assert tally.payload_bytes == len(b"k0data 07k2data two9")


def test_a_frame_whose_daemon_is_lost_after_its_grant_is_sent_and_counted_once(daemon: FakeDaemon) -> None:
    """The daemon ends in mid-body.  The next one gets the frame with the backlog, and not once more from `put`."""

    def grants(session: Session) -> None:
        session.start()
        session.send(frames.Grant(session.expect(frames.Reserve).frame_id))

    frame = rows(2, 2_000_000)  # larger than the socket's buffers, so that sending it fails
    daemon.runs(grants, serve)
    with Connection(HELLO, [daemon.path], reconnect_timeout_seconds=10) as session:
        session.put("s", frame)
        session.put("s", rows(1))
        session.flush(10)
    assert [key for key, _, _ in daemon.rows] == [b"k0", b"k1", b"k0"]
    tally = session.tally
    assert (tally.taken, tally.records, tally.stored, tally.resent) == (3, 3, 3, 2)


@pytest.mark.parametrize(
    ("count", "code"), [(3, Code.ACCESS_DENIED), (1, Code.TOO_LARGE)], ids=["of a denied stream", "of one row"]
)
def test_a_frame_that_the_next_daemon_refuses_is_not_split(daemon: FakeDaemon, count: int, code: str) -> None:
    """Smaller frames help only against TOO_LARGE, and nothing is smaller than one row."""

    def takes(session: Session) -> None:
        session.start()
        session.take_frame()

    def refuses(session: Session) -> None:
        session.start()
        reserve = session.expect(frames.Reserve)
        assert reserve.layout.records == count
        session.refuse(reserve, code, "not this one", max_frame_bytes=100)
        session.await_end()

    daemon.runs(takes, refuses)
    with Connection(HELLO, [daemon.path], reconnect_timeout_seconds=10) as session:
        session.put("s", rows(count))
        with pytest.raises(
            ConnectionFailed, match=rf"stream s: not this one; 1 frame with {count} records? is not"
        ) as caught:
            session.flush(10)
    assert caught.value.code == code


def test_a_frame_that_is_larger_than_the_next_daemon_takes_is_halved(daemon: FakeDaemon) -> None:
    def takes(session: Session) -> None:
        session.start()
        session.take_frame()

    def takes_one_row(session: Session) -> None:
        session.start()
        reserve = session.expect(frames.Reserve)
        assert reserve.layout.records == 2
        session.refuse(reserve, Code.TOO_LARGE, max_frame_bytes=1 << 20, max_frame_records=1)
        for _ in range(2):
            session.ack(session.take_frame())
        session.await_end()

    daemon.runs(takes, takes_one_row)
    with Connection(HELLO, [daemon.path], reconnect_timeout_seconds=10) as session:
        session.put("s", rows(2))
        session.flush(10)
    assert [key for _, (key, _, _) in daemon.sessions[1].rows] == [b"k0", b"k1"]
    assert (session.tally.stored, session.tally.resent) == (2, 2)


def test_a_stream_that_the_next_daemon_refuses_is_named(daemon: FakeDaemon) -> None:
    def takes(session: Session) -> None:
        session.start()
        session.opened()
        session.take_frame()

    daemon.runs(takes, refuses_the_first_stream)
    with Connection(HELLO, [daemon.path], reconnect_timeout_seconds=10) as session:
        session.open("first")
        session.put("second", rows(1))
        with pytest.raises(ConnectionFailed) as caught:
            session.flush(10)
    assert str(caught.value) == ("stream first: 64 streams are open; 1 frame with 1 record is not acknowledged")
    assert caught.value.code == Code.STREAM_LIMIT


def test_what_a_daemon_that_stops_still_acknowledges_is_not_sent_again(daemon: FakeDaemon) -> None:
    def stops(session: Session) -> None:
        session.start()
        body = session.take_frame()
        session.send(frames.Draining(5.0))
        session.refuse(session.expect(frames.Reserve), Code.DRAINING, "stopping")
        session.ack(body)
        session.await_end()

    daemon.runs(stops, serve)
    with Connection(HELLO, [daemon.path], reconnect_timeout_seconds=10) as session:
        session.put("s", rows(3))
        session.put("s", rows(1))
        session.flush(10)
    assert [len(session.rows) for session in daemon.sessions] == [3, 1]
    tally = session.tally
    assert (tally.stored, tally.resent, tally.possible_duplicates) == (4, 0, 0)


def test_a_daemon_that_does_not_come_back_is_lost(daemon: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    path = f"{daemon.path}.link"
    os.link(daemon.path, path)

    def dies(session: Session) -> None:
        session.start()
        session.take_frame()
        os.unlink(path)

    daemon.runs(dies)
    with Connection(HELLO, [path], reconnect_timeout_seconds=0.2) as session:
        session.put("s", rows(1))
        with pytest.raises(ConnectionFailed) as caught:
            session.flush(10)
    gone = f"the daemon on host {socket.gethostname()} is gone: 1 frame with 1 record is not acknowledged"
    assert str(caught.value).startswith(f"{gone}; no daemon to talk to on host {socket.gethostname()} within 0.2 s (")
    assert caught.value.code == Code.DAEMON_LOST
    assert [record.getMessage() for record in caplog.records] == [f"{gone}; looking for it for 0.2 s"]


def test_the_next_daemon_may_refuse_the_client(daemon: FakeDaemon) -> None:
    daemon.runs(in_turn(Session.start, Session.take_frame), close_with(Code.NOT_AUTHORIZED))
    with Connection(HELLO, [daemon.path], reconnect_timeout_seconds=10) as session:
        session.put("s", rows(1))
        with pytest.raises(ConnectionFailed) as caught:
            session.flush(10)
    host = socket.gethostname()
    assert str(caught.value) == (
        f"the daemon on host {host} is gone: 1 frame with 1 record is not acknowledged; "
        f"the daemon on host {host} closed the session: because of NOT_AUTHORIZED"
    )
    assert caught.value.code == Code.NOT_AUTHORIZED


def test_a_daemon_that_closes_for_another_reason_is_not_looked_for(daemon: FakeDaemon) -> None:
    def closes(session: Session) -> None:
        session.start()
        session.take_frame()
        session.send(frames.Close(Code.INTERNAL, "a fault of ours"))

    daemon.runs(closes, serve)
    with Connection(HELLO, [daemon.path], reconnect_timeout_seconds=10) as session:
        session.put("s", rows(1))
        with pytest.raises(ConnectionFailed, match="a fault of ours; 1 frame with 1 record") as caught:
            session.flush(10)
    assert caught.value.code == Code.INTERNAL
    assert len(daemon.sessions) == 1


def test_streams_that_the_next_daemon_has_not_opened_are_still_to_be_opened(daemon: FakeDaemon) -> None:
    go_on = threading.Event()

    def opens_late(session: Session) -> None:
        session.welcome()
        opened = session.expect(frames.Open)
        assert go_on.wait(10)
        session.send(frames.Opened(opened.stream_id, 1 << 20, 100))
        session.serve()

    daemon.runs(Session.start, opens_late)
    with Connection(HELLO, [daemon.path], reconnect_timeout_seconds=10) as session:
        session.open("s")
        is_behind = [session.is_behind]
        with pytest.raises(BackpressureTimeout, match=r"^stream s was not opened within 0\.1 s"):
            session.put("s", rows(1), timeout_seconds=0.1)
        is_behind.append(session.is_behind)
        go_on.set()
        session.put("s", rows(1))
        session.flush(10)
        assert [*is_behind, session.is_behind] == [False, True, False]
    assert session.tally.stored == 1


def test_a_long_wait_is_logged_after_half_a_minute_and_then_every_five_minutes() -> None:
    wait_time = WaitTime()
    times = []
    for _ in range(3):
        wait_time.end()
        times.append(wait_time.seconds)
        wait_time.logged()
    assert times == [30.0, 330.0, 630.0]


def test_a_client_that_gives_up_while_it_finds_a_daemon_stays_ended(daemon: FakeDaemon) -> None:
    """The next calls, too, raise what ended it, and the frame stays unacknowledged."""
    asked, given_up = threading.Event(), threading.Event()

    def takes_one(session: Session) -> None:
        session.start()
        session.take_frame()

    def welcomes_late(session: Session) -> None:
        asked.set()
        given_up.wait(10)
        session.welcome()
        session.await_end()

    def gives_up() -> None:
        asked.wait(10)
        connection.abandon()
        given_up.set()

    daemon.runs(takes_one, welcomes_late)
    with Connection(HELLO, [daemon.path], reconnect_timeout_seconds=10) as connection:
        connection.put("s", rows(1, 100))
        giving_up = threading.Thread(target=gives_up)
        giving_up.start()
        for _ in range(2):
            with pytest.raises(ConnectionFailed, match=r"1 frame with 1 record is not acknowledged"):
                connection.flush(10)
        giving_up.join()
    assert len(daemon.sessions) == 2, "it looks for no other daemon"


def test_what_comes_back_after_a_client_gave_up_has_failed(daemon: FakeDaemon) -> None:
    is_sent = threading.Event()

    def stops(session: Session) -> None:
        session.start()
        body = session.take_frame()
        session.send(frames.Draining(5.0))
        session.fail(body, {1: RETURNED, 2: RETURNED})
        is_sent.set()
        session.await_end()

    daemon.runs(stops)
    with Connection(HELLO, [daemon.path], reconnect_timeout_seconds=10) as session:
        session.put("s", rows(3))
        assert is_sent.wait(10)
        session.abandon()
        with pytest.raises(ConnectionFailed, match="every record that was sent is acknowledged"):
            session.flush(10)
    assert session.tally.failures == (RowFailure(Code.DRAINING, "the daemon stops", 2, False, (1, 2), "s"),)
    assert (session.tally.records, session.tally.stored) == (3, 1)


def test_the_frames_of_a_session_show_in_what_the_connection_prints(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.welcome(window_frames=8)
        session.opened()
        for body in [session.take_frame(), session.take_frame()]:
            session.ack(body)
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(1, 100))
        assert repr(session).endswith("streams s, 1 of 8 frames open, 1158 of 8388608 bytes sent>>")
        session.put("s", rows(1, 100))
        session.flush(10)
        assert repr(session).endswith("streams s, 0 of 8 frames open, 0 of 8388608 bytes sent>>")


def test_flush_waits_for_the_last_acknowledgement(daemon: FakeDaemon) -> None:
    acked = threading.Event()

    def script(session: Session) -> None:
        session.start()
        first, second = session.take_frame(), session.take_frame()
        session.expect(frames.Flush)
        session.ack(second)
        time.sleep(0.2)
        acked.set()
        session.ack(first)
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(1))
        session.put("s", rows(1))
        session.flush(10)
        assert acked.is_set()


def test_a_body_larger_than_the_sockets_buffers_arrives_whole_while_the_daemon_is_slow(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start()
        session.ack(session.take_frame())
        reserve = session.expect(frames.Reserve)
        session.send(frames.Grant(reserve.frame_id))
        received = bytearray()
        while len(received) < reserve.layout.body_bytes + frames.HEADER.size:
            received += session.socket.recv(7_919)
        session._received += received
        session.ack(session.expect(Body))
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(1))
        session.put("s", rows(1_000, 900))
        session.flush(20)
    assert session.tally.stored == 1_001
    assert len(daemon.rows[-1][1] or b"") == 900


def test_acks_that_fill_the_socket_never_stop_a_body(daemon: FakeDaemon) -> None:
    """The daemon writes more than a socket holds before it reads on: only a client that reads while it sends goes on"""

    def script(session: Session) -> None:
        session.start()
        reserve = session.expect(frames.Reserve)
        session.send(frames.Grant(reserve.frame_id))
        for _ in range(200):
            session.send(frames.Blocked(1, 0.0, "x" * 2_000, last_error="y" * 2_000))
        session.ack(session.expect(Body))
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(1_000, 5_000))
        session.flush(20)
    assert session.tally.stored == 1_000


def test_a_client_sleeps_while_the_daemon_reads_no_body(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    times, receive = 0, channel.Channel._receive

    def receives(one: channel.Channel) -> None:
        nonlocal times
        times += 1
        receive(one)

    def script(session: Session) -> None:
        session.start()
        session.send(frames.Grant(session.expect(frames.Reserve).frame_id))
        time.sleep(0.05)
        session.ack(session.expect(Body))
        session.await_end()

    monkeypatch.setattr(channel.Channel, "_receive", receives)
    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(1_000, 1_000))
        session.flush(10)
    assert times < 500


def test_messages_may_arrive_byte_by_byte(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "RECEIVE_BYTES", 1)
    daemon.runs(in_turn(Session.welcome, Session.serve))
    with connect(daemon) as session:
        session.put("s", rows(2))
        session.flush(10)
    assert session.tally.stored == 2


@pytest.mark.parametrize("limits", [{"window_frames": 2}, {"window_bytes": 2 * 1_068}], ids=["frames", "bytes"])
def test_put_keeps_the_window(daemon: FakeDaemon, limits: dict[str, int]) -> None:
    """With two frames unacknowledged no third is even reserved; an ACK makes room for exactly one."""

    def script(session: Session) -> None:
        session.start(**limits)
        first, second = session.take_frame(), session.take_frame()
        session.socket.settimeout(0.2)
        with pytest.raises(socket.timeout):  # TimeoutError since Python 3.10
            session.read()
        session.socket.settimeout(20)
        session.ack(first)
        third = session.take_frame()
        session.ack(second)
        session.ack(third)
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        assert session.tally.seconds_blocked == 0
        for _ in range(3):
            session.put("s", rows(1))
        assert 0.15 < session.tally.seconds_blocked < 20
        session.flush(10)


@pytest.mark.parametrize(
    ("most_bytes", "window_bytes", "asks"), [(1_067, 1_500, True), (1_068, 1_500, False), (1_067, 1 << 20, False)]
)
def test_a_large_frame_that_waits_for_the_window_asks_for_it(
    daemon: FakeDaemon, most_bytes: int, window_bytes: int, asks: bool
) -> None:
    """The daemon sends by itself what keeps a frame of its largest size waiting, but no larger one."""

    def script(session: Session) -> None:
        session.start(max_frame_bytes=most_bytes, window_bytes=window_bytes)
        session.ack(session.take_frame())
        if asks:
            session.expect(frames.Flush)
        session.ack(session.take_frame())
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        for _ in range(2):
            session.put("s", rows(1))
        session.flush(10)
    assert session.tally.stored == 2


def test_a_frame_larger_than_the_window_goes_alone(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start(window_bytes=10)
        for _ in range(2):
            session.ack(session.take_frame())
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(1))
        session.put("s", rows(1))
        session.flush(10)


def test_a_refused_stream_is_its_code(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.welcome()
        opened = session.expect(frames.Open)
        session.send(frames.Refused(0, opened.stream_id, Code.STREAM_LIMIT, "64 streams are open: max_streams"))
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session, pytest.raises(Refused, match="max_streams") as caught:
        session.put("s", rows(1))
    assert caught.value.code == Code.STREAM_LIMIT


def test_a_refused_frame_leaves_the_session_usable(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start()
        session.refuse(session.expect(frames.Reserve), Code.ACCESS_DENIED, "not authorized to perform PutRecords")
        session.ack(session.take_frame())
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        with pytest.raises(Refused, match="not authorized") as caught:
            session.put("s", rows(2))
        assert caught.value.code == Code.ACCESS_DENIED
        session.put("s", rows(1))
        session.flush(10)
    assert session.tally.records == 1


def test_a_batch_is_cut_as_the_stream_allows_and_its_rows_are_counted(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.welcome()
        session.opened(max_frame_records=2)
        for _ in range(2):
            session.ack(session.take_frame())
        session.fail(session.take_frame(), {0: INVALID})
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        session.put_batch("s", plain(5))
        session.flush(10)
    assert [data for _, data, _ in daemon.rows] == [b"0", b"1", b"2", b"3", b"4"]
    assert session.tally.failures == (RowFailure(Code.RECORD_INVALID, "data is null", 1, False, (4,), "s", True),)


def test_a_record_that_is_too_large_alone_is_refused_wherever_it_stands(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start(max_frame_records=2)
        session.ack(session.take_frame())
        for records in (2, 1):
            reserve = session.expect(frames.Reserve)
            assert reserve.layout.records == records
            session.refuse(reserve, Code.TOO_LARGE, f"not {records}", max_frame_bytes=1 << 20, max_frame_records=1)
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session, pytest.raises(Refused, match=r"^not 1$"):
        session.put_batch("s", plain(4))
    assert session.tally.taken == 2


@pytest.mark.parametrize(
    ("timeout_seconds", "together", "left"),
    [(5, {}, [5, 5, 5]), (5, {"together": True}, [5.0, 2.0, 0.0]), (None, {"together": True}, [None] * 3)],
)
def test_the_time_out_of_a_batch_is_that_of_each_frame_or_of_all_together(
    daemon: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    timeout_seconds: float | None,
    together: dict[str, Any],
    left: list[float | None],
) -> None:
    now = 1_000.0
    given: list[float | None] = []

    def monotonic() -> float:
        return now

    def put(_: Connection, stream: str, columns: Columns, seconds: float | None, **__: object) -> None:
        nonlocal now
        now += 3
        given.append(seconds)

    daemon.runs(in_turn(lambda session: session.start(max_frame_records=1), Session.await_end))
    with connect(daemon) as session:
        session.open("s")
        with monkeypatch.context() as patched:
            for module in ("connection", "session"):
                patched.setattr(f"spark_client.{module}.time", SimpleNamespace(monotonic=monotonic))
            patched.setattr(Connection, "put", put)
            session.put_batch("s", plain(3), timeout_seconds, **together)
    assert given == left


def test_too_large_shrinks_the_largest_frame(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start()
        session.refuse(session.expect(frames.Reserve), Code.TOO_LARGE, max_frame_bytes=1_200, max_frame_records=3)
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        with pytest.raises(Refused) as caught:
            session.put("s", rows(10))
        assert (caught.value.code, caught.value.max_frame_bytes) == (Code.TOO_LARGE, 1_200)
        assert session.largest_frame("s") == (1_200, 3)


def test_too_large_for_what_fits_is_a_protocol_error_and_not_an_endless_loop(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start()
        session.refuse(session.expect(frames.Reserve), Code.TOO_LARGE, max_frame_bytes=1 << 20)
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session, pytest.raises(ProtocolError, match="was refused as larger than"):
        session.put("s", rows(10))


@pytest.mark.parametrize(
    ("code", "judged"), [(Code.RECORD_TOO_LARGE, 1), (Code.RECORD_TOO_LARGE, 0), (Code.CONFIGURATION, 0)]
)
def test_a_record_that_the_daemon_can_never_take_fails_by_itself(code: str, judged: int, daemon: FakeDaemon) -> None:
    """It is judged only if the daemon says so.  A limit of the daemon's own settings judges no row."""

    def script(session: Session) -> None:
        session.start()
        session.ack(session.take_frame())
        session.refuse(session.expect(frames.Reserve), code, "queue_limit_bytes = 9", judged=judged)
        session.ack(session.take_frame())
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        for count in (2, 1, 4):
            session.put("s", rows(count))
        session.flush(10)
    assert session.tally.failures == (RowFailure(code, "queue_limit_bytes = 9", 1, False, (2,), "s", bool(judged)),)
    assert (session.tally.records, session.tally.stored) == (7, 6)


def test_a_time_out_cancels_and_says_what_the_daemon_says(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start()
        reserve = session.expect(frames.Reserve)
        assert session.expect(frames.Cancel).frame_id == reserve.frame_id
        session.refuse(reserve, Code.CANCELLED, "the queue is full: 100 of 100 records, last error: throttled")
        session.ack(session.take_frame())
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        with pytest.raises(BackpressureTimeout, match=r"stream s within 0.1 s: .*100 of 100 records") as caught:
            session.put("s", rows(1), timeout_seconds=0.1)
        assert caught.value.code == Code.BACKPRESSURE_TIMEOUT
        session.put("s", rows(2), timeout_seconds=10)
        session.flush(10)
    assert session.tally.records == 2
    assert session.tally.seconds_blocked >= 0.1


def test_a_grant_that_crosses_the_cancel_is_void(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start()
        reserve = session.expect(frames.Reserve)
        time.sleep(0.2)
        session.send(frames.Grant(reserve.frame_id))
        session.expect(frames.Cancel)
        body = session.take_frame()
        assert body.frame_id == 2
        session.ack(body)
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        with pytest.raises(BackpressureTimeout, match="room came just too late"):
            session.put("s", rows(1), timeout_seconds=0.1)
        session.put("s", rows(2))
        session.flush(10)
    assert len(daemon.rows) == 2


def test_a_refusal_that_crosses_the_cancel_is_raised(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start()
        reserve = session.expect(frames.Reserve)
        time.sleep(0.2)
        session.refuse(reserve, Code.STREAM_NOT_FOUND, "no stream s")
        session.expect(frames.Cancel)
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session, pytest.raises(Refused, match="no stream s"):
        session.put("s", rows(1), timeout_seconds=0.1)


def test_a_daemon_that_hangs_does_not_hang_the_caller_and_its_late_answer_is_void(daemon: FakeDaemon) -> None:
    go_on = threading.Event()

    def script(session: Session) -> None:
        session.start()
        reserve = session.expect(frames.Reserve)
        go_on.wait(10)
        session.send(frames.Grant(reserve.frame_id))
        session.expect(frames.Cancel)
        session.ack(session.take_frame())
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        with pytest.raises(BackpressureTimeout, match="the daemon does not answer"):
            session.put("s", rows(1), timeout_seconds=0.1)
        go_on.set()
        session.put("s", rows(2))
        session.flush(10)
    assert session.tally.records == 2


def test_the_time_out_of_put_covers_the_window(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start(window_frames=1)
        session.take_frame()
        session.expect(frames.Status)
        session.send(BLOCKED)
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(1))
        with pytest.raises(BackpressureTimeout, match=r"the queue is full; queue 100 of 100 records"):
            session.put("s", rows(1), timeout_seconds=0.1)


def test_an_open_that_is_not_answered_ends_with_the_time_out(daemon: FakeDaemon) -> None:
    daemon.runs(in_turn(Session.welcome, lambda session: session.expect(frames.Open), Session.await_end))
    with connect(daemon) as session, pytest.raises(BackpressureTimeout, match=r"stream s was not opened within 0\.1 s"):
        session.put("s", rows(1), timeout_seconds=0.1)


def test_a_stream_whose_open_is_answered_late_is_opened_once(daemon: FakeDaemon) -> None:
    timed_out = threading.Event()

    def script(session: Session) -> None:
        session.welcome()
        opened = session.expect(frames.Open)
        assert timed_out.wait(10)
        session.send(frames.Opened(opened.stream_id, 1 << 20, 100))
        session.ack(session.take_frame())
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        with pytest.raises(BackpressureTimeout):
            session.put("s", rows(1), timeout_seconds=0.1)
        timed_out.set()
        session.put("s", rows(2))
        session.flush(10)
    assert session.tally.stored == 2


def test_a_stream_that_opened_while_another_was_asked_about_is_opened_once(daemon: FakeDaemon) -> None:
    def takes_two(session: Session) -> None:
        session.start()
        session.take_frame()
        session.opened()
        session.take_frame()

    def opens_the_second_late(session: Session) -> None:
        session.start()
        late = session.expect(frames.Open)
        session.expect(frames.Status)
        session.send(frames.Opened(late.stream_id, 1 << 20, 100))
        session.send(BLOCKED)
        for _ in range(2):
            session.ack(session.take_frame())
        session.await_end()

    daemon.runs(takes_two, opens_the_second_late)
    with Connection(HELLO, [daemon.path], reconnect_timeout_seconds=10) as session:
        session.put("first", rows(1))
        session.put("second", rows(1))
        with pytest.raises(FlushTimeout, match=r"stream second was not opened within 0\.5 s"):
            session.flush(0.5)
        assert session.reason("first").startswith("the queue is full")
        session.flush(10)
    assert session.tally.stored == 2


def test_a_flush_that_times_out_quotes_the_daemon(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start()
        session.take_frame()
        session.expect(frames.Flush)
        assert session.expect(frames.Status).stream_id == 1
        session.send(BLOCKED)
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(3))
        with pytest.raises(FlushTimeout) as caught:
            session.flush(0.1)
    text = str(caught.value)
    for part in ("1 frame with 3 records", "the queue is full", "24 requests in flight", "last error: throttled"):
        assert part in text


def test_a_flush_whose_last_ack_comes_with_the_reason_succeeds(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start()
        body = session.take_frame()
        session.expect(frames.Flush)
        session.expect(frames.Status)
        session.ack(body)
        session.send(BLOCKED)
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(3))
        session.flush(0.1)


def test_a_blocked_caller_makes_one_line_with_the_numbers(daemon: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    def script(session: Session) -> None:
        session.start()
        reserve = session.expect(frames.Reserve)
        session.send(BLOCKED)
        session.send(frames.Grant(reserve.frame_id))
        session.ack(session.expect(Body))
        session.await_end()

    daemon.runs(script)
    with caplog.at_level(logging.WARNING, "producerd.client"), connect(daemon) as session:
        session.put("s", rows(1))
        session.flush(10)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("producerd.client", "WARNING")
    assert record.getMessage() == (
        "stream s: blocked for 31 s: the queue is full; queue 100 of 100 records, 5,000 of 64,000 bytes, "
        "24 requests in flight, shardId-0 holds 90%, last error: throttled"
    )


def test_failed_rows_are_named_by_their_number_in_the_partition(daemon: FakeDaemon) -> None:
    unknown = frames.RowCode(Outcome.UNKNOWN, Code.RESULT_COUNT, "answers did not match")

    def script(session: Session) -> None:
        session.start()
        first, second = session.take_frame(), session.take_frame()
        session.fail(second, {0: INVALID, 9: unknown, 8: EXPIRED, 7: EXPIRED})
        session.fail(first, {2: INVALID, 3: INVALID})
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(5))
        session.put("s", rows(10))
        session.flush(10)
    assert session.tally.failures == (
        RowFailure(Code.RESULT_COUNT, "answers did not match", 1, True, (14,), "s"),
        RowFailure(Code.EXPIRED, EXPIRED.message, 2, False, (12, 13), "s"),
        RowFailure(Code.RECORD_INVALID, "data is null", 3, False, (5, 2, 3), "s", judged=True),
    )
    assert (session.tally.records, session.tally.stored) == (15, 9)


def test_counts_are_exact_and_what_is_kept_is_bounded(daemon: FakeDaemon) -> None:
    many = [frames.RowCode(Outcome.NOT_STORED, f"Code{i}", "x") for i in range(200)]

    def script(session: Session) -> None:
        session.start()
        session.fail(session.take_frame(), dict.fromkeys(range(1_000), EXPIRED))
        session.fail(session.take_frame(), dict(enumerate(many)))
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(1_000))
        session.put("s", rows(200))
        session.flush(10)
    failures = session.tally.failures
    assert sum(failure.records for failure in failures) == 1_200
    assert len(failures) == 65
    assert (failures[-1].code, failures[-1].records, failures[-1].rows) == (Code.EXPIRED, 1_000, tuple(range(20)))
    assert (failures[-2].code, failures[-2].records) == ("OTHER", 137)


def test_rows_that_a_stopping_daemon_returns_are_an_error(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start()
        body = session.take_frame()
        session.send(frames.Draining(60.0, "SIGTERM"))
        session.fail(body, {1: RETURNED, 2: RETURNED})
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(3))
        with pytest.raises(ConnectionFailed, match="it gave 2 records back") as caught:
            session.flush(10)
        assert caught.value.code == Code.DRAINING
        assert session.tally.failures == (RowFailure(Code.DRAINING, "the daemon stops", 2, False, (1, 2), "s"),)
        assert session.tally.records == 3
        assert session.draining is not None
        with pytest.raises(ConnectionFailed, match="the daemon stops"):
            session.put("s", rows(1))


@pytest.mark.parametrize("refused", [frames.Open, frames.Reserve])
def test_a_stopping_daemon_refuses_with_draining(daemon: FakeDaemon, refused: type) -> None:
    def script(session: Session) -> None:
        session.welcome()
        if refused is frames.Reserve:
            session.opened()
        message = session.read()
        assert isinstance(message, refused)
        session.send(frames.Refused(getattr(message, "frame_id", 0), 1, Code.DRAINING, "stopping"))
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session, pytest.raises(ConnectionFailed) as caught:
        session.put("s", rows(1))
    assert caught.value.code == Code.DRAINING


def test_a_close_in_mid_session_is_its_error(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start()
        session.take_frame()
        session.send(frames.Close(Code.PROTOCOL, "the key offsets fall"))

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(3))
        with pytest.raises(ProtocolError, match=r"the key offsets fall; 1 frame with 3 records is not acknowledged"):
            session.flush(10)


@pytest.mark.parametrize("state", ["welcomed", "opened", "reserved", "granted", "sent"])
def test_a_daemon_that_dies_in_any_state_is_lost(daemon: FakeDaemon, state: str) -> None:
    def script(session: Session) -> None:
        session.welcome()
        if state == "welcomed":
            return
        session.opened()
        session.take_frame()
        if state == "opened":
            return
        reserve = session.expect(frames.Reserve)
        if state == "reserved":
            return
        session.send(frames.Grant(reserve.frame_id))
        if state == "sent":
            session.expect(Body)

    daemon.runs(script)
    with connect(daemon) as session, pytest.raises(ConnectionFailed) as caught:  # noqa: PT012 - any of the three
        session.put("s", rows(4, 100_000))
        session.put("s", rows(2, 1_000_000))
        session.flush(10)
    assert caught.value.code == Code.DAEMON_LOST
    one = "1 frame with 4 records is not acknowledged"
    unacked = {"welcomed": "every record that was sent is acknowledged", "opened": one, "reserved": one}
    assert unacked.get(state, "2 frames with 6 records are not acknowledged") in str(caught.value)


def test_a_close_that_came_unnoticed_is_read_when_the_next_send_fails(daemon: FakeDaemon) -> None:
    opened = threading.Event()

    def script(session: Session) -> None:
        session.start()
        opened.wait(10)
        session.send(frames.Close(Code.INTERNAL, "a fault of ours"))

    daemon.runs(script)
    with connect(daemon) as session:
        session.open("s")
        opened.set()
        daemon_has(lambda: daemon.sessions[0].socket.fileno() < 0)
        with pytest.raises(ConnectionFailed, match="a fault of ours") as caught:
            session.put("s", rows(1))
    assert caught.value.code == Code.INTERNAL


def test_a_daemon_that_closed_is_noticed_by_the_next_message(daemon: FakeDaemon) -> None:
    def closes(session: Session) -> None:
        session.start()
        session.take_frame()
        session.send(frames.Close(Code.INTERNAL, "a fault of ours"))

    daemon.runs(closes)
    with connect(daemon) as session:
        session.put("s", rows(1))
        daemon_has(lambda: daemon.sessions[0].socket.fileno() < 0)
        with pytest.raises(ConnectionFailed, match="a fault of ours"):
            session.hasten()


def test_a_daemon_that_reads_no_more_is_lost(daemon: FakeDaemon) -> None:
    is_deaf, noticed = threading.Event(), threading.Event()

    def script(session: Session) -> None:
        session.start()
        session.socket.shutdown(socket.SHUT_RD)
        is_deaf.set()
        noticed.wait(10)

    daemon.runs(script)
    with connect(daemon) as session:
        session.open("s")
        assert is_deaf.wait(10)
        with pytest.raises(ConnectionFailed, match="is gone: every record that was sent is acknowledged"):
            session.put("s", rows(1))
        noticed.set()


def test_the_reason_of_a_daemon_that_is_gone_is_that_it_is_gone(daemon: FakeDaemon) -> None:
    daemon.runs(Session.start)
    with connect(daemon) as session:
        session.open("s")
        daemon_has(lambda: daemon.sessions[0].socket.fileno() < 0)
        assert session.reason("s") == (
            f"the daemon on host {socket.gethostname()} is gone: every record that was sent is acknowledged"
        )


def test_a_daemon_that_closes_instead_of_a_reason_is_an_error(daemon: FakeDaemon) -> None:
    daemon.runs(in_turn(Session.start, lambda session: session.send(frames.Close(Code.INTERNAL, "a fault of ours"))))
    with connect(daemon) as session:
        session.open("s")
        with pytest.raises(ConnectionFailed, match="a fault of ours"):
            session.reason("s")


def test_what_a_broken_socket_still_holds_is_read_first(daemon: FakeDaemon) -> None:
    """The daemon acknowledges, says why it goes and goes, while the client is in mid-body."""

    def script(session: Session) -> None:
        session.start()
        first = session.take_frame()
        session.send(frames.Grant(session.expect(frames.Reserve).frame_id))
        session.ack(first)
        session.send(frames.Close(Code.INTERNAL, "a fault of ours"))

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(3))
        with pytest.raises(ConnectionFailed, match=r"a fault of ours; 1 frame with 2 records"):
            session.put("s", rows(2, 2_000_000))
    assert session.tally.stored == 3


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\x00\x00\x00\x00\x00\x00\x00",
        frames.HEADER.pack(frames.MessageType.BODY, 0, 0, 2**32 - 1),
        frames.encode(frames.Grant(99)),
        frames.encode(frames.Flush()),
        frames.encode(frames.Ack(1, 3, 3, 0, 0, 0)),
    ],
    ids=["unknown", "a body", "a grant of nothing", "a client's message", "an ack before the body"],
)
def test_what_the_protocol_does_not_allow_is_a_protocol_error(daemon: FakeDaemon, raw: bytes) -> None:
    def script(session: Session) -> None:
        session.start()
        session.expect(frames.Reserve)
        session.socket.sendall(raw)
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session, pytest.raises(ProtocolError):
        session.put("s", rows(3))


def test_an_ack_of_another_size_is_a_protocol_error(daemon: FakeDaemon) -> None:
    def script(session: Session) -> None:
        session.start()
        body = session.take_frame()
        session.send(frames.Ack(body.frame_id, 2, 2, 0, 0, 0))
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(3))
        with pytest.raises(ProtocolError, match="ACK of 2 records for a frame of 3"):
            session.flush(10)


def test_closing_ends_the_session(daemon: FakeDaemon) -> None:
    ended = threading.Event()
    daemon.runs(in_turn(Session.start, Session.take_frame, Session.await_end, lambda _: ended.set()))
    with connect(daemon) as session:
        session.put("s", rows(1))
    assert ended.wait(10)
    assert rows_of(daemon.sessions[0].bodies[0]) == [(b"k0", b"A" * 10, None)]


def daemon_has(condition: object) -> None:
    deadline = time.monotonic() + 10
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("waits_for", ["acknowledgements", "room"])
def test_who_has_waited_for_long_in_all_is_told_why_once(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, waits_for: str
) -> None:
    """Also where no single wait is long, and where the queue has room and only the answers take so long."""
    monkeypatch.setattr("spark_client.session.SLOW_SECONDS", 0.15)
    monkeypatch.setattr("spark_client.session.LONG_WAIT_SECONDS", 0.05)

    def script(session: Session) -> None:
        session.start()
        while True:
            message = session.read()
            if isinstance(message, frames.Reserve):
                time.sleep(0.06 if waits_for == "room" else 0.0)
                session.send(frames.Grant(message.frame_id))
            elif isinstance(message, frames.Status):
                session.send(frames.Blocked(1, 0.0, "the service does not take them", 5, 9))
            if isinstance(message, frames.Status if waits_for == "acknowledgements" else frames.Flush):
                break
        for body in session.bodies:
            session.ack(body)
        session.await_end()

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "has waited" in record.getMessage()]

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(10))
        while waits_for == "room" and not lines():
            session.put("s", rows(10))
        session.flush()
    (line,) = lines()
    assert line.startswith("stream s: this task has waited for more than 0 s; ")
    assert "the service does not take them; queue 5 of 9 records" in line
    assert 0 < session.tally.seconds_flushing < 20


def test_a_loop_of_quick_waits_is_told_nothing(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each put waits for its grant and its answer.  Thousands of quick waits do not add up to one long wait."""
    monkeypatch.setattr("spark_client.session.SLOW_SECONDS", 1.0)
    monkeypatch.setattr("spark_client.session.LONG_WAIT_SECONDS", 3_600.0)
    monkeypatch.setattr("spark_client.reasons.FIRST_SECONDS", 3_600.0)

    def script(session: Session) -> None:
        session.start()
        for _ in range(60):
            body = session.take_frame()
            assert isinstance(session.read(), frames.Flush)  # no STATUS comes before
            time.sleep(0.02)
            session.send(frames.Ack(body.frame_id, 10, 10, 0, 0, 0))
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        for _ in range(60):
            session.put("s", rows(10))
            session.flush()
    assert not caplog.records


def test_a_wait_that_is_the_rest_of_a_long_one_is_told_of_though_it_is_short(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it would be cut into ever shorter ones, none of which counts."""
    monkeypatch.setattr("spark_client.session.SLOW_SECONDS", 0.1)
    monkeypatch.setattr("spark_client.session.LONG_WAIT_SECONDS", 3_600.0)

    def script(session: Session) -> None:
        session.start()
        body = session.take_frame()
        session.expect(frames.Flush)
        session.expect(frames.Status)
        session.send(frames.Blocked(1, 0.0, "the service does not take them", 5, 9))
        session.send(frames.Ack(body.frame_id, 10, 10, 0, 0, 0))
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as session:
        session.put("s", rows(10))
        session.flush()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("stream s: this task has waited for more than 0 s; ")


def test_with_a_time_out_of_zero_a_daemon_that_is_there_is_found(daemon: FakeDaemon) -> None:
    Connection(HELLO, [daemon.path], connect_timeout_seconds=0).close()


@pytest.mark.parametrize("sends_again", [False, True])
def test_rows_that_came_back_end_with_the_frame_that_they_are_sent_again_in(sends_again: bool) -> None:
    """Of four: one stored, one unknown, two given back, of which one may be stored."""
    unknown = frames.RowCode(Outcome.UNKNOWN, Code.EXPIRED, "too old", True)
    back = [frames.RowCode(Outcome.RETURNED, Code.DRAINING, "the daemon stops", maybe) for maybe in (False, True)]
    rows_of_codes = struct.pack("3H", 0, 1, 2)
    ack = frames.Ack(1, 4, 1, 0, 1, 2, bitmap=b"\x0e", code_rows=rows_of_codes, codes=(unknown, *back))
    tally = Tally()
    columns = lay_out([b""] * 4, [b"x"] * 4)
    assert tally.settle(ack, [10, 11, 12, 13], "s", columns, sends_again=sends_again) == ([2, 3] if sends_again else [])
    assert (tally.records, tally.stored, tally.returned) == ((2, 1, 0) if sends_again else (4, 1, 2))
    assert tally.possible_duplicates == (1 if sends_again else 0)
    assert sum(failure.records for failure in tally.failures) == (1 if sends_again else 3)


def test_who_waits_for_a_silent_daemon_says_so(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """It logs again and again, also if it waits forever, so that nothing hangs without a line."""
    monkeypatch.setattr("spark_client.session.SILENT_SECONDS", 0.05)

    def script(session: Session) -> None:
        session.start()
        body = session.take_frame()
        session.expect(frames.Flush)
        assert said.wait(10)
        session.ack(body)
        session.await_end()

    said = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has sent nothing for 0.05 s, and this task waits for it: 1 frame with 3 records" in record.getMessage():
                said.set()

    listener = Listener()
    log = logging.getLogger("producerd.client")
    log.addHandler(listener)
    daemon.runs(script)
    try:
        with connect(daemon) as session:
            session.put("s", rows(3))
            session.flush()
    finally:
        log.removeHandler(listener)
    assert said.is_set()


@pytest.mark.parametrize("has_progressed", [False, True])
def test_a_client_gives_up_after_so_many_daemons_and_no_sooner(daemon: FakeDaemon, has_progressed: bool) -> None:
    """Those before the last acknowledgement do not count."""

    def dies_of_a_frame(session: Session) -> None:
        session.start()
        session.take_frame()

    def stores_one_and_dies(session: Session) -> None:
        session.start()
        session.ack(session.take_frame())
        session.take_frame()

    scripts = [dies_of_a_frame, stores_one_and_dies] if has_progressed else []
    daemon.runs(*scripts, dies_of_a_frame)
    connection = Connection(HELLO, [daemon.path], connect_timeout_seconds=5, reconnect_timeout_seconds=5)
    with connection as session:
        for _ in range(2 if has_progressed else 1):
            session.put("s", rows(1))
        with pytest.raises(ConnectionFailed, match=r"; 5 daemons in a row ended before any acknowledgement$") as caught:
            session.flush(10)
    assert caught.value.code == Code.DAEMON_LOST
    assert len(daemon.sessions) == (7 if has_progressed else 6)


@pytest.mark.promise("daemon-know-dry-runs")
def test_a_daemon_that_does_not_know_dry_runs_is_sent_nothing(daemon: FakeDaemon) -> None:
    """It would skip the field in OPEN, and store the rows."""
    with pytest.raises(ConnectionFailed, match="would store the rows of a dry run: upgrade it") as failed:
        Connection(HELLO, [daemon.path], dry_run=True)
    assert failed.value.code == Code.VERSION_MISMATCH
    assert not daemon.rows
