"""The columns that are sent, as the options name them; what Spark cannot resolve is a BadColumn before any job starts.

An option is a column's name, taken literally whatever dots or spaces it has; else any SQL expression; or a Column.
Classic and Connect DataFrames both: no SparkContext is touched.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any, Final

from producerd.errors import BadColumn

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ALIASES: Final = {"partition_key": "partitionKey", "explicit_hash_key": "explicitHashKey"}
"""What Spark's Kinesis sources produce, taken where our own default name is absent."""
MAX_NAMES_TOLD: Final = 50


def select(
    df: DataFrame, partition_key: str | Column, data: str | Column | None, explicit_hash_key: str | Column | None
) -> DataFrame:
    """``partition_key`` and ``explicit_hash_key`` (if given) as strings, and ``data`` as string or binary."""
    columns = [
        _column(df, "partition_key", partition_key).cast("string").alias("partition_key"),
        _data_column(df, "to_json(struct(*))" if data is None else data).alias("data"),
    ]
    if explicit_hash_key is not None:
        hash_key = _column(df, "explicit_hash_key", explicit_hash_key)
        columns.append(hash_key.cast("string").alias("explicit_hash_key"))
    return df.select(*columns)


def _column(df: DataFrame, option: str, given: str | Column) -> Column:
    errors = importlib.import_module("pyspark.errors")
    try:
        column: Column = _functions(df).expr(_expression(df, option, given)) if isinstance(given, str) else given
        df.select(column).schema  # noqa: B018 - Connect resolves a column only here
    except errors.AnalysisException as error:
        raise _bad_column(df, option, str(given), str(error)) from None
    return column


def _expression(df: DataFrame, option: str, given: str) -> str:
    alias = ALIASES.get(option)
    name = alias if alias in df.columns and given == option and option not in df.columns else given
    return "`" + name.replace("`", "``") + "`" if name in df.columns else name


def _bad_column(df: DataFrame, option: str, name: str, spark_says: str) -> BadColumn:
    near = difflib.get_close_matches(name, df.columns)
    hint = f", did you mean {' or '.join(near)}?" if near else ","
    columns = ", ".join(df.columns[:MAX_NAMES_TOLD])
    reason = " ".join(spark_says.strip().splitlines()[:1])
    return BadColumn(
        f"{option}={name!r}: neither a column nor an expression that Spark accepts{hint} columns: {columns} ({reason})"
    )


def _data_column(df: DataFrame, given: str | Column) -> Column:
    column = _column(df, "data", given)
    fields = df.select(column).schema.fields
    kinds = [field.dataType for field in fields]
    if [kind.typeName() for kind in kinds] not in (["string"], ["binary"], ["varchar"], ["char"]):
        has = ", ".join(kind.simpleString() for kind in kinds)
        raise BadColumn(
            f"data={given!s} has type {has}: give a string or binary column, such as to_json(...) or a cast"
        )
    return column


def _functions(df: DataFrame) -> Any:
    """``pyspark.sql.functions`` of the DataFrame's own kind."""
    connect = type(df).__module__.startswith("pyspark.sql.connect")
    return importlib.import_module("pyspark.sql.connect.functions" if connect else "pyspark.sql.functions")
