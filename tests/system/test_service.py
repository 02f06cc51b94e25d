"""The units under a real systemd: restarts fail nobody, a daemon that hangs or dies is started again."""

from __future__ import annotations

import shlex
import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from spark_client import KinesisClient
from tests.daemon import ROOT, until
from tests.spark.service import Kinesis
from tests.system.load import Load
from tests.system.machine import SYSTEM_SECONDS, Machine, missing

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.skipif(bool(missing()), reason=missing())]

SOCKETS = "stat -c '%U:%G:%a' /run/producerd /run/producerd/producerd.sock /run/producerd/producerd.admin.sock"
GONE = "the socket's file was gone; it is bound again"
BOUND = "bound again socket=/run/producerd/producerd.sock"


@pytest.fixture
def node(booted: Machine, kinesis: Kinesis) -> Iterator[Machine]:
    """Stopped; `serve` starts it."""
    yield booted
    booted.run("systemctl stop producerd.socket")
    booted.run("systemctl reset-failed")


def serve(node: Machine, kinesis: Kinesis, unit: str = "", **settings: Any) -> None:
    node.configure(unit, region="us-east-1", endpoint_url=kinesis.url, **settings)
    node.run("systemctl start producerd.service")


def client(node: Machine) -> KinesisClient:
    return KinesisClient("flights", socket=str(node.socket), connect_timeout_seconds=60, reconnect_timeout_seconds=60)


@pytest.mark.promise("five-restarts-under", "five-restarts-under-load", "five-restarts-under-load-behind")
def test_five_restarts_under_load_behind_a_full_queue_fail_nobody(node: Machine, kinesis: Kinesis) -> None:
    """One shard takes half of what it is sent and throttles the rest: everything is acknowledged, and stored once."""
    kinesis.call("settings", {"enforce_limits": True})
    serve(node, kinesis, defaults={"queue_limit": 3_000, "shard_rate_fraction": 2})
    with Load(lambda: client(node), 6) as load:
        for _ in range(5):
            before = len(load.calls)
            until(lambda: node.status()["streams"] and node.status()["streams"][0]["blocked_callers"] > 0, "full", 60)
            began = time.monotonic()
            node.run("systemctl restart producerd.service")
            assert time.monotonic() - began < 10
            until(lambda before=before: len(load.calls) > before)  # type: ignore[misc]
        assert node.show()["NRestarts"] == "0"  # none of them was systemd's own
    assert Counter(kinesis.data("flights")) == Counter(load.sent)
    assert kinesis.call("counters")["results"]["ProvisionedThroughputExceededException"] > 0


@pytest.mark.promise("daemon-hangs-ended-watchdog")
def test_a_daemon_that_is_killed_is_started_again_and_callers_go_on(node: Machine, kinesis: Kinesis) -> None:
    serve(node, kinesis)
    with Load(lambda: client(node), 2) as load:
        until(lambda: len(load.calls) > 10)
        node.run("systemctl kill --signal=SIGKILL producerd.service")
        before = len(load.calls)
        until(lambda: len(load.calls) > before + 10, seconds=SYSTEM_SECONDS)
    assert set(kinesis.data("flights")) == set(load.sent)
    restarts = int(node.show()["NRestarts"])  # by systemd itself; with clients that wait the socket may be quicker
    node.run("systemctl kill --signal=SIGKILL producerd.service")
    until(lambda: int(node.show()["NRestarts"]) == restarts + 1, seconds=SYSTEM_SECONDS)
    until(lambda: node.show()["ActiveState"] == "active", seconds=SYSTEM_SECONDS)


@pytest.mark.promise("daemon-hangs-ended-watchdog")
def test_a_daemon_that_hangs_is_ended_by_its_watchdog_and_started_again(node: Machine, kinesis: Kinesis) -> None:
    serve(node, kinesis, "WatchdogSec=2")
    with Load(lambda: client(node), 2) as load:
        until(lambda: len(load.calls) > 10)
        first = node.show()
        time.sleep(3)
        assert node.show()["MainPID"] == first["MainPID"], "it is fed as long as it does not hang"
        node.run("systemctl kill --signal=SIGSTOP --kill-who=main producerd.service")
        until(lambda: "Watchdog timeout (limit 2s)!" in node.log(), seconds=SYSTEM_SECONDS)
        until(lambda: node.show()["ActiveState"] == "active", seconds=SYSTEM_SECONDS)
        assert node.show()["MainPID"] != first["MainPID"]
        before = len(load.calls)
        until(lambda: len(load.calls) > before + 10, seconds=SYSTEM_SECONDS)
    assert set(kinesis.data("flights")) == set(load.sent)


@pytest.mark.promise("drain-takes-longer-units")
def test_a_drain_that_takes_longer_than_the_units_time_out_is_let_finish(node: Machine, kinesis: Kinesis) -> None:
    """It ends at its own deadline, and says meanwhile what is left."""
    serve(node, kinesis, "TimeoutStopSec=1", drain_timeout_seconds=4)
    kinesis.hang()
    own = client(node)
    own.put_many([(f"row {i}", f"k{i}") for i in range(100)])
    until(lambda: node.status()["streams"][0]["requests_in_flight"] > 0)
    began = time.monotonic()
    node.run("systemctl stop --no-block producerd.socket")
    until(lambda: "100 records left, at most 4 s" in node.show()["StatusText"])
    until(lambda: node.show()["ActiveState"] != "deactivating", seconds=SYSTEM_SECONDS)
    assert 3.5 < time.monotonic() - began < 10
    stopped = node.show()
    # Everything was given back to its caller, who is still there.
    assert (stopped["ActiveState"], stopped["Result"], stopped["ExecMainStatus"]) == ("inactive", "success", "0")
    assert "stopped" in node.log()
    kinesis.recover()
    node.run("systemctl start producerd.service")
    own.close(30)
    assert {f"row {i}".encode() for i in range(100)} == set(kinesis.data("flights"))


@pytest.mark.promise("wrong-configuration-tried")
def test_a_wrong_configuration_is_tried_once_though_clients_wait(node: Machine, kinesis: Kinesis) -> None:
    """The clients get the reason.  With a right configuration the service works again."""
    serve(node, kinesis)
    before = node.starts()
    node.configure(region="us-east-1", endpoint_url=kinesis.url, queue_limt=3)
    node.run("systemctl stop producerd.service")
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.settimeout(SYSTEM_SECONDS)
        waiting.connect(str(node.socket))  # starts the service
        assert waiting.recv(1) == b""
    until(lambda: node.show("producerd.socket")["ActiveState"] == "inactive", seconds=SYSTEM_SECONDS)
    stopped = node.show()
    assert (stopped["ActiveState"], stopped["ExecMainStatus"], stopped["NRestarts"]) == ("failed", "78", "0")
    assert node.starts() == before + 1
    assert "queue_limt = 3 (file /etc/producerd/producerd.toml): no such setting" in node.log()
    assert not node.socket.exists()
    serve(node, kinesis)
    with client(node) as own:
        own.put("row", "key").result(30)


@pytest.mark.promise("port-another-process")
def test_a_port_that_another_process_has_is_waited_for(node: Machine, kinesis: Kinesis) -> None:
    """Here systemd would give up at a second start within 3 s."""
    limit = "[Unit]\nStartLimitIntervalSec=3\nStartLimitBurst=1"
    node.configure(limit, region="us-east-1", endpoint_url=kinesis.url)
    node.run("systemd-run --unit=other --socket-property=ListenStream=127.0.0.1:9474 true")
    node.run("systemctl start --no-block producerd.service")
    until(lambda: "ddress already in use" in node.log())
    node.run("systemctl stop other.socket")
    until(lambda: node.show()["ActiveState"] == "active", seconds=SYSTEM_SECONDS)


@pytest.mark.promise("reload-systemctls-fails")
def test_a_reload_is_systemctls_and_fails_where_the_settings_do(
    node: Machine, kinesis: Kinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is disturbed by either, and the settings may have placed the admin socket elsewhere."""
    admin = {"admin_socket": "/run/producerd/other.sock"}
    monkeypatch.setattr(node, "admin_socket", node.admin_socket.with_name("other.sock"))
    serve(node, kinesis, defaults={"queue_limit": 1_000}, **admin)
    with client(node) as own:
        own.put("row", "key").result(30)
        first = node.show()["MainPID"]
        node.configure(region="us-east-1", endpoint_url=kinesis.url, defaults={"queue_limit": 77}, **admin)
        node.run("systemctl reload producerd.service")
        assert node.status()["streams"][0]["queue_limit_records"] == 77
        node.configure(region="us-east-1", endpoint_url=kinesis.url, defaults={"queue_limit": 0}, **admin)
        node.run("systemctl reload producerd.service", codes=(1,))
        problem = "defaults.queue_limit = 0 (file /etc/producerd/producerd.toml): allowed: 1 to "
        assert f"producerctl: {problem}" in node.log()
        assert node.status()["streams"][0]["queue_limit_records"] == 77
        own.put("row 2", "key").result(30)
        assert node.show()["MainPID"] == first


def test_who_may_connect_is_said_by_the_sockets_group(node: Machine, kinesis: Kinesis) -> None:
    serve(node, kinesis)
    modes = ["producerd:producerd:755", "producerd:producerd:660", "producerd:producerd:600"]
    assert node.run(SOCKETS).split() == modes


@pytest.mark.promise("sockets-deleted-bound")
def test_sockets_that_are_deleted_are_bound_again_and_so_is_the_one_that_is_systemds(
    node: Machine, kinesis: Kinesis
) -> None:
    """Also by the next daemon, which systemd passes the deaf one; with a new socket all is as it was."""
    serve(node, kinesis)
    before, gone, bound = node.run(SOCKETS), node.log().count(GONE), node.log().count(BOUND)
    with client(node) as early:
        early.put("row", "key").result(30)
        pid = node.show()["MainPID"]
        node.run("rm /run/producerd/producerd.sock /run/producerd/producerd.admin.sock")
        until(lambda: node.log().count(GONE) == gone + 2)
        assert "systemctl restart producerd.socket" in node.log()
        assert node.run(SOCKETS) == before
        assert node.ready() == "200 ready\n\n"
        with client(node) as late:
            late.put("row 2", "key").result(30)
        assert node.status()["unready"] is None
        early.put("row 3", "key").result(30)
        assert node.show()["MainPID"] == pid
        node.run("systemctl restart producerd.service")
        early.put("row 4", "key").result(30)
        assert node.run(SOCKETS) == before
        assert node.log().count(BOUND) == bound + 2
        node.run("systemctl restart producerd.socket producerd.service")
        early.put("row 5", "key").result(30)
        assert node.log().count(BOUND) == bound + 2
    assert node.run(SOCKETS) == before


@pytest.mark.promise("daemon-directory-deleted-says")
def test_a_daemon_whose_directory_is_deleted_says_what_to_do_and_goes_on_serving_who_is_connected(
    node: Machine, kinesis: Kinesis
) -> None:
    """The unit may write nowhere else: so it can't make the directory again.  What it says to do is enough."""
    serve(node, kinesis)
    before = node.run(SOCKETS)
    with client(node) as own:
        own.put("row", "key").result(30)
        pid = node.show()["MainPID"]
        node.run("rm -r /run/producerd")
        until(lambda: node.ready().startswith("503 nobody can connect to /run/producerd/producerd.sock: "))
        assert node.ready().endswith(": systemctl restart producerd.socket\n\n")
        assert 'do="systemctl restart producerd.socket"' in node.log()
        until(lambda: node.show()["StatusText"].startswith("nobody can connect to "))
        own.put("row 2", "key").result(30)
        shown = node.show()
        assert (shown["ActiveState"], shown["MainPID"]) == ("active", pid)
        node.run("systemctl restart producerd.socket")
        own.put("row 3", "key").result(60)
        assert node.ready() == "200 ready\n\n"
        assert node.run(SOCKETS) == before


@pytest.mark.promise("daemon-directory-deleted-says")
def test_a_daemon_that_dies_after_its_directory_was_deleted_serves_again_by_itself(
    node: Machine, kinesis: Kinesis
) -> None:
    serve(node, kinesis)
    before = node.run(SOCKETS)
    with client(node) as own:
        own.put("row", "key").result(30)
        node.run("rm -r /run/producerd")
        node.run("systemctl kill --signal=SIGKILL producerd.service")
        own.put("row 2", "key").result(60)
        assert node.run(SOCKETS) == before


@pytest.mark.promise("journal-finds-lines")
def test_the_journal_finds_lines_by_priority_and_stream(node: Machine, kinesis: Kinesis) -> None:
    serve(node, kinesis)
    with client(node) as own:
        own.put("row", "key").result(30)
    node.configure(region="us-east-1", endpoint_url=kinesis.url, defaults={"queue_limit": 0})
    node.run("systemctl reload producerd.service", codes=(1,))
    errors = node.run("journalctl --no-pager -o cat -p err SYSLOG_IDENTIFIER=producerd")
    assert "settings are refused" in errors
    assert "serving version" not in errors
    of_stream = node.run("journalctl --no-pager -o cat -u producerd.service PRODUCERD_STREAM=flights")
    assert "shards read stream=flights" in of_stream
    assert "serving version" not in of_stream


def test_the_process_has_its_metrics_though_the_unit_hides_all_of_proc_but_processes(
    node: Machine, kinesis: Kinesis
) -> None:
    serve(node, kinesis)
    assert {"process_resident_memory_bytes", "process_start_time_seconds", "process_open_fds"} <= {
        line.partition(" ")[0] for line in node.metrics().splitlines()
    }


@pytest.mark.promise("uninstalling-page-says")
def test_uninstalling_as_the_page_says_leaves_nothing(node: Machine, kinesis: Kinesis) -> None:
    serve(node, kinesis)
    node.run("useradd spark")
    node.run("usermod --append --groups producerd spark")
    page = (ROOT / "docs/operate/install.md").read_text().partition("## Uninstalling")[2]
    block = page.partition("```console\n")[2].partition("```")[0]
    commands = [line.removeprefix("$ ").partition("    #")[0] for line in block.splitlines()]
    assert len(commands) == 8
    try:
        for command in commands:
            node.run(shlex.join(["sh", "-c", command]))
        node.assert_nothing_is_left()
    finally:
        node.install()  # as `node` found it
