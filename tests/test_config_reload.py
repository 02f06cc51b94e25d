"""A reload changes what a running daemon can change, leaves the rest as it was, and reports both."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from producerd.config import Config, load
from producerd.config.reload import Reload, reload
from producerd.config.text import as_toml
from producerd.errors import ConfigurationError

ENVIRONMENT = {"PRODUCERD_REGION": "eu-west-1", "PRODUCERD_QUEUE_LIMIT": "5", "PRODUCERD_MAX_STREAMS": "9"}


def settings(*sets: str) -> Config:
    return load(None, sets, {})


def reloaded(before: Collection[str], after: Collection[str], *open_streams: str) -> Reload:
    return reload(settings(*before), settings(*after), open_streams)


def test_nothing_changed() -> None:
    same = ["max_streams=7", "streams.a.queue_limit=5"]
    found = reloaded(same, same, "a", "other")
    assert found == Reload(settings(*same), (), ())


@pytest.mark.promise("change-daemon-runs-new")
def test_what_can_change_while_the_daemon_runs_is_new_and_the_rest_waits_for_a_restart() -> None:
    found = reloaded(
        ["region=eu-west-1", "log_level=info"],
        ["region=eu-north-1", "log_level=debug", "allowed_uids=7", "log_format=json", "socket_mode=0600"],
    )
    assert found.config.node.log_level == "debug"
    assert found.config.node.allowed_uids == {7}
    assert (found.config.node.region, found.config.node.log_format) == ("eu-west-1", "text")
    assert found.changes == ("allowed_uids: [] -> [7]", 'log_level: "info" -> "debug"')
    assert found.needs_restart == (
        'socket_mode: "0660" -> "0600"',
        'region: "eu-west-1" -> "eu-north-1"',
        'log_format: "text" -> "json"',
    )


@pytest.mark.promise("open-stream-keeps-stands")
def test_an_open_stream_keeps_what_it_stands_on_and_one_that_is_not_open_is_all_new() -> None:
    before = ["streams.a.queue_limit=1000000", "streams.b.queue_limit=1000000"]
    after = [f"streams.{name}.{one}" for name in "ab" for one in ("queue_limit=5000", "aggregation=kpl", "region=x")]
    found = reloaded(before, after, "a")
    a, b = found.config.stream("a"), found.config.stream("b")
    assert (a.queue_limit, a.aggregation, a.region) == (5_000, "none", None)
    assert b == settings(*after).stream("b")
    assert 'streams."a".queue_limit: 1000000 -> 5000' in found.changes
    assert 'streams."b".aggregation: "none" -> "kpl"' in found.changes
    assert found.needs_restart == ('streams."a".region: "" -> "x"', 'streams."a".aggregation: "none" -> "kpl"')


@pytest.mark.promise("defaults-those-open")
def test_the_defaults_are_those_of_every_open_stream_without_a_table() -> None:
    after = ["aggregation=kpl", "queue_limit=7"]
    found = reloaded([], after, "unlisted")
    assert (found.config.stream("unlisted").aggregation, found.config.stream("unlisted").queue_limit) == ("none", 7)
    assert found.config.streams == {}
    assert found.needs_restart == ('defaults.aggregation: "none" -> "kpl"',)
    found = reloaded(["streams.a.queue_limit=5"], [*after, "streams.a.queue_limit=5"], "a")
    assert found.config.defaults.aggregation == "kpl", "no stream that is open uses them"
    assert found.config.stream("a").aggregation == "none"
    assert found.needs_restart == ('streams."a".aggregation: "none" -> "kpl"',)


def test_what_streams_have_from_the_defaults_is_said_once() -> None:
    tables = [f"streams.s{number}.linger_seconds=1" for number in range(9)]
    found = reloaded(tables, [*tables, "queue_limit=7"], "s1")
    assert found.config.stream("s1").queue_limit == 7
    assert found.changes == ("defaults.queue_limit: 1000000 -> 7",)


@pytest.mark.promise("defaults-those-open")
def test_a_table_that_is_gone_stays_while_its_open_stream_cannot_do_without() -> None:
    found = reloaded(["streams.a.stream_name=other", "streams.a.queue_limit=5"], ["queue_limit=6"], "a")
    assert (found.config.stream("a").stream_name, found.config.stream("a").queue_limit) == ("other", 6)
    assert found.needs_restart == ('streams."a": removed',)
    found = reloaded(["streams.a.queue_limit=5"], ["queue_limit=6"], "a")
    assert found.config.streams == {}, "nothing that it stands on was in it"
    assert found.needs_restart == ()


def test_an_open_stream_that_gets_a_table_keeps_what_it_stands_on() -> None:
    found = reloaded([], ["streams.a.queue_limit=5", "streams.a.stream_name=other"], "a")
    assert (found.config.stream("a").queue_limit, found.config.stream("a").stream_name) == (5, None)
    assert found.changes == ('streams."a": added',)
    assert found.needs_restart == ('streams."a".stream_name: "" -> "other"',)


def test_secrets_are_never_shown() -> None:
    role = "role_arn=arn:aws:iam::123456789012:role/x"
    found = reloaded([role, "external_id=secret-1"], [role, "external_id=secret-2"])
    assert found.needs_restart == ("external_id: changed",)
    assert "secret" not in repr((found.changes, found.needs_restart))


@pytest.mark.promise("old-new-settings-agree")
def test_tables_that_stay_count_against_max_streams() -> None:
    with pytest.raises(ConfigurationError, match="max_streams = 1: 2 streams have settings of their own"):
        reloaded(["streams.a.aggregation=kpl"], ["streams.b.queue_limit=5", "max_streams=1"], "a")
    assert len(reloaded([], ["streams.b.queue_limit=5", "max_streams=1"], "b").config.streams) == 1


def test_each_value_comes_from_where_it_is_given() -> None:
    before = load(None, ["streams.a.aggregation=kpl"], ENVIRONMENT)
    sets = ["region=eu-north-1", "queue_limit=6", "linger_seconds=1", "streams.b.linger_seconds=2", "max_streams=9"]
    after = load(None, sets, {})
    config = reload(before, after, ["a"]).config
    assert dict(config.origins) == {
        "region": "environment PRODUCERD_REGION",
        "max_streams": "--set",
        "defaults.queue_limit": "--set",
        "defaults.linger_seconds": "--set",
        'streams."a".aggregation': "--set",
        'streams."a".queue_limit': "defaults: --set",
        'streams."a".linger_seconds': "defaults: --set",
        'streams."b".queue_limit': "defaults: --set",
        'streams."b".linger_seconds': "--set",
    }
    assert 'region = "eu-west-1"' in as_toml(config, origins=True)


@pytest.mark.promise("open-stream-table-gone")
def test_an_open_stream_whose_table_is_gone_is_not_open_to_everybody() -> None:
    found = reloaded(["streams.orders.allowed_uids=7"], [], "orders")
    assert found.config.stream("orders").allowed_uids == {7}
    assert reloaded(["streams.orders.allowed_uids=7"], []).config.stream("orders").allowed_uids == frozenset()
    assert reloaded(["streams.orders.allowed_uids=7"], ["streams.orders.allowed_uids=8"], "orders").config.stream(
        "orders"
    ).allowed_uids == {8}


def test_a_new_list_of_users_holds_for_an_open_stream_that_never_had_a_table() -> None:
    found = reloaded(["defaults.allowed_uids=7"], ["defaults.allowed_uids=8"], "unlisted")
    assert found.config.stream("unlisted").allowed_uids == {8}
    assert found.config.streams == {}
    assert (found.changes, found.needs_restart) == (("defaults.allowed_uids: [7] -> [8]",), ())
