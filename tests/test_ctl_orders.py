"""`producerctl`'s orders: what was asked for has happened when the command returns, and its words are exact."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from producerd import ctl
from producerd.errors import Code
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from producerd.wire import frames
from tests.daemon import CREDENTIALS, ROOT, DaemonProcess, WireClient, daemon, directory, one, rows, session, until

COMMAND = [sys.executable, "-m", "producerd.ctl", "--admin-socket"]


@pytest.fixture
def fake() -> FakeKinesis:
    fake = FakeKinesis()
    fake.create_stream("flights", shards=2)
    return fake


@pytest.fixture
def server(fake: FakeKinesis) -> Iterator[FakeServer]:
    with serve_in_thread(fake) as server:
        yield server


def asked(capsys: pytest.CaptureFixture[str], running: DaemonProcess, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    capsys.readouterr()
    code = ctl.main(["--admin-socket", str(running.socket.with_suffix(".admin.sock")), *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def status(capsys: pytest.CaptureFixture[str], running: DaemonProcess) -> Any:
    return json.loads(asked(capsys, running, "status", "--json")[1])


def stored(fake: FakeKinesis, stream: str = "flights") -> int:
    return len(fake.streams[stream].entries())


# ---- flush


@pytest.mark.promise("flush-returns-accepted")
def test_flush_returns_when_all_that_was_accepted_is_stored_and_says_how_much(
    capsys: pytest.CaptureFixture[str], server: FakeServer, fake: FakeKinesis
) -> None:
    with daemon(server.url, linger_seconds=3_600) as running, session(running) as client:
        client.put(rows(30))
        client.put(rows(12, name="more"))
        until(lambda: status(capsys, running)["streams"][0]["queue_records"] == 42)
        assert asked(capsys, running, "flush") == (0, "flights: 42 records: 42 stored\n", "")
        assert stored(fake) == 42
        assert [ack.stored for ack in client.acks(2)] == [30, 12]
        assert asked(capsys, running, "flush", "flights") == (0, "flights: 0 records\n", "")


def test_flush_keeps_its_deadline_and_says_what_is_left(
    capsys: pytest.CaptureFixture[str], server: FakeServer, fake: FakeKinesis
) -> None:
    with daemon(server.url, drain_timeout_seconds=0) as running, session(running) as client:
        client.put(rows(5))
        client.acks(1)
        assert asked(capsys, running, "pause", "flights")[0] == 0
        client.put(rows(7))
        code, out, err = asked(capsys, running, "flush", "--timeout", "0.2s")
        assert (code, out) == (1, "flights: 7 records: 7 open\n")
        assert err == "producerctl: 7 records had not ended after 0.2 s; `producerctl status` says why\n"
        assert asked(capsys, running, "resume", "flights")[0] == 0
        client.acks(1)


def test_flush_fails_where_records_do(capsys: pytest.CaptureFixture[str]) -> None:
    """Their callers get the errors, and the flush reports them, too."""
    with (
        serve_in_thread(FakeKinesis()) as server,
        daemon(server.url, linger_seconds=3_600) as running,
        session(running, "gone") as client,
    ):
        client.put(one())
        until(lambda: status(capsys, running)["streams"][0]["queue_records"] == 1)
        code, out, err = asked(capsys, running, "flush", "gone")
        assert (code, out) == (1, "gone: 1 record: 1 not stored\n")
        assert err == "producerctl: not all of them are stored; their callers know it\n"


def test_flush_counts_records_whose_caller_has_gone_meanwhile(
    capsys: pytest.CaptureFixture[str], server: FakeServer
) -> None:
    with daemon(server.url, linger_seconds=3_600) as running, session(running) as other:
        other.put(one())
        other.acks(0)
        with session(running) as client:
            client.put(rows(9))
            until(lambda: status(capsys, running)["streams"][0]["queue_records"] == 10)
            assert asked(capsys, running, "pause", "flights")[0] == 0
            flushing = subprocess.Popen(
                [
                    *(sys.executable, "-m", "producerd.ctl", "--admin-socket"),
                    *(str(running.socket.with_suffix(".admin.sock")), "flush", "flights"),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            until(lambda: "order path=/streams/flights/flush" in running.log)
        until(lambda: status(capsys, running)["streams"][0]["queue_records"] == 1)
        assert asked(capsys, running, "resume", "flights")[0] == 0
        assert flushing.communicate(timeout=15)[0] == "flights: 10 records: 1 stored, 9 discarded\n"
        assert flushing.returncode == 0


def test_a_flush_of_a_stream_that_nobody_knows_is_refused(
    capsys: pytest.CaptureFixture[str], server: FakeServer
) -> None:
    with daemon(server.url) as running:
        code, _, err = asked(capsys, running, "flush", "flights")
        assert (code, err) == (1, "producerctl: flights: no client has opened a stream of that name\n")
        assert asked(capsys, running, "flush") == (0, "no client has opened a stream yet\n", "")


# ---- pause and resume


@pytest.mark.promise("paused-stream-sends")
def test_a_paused_stream_sends_nothing_blocks_its_callers_and_goes_on(
    capsys: pytest.CaptureFixture[str], server: FakeServer, fake: FakeKinesis
) -> None:
    with daemon(server.url, queue_limit=20) as running, session(running) as client:
        client.put(rows(5))
        client.acks(1)
        code, out, _ = asked(capsys, running, "pause", "flights")
        assert (code, out) == (0, "flights: nothing is sent until `producerctl resume flights`, or a restart\n")
        client.put(rows(10))
        client.reserve(rows(10, name="late").layout)
        assert client.reserve(rows(10).layout)
        until(lambda: status(capsys, running)["streams"][0]["blocked_callers"] == 1)
        (told,) = status(capsys, running)["streams"]
        assert told["paused"]
        assert told["cause"] == "paused"
        assert "producerctl resume flights" in told["reason"]
        assert "flights  paused" in asked(capsys, running, "status")[1]
        assert stored(fake) == 5
        until(lambda: running.metrics()["backpressure_cause_seconds_total[paused]"] > 0)
        assert asked(capsys, running, "resume", "flights") == (0, "flights: sent again\n", "")
        message = client.read()
        while isinstance(message, frames.Ack):
            message = client.read()
        assert isinstance(message, frames.Grant)


@pytest.mark.promise("stream-settings-paused")
def test_a_stream_with_settings_can_be_paused_before_its_first_client(
    capsys: pytest.CaptureFixture[str], server: FakeServer, fake: FakeKinesis
) -> None:
    fake.create_stream("other", shards=1)
    listed: dict[str, Any] = {"streams.flights.linger_seconds": 0.0, "max_streams": 1}
    with daemon(server.url, **listed) as running:
        with session(running, "other"):
            refused = (1, "", "producerctl: max_streams = 1 streams are in use\n")
            assert asked(capsys, running, "pause", "flights") == refused
        unknown = (1, "", "producerctl: flight: no client has opened a stream of that name\n")
        assert asked(capsys, running, "pause", "flight") == unknown
        until(lambda: not running.metrics()["client_connections"])
        assert asked(capsys, running, "pause", "flights")[0] == 0
        with session(running) as client:
            client.put(rows(5))
            until(lambda: status(capsys, running)["streams"][0]["queue_records"] == 5)
            assert stored(fake) == 0
            assert asked(capsys, running, "resume", "flights")[0] == 0
            client.acks(1)
            assert stored(fake) == 5


# ---- drain


@pytest.mark.promise("drain-wait-ends-real")
def test_drain_delivers_what_is_queued_and_then_the_daemon_has_stopped(
    capsys: pytest.CaptureFixture[str], server: FakeServer, fake: FakeKinesis
) -> None:
    """By SIGTERM these rows would go back to their caller."""
    with daemon(server.url, linger_seconds=3_600) as running, session(running) as client:
        client.put(rows(25))
        until(lambda: status(capsys, running)["streams"][0]["queue_records"] == 25)
        assert asked(capsys, running, "drain") == (0, "the daemon stops, all delivered\n", "")
        assert stored(fake) == 25
        told = [message for message in client.read_to_end() if isinstance(message, frames.Ack)]
        assert [ack.stored for ack in told] == [25]
        assert running.wait() == 0


def test_drain_with_wait_returns_when_the_daemon_closes_its_end(tmp_path: Path) -> None:
    """A hook that runs before a container stops returns only then."""
    path, drained, ended = str(tmp_path / "admin.sock"), b'{"returned_records": 0, "undelivered_records": 0}', Event()

    def serve() -> None:
        connection, _ = listening.accept()
        connection.recv(4_096)
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(drained), drained))
        time.sleep(0.3)  # the daemon has settled all rows, and still closes what it has open
        ended.set()
        connection.close()

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        serving = Thread(target=serve)
        serving.start()
        assert ctl.main(["--admin-socket", path, "drain", "--wait"]) == 0
        assert ended.is_set()
        serving.join()


def has_memory(pid: int) -> bool:
    """Whether a process has not ended.  The kernel takes its memory before it closes its files."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except FileNotFoundError:
        return False


@pytest.mark.promise("drain-wait-ends-real")
def test_drain_with_wait_ends_with_a_real_daemon(
    capsys: pytest.CaptureFixture[str], server: FakeServer, fake: FakeKinesis
) -> None:
    with daemon(server.url, linger_seconds=3_600) as running, session(running) as client:
        assert asked(capsys, running, "ready") == (0, "ready\n", "")
        client.put(rows(25))
        until(lambda: status(capsys, running)["streams"][0]["queue_records"] == 25)
        assert asked(capsys, running, "drain", "--wait") == (0, "the daemon has stopped, all delivered\n", "")
        assert not has_memory(running.process.pid), "it has ended, and may be not yet waited for"
        assert stored(fake) == 25
        assert running.wait() == 0
        code, out, err = asked(capsys, running, "ready")
        assert (code, out) == (1, "")
        assert err.startswith("producerctl: no daemon answers: ")


def test_a_daemon_that_drains_is_not_ready(
    capsys: pytest.CaptureFixture[str], server: FakeServer, fake: FakeKinesis
) -> None:
    fake.enforce_limits = True
    with daemon(server.url, shard_rate_fraction=0.001) as running, session(running) as client:
        client.put(rows(1_500, size=500))
        admin = str(running.socket.with_suffix(".admin.sock"))
        draining = Thread(target=ctl.main, args=(["--admin-socket", admin, "drain", "--timeout", "10m"],))
        draining.start()
        until(lambda: "draining by=producerctl" in running.log)
        assert asked(capsys, running, "ready") == (1, "", "producerctl: not ready: draining\n")
        running.signal(signal.SIGTERM)
        draining.join(15)


def test_drain_gives_back_what_it_could_not_deliver_in_time(
    capsys: pytest.CaptureFixture[str], server: FakeServer, fake: FakeKinesis
) -> None:
    fake.enforce_limits = True
    with (
        daemon(server.url, shard_rate_fraction=0.001, queue_limit=10_000) as running,
        session(running) as client,
    ):
        client.put(rows(1_500, size=500))
        code, out, _ = asked(capsys, running, "drain", "--timeout", "0.3")
        match = re.fullmatch(r"the daemon stops; ([\d,]+) records went back to their callers, who keep them\n", out)
        assert code == 0
        assert match is not None, out
        acks = [message for message in client.read_to_end() if isinstance(message, frames.Ack)]
        assert sum(ack.returned for ack in acks) == int(match[1].replace(",", ""))
        assert sum(ack.stored for ack in acks) == stored(fake)
        assert running.wait() == 0


def test_a_signal_cuts_the_emptying_short(
    capsys: pytest.CaptureFixture[str], server: FakeServer, fake: FakeKinesis
) -> None:
    fake.enforce_limits = True
    with daemon(server.url, shard_rate_fraction=0.001) as running, session(running) as client:
        client.put(rows(1_500, size=500))
        said: list[str] = []
        admin = str(running.socket.with_suffix(".admin.sock"))
        command = [sys.executable, "-m", "producerd.ctl", "--admin-socket", admin, "drain", "--timeout", "10m"]
        draining = Thread(
            target=lambda: said.append(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
        )
        draining.start()
        until(lambda: "draining by=producerctl" in running.log)
        running.signal(signal.SIGTERM)
        draining.join(15)
        assert "went back to their callers" in said[0]
        assert running.wait() == 0


@pytest.mark.promise("second-drain-less-time")
def test_a_second_drain_with_less_time_shortens_the_first_and_none_lengthens_it(
    server: FakeServer, fake: FakeKinesis
) -> None:
    fake.enforce_limits = True
    with daemon(server.url, shard_rate_fraction=0.001) as running, session(running) as client:
        client.put(rows(1_500, size=500))
        admin = str(running.socket.with_suffix(".admin.sock"))
        begun = []
        for time_left in (["--timeout", "10m"], [], ["--timeout", "20m"]):
            begun.append(subprocess.Popen([*COMMAND, admin, "drain", *time_left], stdout=subprocess.DEVNULL))
            until(lambda: running.log.count(" order path=/drain ") == len(begun))
        shorter = [*COMMAND, admin, "drain", "--timeout", "0.1"]
        done = subprocess.run(shorter, capture_output=True, text=True, timeout=15, check=True)
        assert "went back to their callers" in done.stdout
        assert [each.wait(15) for each in begun] == [0, 0, 0]
        assert running.wait() == 0
        assert running.log.count("draining by=producerctl") == 2


# ---- settings


@pytest.mark.promise("reload-changes-limits")
def test_reload_changes_limits_under_way_and_refuses_what_does_not_hold(
    capsys: pytest.CaptureFixture[str], server: FakeServer
) -> None:
    with directory() as path:
        file = path / "producerd.toml"
        file.write_text("[defaults]\nqueue_limit = 1_000\n")
        environ = {**CREDENTIALS, "PRODUCERD_CONFIG": str(file)}
        with daemon(server.url, environ=environ) as running, session(running) as idle, session(running) as client:
            client.put(one())
            client.acks(1)
            assert asked(capsys, running, "reload") == (0, "nothing has changed\n", "")
            before = running.metrics()["config_last_reload_success_timestamp_seconds"]
            file.write_text('max_connections = 1\n[defaults]\nqueue_limit = 77\naggregation = "kpl"\n')
            code, out, _ = asked(capsys, running, "reload")
            assert code == 0
            assert "changed: defaults.queue_limit: 1000 -> 77\n" in out
            assert 'needs a restart: defaults.aggregation: "none" -> "kpl"\n' in out
            assert status(capsys, running)["streams"][0]["queue_limit_records"] == 77
            metrics = running.metrics()
            assert metrics["queue_limit_records"] == 77
            assert metrics["config_last_reload_successful"] == 1
            assert metrics["config_last_reload_success_timestamp_seconds"] > before
            assert idle.expect(frames.Close).code == Code.TABLE_FULL

            file.write_text("[defaults]\nqueue_limit = 0\n")
            code, out, err = asked(capsys, running, "reload")
            assert (code, out) == (1, "")
            assert "queue_limit = 0" in err
            assert "allowed: 1 to " in err
            assert running.metrics()["config_last_reload_successful"] == 0
            assert status(capsys, running)["streams"][0]["queue_limit_records"] == 77
            client.put(one())
            client.acks(1)

            file.write_text('[defaults]\nqueue_limit = 77\n[streams.orders]\nendpoint_url = "http://a.example"\n')
            assert asked(capsys, running, "reload")[0] == 0
            until(lambda: "WARNING producerd: a setting exposes something to others" in running.log)


@pytest.mark.promise("reload-changes-limits")
def test_sighup_reloads_also_under_load(server: FakeServer, fake: FakeKinesis) -> None:
    """Nothing of what is on its way is lost, whichever limit holds."""
    with directory() as path:
        file = path / "producerd.toml"
        file.write_text("[defaults]\nqueue_limit = 1_000\n")
        environ = {**CREDENTIALS, "PRODUCERD_CONFIG": str(file)}
        with daemon(server.url, environ=environ) as running, session(running) as client:
            before = 0.0
            for number in range(20):
                limit, linger_seconds = (50 if number % 2 else 1_000), 0.01 * (1 + number % 3)
                file.write_text(f"[defaults]\nqueue_limit = {limit}\nlinger_seconds = {linger_seconds}\n")
                running.signal(signal.SIGHUP)
                before = until(partial(_reloaded, running, before, limit))
                client.put(rows(10, name=f"r{number}"))
            assert sum(ack.stored for ack in client.acks(20)) == 200
        assert stored(fake) == 200


def _reloaded(running: DaemonProcess, before: float, limit: int) -> float:
    """When, once it is later than before."""
    metrics = running.metrics()
    at = metrics["config_last_reload_success_timestamp_seconds"]
    return at if at > before and metrics["queue_limit_records"] == limit else 0.0


def test_settings_that_cannot_be_read_to_their_end_hold_up_no_end(server: FakeServer) -> None:
    """As a file of a network that is gone."""
    with directory() as path:
        file = path / "producerd.toml"
        file.write_text("")
        with daemon(server.url, environ={**CREDENTIALS, "PRODUCERD_CONFIG": str(file)}) as running:
            file.unlink()
            os.mkfifo(file)
            running.signal(signal.SIGHUP)
            with session(running) as client:
                client.put(one())
                client.acks(1)
            assert running.end() == 0


def test_the_log_level_changes_for_a_while(capsys: pytest.CaptureFixture[str], server: FakeServer) -> None:
    with daemon(server.url) as running:
        with session(running):
            assert "session opened" not in running.log
        assert asked(capsys, running, "loglevel", "debug", "--for", "1s") == (0, "log level debug for 1 s\n", "")
        assert "log level debug" in asked(capsys, running, "status")[1]
        with session(running):
            until(lambda: "session opened" in running.log)
        until(lambda: status(capsys, running)["log_level"] == "info")


@pytest.mark.parametrize("given", ["10x", "-1", "", "1h30", "366d", "99999999999999d", "9" * 400])
def test_a_time_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str], given: str) -> None:
    with pytest.raises(SystemExit) as ended:
        ctl.main(["loglevel", "debug", f"--for={given}"])
    assert ended.value.code == 2
    assert f"{given!r}: allowed: a time such as 90, 90s, 10m, 2h, 1d" in capsys.readouterr().err


# ---- put, top, dump


@pytest.mark.promise("put-sends-line-record")
def test_put_sends_each_line_as_a_record(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    server: FakeServer,
    fake: FakeKinesis,
    tmp_path: Path,
) -> None:
    """By the socket that the settings name."""
    with daemon(server.url) as running:
        (tmp_path / "producerd.toml").write_text(f"socket = '{running.socket}'")
        monkeypatch.setenv("PRODUCERD_CONFIG", str(tmp_path / "producerd.toml"))
        text = "".join(f"line {number}\n" for number in range(2_500)) + "the last has no end"
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        done = asked(capsys, running, "put", "flights", "--key", "k")
        assert done == (0, "flights: 2,501 records stored\n", "")
        found = fake.streams["flights"].entries()
        assert {record.partition_key for record in found} == {"k"}
        assert sorted(record.data.decode() for record in found) == sorted(text.splitlines())


def test_put_says_why_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, server: FakeServer
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\n")))
    with daemon(server.url) as running:
        code, out, err = asked(capsys, running, "put", "gone", "--socket", str(running.socket))
        assert (code, out) == (1, "")
        assert Code.STREAM_NOT_FOUND in err


def test_top_has_rates(capsys: pytest.CaptureFixture[str], server: FakeServer) -> None:
    with daemon(server.url) as running, session(running) as client:
        client.put(rows(5))
        client.acks(1)
        code, out, _ = asked(capsys, running, "top", "--every", "0.05", "--count", "2")
        assert code == 0
        assert out.count("IN/S  STORED/S") == 2
        assert "\x1b" not in out, "only on a terminal"


@pytest.mark.promise("dump-records-secrets")
def test_the_dump_has_all_but_records_and_secrets(capsys: pytest.CaptureFixture[str], server: FakeServer) -> None:
    environ = {"AWS_ACCESS_KEY_ID": "AKIDSECRET", "AWS_SECRET_ACCESS_KEY": "hushhush"}
    with daemon(server.url, environ=environ) as running, session(running) as client:
        client.put(one(b"the payload", b"the key"))
        client.acks(1)
        code, out, _ = asked(capsys, running, "dump")
        assert code == 0
        told = json.loads(out)
        assert told["status"]["streams"][0]["stream"] == "flights"
        assert len(told["shards"]["flights"]) == 2
        assert any(line.startswith("queue_limit = ") for line in told["settings"])
        assert told["process"]["memory"]["VmRSS"].strip().endswith("kB")
        assert any("_serve" in line for task in told["tasks"].values() for line in task)
        for secret in ("the payload", "the key", "AKIDSECRET", "hushhush"):
            assert secret not in out


@pytest.mark.promise("answers-once")
def test_it_answers_at_once() -> None:
    """Under 0.2 s on an idle machine: told in CPU, as others may be at work here."""
    code = "import time; import producerd.ctl; print(time.process_time())"
    seconds = min(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    )
    assert seconds < 0.2


# ---- who may


OTHER_UID = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


def by(uid: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Loaded first, as Python itself may lie where only root may read."""
    code = (
        "import gettext, os, shutil, sys; from producerd.ctl import main; from spark_client import KinesisClient; "
        f"os.setgroups([]); os.setgid({uid}); os.setuid({uid}); sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, input="x\n", cwd=ROOT)


@pytest.mark.promise("another-user-administer", "another-user-administer-even")
@as_root
def test_another_user_may_not_administer_even_where_the_sockets_mode_lets_it(server: FakeServer) -> None:
    with daemon(server.url) as running:
        admin = running.socket.with_suffix(".admin.sock")
        running.socket.parent.chmod(0o755)
        done = by(OTHER_UID, "--admin-socket", str(admin), "status")
        assert done.returncode == 1
        assert "it answers only to the daemon's own user and to root: try sudo" in done.stderr
        admin.chmod(0o666)
        done = by(OTHER_UID, "--admin-socket", str(admin), "drain")
        assert done.returncode == 1
        assert f"uid {OTHER_UID} may not: only the daemon's own user and root" in done.stderr
        until(lambda: f"who may not administer tried to uid={OTHER_UID}" in running.log)
        assert running.process.poll() is None


@pytest.mark.promise("another-user-administer", "listed-users-send")
@as_root
def test_only_listed_users_may_send(server: FakeServer, fake: FakeKinesis) -> None:
    """The daemon refuses the others with the reason, and counts them.  The kernel says who they are."""
    with daemon(server.url, allowed_uids=str(OTHER_UID), socket_mode="0666") as running:
        running.socket.parent.chmod(0o755)
        done = by(OTHER_UID, "put", "flights", "--socket", str(running.socket))
        assert (done.returncode, done.stdout) == (0, "flights: 1 record stored\n"), done.stderr
        done = by(0, "put", "flights", "--socket", str(running.socket))
        assert done.returncode == 1
        assert "PRODUCERD[NOT_AUTHORIZED]" in done.stderr
        assert "user id 0 may not use this socket: it is not in allowed_uids" in done.stderr
        assert running.metrics()["client_disconnects_total[not_authorized]"] == 1
        with WireClient(running.socket) as client:
            assert isinstance(client.read(), frames.Close)
        assert stored(fake) == 1


def test_every_order_is_logged_with_user_and_process(capsys: pytest.CaptureFixture[str], server: FakeServer) -> None:
    """However many: repeats of other messages are counted instead."""
    with daemon(server.url) as running, session(running):
        for _ in range(8):
            assert asked(capsys, running, "pause", "flights")[0] == 0
        line = f"order path=/streams/flights/pause uid={os.getuid()} pid={os.getpid()}"
        until(lambda: running.log.count(line) == 8)


def test_a_get_changes_nothing(server: FakeServer) -> None:
    """By TCP there is nothing to order, and on the admin socket an order is a POST."""
    with daemon(server.url) as running:
        for path in ("/drain", "/reload", "/flush", "/streams/flights/pause", "/loglevel", "/status", "/dump"):
            assert running.get(path)[0] == 404
        time.sleep(0)
        assert running.get("/-/ready") == (200, "ready\n")


def test_a_flush_whose_records_go_back_to_their_callers_has_failed(server: FakeServer) -> None:
    """An operator who flushes before a stop must not take them for stored."""
    with daemon(server.url) as running, session(running) as client:
        admin = str(running.socket.with_suffix(".admin.sock"))
        command = [sys.executable, "-m", "producerd.ctl", "--admin-socket", admin]
        subprocess.run([*command, "pause", "flights"], check=True, capture_output=True)
        client.put(rows(7))
        flushing = subprocess.Popen([*command, "flush"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(lambda: "order path=/flush" in running.log)
        running.signal(signal.SIGTERM)
        out, err = flushing.communicate(timeout=15)
        assert (flushing.returncode, out) == (1, "flights: 7 records: 7 returned\n")
        assert err == "producerctl: not all of them are stored; their callers know it\n"


def test_settings_that_cannot_be_read_at_all_are_refused_too(server: FakeServer) -> None:
    """Whatever goes wrong in reading them, the daemon goes on with the old ones."""
    with directory() as path:
        file = path / "producerd.toml"
        file.write_text("[defaults]\nqueue_limit = 1_000\n")
        with daemon(server.url, environ={**CREDENTIALS, "PRODUCERD_CONFIG": str(file)}) as running:
            file.write_text(f"max_streams = {'1' * 5_000}\n")
            running.signal(signal.SIGHUP)
            until(lambda: "settings are refused, the old ones stay" in running.log)
            with session(running) as client:
                client.put(one())
                client.acks(1)


@pytest.mark.parametrize("late", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_that_come_late_leave_the_exit_code_alone(server: FakeServer, late: signal.Signals) -> None:
    with daemon(server.url) as running:
        running.signal(signal.SIGTERM)
        while running.process.poll() is None:
            running.signal(late)
            time.sleep(0.002)
        assert running.process.returncode == 0, running.log


def test_put_holds_few_large_lines_at_a_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand of them were a gigabyte."""
    sizes: list[int] = []

    class Client:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None: ...

        def put_many(self, records: list[tuple[bytes, str | None]]) -> None:
            sizes.append(sum(len(data) for data, _ in records))

    monkeypatch.setattr("spark_client.KinesisClient", Client)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((b"x" * 100_000 + b"\n") * 50)))
    assert ctl.main(["put", "flights"]) == 0
    assert capsys.readouterr().out == "flights: 50 records stored\n"
    assert sum(sizes) == 5_000_000
    assert max(sizes) < 500_000


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
@pytest.mark.parametrize("where", ["> /dev/full", ">&-", "| true"])
def test_an_output_that_takes_nothing_is_no_traceback(server: FakeServer, where: str) -> None:
    with daemon(server.url) as running:
        admin = running.socket.with_suffix(".admin.sock")
        command = f"{sys.executable} -m producerd.ctl --admin-socket {admin} top --every 0.05 --count 2 {where}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == (1 if "full" in where else 0)
        assert done.stderr == ("producerctl: No space left on device\n" if "full" in where else "")
