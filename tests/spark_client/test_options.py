"""Options hold or are refused by name and value, all at once; the data source reads the same ones from text."""

from __future__ import annotations

import dataclasses
import inspect
from types import SimpleNamespace
from typing import Any

import pandas
import pytest

from producerd.errors import ConfigurationError
from spark_client import KinesisBatchWriter, write_batch
from spark_client.diverting import PLACES
from spark_client.options import OPTIONS, WriterOptions, from_text, seconds

JSON_OPTIONS = "give a mapping of names to texts, numbers or booleans, as for to_json"
STREAM = "give the Kinesis stream's name, 1 to 128 of a-z A-Z 0-9 _ . -, or None where a column has one for each row"
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/m1"
TO_WRITE = ("df", "batch_id", "dry_run", "misplaced")
SECONDS = "give a number of seconds, 0 to 1,000,000"


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
    ("df", "batch_id", "said"),
    [
        (pandas.DataFrame(), None, "df is a pandas DataFrame: give spark.createDataFrame(df)"),
        ([], None, "df is a list: give a DataFrame of Spark"),
        (
            SimpleNamespace(sparkSession=None, isStreaming=True),
            5,
            "df is a streaming DataFrame: give the",
        ),
        (
            SimpleNamespace(sparkSession=None, isStreaming=False),
            "flights",
            "batch_id='flights': give the batch's number, or leave it out; did you mean stream='flights'?",
        ),
        (SimpleNamespace(sparkSession=None, isStreaming=False), 1.5, "batch_id=1.5: give the batch's number, or leave"),
    ],
)
def test_what_cannot_be_written_is_refused_with_the_call_to_make(df: Any, batch_id: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        write_batch(df, batch_id)
    assert said in str(raised.value)


def test_arguments_out_of_place_are_refused_with_what_to_give() -> None:
    frame: Any = SimpleNamespace(sparkSession=None, isStreaming=False)
    with pytest.raises(
        ConfigurationError, match=r"\]: 'flights', 5: after df and the batch's number, give each option"
    ):
        write_batch(frame, "flights", 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"stream=namespace.*: a DataFrame: write it with write_batch"):
        KinesisBatchWriter(frame)
    with pytest.raises(ConfigurationError, match=r"batch_id='7': give the batch's number, or leave it out$"):
        write_batch(frame, "7", stream="s")  # type: ignore[arg-type]


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stream": 5}, f"stream=5: {STREAM}"),
        ({"stream": "my flights"}, f"stream='my flights': {STREAM}"),
        ({"stream": ARN}, f"stream='{ARN}': give the name, 'm1'; an ARN is the daemon's setting stream_arn"),
        ({"partition_key": 5}, "partition_key=5: give a column's name, an SQL expression or a Column"),
        ({"partition_key": None}, "partition_key=None: give a column's name, an SQL expression or a Column"),
        ({"stream": ""}, f"stream='': {STREAM}"),
        ({"null_key": "a@b?"}, "null_key='a@b?': give 'spread'"),
        ({"on_bad_record": "ignore"}, "on_bad_record='ignore': give 'fail' or 'skip' or 'divert'"),
        ({"connect_timeout_seconds": None}, f"connect_timeout_seconds=None: {SECONDS}"),
        ({"reconnect_timeout_seconds": float("nan")}, f"reconnect_timeout_seconds=nan: {SECONDS}"),
        ({"put_timeout_seconds": float("inf")}, f"put_timeout_seconds=inf: {SECONDS}, or None to wait forever"),
        ({"put_timeout_seconds": True}, f"put_timeout_seconds=True: {SECONDS}, or None to wait forever"),
        ({"divert_to": 5}, f"divert_to=5: {PLACES}"),
        ({"json_options": "x"}, f"json_options='x': {JSON_OPTIONS}"),
        ({"json_options": {5: "x"}}, f"json_options={{5: 'x'}}: {JSON_OPTIONS}"),
        ({"put_timeout_seconds": 1_000_000.5}, f"put_timeout_seconds=1000000.5: {SECONDS}, or None to wait forever"),
        ({"flush_timeout_seconds": -0.001}, f"flush_timeout_seconds=-0.001: {SECONDS}, or None to wait forever"),
        ({"connect_timeout_seconds": 10**400}, f"connect_timeout_seconds={10**400}: {SECONDS}"),
        ({"allow_speculation": 1}, "allow_speculation=1: give True or False"),
    ],
)
def test_what_does_not_hold_is_one_problem(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        WriterOptions(**options)
    assert caught.value.problems == (said,)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_bad_record": "divert"}, "on_bad_record='divert', divert_to=None: give on_bad_record='divert' and the p"),
        ({"divert_to": "s3://b/p"}, "on_bad_record='fail', divert_to='s3://b/p': give on_bad_record='divert' and the "),
        ({"divert_to": "hdfs://n/p"}, "divert_to='hdfs://n/p': give s3://BUCKET/PREFIX, where "),
        ({"divert_to": "s3://ID:SEC/RET@b/p"}, "divert_to='***': give s3://BUCKET/PREFIX, where "),
        ({"divert_to": "s3://b?access_key=x&secret_key=y"}, "divert_to='***': give s3://BUCKET/PREFIX, where "),
        ({"stream": "s", "stream_column": "to"}, "stream='s': every row goes there, and no column says where; give o"),
        ({"json_options": {"a": None}}, "json_options={'a': None}: give a mapping of names to texts"),
        ({"json_options": {}, "data": "d"}, "json_options={}: of the default payload, but data='d' is sent as it is"),
    ],
)
def test_options_that_do_not_go_together_are_named_and_no_secret(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        WriterOptions(**options)
    assert said in str(caught.value)


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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"strem": "s"}, "strem: is not an option of producerd; did you mean stream?"),
        ({"putTimeout": "5s"}, "did you mean putTimeoutSeconds?"),
        (
            {"xyzzy": "1"},
            "xyzzy: is not an option of producerd; there are stream, partitionKey, data, explicitHashKey,",
        ),
        ({"region": "eu-west-1"}, "region: is not an option of producerd; access to AWS belongs to the daemon"),
        ({"queueLimit": "5"}, "queueLimit: is not an option of producerd; a setting of the daemon"),
        ({"allowSpeculation": "yes"}, "allowSpeculation='yes': give True or False"),
        (
            {"jsonOptions": "{}"},
            "jsonOptions: is not an option of producerd; it has no payload by default: give to_json(",
        ),
        ({"stream": "s", "streamColumn": "to"}, "stream='s': every row goes there"),
        ({"streamName": "s"}, "it is called stream"),
        ({"putTimeoutSeconds": "5 parsecs"}, "putTimeoutSeconds='5 parsecs': give a number of seconds"),
        ({"putTimeoutSeconds": "1.2.3s"}, "putTimeoutSeconds='1.2.3s'"),
        ({"putTimeoutSeconds": "-5s"}, "putTimeoutSeconds='-5s'"),
        ({"connectTimeoutSeconds": "none"}, "connectTimeoutSeconds='none': give a number of seconds"),
        (
            {"putTimeoutSeconds": "30d"},
            "putTimeoutSeconds='30d': give a number of seconds, 0 to 1,000,000, or 'none' to wait forever",
        ),
        ({"onBadRecord": "ignore"}, "onBadRecord='ignore': give 'fail' or 'skip'"),
        ({"stream": " "}, "stream=' '"),
    ],
)
def test_text_that_does_not_hold_is_refused_with_what_to_do(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        from_text(given)
    assert said in str(caught.value)
    assert str(caught.value).startswith("PRODUCERD[CONFIGURATION]: ")
    assert "\n" not in str(caught.value)


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


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("partiton_key", "partiton_key: is not an option of producerd; did you mean partition_key?"),
        ("on_bad_records", "did you mean on_bad_record?"),
        ("region", "region: is not an option of producerd; access to AWS belongs to the daemon"),
        ("streamName", "streamName: is not an option of producerd; it is called stream"),
        ("xyzzy", "there are stream, partition_key, data,"),
    ],
)
def test_an_argument_that_is_no_option_is_refused_as_text_is(name: str, said: str) -> None:
    write: Any = KinesisBatchWriter
    with pytest.raises(ConfigurationError) as caught:
        write("s", **{name: "x"})
    assert said in str(caught.value)
    assert str(caught.value).startswith("PRODUCERD[CONFIGURATION]: ")


def test_a_writer_shows_what_it_was_given_and_no_secret() -> None:
    assert repr(KinesisBatchWriter()) == "KinesisBatchWriter()"
    writer = KinesisBatchWriter("s", "k", daemon={"region": "r", "external_id": "secret"}, put_timeout_seconds=5)
    daemon = "daemon={'region': 'r', 'external_id': (set, not shown)}"
    assert repr(writer) == f"KinesisBatchWriter(stream='s', partition_key='k', put_timeout_seconds=5, {daemon})"
