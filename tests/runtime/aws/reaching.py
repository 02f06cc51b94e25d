"""Helpers that reach a service which a test serves, and make requests for it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any

import aiohttp
import numpy as np
import pytest
from yarl import URL

from producerd.core.encoding.entries import EncodedRequest
from producerd.core.encoding.formats import JSON
from producerd.core.sending.answers import Answer
from producerd.runtime.aws.clients import Access, AwsClient, open_clients
from producerd.runtime.aws.kinesis import AioKinesis

FLIGHTS = {"StreamName": "flights"}
BODY = (
    b'{"StreamName":"flights","Records":[{"Data":"eA==","PartitionKey":"k"},{"Data":"eQ==","PartitionKey":"\\u00e9"}]}'
)


DEFAULTS: dict[str, Any] = {
    "region": "us-east-1",
    "role_arn": None,
    "external_id": None,
    "connect_timeout_seconds": 2.0,
    "transport": "aiobotocore",
}


def access(url: str | None = None, **over: Any) -> Access:
    return Access(**DEFAULTS | {"endpoint_url": url} | over)


STORED = b'{"Records":[{"SequenceNumber":"1","ShardId":"s"},{"SequenceNumber":"2","ShardId":"s"}]}'
primed = ContextVar("primed", default=False)
"""Whether a first request has gone there already, from which the others are made."""


@asynccontextmanager
async def reached(url: str | None = None, **over: Any) -> AsyncIterator[tuple[AioKinesis, AwsClient]]:
    wanted = access(url, **over)
    with ThreadPoolExecutor(1) as pool:
        async with open_clients([wanted]) as clients:
            client, kinesis = clients.of(wanted), AioKinesis(clients.of(wanted), pool)
            if primed.get():
                with pytest.MonkeyPatch.context() as patch:
                    async with answering_for(patch):
                        assert isinstance(await kinesis.put_records(FLIGHTS, request_of(), 5), Answer)
                assert client._templates
            yield kinesis, client


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

        async def send(self: aiohttp.ClientSession, method: str, url: URL, **options: Any) -> Any:
            asked.append(str(url))
            return await real(self, method, here, **options)

        real = aiohttp.ClientSession._request
        patch.setattr(aiohttp.ClientSession, "_request", send)
        yield asked


@asynccontextmanager
async def reaching(url: str | None = None, **over: Any) -> AsyncIterator[AioKinesis]:
    async with reached(url, **over) as (kinesis, _):
        yield kinesis


def request_of(body: bytes = BODY, entries: int = 2) -> EncodedRequest:
    ends = np.arange(1, entries + 1, dtype=np.int32)
    nothing = np.zeros(entries, np.int32)
    return EncodedRequest(body, hashlib.sha256(body).hexdigest(), JSON.content_type, ends, nothing, nothing, {})
