"""A slow way in: the bodies of requests come through one line that all connections share.

The promise: over time, bodies are read no faster than `Uplink.bytes_per_second`; what is not read yet waits with its
sender, as on a real line, but for what the kernel takes in (and, under TLS, 256 KiB a connection that asyncio does).
At 0 no body is read.  A new speed holds at once, for the bodies that wait too.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Final

from aiohttp import web

RECEIVE_BUFFER_BYTES: Final = 64 * 1024
"""Asked of the kernel, which doubles it, for every connection and before it is made.  By itself the kernel hid 1.4 MB
of a connection at 2.5 MB/s; a buffer that was made smaller under way stalled for 0.8 s."""
LOOK_SECONDS: Final = 0.1
"""How often a connection that nobody reads is asked whether its client is still there."""


class Uplink:
    """The line.  ``bytes_per_second``: None for as fast as they come."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._bytes_per_second: float | None = None
        self._free_at = 0.0  # when all that was read has come through
        self._changed = asyncio.Event()

    @property
    def bytes_per_second(self) -> float | None:
        return self._bytes_per_second

    @bytes_per_second.setter
    def bytes_per_second(self, value: float | None) -> None:
        """From any thread."""
        if value is not None and not value >= 0:
            raise ValueError(f"uplink_bytes_per_second={value!r}: 0 or more, or None")
        self._bytes_per_second = value
        self._loop.call_soon_threadsafe(self._change)

    def _change(self) -> None:
        self._free_at = 0.0
        self._changed.set()
        self._changed = asyncio.Event()

    def through_at(self, size: int, now: float) -> float:
        """When so many bytes more have come through, after all those before them."""
        self._free_at = max(self._free_at, now) + (size / self._bytes_per_second if self._bytes_per_second else 0.0)
        return self._free_at

    async def read(self, request: web.BaseRequest) -> bytes:
        """The body of a request, once it has come through."""
        parts: list[bytes] = []
        while part := await request.content.readany():
            parts.append(part)
            await self._carry(request, len(part))
        return b"".join(parts)

    async def _carry(self, request: web.BaseRequest, size: int) -> None:
        """Leave a connection unread until ``size`` bytes have come through, and those of all others before them."""
        transport = request.transport
        if self._bytes_per_second is None or transport is None:
            return
        with _unread(transport) as client:
            if self._bytes_per_second:
                now = self._loop.time()
                await self._wait(self.through_at(size, now) - now)
            while self._bytes_per_second == 0:
                await self._wait(LOOK_SECONDS)
                # The loop does not watch a connection that it does not read: a reset would go unseen.
                if client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    transport.abort()

    async def _wait(self, seconds: float) -> None:
        """Until then, or until the speed changes."""
        changed = self._changed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()


@contextlib.contextmanager
def _unread(transport: asyncio.Transport) -> Iterator[socket.socket]:
    """Let the client's bytes wait with the client while the block lasts."""
    client = transport.get_extra_info("socket")
    transport.pause_reading()
    try:
        yield client
    finally:
        if not transport.is_closing():
            transport.resume_reading()
