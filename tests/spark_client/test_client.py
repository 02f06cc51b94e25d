"""A plain program's records: taken when `put` returns, stored when its future is done, never half-taken."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as StillRuns
from functools import partial
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
    ProducerdError,
    RecordsFailed,
    Refused,
    RowFailure,
)
from producerd.wire import messages
from producerd.wire.columns import Body
from spark_client import KinesisClient, Record
from spark_client.connection import MOST_FRUITLESS_SESSIONS, Connection
from tests.spark_client.clients import abandon, calling, client_of, client_threads, data_of, holds_back
from tests.spark_client.fake_daemon import (
    INVALID,
    RETURNED,
    FakeDaemon,
    Session,
    acks,
    close_with,
    dies,
    ends,
    expects,
    fails,
    in_turn,
    lasts,
    refuses_stream,
    refuses_the_first_stream,
    says,
    serve,
    serves_after,
    stores,
    takes,
    until,
    waits,
)

CLOSED = r"^PRODUCERD\[INTERNAL\]: this client is closed$"
OPENED_IN_TIME = messages.Opened(2, 1 << 20, 100)


def bad_keys(*keys: bytes) -> Callable[[Session], None]:
    """Return a script: rows with these keys fail."""
    return in_turn(Session.welcome, lambda session: session.serve(lambda row: INVALID if row[0] in keys else None))


# ---- what is put, and how it ends


def test_a_record_is_stored_when_its_future_is_done(daemon: FakeDaemon) -> None:
    """HELLO says that what is taken is delivered without its caller, and that good rows go without the bad ones."""
    with client_of(daemon) as client:
        assert client.put("ünï", "k", 2**127).result(10) is None
        for arguments in ((b"raw",), (b"raw", "k"), (b"raw", "ü"), (b"raw", "k", 0)):
            assert client.put(*arguments).result(10) is None
        assert client.put(memoryview(b"view"), explicit_hash_key="7", stream="other").result(10) is None
    assert daemon.rows_of_streams == [
        ("s", (b"k", "ünï".encode(), b"%d" % 2**127)),
        ("s", (b"", b"raw", None)),
        ("s", (b"k", b"raw", None)),
        ("s", ("ü".encode(), b"raw", None)),
        ("s", (b"k", b"raw", b"0")),
        ("other", (b"", b"view", b"7")),
    ]
    (hello,) = daemon.hellos
    assert (hello.on_disconnect, hello.bad_rows) == (messages.OnDisconnect.DELIVER, messages.BadRows.TAKE_GOOD)
    assert hello.pid == os.getpid()


def test_records_are_acknowledged_without_another_call(daemon: FakeDaemon) -> None:
    go_on, done = threading.Event(), threading.Event()
    daemon.runs(holds_back(go_on))
    with client_of(daemon) as client:
        future = client.put("x")
        assert not future.done()
        future.add_done_callback(lambda _: done.set())
        go_on.set()
        assert done.wait(10)


def test_an_acknowledgement_that_came_with_another_answer_is_not_left_unread(daemon: FakeDaemon) -> None:
    """The call that is refused reads no further, and the socket has nothing more to wake the thread for."""

    def acknowledges_with_a_refusal(session: Session) -> None:
        reserve = session.expect(messages.Reserve)
        refused = messages.Refused(reserve.frame_id, reserve.stream_id, Code.CREDENTIALS, "no keys")
        session.send(refused, messages.Ack(1, 1, 1, 0, 0, 0))

    daemon.runs(lasts(takes(1), acknowledges_with_a_refusal))
    with client_of(daemon) as client:
        first = client.put_many([Record(b"a", "k")])
        with pytest.raises(Refused):
            client.put_many([Record(b"b", "k")])
        first.result(5)


def test_leaving_the_block_flushes_what_no_future_is_kept_of(daemon: FakeDaemon) -> None:
    daemon.runs(lasts(takes(1), expects(messages.Flush), acks(0)))
    with client_of(daemon) as client:
        client.put("x")
    assert len(daemon.rows) == 1


def test_many_records_are_cut_into_frames_and_stay_in_order(daemon: FakeDaemon) -> None:
    daemon.runs(in_turn(lambda s: s.welcome(max_frame_records=40, max_frame_bytes=5_000), Session.serve))
    records: list[Any] = [Record(b"x" * (i % 90), f"k{i}") for i in range(1_000)]
    records[500] = (b"y" * 20_000, "large")  # larger than a frame: alone
    records[501] = ("just data",)
    with client_of(daemon) as client:
        assert client.put_many(records).result(10) is None
        assert client.put_many([]).result(10) is None
    assert [data for _, data, _ in daemon.rows[:500]] == [b"x" * (i % 90) for i in range(500)]
    assert daemon.rows[500:502] == [(b"large", b"y" * 20_000, None), (b"", b"just data", None)]
    assert len(daemon.rows) == 1_000
    bodies = daemon.sessions[0].bodies
    assert max(body.layout.records for body in bodies) <= 40
    assert all(body.layout.charge_bytes <= 5_000 or body.layout.records == 1 for body in bodies)


@pytest.mark.promise("records-fail-named-place")
def test_records_that_fail_are_named_by_place_and_raised_once(daemon: FakeDaemon) -> None:
    daemon.runs(bad_keys(b"bad"))
    client = client_of(daemon)
    future = client.put_many([("a", "good"), ("SECRET", "bad"), ("c", "good")])
    with pytest.raises(RecordsFailed) as caught:
        future.result(10)
    assert str(caught.value) == (
        "PRODUCERD[RECORD_INVALID]: 1 of 3 records of one call for stream s failed, named by place: "
        "RECORD_INVALID 1 (data is null), records 1"
    )
    assert caught.value.failures[0].rows == (1,)
    client.flush()  # the future has raised it
    wait([client.put("e", "bad"), client.put_many([("f", "bad")])], 10)
    with pytest.raises(RecordsFailed, match=r"^PRODUCERD\[RECORD_INVALID\]: 2 records failed since the last flush: "):
        client.flush()
    assert client.put("d", "good").result(10) is None
    client.flush()
    assert isinstance(client.put("e", "bad").exception(10), RecordsFailed)
    client.put_many([("f", "bad")]).add_done_callback(lambda future: future.exception())
    client.put("g", "bad")
    with pytest.raises(RecordsFailed, match=r"^PRODUCERD\[RECORD_INVALID\]: 1 record failed since the last flush: "):
        client.close()


def test_a_flush_does_not_raise_what_a_callback_is_about_to_look_at(daemon: FakeDaemon) -> None:
    go_on = threading.Event()

    def look(future: Future[None]) -> None:
        time.sleep(0.05)  # the flush has found it done by now
        assert isinstance(future.exception(0), RecordsFailed)

    daemon.runs(lasts(takes(1), waits(go_on), fails(0, {0: INVALID})))
    with client_of(daemon) as client:
        client.put_many([("x", "k")]).add_done_callback(look)
        go_on.set()


def test_a_flush_counts_all_failures_and_names_the_first_kinds(daemon: FakeDaemon) -> None:
    def by_key(row: Any) -> messages.RowCode:
        return messages.RowCode(Outcome.NOT_STORED, row[0].decode(), "no")

    daemon.runs(in_turn(Session.welcome, lambda session: session.serve(by_key)))
    client = client_of(daemon)
    for number in range(7):
        wait([client.put("x", f"Code{number}")], 10)
    with pytest.raises(RecordsFailed) as caught:
        client.flush()
    named = "; ".join(f"Code{number} 1 (no)" for number in range(5))
    assert str(caught.value) == f"PRODUCERD[Code0]: 7 records failed since the last flush: {named}"
    assert [failure.code for failure in caught.value.failures] == [f"Code{number}" for number in range(7)]
    client.close()


# ---- calls that wait


def waits_for_room(session: Session) -> None:
    """A script: the daemon stores one frame, and refuses every other when the client cancels it."""
    session.start()
    session.ack(session.take_frame())
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            message = session.read()
            if isinstance(message, messages.Cancel):
                session.send(messages.Refused(message.frame_id, 1, Code.CANCELLED, "the queue is full"))


@pytest.fixture
def blocked(daemon: FakeDaemon) -> Iterator[KinesisClient]:
    """A client of which a call waits for room for a second."""
    daemon.runs(waits_for_room)
    client = client_of(daemon)
    client.put("first").result(10)
    with calling(lambda: client.put("a", timeout_seconds=1)) as errors:
        until(lambda: daemon.outstanding)
        yield client
    assert [type(error) for error in errors] == [BackpressureTimeout]
    client.close()
    assert data_of(daemon) == [b"first"]


def test_a_time_out_leaves_nothing_half_taken_and_says_where_to_go_on(daemon: FakeDaemon) -> None:
    daemon.runs(waits_for_room)
    client = client_of(daemon)
    no_room = r"^PRODUCERD\[BACKPRESSURE_TIMEOUT\]: no room for stream s within 0\.\d+ s: the queue is full$"
    with pytest.raises(BackpressureTimeout, match=no_room) as caught:
        client.put_many([(b"x" * 600_000,)] * 3, timeout_seconds=0.3)
    assert caught.value.taken == 1
    with pytest.raises(BackpressureTimeout, match=no_room) as caught:
        client.put("y", timeout_seconds=0.1)
    assert caught.value.taken == 0
    client.flush(10)
    client.close()
    assert len(daemon.rows) == 1


def test_a_caller_behind_another_one_that_waits_is_let_go_in_time(blocked: KinesisClient) -> None:
    """The fixture sees that nothing of it is sent later."""
    for seconds in (0.1, 0.01):
        text = rf"within {seconds} s: the client looks for its daemon, or another of its calls waits for room"
        with pytest.raises(BackpressureTimeout, match=text):
            blocked.put("b", timeout_seconds=seconds)


def test_behind_another_call_it_says_what_the_daemon_said_to_that(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is full, and a record that was put without a time-out waits for room."""
    monkeypatch.setattr("spark_client.client.TURN_SECONDS", 0.01)
    monkeypatch.setattr("spark_client.reasons.FIRST_SECONDS", 0.01)
    told = messages.Blocked(1, 0.0, "paused by the operator", 1, 1, 1, 1)
    daemon.runs(lasts(takes(1), expects(messages.Reserve), expects(messages.Status), says(told)))
    client = client_of(daemon)
    client.put("a", timeout_seconds=60)
    client.put("b")
    text = "another of its calls waits for room for stream s; the daemon said last: paused by the operator"

    def flushed() -> str:
        with pytest.raises(FlushTimeout) as caught:
            client.flush(0.01)
        return str(caught.value)

    until(lambda: flushed().endswith(text))
    with pytest.raises(BackpressureTimeout, match=f"{text}$"):
        client.put("c", timeout_seconds=0.01)
    abandon(client)


def test_a_flush_waits_for_a_call_that_still_hands_its_records_over(blocked: KinesisClient) -> None:
    """As after an interruption of that call, or in another thread."""
    with pytest.raises(FlushTimeout, match=r"1 record is not acknowledged after 0\.1 s: "):
        blocked.flush(0.1)


def test_a_call_that_is_interrupted_before_its_turn_is_never_done(
    blocked: KinesisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            blocked.put("b", timeout_seconds=60)


def test_a_caller_behind_another_one_that_waits_has_its_whole_time_out(daemon: FakeDaemon) -> None:
    def grants_late(session: Session) -> None:
        reserve = session.expect(messages.Reserve)
        time.sleep(0.2)  # more than the shortest time-out
        session.send(messages.Grant(reserve.frame_id))

    daemon.runs(serves_after(grants_late, expects(Body), acks(0)))
    with client_of(daemon) as client, calling(lambda: client.put("a", timeout_seconds=10)) as errors:
        until(lambda: daemon.outstanding)
        assert client.put("b", timeout_seconds=10).result(10) is None
    assert not errors


def test_a_future_is_done_while_another_call_waits_for_room(daemon: FakeDaemon) -> None:
    """Its acknowledgement counts when it comes, not when the call that waits has ended."""
    go_on = threading.Event()
    grants = in_turn(expects(messages.Reserve), acks(0), waits(go_on), says(messages.Grant(2)), expects(Body), acks(1))
    daemon.runs(lasts(takes(1), grants))
    with client_of(daemon) as client:
        first = client.put("x", timeout_seconds=10)
        with calling(lambda: client.put("y")):
            try:
                assert first.result(5) is None
            finally:
                go_on.set()


def test_the_time_out_of_put_many_is_that_of_the_call(daemon: FakeDaemon) -> None:
    """Not of each of its frames: here one is taken every 0.3 s."""

    def script(session: Session) -> None:
        session.start(max_frame_records=1)
        with contextlib.suppress(EOFError):
            while not isinstance(message := session.read(), messages.Cancel):
                if isinstance(message, messages.Reserve):
                    time.sleep(0.3)
                    session.send(messages.Grant(message.frame_id))
                elif isinstance(message, Body):
                    session.ack(message)
            session.await_end()  # the GRANT crossed it

    daemon.runs(script)
    with client_of(daemon) as client:
        with pytest.raises(BackpressureTimeout) as caught:
            client.put_many([("x",)] * 20, timeout_seconds=0.75)
        assert caught.value.taken == 2


def test_the_time_out_of_put_holds_for_the_next_daemon_too(daemon: FakeDaemon) -> None:
    """One that has no room for what the last one had."""
    sent_again = threading.Event()

    def is_full(session: Session) -> None:
        reserve = session.expect(messages.Reserve)
        assert session.expect(messages.Cancel).frame_id == reserve.frame_id
        session.refuse(reserve, Code.CANCELLED, "the queue is full")

    full = serves_after(is_full, stores(), lambda _: sent_again.set())
    daemon.runs(ends(takes(1), expects(messages.Reserve)), full)
    with client_of(daemon) as client:
        future = client.put("x")
        with pytest.raises(BackpressureTimeout, match="the queue is full") as caught:
            client.put("y", timeout_seconds=0.5)
        assert caught.value.taken == 0
        assert sent_again.wait(10), "no call is needed for it"
        assert future.result(10) is None
    assert [data for _, data, _ in daemon.rows] == [b"x", b"x"]


@pytest.mark.parametrize("seconds", [0, 1e12], ids=["zero", "30,000 years"])
def test_a_time_out_of_any_length_takes_the_room_that_there_is(daemon: FakeDaemon, seconds: float) -> None:
    with client_of(daemon) as client:
        assert client.put("x", timeout_seconds=seconds).result(10) is None
        assert client.put_many([("y",)] * 30, timeout_seconds=seconds).result(10) is None
        client.flush(1e12)


# ---- flushes that wait


@pytest.mark.parametrize("seconds", ["5", -1, float("nan"), True])
def test_a_time_out_that_is_no_number_of_seconds_is_refused_by_its_name(daemon: FakeDaemon, seconds: Any) -> None:
    daemon.runs(serve)
    with client_of(daemon) as client:
        for call in (partial(client.put, "x"), partial(client.put_many, [("x",)]), client.flush, client.close):
            with pytest.raises(
                ConfigurationError, match=rf"timeout_seconds={seconds!r}: give a number of seconds, or None"
            ):
                call(timeout_seconds=seconds)
    assert not daemon.rows


def test_a_flush_that_takes_too_long_says_why_and_can_be_repeated(daemon: FakeDaemon) -> None:
    go_on = threading.Event()
    why = says(messages.Blocked(1, 3.0, "the service answers slowly", queue_records=1, queue_limit_records=9))
    daemon.runs(lasts(takes(1), expects(messages.Flush), expects(messages.Status), why, waits(go_on), acks(0)))
    client = client_of(daemon)
    future = client.put("x")
    with pytest.raises(FlushTimeout, match=r"1 record is not acknowledged after 0\.1 s: the service answers slowly; "):
        client.flush(0.1)
    go_on.set()
    client.flush(10)
    assert future.done()
    client.close()


def test_what_is_sent_again_is_flushed_while_a_flush_waits_for_it(daemon: FakeDaemon) -> None:
    """Else it would linger at the next daemon, for up to an hour."""
    daemon.runs(ends(takes(1), expects(messages.Flush)), lasts(takes(1), expects(messages.Flush), acks(0)))
    with client_of(daemon) as client:
        future = client.put("x")
        client.flush(5)
        assert future.done()


def test_a_flush_whose_time_passes_while_the_daemon_stops_gives_nothing_up(daemon: FakeDaemon) -> None:
    gives_back = in_turn(fails(0, {0: RETURNED}), says(messages.Close(Code.DRAINING, "it stops")))
    daemon.runs(ends(takes(1), expects(messages.Flush), expects(messages.Status), gives_back), serve)
    with client_of(daemon) as client:
        future = client.put("x")
        with pytest.raises(FlushTimeout, match=r"after 0\.2 s: .* closed the session: it stops; 1 frame"):
            client.flush(0.2)
        assert future.result(10) is None


def test_a_flush_whose_time_passed_before_its_turn_leaves_nothing_behind(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends no FLUSH later."""
    monkeypatch.setattr("spark_client.client.TURN_SECONDS", 0.01)
    go_on, stored = threading.Event(), threading.Event()
    grants = in_turn(expects(messages.Reserve), waits(go_on), says(messages.Grant(2)), expects(Body))
    no_flush = in_turn(expects(messages.Reserve), says(messages.Grant(3)), expects(Body), lambda _: stored.set())
    daemon.runs(ends(takes(1), grants, no_flush, Session.ignore))
    client = client_of(daemon)
    client.put("a", timeout_seconds=60)
    with calling(lambda: client.put("b", timeout_seconds=60)):
        until(lambda: daemon.outstanding == 2)
        with pytest.raises(FlushTimeout, match="another of its calls waits for room"):
            client.flush(0.01)
        go_on.set()
    client.put("c", timeout_seconds=10)
    assert stored.wait(10)
    abandon(client)


# ---- a daemon that refuses, stops or is lost


@pytest.mark.parametrize("timeout_seconds", [None, 10], ids=["gathered", "put"])
def test_a_stream_that_is_refused_is_the_callers_error_alone(daemon: FakeDaemon, timeout_seconds: float | None) -> None:
    daemon.runs(refuses_the_first_stream)
    with client_of(daemon) as client:
        with pytest.raises(Refused, match=r"^PRODUCERD\[STREAM_LIMIT\]: 64 streams"):
            client.put("x", timeout_seconds=timeout_seconds)
        assert client.put("y", timeout_seconds=timeout_seconds).result(10) is None, "the next call asks again"


def test_without_a_daemon_one_line_says_where_it_was_looked_for(daemon: FakeDaemon) -> None:
    with pytest.raises(ConnectionFailed, match=r"^PRODUCERD\[DAEMON_ABSENT\]: no daemon to talk to on host .*nobody"):
        KinesisClient("s", socket=daemon.path + ".nobody", connect_timeout_seconds=0)


@pytest.mark.parametrize("timeout_seconds", [None, 10], ids=["gathered", "put"])
def test_a_lost_daemon_fails_what_it_had_and_the_next_call_finds_the_next_one(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture, timeout_seconds: float | None
) -> None:
    lost = threading.Event()
    gone = f"the daemon on host {socket.gethostname()} is gone: 1 frame with 1 record is not acknowledged"
    daemon.runs(ends(takes(1), waits(lost)), serve)
    with client_of(daemon, reconnect_timeout_seconds=0) as client:
        future = client.put("x", timeout_seconds=timeout_seconds)
        lost.set()
        wait([future], 10)
        with pytest.raises(RecordsFailed, match=r"^PRODUCERD\[DAEMON_LOST\]: 1 record failed") as flushed:
            client.flush()
        with pytest.raises(ConnectionFailed, match=r"^PRODUCERD\[DAEMON_LOST\]: .*1 record is not ack") as caught:
            future.result(10)
        assert flushed.value.failures == (RowFailure(Code.DAEMON_LOST, gone, 1, True, (), "s"),)
        assert str(flushed.value).count("PRODUCERD[") == str(caught.value).count("PRODUCERD[") == 1
        assert client.put("y").result(10) is None
    assert [record.message for record in caplog.records] == [f"the session has ended: {gone}"]


def test_a_lost_daemon_is_looked_for_by_the_next_call_and_not_before(daemon: FakeDaemon) -> None:
    """Also where the thread wakes once more, for a call that has ended meanwhile."""
    go_on = threading.Event()
    lost = ends(expects(messages.Reserve), waits(go_on))
    daemon.runs(lost, close_with(Code.NOT_AUTHORIZED), close_with(Code.VERSION_MISMATCH), serve)
    client = client_of(daemon, reconnect_timeout_seconds=0)
    with calling(lambda: client.put("x", timeout_seconds=10)) as first:
        until(lambda: daemon.outstanding)
        with calling(lambda: client.put("y", timeout_seconds=10)) as second:
            time.sleep(0.05)  # so that it waits behind the first one
            go_on.set()
    assert [error.code for error in (*first, *second)] == [Code.DAEMON_LOST, Code.NOT_AUTHORIZED]
    time.sleep(0.05)  # the thread's
    with pytest.raises(ConnectionFailed, match="because of VERSION_MISMATCH"):
        client.put("z")
    assert client.put("last").result(10) is None
    abandon(client)


def test_a_call_ends_if_the_client_is_closed_while_it_connects(daemon: FakeDaemon) -> None:
    is_asked, is_closed = threading.Event(), threading.Event()

    def has_no_room(session: Session) -> None:
        is_asked.set()
        assert is_closed.wait(10)
        with contextlib.suppress(EOFError, ConnectionError):
            session.start()
        session.ignore()

    daemon.runs(dies, has_no_room)
    client = client_of(daemon, reconnect_timeout_seconds=0)
    assert isinstance(client.put("x").exception(10), ConnectionFailed)
    with calling(lambda: client.put("y", timeout_seconds=3)) as errors:
        assert is_asked.wait(10)
        client.close()
        is_closed.set()
    assert [str(error)[:43] for error in errors] == ["PRODUCERD[DAEMON_LOST]: the client was clos"]


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_put_that_ends_while_the_client_connects_hands_nothing_over(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    """By its time-out, or by an interrupt, after which a flush has nothing to wait for."""
    is_asked, go_on = threading.Event(), threading.Event()

    def has_no_room(session: Session) -> None:
        is_asked.set()
        assert go_on.wait(10)
        serve(session)

    daemon.runs(dies, has_no_room)
    client = client_of(daemon, reconnect_timeout_seconds=0)
    assert isinstance(client.put("x").exception(10), ConnectionFailed)

    def waits_in_vain(*_: object) -> None:
        is_asked.wait(10)
        raise KeyboardInterrupt if is_interrupted else StillRuns

    with monkeypatch.context() as patched:
        patched.setattr(Future, "result", waits_in_vain)
        with pytest.raises(KeyboardInterrupt if is_interrupted else BackpressureTimeout):
            client.put_many([("late",)], timeout_seconds=10)
    client.flush()
    go_on.set()
    client.put_many([("next",)])
    client.close()
    assert data_of(daemon, 1) == [b"next"]


def test_what_was_stored_before_the_daemon_was_lost_is_no_failure(daemon: FakeDaemon) -> None:
    daemon.runs(ends(stores(), expects(messages.Reserve), max_frame_records=1))
    client = client_of(daemon, reconnect_timeout_seconds=0)
    with pytest.raises(ConnectionFailed, match="every record that was sent is acknowledged") as caught:
        client.put_many([("x",), ("y",)])
    assert caught.value.taken == 1
    client.flush()
    client.close()


@pytest.mark.parametrize(
    ("then", "seconds", "error", "taken"),
    [((), 0, ConnectionFailed, 1), ((waits_for_room,), 60, BackpressureTimeout, 2)],
    ids=["it is lost", "the client keeps it for the next daemon"],
)
def test_a_record_whose_bytes_a_daemon_got_in_part_is_taken_only_if_it_is_sent_again(
    daemon: FakeDaemon, then: tuple[Any, ...], seconds: float, error: type[ProducerdError], taken: int
) -> None:
    """More than a socket holds, so that the daemon ends in the middle of them."""
    daemon.runs(ends(takes(1), Session.grant, max_frame_records=1), *then)
    client = client_of(daemon, reconnect_timeout_seconds=seconds)
    with pytest.raises(error) as caught:
        client.put_many([("x",), (b"y" * 1_000_000,)], timeout_seconds=0.5)
    assert getattr(caught.value, "taken") == taken  # noqa: B009 - of the errors of a put alone
    abandon(client)


def test_what_a_lost_daemon_had_is_sent_again_in_order_without_another_call(daemon: FakeDaemon) -> None:
    daemon.runs(ends(takes(4), max_frame_records=2), serve)
    with client_of(daemon) as client:
        first = client.put_many([("1",), ("2",), ("3",), ("4",)])
        second = client.put_many([("5",), ("6",), ("7",), ("8",)])
        assert first.result(10) is second.result(10) is None
    assert data_of(daemon, 1) == [b"%d" % i for i in range(1, 9)]


def test_a_stream_that_the_next_daemon_refuses_leaves_no_future_open(daemon: FakeDaemon) -> None:
    """And is no later call's error."""
    refuses_it = in_turn(Session.welcome, refuses_stream(Code.NOT_AUTHORIZED, "not in streams_allowed"))
    daemon.runs(dies, in_turn(refuses_it, Session.await_end), serve)
    with client_of(daemon) as client:
        with pytest.raises(ConnectionFailed, match=r"^PRODUCERD\[NOT_AUTHORIZED\]: stream s: not in streams_allowed"):
            client.put("x").result(10)
        assert client.put("y", stream="other").result(10) is None


def test_an_idle_client_outlives_any_number_of_daemons(daemon: FakeDaemon) -> None:
    """What was never sent did not end them."""
    last = MOST_FRUITLESS_SESSIONS + 3
    daemon.runs(*[in_turn(Session.welcome)] * last, serve)
    with client_of(daemon) as client:
        until(lambda: len(daemon.sessions) > last)
        assert client.put("x").result(10) is None
    assert len(daemon.sessions) == last + 1, "the connection was never given up"


def test_an_open_that_is_answered_late_is_no_other_stream_s(daemon: FakeDaemon) -> None:
    late_refusal = messages.Refused(0, 1, Code.STREAM_LIMIT, "64 streams are open")
    answers = in_turn(expects(messages.Open), expects(messages.Open), says(late_refusal, OPENED_IN_TIME))
    daemon.runs(in_turn(Session.welcome, answers, Session.serve))
    with client_of(daemon) as client:
        with pytest.raises(BackpressureTimeout):
            client.put("x", stream="late", timeout_seconds=0.2)
        assert client.put("y").result(10) is None
        assert client.put("x", stream="late").result(10) is None
    assert daemon.rows_of_streams == [("s", (b"", b"y", None)), ("late", (b"", b"x", None))]


# ---- threads, processes and the end


def test_many_threads_share_a_client_and_each_keeps_its_order(daemon: FakeDaemon) -> None:
    futures: list[list[Future[None]]] = [[] for _ in range(8)]

    def puts(number: int) -> None:
        futures[number] += [client.put(f"{number}:{i}") for i in range(200)]
        client.flush()

    with client_of(daemon) as client:
        threads = [threading.Thread(target=puts, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done, left = wait([future for of_one in futures for future in of_one], 0)
        assert (len(done), len(left)) == (1_600, 0)
    arrived = [data.decode() for _, data, _ in daemon.rows if data]
    for number in range(8):
        assert [data for data in arrived if data.startswith(f"{number}:")] == [f"{number}:{i}" for i in range(200)]


def test_an_error_in_the_block_is_not_kept_waiting(daemon: FakeDaemon) -> None:
    daemon.runs(lasts(takes(1)))
    client = client_of(daemon)
    future = client.put("x", timeout_seconds=10)
    with pytest.raises(KeyError), client:
        raise KeyError
    with pytest.raises(ConnectionFailed, match="closed before the acknowledgement"):
        future.result(10)


def test_a_client_that_is_closed_says_so(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(daemon)
    thread = client_threads()[-1]
    client.put("x").result(10)
    client.close()
    with pytest.raises(ProducerdError, match=CLOSED):
        client.put("x")
    client.close()
    thread.join(10)
    with monkeypatch.context() as patched:  # the system gives the thread's number to a later one
        patched.setattr("spark_client.client.threading", SimpleNamespace(get_ident=lambda: thread.ident))
        with pytest.raises(ProducerdError, match=CLOSED):
            client.put("x")


def test_a_client_that_ends_takes_no_more_while_its_thread_is_busy(daemon: FakeDaemon) -> None:
    go_on, is_called, ended = threading.Event(), threading.Event(), threading.Event()

    def back(_: Future[None]) -> None:
        is_called.set()
        ended.wait(10)

    daemon.runs(holds_back(go_on))
    client = client_of(daemon)
    client.put("x").add_done_callback(back)
    go_on.set()
    assert is_called.wait(10)
    abandon(client)
    try:
        with pytest.raises(ProducerdError, match=CLOSED):
            client.put("y")
    finally:
        ended.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_whose_thread_has_died_is_closed(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call waits for it, whatever ended it."""

    def exits() -> None:
        raise SystemExit

    monkeypatch.setattr("spark_client.client.select", SimpleNamespace(poll=exits))
    client = client_of(daemon)
    until(lambda: not client_threads())
    for _ in range(2):
        with pytest.raises(ProducerdError, match=CLOSED):
            client.put("x", timeout_seconds=10)
    client.close()


def test_an_error_that_is_not_the_daemons_is_raised_as_it_is_also_at_the_end(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        abandon(client)
        raise ValueError("not ours")

    monkeypatch.setattr(Connection, "open", breaks)
    client = client_of(daemon)
    with pytest.raises(ValueError, match=r"^not ours$"):
        client.put("x", timeout_seconds=10)


def sockets() -> int:
    """Return how many sockets this process has open."""
    return sum(path.is_socket() for path in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("loses_its_daemon", [False, True])
def test_nothing_is_left_of_a_client_that_has_ended(daemon: FakeDaemon, loses_its_daemon: bool) -> None:
    """Neither a thread nor a socket, also where it has no connection."""
    daemon.runs(*[dies] * loses_its_daemon, serve)
    before = sockets()
    client = client_of(daemon, reconnect_timeout_seconds=0)
    thread = client_threads()[-1]
    assert thread.daemon, "a program that does not close its client ends, too"
    assert isinstance(client.put("x").exception(10), ConnectionFailed) is loses_its_daemon
    time.sleep(0.05)  # so that its thread sleeps
    abandon(client)
    thread.join(10)
    assert not thread.is_alive()
    until(lambda: sockets() == before)


def test_in_a_child_process_nothing_touches_the_parent_s_session(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a call, nor leaving the block there."""
    client, pid = client_of(daemon), os.getpid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: pid + 1)
        for call in (lambda: client.put("x"), lambda: client.put_many([("x",)]), client.flush, client.close):
            with pytest.raises(ProducerdError, match="after a fork, make one in the child"):
                call()
        abandon(client)
    assert client.put("x").result(10) is None
    client.close()
    assert len(daemon.sessions) == 1


def test_a_client_is_not_sent_to_another_process(daemon: FakeDaemon) -> None:
    with client_of(daemon) as client, pytest.raises(TypeError, match="make one where it is used"):
        pickle.dumps(client)


# ---- arguments


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ((5,), "data is int: give text or bytes"),
        ((None,), "data is NoneType: give text or bytes"),
        (("d", b"k"), "partition_key is bytes: give text or None"),
        (("d", "k", 1.5), "explicit_hash_key is float: give a number or None"),
        (("d", "k", True), "explicit_hash_key is bool: give a number or None"),
        *(
            (record, r"give a Record or a tuple \(data, partition_key, explicit_hash_key\)")
            for record in (("d", "k", 1, 2), (), "abc")
        ),
    ],
)
def test_a_record_of_another_type_is_named_by_place_and_nothing_is_taken(
    daemon: FakeDaemon, record: Any, said: str
) -> None:
    with client_of(daemon) as client:
        with pytest.raises(TypeError, match=f"^record 1: {said}$"):
            client.put_many([("good",), record])
        with pytest.raises(TypeError, match=r"^record 0: data is int: give text or bytes$"):
            client.put(5)  # type: ignore[arg-type]
    assert daemon.rows == []


@pytest.mark.parametrize("record", [("SECRET\udc80",), ("d", "SECRET\udc80"), ("d", "k", "\udc80")])
def test_a_record_that_is_no_text_is_named_by_place_and_not_quoted(daemon: FakeDaemon, record: Any) -> None:
    odd = "its text cannot be written as UTF-8, or its number not at all$"
    with client_of(daemon) as client:
        with pytest.raises(ValueError, match=f"^record 1: {odd}"):
            client.put_many([("good",), record])
        with pytest.raises(ValueError, match=f"^record 0: {odd}"):
            client.put(b"d", "SECRET\udc80")


@pytest.mark.parametrize("stream", [5, b"flights", ("flights",)])
def test_a_stream_of_another_type_is_the_callers_error_alone(daemon: FakeDaemon, stream: Any) -> None:
    with client_of(daemon) as client:
        future = client.put("x")
        with pytest.raises(TypeError, match=r"^stream is .*: give the Kinesis stream's name"):
            client.put("y", stream=stream)
        assert future.result(10) is None


def test_no_stream_is_no_call(daemon: FakeDaemon) -> None:
    with client_of(daemon, None) as client:
        calls: list[Callable[[], object]] = [lambda: client.put("x"), lambda: client.put_many([("x",)])]
        for call in calls:
            with pytest.raises(ValueError, match=r"^stream: name one, here or for the whole client$"):
                call()


@pytest.mark.parametrize("socket", [5, "", "/" + "x" * 107])
def test_a_socket_that_cannot_be_one_is_named(socket: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"PRODUCERD\[CONFIGURATION\]: socket=.*: give the path of the daemon's"
    ):
        KinesisClient("s", socket=socket)


@pytest.mark.parametrize("stream", ["", 5])
def test_options_that_do_not_hold_are_named_at_once(stream: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        KinesisClient(
            stream,
            on_disconnect="hope",
            connect_timeout_seconds=-1,
            reconnect_timeout_seconds=float("nan"),
            socket="/s",
            daemon={"socket": "/d"},
        )
    assert caught.value.problems == (
        "connect_timeout_seconds=-1: give a number of seconds, 0 to 1,000,000",
        "reconnect_timeout_seconds=nan: give a number of seconds, 0 to 1,000,000",
        "on_disconnect='hope': give 'deliver' or 'discard'",
        f"stream={stream!r}: give the Kinesis stream's name, 1 to 128 of a-z A-Z 0-9 _ . -",
        "daemon.socket='/d': a daemon that tasks start has its own; leave it out",
        "socket='/s': of a daemon that runs already, and daemon= starts one",
    )


def test_on_disconnect_may_be_discard_and_a_client_shows_its_stream_and_socket(daemon: FakeDaemon) -> None:
    with client_of(daemon, on_disconnect="discard") as client:
        client.put("x")
        assert repr(client).startswith(f"<KinesisClient('s', socket={daemon.path!r}) at 0x")
    assert daemon.hellos[0].on_disconnect == messages.OnDisconnect.DISCARD


# ---- callbacks, and handlers of the log


@pytest.mark.parametrize("call", ["put", "put_many", "flush", "close"])
def test_a_callback_that_would_wait_for_its_own_thread_is_refused(daemon: FakeDaemon, call: str) -> None:
    """A future's callbacks run in the thread that all calls wait for: an error at once, and no call hangs."""
    go_on = threading.Event()
    errors: list[BaseException] = []

    def back(_: Future[None]) -> None:
        arguments: dict[str, list[Any]] = {"put": ["y"], "put_many": [[("y",)]], "flush": [], "close": []}
        try:
            getattr(client, call)(*arguments[call])
        except ProducerdError as error:
            errors.append(error)

    daemon.runs(holds_back(go_on))
    with client_of(daemon) as client:
        future = client.put("x")
        future.add_done_callback(back)
        go_on.set()
        until(lambda: errors)
        assert "called in a future's callback, which runs in the client's own thread" in str(errors[0])
        assert future.result(10) is None
        assert client.put("the thread lives on").result(10) is None


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_callback_that_raises_harms_no_other_future(daemon: FakeDaemon, error: type[BaseException]) -> None:
    go_on = threading.Event()

    def back(_: Future[None]) -> None:
        raise error("SECRET")

    daemon.runs(serves_after(takes(2), waits(go_on), acks(0, 1)))
    with client_of(daemon) as client:
        first, second = client.put("x", timeout_seconds=10), client.put("y", timeout_seconds=10)
        assert (first.taken, first.running(), first.cancel()) == (1, True, False)
        first.add_done_callback(back)
        go_on.set()
        assert second.result(10) is None
        assert client.put("the thread lives on").result(10) is None


def test_a_log_handler_that_raises_ends_no_future(daemon: FakeDaemon) -> None:
    """As one does that sends the log by way of the client, which refuses calls from its own thread."""
    go_on = threading.Event()
    lines: list[str] = []

    class Sends(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            client.put(lines[-1])

    def exits(_: Future[None]) -> None:
        raise SystemExit

    blocks = serves_after(takes(1), says(messages.Blocked(1, 3.0, "the queue is full")), waits(go_on), acks(0))
    daemon.runs(dies, blocks, dies, serve)
    log, handler = logging.getLogger("producerd.client"), Sends()
    log.addHandler(handler)
    try:
        with client_of(daemon) as client:
            future = client.put("x")
            future.add_done_callback(exits)
            go_on.set()
            assert future.result(10) is None
            assert client.put("the thread lives on").result(10) is None
        with client_of(daemon, reconnect_timeout_seconds=0) as client:
            assert isinstance(client.put("x").exception(10), ConnectionFailed)
            assert client.put("the thread lives on").result(10) is None
    finally:
        log.removeHandler(handler)
    said = ["looking for it", "blocked for", "a callback of a future", "the session has ended"]
    assert [part for part, line in zip(said, lines) if part in line] == said
