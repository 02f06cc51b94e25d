"""Writes a DataFrame's rows to Kinesis, through the daemon of each executor's node.

`KinesisBatchWriter` (for ``foreachBatch``) and `write_batch` return only when the daemon has acknowledged every record,
and Spark commits the batch only then.  Otherwise they raise a one-line error, and Spark repeats the batch: every row is
stored at least once.

The driver selects the columns to send and runs one ``mapInArrow`` job.  Each of its tasks opens one connection, sends
its Arrow batches as they are, and yields one small row that says how its records ended (`spark_client.task`).
"""

from __future__ import annotations

import functools
import importlib
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from producerd.errors import Code, ProducerdError
from spark_client.configuration import configured, is_connect
from spark_client.diverting import is_run, name_of_call
from spark_client.interrupts import cancelled_on_interrupt, insist
from spark_client.options import OPTIONS, JsonOption, WriterOptions, from_arguments, refuse
from spark_client.progress import Progress, described
from spark_client.results import BatchResult, PartitionResult, error_in, marked, merge
from spark_client.selection import select
from spark_client.task import BATCH_ID, QUERY_ID, RUN_ID, Plan, refuse_speculation, send_partition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from typing_extensions import Never, Unpack

    from spark_client.options import NoKeywords
    from spark_client.replay.driver import Call

LOG: Final = logging.getLogger("producerd.client")
ARROW_BATCH_BYTES: Final = 4 * 1024 * 1024
"""The bound for Spark 4, which otherwise makes Arrow batches of 64 MB and more (268 MB on 4.0).

A Python worker holds each of them whole.
"""
ARROW_BATCH_RECORDS: Final = 500
"""The bound for Spark 3.5 while the size of a row is unknown.

Spark 3.5 has no bound in bytes, and its default of 10,000 rows was 300 MB.
"""
MOST_ARROW_BATCH_RECORDS: Final = 10_000
"""The most records that a frame has (``max_frame_records`` in WELCOME)."""

NO_KEY: Final = (
    "replay_key=None: Spark does not say to which query and batch this write belongs, as in a batch job, after "
    "setJobGroup, or in a thread of your own; give replay_guard a key that no other write has, and that a repeat of "
    "this one gives again"
)

KEPT_RESULTS: Final = 100
"""As many as Spark keeps in ``query.recentProgress``."""


class KinesisBatchWriter:
    """Writes each micro-batch: ``df.writeStream.foreachBatch(KinesisBatchWriter(stream="flights", ...))``.

    A writer can be pickled if its columns are strings.

    Args:
        stream: The Kinesis stream's name.  If None, the column ``stream``, or ``stream_column``, names one for each
            row.
        partition_key: A column's name, an SQL expression or a Column, cast to string.  A record with a null or empty
            key may go to any shard.
        data: The payload, string or binary, sent as it is.  By default ``to_json(struct(*))``, the whole row as JSON,
            without null fields and with microseconds in timestamps.
        explicit_hash_key: The explicit hash key.  By default the column of that name, if there is one.
        stream_column: The column that names each row's stream, if ``stream`` is None.
        json_options: Spark's own options of ``to_json``, for the default payload.
        socket: The path of the daemon's socket.  By default PRODUCERD_SOCKET, then ``spark.producerd.socket``, then
            /run/producerd/producerd.sock.
        null_key: "spread": a record without a key may go to any shard.
        on_bad_record: What to do with a record that can never be stored.  "fail" refuses its frame, and the batch
            fails; "skip" leaves out only this record and lists it in the result; "divert" also writes it to a Parquet
            file of its task.
        divert_to: Where "divert" writes: ``s3://bucket/prefix`` or ``file:///folder``.
        put_timeout_seconds: How long a task waits for room in the queue; None waits forever.
        flush_timeout_seconds: How long a task waits for its last acknowledgement; None waits forever.
        connect_timeout_seconds: How long a task looks for a daemon that is not there.
        reconnect_timeout_seconds: How long it looks for a daemon that was there and is lost or restarts.  It then sends
            again what was not acknowledged.  With 0 the task fails, and Spark tries it again.
        allow_speculation: Write under ``spark.speculation``, which may store records twice.
        daemon: Settings of a daemon that tasks start on their executor, where none is installed:
            ``{"region": "eu-west-1"}``.  By default Spark's configuration ``spark.producerd.daemon.*`` may have them.
        daemon_start_timeout_seconds: How long a task waits for such a daemon.
        replay_guard: Where records of stored rows are kept, so that a repeated micro-batch is stored once:
            ``s3://bucket/prefix`` or a shared ``file:///folder``.
        replay_key: Names this write to ``replay_guard`` where Spark has no query for it.
        replay_guard_interval_seconds: How often a task records what is stored.
        progress: Show on the driver the progress of a write that takes longer than 5 s.

    Attributes:
        last_result: The `BatchResult` of the last batch.  It stays None under Spark Connect, where ``foreachBatch``
            runs in another process next to the server.
        results: The results of the last 100 batches, without their partitions.

    Raises:
        ConfigurationError: Names every option that is not valid.
    """

    def __init__(
        self,
        stream: str | None = None,
        partition_key: str | Column = "partition_key",
        data: str | Column | None = None,
        explicit_hash_key: str | Column | None = None,
        *,
        stream_column: str | Column | None = None,
        json_options: Mapping[str, JsonOption] | None = None,
        socket: str | None = None,
        null_key: str = "spread",
        on_bad_record: str = "fail",
        divert_to: str | None = None,
        put_timeout_seconds: float | None = None,
        flush_timeout_seconds: float | None = None,
        connect_timeout_seconds: float = 10,
        reconnect_timeout_seconds: float = 120,
        allow_speculation: bool = False,
        daemon: Mapping[str, Any] | None = None,
        daemon_start_timeout_seconds: float = 60,
        replay_guard: str | None = None,
        replay_key: str | None = None,
        replay_guard_interval_seconds: float = 10,
        progress: bool = True,
        **unknown: Unpack[NoKeywords],
    ) -> None:
        given = locals()
        self._options = from_arguments(given, unknown)
        self.last_result: BatchResult | None = None
        self.results: deque[BatchResult] = deque(maxlen=KEPT_RESULTS)
        self._row_bytes = 0.0
        self._configured: Mapping[str, Any] | None = None  # read once, because it takes a call for each entry

    def __repr__(self) -> str:
        return f"KinesisBatchWriter({self._options})"

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch for ``foreachBatch``, as `write` does, and return nothing."""
        try:
            self.write(df, batch_id)
        except ProducerdError as error:  # a traceback in query.exception() would hide the one line
            raise error.with_traceback(None) from None

    def write(self, df: DataFrame, batch_id: int | None = None, *, dry_run: bool = False) -> BatchResult:
        """Write one batch, and return when every record is acknowledged.

        If the caller is interrupted, the job is cancelled.  Spark's own errors pass as they are.

        Args:
            df: The batch.
            batch_id: The number that ``foreachBatch`` gives.
            dry_run: Store nothing.  The daemons check, sort and pack the rows as in a write.

        Returns:
            The counts of the batch.  After a dry run they say what would be stored, and ``dry_run`` has the rest.

        Raises:
            ConnectionFailed: No daemon answers, or it was lost for longer than ``reconnect_timeout_seconds``.
            BackpressureTimeout: There was no room in the queue within ``put_timeout_seconds``.
            FlushTimeout: Acknowledgements were missing after ``flush_timeout_seconds``.
            Refused: The daemon takes no records of this stream.
            BadColumn: A column is missing, or has a type that cannot be sent.
            RecordsFailed: Records were not stored and may not be left out.
        """
        _check_arrow()
        _check_call(df, batch_id, self._options.stream)
        options, spark = self._options, df.sparkSession
        if not options.allow_speculation:
            refuse_speculation(spark.conf.get("spark.speculation", None))
        if self._configured is None:
            self._configured = configured(spark)
        plan = Plan.of(
            options,
            dry_run=dry_run,
            **self._configured,
            application_id=spark.conf.get("spark.app.id", ""),
            batch_id=batch_id,
            call="" if options.divert_to is None else _name_of_call(spark, options, batch_id),
        )
        began = time.monotonic()
        selected = select(df, options)
        with (
            _guarded(spark, options, batch_id) if not dry_run else nullcontext() as call,
            _bounded_arrow_batches(spark, self._row_bytes),
            cancelled_on_interrupt(spark) as tag,
            described(spark, plan),
            Progress(spark, plan, tag) if options.progress else nullcontext() as rows_by_write,
        ):
            plan = plan._replace(guard=None if call is None else call.plan)
            task: Any = functools.partial(send_partition, plan, write=tag, rows_by_write=rows_by_write)
            task.__name__ = "producerd"  # Spark's UI shows it in the plan
            reports = _collect(selected.mapInArrow(task, "result string"))
            results = [PartitionResult.from_line(row[0]) for row in reports]
            seconds = time.monotonic() - began
            skips = plan.skip_bad_records
            result = merge(batch_id, options.stream, results, skip_bad_records=skips, seconds=seconds, dry_run=dry_run)
            if call is not None:
                call.succeeded(sent=result.records > result.left_out)
        if call is not None and call.problem:
            result = result._replace(guard_problem=call.problem)
        if result.sent:
            self._row_bytes = result.bytes / result.sent
        self.last_result = result
        self.results.append(result._replace(partitions=()))
        result.log(LOG)
        return result


def write_batch(
    df: DataFrame,
    batch_id: int | None = None,
    *misplaced: Never,
    dry_run: bool = False,
    stream: str | None = None,
    partition_key: str | Column = "partition_key",
    data: str | Column | None = None,
    explicit_hash_key: str | Column | None = None,
    stream_column: str | Column | None = None,
    json_options: Mapping[str, JsonOption] | None = None,
    socket: str | None = None,
    null_key: str = "spread",
    on_bad_record: str = "fail",
    divert_to: str | None = None,
    put_timeout_seconds: float | None = None,
    flush_timeout_seconds: float | None = None,
    connect_timeout_seconds: float = 10,
    reconnect_timeout_seconds: float = 120,
    allow_speculation: bool = False,
    daemon: Mapping[str, Any] | None = None,
    daemon_start_timeout_seconds: float = 60,
    replay_guard: str | None = None,
    replay_key: str | None = None,
    replay_guard_interval_seconds: float = 10,
    progress: bool = True,
    **unknown: Unpack[NoKeywords],
) -> BatchResult:
    """Write a DataFrame once; return when every record is acknowledged.

    It takes the arguments of `KinesisBatchWriter` and of `KinesisBatchWriter.write`, and returns and raises the same.
    """
    given = locals()
    options = {option.name: given[option.name] for option in OPTIONS}
    if misplaced:
        wrong = ", ".join(map(repr, (batch_id, *misplaced)))
        refuse([f"{wrong}: after df and the batch's number, give each option by its name, such as stream='NAME'"])
    return KinesisBatchWriter(**options, **unknown).write(df, batch_id, dry_run=dry_run)


def _query_of(spark: SparkSession) -> tuple[str | None, str | None, int | None]:
    """Return the ids of the query, its run and its batch, as far as Spark says to which a write belongs.

    Spark Connect says nothing.
    """
    if is_connect(spark):
        return None, None, None
    context = spark.sparkContext
    query_id, run_id, of_batch = (context.getLocalProperty(name) for name in (QUERY_ID, RUN_ID, BATCH_ID))
    return query_id, run_id, int(of_batch) if of_batch else None


def _guarded(spark: SparkSession, options: WriterOptions, batch_id: int | None) -> AbstractContextManager[Call | None]:
    """Guard a write in the block.  What is imported here is not if there is no guard."""
    if options.replay_guard is None:
        return nullcontext()
    from spark_client.replay.driver import guarded

    query_id, run_id, of_batch = _query_of(spark)
    store = options.replay_guard, options.replay_guard_interval_seconds
    if query_id and run_id and of_batch is not None and is_run(run_id) and batch_id in (None, of_batch):
        return guarded(*store, f"query={query_id}", of_batch, run_id)
    if options.replay_key is None:
        refuse([NO_KEY])
    return guarded(*store, f"key={options.replay_key}", batch_id)


def _name_of_call(spark: SparkSession, options: WriterOptions, batch_id: int | None) -> str:
    """Return how the names of a write's diverted files begin."""
    query_id, run_id, of_batch = _query_of(spark)
    if not is_connect(spark):
        batch_id = of_batch  # not the caller's, who may count otherwise
    columns = options.partition_key, options.data, options.explicit_hash_key, options.stream_column
    write = repr((options.stream, options.json_options, *map(str, columns)))
    return name_of_call(query_id, run_id, batch_id, spark.conf.get("spark.app.id", ""), write)


def _collect(reports: DataFrame) -> Sequence[Any]:
    """Run the job.  Raises a task's own error as its one line.  Other errors of Spark's pass as they are."""
    try:
        return reports.collect()
    except Exception as error:  # Spark's errors share no base class, and only our marker matters
        ours = error_in(str(error))
        if ours is None:
            raise
    raise ours from None


@contextmanager
def _bounded_arrow_batches(spark: Any, row_bytes: float) -> Iterator[None]:
    """In the block have Spark make Arrow batches that a worker can hold.

    ``row_bytes`` is the size of a row in the batch before, or 0.
    """
    if int(spark.version.split(".")[0]) >= 4:
        name, ours = "spark.sql.execution.arrow.maxBytesPerBatch", ARROW_BATCH_BYTES
    else:
        name, ours = "spark.sql.execution.arrow.maxRecordsPerBatch", ARROW_BATCH_RECORDS
        if row_bytes:
            ours = max(1, min(MOST_ARROW_BATCH_RECORDS, int(ARROW_BATCH_BYTES / row_bytes)))
    before = spark.conf.get(name, None)
    if before == str(ours):  # another thread writes in this session, and will restore the old value
        yield
        return
    spark.conf.set(name, str(ours))
    try:
        yield
    finally:
        if before is None:
            insist(spark.conf.unset, name)
        else:
            insist(spark.conf.set, name, before)


def _check_call(df: Any, batch_id: Any, stream: str | None) -> None:
    """Raise ConfigurationError if a task cannot write ``df``, or if ``batch_id`` is not a number."""
    problems = []
    if not hasattr(df, "sparkSession"):
        library = type(df).__module__.partition(".")[0]
        instead = "spark.createDataFrame(df)" if library == "pandas" else "a DataFrame of Spark"
        if hasattr(df, "to_spark"):  # pandas on Spark
            instead = "df.to_spark()"
        what = f"{library} {type(df).__name__}".removeprefix("builtins ")
        problems.append(f"df is a {what}: give {instead}")
    elif df.isStreaming:
        problems.append(
            "df is a streaming DataFrame: give the writer to its query, "
            "df.writeStream.foreachBatch(KinesisBatchWriter(...)).start()"
        )
    if batch_id is not None and (not isinstance(batch_id, int) or isinstance(batch_id, bool)):
        meant = f"; did you mean stream={batch_id!r}?" if isinstance(batch_id, str) and stream is None else ""
        problems.append(f"batch_id={batch_id!r}: give the batch's number, or leave it out{meant}")
    refuse(problems)


def _check_arrow() -> None:
    for module in ("pyarrow", "pandas"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            text = f"{module} is missing ({error}): pip install {module} on the driver and every executor"
            raise ProducerdError(marked(Code.ARROW_MISSING, text), code=Code.ARROW_MISSING) from None
