"""Settings of a daemon that tasks start are refused on the driver, all at once, or become what it is started with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from producerd.errors import ConfigurationError
from spark_client import KinesisBatchWriter, KinesisClient
from spark_client.configuration import configured
from spark_client.daemon_settings import DaemonSettings, problems, size_bytes
from spark_client.options import from_text
from spark_client.task import Plan
from tests.snapshots import Snapshot
from tests.spark_client.fake_spark import fake_spark

SETS = ("exit_when_idle_seconds=60", "memory=384 MiB", "metrics_listen=")


@pytest.mark.parametrize(
    "holds",
    [
        {},
        {"region": "eu-west-1", "aggregation": "kpl", "queue_limit": 10, "linger_seconds": 0.5},
        {"queue_limit": "10", "linger_seconds": "0.5", "memory": "320 MiB", "node_queue_limit_bytes": 1 << 20},
        {"region": "", "endpoint_url": "http://127.0.0.1:4567"},
        {"command": "python3.11 -m producerd"},
        {"command": ["/opt/producerd.pex"]},
        {"streams": {"a.b": {"aggregation": "kpl"}}},
        {"memory": "", "region": ""},
    ],
)
def test_settings_that_hold_are_taken(holds: dict[str, Any]) -> None:
    assert list(problems(holds)) == []


@pytest.mark.promise("settings-stand-neither")
@pytest.mark.parametrize(
    "given",
    [
        "external_id=s3cret",
        {"external_id": "s3cret "},
        {"streams": {"a": {"external_id": "s3cret "}}},
        {"endpoint_url": "me:s3cret@host\0"},
        {"endpoint_url": "host?x=s3cret\0"},
        {"endpoint_url": ["s3cret"]},
        {"command": "env X='s3cret"},
    ],
)
def test_a_wrong_value_that_may_be_a_secret_is_not_shown(given: Any) -> None:
    (found,) = problems(given)
    assert "s3cret" not in found
    assert "s3cret" not in repr(DaemonSettings.of({"external_id": "s3cret"}))


@pytest.mark.promise("wrong-writer-error")
def test_all_that_is_wrong_with_a_writer_is_one_error() -> None:
    with pytest.raises(ConfigurationError) as caught:
        KinesisBatchWriter(stream="", daemon={"regoin": "x", "queue_limit": 0}, daemon_start_timeout_seconds=-1)
    assert [problem.split("=")[0].split(":")[0] for problem in caught.value.problems] == [
        "stream",
        "daemon_start_timeout_seconds",
        "daemon.regoin",
        "daemon.queue_limit",
    ]


@pytest.mark.parametrize("make", [KinesisBatchWriter, KinesisClient])
def test_a_socket_and_a_daemon_exclude_each_other(make: Any) -> None:
    with pytest.raises(ConfigurationError, match="socket='/s': of a daemon that runs already, and daemon= starts one"):
        make("s", socket="/s", daemon={})


def test_they_become_what_a_daemon_is_started_with() -> None:
    assert DaemonSettings.of({}) == (SETS, ())
    given = {"region": "eu-west-1", "memory": "1 GiB", "streams": {"a.b": {"aggregation": "kpl"}}, "command": "py -m x"}
    assert DaemonSettings.of(given) == (
        ("exit_when_idle_seconds=60", "memory=1 GiB", SETS[2], "region=eu-west-1", 'streams."a.b".aggregation=kpl'),
        ("py", "-m", "x"),
    )
    assert DaemonSettings.of({**given, "command": ["a b", "c"]}).command == ("a b", "c")


@pytest.mark.parametrize(("text", "count"), [("384 MiB", 384 << 20), ("1.5KB", 1_500), ("1_000", 1_000), ("7", 7)])
def test_a_size_is_read_as_the_daemon_reads_it(text: str, count: int) -> None:
    assert size_bytes(text) == count
    assert DaemonSettings.of({"memory": text}).memory_bytes == count


@pytest.mark.parametrize("settings", [DaemonSettings(), DaemonSettings.of({"memory": ""})])
def test_without_a_bound_there_is_none(settings: DaemonSettings) -> None:
    assert settings.memory_bytes == 0


@pytest.mark.parametrize("name", ["daemon.queue_limit", "daemon.queuelimit", "DAEMON.queueLimit"])
def test_the_data_source_reads_an_option_for_each(name: str) -> None:
    assert from_text({"stream": "s", name: "5"}).daemon == {"queue_limit": "5"}


def test_the_data_source_starts_one_with_its_defaults_where_it_is_told_to() -> None:
    assert from_text({"stream": "s", "daemon": "true"}).daemon == {}
    assert from_text({"stream": "s", "daemon": "false"}).daemon is None
    assert from_text({"daemon": "true", "daemon.region": "eu-west-1"}).daemon == {"region": "eu-west-1"}
    assert from_text({"daemon": "false", "daemon.region": "eu-west-1"}).daemon is None
    with pytest.raises(ConfigurationError, match=r"daemon\.queue_limit, daemon\.queuelimit: give one of them"):
        from_text({"daemon.queue_limit": "1", "daemon.queuelimit": "2"})
    with pytest.raises(ConfigurationError, match=r"daemon\.regoin: .* did you mean region"):
        from_text({"daemon.regoin": "x"})


def test_spark_s_configuration_has_a_socket_or_a_daemon() -> None:
    assert configured(fake_spark()) == {"configured_socket": None, "configured_daemon": None}
    found = configured(fake_spark(**{"producerd.daemon.region": "eu-west-1"}))
    assert found == {"configured_socket": None, "configured_daemon": DaemonSettings.of({"region": "eu-west-1"})}
    assert configured(fake_spark(**{"producerd.daemon": "true"}))["configured_daemon"] == DaemonSettings.of({})
    off = {"producerd.daemon": "false", "producerd.daemon.region": "eu-west-1", "producerd.socket": "/s"}
    assert configured(fake_spark(**off)) == {"configured_socket": "/s", "configured_daemon": None}


def test_on_spark_3_5_its_names_come_from_sql_and_their_values_do_not() -> None:
    """SQL hides the value of any name with "url" in it."""
    conf = {"spark.producerd.daemon.endpoint_url": "http://a", "spark.app.name": "x"}
    rows = [(name, "*********(redacted)") for name in conf]
    spark: Any = SimpleNamespace(
        conf=SimpleNamespace(get=conf.get), sql={"SET": SimpleNamespace(collect=lambda: rows)}.get
    )
    its_own = DaemonSettings.of({"endpoint_url": "http://a"})
    assert configured(spark) == {"configured_socket": None, "configured_daemon": its_own}


REFUSED: list[Any] = [
    "eu-west-1",
    {"regoin": "x"},
    {"zzz": 1},
    {"region": "eu_west"},
    {"region": 5},
    {"queue_limit": 0},
    {"queue_limit": 4294967296},
    {"queue_limit": True},
    {"queue_limit": "1.5"},
    {"linger_seconds": "5s"},
    {"memory": "3 parsecs"},
    {"node_queue_limit_bytes": "1 KiB"},
    {"aggregation": "kpll"},
    {"aggregation": None},
    {"socket": "/s"},
    {"command": 5},
    {"command": ""},
    {"command": " "},
    {"command": "it's"},
    {"region": "eu-west-1\n"},
    {"endpoint_url": "http://a\0b"},
    {"streams": {"a": {"max_streams": 1}}},
    {"streams": {"a": {"request_max_records": 1}}},
    {"streams": {"a": 5}},
    {"streams": 5},
    {"region": {"a": {}}},
    {"endpoint_url": 5},
    {"queue_limit": ""},
    {"memory": "x"},
    {"memory": "1 MiB 2"},
    {"command": [5]},
    {"command": ["x", ""]},
]
REFUSED_OF_SPARK: list[dict[str, str]] = [
    {"producerd.daemon": "yes"},
    {"producerd.daemon": "yes", "producerd.socket": "/s"},
    {"producerd.daemon.regoin": "x"},
    {"producerd.daemon.queue_limit": "1", "producerd.daemon.queueLimit": "2"},
    {"producerd.daemon.region": "x", "producerd.socket": "/s"},
    {"producerd.daemon.workerThreads": "2"},
    {"producerd.sokcet": "/s"},
    {"producerd.daemon.streams.MyStream.aggregation": "kpl"},
]


def test_a_wrong_setting_is_named_with_what_is_allowed(snapshot: Snapshot) -> None:
    lines = []
    for given in REFUSED:
        (problem,) = problems(given)
        lines.append(f"daemon={given!r}\n    {problem}\n")
    for conf in REFUSED_OF_SPARK:
        with pytest.raises(ConfigurationError) as caught:
            configured(fake_spark(**conf))
        (problem,) = caught.value.problems
        lines.append(f"Spark's configuration {conf}\n    {problem}\n")
    snapshot("daemon_settings_refused", "".join(lines))


def test_who_starts_a_daemon_is_decided_by_the_nearest_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer's own, then the node's environment, then Spark's configuration."""
    own, conf = DaemonSettings.of({"region": "a"}), DaemonSettings.of({"region": "b"})
    asked = []

    def own_daemon(*arguments: Any) -> str:
        asked.append(arguments)
        return "its own"

    monkeypatch.setattr("spark_client.task.OwnDaemon", own_daemon)
    assert Plan("s").own_daemon() is None
    assert Plan("s", "/socket", configured_daemon=conf).own_daemon() is None
    assert Plan("s", configured_daemon=conf, daemon_start_timeout_seconds=5).own_daemon()
    assert Plan("s", daemon=own, configured_daemon=conf).own_daemon()
    monkeypatch.setenv("PRODUCERD_SOCKET", "/of/the/node")
    assert Plan("s", configured_daemon=conf).own_daemon() is None
    assert Plan("s", daemon=own).own_daemon()
    assert asked == [(conf, 5, None), (own, 60, None), (own, 60, None)]


def test_a_plan_travels_as_plain_values() -> None:
    plan = Plan("s", daemon=DaemonSettings.of({"region": "a"}), batch_id=4)
    plain = plan.plain()
    assert type(plain["daemon"]) is tuple
    again = Plan.of_plain({**plain, "configured_daemon": (("region=b",), ())})
    assert type(again.daemon) is type(again.configured_daemon) is DaemonSettings
    assert Plan.of_plain(plain) == plan
