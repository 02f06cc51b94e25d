"""Requests go through the proxy that AWS's own tools would use, and one that fails is named, without its login."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from producerd.core.sending.answers import Answer, RequestFailed
from producerd.errors import Code, ConfigurationError
from producerd.runtime.aws.kinesis import AioKinesis
from producerd.testing import FakeKinesis
from producerd.testing.certificate import self_signed
from producerd.testing.fake_kinesis import FakeServer, serve
from tests.daemon import until_on_loop
from tests.runtime.aws.mute import mute, sockets_to
from tests.runtime.aws.proxy import proxy
from tests.runtime.aws.reaching import FLIGHTS, STORED, fails, reached, reaching, request_of, stores


@asynccontextmanager
async def serving(fake: FakeKinesis, monkeypatch: pytest.MonkeyPatch, *, tls: bool = True) -> AsyncIterator[FakeServer]:
    """Serve the fake, and trust its certificate."""
    async with serve(fake, tls=tls) as server:
        if tls:
            monkeypatch.setenv("AWS_CA_BUNDLE", str(server.certificate))
        yield server


def port_of(server: FakeServer) -> int:
    return int(server.url.rpartition(":")[2])


async def stored(client: AioKinesis, times: int = 1) -> None:
    for _ in range(times):
        await stores(client)


async def failure(client: AioKinesis) -> RequestFailed:
    failed = await fails(client)
    assert (failed.code, failed.maybe_stored) == (Code.UNREACHABLE, False)
    assert "secret" not in failed.message
    assert "proxy" in failed.message
    return failed


async def test_each_connection_has_its_tunnel_and_a_proxy_that_refuses_is_named(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        serving(kinesis, monkeypatch) as server,
        proxy(monkeypatch, port_of(server)) as between,
        reaching("https://localhost:1") as client,
    ):
        await asyncio.gather(stored(client, 3), stored(client, 3))
        assert isinstance(await client.list_shards(FLIGHTS), list)
        assert between.asked == ["localhost:1"] * 2, "both carried several requests"
        between.port = None
        *_, failed = await asyncio.gather(*[client.put_records(FLIGHTS, request_of(), 5) for _ in range(3)])
        assert between.authorizations == ["Basic dXNlcjpzZWNyZXQ="] * 3
    assert isinstance(failed, RequestFailed)
    assert "CONNECT with status 502" in failed.message
    assert "secret" not in failed.message
    assert not failed.maybe_stored


@pytest.mark.parametrize(
    ("login", "expected"),
    [
        ("", []),
        ("user@", ["Basic dXNlcjo="]),
        ("a%40b:se%2Fcret%3A@", ["Basic YUBiOnNlL2NyZXQ6"]),
        ("us%C3%A9r:secret@", ["Basic dXPDqXI6c2VjcmV0"]),
    ],
)
async def test_the_login_is_sent_as_it_is_meant(
    login: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxy(monkeypatch, login=login) as between, reaching("https://localhost:1") as client:
        await client.put_records(FLIGHTS, request_of(), 5)
        assert between.authorizations == expected


async def test_a_proxy_may_be_reached_by_tls_itself(kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service's TLS is then within the proxy's."""
    async with serving(kinesis, monkeypatch) as server:
        assert server.certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.certificate, server.certificate.with_name("key.pem"))
        async with (
            proxy(monkeypatch, port_of(server), tls=context) as between,
            reaching("https://localhost:1") as client,
        ):
            await stored(client, 3)
            assert isinstance(await client.list_shards(FLIGHTS), list)
            assert between.asked == ["localhost:1"]


def break_off(writer: asyncio.StreamWriter) -> None:
    """End TCP, without an end of TLS."""
    writer.get_extra_info("socket").shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("ends_by", [asyncio.StreamWriter.close, break_off])
@pytest.mark.parametrize("when", ["greeted", "asked", "answered"])
async def test_within_the_tls_of_a_proxy_the_end_of_the_services_is_seen(
    when: str,
    ends_by: Callable[[asyncio.StreamWriter], object],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Else a request would wait for its time-out, and count as sent though nothing was."""
    context, certificate = self_signed(tmp_path, "127.0.0.1")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if when == "greeted":
            await reader.read(1)
        else:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
        if when == "answered":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + STORED)
        writer.close()

    service_tls = None if when == "greeted" else context  # else the end comes in its handshake
    async with (
        await asyncio.start_server(end, "127.0.0.1", 0, ssl=service_tls) as service,
        proxy(monkeypatch, service.sockets[0].getsockname()[1], tls=context) as between,
        reaching("https://localhost:1", connect_timeout_seconds=1.0) as client,
    ):
        between.ends_by = ends_by
        outcome = await client.put_records(FLIGHTS, request_of(), 5)
    if when == "answered":
        assert isinstance(outcome, Answer)
        return
    assert isinstance(outcome, RequestFailed)
    assert (outcome.code, outcome.maybe_stored, outcome.timed_out) == (Code.UNREACHABLE, when == "asked", False)


async def test_a_proxy_whose_certificate_nobody_vouches_for_is_not_told_the_login(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    context, _ = self_signed(tmp_path, "127.0.0.1")
    async with proxy(monkeypatch, tls=context) as between, reaching("https://localhost:1") as client:
        failed = await failure(client)
        assert between.asked == []
    assert "certificate" in failed.message
    assert failed.wrong_endpoint


async def test_a_service_without_tls_is_asked_for_by_its_whole_url(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        serving(kinesis, monkeypatch, tls=False) as server,
        proxy(monkeypatch, port_of(server), of="HTTP_PROXY") as between,
        reaching("http://kinesis.test:8000/") as client,
    ):
        await stored(client, 3)
    assert between.asked == ["http://kinesis.test:8000/"] * 3
    assert between.authorizations == ["Basic dXNlcjpzZWNyZXQ="] * 3
    assert len(kinesis.streams["flights"].entries()) == 6


async def test_the_address_of_the_service_may_be_of_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxy(monkeypatch) as between, reaching("https://[2001:db8::1]") as client:
        await client.put_records(FLIGHTS, request_of(), 5)
        assert between.asked == ["[2001:db8::1]:443"]


async def test_a_host_of_no_proxy_is_reached_without_it(kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "localhost")
    async with serving(kinesis, monkeypatch) as server, proxy(monkeypatch) as between:
        async with reaching(f"https://localhost:{port_of(server)}") as client:
            await stored(client)
        assert between.asked == []


async def test_a_proxy_whose_name_does_not_exist_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@no-such-host.invalid:3128")
    async with reaching("https://localhost:1") as client:
        assert "no-such-host.invalid" in (await failure(client)).message


@pytest.mark.parametrize(
    "where",
    ["http://127.0.0.1:99999", "http://user:secret@:3128", "http://u:s/secret@proxy:1", "http://[::1", "http://"],
)
async def test_a_proxy_that_cannot_be_one_is_a_configuration_error(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", where)
    with pytest.raises(ConfigurationError, match="HTTPS_PROXY") as caught:
        async with reaching("https://localhost:1"):
            pass
    assert "secret" not in str(caught.value)
    async with reaching("http://localhost:1"):  # which another variable is for
        pass


async def test_a_proxy_that_says_nothing_is_given_up_and_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with mute() as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@127.0.0.1:{port}")
        async with reaching("https://localhost:1", connect_timeout_seconds=0.2) as client:
            failed = await fails(client)
            assert (failed.code, failed.maybe_stored, failed.timed_out) == (Code.UNREACHABLE, False, False)
            await until_on_loop(lambda: sockets_to(port) == 0, 2)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\n\r\nWelcome to the portal",
        b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-Pad: 1\r\n" * 10_000,
        b"HTTP/1.1 301 Moved\r\nLocation: http://elsewhere/\r\n\r\n",
    ],
    ids=["a body", "two answers", "not HTTP", "endless headers", "a redirect"],
)
async def test_what_opens_no_tunnel_fails_and_gets_no_record(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as behind:
        async with (
            proxy(monkeypatch, behind.getsockname()[1]) as between,
            reaching("https://localhost:1", connect_timeout_seconds=1.0) as client,
        ):
            between.says = said
            await failure(client)


async def test_an_interim_answer_comes_before_the_tunnel(kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        serving(kinesis, monkeypatch) as server,
        proxy(monkeypatch, port_of(server)) as between,
        reached("https://localhost:1") as (client, _),
    ):
        between.says = b"HTTP/1.1 100 Continue\r\n\r\n" + between.says
        await stored(client)


async def test_the_certificate_behind_the_tunnel_is_the_services(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        serve(kinesis, tls=True) as server,  # nobody vouches for it
        proxy(monkeypatch, port_of(server)),
        reaching("https://localhost:1") as client,
    ):
        failed = await fails(client)
    assert "certificate" in failed.message
    assert ssl.SSLError.__name__ in failed.message or "SSL" in failed.message
    assert (failed.maybe_stored, kinesis.requests) == (False, {})
