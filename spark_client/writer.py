"""A DataFrame's rows into a Kinesis stream, through the daemon of each executor's node.

`KinesisBatchWriter` (for ``foreachBatch``) and `write_batch` return only when the daemon has acknowledged every
record, so that Spark commits a batch only then; otherwise they raise one clear line.  After a failure Spark repeats
the batch: at least once, always.

The driver selects the columns to send and runs one ``mapInArrow`` job; each of its tasks opens one connection, sends
its Arrow batches as they are, and yields one small row that says how its records ended (`spark_client.task`).
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from producerd.errors import Code, ConfigurationError, ProducerdError
from spark_client.results import BatchResult, PartitionResult, error_in, merge
from spark_client.selection import select
from spark_client.task import Plan, send_partition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LOG: Final = logging.getLogger("producerd.client")
ARROW_BATCH_BYTES: Final = "4m"
"""Spark 4 otherwise makes Arrow batches of 64 MB and more (268 MB on 4.0), each held whole by a Python worker."""
ARROW_BATCH_RECORDS: Final = "2000"
"""Spark 3.5 has no bound in bytes: 10,000 rows were 300 MB."""


class KinesisBatchWriter:
    """Writes each micro-batch: ``df.writeStream.foreachBatch(KinesisBatchWriter(stream="flights", ...))``.

    ``partition_key``, ``data``, ``explicit_hash_key``: a column's name, any SQL expression, or a Column.  Keys are
    cast to string; a null or empty partition key spreads its record over all shards (``null_key="spread"``).  ``data``
    must be string or binary and is sent as it is; by default it is ``to_json(struct(*))``, the whole row as JSON, in
    which null fields are left out.

    ``on_bad_record``: "fail" refuses the frame around a record that can never be stored; "skip" leaves just that
    record out and lists it in the result.  Time-outs are in seconds, None waits for ever: ``put`` for room in the
    queue, ``flush`` for the last acknowledgement, ``connect`` for a daemon that is starting, ``reconnect`` for one that
    was there and is lost or restarts: what it did not acknowledge is sent again (0: the task fails, Spark tries it).
    ``allow_speculation``: under ``spark.speculation`` records may be stored twice.

    Options that do not hold raise ConfigurationError here, all at once.  Picklable, where its columns are strings.
    """

    def __init__(
        self,
        stream: str | None = None,
        partition_key: str | Column = "partition_key",
        data: str | Column | None = None,
        explicit_hash_key: str | Column | None = None,
        *,
        socket: str | None = None,
        null_key: str = "spread",
        on_bad_record: str = "fail",
        put_timeout_seconds: float | None = None,
        flush_timeout_seconds: float | None = None,
        connect_timeout_seconds: float = 10,
        reconnect_timeout_seconds: float = 120,
        allow_speculation: bool = False,
    ) -> None:
        for_ever = ", or None to wait for ever"
        problems = [
            _stream_problem(stream),
            _choice_problem("null_key", null_key, ("spread",)),
            _choice_problem("on_bad_record", on_bad_record, ("fail", "skip")),
            _seconds_problem("put_timeout_seconds", put_timeout_seconds, for_ever),
            _seconds_problem("flush_timeout_seconds", flush_timeout_seconds, for_ever),
            _seconds_problem("connect_timeout_seconds", connect_timeout_seconds),
            _seconds_problem("reconnect_timeout_seconds", reconnect_timeout_seconds),
        ]
        if any(problems):
            raise ConfigurationError([problem for problem in problems if problem])
        assert stream is not None
        self._stream = stream
        self._columns = (partition_key, data, explicit_hash_key)
        self._skip_bad_records = on_bad_record == "skip"
        self._allow_speculation = allow_speculation
        self._task_options: dict[str, Any] = {
            "socket": socket,
            "put_timeout_seconds": put_timeout_seconds,
            "flush_timeout_seconds": flush_timeout_seconds,
            "connect_timeout_seconds": connect_timeout_seconds,
            "reconnect_timeout_seconds": reconnect_timeout_seconds,
        }

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, as ``foreachBatch`` asks; `write` without its result."""
        self.write(df, batch_id)

    def write(self, df: DataFrame, batch_id: int | None = None) -> BatchResult:
        """Write one batch; return when every record is acknowledged.

        Raises ConnectionFailed, BackpressureTimeout, FlushTimeout, Refused, BadColumn or RecordsFailed; what else Spark
        raises is left as it is.
        """
        _check_arrow()
        spark = df.sparkSession
        if not self._allow_speculation and str(spark.conf.get("spark.speculation", "false")).lower() == "true":
            text = (
                "spark.speculation=true runs slow tasks twice, and both copies write: set it to false, or give "
                "allow_speculation=True and expect duplicates"
            )
            raise ProducerdError(text, code=Code.SPECULATION_ENABLED)
        plan = Plan(
            self._stream,
            configured_socket=spark.conf.get("spark.producerd.socket", None),
            skip_bad_records=self._skip_bad_records,
            application_id=spark.conf.get("spark.app.id", None) or "",
            batch_id=batch_id,
            **self._task_options,
        )
        reports = select(df, *self._columns).mapInArrow(functools.partial(send_partition, plan), "result string")
        with _bounded_arrow_batches(spark):
            results = [PartitionResult.from_line(row[0]) for row in _collect(reports)]
        result = merge(batch_id, self._stream, results, skip_bad_records=self._skip_bad_records)
        LOG.info(
            "stream %s, batch %s: %d records, %d bytes, %d skipped, %.1f s blocked in %d tasks",
            *(self._stream, batch_id, result.records, result.bytes, result.skipped, result.seconds_blocked),
            len(result.partitions),
        )
        return result


def write_batch(df: DataFrame, batch_id: int | None = None, **options: Any) -> BatchResult:
    """Write a DataFrame once, with the options of `KinesisBatchWriter`; return when every record is acknowledged."""
    return KinesisBatchWriter(**options).write(df, batch_id)


def _collect(reports: DataFrame) -> Sequence[Any]:
    """Run the job.  A task's own line is raised alone; whatever else Spark raises is left as it is."""
    try:
        return reports.collect()
    except Exception as error:  # Spark's errors share no root, and only our marker matters here
        ours = error_in(str(error))
        if ours is None:
            raise
    raise ours from None


@contextmanager
def _bounded_arrow_batches(spark: Any) -> Iterator[None]:
    """Have Spark make Arrow batches that a worker can hold, while this batch runs."""
    spark_4 = int(spark.version.split(".")[0]) >= 4
    name = "spark.sql.execution.arrow.max" + ("BytesPerBatch" if spark_4 else "RecordsPerBatch")
    ours, before = ARROW_BATCH_BYTES if spark_4 else ARROW_BATCH_RECORDS, spark.conf.get(name, None)
    if before == ours:  # another thread writes on this session, and will put the old value back
        yield
        return
    spark.conf.set(name, ours)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


def _check_arrow() -> None:
    for module in ("pyarrow", "pandas"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            text = f"{module} is missing ({error}): pip install 'producerd[spark]' on the driver and every executor"
            raise ProducerdError(text, code=Code.ARROW_MISSING) from None


def _stream_problem(stream: Any) -> str:
    if stream is None:
        return "stream=None: name the Kinesis stream; a stream for each row, from a column, is not supported yet"
    return "" if isinstance(stream, str) and stream else f"stream={stream!r}: give the Kinesis stream's name"


def _choice_problem(option: str, value: Any, choices: Sequence[str]) -> str:
    return "" if value in choices else f"{option}={value!r}: give {' or '.join(map(repr, choices))}"


def _seconds_problem(option: str, value: Any, otherwise: str = "") -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if (number and math.isfinite(value) and value >= 0) or (value is None and otherwise):
        return ""
    return f"{option}={value!r}: give a number of seconds, 0 or more{otherwise}"
