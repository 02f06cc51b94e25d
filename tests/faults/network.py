"""A TCP proxy between the daemon and the service, which can fail as networks do.

The proxy listens at one port for its life, so the daemon's endpoint never changes.  It runs in a thread of its own.
Any thread may change its settings at any time, and they hold for the bytes that come next.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Final, Literal

Mode = Literal["pass", "reset", "blackhole", "half_open", "refuse"]
"""``pass`` carries everything.  ``reset`` ends each connection with RST, old and new ones.  ``blackhole`` accepts
connections and carries nothing.  ``half_open`` carries what the daemon sends, and nothing back.  ``refuse`` closes the
port, so that connecting fails, and resets the old connections."""

CHUNK_BYTES: Final = 64 * 1024
RESET: Final = struct.pack("ii", 1, 0)
LOOK_SECONDS: Final = 0.02
LENGTH: Final = re.compile(rb"(?i)\r\nContent-Length: *([0-9]+)")
Change = Callable[[bytes], tuple[bytes, bool]]
"""Takes a whole answer; returns what is carried in its place, and whether the connection ends then."""
Front = Callable[[bytes], bytes | None]
"""Takes a whole request; returns the answer that a front end gives to it, or None if the service receives it."""
REQUEST: Final = b"POST "
"""How each request begins."""


class Proxy:
    """Carries bytes in the way that its ``mode`` says.

    ``change``: what becomes of each of the service's answers, where they are not encrypted; with ``after_bytes`` the
    connection stalls when that many bytes of answers have passed on it.  ``front``: the front end that refuses some
    requests, where they are not encrypted.  ``address`` and ``listen_port`` are where the proxy listens, by default at
    any port.
    """

    def __init__(self, host: str, port: int, *, address: str = "127.0.0.1", listen_port: int = 0) -> None:
        self.mode: Mode = "pass"
        self.after_bytes: int | None = None
        self.change: Change | None = None
        self.front: Front | None = None
        self.connections = 0
        self.address = address
        self.port = listen_port
        self._forgotten = 0
        self._target = host, port
        self._loop = asyncio.new_event_loop()
        self._listening: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    def set_mode(self, mode: Mode) -> None:
        """Change the mode, and do to the connections that are open what it says.  Returns when that is done."""
        asyncio.run_coroutine_threadsafe(self._set_mode(mode), self._loop).result()

    async def _set_mode(self, mode: Mode) -> None:
        self.mode = mode
        if mode in ("reset", "refuse"):
            self._reset_open()
        if mode == "refuse":
            await self._stop_listening()
        elif self._listening is None:
            await self._listen()

    def calm(self) -> None:
        """Carry everything again, as it is."""
        self.change = self.front = self.after_bytes = None
        self.set_mode("pass")

    def reset_connections(self) -> None:
        """Reset the connections that are open, once; new ones are carried."""
        self._loop.call_soon_threadsafe(self._reset_open)

    def _reset_open(self) -> None:
        for writer in list(self._open):
            _reset(writer)

    def forget_connections(self) -> None:
        """From now on the connections that are open carry nothing, and nobody says so; new ones are carried."""
        self._forgotten = self.connections

    async def _listen(self) -> None:
        self._listening = await asyncio.start_server(
            self._connected, self.address, self.port, limit=CHUNK_BYTES, reuse_address=True
        )
        self.port = self._listening.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.CancelledError):  # asyncio's own callback would log it
            await self._serve(reader, writer, self.connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self._open.add(writer)
        to_service: asyncio.StreamWriter | None = None
        try:
            if self.mode == "reset":
                _reset(writer)
                return
            while self.mode == "blackhole":  # noqa: ASYNC110 - threads set it
                await asyncio.sleep(LOOK_SECONDS)
            from_service, to_service = await asyncio.open_connection(*self._target, limit=CHUNK_BYTES)
            self._open.add(to_service)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._carry(reader, to_service, number, answers_to=writer))
                ways.create_task(self._carry(from_service, writer, number))
        except* OSError:
            pass  # the other side has gone, which ends this one too
        finally:
            for each in filter(None, (writer, to_service)):
                self._open.discard(each)
                each.close()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        number: int,
        *,
        answers_to: asyncio.StreamWriter | None = None,
    ) -> None:
        """Carry what comes to ``writer``.  ``answers_to``: the daemon's side, if these are requests."""
        carried, ends = 0, False
        to_the_service = answers_to is not None
        while chunk := await reader.read(CHUNK_BYTES):
            if answers_to is not None and (front := self.front) is not None and chunk.startswith(REQUEST):
                chunk = await _whole(reader, chunk)
                if (answer := front(chunk)) is not None:
                    answers_to.write(answer)
                    continue
            if not to_the_service and self.change is not None:
                chunk, ends = self.change(await _whole(reader, chunk))
            carried += len(chunk)
            while self._stalls(number, carried, to_the_service=to_the_service):  # noqa: ASYNC110 - threads set it
                await asyncio.sleep(LOOK_SECONDS)
            writer.write(chunk)
            await writer.drain()
            if ends:
                break
        raise ConnectionResetError  # one side's end is the other's: HTTP has no half-closed connections

    def _stalls(self, number: int, carried: int, *, to_the_service: bool) -> bool:
        if self.mode == "blackhole" or number <= self._forgotten:
            return True
        beyond = self.after_bytes is not None and carried > self.after_bytes
        return not to_the_service and (self.mode == "half_open" or beyond)

    @contextlib.contextmanager
    def running(self) -> Iterator[Proxy]:
        thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    async def _end(self) -> None:
        await self._stop_listening()
        own = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not own]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _whole(reader: asyncio.StreamReader, begun: bytes) -> bytes:
    """Return a whole HTTP request or answer, of which these are the first bytes."""
    whole = begun
    while _lacks(whole) and (more := await reader.read(CHUNK_BYTES)):
        whole += more
    return whole


def _lacks(begun: bytes) -> bool:
    head, ended, body = begun.partition(b"\r\n\r\n")
    length = LENGTH.search(head)
    return not ended or (length is not None and len(body) < int(length[1]))


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
