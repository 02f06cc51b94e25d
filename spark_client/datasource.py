"""Spark 4's data source for ``df.write.format("producerd")`` and ``df.writeStream.format("producerd")``.

Each task sends its partition as `KinesisBatchWriter`'s tasks do, and commits with its report.  The driver's commit sums
the reports up and raises if rows failed: Spark repeats the batch for failed rows, and never a single task.

Spark runs these classes in Python processes of its own, next to the driver and on the executors, without a session.
They therefore use nothing that `KinesisBatchWriter` reads or sets there, such as ``spark.producerd.socket`` or the size
of Arrow batches.  The exception is ``spark.speculation``: a task can see it, and refuses it before it sends a row.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from producerd.errors import BadColumn, Code
from spark_client.batches import DATA, HASH_KEY, KEY, STREAM
from spark_client.options import OPTIONS, WriterOptions, from_text, refuse
from spark_client.results import PartitionResult, marked, merge
from spark_client.selection import NO_COLUMN, OPTION_OF, PAYLOAD_TYPES, SEVERAL, bad_column, bad_data, found, named
from spark_client.task import BATCH_ID, QUERY_ID, Plan, local_property, refuse_speculation, send

try:
    from pyspark.sql import datasource
except ImportError:
    text = 'format("producerd") needs Spark 4: on Spark 3.5 write with spark_client.KinesisBatchWriter'
    raise ImportError(marked(Code.CONFIGURATION, text)) from None

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_client.replay.guard import GuardPlan

LOG: Final = logging.getLogger("producerd.client")
WAY_TO_NAME_A_STREAM: Final = "its name with the option stream (in SQL: INSERT INTO t WITH ('stream' = 'NAME'))"
ROWS_AT_ONCE: Final = 1_000
ONLY_WRITES: Final = (
    'format("producerd") writes and does not read: read a stream with a Kinesis source of your platform'
)
NO_QUERY: Final = "replayGuard: Spark does not tell this task to which query and batch it belongs; write without it"
OF_TABLES: Final = (
    "A table USING producerd needs its columns, and each INSERT INTO its options, WITH ('stream' = 'NAME')"
)
"""What to give instead, because Spark does not hand on what stands in OPTIONS (...)."""
_CAMEL: Final = {option.name: option.camel for option in OPTIONS}
OPTION: Final = {column: _CAMEL[OPTION_OF.get(column, column)] for column in (KEY, DATA, HASH_KEY, STREAM)}
"""The option that names each column."""
KEY_TYPES: Final = (*PAYLOAD_TYPES, "byte", "short", "integer", "long")
"""Types that Arrow writes as text just as Spark's own cast does.  Decimals without a scale are such a type, too."""
STREAMS_ARROW: Final = hasattr(datasource, "DataSourceStreamArrowWriter")
"""Whether Spark hands its streaming sinks Arrow batches.  Spark 4.0 hands them rows."""
_STREAM_BASE: Any = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)


class ProducerdDataSource(datasource.DataSource):
    """The data source.  Raises one ConfigurationError for all its options, and BadColumn for its columns."""

    @classmethod
    def name(cls) -> str:
        return "producerd"

    def schema(self) -> Any:
        """Refuse: Spark asks for a schema to read a DataFrame, and for a table that was given no columns."""
        refuse([f"{ONLY_WRITES}. {OF_TABLES}"])

    def reader(self, schema: StructType) -> Any:  # noqa: ARG002 - Spark's shape
        refuse([ONLY_WRITES])

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802, ARG002 - Spark's name and shape
        refuse([ONLY_WRITES])

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        if overwrite:
            refuse(['a Kinesis stream can only be appended to: give .mode("append") to save(), or say INSERT INTO'])
        options = from_text(self.options)
        if options.replay_guard is not None and options.replay_key is None:
            refuse(["replayKey: give a batch job with replayGuard one that only this write and its repeats have"])
        return _BatchWriter(_Sink.of(options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802, ARG002 - Spark's name and shape
        return _StreamWriter(_Sink.of(from_text(self.options), schema))


class _CommitMessage(datasource.WriterCommitMessage):
    """A task's commit: its `PartitionResult` as a line, or None for an empty partition.

    ``guards`` is the folder of its replay guard.
    """

    def __init__(self, line: str | None, guards: str = "") -> None:
        self.line = line
        self.guards = guards


class _Sink(NamedTuple):
    """The options, and the place in a row of each column that is sent.  It can be pickled."""

    options: WriterOptions
    places: dict[str, int]
    binary: frozenset[str]
    token: str  # of this write
    guard: GuardPlan | None  # without the folder of a query's batch, which its tasks know

    @staticmethod
    def of(options: WriterOptions, schema: StructType) -> _Sink:
        """Return the sink for a schema.  Raises BadColumn if the schema lacks a column that the options name."""
        names = schema.names
        places, binary = {}, set()
        for column, given in named(options, names, data=DATA, way=WAY_TO_NAME_A_STREAM).items():
            name = found(str(given), names)
            if name is None:
                raise bad_column(OPTION[column], str(given), names, NO_COLUMN)
            if names.count(name) > 1 or (name != given and sum(other.lower() == name.lower() for other in names) > 1):
                raise _odd(column, name, f"{SEVERAL}: rename one")
            kind = schema[name].dataType
            if column == DATA and kind.typeName() not in PAYLOAD_TYPES:
                raise bad_data(name, kind.simpleString())
            if kind.typeName() not in KEY_TYPES and getattr(kind, "scale", None) != 0:
                raise _odd(column, name, f"is of type {kind.simpleString()}: cast it to string")
            places[column] = names.index(name)
            if kind.typeName() == "binary":
                binary.add(column)
        return _Sink(options, places, frozenset(binary), uuid.uuid4().hex, _guard(options))

    def send(self, batches: Iterable[pa.RecordBatch], call: str, guards: str) -> _CommitMessage:
        """Send one task's partition.

        The names of its diverted rows' files begin with ``call``, and its replay guard's folder is ``guards``.
        """
        if not self.options.allow_speculation:
            refuse_speculation(local_property("spark.speculation"))
        guard = None if self.guard is None else self.guard._replace(folder=guards)
        result = send(Plan.of(self.options, call=call, guard=guard), map(self._sent, batches))
        return _CommitMessage(result.to_line() if result is not None else None, guards)

    def _sent(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that are sent, under our own names."""
        return type(batch).from_arrays([batch.column(at) for at in self.places.values()], names=[*self.places])

    def batches(self, rows: Iterator[Sequence[Any]]) -> Iterator[pa.RecordBatch]:
        """Yield rows as Spark's Arrow batches would have them, each no larger than a few frames."""
        import pyarrow as pa

        while chunk := list(itertools.islice(rows, ROWS_AT_ONCE)):
            columns = [pa.nulls(len(chunk))] * (max(self.places.values()) + 1)
            for column, at in self.places.items():
                if column in self.binary:
                    columns[at] = pa.array([row[at] for row in chunk], pa.binary())
                else:
                    columns[at] = pa.array([None if row[at] is None else str(row[at]) for row in chunk], pa.string())
            yield pa.RecordBatch.from_arrays(columns, names=[str(at) for at in range(len(columns))])

    def sum_up(self, batch_id: int | None, messages: Iterable[datasource.WriterCommitMessage | None]) -> None:
        """Sum up and log the tasks' reports.  Raises RecordsFailed if rows failed that may not be skipped."""
        lines = [
            message.line for message in messages if isinstance(message, _CommitMessage) and message.line is not None
        ]
        results = map(PartitionResult.from_line, lines)
        options = self.options
        merge(batch_id, options.stream, results, skip_bad_records=options.skips_bad_records).log(LOG)

    def forget_other_batches(self, batch_id: int, messages: Iterable[datasource.WriterCommitMessage | None]) -> None:
        """Remove what the replay guard knows of the query's other batches, when this one is stored."""
        names = {message.guards.split("/")[0] for message in messages if isinstance(message, _CommitMessage)} - {""}
        if self.guard is not None:
            from spark_client.replay.driver import remove_batches
            from spark_client.replay.store import within

            for name in names:
                with contextlib.suppress(TimeoutError):
                    within(functools.partial(remove_batches, self.guard.uri, name, batch_id))


def _guard(options: WriterOptions) -> GuardPlan | None:
    """Return what all tasks of a write must know of its replay guard.  What is imported here is not without one."""
    if options.replay_guard is None:
        return None
    from spark_client.replay.driver import plan_without_look

    return plan_without_look(options.replay_guard, options.replay_guard_interval_seconds)


def _odd(column: str, name: str, why: str) -> BadColumn:
    return BadColumn(marked(Code.BAD_COLUMN, f"{OPTION[column]}={name!r}: {why}"))


class _BatchWriter(datasource.DataSourceArrowWriter):
    def __init__(self, sink: _Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _CommitMessage:
        return self._sink.send(iterator, self._sink.token, f"key={self._sink.options.replay_key}/batch=none/0")

    def commit(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        self._sink.sum_up(None, messages)


class _StreamWriter(_STREAM_BASE):  # type: ignore[misc]  # one of two classes, known at run time
    def __init__(self, sink: _Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[Any]) -> _CommitMessage:
        # A query has one such sink, and nothing else of it has names of this form.
        query_id, batch_id = local_property(QUERY_ID), local_property(BATCH_ID)
        batches = iterator if STREAMS_ARROW else self._sink.batches(iterator)
        if self._sink.guard is not None and not (query_id and batch_id):
            refuse([NO_QUERY])
        return self._sink.send(batches, f"{query_id}-{batch_id}-sink", f"query={query_id}/batch={batch_id}/0")

    def commit(self, messages: list[datasource.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        self._sink.sum_up(batchId, messages)
        self._sink.forget_other_batches(batchId, messages)
