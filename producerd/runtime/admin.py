"""The read-only HTTP endpoints: ``GET /metrics``, ``/-/ready``, ``/-/healthy``, ``/version``.

Ready means that the socket accepts and does not drain: neither a full queue nor an unreachable Kinesis is unready, or
no Spark pod would start during an incident.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from producerd import __version__
from producerd.errors import ConfigurationError
from producerd.runtime.metrics import CONTENT_TYPE


@asynccontextmanager
async def serve(
    address: tuple[str, int], *, render_metrics: Callable[[], bytes], is_ready: Callable[[], bool]
) -> AsyncIterator[tuple[str, int]]:
    """Serve until left; yields the address really bound.  Raises ConfigurationError where it cannot be bound."""

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=render_metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def ready(_request: web.Request) -> web.Response:
        return web.Response(text="ready\n") if is_ready() else web.Response(status=503, text="draining\n")

    async def healthy(_request: web.Request) -> web.Response:
        return web.Response(text="healthy\n")

    async def version(_request: web.Request) -> web.Response:
        return web.json_response({"version": __version__, "python": sys.version.split()[0]})

    app = web.Application()
    app.add_routes(
        [
            web.get("/metrics", metrics),
            web.get("/-/ready", ready),
            web.get("/-/healthy", healthy),
            web.get("/version", version),
        ]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        host, port = address
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise ConfigurationError([f"metrics_listen = {host}:{port}: {error.strerror or error}"]) from None
        bound = runner.addresses[0]
        yield bound[0], bound[1]
    finally:
        await runner.cleanup()
