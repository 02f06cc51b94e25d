"""`producerctl` names what a stream waits for, with the numbers, and says what to do where no daemon answers."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from producerd import ctl
from producerd.testing import FakeKinesis, hash_of
from producerd.testing.fake_kinesis import serve_in_thread
from producerd.wire.columns import Columns, lay_out
from tests import admin_stub
from tests.ctl_asking import Asking
from tests.daemon import START_SECONDS, DaemonProcess, WireClient, daemon, directory, session, until

SHARD = "shardId-000000000002"


def keys_of(shard: int, of: int, count: int) -> list[bytes]:
    keys = (b"key %d" % number for number in range(10_000))
    return [key for key in keys if hash_of(key.decode(), None) * of >> 128 == shard][:count]


def frame_for(shard: int, records: int) -> Columns:
    return lay_out(keys_of(shard, 4, 10) * (records // 10), [b"x" * 900] * records)


def shows_hot(to: Asking) -> str:
    """Return the status if it names the hot shard."""
    status = to.succeeds("status")
    return status if f"{SHARD} holds " in status else ""


@pytest.mark.promise("shards-full-few-none")
def test_it_names_the_hot_shard_its_share_and_the_callers_that_wait(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeKinesis()
    fake.enforce_limits = True
    fake.create_stream("flights", shards=4)

    with (
        serve_in_thread(fake) as server,
        daemon(server.url, shard_rate_fraction=0.3, queue_limit=12_000) as running,
        session(running) as hot,
        session(running) as cold,
    ):
        to = Asking(capsys, running)
        for _ in range(11):
            hot.put(frame_for(2, 1_000))
        cold.put(frame_for(0, 100))
        hot.reserve(frame_for(2, 1_000).layout)
        stream = until(lambda: (s := to.stream())["cause"] == "hot_shard" and s["blocked_callers"] and s)
        assert stream["shard_id"] == SHARD
        assert stream["share"] > 0.9
        assert stream["queue_limit_records"] == 12_000
        assert 5_000 < stream["queue_records"] <= 12_000
        out = until(partial(shows_hot, to))
        assert re.search(r"^producerd .* serving, 2 connections", out)
        assert f"\nflights: the queue is at its limit: {SHARD} holds " in out

        shards = {
            shard["shard_id"]: shard for shard in json.loads(to.succeeds("shards", "flights", "--json"))["shards"]
        }
        assert sorted(shards) == [f"shardId-00000000000{place}" for place in range(4)]
        assert shards[SHARD]["waiting_records"] > 1_000
        assert shards[SHARD]["share"] > 0.9
        assert shards[SHARD]["rate_records"] <= 1_000
        assert 0 < shards[SHARD]["use"] <= 1.2
        assert shards["shardId-000000000001"]["waiting_records"] == 0
        assert int(shards[SHARD]["ending_hash_key"]) == 3 * 2**126 - 1
        lines = to.succeeds("shards", "flights").splitlines()
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


def test_a_daemon_without_streams_answers_only_its_user_and_has_its_admin_socket_for_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serve_in_thread(FakeKinesis()) as server, daemon(server.url) as running, directory() as path:
        to = Asking(capsys, running)
        assert stat.S_IMODE(os.stat(to.admin).st_mode) == 0o600
        assert to.succeeds("status").splitlines()[1] == "no client has opened a stream yet"
        assert to("shards", "flights") == (1, "", "producerctl: flights: no client has opened a stream of that name\n")

        settings = {"endpoint_url": server.url, "admin_socket": to.admin}
        other = DaemonProcess(path, settings, {}, socket_path=None)
        assert other.wait(START_SECONDS) == 75
        assert f"admin_socket = {to.admin}: in use by another producerd" in other.log
        with WireClient(running.socket) as client:
            assert client.hello().welcome is not None
    assert not os.path.exists(to.admin)


# ---- where no daemon answers


def test_where_no_daemon_answers_it_says_where_it_looked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with directory() as path:
        code, _, err = Asking(capsys, path / "none.sock")("status")
        assert code == 1
        assert f"no daemon answers: {path}/none.sock: No such file or directory" in err
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
        monkeypatch.delenv("PRODUCERD_ADMIN_SOCKET", raising=False)
        if os.path.exists("/run/producerd/producerd.admin.sock"):
            pytest.skip("a daemon serves at the system's own place on this machine")
        assert ctl.main(["status"]) == 1
        err = capsys.readouterr().err
        assert "/run/producerd/producerd.admin.sock: " in err
        assert f"{path}/producerd/producerd.admin.sock: " in err


@contextmanager
def answering(path: Path, answer: bytes, times: int = 1) -> Iterator[None]:
    """A socket whose owner answers so, whatever it is asked."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer_all() -> None:
            for _ in range(times):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(answer)

        thread = Thread(target=answer_all)
        thread.start()
        yield
        thread.join()


def http(status: int, body: str) -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"not HTTP\r\n\r\n",
        http(200, "hello"),
        *(http(status, body) for status in (200, 404) for body in ("[1]", "null", "[" * 100_000)),
    ],
    ids=["nothing", "no HTTP", "no JSON", "a list", "null", "no end", "404 a list", "404 null", "404 no end"],
)
def test_a_socket_of_another_program_is_no_daemon(capsys: pytest.CaptureFixture[str], answer: bytes) -> None:
    with directory() as path, answering(path / "other.sock", answer):
        code, out, err = Asking(capsys, path / "other.sock")("status")
    assert (code, out) == (1, "")
    assert err.startswith(f"producerctl: no daemon answers: {path}/other.sock: ")
    assert "not HTTP" not in err


@pytest.mark.parametrize(
    ("order", "said"),
    [("flush", "{}: timed out; the order may have been carried out"), ("drain", "no daemon answers: {}: timed out; ")],
)
def test_an_order_to_a_daemon_that_hangs_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, order: str, said: str
) -> None:
    monkeypatch.setattr("producerd.ctl.daemon.TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr("producerd.ctl.daemon.LOOK_SECONDS", 0.01)
    with directory() as path, socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(path / "hung.sock"))
        hung.listen()
        code, out, err = Asking(capsys, path / "hung.sock")(order, "--timeout", "0")
    assert (code, out) == (1, "")
    assert err.startswith("producerctl: " + said.format(path / "hung.sock"))


def test_it_loads_nothing_but_the_standard_library() -> None:
    code = "import sys; known = set(sys.modules); import producerd.ctl; print(*set(sys.modules) - known)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.split(".")[0] for name in loaded} <= {*sys.stdlib_module_names, "producerd"}
    assert "asyncio" not in loaded


@pytest.mark.promise("order-daemon-received")
@pytest.mark.parametrize("answer", [b"", http(500, "no")])
def test_an_order_that_one_daemon_has_received_goes_to_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """The other one may be another user's.  A question goes on to it, and so does an order that none has received."""
    reloaded: dict[str, Any] = {"changed": [], "needs_restart": []}
    replies = {"/reload": reloaded, "/status": {"state": "serving", "unready": None}}
    with directory() as path, admin_stub.admin_socket(path / "second", replies):
        paths = [str(path / "first"), str(path / "second")]
        monkeypatch.setattr("producerd.ctl.daemon.admin_paths", lambda: paths)
        assert (ctl.main(["reload"]), capsys.readouterr().out) == (0, "nothing has changed\n")
        with answering(path / "first", answer, times=2):
            ordered, of_order = ctl.main(["reload"]), capsys.readouterr()
            asked, of_question = ctl.main(["ready"]), capsys.readouterr()
    assert (asked, of_question.out) == (0, "ready\n")
    assert (ordered, of_order.out) == (1, "")
    assert of_order.err.startswith(f"producerctl: {paths[0]}: ")
    assert of_order.err.endswith("; the order may have been carried out\n")


def test_the_admin_socket_may_be_named_behind_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with directory() as path, admin_stub.admin_socket(path / "s", {"/status": {"state": "serving", "unready": None}}):
        assert (ctl.main(["ready", "--admin-socket", str(path / "s")]), capsys.readouterr().out) == (0, "ready\n")


def test_a_command_that_the_daemon_does_not_know_is_named_with_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Its framework answers in text then."""
    with directory() as path, admin_stub.admin_socket(path / "s", {"/status": {"version": "0.0.9"}}):
        for command in (("bundle",), ("shards", "flights"), ("flush",)):
            refusal = "producerctl: the daemon is of version 0.0.9, which does not know this command\n"
            assert Asking(capsys, path / "s")(*command) == (1, "", refusal)


@pytest.mark.parametrize(("state", "answer"), [("serving", (0, "ready\n", "")), ("draining", (1, "", "draining"))])
def test_a_daemon_of_0_1_0_is_ready_while_it_serves(
    capsys: pytest.CaptureFixture[str], state: str, answer: tuple[int, str, str]
) -> None:
    """Its status has no word on why it would not be."""
    with directory() as path, admin_stub.admin_socket(path / "s", {"/status": {"version": "0.1.0", "state": state}}):
        code, out, err = Asking(capsys, path / "s")("ready")
        assert (code, out, err.strip().rpartition(" ")[2]) == answer
