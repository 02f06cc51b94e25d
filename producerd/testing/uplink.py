"""A slow network line that the bodies of all requests share.

The server reads bodies no faster than `Uplink.bytes_per_second`.  As on a real line, the rest waits with the sender.
Only the kernel's receive buffer fills earlier, and under TLS 256 KiB per connection in asyncio.  At a speed of 0 the
server reads no body.  A new speed holds at once, also for the bodies that wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Final

from aiohttp import web

RECEIVE_BUFFER_BYTES: Final = 64 * 1024
"""Receive buffer of each connection, which the kernel doubles.  It is set before the connection exists.

With its default the kernel buffered 1.4 MB of a connection at 2.5 MB/s.  A buffer that was made smaller later stalled
for 0.8 s.
"""
LOOK_SECONDS: Final = 0.1
"""Time between two checks whether the client of an unread connection has gone."""


class Uplink:
    """The line of one server.  ``bytes_per_second`` is None for no limit."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._bytes_per_second: float | None = None
        self._free_at = 0.0  # the time at which the line has carried everything that was read
        self._changed = asyncio.Event()

    @property
    def bytes_per_second(self) -> float | None:
        return self._bytes_per_second

    @bytes_per_second.setter
    def bytes_per_second(self, value: float | None) -> None:
        """Set the speed, from any thread."""
        if value is not None and not value >= 0:
            raise ValueError(f"uplink_bytes_per_second={value!r}: 0 or more, or None")
        self._bytes_per_second = value
        self._loop.call_soon_threadsafe(self._change)

    def _change(self) -> None:
        self._free_at = 0.0
        self._changed.set()
        self._changed = asyncio.Event()

    def through_at(self, size: int, now: float) -> float:
        """Add this many bytes to the line, and return the loop's time at which it has carried them."""
        self._free_at = max(self._free_at, now) + (size / self._bytes_per_second if self._bytes_per_second else 0.0)
        return self._free_at

    async def read(self, request: web.BaseRequest) -> bytes:
        """Return the body of a request after the line has carried it."""
        chunks: list[bytes] = []
        while chunk := await request.content.readany():
            chunks.append(chunk)
            await self._carry(request, len(chunk))
        return b"".join(chunks)

    async def _carry(self, request: web.BaseRequest, size: int) -> None:
        """Leave a connection unread until the line has carried ``size`` bytes of it, after all earlier bytes."""
        transport = request.transport
        if self._bytes_per_second is None or transport is None:
            return
        with _unread(transport) as client:
            if self._bytes_per_second:
                now = self._loop.time()
                await self._wait(self.through_at(size, now) - now)
            while self._bytes_per_second == 0:
                await self._wait(LOOK_SECONDS)
                # The loop does not watch a connection that it does not read, so it would miss a reset.
                if client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    transport.abort()

    async def _wait(self, seconds: float) -> None:
        """Wait this long, or until the speed changes."""
        changed = self._changed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()


@contextlib.contextmanager
def _unread(transport: asyncio.Transport) -> Iterator[socket.socket]:
    """Stop reading from the client until the block ends."""
    client = transport.get_extra_info("socket")
    transport.pause_reading()
    try:
        yield client
    finally:
        if not transport.is_closing():
            transport.resume_reading()
