"""The columns that are sent, as the options name them; what Spark cannot resolve is a BadColumn before any job starts.

An option is a column's name, taken literally whatever dots or spaces it has; else any SQL expression; or a Column.
Classic and Connect DataFrames both: no SparkContext is touched.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from producerd.errors import BadColumn, Code
from spark_client.batches import DATA, HASH_KEY, KEY, STREAM
from spark_client.results import marked

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_client.options import Options

ALIASES: Final = {KEY: "partitionKey", HASH_KEY: "explicitHashKey", STREAM: "streamName"}
"""What Spark's Kinesis sources produce (Databricks', AWS's), taken where our own default name is absent."""
WHOLE_ROW: Final = "to_json(struct(*))"
MAX_NAMES_TOLD: Final = 50
PAYLOAD_TYPES: Final = ("string", "varchar", "char", "binary")


def select(df: DataFrame, options: Options) -> DataFrame:
    """The columns ``partition_key``, ``data``, and if wanted ``explicit_hash_key`` and ``stream``.

    All are strings, but for data, which may be binary.
    """
    wanted = named(options, df.columns, data=WHOLE_ROW)
    errors = importlib.import_module("pyspark.errors")
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
    return selected


def _at_once(df: DataFrame, wanted: Mapping[str, Any]) -> tuple[DataFrame, dict[str, Any]]:
    """Spark parses one text for each column: 4 ms, where Columns made call by call take 12 (pyspark 4.3).

    Not for Columns, and not for text that is more than an expression, such as one with an alias.
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
    kept = [(column if name == DATA else column.cast("string")).alias(name) for name, column in columns.items()]
    return _resolved(df.select(*kept))


def _resolved(df: DataFrame) -> tuple[DataFrame, dict[str, Any]]:
    """Connect resolves columns only when it is asked for their types."""
    return df, {field.name: field.dataType for field in df.schema.fields}


def named(options: Options, columns: Sequence[str], *, data: str) -> dict[str, Any]:
    """What is sent as each of our columns, as the options name it; ``data``: what is where they name none."""
    wanted: dict[str, Any] = {KEY: options.partition_key, DATA: data if options.data is None else options.data}
    if options.explicit_hash_key is not None:
        wanted[HASH_KEY] = options.explicit_hash_key
    elif found(HASH_KEY, columns):
        wanted[HASH_KEY] = HASH_KEY
    if options.stream is None:
        if not found(STREAM, columns):
            raise no_stream(columns)
        wanted[STREAM] = STREAM
    return wanted


def found(name: str, columns: Sequence[str]) -> str | None:
    """The column of this name, or of its alias; Spark's names have no case, unless it is told that they have."""
    for wanted in (name, ALIASES.get(name, name)):
        same = [column for column in columns if column.lower() == wanted.lower()]
        if same:
            return wanted if wanted in same else same[0]
    return None


def no_stream(columns: Sequence[str]) -> BadColumn:
    """Neither the option nor the column names a stream."""
    text = f"no stream: give its name with the option stream, or a column `stream`; columns: {_told(columns)}"
    return BadColumn(marked(Code.BAD_COLUMN, text))


def bad_column(option: str, name: str, columns: Sequence[str], why: str) -> BadColumn:
    """A column that is not there, with those that are."""
    near = difflib.get_close_matches(name, columns)
    hint = f", did you mean {' or '.join(near)}?" if near else ","
    return BadColumn(marked(Code.BAD_COLUMN, f"{option}={name!r}: {why}{hint} columns: {_told(columns)}"))


def bad_data(given: Any, has: str) -> BadColumn:
    """A payload that is neither text nor bytes."""
    text = f"data={given!s} has type {has}: give a string or binary column, such as to_json(...) or a cast"
    return BadColumn(marked(Code.BAD_COLUMN, text))


def _told(columns: Sequence[str]) -> str:
    return ", ".join(columns[:MAX_NAMES_TOLD])


def _column(df: DataFrame, option: str, given: Any) -> Column:
    column: Column = _functions(df).expr(_expression(df, option, given)) if isinstance(given, str) else given
    return column


def _expression(df: DataFrame, option: str, given: str) -> str:
    name = given if given != option else found(option, df.columns) or given
    return "`" + name.replace("`", "``") + "`" if name in df.columns else name


def _culprit(df: DataFrame, wanted: dict[str, Any], error: Exception) -> BadColumn:
    """Which of the columns Spark meant: each is resolved alone."""
    for option, given in wanted.items():
        try:
            df.select(_column(df, option, given)).schema  # noqa: B018 - Connect resolves a column only here
        except importlib.import_module("pyspark.errors").AnalysisException as alone:
            return _unresolved(df, option, given, alone)
    return _unresolved(df, *next(iter(wanted.items())), error)


def _unresolved(df: DataFrame, option: str, given: Any, error: Exception) -> BadColumn:
    if re.fullmatch(r"\w+", str(given)):
        return bad_column(option, str(given), df.columns, "no such column")
    reason = " ".join(str(error).strip().splitlines()[:1])
    why = f"neither a column nor an expression that Spark accepts ({reason})"
    return bad_column(option, str(given), df.columns, why)


def _functions(df: DataFrame) -> Any:
    """``pyspark.sql.functions`` of the DataFrame's own kind."""
    connect = type(df).__module__.startswith("pyspark.sql.connect")
    return importlib.import_module("pyspark.sql.connect.functions" if connect else "pyspark.sql.functions")
