"""The daemon is looked for until the time-out, and ever more slowly where it is full; a channel waits no longer."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from producerd.errors import Code, ConfigurationError, ConnectionFailed, ProtocolError
from producerd.wire import messages
from spark_client import channel
from spark_client.channel import Channel, Late, dial, socket_paths
from tests.spark_client.fake_daemon import (
    FakeDaemon,
    Session,
    close_with,
    expects,
    in_turn,
    serve,
)

HELLO = messages.Hello(1, 1)
HOST = socket.gethostname()


class Clock:
    """Stands in for the module ``time``: sleeping only moves it, by a little more than was asked for."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 2))
        self.now += seconds + 0.001


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(channel, "time", clock)
    return clock


# ---- where a daemon is looked for, and what stands there instead


def test_the_socket_is_looked_up_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRODUCERD_SOCKET", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert socket_paths() == ("/run/producerd/producerd.sock",)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert socket_paths() == ("/run/producerd/producerd.sock", "/run/user/7/producerd/producerd.sock")
    assert socket_paths(None, "/configured") == ("/configured",)
    monkeypatch.setenv("PRODUCERD_SOCKET", "/environment")
    assert socket_paths(None, "/configured") == ("/environment",)
    assert socket_paths("/argument", "/configured") == ("/argument",)
    assert socket_paths("/" + "x" * 106) == ("/" + "x" * 106,)
    with pytest.raises(ConfigurationError, match="at most 107 bytes"):
        socket_paths("/" + "x" * 107)


def test_without_a_daemon_one_line_names_host_path_and_cure(clock: Clock, tmp_path: Path) -> None:
    path = str(tmp_path / "nobody.sock")
    with pytest.raises(ConnectionFailed) as caught:
        dial(HELLO, [path], 0.2)
    assert caught.value.code == Code.DAEMON_ABSENT
    assert str(caught.value) == (
        f"no daemon to talk to on host {HOST} within 0.2 s ({path}: No such file or directory): "
        "start it there with `producerd serve`, name its socket (socket=, PRODUCERD_SOCKET, or for a writer "
        "spark.producerd.socket), or have tasks start one (daemon={...}; data source: daemon.region)"
    )


def test_the_second_usual_place_is_tried_too(daemon: FakeDaemon, tmp_path: Path) -> None:
    found, _ = dial(HELLO, [str(tmp_path / "nobody.sock"), daemon.path], 10)
    found.close()


def test_a_daemon_that_dies_before_its_welcome_is_dialled_again(daemon: FakeDaemon, clock: Clock) -> None:
    daemon.runs(lambda session: session.socket.close(), serve)
    found, _ = dial(HELLO, [daemon.path], 5)
    found.close()
    assert clock.slept == [0.1]


def test_a_daemon_that_accepts_but_does_not_answer_is_absent(daemon: FakeDaemon) -> None:
    daemon.runs(in_turn(expects(messages.Hello), Session.await_end))
    with pytest.raises(ConnectionFailed, match=r"connected, but nobody answers.* restart it") as caught:
        dial(HELLO, [daemon.path], 0.1)
    assert caught.value.code == Code.DAEMON_ABSENT


@pytest.mark.parametrize(
    ("path", "said", "advised"),
    [
        ("/run/producerd.sock", "Permission denied", True),
        ("/run/node.admin.sock", "by its name this is the admin socket", False),
    ],
)
def test_a_forbidden_socket_is_an_error_at_once(
    path: str, said: str, advised: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice is to join the socket's group, except for the admin socket."""

    def forbid(path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(channel, "Channel", forbid)
    with pytest.raises(ConnectionFailed, match=said) as caught:
        dial(HELLO, [path], 30)
    assert caught.value.code == Code.NOT_AUTHORIZED
    assert ("socket_group" in str(caught.value)) is advised
    assert clock.slept == []


@pytest.mark.parametrize("name", ["node.admin.sock", "orders"])
def test_the_admin_socket_is_named_with_the_one_to_give(daemon: FakeDaemon, name: str) -> None:
    """By what answers there, not by its name."""
    path = str(daemon.link(name))
    http = b"HTTP/1.0 400 Bad Request\r\n\r\n"
    daemon.runs(in_turn(expects(messages.Hello), lambda session: session.socket.sendall(http)))
    right = path.replace(".admin", "") if name.endswith(".admin.sock") else channel.DEFAULT_SOCKET
    with pytest.raises(ConfigurationError) as caught:
        dial(HELLO, [path], 10)
    text = str(caught.value)
    assert text.startswith(f"{path} is the admin socket on host {HOST}: ")
    assert f"by default {right} (socket=" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.VERSION_MISMATCH, ConnectionFailed),
        (Code.NOT_AUTHORIZED, ConnectionFailed),
        (Code.PROTOCOL, ProtocolError),
    ],
)
def test_a_close_instead_of_welcome_is_its_error(daemon: FakeDaemon, code: str, error: type[ConnectionFailed]) -> None:
    daemon.runs(close_with(code))
    with pytest.raises(error, match=f"because of {code}") as caught:
        dial(HELLO, [daemon.path], 5)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"version": 2}, "WELCOME: version 2, a window of 64 frames"),
        ({"window_frames": 0}, "WELCOME: version 1, a window of 0 frames"),
    ],
)
def test_a_welcome_that_cannot_be_is_a_protocol_error(daemon: FakeDaemon, odd: dict[str, int], said: str) -> None:
    daemon.runs(in_turn(lambda session: session.welcome(**odd), Session.await_end))
    with pytest.raises(ProtocolError, match=f"^{said}$"):
        dial(HELLO, [daemon.path], 5)


# ---- for how long


@pytest.mark.parametrize(("seconds", "slept"), [(0.35, [0.1, 0.1, 0.1, 0.05]), (0, [0.1])])
def test_a_daemon_is_looked_for_until_the_time_out(
    clock: Clock, tmp_path: Path, seconds: float, slept: list[float]
) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        dial(HELLO, [str(tmp_path / "nobody.sock")], seconds)
    assert caught.value.code == Code.DAEMON_ABSENT
    assert clock.slept == slept


def test_a_full_daemon_is_asked_less_and_less_often(daemon: FakeDaemon, clock: Clock) -> None:
    daemon.runs(*[close_with(Code.CONNECTION_LIMIT)] * 6, serve)
    found, welcome = dial(HELLO, [daemon.path], 60)
    found.close()
    assert welcome.session_id == 1
    assert clock.slept == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_daemon_is_started_where_nobody_listens(daemon: FakeDaemon, clock: Clock) -> None:
    """The time that its start takes does not count."""

    def start() -> None:
        clock.now += 100
        daemon.link("late")

    found, _ = dial(HELLO, [str(Path(daemon.path).with_name("late"))], 0.35, start)
    found.close()
    assert clock.slept == []


def test_a_full_daemon_is_asked_again_after_a_pause_also_by_who_could_start_one(
    daemon: FakeDaemon, clock: Clock
) -> None:
    daemon.runs(close_with(Code.CONNECTION_LIMIT), serve)
    found, _ = dial(HELLO, [daemon.path], 5, lambda: None)
    found.close()
    assert clock.slept == [0.1]


def test_a_daemon_that_was_started_and_is_full_has_the_time_out_that_is_left(daemon: FakeDaemon, clock: Clock) -> None:
    path = Path(daemon.path).with_name("late")

    def start() -> None:
        if not path.exists():
            clock.now += 100
            daemon.link("late")

    daemon.runs(close_with(Code.CONNECTION_LIMIT))
    with pytest.raises(ConnectionFailed, match="because of CONNECTION_LIMIT") as caught:
        dial(HELLO, [str(path)], 0.35, start)
    assert caught.value.code == Code.CONNECTION_LIMIT
    assert clock.slept == [0.1, 0.2, 0.05]


def test_a_full_daemon_is_the_reason_though_another_one_hangs(daemon: FakeDaemon) -> None:
    daemon.runs(close_with(Code.CONNECTION_LIMIT))
    hangs = str(Path(daemon.path).with_name("hangs.sock"))
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(hangs)
        listener.listen()
        with pytest.raises(ConnectionFailed, match="because of CONNECTION_LIMIT"):
            dial(HELLO, [daemon.path, hangs], 0.1)


def test_a_channel_waits_until_its_deadline_in_milliseconds(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    class Poll:
        def register(self, *_: object) -> None:
            pass

        def modify(self, *_: object) -> None:
            pass

        def poll(self, milliseconds: float) -> list[object]:
            waits.append(milliseconds)
            return []

    daemon.runs(lambda _: None)
    monkeypatch.setattr("spark_client.channel.select.poll", Poll)
    monkeypatch.setattr(channel, "time", SimpleNamespace(monotonic=lambda: 1_000.0))
    with contextlib.closing(Channel(daemon.path)) as waiting:
        for deadline in (1_000.25, 1_000.0, 999.0):
            with pytest.raises(Late):
                waiting.read(deadline)
    assert waits == [250.0, 0.0, 0.0]
