"""The process opens what its daemon needs in order, closes it in the opposite order, and ends with its code."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from producerd.config import Config, NodeSettings
from producerd.errors import ConfigurationError, PlaceTaken
from producerd.runtime import admin as admin_module
from producerd.runtime import allocator, app, logs, systemd
from producerd.runtime.leaving import OwnerProcess

CONFIG = Config(node=NodeSettings(socket=Path("/run/p/daemon.sock"), worker_threads=3, metrics_listen="127.0.0.1:0"))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is opened, used and closed around a daemon that stands in for a real one, in order."""
    steps: list[Any] = []

    class Closed:
        """Notes that it was opened and closed, under the name of its kind."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.kind = type(self).__name__
            steps.append((f"open {self.kind}", *arguments, options))

        def close(self) -> None:
            steps.append(f"close {self.kind}")

    class Notifier(Closed):
        pass

    class Listener(Closed):
        pass

    class Passed(Closed):
        pass

    class Executor(ThreadPoolExecutor):
        def __init__(self, threads: int, thread_name_prefix: str) -> None:
            steps.append(("open Executor", threads, thread_name_prefix))
            super().__init__(threads, thread_name_prefix)

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            steps.append(("close Executor", wait, cancel_futures))
            super().shutdown(wait=True)

    class Daemon(Closed):
        unready = "draining"

        def __init__(self, config: Config, load: object, **given: Any) -> None:
            steps.append(("open Daemon", given["clients"], given["owner"]))
            self.kind = "Daemon"
            self.commands = SimpleNamespace(status="status")
            self.render_metrics = "metrics"

        def watch(self) -> None:
            steps.append("watch")

        async def serve(self, admin: object) -> int:
            steps.append(("serve", admin))
            return 5

    class Page:
        html = "html"

        def __init__(self, status: object) -> None:
            steps.append(("open Page", status))

        def watch(self, loop: object) -> None:
            assert loop is asyncio.get_running_loop()
            steps.append("watch Page")

        def stop(self) -> None:
            steps.append("stop Page")

    @asynccontextmanager
    async def opened(name: str, value: object) -> AsyncIterator[object]:
        steps.append(f"open {name}")
        yield value
        steps.append(f"close {name}")

    class Clients(int):
        def look_for_credentials(self, accesses: Sized) -> None:
            steps.append(f"look for credentials of {len(accesses)}")

    def serve_metrics(address: object, **given: Any) -> Any:
        assert given["unready"]() == "draining"
        steps.append((address, given["render_metrics"], given["render_page"]))
        return opened("metrics", ("127.0.0.1", 9404))

    for kind in (Listener, Passed, Daemon, Page):
        monkeypatch.setattr(app, kind.__name__, kind)
    monkeypatch.setattr(app, "ThreadPoolExecutor", Executor)
    monkeypatch.setattr(systemd, "Notifier", Notifier)
    monkeypatch.setattr(app, "open_clients", lambda accesses: opened("clients", Clients(len(accesses))))
    monkeypatch.setattr(app, "sort_rows", lambda frames, _map, _seed: steps.append(("sort", frames[0].records)))
    monkeypatch.setattr(admin_module, "serve", serve_metrics)
    monkeypatch.setattr(admin_module, "serve_socket", lambda listener, _commands: opened("admin", listener.kind))
    return steps


def taking(monkeypatch: pytest.MonkeyPatch, passed: systemd.PassedSockets) -> None:
    monkeypatch.setattr(systemd, "take_sockets", lambda: passed)


async def test_what_a_daemon_needs_is_opened_in_order_and_closed_in_the_opposite_order(
    steps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    taking(monkeypatch, systemd.PassedSockets())
    owner = OwnerProcess(1, 2)
    with capture_logs() as log:
        assert await app.live(CONFIG, lambda: CONFIG, owner) == 5
    socket = CONFIG.node.socket
    assert steps == [
        ("open Notifier", {}),
        ("open Executor", 3, "producerd-worker"),
        ("sort", 1),
        "open clients",
        "look for credentials of 1",
        ("open Listener", socket, CONFIG.node.socket_mode, None, {}),
        ("open Daemon", 1, owner),
        "watch",
        ("open Page", "status"),
        "watch Page",
        (("127.0.0.1", 0), "metrics", "html"),
        "open metrics",
        ("open Listener", socket.with_suffix(".admin.sock"), 0o600, {"setting": "admin_socket"}),
        "open admin",
        ("serve", "Listener"),
        "close admin",
        "close Listener",
        "close metrics",
        "stop Page",
        "close Daemon",
        "close Listener",
        "close clients",
        ("close Executor", False, True),
        "close Notifier",
    ]
    assert log == [{"event": "metrics", "log_level": "info", "address": "http://127.0.0.1:9404/metrics"}]


async def test_sockets_that_were_passed_are_used_and_metrics_may_be_left_out(
    steps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    records: Any = "records"
    admin: Any = "admin"
    taking(monkeypatch, systemd.PassedSockets(records, admin, "mine.socket"))
    config = Config(
        node=NodeSettings.model_validate({"metrics_listen": "", "socket_group": "users", "socket_mode": "0640"})
    )
    with capture_logs() as log:
        assert await app.live(config, lambda: config) == 5
    unit = "the socket unit with FileDescriptorName=admin"
    assert [step for step in steps if step[0] == "open Passed"] == [
        ("open Passed", "records", 0o640, "users", {"unit": "mine.socket"}),
        ("open Passed", "admin", 0o600, {"unit": unit}),
    ]
    assert ("open Daemon", 1, None) in steps
    assert not [step for step in map(str, steps) if "Page" in step or "metrics" in step or "open Listener" in step]
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

    async def live(config: Config, load: Any, owner: OwnerProcess | None) -> int:
        seen.append((config, load(), owner, round(sys.getswitchinterval(), 6)))
        return 3

    monkeypatch.setattr(app, "live", live)
    monkeypatch.setattr(allocator, "configure", lambda: seen.append("allocator"))
    monkeypatch.setattr(app, "dangers", lambda config: ["a danger", "another"])
    with capture_logs() as log:
        assert app.run(CONFIG, lambda: CONFIG, given) == 3
    assert seen == ["allocator", (CONFIG, CONFIG, owner, 0.0005)]
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
