"""HttpConnections: the connections to the TCP endpoint, where any user of the machine may connect.

There are few places, because clients need descriptors, too.  While a connection waits for a place, one that asks for
nothing goes, or whose request is incomplete, and otherwise the slowest that has been answered for long.  If none may
go yet, the new one waits, and those behind it wait in the kernel.

All connections together have a part of the event loop's time.  They take turns, a request at a time, so that a flood
delays only other requests here.  Accepting new ones has a part of its own.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Final, Never, cast

from producerd.runtime.users.shares import LoopShares, Share

MOST_CONNECTIONS: Final = 64
ANSWER_SECONDS: Final = 10.0
"""Time in which a connection that is answered keeps its place.  It is Prometheus's default time-out of a scrape."""
FIRST_REQUEST_SECONDS: Final = 0.1
"""Time in which a new connection keeps its place without a request, which most send at once."""
MOST_HEAD_BYTES: Final = 16 * 1024
"""Largest head of a request, and most bytes that a connection may send ahead."""
REQUEST_SECONDS: Final = 0.000_5
"""Time that counts for a request, and for a new connection.  It is chosen, not measured, so that floods slow clients of
the other socket by less than twice (`./dev bench abuse`)."""
PART: Final = Share(0.001, 0.125)
"""Part of the loop's time that new connections have, and again that all requests have."""
NO_DESCRIPTOR_SECONDS: Final = 1.0
"""Time after which the next connection is accepted if there was no descriptor for one."""
_HEAD_ENDS: Final = b"\r\n\r\n"


class HttpConnections:
    """The connections that have a place.  ``make_handler`` makes aiohttp's handler for each.

    The handlers' application reports each answer to `answered`.
    """

    def __init__(self, make_handler: Callable[[], asyncio.Protocol]) -> None:
        self._make_handler = make_handler
        self._of_handler: dict[Hashable, HttpCaller] = {}
        self._requests = LoopShares(alone=PART)
        self._accepted = LoopShares(alone=PART)  # apart, because they would wait for a turn of each connection
        self._freed = asyncio.Event()
        self._waiting = 0

    async def accept_callers(self, listening: socket.socket) -> Never:
        """Accept connections until cancelled, each when there is a place and time for it."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, _ = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError:
                await asyncio.sleep(NO_DESCRIPTOR_SECONDS)
                continue
            try:
                await self._make_place()
                await self._have_time()
                await loop.connect_accepted_socket(lambda: HttpCaller(self, self._make_handler()), connected)
            except OSError:  # it has gone
                connected.close()
            except BaseException:
                connected.close()
                raise

    def http_answered(self, handler: Hashable) -> None:
        """Note that a handler has answered a request, all of which the kernel has."""
        if (one := self._of_handler.get(handler)) is not None:
            one.go_on(goes=self._waiting > 0)

    def take_turn(self, read: Callable[[], None]) -> None:
        """Call ``read`` now, or when there is time."""
        if self._requests.has_time(None, self._requests.clock()):
            self._take_turn(read)
        else:
            self._requests.put_off(None, lambda: self._take_turn(read))

    def count_request(self) -> None:
        """Count the time that a request will take."""
        self._requests.expect(None, REQUEST_SECONDS)

    def place_caller(self, handler: Hashable, one: HttpCaller) -> None:
        """Give a connection a place."""
        self._of_handler[handler] = one
        self._accepted.expect(None, REQUEST_SECONDS)

    def forget(self, handler: Hashable) -> None:
        """Free the place of a connection."""
        self._of_handler.pop(handler, None)
        self._freed.set()

    # ---- inside

    def _take_turn(self, read: Callable[[], None]) -> None:
        began = self._requests.clock()
        read()
        self._requests.spend(None, began)

    async def _have_time(self) -> None:
        if not self._accepted.has_time(None, self._accepted.clock()):
            has_time = asyncio.Event()
            self._accepted.put_off(None, has_time.set)
            await has_time.wait()

    async def _make_place(self) -> None:
        """Return when there is a place, for which another connection may have to go."""
        loop = asyncio.get_running_loop()
        self._waiting += 1
        try:
            while len(self._of_handler) >= MOST_CONNECTIONS:
                now = loop.time()
                going = [one for one in self._of_handler.values() if one.may_go_at <= now]
                if going:
                    min(going, key=lambda one: (one.is_asked, one.since)).close()
                    continue
                self._freed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min(one.may_go_at for one in self._of_handler.values())):
                        await self._freed.wait()
        finally:
            self._waiting -= 1


class HttpCaller(asyncio.BufferedProtocol):
    """One connection: it gives its handler one request at a time, and reads no further meanwhile."""

    def __init__(self, connections: HttpConnections, handler: asyncio.Protocol) -> None:
        self._connections = connections
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(MOST_HEAD_BYTES)
        self._end = 0
        self._is_new = True
        self.is_asked = False  # whether the handler has a request that it has not answered
        self.since = self._loop.time()  # when it was asked, otherwise when it was answered or came

    @property
    def may_go_at(self) -> float:
        """The time from which it may go for a new connection."""
        return self.since + (ANSWER_SECONDS if self.is_asked else FIRST_REQUEST_SECONDS if self._is_new else 0.0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connections.place_caller(self._handler, self)
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(0)  # so that a handler has answered when the kernel has the answer
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connections.forget(self._handler)
        self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        if self._transport is not None:
            self._transport.pause_reading()
            self._look()

    def go_on(self, *, goes: bool) -> None:
        """Note that the request is answered.  Go on with the next one, or close with ``goes``."""
        self.is_asked, self._is_new, self.since = False, False, self._loop.time()
        if goes:
            self.close()
        else:
            self._look()

    def close(self) -> None:
        """Close the connection, whatever it is doing."""
        self._connections.forget(self._handler)
        if self._transport is not None:
            self._transport.abort()

    def _look(self) -> None:
        """Take a turn to give the handler a request if a whole one is here, otherwise to read on."""
        if self.is_asked:
            return
        if self._buffer.find(_HEAD_ENDS, 0, self._end) >= 0:
            self.is_asked, self.since = True, self._loop.time()
        elif self._end == len(self._buffer):
            self.close()
            return
        self._connections.take_turn(self._go_on)

    def _go_on(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if not self.is_asked:
            self._transport.resume_reading()
            return
        at = self._buffer.index(_HEAD_ENDS) + len(_HEAD_ENDS)
        head = bytes(self._buffer[:at])
        self._buffer[: self._end - at] = self._buffer[at : self._end]
        self._end -= at
        self._connections.count_request()
        self._handler.data_received(head)
