"""Any bytes at the door of the metrics get answers of HTTP or a closed connection, and the daemon logs no error."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any, Final
from unittest.mock import patch

from producerd.runtime import admin, http_connections
from producerd.runtime.http_connections import HttpCaller, HttpConnections
from producerd.runtime.users.shares import Share
from tests.fuzz.targets import in_cuts

LOOP: Final = asyncio.new_event_loop()
TURNS: Final = 40
"""Turns of the loop in which everything that can be answered is answered."""


class _Door:
    """The endpoint without its socket: requests are not put off for lack of time, and the resolver answers at once."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._made: list[tuple[HttpConnections, Any]] = []
        self._stack = AsyncExitStack()
        LOOP.set_exception_handler(lambda _, context: self.errors.append(str(context)))
        LOOP.run_until_complete(self._open())

    async def _open(self) -> None:
        async def render(*, everything: bool) -> bytes:
            return b"a_metric 1\n"

        async def full_name(_: admin.FullName) -> str:
            return "fuzz.example"

        def make(handlers: Any) -> HttpConnections:
            self._made.append((HttpConnections(handlers), handlers))
            return self._made[-1][0]

        for module, name, value in (
            (http_connections, "PART", Share(1.0, 1.0)),
            (http_connections, "REQUEST_SECONDS", 0.0),
            (admin.FullName, "ask", full_name),
            (admin, "HttpConnections", make),
        ):
            self._stack.enter_context(patch.object(module, name, value))
        serving = admin.serve(
            ("127.0.0.1", 0), render_metrics=render, render_page=lambda: "the page", unready=lambda: None
        )
        await self._stack.enter_async_context(serving)

    async def answers_to(self, said: bytes, seed: int) -> bytes:
        """Return what a connection is answered, on which these bytes come and which then ends."""
        (connections, handlers), transport = self._made[0], _Transport()
        caller = HttpCaller(connections, handlers())
        caller.connection_made(transport)
        for piece in in_cuts(said, seed):
            unread = memoryview(piece)
            while unread and not transport.is_closing():
                buffer = caller.get_buffer(-1)
                size = min(len(buffer), len(unread))
                assert size, "no room for the next bytes"
                buffer[:size], unread = unread[:size], unread[size:]
                caller.buffer_updated(size)
                for _ in range(TURNS):
                    if not caller.is_asked:
                        break
                    await asyncio.sleep(0)
        caller.connection_lost(None)
        await asyncio.sleep(0)
        return bytes(transport.written)


class _Transport(asyncio.Transport):
    """A peer that takes everything at once.  ``written`` is what it was answered."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close


class _Log(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        DOOR.errors.append(self.format(record))


DOOR: Final = _Door()
logging.getLogger("aiohttp").addHandler(_Log(logging.ERROR))


def check(data: bytes) -> None:
    """The first byte says how the rest is cut."""
    DOOR.errors.clear()
    answered = LOOP.run_until_complete(DOOR.answers_to(data[1:], data[0] if data else 0))
    assert not DOOR.errors, DOOR.errors
    assert not answered or answered.startswith(b"HTTP/"), answered[:80]
