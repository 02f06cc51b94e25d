"""Whatever happens to its daemons, a connection has each row stored or failed once, in order, and resends no other."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from producerd.errors import BackpressureTimeout, Code
from producerd.wire import messages
from producerd.wire.columns import FLAG_RESENT, Columns
from producerd.wire.machine import Machine, Side, frame_id_of
from producerd.wire.messages import MessageType
from spark_client.batches import PlainRows
from spark_client.channel import Late, Lost
from spark_client.connection import MOST_FRUITLESS_SESSIONS, Connection
from tests.spark_client.fake_daemon import INVALID, RETURNED, ack_of

WINDOW_FRAMES, WINDOW_BYTES, MAX_RECORDS = 3, 3_500, 4


class Rows:
    """What became of each row, by its number, which is also its data."""

    def __init__(self) -> None:
        self.sent: set[int] = set()  # to any daemon
        self.ended: list[int] = []
        self.unacked: set[int] = set()  # by the present daemon
        self.failed = 0
        self.lost = 0
        self.resent = 0

    @property
    def open(self) -> list[int]:
        return sorted(self.sent - {*self.ended})


class MemoryDaemon:
    """A daemon in memory, and the client's channel to it.  It acts when the client waits, or when a rule says so."""

    path = "/memory"
    is_unread = False

    def __init__(self, hello: messages.Hello, rows: Rows, most_records: int) -> None:
        self.machine = Machine(Side.CLIENT, 1)
        self.lives = True
        self.stops = False
        self.dies_at: type | None = None
        self.grants = True
        self.owed = rows.open  # what the last daemon did not acknowledge: exactly this comes again, in order
        self.is_resumed = bool(self.owed) or len(rows.ended) > rows.failed
        rows.lost += len(rows.unacked)
        rows.unacked.clear()
        self.frames: dict[int, tuple[list[int], int]] = {}  # open ones: their rows, and their charge
        self.streams: dict[int, str] = {}
        self._rows = rows
        self._last_row: dict[str, int] = {}
        self._stream_of: dict[int, str] = {}
        self._most_records = most_records
        self._machine = Machine(Side.DAEMON, WINDOW_FRAMES)
        self._to_client: deque[messages.Message] = deque()
        self.tell(hello)
        self.machine.set_window(WINDOW_FRAMES)

    # ---- the channel

    def tell(self, message: Any) -> None:
        self._arrives(type(message), MessageType(messages.encode(message)[0]), frame_id_of(message))
        answers: dict[type, Callable[[Any], messages.Message | None]] = {
            messages.Hello: lambda _: messages.Welcome(1, 1, WINDOW_BYTES, WINDOW_FRAMES, 1 << 20, MAX_RECORDS, 10.0),
            messages.Open: self._open,
            messages.Reserve: self._reserve,
            messages.Cancel: lambda cancel: messages.Refused(cancel.frame_id, 0, Code.CANCELLED, "the queue is full"),
            messages.Status: lambda status: messages.Blocked(status.stream_id, 0.0, "the queue is full"),
            messages.Flush: lambda _: None,
        }
        answer = answers[type(message)](message)
        if answer is not None:
            self.send(answer)

    def send_body(self, frame_id: int, columns: Columns) -> None:
        numbers = [int(columns.row(place)[1] or b"") for place in range(columns.layout.records)]
        is_resent = {*numbers} <= self._rows.sent
        assert is_resent or not {*numbers} & self._rows.sent
        self._rows.sent.update(numbers)
        self._rows.unacked.update(numbers)
        self._arrives(Columns, MessageType.BODY, frame_id)
        assert not {*numbers} & {*self._rows.ended}, "what is acknowledged is not sent again"
        assert bool(columns.layout.flags & FLAG_RESENT) is is_resent
        if is_resent:
            assert numbers == self.owed[: len(numbers)], "exactly what is open comes again, in order"
            del self.owed[: len(numbers)]
            self._rows.resent += len(numbers)
        else:
            assert not self.owed
        stream = self._stream_of[frame_id]
        assert numbers == sorted(numbers)
        assert self._last_row.get(stream, -1) < numbers[0], "the order of a stream is kept"
        self._last_row[stream] = numbers[-1]
        self.frames[frame_id] = numbers, columns.layout.charge_bytes
        assert len(self.frames) == 1 or sum(charge for _, charge in self.frames.values()) <= WINDOW_BYTES

    def read(self, until: float | None) -> messages.Message:
        while not self._to_client:
            if not self.lives:
                raise Lost
            if until is not None and (until <= time.monotonic() or not self.grants):
                raise Late
            assert self.frames, "the client waits for nothing"
            self.acknowledge(min(self.frames), set())
        message = self._to_client.popleft()
        self.machine.received(MessageType(messages.encode(message)[0]), frame_id_of(message))
        return message

    def close(self) -> None:
        self.lives = False

    def _arrives(self, kind: type, type_: MessageType, frame_id: int) -> None:
        self.machine.sent(type_, frame_id)
        if self.dies_at is kind:
            self.lives = False
        if not self.lives:
            raise Lost
        self._machine.received(type_, frame_id)  # which raises ProtocolError beyond the window

    # ---- the daemon

    def send(self, message: messages.Message) -> None:
        self._machine.sent(MessageType(messages.encode(message)[0]), frame_id_of(message))
        self._to_client.append(message)

    def acknowledge(self, frame_id: int, failed: set[int]) -> None:
        """Acknowledge a frame, of which some rows failed.  A daemon that stops gives these back, and always the last"""
        numbers, _ = self.frames.pop(frame_id)
        places = {place for place in failed if place < len(numbers)} | ({len(numbers) - 1} if self.stops else set())
        self.send(ack_of(frame_id, len(numbers), dict.fromkeys(places, RETURNED if self.stops else INVALID)))
        self._rows.ended += [number for place, number in enumerate(numbers) if not (self.stops and place in places)]
        self._rows.failed += 0 if self.stops else len(places)
        self._rows.unacked -= {*numbers}

    def _open(self, message: messages.Open) -> messages.Message:
        assert bool(message.resumed) is self.is_resumed
        self.streams[message.stream_id] = message.stream
        return messages.Opened(message.stream_id, 1 << 20, MAX_RECORDS)

    def _reserve(self, message: messages.Reserve) -> messages.Message | None:
        frame_id, records = message.frame_id, message.layout.records
        self._stream_of[frame_id] = self.streams[message.stream_id]
        if self.stops:
            return messages.Refused(frame_id, message.stream_id, Code.DRAINING, "stopping")
        if records > self._most_records:
            limits = 1 << 20, self._most_records
            return messages.Refused(frame_id, message.stream_id, Code.TOO_LARGE, "too large", *limits)
        return messages.Grant(frame_id) if self.grants else None


class Resending(RuleBasedStateMachine):
    """A connection puts rows while its daemons acknowledge them, stop, die and make place, one after another."""

    @initialize()
    def connect(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.rows, self.next_row, self.ends_in_a_row, self.next_most_records = Rows(), 0, 0, MAX_RECORDS
        self.grants = True

        def dial(hello: messages.Hello, *_: object) -> tuple[MemoryDaemon, messages.Message]:
            self.daemon = MemoryDaemon(hello, self.rows, self.next_most_records)
            self.daemon.grants = self.grants
            return self.daemon, self.daemon.read(None)

        self.patch.setattr("spark_client.session.dial", dial)
        self.connection = Connection(messages.Hello(1, 1), ["/memory"], reconnect_timeout_seconds=1)

    @rule(stream=st.sampled_from("st"), count=st.integers(1, 9))
    def put(self, stream: str, count: int) -> None:
        numbers = range(self.next_row, self.next_row + count)
        self.connection.put_batch(stream, PlainRows([(b"%d" % number, b"k", None) for number in numbers]))
        self.next_row += count

    @rule(stream=st.sampled_from("st"))
    def put_without_room(self, stream: str) -> None:
        self.grants = self.daemon.grants = False
        with pytest.raises(BackpressureTimeout):
            self.connection.put_batch(stream, PlainRows([(b"%d" % self.next_row, b"k", None)]), 0)
        self.grants = self.daemon.grants = True

    @rule()
    def flush(self) -> None:
        self.connection.flush(10)
        assert self.rows.open == [], "what is put is acknowledged"
        assert sorted(self.rows.ended) == [*range(self.next_row)]

    @rule()
    def settle(self) -> None:
        self.connection.settle_arrived()

    @rule()
    def hasten(self) -> None:
        self.connection.hasten()

    @rule(data=st.data(), failed=st.sets(st.integers(0, MAX_RECORDS - 1), max_size=2))
    @precondition(lambda self: self.daemon.lives and self.daemon.frames)
    def acknowledge(self, data: st.DataObject, failed: set[int]) -> None:
        self.daemon.acknowledge(data.draw(st.sampled_from([*self.daemon.frames])), failed)
        self.ends_in_a_row = 0

    def may_end(self) -> bool:
        daemon = self.daemon
        is_near = daemon.stops or daemon.dies_at is not None
        return daemon.lives and not is_near and self.ends_in_a_row < MOST_FRUITLESS_SESSIONS

    @rule(at=st.sampled_from([None, messages.Open, messages.Reserve, Columns]), next_most=st.integers(1, MAX_RECORDS))
    @precondition(may_end)
    def die(self, at: type | None, next_most: int) -> None:
        """At once, or at the next message of a kind.  The next daemon may take smaller frames."""
        self.daemon.dies_at, self.daemon.lives = at, at is not None
        self.ends_in_a_row += 1
        self.next_most_records = next_most

    @rule()
    @precondition(may_end)
    def stop(self) -> None:
        self.daemon.stops = True
        self.ends_in_a_row += 1
        self.daemon.send(messages.Draining(5.0))

    @rule()
    @precondition(lambda self: self.may_end() and not self.daemon.frames)
    def make_place(self) -> None:
        self.daemon.send(messages.Close(Code.TABLE_FULL, "make place"))
        self.daemon.lives = False

    @invariant()
    def each_row_ends_once(self) -> None:
        assert len(self.rows.ended) == len({*self.rows.ended})

    def teardown(self) -> None:
        try:
            self.flush()
            tally = self.connection.tally
            assert (tally.records, tally.taken, tally.resent) == (self.next_row, self.next_row, self.rows.resent)
            assert (tally.stored, tally.possible_duplicates) == (self.next_row - self.rows.failed, self.rows.lost)
            assert sum(failure.records for failure in tally.failures) == self.rows.failed
            self.connection.close()
        finally:
            self.patch.undo()


TestResending = Resending.TestCase
TestResending.settings = settings(max_examples=60, stateful_step_count=40)
