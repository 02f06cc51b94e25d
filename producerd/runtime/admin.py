"""The HTTP endpoints: for Prometheus and whoever checks on the daemon by TCP, for `producerctl` on a unix socket.

By TCP: ``GET /metrics``, ``/-/ready``, ``/-/healthy``, ``/version``.  Ready means that the socket accepts and does not
drain: neither a full queue nor an unreachable Kinesis is unready, or no Spark pod would start during an incident.

On the unix socket, which only the daemon's own user may open: ``GET /status`` and ``/streams/NAME/shards``, as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from producerd import __version__
from producerd.errors import ConfigurationError
from producerd.runtime.listener import Listener
from producerd.runtime.metrics import CONTENT_TYPE

NodeStatus = dict[str, Any]
StreamShards = dict[str, Any]


@asynccontextmanager
async def serve(
    address: tuple[str, int], *, render_metrics: Callable[[], Awaitable[bytes]], is_ready: Callable[[], bool]
) -> AsyncIterator[tuple[str, int]]:
    """Serve by TCP until left; yields the address really bound.  Raises ConfigurationError where it cannot be bound."""

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=await render_metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def ready(_request: web.Request) -> web.Response:
        return web.Response(text="ready\n") if is_ready() else web.Response(status=503, text="draining\n")

    async def healthy(_request: web.Request) -> web.Response:
        return web.Response(text="healthy\n")

    async def version(_request: web.Request) -> web.Response:
        return web.json_response({"version": __version__, "python": sys.version.split()[0]})

    async with _running(
        web.get("/metrics", metrics),
        web.get("/-/ready", ready),
        web.get("/-/healthy", healthy),
        web.get("/version", version),
    ) as runner:
        host, port = address
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise ConfigurationError([f"metrics_listen = {host}:{port}: {error.strerror or error}"]) from None
        bound = runner.addresses[0]
        yield bound[0], bound[1]


@asynccontextmanager
async def serve_socket(
    listener: Listener, *, status: Callable[[], NodeStatus], shards: Callable[[str], StreamShards | None]
) -> AsyncIterator[None]:
    """Serve on a unix socket until left.  ``shards``: of the stream of this name; None where nobody has it open."""

    async def get_status(_request: web.Request) -> web.Response:
        return web.json_response(status())

    async def get_shards(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        found = shards(name)
        if found is None:
            return web.json_response({"error": f"{name}: no client has opened a stream of that name"}, status=404)
        return web.json_response(found)

    async with _running(
        web.get("/status", get_status),
        web.get("/streams/{name}/shards", get_shards),
    ) as runner:
        await web.SockSite(runner, listener.socket).start()
        yield


@asynccontextmanager
async def _running(*routes: web.RouteDef) -> AsyncIterator[web.AppRunner]:
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        yield runner
    finally:
        await runner.cleanup()
