"""A request that is given up frees its connection at once, and may be stored only if it was written in part."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from producerd.core.failures import CREDENTIALS_AWAITED
from producerd.core.sending.answers import NOT_KINESIS, RequestFailed
from producerd.errors import Code
from producerd.runtime.aws import transport
from producerd.runtime.aws.connections import MAX_ANSWER_BYTES
from producerd.runtime.aws.kinesis import AioKinesis, most_answer_bytes
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import serve
from tests.daemon import until_on_loop
from tests.runtime.aws.kernel import full
from tests.runtime.aws.mute import mute, sockets_to
from tests.runtime.aws.reaching import FLIGHTS, STORED, fails, reached, reaching, request_of, stores

MIB = 1 << 20
IN_FLIGHT = 8
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


async def put(client: AioKinesis, seconds: float, size: int = 10) -> RequestFailed:
    failed = await client.put_records(FLIGHTS, request_of(os.urandom(size)), seconds)
    assert isinstance(failed, RequestFailed)
    assert failed.code in (Code.UNREACHABLE, CREDENTIALS_AWAITED)  # the latter on a busy machine
    return failed


# ---- whether anything may have been stored


@pytest.mark.promise("time-out-before-connection")
async def test_a_time_out_before_a_connection_is_made_stored_nothing() -> None:
    with full() as port:
        async with reaching(f"http://127.0.0.1:{port}", connect_timeout_seconds=5.0) as client:
            failed = await put(client, 0.3)
    assert (failed.maybe_stored, failed.timed_out) == (False, False)


async def test_a_time_out_of_the_connection_itself_stored_nothing() -> None:
    with full() as port:
        async with reaching(f"http://127.0.0.1:{port}", connect_timeout_seconds=0.2) as client:
            failed = await put(client, 5)
    assert (failed.maybe_stored, failed.timed_out) == (False, False)
    assert "Connect timeout" in failed.message


@pytest.mark.promise("time-out-before-connection")
@linux_only
async def test_a_handshake_that_never_ends_stored_nothing_and_leaves_no_socket() -> None:
    with mute() as port:
        async with reaching(f"https://127.0.0.1:{port}", connect_timeout_seconds=5.0) as client:
            failed = await put(client, 0.3)
            assert (failed.maybe_stored, failed.timed_out) == (False, False)
            await until_on_loop(lambda: sockets_to(port) == 0, 2)


async def test_credentials_that_do_not_come_stored_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with mute() as port:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{port}/container")
        async with reaching("http://127.0.0.1:1") as client:
            failed = await client.put_records(FLIGHTS, request_of(), 0.3)
    assert isinstance(failed, RequestFailed)
    assert (failed.code, failed.maybe_stored, failed.timed_out) == (CREDENTIALS_AWAITED, False, False)


@pytest.mark.parametrize("size", [10, 8 * MIB], ids=["fits the buffers", "does not"])
async def test_a_time_out_after_the_first_byte_may_have_stored_it(size: int) -> None:
    with mute() as port:
        async with reaching(f"http://127.0.0.1:{port}") as client:
            failed = await put(client, 1.0, size)
    assert (failed.maybe_stored, failed.timed_out) == (True, True)


# ---- answers


class Answering:
    """A server that answers each request with a head and parts of a body, and notes what became of that."""

    def __init__(self, head: str, body: Iterable[bytes], status: str = "200 OK") -> None:
        self.written = self.connections = self.asked = 0
        self.reset = asyncio.Event()
        self._head = f"HTTP/1.1 {status}\r\nContent-Type: application/x-amz-json-1.1\r\n{head}\r\n\r\n".encode()
        self._body = body

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[AioKinesis]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        async with server, reaching(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
            yield client

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.asked += 1
                length = re.search(rb"(?i)content-length: (\d+)", head)
                assert length is not None
                await reader.readexactly(int(length[1]))
                writer.write(self._head)
                for part in self._body:
                    writer.write(part)
                    self.written += len(part)
                    await writer.drain()
        except (ConnectionResetError, BrokenPipeError):
            self.reset.set()
        except asyncio.IncompleteReadError:
            pass
        writer.transport.abort()


CHUNK = b"10000\r\n%s\r\n" % (b" " * 65_536)


@pytest.mark.parametrize("status", ["200 OK", "500 Broken", "400 Bad Request"])
async def test_an_answer_without_an_end_is_given_up_and_resets_its_connection(status: str) -> None:
    endless = Answering("Transfer-Encoding: chunked", repeat(CHUNK), status)
    async with endless.serving() as client, asyncio.timeout(10):
        put = await fails(client)
        await endless.reset.wait()
        pages = await client.list_shards(FLIGHTS)
    assert isinstance(pages, RequestFailed)
    assert (put.maybe_stored, put.timed_out) == (True, False)
    if status.startswith("2"):
        assert put.code == NOT_KINESIS
        assert pages.message.startswith("an answer that is not Kinesis's")
    buffers = 2 * 8 * MIB  # of both sockets, for each connection
    assert endless.written < 2 * (MAX_ANSWER_BYTES + buffers)
    assert endless.connections == 2


@pytest.mark.promise("refusal-kinesis-itself")
@pytest.mark.parametrize(
    ("status", "request_id", "body", "maybe_stored"),
    [
        (400, True, b'{"__type":"ResourceNotFoundException","message":"no such stream"}', False),
        (400, True, b'{"__type":"com.amazonaws.kinesis#ValidationException","message":"too long"}', False),
        (400, False, b'{"__type":"ResourceNotFoundException","message":"no such stream"}', True),
        (400, True, b'{"__type":"ProxyException","message":"not today"}', True),
        (400, True, b"", True),
        (400, False, b"<html>Bad Request</html>", True),
        (403, False, b"<html>blocked by the firewall</html>", True),
        (407, False, b"", True),
        (413, False, b"<html>Request Entity Too Large</html>", True),
        (400, True, b'{"__type":7}', True),
    ],
)
async def test_only_a_refusal_of_kinesis_itself_says_that_nothing_was_stored(
    status: int, request_id: bool, body: bytes, maybe_stored: bool
) -> None:
    """A proxy may answer after Kinesis has stored; its answer has no error type of Kinesis's, or no request id."""
    head = f"Content-Length: {len(body)}" + ("\r\nx-amzn-RequestId: d3f1" if request_id else "")
    async with Answering(head, [body], f"{status} Refused").serving() as client:
        failed = await fails(client)
    assert (failed.maybe_stored, failed.timed_out) == (maybe_stored, False)


async def test_an_answer_whose_length_is_too_great_is_not_read() -> None:
    """What is read of an answer grows with the number of entries, so that slow and large answers fill no memory."""
    long = Answering(f"Content-Length: {most_answer_bytes(request_of().entries) + 1}", [b" "])
    async with long.serving() as client:
        failed = await fails(client)
    assert (failed.code, failed.maybe_stored, failed.timed_out) == (NOT_KINESIS, True, False)


async def test_an_answer_as_large_as_may_be_is_read_and_its_connection_serves_again() -> None:
    answer = STORED + b" " * (most_answer_bytes(request_of().entries) - len(STORED))
    large = Answering(f"Content-Length: {len(answer)}", [answer])
    async with large.serving() as client:
        for _ in range(3):
            await stores(client)
    assert large.connections == 1


# ---- what is left behind


@linux_only
@pytest.mark.law("Dispatcher")
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_time_outs_against_an_endpoint_that_never_reads_leave_no_sockets(scheme: str) -> None:
    most, request = 0, request_of(os.urandom(MIB))
    with mute() as port:
        async with reached(f"{scheme}://127.0.0.1:{port}") as (client, behind):
            await behind.ready()
            for _ in range(3):
                async with asyncio.TaskGroup() as group:
                    for _ in range(IN_FLIGHT):
                        group.create_task(client.put_records(FLIGHTS, request, 0.25))
                    await asyncio.sleep(0.15)
                    most = max(most, sockets_to(port))
            assert IN_FLIGHT <= most <= IN_FLIGHT + 1
            await until_on_loop(lambda: sockets_to(port) <= 1, 1)


async def test_a_request_given_up_over_tls_resets_a_peer_that_answers_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A polite end of TLS would wait for the peer's own, for 30 s and with all buffers."""
    fake = FakeKinesis()
    fake.create_stream("flights")
    fake.standing.append(Fault("hang"))
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Between client and server, until the request has arrived: then nothing comes back any more."""
        answers, upstream = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        async with asyncio.TaskGroup() as group:
            back = group.create_task(carry_back(answers, writer))
            try:
                while data := await reader.read(65_536):
                    upstream.write(data)
                    if fake.requests["PutRecords"]:
                        back.cancel()
                ended.set_result("closed")
            except ConnectionResetError:
                ended.set_result("reset")
            back.cancel()
        upstream.transport.abort()
        writer.transport.abort()

    async def carry_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not fake.requests["PutRecords"]:
            writer.write(await reader.read(65_536))

    async with serve(fake, tls=True) as server:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(server.certificate))
        between = await asyncio.start_server(carry, "127.0.0.1", 0)
        async with between, reaching(f"https://127.0.0.1:{between.sockets[0].getsockname()[1]}") as kinesis:
            failed = await kinesis.put_records(FLIGHTS, request_of(), 2.0)
            assert isinstance(failed, RequestFailed)
            assert failed.timed_out
            async with asyncio.timeout(3):
                assert await ended == "reset"


@linux_only
async def test_certificates_that_do_not_come_take_one_thread_and_no_request_waits_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their file may lie on a network drive that hangs."""
    os.mkfifo(bundle := tmp_path / "bundle.pem")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    async with reached("https://127.0.0.1:1") as (client, of):
        await of.ready()
        await of.credentials.get_frozen_credentials()
        await until_on_loop(lambda: aside() == 0)
        for _ in range(5):
            failed = await put(client, 0.05)
            assert not failed.maybe_stored
        assert aside() <= 1
        async with asyncio.timeout(10):
            while not is_read(bundle, b"no certificate"):  # so the thread ends, and another one reads for the next
                await client.put_records(FLIGHTS, request_of(), 0.05)
        for _ in range(2):  # the first may still get the error
            await client.put_records(FLIGHTS, request_of(), 0.5)
        await until_on_loop(lambda: aside() == 1)
        await until_on_loop(lambda: is_read(bundle, b"none"))


def aside() -> int:
    """How many threads do what may hang."""
    return sum(thread.name == "producerd-aside" for thread in threading.enumerate())


async def test_certificates_that_have_just_been_read_are_known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that came before the callback of the thread's future looped forever, and the daemon stood still."""

    def read_at_once(work: Callable[[], Any]) -> asyncio.Future[Any]:
        read = asyncio.get_running_loop().create_future()
        read.set_result(work())
        return read

    monkeypatch.setattr(transport, "begin_aside", read_at_once)
    async with reaching("https://127.0.0.1:1") as client:
        await put(client, 5)


def is_read(fifo: Path, data: bytes) -> bool:
    """Write to a FIFO unless nobody reads it: on a busy machine the reader may come late."""
    try:
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    with open(descriptor, "wb") as file:
        file.write(data)
    return True


# ---- where a request goes


@pytest.mark.promise("redirect-followed")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    """Otherwise records and a session's token would go to any host that the redirect names."""
    redirect = Answering("Location: /elsewhere\r\nContent-Length: 0", [], f"{status} Moved")
    async with redirect.serving() as client:
        failed = await fails(client)
    assert f"a redirect (status {status}), which is not followed" in failed.message
    assert failed.maybe_stored
    assert redirect.asked == 1
