"""A client that meets a full table of connections waits, and one that made place comes back when it has rows."""

from __future__ import annotations

import logging
import os
import threading
import time

import pytest

from producerd.errors import Code, ConnectionFailed
from producerd.wire import frames
from producerd.wire.columns import Columns, lay_out
from spark_client import KinesisClient
from spark_client.connection import Connection
from tests.spark_client.fake_daemon import FakeDaemon, Session, close_with, serve

HELLO = frames.Hello(1, 1)


def connect(daemon: FakeDaemon, seconds: float = 5.0, reconnect_seconds: float = 0.0) -> Connection:
    return Connection(
        HELLO, [daemon.path], connect_timeout_seconds=seconds, reconnect_timeout_seconds=reconnect_seconds
    )


def rows(*data: bytes) -> Columns:
    return lay_out([b"key"] * len(data), list(data))


def data_of(daemon: FakeDaemon) -> list[bytes | None]:
    return [data for _, data, _ in daemon.rows]


class MakesPlace:
    """A daemon that takes a frame, and tells the client to make place when a test says so."""

    def __init__(self) -> None:
        self.full = threading.Event()
        self.told = threading.Event()

    def __call__(self, session: Session) -> None:
        session.start()
        session.ack(session.take_frame())
        assert self.full.wait(10)
        session.send(frames.Close(Code.TABLE_FULL, "make place"))
        self.told.set()

    def tell(self) -> None:
        self.full.set()
        assert self.told.wait(10)


@pytest.mark.parametrize("code", [Code.CONNECTION_LIMIT, Code.TABLE_FULL])
def test_who_meets_a_full_table_waits_for_a_place(daemon: FakeDaemon, code: str) -> None:
    daemon.runs(close_with(code), close_with(code), serve)
    with connect(daemon) as session:
        session.put("s", rows(b"a"))
        session.flush(10)
    assert data_of(daemon) == [b"a"]


def test_it_waits_no_longer_than_its_connect_time_out(daemon: FakeDaemon) -> None:
    daemon.runs(close_with(Code.CONNECTION_LIMIT))
    began = time.monotonic()
    with pytest.raises(ConnectionFailed, match="because of CONNECTION_LIMIT") as caught:
        connect(daemon, 0.5)
    assert caught.value.code == Code.CONNECTION_LIMIT
    assert 0.4 < time.monotonic() - began < 5
    assert 2 <= len(daemon.sessions) <= 5, "it comes less and less often"


@pytest.mark.promise("first-stream-longest")
def test_an_idle_client_sleeps_until_it_has_rows_and_counts_no_daemon_as_lost(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    first = MakesPlace()
    daemon.runs(first, serve)
    with caplog.at_level(logging.WARNING), connect(daemon) as session:
        session.put("s", rows(b"a"))
        session.flush(10)
        first.tell()
        session.settle_arrived()
        session.settle_arrived()
        session.hasten()
        session.flush(10)
        assert session.reason("s") == "there is no daemon that knows of them"
        assert session.daemon_pid == os.getpid()
        assert (session.sleeps, session.is_behind, len(daemon.sessions)) == (True, False, 1)
        session.put("s", rows(b"b"))
        session.flush(10)
        assert not session.sleeps
    assert data_of(daemon) == [b"a", b"b"]
    assert [hello.comes_back for hello in daemon.hellos] == [1, 1]
    assert not caplog.records


def test_who_comes_back_to_no_daemon_looks_for_it(daemon: FakeDaemon) -> None:
    path = f"{daemon.path}.link"
    os.link(daemon.path, path)
    first = MakesPlace()
    daemon.runs(first, serve)
    with Connection(HELLO, [path], connect_timeout_seconds=5) as session:
        session.put("s", rows(b"a"))
        session.flush(10)
        first.tell()
        session.settle_arrived()
        os.unlink(path)
        threading.Timer(0.2, os.link, (daemon.path, path)).start()
        session.put("s", rows(b"b"))
        session.flush(10)
    assert data_of(daemon) == [b"a", b"b"]


def test_a_client_that_gives_up_while_it_comes_back_stays_ended(daemon: FakeDaemon) -> None:
    asked, given_up = threading.Event(), threading.Event()

    def welcomes_late(session: Session) -> None:
        asked.set()
        given_up.wait(10)
        session.welcome()
        session.await_end()

    def gives_up() -> None:
        asked.wait(10)
        connection.abandon()
        given_up.set()

    first = MakesPlace()
    daemon.runs(first, welcomes_late)
    with connect(daemon) as connection:
        connection.put("s", rows(b"a"))
        connection.flush(10)
        first.tell()
        connection.settle_arrived()
        giving_up = threading.Thread(target=gives_up)
        giving_up.start()
        with pytest.raises(ConnectionFailed, match="is gone: every record that was sent is acknowledged"):
            connection.put("s", rows(b"b"))
        giving_up.join()
    assert len(daemon.sessions) == 2


def test_a_reserve_that_crossed_the_close_is_repeated(daemon: FakeDaemon) -> None:
    def makes_place(session: Session) -> None:
        session.start()
        session.expect(frames.Reserve)
        session.send(frames.Close(Code.TABLE_FULL, "make place"))

    daemon.runs(makes_place, makes_place, serve)
    with connect(daemon) as session:
        session.put("s", rows(b"a"))
        session.flush(10)
    assert data_of(daemon) == [b"a"]
    assert session.tally.taken == 1


def test_who_is_sent_away_again_and_again_gives_up_after_its_connect_time_out(daemon: FakeDaemon) -> None:
    def makes_place(session: Session) -> None:
        session.welcome()
        session.expect(frames.Open)
        session.send(frames.Close(Code.TABLE_FULL, "make place"))

    daemon.runs(makes_place)
    began = time.monotonic()
    with connect(daemon, 0.3) as session, pytest.raises(ConnectionFailed, match="make place") as caught:
        session.put("s", rows(b"a"))
    assert caught.value.code == Code.TABLE_FULL
    assert 0.2 < time.monotonic() - began < 5
    assert len(daemon.sessions) < 50, "it does not come back without a pause"


def test_a_dry_run_ends_with_its_session_as_its_figures_do(daemon: FakeDaemon) -> None:
    """Coming back would lose what the daemon had counted."""

    def makes_place(session: Session) -> None:
        session.start(dry_runs=1)
        session.expect(frames.Status)
        session.send(frames.Blocked(1, 0.0, "", service=frames.Service.READY))
        session.ack(session.take_frame())
        session.send(frames.Close(Code.TABLE_FULL, "make place"))

    daemon.runs(makes_place)
    with Connection(HELLO, [daemon.path], dry_run=True) as connection:

        def put_two() -> None:
            for data in (b"a", b"b"):
                connection.put("s", rows(data))
                connection.flush(10)

        with pytest.raises(ConnectionFailed, match="make place"):
            put_two()
    assert len(daemon.sessions) == 1
    assert daemon.hellos[0].comes_back == 0


def test_a_daemon_that_owes_an_acknowledgement_is_lost_whatever_it_says(daemon: FakeDaemon) -> None:
    def breaks_its_word(session: Session) -> None:
        session.start()
        session.take_frame()
        session.send(frames.Close(Code.TABLE_FULL, "make place"))

    daemon.runs(breaks_its_word, serve)
    with connect(daemon, reconnect_seconds=5) as session:
        session.put("s", rows(b"a"))
        session.flush(10)
    assert data_of(daemon) == [b"a", b"a"]


def dies(session: Session) -> None:
    session.start()
    session.take_frame()


def makes_place_at_once(session: Session) -> None:
    session.welcome()
    session.expect(frames.Open)
    session.send(frames.Close(Code.TABLE_FULL, "make place"))


def test_a_client_with_a_frame_to_send_again_stays_awake(daemon: FakeDaemon) -> None:
    """A daemon may let it go before its first RESERVE, as it is idle until then.  No call of the client comes."""
    daemon.runs(dies, makes_place_at_once, serve)
    with KinesisClient("s", socket=daemon.path) as client:
        client.put("a").result(5)
        client.flush(5)
    assert data_of(daemon) == [b"a", b"a"]


def test_a_flush_comes_back_for_a_frame_to_send_again(daemon: FakeDaemon) -> None:
    has_place = threading.Event()

    def makes_place_until_then(session: Session) -> None:
        (serve if has_place.is_set() else makes_place_at_once)(session)

    daemon.runs(dies, makes_place_until_then)
    with connect(daemon, 0.3, reconnect_seconds=5) as session:
        session.put("s", rows(b"a"))
        with pytest.raises(ConnectionFailed, match="make place"):
            session.flush(10)
        has_place.set()
        session.flush(10)
    assert data_of(daemon) == [b"a", b"a"]


def test_a_plain_client_sleeps_and_comes_back_with_its_next_record(daemon: FakeDaemon) -> None:
    first = MakesPlace()
    daemon.runs(first, serve)
    with KinesisClient("s", socket=daemon.path) as client:
        client.put("a").result(10)
        first.tell()
        time.sleep(0.3)  # it would come back within that
        assert len(daemon.sessions) == 1
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.2, "it polls a socket that has ended"
        client.flush(10)
        client.put("b").result(10)
    assert data_of(daemon) == [b"a", b"b"]


def test_the_time_asleep_is_no_time_without_a_place(daemon: FakeDaemon) -> None:
    def makes_place(session: Session) -> None:
        session.start()
        session.expect(frames.Reserve)
        session.send(frames.Close(Code.TABLE_FULL, "make place"))

    first = MakesPlace()
    daemon.runs(first, makes_place, serve)
    with connect(daemon, 0.2) as session:
        session.put("s", rows(b"a"))
        session.flush(10)
        first.tell()
        session.settle_arrived()
        assert session.sleeps
        time.sleep(0.3)
        session.put("s", rows(b"b"))
        session.flush(10)
    assert data_of(daemon) == [b"a", b"b"]


def test_a_place_that_was_found_ends_the_time_without_one(daemon: FakeDaemon) -> None:
    def makes_place(session: Session) -> None:
        session.start()
        session.expect(frames.Reserve)
        session.send(frames.Close(Code.TABLE_FULL, "make place"))

    def takes_one(session: Session) -> None:
        session.start()
        session.ack(session.take_frame())
        while not isinstance(session.read(), frames.Reserve):
            pass  # FLUSH
        session.send(frames.Close(Code.TABLE_FULL, "make place"))

    daemon.runs(makes_place, takes_one, serve)
    with connect(daemon, 0.2) as session:
        session.put("s", rows(b"a"))
        session.flush(10)
        time.sleep(0.5)
        session.put("s", rows(b"b"))
        session.flush(10)
    assert data_of(daemon) == [b"a", b"b"]


def test_who_finds_no_place_while_it_sleeps_gives_up_too(daemon: FakeDaemon) -> None:
    first = MakesPlace()
    daemon.runs(first, close_with(Code.TABLE_FULL))
    with connect(daemon, 0.3) as session:
        session.put("s", rows(b"a"))
        session.flush(10)
        first.tell()
        session.settle_arrived()
        began = time.monotonic()
        with pytest.raises(ConnectionFailed, match="because of TABLE_FULL"):
            session.put("s", rows(b"b"))
        assert time.monotonic() - began < 5
