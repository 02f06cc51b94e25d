"""Records that are put one by one go to the daemon together, and each has a future of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import threading
import time
import weakref
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from producerd.errors import (
    Code,
    ConnectionFailed,
    FlushTimeout,
    Outcome,
    ProducerdError,
    RecordsFailed,
    Refused,
    RowFailure,
)
from producerd.wire import messages
from producerd.wire.columns import FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES, Body, lay_out
from spark_client.gathering import Gathered, RecordFuture, Row, Unraised, end
from spark_client.tally import MAX_FAILURES, MORE_KINDS
from tests.spark_client.clients import (
    abandon,
    calling,
    client_of,
    client_threads,
    data_of,
    grants_when,
    put_behind_a_reserve,
)
from tests.spark_client.fake_daemon import (
    INVALID,
    RETURNED,
    FakeDaemon,
    Script,
    Session,
    ack_of,
    acks,
    ends,
    expects,
    fails,
    refuses,
    serve,
    serves_after,
    stores,
    takes,
    until,
    waits,
)

# ---- what goes together


@pytest.mark.promise("put-frame-way-next")
def test_what_is_put_while_a_frame_is_on_its_way_goes_with_the_next_one(daemon: FakeDaemon) -> None:
    go_on = threading.Event()
    daemon.runs(grants_when(go_on))
    with client_of(daemon) as client:
        second = put_behind_a_reserve(client, daemon)
        others = [client.put(f"other {number}", "k") for number in range(500)]
        assert not second.done()
        assert [future.taken for future in (second, *others)] == [0] * 501
        go_on.set()
        assert [future.result(10) for future in (second, *others)] == [None] * 501
        assert {future.taken for future in (second, *others)} == {1}
    assert [body.layout.records for body in daemon.sessions[0].bodies] == [1, 1, 500]
    assert data_of(daemon)[2:] == [b"other %d" % number for number in range(500)]


@pytest.mark.promise("order-caller-calls-kept")
def test_the_order_of_a_caller_s_calls_is_kept(daemon: FakeDaemon) -> None:
    expected = []
    with client_of(daemon) as client:
        for number in range(300):
            names = [f"{number}-{row}" for row in range(number % 4)]
            if number % 3:
                for name in names:
                    client.put(name, "k", timeout_seconds=None if number % 5 else 10)
            else:
                client.put_many([(name, "k") for name in names])
            expected += [name.encode() for name in names]
    assert data_of(daemon) == expected


def test_each_stream_s_records_go_together(daemon: FakeDaemon) -> None:
    with client_of(daemon) as client:
        for number in range(200):
            client.put(b"%d" % number, stream=f"s{number % 2}")
    for place in range(2):
        found = [data for stream, (_, data, _) in daemon.sessions[0].rows if stream == f"s{place}"]
        assert found == [b"%d" % number for number in range(place, 200, 2)]


@pytest.mark.promise("put-waits-next-frame")
@pytest.mark.parametrize("limits", [{"max_frame_records": 10}, {"max_frame_bytes": 1024 + 10 * (32 + 68)}])
def test_put_waits_when_the_next_frame_is_full_too(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    go_on = threading.Event()
    add = Gathered.add_record
    found_no_room: list[Row] = []
    done: list[object] = []

    def adds(gathered: Gathered, row: Row) -> RecordFuture | None:
        future = add(gathered, row)
        if future is None:
            found_no_room.append(row)
        return future

    def puts() -> None:
        for _ in range(25):
            done.append(client.put(b"x" * 68))  # noqa: PERF401 - one after another

    monkeypatch.setattr(Gathered, "add_record", adds)
    daemon.runs(grants_when(go_on, **limits))
    client = client_of(daemon)
    put_behind_a_reserve(client, daemon)
    with calling(puts):
        until(lambda: found_no_room)
        time.sleep(0.05)
        assert len(done) == 10, "one frame, in this process"
        assert len(found_no_room) == 1, "it sleeps until there is room"
        go_on.set()
    client.close()
    assert len(daemon.rows) == 27
    assert max(body.layout.records for body in daemon.sessions[0].bodies) <= 10


# ---- how each record ends


def fails_in_the_third_frame(go_on: threading.Event, failed: dict[int, messages.RowCode]) -> Script:
    """Grant the second frame when told to, as after `put_behind_a_reserve`; these rows of the third one fail."""

    def grants_second(session: Session) -> None:
        session.expect(messages.Reserve)
        assert go_on.wait(10)
        session.send(messages.Grant(2))

    return serves_after(stores(), grants_second, expects(Body), acks(1), takes(1), fails(2, failed))


def test_a_record_that_fails_is_its_own_future_s_error_or_else_the_next_flush_s(daemon: FakeDaemon) -> None:
    go_on = threading.Event()
    odd = messages.RowCode(Outcome.UNKNOWN, Code.RECORD_TOO_LARGE, "odd")
    daemon.runs(fails_in_the_third_frame(go_on, {1: INVALID, 3: odd}))
    client = client_of(daemon)
    put_behind_a_reserve(client, daemon)
    futures = [client.put(str(number)) for number in range(5)]
    go_on.set()
    concurrent.futures.wait(futures, 10)
    with pytest.raises(RecordsFailed, match="2 records failed since the last flush"):
        client.flush()
    errors = [future.exception(10) for future in futures]
    assert [type(error) for error in errors] == [type(None), RecordsFailed, type(None), RecordsFailed, type(None)]
    assert str(errors[1]).startswith("PRODUCERD[RECORD_INVALID]: 1 of 1 record of one call for stream s failed, named")
    (failure,) = errors[3].failures  # type: ignore[union-attr]
    assert (failure.code, failure.maybe_stored, failure.rows) == (Code.RECORD_TOO_LARGE, True, (0,))
    client.close()


def test_a_frame_that_is_refused_is_its_records_error_and_no_other_s(daemon: FakeDaemon) -> None:
    """What was gathered meanwhile goes its way, and the next call asks again."""
    go_on = threading.Event()
    daemon.runs(serves_after(stores(), waits(go_on), refuses(Code.ACCESS_DENIED, "no right")))
    with client_of(daemon) as client:
        client.put("first").result(10)
        refused = client.put("x")
        time.sleep(0.05)  # so that it is on its way
        gathered = client.put("gathered")
        go_on.set()
        with pytest.raises(RecordsFailed, match="1 record failed since the last flush: ACCESS_DENIED 1") as caught:
            client.flush()
        with pytest.raises(Refused, match=r"^PRODUCERD\[ACCESS_DENIED\]: no right"):
            refused.result(10)
        assert caught.value.failures == (RowFailure(Code.ACCESS_DENIED, "no right", 1, False, (), "s"),)
        assert client.put("later").result(10) is gathered.result(10) is None


def test_what_a_lost_daemon_had_and_what_waited_fail_where_it_is_not_sent_again(daemon: FakeDaemon) -> None:
    all_are_put = threading.Event()
    daemon.runs(ends(takes(1), expects(messages.Reserve), waits(all_are_put)), serve)
    client = client_of(daemon, reconnect_timeout_seconds=0)
    first = client.put("first")
    until(lambda: daemon.sessions[-1].bodies)
    others = [client.put("x")]
    until(lambda: daemon.outstanding == 2)
    others += [client.put("x") for _ in range(4)]
    all_are_put.set()
    concurrent.futures.wait((first, *others), 10)
    with pytest.raises(ConnectionFailed, match="is gone"):
        first.result()
    with pytest.raises(RecordsFailed, match="5 records failed") as caught:
        client.flush()
    assert [(failure.records, failure.maybe_stored) for failure in caught.value.failures] == [(1, True), (4, False)]
    for future in others:
        with pytest.raises(ConnectionFailed, match="is gone"):
            future.result()
    assert [future.taken for future in (first, *others)] == [1, 0, 0, 0, 0, 0]
    assert client.put("y").result(10) is None
    client.close()


def test_closing_ends_every_future_and_every_call(daemon: FakeDaemon) -> None:
    daemon.runs(ends(stores(), Session.ignore, max_frame_records=2))
    client = client_of(daemon)
    thread = client_threads()[-1]
    waiting = put_behind_a_reserve(client, daemon)
    gathered = [client.put("x"), client.put("x")]
    with (
        calling(lambda: client.put("y")) as errors,
        calling(lambda: client.put("z", timeout_seconds=60)) as others,
        pytest.raises(FlushTimeout, match="3 records are not ack"),
    ):
        client.close(0.5)
    assert [type(error) for error in (*errors, *others)] == [ConnectionFailed] * 2, "of room, and of a turn"
    thread.join(10)
    with pytest.raises(RecordsFailed, match="3 records failed since the last flush"):
        client.close()
    client.close()
    for future in (waiting, *gathered):
        with pytest.raises(ConnectionFailed, match="closed before the acknowledgement"):
            future.result(10)


# ---- a future as any other


def test_futures_are_waited_for_as_the_standard_library_does(daemon: FakeDaemon) -> None:
    go_on = threading.Event()
    daemon.runs(grants_when(go_on))
    with client_of(daemon) as client:
        second = put_behind_a_reserve(client, daemon)
        futures = [client.put("x") for _ in range(4)]
        called: list[Future[None]] = []
        futures[0].add_done_callback(called.append)
        assert not second.cancel()
        assert futures[1].running()
        with pytest.raises(concurrent.futures.TimeoutError):
            futures[1].result(0.01)
        threading.Timer(0.05, go_on.set).start()
        assert concurrent.futures.wait(futures, 10).not_done == set()
        assert list(concurrent.futures.as_completed(futures, 10))
        assert called == [futures[0]]
        futures[3].add_done_callback(called.append)
        assert called == [futures[0], futures[3]], "at once, as it is done"
        assert "finished" in repr(futures[2])
        assert futures[2].exception() is None

        async def awaits() -> None:
            await asyncio.wrap_future(client.put("y"))
            cancelled = asyncio.wrap_future(client.put("z"))
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await asyncio.wrap_future(client.put("last"))

        asyncio.run(awaits())
    assert data_of(daemon)[-3:] == [b"y", b"z", b"last"]
    with pytest.raises(AttributeError):
        futures[0].no_such_thing  # type: ignore[attr-defined]  # noqa: B018


def test_a_future_that_is_kept_keeps_no_other_record(daemon: FakeDaemon) -> None:
    go_on = threading.Event()
    daemon.runs(grants_when(go_on))
    with client_of(daemon) as client:
        put_behind_a_reserve(client, daemon)
        kept, *others = [client.put("x") for _ in range(100)]
        seen = [weakref.ref(future) for future in others]
        others.clear()
        go_on.set()
        assert kept.result(10) is None
        client.flush()
        assert [ref() for ref in seen] == [None] * 99
        assert kept.taken == 1


def test_a_future_that_is_waited_for_at_its_very_end_is_not_missed(daemon: FakeDaemon) -> None:
    """Callers begin to wait while futures end, of which none may be overlooked."""
    with client_of(daemon) as client:
        for _ in range(10):
            futures = [client.put("x") for _ in range(100)]
            called: list[Future[None]] = []
            for future in futures:
                future.add_done_callback(called.append)
            assert {future.result(30) for future in futures} == {None}
            until(lambda: len(called) == 100)  # noqa: B023 - it ends before the next round


# ---- calls among each other


def test_a_call_has_its_turn_however_busy_others_put_one_by_one(daemon: FakeDaemon) -> None:
    over = threading.Event()

    def puts() -> None:
        while not over.is_set():
            client.put("x", stream="busy")

    with client_of(daemon) as client, calling(puts):
        try:
            for number in range(10):
                client.put_many([("many",)], timeout_seconds=10)
                client.put("new", stream=f"new-{number}")
                client.put("taken", timeout_seconds=10)
            assert client.put_many([("last",)]).result(10) is None
        finally:
            over.set()


def test_a_call_of_a_signal_s_handler_in_the_middle_of_another_is_refused(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_client.client.LOCK_SECONDS", 0.05)
    add = Gathered.add_record
    refused: list[str] = []

    def is_interrupted(gathered: Gathered, row: Row) -> RecordFuture | None:
        for call in (lambda: client.put("of the handler"), client.flush):
            with pytest.raises(ProducerdError) as caught:
                call()
            refused.append(str(caught.value))
        return add(gathered, row)

    with client_of(daemon) as client:
        client.put("x").result(10)
        with monkeypatch.context() as patched:
            patched.setattr(Gathered, "add_record", is_interrupted)
            assert client.put("y").result(10) is None
        assert client.put("z").result(10) is None
    assert ["called in a signal's handler" in text for text in refused] == [True] * 2
    assert data_of(daemon) == [b"x", b"y", b"z"]


def test_a_call_waits_while_another_thread_is_in_the_middle_of_one(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Gathered.add_record
    is_in = threading.Event()

    def is_slow(gathered: Gathered, row: Row) -> RecordFuture | None:
        if not is_in.is_set():
            is_in.set()
            time.sleep(0.05)
        return add(gathered, row)

    with client_of(daemon) as client:
        client.put("x").result(10)
        monkeypatch.setattr(Gathered, "add_record", is_slow)
        with calling(lambda: client.put("slow")) as errors:
            assert is_in.wait(10)
            assert client.put("y").result(10) is None
    assert not errors


def test_an_interrupt_in_the_middle_of_put_leaves_every_other_record_its_own_future(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record whose call was interrupted may be sent."""
    go_on = threading.Event()
    add = Gathered.add_record

    class InterruptedList(list):  # type: ignore[type-arg]
        def append(self, row: Any) -> None:
            super().append(row)
            if row[0] == b"1":
                raise KeyboardInterrupt

    def adds(gathered: Gathered, row: Row) -> RecordFuture | None:
        gathered.rows = InterruptedList(gathered.rows)
        return add(gathered, row)

    monkeypatch.setattr(Gathered, "add_record", adds)
    daemon.runs(fails_in_the_third_frame(go_on, {2: INVALID}))
    client = client_of(daemon)
    put_behind_a_reserve(client, daemon)
    first = client.put("0")
    with pytest.raises(KeyboardInterrupt):
        client.put("1")
    futures = [client.put("2"), client.put("3")]
    go_on.set()
    assert [type(future.exception(10)) for future in (first, *futures)] == [type(None), RecordsFailed, type(None)]
    abandon(client)


# ---- a frame's records and their futures


def test_where_a_frame_is_given_up_half_way_only_what_has_not_ended_fails() -> None:
    gathered = Gathered("s", (1 << 20, 100))
    futures = [gathered.add_record((b"x", None, None)) for _ in range(4)]
    gathered.tally.add_taken(4)
    ack = ack_of(1, 3, {1: RETURNED})
    assert gathered.tally.add_ack(ack, range(3), "s", lay_out([b""] * 3, [b"x"] * 3), sends_again=True) == [1]
    gathered.end_all(Unraised(), LOST, lambda: ConnectionFailed("gone", code=Code.DAEMON_LOST))
    ends = [type(future.exception(0)) for future in futures if future is not None]
    assert ends == [type(None), ConnectionFailed, type(None), ConnectionFailed]


def test_a_signal_s_handler_may_wait_for_futures_where_its_thread_begins_to(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = Gathered("s", (1 << 20, 100))
    first, second = gathered.add_record(FULL), gathered.add_record(FULL)
    assert first is not None
    assert second is not None
    handled: list[Future[None]] = []

    def interrupted() -> threading.Condition:
        if not handled:
            handled.append(first)
            first.add_done_callback(handled.append)
            second.add_done_callback(handled.append)
        return threading.Condition()

    monkeypatch.setattr(
        "spark_client.gathering.threading", SimpleNamespace(Condition=interrupted, RLock=threading.RLock)
    )
    first.add_done_callback(handled.append)
    gathered.end_all(Unraised())
    assert handled == [first, first, first, second]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_may_wait_for_futures_although_a_thread_of_its_parent_began_to(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = Gathered("s", (1 << 20, 100))
    first, second = gathered.add_record(FULL), gathered.add_record(FULL)
    assert first is not None
    assert second is not None
    begins, go_on = threading.Event(), threading.Event()

    def slow() -> threading.Condition:
        if threading.current_thread() is not threading.main_thread():
            begins.set()
            go_on.wait(10)
        return threading.Condition()

    monkeypatch.setattr("spark_client.gathering.threading", SimpleNamespace(Condition=slow, RLock=threading.RLock))
    thread = threading.Thread(target=first.add_done_callback, args=[print])
    thread.start()
    begins.wait(10)
    child = os.fork()
    if not child:
        signal.alarm(5)
        second.add_done_callback(print)
        os._exit(0)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


LOST = RowFailure(Code.DAEMON_LOST, "gone", 1, True, (), "s")
ROW_BYTES = RECORD_CHARGE_BYTES + 15
FULL = (b"x" * 10, b"key", b"12")
"""A record that is charged `ROW_BYTES`."""


@pytest.mark.parametrize(
    ("largest", "fit"),
    [
        ((FRAME_CHARGE_BYTES + 2 * ROW_BYTES, 100), 2),
        ((FRAME_CHARGE_BYTES + 2 * ROW_BYTES - 1, 100), 1),
        ((1 << 20, 3), 3),
        ((0, 0), 1),
    ],
)
def test_records_are_gathered_up_to_the_largest_frame_and_one_in_any_case(largest: tuple[int, int], fit: int) -> None:
    gathered = Gathered("s", largest)
    futures = [gathered.add_record(FULL) for _ in range(5)]
    assert [future is not None for future in futures] == [True] * fit + [False] * (5 - fit)
    assert (gathered.rows, gathered.owed_records, gathered.is_announced) == ([FULL] * fit, fit, False)


def test_a_record_counts_with_its_data_its_key_and_its_hash_key() -> None:
    rows: list[Row] = [
        (b"x" * 10, None, None),
        (b"x" * 7, b"key", None),
        (b"x" * 8, None, b"12"),
        (b"x" * 10, b"", b""),
    ]
    largest = FRAME_CHARGE_BYTES + 4 * (RECORD_CHARGE_BYTES + 10)
    for most, taken in ((largest, 4), (largest - 1, 3)):
        gathered = Gathered("s", (most, 100))
        assert sum(gathered.add_record(row) is not None for row in rows) == taken


def test_records_behind_a_place_can_be_split_off_with_their_futures() -> None:
    gathered = Gathered("s", (1 << 20, 3))
    rows: list[Row] = [(b"%d" % number, None, None) for number in range(3)]
    futures = [gathered.add_record(row) for row in rows]
    rest = gathered.split(1)
    assert (gathered.rows, rest.rows, rest.stream) == (rows[:1], rows[1:], "s")
    gathered.end_all(Unraised())
    assert [future.done() for future in futures if future is not None] == [True, False, False]
    rest.end_all(Unraised(), LOST, lambda: ConnectionFailed("gone", code=Code.DAEMON_LOST))
    assert [type(future.exception(0)) for future in futures if future is not None] == [
        *(type(None), ConnectionFailed, ConnectionFailed)
    ]


def test_each_failed_record_s_error_says_why_whatever_happens_to_the_others() -> None:
    gathered = Gathered("s", (1 << 20, 100))
    futures = [gathered.add_record((b"x", None, None)) for _ in range(6)]
    columns = lay_out([b""] * 6, [b"x"] * 6)
    gathered.tally.add_taken(5)
    codes = (
        messages.RowCode(Outcome.RETURNED, Code.INTERNAL, "it stops"),
        messages.RowCode(Outcome.UNKNOWN, Code.INTERNAL, "no answer"),
        messages.RowCode(Outcome.NOT_STORED, Code.INTERNAL, "tried again", maybe_stored=True),
        INVALID,
    )
    ack = ack_of(1, 5, dict(enumerate(codes)))
    assert gathered.tally.add_ack(ack, range(5), "s", columns) == []
    gathered.tally.refuse(5, INVALID, "s", columns, 5)
    assert gathered.owed_records == 0
    gathered.end_all(Unraised(), LOST, lambda: ConnectionFailed("gone", code=Code.DAEMON_LOST))
    errors = [future.exception(0) for future in futures if future is not None]
    assert errors.pop(4) is None
    failures = [error.failures for error in errors if isinstance(error, RecordsFailed)]
    assert failures == [
        (RowFailure(Code.DRAINING, "it stops", 1, False, (0,), "s"),),
        (RowFailure(Code.INTERNAL, "no answer", 1, True, (0,), "s"),),
        (RowFailure(Code.INTERNAL, "tried again", 1, True, (0,), "s"),),
        *[(RowFailure(Code.RECORD_INVALID, INVALID.message, 1, False, (0,), "s", True),)] * 2,
    ]
    assert str(errors[4]) == (
        "PRODUCERD[RECORD_INVALID]: 1 of 1 record of one call for stream s failed, named by place: "
        "RECORD_INVALID 1 (data is null), records 0"
    )


def test_a_flush_raises_what_no_future_has_raised_since_the_flush_before() -> None:
    unraised = Unraised()
    one, two = (RowFailure(Code.INTERNAL, "no", records, False, (0,), "s") for records in (1, 2))
    raised = unraised.count_failures([one, two, two._replace(maybe_stored=True)])
    raised([one])
    assert unraised.take_failures() == [RowFailure(Code.INTERNAL, "no", 2, maybe, (), "s") for maybe in (False, True)]
    unraised.count_failures([one])
    raised([two])
    assert unraised.take_failures() == [one._replace(rows=())], "of another call, after the flush that raised both"
    many = [one._replace(message=str(number)) for number in range(MAX_FAILURES + 3)]
    raised = unraised.count_failures(many)
    for failure in many[2:]:
        raised([failure])
    assert unraised.take_failures() == [failure._replace(rows=()) for failure in many[:2]]
    unraised.count_failures(many)
    assert (len(failures := unraised.take_failures()), failures[-1]) == (
        *(MAX_FAILURES + 1, RowFailure("OTHER", MORE_KINDS, 3, False, (), "")),
    )


def test_a_callback_that_is_interrupted_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    future: Future[None] = Future()
    future.add_done_callback(interrupted)
    end(future, None)
    assert caplog.messages == ["a callback of a future ended by"]
    assert future.result(0) is None
