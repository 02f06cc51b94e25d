"""An HTTP server that keeps the requests which it gets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from producerd.core.sending.answers import loads


@asynccontextmanager
async def recording(
    answer: bytes | Callable[[dict[str, Any]], tuple[int, bytes]], status: int = 200
) -> AsyncIterator[tuple[str, list[tuple[Any, bytes]]]]:
    """Serve and keep each request.  ``answer`` is the one body to send, or makes each status and body."""
    requests: list[tuple[Any, bytes]] = []

    async def respond(request: web.BaseRequest) -> web.Response:
        body = await request.read()
        requests.append((request.headers.copy(), body))
        told = (status, answer) if isinstance(answer, bytes) else answer(loads(body))
        return web.Response(status=told[0], body=told[1], content_type="application/x-amz-json-1.1")

    runner = web.ServerRunner(web.Server(respond), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", requests
    finally:
        await runner.cleanup()
