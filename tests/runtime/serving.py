"""How a test serves HTTP: on its own loop, or on one in a thread for blocking clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TypeVar

from aiohttp import web

T = TypeVar("T")


@asynccontextmanager
async def serving(respond: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """Serve on this loop until the block ends.  Yield the URL."""
    runner = web.ServerRunner(web.Server(respond, access_log=None))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextmanager
def in_thread(make: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Keep what ``make`` returns entered on a loop in a thread until the block ends."""
    entered: list[T] = []
    started, loop, ended = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with make() as served:
            entered.append(served)
            started.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="serving", daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield entered[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
