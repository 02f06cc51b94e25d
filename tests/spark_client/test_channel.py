"""The daemon is looked for until the time-out, and ever more slowly where it is full; a channel waits no longer."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from producerd.errors import Code, ConnectionFailed, ProtocolError, Refused
from producerd.wire import frames
from spark_client import channel
from spark_client.channel import Channel, Late, ask, dial
from tests.spark_client.fake_daemon import FakeDaemon, Session, close_with, serve

HELLO = frames.Hello(1, 1)


class Clock:
    """Stands in for the module ``time``: sleeping only moves it, by a little more than was asked for."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 2))
        self.now += seconds + 0.001


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(channel, "time", clock)
    return clock


@pytest.mark.parametrize(("seconds", "slept"), [(0.35, [0.1, 0.1, 0.1, 0.05]), (0, [0.1])])
def test_a_daemon_is_looked_for_until_the_time_out(
    clock: Clock, tmp_path: Path, seconds: float, slept: list[float]
) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        dial(HELLO, [str(tmp_path / "nobody.sock")], seconds)
    assert caught.value.code == Code.DAEMON_ABSENT
    assert clock.slept == slept


def test_a_full_daemon_is_asked_less_and_less_often(daemon: FakeDaemon, clock: Clock) -> None:
    daemon.runs(*[close_with(Code.CONNECTION_LIMIT)] * 6, serve)
    found, welcome = dial(HELLO, [daemon.path], 60)
    found.close()
    assert welcome.session_id == 1
    assert clock.slept == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_daemon_is_started_where_nobody_listens(daemon: FakeDaemon, clock: Clock) -> None:
    """The time that its start takes does not count."""
    path = f"{daemon.path}.late"

    def start() -> None:
        clock.now += 100
        os.link(daemon.path, path)

    found, _ = dial(HELLO, [path], 0.35, start)
    found.close()
    assert clock.slept == []


def test_a_full_daemon_is_asked_again_after_a_pause_also_by_who_could_start_one(
    daemon: FakeDaemon, clock: Clock
) -> None:
    daemon.runs(close_with(Code.CONNECTION_LIMIT), serve)
    found, _ = dial(HELLO, [daemon.path], 5, lambda: None)
    found.close()
    assert clock.slept == [0.1]


def test_a_daemon_that_was_started_and_is_full_has_the_time_out_that_is_left(daemon: FakeDaemon, clock: Clock) -> None:
    path = f"{daemon.path}.late"

    def start() -> None:
        if not os.path.exists(path):
            clock.now += 100
            os.link(daemon.path, path)

    daemon.runs(close_with(Code.CONNECTION_LIMIT))
    with pytest.raises(ConnectionFailed, match="because of CONNECTION_LIMIT") as caught:
        dial(HELLO, [path], 0.35, start)
    assert caught.value.code == Code.CONNECTION_LIMIT
    assert clock.slept == [0.1, 0.2, 0.05]


def test_a_full_daemon_is_the_reason_though_another_one_hangs(daemon: FakeDaemon) -> None:
    daemon.runs(close_with(Code.CONNECTION_LIMIT))
    hangs = str(Path(daemon.path).with_name("hangs.sock"))
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(hangs)
        listener.listen()
        with pytest.raises(ConnectionFailed, match="because of CONNECTION_LIMIT"):
            dial(HELLO, [daemon.path, hangs], 0.1)


def test_a_channel_waits_until_its_deadline_in_milliseconds(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    class Poll:
        def register(self, *_: object) -> None:
            pass

        def modify(self, *_: object) -> None:
            pass

        def poll(self, milliseconds: float) -> list[object]:
            waits.append(milliseconds)
            return []

    daemon.runs(lambda _: None)
    monkeypatch.setattr("spark_client.channel.select.poll", Poll)
    monkeypatch.setattr(channel, "time", SimpleNamespace(monotonic=lambda: 1_000.0))
    with contextlib.closing(Channel(daemon.path)) as waiting:
        for deadline in (1_000.25, 1_000.0, 999.0):
            with pytest.raises(Late):
                waiting.read(deadline)
    assert waits == [250.0, 0.0, 0.0]


# ---- one question to a daemon


def asked(daemon: FakeDaemon, *answers: frames.Message, seconds: float = 10) -> frames.Opened:
    def script(session: Session) -> None:
        session.welcome()
        session.expect(frames.Open)
        for answer in answers:
            session.send(answer)
        session.await_end()

    daemon.runs(script)
    found, _ = dial(HELLO, [daemon.path], 5)
    with contextlib.closing(found):
        return ask(found, frames.Open(1, "s"), frames.Opened, seconds)


def test_the_answer_to_a_question_is_found_behind_other_messages(daemon: FakeDaemon) -> None:
    opened = frames.Opened(1, 1 << 20, 100)
    assert asked(daemon, frames.Draining(5.0), opened) == opened


def test_a_question_that_is_refused_is_its_code(daemon: FakeDaemon) -> None:
    with pytest.raises(Refused, match=r"^no such stream$") as caught:
        asked(daemon, frames.Refused(0, 1, Code.STREAM_NOT_FOUND, "no such stream"))
    assert caught.value.code == Code.STREAM_NOT_FOUND


@pytest.mark.parametrize(("code", "error"), [(Code.INTERNAL, ConnectionFailed), (Code.PROTOCOL, ProtocolError)])
def test_a_daemon_that_closes_instead_of_answering_says_why(
    daemon: FakeDaemon, code: str, error: type[ConnectionFailed]
) -> None:
    with pytest.raises(error) as caught:
        asked(daemon, frames.Close(code, "a fault of ours"))
    assert str(caught.value) == f"the daemon on host {socket.gethostname()} closed the session: a fault of ours"
    assert caught.value.code == code


def test_a_daemon_that_does_not_answer_is_lost(daemon: FakeDaemon) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        asked(daemon, seconds=0.05)
    assert str(caught.value) == "the daemon greeted, and then had no answer to OPEN"
    assert caught.value.code == Code.DAEMON_LOST
