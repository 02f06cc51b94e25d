"""A session tells a blocked client why it waits, and stops reading from a client that does not read.

The tests speak to it in bytes, without a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import structlog

import producerd.runtime.session as module
from producerd.core.rows.sorting import sort_rows
from producerd.errors import Code
from producerd.runtime.peers import Peer
from producerd.runtime.session import Session
from producerd.runtime.stream import Stream
from producerd.testing.fake_kinesis import FakeServer
from producerd.wire import frames
from spark_client import KinesisClient
from tests.daemon import PATIENCE_SECONDS, daemon, one, rows, until_on_loop
from tests.runtime.stand_ins import RULES, StandInHost, StandInTransport, body, opened, reserve, tell

pytestmark = pytest.mark.law("Session")


@pytest.fixture
def log() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


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
    assert repr(session).startswith("<Session 1 of test pid 0: streams flights, 3 frames with ")
    assert repr(session).endswith(" bytes not acknowledged, 0 waiting>")
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
    assert close.code == Code.PROTOCOL
    assert "half settled" not in close.message
    assert any(line["event"] == "a client's bytes could not be read" for line in log)


async def test_a_caller_blocked_for_long_makes_a_line_on_both_sides_and_again(
    monkeypatch: pytest.MonkeyPatch, log: list[Any]
) -> None:
    assert (module.FIRST_BLOCKED_SECONDS, module.NEXT_BLOCKED_SECONDS) == (30, 300)
    monkeypatch.setattr(module, "FIRST_BLOCKED_SECONDS", 0.02)
    monkeypatch.setattr(module, "NEXT_BLOCKED_SECONDS", 0.02)
    host = StandInHost(10)
    session, transport = opened(host)
    tell(session, reserve(1, rows(5)))
    tell(session, body(1, rows(5)))
    host.stream.pipeline.stats.last_error = "InternalFailure: the disks are on fire"
    host.stream.budget.take(5, 100)  # somebody else's
    tell(session, reserve(2, rows(5)))
    transport.drain()

    def reports() -> list[Any]:
        return [line for line in log if line["event"] == "caller blocked"]

    await until_on_loop(lambda: len(reports()) >= 2)
    told = transport.drain()
    assert len(told) >= 2
    for message in told:
        assert isinstance(message, frames.Blocked)
        assert (message.queue_records, message.queue_limit_records) == (10, 10)
        assert message.last_error == "InternalFailure: the disks are on fire"
        assert 0 < message.seconds < 60, "since it asked, and not since the machine started"
    line = reports()[0]
    assert line["stream"] == "flights"
    assert "10 of 10 records" in line["why"]
    assert "the disks are on fire" in line["why"]
    tell(session, frames.encode(frames.Cancel(2)))
    (refused,) = transport.drain()
    assert isinstance(refused, frames.Refused)
    assert refused.code == Code.CANCELLED
    told_before = len(log)
    await asyncio.sleep(0.05)
    assert len(log) == told_before, "nobody waits any more"
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


async def test_one_client_too_many_makes_a_line_in_the_log(log: list[Any]) -> None:
    host = StandInHost()
    host.full = "max_connections = 1"
    session = Session(host, 7)
    (close,) = StandInTransport(session).drain()
    assert isinstance(close, frames.Close)
    assert close.code == Code.CONNECTION_LIMIT
    session.connection_lost(None)
    (line,) = log
    assert (line["event"], line["log_level"], line["session"]) == ("client is one too many", "warning", 7)
    assert line["why"] == close.message == "max_connections = 1"


@pytest.mark.parametrize(("uid", "refused"), [(7, False), (8, True), (None, True)])
async def test_only_users_that_are_listed_may_connect(
    monkeypatch: pytest.MonkeyPatch, log: list[Any], uid: int | None, refused: bool
) -> None:
    monkeypatch.setattr(module, "peer_of", lambda _: None if uid is None else Peer(12, uid, 0))
    host = StandInHost()
    host.rules = replace(RULES, allowed_uids=frozenset({7}))
    session = Session(host, 1)
    told = StandInTransport(session).drain()
    session.connection_lost(None)
    assert [message.code for message in told if isinstance(message, frames.Close)] == [Code.NOT_AUTHORIZED] * refused
    assert [line["event"] for line in log] == ["client is not allowed"] * refused


async def test_a_client_of_other_versions_makes_a_line_in_the_log(log: list[Any]) -> None:
    session = Session(StandInHost(), 7)
    transport = StandInTransport(session)
    tell(session, frames.encode(frames.Hello(8, 9, client="tomorrow's", pid=12)))
    (close,) = transport.drain()
    assert isinstance(close, frames.Close)
    assert close.code == Code.VERSION_MISMATCH
    session.connection_lost(None)
    (line,) = log
    assert (line["event"], line["log_level"]) == ("client speaks other versions", "warning")
    assert (line["versions"], line["client"]) == ("8-9", "tomorrow's pid 12")


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
    count = 4 * module.MESSAGES_OF_A_TURN + 1
    await asyncio.sleep(0)  # what it has said until now counts against its user's share of this turn
    tell(session, frames.encode(frames.Status(1)) * count)
    answers = len(transport.drain())
    assert answers == module.MESSAGES_OF_A_TURN
    turns = 0
    while not transport.reading:
        await asyncio.sleep(0)
        turns += 1
        answers += len(transport.drain())
    assert (turns, answers) == (4, count)
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
    monkeypatch: pytest.MonkeyPatch, has_time_again: bool
) -> None:
    """Its body lies in the daemon's own buffer.  Who has no time for good is late in the end."""
    monkeypatch.setattr(module, "BODY_BEGINS_SECONDS", 0.05)
    host = StandInHost()
    host.rules = replace(RULES, body_timeout_seconds=60.0 if has_time_again else 0.3)
    session, transport = opened(host)
    columns = one()
    tell(session, reserve(1, columns))
    assert [type(message) for message in transport.drain()] == [frames.Grant]
    go_on: list[Callable[[], None]] = []
    monkeypatch.setattr(host.shares, "has_time", lambda *_: False)
    monkeypatch.setattr(host.shares, "put_off", lambda _, callback: go_on.append(callback))
    tell(session, body(1, columns))
    if has_time_again:
        await asyncio.sleep(0.15)
        assert not transport.closed
        monkeypatch.setattr(host.shares, "has_time", lambda *_: True)
        go_on[0]()
        assert host.stream.pipeline.queued_records == 1
        assert not transport.closed
    else:
        await until_on_loop(lambda: transport.closed)
        assert session.ended_as == "late"
    session.connection_lost(None)


async def test_a_session_that_has_ended_keeps_no_buffer() -> None:
    """Who connects over and over made 6,000 of them, 200 MB, until garbage was collected."""
    session, _ = opened(StandInHost())
    assert len(session.get_buffer(-1)) > 1_000
    session.connection_lost(None)
    assert len(session.get_buffer(-1)) == 0


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
    (close,) = transport.drain()
    assert isinstance(close, frames.Close)
    assert "which is open" in close.message
    session.connection_lost(None)
    assert host.stream.gate.largest_frame == before


async def test_a_body_has_two_seconds_to_begin_and_then_time_for_its_size() -> None:
    """What is granted and does not come keeps others waiting."""
    host = StandInHost()
    host.rules = replace(RULES, body_timeout_seconds=10)
    session, transport = opened(host)
    frame = rows(1, size=1 << 20)
    now = asyncio.get_running_loop().time()
    tell(session, reserve(1, frame))
    assert session._timer is not None
    assert session._timer.when() == pytest.approx(now + 2, abs=0.5)
    tell(session, body(1, frame)[:100])
    assert session._timer.when() == pytest.approx(now + 10 + 1, abs=0.5), "a second for each MiB"
    session._late("a body", 11.0, now, True)
    close = transport.drain()[-1]
    assert isinstance(close, frames.Close)
    assert (close.code, close.message) == (
        Code.DAEMON_LOST,
        "a body was not whole within 11 s (body_timeout_seconds)",
    )
    assert host.stream.budget.used_bytes == 0
    session.connection_lost(None)


async def test_a_body_that_does_not_begin_is_named_so() -> None:
    session, transport = opened(StandInHost())
    tell(session, reserve(1, rows(1)))
    session._late("a body", 2.0, 0.0, True)
    close = transport.drain()[-1]
    assert isinstance(close, frames.Close)
    assert (close.code, close.message) == (
        Code.DAEMON_LOST,
        "a body had not begun within 2 s (body_timeout_seconds)",
    )
    session.connection_lost(None)


async def test_a_daemon_that_stood_still_waits_for_a_body_once_more_and_then_no_more() -> None:
    """At most as long again, however long it stood still."""
    session, transport = opened(StandInHost())
    tell(session, reserve(1, rows(1)))
    now = asyncio.get_running_loop().time()
    session._late("a body", RULES.body_timeout_seconds, now - 3_600, False)
    assert not transport.is_closing()
    assert session._timer is not None
    assert session._timer.when() == pytest.approx(now + RULES.body_timeout_seconds, abs=1)
    session._late("a body", RULES.body_timeout_seconds, now - 3_600, True)
    assert transport.closed
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
