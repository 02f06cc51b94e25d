"""`producerctl` names what a stream waits for, with the numbers, and says what to do where nobody answers."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from producerd import ctl
from producerd.ctl import tables
from producerd.testing import FakeKinesis, hash_of
from producerd.testing.fake_kinesis import serve_in_thread
from producerd.wire.columns import Columns, lay_out
from tests import admin_stub
from tests.daemon import DaemonProcess, WireClient, daemon, directory, one, session, until

SHARD = "shardId-000000000002"


def keys_of(shard: int, of: int, count: int) -> list[bytes]:
    keys = (b"key %d" % number for number in range(10_000))
    return [key for key in keys if hash_of(key.decode(), None) * of >> 128 == shard][:count]


def frame_for(shard: int, records: int) -> Columns:
    return lay_out(keys_of(shard, 4, 10) * (records // 10), [b"x" * 900] * records)


def admin_socket(running: DaemonProcess) -> Path:
    return running.socket.with_suffix(".admin.sock")


def asked(capsys: pytest.CaptureFixture[str], where: DaemonProcess | Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    path = where if isinstance(where, Path) else admin_socket(where)
    capsys.readouterr()
    code = ctl.main(["--admin-socket", str(path), *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.promise("shards-full-few-none")
def test_it_names_the_hot_shard_its_share_and_whoever_waits(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeKinesis()
    fake.enforce_limits = True
    fake.create_stream("flights", shards=4)

    def told(*arguments: str) -> Any:
        code, out, _ = asked(capsys, running, *arguments, "--json")
        assert code == 0
        return json.loads(out)

    with (
        serve_in_thread(fake) as server,
        daemon(server.url, shard_rate_fraction=1, queue_limit=12_000) as running,
        session(running) as hot,
        session(running) as cold,
    ):
        for _ in range(11):
            hot.put(frame_for(2, 1_000))
        cold.put(frame_for(0, 500))
        hot.reserve(frame_for(2, 1_000).layout)
        (stream,) = until(
            lambda: [s for s in told("status")["streams"] if s["cause"] == "hot_shard" and s["blocked_callers"]]
        )
        assert stream["shard_id"] == SHARD
        assert stream["share"] > 0.9
        assert stream["queue_limit_records"] == 12_000
        assert 5_000 < stream["queue_records"] <= 12_000
        code, out, _ = asked(capsys, running, "status")
        assert code == 0
        assert "producerd " in out
        assert "serving, 2 connections" in out
        assert f"flights: the queue is at its limit: {SHARD} holds " in out

        shards = {shard["shard_id"]: shard for shard in told("shards", "flights")["shards"]}
        assert sorted(shards) == [f"shardId-00000000000{place}" for place in range(4)]
        assert shards[SHARD]["waiting_records"] > 1_000
        assert shards[SHARD]["share"] > 0.9
        assert shards[SHARD]["rate_records"] <= 1_000
        assert 0 < shards[SHARD]["use"] <= 1.2
        assert shards["shardId-000000000001"]["waiting_records"] == 0
        assert int(shards[SHARD]["ending_hash_key"]) == 3 * 2**126 - 1
        code, out, _ = asked(capsys, running, "shards", "flights")
        lines = out.splitlines()
        assert lines[0].split()[:2] == ["SHARD", "WAITING"]
        assert lines[1].split()[0] == SHARD
        assert lines[-2].endswith("with nothing to send")
        assert f"the queue is at its limit: {SHARD} holds " in lines[-1]
        metrics = running.metrics()
        assert metrics["backpressure_cause_seconds_total[hot_shard]"] > 0
        assert metrics["record_rate_bound_seconds_total"] > 0
        assert 0 < metrics["shard_utilization_max_ratio"] <= 1.2
        assert metrics["stream_up"] == 1
        assert metrics["shard_map_refreshes_total[ok]"] >= 1
        hot.acks(1)


def test_a_stream_that_is_refused_is_down(capsys: pytest.CaptureFixture[str], bare_stream: str) -> None:
    """And why stands in the status."""
    with daemon(bare_stream) as running, session(running, "gone") as client:
        client.put(one())
        client.acks(1)
        metrics = running.metrics()
        assert metrics["stream_up"] == 0
        assert metrics["shard_map_refreshes_total[failed]"] >= 1
        _, out, _ = asked(capsys, running, "status")
        assert "broken" in out
        assert "gone: last error: STREAM_NOT_FOUND: Stream gone under account" in out
        assert asked(capsys, running, "shards", "gone") == (0, "gone: its shards are not known\n", "")


@pytest.fixture
def bare_stream() -> Any:
    """A service without streams."""
    with serve_in_thread(FakeKinesis()) as server:
        yield server.url


def test_only_the_daemon_s_own_user_may_ask(capsys: pytest.CaptureFixture[str], bare_stream: str) -> None:
    with daemon(bare_stream) as running:
        assert stat.S_IMODE(os.stat(admin_socket(running)).st_mode) == 0o600
        code, out, _ = asked(capsys, running, "status")
        assert (code, out.splitlines()[1]) == (0, "no client has opened a stream yet")
        code, _, err = asked(capsys, running, "shards", "flights")
        assert (code, err) == (1, "producerctl: flights: no client has opened a stream of that name\n")
    assert not admin_socket(running).exists()


def test_where_nobody_answers_it_says_where_it_looked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with directory() as path:
        code, _, err = asked(capsys, path / "none.sock", "status")
        assert code == 1
        assert f"no daemon answers: {path}/none.sock: No such file or directory" in err
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
        monkeypatch.delenv("PRODUCERD_ADMIN_SOCKET", raising=False)
        capsys.readouterr()
        if os.path.exists("/run/producerd/producerd.admin.sock"):
            pytest.skip("a daemon serves at the system's own place on this machine")
        assert ctl.main(["status"]) == 1
        said = capsys.readouterr().err
        assert "/run/producerd/producerd.admin.sock: " in said
        assert f"{path}/producerd/producerd.admin.sock: " in said


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"not HTTP\r\n\r\n"])
def test_a_socket_of_somebody_else_is_no_daemon(capsys: pytest.CaptureFixture[str], answer: bytes) -> None:
    with directory() as path, socket.socket(socket.AF_UNIX) as other:
        other.bind(os.fspath(path / "other.sock"))
        other.listen()
        asking = subprocess.Popen(
            [sys.executable, "-m", "producerd.ctl", "--admin-socket", str(path / "other.sock"), "status"],
            stderr=subprocess.PIPE,
            text=True,
        )
        connection, _ = other.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(answer)
        _, err = asking.communicate(timeout=15)
        assert asking.returncode == 1
        assert err.startswith(f"producerctl: no daemon answers: {path}/other.sock: ")
        assert "Traceback" not in err


def test_it_loads_nothing_but_the_standard_library() -> None:
    code = "import sys; known = set(sys.modules); import producerd.ctl; print(*set(sys.modules) - known)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.split(".")[0] for name in loaded} <= {*sys.stdlib_module_names, "producerd"}
    assert "asyncio" not in loaded


def test_a_daemon_whose_admin_socket_is_taken_does_not_start() -> None:
    with serve_in_thread(FakeKinesis()) as server, daemon(server.url) as running, directory() as path:
        other = DaemonProcess(
            path, {"endpoint_url": server.url, "admin_socket": admin_socket(running)}, {}, socket_path=None
        )
        assert other.wait() == 75
        assert f"admin_socket = {admin_socket(running)}: in use by another producerd" in other.log
        with WireClient(running.socket) as client:
            assert client.hello().welcome is not None


@pytest.mark.parametrize("body", ["[1]", "null", "[" * 100_000])
@pytest.mark.parametrize("status", [200, 404])
def test_whoever_else_answers_is_no_daemon(capsys: pytest.CaptureFixture[str], body: str, status: int) -> None:
    with directory() as path, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path / "other.sock"))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

        answering = Thread(target=answer)
        answering.start()
        code, out, err = asked(capsys, path / "other.sock", "status")
        answering.join()
        assert (code, out) == (1, "")
        assert err.startswith("producerctl: no daemon answers: ")


@pytest.mark.promise("order-daemon-received")
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 500 X\r\nContent-Length: 2\r\n\r\nno"])
def test_an_order_that_one_daemon_has_received_goes_to_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """The other one may be another user's.  A question goes on to it, and so does an order that nobody received."""
    reloaded: dict[str, Any] = {"changed": [], "needs_restart": []}
    replies = {"/reload": reloaded, "/status": {"state": "serving", "unready": None}}
    with (
        directory() as path,
        socket.socket(socket.AF_UNIX) as first,
        admin_stub.admin_socket(path / "second", replies),
    ):
        paths = [str(path / "first"), str(path / "second")]
        monkeypatch.setattr("producerd.ctl.daemon.admin_paths", lambda: paths)
        assert (ctl.main(["reload"]), capsys.readouterr().out) == (0, "nothing has changed\n")
        first.bind(paths[0])
        first.listen()

        def receive_two() -> None:
            for _ in range(2):
                connection, _ = first.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(answer)

        receiving = Thread(target=receive_two)
        receiving.start()
        ordered, of_order = ctl.main(["reload"]), capsys.readouterr()
        asked, of_question = ctl.main(["ready"]), capsys.readouterr()
        receiving.join()
        assert (asked, of_question.out) == (0, "ready\n")
        assert (ordered, of_order.out) == (1, "")
        assert of_order.err.startswith(f"producerctl: {paths[0]}: ")
        assert of_order.err.endswith("; the order may have been carried out\n")


def test_what_a_service_says_is_shown_without_what_a_terminal_would_obey() -> None:
    words = {"stream": "flights", "health": "working", "paused": False}
    stream = {**words, "reason": "no\x1b[2J", "last_error": "X: a\nb\x9b31m\ud800"}
    assert list(tables.why([stream])) == ["flights: no [2J", "flights: last error: X: a b 31m "]


def test_a_command_that_the_daemon_does_not_know_is_named_with_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Its framework answers in text then."""
    with directory() as path, admin_stub.admin_socket(path / "s", {"/status": {"version": "0.0.9"}}):
        for command in (("bundle",), ("shards", "flights"), ("flush",)):
            code, out, err = asked(capsys, path / "s", *command)
            assert (code, out) == (1, "")
            assert err == "producerctl: the daemon is of version 0.0.9, which does not know this command\n"


@pytest.mark.parametrize("command", ["shards", "flush", "pause", "resume", "put"])
def test_a_stream_without_a_name_is_wrong_usage(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as ended:
        ctl.main([command, ""])
    assert ended.value.code == 2
    assert "a stream's name is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(("state", "answer"), [("serving", (0, "ready\n", "")), ("draining", (1, "", "draining"))])
def test_a_daemon_of_0_1_0_is_ready_while_it_serves(
    capsys: pytest.CaptureFixture[str], state: str, answer: tuple[int, str, str]
) -> None:
    """Its status has no word on why it would not be."""
    with directory() as path, admin_stub.admin_socket(path / "s", {"/status": {"version": "0.1.0", "state": state}}):
        code, out, err = asked(capsys, path / "s", "ready")
        assert (code, out, err.strip().rpartition(" ")[2]) == answer
