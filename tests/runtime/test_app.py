"""The process opens what its daemon needs in order, closes it in the opposite order, and ends with its code."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
from structlog.testing import capture_logs

from producerd.config import Config, NodeSettings
from producerd.config.tuning import TUNING, Tuning
from producerd.errors import ConfigurationError, PlaceTaken
from producerd.runtime import admin as admin_module
from producerd.runtime import allocator, app, logs, systemd
from producerd.runtime.leaving import OwnerProcess

NODE = {
    "socket": "/run/p/daemon.sock",
    "socket_mode": "0640",
    "socket_group": "users",
    "metrics_listen": "127.0.0.1:0",
}
CONFIG = Config(node=NodeSettings.model_validate(NODE))


Steps = list[tuple[Any, ...]]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """What is opened, watched, used and closed around a daemon that stands in for a real one, in order."""
    steps: Steps = []

    class Noted:
        """Notes under the name of its kind that it is opened, with what, and that it is closed."""

        streams = ()
        render_metrics, html, unready = "metrics", "html", "draining"

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.kind = type(self).__name__
            steps.append(("open", self.kind, arguments, options))

        def watch(self, *_: object) -> None:
            steps.append(("watch", self.kind))

        async def serve(self, admin: object) -> int:
            steps.append(("serve", admin))
            return 5

        def close(self) -> None:
            steps.append(("close", self.kind))

        stop = stop_watching = close

    class Executor(ThreadPoolExecutor):
        def __init__(self, threads: int, thread_name_prefix: str) -> None:
            steps.append(("open", "Executor", threads, thread_name_prefix))
            super().__init__(threads, thread_name_prefix)

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            steps.append(("close", "Executor", wait, cancel_futures))
            super().shutdown(wait=True)

    class Clients(int):
        def look_for_credentials(self, accesses: Sized) -> None:
            steps.append(("look for credentials", len(accesses)))

    @asynccontextmanager
    async def opened(kind: str, value: object, *given: object) -> AsyncIterator[object]:
        steps.append(("open", kind, *given))
        yield value
        steps.append(("close", kind))

    def serve_metrics(address: object, *, unready: Callable[[], str], **given: Any) -> Any:
        return opened("metrics", ("127.0.0.1", 9404), address, unready(), given)

    for kind in ("Listener", "Passed", "Daemon", "Page"):
        monkeypatch.setattr(app, kind, type(kind, (Noted,), {}))
    monkeypatch.setattr(app, "ThreadPoolExecutor", Executor)
    monkeypatch.setattr(systemd, "Notifier", type("Notifier", (Noted,), {}))
    monkeypatch.setattr(app, "open_clients", lambda accesses, tuning: opened("clients", Clients(len(accesses)), tuning))
    monkeypatch.setattr(app, "sort_rows", lambda frames, _map, _seed: steps.append(("sort", frames[0].records)))
    monkeypatch.setattr(admin_module, "serve", serve_metrics)
    monkeypatch.setattr(admin_module, "serve_socket", lambda listener, _commands: opened("admin", listener.kind))
    return steps


SOCKETS = {
    "Listener": [
        (CONFIG.node.socket, 0o640, "users", {}),
        (CONFIG.node.socket.with_suffix(".admin.sock"), 0o600, {"setting": "admin_socket"}),
    ],
    "Passed": [
        ("records", 0o640, "users", {"unit": "mine.socket"}),
        ("admin", 0o600, {"unit": "the socket unit with FileDescriptorName=admin"}),
    ],
}


@pytest.mark.parametrize("kind", SOCKETS)
async def test_what_a_daemon_needs_is_opened_in_order_and_closed_in_the_opposite_order(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """Its sockets are its own, or were passed by systemd."""
    records: Any = "records"
    admin: Any = "admin"
    passed = systemd.PassedSockets(records, admin, "mine.socket") if kind == "Passed" else systemd.PassedSockets()
    monkeypatch.setattr(systemd, "take_sockets", lambda: passed)
    owner, tuning = OwnerProcess(1, 2), Tuning(worker_threads=3)
    with capture_logs() as log:
        assert await app.live(CONFIG, lambda: CONFIG, owner, tuning) == 5
    opened = [step[1] for step in steps if step[0] == "open"]
    assert opened == ["Notifier", "Executor", "clients", kind, "Daemon", "Page", "metrics", kind, "admin"]
    assert [step[1] for step in steps if step[0] == "close"] == opened[::-1]
    assert [(*step[2], step[3]) for step in steps if step[:2] == ("open", kind)] == SOCKETS[kind]
    given = next(step[3] for step in steps if step[:2] == ("open", "Daemon"))
    assert (given["clients"], given["owner"], given["listener"].kind) == (1, owner, kind)
    assert given["tuning"] is tuning
    assert ("open", "clients", tuning) in steps
    assert ("open", "Executor", 3, "producerd-worker") in steps
    assert ("close", "Executor", False, True) in steps
    metrics = {"render_metrics": "metrics", "render_page": "html"}
    assert ("open", "metrics", ("127.0.0.1", 0), "draining", metrics) in steps
    others = [step for step in steps if step[0] not in ("open", "close")]
    assert others == [("sort", 2), ("look for credentials", 1), ("watch", "Daemon"), ("watch", "Page"), ("serve", kind)]
    assert log == [{"event": "metrics", "log_level": "info", "address": "http://127.0.0.1:9404/metrics"}]


async def test_without_an_address_for_metrics_there_is_no_page_either(steps: Steps) -> None:
    config = Config(node=NodeSettings(metrics_listen=""))
    with capture_logs() as log:
        assert await app.live(config, lambda: config) == 5
    opened = [step[1] for step in steps if step[0] == "open"]
    assert opened == ["Notifier", "Executor", "clients", "Listener", "Daemon", "Listener", "admin"]
    assert log == []


# ---- the process


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave the process of the tests as it was, with its own log."""
    monkeypatch.setattr(logs, "running", lambda *_: nullcontext())
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before, interval = [signal.getsignal(number) for number in numbers], sys.getswitchinterval()
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(("given", "owner"), [(None, None), ((1, 2), OwnerProcess(1, 2))])
def test_the_daemon_s_exit_code_is_the_process_s_and_late_signals_do_not_change_it(
    monkeypatch: pytest.MonkeyPatch, given: tuple[int, int] | None, owner: OwnerProcess | None
) -> None:
    seen: list[Any] = []

    async def live(config: Config, load: Any, owner: OwnerProcess | None, tuning: Tuning) -> int:
        seen.append((config, load(), owner, tuning, round(sys.getswitchinterval(), 6)))
        return 3

    monkeypatch.setattr(app, "live", live)
    monkeypatch.setattr(allocator, "configure", lambda: seen.append("allocator"))
    monkeypatch.setattr(app, "dangers", lambda config: ["a danger", "another"])
    with capture_logs() as log:
        assert app.run(CONFIG, lambda: CONFIG, given) == 3
    assert seen == ["allocator", (CONFIG, CONFIG, owner, TUNING, 0.0005)]
    exposes = {"event": "a setting exposes something to others", "log_level": "warning"}
    assert log == [{**exposes, "what": "a danger"}, {**exposes, "what": "another"}]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert signal.getsignal(number) is signal.SIG_IGN


@pytest.mark.usefixtures("process")
def test_all_problems_of_a_start_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As what the first of them is: a place that is taken may come free."""

    async def live(*_: object) -> int:
        others = ExceptionGroup("deeper", [ConfigurationError(["two", "three"]), ConfigurationError(["four"])])
        raise ExceptionGroup("several", [PlaceTaken(["one"]), others])

    monkeypatch.setattr(app, "live", live)
    monkeypatch.setattr(allocator, "configure", lambda: None)
    with pytest.raises(PlaceTaken) as raised:
        app.run(CONFIG, lambda: CONFIG)
    assert list(raised.value.problems) == ["one", "two", "three", "four"]
