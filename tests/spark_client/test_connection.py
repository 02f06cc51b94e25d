"""What put() returned from is the daemon's, what it raised from was not taken, and no call hangs."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from producerd.errors import (
    BackpressureTimeout,
    Code,
    ConnectionFailed,
    FlushTimeout,
    Outcome,
    ProtocolError,
    Refused,
    RowFailure,
)
from producerd.wire import messages
from producerd.wire.columns import Body, Columns, lay_out
from producerd.wire.protocol import Protocol
from spark_client.batches import PlainRows
from spark_client.connection import Connection
from tests.spark_client.fake_daemon import (
    EXPIRED,
    INVALID,
    RETURNED,
    FakeDaemon,
    Script,
    Session,
    Step,
    acks,
    close_with,
    dies,
    ends,
    expects,
    fails,
    in_turn,
    lasts,
    refuses,
    refuses_stream,
    says,
    serves_after,
    stores,
    takes,
    until,
    waits,
)

HOST = socket.gethostname()
HELLO = messages.Hello(1, 1, batch_id=7, partition=3, attempt=1)
BLOCKED = messages.Blocked(1, 31.0, "the queue is full", 100, 100, 5_000, 64_000, 24, "throttled", "shardId-0", 0.9)
FAULT = says(messages.Close(Code.INTERNAL, "a fault of ours"))


def connect(daemon: FakeDaemon, **options: Any) -> Connection:
    return Connection(HELLO, [daemon.path], **{"connect_timeout_seconds": 5, **options})


def plain(count: int) -> PlainRows:
    return PlainRows([(b"%d" % i, b"k", None) for i in range(count)])


def rows(count: int, size: int = 10) -> Columns:
    return lay_out([b"k%d" % i for i in range(count)], [bytes([65 + i % 26]) * size for i in range(count)])


def put_each(connection: Connection, *counts: int) -> None:
    """Put a frame of rows for each count, and flush."""
    for count in counts:
        connection.put("s", rows(count))
    connection.flush(10)


def sleeps(seconds: float) -> Step:
    return lambda _: time.sleep(seconds)


def has_gone(daemon: FakeDaemon) -> None:
    until(lambda: daemon.sessions[0].socket.fileno() < 0)


@pytest.fixture(autouse=True)
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_client.session.ANSWER_SECONDS", 0.3)


# ---- what is put


def test_its_representation_counts_what_is_open(daemon: FakeDaemon) -> None:
    daemon.runs(lasts(takes(1), acks(0), window_frames=8))
    with connect(daemon) as connection:
        connection.put("s", rows(3, 100))
        assert repr(connection) == (
            f"<Connection with 0 frames to be sent again: <DaemonSession 1 with a daemon at {daemon.path}: streams s, "
            "1 of 8 frames open, 1426 of 8388608 bytes sent>>"
        )
        connection.flush(10)


def test_hello_says_who_the_task_is_and_that_it_comes_back(daemon: FakeDaemon) -> None:
    connect(daemon, connect_timeout_seconds=0).close()
    until(lambda: daemon.hellos == [replace(HELLO, comes_back=1)])


@pytest.mark.promise("daemon-know-dry-runs")
def test_a_daemon_that_does_not_know_dry_runs_is_sent_nothing(daemon: FakeDaemon) -> None:
    """It would skip the field in OPEN, and store the rows."""
    with pytest.raises(ConnectionFailed, match="would store the rows of a dry run: upgrade it") as failed:
        connect(daemon, dry_run=True)
    assert failed.value.code == Code.VERSION_MISMATCH
    assert not daemon.rows


def test_failed_rows_are_named_by_their_number_in_the_partition(daemon: FakeDaemon) -> None:
    unknown = messages.RowCode(Outcome.UNKNOWN, Code.RESULT_COUNT, "answers did not match")
    failed = {0: INVALID, 9: unknown, 8: EXPIRED, 7: EXPIRED}
    daemon.runs(lasts(takes(2), fails(1, failed), fails(0, {2: INVALID, 3: INVALID})))
    with connect(daemon) as connection:
        put_each(connection, 5, 10)
    assert connection.tally.failures == (
        RowFailure(Code.RESULT_COUNT, "answers did not match", 1, True, (14,), "s"),
        RowFailure(Code.EXPIRED, EXPIRED.message, 2, False, (12, 13), "s"),
        RowFailure(Code.RECORD_INVALID, "data is null", 3, False, (5, 2, 3), "s", judged=True),
    )
    assert (connection.tally.records, connection.tally.stored) == (15, 9)


def test_rows_of_a_batch_that_is_cut_keep_the_numbers_that_they_are_given(daemon: FakeDaemon) -> None:
    opens = Session.welcome, lambda session: session.opened(max_frame_records=2)
    daemon.runs(in_turn(*opens, stores(), takes(1), fails(1, {0: INVALID}), Session.await_end))
    with connect(daemon) as connection:
        connection.put_batch("s", plain(3), rows=[5, 7, 9])
        connection.flush(10)
    assert connection.tally.failures == (RowFailure(Code.RECORD_INVALID, "data is null", 1, False, (9,), "s", True),)


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
    """Here each frame takes 3 s."""
    now = 1_000.0
    given: list[float | None] = []

    def put(_: Connection, stream: str, columns: Columns, seconds: float | None, **__: object) -> None:
        nonlocal now
        now += 3
        given.append(seconds)

    daemon.runs(lasts(max_frame_records=1))
    with connect(daemon) as connection:
        connection.open("s")
        with monkeypatch.context() as patched:
            for module in ("connection", "session"):
                patched.setattr(f"spark_client.{module}.time", SimpleNamespace(monotonic=lambda: now))
            patched.setattr(Connection, "put", put)
            connection.put_batch("s", plain(3), timeout_seconds, **together)
    assert given == left


# ---- large bodies and slow sockets


def test_a_body_larger_than_the_sockets_buffers_arrives_whole_while_the_daemon_is_slow(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sleeps meanwhile, instead of trying again and again."""
    tries = 0

    class Counted(socket.socket):
        def sendmsg(self, *buffers: Any) -> int:
            nonlocal tries
            tries += 1
            return super().sendmsg(*buffers)

    monkeypatch.setattr("spark_client.channel.socket.socket", Counted)
    daemon.runs(lasts(Session.grant, sleeps(0.05), expects(Body), acks(0)))
    with connect(daemon) as connection:
        connection.put("s", rows(1_000, 5_000))
        connection.flush(20)
    assert connection.tally.stored == len(daemon.rows) == 1_000
    assert {len(data or b"") for _, data, _ in daemon.rows} == {5_000}
    assert tries < 500


def test_acks_that_fill_the_socket_never_stop_a_body(daemon: FakeDaemon) -> None:
    """The daemon writes more than a socket holds before it reads on: only a client that reads while it sends goes on"""
    many = [messages.Blocked(1, 0.0, "x" * 2_000, last_error="y" * 2_000)] * 200
    daemon.runs(lasts(Session.grant, says(*many), expects(Body), acks(0)))
    with connect(daemon) as connection:
        connection.put("s", rows(1_000, 5_000))
        connection.flush(20)
    assert connection.tally.stored == 1_000


def test_messages_may_arrive_byte_by_byte(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    get_buffer = Protocol.get_buffer
    monkeypatch.setattr(Protocol, "get_buffer", lambda wire: get_buffer(wire)[:1])
    with connect(daemon) as connection:
        put_each(connection, 2)
    assert connection.tally.stored == 2


# ---- the window, and the largest frame


@pytest.mark.parametrize("limits", [{"window_frames": 2}, {"window_bytes": 2 * 1_068}], ids=["frames", "bytes"])
def test_put_keeps_the_window(daemon: FakeDaemon, limits: dict[str, int]) -> None:
    """With two frames unacknowledged no third is even reserved; an ACK makes room for exactly one."""

    def reads_nothing(session: Session) -> None:
        session.socket.settimeout(0.2)
        with pytest.raises(socket.timeout):  # TimeoutError since Python 3.10
            session.read()
        session.socket.settimeout(20)

    daemon.runs(lasts(takes(2), reads_nothing, acks(0), takes(1), acks(1, 2), **limits))
    with connect(daemon) as connection:
        assert connection.tally.seconds_blocked == 0
        put_each(connection, 1, 1, 1)
        assert 0.15 < connection.tally.seconds_blocked < 20


@pytest.mark.parametrize(
    ("most_bytes", "window_bytes", "asks"),
    [(1_067, 1_500, True), (1_068, 1_500, False), (1_067, 1 << 20, False), (1 << 20, 10, False)],
)
def test_a_large_frame_that_waits_for_the_window_asks_for_it(
    daemon: FakeDaemon, most_bytes: int, window_bytes: int, asks: bool
) -> None:
    """The daemon sends by itself what keeps a frame of its largest size waiting, but no larger one.

    A frame larger than the window goes alone.
    """
    asked = [expects(messages.Flush)] * asks
    daemon.runs(lasts(stores(), *asked, stores(), max_frame_bytes=most_bytes, window_bytes=window_bytes))
    with connect(daemon) as connection:
        put_each(connection, 1, 1)
    assert connection.tally.stored == 2


def test_a_record_that_is_too_large_alone_is_refused_wherever_it_stands(daemon: FakeDaemon) -> None:
    too_large = [
        refuses(Code.TOO_LARGE, f"not {records}", max_frame_bytes=1 << 20, max_frame_records=1) for records in (2, 1)
    ]
    daemon.runs(lasts(stores(), *too_large, max_frame_records=2))
    with connect(daemon) as connection, pytest.raises(Refused, match=r"^not 1$"):
        connection.put_batch("s", plain(4))
    assert connection.tally.taken == 2


# ---- refusals


@pytest.mark.parametrize(
    ("code", "judged"), [(Code.RECORD_TOO_LARGE, 1), (Code.RECORD_TOO_LARGE, 0), (Code.CONFIGURATION, 0)]
)
def test_a_record_that_the_daemon_can_never_take_fails_by_itself(code: str, judged: int, daemon: FakeDaemon) -> None:
    """It is judged only if the daemon says so.  A limit of the daemon's own settings judges no row."""
    daemon.runs(lasts(stores(), refuses(code, "queue_limit_bytes = 9", judged=judged), stores()))
    with connect(daemon) as connection:
        put_each(connection, 2, 1, 4)
    tally = connection.tally
    assert tally.failures == (RowFailure(code, "queue_limit_bytes = 9", 1, False, (2,), "s", bool(judged)),)
    assert (tally.records, tally.stored) == (7, 6)


# ---- time-outs


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (Session.grant, BackpressureTimeout, "room came just too late"),
        (refuses(Code.STREAM_NOT_FOUND, "no stream s"), Refused, "no stream s"),
    ],
    ids=["a GRANT is void", "a refusal is raised"],
)
def test_an_answer_that_crosses_the_cancel(answer: Step, error: type[Exception], said: str, daemon: FakeDaemon) -> None:
    daemon.runs(lasts(sleeps(0.2), answer, expects(messages.Cancel), stores()))
    with connect(daemon) as connection:
        with pytest.raises(error, match=said):
            connection.put("s", rows(1), timeout_seconds=0.1)
        put_each(connection, 2)
    assert [body.frame_id for body in daemon.sessions[0].bodies] == [2]


# ---- what the log says of a wait


def test_a_blocked_caller_makes_one_line_with_the_numbers(daemon: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.runs(lasts(says(BLOCKED), stores()))
    with caplog.at_level(logging.WARNING, "producerd.client"), connect(daemon) as connection:
        put_each(connection, 1)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("producerd.client", "WARNING")
    assert record.getMessage() == (
        "stream s: blocked for 31 s: the queue is full; queue 100 of 100 records, 5,000 of 64,000 bytes, "
        "24 requests in flight, shardId-0 holds 90%, last error: throttled"
    )


def test_waits_for_room_that_are_long_in_all_are_logged_once_with_why(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("spark_client.session.SLOW_SECONDS", 0.15)
    monkeypatch.setattr("spark_client.session.LONG_WAIT_SECONDS", 0.05)

    def script(session: Session) -> None:
        session.start()
        while not isinstance(message := session.read(), messages.Flush):
            if isinstance(message, messages.Reserve):
                time.sleep(0.06)
                session.send(messages.Grant(message.frame_id))
            elif isinstance(message, messages.Status):
                session.send(messages.Blocked(1, 0.0, "the service does not take them", 5, 9))
        acks(*range(len(session.bodies)))(session)
        session.await_end()

    daemon.runs(script)
    with connect(daemon) as connection:
        connection.put("s", rows(10))
        while not caplog.messages:
            connection.put("s", rows(10))
        connection.flush()
    (line,) = caplog.messages
    assert line.startswith("stream s: this task has waited for more than 0 s; ")
    assert "the service does not take them; queue 5 of 9 records" in line
    assert 0 < connection.tally.seconds_flushing < 20


# ---- a daemon that ends the session


def test_rows_that_a_stopping_daemon_returns_are_an_error(daemon: FakeDaemon) -> None:
    stops = says(messages.Draining(60.0, "SIGTERM"))
    daemon.runs(lasts(takes(1), stops, fails(0, {1: RETURNED, 2: RETURNED})))
    with connect(daemon) as connection:
        connection.put("s", rows(3))
        with pytest.raises(ConnectionFailed, match="it gave 2 records back") as caught:
            connection.flush(10)
        assert caught.value.code == Code.DRAINING
        assert connection.tally.failures == (RowFailure(Code.DRAINING, "the daemon stops", 2, False, (1, 2), "s"),)
        assert connection.tally.records == 3
        assert connection.draining is not None
        with pytest.raises(ConnectionFailed, match="the daemon stops"):
            connection.put("s", rows(1))


@pytest.mark.parametrize(
    ("script", "unacked"),
    [
        (Session.welcome, "every record that was sent is acknowledged"),
        (dies, "1 frame with 4 records is not acknowledged"),
        (ends(takes(1), expects(messages.Reserve)), "1 frame with 4 records is not acknowledged"),
        (ends(takes(1), Session.grant), "2 frames with 6 records are not acknowledged"),
        (ends(takes(2)), "2 frames with 6 records are not acknowledged"),
    ],
    ids=["welcomed", "opened", "reserved", "granted", "sent"],
)
def test_a_daemon_that_dies_in_any_state_is_lost(script: Script, unacked: str, daemon: FakeDaemon) -> None:
    daemon.runs(script)
    with connect(daemon) as connection, pytest.raises(ConnectionFailed) as caught:  # noqa: PT012 - any of the three
        connection.put("s", rows(4, 100_000))
        connection.put("s", rows(2, 1_000_000))
        connection.flush(10)
    assert caught.value.code == Code.DAEMON_LOST
    assert unacked in str(caught.value)


def test_a_close_that_came_unnoticed_is_read_when_the_next_send_fails(daemon: FakeDaemon) -> None:
    daemon.runs(ends(takes(1), FAULT))
    with connect(daemon) as connection:
        connection.put("s", rows(1))
        has_gone(daemon)
        for call in (connection.hasten, lambda: connection.put("s", rows(1)), lambda: connection.reason("s")):
            with pytest.raises(ConnectionFailed, match="a fault of ours; 1 frame with 1 record is not") as caught:
                call()
            assert caught.value.code == Code.INTERNAL


def test_a_daemon_that_reads_no_more_is_lost(daemon: FakeDaemon) -> None:
    is_deaf, noticed = threading.Event(), threading.Event()
    deaf: Step = lambda session: session.socket.shutdown(socket.SHUT_RD)  # noqa: E731
    daemon.runs(ends(deaf, lambda _: is_deaf.set(), waits(noticed)))
    with connect(daemon) as connection:
        connection.open("s")
        assert is_deaf.wait(10)
        with pytest.raises(ConnectionFailed, match="is gone: every record that was sent is acknowledged"):
            connection.put("s", rows(1))
        noticed.set()


def test_the_reason_of_a_daemon_that_is_gone_is_that_it_is_gone(daemon: FakeDaemon) -> None:
    daemon.runs(ends())
    with connect(daemon) as connection:
        connection.open("s")
        has_gone(daemon)
        gone = f"the daemon on host {HOST} is gone: every record that was sent is acknowledged"
        assert connection.reason("s") == gone
        assert connection.reason("another") == "there is no daemon that knows of them"


def test_what_a_broken_socket_still_holds_is_read_first(daemon: FakeDaemon) -> None:
    """The daemon acknowledges, says why it goes and goes, while the client is in mid-body."""
    daemon.runs(ends(takes(1), Session.grant, acks(0), FAULT))
    with connect(daemon) as connection:
        connection.put("s", rows(3))
        with pytest.raises(ConnectionFailed, match=r"a fault of ours; 1 frame with 2 records"):
            connection.put("s", rows(2, 2_000_000))
    assert connection.tally.stored == 3


# ---- what the protocol does not allow


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\x00\x00\x00\x00\x00\x00\x00",
        messages.HEADER.pack(messages.MessageType.BODY, 0, 0, 2**32 - 1),
        messages.encode(messages.Grant(99)),
        messages.encode(messages.Flush()),
        messages.encode(messages.Ack(1, 3, 3, 0, 0, 0)),
    ],
    ids=["unknown", "a body", "a grant of nothing", "a client's message", "an ack before the body"],
)
def test_what_the_protocol_does_not_allow_is_a_protocol_error(daemon: FakeDaemon, raw: bytes) -> None:
    daemon.runs(lasts(expects(messages.Reserve), lambda session: session.socket.sendall(raw)))
    with connect(daemon) as connection, pytest.raises(ProtocolError):
        connection.put("s", rows(3))


# ---- what ends a session


class Ends(NamedTuple):
    scripts: tuple[Script, ...]
    said: str
    """A pattern of the whole error."""
    code: str
    records: tuple[int, ...] = (3,)
    """Number of records of each frame that is put."""
    seconds: float = 0.0
    """For which it looks for the next daemon."""
    sessions: int = 1


def refused_by_the_next(code: str) -> tuple[Script, Script]:
    return dies, lasts(refuses(code, "not this one", max_frame_bytes=100))


FRUITLESS = r".*; 5 daemons in a row ended before any acknowledgement"
GONE = rf"the daemon on host {HOST} is gone: 1 frame with 3 records is not acknowledged"
ENDS = {
    "a daemon that stops refuses OPEN": Ends(
        (in_turn(Session.welcome, refuses_stream(Code.DRAINING), Session.await_end),), ".*", Code.DRAINING
    ),
    "a daemon that stops refuses RESERVE": Ends((lasts(refuses(Code.DRAINING)),), ".*", Code.DRAINING),
    "an ACK of another size breaks the protocol": Ends(
        (ends(takes(1), says(messages.Ack(1, 2, 2, 0, 0, 0))),), ".*ACK of 2 records for a frame of 3.*", Code.PROTOCOL
    ),
    "a CLOSE says that the protocol is broken": Ends(
        (ends(takes(1), says(messages.Close(Code.PROTOCOL, "the key offsets fall"))),),
        r".*the key offsets fall; 1 frame with 3 records is not acknowledged",
        Code.PROTOCOL,
    ),
    "the next daemon denies the stream": Ends(
        refused_by_the_next(Code.ACCESS_DENIED),
        r"stream s: not this one; 1 frame with 3 records is not acknowledged",
        Code.ACCESS_DENIED,
        seconds=10,
        sessions=2,
    ),
    "the next daemon takes no frame of one row": Ends(
        refused_by_the_next(Code.TOO_LARGE),
        r"stream s: not this one; 1 frame with 1 record is not acknowledged",
        Code.TOO_LARGE,
        records=(1,),
        seconds=10,
        sessions=2,
    ),
    "the next daemon refuses the client": Ends(
        (dies, close_with(Code.NOT_AUTHORIZED)),
        rf"{GONE}; the daemon on host {HOST} closed the session: because of NOT_AUTHORIZED",
        Code.NOT_AUTHORIZED,
        seconds=10,
        sessions=2,
    ),
    "a daemon that closes for another reason is not looked for": Ends(
        (ends(takes(1), FAULT), serves_after()),
        r".*a fault of ours; 1 frame with 3 records is not acknowledged",
        Code.INTERNAL,
        seconds=10,
    ),
    "five more daemons end without an acknowledgement": Ends(
        (dies,), FRUITLESS, Code.DAEMON_LOST, records=(1,), seconds=10, sessions=6
    ),
    "daemons before the last acknowledgement do not count": Ends(
        (dies, ends(stores(), takes(1)), dies), FRUITLESS, Code.DAEMON_LOST, records=(1, 1), seconds=10, sessions=7
    ),
}


@pytest.mark.promise("daemons-die-sent-fed")
@pytest.mark.parametrize("name", ENDS)
def test_what_ends_a_session_is_an_error_that_says_so(daemon: FakeDaemon, name: str) -> None:
    case = ENDS[name]
    daemon.runs(*case.scripts)
    connection = connect(daemon, reconnect_timeout_seconds=case.seconds)
    with connection, pytest.raises((ConnectionFailed, ProtocolError)) as caught:
        put_each(connection, *case.records)
    assert re.fullmatch(case.said, str(caught.value))
    assert (caught.value.code, len(daemon.sessions)) == (case.code, case.sessions)
    assert isinstance(caught.value, ProtocolError) is (case.code == Code.PROTOCOL)


# ---- the next daemon


def lasting(daemon: FakeDaemon, **options: Any) -> Connection:
    """A connection that looks for the next daemon for 10 s."""
    return connect(daemon, **{"reconnect_timeout_seconds": 10, **options})


def test_rows_that_a_stopping_daemon_gives_back_are_stored_by_the_next_one(daemon: FakeDaemon) -> None:
    """The tally counts the bytes of stored rows, never of a row that failed."""
    daemon.runs(ends(takes(1), says(messages.Draining(5.0)), fails(0, {1: INVALID, 2: RETURNED})), serves_after())
    with lasting(daemon) as connection:
        connection.put("s", lay_out([b"k0", b"key 1", b"k2"], [b"data 0", b"d", b"data two"], [b"7", b"8", b"9"]))
        connection.flush(10)
        assert connection.draining is None, "the next daemon does not stop"
    tally = connection.tally
    assert (tally.records, tally.stored, tally.payload_bytes) == (3, 2, len(b"k0data 07k2data two9"))


def test_what_a_daemon_that_stops_still_acknowledges_is_not_sent_again(daemon: FakeDaemon) -> None:
    daemon.runs(lasts(takes(1), says(messages.Draining(5.0)), refuses(Code.DRAINING), acks(0)), serves_after())
    with lasting(daemon) as connection:
        put_each(connection, 3, 1)
    assert [len(session.rows) for session in daemon.sessions] == [3, 1]
    tally = connection.tally
    assert (tally.stored, tally.resent, tally.possible_duplicates) == (4, 0, 0)


def test_a_stream_that_the_next_daemon_refuses_is_named(daemon: FakeDaemon) -> None:
    refuses_first = in_turn(Session.welcome, refuses_stream(Code.STREAM_LIMIT, "64 streams are open"))
    daemon.runs(ends(Session.opened, takes(1)), refuses_first)
    with lasting(daemon) as connection:
        connection.open("first")
        connection.put("second", rows(1))
        with pytest.raises(ConnectionFailed) as caught:
            connection.flush(10)
    assert str(caught.value) == "stream first: 64 streams are open; 1 frame with 1 record is not acknowledged"
    assert caught.value.code == Code.STREAM_LIMIT


def test_a_daemon_that_does_not_come_back_is_lost(daemon: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    path = daemon.link()
    daemon.runs(in_turn(dies, lambda _: path.unlink()))
    with Connection(HELLO, [str(path)], reconnect_timeout_seconds=0.2) as connection:
        connection.put("s", rows(1))
        with pytest.raises(ConnectionFailed) as caught:
            connection.flush(10)
    gone = f"the daemon on host {HOST} is gone: 1 frame with 1 record is not acknowledged"
    assert str(caught.value).startswith(f"{gone}; no daemon to talk to on host {HOST} within 0.2 s (")
    assert caught.value.code == Code.DAEMON_LOST
    assert caplog.messages == [f"{gone}; looking for it for 0.2 s"]


def test_streams_that_the_next_daemon_has_not_opened_are_still_to_be_opened(daemon: FakeDaemon) -> None:
    go_on = threading.Event()

    def opens_late(session: Session) -> None:
        opened = session.expect(messages.Open)
        assert go_on.wait(10)
        session.send(messages.Opened(opened.stream_id, 1 << 20, 100))

    daemon.runs(ends(), in_turn(Session.welcome, opens_late, Session.serve))
    with lasting(daemon) as connection:
        connection.open("s")
        is_behind = [connection.is_behind]
        with pytest.raises(BackpressureTimeout, match=r"^stream s was not opened within 0\.1 s"):
            connection.put("s", rows(1), timeout_seconds=0.1)
        is_behind.append(connection.is_behind)
        go_on.set()
        put_each(connection, 1)
        assert [*is_behind, connection.is_behind] == [False, True, False]
    assert (connection.tally.stored, len(daemon.sessions[1].streams)) == (1, 1), "it is opened once"


def test_a_stream_that_opened_while_another_was_asked_about_is_opened_once(daemon: FakeDaemon) -> None:
    def opens_the_second_late(session: Session) -> None:
        late = session.expect(messages.Open)
        session.expect(messages.Status)
        session.send(messages.Opened(late.stream_id, 1 << 20, 100), BLOCKED)

    daemon.runs(ends(takes(1), Session.opened, takes(1)), lasts(opens_the_second_late, stores(2)))
    with lasting(daemon) as connection:
        connection.put("first", rows(1))
        connection.put("second", rows(1))
        with pytest.raises(FlushTimeout, match=r"stream second was not opened within 0\.5 s"):
            connection.flush(0.5)
        assert connection.reason("first").startswith("the queue is full")
        connection.flush(10)
    assert connection.tally.stored == 2


def test_a_client_that_gives_up_while_it_finds_a_daemon_stays_ended(daemon: FakeDaemon) -> None:
    """The next calls, too, raise what ended it, and the frame stays unacknowledged."""
    daemon.runs(dies, in_turn(lambda _: connection.abandon(), Session.welcome, Session.await_end))
    with lasting(daemon) as connection:
        connection.put("s", rows(1, 100))
        for _ in range(2):
            with pytest.raises(ConnectionFailed, match=r"1 frame with 1 record is not acknowledged"):
                connection.flush(10)
    assert len(daemon.sessions) == 2, "it looks for no other daemon"


def test_a_client_that_gives_up_while_no_daemon_is_there_looks_no_longer(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.runs(lasts(takes(1)))
    path, slept = daemon.link(), []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert len(slept) == 1
        connection.abandon()

    monkeypatch.setattr("spark_client.channel.time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    with Connection(HELLO, [str(path)], reconnect_timeout_seconds=60) as connection:
        connection.put("s", rows(1))
        path.unlink()
        daemon.sessions[0].socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(ConnectionFailed, match="1 frame with 1 record is not acknowledged"):
            connection.flush()


def test_what_comes_back_after_a_client_gave_up_has_failed(daemon: FakeDaemon) -> None:
    is_sent = threading.Event()
    gives_back = in_turn(says(messages.Draining(5.0)), fails(0, {1: RETURNED, 2: RETURNED}))
    daemon.runs(lasts(takes(1), gives_back, lambda _: is_sent.set()))
    with lasting(daemon) as connection:
        connection.put("s", rows(3))
        assert is_sent.wait(10)
        connection.abandon()
        with pytest.raises(ConnectionFailed, match="every record that was sent is acknowledged"):
            connection.flush(10)
    assert connection.tally.failures == (RowFailure(Code.DRAINING, "the daemon stops", 2, False, (1, 2), "s"),)
    assert (connection.tally.records, connection.tally.stored) == (3, 1)
