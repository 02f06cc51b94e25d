"""The HTTP endpoints say what they are asked, and where they cannot be served is said before anything is."""

from __future__ import annotations

import aiohttp
import pytest

from producerd import __version__
from producerd.errors import ConfigurationError
from producerd.runtime import admin


async def a_metric() -> bytes:
    return b"a_metric 1\n"


async def test_ready_follows_the_daemon_and_metrics_are_what_is_rendered() -> None:
    is_ready = True
    async with (
        admin.serve(("127.0.0.1", 0), render_metrics=a_metric, render_page=str, is_ready=lambda: is_ready) as (
            host,
            port,
        ),
        aiohttp.ClientSession(f"http://{host}:{port}") as client,
    ):
        async with client.get("/-/ready") as answer:
            assert (answer.status, await answer.text()) == (200, "ready\n")
        is_ready = False
        async with client.get("/-/ready") as answer:
            assert (answer.status, await answer.text()) == (503, "draining\n")
        async with client.get("/metrics") as answer:
            assert await answer.read() == b"a_metric 1\n"
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
        async with client.get("/version") as answer:
            assert (await answer.json())["version"] == __version__
        async with client.post("/-/ready") as answer:
            assert answer.status == 405


async def test_an_address_that_is_taken_is_a_configuration_error() -> None:
    async with admin.serve(("127.0.0.1", 0), render_metrics=a_metric, render_page=str, is_ready=lambda: True) as taken:
        with pytest.raises(ConfigurationError, match=f"metrics_listen = 127.0.0.1:{taken[1]}"):
            async with admin.serve(taken, render_metrics=a_metric, render_page=str, is_ready=lambda: True):
                pass
