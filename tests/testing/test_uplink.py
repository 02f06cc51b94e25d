"""Bodies arrive at the speed of one shared line, wait with their senders, and not at all at 0."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from producerd.testing.fake_kinesis import FakeServer, serve, serve_in_thread
from producerd.testing.uplink import Uplink
from tests.testing.calls import entry, opened, service, until

overTLS = pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])  # noqa: N816
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: Kinesis_20131202.PutRecords\r\nContent-Length: %d\r\n\r\n"
KERNEL_BYTES = 5_000_000
"""More than asyncio and the kernels of both ends buffer of unread bytes.  Linux lets a sender keep 4 MiB."""


def put_request(entries: int, size: int) -> bytes:
    body = json.dumps({"StreamName": "s", "Records": [entry(data=bytes(size))] * entries}).encode()
    return HEAD % len(body) + body


async def status(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    await reader.readexactly(int(length.partition(b":")[2]))
    return head.partition(b"\r\n")[0]


@contextlib.contextmanager
def connected(server: FakeServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0)) as plain:
        if server.certificate is None:
            yield plain
        else:
            context = ssl.create_default_context(cafile=server.certificate)
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
                yield wrapped


def other_call(server: FakeServer) -> None:
    """A call of the control path, which no uplink holds up."""
    with connected(server) as client:
        client.sendall(b"GET /_fake/counters HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200 OK")


async def other_calls(server: FakeServer, count: int = 50) -> None:
    """The same for a while, for a server on the test's own loop."""
    reader, writer = await opened(server)
    for _ in range(count):
        writer.write(b"GET /_fake/counters HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await status(reader) == b"HTTP/1.1 200 OK"
    writer.transport.abort()


async def test_all_connections_share_one_line() -> None:
    uplink = Uplink(asyncio.get_running_loop())
    uplink.bytes_per_second = 1_000
    assert [uplink.through_at(500, now=10.0) for _ in range(4)] == [10.5, 11.0, 11.5, 12.0]
    assert uplink.through_at(0, now=11.0) == 12.0
    assert uplink.through_at(100, now=20.0) == 20.1


@overTLS
def test_an_endpoint_that_never_reads_accepts_and_leaves_the_body_with_its_sender(tls: bool) -> None:
    kinesis, stream = service()
    request, sent = put_request(10, 900_000), 0
    with serve_in_thread(kinesis, tls=tls) as server, connected(server) as client:
        server.uplink_bytes_per_second = 0
        client.setblocking(False)
        for _ in range(20):
            with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError):
                while sent < len(request):
                    sent += client.send(request[sent : sent + 65_536])
            other_call(server)
        assert (server.in_flight, kinesis.requests) == (1, {})
        assert sent < KERNEL_BYTES
        server.uplink_bytes_per_second = None
        client.settimeout(20.0)
        client.sendall(request[sent:])
        assert client.recv(100).startswith(b"HTTP/1.1 200 OK")
    assert len(stream.entries()) == 10


@overTLS
async def test_a_speed_holds_up_a_body_that_is_on_its_way_until_it_changes(tls: bool) -> None:
    kinesis, stream = service()
    async with asyncio.timeout(20.0), serve(kinesis, tls=tls) as server:
        server.uplink_bytes_per_second = 1.0
        connections = [await opened(server) for _ in range(3)]
        for _, writer in connections:
            writer.write(put_request(1, 100))
        await until(lambda: server.in_flight == 3)
        await other_calls(server)
        assert kinesis.requests == {}
        server.uplink_bytes_per_second = 1e9
        for reader, writer in connections:
            assert await status(reader) == b"HTTP/1.1 200 OK"
            writer.transport.abort()
    assert len(stream.entries()) == 3


@overTLS
async def test_what_comes_slowly_comes_whole(tls: bool) -> None:
    kinesis, stream = service()

    async def client(server: FakeServer) -> None:
        reader, writer = await opened(server)
        for _ in range(2):
            writer.write(put_request(200, 1_000))
            assert await status(reader) == b"HTTP/1.1 200 OK"
        writer.transport.abort()

    async with serve(kinesis, tls=tls) as server:
        server.uplink_bytes_per_second = 20e6
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(client(server))
    assert len(stream.entries()) == 4 * 2 * 200


@overTLS
async def test_clients_that_give_up_unread_leave_nothing_behind(tls: bool, caplog: pytest.LogCaptureFixture) -> None:
    kinesis, stream = service()
    async with asyncio.timeout(20.0), serve(kinesis, tls=tls) as server:
        server.uplink_bytes_per_second = 0
        writers = [(await opened(server))[1] for _ in range(3)]
        for writer in writers:
            writer.write(put_request(10, 900_000))
        await until(lambda: server.in_flight == 3)
        for writer in writers[:2]:
            # Without the option the end of the connection would wait behind the unread bytes.
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        await until(lambda: server.in_flight == server.connections_open == 1)
    assert server.in_flight == server.connections_open == 0
    assert stream.entries() == []
    assert [record for record in caplog.records if record.name.startswith("aiohttp")] == []
    writers[2].transport.abort()
