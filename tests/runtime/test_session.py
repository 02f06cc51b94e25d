"""A session answers its client, tells it why it waits, and ends with a reason.

The tests speak to it in bytes, without a socket.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import pytest

import producerd.runtime.session as module
from producerd.core.rows.frame import RowEnd
from producerd.core.rows.sorting import sort_rows
from producerd.errors import Code, Outcome
from producerd.runtime.client_socket import MESSAGES_OF_A_TURN
from producerd.runtime.kinesis import StreamSummary
from producerd.runtime.session import Session
from producerd.runtime.stream import Stream
from producerd.runtime.users.peers import Peer
from producerd.wire import messages
from producerd.wire.columns import FLAG_HASH_KEYS, FLAG_RESENT, PREFIX, Columns, lay_out
from producerd.wire.messages import MessageType
from tests.daemon import one, rows
from tests.runtime.stand_ins import (
    SHORT,
    Said,
    StandInHost,
    StandInTransport,
    body,
    connected,
    opened,
    put,
    reserve,
    tell,
)

pytestmark = pytest.mark.law("Session")

TEST = "an unknown process, which calls itself 'test pid 0'"
SILENT = "an unknown process, which has not sent HELLO"
STATUS = messages.encode(messages.Status(1))
ASKS = messages.encode(messages.Status(1, asks_service=1))
BYE = messages.encode(messages.Close("BYE", "enough"))


class Clock:
    """The loop's time, which stands still until a test lets it pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        loop = asyncio.get_running_loop()
        loop.slow_callback_duration = inf
        monkeypatch.setattr(loop, "time", lambda: self.now)

    async def run(self, seconds: float) -> None:
        """Let time pass, and run what is due at its end."""
        self.now += seconds
        for _ in range(2):
            await asyncio.sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def host() -> StandInHost:
    return StandInHost()


def line_of(event: str, level: str = "warning", client: str = TEST, **values: Any) -> dict[str, Any]:
    """A line of the log about session 1."""
    return {"event": event, "log_level": level, "session": 1, "client": client, **values}


def charged(charge_bytes: int) -> Columns:
    """A frame of one row that counts this many bytes against limits."""
    return one(b"x" * (charge_bytes - one(b"").layout.charge_bytes))


def ends_all(host: StandInHost, now: float = 0.0) -> None:
    """Return all rows of the stream to their callers."""
    host.stream.pipeline.abandon()
    host.stream.settle(now)


def with_streams(host: StandInHost, *names: str) -> list[Stream]:
    """Give the daemon these streams.  Return a list to which each stream is added when it is to be looked at."""
    touched: list[Stream] = []
    settings = host.stream.settings
    host.streams = {name: Stream(name, settings, touched=touched.append) for name in names}
    host.stream = host.streams["flights"]
    return touched


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
async def test_messages_and_bodies_may_come_in_any_pieces(piece: int) -> None:
    host = StandInHost(100)
    session, transport = opened(host)
    for number in range(1, 4):
        frame = rows(5)
        tell(session, reserve(number, frame), piece=piece)
        assert transport.drain() == [messages.Grant(number)]
        tell(session, body(number, frame), STATUS, piece=piece)
        (blocked,) = transport.drain()
        assert isinstance(blocked, messages.Blocked)
        assert (blocked.queue_records, blocked.seconds) == (5 * number, 0.0)
    assert repr(session) == (
        f"<Session 1 of {TEST}: streams flights, 3 frames with {3 * rows(5).layout.charge_bytes} bytes "
        "not acknowledged, 0 waiting>"
    )
    assert host.failures == []


async def test_a_question_to_the_service_is_asked_once_at_a_time_and_a_plain_status_asks_nothing(
    host: StandInHost,
) -> None:
    host.answers_late = True
    session, transport = opened(host)

    def services() -> list[int]:
        return [message.service for message in transport.drain() if isinstance(message, messages.Blocked)]

    tell(session, STATUS)
    assert (services(), host.questions) == ([messages.Service.NOT_ASKED], [])
    for times in (1, 2):
        tell(session, ASKS * 3)
        assert services() == [messages.Service.NOT_ASKED] * 2, "the first waits for its answer"
        assert len(host.questions) == times
        host.questions[-1](host.word)
        assert services() == [messages.Service.FAILED]
    tell(session, ASKS)
    session.connection_lost(None)
    host.questions[-1](host.word)
    assert (transport.drain(), host.failures) == ([], []), "its client has gone"


async def test_opened_says_where_the_stream_is_to_a_client_that_asks_and_waits_for_it() -> None:
    host = StandInHost(ordering="per_key")
    hello, asks = messages.Hello(1, 1, client="test"), messages.Open(1, "flights", asks_where=1)
    session, transport = connected(host, hello, asks)
    assert [type(message) for message in transport.drain()] == [messages.Welcome]
    assert session.idle_since is None, "it waits for an answer"
    tell(session, STATUS)
    assert [type(message) for message in transport.drain()] == [messages.Blocked]
    host.where_questions[0](StreamSummary("arn", 1, created_milliseconds=7, endpoint_host="there"))
    stream = host.stream
    known: dict[str, Any] = {"per_key": 1, "endpoint_host": "there", "stream_arn": "arn", "created_milliseconds": 7}
    said = messages.Opened(1, *stream.gate.largest_frame, stream.max_record_bytes)
    assert (transport.drain(), session.idle_since is None) == ([replace(said, **known)], False)

    session, transport = connected(host, hello, asks)
    host.where_questions[1](None)
    session.connection_lost(None)
    assert transport.drain()[1:] == [replace(said, max_frame_records=2, per_key=1)], "two share the queue"
    session, transport = connected(host, hello, asks)
    session.connection_lost(None)
    host.where_questions[2](None)
    assert (transport.drain()[1:], host.failures, len(host.where_questions)) == ([], [], 3), "its client has gone"


async def test_rows_that_a_client_has_left_out_are_counted_for_their_stream(host: StandInHost) -> None:
    session, transport = opened(host, messages.Flush(1, left_out=7), messages.Flush(1), messages.Flush(1, left_out=5))
    assert (host.stream.left_out_records, transport.drain()) == (12, [])
    tell(session, messages.Flush(left_out=1))
    assert "stream number 0 is not open" in str(transport.drain())


async def test_a_failure_of_the_gate_or_the_pipeline_ends_the_daemon(
    monkeypatch: pytest.MonkeyPatch, host: StandInHost
) -> None:
    error = RuntimeError("half settled")
    session, _ = opened(host)
    for verb in ("submit", "discard"):
        monkeypatch.setattr(host.stream.pipeline, verb, lambda *_: raise_(error))
    tell(session, put(1, rows(1)))
    assert host.failures == [error]
    session.connection_lost(None)
    assert host.failures == [error, error]


def raise_(error: Exception) -> Any:
    raise error


async def test_bytes_that_break_their_reader_end_only_the_session(
    monkeypatch: pytest.MonkeyPatch, host: StandInHost, log: list[Any]
) -> None:
    session, transport = opened(host)
    monkeypatch.setattr("producerd.core.rows.intake.check", lambda *_, **__: raise_(RuntimeError("a row")))
    tell(session, put(1, rows(1)))
    assert not host.failures
    assert transport.drain()[-1] == messages.Close(Code.PROTOCOL, "these bytes could not be read; see the daemon's log")
    event = {"event": "a client's bytes could not be read", "exc_info": True, "log_level": "error"}
    assert [line for line in log if line["log_level"] == "error"] == [event | {"exc_text": False}], "it may quote a row"


# ---- callers that wait


async def test_a_caller_blocked_for_long_makes_a_line_on_both_sides_and_again(
    host: StandInHost, clock: Clock, log: list[Any]
) -> None:
    session, transport = opened(host, put(1, rows(5)))
    host.stream.pipeline.stats.last_error = "InternalFailure: the disks are on fire"
    host.stream.budget.charge(5, 100)  # another session's
    clock.now = 1.0
    tell(session, reserve(2, rows(5)))
    assert transport.drain() == [messages.Grant(1)]

    def reports() -> list[Any]:
        return [line for line in log if line["event"] == "caller blocked"]

    def report(seconds: int) -> dict[str, Any]:
        return line_of("caller blocked", stream="flights", seconds=seconds, why=host.stream.report.describe(clock.now))

    await clock.run(29.75)
    assert (transport.drain(), reports()) == ([], [])
    await clock.run(0.25)
    assert transport.drain() == [host.stream.report.blocked(1, 30.0, clock.now)]
    assert reports() == [report(30)]
    assert "10 of 10 records" in reports()[0]["why"]
    assert "the disks are on fire" in reports()[0]["why"]
    await clock.run(299.75)
    assert (transport.drain(), len(reports())) == ([], 1)
    await clock.run(0.25)
    assert transport.drain() == [host.stream.report.blocked(1, 330.0, clock.now)], "since it asked"
    assert reports()[1:] == [report(330)]
    session.pause_writing()  # it reads nothing
    await clock.run(300)
    assert (transport.drain(), reports()[2:]) == ([], [report(630)])
    session.resume_writing()
    await clock.run(0)

    why = host.stream.report.describe(clock.now)
    tell(session, messages.Cancel(2))
    assert transport.drain() == [messages.Refused(2, 1, Code.CANCELLED, why)]
    assert repr(session).endswith(", 0 waiting>")
    await clock.run(3_600)
    assert (transport.drain(), len(reports()), host.failures) == ([], 3, [])


async def test_a_caller_that_has_its_grant_is_not_reported(host: StandInHost, clock: Clock, log: list[Any]) -> None:
    host.stream.budget.charge(10, 100)  # another session's
    session, transport = opened(host, reserve(1, one()))
    assert repr(session).endswith("0 frames with 0 bytes not acknowledged, 1 waiting>")
    host.stream.budget.release(10, 100)
    host.stream.gate.pump(0.0)
    assert transport.drain() == [messages.Grant(1)]
    tell(session, body(1, one()))
    await clock.run(3_600)
    assert [line["event"] for line in log] == ["session opened"]


# ---- clients that do not read, or flood


async def test_a_client_that_does_not_read_is_answered_no_more_than_the_buffer_takes(host: StandInHost) -> None:
    session, transport = opened(host)
    transport.high_water = 1_000
    tell(session, STATUS * 500)
    assert not transport.reading
    answered = len(transport.drain())
    assert 0 < answered < 20
    for _ in range(501):
        session.resume_writing()
        await asyncio.sleep(0)
        answered += len(transport.drain())
    assert (answered, transport.reading) == (500, True)


async def test_a_session_that_chokes_again_before_its_turn_does_not_read(host: StandInHost) -> None:
    session, transport = opened(host)
    session.pause_writing()
    session.resume_writing()
    session.pause_writing()
    await asyncio.sleep(0)
    assert not transport.reading
    session.resume_writing()
    await asyncio.sleep(0)
    assert transport.reading


async def test_a_flood_of_one_client_leaves_the_loop_to_others_and_is_answered_whole(host: StandInHost) -> None:
    session, transport = opened(host)
    await asyncio.sleep(0)  # what it has said until now counts against its user's share of this turn
    tell(session, STATUS * (4 * 16 + 1))
    answers = [len(transport.drain())]
    for _ in range(4):
        assert not transport.reading
        assert session.idle_since is None, "it waits for answers"
        await asyncio.sleep(0)
        answers.append(len(transport.drain()))
    assert (answers, transport.reading) == ([16, 16, 16, 16, 1], True)
    assert session.idle_since is not None


async def test_a_flood_may_end_in_garbage_or_in_the_end_of_its_client(host: StandInHost) -> None:
    session, transport = opened(host, messages.encode(messages.Flush(1)) * MESSAGES_OF_A_TURN + b"\xff" * 8)
    assert transport.drain() == []
    await asyncio.sleep(0)
    (close,) = transport.drain()
    assert isinstance(close, messages.Close)

    session, transport = opened(host, messages.encode(messages.Flush(1)) * 200)
    session.connection_lost(None)
    await asyncio.sleep(0)
    assert (transport.drain(), host.failures, host.stream.gate.sessions) == ([], [], 0)


async def test_garbage_that_was_left_when_it_choked_ends_the_session_later(host: StandInHost) -> None:
    session, transport = opened(host)
    transport.high_water = 100
    tell(session, STATUS * 3 + b"\xff" * 8)
    assert not transport.closed
    transport.drain()
    transport.high_water = 1 << 30
    session.resume_writing()
    await asyncio.sleep(0)
    close = transport.drain()[-1]
    assert isinstance(close, messages.Close)
    assert (close.code, transport.closed) == (Code.PROTOCOL, True)


async def test_a_session_buffers_little_for_a_client_that_reads_little(
    monkeypatch: pytest.MonkeyPatch, host: StandInHost
) -> None:
    limits: list[int | None] = []
    monkeypatch.setattr(StandInTransport, "set_write_buffer_limits", lambda _, high: limits.append(high))
    session, _ = connected(host)
    assert limits == [64 * 1024]
    assert len(session.get_buffer(-1)) == 2 * messages.MAX_CONTROL_BYTES


async def test_what_the_loop_does_for_a_client_counts_against_its_user(
    monkeypatch: pytest.MonkeyPatch, host: StandInHost
) -> None:
    peer, now = Peer(12, 7, 0), 1.0
    monkeypatch.setattr(module, "peer_of", lambda _: peer)
    spent: list[tuple[Peer | None, float]] = []
    counted: list[tuple[Peer | None, messages.Message]] = []
    monkeypatch.setattr(host.shares, "clock", lambda: now)
    monkeypatch.setattr(host.shares, "has_time", lambda *_: True)
    monkeypatch.setattr(host.shares, "spend", lambda *each: spent.append(each))
    monkeypatch.setattr(host.shares, "count", lambda *each: counted.append(each))
    session, _ = connected(host)
    assert spent == [(peer, 1.0)], "for its place in the table"
    now = 2.0
    tell(session, messages.encode(messages.Hello(1, 1)) + messages.encode(messages.Flush()))
    assert spent[1:] == [(peer, 2.0)]
    now = 3.0
    session.resume_writing()
    await asyncio.sleep(0)
    assert spent[2:] == [(peer, 3.0)]
    assert counted == [(peer, messages.Hello(1, 1)), (peer, messages.Flush())]


@pytest.mark.parametrize("has_time_again", [True, False])
async def test_a_client_whose_messages_the_daemon_has_put_off_is_not_late_for_that(
    monkeypatch: pytest.MonkeyPatch, host: StandInHost, clock: Clock, has_time_again: bool
) -> None:
    """Its body is in the daemon's own buffer.  A client whose user never has time is late in the end."""
    session, transport = opened(host, reserve(1, one()))
    go_on: list[Callable[[], None]] = []
    monkeypatch.setattr(host.shares, "has_time", lambda *_: False)
    monkeypatch.setattr(host.shares, "put_off", lambda _, callback: go_on.append(callback))
    tell(session, body(1, one()))
    assert (len(go_on), session.idle_since) == (1, None)
    await clock.run(2.0)  # in which it should have begun
    await clock.run(4.75)
    assert not transport.closed
    if has_time_again:
        monkeypatch.setattr(host.shares, "has_time", lambda *_: True)
        go_on[0]()
        assert host.stream.pipeline.queued_records == 1
        await clock.run(3_600)
        assert not transport.closed
    else:
        await clock.run(0.25)
        assert (transport.closed, session.ended_as) == (True, "late")


# ---- clients that are not let in, and names


@pytest.mark.parametrize(("peer", "who"), [(None, SILENT), (Peer(12, 7, 0), "uid 7 pid 12, which has not sent HELLO")])
async def test_one_client_too_many_makes_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, host: StandInHost, log: list[Any], peer: Peer | None, who: str
) -> None:
    monkeypatch.setattr(module, "peer_of", lambda _: peer)
    host.full = "max_connections = 1"
    _, transport = connected(host)
    assert transport.drain() == [messages.Close(Code.CONNECTION_LIMIT, "max_connections = 1")]
    assert log == [line_of("client is one too many", client=who, why="max_connections = 1")]


@pytest.mark.parametrize(("uid", "refused"), [(7, ""), (8, "8"), (None, "unknown")])
async def test_only_users_that_are_listed_may_connect(
    monkeypatch: pytest.MonkeyPatch, host: StandInHost, log: list[Any], uid: int | None, refused: str
) -> None:
    monkeypatch.setattr(module, "peer_of", lambda _: None if uid is None else Peer(12, uid, 0))
    host.allowed_uids = frozenset({7})
    session, transport = connected(host)
    assert session.client.uid == uid
    if not refused:
        assert (transport.drain(), log) == ([], [])
        return
    message = f"user id {refused} may not use this socket: it is not in allowed_uids"
    assert transport.drain() == [messages.Close(Code.NOT_AUTHORIZED, message)]
    pid, named = (12, uid) if uid else (None, "unknown")
    line = {"event": "client is not allowed", "log_level": "warning", "session": 1, "uid": named, "pid": pid}
    assert log == [line]


async def test_a_client_of_other_versions_learns_both_and_is_not_listened_to(host: StandInHost, log: list[Any]) -> None:
    _, transport = connected(host, messages.Hello(8, 9, client="tomorrow's", pid=12), messages.Open(1, "flights"))
    (close,) = transport.drain()
    assert isinstance(close, messages.Close)
    assert close.code == Code.VERSION_MISMATCH
    assert "versions 8 to 9" in close.message
    assert "version 1;" in close.message
    who = 'an unknown process, which calls itself "tomorrow\'s pid 12"'
    assert log == [line_of("client speaks other versions", client=who, versions="8-9")]


@pytest.mark.promise("client-named-kernel")
@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (messages.Hello(1, 1), "'client pid 0'"),
        (
            messages.Hello(1, 1, client="spark", application_id="app-1", stage_id=3, partition=4, attempt=5, pid=12),
            "'spark pid 12 app-1 stage 3 partition 4 attempt 5'",
        ),
        (messages.Hello(1, 1, client="uid 0 pid 1', and\n" + "x" * 300, pid=1), f'"uid 0 pid 1\', and\\n{"x" * 282}"'),
    ],
    ids=["without a name", "a task", "invented"],
)
async def test_a_client_is_named_by_the_kernel_and_then_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch, host: StandInHost, log: list[Any], hello: messages.Hello, words: str
) -> None:
    monkeypatch.setattr(module, "peer_of", lambda _: Peer(12, 7, 0))
    session, transport = connected(host)
    nothing = "streams none, 0 frames with 0 bytes not acknowledged, 0 waiting"
    assert repr(session) == f"<Session 1 of uid 7 pid 12, which has not sent HELLO: {nothing}>"
    tell(session, hello)
    name = f"uid 7 pid 12, which calls itself {words}"
    assert repr(session) == f"<Session 1 of {name}: {nothing}>"
    assert [type(message) for message in transport.drain()] == [messages.Welcome]
    assert log == [line_of("session opened", "debug", name, uid=7)]


@pytest.mark.parametrize(
    ("code", "event"),
    [
        (Code.STREAM_NOT_FOUND, "stream cannot have this name"),
        (Code.STREAM_LIMIT, "stream is one too many"),
        (Code.NOT_AUTHORIZED, "stream is not allowed"),
        (Code.DRAINING, None),
    ],
)
async def test_a_stream_that_is_not_opened_makes_a_line_unless_the_daemon_stops(
    code: str, event: str | None, host: StandInHost, log: list[Any]
) -> None:
    host.refuses_with = code
    _, transport = opened(host, messages.Open(2, "flihgts"))
    (refused,) = transport.drain()
    assert isinstance(refused, messages.Refused)
    assert refused.code == code
    lines = [line for line in log if line["log_level"] == "warning"]
    # Not as "stream", because repeats are counted by stream, and there may be any number of wrong names.
    assert lines == ([line_of(event, name="flihgts", why="no")] if event else [])


# ---- how a session ends


async def test_a_session_that_has_ended_keeps_no_buffer(host: StandInHost) -> None:
    """A client that connected over and over made 6,000 of them, 200 MB, until garbage was collected."""
    frame = rows(1, size=100_000)
    session, transport = opened(host, reserve(1, frame))
    assert transport.drain() == [messages.Grant(1)]
    tell(session, body(1, frame)[:1_000])
    assert len(session.get_buffer(-1)) == frame.layout.body_bytes - 1_000 + messages.HEADER.size
    session.connection_lost(None)
    assert len(session.get_buffer(-1)) <= messages.HEADER.size


async def test_what_comes_after_the_daemon_has_closed_a_session_is_dropped(host: StandInHost) -> None:
    session, transport = opened(host)
    session.end_session(Code.INTERNAL, "no")
    for _ in range(2):
        session.buffer_updated(len(session.get_buffer(-1)))
    assert len(session.get_buffer(-1)) > 0, "asyncio ends a connection without a buffer with an error"
    assert transport.drain() == [messages.Close(Code.INTERNAL, "no")]
    assert host.failures == []


async def test_a_client_that_has_closed_is_not_listened_to_again(host: StandInHost) -> None:
    """Its CLOSE may have been left in the buffer when it read nothing, and it may send any number of them."""
    session, transport = opened(host)
    session.pause_writing()
    tell(session, BYE)
    assert not transport.closed
    session.resume_writing()
    await asyncio.sleep(0)
    assert (transport.closed, transport.reading) == (True, False)
    _, transport = opened(host, BYE * 17)
    assert (transport.closed, transport.reading) == (True, True)
    assert host.failures == []


async def test_a_client_that_closes_is_sent_nothing_more(host: StandInHost, log: list[Any]) -> None:
    session, transport = opened(host, put(1, one()))
    assert transport.drain() == [messages.Grant(1)]
    tell(session, BYE)
    assert log[1:] == [line_of("client closed", "debug", code="BYE", message="enough")]
    ends_all(host)
    session.announce_drain(5.0)
    assert (transport.closed, transport.drain()) == (True, [])
    session.connection_lost(ConnectionResetError())
    assert session.ended_as == "closed"


async def test_a_client_that_waited_for_room_has_lost_its_connection(host: StandInHost) -> None:
    host.stream.budget.charge(10, 100)  # another session's
    session, _ = opened(host, reserve(1, one()))
    session.connection_lost(None)
    assert session.ended_as == "lost"


async def test_a_client_is_idle_since_it_last_spoke_or_was_answered(host: StandInHost, clock: Clock) -> None:
    session, _ = opened(host)
    seen = [session.idle_since]
    clock.now = 1.0
    tell(session, messages.Flush(1))
    seen.append(session.idle_since)
    clock.now = 2.0
    tell(session, put(1, one()))
    seen.append(session.idle_since)
    clock.now = 3.0
    ends_all(host, clock.now)
    seen.append(session.idle_since)
    session.end_session(Code.DRAINING, "the daemon has stopped")
    seen.append(session.idle_since)
    assert seen == [0.0, 1.0, None, 3.0, None], "it waits for an answer, and in the end it is closed"


async def test_a_connection_that_the_daemon_closes_is_cut_if_its_client_does_not_read(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    cut: list[Session] = []
    monkeypatch.setattr(StandInTransport, "abort", lambda transport: cut.append(transport.protocol))
    stays, _ = opened(StandInHost())
    goes, _ = opened(StandInHost())
    for session in (stays, goes):
        session.end_session(Code.INTERNAL, "no")
    goes.connection_lost(None)
    await clock.run(4.75)
    assert cut == []
    await clock.run(0.25)
    assert cut == [stays]


@pytest.mark.parametrize(("on_disconnect", "left"), [(0, 0), (1, 3)])
async def test_the_rows_of_a_client_that_has_gone_are_delivered_if_it_asked_for_that(
    host: StandInHost, on_disconnect: int, left: int
) -> None:
    session, _ = connected(host, messages.Hello(1, 1, on_disconnect), messages.Open(1, "flights"))
    tell(session, put(1, rows(3)))
    assert host.stream.pipeline.queued_records == 3
    session.connection_lost(None)
    host.stream.settle(0.0)
    assert host.stream.pipeline.queued_records == left


@pytest.mark.parametrize("cut", [0, 1, 30, 60])
async def test_nothing_is_left_of_a_session_that_ends(cut: int) -> None:
    host = StandInHost(100)
    session, _ = opened(host, put(1, rows(5)), reserve(2, rows(5)), reserve(3, rows(5)))
    tell(session, body(2, rows(5))[:cut])
    other, _ = opened(host, reserve(1, one()))
    assert host.stream.budget.used_records == 11
    session.connection_lost(None)
    assert host.gone == [session]
    assert (host.stream.gate.sessions, host.stream.gate.blocked_callers) == (1, 0)
    assert host.stream.budget.used_records == 1
    other.connection_lost(None)
    assert (host.stream.budget.used_records, host.stream.budget.used_bytes) == (0, 0)


async def test_a_daemon_that_stops_announces_it_to_the_clients_that_have_greeted(host: StandInHost) -> None:
    greeted, of_greeted = opened(host)
    silent, of_silent = connected(host)
    for session in (greeted, silent):
        session.announce_drain(7.5)
    assert of_greeted.drain() == [messages.Draining(7.5, "the daemon stops")]
    assert of_silent.drain() == []


# ---- frames


INVALID = messages.RowCode(Outcome.NOT_STORED, Code.RECORD_INVALID, "the partition key is not UTF-8")
WITH_IT = messages.RowCode(Outcome.NOT_STORED, Code.FRAME_REFUSED, "not taken, because other rows of its frame are bad")


@pytest.mark.parametrize("take_good", [False, True])
async def test_a_frame_with_a_bad_row_is_returned_at_once_unless_its_good_ones_are_wanted(
    host: StandInHost, take_good: bool
) -> None:
    session, transport = connected(host, messages.Hello(1, 1, 0, int(take_good)), messages.Open(1, "flights"))
    transport.drain()
    tell(session, put(1, lay_out([b"\xff", b""], [b"1", b"2"])))  # the good one has no key
    assert host.stream.budget.used_records == int(take_good)
    if take_good:
        assert transport.drain() == [messages.Grant(1)]
        assert host.stream.pipeline.queued_records == 1
    else:
        bits, code_rows = b"\x03", b"\0\0\1\0"
        codes = (INVALID, WITH_IT)
        ack = messages.Ack(1, 2, 0, 2, 0, 0, bitmap=bits, code_rows=code_rows, codes=codes, judged=b"\1", spread_keys=1)
        assert transport.drain() == [messages.Grant(1), ack]
        assert repr(session).endswith("0 frames with 0 bytes not acknowledged, 0 waiting>")


@pytest.mark.parametrize(("stream_id", "flushed"), [(1, [1, 0]), (2, [0, 1]), (0, [1, 1])])
async def test_a_flush_sends_what_lingers_of_one_stream_or_of_all(stream_id: int, flushed: list[int]) -> None:
    host = StandInHost(linger_seconds=3_600)
    with_streams(host, "flights", "other")
    opened(host, messages.Open(2, "other"), put(1, one()), put(2, one(), 2), messages.Flush(stream_id))
    assert [stream.pipeline.stats.flushes["flush"] for stream in host.streams.values()] == flushed


FRAME = one(b"x" * 20)
BYTES = FRAME.layout.body_bytes


def header(type_: int, length: int, flags: int = 0, zero: int = 0) -> bytes:
    return struct.pack("<BBHI", type_, flags, zero, length)


def body_with(frame_id: int, records: int, key_bytes: int, data_bytes: int) -> bytes:
    """A body as long as `FRAME`'s, with another prefix."""
    prefix = PREFIX.pack(frame_id, records, key_bytes, data_bytes, 0)
    return header(MessageType.BODY, BYTES) + prefix.ljust(BYTES, b"\0")


def body_offsets(*offsets: int) -> bytes:
    """The body of `FRAME` with other key offsets."""
    columns = b"".join(map(bytes, FRAME.parts[1:]))
    return messages.body_header(FRAME.layout) + FRAME.body_prefix(1) + struct.pack("<ii", *offsets) + columns


def granted(host: StandInHost) -> tuple[Session, StandInTransport]:
    session, transport = opened(host, reserve(1, FRAME))
    assert transport.drain() == [messages.Grant(1)]
    return session, transport


def greeted(host: StandInHost) -> tuple[Session, StandInTransport]:
    session, transport = connected(host, messages.Hello(1, 1, client="test"))
    transport.drain()
    return session, transport


Reach = Callable[[StandInHost], tuple[Session, StandInTransport]]
NOT_GRANTED = f"bytes where {BYTES} were granted"
BREACHES: dict[str, tuple[Reach, Said, str]] = {
    "the status of a stream that is not open": (opened, messages.Status(2), "stream number 2 is not open"),
    "a flush of a stream that is not open": (opened, messages.Flush(3), "stream number 3 is not open"),
    "a stream number twice": (opened, messages.Open(1, "clicks"), "OPEN of stream number 1, which is taken"),
    "stream number 0": (opened, messages.Open(0, "clicks"), "OPEN of stream number 0, which is taken"),
    "a stream twice": (opened, messages.Open(2, "flights"), "OPEN of stream flights, which is open"),
    "a body without a grant": (opened, header(MessageType.BODY, BYTES), "a BODY that was not granted"),
    "a body after its CANCEL": (
        granted,
        messages.encode(messages.Cancel(1)) + header(MessageType.BODY, BYTES),
        "a BODY that was not granted",
    ),
    "a body too long": (granted, header(MessageType.BODY, BYTES + 1), f"a BODY of {BYTES + 1} {NOT_GRANTED}"),
    "a body too short": (granted, header(MessageType.BODY, BYTES - 1), f"a BODY of {BYTES - 1} {NOT_GRANTED}"),
    "other flags": (granted, header(MessageType.BODY, BYTES, FLAG_HASH_KEYS), f"a BODY of {BYTES} {NOT_GRANTED}"),
    "another frame": (granted, body_with(2, 1, 1, 20), "the BODY of frame 2 is not the one that was granted"),
    "other records": (granted, body_with(1, 2, 1, 12), "the BODY of frame 1 is not the one that was granted"),
}


@pytest.mark.parametrize("breach", BREACHES)
async def test_a_breach_of_the_protocol_ends_its_session_with_the_reason(
    host: StandInHost, log: list[Any], breach: str
) -> None:
    reach, sent, why = BREACHES[breach]
    session, transport = reach(host)
    tell(session, sent)
    assert transport.drain() == [messages.Close(Code.PROTOCOL, why)]
    assert log[1:] == [line_of("client broke the protocol", error=why)]
    assert (transport.closed, session.ended_as, host.failures) == (True, "protocol", [])
    assert (host.stream.budget.used_records, host.stream.gate.sessions) == (0, 0)
    assert repr(session).startswith(f"<Session 1 of {TEST}: streams none, ")


GARBAGE: dict[str, tuple[Reach, Said]] = {
    "HTTP": (connected, b"GET / HTTP/1.1\r\n\r\n"),
    "open before hello": (connected, messages.Open(1, "flights")),
    "no UTF-8": (greeted, header(MessageType.OPEN, 12) + struct.pack("<II4s", 1, 4, b"\xff" * 4)),
    "another stream": (opened, reserve(1, FRAME, 2)),
    "more frames than the window": (opened, b"".join(reserve(number, FRAME) for number in range(1, 6))),
    "a frame twice": (granted, reserve(1, FRAME)),
    "other columns": (granted, body_with(1, 1, 0, 21)),
    "falling offsets": (granted, body_offsets(1, 0)),
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_ends_its_session_with_some_reason(host: StandInHost, log: list[Any], what: str) -> None:
    reach, sent = GARBAGE[what]
    session, transport = reach(host)
    tell(session, sent)
    close = transport.drain()[-1]
    assert isinstance(close, messages.Close)
    assert close.code == Code.PROTOCOL
    assert close.message
    assert (transport.closed, host.failures, host.stream.gate.sessions) == (True, [], 0)
    assert log[-1]["event"] == "client broke the protocol"


async def test_a_stream_counts_once_in_a_session(host: StandInHost) -> None:
    """Otherwise one session would count twice: the largest frame of all others shrinks with each."""
    session, _ = opened(host)
    before = host.stream.gate.largest_frame
    tell(session, messages.Open(2, "flights"))
    assert host.stream.gate.largest_frame == before


@pytest.mark.parametrize(("reserved", "sent"), [(0, FLAG_RESENT), (FLAG_RESENT, 0), (FLAG_RESENT, FLAG_RESENT)])
async def test_that_rows_were_sent_before_may_stand_in_the_reserve_or_in_the_body(
    host: StandInHost, reserved: int, sent: int
) -> None:
    layout = replace(FRAME.layout, flags=reserved)
    session, _ = opened(host, messages.Reserve(1, 1, layout))
    tell(session, header(MessageType.BODY, BYTES, sent) + body(1, FRAME)[messages.HEADER.size :])
    assert host.stream.pipeline.queued_records == 1


# ---- the window


WINDOW = replace(SHORT, session_window_bytes=200_000, max_frame_bytes=50_000)


@pytest.fixture
def windowed() -> StandInHost:
    """A daemon with room for three full frames in a window.  Nothing is sent by time."""
    host = StandInHost(1_000, linger_seconds=3_600)
    host.tuning = WINDOW
    return host


@pytest.mark.law("AdmissionGate")
@pytest.mark.parametrize(("frames_", "size"), [(4, 10), (3, 52_000)], ids=["frames", "bytes"])
async def test_a_full_window_sends_what_lingers_of_it_and_of_no_other(
    windowed: StandInHost, frames_: int, size: int
) -> None:
    """Its client withholds what it has, and nothing else would press."""
    stream, pipeline = windowed.stream, windowed.stream.pipeline
    pipeline.shard_map_failed("AccessDeniedException", "no", 0.0)  # no row waits for it
    session, _ = opened(windowed)
    other, _ = opened(windowed, put(1, one()))
    for number in range(1, frames_ + 1):
        stream.settle(1.0)
        assert pipeline.take_job(1.0) is None, f"before frame {number}"
        tell(session, put(number, rows(1, size=size)))
    stream.settle(1.0)
    assert pipeline.stats.flushes == {"pressure": 1}
    job = pipeline.take_job(1.0)
    assert job is not None
    assert len(job.frames) == frames_ + 1
    tell(other, put(2, one()))
    pipeline.sorted(job, [(job.frames, sort_rows(job.frames, job.shard_map, job.seed))])
    while pipeline.take_request(1.0) is not None:
        pass
    stream.settle(1.0)
    assert pipeline.take_job(1.0) is None, "none of its own lingers"
    session.connection_lost(None)
    assert not stream.gate.withholding


@pytest.mark.law("AdmissionGate")
async def test_a_window_that_has_room_again_presses_no_more(windowed: StandInHost) -> None:
    session, _ = opened(windowed, *(put(number, one()) for number in range(1, 5)))
    assert windowed.stream.gate.withholding
    ends_all(windowed, 1.0)
    assert not windowed.stream.gate.withholding
    tell(session, put(5, one()))
    windowed.stream.settle(1.0)
    assert windowed.stream.pipeline.take_job(1.0) is None


@pytest.mark.law("AdmissionGate")
async def test_each_stream_with_frames_in_it_is_told_of_a_window_that_is_full_once_more(windowed: StandInHost) -> None:
    with_streams(windowed, "flights", "other")
    first, second = windowed.streams.values()
    session, _ = opened(windowed, messages.Open(2, "other"), *(put(number, one()) for number in range(1, 5)))
    assert first.gate.withholding
    first.pipeline.ledger.withdraw_all(RowEnd(Outcome.NOT_STORED, Code.EXPIRED, "late"))
    first.settle(1.0)
    assert not first.gate.withholding
    tell(session, *(put(number, one()) for number in range(5, 8)), put(8, one(), 2))
    assert first.gate.withholding
    assert second.gate.withholding


@pytest.mark.parametrize(("charge_bytes", "granted"), [(4_096, True), (4_097, False)])
async def test_a_frame_is_granted_while_the_window_has_its_bytes(
    host: StandInHost, charge_bytes: int, granted: bool
) -> None:
    assert host.tuning.session_window_bytes == 8_192
    _, transport = opened(host, put(1, charged(4_096)), reserve(2, charged(charge_bytes)))
    assert transport.drain() == [messages.Grant(1)] + [messages.Grant(2)] * granted


@pytest.mark.parametrize(("charge_bytes", "is_full"), [(150_000, False), (150_001, True)])
async def test_a_window_is_full_once_another_full_frame_might_not_fit(
    windowed: StandInHost, charge_bytes: int, is_full: bool
) -> None:
    opened(windowed, put(1, charged(charge_bytes)))
    assert bool(windowed.stream.gate.withholding) is is_full


@pytest.mark.law("AdmissionGate")
async def test_what_is_acknowledged_or_cancelled_counts_against_the_window_no_more(windowed: StandInHost) -> None:
    gate, budget = windowed.stream.gate, windowed.stream.budget
    session, transport = opened(windowed, put(1, charged(10_000)), reserve(2, charged(160_000)))
    assert not gate.withholding
    ends_all(windowed)
    assert gate.withholding, "160 kB and a full frame of 50 kB exceed it"
    assert repr(session).endswith("1 frames with 160000 bytes not acknowledged, 0 waiting>")
    tell(session, reserve(3, one()))
    transport.drain()
    tell(session, messages.Cancel(3))
    assert [type(message) for message in transport.drain()] == [messages.Refused], "it takes back only what waits"
    assert budget.used_bytes == 160_000
    tell(session, messages.Cancel(2))
    assert not gate.withholding
    assert repr(session).endswith("0 frames with 0 bytes not acknowledged, 0 waiting>")
    assert (budget.used_records, budget.used_bytes) == (0, 0)


@pytest.mark.law("AdmissionGate")
async def test_a_client_whose_rows_have_all_ended_has_the_turn_of_one_that_sent_none() -> None:
    host = StandInHost(40)
    first, of_first = opened(host, put(1, rows(5)))
    second, of_second = opened(host)
    ends_all(host)
    assert [type(message) for message in of_first.drain()] == [messages.Grant, messages.Ack]
    host.stream.budget.charge(40, 100)  # another session's
    tell(first, reserve(2, rows(4)))
    tell(second, reserve(1, rows(4)))
    host.stream.budget.release(4, 100)
    host.stream.gate.pump(0.0)
    assert of_first.drain() == [messages.Grant(2)]
    assert of_second.drain() == []


@pytest.mark.law("AdmissionGate")
async def test_a_client_that_reads_nothing_is_granted_nothing_until_it_reads(host: StandInHost) -> None:
    touched = with_streams(host, "flights")
    host.stream.budget.charge(10, 100)  # another session's
    session, transport = opened(host, reserve(1, one()))
    session.pause_writing()
    host.stream.budget.release(10, 100)
    host.stream.gate.pump(0.0)
    assert transport.drain() == []
    touched.clear()
    session.resume_writing()
    await asyncio.sleep(0)
    assert touched == [host.stream], "the dispatcher looks whether it may have something now"
    host.stream.gate.pump(0.0)
    assert transport.drain() == [messages.Grant(1)]


@pytest.mark.law("AdmissionGate")
@pytest.mark.parametrize("ends_by", ["body", "cancel", "window"])
async def test_a_frame_of_another_stream_is_looked_at_when_it_may_be_received(host: StandInHost, ends_by: str) -> None:
    """A session receives one body at a time, of any stream, and as much as its window has room for."""
    host.tuning = replace(SHORT, max_frame_bytes=1_000)
    touched = with_streams(host, "flights", "orders")
    frame = charged(6_000) if ends_by == "window" else one()
    session, transport = opened(host, messages.Open(2, "orders"), reserve(1, frame))
    if ends_by == "window":
        tell(session, body(1, frame))
    tell(session, reserve(2, frame, 2))
    assert [type(message) for message in transport.drain()] == [messages.Opened, messages.Grant]
    touched.clear()
    if ends_by == "window":
        ends_all(host)
    else:
        tell(session, body(1, frame) if ends_by == "body" else messages.Cancel(1))
    assert host.streams["orders"] in touched
    host.streams["orders"].gate.pump(0.0)
    assert transport.drain()[-1] == messages.Grant(2)


@pytest.mark.law("AdmissionGate")
async def test_a_stream_that_is_opened_while_the_window_is_full_is_told_of_it(windowed: StandInHost) -> None:
    """A small frame may still fit, and must not linger while its client withholds a larger one."""
    with_streams(windowed, "flights", "other")
    first, second = windowed.streams.values()
    session, _ = opened(windowed, *(put(number, rows(1, size=52_000)) for number in range(1, 4)))
    assert first.gate.blocked_callers == 1
    tell(session, messages.Open(2, "other"))
    assert second.gate.blocked_callers == 0, "nothing of its window is of this stream"
    tell(session, put(4, one(), 2))
    assert second.gate.blocked_callers == 1
    second.settle(1.0)
    assert second.pipeline.stats.flushes == {"pressure": 1}
    session.connection_lost(None)
    assert (first.gate.blocked_callers, second.gate.blocked_callers) == (0, 0)


@pytest.mark.promise("60-callers-hot-shard")
async def test_a_stream_without_frames_of_a_session_is_not_looked_at_for_the_others(windowed: StandInHost) -> None:
    """A program that puts into 500 streams, one by one, fills and frees its window with each record."""
    windowed.tuning = replace(WINDOW, session_window_bytes=1 << 20)
    touched = with_streams(windowed, "flights", "orders", "rest")
    flights, orders, _ = windowed.streams.values()
    session, _ = opened(windowed, messages.Open(2, "orders"), messages.Open(3, "rest"))
    touched.clear()
    tell(session, *(put(number, one(), 1 + number % 2) for number in range(1, 5)))
    assert {*touched} == {flights, orders}
    for stream in (flights, orders):
        stream.settle(1.0)
        assert stream.pipeline.stats.flushes == {"pressure": 1}
    touched.clear()
    tell(session, messages.Flush())
    ends_all(windowed)
    assert {*touched} == {flights, orders}
    touched.clear()
    tell(session, put(5, one()), put(6, one()))
    assert {*touched} == {flights}, "the window is full again, and nothing of the other stream lingers"


# ---- time


async def test_a_body_has_two_seconds_to_begin_and_then_time_for_its_size(
    host: StandInHost, clock: Clock, log: list[Any]
) -> None:
    """What is granted and does not come keeps others waiting."""
    host.tuning = replace(SHORT, body_timeout_seconds=10)
    frame = charged((1 << 20) + 1_024)
    session, transport = opened(host, reserve(1, frame))
    assert transport.drain() == [messages.Grant(1)]
    await clock.run(1.75)
    tell(session, body(1, frame)[:100])
    seconds = 10 + frame.layout.body_bytes / (1 << 20)  # a second for each MiB
    await clock.run(10.75)
    assert not transport.closed
    await clock.run(seconds - 10.75)
    message = "a body was not whole within 11 s"
    assert transport.drain() == [messages.Close(Code.DAEMON_LOST, message)]
    assert (transport.closed, session.ended_as, host.failures) == (True, "late", [])
    assert host.stream.budget.used_bytes == 0
    assert log[1:] == [line_of("client is late", waited_for="a body", seconds=seconds)]


async def test_a_body_that_is_whole_is_waited_for_no_more(host: StandInHost, clock: Clock) -> None:
    session, transport = opened(host)
    for number in (1, 2):
        tell(session, reserve(number, one()))
        await clock.run(1.0)
        tell(session, body(number, one())[:20])
        await clock.run(1.0)
        tell(session, body(number, one())[20:])
    await clock.run(3_600)
    assert not transport.closed


async def test_a_body_that_does_not_begin_is_named_so(host: StandInHost, clock: Clock) -> None:
    _, transport = opened(host, reserve(1, rows(1)))
    await clock.run(1.75)
    assert transport.drain() == [messages.Grant(1)]
    await clock.run(0.25)
    message = "a body had not begun within 2 s"
    assert transport.drain() == [messages.Close(Code.DAEMON_LOST, message)]


async def test_a_client_has_as_long_to_greet_as_a_body_has_to_come(
    host: StandInHost, clock: Clock, log: list[Any]
) -> None:
    session, transport = connected(host)
    await clock.run(4.75)
    assert not transport.closed
    await clock.run(0.25)
    message = "HELLO was not whole within 5 s"
    assert transport.drain() == [messages.Close(Code.PROTOCOL, message)]
    assert (transport.closed, session.ended_as) == (True, "late")
    assert log == [line_of("client has not greeted", client=SILENT, waited_for="HELLO", seconds=5)]


async def test_a_client_that_has_greeted_may_be_silent_and_one_that_has_gone_is_not_late(
    host: StandInHost, clock: Clock, log: list[Any]
) -> None:
    _, transport = opened(host)
    silent, _ = connected(host)
    waiting, _ = opened(host, reserve(1, one()), reserve(2, one()))
    for gone in (silent, waiting):
        gone.connection_lost(None)
    await clock.run(5.0)
    await clock.run(3_600)
    assert not transport.closed
    assert (silent.ended_as, waiting.ended_as, host.failures) == ("closed", "lost", [])
    assert [line["event"] for line in log] == ["session opened"] * 2


async def test_a_daemon_that_stood_still_waits_once_more_and_then_no_more(host: StandInHost, clock: Clock) -> None:
    """At most as long again, however long it stood still."""
    session, transport = opened(host, reserve(1, rows(1)))
    await clock.run(3_600)
    await clock.run(1.75)
    assert not transport.closed
    await clock.run(0.25)
    assert (transport.closed, session.ended_as) == (True, "late")

    session, transport = connected(host)
    await clock.run(3_600)
    assert not transport.closed
    await clock.run(3_600)  # it stood still once more
    assert (transport.closed, session.ended_as) == (True, "late")


async def test_a_standstill_gives_a_client_as_much_time(host: StandInHost, clock: Clock) -> None:
    _, transport = opened(host, reserve(1, one()))
    await clock.run(2.25)
    await clock.run(0.125)
    assert not transport.closed
    await clock.run(0.125)
    assert transport.closed


async def test_a_standstill_of_a_twentieth_of_a_second_gives_no_time(host: StandInHost, clock: Clock) -> None:
    host.tuning = replace(SHORT, body_timeout_seconds=0.0)
    _, transport = opened(host, reserve(1, one()))
    await clock.run(0.05)
    assert transport.closed
