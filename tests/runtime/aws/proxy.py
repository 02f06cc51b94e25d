"""An HTTP proxy through which tests lead requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest


class Proxy:
    """Takes CONNECT only: leads to one ``port``, whatever is asked for, or refuses."""

    def __init__(self, port: int | None) -> None:
        self.port = port
        self.asked: list[str] = []
        self.authorizations: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b" ", 2)[1].decode())
        self.authorizations += re.findall(r"(?i)proxy-authorization: (.*)\r", head.decode())
        if self.port is None:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        back, forth = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        async with asyncio.TaskGroup() as group:
            group.create_task(_carry(reader, forth))
            group.create_task(_carry(back, writer))


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
    except ConnectionResetError:
        pass
    writer.transport.abort()


@asynccontextmanager
async def proxy(monkeypatch: pytest.MonkeyPatch, port: int | None = None) -> AsyncIterator[Proxy]:
    between = Proxy(port)
    server = await asyncio.start_server(between.serve, "127.0.0.1", 0)
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server:
        yield between
