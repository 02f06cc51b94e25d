"""One Spark task sends its Arrow batches to this node's daemon as they are, and reports how its records ended.

If the daemon stops or is lost, the task waits for the next one, and sends what was not acknowledged again.  The task
fails only where another attempt may help, as without a daemon or without room, and then Spark tries it again.

Rows that are not STORED are in the report instead.  The daemon has tried them as often as makes sense, and another
attempt would only store the partition's good rows once more.

This code runs on the executors.  Its functions stand at the module's top and get plain values, so that they are pickled
by reference, and work from an installed wheel as from a zip that ``--py-files`` ships.
"""

from __future__ import annotations

import itertools
import os
import platform
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from producerd import __version__
from producerd.errors import Code, Outcome, ProducerdError, Refused, RowFailure
from producerd.wire import messages
from spark_client.batches import STREAM_NAME, Batch, by_stream
from spark_client.channel import socket_paths
from spark_client.connection import Connection
from spark_client.daemon_settings import DaemonSettings
from spark_client.diverting import DivertedRows, DivertingTally
from spark_client.dry_run import of_figures
from spark_client.own_daemon import OwnDaemon
from spark_client.results import PartitionResult, marked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator

    from spark_client.options import WriterOptions
    from spark_client.replay.guard import GuardPlan, Places, TaskGuard

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
"""Spark's local properties of a query.  It has the id of its run as job group, unless the user sets another one."""
NO_STREAM: Final = messages.RowCode(Outcome.NOT_STORED, Code.RECORD_INVALID, "its stream is null or empty", judged=True)
ODD_STREAM: Final = messages.RowCode(
    Outcome.NOT_STORED,
    Code.RECORD_INVALID,
    "its stream has what cannot be a name: 1 to 128 of a-z A-Z 0-9 _ . -",
    judged=True,
)
SPECULATION: Final = (
    "spark.speculation=true runs slow tasks twice, and both copies write: set it to false, or give "
    "allow_speculation=True (data source: allowSpeculation) and expect duplicates"
)
TIMEOUTS: Final = {
    Code.BACKPRESSURE_TIMEOUT: "put_timeout_seconds",
    Code.FLUSH_TIMEOUT: "flush_timeout_seconds",
}
"""The option that bounds what a task waited for, by the code of its error."""


class Put(Protocol):
    """Puts a batch of a stream's rows, which have these numbers, within a time-out for each frame."""

    def __call__(self, stream: str, batch: Batch, timeout_seconds: float | None, *, rows: Sequence[int]) -> None: ...


class Plan(NamedTuple):
    """What each task must know, in plain values, because it travels to the workers."""

    stream: str | None  # None if each row names its own
    socket: str | None = None
    configured_socket: str | None = None
    skip_bad_records: bool = False
    put_timeout_seconds: float | None = None
    flush_timeout_seconds: float | None = None
    connect_timeout_seconds: float = 10
    reconnect_timeout_seconds: float = 120
    application_id: str = ""
    batch_id: int | None = None
    daemon: DaemonSettings | None = None  # that tasks start
    configured_daemon: DaemonSettings | None = None
    daemon_start_timeout_seconds: float = 60
    divert_to: str | None = None
    call: str = ""  # how the names of diverted rows' files begin
    dry_run: bool = False
    guard: GuardPlan | None = None

    @staticmethod
    def of(options: WriterOptions, *, dry_run: bool = False, **known: Any) -> Plan:
        """Return a plan with a writer's options and with what only the driver knows.

        A dry run leaves out bad rows to find all of them.  Its figures are lost with its daemon, so that Spark then
        repeats the task.
        """
        return Plan(
            options.stream,
            options.socket,
            skip_bad_records=options.skips_bad_records or dry_run,
            put_timeout_seconds=options.put_timeout_seconds,
            flush_timeout_seconds=options.flush_timeout_seconds,
            connect_timeout_seconds=options.connect_timeout_seconds,
            reconnect_timeout_seconds=0 if dry_run else options.reconnect_timeout_seconds,
            daemon=None if options.daemon is None else DaemonSettings.of(options.daemon),
            daemon_start_timeout_seconds=options.daemon_start_timeout_seconds,
            divert_to=None if dry_run else options.divert_to,
            dry_run=dry_run,
            **known,
        )

    def plain(self) -> dict[str, Any]:
        """Return the fields without any class of ours, for a task that may run where our modules are missing."""
        settings = {name: getattr(self, name) for name in ("daemon", "configured_daemon")}
        return {**self._asdict(), **{name: one and tuple(one) for name, one in settings.items()}}

    @staticmethod
    def of_plain(fields: Mapping[str, Any]) -> Plan:
        """Return the plan of `plain`."""
        settings = {name: fields[name] for name in ("daemon", "configured_daemon")}
        return Plan(**{**fields, **{name: one and DaemonSettings(*one) for name, one in settings.items()}})

    def own_daemon(self, owner_pid: int | None = None) -> OwnDaemon | None:
        """Return the daemon that this task may start, or None if it looks for one that runs already.

        ``owner_pid`` is the executor's process, if that is not the JVM above this one.

        A node that names its daemon in PRODUCERD_SOCKET has one, so Spark's configuration does not count there.
        """
        named = self.socket or os.environ.get("PRODUCERD_SOCKET")
        settings = self.daemon or (None if named else self.configured_daemon)
        return None if settings is None else OwnDaemon(settings, self.daemon_start_timeout_seconds, owner_pid)


def speculates(setting: str | None) -> bool:
    """Return whether this value of ``spark.speculation`` lets two copies of a task run at once."""
    return str(setting).lower() == "true"


def refuse_speculation(setting: str | None) -> None:
    """Raise SPECULATION_ENABLED if two copies of a task may run at once."""
    if speculates(setting):
        raise ProducerdError(marked(Code.SPECULATION_ENABLED, SPECULATION), code=Code.SPECULATION_ENABLED)


def local_property(name: str) -> str | None:
    """Return a property that Spark hands this task, configuration included.

    Under Spark Connect's ``foreachBatch`` there is none.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    value: str | None = context.getLocalProperty(name) if context is not None else None
    return value


class RowsByWrite:
    """How Spark adds up an accumulator of the rows of each write, which is known by its tag."""

    def zero(self, value: object) -> dict[str, int]:  # noqa: ARG002 - Spark's shape
        return {}

    def addInPlace(self, one: dict[str, int], other: dict[str, int]) -> dict[str, int]:  # noqa: N802 - Spark's name
        for tag, rows in other.items():
            one[tag] = one.get(tag, 0) + rows
        return one


def send_partition(
    plan: Plan,
    batches: Iterable[pa.RecordBatch],
    *,
    write: str = "",
    rows_by_write: Accumulator[dict[str, int]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Send a partition, flush, and yield one `PartitionResult`.  Without rows open no connection and yield nothing.

    Its stored rows are added to the accumulator.
    """
    result = send(plan, batches)
    if result is not None:
        if rows_by_write is not None:
            rows_by_write.add({write: result.records - sum(failure.records for failure in result.failures)})
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"result": pa.array([result.to_line()], pa.string())})


def send(plan: Plan, batches: Iterable[pa.RecordBatch]) -> PartitionResult | None:
    """Send a partition, flush, and return its result, or None if it has no rows.

    If the task cannot go on, raise an error of one marked line.
    """
    hello = _hello(plan)
    try:
        return _send(plan, hello, (batch for batch in batches if batch.num_rows))
    except ProducerdError as error:
        where = f"host {socket.gethostname()}, partition {hello.partition}"
        own = plan.own_daemon() if error.code == Code.DAEMON_LOST else None
        said = "" if own is None else f"; its log {own.log} ends with: {own.last_line()}"
        if error.code in TIMEOUTS:
            said = f"; to wait longer, raise {TIMEOUTS[error.code]}"
        raise ProducerdError(marked(error.code, f"{where}: {error}{said}"), code=error.code) from None


def _send(plan: Plan, hello: messages.Hello, batches: Iterator[pa.RecordBatch]) -> PartitionResult | None:
    began = time.monotonic()  # Spark may take long to make the first rows
    first = next(batches, None)
    if first is None:
        return None
    own = plan.own_daemon()
    diverted = None if plan.divert_to is None else DivertedRows(plan.divert_to, plan.call, hello.partition)
    places = _places(plan)
    with Connection(
        hello,
        socket_paths(plan.socket, plan.configured_socket) if own is None else own.paths,
        connect_timeout_seconds=plan.connect_timeout_seconds,
        reconnect_timeout_seconds=plan.reconnect_timeout_seconds,
        start=None if own is None else own.start,
        tally=None if diverted is None else DivertingTally(diverted),
        dry_run=plan.dry_run,
        opened=None if places is None else places.opened,
    ) as connection:
        guard = _guard(plan, places, connection, hello)
        try:
            _put_all(connection, guard, plan, hello, itertools.chain([first], batches))
            connection.flush(plan.flush_timeout_seconds)
        finally:
            if guard is not None:
                guard.close()
        why, why_seconds = connection.held_by
        result = _report(connection, hello)._replace(
            daemon=None if own is None else own.figures(connection.daemon_pid),
            seconds=round(time.monotonic() - began, 3),
            why=why,
            why_seconds=round(why_seconds, 3),
            dry_run=tuple(of_figures(*each) for each in connection.figures().items()) if plan.dry_run else (),
            guard_problem="" if guard is None else guard.problem,
        )
    if diverted is None or not diverted.records or result.failed(plan.skip_bad_records):
        return result  # the batch fails anyway, and the file would lack the rows behind that failure
    return _with_file(result, diverted)


def _places(plan: Plan) -> Places | None:
    """Return what learns where a guarded task's streams are.  What is imported here is not for any other task."""
    if plan.guard is None:
        return None
    from spark_client.replay.guard import Places

    return Places()


def _guard(plan: Plan, places: Places | None, connection: Connection, hello: messages.Hello) -> TaskGuard | None:
    if plan.guard is None or places is None:
        return None
    from spark_client.replay.guard import TaskGuard

    return TaskGuard(plan.guard, places, connection, hello, plan.put_timeout_seconds)


def _with_file(result: PartitionResult, diverted: DivertedRows) -> PartitionResult:
    """Write the rows that can never be stored, and return the result with their file, or with one more failure.

    An error would have Spark repeat the task, which would only store the good rows once more.
    """
    try:
        diverted.write()
    except OSError as error:
        failure = RowFailure(Code.DIVERT_FAILED, f"{diverted.uri}: {error}", diverted.records, False, (), "")
        return result._replace(failures=(failure, *result.failures))
    return result._replace(diverted=diverted.uri)


def _put_all(
    connection: Connection,
    guard: TaskGuard | None,
    plan: Plan,
    hello: messages.Hello,
    batches: Iterable[pa.RecordBatch],
) -> None:
    """Put the batches, until rows have failed that fail the batch: its other rows would only be stored twice."""
    put = connection.put_batch if guard is None else guard.put_batch
    first_row = 0
    for batch in batches:
        if _report(connection, hello).failed(plan.skip_bad_records):
            return
        _put(connection, put, plan, batch, first_row)
        first_row += batch.num_rows
    if guard is not None:
        guard.end()


def _put(connection: Connection, put: Put, plan: Plan, batch: pa.RecordBatch, first_row: int) -> None:
    """Put a batch into the plan's stream, or each row into its own."""
    if plan.stream is not None:
        numbers = range(first_row, first_row + batch.num_rows)
        put(plan.stream, Batch(batch), plan.put_timeout_seconds, rows=numbers)
        return
    for stream, of_stream, rows in by_stream(batch, first_row):
        refusal = _refusal(connection, stream, plan.put_timeout_seconds)
        if refusal is None:
            put(str(stream), of_stream, plan.put_timeout_seconds, rows=rows)
        else:
            named = "" if refusal in (NO_STREAM, ODD_STREAM) else str(stream)
            columns = of_stream.columns(0, of_stream.records)
            for place, row in enumerate(rows):
                connection.tally.refuse(row, refusal, stream or "", columns, place, named=named)


def _refusal(connection: Connection, stream: str | None, timeout_seconds: float | None) -> messages.RowCode | None:
    """Return why no row can go to this stream, if none can.

    The report names such rows, because another attempt would only store the other streams' rows again.
    """
    if not stream:
        return NO_STREAM
    if not STREAM_NAME.fullmatch(stream):
        return ODD_STREAM
    try:
        connection.open(stream, timeout_seconds)
    except Refused as refused:
        return messages.RowCode(Outcome.NOT_STORED, refused.code, str(refused))
    return None


def _report(connection: Connection, hello: messages.Hello) -> PartitionResult:
    tally = connection.tally
    return PartitionResult(
        partition=hello.partition,
        host=socket.gethostname(),
        records=tally.records,
        bytes=tally.payload_bytes,
        retries=tally.retries,
        throttled=tally.throttled,
        possible_duplicates=tally.possible_duplicates,
        spread_keys=tally.spread_keys,
        resent=tally.resent,
        left_out=tally.left_out,
        seconds_blocked=round(tally.seconds_blocked, 3),
        seconds_flushing=round(tally.seconds_flushing, 3),
        failures=tally.failures,
    )


def _hello(plan: Plan) -> messages.Hello:
    """Return HELLO for this task, mostly from Spark's local properties.  Under Spark Connect workers have none."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return messages.Hello(
        messages.VERSION,
        messages.VERSION,
        messages.OnDisconnect.DISCARD,
        messages.BadRows.TAKE_GOOD if plan.skip_bad_records else messages.BadRows.REFUSE_FRAME,
        client=f"spark_client {__version__}, Python {platform.python_version()}",
        application_id=plan.application_id,
        query_id=local_property(QUERY_ID) or "",
        run_id=local_property(RUN_ID) or "",
        batch_id=plan.batch_id if plan.batch_id is not None else int(local_property(BATCH_ID) or 0),
        stage_id=context.stageId() if context is not None else 0,
        partition=context.partitionId() if context is not None else 0,
        attempt=context.attemptNumber() if context is not None else 0,
        pid=os.getpid(),
    )
