"""Helpers that reach a service which a test serves, and make requests for it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import pytest

from producerd.config.tuning import Tuning
from producerd.core.encoding.entries import EncodedRequest
from producerd.core.encoding.formats import JSON
from producerd.core.sending.answers import Answer, RequestFailed
from producerd.runtime.aws.clients import Access, AwsClient, open_clients
from producerd.runtime.aws.connections import Connections
from producerd.runtime.aws.kinesis import AioKinesis
from producerd.runtime.aws.transport import Transport

FLIGHTS = {"StreamName": "flights"}
BODY = (
    b'{"StreamName":"flights","Records":[{"Data":"eA==","PartitionKey":"k"},{"Data":"eQ==","PartitionKey":"\\u00e9"}]}'
)


DEFAULTS: dict[str, Any] = {
    "region": "us-east-1",
    "role_arn": None,
    "external_id": None,
}


def access(url: str | None = None, **over: Any) -> Access:
    return Access(**DEFAULTS | {"endpoint_url": url} | over)


STORED = b'{"Records":[{"SequenceNumber":"1","ShardId":"s"},{"SequenceNumber":"2","ShardId":"s"}]}'


@asynccontextmanager
async def reached(
    url: str | None = None, *, connect_timeout_seconds: float = 2.0, **over: Any
) -> AsyncIterator[tuple[AioKinesis, AwsClient]]:
    wanted = access(url, **over)
    with ThreadPoolExecutor(1) as pool:
        async with open_clients([wanted], Tuning(connect_timeout_seconds=connect_timeout_seconds)) as clients:
            yield AioKinesis(clients.of(wanted), pool), clients.of(wanted)


@asynccontextmanager
async def answering_for(patch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """Whatever host is asked, one here answers that all was stored; where to requests would have gone."""
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(STORED), STORED))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        here = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"

        async def to(self: Transport, url: str) -> Connections:
            asked.append(url)
            return await real(self, here)

        real = Transport.to
        patch.setattr(Transport, "to", to)
        yield asked


@asynccontextmanager
async def reaching(url: str | None = None, **over: Any) -> AsyncIterator[AioKinesis]:
    async with reached(url, **over) as (kinesis, _):
        yield kinesis


def request_of(body: bytes = BODY, entries: int = 2) -> EncodedRequest:
    ends = np.arange(1, entries + 1, dtype=np.int32)
    nothing = np.zeros(entries, np.int32)
    return EncodedRequest(body, hashlib.sha256(body).hexdigest(), JSON.content_type, ends, nothing, nothing, {})


async def stores(kinesis: AioKinesis) -> None:
    """Send two records, which are stored."""
    assert isinstance(await kinesis.put_records(FLIGHTS, request_of(), 5), Answer)


async def fails(kinesis: AioKinesis) -> RequestFailed:
    """Send two records, and return why the request failed."""
    failed = await kinesis.put_records(FLIGHTS, request_of(), 5)
    assert isinstance(failed, RequestFailed)
    return failed
