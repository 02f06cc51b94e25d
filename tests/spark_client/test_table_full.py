"""A client that meets a full table of connections waits, and one that made place comes back when it has rows."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

import pytest

from producerd.errors import Code, ConnectionFailed
from producerd.wire import messages
from producerd.wire.columns import lay_out
from spark_client import KinesisClient
from spark_client.connection import Connection
from tests.spark_client.fake_daemon import (
    FakeDaemon,
    Session,
    close_with,
    dies,
    ends,
    expects,
    in_turn,
    says,
    serve,
    stores,
    takes,
    waits,
)

HELLO = messages.Hello(1, 1)
FULL = says(messages.Close(Code.TABLE_FULL, "make place"))
full_at_open = in_turn(Session.welcome, expects(messages.Open), FULL)
full_at_reserve = ends(expects(messages.Reserve), FULL)


def connect(daemon: FakeDaemon, seconds: float = 5.0, reconnect_seconds: float = 0.0) -> Connection:
    return Connection(
        HELLO, [daemon.path], connect_timeout_seconds=seconds, reconnect_timeout_seconds=reconnect_seconds
    )


def store(session: Connection, *data: bytes) -> None:
    """Put a frame, and flush."""
    session.put("s", lay_out([b"key"] * len(data), list(data)))
    session.flush(10)


def data_of(daemon: FakeDaemon) -> list[bytes | None]:
    return [data for _, data, _ in daemon.rows]


class MakesPlace:
    """A daemon that stores a frame, and tells the client to make place when a test says so."""

    def __init__(self) -> None:
        self._full, self._told = threading.Event(), threading.Event()

    def __call__(self, session: Session) -> None:
        ends(stores(), waits(self._full), FULL, lambda _: self._told.set())(session)

    def tell(self, session: Connection | None = None) -> None:
        """Let the daemon close the session, and the client settle that."""
        self._full.set()
        assert self._told.wait(10)
        if session is not None:
            session.settle_arrived()


# ---- an idle client that makes place


@pytest.mark.promise("first-stream-longest")
def test_an_idle_client_sleeps_until_it_has_rows_and_counts_no_daemon_as_lost(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    first = MakesPlace()
    daemon.runs(first, serve)
    with caplog.at_level(logging.WARNING), connect(daemon) as session:
        store(session, b"a")
        first.tell(session)
        session.settle_arrived()
        session.hasten()
        session.flush(10)
        assert session.reason("s") == "there is no daemon that knows of them"
        assert session.daemon_pid == os.getpid()
        assert (session.sleeps, session.is_behind, len(daemon.sessions)) == (True, False, 1)
        store(session, b"b")
        assert not session.sleeps
    assert data_of(daemon) == [b"a", b"b"]
    assert [hello.comes_back for hello in daemon.hellos] == [1, 1]
    assert not caplog.records


def test_a_client_that_comes_back_to_no_daemon_looks_for_it(daemon: FakeDaemon) -> None:
    path, first = daemon.link(), MakesPlace()
    daemon.runs(first, serve)
    with Connection(HELLO, [str(path)], connect_timeout_seconds=5) as session:
        store(session, b"a")
        first.tell(session)
        path.unlink()
        threading.Timer(0.2, daemon.link).start()
        store(session, b"b")
    assert data_of(daemon) == [b"a", b"b"]


def test_a_client_that_gives_up_while_it_comes_back_stays_ended(daemon: FakeDaemon) -> None:
    first = MakesPlace()
    daemon.runs(first, in_turn(lambda _: connection.abandon(), Session.welcome, Session.await_end))
    with connect(daemon) as connection:
        store(connection, b"a")
        first.tell(connection)
        with pytest.raises(ConnectionFailed, match="is gone: every record that was sent is acknowledged"):
            store(connection, b"b")
    assert len(daemon.sessions) == 2


def test_a_dry_run_ends_with_its_session_as_its_figures_do(daemon: FakeDaemon) -> None:
    """Coming back would lose what the daemon had counted."""
    ready = says(messages.Blocked(1, 0.0, "", service=messages.Service.READY))
    daemon.runs(ends(expects(messages.Status), ready, stores(), FULL, dry_runs=1))
    with Connection(HELLO, [daemon.path], dry_run=True) as connection:
        connection.put("s", lay_out([b"key"], [b"a"]))
        with pytest.raises(ConnectionFailed, match="make place"):  # noqa: PT012 - whichever call reads it
            connection.flush(10)
            store(connection, b"b")
    assert len(daemon.sessions) == 1
    assert daemon.hellos[0].comes_back == 0


def test_a_daemon_that_owes_an_acknowledgement_is_lost_whatever_it_says(daemon: FakeDaemon) -> None:
    daemon.runs(ends(takes(1), FULL), serve)
    with connect(daemon, reconnect_seconds=5) as session:
        store(session, b"a")
    assert data_of(daemon) == [b"a", b"a"]


def test_a_client_with_a_frame_to_send_again_stays_awake(daemon: FakeDaemon) -> None:
    """A daemon may let it go before its first RESERVE, as it is idle until then.  No call of the client comes."""
    daemon.runs(dies, full_at_open, serve)
    with KinesisClient("s", socket=daemon.path) as client:
        client.put("a").result(5)
        client.flush(5)
    assert data_of(daemon) == [b"a", b"a"]


def test_a_plain_client_sleeps_and_comes_back_with_its_next_record(daemon: FakeDaemon) -> None:
    first = MakesPlace()
    daemon.runs(first, serve)
    with KinesisClient("s", socket=daemon.path) as client:
        client.put("a").result(10)
        first.tell()
        before = time.process_time()
        time.sleep(0.3)  # it would come back within that
        assert time.process_time() - before < 0.2, "it polls a socket that has ended"
        assert len(daemon.sessions) == 1
        client.flush(10)
        client.put("b").result(10)
    assert data_of(daemon) == [b"a", b"b"]


# ---- for how long a client tries


@pytest.mark.parametrize(
    ("scripts", "said", "most_sessions"),
    [
        ([close_with(Code.CONNECTION_LIMIT)], "because of CONNECTION_LIMIT", 4),
        ([full_at_open], "make place", 50),
        ([MakesPlace(), close_with(Code.TABLE_FULL)], "because of TABLE_FULL", 6),
    ],
    ids=["when it connects", "when it opens a stream", "when it comes back"],
)
def test_a_client_without_a_place_gives_up_after_its_connect_time_out(
    scripts: list[Any], said: str, most_sessions: int, daemon: FakeDaemon
) -> None:
    """It comes less and less often, or at least not without a pause."""
    daemon.runs(*scripts)
    began = time.monotonic()
    with pytest.raises(ConnectionFailed, match=said), connect(daemon, 0.3) as session:  # noqa: PT012
        store(session, b"a")
        scripts[0].tell(session)
        began = time.monotonic()
        store(session, b"b")
    assert 0.2 < time.monotonic() - began < 5
    assert 2 <= len(daemon.sessions) <= most_sessions


def test_a_flush_comes_back_for_a_frame_to_send_again(daemon: FakeDaemon) -> None:
    has_place = threading.Event()
    daemon.runs(dies, lambda session: (serve if has_place.is_set() else full_at_open)(session))
    with connect(daemon, 0.3, reconnect_seconds=5) as session:
        with pytest.raises(ConnectionFailed, match="make place"):
            store(session, b"a")
        has_place.set()
        session.flush(10)
    assert data_of(daemon) == [b"a", b"a"]


def test_the_time_asleep_is_no_time_without_a_place(daemon: FakeDaemon) -> None:
    first = MakesPlace()
    daemon.runs(first, full_at_reserve, serve)
    with connect(daemon, 0.2) as session:
        store(session, b"a")
        first.tell(session)
        assert session.sleeps
        time.sleep(0.3)
        store(session, b"b")  # its first RESERVE crosses the close
    assert data_of(daemon) == [b"a", b"b"]
    assert session.tally.taken == 2


def test_a_place_that_was_found_ends_the_time_without_one(daemon: FakeDaemon) -> None:
    takes_one = ends(stores(), expects(messages.Flush), expects(messages.Reserve), FULL)
    daemon.runs(full_at_reserve, takes_one, serve)
    with connect(daemon, 0.2) as session:
        store(session, b"a")
        time.sleep(0.5)
        store(session, b"b")
    assert data_of(daemon) == [b"a", b"b"]
