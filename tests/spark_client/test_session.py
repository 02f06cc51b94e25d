"""A session waits for as long as its caller allows, says in time what it waits for, and knows what fits the daemon."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from producerd.errors import (
    BackpressureTimeout,
    Code,
    ConnectionFailed,
    FlushTimeout,
    ProtocolError,
    Refused,
)
from producerd.wire import messages
from producerd.wire.columns import Columns, lay_out
from spark_client.backlog import Backlog, UnackedFrame
from spark_client.channel import Channel, Late
from spark_client.reasons import Reasons
from spark_client.session import DaemonSession, Deadline, OpenStream, WaitTime
from spark_client.tally import Tally
from tests.spark_client.fake_daemon import FakeDaemon, Session

FOREVER = Deadline(None, None)
FULL = messages.Blocked(1, 0.0, "the queue is full", 5, 9)
SAID = "the queue is full; queue 5 of 9 records, 0 of 0 bytes, 0 requests in flight"
HOST = socket.gethostname()


class Reads:
    """What a session reads in place of its channel: each message after some seconds, or None for nothing in time.

    It is also the session's module ``time``, and notes until when the session would wait for each message.
    """

    def __init__(self) -> None:
        self.now = 1_000.0
        self.until: list[float | None] = []
        self._messages: list[tuple[float, messages.Message | None]] = []

    def monotonic(self) -> float:
        return self.now

    def __call__(self, deadline: float | None) -> messages.Message:
        self.until.append(deadline)
        seconds, message = self._messages.pop(0) if self._messages else (0.0, None)
        self.now += seconds
        if message is None:
            raise Late
        return message

    def come(self, *said: messages.Message | None, seconds: float = 0.0) -> None:
        self._messages += [(seconds, message) for message in said]


@pytest.fixture
def backlog() -> Backlog:
    return Backlog(sends_again=False, acknowledged=lambda: None)


@pytest.fixture
def wait_time(monkeypatch: pytest.MonkeyPatch) -> WaitTime:
    """Of a client that never asks why it waits, unless a test says when."""
    for name in ("FIRST_SECONDS", "MOST_SECONDS"):
        monkeypatch.setattr(f"spark_client.reasons.{name}", 1e9)
    return WaitTime()


@pytest.fixture
def session(daemon: FakeDaemon, backlog: Backlog, wait_time: WaitTime) -> Iterator[DaemonSession]:
    """A session that has opened stream s with a daemon that says nothing more."""

    def script(session: Session) -> None:
        session.welcome(daemon="producerd 9")
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                session.read()

    daemon.runs(script)
    session = DaemonSession(messages.Hello(1, 1), [daemon.path], 5.0, backlog, wait_time)
    session.streams["s"] = OpenStream(1, 1 << 20, 100)
    yield session
    session.close()


@pytest.fixture
def reads(session: DaemonSession, monkeypatch: pytest.MonkeyPatch) -> Reads:
    reads = Reads()
    monkeypatch.setattr("spark_client.session.time", reads)
    monkeypatch.setattr(Channel, "read", lambda _, deadline: reads(deadline))
    return reads


def rows(count: int) -> Columns:
    return lay_out([b"k"] * count, [b"x"] * count)


def frame_of(count: int, tally: Tally | None = None) -> UnackedFrame:
    return UnackedFrame("s", rows(count), range(7, 7 + count), tally or Tally(), 7)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_its_representation_names_its_daemon_and_its_streams(session: DaemonSession) -> None:
    assert " with producerd 9 at " in repr(session)
    assert ": streams s, 0 of " in repr(session)
    session.streams.clear()
    assert ": streams none, 0 of " in repr(session)


# ---- how long it waits


@pytest.mark.usefixtures("reads")
def test_a_time_out_is_never_too_short_for_an_answer() -> None:
    assert Deadline.after(5) == (5, 1_005.0)
    assert Deadline.after(0) == (0, 1_000.1)
    assert Deadline.after(None) == (None, None)


@pytest.mark.parametrize(("waited", "until"), [(0.0, 1_030.0), (29.0, 1_001.0), (40.0, 1_000.0)])
def test_a_wait_without_an_end_is_interrupted_when_the_log_is_due(
    session: DaemonSession,
    backlog: Backlog,
    wait_time: WaitTime,
    reads: Reads,
    caplog: pytest.LogCaptureFixture,
    waited: float,
    until: float,
) -> None:
    """The daemon has 2 s to say why, and the next line is due after 5 minutes."""
    wait_time.count_seconds(waited)
    backlog.keep(1, frame_of(1))
    reads.come(None, FULL, messages.Ack(1, 1, 1, 0, 0, 0))
    session.flush(FOREVER)
    assert reads.until == [until, 1_002.0, 1_300.0]
    seconds = 40 if waited == 40 else 30
    frames_open = "1 frame with 1 record is not acknowledged"
    assert lines(caplog) == [f"stream s: this task has waited for more than {seconds} s; {frames_open}: {SAID}"]


def test_a_flush_whose_last_ack_comes_with_the_reason_succeeds(
    session: DaemonSession, backlog: Backlog, reads: Reads
) -> None:
    backlog.keep(1, frame_of(1))
    reads.come(None, messages.Ack(1, 1, 1, 0, 0, 0), FULL)
    session.flush(Deadline(1.0, 1_001.0))
    assert reads.until == [1_001.0, 1_002.0, 1_002.0]


@pytest.mark.parametrize(
    ("seconds", "until"), [(100.0, [1_030.0, 1_002.0, 1_100.0, 1_002.0]), (30.0, [1_030.0, 1_002.0])]
)
def test_a_wait_with_an_end_is_over_then(
    session: DaemonSession,
    backlog: Backlog,
    reads: Reads,
    caplog: pytest.LogCaptureFixture,
    seconds: float,
    until: list[float],
) -> None:
    """If the log is due before, the wait goes on."""
    backlog.keep(1, frame_of(1))
    reads.come(*[None, FULL] * (len(until) // 2))
    with pytest.raises(FlushTimeout) as caught:
        session.flush(Deadline(seconds, 1_000.0 + seconds))
    assert str(caught.value) == f"1 frame with 1 record is not acknowledged after {seconds} s: {SAID}"
    assert reads.until == until
    assert len(caplog.records) == len(until) // 2 - 1


@pytest.mark.parametrize("deadline", [FOREVER, Deadline(1_000.0, 2_000.0)])
def test_a_daemon_that_is_silent_for_6_minutes_is_logged(
    session: DaemonSession, reads: Reads, caplog: pytest.LogCaptureFixture, deadline: Deadline
) -> None:
    """The wait goes on."""
    reads.come(None, messages.Opened(1, 5_000, 2))
    session.open("another", deadline)
    assert reads.until == [1_360.0, 1_360.0]
    assert session.largest_frame("another") == (5_000, 2)
    (line,) = lines(caplog)
    assert line == (
        f"the daemon on host {HOST} has sent nothing for 360 s, and this task waits for it: "
        "every record that was sent is acknowledged"
    )


def test_an_open_that_ends_as_the_log_is_due_is_late_and_not_logged(
    session: DaemonSession, reads: Reads, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BackpressureTimeout) as caught:
        session.open("another", Deadline(360.0, 1_360.0))
    assert str(caught.value) == "stream another was not opened within 360.0 s: the daemon does not answer"
    assert reads.until == [1_360.0]
    assert caplog.records == []


@pytest.mark.parametrize(("seconds", "counted"), [(0.25, 0.5), (0.2, 0.0)])
def test_waits_of_a_quarter_of_a_second_or_more_add_up(
    session: DaemonSession, wait_time: WaitTime, reads: Reads, seconds: float, counted: float
) -> None:
    reads.come(FULL, messages.Opened(1, 1 << 30, 1 << 30), seconds=seconds)
    session.open("another", FOREVER)
    assert wait_time.seconds == counted
    assert session.largest_frame("another") == (1 << 20, 10_000), "WELCOME allows no more"


def test_what_has_arrived_is_settled_without_waiting(session: DaemonSession, backlog: Backlog, reads: Reads) -> None:
    backlog.keep(1, frame_of(1))
    session.settle_arrived()
    progress = [session.has_progressed]
    reads.come(messages.Ack(1, 1, 1, 0, 0, 0))
    session.settle_arrived()
    assert [*progress, session.has_progressed] == [False, True]
    assert (reads.until, backlog.sent) == ([1_000.0] * 3, {})


@pytest.mark.usefixtures("reads")
def test_a_daemon_that_is_lost_while_nothing_is_sent_did_not_die_of_a_frame(session: DaemonSession) -> None:
    session.settle_arrived()
    assert session.has_progressed


@pytest.mark.parametrize(("draining", "until"), [(messages.Draining(60.0), 1_062.0), (None, 1_002.0)])
def test_a_daemon_that_stops_is_heard_until_its_deadline(
    session: DaemonSession, backlog: Backlog, reads: Reads, draining: messages.Draining | None, until: float
) -> None:
    session.draining = draining
    for frame_id in (1, 2):
        backlog.keep(frame_id, frame_of(1))
    reads.come(messages.Ack(2, 1, 1, 0, 0, 0))
    session.hear_out()
    assert (reads.until, list(backlog.sent)) == ([until, until], [1])


def test_a_daemon_that_does_not_answer_a_cancel_is_given_2_seconds(session: DaemonSession, reads: Reads) -> None:
    with pytest.raises(BackpressureTimeout) as caught:
        session.reserve(frame_of(1), Deadline(5, 1_005.0))
    assert str(caught.value) == "no room for stream s within 5 s: the daemon does not answer"
    assert reads.until == [1_005.0, 1_002.0]


@pytest.mark.promise("client-asks-waits-why")
def test_a_client_asks_while_it_waits_why_it_does(
    session: DaemonSession, backlog: Backlog, wait_time: WaitTime, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For room, and for the last acknowledgement.  The answers are not logged."""
    told: list[messages.Message] = []
    monkeypatch.setattr(Channel, "tell", lambda _, message: told.append(message))
    monkeypatch.setattr("spark_client.reasons.FIRST_SECONDS", 2.0)
    monkeypatch.setattr("spark_client.reasons.MOST_SECONDS", 30.0)
    wait_time.reasons = Reasons()
    reads.come(None, seconds=2.0)
    reads.come(FULL, seconds=0.1)
    reads.come(messages.Grant(1), seconds=3.0)
    session.reserve(frame_of(1), FOREVER)
    assert [type(message) for message in told] == [messages.Reserve, messages.Status]
    assert reads.until == [1_002.0, 1_362.0, 1_006.1]
    backlog.keep(1, frame_of(1))
    reads.come(None, seconds=1.0)
    reads.come(messages.Ack(1, 1, 1, 0, 0, 0), seconds=1.0)
    session.flush(FOREVER)
    assert [type(message) for message in told[2:]] == [messages.Flush, messages.Status]
    why, seconds = wait_time.reasons.longest
    assert (why, round(seconds, 3)) == ("the queue is full", 7.1)


@pytest.mark.usefixtures("reads")
def test_a_long_wait_is_not_logged_while_nothing_is_sent(
    session: DaemonSession, wait_time: WaitTime, caplog: pytest.LogCaptureFixture
) -> None:
    wait_time.count_seconds(40.0)
    session.log_long_wait()
    assert caplog.records == []


# ---- which streams are open


def test_a_refusal_is_of_the_stream_that_it_names(session: DaemonSession, reads: Reads) -> None:
    reads.come(messages.Refused(0, 9, Code.STREAM_LIMIT, "of another one"), messages.Opened(1, 5_000, 2))
    session.open("late", FOREVER)
    reads.come(messages.Refused(0, 2, Code.STREAM_LIMIT, "64 streams are open"))
    with pytest.raises(Refused, match=r"^64 streams are open$") as caught:
        session.open("refused", FOREVER)
    assert caught.value.code == Code.STREAM_LIMIT
    assert list(session.streams) == ["s", "late"]
    reads.come(messages.Opened(3, 5_000, 2))
    session.open("refused", Deadline(1.0, 1_001.0))
    assert list(session.streams) == ["s", "late", "refused"]


# ---- what the daemon takes


@pytest.mark.usefixtures("reads")
@pytest.mark.parametrize("returned", [False, True])
def test_a_daemon_that_stops_or_gave_rows_back_gets_no_more(
    session: DaemonSession, backlog: Backlog, returned: bool
) -> None:
    if returned:
        backlog.given_up_records = 3
    else:
        session.draining = messages.Draining(60.0)
    with pytest.raises(ConnectionFailed) as caught:
        session.reserve(frame_of(1), FOREVER)
    assert str(caught.value) == f"the daemon stops: it gave {3 * returned} records back and takes no more"
    assert caught.value.code == Code.DRAINING


@pytest.mark.parametrize(
    ("count", "most_bytes", "most_records", "largest"),
    [(2, 1_091, 2, (1_091, 2)), (2, 1_092, 1, (1_092, 1)), (2, 1_091, 0, (1_091, 2)), (1, 1 << 30, 1, (1 << 20, 1))],
)
def test_a_frame_that_is_too_large_shrinks_the_next_ones(
    session: DaemonSession, reads: Reads, count: int, most_bytes: int, most_records: int, largest: tuple[int, int]
) -> None:
    reads.come(messages.Refused(1, 1, Code.TOO_LARGE, "too large", most_bytes, most_records))
    with pytest.raises(Refused, match=r"^too large$") as caught:
        session.reserve(frame_of(count), FOREVER)
    assert (caught.value.code, caught.value.max_frame_bytes) == (Code.TOO_LARGE, most_bytes)
    assert caught.value.max_frame_records == most_records
    assert session.largest_frame("s") == largest


def test_a_frame_that_is_as_large_as_allowed_is_never_too_large(session: DaemonSession, reads: Reads) -> None:
    reads.come(messages.Refused(1, 1, Code.TOO_LARGE, "too large", 1_092, 2))
    with pytest.raises(ProtocolError, match=r"^a frame of 1092 bytes was refused as larger than 1092$"):
        session.reserve(frame_of(2), FOREVER)


def test_a_frame_may_fill_the_window(session: DaemonSession, backlog: Backlog, reads: Reads) -> None:
    backlog.keep(5, frame_of(1))
    backlog.sent_bytes = (8 << 20) - rows(1).layout.charge_bytes
    reads.come(messages.Grant(1))
    assert session.reserve(frame_of(1), Deadline(1.0, 1_001.0)) == 1
    backlog.sent_bytes += 1
    reads.come(None, FULL)
    with pytest.raises(BackpressureTimeout) as caught:
        session.reserve(frame_of(1), Deadline(1.0, 1_001.0))
    assert str(caught.value) == f"no room for stream s within 1 s: {SAID}"


@pytest.mark.parametrize(("count", "ends"), [(1, True), (2, False)])
def test_only_a_record_that_alone_exceeds_the_whole_queue_has_ended(
    session: DaemonSession, reads: Reads, count: int, ends: bool
) -> None:
    seen: list[object] = []

    class Keeps(Tally):
        """A tally that keeps the rows which were refused."""

        def refuse(
            self,
            row: int,
            why: messages.RowCode,
            stream: str,
            columns: Columns,
            place: int,
            *,
            named: str | None = None,
        ) -> None:
            seen.append((row, columns.row(place)))
            super().refuse(row, why, stream, columns, place, named=named)

    reads.come(messages.Refused(1, 1, Code.RECORD_TOO_LARGE, "over the limit"))
    if ends:
        assert session.reserve(frame_of(count, Keeps()), FOREVER) == 0
    else:
        with pytest.raises(Refused, match=r"^over the limit$"):
            session.reserve(frame_of(count, Keeps()), FOREVER)
    assert seen == [(7, (b"k", b"x", None))] * ends


def test_a_late_answer_is_that_of_its_own_frame(session: DaemonSession, reads: Reads) -> None:
    reads.come(messages.Refused(9, 1, Code.CANCELLED, "in time"), messages.Grant(8), messages.Grant(1))
    assert session.reserve(frame_of(1), FOREVER) == 1
    assert len(reads.until) == 3
