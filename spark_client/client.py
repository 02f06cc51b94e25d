"""A plain Python program writes to Kinesis through the daemon of its node.

`KinesisClient.put` gathers records while a frame is on its way to the daemon.  It blocks while the queue is full and
the next frame, too.  Its future's ``taken`` tells whether the daemon has the record, and the future is done when the
record is stored.  With ``on_disconnect="deliver"`` the node's daemon delivers what it has taken even if this process
dies.  A daemon that this process has started ends with it, 3 s later.

One thread owns the connection.  Callers of any thread hand it steps and wait until these end.  Between steps it settles
the acknowledgements that arrive.  A caller that is interrupted, or whose time-out passes, therefore never leaves a
message half-sent.  Callbacks of futures run in that thread.  A call from there is refused, because it would wait for
itself.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import socket
import threading
import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as StillRuns  # its own class until Python 3.11
from functools import partial
from types import TracebackType
from typing import Any, Callable, Final, NamedTuple

from producerd import __version__
from producerd.errors import (
    BackpressureTimeout,
    Code,
    ConnectionFailed,
    FlushTimeout,
    ProducerdError,
    RecordsFailed,
    Refused,
    RowFailure,
)
from producerd.wire import messages
from spark_client import daemon_settings, unclosed
from spark_client.batches import PlainRows
from spark_client.channel import LEAST_SECONDS, socket_paths
from spark_client.connection import Connection
from spark_client.daemon_settings import DaemonSettings
from spark_client.gathering import CallFuture, Gathered, PutFuture, Row, Unraised, end, records_failed
from spark_client.options import (
    MOST_SECONDS,
    SECONDS_WANTED,
    SOCKET_WANTED,
    STREAM_WANTED,
    is_seconds,
    is_socket,
    is_stream,
    refuse,
    stream_advice,
)
from spark_client.own_daemon import OwnDaemon
from spark_client.results import as_line, counted
from spark_client.session import ANSWER_SECONDS, LOG, warn
from spark_client.tally import Tally

LOCK_SECONDS: Final = 5.0
"""No thread holds the lock for longer than a moment."""
TURN_SECONDS: Final = 0.5
"""How long a caller whose time-out has ended waits for its turn to ask the daemon for the reason."""
BUSY: Final = "the client looks for its daemon, or another of its calls waits for room"
CLOSED: Final = "the client was closed before the acknowledgement"
CLOSED_MEANWHILE: Final = "the client was closed while this call waited"


class Record(NamedTuple):
    """One record.  Text is sent as UTF-8.  Without a partition key, or with an empty one, it may go to any shard."""

    data: bytes | bytearray | memoryview | str
    partition_key: str | None = None
    explicit_hash_key: int | str | None = None


class KinesisClient:
    """Puts records into a stream from plain Python.  The constructor connects.

    Many threads may use one client.  Their calls take turns, so one that waits for room holds up the others.  After a
    fork the child process must make its own client.  A future's callback must not use the client either, and a log
    handler must not wait for a `put` of the client that logs.

    Close the client, or use it in a ``with`` block.  The end of the interpreter flushes what is not closed, for 10 s at
    most, and logs what is not stored.  A client that is garbage-collected before gives a ResourceWarning, and its
    session ends after its last acknowledgement.

    Args:
        stream: The Kinesis stream's name, for calls that name none.
        socket: The path of the daemon's socket, as for `KinesisBatchWriter`.
        on_disconnect: What the daemon does with this process's records when the process is gone: "deliver" or
            "discard".
        connect_timeout_seconds: How long to look for a daemon that is not there.
        reconnect_timeout_seconds: How long to look for one that was lost or restarts.  With 0 that is an error.
        daemon: Settings of a daemon that this client starts where none is installed.  It ends with this process.
        daemon_start_timeout_seconds: How long to wait for such a daemon.

    Raises:
        ConfigurationError: An argument is not valid.
        ConnectionFailed: No daemon answers.
    """

    def __init__(
        self,
        stream: str | None = None,
        *,
        socket: str | os.PathLike[str] | None = None,
        on_disconnect: str = "deliver",
        connect_timeout_seconds: float = 10,
        reconnect_timeout_seconds: float = 120,
        daemon: Mapping[str, Any] | None = None,
        daemon_start_timeout_seconds: float = 60,
    ) -> None:
        timeouts = {
            "connect_timeout_seconds": connect_timeout_seconds,
            "reconnect_timeout_seconds": reconnect_timeout_seconds,
            "daemon_start_timeout_seconds": daemon_start_timeout_seconds,
        }
        wrong = {name: value for name, value in timeouts.items() if not is_seconds(value)}
        problems = [f"{name}={value!r}: {SECONDS_WANTED}" for name, value in wrong.items()]
        if isinstance(socket, os.PathLike):
            socket = os.fspath(socket)
        if not is_socket(socket):
            problems.append(f"socket={socket!r}: {SOCKET_WANTED}")
        if on_disconnect not in ("deliver", "discard"):
            problems.append(f"on_disconnect={on_disconnect!r}: give 'deliver' or 'discard'")
        if stream is not None and not is_stream(stream):
            problems.append(f"stream={stream!r}: {stream_advice(stream, STREAM_WANTED)}")
        if daemon is not None:
            problems += daemon_settings.problems(daemon)
            if socket is not None:
                problems.append(f"socket={socket!r}: of a daemon that runs already, and daemon= starts one")
        refuse(problems)
        self._stream = stream
        hello = messages.Hello(
            messages.VERSION,
            messages.VERSION,
            messages.OnDisconnect.DELIVER if on_disconnect == "deliver" else messages.OnDisconnect.DISCARD,
            messages.BadRows.TAKE_GOOD,
            client=f"KinesisClient {__version__}, Python {platform.python_version()}",
            pid=os.getpid(),
        )
        own = None if daemon is None else OwnDaemon(DaemonSettings.of(daemon), daemon_start_timeout_seconds)
        paths = socket_paths(socket) if own is None else own.paths

        def connect(acknowledged: Callable[[], object]) -> Connection:
            return Connection(
                hello,
                paths,
                connect_timeout_seconds=connect_timeout_seconds,
                reconnect_timeout_seconds=reconnect_timeout_seconds,
                acknowledged=acknowledged,
                start=None if own is None else own.start,
            )

        self._owner = _ConnectionThread(connect)
        self._at = f"socket={socket!r}" if daemon is None else f"daemon={daemon_settings.shown(daemon)}"

    def __repr__(self) -> str:
        return f"<KinesisClient({self._stream!r}, {self._at}) at {id(self):#x}>"

    def put(
        self,
        data: bytes | bytearray | memoryview | str,
        partition_key: str | None = None,
        explicit_hash_key: int | str | None = None,
        *,
        stream: str | None = None,
        timeout_seconds: float | None = None,
    ) -> PutFuture:
        """Hand one record over; wait while there is no room for it.

        Records that are put while a frame is on its way to the daemon go with the next one, all at once.  A lone record
        goes at once.  Up to one frame of records for each stream may wait in this process; the future's ``taken`` is 1
        as soon as the daemon has the record.

        Args:
            data: The payload.  Text is sent as UTF-8.
            partition_key: The partition key.  Without one, the record may go to any shard.
            explicit_hash_key: A number below 2^128 that chooses the shard instead of the key.
            stream: The stream, if not the client's own.
            timeout_seconds: The call itself waits until the daemon has the record, for this long at most.

        Returns:
            A future that is done when the record is stored, and that raises RecordsFailed if it cannot be.

        Raises:
            BackpressureTimeout: There was no room in time, and the daemon took nothing.
            Refused: The stream takes no records.
            ConnectionFailed: There is no daemon.
            ConfigurationError: The time-out is not a number.
            TypeError: A value is of another type.
            ValueError: No stream is named, or a text cannot be sent.
        """
        if timeout_seconds is not None:
            record = Record(data, partition_key, explicit_hash_key)
            return self.put_many([record], stream=stream, timeout_seconds=timeout_seconds)
        name = stream or self._stream
        if not isinstance(name, str) or not name:
            raise _no_stream(name)
        row: Row
        if type(data) is bytes and type(partition_key) is str and explicit_hash_key is None and partition_key.isascii():
            row = data, partition_key.encode() or None, None  # the usual one, in a fraction of the time
        else:
            row = _encoded(0, Record(data, partition_key, explicit_hash_key))
        return self._owner.gather(name, row)

    def put_many(
        self,
        records: Sequence[Record | tuple[Any, ...]],
        *,
        stream: str | None = None,
        timeout_seconds: float | None = None,
    ) -> PutFuture:
        """Hand records to the daemon in order, many at a time; wait while there is no room.

        If an error ends the call, its ``taken`` counts the records that were taken before, which are the first ones.
        Go on with the next.  `flush` waits for those taken.

        Args:
            records: Each is a `Record`, or a tuple like it.
            stream: The stream, if not the client's own.
            timeout_seconds: How long to wait for room, for all of them together.

        Returns:
            A future that is done when the last one is stored.  It raises RecordsFailed if some cannot be, and names
            them by place; the others are stored all the same.

        Raises:
            BackpressureTimeout: There was no room in time for all of them.
            Refused: The stream takes no records.
            ConnectionFailed: There is no daemon.
        """
        name = stream or self._stream
        if not isinstance(name, str) or not name:
            raise _no_stream(name)
        rows = PlainRows([_encoded(place, record) for place, record in enumerate(records)])
        return self._owner.put(name, rows, timeout_seconds)

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Have everything sent without lingering, and wait until every record that was already put is stored.

        Args:
            timeout_seconds: How long to wait; None waits forever.

        Raises:
            FlushTimeout: Some are not stored in time.  It has the daemon's reason.
            RecordsFailed: Records failed since the last flush, and no future has raised that.
        """
        self._owner.flush(timeout_seconds)

    def close(self, timeout_seconds: float | None = None) -> None:
        """Flush, and end the session.  Calls of other threads that wait for room then raise ConnectionFailed.

        Args:
            timeout_seconds: How long to wait for the flush; None waits forever.

        Raises:
            FlushTimeout: As `flush` does.  The session has ended then, too.
            RecordsFailed: As `flush` does.
        """
        self._owner.admit()
        _clock(timeout_seconds)  # refuses a wrong one before anything ends
        try:
            self.flush(timeout_seconds)
        finally:
            self._owner.end_connection()

    def __del__(self, warn_of: Callable[..., None] = warnings.warn) -> None:  # whose module may be gone by then
        owner = self.__dict__.get("_owner")  # unless the constructor has raised
        if owner is not None and owner.leave():
            warn_of(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __reduce__(self) -> Any:
        text = (
            "a KinesisClient belongs to one process: make one where it is used, as in the function of foreachPartition"
        )
        raise TypeError(text)

    def __enter__(self) -> KinesisClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:  # an error must not wait for an outage to end; the daemon does as `on_disconnect` says
            self._owner.end_connection()


class _Put:
    """One call's records, until the last that was taken has ended.

    ``given`` counts the records of a call that still hands them over, and then those that were taken.
    """

    def __init__(self, stream: str, given: int) -> None:
        self.stream = stream
        self.given = given
        self.tally = Tally()
        self.call = CallFuture(self.tally)
        self.future: Future[None] = Future()  # for a flush, done when the call's callbacks have returned

    @property
    def owed_records(self) -> int:
        """How many records have not ended."""
        return self.given - self.tally.records

    def end_put(
        self, unraised: Unraised, failures: Sequence[RowFailure] = (), error: ProducerdError | None = None
    ) -> None:
        """End the futures, and count what failed."""
        if error is not None:
            self.call.fails(partial(unraised.count_failures(failures), failures))
        end(self.call, error)
        end(self.future, None)


class _Step(NamedTuple):
    """What a caller wants done with the connection, when ``before`` has gone to the daemon.

    ``put`` has the call's records, if it puts any.
    """

    done: Future[Any]
    act: Callable[[Connection], Any]
    before: Sequence[Gathered]
    put: _Put | None


def _no_stream(name: Any) -> Exception:
    if not name:
        return ValueError("stream: name one, here or for the whole client")
    return TypeError(f"stream is {type(name).__name__}: give the Kinesis stream's name")


class _ConnectionThread:
    """A thread that owns the connection.  Callers of other threads hand it steps."""

    def __init__(self, connect: Callable[[Callable[[], object]], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = self._connected()
        self._pid = os.getpid()
        self._puts: list[_Put | Gathered] = []  # that have not ended; only the thread changes it
        self._unraised = Unraised()
        self._lock = threading.Lock()  # guards the next five
        self._gathering: dict[str, Gathered] = {}  # by stream, what goes to the daemon next
        self._room = threading.Condition(self._lock)  # in these, or for another one
        self._largest: dict[str, tuple[int, int]] = {}  # the largest frame (charge, records) of each open stream
        self._steps: deque[_Step] = deque()
        self._ends = False
        self._is_closed = False  # by the program
        self._is_left = False  # by its client, which was garbage-collected unclosed
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="producerd client", daemon=True)
        unclosed.add(self)
        self._thread.start()

    # ------------------------------------------------------------------------------------------ in any caller's thread

    def put(self, stream: str, rows: PlainRows, timeout_seconds: float | None) -> PutFuture:
        put, left = _Put(stream, rows.records), _clock(timeout_seconds)

        def step(connection: Connection) -> None:
            try:
                named = range(rows.records)
                connection.put_batch(stream, rows, left(), rows=named, tally=put.tally, together=True)
            except ProducerdError as error:
                error.taken = put.tally.taken
                raise

        try:
            self._do(step, left, put)
        except StillRuns:
            text = f"no room for stream {stream} within {timeout_seconds} s: {self._busy()}"
            raise as_line(BackpressureTimeout(text)) from None
        return put.call

    def gather(self, stream: str, row: Row) -> PutFuture:
        """Add a record to those that go to the daemon next; wait while these are a whole frame."""
        self.admit()
        while True:
            with self._free_lock():
                gathered = self._gathering.get(stream)
                largest = None if self._ends else self._largest.get(stream)
                if gathered is None and largest is not None:
                    gathered = self._gathering[stream] = Gathered(stream, largest)
                future = None if gathered is None else gathered.add_record(row)
                if gathered is not None and future is None:
                    self._room.wait()
                    if self._ends:
                        raise as_line(ConnectionFailed(CLOSED_MEANWHILE, code=Code.DAEMON_LOST))
            if gathered is None:
                self._do(lambda connection: self._open(connection, stream), _clock(None))
            elif future is not None:
                if not gathered.is_announced:  # not under the lock, or the thread would take the first record alone
                    self._wake()
                    gathered.is_announced = True
                return future

    def flush(self, timeout_seconds: float | None) -> None:
        self.admit()
        left = _clock(timeout_seconds)
        with self._free_lock():
            puts = [*self._puts, *self._gathering.values()]
        if puts:
            hastening = self._submit(Connection.hasten)  # the futures show whether that worked
            try:
                wait([put.future for put in puts], left())
            finally:
                self._withdraw(hastening)
        open_puts = [put for put in puts if not put.future.done()]
        if open_puts:
            records = sum(put.owed_records for put in open_puts)
            reason = self._reason(open_puts[0].stream)
            are = "is" if records == 1 else "are"
            text = f"{counted(records, 'record')} {are} not acknowledged after {timeout_seconds} s: {reason}"
            raise as_line(FlushTimeout(text))
        if (failed := self._failed()) is not None:
            raise failed

    def _failed(self) -> RecordsFailed | None:
        """Return the error of what no future and no flush has raised."""
        failures = self._unraised.take_failures()
        count = sum(failure.records for failure in failures)
        return records_failed(f"{counted(count, 'record')} failed since the last flush", failures) if failures else None

    def _reason(self, stream: str) -> str:
        try:
            reason: str = self._do(lambda connection: connection.reason(stream), _clock(TURN_SECONDS))
        except StillRuns:
            reason = self._busy()
        return reason

    def _busy(self) -> str:
        """Return why the thread takes no step, as far as another thread may know it."""
        waits_for = "" if self._connection is None else self._connection.waits_for
        return f"another of its calls waits for room for {waits_for}" if waits_for else BUSY

    def end_connection(self) -> None:
        """End the session.  The daemon then delivers or discards what it has not acknowledged."""
        if os.getpid() != self._pid:
            return  # the session is the parent's
        self._is_closed = True
        unclosed.discard(self)
        with self._free_lock():
            self._ends = True
            self._room.notify_all()
        connection = self._connection
        if connection is not None:
            connection.abandon()  # otherwise the thread may wait for room there
        self._wake()

    def hasten(self) -> None:
        with contextlib.suppress(ProducerdError):  # it has ended
            self._submit(Connection.hasten)

    def end_unclosed(self, seconds: float) -> None:
        try:
            self.flush(round(seconds, 1))
        except BaseException as error:  # also an interrupt of this wait
            taken = sum(put.tally.taken - put.tally.records for put in [*self._puts])
            text = (
                "a KinesisClient was not closed before the program's end: %s; %d of these records are with the daemon"
            )
            with contextlib.suppress(Exception):  # of a handler's, as in `warn`
                LOG.error(text, str(error) or repr(error), taken)
        finally:
            self.end_connection()
            self._is_closed = False  # so its client still gives the warning
            self._thread.join(ANSWER_SECONDS)

    def leave(self) -> bool:
        """Have the session end when its last record has ended, unless it is closed, and return whether it was not.

        It takes no lock: the garbage collector may run in the middle of any call.
        """
        if self._is_closed or os.getpid() != self._pid:
            return False
        self._is_left = True
        self._wake()
        return True

    def admit(self) -> None:
        """Raise an error if this process and thread may not call the client."""
        if os.getpid() != self._pid:
            raise as_line(ProducerdError("this client is of another process: after a fork, make one in the child"))
        if threading.get_ident() == self._thread.ident and self._thread.is_alive():
            text = (
                "called in a future's callback, which runs in the client's own thread and would wait for itself: hand "
                "the call to another thread"
            )
            raise as_line(ProducerdError(text))

    def _do(self, step: Callable[[Connection], Any], left: Callable[[], float | None], put: _Put | None = None) -> Any:
        """Return the step's result.  Raises StillRuns if the step could not begin in time, and then it never does."""
        submitted = self._submit(step, put)
        done, seconds = submitted.done, left()
        try:
            return done.result(seconds if seconds is None else max(seconds, LEAST_SECONDS))
        except StillRuns:
            if self._withdraw(submitted):
                raise
            return done.result()  # it has begun, and its own time-out is over, too
        except BaseException:  # the step's own error, or the caller is interrupted
            self._withdraw(submitted)
            raise

    def _submit(self, step: Callable[[Connection], Any], put: _Put | None = None) -> _Step:
        self.admit()
        with self._free_lock():
            if self._ends:
                raise as_line(ProducerdError("this client is closed"))
            submitted = _Step(Future(), step, [*self._gathering.values()], put)
            self._steps.append(submitted)
        self._wake()
        return submitted

    def _withdraw(self, submitted: _Step) -> bool:
        """Withdraw a step, and return whether it had not begun."""
        with self._free_lock():
            if submitted in self._steps:
                self._steps.remove(submitted)
        return submitted.done.cancel()  # also while the thread looks for a daemon before it begins

    def _free_lock(self) -> threading.Lock:
        """Return the lock.  Raises an error where this thread has it already: a signal's handler has interrupted it."""
        if self._lock.locked():
            if not any(self._lock.acquire(timeout=LOCK_SECONDS / 10) for _ in range(10)):  # SIGSTOP costs one of them
                text = (
                    "called in a signal's handler, in the middle of another call: set a flag there, and call it later"
                )
                raise as_line(ProducerdError(text))
            self._lock.release()
        return self._lock

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # enough bytes are there to wake it, or the thread has ended
            self._waker.send(b"\0", socket.MSG_DONTWAIT)

    # ---------------------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        try:
            while not self._ends and not (self._is_left and self._is_done):
                self._wait()
                self._take(self._next())
        finally:
            with self._lock:
                self._ends = True
                left, self._steps = self._steps, deque()
            self._give_up(ConnectionFailed(CLOSED, code=Code.DAEMON_LOST))
            for step in left:
                if step.done.set_running_or_notify_cancel():  # its caller may have been interrupted just now
                    step.done.set_exception(as_line(ConnectionFailed(CLOSED_MEANWHILE, code=Code.DAEMON_LOST)))
            self._woken.close()
            self._waker.close()
            unclosed.discard(self)
            if self._is_left and (failed := self._failed()) is not None:
                warn("a KinesisClient was not closed: %s", failed)

    @property
    def _is_done(self) -> bool:
        return not (self._puts or self._gathering or self._steps)

    def _next(self) -> _Step | Callable[[Connection], Any]:
        """Return what to do next, a caller's step or the thread's own.

        What was put one by one before a call goes before it, and what is put later goes after it.
        """
        with self._lock:
            step = self._steps[0] if self._steps else None
            if step is not None and all(one is not self._gathering.get(one.stream) for one in step.before):
                self._steps.popleft()
                return step
            return self._send_gathered if self._gathering else Connection.settle_arrived

    def _wait(self) -> None:
        """Wait until there is a step, or until something arrives."""
        if self._steps or self._gathering or (self._connection is not None and self._connection.is_behind):
            return
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if self._connection is not None and not self._connection.sleeps:
            poll.register(self._connection.fileno(), select.POLLIN)
        poll.poll()
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    def _take(self, step: _Step | Callable[[Connection], Any]) -> None:
        done, put, act = (step.done, step.put, step.act) if isinstance(step, _Step) else (None, None, step)
        try:
            if self._connection is None:
                if done is None:
                    return  # no caller needs a connection
                self._connection = self._connected()
                if self._ends:  # meanwhile, when end() found no connection to abandon
                    self._connection.abandon()
            if put is not None:
                self._puts.append(put)  # a flush meanwhile waits for it
            is_wanted = done is None or done.set_running_or_notify_cancel()
            try:
                result = act(self._connection) if is_wanted else None
            finally:
                if put is not None:
                    put.given = put.tally.taken
        except Exception as error:  # of whatever kind, it is raised in the caller
            if self._ends and isinstance(error, ConnectionFailed):
                error.args = (CLOSED,)
            if not isinstance(error, (BackpressureTimeout, Refused)):
                self._give_up(error)
                if not self._ends:
                    warn("the session has ended: %s", error)
            if isinstance(error, ProducerdError):
                as_line(error)
            if done is not None and (done.running() or done.set_running_or_notify_cancel()):
                done.set_exception(error)
        else:
            if done is not None and is_wanted:
                done.set_result(result)
        self._settle()

    def _open(self, connection: Connection, stream: str) -> None:
        connection.open(stream)
        largest = connection.largest_frame(stream)
        with self._lock:
            self._largest[stream] = largest

    def _send_gathered(self, connection: Connection) -> None:
        """Put one frame of what was gathered.  Meanwhile the next one is gathered."""
        with self._lock:
            if not self._gathering:
                return
            gathered = self._gathering.pop(next(iter(self._gathering)))
            self._puts.append(gathered)
            self._room.notify_all()
        rows = PlainRows(gathered.rows)
        try:
            connection.put_batch(gathered.stream, rows, rows=range(rows.records), tally=gathered.tally)
        except Refused as refused:
            why, code, rest = str(refused), refused.code, gathered.split(gathered.tally.taken)
            lost = RowFailure(code, why, 1, False, (), gathered.stream)
            rest.end_all(self._unraised, lost, lambda: as_line(Refused(why, code=code)))

    def _connected(self) -> Connection:
        try:
            return self._connect(self._settle)  # also while a call waits for room
        except ProducerdError as error:
            raise as_line(error) from None

    def _settle(self) -> None:
        """End the futures of calls whose records have all ended."""
        for put in self._puts:
            if put.owed_records:
                continue
            failures = put.tally.failures
            if isinstance(put, Gathered):
                put.end_all(self._unraised)
            elif failures:
                count = sum(failure.records for failure in failures)
                where = f"of {counted(put.tally.records, 'record')} of one call for stream {put.stream}"
                error = records_failed(f"{count} {where} failed, named by place", failures)
                put.end_put(self._unraised, failures, error)
            else:
                put.end_put(self._unraised)
        self._puts = [put for put in self._puts if not put.future.done()]

    def _give_up(self, error: Exception) -> None:
        """Close the connection, and end the futures that wait for its acknowledgements with an error."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._settle()
        why, code = str(error), getattr(error, "code", Code.INTERNAL)
        with self._lock:
            waiting = [*self._gathering.values()]
            self._puts = [*self._puts, *waiting]
            self._gathering, self._largest = {}, {}
            self._room.notify_all()

        def failed() -> ProducerdError:
            return as_line(ConnectionFailed(why, code=code))

        for put in self._puts:
            if isinstance(put, Gathered):
                lost = RowFailure(code, why, 1, put not in waiting, (), put.stream)
                put.end_all(self._unraised, lost, failed)
            else:
                lost = RowFailure(code, why, put.owed_records, True, (), put.stream)
                put.end_put(self._unraised, (*put.tally.failures, lost), failed())
        self._puts = []


def _clock(timeout_seconds: float | None) -> Callable[[], float | None]:
    """Return a function that returns how many seconds of a time-out are left; None waits forever.

    Raises ConfigurationError if it is neither None nor a number of seconds.
    """
    is_number = isinstance(timeout_seconds, (int, float)) and not isinstance(timeout_seconds, bool)
    if timeout_seconds is not None and not (is_number and timeout_seconds >= 0):
        refuse([f"timeout_seconds={timeout_seconds!r}: give a number of seconds, or None to wait forever"])
    ends = None if timeout_seconds is None else time.monotonic() + min(timeout_seconds, MOST_SECONDS)
    return lambda: None if ends is None else max(0.0, ends - time.monotonic())


def _encoded(place: int, record: Any) -> tuple[bytes, bytes | None, bytes | None]:
    """Return a record's bytes.  Raises TypeError or ValueError that names its place, never what it holds."""
    if not isinstance(record, tuple) or not 1 <= len(record) <= len(Record._fields):
        raise TypeError(f"record {place}: give a Record or a tuple (data, partition_key, explicit_hash_key)")
    given: tuple[Any, Any, Any] = Record(*record)
    data, key, hash_key = given
    if not isinstance(data, (bytes, bytearray, memoryview, str)):
        raise TypeError(f"record {place}: data is {type(data).__name__}: give text or bytes")
    if not isinstance(key, (str, type(None))):
        raise TypeError(f"record {place}: partition_key is {type(key).__name__}: give text or None")
    if not isinstance(hash_key, (int, str, type(None))) or isinstance(hash_key, bool):
        raise TypeError(f"record {place}: explicit_hash_key is {type(hash_key).__name__}: give a number or None")
    try:
        return (
            data.encode() if isinstance(data, str) else bytes(data),
            key.encode() if key else None,
            None if hash_key is None else str(hash_key).encode(),
        )
    except ValueError:  # lone surrogates; a number of thousands of digits
        raise ValueError(f"record {place}: its text cannot be written as UTF-8, or its number not at all") from None
