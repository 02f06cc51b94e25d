"""The HTTP endpoints answer what they are asked, and the daemon reports before it serves if it cannot serve them."""

from __future__ import annotations

import asyncio
import gzip
import platform
import socket
import threading
import time
from contextlib import suppress

import aiohttp
import pytest

from producerd import __version__
from producerd.errors import ConfigurationError
from producerd.runtime import admin
from tests.daemon import until_on_loop


async def a_metric() -> bytes:
    return b"a_metric 1\n"


async def test_ready_follows_the_daemon_and_metrics_are_what_is_rendered() -> None:
    why: str | None = None
    async with (
        admin.serve(("127.0.0.1", 0), render_metrics=a_metric, render_page=str, unready=lambda: why) as (
            host,
            port,
        ),
        aiohttp.ClientSession(f"http://{host}:{port}") as client,
    ):
        async with client.get("/-/ready") as answer:
            assert (answer.status, await answer.text()) == (200, "ready\n")
        why = "draining"
        async with client.get("/-/ready") as answer:
            assert (answer.status, await answer.text()) == (503, "draining\n")
        async with client.get("/metrics") as answer:
            assert await answer.read() == b"a_metric 1\n"
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
        async with client.get("/version") as answer:
            assert await answer.json() == {"version": __version__, "python": platform.python_version()}
        async with client.post("/-/ready") as answer:
            assert answer.status == 405


async def test_metrics_are_compressed_for_whoever_accepts_it() -> None:
    """By a thread: the loop is never late while it is done."""
    text = b"".join(b'a_metric{number="%d"} %d\n' % (number, number * number) for number in range(400_000))

    async def many() -> bytes:
        return text

    async with (
        admin.serve(("127.0.0.1", 0), render_metrics=many, render_page=str, unready=lambda: None) as (host, port),
        aiohttp.ClientSession(f"http://{host}:{port}", auto_decompress=False) as client,
    ):
        async with client.get("/metrics", headers={"Accept-Encoding": "identity"}) as answer:
            assert "Content-Encoding" not in answer.headers
            assert await answer.read() == text
        began = time.thread_time()
        async with client.get("/metrics", headers={"Accept-Encoding": "gzip"}) as answer:
            compressed = await answer.read()
        of_loop = time.thread_time() - began
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        began = time.thread_time()
        assert gzip.decompress(compressed) == text
        gzip.compress(text, 6)
        assert of_loop < (time.thread_time() - began) / 3


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
    async with (
        admin.serve(("127.0.0.1", 0), render_metrics=a_metric, render_page=str, unready=lambda: None) as (host, port),
        aiohttp.ClientSession(
            f"http://{host}:{port}", auto_decompress=False, skip_auto_headers=["Accept-Encoding"]
        ) as client,
        client.get("/metrics", headers=[("Accept-Encoding", one) for one in accepted]) as answer,
    ):
        assert answer.headers.get("Content-Encoding") == ("gzip" if compressed else None)
        assert answer.headers["Vary"] == "Accept-Encoding"
        body = await answer.read()
        assert (gzip.decompress(body) if compressed else body) == b"a_metric 1\n"


async def test_the_page_answers_to_names_of_this_machine_alone() -> None:
    """Else a web page of somebody else could read it by a name of its own that leads here."""
    name = socket.gethostname()
    async with (
        admin.serve(
            ("127.0.0.1", 0), render_metrics=a_metric, render_page=lambda: "the page", unready=lambda: None
        ) as (host, port),
        aiohttp.ClientSession(f"http://{host}:{port}") as http,
    ):
        for own in (
            f"127.0.0.1:{port}",
            f"localhost:{port}",
            "LOCALHOST",
            f"[::1]:{port}",
            "10.2.3.4",
            name,
            name.upper(),
        ):
            async with http.get("/", headers={"Host": own}) as answer:
                assert (answer.status, await answer.text()) == (200, "the page"), own
        for other in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            f"evil-{name}",
            f"{name}.evil.example",
            "[::1",
            "",
        ):
            async with http.get("/", headers={"Host": other}) as answer:
                assert answer.status == 421, other
                assert "the page" not in await answer.text()
            async with http.get("/metrics", headers={"Host": other}) as answer:
                assert answer.status == 200, "Prometheus may know the machine by any name"


async def test_a_resolver_that_hangs_has_one_thread_and_delays_no_other_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that render and compress are not its own, and the end does not wait for it."""
    answers, asking = threading.Event(), list[threading.Thread]()

    def resolve() -> str:
        asking.append(threading.current_thread())
        answers.wait()
        return "node-7.example"

    monkeypatch.setattr(socket, "getfqdn", resolve)
    async with (
        admin.serve(
            ("127.0.0.1", 0), render_metrics=a_metric, render_page=lambda: "the page", unready=lambda: None
        ) as (host, port),
        aiohttp.ClientSession(f"http://{host}:{port}") as http,
        asyncio.TaskGroup() as tasks,
    ):

        async def status_of(name: str) -> int:
            async with http.get("/", headers={"Host": name}) as answer:
                return answer.status

        gives_up = tasks.create_task(status_of("gone.example"))
        others = [tasks.create_task(status_of(name)) for name in ("node-7.example", "evil.example")]
        await until_on_loop(lambda: bool(asking))
        gives_up.cancel()
        async with http.get("/metrics") as answer:
            assert answer.status == 200
        assert not any(other.done() for other in others)
        answers.set()
        assert [await other for other in others] == [200, 421]
        assert len(asking) == 1
        assert asking[0].daemon, "the interpreter's end does not wait for it"


async def test_an_address_that_is_taken_is_a_configuration_error() -> None:
    async with admin.serve(("127.0.0.1", 0), render_metrics=a_metric, render_page=str, unready=lambda: None) as taken:
        with pytest.raises(ConfigurationError, match=f"metrics_listen = 127.0.0.1:{taken[1]}"):
            async with admin.serve(taken, render_metrics=a_metric, render_page=str, unready=lambda: None):
                pass


async def test_whoever_stays_connected_for_nothing_makes_place_for_others() -> None:
    """Any user of the machine may connect there, and descriptors are the clients', too."""
    async with admin.serve(("127.0.0.1", 0), render_metrics=a_metric, render_page=str, unready=lambda: None) as (
        host,
        port,
    ):
        idle = [await asyncio.open_connection(host, port) for _ in range(admin.MOST_CONNECTIONS + 5)]
        async with aiohttp.ClientSession() as client, client.get(f"http://{host}:{port}/-/ready") as answer:
            assert answer.status == 200
        async with asyncio.timeout(10):
            for reader, _ in idle[:6]:
                with suppress(ConnectionError):
                    assert await reader.read() == b""
        for _, writer in idle:
            writer.close()


async def test_what_is_no_http_is_no_error_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    async with admin.serve(("127.0.0.1", 0), render_metrics=a_metric, render_page=str, unready=lambda: None) as (
        host,
        port,
    ):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"\x00\xff this is no HTTP\r\n\r\n")
        assert b"400" in await reader.readline()
        writer.close()
    assert not caplog.records
