"""The HTTP endpoints answer what they are asked, and the daemon reports before it serves if it cannot serve them."""

from __future__ import annotations

import asyncio
import errno
import gzip
import logging
import os
import platform
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
import pytest
import structlog
from aiohttp.http_exceptions import BadStatusLine

from producerd import __version__
from producerd.errors import ConfigurationError, PlaceTaken
from producerd.runtime import admin
from producerd.runtime.commands import JsonObject, NoSuchStream
from producerd.runtime.listener import Listener
from producerd.runtime.users.peers import Peer
from tests.daemon import directory, until_on_loop

HERE: Final = ("127.0.0.1", 0)
METRICS: Final = b"a_metric 1\n"


async def a_metric(*, everything: bool) -> bytes:
    return METRICS


def serve(address: tuple[str, int] = HERE, **given: Any) -> Any:
    """The endpoints of a daemon that is ready, has one metric and a page."""
    usual = {"render_metrics": a_metric, "render_page": lambda: "the page", "unready": lambda: None}
    return admin.serve(address, **{**usual, **given})


@asynccontextmanager
async def served(**given: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of such endpoints that sends only the headers that a test gives it."""
    async with (
        serve(**given) as (host, port),
        aiohttp.ClientSession(
            f"http://{host}:{port}", auto_decompress=False, skip_auto_headers=["Accept-Encoding"]
        ) as http,
    ):
        yield http


async def got(http: aiohttp.ClientSession, path: str, **headers: str) -> tuple[int, str]:
    async with http.get(path, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_ready_follows_the_daemon_and_metrics_are_what_is_rendered() -> None:
    why: str | None = None
    async with served(unready=lambda: why) as http:
        assert await got(http, "/-/ready") == (200, "ready\n")
        why = "draining"
        assert await got(http, "/-/ready") == (503, "draining\n")
        async with http.get("/metrics") as answer:
            assert await answer.read() == METRICS
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
        async with http.get("/version") as answer:
            assert await answer.json() == {"version": __version__, "python": platform.python_version()}
        async with http.post("/-/ready") as answer:
            assert answer.status == 405


@pytest.mark.parametrize(
    ("query", "answered"),
    [
        ("", (200, "everything False")),
        ("?collect=all", (200, "everything True")),
        ("?collect=all&collect=shards", (400, "collect = shards: allowed: all\n")),
    ],
)
async def test_a_scrape_may_ask_for_everything(query: str, answered: tuple[int, str]) -> None:
    async def rendered(*, everything: bool) -> bytes:
        return f"everything {everything}".encode()

    async with served(render_metrics=rendered) as http:
        assert await got(http, f"/metrics{query}") == answered


@pytest.mark.promise("metrics-compressed")
async def test_metrics_are_compressed_once_for_all_and_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, threads = [METRICS], list[threading.Thread]()

    async def newest(*, everything: bool) -> bytes:
        return texts[-1]

    def compress(text: bytes, level: int, compress: Callable[[bytes, int], bytes] = gzip.compress) -> bytes:
        threads.append(threading.current_thread())
        return compress(text, level)

    monkeypatch.setattr(gzip, "compress", compress)
    async with served(render_metrics=newest) as http:
        for more in (b"", b"", b"another 2\n"):
            texts.append(texts[-1] + more if more else texts[-1])
            async with http.get("/metrics", headers={"Accept-Encoding": "gzip"}) as answer:
                assert gzip.decompress(await answer.read()) == texts[-1]
                assert answer.headers["Content-Encoding"] == "gzip"
                assert answer.headers["Content-Type"].startswith("text/plain; version=")
    assert len(threads) == 2, "one for each text"
    assert threading.current_thread() not in threads


@pytest.mark.promise("metrics-compressed")
@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [
        ([], False),
        (["gzip"], True),
        (["GZIP ; Q=0.5"], True),
        (["deflate, gzip;q=1.0, *;q=0"], True),
        (["*"], True),
        (["identity", "gzip"], True),
        (["gzip;q=0"], False),
        (["gzip;q=0.000, deflate;q=0, identity"], False),
        (["*, gzip;q=0"], False),
        (["deflate"], False),
        (["notgzip"], False),
        (["gzip;q=much"], True),
        (["gzip;q=nan"], False),
        ([", ;q=1,"], False),
    ],
)
async def test_only_who_allows_gzip_gets_metrics_in_it(accepted: list[str], compressed: bool) -> None:
    """A cache between the two learns that the answer depends on it."""
    headers = [("Accept-Encoding", one) for one in accepted]
    async with served() as http, http.get("/metrics", headers=headers) as answer:
        assert answer.headers.get("Content-Encoding") == ("gzip" if compressed else None)
        assert answer.headers["Vary"] == "Accept-Encoding"
        body = await answer.read()
        assert (gzip.decompress(body) if compressed else body) == METRICS


@pytest.mark.promise("web-page-reads-metrics")
@pytest.mark.parametrize("header", ["Origin", "origin", "Sec-Fetch-Site"])
async def test_no_web_page_reads_the_metrics(header: str) -> None:
    """A page of somebody else could have any browser on this machine ask for them."""
    async with served() as http:
        status, text = await got(http, "/metrics", **{header: "none"})
    assert (status, "a_metric" in text) == (403, False)


@pytest.mark.promise("web-page-reads-metrics")
async def test_the_page_answers_to_names_of_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a web page of somebody else could read it by a name of its own that leads here."""
    monkeypatch.setattr(socket, "gethostname", lambda: "Node-7.Example")
    monkeypatch.setattr(socket, "getfqdn", lambda: "node-7.example.com")
    own = ["127.0.0.1:9474", "localhost:9474", "LOCALHOST", "[::1]:9474", "10.2.3.4"]
    own += ["node-7", "NODE-7.example", "node-7.example.", "node-7.example.com"]
    others = ["evil.example", "evil.example:9474", "127.0.0.1.evil.example", "evil-node-7", "node-7.evil.example"]
    others += ["example", ".", "[::1", ""]
    async with served() as http:
        for name in own:
            assert await got(http, "/", Host=name) == (200, "the page"), name
        for name in others:
            why = f"this page answers to an IP address, localhost and Node-7.Example, not to {name}\n"
            assert await got(http, "/", Host=name) == (421, why)
            assert (await got(http, "/metrics", Host=name))[0] == 200, "Prometheus may know the machine by any name"


async def test_a_machine_that_is_renamed_is_known_by_its_new_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["old.example", "new.example"])
    monkeypatch.setattr(socket, "getfqdn", lambda: next(names))
    async with served() as http:
        assert [(await got(http, "/", Host="new.example"))[0] for _ in range(2)] == [421, 200]


async def test_a_question_for_the_full_name_has_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another request may ask again before the one that waited goes on.  That gave a 500, and a traceback each time."""
    questions: list[asyncio.Future[str]] = []

    def ask_aside(_: object) -> asyncio.Future[str]:
        questions.append(asyncio.get_running_loop().create_future())
        return questions[-1]

    monkeypatch.setattr(admin, "begin_aside", ask_aside)
    name = admin.FullName()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(name.ask())
        await asyncio.sleep(0)
        questions[0].set_result("node-7.example")
        second = tasks.create_task(name.ask())
        assert await first == "node-7.example"
        questions[1].set_result("node-8.example")
        assert await second == "node-8.example"


async def test_a_resolver_that_hangs_has_one_thread_and_delays_no_other_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that render and compress are not its own, and the end does not wait for it."""
    answers, asking = threading.Event(), list[threading.Thread]()

    def resolve() -> str:
        asking.append(threading.current_thread())
        answers.wait()
        return "node-7.example"

    monkeypatch.setattr(socket, "getfqdn", resolve)
    async with served() as http, asyncio.TaskGroup() as tasks:
        gives_up = tasks.create_task(got(http, "/", Host="gone.example"))
        others = [tasks.create_task(got(http, "/", Host=name)) for name in ("node-7.example", "evil.example")]
        await until_on_loop(lambda: bool(asking))
        gives_up.cancel()
        assert (await got(http, "/metrics"))[0] == 200
        assert not any(other.done() for other in others)
        answers.set()
        assert [(await other)[0] for other in others] == [200, 421]
        assert len(asking) == 1
        assert asking[0].daemon, "the interpreter's end does not wait for it"


async def test_an_address_that_is_taken_is_a_configuration_error() -> None:
    async with AsyncExitStack() as stack:
        host, port = await stack.enter_async_context(serve())
        with pytest.raises(PlaceTaken) as raised:
            await stack.enter_async_context(serve((host, port)))
    (problem,) = raised.value.problems
    assert problem.startswith(f"metrics_listen = 127.0.0.1:{port}: ")
    assert "[Errno" not in problem


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError("nothing to bind"), "nothing to bind"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), "Cannot assign requested address"),
    ],
)
async def test_an_address_that_cannot_be_bound_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch, error: OSError, why: str
) -> None:
    """No other process has it, so another start gains nothing."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(ConfigurationError) as raised:
        await serve(("192.0.2.1", 9)).__aenter__()
    assert raised.type is ConfigurationError
    assert list(raised.value.problems) == [f"metrics_listen = 192.0.2.1:9: {why}"]


async def test_what_is_no_http_is_no_error_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    async with serve() as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"\x00\xff this is no HTTP\r\n\r\n")
        assert b"400" in await reader.readline()
        writer.close()
    for error in (BadStatusLine("GET"), ConnectionResetError("it leaves early")):
        logging.getLogger("aiohttp.server").error("Error handling request", exc_info=error)
    assert not caplog.records


async def test_a_name_that_is_not_utf8_is_no_error_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    async with serve() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\xc1\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 421 ")
    assert answer.endswith(b"not to a\\udcc1\n")
    assert not caplog.records


async def test_an_error_of_ours_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def no_metrics(*, everything: bool) -> bytes:
        raise RuntimeError("no numbers")

    async with served(render_metrics=no_metrics) as http:
        assert (await got(http, "/metrics"))[0] == 500
    logging.getLogger("aiohttp.server").warning("a line without an error")
    of_error, plain = caplog.records
    assert of_error.exc_info is not None
    assert repr(of_error.exc_info[1]) == "RuntimeError('no numbers')"
    assert plain.message == "a line without an error"


async def test_at_the_end_connections_are_closed_and_none_is_accepted() -> None:
    async with serve() as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readuntil(b"healthy\n")).startswith(b"HTTP/1.1 200 OK\r\n")
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, port)


# ---- the socket of `producerctl`


class Echo:
    """Stands for the commands, and answers with what it is asked."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*given: object) -> JsonObject:
            return {"asked": [name, *given]}

        async def ask_later(*given: object) -> JsonObject:
            return ask(*given)

        return ask_later if name in ("bundle", "flush", "drain", "profile") else ask

    def shards(self, name: str) -> JsonObject:
        if name == "gone":
            raise NoSuchStream("gone: it is not known")
        return {"asked": ["shards", name]}

    async def reload(self) -> JsonObject:
        raise ConfigurationError(["this is wrong", "and that"])


@pytest.fixture
def echo() -> Any:
    return Echo()


@asynccontextmanager
async def operated(commands: Any) -> AsyncIterator[str]:
    """The path of a socket that serves these commands."""
    with directory() as folder:
        listener = Listener(folder / "admin.sock", 0o600)
        try:
            async with admin.serve_socket(listener, commands):
                yield str(listener.path)
        finally:
            listener.close()


async def asked(path: str, method: str, target: str, body: str | None = None) -> tuple[int, Any]:
    """Status and answer."""
    async with (
        aiohttp.ClientSession("http://localhost", connector=aiohttp.UnixConnector(path)) as http,
        http.request(method, target, data=body) as answer,
    ):
        return answer.status, await answer.json()


@pytest.mark.parametrize(
    ("method", "target", "body", "answer"),
    [
        ("GET", "/status", None, ["status"]),
        ("GET", "/dump", None, ["dump"]),
        ("GET", "/bundle", None, ["bundle"]),
        ("GET", "/streams/a%2Fb/shards", None, ["shards", "a/b"]),
        ("POST", "/flush", None, ["flush", None, None]),
        ("POST", "/flush", "{}", ["flush", None, None]),
        ("POST", "/flush", '{"timeout_seconds": 0}', ["flush", None, 0]),
        ("POST", "/streams/a%2Fb/flush", '{"timeout_seconds": 31536000}', ["flush", "a/b", 31_536_000]),
        ("POST", "/streams/a%2Fb/pause", None, ["pause", "a/b"]),
        ("POST", "/streams/a%2Fb/resume", None, ["resume", "a/b"]),
        ("POST", "/loglevel", '{"level": "debug"}', ["log_level", "debug", None]),
        ("POST", "/loglevel", '{"level": "error", "seconds": 90.5}', ["log_level", "error", 90.5]),
        ("POST", "/profile", '{"seconds": 0.5}', ["profile", 0.5]),
    ],
)
async def test_each_command_is_asked_for_by_its_path(
    echo: Any, method: str, target: str, body: str | None, answer: Any
) -> None:
    async with operated(echo) as path:
        assert await asked(path, method, target, body) == (200, {"asked": answer})


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "reply"),
    [
        ("GET", "/streams/gone/shards", None, 404, {"error": "gone: it is not known"}),
        (
            *("POST", "/reload", None, 409),
            {"error": "this is wrong; and that", "problems": ["this is wrong", "and that"]},
        ),
        ("POST", "/flush", "{", 400, {"error": "the body is not JSON"}),
        ("POST", "/flush", "[]", 400, {"error": "the body is not a JSON object"}),
        *(
            (
                *("POST", "/flush", f'{{"timeout_seconds": {given}}}', 400),
                {"error": f"timeout_seconds = {shown}: allowed: 0 to 31,536,000 seconds"},
            )
            for given, shown in {"-1": "-1", "31536001": "31536001", '"5"': "'5'", "true": "True"}.items()
        ),
        (
            *("POST", "/loglevel", '{"level": "loud"}', 400),
            {"error": "level = 'loud': allowed: debug, info, warning, error"},
        ),
    ],
)
async def test_what_cannot_be_done_is_answered_with_the_reason(
    echo: Any, method: str, target: str, body: str | None, status: int, reply: JsonObject
) -> None:
    async with operated(echo) as path:
        assert await asked(path, method, target, body) == (status, reply)


async def test_a_command_is_cancelled_when_its_caller_has_gone(echo: Any) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def profile(_seconds: float | None) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    echo.profile = profile
    async with operated(echo) as path, asyncio.timeout(10):
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(b"POST /profile HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await began.wait()
        writer.close()
        await cancelled.wait()


@pytest.mark.parametrize("transport", [None, SimpleNamespace(get_extra_info=lambda _: None)])
def test_a_caller_that_has_gone_needs_no_connection(transport: Any) -> None:
    admin.hold_until_the_end(transport)


@pytest.mark.parametrize("known", [True, False])
async def test_orders_are_logged_with_who_gave_them_where_that_is_known_and_questions_are_not(
    echo: Any, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    if not known:
        monkeypatch.setattr(admin, "peer_of", lambda _: None)
    async with operated(echo) as path:
        with structlog.testing.capture_logs() as logged:
            await asked(path, "GET", "/status")
            assert (await asked(path, "POST", "/flush"))[0] == 200
    uid, pid = (os.getuid(), os.getpid()) if known else (None, None)
    assert logged == [{"event": "order", "path": "/flush", "uid": uid, "pid": pid, "log_level": "info"}]


@pytest.mark.parametrize("peer", [Peer(7, os.geteuid() + 1, 9), None])
async def test_another_user_is_refused_and_the_log_says_who(
    echo: Any, monkeypatch: pytest.MonkeyPatch, peer: Peer | None
) -> None:
    monkeypatch.setattr(admin, "peer_of", lambda _: peer)
    if peer is None:  # where the kernel does not say who asks, all may
        monkeypatch.setattr(admin, "may_administer", lambda _: False)
    uid, pid = (peer.uid, peer.pid) if peer is not None else (None, None)
    async with operated(echo) as path:
        with structlog.testing.capture_logs() as logged:
            for method, target in (("GET", "/status"), ("POST", "/flush")):
                refusal = {"error": f"uid {uid} may not: only the daemon's own user and root"}
                assert await asked(path, method, target) == (403, refusal)
    assert logged == [
        {"event": "who may not administer tried to", "uid": uid, "pid": pid, "path": target, "log_level": "warning"}
        for target in ("/status", "/flush")
    ]


async def test_the_socket_accepts_nobody_after_the_end(echo: Any) -> None:
    with directory() as folder:
        listener = Listener(folder / "admin.sock", 0o600)
        async with admin.serve_socket(listener, echo):
            assert await asked(str(listener.path), "GET", "/status") == (200, {"asked": ["status"]})
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_unix_connection(str(listener.path))
        listener.close()
