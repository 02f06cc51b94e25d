"""An HTTP proxy through which tests lead requests."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest


class Proxy:
    """Leads to one ``port``, whatever is asked for, or refuses with ``refusal`` if the port is None.

    ``says`` is what it answers to CONNECT.  ``ends_by`` is what it does to the way back when the service closes.
    """

    def __init__(self, port: int | None) -> None:
        self.port = port
        self.refusal = b"502 Bad Gateway"
        self.says = b"HTTP/1.1 200 Connection established\r\n\r\n"
        self.ends_by: Callable[[asyncio.StreamWriter], object] = asyncio.StreamWriter.close
        self.asked: list[str] = []
        self.authorizations: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except* (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await self._next_head(reader)
        if self.port is None:
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % self.refusal)
            writer.close()
            return
        back, forth = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            await self._lead(head, reader, writer, back, forth)
        finally:
            forth.transport.abort()

    async def _lead(
        self,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back: asyncio.StreamReader,
        forth: asyncio.StreamWriter,
    ) -> None:
        async with asyncio.TaskGroup() as group:
            if head.startswith(b"CONNECT "):
                writer.write(self.says)
                group.create_task(_carry(reader, forth))
                group.create_task(_carry(back, writer, self.ends_by))
                return
            group.create_task(_carry(back, writer))
            while not reader.at_eof():
                _, url, rest = head.split(b" ", 2)
                length = re.search(rb"(?i)content-length: (\d+)", head)
                assert length is not None
                forth.write(b"POST %b %b" % (urlsplit(url).path, rest) + await reader.readexactly(int(length[1])))
                head = await self._next_head(reader)

    async def _next_head(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b" ", 2)[1].decode())
        self.authorizations += re.findall(r"(?i)proxy-authorization: (.*)\r", head.decode())
        return head


async def _carry(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    ends_by: Callable[[asyncio.StreamWriter], object] = asyncio.StreamWriter.close,
) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
    except ConnectionResetError:
        pass
    ends_by(writer)


@asynccontextmanager
async def proxy(
    monkeypatch: pytest.MonkeyPatch,
    port: int | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    login: str = "user:secret@",
    of: str = "HTTPS_PROXY",
) -> AsyncIterator[Proxy]:
    """Serve a proxy, with TLS if a context is given, and have the environment's variable ``of`` name it."""
    between = Proxy(port)
    server = await asyncio.start_server(between.serve, "127.0.0.1", 0, ssl=tls)
    scheme, here = "https" if tls else "http", server.sockets[0].getsockname()[1]
    monkeypatch.setenv(of, f"{scheme}://{login}127.0.0.1:{here}")
    async with server:
        yield between
