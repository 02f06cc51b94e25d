"""The daemon reports its state to a service manager, and takes sockets from it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import structlog

from producerd.errors import ConfigurationError
from producerd.runtime import systemd
from producerd.runtime.systemd import Notifier, PassedSockets, take_sockets
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer
from tests.daemon import (
    CREDENTIALS,
    PATIENCE_SECONDS,
    WireClient,
    daemon,
    directory,
    rows,
    session,
    until,
)
from tests.runtime.activated import Activated
from tests.runtime.timers import Timers

ACTIVATE: Final = shutil.which("systemd-socket-activate")


class Ear:
    """The socket that NOTIFY_SOCKET names, where the daemon's notifications arrive."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1))
        self.socket.settimeout(4 * PATIENCE_SECONDS)

    def __enter__(self) -> Ear:
        return self

    def __exit__(self, *_: Any) -> None:
        self.socket.close()

    def hear(self, which: Callable[[dict[str, str]], bool] = lambda message: True) -> dict[str, str]:
        """The next message, or the next one that is such."""
        while True:
            lines = self.socket.recv(4096).decode().split("\n")
            if which(message := dict(line.split("=", 1) for line in lines)):
                return message

    def hears_nothing(self) -> bool:
        self.socket.setblocking(False)
        try:
            self.socket.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(PATIENCE_SECONDS)
        return False


def test_it_says_that_it_serves_and_lives_and_what_is_left_while_it_drains(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    kinesis.standing.append(Fault("hang"))
    with directory() as path, Ear(f"{path}/notify") as ear:
        environ = {**CREDENTIALS, "NOTIFY_SOCKET": ear.address, "WATCHDOG_USEC": "200000"}
        with daemon(server.url, environ=environ) as running, session(running) as client:
            lives = {"WATCHDOG": "1", "STATUS": "serving: 0 streams, 0 records queued"}
            assert ear.hear() == {"READY": "1", **lives}
            client.put(rows(10))
            assert ear.hear(lambda message: message["STATUS"] != lives["STATUS"])["STATUS"].startswith("serving: 1 ")
            queued = {"WATCHDOG": "1", "STATUS": "serving: 1 streams, 10 records queued"}
            assert ear.hear(lambda message: message["STATUS"] == queued["STATUS"]) == queued
            until(lambda: running.metrics()["inflight_requests"] > 0)  # what is in none goes back at once
            running.signal()
            drains = {
                "WATCHDOG": "1",
                "EXTEND_TIMEOUT_USEC": "30000000",
                "STATUS": "draining: 10 records left, at most 5 s",
            }
            assert ear.hear(lambda message: message != queued) == {"STOPPING": "1", **drains}
            assert ear.hear() == ear.hear() == drains
            kinesis.standing.clear()
            server.release()
            assert running.wait() == 0


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "/nowhere"])
async def test_nobody_who_listens_is_told_nothing_and_children_inherit_nothing(address: str) -> None:
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "none", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    notifier = Notifier(environ)
    assert environ == {"HOME": "/"}
    notifier.ready(lambda: "well")
    notifier.stopping()
    notifier.close()


def test_what_could_not_be_told_is_told_with_the_next_message(timers: Timers) -> None:
    with directory() as path:
        notifier = Notifier({"NOTIFY_SOCKET": f"{path}/notify", "WATCHDOG_USEC": "20000"})
        notifier.ready(lambda: "well")
        with Ear(f"{path}/notify") as ear:
            assert ear.hears_nothing()
            timers.go_on()
            assert ear.hear()["READY"] == "1"
            notifier.close()


@pytest.mark.parametrize(
    ("usec", "of", "is_fed", "seconds"),
    [
        ("", "", False, 5.0),
        ("4000000", "", True, 2.0),
        ("4000000", "this process", True, 2.0),
        ("4000000", "another process", False, 5.0),
        ("60000000", "", True, 5.0),
        ("1", "", True, 0.000_000_5),
        ("0", "", False, 5.0),
        ("none", "", False, 5.0),
    ],
)
def test_it_reports_every_five_seconds_and_twice_in_a_period_of_the_watchdog(
    timers: Timers, usec: str, of: str, is_fed: bool, seconds: float
) -> None:
    pids = {"this process": str(os.getpid()), "another process": "1"}
    watchdog = {"WATCHDOG_USEC": usec, **({"WATCHDOG_PID": pids[of]} if of else {})}
    report = {**({"WATCHDOG": "1"} if is_fed else {}), "STATUS": "well"}
    with directory() as path, Ear(f"{path}/notify") as ear:
        notifier = Notifier({"NOTIFY_SOCKET": ear.address, **watchdog})
        notifier.ready(lambda: "well")
        assert ear.hear() == {"READY": "1", **report}
        assert timers.left == [seconds]
        timers.go_on()
        assert ear.hear() == report
        notifier.close()
        assert timers.left == []


@pytest.mark.parametrize("kind", ["a path", "an abstract name"])
def test_a_daemon_that_stops_is_given_half_a_minute_with_each_report(timers: Timers, kind: str) -> None:
    with directory() as path, Ear(f"{'@' if kind == 'an abstract name' else ''}{path}/notify") as ear:
        open_files = len(os.listdir("/proc/self/fd"))
        notifier = Notifier({"NOTIFY_SOCKET": ear.address})
        notifier.ready(lambda: "well")
        assert ear.hear() == {"READY": "1", "STATUS": "well"}
        notifier.stopping()
        report = {"EXTEND_TIMEOUT_USEC": "30000000", "STATUS": "well"}
        assert ear.hear() == {"STOPPING": "1", **report}
        timers.go_on()
        assert ear.hear() == report
        notifier.close()
        assert timers.left == []
        assert ear.hears_nothing()
        assert len(os.listdir("/proc/self/fd")) == open_files


def test_a_manager_that_is_behind_is_told_later_and_holds_nothing_up(timers: Timers) -> None:
    with directory() as path, Ear(f"{path}/notify") as ear, structlog.testing.capture_logs() as logged:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, contextlib.suppress(BlockingIOError):
            other.setblocking(False)
            while True:
                other.sendto(b"STATUS=of another", ear.address)
        notifier = Notifier({"NOTIFY_SOCKET": ear.address})
        notifier.ready(lambda: "well")
        assert logged == [
            {
                "event": "systemd was not told",
                "error": "[Errno 11] Resource temporarily unavailable",
                "log_level": "debug",
            }
        ]
        while not ear.hears_nothing():
            pass
        timers.go_on()
        assert ear.hear() == {"READY": "1", "STATUS": "well"}
        notifier.close()


# ---- sockets that are passed


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, str]]]:
    """Puts sockets where a manager puts them, and returns the environment that says so."""
    first = 200
    monkeypatch.setattr(systemd, "FIRST_DESCRIPTOR", first)

    def put(*sockets: Any, names: str = "") -> dict[str, str]:
        for number, one in enumerate(sockets):
            os.dup2(one.fileno(), first + number)
        return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": names, "HOME": "/"}

    yield put
    for number in range(3):
        with contextlib.suppress(OSError):
            os.close(first + number)


@pytest.fixture
def listening() -> Iterator[Callable[[], socket.socket]]:
    with directory() as path, contextlib.ExitStack() as ends:

        def one() -> socket.socket:
            made = ends.enter_context(socket.socket(socket.AF_UNIX))
            made.bind(f"{path}/{made.fileno()}.sock")
            made.listen()
            return made

        yield one


def test_sockets_are_taken_by_name_and_no_child_inherits_them(passed: Any, listening: Any) -> None:
    records, admin = listening(), listening()
    environ = passed(admin, records, names="admin:producerd.socket")
    taken = take_sockets(environ)
    assert environ == {"HOME": "/"}
    assert taken.records is not None
    assert taken.admin is not None
    with taken.records, taken.admin:
        assert taken.records.getsockname() == records.getsockname()
        assert taken.admin.getsockname() == admin.getsockname()
        for one in (taken.records, taken.admin):
            assert not one.get_inheritable()
            assert not one.getblocking()


def test_one_socket_without_a_name_is_that_of_the_clients(passed: Any, listening: Any) -> None:
    records, admin, _ = take_sockets(passed(listening()))
    assert records is not None
    records.close()
    assert admin is None


@pytest.mark.parametrize(
    ("names", "unit"),
    [("mine.socket", "mine.socket"), ("records", "producerd.socket"), ("", "producerd.socket")],
)
def test_the_clients_sockets_unit_is_known_where_the_socket_has_no_other_name(
    passed: Any, listening: Any, names: str, unit: str
) -> None:
    taken = take_sockets(passed(listening(), names=names))
    assert taken.records is not None
    taken.records.close()
    assert taken.unit == unit


def test_what_was_passed_to_another_process_is_left_alone(passed: Any, listening: Any) -> None:
    environ = passed(listening()) | {"LISTEN_PID": "1"}
    assert take_sockets(environ) == PassedSockets()
    assert environ == {"HOME": "/"}
    assert take_sockets({}) == PassedSockets()


@pytest.mark.parametrize(
    ("kind", "came"),
    [
        ("of the internet", "AF_INET, SOCK_STREAM, listening"),
        ("not listening", "AF_UNIX, SOCK_STREAM, not listening"),
        ("of datagrams", "AF_UNIX, SOCK_DGRAM, not listening"),
        ("a file", "Socket operation on non-socket"),
        ("nothing", "Bad file descriptor"),
    ],
)
def test_what_is_no_socket_for_clients_is_named(passed: Any, kind: str, came: str) -> None:
    with contextlib.ExitStack() as ends:
        if kind == "of the internet":
            environ = passed(ends.enter_context(socket.create_server(("127.0.0.1", 0))))
        elif kind == "a file":
            environ = passed(ends.enter_context(open(os.devnull)))
        elif kind == "nothing":
            environ = passed() | {"LISTEN_FDS": "1"}
        else:
            of = socket.SOCK_DGRAM if kind == "of datagrams" else socket.SOCK_STREAM
            environ = passed(ends.enter_context(socket.socket(socket.AF_UNIX, of)))
        with pytest.raises(ConfigurationError) as raised:
            take_sockets(environ)
    (problem,) = raised.value.problems
    assert problem == (
        f"the socket that was passed as descriptor 200 ({came}) is not a listening AF_UNIX, SOCK_STREAM socket: "
        "give its unit ListenStream=PATH and Accept=no"
    )
    assert os.path.exists("/proc/self/fd/200") is (kind == "a file")


@pytest.mark.parametrize(
    ("names", "passed_were"),
    [
        ("a:b", "200 (a), 201 (b)"),
        ("", "200 (no name), 201 (no name)"),
        ("admin:admin", "200 (admin), 201 (admin)"),
    ],
)
def test_two_sockets_of_one_kind_are_too_many(passed: Any, listening: Any, names: str, passed_were: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        take_sockets(passed(listening(), listening(), names=names))
    assert list(raised.value.problems) == [
        f"too many sockets were passed: {passed_were}: one for clients, and one named admin"
    ]


def test_a_number_of_sockets_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError) as raised:
        take_sockets({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "two"})
    assert list(raised.value.problems) == ["LISTEN_FDS = two: not a number"]


def test_the_first_socket_has_the_number_that_systemd_gives_it() -> None:
    """SD_LISTEN_FDS_START of sd_listen_fds(3)."""
    assert systemd.FIRST_DESCRIPTOR == 3


@pytest.mark.promise("systemds-own-activation")
@pytest.mark.system
@pytest.mark.skipif(ACTIVATE is None, reason="systemd-socket-activate is missing: apt-get install systemd")
def test_systemds_own_activation_passes_both_sockets_and_they_stay(kinesis: FakeKinesis, server: FakeServer) -> None:
    assert ACTIVATE is not None
    with directory() as path:
        records, admin = path / "records.sock", path / "admin.sock"
        prefix = [ACTIVATE, f"--listen={records}", f"--listen={admin}", "--fdname=records:admin"]
        prefix += [f"--setenv={name}" for name in CREDENTIALS]
        with Activated(path, records, server.url, prefix) as running:
            until(lambda: "Listening on" in running.log and admin.exists())
            with WireClient(records, 4 * PATIENCE_SECONDS) as client:  # waits in the backlog
                client.hello().open("flights")
                client.put(rows(3))
                assert client.acks()[0].stored == 3
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(PATIENCE_SECONDS)
                asking.connect(str(admin))
                asking.sendall(b"GET /status HTTP/1.0\r\n\r\n")
                assert asking.recv(100).startswith(b"HTTP/1.0 200 OK")
            assert f"socket={records}" in running.log
            assert not (path / "unused.sock").exists()
            assert not (path / "unused.admin.sock").exists()
            assert running.end() == 0
        assert records.exists()
        assert admin.exists()
