"""If a Config exists it is valid; if not, every problem is one line that says what, where and what is allowed."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace

import jsonschema
import pytest
from botocore.utils import is_valid_uri, validate_region_name
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from producerd.config import Config, NodeSettings, StreamSettings, load
from producerd.config.settings import OF_ONE_STREAM, needs_restart
from producerd.config.sources import as_file
from producerd.config.summary import in_seconds
from producerd.config.text import allowed, as_toml, is_size, schema
from producerd.config.values import KIB, MIB, SOCKET_PATH_BYTES, default_socket
from producerd.errors import ConfigurationError
from tests.settings import random_settings
from tests.snapshots import Snapshot

pytestmark = pytest.mark.law("Config")
NOBODY: Mapping[str, str] = {}


def problems(*sets: str, environ: Mapping[str, str] = NOBODY, path: Path | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        load(path, sets, environ)
    return caught.value.problems


def problem(*sets: str, environ: Mapping[str, str] = NOBODY, path: Path | None = None) -> str:
    (line,) = problems(*sets, environ=environ, path=path)
    return line


def accepted(*sets: str) -> Config:
    return load(None, sets, NOBODY)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "producerd.toml"
    path.write_text(
        """
        socket = "/run/other.sock"
        max_streams = 7
        [defaults]
        queue_limit = 500
        linger_seconds = 2
        [streams."a.b"]
        queue_limit = 5
        queue_limit_bytes = "16 KiB"
        """
    )
    return path


def test_a_problem_is_one_line_whatever_the_name(tmp_path: Path) -> None:
    path = tmp_path / "producerd.toml"
    path.write_text('"queue\\nlimit" = 1')
    assert problem(path=path).startswith(f"'queue\\nlimit' = 1 (file {path}): no such setting; ")


class TestPrecedence:
    def test_defaults_are_those_of_the_names_table(self) -> None:
        config = load(environ=NOBODY)
        assert (config.node.metrics_listen, config.node.max_streams, config.node.socket_mode) == (
            "127.0.0.1:9474",
            64,
            0o660,
        )
        assert (config.defaults.queue_limit, config.defaults.queue_limit_bytes) == (1_000_000, 64 * MIB)
        assert config.defaults.aggregation == "none"
        assert config == Config(), "load without input and the models' own defaults agree"

    def test_set_beats_environment_beats_file_beats_default(self, file: Path) -> None:
        environ = {"PRODUCERD_QUEUE_LIMIT": "600", "PRODUCERD_LINGER_SECONDS": "3", "HOME": "/"}
        config = load(file, ["queue_limit=700"], environ)
        assert config.defaults.queue_limit == 700
        assert config.defaults.linger_seconds == 3
        assert load(file, environ=NOBODY).defaults.linger_seconds == 2
        assert load(file, environ=NOBODY).node.max_streams == 7

    def test_a_stream_is_laid_over_the_defaults_whatever_their_source(self, file: Path) -> None:
        config = load(file, ["linger_seconds=9"], NOBODY)
        assert config.stream("a.b").queue_limit == 5, "its own value beats a default given by --set"
        assert config.stream("a.b").linger_seconds == 9
        assert config.stream("unheard-of") is config.defaults

    def test_set_reaches_one_stream_and_its_name_may_have_dots(self, file: Path) -> None:
        config = load(file, ['streams."a.b".queue_limit=6', "streams.c-d.queue_limit=8"], NOBODY)
        assert config.stream("a.b").queue_limit == 6
        assert config.stream("c-d").queue_limit == 8
        assert config.stream("a.b").queue_limit_bytes == 16 * KIB

    def test_an_environment_variable_names_the_file_unless_an_argument_does(self, file: Path, tmp_path: Path) -> None:
        other = tmp_path / "other.toml"
        other.write_text("max_streams = 9")
        environ = {"PRODUCERD_CONFIG": str(other)}
        assert load(None, (), environ).node.max_streams == 9
        assert load(file, (), environ).node.max_streams == 7

    def test_what_kubernetes_puts_in_the_environment_for_a_service_of_our_name_is_not_ours(self) -> None:
        load(
            environ={
                "PRODUCERD_SERVICE_HOST": "10.0.0.1",
                "PRODUCERD_SERVICE_PORT_METRICS": "9474",
                "PRODUCERD_PORT": "tcp://10.0.0.1:9474",
                "PRODUCERD_METRICS_PORT_9474_TCP_ADDR": "10.0.0.1",
            }
        )


class TestValues:
    @pytest.mark.parametrize(
        ("text", "count"),
        [("4096", 4096), ("64 MiB", 64 * MIB), ("64mib", 64 * MIB), ("1.5 MiB", 1536 * KIB), ("5 MB", 5_000_000)],
    )
    def test_sizes_are_bytes_or_text_with_a_unit(self, text: str, count: int) -> None:
        assert load(None, [f"queue_limit_bytes={text}"], NOBODY).defaults.queue_limit_bytes == count

    def test_socket_mode_is_octal_text(self) -> None:
        assert accepted("socket_mode=0600").node.socket_mode == 0o600

    def test_allowed_uids_are_ids_and_names_that_are_looked_up_once(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        path = tmp_path / "p.toml"
        path.write_text('allowed_uids = [7, "spark", "9"]')
        asked = []

        def getpwnam(name: str) -> SimpleNamespace:
            asked.append(name)
            return SimpleNamespace(pw_uid=1000)

        monkeypatch.setattr("pwd.getpwnam", getpwnam)
        node = load(path, (), NOBODY).node
        assert node.allowed_uids == node.allowed_uids == {7, 9, 1000}
        assert asked == ["spark"]
        assert load(None, ["allowed_uids=spark, 7"], NOBODY).node.allowed_uids == {7, 1000}
        assert load(None, (), {"PRODUCERD_ALLOWED_UIDS": "7"}).node.allowed_uids == {7}
        assert load(path, ["allowed_uids="], NOBODY).node.allowed_uids == frozenset(), "everybody"

    def test_metrics_listen_gives_an_address_or_nothing(self) -> None:
        def address(text: str) -> tuple[str, int] | None:
            return load(None, [f"metrics_listen={text}"], NOBODY).node.metrics_address

        assert address("0.0.0.0:0") == ("0.0.0.0", 0)
        assert address("[::1]:9474") == ("::1", 9474)
        assert address("127.0.0.1:65535") == ("127.0.0.1", 65535)
        assert address("") is None

    def test_the_socket_of_a_user_is_in_the_runtime_directory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        monkeypatch.setattr("os.access", lambda *_: False)
        environ = {"XDG_RUNTIME_DIR": "/run/user/1000"}
        assert load(environ=environ).node.socket == Path("/run/user/1000/producerd/producerd.sock")
        assert default_socket(NOBODY) == Path("/run/producerd/producerd.sock")
        monkeypatch.setattr("os.access", lambda *_: True)
        assert default_socket(environ) == Path("/run/producerd/producerd.sock"), "as this user may write there"

    def test_the_socket_of_root_is_in_the_system_directory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.geteuid", lambda: 0)
        assert default_socket({"XDG_RUNTIME_DIR": "/run/user/0"}) == Path("/run/producerd/producerd.sock")

    def test_nothing_can_be_changed_later(self) -> None:
        config = load(environ=NOBODY)
        with pytest.raises(ValidationError):
            config.defaults.queue_limit = 1
        with pytest.raises(TypeError):
            config.streams["x"] = config.defaults  # type: ignore[index]


class TestWhereAStreamIs:
    def test_a_name_that_node_and_streams_have_means_the_node_unless_a_table_says_otherwise(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "p.toml"
        path.write_text('endpoint_url = "http://a"\n[defaults]\nrole_arn = "arn:aws:iam::123456789012:role/all"\n')
        config = load(path, ["streams.x.region=eu-west-1"], {"PRODUCERD_REGION": "us-east-1"})
        assert (config.node.region, config.node.endpoint_url, config.node.role_arn) == ("us-east-1", "http://a", None)
        assert (config.defaults.region, config.defaults.endpoint_url) == (None, None)
        assert config.stream("x").region == "eu-west-1"
        assert config.stream("x").role_arn == config.defaults.role_arn == "arn:aws:iam::123456789012:role/all"

    def test_the_region_is_that_of_the_arn(self) -> None:
        arn = "arn:aws-us-gov:kinesis:us-gov-west-1:123456789012:stream/a.b"
        assert load(None, [f"streams.x.stream_arn={arn}"], NOBODY).stream("x").stream_region == "us-gov-west-1"
        assert load(None, ["streams.x.region=eu-west-1"], NOBODY).stream("x").stream_region == "eu-west-1"
        assert load(environ=NOBODY).defaults.stream_region is None


class TestValuesThatMustFitEachOther:
    """What is refused at each limit stands in tests/snapshots/config_refused.txt."""

    def test_a_socket_path_is_as_long_as_the_system_takes(self) -> None:
        assert accepted("socket=/" + "x" * 106, "admin_socket=/a").node.socket.name == "x" * 106

    def test_producerctl_s_socket_lies_beside_the_clients_unless_it_is_set(self) -> None:
        assert accepted("socket=/x/a.sock").node.admin_path == Path("/x/a.admin.sock")
        assert accepted("socket=/x/a", "admin_socket=").node.admin_path == Path("/x/a.admin.sock")
        assert accepted("admin_socket=/y/b").node.admin_path == Path("/y/b")
        assert len(str(accepted("socket=/" + "x" * 95).node.admin_path)) == SOCKET_PATH_BYTES

    def test_an_aggregate_may_be_as_large_as_a_request(self) -> None:
        alike = accepted("aggregate_max_bytes=512 KiB", "request_max_bytes=512 KiB").defaults
        assert alike.aggregate_max_bytes == alike.request_max_bytes

    def test_each_stream_owns_room_for_a_frame_and_a_request(self) -> None:
        assert load(environ=NOBODY).node.in_flight_floor_bytes == 512 * KIB
        assert accepted("node_queue_limit_bytes=128 MiB").node.floor_bytes == MIB
        assert accepted("node_max_in_flight_bytes=8 MiB").node.in_flight_floor_bytes == 64 * KIB

    def test_a_record_without_a_time_to_live_may_linger(self) -> None:
        assert accepted("linger_seconds=5").defaults.record_ttl_seconds == 0

    def test_a_listed_stream_needs_no_settings(self, file: Path) -> None:
        file.write_text("[streams.orders]\n")
        config = load(file, ["streams_allowed=listed"], NOBODY)
        assert (config.streams, config.node.streams_allowed) == ({"orders": StreamSettings()}, "listed")


ARN = "stream_arn=arn:aws:kinesis:eu-west-1:123456789012:stream/x"
REFUSED: dict[str, list[str]] = {
    "a size that may mean two things, or is out of range": [
        f"queue_limit_bytes={size}" for size in ("64m", "64 Mi", "-1 MiB", "2047", "1.0001 KiB", "", "MiB")
    ],
    "a user that does not exist": ["allowed_uids=7,no-such-user-here", "allowed_uids=7,"],
    "settings of a stream that contradict each other": [
        f"streams.x.{ARN} & streams.x.{other}" for other in ("region=us-east-1", "stream_name=y", "external_id=42")
    ],
    "the external ID of the node without the node's role": ["external_id=42 & role_arn="],
    "a name of one stream as a default": ["stream_name=x", "stream_arn=x"],
    "a name that the service would refuse": [
        "streams.x.stream_name=a b",
        "streams.x.stream_arn=flights",
        "streams.x.stream_arn=arn:aws:kinesis:eu-west-1:123456789012:stream/x/consumer/y:1",
        "streams.x.stream_arn=arn:aws:kinesis:eu-west-1:12345678901:stream/x",
        "streams.x.stream_arn=arn:aws:firehose:eu-west-1:123456789012:stream/x",
        "streams.x.stream_arn=arn:aws:kinesis:-:123456789012:stream/x",
        "streams.x.role_arn=arn:aws:iam::123456789012:user/x",
        "streams.x.role_arn=arn:aws:iam:eu-west-1:123456789012:role/x",
        "streams.x.external_id=x",
        "streams.x.external_id=a b",
    ],
    "a path of a socket that is relative, too long, or taken": [
        *(f"{key}={path}" for key in ("socket", "admin_socket") for path in ("producerd.sock", "./run/p.sock", "run")),
        *(f"{key}=/{'x' * 107}" for key in ("socket", "admin_socket")),
        f"socket=/{'é' * 54}",
        f"socket=/{'x' * 96}",
        "socket=/s & admin_socket=/s",
        "socket=",
    ],
    "a mode with which no client may connect, or which is not octal": [
        f"socket_mode={mode}" for mode in ("0000", "0444", "0555", "111", "0999", "0o660")
    ],
    "a key that Flink and the KPL call otherwise": [
        f"{key}=1"
        for key in ("maxConnections", "RateLimit", "RecordMaxBufferedTime", "CollectionMaxCount", "failIfThrottled")
    ],
    "a setting of an earlier release": [
        'transport="direct"',
        "$PRODUCERD_TRANSPORT=direct",
        "streams.a.shard_map_wait_seconds=5",
    ],
    "a variable with a misspelt name": ["$PRODUCERD_QUEUE_LIMITX=5", "$PRODUCERD_MAX_STREAMSX=5"],
    "a name of one stream in a variable": ["$PRODUCERD_STREAM_NAME=x", "$PRODUCERD_STREAM_ARN=x"],
    "sizes of which one must not be larger": [
        "aggregate_max_bytes=512 KiB & $PRODUCERD_REQUEST_MAX_BYTES=256 KiB",
        "node_queue_limit_bytes=134217727",
        "node_max_in_flight_bytes=8388607",
    ],
    "a record that would linger until it expires": [
        f"linger_seconds={seconds} & record_ttl_seconds={seconds}" for seconds in (0.5, 1, 5)
    ],
    "lists of streams": [
        "streams_allowed=listed",
        "streams_allowed=listed & max_streams=0",
        "max_streams=1 & streams.first.queue_limit=1 & streams.second.queue_limit=1",
    ],
    "an endpoint that is not a URL to which botocore sends": [
        f"endpoint_url={url}"
        for url in (
            *("ftp://host", "http://host:99999", "http://", 'https://ex"ample', "https://ex\\ample", "http://_a..b"),
            *("http://a_b", "http://-a.b", "http://.", "http://☃.example", "http://999.1.1.1", "http://[::1"),
            *("http://" + "a" * 64, "http://" + "a." * 127 + "a", "http://h/path?", "http://h#frag", 'http://h/"'),
        )
    ],
    "an address without a host or a port": [
        f"metrics_listen={address}" for address in ("9474", "host:65536", "a..b:80", "a" * 64 + ":80")
    ],
    "a region that botocore would refuse": [
        f"region={region}" for region in ("EU West", "-", "eu--", "a" * 64, "eu-west-1.example.com")
    ],
    "a number or a word that is not allowed": [
        "request_timeout_seconds=0",
        "drain_timeout_seconds=nan",
        "drain_timeout_seconds=inf",
        "max_streams=true",
        "log_level=loud",
        "max_in_flight_requests=1025",
    ],
    "a --set that is not a setting": [
        *("queue_limit", "=5", "a b=5", "streams.a.b.queue_limit=5", "x.y=1", "#a=1", 'a\n"=1'),
        "[streams.x]\nlinger_seconds=5",
    ],
}
"""Settings that are refused, by what is wrong with them.  `&` joins several, and `$` begins a variable."""

REFUSED_FILES = {
    "a mode without quotes": "socket_mode = 660",
    "no lists of users": "\n".join(
        f"[streams.s{number}]\nallowed_uids = {users}"
        for number, users in enumerate(["true", "7", "[-1]", "[4294967295]", "[1.5]", "[true]", "[[1]]", "[{ a = 1 }]"])
    ),
    "a user that does not exist": 'allowed_uids = [7, "no-such-user-here"]',
    "a name of one stream as a default": '[defaults]\nstream_name = "x"\nstream_arn = "x"',
    "each problem of several tables": """
        max_streams = 0
        [defaults]
        linger_seconds = "soon"
        [streams.x]
        aggregation = "KPL"
        """,
    "values that are wrong by themselves, and others that are wrong together": """
        external_id = "42"
        socket = "/s"
        admin_socket = "/s"
        max_streams = 0
        [defaults]
        linger_seconds = "soon"
        record_ttl_seconds = 0.01
        aggregate_max_bytes = "1 MiB"
        request_max_bytes = "64 KiB"
        [streams.x]
        stream_name = "y"
        stream_arn = "arn:aws:kinesis:us-east-1:123456789012:stream/x"
        region = "eu-west-1"
        external_id = "42"
        role_arn = "nobody"
        quue_limit = 5
        """,
    "keys of which others are near": "[defaults]\nqueueLimit = 5\n[streams.x]\nlinger = 1\n[default]\nx = 1",
    "settings in the wrong table": "queue_limit = 5\n[defaults]\nsocket = '/s'\n[streams.x]\nlog_level = 'info'",
    "true for a number": "max_streams = true\ndrain_timeout_seconds = true\n[defaults]\nqueue_limit_bytes = true",
    "an impossible name of a stream": '[streams."a b"]\nqueue_limit = 0',
    "a name with dots and without quotes": "[streams.my.stream.v1]\nlinger_seconds = 0",
    "values in the place of tables": "defaults = 1\n[streams]\norders = 5",
    "a default that several streams have": (
        "[defaults]\nlinger_seconds = -1\n[streams.x]\nqueue_limit = 5\n[streams.y]\nqueue_limit = 5"
    ),
}


def test_settings_that_are_refused_are_named_with_what_is_allowed(snapshot: Snapshot) -> None:
    lines = []
    for what, cases in REFUSED.items():
        lines.append(f"# {what}")
        for case in cases:
            given = case.split(" & ")
            environ = dict(each[1:].split("=", 1) for each in given if each.startswith("$"))
            found = problems(*(each for each in given if not each.startswith("$")), environ=environ)
            lines += [repr(case)[:200], *(f"    {line}" for line in found)]
    snapshot("config_refused", "\n".join(lines) + "\n")


def test_a_file_that_is_refused_is_named_with_its_key_and_what_is_allowed(snapshot: Snapshot, tmp_path: Path) -> None:
    lines = []
    for what, text in REFUSED_FILES.items():
        (tmp_path / "p.toml").write_text(text)
        found = problems(path=tmp_path / "p.toml")
        lines += [f"# {what}", *(line.replace(str(tmp_path / "p.toml"), "FILE") for line in found)]
    snapshot("config_refused_files", "\n".join(lines) + "\n")


class TestProblems:
    def test_all_sources_are_read_before_any_problem_is_raised(self, tmp_path: Path) -> None:
        (tmp_path / "p.toml").write_text("max_streams = 0")
        found = problems("queue_limit=-3", environ={"PRODUCERD_WORKER_THREADS": "17"}, path=tmp_path / "p.toml")
        assert sorted(line.split()[0] for line in found) == ["PRODUCERD_WORKER_THREADS", "max_streams", "queue_limit"]

    def test_a_bad_default_of_another_source_is_told_once_however_many_streams_have_it(self, file: Path) -> None:
        assert problem("linger_seconds=-1", path=file).startswith('linger_seconds = "-1" (--set)')

    @pytest.mark.parametrize("key", sorted({*NodeSettings.model_fields, *StreamSettings.model_fields}))
    def test_a_text_that_no_file_or_name_could_hold_is_refused(self, key: str) -> None:
        """A zero byte ends a text for the system, and Python writes U+DCFF for a byte 0xFF that is not UTF-8."""
        for text in ("/a\0b", "/a\udcffb", "a\0b:1", "a\udcffb:1"):
            assert ": allowed: " in problem(f"streams.x.{key}={text}" if key in OF_ONE_STREAM else f"{key}={text}")

    @pytest.mark.parametrize("key", sorted({*NodeSettings.model_fields, *StreamSettings.model_fields}))
    def test_a_table_is_not_the_value_of_any_setting(self, key: str, tmp_path: Path) -> None:
        path = tmp_path / "p.toml"
        path.write_text(f"{key}.a = 1" if key in NodeSettings.model_fields else f"[streams.x]\n{key}.a = 1")
        assert ": allowed: " in problem(path=path)

    @pytest.mark.parametrize("listen", ["my_host:1", "bücher.example:1", "node-1.:1", "[::1]:1"])
    def test_metrics_listen_takes_any_name_that_a_resolver_may_know(self, listen: str) -> None:
        assert accepted(f"metrics_listen={listen}").node.metrics_listen == listen

    @pytest.mark.parametrize("region", ["us-gov-west-1", "local", "x1", "a" * 63])
    def test_a_region_is_whatever_botocore_takes_for_one(self, region: str) -> None:
        validate_region_name(region)
        assert accepted(f"region={region}").node.region == region

    @pytest.mark.parametrize(
        "url",
        [
            "https://kinesis.us-east-1.amazonaws.com",
            "http://localhost:4566",
            "http://LocalHost.:1/",
            "http://10.0.0.1:4567/kinesis/a%20b",
            "http://" + "a." * 126 + "a",
            "http://[::1]:4567",
        ],
    )
    def test_an_endpoint_is_an_address_or_a_name_that_botocore_sends_to_with_its_path(self, url: str) -> None:
        assert is_valid_uri(url)
        assert accepted(f"endpoint_url={url}").node.endpoint_url == url

    @pytest.mark.parametrize("nothing", ["", None])
    def test_an_address_or_a_name_that_is_empty_is_not_set(self, nothing: str | None) -> None:
        assert StreamSettings(endpoint_url=nothing, region=nothing, role_arn=nothing) == StreamSettings()
        assert NodeSettings(admin_socket=nothing, memory=nothing) == NodeSettings()  # type: ignore[arg-type]

    @pytest.mark.parametrize("key", ["endpoint_url", "streams.x.endpoint_url", "endpoint"])
    @pytest.mark.parametrize("user", ["http://user:secret@", "https://user:se/cret@x@", "user:secret@", "//u:secret@"])
    def test_who_gives_a_password_in_a_url_is_refused_without_repeating_it(self, key: str, user: str) -> None:
        line = problem(f"{key}={user}host:1/path")
        assert "***@host:1/path" in line
        assert not [word for word in ("user:", "cret", "u:") if word in line]

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("stream_name", "a"),
            ("stream_arn", "arn:aws:kinesis:eu-west-1:123456789012:stream/x"),
            ("role_arn", "arn:aws:iam::123456789012:role/x"),
            ("external_id", "ab"),
        ],
    )
    def test_a_name_with_the_end_of_a_line_is_refused(self, key: str, value: str) -> None:
        with pytest.raises(ValidationError):
            StreamSettings.model_validate({key: f"{value}\n"})

    def test_a_file_that_cannot_be_read_does_not_hide_other_problems(self, tmp_path: Path) -> None:
        missing, limit = problems("queue_limit=0", path=tmp_path / "none.toml")
        assert missing == f"file {tmp_path / 'none.toml'}: cannot be read: No such file or directory"
        assert limit.startswith("queue_limit")

    def test_a_file_that_is_not_toml_names_the_place(self, tmp_path: Path) -> None:
        path = tmp_path / "p.toml"
        path.write_text("a = 1\nb = = 2\n")
        assert "line 2" in problem(path=path)
        numbers = (b"max_streams = " + value for value in (b"1" * 5_000, b"[" * 100_000))
        for text in (b"a = 1\nb = = 2\n", b"a = '\xff'", *numbers):
            path.write_bytes(text)
            assert "not TOML" in problem(path=path)

    @pytest.mark.parametrize("key", ["x", "max_streams", "allowed_uids", "socket", "defaults.queue_limit", "streams.s"])
    def test_a_key_of_a_thousand_dots_is_a_problem_like_any_other(self, key: str, tmp_path: Path) -> None:
        path = tmp_path / "p.toml"
        path.write_text(f"{key}.{'a.' * 3_000}external_id = 'kept'")
        assert len(problem(path=path)) < 500


@pytest.mark.parametrize("model", [NodeSettings, StreamSettings])
def test_every_setting_is_described_and_says_what_is_allowed(model: type[NodeSettings | StreamSettings]) -> None:
    for name, info in model.model_fields.items():
        assert info.description, name
        assert allowed(name, info), name


@pytest.mark.promise("dump-records-secrets", "external-id-shown-nowhere")
def test_an_external_id_is_shown_nowhere(tmp_path: Path) -> None:
    role = "role_arn=arn:aws:iam::123456789012:role/x"
    config = load(sets=[role, "external_id=kept-quiet", f"defaults.{role}", "defaults.external_id=too"], environ=NOBODY)
    text = as_toml(config, origins=True)
    assert text.count('external_id = "(set, not shown)"') == 2
    assert "kept-quiet" not in text
    (tmp_path / "printed.toml").write_text(text)
    assert all("external_id" in line for line in problems(path=tmp_path / "printed.toml")), "and is not taken for one"
    assert "kept" not in problem("external_id=kept quiet", role)


@pytest.mark.promise("external-id-shown-nowhere")
@pytest.mark.parametrize(
    "given",
    [
        "external_idd=kept",
        "External_id=kept",
        "externalid=kept",
        "streams.a.external-id=kept",
        "streams.a.b.external_id=kept",
        "defaults.x.external_id=kept",
        "external_id: kept",
        "external_id:kept",
        "external_id kept=",
        "aws_secret_access_key=kept",
        # files
        '[stream.orders]\nexternal_id = "kept"',
        '[streams.my.orders]\nexternal_id = "kept"',
        '[defaults.orders]\nexternal_id = "kept"',
        'streams = [{ orders = { external_id = "kept" } }]\n',
        '[external]\nid = "kept"',
        '[aws]\nsecret_access_key = ["kept"]',
        '[endpoints]\nkinesis = ["https://kept:kept@here"]',
    ],
)
def test_a_secret_in_a_wrong_form_or_table_is_not_shown(given: str, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(given)
    found = problems(path=tmp_path / "p.toml") if "\n" in given else problems(given)
    assert all("kept" not in line for line in found)


@settings(max_examples=20)
@given(st.randoms(use_true_random=False))
def test_any_settings_as_text_give_the_same_settings(tmp_path_factory: pytest.TempPathFactory, chance: Random) -> None:
    """Every digit counts: the hash of this text tells the settings of two nodes apart."""
    config = load(sets=random_settings(chance), environ=NOBODY)
    printed = tmp_path_factory.getbasetemp() / "printed.toml"
    printed.write_text(as_toml(config))
    assert load(printed, environ=NOBODY) == config


@pytest.mark.promise("settings-hold-whatever")
def test_a_file_of_what_was_given_gives_the_same_settings_whatever_their_text_holds(file: Path, tmp_path: Path) -> None:
    odd = """/run/'odd' "$HOME" `a` \\ \\n \\u0041 ü \U0001f40d # = \t\x7f"""
    named = [
        "streams.x.stream_name=y",
        "role_arn=arn:aws:iam::123456789012:role/x",
        "external_id=a=b",
        "linger_seconds=1",
    ]
    sets = [f"admin_socket={odd}", "queue_limit_bytes=32 MiB", "allowed_uids=0, 7", *named]
    config = load(file, sets, {"PRODUCERD_MAX_STREAMS": "2"})
    assert str(config.node.admin_path) == odd.strip()
    written = tmp_path / "written.toml"
    written.write_text(as_file(file, sets, {"PRODUCERD_MAX_STREAMS": "2"}))
    assert load(written, environ=NOBODY) == config
    assert "max_connections" not in written.read_text(), "no defaults"
    with pytest.raises(ConfigurationError):
        as_file(file, ["queue_limit=0"], NOBODY)


def test_settings_as_text_say_where_each_came_from(file: Path, tmp_path: Path) -> None:
    config = load(file, ["region=eu-west-1"], {"PRODUCERD_MAX_STREAMS": "2"})
    text = as_toml(config, origins=True)
    told = {line.split("#")[0].strip(): line.partition("  # ")[2] for line in text.splitlines() if " = " in line}
    assert told['socket = "/run/other.sock"'] == f"file {file}"
    assert told["max_streams = 2"] == "environment PRODUCERD_MAX_STREAMS"
    assert told['region = "eu-west-1"'] == "--set"
    assert told["max_connections = 512"] == "default"
    assert told["queue_limit = 500"] == told["queue_limit = 5"] == f"file {file}"
    of_the_stream = text[text.index('[streams."a.b"]') :]
    assert re.search(rf"^linger_seconds = 2 +# defaults: file {file}$", of_the_stream, re.MULTILINE)
    printed = tmp_path / "printed.toml"
    printed.write_text(text)
    assert load(printed, environ=NOBODY) == config


def test_the_schema_holds_for_a_file_of_all_settings_and_names_the_defaults(file: Path) -> None:
    described = json.loads(json.dumps(schema()))
    sets = ["socket_mode=0600", "streams.s.queue_limit_bytes=5000", "memory=900 MiB"]
    text = as_toml(load(file, sets, NOBODY))
    assert "queue_limit_bytes = 5000\n" in text
    jsonschema.validate(tomllib.loads(text), described)
    for place in ("", "[defaults]\n", "[streams.s]\n"):
        with pytest.raises(jsonschema.ValidationError, match="'quue_limit' was unexpected"):
            jsonschema.validate(tomllib.loads(f"{place}quue_limit = 5"), described)
    tables = {"": described["properties"], "defaults.": described["properties"]["defaults"]["properties"]}
    defaults = {
        place: {name: one["default"] for name, one in of.items() if "default" in one} for place, of in tables.items()
    }
    assert NodeSettings.model_validate(defaults[""]) == NodeSettings()
    assert StreamSettings.model_validate(defaults["defaults."]) == StreamSettings()
    assert tables[""].keys() - defaults[""].keys() == {"socket", "defaults", "streams"}
    jsonschema.validate({**defaults[""], "defaults": defaults["defaults."]}, described)


def test_the_schema_allows_what_is_allowed_and_no_more() -> None:
    """Every range and every choice of the JSON Schema, asked of the settings themselves."""
    told = schema()
    tables = {"": told["properties"], "defaults.": told["properties"]["defaults"]["properties"]}
    assert tables[""].keys() == NodeSettings.model_fields.keys() | {"defaults", "streams"}
    assert tables["defaults."].keys() == StreamSettings.model_fields.keys() - {"stream_name", "stream_arn"}
    of_one = told["properties"]["streams"]["additionalProperties"]["properties"]
    assert of_one.keys() == StreamSettings.model_fields.keys()
    asked = 0
    for table, described in tables.items():
        for name, value in described.items():
            limits = next((part for part in (value, *value.get("anyOf", ())) if "minimum" in part), None)
            for choice in value.get("enum", ()):
                load(None, [f"{table}{name}={choice}", "streams.s.queue_limit=1"], NOBODY)
            if limits is None:
                continue
            asked += 1
            assert is_size(name) is ({"type": "string"} in value.get("anyOf", ())), "as 64 MiB"
            model = StreamSettings if table else NodeSettings
            for number, holds in ((limits["minimum"], True), (limits["minimum"] - 1, False)):
                assert holds == can_be(model, name, number), (name, number)
            for number, holds in ((limits["maximum"], True), (limits["maximum"] + 1, False)):
                assert holds == can_be(model, name, number), (name, number)
    assert asked > 15


def can_be(model: type[NodeSettings | StreamSettings], name: str, value: float) -> bool:
    """Whether the value holds alone; what it contradicts is another matter."""
    try:
        model.model_validate({name: value})
    except ValidationError as error:
        return error.errors()[0]["type"] == "conflict"
    return True


def test_the_schema_and_the_table_say_what_a_change_needs() -> None:
    """The same mark, on the setting itself."""
    described = schema()["properties"]
    restart = {name for name, told in described.items() if told.get("description", "").endswith("needs a restart.")}
    assert restart == {name for name, info in NodeSettings.model_fields.items() if needs_restart(info)}
    assert {"socket", "region", "log_format"} <= restart
    assert not {"allowed_uids", "max_streams", "node_queue_limit_bytes", "log_level", "max_connections"} & restart
    of_streams = {name for name, info in StreamSettings.model_fields.items() if needs_restart(info)}
    where = {"stream_name", "stream_arn", "region", "endpoint_url", "role_arn", "external_id"}
    assert of_streams == where | {"wire_format", "aggregation", "ordering"}


@pytest.mark.parametrize(
    ("sets", "shards", "seconds"),
    [
        ({"queue_limit": 5_000}, 1, 5.0),
        ({"queue_limit": 5_000}, 4, 1.25),
        ({"queue_limit": 5_000, "shard_rate_fraction": 0.5}, 1, 10.0),
        ({"queue_limit": 5_000, "aggregation": "kpl"}, 1, 64.0),
        ({"queue_limit_bytes": "3 MiB"}, 1, 3.0),
    ],
)
def test_a_full_queue_lasts_as_long_as_shards_need_for_its_records_and_bytes(
    sets: dict[str, object], shards: int, seconds: float
) -> None:
    assert StreamSettings.model_validate(sets).queue_seconds(shards) == seconds


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.0123, "0.0123 s"), (999.4, "999 s"), (999.5, "1,000 s"), (1_000, "1,000 s")]
)
def test_a_time_is_said_without_an_exponent(seconds: float, said: str) -> None:
    assert in_seconds(seconds) == said
