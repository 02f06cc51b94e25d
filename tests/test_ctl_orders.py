"""`producerctl`'s orders: what was asked for has happened when the command returns, and its words are exact."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from producerd import ctl
from producerd.errors import Code, ConnectionFailed
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from producerd.wire import messages
from tests.ctl_asking import Asking
from tests.daemon import CREDENTIALS, ROOT, DaemonProcess, WireClient, daemon, directory, one, rows, session, until

COMMAND = [sys.executable, "-m", "producerd.ctl", "--admin-socket"]
NOT_STORED = "producerctl: not all of them are stored; their callers know it, unless they have left\n"


@pytest.fixture
def fake() -> FakeKinesis:
    fake = FakeKinesis()
    fake.create_stream("flights", shards=2)
    return fake


@pytest.fixture
def server(fake: FakeKinesis) -> Iterator[FakeServer]:
    with serve_in_thread(fake) as server:
        yield server


@pytest.fixture
def slow(server: FakeServer, fake: FakeKinesis) -> Iterator[DaemonProcess]:
    """A daemon with 1,500 rows of a client, which it sends so slowly that an order comes in between."""
    fake.enforce_limits = True
    with daemon(server.url, shard_rate_fraction=0.001, queue_limit=10_000) as running:
        yield running


Ask = Callable[[DaemonProcess], Asking]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    return partial(Asking, capsys)


def stored(fake: FakeKinesis, stream: str = "flights") -> int:
    return len(fake.streams[stream].entries())


# ---- one daemon for all orders to a stream: its streams keep their rows until they are flushed

ENVIRON = {**CREDENTIALS, "AWS_ACCESS_KEY_ID": "AKIDSECRET", "AWS_SECRET_ACCESS_KEY": "hushhush"}


@pytest.fixture(scope="module")
def shared_fake() -> FakeKinesis:
    return FakeKinesis()


@pytest.fixture(scope="module")
def shared(shared_fake: FakeKinesis) -> Iterator[DaemonProcess]:
    small: dict[str, Any] = {"streams.small.queue_limit": 20, "streams.small.linger_seconds": 0.0}
    settings = {"linger_seconds": 3_600, "drain_timeout_seconds": 0, **small}
    with serve_in_thread(shared_fake) as server, daemon(server.url, environ=ENVIRON, **settings) as running:
        yield running


@pytest.fixture
def to(shared: DaemonProcess, capsys: pytest.CaptureFixture[str]) -> Asking:
    return Asking(capsys, shared)


@pytest.mark.promise("flush-returns-accepted")
def test_flush_returns_when_all_that_was_accepted_is_stored_and_says_how_much(
    shared: DaemonProcess, shared_fake: FakeKinesis, to: Asking
) -> None:
    shared_fake.create_stream("flushed", shards=2)
    with session(shared, "flushed") as client:
        client.put(rows(30))
        client.put(rows(12, name="more"))
        to.until_queued(42, "flushed")
        assert to.succeeds("flush", "flushed") == "flushed: 42 records: 42 stored\n"
        assert stored(shared_fake, "flushed") == 42
        assert [ack.stored for ack in client.acks(2)] == [30, 12]
        assert to.succeeds("flush", "flushed") == "flushed: 0 records\n"


@pytest.mark.promise("paused-stream-sends")
def test_a_paused_stream_sends_nothing_blocks_its_callers_and_goes_on(
    shared: DaemonProcess, shared_fake: FakeKinesis, to: Asking
) -> None:
    shared_fake.create_stream("small", shards=1)
    with session(shared, "small") as client:
        out = to.succeeds("pause", "small")
        assert out == "small: nothing is sent until `producerctl resume small`, or a restart\n"
        client.put(rows(10))
        client.reserve(rows(10, name="late").layout)
        assert client.reserve(rows(10).layout)
        until(lambda: to.stream("small")["blocked_callers"] == 1)
        status = to.stream("small")
        assert (status["paused"], status["cause"]) == (True, "paused")
        assert "producerctl resume small" in status["reason"]
        assert re.search(r"^small +paused ", to.succeeds("status"), re.MULTILINE)
        until(lambda: shared.metrics()["backpressure_cause_seconds_total[paused]"] > 0)
        assert stored(shared_fake, "small") == 0
        assert to.succeeds("resume", "small")
        while isinstance(message := client.read(), messages.Ack):
            pass
        assert isinstance(message, messages.Grant)


def test_every_order_is_logged_with_user_and_process(shared: DaemonProcess, to: Asking) -> None:
    """However many: repeats of other messages are counted instead."""
    with session(shared, "often"):
        for _ in range(8):
            assert to.succeeds("pause", "often")
        line = f"order path=/streams/often/pause uid={os.getuid()} pid={os.getpid()}"
        until(lambda: shared.log.count(line) == 8)


def test_a_get_changes_nothing(shared: DaemonProcess) -> None:
    """By TCP there is nothing to order, and on the admin socket an order is a POST."""
    for path in ("/drain", "/reload", "/flush", "/streams/flights/pause", "/loglevel", "/status", "/dump"):
        assert shared.get(path)[0] == 404
    assert shared.get("/-/ready") == (200, "ready\n")


@pytest.mark.promise("put-sends-line-record")
def test_put_sends_each_line_as_a_record(
    monkeypatch: pytest.MonkeyPatch, shared: DaemonProcess, shared_fake: FakeKinesis, to: Asking, tmp_path: Path
) -> None:
    """By the socket that the settings name."""
    stream = shared_fake.create_stream("lines", shards=2)
    (tmp_path / "producerd.toml").write_text(f"socket = '{shared.socket}'")
    monkeypatch.setenv("PRODUCERD_CONFIG", str(tmp_path / "producerd.toml"))
    text = "".join(f"line {number}\n" for number in range(2_500)) + "the last has no end"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert to.succeeds("put", "lines", "--key", "k") == "lines: 2,501 records stored\n"
    found = stream.entries()
    assert {record.partition_key for record in found} == {"k"}
    assert sorted(record.data.decode() for record in found) == sorted(text.splitlines())


def test_put_names_the_lines_that_are_not_stored(
    monkeypatch: pytest.MonkeyPatch, shared: DaemonProcess, shared_fake: FakeKinesis, to: Asking
) -> None:
    stream = shared_fake.create_stream("long-lines", shards=2)
    lines = [b"short"] * 60_000  # more than are put at once
    lines[7] = lines[50_000] = b"x" * (1 << 21)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(lines))))
    code, out, err = to("put", "long-lines", "--socket", shared.socket)
    assert (code, out) == (1, "")
    assert "PRODUCERD[RECORD_TOO_LARGE]: 2 lines of 60,000 not stored, by number: " in err
    assert "), records 8; " in err
    assert "), records 50001" in err
    assert len(stream.entries()) == 59_998


def test_put_goes_to_the_daemon_of_the_admin_socket_and_no_other(
    monkeypatch: pytest.MonkeyPatch, shared: DaemonProcess, shared_fake: FakeKinesis, to: Asking, tmp_path: Path
) -> None:
    stream = shared_fake.create_stream("put-there", shards=1)
    monkeypatch.setenv("PRODUCERD_SOCKET", str(tmp_path / "other.sock"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\n")))
    assert to.succeeds("put", "put-there") == "put-there: 1 record stored\n"
    assert len(stream.entries()) == 1
    assert ctl.main(["--admin-socket", "/x/admin", "put", "put-there"]) == 1


def test_put_says_why_not(monkeypatch: pytest.MonkeyPatch, shared: DaemonProcess, to: Asking) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\n")))
    code, out, err = to("put", "gone", "--socket", shared.socket)
    assert (code, out) == (1, "")
    assert Code.STREAM_NOT_FOUND in err


@pytest.mark.promise("dump-records-secrets")
def test_the_dump_has_all_but_records_and_secrets(shared: DaemonProcess, shared_fake: FakeKinesis, to: Asking) -> None:
    shared_fake.create_stream("dumped", shards=2)
    with session(shared, "dumped") as client:
        client.put(one(b"the payload", b"the key"))
        assert to.succeeds("flush", "dumped")
        out = to.succeeds("dump")
    dump = json.loads(out)
    assert "dumped" in [stream["stream"] for stream in dump["status"]["streams"]]
    assert len(dump["shards"]["dumped"]) == 2
    assert any(line.startswith("queue_limit = ") for line in dump["settings"])
    assert dump["process"]["memory"]["VmRSS"].strip().endswith("kB")
    assert any("_serve" in line for task in dump["tasks"].values() for line in task)
    for secret in ("the payload", "the key", "AKIDSECRET", "hushhush"):
        assert secret not in out


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
@pytest.mark.parametrize("where", ["> /dev/full", ">&-", "| true"])
def test_an_output_that_takes_nothing_is_no_traceback(to: Asking, where: str) -> None:
    command = f"{sys.executable} -m producerd.ctl --admin-socket {to.admin} top --every 0.05 --count 2 {where}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == (1 if "full" in where else 0)
    assert done.stderr == ("producerctl: No space left on device\n" if "full" in where else "")


# ---- orders of a daemon of their own


@pytest.mark.promise("stream-settings-paused")
def test_a_stream_with_settings_can_be_paused_before_its_first_client(
    server: FakeServer, fake: FakeKinesis, ask: Ask
) -> None:
    fake.create_stream("other", shards=1)
    listed: dict[str, Any] = {"streams.flights.linger_seconds": 0.0, "max_streams": 1}
    with daemon(server.url, **listed) as running:
        to = ask(running)
        assert to.succeeds("flush") == "no client has opened a stream yet\n"
        with session(running, "other"):
            assert to("pause", "flights") == (1, "", "producerctl: max_streams = 1 streams are in use\n")
        until(lambda: not running.metrics()["client_connections"])
        assert to.succeeds("pause", "flights")
        with session(running) as client:
            client.put(rows(5))
            to.until_queued(5)
            assert stored(fake) == 0
            assert to.succeeds("resume", "flights")
            client.acks(1)
            assert stored(fake) == 5


def test_a_flush_whose_records_go_back_to_their_callers_has_failed(server: FakeServer, ask: Ask) -> None:
    """An operator who flushes before a stop must not take them for stored."""
    with daemon(server.url) as running, session(running) as client:
        to = ask(running)
        assert to.succeeds("pause", "flights")
        client.put(rows(7))
        flushing = subprocess.Popen(
            [*COMMAND, to.admin, "flush"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        until(lambda: "order path=/flush" in running.log)
        running.signal(signal.SIGTERM)
        assert flushing.communicate(timeout=15) == ("flights: 7 records: 7 returned\n", NOT_STORED)
        assert flushing.returncode == 1


# ---- drain


def has_memory(pid: int) -> bool:
    """Whether a process has not ended.  The kernel takes its memory before it closes its files."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except FileNotFoundError:
        return False


@pytest.mark.promise("drain-wait-ends-real")
def test_drain_delivers_what_is_queued_and_with_wait_ends_with_the_daemon(
    server: FakeServer, fake: FakeKinesis, ask: Ask
) -> None:
    """By SIGTERM these rows would go back to their caller."""
    with daemon(server.url, linger_seconds=3_600) as running, session(running) as client:
        to = ask(running)
        assert to.succeeds("ready") == "ready\n"
        client.put(rows(25))
        to.until_queued(25)
        assert to.succeeds("drain", "--wait") == "the daemon has stopped, all delivered\n"
        assert not has_memory(running.process.pid), "it has ended, and may be not yet waited for"
        assert stored(fake) == 25
        assert [each.stored for each in client.read_to_end() if isinstance(each, messages.Ack)] == [25]
        assert running.wait() == 0
        code, out, err = to("ready")
        assert (code, out) == (1, "")
        assert err.startswith("producerctl: no daemon answers: ")


@pytest.mark.promise("second-drain-less-time")
def test_a_second_drain_with_less_time_shortens_the_first_and_none_lengthens_it(slow: DaemonProcess, ask: Ask) -> None:
    with session(slow) as client:
        client.put(rows(1_500, size=500))
        to = ask(slow)
        begun = []
        for time_left in (["--timeout", "10m"], [], ["--timeout", "20m"]):
            begun.append(subprocess.Popen([*COMMAND, to.admin, "drain", *time_left], stdout=subprocess.DEVNULL))
            until(lambda: slow.log.count(" order path=/drain ") == len(begun))
        assert "went back to their callers" in to.succeeds("drain", "--timeout", "0.1")
        assert [each.wait(15) for each in begun] == [0, 0, 0]
        assert slow.wait() == 0
        assert slow.log.count("draining by=producerctl") == 2


# ---- settings


@pytest.fixture
def file() -> Iterator[Path]:
    with directory() as path:
        (path / "producerd.toml").write_text("[defaults]\nqueue_limit = 1_000\n")
        yield path / "producerd.toml"


@pytest.fixture
def configured(server: FakeServer, file: Path) -> Iterator[DaemonProcess]:
    """A daemon whose settings stand in a file."""
    with daemon(server.url, environ={**CREDENTIALS, "PRODUCERD_CONFIG": str(file)}) as running:
        yield running


@pytest.mark.promise("reload-changes-limits")
def test_reload_changes_limits_under_way_and_refuses_invalid_settings(
    configured: DaemonProcess, file: Path, ask: Ask
) -> None:
    to = ask(configured)
    with session(configured) as idle, session(configured) as client:
        client.put(one())
        client.acks(1)
        assert to.succeeds("reload") == "nothing has changed\n"
        before = configured.metrics()["config_last_reload_success_timestamp_seconds"]
        file.write_text('max_connections = 1\n[defaults]\nqueue_limit = 77\naggregation = "kpl"\n')
        out = to.succeeds("reload")
        assert "changed: defaults.queue_limit: 1000 -> 77\n" in out
        assert 'needs a restart: defaults.aggregation: "none" -> "kpl"\n' in out
        assert to.stream()["queue_limit_records"] == 77
        metrics = configured.metrics()
        assert metrics["queue_limit_records"] == 77
        assert metrics["config_last_reload_successful"] == 1
        assert metrics["config_last_reload_success_timestamp_seconds"] > before
        assert idle.expect(messages.Close).code == Code.TABLE_FULL

        file.write_text("[defaults]\nqueue_limit = 0\n")
        code, out, err = to("reload")
        assert (code, out) == (1, "")
        assert "queue_limit = 0" in err
        assert "allowed: 1 to " in err
        assert configured.metrics()["config_last_reload_successful"] == 0
        assert to.stream()["queue_limit_records"] == 77
        client.put(one())
        client.acks(1)

        file.write_text('[defaults]\nqueue_limit = 77\n[streams.orders]\nendpoint_url = "http://a.example"\n')
        assert to.succeeds("reload")
        until(lambda: "WARNING producerd: a setting exposes something to others" in configured.log)


def test_settings_that_cannot_be_read_leave_the_old_ones_and_hold_up_no_end(
    configured: DaemonProcess, file: Path
) -> None:
    """A number of 5,000 digits, and then a file that has no end, such as one of a network that is gone."""
    file.write_text(f"max_streams = {'1' * 5_000}\n")
    configured.signal(signal.SIGHUP)
    until(lambda: "settings are refused, the old ones stay" in configured.log)
    file.unlink()
    os.mkfifo(file)
    configured.signal(signal.SIGHUP)
    with session(configured) as client:
        client.put(one())
        client.acks(1)
    assert configured.end() == 0


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
            assert isinstance(client.read(), messages.Close)
        assert stored(fake) == 1


class Client:
    """Stands in for a client whose records end as ``error`` says, which its flush does not raise."""

    error: Exception | None = None
    sizes: list[int]

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None: ...

    def put_many(self, records: list[tuple[bytes, str | None]]) -> Future[None]:
        self.sizes.append(sum(len(data) for data, _ in records))
        put: Future[None] = Future()
        put.set_exception(self.error) if self.error else put.set_result(None)
        return put


def test_put_is_no_success_where_the_daemon_was_lost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "sizes", [], raising=False)
    monkeypatch.setattr(Client, "error", ConnectionFailed("the daemon is gone"))
    monkeypatch.setattr("spark_client.KinesisClient", Client)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x" * 100_000 + b"\n" + b"y\n" * 100_000)))
    assert ctl.main(["put", "flights"]) == 1
    assert capsys.readouterr() == ("", "producerctl: the daemon is gone\n")


def test_put_holds_few_large_lines_at_a_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand of them were a gigabyte."""
    sizes: list[int] = []
    monkeypatch.setattr(Client, "sizes", sizes, raising=False)
    monkeypatch.setattr("spark_client.KinesisClient", Client)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((b"x" * 100_000 + b"\n") * 50)))
    assert ctl.main(["put", "flights"]) == 0
    assert capsys.readouterr().out == "flights: 50 records stored\n"
    assert sum(sizes) == 5_000_000
    assert max(sizes) < 500_000
