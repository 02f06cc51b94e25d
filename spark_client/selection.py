"""Selects the columns to send, as the options name them, and raises BadColumn before any job starts.

An option is a column's name, or any SQL expression, or a Column.  A name is taken literally, with any dots or spaces
that it has.  A name that no column has is refused without asking Spark, as Spark 4 prints 8,000 characters of the JVM's
stack for each such question.  Nothing here uses a SparkContext, so that DataFrames of Spark Connect work, too.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from producerd.errors import BadColumn, Code
from spark_client.batches import DATA, HASH_KEY, KEY, STREAM
from spark_client.configuration import functions_of
from spark_client.results import marked, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from spark_client.options import JsonOption, WriterOptions

LOG: Final = logging.getLogger("producerd.client")
ALIASES: Final = {KEY: "partitionKey", HASH_KEY: "explicitHashKey"}
"""Names that the Kinesis sources of Databricks and AWS produce.  They are used if our own default name is absent."""
SOURCE_STREAM: Final = "streamName"
"""The column in which AWS's Kinesis source names the stream of a row.  No row goes back there unasked."""
OPTION_OF: Final = {STREAM: "stream_column"}
"""The option that names a column, if the two have different names."""
TIMESTAMP_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
"""ISO 8601 with the six digits of the second that Spark's timestamps have.  By default `to_json` writes three."""
ZONE_FORMAT: Final = "XXXXX"
LEGACY_ZONE_FORMAT: Final = "XXX"
"""Spark's legacy formatter refuses XXXXX, which adds the seconds of old zones' offsets (+00:53:28)."""
MAX_COLUMNS_NAMED: Final = 50
PAYLOAD_TYPES: Final = ("string", "varchar", "char", "binary")
NO_COLUMN: Final = "no such column"
SEVERAL: Final = "several columns have this name"
WAY_TO_NAME_A_STREAM: Final = "stream='NAME'"
NESTED_TYPES: Final = ("struct", "array", "map")

NAME_PART: Final = re.compile(r"`((?:[^`]|``)+)`|([^\W\d]\w*)")
NAME: Final = re.compile(rf"(?:{NAME_PART.pattern})(?:\.(?:{NAME_PART.pattern}))*")
"""A name in SQL, with its parts."""
NO_COLUMNS: Final = frozenset(
    (
        *("null", "true", "false", "user", "current_user", "session_user", "_metadata"),
        *("current_date", "current_time", "current_timestamp", "localtimestamp"),
    )
)
"""Single words that Spark resolves although no column of the DataFrame has that name."""
QUALIFIERS: Final = frozenset(("_metadata", "session", "system"))
"""First parts of names that do not name a column, but a file's metadata or a variable."""
LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""The loggers to which Spark 4 writes each error of analysis, with the JVM's stack."""


def select(df: DataFrame, options: WriterOptions) -> DataFrame:
    """Return the columns ``partition_key`` and ``data``, and if wanted ``explicit_hash_key`` and ``stream``.

    All are strings, except that ``data`` may be binary.
    """
    wanted = named(
        options, df.columns, data=_whole_row(df, options) if options.data is None else "", way=WAY_TO_NAME_A_STREAM
    )
    errors = importlib.import_module("pyspark.errors")
    with _quietly():
        try:
            selected, kinds = _at_once(df, wanted)
            if list(kinds) != list(wanted):
                selected, kinds = _one_by_one(df, wanted)
        except errors.AnalysisException:
            try:
                selected, kinds = _one_by_one(df, wanted)
            except errors.AnalysisException as error:
                raise _culprit(df, wanted, error) from None
    if list(kinds) != list(wanted) or kinds[DATA].typeName() not in PAYLOAD_TYPES:
        raise bad_data(wanted[DATA], ", ".join(kind.simpleString() for name, kind in kinds.items() if name == DATA))
    payload = found(DATA, df.columns) if options.data is None else None
    if payload is not None and df.schema[payload].dataType.typeName() in PAYLOAD_TYPES:
        _log_whole_row(options.stream, payload)
    return selected


@functools.cache
def _log_whole_row(stream: str | None, payload: str) -> None:
    """Log once that a column with the name of the data source's payload is not the payload here (decision 0016)."""
    to = "the streams of the rows" if stream is None else f"stream {stream}"
    LOG.warning(
        "%s: the whole row is sent as JSON, with its column %s: give data=%r to send only that", to, payload, payload
    )


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep Spark 4 from printing the errors of this thread's questions, as the error that is raised quotes them."""
    asking = threading.get_ident()

    def is_of_another(record: logging.LogRecord) -> bool:
        return record.thread != asking

    try:
        get_logger = importlib.import_module("pyspark.logger").PySparkLogger.getLogger
    except ImportError:  # Spark 3.5 prints nothing
        yield
        return
    loggers = [get_logger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(is_of_another)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_of_another)


def _whole_row(df: DataFrame, options: WriterOptions) -> str:
    """Return an SQL expression for the row as JSON.

    Its timestamps have microseconds, unless the user's own options of `to_json` say otherwise.
    """
    legacy = str(df.sparkSession.conf.get("spark.sql.legacy.timeParserPolicy", "CORRECTED")).upper() == "LEGACY"
    zone = LEGACY_ZONE_FORMAT if legacy else ZONE_FORMAT
    formats = {"timestampFormat": f"{TIMESTAMP_FORMAT}{zone}", "timestampNTZFormat": TIMESTAMP_FORMAT}
    every = [*formats.items(), *(options.json_options or {}).items()]
    settings = {name.lower(): value for name, value in every}  # Spark ignores the case of their names
    return f"to_json(struct(*), map({', '.join(_literal(text) for pair in settings.items() for text in pair)}))"


def _literal(value: JsonOption) -> str:
    """Return a text as SQL that does not depend on how the session reads quotes and backslashes."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def _at_once(df: DataFrame, wanted: Mapping[str, Any]) -> tuple[DataFrame, dict[str, Any]]:
    """Select the columns by one text for each, which Spark parses.

    That takes 4 ms, and 12 with Columns that are made call by call (pyspark 4.3).  It does not work for Columns, nor
    for text that is more than an expression, such as one with an alias.
    """
    if not all(isinstance(given, str) for given in wanted.values()):
        return _one_by_one(df, wanted)
    texts = {name: _expression(df, name, given) for name, given in wanted.items()}
    return _resolved(
        df.selectExpr(
            *[
                f"{text} AS {name}" if name == DATA else f"CAST({text} AS STRING) AS {name}"
                for name, text in texts.items()
            ]
        )
    )


def _one_by_one(df: DataFrame, wanted: Mapping[str, Any]) -> tuple[DataFrame, dict[str, Any]]:
    columns = {name: _column(df, name, given) for name, given in wanted.items()}
    unnamed = [
        columns[name].alias(name) for name, given in wanted.items() if name != DATA and not isinstance(given, str)
    ]
    if unnamed:
        for field in df.select(*unnamed).schema.fields:
            _must_be_a_key(field.name, wanted[field.name], field.dataType)
    kept = [(column if name == DATA else column.cast("string")).alias(name) for name, column in columns.items()]
    return _resolved(df.select(*kept))


def _resolved(df: DataFrame) -> tuple[DataFrame, dict[str, Any]]:
    """Return the DataFrame and its types.  Spark Connect resolves columns only when it is asked for their types."""
    return df, {field.name: field.dataType for field in df.schema.fields}


def named(options: WriterOptions, columns: Sequence[str], *, data: str, way: str) -> dict[str, Any]:
    """Return what to send as each of our columns, as the options name it; ``data`` is the payload if they name none.

    Raises BadColumn for rows without a stream; ``way`` is how the caller gives one.
    """
    wanted: dict[str, Any] = {KEY: options.partition_key, DATA: data if options.data is None else options.data}
    if options.explicit_hash_key is not None:
        wanted[HASH_KEY] = options.explicit_hash_key
    elif found(HASH_KEY, columns):
        wanted[HASH_KEY] = HASH_KEY
    if options.stream_column is not None:
        wanted[STREAM] = options.stream_column
    elif options.stream is None:
        if not found(STREAM, columns):
            raise no_stream(columns, way)
        wanted[STREAM] = STREAM
    return wanted


def found(name: str, columns: Sequence[str]) -> str | None:
    """Return the column of this name, or of its alias.  Case is ignored, as in Spark by default."""
    for wanted in (name, ALIASES.get(name, name)):
        same = [column for column in columns if column.lower() == wanted.lower()]
        if same:
            return wanted if wanted in same else same[0]
    return None


def no_stream(columns: Sequence[str], way: str) -> BadColumn:
    """Return the error for rows without a stream: no option names one, and no column has the default name."""
    ways = f"give {way}, or a column `stream`"
    source = found(SOURCE_STREAM, columns)
    if source:
        ways = (
            f"give {way}; or, to write each row to the stream that its column `{source}` "
            f'names, stream_column="{source}" (data source: streamColumn)'
        )
    return BadColumn(marked(Code.BAD_COLUMN, f"no stream: {ways}; columns: {_names(columns)}"))


def bad_column(option: str, name: str, columns: Sequence[str], why: str, fields: Sequence[str] = ()) -> BadColumn:
    """Return the error for a missing column, with the columns that exist.

    ``fields`` are the fields of structs, one of which the user may mean.
    """
    near = difflib.get_close_matches(name, [*columns, *fields])
    hint = f", did you mean {' or '.join(near)}?" if near else ","
    what = f"{option}={name!r}: {why}"
    if name in (KEY, DATA) and why == NO_COLUMN:  # the option's default, which the user may never have given
        what = f"no column {name}: give {option}="
    return BadColumn(marked(Code.BAD_COLUMN, f"{what}{hint} columns: {_names(columns)}"))


def bad_data(given: Any, has: str) -> BadColumn:
    """Return the error for a payload that is not text or bytes."""
    text = f"data={quoted(given)} has type {has}: give a string or binary column, such as to_json(...) or a cast"
    return BadColumn(marked(Code.BAD_COLUMN, text))


def _names(columns: Sequence[str]) -> str:
    return ", ".join(columns[:MAX_COLUMNS_NAMED])


def _column(df: DataFrame, option: str, given: Any) -> Column:
    column: Column = functions_of(df).expr(_expression(df, option, given)) if isinstance(given, str) else given
    return column


def _expression(df: DataFrame, option: str, given: str) -> str:
    """Return SQL for the column of this name, or for the expression.

    Raises BadColumn for a name that Spark cannot resolve.
    """
    name = given if given != option else found(option, df.columns) or given
    parts = _name_parts(name)
    column = _column_named(df, option, name) or (_column_named(df, option, parts[0]) if len(parts) == 1 else None)
    if column is not None:
        if option != DATA:
            _must_be_a_key(option, given, df.schema[df.columns.index(column)].dataType)
        return "`" + column.replace("`", "``") + "`"
    if parts and not _may_resolve(df, parts):
        fields = [path for path in _paths(df.schema) if path not in df.columns]
        raise bad_column(OPTION_OF.get(option, option), given, df.columns, NO_COLUMN, fields)
    return name


def _must_be_a_key(option: str, given: Any, kind: DataType) -> None:
    """Raise BadColumn for a type that Spark casts to a text which no consumer expects, such as {1, a}."""
    if kind.typeName() in NESTED_TYPES:
        text = f"{OPTION_OF.get(option, option)}={quoted(given)} has type {kind.simpleString()}: give a field of it, or"
        raise BadColumn(marked(Code.BAD_COLUMN, f"{text} a text such as to_json(...)"))


def _name_parts(text: str) -> list[str]:
    """Return the parts of a name in SQL, or none if the text is more than a name."""
    if not NAME.fullmatch(text):
        return []
    return [quoted.replace("``", "`") or plain for quoted, plain in NAME_PART.findall(text)]


def _column_named(df: DataFrame, option: str, name: str) -> str | None:
    """Return the column of this whole name, with its dots.  Case is ignored unless the session says otherwise."""
    same = [column for column in df.columns if column.lower() == name.lower()]
    if same not in ([], [name]) and _is_case_sensitive(df):
        same = [column for column in same if column == name]
    if len(same) > 1:
        text = f"{OPTION_OF.get(option, option)}={name!r}: {SEVERAL}: rename one, or after a join give its Column"
        raise BadColumn(marked(Code.BAD_COLUMN, text))
    return same[0] if same else None


def _is_case_sensitive(df: DataFrame) -> bool:
    return str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"


def _may_resolve(df: DataFrame, parts: Sequence[str]) -> bool:
    """Return whether Spark may know a name that no column has as a whole, such as the field of a struct."""
    first, *others = (part.lower() for part in parts)
    if not others:
        return first in NO_COLUMNS
    kinds = {field.name.lower(): field.dataType for field in df.schema.fields}
    if first in QUALIFIERS or any(part in kinds for part in others):
        return True
    if first in kinds and kinds[first].typeName() == "struct":
        return f"{first}.{others[0]}" in {path.lower() for path in _paths(df.schema)}
    return first in kinds


def _paths(kind: DataType, before: str = "") -> Iterator[str]:
    """Yield the names of a struct's fields, and of their fields."""
    for field in getattr(kind, "fields", ()):
        yield before + field.name
        yield from _paths(field.dataType, f"{before}{field.name}.")


def _culprit(df: DataFrame, wanted: dict[str, Any], error: Exception) -> BadColumn:
    """Return the error of the column that Spark cannot resolve, after trying each of them alone."""
    for option, given in wanted.items():
        try:
            df.select(_column(df, option, given).alias(option)).schema  # noqa: B018 - Connect resolves a column only here
        except importlib.import_module("pyspark.errors").AnalysisException as alone:
            return _unresolved(df, option, given, alone)
    return _unresolved(df, *next(iter(wanted.items())), error)


def _unresolved(df: DataFrame, option: str, given: Any, error: Exception) -> BadColumn:
    reason = " ".join(str(error).strip().splitlines()[:1])
    why = f"neither a column nor an expression that Spark accepts ({reason})"
    return bad_column(OPTION_OF.get(option, option), str(given), df.columns, why)
