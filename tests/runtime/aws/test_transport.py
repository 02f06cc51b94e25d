"""A request that is given up frees its connection at once, and may be stored only if it was written in part."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from producerd.core.failures import CREDENTIALS_AWAITED
from producerd.core.sending.answers import NOT_KINESIS, RequestFailed
from producerd.errors import Code
from producerd.runtime.aws import transport
from producerd.runtime.aws.kinesis import AioKinesis, most_answer_bytes
from tests.daemon import until_on_loop
from tests.runtime.aws.kernel import full
from tests.runtime.aws.mute import mute, sockets_to
from tests.runtime.aws.reaching import FLIGHTS, STORED, fails, reached, reaching, request_of, stores
from tests.runtime.recording import recording

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
@linux_only
@pytest.mark.parametrize(
    ("scheme", "peer"), [("http", full), ("https", mute)], ids=["it is not accepted", "its handshake never ends"]
)
async def test_a_time_out_before_a_connection_is_made_stored_nothing_and_leaves_no_socket(
    scheme: str, peer: Callable[[], AbstractContextManager[int]]
) -> None:
    with peer() as port:
        before = sockets_to(port)
        async with reaching(f"{scheme}://127.0.0.1:{port}", connect_timeout_seconds=5.0) as client:
            failed = await put(client, 0.3)
            assert (failed.maybe_stored, failed.timed_out) == (False, False)
            await until_on_loop(lambda: sockets_to(port) == before, 2)


async def test_a_time_out_of_the_connection_itself_stored_nothing() -> None:
    with full() as port:
        async with reaching(f"http://127.0.0.1:{port}", connect_timeout_seconds=0.2) as client:
            failed = await put(client, 5)
    assert (failed.maybe_stored, failed.timed_out) == (False, False)
    assert "Connect timeout" in failed.message


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
    headers = {"x-amzn-RequestId": "d3f1"} if request_id else {}
    async with recording(body, status, headers) as (url, _), reaching(url) as client:
        failed = await fails(client)
    assert (failed.maybe_stored, failed.timed_out) == (maybe_stored, False)


@pytest.mark.parametrize("more", [0, 1])
async def test_an_answer_is_read_if_it_is_as_large_as_may_be_and_no_larger(more: int) -> None:
    """What is read of an answer grows with the number of entries, so that slow and large answers fill no memory."""
    answer = STORED.ljust(most_answer_bytes(request_of().entries) + more)
    async with recording(answer) as (url, _), reaching(url) as client:
        if more:
            failed = await fails(client)
            assert (failed.code, failed.maybe_stored, failed.timed_out) == (NOT_KINESIS, True, False)
        else:
            await stores(client)


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
    async with recording(b"", status, {"Location": "/elsewhere"}) as (url, requests), reaching(url) as client:
        failed = await fails(client)
    assert f"a redirect (status {status}), which is not followed" in failed.message
    assert failed.maybe_stored
    assert len(requests) == 1
