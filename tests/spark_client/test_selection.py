"""The columns to send become one text each that Spark parses, and a name that no column has is refused without Spark.

A stand-in for a DataFrame shows what Spark is asked.  tests/spark_client/test_writer.py asks a real one.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.types import DataType, IntegerType, LongType, MapType, StringType, StructField, StructType

from spark_client import BadColumn, selection
from spark_client.options import WriterOptions
from spark_client.selection import found, select
from tests.snapshots import Snapshot
from tests.spark_client.fake_spark import fake_spark

TEXT = StringType()
KEY = "CAST(`partition_key` AS STRING) AS partition_key"
TIMES = {
    "timestampformat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampntzformat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
CASE = {"sql.caseSensitive": "true"}
CASELESS: Mapping[str, str] = {}
ALL_TEXT: Mapping[str, DataType] = {}


class Expression:
    """A Column: Spark takes what stands behind an expression, and only in a Column."""

    def __init__(self, text: str) -> None:
        self.text = re.sub(r" AS \w+$| --.*$", "", text)

    def cast(self, kind: str) -> Expression:
        return Expression(f"CAST({self.text} AS {kind.upper()})")

    def alias(self, name: str) -> Expression:
        named = Expression(self.text)
        named.text += f" AS {name}"
        return named

    def __str__(self) -> str:
        return self.text


class Frame:
    """A DataFrame that resolves all but what is called missing.  ``kinds`` are the types that are not strings."""

    def __init__(self, columns: Mapping[str, DataType], kinds: Mapping[str, DataType], conf: Mapping[str, str]) -> None:
        self.schema = StructType([StructField(name, kind) for name, kind in columns.items()])
        self.columns = list(columns)
        self.sparkSession = fake_spark(**conf)
        self._kinds = kinds

    def selectExpr(self, *texts: str) -> Any:  # noqa: N802 - Spark's name
        for text in texts:
            if re.search(r" AS \w+ AS ", text):
                raise AnalysisException("[PARSE_SYNTAX_ERROR] at 'AS'\n\tat java.base")
        return self._resolved([re.sub(" --.*", "", text) for text in texts])

    def select(self, *columns: Any) -> Any:
        return self._resolved([column.text for column in columns])

    def _resolved(self, texts: Sequence[str]) -> Any:
        if any("missing" in text for text in texts):
            raise AnalysisException("[UNRESOLVED_COLUMN] it is missing\n\tat java.base")
        pairs = [re.fullmatch(r"(?:(.*) AS )?(\S+)", text) for text in texts]
        fields = [StructField(pair[2], self._kinds.get(pair[1], TEXT)) for pair in pairs if pair]
        return SimpleNamespace(schema=StructType(fields), texts=list(texts))


@pytest.fixture(autouse=True)
def functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes a Column of a text."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.functions", SimpleNamespace(expr=Expression))


def frame(*names: str, conf: Mapping[str, str] = CASELESS, kinds: Mapping[str, DataType] = ALL_TEXT) -> Any:
    return Frame(dict.fromkeys(names, TEXT), kinds, conf)


def nested() -> Any:
    inner = StructType([StructField("Town", TEXT), StructField("at", StructType([StructField("lat", LongType())]))])
    columns = {"id": LongType(), "tail.num": TEXT, "Place": inner, "tags": MapType(TEXT, TEXT)}
    return Frame(columns, ALL_TEXT, CASELESS)


def texts(df: Any, **options: Any) -> list[str]:
    """What Spark is asked for."""
    selected: Any = select(df, WriterOptions(**{"stream": "s", "data": "data", **options}))
    return list(selected.texts)


def column_of(text: str) -> Any:
    """Return a Column, which users give in place of a name."""
    return type("Column", (Expression,), {})(text)


def whole_row(settings: Mapping[str, str]) -> str:
    words = [f"CAST(X'{word.encode().hex()}' AS STRING)" for pair in settings.items() for word in pair]
    return f"to_json(struct(*), map({', '.join(words)})) AS data"


# ---- which columns


def test_a_key_and_the_data_are_sent_and_what_else_is_there_or_named() -> None:
    assert texts(frame("x", "data", "partition_key")) == [KEY, "`data` AS data"]
    of_a_source = frame("partitionKey", "explicitHashKey", "data", "stream")
    hash_key = "CAST(`explicitHashKey` AS STRING) AS explicit_hash_key"
    sent = ["CAST(`partitionKey` AS STRING) AS partition_key", "`data` AS data", hash_key]
    assert texts(of_a_source) == sent
    assert texts(of_a_source, stream=None) == [*sent, "CAST(`stream` AS STRING) AS stream"]
    named = {"partition_key": "k", "data": "d", "explicit_hash_key": "h", "stream_column": "to", "stream": None}
    assert texts(frame("k", "d", "h", "to", "explicit_hash_key", "stream"), **named) == [
        "CAST(`k` AS STRING) AS partition_key",
        "`d` AS data",
        "CAST(`h` AS STRING) AS explicit_hash_key",
        "CAST(`to` AS STRING) AS stream",
    ]


@pytest.mark.parametrize(
    ("conf", "json_options", "settings"),
    [
        ({}, None, TIMES),
        ({"sql.legacy.timeParserPolicy": "corrected"}, {}, TIMES),
        (
            {"sql.legacy.timeParserPolicy": "legacy"},
            None,
            {**TIMES, "timestampformat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"},
        ),
        (
            {},
            {"TimestampFormat": "HH:mm", "ignoreNullFields": False, "x": 0.5},
            {**TIMES, "timestampformat": "HH:mm", "ignorenullfields": "false", "x": "0.5"},
        ),
    ],
)
def test_the_default_data_is_the_row_as_json_with_the_user_s_options(
    conf: dict[str, str], json_options: Any, settings: dict[str, str]
) -> None:
    df = frame("partition_key", conf=conf)
    assert texts(df, data=None, json_options=json_options) == [KEY, whole_row(settings)]


def test_a_column_is_found_by_its_name_then_by_its_alias_and_best_in_the_same_case() -> None:
    assert found("partition_key", ["partitionKey", "Partition_Key"]) == "Partition_Key"
    assert found("partition_key", ["PARTITIONKEY"]) == "PARTITIONKEY"
    assert found("explicit_hash_key", ["x", "explicitHashKey"]) == "explicitHashKey"
    assert found("tail", ["Tail", "tail"]) == "tail"
    assert found("tail", ["Tail", "TAIL"]) == "Tail"
    assert found("tail", ["tails", "explicitHashKey"]) is None


def test_a_column_data_that_is_sent_within_the_row_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for columns in ("partition_key", "data"), ("partition_key", "x"):
        for _ in range(2):
            texts(frame(*columns), stream="of-its-own", data=None)
    (line,) = caplog.messages
    assert line == (
        "stream of-its-own: the whole row is sent as JSON, with its column data: give data='data' to send only that"
    )


# ---- names and expressions


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("tail.num", "`tail.num`"),
        ("`tail.num`", "`tail.num`"),
        ("TAIL.NUM", "`tail.num`"),
        ("ID", "`id`"),
        ("id + 1", "id + 1"),
        ("current_date", "current_date"),
        ("_metadata.file_name", "_metadata.file_name"),
        ("flights.ID", "flights.ID"),
        ("PLACE.town", "PLACE.town"),
        ("place.`TOWN`.x", "place.`TOWN`.x"),
        ("place.at.lat", "place.at.lat"),
        ("tags.any", "tags.any"),
    ],
)
def test_a_name_is_quoted_and_what_spark_may_know_is_left_to_it(given: str, text: str) -> None:
    assert texts(nested(), partition_key=given, data="id") == [
        f"CAST({text} AS STRING) AS partition_key",
        "`id` AS data",
    ]


def test_a_name_may_have_backquotes_itself() -> None:
    assert texts(frame("a`b", "data"), partition_key="`a``b`")[0] == "CAST(`a``b` AS STRING) AS partition_key"


def test_case_counts_where_the_session_says_so_and_it_is_not_asked_without_need() -> None:
    assert texts(frame("Tail", "data"), partition_key="tail")[0] == "CAST(`Tail` AS STRING) AS partition_key"
    sensitive = frame("Tail", "tail", "data", conf=CASE)
    assert texts(sensitive, partition_key="tail")[0] == "CAST(`tail` AS STRING) AS partition_key"
    plain = frame("k", "data")
    plain.sparkSession.conf.get = lambda *_: pytest.fail("the session is asked")
    assert select(plain, WriterOptions("s", "k", "data")) is not None


# ---- what Spark makes of it


def test_columns_and_what_is_more_than_an_expression_are_made_call_by_call() -> None:
    df = frame("partition_key", "data", "id")
    column = column_of("encode(data)")
    assert texts(df, partition_key=column) == ["CAST(encode(data) AS STRING) AS partition_key", "`data` AS data"]
    assert texts(df, data=column) == [KEY, "encode(data) AS data"]
    assert texts(df, partition_key="id * 3 AS key") == ["CAST(id * 3 AS STRING) AS partition_key", "`data` AS data"]
    assert texts(df, data="upper(data) -- the payload") == [KEY, "upper(data) AS data"]


def test_spark_s_loggers_are_silent_for_this_thread_s_questions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    getter = pytest.importorskip("pyspark.logger", reason="Spark 3.5 logs nothing").PySparkLogger.getLogger
    logger, printed = getter(selection.LOGGERS[0]), []
    handler = logging.Handler()
    handler.emit = lambda record: printed.append(record.getMessage())  # type: ignore[method-assign]
    df = frame("partition_key", "data")

    def logs(*_: str) -> Any:
        logger.error("ours")
        other = threading.Thread(target=logger.error, args=("another's",))
        other.start()
        other.join()
        return Frame.selectExpr(df, KEY, "data")

    monkeypatch.setattr(df, "selectExpr", logs)
    logger.addHandler(handler)
    try:
        texts(df)
        assert printed == ["another's"]
        logger.error("later")
        assert printed == ["another's", "later"]
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize(("kind", "made"), [("sql", "classic"), ("sql.connect", "connected")])
def test_columns_are_of_the_dataframe_s_own_kind(kind: str, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, own in (("sql", "classic"), ("sql.connect", "connected")):
        stands_in = SimpleNamespace(expr=lambda _, own=own: Expression(own))
        monkeypatch.setitem(sys.modules, f"pyspark.{name}.functions", stands_in)
    df = frame("partition_key", "data")
    df.__class__ = type("DataFrame", (Frame,), {"__module__": f"pyspark.{kind}.dataframe"})
    column = column_of("key")
    assert texts(df, partition_key=column) == ["CAST(key AS STRING) AS partition_key", f"{made} AS data"]


# ---- what is refused


FIFTY_ONE = ("partition_key", "data", *(f"c{number}" for number in range(48)), "last")
BY_COLUMN: dict[str, Any] = {"stream": None, "partition_key": "k"}
REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "no stream": (frame("k", "data"), BY_COLUMN),
    "no stream, and a column may name it": (frame("k", "StreamName"), BY_COLUMN),
    "no column of the default name": (frame("x", "data"), {}),
    "a struct as key": (nested(), {"partition_key": "Place"}),
    "a map as stream": (nested(), {"partition_key": "id", "data": "id", "stream": None, "stream_column": "tags"}),
    "a Column that is a map": (
        frame("k", "data", kinds={"m[1]": MapType(TEXT, TEXT)}),
        {"partition_key": "k", "explicit_hash_key": column_of("m[1]")},
    ),
    **{
        f"no column is called {name}": (nested(), {"partition_key": name})
        for name in ("tailnum", "`tail`", "tail.num.x", "place.tows", "Place.lat", "current_dates")
    },
    "another case, where case counts": (frame("Tail", "data", conf=CASE), {"partition_key": "tail"}),
    "no such column, of 51 columns": (frame(*FIFTY_ONE), {"stream": None, "stream_column": "nope"}),
    "several columns of a name": (
        frame("partition_key", "data", "To", "to"),
        {"stream": None, "stream_column": "TO"},
    ),
    "what Spark cannot resolve, as key": (frame("partition_key", "data"), {"partition_key": "upper(missing)"}),
    "what Spark cannot resolve, as data": (frame("partition_key", "data"), {"data": "upper(missing)"}),
    "what Spark cannot resolve, as stream": (
        frame("partition_key", "data"),
        {"stream": None, "stream_column": "upper(missing)"},
    ),
    "data that is a number": (frame("partition_key", "data", kinds={"`data`": IntegerType()}), {}),
}


def test_a_column_that_cannot_be_sent_is_refused_in_one_line_with_what_to_give(snapshot: Snapshot) -> None:
    lines = []
    for what, (df, options) in REFUSED.items():
        with pytest.raises(BadColumn) as caught:
            texts(df, **options)
        lines.append(f"# {what}\n{caught.value}\n")
    snapshot("bad_columns", "".join(lines))
