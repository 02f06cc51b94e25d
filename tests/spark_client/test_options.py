"""Options are taken or refused by name and value, all at once; the data source reads the same ones from text."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pandas
import pytest

from producerd.errors import ConfigurationError
from spark_client import KinesisBatchWriter, write_batch
from spark_client.options import OPTIONS, WriterOptions, from_text, seconds
from tests.snapshots import Snapshot

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/m1"
TO_WRITE = ("df", "batch_id", "dry_run", "misplaced")


def test_the_writer_the_table_and_the_values_have_the_same_names_and_defaults() -> None:
    signature = inspect.signature(KinesisBatchWriter).parameters
    of_the_writer = {name: parameter.default for name, parameter in signature.items() if name != "unknown"}
    assert of_the_writer == {field.name: field.default for field in dataclasses.fields(WriterOptions)}
    assert list(of_the_writer) == [option.name for option in OPTIONS]
    assert list(of_the_writer.values()) == [option.default for option in OPTIONS]
    typed = {field.name: field.type for field in dataclasses.fields(WriterOptions)}
    assert {name: parameter.annotation for name, parameter in signature.items() if name != "unknown"} == typed
    options = [one for one in inspect.signature(write_batch).parameters.values() if one.name not in TO_WRITE]
    assert [(one.name, one.default, one.annotation) for one in options] == [
        (one.name, one.default, one.annotation) for one in signature.values()
    ]


def test_a_type_checker_refuses_what_is_no_option_and_what_has_the_wrong_type() -> None:
    """`./dev check` fails if one of these is not refused any more."""
    with pytest.raises(ConfigurationError):
        KinesisBatchWriter("s", put_timeout="5s")  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError):
        KinesisBatchWriter("s", put_timeout_seconds="5s")  # type: ignore[arg-type]
    frame: Any = None
    with pytest.raises(ConfigurationError):
        write_batch(frame, stream="s", put_timeout="5s")  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError):
        write_batch(frame, stream="s", put_timeout_seconds="5s")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"json_options": {"ignoreNullFields": False, "timeZone": "UTC", "n": 1, "x": 0.5}},
        {"data": "d"},
        {"stream_column": "to"},
        {"socket": "/s"},
        {"daemon": {}},
        {"on_bad_record": "divert", "divert_to": "s3://b/p"},
        {"put_timeout_seconds": 0, "flush_timeout_seconds": 1_000_000, "connect_timeout_seconds": 0.5},
        {"reconnect_timeout_seconds": 0, "daemon_start_timeout_seconds": 1_000_000},
    ],
)
def test_options_that_go_together_are_taken(options: dict[str, Any]) -> None:
    taken = WriterOptions(**options)
    assert dataclasses.asdict(taken) == {**dataclasses.asdict(WriterOptions()), **options}


def test_a_column_may_be_given_as_such() -> None:
    column: Any = type("Column", (), {})()
    taken = WriterOptions(partition_key=column, data=column, explicit_hash_key=column, stream_column=column)
    assert taken.partition_key is taken.data is taken.explicit_hash_key is taken.stream_column is column


FRAME: Any = SimpleNamespace(sparkSession=None, isStreaming=False)
STREAMING: Any = SimpleNamespace(sparkSession=None, isStreaming=True)
WRITER: Any = KinesisBatchWriter
WRITE: Any = write_batch
CALLS: dict[str, Callable[[], object]] = {
    "write_batch(a pandas DataFrame)": lambda: WRITE(pandas.DataFrame()),
    "write_batch([])": lambda: WRITE([]),
    "write_batch(a streaming DataFrame, 5)": lambda: WRITE(STREAMING, 5),
    "write_batch(df, 'flights')": lambda: WRITE(FRAME, "flights"),
    "write_batch(df, 'flights', 5)": lambda: WRITE(FRAME, "flights", 5),
    "write_batch(df, 1.5)": lambda: WRITE(FRAME, 1.5),
    "write_batch(df, '7', stream='s')": lambda: WRITE(FRAME, "7", stream="s"),
    "KinesisBatchWriter(df)": lambda: WRITER(FRAME),
    **{
        f"KinesisBatchWriter('s', {name}='x')": lambda name=name: WRITER("s", **{name: "x"})  # type: ignore[misc]
        for name in ("partiton_key", "on_bad_records", "region", "streamName", "xyzzy")
    },
    "KinesisBatchWriter('s', strem='x', null_key='y')": lambda: WRITER("s", strem="x", null_key="y"),
}
VALUES: list[dict[str, Any]] = [
    {"stream": 5},
    {"stream": "my flights"},
    {"stream": "arn:aws:kinesis:eu-west-1:123456789012:stream/m1"},
    {"stream": ""},
    {"partition_key": 5},
    {"partition_key": None},
    {"null_key": "a@b?"},
    {"on_bad_record": "ignore"},
    {"connect_timeout_seconds": None},
    {"connect_timeout_seconds": 10**40},
    {"reconnect_timeout_seconds": float("nan")},
    {"put_timeout_seconds": float("inf")},
    {"put_timeout_seconds": True},
    {"put_timeout_seconds": 1_000_000.5},
    {"flush_timeout_seconds": -0.001},
    {"divert_to": 5},
    {"json_options": "x"},
    {"json_options": {5: "x"}},
    {"json_options": {"a": None}},
    {"allow_speculation": 1},
    {"socket": "/" + "x" * 107},
    # do not go together
    {"on_bad_record": "divert"},
    {"divert_to": "s3://b/p"},
    {"divert_to": "hdfs://n/p"},
    {"divert_to": "s3://ID:SECRET/KEY@b/p"},
    {"divert_to": "s3://b?access_key=ID&secret_key=SECRET"},
    {"stream": "s", "stream_column": "to"},
    {"json_options": {}, "data": "d"},
]
TEXTS: list[dict[str, str]] = [
    {"strem": "s"},
    {"putTimeout": "5s"},
    {"xyzzy": "1"},
    {"region": "eu-west-1"},
    {"queueLimit": "5"},
    {"allowSpeculation": "yes"},
    {"jsonOptions": "{}"},
    {"stream": "s", "streamColumn": "to"},
    {"streamName": "s"},
    {"putTimeoutSeconds": "5 parsecs"},
    {"putTimeoutSeconds": "1.2.3s"},
    {"putTimeoutSeconds": "-5s"},
    {"putTimeoutSeconds": "30d"},
    {"connectTimeoutSeconds": "none"},
    {"onBadRecord": "ignore"},
    {"stream": " "},
]


def test_what_is_refused_is_named_in_one_line_with_what_to_give_and_no_secret(snapshot: Snapshot) -> None:
    calls = {
        **CALLS,
        **{f"WriterOptions(**{given})": lambda given=given: WriterOptions(**given) for given in VALUES},  # type: ignore[misc]
        **{f"from_text({given})": lambda given=given: from_text(given) for given in TEXTS},  # type: ignore[misc]
    }
    lines = []
    for name, call in calls.items():
        with pytest.raises(ConfigurationError) as caught:
            call()
        problem = "; ".join(caught.value.problems)
        assert str(caught.value) == f"PRODUCERD[CONFIGURATION]: {problem}"
        assert "\n" not in problem
        assert "SECRET" not in problem
        lines.append(f"{name}\n    {problem}\n")
    snapshot("options_refused", "".join(lines))


@pytest.mark.parametrize(("on_bad_record", "skips"), [("fail", False), ("skip", True), ("divert", True)])
def test_a_batch_succeeds_without_bad_records_unless_they_fail_it(on_bad_record: str, skips: bool) -> None:
    options = WriterOptions(on_bad_record=on_bad_record, divert_to="s3://b" if on_bad_record == "divert" else None)
    assert options.skips_bad_records is skips


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"stream": "s"}, {"stream": "s"}),
        ({"putTimeoutSeconds": "5s"}, {"put_timeout_seconds": 5.0}),
        ({"puttimeoutseconds": "500ms"}, {"put_timeout_seconds": 0.5}),
        ({"flush_timeout_seconds": "2min"}, {"flush_timeout_seconds": 120.0}),
        ({"flushTimeoutSeconds": "NONE"}, {"flush_timeout_seconds": None}),
        ({"connectTimeoutSeconds": "1.5"}, {"connect_timeout_seconds": 1.5}),
        ({"onBadRecord": "skip", "checkpointlocation": "/c", "queryName": "q"}, {"on_bad_record": "skip"}),
        ({"streamColumn": "to", "allowspeculation": "TRUE"}, {"stream_column": "to", "allow_speculation": True}),
        ({"partitionKey": "tail", "explicitHashKey": "h", "DATA": "d"}, {}),
    ],
)
def test_text_is_read_without_regard_to_case(given: dict[str, str], found: dict[str, Any]) -> None:
    options = from_text(given)
    if not found:
        found = {"partition_key": "tail", "explicit_hash_key": "h", "data": "d"}
    assert options == dataclasses.replace(WriterOptions(), **found)


def test_all_of_it_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        KinesisBatchWriter("", null_key="drop", put_timeout_seconds=-1)
    assert [problem.split("=")[0] for problem in caught.value.problems] == ["stream", "null_key", "put_timeout_seconds"]
    with pytest.raises(ConfigurationError) as caught:
        from_text({"strem": "s", "flushTimeoutSeconds": "x", "region": "r"})
    assert [problem.split(":")[0].split("=")[0] for problem in caught.value.problems] == [
        "strem",
        "flushTimeoutSeconds",
        "region",
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5.0), ("5s", 5.0), (" 2 m ", 120.0), ("1h", 3600.0), ("1d", 86400.0), ("7us", 7e-6), ("none", None)],
)
def test_durations_have_sparks_units(text: str, value: float | None) -> None:
    assert seconds(text) == value


def test_a_writer_shows_what_it_was_given_and_no_secret() -> None:
    assert repr(KinesisBatchWriter()) == "KinesisBatchWriter()"
    writer = KinesisBatchWriter("s", "k", daemon={"region": "r", "external_id": "secret"}, put_timeout_seconds=5)
    daemon = "daemon={'region': 'r', 'external_id': (set, not shown)}"
    assert repr(writer) == f"KinesisBatchWriter(stream='s', partition_key='k', put_timeout_seconds=5, {daemon})"
