"""A session tells a blocked client why it waits, and stops reading from a client that does not read.

The tests speak to it in bytes, without a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

import pytest
import structlog

import producerd.runtime.session as module
from producerd.core.rows.sorting import sort_rows
from producerd.errors import Code, Outcome
from producerd.runtime.peers import Peer
from producerd.runtime.session import Session
from producerd.runtime.stream import Stream
from producerd.testing.fake_kinesis import FakeServer
from producerd.wire import frames
from producerd.wire.columns import FLAG_HASH_KEYS, FLAG_RESENT, PREFIX, Columns, lay_out
from producerd.wire.frames import MessageType
from spark_client import KinesisClient
from tests.daemon import PATIENCE_SECONDS, daemon, one, rows
from tests.runtime.stand_ins import RULES, StandInHost, StandInTransport, body, opened, reserve, tell

pytestmark = pytest.mark.law("Session")

TEST = "an unknown process, which calls itself 'test pid 0'"


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
def log() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def connected(host: StandInHost, *messages: frames.Message) -> tuple[Session, StandInTransport]:
    """A session, and the transport of a client that has sent these messages."""
    session = Session(host, 1)
    transport = StandInTransport(session)
    for message in messages:
        tell(session, frames.encode(message))
    return session, transport


def charged(charge_bytes: int) -> Columns:
    """A frame of one row that counts this many bytes against limits."""
    return one(b"x" * (charge_bytes - one(b"").layout.charge_bytes))


def ends_all(host: StandInHost, now: float = 0.0) -> None:
    """Return all rows of the stream to their callers."""
    host.stream.pipeline.abandon()
    host.stream.settle(now)


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
async def test_messages_and_bodies_may_come_in_any_pieces(piece: int) -> None:
    host = StandInHost(100)
    session, transport = opened(host)
    for number in range(1, 4):
        frame = rows(5)
        tell(session, reserve(number, frame), piece)
        assert transport.drain() == [frames.Grant(number)]
        tell(session, body(number, frame) + frames.encode(frames.Status(1)), piece)
        (blocked,) = transport.drain()
        assert isinstance(blocked, frames.Blocked)
        assert (blocked.queue_records, blocked.seconds) == (5 * number, 0.0)
    assert repr(session) == (
        f"<Session 1 of {TEST}: streams flights, 3 frames with {3 * rows(5).layout.charge_bytes} bytes "
        "not acknowledged, 0 waiting>"
    )
    assert host.failures == []
    session.connection_lost(None)


async def test_a_client_s_question_to_the_service_is_asked_once_at_a_time() -> None:
    host = StandInHost()
    host.answers_late = True
    session, transport = opened(host)
    question = frames.encode(frames.Status(1, asks_service=1))

    def services() -> list[int]:
        return [message.service for message in transport.drain() if isinstance(message, frames.Blocked)]

    for times in (1, 2):
        tell(session, question * 3)
        assert services() == [frames.Service.NOT_ASKED] * 2, "the first waits for its answer"
        assert len(host.questions) == times
        host.questions[-1](host.word)
        assert services() == [frames.Service.FAILED]
    session.connection_lost(None)


async def test_a_client_that_asks_only_for_the_daemon_s_word_asks_nothing_of_the_service() -> None:
    host = StandInHost()
    session, transport = opened(host)
    tell(session, frames.encode(frames.Status(1)))
    (status,) = transport.drain()
    assert isinstance(status, frames.Blocked)
    assert status.service == frames.Service.NOT_ASKED
    assert host.questions == []
    session.connection_lost(None)


async def test_an_owner_of_state_that_fails_is_told_to_the_daemon_and_bytes_that_break_a_reader_are_not(
    monkeypatch: pytest.MonkeyPatch, log: list[Any]
) -> None:
    error = RuntimeError("half settled")

    def fail(*_: Any) -> Any:
        raise error

    host = StandInHost()
    session, transport = opened(host)
    monkeypatch.setattr(host.stream.pipeline, "submit", fail)
    tell(session, reserve(1, rows(1)) + body(1, rows(1)))
    assert host.failures == [error]
    monkeypatch.setattr(host.stream.pipeline, "discard", fail)
    session.connection_lost(None)
    assert host.failures == [error, error]

    host = StandInHost()
    session, transport = opened(host)
    monkeypatch.setattr("producerd.core.rows.intake.check", fail)
    tell(session, reserve(1, rows(1)) + body(1, rows(1)))
    assert not host.failures
    close = transport.drain()[-1]
    assert isinstance(close, frames.Close)
    assert close == frames.Close(Code.PROTOCOL, "these bytes could not be read; see the daemon's log")
    assert [line for line in log if line["log_level"] == "error"] == [
        {
            "event": "a client's bytes could not be read",
            "exc_info": True,
            "exc_text": False,  # it may quote a row
            "log_level": "error",
        }
    ]


async def test_a_caller_blocked_for_long_makes_a_line_on_both_sides_and_again(clock: Clock, log: list[Any]) -> None:
    host = StandInHost(10)
    session, transport = opened(host)
    tell(session, reserve(1, rows(5)))
    tell(session, body(1, rows(5)))
    host.stream.pipeline.stats.last_error = "InternalFailure: the disks are on fire"
    host.stream.budget.take(5, 100)  # somebody else's
    clock.now = 1.0
    tell(session, reserve(2, rows(5)))
    assert transport.drain() == [frames.Grant(1)]

    def reports() -> list[Any]:
        return [line for line in log if line["event"] == "caller blocked"]

    def line(seconds: int) -> dict[str, Any]:
        why = host.stream.describe(clock.now)
        of = {"event": "caller blocked", "log_level": "warning", "session": 1, "client": TEST}
        return {**of, "stream": "flights", "seconds": seconds, "why": why}

    await clock.run(29.75)
    assert (transport.drain(), reports()) == ([], [])
    await clock.run(0.25)
    assert transport.drain() == [host.stream.blocked(1, 30.0, clock.now)]
    assert reports() == [line(30)]
    assert "10 of 10 records" in reports()[0]["why"]
    assert "the disks are on fire" in reports()[0]["why"]
    await clock.run(299.75)
    assert (transport.drain(), len(reports())) == ([], 1)
    await clock.run(0.25)
    assert transport.drain() == [host.stream.blocked(1, 330.0, clock.now)], "since it asked"
    assert reports()[1:] == [line(330)]
    session.pause_writing()  # it reads nothing
    await clock.run(300)
    assert (transport.drain(), reports()[2:]) == ([], [line(630)])
    session.resume_writing()
    await clock.run(0)

    assert repr(session).endswith(", 1 waiting>")
    why = host.stream.describe(clock.now)
    tell(session, frames.encode(frames.Cancel(2)))
    assert transport.drain() == [frames.Refused(2, 1, Code.CANCELLED, why)]
    assert repr(session).endswith(", 0 waiting>")
    host.stream.budget.release(5, 100)
    host.stream.gate.pump(clock.now)
    await clock.run(3_600)
    assert transport.drain() == []
    assert (len(reports()), host.failures) == (3, []), "nobody waits any more"
    session.connection_lost(None)


async def test_a_caller_that_has_its_grant_is_not_reported(clock: Clock, log: list[Any]) -> None:
    host = StandInHost(10)
    session, transport = opened(host)
    host.stream.budget.take(10, 100)  # somebody else's
    tell(session, reserve(1, one()))
    assert repr(session).endswith("0 frames with 0 bytes not acknowledged, 1 waiting>")
    host.stream.budget.release(10, 100)
    host.stream.gate.pump(0.0)
    assert transport.drain() == [frames.Grant(1)]
    charge = one().layout.charge_bytes
    assert repr(session).endswith(f"1 frames with {charge} bytes not acknowledged, 0 waiting>")
    tell(session, body(1, one()))
    await clock.run(3_600)
    assert [line["event"] for line in log] == ["session opened"]
    assert host.failures == []
    session.connection_lost(None)


async def test_who_does_not_read_is_answered_no_more_than_the_buffer_holds() -> None:
    host = StandInHost()
    session, transport = opened(host)
    transport.high_water = 1_000
    tell(session, frames.encode(frames.Status(1)) * 500)
    assert not transport.reading
    first = len(transport.drain())
    assert 0 < first < 20
    told = first
    for _ in range(500):
        session.resume_writing()
        await asyncio.sleep(0)
        told += len(transport.drain())
    session.resume_writing()
    await asyncio.sleep(0)
    assert (told, transport.reading) == (500, True)
    session.connection_lost(None)


@pytest.mark.parametrize(
    ("peer", "who"),
    [
        (None, "an unknown process, which has not sent HELLO"),
        (Peer(12, 7, 0), "uid 7 pid 12, which has not sent HELLO"),
    ],
)
async def test_one_client_too_many_makes_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, log: list[Any], peer: Peer | None, who: str
) -> None:
    monkeypatch.setattr(module, "peer_of", lambda _: peer)
    host = StandInHost()
    host.full = "max_connections = 1"
    session = Session(host, 7)
    assert StandInTransport(session).drain() == [frames.Close(Code.CONNECTION_LIMIT, "max_connections = 1")]
    session.connection_lost(None)
    assert log == [
        {
            "event": "client is one too many",
            "log_level": "warning",
            "session": 7,
            "client": who,
            "why": "max_connections = 1",
        }
    ]


@pytest.mark.parametrize(("uid", "refused"), [(7, ""), (8, "8"), (None, "unknown")])
async def test_only_users_that_are_listed_may_connect(
    monkeypatch: pytest.MonkeyPatch, log: list[Any], uid: int | None, refused: str
) -> None:
    monkeypatch.setattr(module, "peer_of", lambda _: None if uid is None else Peer(12, uid, 0))
    host = StandInHost()
    host.rules = replace(RULES, allowed_uids=frozenset({7}))
    session = Session(host, 1)
    received = StandInTransport(session).drain()
    assert session.uid == uid
    session.connection_lost(None)
    if not refused:
        assert (received, log) == ([], [])
        return
    message = f"user id {refused} may not use this socket: it is not in allowed_uids"
    assert received == [frames.Close(Code.NOT_AUTHORIZED, message)]
    pid, named = (12, uid) if uid else (None, "unknown")
    line = {"event": "client is not allowed", "log_level": "warning", "session": 1, "uid": named, "pid": pid}
    assert log == [line]


async def test_a_client_of_other_versions_makes_a_line_in_the_log_and_is_not_listened_to(log: list[Any]) -> None:
    session = Session(StandInHost(), 7)
    transport = StandInTransport(session)
    hello = frames.Hello(8, 9, client="tomorrow's", pid=12)
    tell(session, frames.encode(hello) + frames.encode(frames.Open(1, "flights")))
    (close,) = transport.drain()
    assert isinstance(close, frames.Close)
    assert close.code == Code.VERSION_MISMATCH
    session.connection_lost(None)
    (line,) = log
    assert (line["event"], line["log_level"]) == ("client speaks other versions", "warning")
    assert (line["versions"], line["client"]) == ("8-9", 'an unknown process, which calls itself "tomorrow\'s pid 12"')


@pytest.mark.promise("client-named-kernel")
@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (frames.Hello(1, 1), "'client pid 0'"),
        (
            frames.Hello(1, 1, client="spark", application_id="app-1", stage_id=3, partition=4, attempt=5, pid=12),
            "'spark pid 12 app-1 stage 3 partition 4 attempt 5'",
        ),
        (frames.Hello(1, 1, client="uid 0 pid 1', and\n" + "x" * 300, pid=1), f'"uid 0 pid 1\', and\\n{"x" * 282}"'),
    ],
    ids=["without a name", "a task", "invented"],
)
async def test_a_client_is_named_by_the_kernel_and_then_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch, log: list[Any], hello: frames.Hello, words: str
) -> None:
    monkeypatch.setattr(module, "peer_of", lambda _: Peer(12, 7, 0))
    session, transport = connected(StandInHost())
    nothing = "streams none, 0 frames with 0 bytes not acknowledged, 0 waiting"
    assert repr(session) == f"<Session 1 of uid 7 pid 12, which has not sent HELLO: {nothing}>"
    tell(session, frames.encode(hello))
    name = f"uid 7 pid 12, which calls itself {words}"
    assert repr(session) == f"<Session 1 of {name}: {nothing}>"
    assert [type(message) for message in transport.drain()] == [frames.Welcome]
    assert log == [{"event": "session opened", "log_level": "debug", "session": 1, "client": name, "uid": 7}]
    session.connection_lost(None)


async def test_a_session_holds_little_for_a_client_that_reads_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB of answers, and two of the largest messages other than a body."""
    limits: list[int | None] = []
    monkeypatch.setattr(StandInTransport, "set_write_buffer_limits", lambda _, high: limits.append(high))
    session, _ = connected(StandInHost())
    assert limits == [64 * 1024]
    assert len(session.get_buffer(-1)) == 2 * frames.MAX_CONTROL_BYTES
    session.connection_lost(None)


async def test_what_the_loop_does_for_a_client_counts_against_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(12, 7, 0)
    monkeypatch.setattr(module, "peer_of", lambda _: peer)
    host, now = StandInHost(), 1.0
    spent: list[tuple[Peer | None, float]] = []
    counted: list[tuple[Peer | None, MessageType]] = []
    monkeypatch.setattr(host.shares, "clock", lambda: now)
    monkeypatch.setattr(host.shares, "has_time", lambda *_: True)
    monkeypatch.setattr(host.shares, "spend", lambda *each: spent.append(each))
    monkeypatch.setattr(host.shares, "count", lambda *each: counted.append(each))
    session, _ = connected(host)
    assert spent == [(peer, 1.0)], "for its place in the table"
    now = 2.0
    tell(session, frames.encode(frames.Hello(1, 1)) + frames.encode(frames.Flush()))
    assert spent[1:] == [(peer, 2.0)]
    now = 3.0
    session._listen_again()
    assert spent[2:] == [(peer, 3.0)]
    assert counted == [(peer, MessageType.HELLO), (peer, MessageType.FLUSH)]
    session.connection_lost(None)


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
    code: str, event: str | None, log: list[Any]
) -> None:
    host = StandInHost()
    host.refuses_with = code
    session, transport = opened(host)
    tell(session, frames.encode(frames.Open(2, "flihgts")))
    (refused,) = transport.drain()
    assert isinstance(refused, frames.Refused)
    assert refused.code == code
    lines = [line for line in log if line["log_level"] == "warning"]
    assert [(line["event"], line["name"], line["why"]) for line in lines] == (
        [(event, "flihgts", "no")] if event else []
    )
    assert not any("stream" in line for line in lines), "repeats are counted by it: any number of wrong names"
    session.connection_lost(None)


async def test_a_flood_of_one_client_leaves_the_loop_to_others_and_is_answered_whole() -> None:
    host = StandInHost()
    session, transport = opened(host)
    count = 4 * 16 + 1
    await asyncio.sleep(0)  # what it has said until now counts against its user's share of this turn
    tell(session, frames.encode(frames.Status(1)) * count)
    answers = [len(transport.drain())]
    for _ in range(4):
        assert not transport.reading
        assert session.idle_since is None, "it is owed answers"
        await asyncio.sleep(0)
        answers.append(len(transport.drain()))
    assert (answers, transport.reading) == ([16, 16, 16, 16, 1], True)
    assert session.idle_since is not None
    session.connection_lost(None)


async def test_a_flood_that_goes_on_after_a_turn_may_end_in_garbage_or_in_the_end_of_its_client() -> None:
    host = StandInHost()
    session, transport = opened(host)
    tell(session, frames.encode(frames.Flush(1)) * module.MESSAGES_OF_A_TURN + b"\xff" * 8)
    assert transport.drain() == []
    await asyncio.sleep(0)
    (close,) = transport.drain()
    assert isinstance(close, frames.Close)
    session.connection_lost(None)

    session, transport = opened(host)
    tell(session, frames.encode(frames.Flush(1)) * 200)
    session.connection_lost(None)
    await asyncio.sleep(0)
    assert (transport.drain(), host.failures, host.stream.gate.sessions) == ([], [], 0)


@pytest.mark.parametrize("has_time_again", [True, False])
async def test_a_client_whose_messages_the_daemon_has_put_off_is_not_late_for_that(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, has_time_again: bool
) -> None:
    """Its body lies in the daemon's own buffer.  Who has no time for good is late in the end."""
    host = StandInHost()
    session, transport = opened(host)
    columns = one()
    tell(session, reserve(1, columns))
    assert transport.drain() == [frames.Grant(1)]
    go_on: list[Callable[[], None]] = []
    monkeypatch.setattr(host.shares, "has_time", lambda *_: False)
    monkeypatch.setattr(host.shares, "put_off", lambda _, callback: go_on.append(callback))
    tell(session, body(1, columns))
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
    session.connection_lost(None)


async def test_a_session_that_has_ended_keeps_no_buffer() -> None:
    """Who connects over and over made 6,000 of them, 200 MB, until garbage was collected."""
    session, transport = opened(StandInHost())
    frame = rows(1, size=100_000)
    tell(session, reserve(1, frame))
    assert transport.drain() == [frames.Grant(1)]
    tell(session, body(1, frame)[:1_000])
    assert len(session.get_buffer(-1)) == frame.layout.body_bytes - 1_000 + frames.HEADER.size
    session.connection_lost(None)
    assert len(session.get_buffer(-1)) == 0


async def test_what_comes_after_the_daemon_has_closed_a_session_is_dropped() -> None:
    host = StandInHost()
    session, transport = opened(host)
    session.close(Code.INTERNAL, "no")
    for _ in range(2):
        session.buffer_updated(module.CONTROL_BUFFER_BYTES)
    assert len(session.get_buffer(-1)) == module.CONTROL_BUFFER_BYTES
    assert transport.drain() == [frames.Close(Code.INTERNAL, "no")]
    assert host.failures == []
    session.connection_lost(None)


async def test_a_client_that_has_closed_is_not_listened_to_again() -> None:
    """Whether its CLOSE was left in the buffer when it read nothing, or it sends any number of them."""
    host = StandInHost()
    session, transport = opened(host)
    session.pause_writing()
    tell(session, frames.encode(frames.Close("BYE", "enough")))
    assert not transport.closed
    session.resume_writing()
    await asyncio.sleep(0)
    assert (transport.closed, transport.reading) == (True, False)
    session.connection_lost(None)

    session, transport = opened(host)
    tell(session, frames.encode(frames.Close("BYE", "enough")) * 17)
    assert (transport.closed, transport.reading) == (True, True)
    session.connection_lost(None)
    assert host.failures == []


async def test_a_client_that_closes_is_owed_nothing_more(log: list[Any]) -> None:
    host = StandInHost()
    session, transport = opened(host)
    tell(session, reserve(1, one()) + body(1, one()))
    assert transport.drain() == [frames.Grant(1)]
    tell(session, frames.encode(frames.Close("BYE", "enough")))
    line = {"event": "client closed", "log_level": "debug", "session": 1, "client": TEST}
    assert log[1:] == [{**line, "code": "BYE", "message": "enough"}]
    ends_all(host)
    session.drain(5.0)
    assert (transport.closed, transport.drain()) == (True, [])
    session.connection_lost(ConnectionResetError())
    assert session.ended_as == "closed"


async def test_a_client_that_waited_for_room_has_lost_its_connection() -> None:
    host = StandInHost(10)
    host.stream.budget.take(10, 100)  # somebody else's
    session, _ = opened(host)
    tell(session, reserve(1, one()))
    session.connection_lost(None)
    assert session.ended_as == "lost"


async def test_an_answer_of_the_service_for_a_client_that_has_gone_is_dropped() -> None:
    host = StandInHost()
    host.answers_late = True
    session, transport = opened(host)
    tell(session, frames.encode(frames.Status(1, asks_service=1)))
    session.connection_lost(None)
    host.questions[0](host.word)
    assert (transport.drain(), host.failures) == ([], [])


async def test_a_client_is_idle_since_it_last_spoke_or_was_answered(clock: Clock) -> None:
    host = StandInHost()
    session, _ = opened(host)
    seen = [session.idle_since]
    clock.now = 1.0
    tell(session, frames.encode(frames.Flush(1)))
    seen.append(session.idle_since)
    clock.now = 2.0
    tell(session, reserve(1, one()) + body(1, one()))
    seen.append(session.idle_since)
    clock.now = 3.0
    ends_all(host, clock.now)
    seen.append(session.idle_since)
    session.close(Code.DRAINING, "the daemon has stopped")
    seen.append(session.idle_since)
    assert seen == [0.0, 1.0, None, 3.0, None], "it is owed something, and in the end it is closed"
    session.connection_lost(None)


async def test_a_connection_that_the_daemon_closes_is_cut_if_its_client_does_not_read(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    cut: list[Session] = []
    monkeypatch.setattr(StandInTransport, "abort", lambda transport: cut.append(transport.protocol))
    stays, _ = opened(StandInHost())
    goes, _ = opened(StandInHost())
    for session in (stays, goes):
        session.close(Code.INTERNAL, "no")
    goes.connection_lost(None)
    assert goes._abort is not None
    assert goes._abort.cancelled(), "it would keep 1 KB of each client that was turned away"
    await clock.run(4.75)
    assert cut == []
    await clock.run(0.25)
    assert cut == [stays]
    stays.connection_lost(None)


@pytest.mark.parametrize(("on_disconnect", "left"), [(0, 0), (1, 3)])
async def test_the_rows_of_a_client_that_has_gone_are_delivered_if_it_asked_for_that(
    on_disconnect: int, left: int
) -> None:
    host = StandInHost()
    session, _ = connected(host, frames.Hello(1, 1, on_disconnect), frames.Open(1, "flights"))
    tell(session, reserve(1, rows(3)) + body(1, rows(3)))
    assert host.stream.pipeline.queued_records == 3
    session.connection_lost(None)
    host.stream.settle(0.0)
    assert host.stream.pipeline.queued_records == left


INVALID = frames.RowCode(Outcome.NOT_STORED, Code.RECORD_INVALID, "the partition key is not UTF-8")
WITH_IT = frames.RowCode(Outcome.NOT_STORED, Code.FRAME_REFUSED, "not taken, because other rows of its frame are bad")


@pytest.mark.parametrize("take_good", [False, True])
async def test_a_frame_with_a_bad_row_is_returned_at_once_unless_its_good_ones_are_wanted(take_good: bool) -> None:
    host = StandInHost()
    session, transport = connected(host, frames.Hello(1, 1, 0, int(take_good)), frames.Open(1, "flights"))
    transport.drain()
    frame = lay_out([b"\xff", b"k"], [b"1", b"2"])
    tell(session, reserve(1, frame) + body(1, frame))
    assert host.stream.budget.used_records == int(take_good)
    if take_good:
        assert transport.drain() == [frames.Grant(1)]
        assert host.stream.pipeline.queued_records == 1
    else:
        bits, rows = b"\x03", b"\0\0\1\0"
        ack = frames.Ack(1, 2, 0, 2, 0, 0, bitmap=bits, code_rows=rows, codes=(INVALID, WITH_IT), judged=b"\1")
        assert transport.drain() == [frames.Grant(1), ack]
        assert repr(session).endswith("0 frames with 0 bytes not acknowledged, 0 waiting>")
    session.connection_lost(None)


@pytest.mark.parametrize(("stream_id", "flushed"), [(1, [1, 0]), (2, [0, 1]), (0, [1, 1])])
async def test_a_flush_sends_what_lingers_of_one_stream_or_of_all(stream_id: int, flushed: list[int]) -> None:
    host = StandInHost(linger_seconds=3_600)
    host.streams["other"] = Stream("other", host.stream.settings, 50_000, 10_000)
    session, _ = opened(host)
    tell(session, frames.encode(frames.Open(2, "other")))
    for number in (1, 2):
        tell(session, frames.encode(frames.Reserve(number, number, one().layout)) + body(number, one()))
    tell(session, frames.encode(frames.Flush(stream_id)))
    assert [stream.pipeline.stats.flushes["flush"] for stream in host.streams.values()] == flushed
    session.connection_lost(None)


async def test_a_daemon_that_stops_announces_it_to_the_clients_that_have_greeted() -> None:
    greeted, of_greeted = opened(StandInHost())
    silent, of_silent = connected(StandInHost())
    for session in (greeted, silent):
        session.drain(7.5)
    assert of_greeted.drain() == [frames.Draining(7.5, "the daemon stops")]
    assert of_silent.drain() == []
    for session in (greeted, silent):
        session.connection_lost(None)


FRAME = one(b"x" * 20)
BYTES = FRAME.layout.body_bytes


def body_header(body_bytes: int, flags: int = 0) -> bytes:
    return frames.HEADER.pack(MessageType.BODY, flags, 0, body_bytes)


def body_with(frame_id: int, records: int, key_bytes: int, data_bytes: int) -> bytes:
    """A body as long as `FRAME`'s, with another prefix."""
    prefix = PREFIX.pack(frame_id, records, key_bytes, data_bytes, 0)
    return body_header(BYTES) + prefix.ljust(BYTES, b"\0")


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (frames.encode(frames.Status(2)), "stream number 2 is not open"),
        (frames.encode(frames.Flush(3)), "stream number 3 is not open"),
        (frames.encode(frames.Open(1, "clicks")), "OPEN of stream number 1, which is taken"),
        (frames.encode(frames.Open(0, "clicks")), "OPEN of stream number 0, which is taken"),
        (frames.encode(frames.Open(2, "flights")), "OPEN of stream flights, which is open"),
        (body_header(BYTES), "a BODY that was not granted"),
        (reserve(1, FRAME) + body_header(BYTES + 1), f"a BODY of {BYTES + 1} bytes where {BYTES} were granted"),
        (reserve(1, FRAME) + body_header(BYTES - 1), f"a BODY of {BYTES - 1} bytes where {BYTES} were granted"),
        (
            reserve(1, FRAME) + body_header(BYTES, FLAG_HASH_KEYS),
            f"a BODY of {BYTES} bytes where {BYTES} were granted",
        ),
        (reserve(1, FRAME) + body_with(2, 1, 1, 20), "the BODY of frame 2 is not the one that was granted"),
        (reserve(1, FRAME) + body_with(1, 2, 1, 12), "the BODY of frame 1 is not the one that was granted"),
    ],
)
async def test_what_a_client_may_not_send_ends_its_session_with_the_reason(
    log: list[Any], sent: bytes, why: str
) -> None:
    host = StandInHost()
    session, transport = opened(host)
    tell(session, sent)
    assert [message for message in transport.drain() if message != frames.Grant(1)] == [
        frames.Close(Code.PROTOCOL, why)
    ]
    line = {"event": "client broke the protocol", "log_level": "warning", "session": 1, "client": TEST}
    assert log[1:] == [{**line, "error": why}]
    assert (transport.closed, session.ended_as, host.failures) == (True, "protocol", [])
    assert (host.stream.budget.used_records, host.stream.gate.sessions) == (0, 0)
    assert repr(session).startswith(f"<Session 1 of {TEST}: streams none, ")
    session.connection_lost(None)


@pytest.mark.parametrize(("reserved", "sent"), [(0, FLAG_RESENT), (FLAG_RESENT, 0), (FLAG_RESENT, FLAG_RESENT)])
async def test_that_rows_were_sent_before_may_stand_in_the_reserve_or_in_the_body(reserved: int, sent: int) -> None:
    host = StandInHost()
    session, _ = opened(host)
    layout = replace(FRAME.layout, flags=reserved)
    whole = body_header(BYTES, sent) + body(1, FRAME)[frames.HEADER.size :]
    tell(session, frames.encode(frames.Reserve(1, 1, layout)) + whole)
    assert host.stream.pipeline.queued_records == 1
    session.connection_lost(None)


async def test_garbage_that_was_left_when_it_choked_ends_the_session_later() -> None:
    host = StandInHost()
    session, transport = opened(host)
    transport.high_water = 100
    tell(session, frames.encode(frames.Status(1)) * 3 + b"\xff" * 8)
    transport.drain()
    transport.high_water = 1 << 30
    session.resume_writing()
    await asyncio.sleep(0)
    messages = transport.drain()
    assert isinstance(messages[-1], frames.Close)
    assert messages[-1].code == Code.PROTOCOL
    assert transport.closed
    session.connection_lost(None)


@pytest.mark.parametrize("cut", [0, 1, 30, 60])
async def test_the_end_of_a_session_leaves_nothing_of_it(cut: int) -> None:
    host = StandInHost(100)
    session, _ = opened(host)
    other, _ = opened(host)
    tell(session, reserve(1, rows(5)))
    tell(session, body(1, rows(5)))
    tell(session, reserve(2, rows(5)))
    tell(session, reserve(3, rows(5)))
    tell(session, body(2, rows(5))[:cut])
    tell(other, reserve(1, one()))
    assert host.stream.budget.used_records == 11
    session.connection_lost(None)
    assert host.gone == [session]
    assert host.stream.gate.sessions == 1
    assert host.stream.gate.blocked_callers == 0
    assert host.stream.budget.used_records == 1
    other.connection_lost(None)
    assert (host.stream.budget.used_records, host.stream.budget.used_bytes) == (0, 0)


WINDOW = replace(RULES, window_bytes=200_000, max_frame_bytes=50_000)


@pytest.mark.law("AdmissionGate")
@pytest.mark.parametrize(("frames_", "size"), [(4, 10), (3, 52_000)], ids=["frames", "bytes"])
async def test_a_full_window_sends_what_of_it_lingers_and_no_other(frames_: int, size: int) -> None:
    """Its client withholds what it has, and nothing else would press."""
    host = StandInHost(1_000, linger_seconds=3_600)
    host.rules = WINDOW
    pipeline = host.stream.pipeline
    pipeline.shard_map_failed("AccessDeniedException", "no", 0.0)  # nobody waits for it
    session, _ = opened(host)
    other, _ = opened(host)
    tell(other, reserve(1, one()) + body(1, one()))
    for number in range(1, frames_ + 1):
        host.stream.settle(1.0)
        assert pipeline.take_job(1.0) is None, f"before frame {number}"
        frame = rows(1, size=size)
        tell(session, reserve(number, frame))
        tell(session, body(number, frame))
    host.stream.settle(1.0)
    assert pipeline.stats.flushes == {"pressure": 1}
    job = pipeline.take_job(1.0)
    assert job is not None
    assert len(job.frames) == frames_ + 1
    tell(other, reserve(2, one()) + body(2, one()))
    pipeline.sorted(job, [(job.frames, sort_rows(job.frames, job.shard_map, job.seed))])
    while pipeline.take_request(1.0) is not None:
        pass
    host.stream.settle(1.0)
    assert pipeline.take_job(1.0) is None, "none of its own lingers"
    session.connection_lost(None)
    assert not host.stream.gate.withholding
    other.connection_lost(None)


@pytest.mark.law("AdmissionGate")
async def test_a_window_that_has_room_again_presses_no_more() -> None:
    host = StandInHost(1_000, linger_seconds=3_600)
    host.rules = WINDOW
    session, _ = opened(host)
    for number in range(1, 5):
        tell(session, reserve(number, one()))
        tell(session, body(number, one()))
    assert host.stream.gate.withholding
    host.stream.pipeline.abandon()
    host.stream.settle(1.0)
    assert not host.stream.gate.withholding
    tell(session, reserve(5, one()))
    tell(session, body(5, one()))
    host.stream.settle(1.0)
    assert host.stream.pipeline.take_job(1.0) is None
    session.connection_lost(None)


@pytest.mark.parametrize(("charge_bytes", "granted"), [(4_096, True), (4_097, False)])
async def test_a_frame_is_granted_while_the_window_has_its_bytes(charge_bytes: int, granted: bool) -> None:
    host = StandInHost()
    assert host.rules.window_bytes == 8_192
    session, transport = opened(host)
    tell(session, reserve(1, charged(4_096)) + body(1, charged(4_096)))
    tell(session, reserve(2, charged(charge_bytes)))
    assert transport.drain() == [frames.Grant(1)] + [frames.Grant(2)] * granted
    session.connection_lost(None)


@pytest.mark.parametrize(("charge_bytes", "is_full"), [(150_000, False), (150_001, True)])
async def test_a_window_is_full_once_another_full_frame_might_not_fit(charge_bytes: int, is_full: bool) -> None:
    host = StandInHost()
    host.rules = WINDOW
    session, _ = opened(host)
    tell(session, reserve(1, charged(charge_bytes)) + body(1, charged(charge_bytes)))
    assert bool(host.stream.gate.withholding) is is_full
    session.connection_lost(None)


@pytest.mark.law("AdmissionGate")
async def test_what_is_acknowledged_or_cancelled_counts_against_the_window_no_more() -> None:
    host = StandInHost(1_000)
    host.rules = WINDOW
    session, transport = opened(host)
    tell(session, reserve(1, charged(10_000)) + body(1, charged(10_000)) + reserve(2, charged(160_000)))
    assert not host.stream.gate.withholding
    ends_all(host)
    assert host.stream.gate.withholding, "160 kB and a full frame of 50 kB pass it"
    assert repr(session).endswith("1 frames with 160000 bytes not acknowledged, 0 waiting>")
    tell(session, reserve(3, one()))
    transport.drain()
    tell(session, frames.encode(frames.Cancel(3)))
    assert [type(message) for message in transport.drain()] == [frames.Refused], "it takes back what waits alone"
    assert host.stream.budget.used_bytes == 160_000
    tell(session, frames.encode(frames.Cancel(2)))
    assert not host.stream.gate.withholding
    assert repr(session).endswith("0 frames with 0 bytes not acknowledged, 0 waiting>")
    assert (host.stream.budget.used_records, host.stream.budget.used_bytes) == (0, 0)
    session.connection_lost(None)


@pytest.mark.law("AdmissionGate")
async def test_a_client_whose_rows_have_all_ended_has_the_turn_of_one_that_sent_none() -> None:
    host = StandInHost(40)
    first, of_first = opened(host)
    second, of_second = opened(host)
    tell(first, reserve(1, rows(5)) + body(1, rows(5)))
    ends_all(host)
    assert [type(message) for message in of_first.drain()] == [frames.Grant, frames.Ack]
    host.stream.budget.take(40, 100)  # somebody else's
    tell(first, reserve(2, rows(4)))
    tell(second, reserve(1, rows(4)))
    host.stream.budget.release(4, 100)
    host.stream.gate.pump(0.0)
    assert of_first.drain() == [frames.Grant(2)]
    assert of_second.drain() == []
    for session in (first, second):
        session.connection_lost(None)


@pytest.mark.law("AdmissionGate")
async def test_a_client_that_reads_nothing_is_granted_nothing_until_it_reads() -> None:
    host = StandInHost()
    touched: list[Stream] = []
    host.stream = Stream("flights", host.stream.settings, 50_000, 10_000, touched=touched.append)
    host.streams = {"flights": host.stream}
    session, transport = opened(host)
    host.stream.budget.take(10, 100)  # somebody else's
    tell(session, reserve(1, one()))
    session.pause_writing()
    host.stream.budget.release(10, 100)
    host.stream.gate.pump(0.0)
    assert transport.drain() == []
    touched.clear()
    session.resume_writing()
    await asyncio.sleep(0)
    assert touched == [host.stream], "so the dispatcher looks whether it may have something now"
    host.stream.gate.pump(0.0)
    assert transport.drain() == [frames.Grant(1)]
    session.connection_lost(None)


@pytest.mark.law("AdmissionGate")
@pytest.mark.parametrize("ends_by", ["body", "cancel", "window"])
async def test_a_frame_of_another_stream_is_looked_at_when_it_may_be_received(ends_by: str) -> None:
    """A session receives one body at a time, of whatever stream, and as much as its window has room for."""
    host = StandInHost()
    host.rules = replace(RULES, max_frame_bytes=1_000)
    touched: list[Stream] = []
    names = ("flights", "orders")
    host.streams = {name: Stream(name, host.stream.settings, 50_000, 10_000, touched=touched.append) for name in names}
    host.stream = host.streams["flights"]
    session, transport = opened(host)
    tell(session, frames.encode(frames.Open(2, "orders")))
    frame = charged(6_000) if ends_by == "window" else one()
    tell(session, reserve(1, frame))
    if ends_by == "window":
        tell(session, body(1, frame))
    tell(session, frames.encode(frames.Reserve(2, 2, frame.layout)))
    assert [type(message) for message in transport.drain()] == [frames.Opened, frames.Grant]
    touched.clear()
    if ends_by == "window":
        ends_all(host)
    else:
        tell(session, body(1, frame) if ends_by == "body" else frames.encode(frames.Cancel(1)))
    assert host.streams["orders"] in touched
    host.streams["orders"].gate.pump(0.0)
    assert transport.drain()[-1] == frames.Grant(2)
    session.connection_lost(None)


@pytest.mark.law("AdmissionGate")
async def test_a_stream_that_is_opened_while_the_window_is_full_is_told_of_it() -> None:
    """A small frame may still fit, and must not linger while its client withholds a larger one."""
    host = StandInHost(1_000, linger_seconds=3_600)
    host.rules = WINDOW
    first, second = host.stream, Stream("other", host.stream.settings, 50_000, 10_000)
    session, _ = opened(host)
    for number in range(1, 4):
        frame = rows(1, size=52_000)
        tell(session, reserve(number, frame) + body(number, frame))
    assert first.gate.blocked_callers == 1
    host.streams["other"] = second
    tell(session, frames.encode(frames.Open(2, "other")))
    assert second.gate.blocked_callers == 0, "nothing of its window is of this stream"
    tell(session, frames.encode(frames.Reserve(4, 2, one().layout)) + body(4, one()))
    assert second.gate.blocked_callers == 1
    second.settle(1.0)
    assert second.pipeline.stats.flushes == {"pressure": 1}
    session.connection_lost(None)
    assert (first.gate.blocked_callers, second.gate.blocked_callers) == (0, 0)


@pytest.mark.promise("60-callers-hot-shard")
async def test_a_stream_without_frames_of_a_session_is_not_looked_at_for_the_others() -> None:
    """A program that puts into 500 streams, one by one, fills and frees its window with each record."""
    host = StandInHost(1_000, linger_seconds=3_600)
    host.rules = replace(WINDOW, window_bytes=1 << 20)
    touched: list[Stream] = []
    names = ("flights", "orders", "rest")
    host.streams = {name: Stream(name, host.stream.settings, 50_000, 10_000, touched=touched.append) for name in names}
    host.stream, orders, _ = host.streams.values()
    session, transport = opened(host)
    tell(session, frames.encode(frames.Open(2, "orders")) + frames.encode(frames.Open(3, "rest")))
    touched.clear()
    for number in range(1, 5):
        tell(session, frames.encode(frames.Reserve(number, 1 + number % 2, one().layout)) + body(number, one()))
    assert {*touched} == {host.stream, orders}
    for stream in (host.stream, orders):
        stream.settle(1.0)
        assert stream.pipeline.stats.flushes == {"pressure": 1}
    touched.clear()
    tell(session, frames.encode(frames.Flush()))
    ends_all(host)
    assert {*touched} == {host.stream, orders}
    touched.clear()
    for number in range(5, 7):
        tell(session, frames.encode(frames.Reserve(number, 1, one().layout)) + body(number, one()))
    assert {*touched} == {host.stream}, "the window is full again, and nothing of the other stream lingers"
    transport.drain()
    session.connection_lost(None)


@pytest.mark.law("AdmissionGate")
def test_more_puts_than_a_window_holds_do_not_wait_for_what_lingers(server: FakeServer) -> None:
    with daemon(server.url, linger_seconds=3_600) as running:
        client = KinesisClient("flights", socket=str(running.socket))
        for place in range(2 * 64 + 1):
            client.put(b"%d" % place, timeout_seconds=PATIENCE_SECONDS)
        client.close(PATIENCE_SECONDS)


@pytest.mark.law("AdmissionGate")
def test_a_record_larger_than_what_is_left_of_the_window_does_not_wait_for_what_lingers(server: FakeServer) -> None:
    """The daemon cannot know that it is there: the client asks."""
    with daemon(server.url, linger_seconds=3_600, session_window_bytes="1 MiB", max_frame_bytes="64 KiB") as running:
        client = KinesisClient("flights", socket=str(running.socket))
        client.put(b"x" * 300_000, timeout_seconds=PATIENCE_SECONDS)
        client.put(b"y" * 900_000, timeout_seconds=PATIENCE_SECONDS)
        client.close(PATIENCE_SECONDS)


async def test_a_stream_is_open_once_in_a_session() -> None:
    """Else one session would count as many: the largest frame of all others shrinks with each."""
    host = StandInHost()
    session, transport = opened(host)
    before = host.stream.gate.largest_frame
    tell(session, frames.encode(frames.Open(2, "flights")))
    assert transport.drain() == [frames.Close(Code.PROTOCOL, "OPEN of stream flights, which is open")]
    session.connection_lost(None)
    assert host.stream.gate.largest_frame == before


async def test_a_body_has_two_seconds_to_begin_and_then_time_for_its_size(clock: Clock, log: list[Any]) -> None:
    """What is granted and does not come keeps others waiting."""
    host = StandInHost()
    host.rules = replace(RULES, body_timeout_seconds=10)
    session, transport = opened(host)
    frame = charged((1 << 20) + 1_024)
    tell(session, reserve(1, frame))
    assert transport.drain() == [frames.Grant(1)]
    await clock.run(1.75)
    tell(session, body(1, frame)[:100])
    seconds = 10 + frame.layout.body_bytes / (1 << 20)  # a second for each MiB
    await clock.run(10.75)
    assert not transport.closed
    await clock.run(seconds - 10.75)
    message = "a body was not whole within 11 s (body_timeout_seconds)"
    assert transport.drain() == [frames.Close(Code.DAEMON_LOST, message)]
    assert (transport.closed, session.ended_as, host.failures) == (True, "late", [])
    assert host.stream.budget.used_bytes == 0
    line = {"event": "client is late", "log_level": "warning", "session": 1, "client": TEST}
    assert log[1:] == [{**line, "waited_for": "a body", "seconds": seconds}]
    session.connection_lost(None)


async def test_a_body_that_is_whole_is_waited_for_no_more(clock: Clock) -> None:
    session, transport = opened(StandInHost())
    for number in (1, 2):
        tell(session, reserve(number, one()))
        await clock.run(1.0)
        tell(session, body(number, one())[:20])
        await clock.run(1.0)
        tell(session, body(number, one())[20:])
    await clock.run(3_600)
    assert not transport.closed
    session.connection_lost(None)


async def test_a_body_that_does_not_begin_is_named_so(clock: Clock) -> None:
    session, transport = opened(StandInHost())
    tell(session, reserve(1, rows(1)))
    await clock.run(1.75)
    assert transport.drain() == [frames.Grant(1)]
    await clock.run(0.25)
    message = "a body had not begun within 2 s (body_timeout_seconds)"
    assert transport.drain() == [frames.Close(Code.DAEMON_LOST, message)]
    session.connection_lost(None)


async def test_a_client_has_as_long_to_greet_as_a_body_has_to_come(clock: Clock, log: list[Any]) -> None:
    session, transport = connected(StandInHost())
    await clock.run(4.75)
    assert not transport.closed
    await clock.run(0.25)
    message = "HELLO was not whole within 5 s (body_timeout_seconds)"
    assert transport.drain() == [frames.Close(Code.PROTOCOL, message)]
    assert (transport.closed, session.ended_as) == (True, "late")
    assert log == [
        {
            "event": "client has not greeted",
            "log_level": "warning",
            "session": 1,
            "client": "an unknown process, which has not sent HELLO",
            "waited_for": "HELLO",
            "seconds": 5,
        }
    ]
    session.connection_lost(None)


async def test_a_client_that_has_greeted_may_be_silent_and_one_that_has_gone_is_not_late(
    clock: Clock, log: list[Any]
) -> None:
    host = StandInHost()
    greeted, transport = opened(host)
    silent, _ = connected(host)
    granted, _ = opened(host)
    tell(granted, reserve(1, one()) + reserve(2, one()))
    for gone in (silent, granted):
        gone.connection_lost(None)
    await clock.run(5.0)
    await clock.run(3_600)
    assert not transport.closed
    assert (silent.ended_as, granted.ended_as, host.failures) == ("closed", "lost", [])
    assert [line["event"] for line in log] == ["session opened"] * 2
    greeted.connection_lost(None)


async def test_a_daemon_that_stood_still_waits_for_a_body_once_more_and_then_no_more(clock: Clock) -> None:
    """At most as long again, however long it stood still."""
    session, transport = opened(StandInHost())
    tell(session, reserve(1, rows(1)))
    await clock.run(3_600)
    await clock.run(1.75)
    assert not transport.closed
    await clock.run(0.25)
    assert (transport.closed, session.ended_as) == (True, "late")
    session.connection_lost(None)

    session, transport = connected(StandInHost())
    await clock.run(3_600)
    assert not transport.closed
    await clock.run(3_600)  # it stood still once more
    assert (transport.closed, session.ended_as) == (True, "late")
    session.connection_lost(None)


@pytest.mark.parametrize(("late_seconds", "waits"), [(0.05, False), (0.25, True)])
async def test_a_short_standstill_gives_a_client_as_much_time_and_a_shorter_one_none(
    clock: Clock, late_seconds: float, waits: bool
) -> None:
    session, transport = opened(StandInHost())
    tell(session, reserve(1, one()))
    session._stop_timer()
    session._late("a body", 2.0, clock.now - late_seconds, False)
    assert transport.closed is not waits
    if waits:
        assert session._timer is not None
        assert session._timer.when() == late_seconds
    session.connection_lost(None)


async def test_a_session_whose_client_reads_nothing_does_not_read_either() -> None:
    """What is left in its buffer is answered when it reads again, and only then it is listened to."""
    session, transport = opened(StandInHost())
    session.pause_writing()
    session._listen_again()
    before = transport.reading
    session.resume_writing()
    await asyncio.sleep(0)
    assert (before, transport.reading) == (False, True)
    session.connection_lost(None)
