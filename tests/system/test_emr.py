"""deploy/emr/bootstrap.sh on a node with a real systemd: with a light bundle, and with one of the build."""

from __future__ import annotations

import platform
import shlex
import time
from pathlib import Path

import pytest

from spark_client import KinesisClient
from tests.daemon import until
from tests.spark.service import Kinesis
from tests.system.emr import EmrNode
from tests.system.machine import DEPLOY, missing

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.skipif(bool(missing()), reason=missing())]
REGION = "us-east-1"
ENVIRONMENTS = "find /opt -maxdepth 1 -name producerd-*"
SEND = """\
import sys
from spark_client import KinesisClient
print(sys.modules["spark_client"].__file__)
with KinesisClient("flights") as client:
    client.put("from yarn", "key").result(30)
"""


def used(emr: EmrNode) -> str:
    """The environment that the units run."""
    return emr.machine.run("readlink /opt/producerd").strip()


@pytest.fixture
def bundle(emr: EmrNode, tmp_path: Path) -> str:
    return emr.light_bundle(tmp_path)


@pytest.mark.promise("bundle-build-makes-node")
def test_a_node_has_the_units_and_gives_the_socket_to_yarn(emr: EmrNode, bundle: str) -> None:
    emr.bootstrap(bundle, REGION)
    node = emr.machine
    for name in ("producerd.service", "producerd.socket"):
        assert (node.root / "etc/systemd/system" / name).read_bytes() == (DEPLOY / name).read_bytes()
    assert node.show()["Type"] == "notify"
    assert node.show()["WatchdogUSec"] == "30s"
    assert node.run("systemctl is-enabled producerd.service producerd.socket").split() == ["enabled"] * 2
    assert node.ready() == "200 ready\n\n"
    sockets = "stat -c %U:%G:%a /run/producerd/producerd.sock /run/producerd/producerd.admin.sock"
    ours = ["producerd:yarn:660", "producerd:yarn:600"]
    assert node.run(sockets).split() == ours
    node.run("rm /run/producerd/producerd.sock")
    until(lambda: node.run(sockets, codes=(0, 1)).split() == ours, "the daemon has bound it again")


@pytest.mark.promise("settings-hold-whatever")
def test_settings_hold_whatever_their_text_is(emr: EmrNode, bundle: str) -> None:
    odd = """/run/producerd/ 'a' "$HOME" `id` \\n ü # = ;&.sock"""
    settings = [f"admin_socket={odd}", "queue_limit_bytes=32 MiB", 'streams."a.b".queue_limit=5', "log_format=json"]
    told = emr.bootstrap(bundle, REGION, *settings)
    assert "stream a.b: " in told, "the log has what the settings mean"
    written = (emr.machine.root / "etc/producerd/producerd.toml").read_text()
    assert 'streams_allowed = "listed"' in written
    assert (emr.machine.root / odd.lstrip("/")).is_socket()
    assert emr.machine.run("stat -c %U:%a /etc/producerd/producerd.toml") == "producerd:400\n", "it may hold secrets"
    emr.bootstrap(bundle, REGION, "streams_allowed=any", "streams.flights.aggregation=kpl")
    assert 'streams_allowed = "any"' in (emr.machine.root / "etc/producerd/producerd.toml").read_text()


WRONG = {
    "queue_limt=3": 'queue_limt = "3" (--set): no such setting; the nearest is queue_limit',
    "a value": '"a value" (--set): allowed: KEY=VALUE or ',
    "socket_group=nogrp": 'socket_group = "nogrp": there is no such group on this machine',
}


@pytest.mark.promise("settings-hold-fail-node")
def test_settings_that_do_not_hold_fail_the_node_and_disturb_no_daemon(emr: EmrNode, bundle: str) -> None:
    emr.bootstrap(bundle, REGION, "aggregation=kpl")
    file = emr.machine.root / "etc/producerd/producerd.toml"
    before = emr.machine.show()["MainPID"], file.read_text()
    for setting, problem in WRONG.items():
        assert f"producerd: configuration: {problem}" in emr.bootstrap(bundle, REGION, setting, code=78)
    assert (emr.machine.show()["MainPID"], file.read_text()) == before


@pytest.mark.promise("daemon-start-fails-node")
def test_a_bundle_that_does_not_fit_installs_nothing(emr: EmrNode, tmp_path: Path, bundle: str) -> None:
    name, sha256 = bundle.split()
    assert "is not the file with the SHA-256 0" in emr.bootstrap(f"{name} {'0' * 64}", REGION, code=1)
    assert "/nothing.tar" in emr.bootstrap(f"s3://bucket/nothing.tar {sha256}", REGION, code=1)
    other = emr.light_bundle(tmp_path, "other", machine="pdp11")
    assert "is for another machine than x86_64" in emr.bootstrap(other, REGION, code=1)
    assert "wanted: s3://BUCKET/" in emr.bootstrap(bundle, code=1)
    emr.machine.assert_nothing_is_left()


@pytest.mark.promise("daemon-start-fails-node", "daemon-start-fails-node-reason")
def test_a_daemon_that_does_not_start_fails_the_node_with_the_reason(
    emr: EmrNode, bundle: str, tmp_path: Path, kinesis: Kinesis
) -> None:
    """And the daemon before runs again, with its settings and its client."""
    node, taken = emr.machine, kinesis.url.removeprefix("http://")
    emr.bootstrap(bundle, REGION, "aggregation=kpl")
    first, settings = used(emr), (node.root / "etc/producerd/producerd.toml").read_text()
    began = time.monotonic()
    told = emr.bootstrap(emr.light_bundle(tmp_path, "b"), REGION, f"metrics_listen={taken}", code=1)
    assert time.monotonic() - began < 30
    assert "address already in use" in told.lower()
    assert "the daemon is not ready" in told
    assert node.ready() == "200 ready\n\n"
    assert "-work." not in node.run(ENVIRONMENTS), "it holds settings"
    assert (used(emr), (node.root / "etc/producerd/producerd.toml").read_text()) == (first, settings)
    (path,) = node.root.glob("usr/local/lib/python3*/dist-packages/producerd.pth")
    assert path.read_text() == f"{first}/client.zip\n"


@pytest.mark.promise("upgrade-fails-nobody")
def test_an_upgrade_fails_nobody_and_leaves_the_version_before_and_no_older_one(
    emr: EmrNode, bundle: str, tmp_path: Path, kinesis: Kinesis
) -> None:
    settings = f"endpoint_url={kinesis.url}", "streams.flights.linger_seconds=0.01"
    node = emr.machine
    emr.give_credentials()
    emr.bootstrap(bundle, REGION, *settings)
    own = node.root / "etc/systemd/system/producerd.service.d/override.conf"
    own.write_text("[Service]\nLogRateLimitBurst=7\n")
    environments = [used(emr)]
    with KinesisClient("flights", socket=str(node.socket), reconnect_timeout_seconds=60) as client:
        for name in ("b", "c"):
            emr.bootstrap(emr.light_bundle(tmp_path, name), REGION, *settings)
            client.put(name, "key").result(60)
            environments.append(used(emr))
    assert kinesis.data("flights") == [b"b", b"c"]
    assert set(node.run(ENVIRONMENTS).split()) == set(environments[1:])
    assert len(set(environments)) == 3
    (path,) = node.root.glob("usr/local/lib/python3*/dist-packages/producerd.pth")
    assert path.read_text() == f"{environments[-1]}/client.zip\n"
    assert node.show()["LogRateLimitBurst"] == "7", "drop-ins of the user's stay"


@pytest.mark.promise("upgrade-waits-drain")
def test_an_upgrade_waits_for_a_drain_longer_than_a_start_may_take(
    emr: EmrNode, bundle: str, tmp_path: Path, kinesis: Kinesis
) -> None:
    """As in an outage: the daemon before has requests without an answer, and ends at its own deadline."""
    node, settings = emr.machine, f"endpoint_url={kinesis.url}"
    emr.give_credentials()
    emr.bootstrap(bundle, REGION, settings, "drain_timeout_seconds=10", "request_timeout_seconds=60")
    node.run("sed --in-place s/^ready_seconds=.*/ready_seconds=8/ /srv/bootstrap.sh")
    kinesis.hang()
    with KinesisClient("flights", socket=str(node.socket), reconnect_timeout_seconds=120) as client:
        row = client.put("row", "key")
        until(lambda: node.status()["streams"][0]["requests_in_flight"] > 0)
        emr.bootstrap(emr.light_bundle(tmp_path, "b"), REGION, settings)
        kinesis.recover()
        row.result(60)
    assert b"row" in kinesis.data("flights")


@pytest.mark.promise("uninstalling-leaves-nothing")
def test_uninstalling_leaves_nothing_and_may_be_repeated(emr: EmrNode, bundle: str) -> None:
    emr.bootstrap(bundle, REGION)
    emr.machine.run("mkdir /opt/producerd-logs")
    emr.bootstrap("--uninstall")
    emr.machine.run("rmdir /opt/producerd-logs")
    emr.machine.assert_nothing_is_left()
    assert emr.machine.run("getent passwd producerd", codes=(2,)) == ""
    emr.bootstrap("--uninstall")


@pytest.mark.promise("bundle-build-makes-node")
def test_a_bundle_of_the_build_makes_a_node_on_which_executors_can_send(
    emr: EmrNode, kinesis: Kinesis, dist_with_pex: Path
) -> None:
    (made,) = dist_with_pex.glob(f"producerd-*-emr-{platform.machine()}.tar")
    emr.give_credentials()
    emr.bootstrap(emr.upload(made), REGION, f"endpoint_url={kinesis.url}", "streams.flights.linger_seconds=0.01")
    emr.machine.run("useradd --system --gid yarn yarn")  # EMR does so later
    try:
        where = emr.machine.run(shlex.join(["runuser", "-u", "yarn", "--", "python3", "-c", SEND]))
    finally:
        emr.machine.run("userdel yarn")
    assert where.startswith("/opt/producerd-")
    assert "/client.zip/" in where
    assert kinesis.data("flights") == [b"from yarn"]
    emr.machine.run(shlex.join(["runuser", "-u", "nobody", "--", "python3", "-c", SEND]), codes=(1,))
    assert "flights" in emr.machine.run("/opt/producerd/bin/producerctl status")
    compiled = "opt/producerd-*/lib/python3.11/site-packages/producerd/runtime/__pycache__/app.*.pyc"
    assert list(emr.machine.root.glob(compiled)), "the unit may not write there, and would compile at each start"
