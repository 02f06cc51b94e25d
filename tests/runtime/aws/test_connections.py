"""Whatever a peer does, a request gets its own answer or fails, and leaves nothing behind on a connection."""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
import os
import re
import socket
import ssl
import sys
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest.mock import MagicMock

import botocore.exceptions as boto_errors
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from producerd.core.sending.answers import Answer, RequestFailed
from producerd.errors import ConfigurationError
from producerd.runtime.aws import connection as module
from producerd.runtime.aws import connections as opening
from producerd.runtime.aws.connection import MAX_HEAD_BYTES, HttpAnswer, HttpConnection
from producerd.runtime.aws.connections import MAX_ANSWER_BYTES, Connections, Sending
from producerd.testing.certificate import self_signed
from tests.daemon import PATIENCE_SECONDS, START_SECONDS, until_on_loop
from tests.runtime.aws.kernel import full
from tests.runtime.aws.mute import sockets_to
from tests.runtime.aws.reaching import FLIGHTS, STORED, reached, request_of
from tests.soak.census import malloc_bytes

MIB: Final = 1 << 20
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Peer:
    """One connection, as its server sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def asked(self) -> tuple[str, bytes]:
        """Head and body of the next request."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"(?i)content-length: (\d+)", head)
        assert length is not None
        return head, await self.reader.readexactly(int(length[1]))

    async def closes(self, *, politely: bool) -> None:
        if politely:
            self.writer.close()
            await self.writer.wait_closed()
        else:
            linger = b"\x01\0\0\0\0\0\0\0"
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    async def says(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            await asyncio.sleep(0)  # so that it is read by itself

    async def echoes(self) -> None:
        """Every request, until it is gone."""
        while True:
            _, body = await self.asked()
            await self.says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


Script = Callable[[Peer], Awaitable[None]]


class Peers(list[Peer]):
    """Those who have connected to a port."""

    port: int


@asynccontextmanager
async def served(
    script: Script, url: str = "http://127.0.0.1:{port}/", host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Connections, Peers]]:
    """Connections to a server that follows the script with each peer, and then aborts it."""
    peers = Peers()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(peer := Peer(reader, writer))
        with suppress(asyncio.CancelledError):
            try:
                await script(peer)
                peer.gone.set_result("left")
            except ConnectionError:
                peer.gone.set_result("reset")
            except asyncio.IncompleteReadError:
                peer.gone.set_result("closed")
        writer.transport.abort()

    async with await asyncio.start_server(serve, host, 0, ssl=tls) as server, asyncio.timeout(START_SECONDS):
        peers.port = server.sockets[0].getsockname()[1]
        made = Connections(url.format(port=peers.port), verifying.get(tls, TRUSTS_NOBODY), PATIENCE_SECONDS)
        yield made, peers
        made.close()
        await until_on_loop(lambda: all(peer.gone.done() for peer in peers))


TRUSTS_NOBODY: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
verifying: Final[dict[ssl.SSLContext | None, ssl.SSLContext]] = {}
"""What clients trust a server's certificate by."""


async def put(to: Connections, body: bytes = b"{}", sending: Sending | None = None) -> HttpAnswer:
    headers = {"X-Amz-Target": "T", "Content-Length": str(len(body))}
    return await to.post(headers, sending or Sending(body))


@pytest.fixture(scope="session")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ssl.SSLContext]:
    """A server's context whose certificate is of that host, localhost and 127.0.0.1."""

    @cache
    def make(host: str) -> ssl.SSLContext:
        served_with, certificate = self_signed(tmp_path_factory.mktemp("certified"), host)
        verifying[served_with] = ssl.create_default_context(cafile=str(certificate))
        return served_with

    return make


@pytest.fixture(params=["http", "https"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def to(scheme: str, certified: Callable[[str], ssl.SSLContext]) -> Callable[[Script], Any]:
    """`served`, with TLS and without."""

    def serve(script: Script) -> Any:
        tls = certified("127.0.0.1") if scheme == "https" else None
        return served(script, f"{scheme}://127.0.0.1:{{port}}/", tls=tls)

    return serve


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """asyncio has nothing to complain of, such as exceptions that nobody retrieved."""
    yield
    gc.collect(1)
    assert noise(caplog) == []


def noise(caplog: pytest.LogCaptureFixture) -> list[str]:
    loud = [each.getMessage() for each in caplog.get_records("call") if each.levelno >= logging.WARNING]
    return [told for told in loud if not told.startswith(NOT_OURS)]


NOT_OURS: Final = ("Executing ", "Error on transport creation for incoming connection")
"""A busy machine; and the server's own, where a client breaks off its handshake."""


def lead(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Every other host's addresses are these ports of 127.0.0.1."""

    async def find(host: Any, *more: Any, **options: Any) -> Any:
        if host == "127.0.0.1":  # uvloop also asks for the addresses of an address
            return await real(host, *more, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]

    loop = asyncio.get_running_loop()
    real = loop.getaddrinfo
    monkeypatch.setattr(loop, "getaddrinfo", find)


# ---- how an answer comes

CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWERS: Final[dict[str, tuple[bytes, ...]]] = {
    "at once": (HEAD + b"{}",),
    "in single bytes": tuple(bytes([byte]) for byte in HEAD + b"{}"),
    "in chunks": (CHUNKED, b"1\r\n{\r\n", b"1;ext=1\r\n}\r\n0\r\n\r\n"),
    "with trailers": (CHUNKED + b"2\r\n{}\r\n0\r\nX-Sum: 1\r\n", b"X-More: 2\r\n\r\n"),
    "in chunks of single bytes": tuple(bytes([byte]) for byte in CHUNKED + b"1\r\n{\r\n1\r\n}\r\n0\r\nX: 1\r\n\r\n"),
    "after 100": (b"HTTP/1.1 100 Continue\r\n\r\n", HEAD + b"{}"),
    "after 103 and 102 at once": (b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 102 Wait\r\n\r\n" + HEAD + b"{}",),
    "gzip unasked": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: GZIP\r\nContent-Length: %d\r\n\r\n" % len(gzip.compress(b"{}", mtime=0)),
        gzip.compress(b"{}", mtime=0),
    ),
}
CLOSE: Final = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
OLD: Final = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"
OLD_KEPT: Final = b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize("how", ANSWERS)
async def test_an_answer_is_read_however_it_comes_and_its_connection_serves_again(
    how: str, to: Callable[[Script], Any]
) -> None:
    async def say(peer: Peer) -> None:
        while True:
            await peer.asked()
            await peer.says(*ANSWERS[how])

    async with to(say) as (connections, peers):
        for _ in range(3):
            answer = await put(connections)
            assert (answer.status, answer.body) == (200, b"{}")
        assert len(peers) == 1


@pytest.mark.parametrize("answer", [CLOSE, OLD, OLD_KEPT], ids=["Connection: close", "HTTP/1.0", "HTTP/1.0, kept"])
async def test_a_connection_serves_again_only_where_its_peer_says_so(answer: bytes) -> None:
    async def say(peer: Peer) -> None:
        while True:  # it would take another one
            await peer.asked()
            await peer.says(answer)

    async with served(say) as (connections, peers):
        for _ in range(3):
            assert (await put(connections)).body == b"{}"
        assert len(peers) == (1 if answer is OLD_KEPT else 3)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_an_answer_without_a_length_ends_with_its_connection(version: str, to: Callable[[Script], Any]) -> None:
    """Else such a service stores the same records again and again, and none is ever acknowledged."""

    async def say(peer: Peer) -> None:
        await peer.asked()
        await peer.says(b"HTTP/%b 200 OK\r\n\r\n" % version.encode(), b"{", b"}")
        await peer.closes(politely=True)

    async with to(say) as (connections, _):
        for _ in range(2):
            assert (await put(connections)).body == b"{}"


async def test_a_reset_is_the_end_of_no_answer() -> None:
    async def say(peer: Peer) -> None:
        await peer.asked()
        await peer.closes(politely=False)
        await peer.says(b"HTTP/1.1 200 OK\r\n\r\n{")
        await asyncio.sleep(0.01)  # it has read that

    async with served(say) as (connections, _):
        with pytest.raises(boto_errors.ConnectionClosedError):
            await put(connections)


async def test_the_end_of_tls_alone_is_an_end() -> None:
    """Within a proxy's TLS nothing else may come: the outer one stays open."""
    connection, transport = HttpConnection(), MagicMock()
    transport.is_closing = lambda: transport.abort.called
    connection.connection_made(transport)
    asked = asyncio.create_task(connection.ask(b"", b"", 10))
    await asyncio.sleep(0)
    connection.eof_received()
    with pytest.raises(ConnectionResetError):
        await asked
    assert not connection.is_open
    assert transport.abort.called


CUT_OFF: Final = {
    "nothing": b"",
    "in its status": b"HTTP/1.1 20",
    "in its headers": b"HTTP/1.1 200 OK\r\nContent-",
    "in its body": HEAD + b"{",
    "in its chunks": CHUNKED + b"2\r\n{}\r\n",
    "in its trailers": CHUNKED + b"2\r\n{}\r\n0\r\nX: 1\r\n",
    "after an interim one": b"HTTP/1.1 100 Continue\r\n\r\n",
}


@pytest.mark.parametrize("cut", CUT_OFF)
@pytest.mark.parametrize("politely", [True, False], ids=["closed", "reset"])
async def test_an_answer_that_is_cut_off_is_none(cut: str, politely: bool) -> None:
    async def say(peer: Peer) -> None:
        await peer.asked()
        await peer.says(CUT_OFF[cut])
        await peer.closes(politely=politely)

    async with served(say) as (connections, peers):
        sending = Sending(b"{}")
        with pytest.raises(boto_errors.ConnectionClosedError):
            await put(connections, sending=sending)
        assert sending.body_written
        assert connections.idle == 0
        assert len(peers) == 1, "it was not sent twice"


NOT_HTTP: Final = {
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x46",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length and chunks": CHUNKED.replace(b"\r\nT", b"\r\nContent-Length: 2\r\nT") + b"2\r\n{}\r\n0\r\n\r\n",
    "a length that is none": b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}",
    "a chunk that is none": CHUNKED + b"zz\r\n{}\r\n",
    "a request": b"POST / HTTP/1.1\r\nHost: you\r\n\r\n",
}


@pytest.mark.parametrize("said", NOT_HTTP)
async def test_what_is_not_http_is_no_answer(said: str) -> None:
    async def say(peer: Peer) -> None:
        await peer.asked()
        await peer.says(NOT_HTTP[said])
        await peer.reader.read()

    async with served(say) as (connections, _):
        with pytest.raises(boto_errors.ConnectionClosedError):
            await put(connections)
        assert connections.idle == 0


async def test_who_switches_protocols_has_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def say(peer: Peer) -> None:
        await peer.asked()
        await peer.says(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n\0\0")
        await peer.reader.read()

    async with served(say) as (connections, _):
        with pytest.raises(boto_errors.ConnectionClosedError):
            await put(connections)
    told = noise(caplog)
    caplog.clear()
    assert told == []


ZIPPED: Final = gzip.compress(STORED)


@pytest.mark.parametrize(
    ("coding", "body", "is_read"),
    [
        ("gzip", ZIPPED, True),
        ("x-gzip", ZIPPED, True),
        ("deflate", zlib.compress(STORED), True),
        ("gzip", gzip.compress(STORED.ljust(len(STORED) + 1)), False),
        ("gzip", ZIPPED[:-9], False),
        ("gzip", ZIPPED[:-8] + b"\0" * 8, False),
        ("gzip", STORED, False),
    ],
    ids=["gzip", "x-gzip", "deflate", "too large", "cut off", "of another sum", "not compressed"],
)
def test_what_a_proxy_has_compressed_is_decoded_or_counts_as_empty(coding: str, body: bytes, is_read: bool) -> None:
    assert module.decoded(body, coding, len(STORED)) == (STORED if is_read else b"")
    assert module.decoded(body, "br", len(STORED)) == body, "no reader accepts it"


# ---- too much


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("chunked", [True, False])
async def test_a_larger_answer_than_any_of_kinesis_counts_as_empty_and_is_read_no_further(
    status: int, chunked: bool
) -> None:
    length = MAX_ANSWER_BYTES + 1
    coding = b"Transfer-Encoding: chunked\r\n\r\n%x" % length if chunked else b"Content-Length: %d\r\n" % length

    async def say(peer: Peer) -> None:
        await peer.asked()
        await peer.says(b"HTTP/1.1 %d X\r\n%b\r\n" % (status, coding))
        await peer.says(*[b" " * MIB] * (length // MIB * chunked), b" ")  # its length says enough
        await peer.reader.read()

    async with served(say) as (connections, peers):
        answer = await put(connections)
        assert (answer.status, answer.body) == (status, b"")
        assert connections.idle == 0
        assert await peers[0].gone == "reset"


ENDLESS: Final = {
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-Pad: %b\r\n" % (b"a" * 1000)),
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"X-Pad: %b\r\n" % (b"a" * 1000)),
    "a header": (b"HTTP/1.1 200 OK\r\nX-Pad: ", b"a" * 1000),
    "the name of a header": (b"HTTP/1.1 200 OK\r\nX-", b"a" * 1000),
    "a trailer": (CHUNKED + b"2\r\n{}\r\n0\r\nX-Pad: ", b"a" * 1000),
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_headers_without_an_end_are_given_up(what: str) -> None:
    begin, part = ENDLESS[what]
    written = 0

    async def say(peer: Peer) -> None:
        nonlocal written
        await peer.asked()
        await peer.says(begin)
        while written < 12 * MIB:
            await peer.says(part * 100)
            written += len(part) * 100

    async with served(say) as (connections, peers):
        with pytest.raises(boto_errors.ConnectionClosedError):
            await put(connections)
        assert await peers[0].gone == "reset"
    assert written < MAX_HEAD_BYTES + 10 * MIB, "what buffers of sockets hold"


# ---- whose answer it is


async def test_what_comes_unasked_is_no_answer_to_the_next_request(to: Callable[[Script], Any]) -> None:
    answered = asyncio.Event()

    async def say(peer: Peer) -> None:
        _, body = await peer.asked()
        await peer.says(HEAD + body)
        if body == b"01":
            await answered.wait()
            await peer.says(HEAD + b"no")
        await peer.reader.read()

    async with to(say) as (connections, peers):
        assert (await put(connections, b"01")).body == b"01"
        answered.set()
        await until_on_loop(lambda: connections.idle == 0, 1)
        assert await peers[0].gone == "reset"
        assert (await put(connections, b"02")).body == b"02"


@pytest.mark.parametrize("second", [HEAD + b"no", b"HTTP/1.1 200 OK\r\nX-Half: "], ids=["whole", "in part"])
async def test_a_second_answer_to_one_request_is_no_answer_to_the_next(
    second: bytes, to: Callable[[Script], Any]
) -> None:
    async def say(peer: Peer) -> None:
        while True:
            _, body = await peer.asked()
            await peer.says(HEAD + body + second)

    async with to(say) as (connections, peers):
        for number in range(3):
            assert (await put(connections, b"%02d" % number)).body == b"%02d" % number
        assert len(peers) == 3


async def test_an_answer_that_comes_after_its_request_was_given_up_is_nobodys(to: Callable[[Script], Any]) -> None:
    given_up = asyncio.Event()

    async def say(peer: Peer) -> None:
        while True:
            _, body = await peer.asked()
            if body == b"01":
                await given_up.wait()
            await peer.says(HEAD + body)

    async with to(say) as (connections, peers):
        assert (await put(connections, b"00")).body == b"00"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await put(connections, b"01")
        given_up.set()
        assert (await put(connections, b"02")).body == b"02"
        assert await peers[0].gone == "reset"
        assert len(peers) == 2


async def test_forty_requests_at_the_same_time_have_each_their_own_answer(to: Callable[[Script], Any]) -> None:
    arrived, all_are_there = 0, asyncio.Event()

    async def say(peer: Peer) -> None:
        nonlocal arrived
        while True:
            _, body = await peer.asked()
            arrived += 1
            if arrived == 40:
                all_are_there.set()
            await all_are_there.wait()
            await peer.says(HEAD + body)

    async with to(say) as (connections, peers):
        for _ in range(2):
            arrived = 0
            all_are_there.clear()
            async with asyncio.TaskGroup() as group:
                asked = {b"%02d" % n: group.create_task(put(connections, b"%02d" % n)) for n in range(40)}
            for body, answer in asked.items():
                assert answer.result().body == body
        assert len(peers) == 40, "the connections of the first round have served again"


async def test_cancelled_at_whatever_moment_it_leaves_nothing_that_another_could_take(
    to: Callable[[Script], Any], scheme: str
) -> None:
    """While it finds the host, connects, shakes hands, writes, waits: at every turn of the loop."""
    async with to(Peer.echoes) as (connections, peers):
        turns = 0
        while True:
            asked = asyncio.create_task(put(connections, b"given up %d" % turns))
            for _ in range(turns):
                await asyncio.sleep(0)
            asked.cancel()
            with suppress(asyncio.CancelledError):
                assert (await asked).body == b"given up %d" % turns
                break
            connections.close()  # each begins again
            turns += 1
        assert turns > 3
        assert (await put(connections, b"the next")).body == b"the next"
        await until_on_loop(lambda: sum(not peer.gone.done() for peer in peers) <= 1, 2)


# ---- connections that nobody uses


@pytest.mark.parametrize("politely", [True, False], ids=["closed", "reset"])
async def test_a_connection_that_its_peer_closed_between_requests_is_not_used(
    politely: bool, to: Callable[[Script], Any]
) -> None:
    async def say(peer: Peer) -> None:
        _, body = await peer.asked()
        await peer.says(HEAD + body)
        await peer.closes(politely=politely)

    async with to(say) as (connections, peers):
        for number in range(3):
            assert (await put(connections, b"%02d" % number)).body == b"%02d" % number
            await until_on_loop(lambda: connections.idle == 0, 1)
        assert len(peers) == 3


async def test_a_connection_that_no_request_uses_for_long_is_closed(
    monkeypatch: pytest.MonkeyPatch, to: Callable[[Script], Any]
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.02)
    async with to(Peer.echoes) as (connections, peers):
        await put(connections)
        await until_on_loop(lambda: peers[0].gone.done(), 1)
        assert connections.idle == 0
        await put(connections)
        assert len(peers) == 2


async def test_a_request_that_takes_longer_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.1)

    async def say(peer: Peer) -> None:
        while True:
            _, body = await peer.asked()
            if body == b"01":
                await asyncio.sleep(0.2)
            await peer.says(HEAD + body)

    async with served(say) as (connections, peers):
        for body in (b"00", b"01"):
            assert (await put(connections, body)).body == body
        assert len(peers) == 1


@linux_only
async def test_when_it_closes_a_request_ends_and_its_connection_with_it() -> None:
    go_on = asyncio.Event()

    async def say(peer: Peer) -> None:
        _, body = await peer.asked()
        await go_on.wait()
        await peer.says(HEAD + body)
        await peer.reader.read()

    async with served(say) as (connections, peers):
        asked = asyncio.create_task(put(connections))
        await until_on_loop(lambda: len(peers) == 1, 2)
        connections.close()
        go_on.set()
        assert (await asked).body == b"{}"
        assert await peers[0].gone == "reset"


@linux_only
async def test_when_it_closes_no_socket_is_left(to: Callable[[Script], Any]) -> None:
    async with to(Peer.echoes) as (connections, peers):
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(put(connections))
        assert sockets_to(peers.port) == 5
        connections.close()
        # The socket is gone before the transport says that it is.
        await until_on_loop(lambda: sockets_to(peers.port) == 0 and connections.idle == 0, 5)
        assert {await peer.gone for peer in peers} <= {"reset", "closed"}


async def test_who_answers_before_the_body_was_read_is_not_asked_again(to: Callable[[Script], Any]) -> None:
    """What is left of the body would be taken for the next request, and its answer for that one's."""
    answered = asyncio.Event()

    async def say(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.says(b"HTTP/1.1 413 Too large\r\nContent-Length: 0\r\n\r\n")
        await answered.wait()

    async with to(say) as (connections, _):
        try:
            assert (await put(connections, bytes(16 * MIB))).status == 413
            assert connections.idle == 0
        finally:
            answered.set()


# ---- where it goes


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
async def test_an_address_of_ipv6() -> None:
    heads: list[str] = []

    async def say(peer: Peer) -> None:
        heads.append((await peer.asked())[0])
        await peer.says(HEAD + b"{}")

    async with served(say, "http://[::1]:{port}/", host="::1") as (connections, peers):
        assert (await put(connections)).body == b"{}"
        assert f"Host: [::1]:{peers.port}\r\n" in heads[0]


@pytest.mark.parametrize("dead", ["refuses", "says nothing"])
async def test_a_host_whose_first_address_is_dead_is_reached_by_its_second(
    dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "EYEBALLS_SECONDS", 0.05)
    with socket.socket() as bound, full() as crowded:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        first = crowded if dead == "says nothing" else bound.getsockname()[1]
        async with served(Peer.echoes, "http://kinesis.test:{port}/") as (connections, peers):
            lead(monkeypatch, first, peers.port)
            assert (await put(connections, b"there")).body == b"there"
            assert len(peers) == 1


HOSTS: Final = [
    "http://kinesis.test/",
    "http://kinesis.test:80/",
    "http://kinesis.test:443/",
    "https://kinesis.test:443/",
    "https://kinesis.test:80/",
    "http://kinesis.test:8000/some/way",
    "http://user:word@kinesis.test/",
    "http://Kinesis.TEST/",
    "http://[::1]/",
    "http://[::1]:80/",
    "http://[::1]:8000/",
]


@pytest.mark.parametrize("url", HOSTS)
def test_the_host_that_it_asks_is_the_one_that_is_signed(url: str) -> None:
    signer = SigV4Auth(ReadOnlyCredentials("k", "s", None), "kinesis", "us-east-1")
    assert opening.host_of(url) == signer.headers_to_sign(AWSRequest("POST", url, {}, b"{}"))["host"]


@pytest.mark.parametrize(
    ("host", "asked"),
    [("kinesis.test", "kinesis.test"), ("another.test", "kinesis.test"), ("kinesis.test", "kinesis.test.")],
    ids=["its own", "another's", "with the dot of a full name"],
)
async def test_a_certificate_must_be_of_the_host_that_is_asked(
    host: str, asked: str, monkeypatch: pytest.MonkeyPatch, certified: Callable[[str], ssl.SSLContext]
) -> None:
    names: list[str | None] = []
    tls = certified(host)
    tls.set_servername_callback(lambda _, name, __: names.append(name))
    async with served(Peer.echoes, f"https://{asked}:{{port}}/", tls=tls) as (connections, peers):
        lead(monkeypatch, peers.port)
        sending = Sending(b"{}")
        if host == "kinesis.test":
            assert (await put(connections, sending=sending)).body == b"{}"
        else:
            with pytest.raises(boto_errors.SSLError):
                await put(connections, sending=sending)
            assert not sending.body_written
            assert peers == [], "its handshake did not end"
        assert names == ["kinesis.test"]


@linux_only
def test_a_socket_resets_when_it_is_closed_and_gives_up_a_peer_that_says_nothing_for_half_a_minute() -> None:
    with (
        socket.socket() as plain,
        opening.make_socket((socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))) as made,
    ):
        assert not made.getblocking()
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == b"\x01\0\0\0\0\0\0\0"
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        buffers = [one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for one in (plain, made)]
        assert buffers[0] < buffers[1]


@pytest.mark.parametrize("url", ["ftp://kinesis.test/", "http://kinesis.test:99999/"])
def test_what_is_no_url_of_a_service_cannot_be_reached(url: str) -> None:
    with pytest.raises(ConfigurationError):
        Connections(url, None, 1.0)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\0", "\r\nContent-Length: 0\r\n\r\nPOST / HTTP/1.1"])
async def test_a_header_that_would_end_its_line_is_not_sent(end: str) -> None:
    """A token with a line break at its end would end the headers, and its request would be two."""
    async with served(Peer.echoes) as (connections, peers):
        sending = Sending(b"{}")
        with pytest.raises(ConfigurationError) as caught:
            await connections.post({"X-Amz-Security-Token": f"secret{end}", "Content-Length": "2"}, sending)
        assert not sending.body_written
        assert "secret" not in str(caught.value)
        assert peers == []


# ---- what stays in memory


def kept() -> int:
    """How many requests have not gone, for whatever reason."""
    return sum(type(each) is Sending and len(each.body) > 1000 for each in gc.get_objects())


@pytest.mark.usefixtures("bare_environment")
@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_request_that_has_ended_waits_for_no_garbage_collector(is_answered: bool) -> None:
    """In an outage they would be what fills the memory."""

    async def say(peer: Peer) -> None:
        await peer.asked()
        while is_answered:
            await peer.says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(STORED), STORED))
            await peer.asked()

    async with served(say) as (_, peers), reached(f"http://127.0.0.1:{peers.port}") as (client, _):
        gc.collect()
        before = kept()
        gc.disable()
        try:
            for _ in range(30):
                asked = client.put_records(FLIGHTS, request_of(os.urandom(10_000)), 5)
                outcome = await asyncio.create_task(asked)
                assert isinstance(outcome, Answer if is_answered else RequestFailed)
            assert kept() - before <= 2
        finally:
            gc.enable()
        assert len(peers) == (1 if is_answered else 30)


async def test_a_connection_that_waits_keeps_no_buffer_for_its_largest_request(to: Callable[[Script], Any]) -> None:
    async def say(peer: Peer) -> None:
        while True:
            await peer.asked()
            await peer.says(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with to(say) as (connections, _):
        await put(connections)
        before = malloc_bytes()
        await put(connections, bytes(16 * MIB))
        assert connections.idle == 1
        assert malloc_bytes() - before < 4 * MIB


async def test_a_connection_that_has_ended_waits_for_no_garbage_collector(to: Callable[[Script], Any]) -> None:
    """Each had 0.4 MB of buffers of TLS, and a collection of old objects may be hours away."""

    async def say(peer: Peer) -> None:
        await peer.asked()
        await peer.says(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    async with to(say) as (connections, _):
        gc.collect()
        gc.disable()
        try:
            await put(connections)
            await asyncio.sleep(0.05)
            assert not [each for each in gc.get_objects() if isinstance(each, HttpConnection)]
        finally:
            gc.enable()


async def test_a_connection_that_waits_keeps_no_answer() -> None:
    async def say(peer: Peer) -> None:
        await peer.asked()
        await peer.says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (4 * MIB), b" " * 4 * MIB)
        await peer.reader.read()

    async with served(say) as (connections, _):
        tracemalloc.start()
        try:
            assert len((await put(connections)).body) == 4 * MIB
            await asyncio.sleep(0.01)
            of_answers = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, module.__file__)])
            assert sum(each.size for each in of_answers.statistics("lineno")) < MIB
        finally:
            tracemalloc.stop()
