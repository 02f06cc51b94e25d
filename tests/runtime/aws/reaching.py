"""The way to a service that a test serves, and requests for it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from producerd.core.entries import EncodedRequest
from producerd.runtime.aws.clients import Access, AwsClient, open_clients
from producerd.runtime.kinesis import AioKinesis

FLIGHTS = {"StreamName": "flights"}
BODY = (
    b'{"StreamName":"flights","Records":[{"Data":"eA==","PartitionKey":"k"},{"Data":"eQ==","PartitionKey":"\\u00e9"}]}'
)


def access(url: str | None = None, **over: Any) -> Access:
    given: dict[str, Any] = {
        "region": "us-east-1",
        "endpoint_url": url,
        "role_arn": None,
        "external_id": None,
        "connect_timeout_seconds": 2.0,
    }
    return Access(**given | over)


@asynccontextmanager
async def reached(url: str | None = None, **over: Any) -> AsyncIterator[tuple[AioKinesis, AwsClient]]:
    wanted = access(url, **over)
    with ThreadPoolExecutor(1) as pool:
        async with open_clients([wanted]) as clients:
            client = clients.of(wanted)
            yield AioKinesis(client, pool), client


@asynccontextmanager
async def reaching(url: str | None = None, **over: Any) -> AsyncIterator[AioKinesis]:
    async with reached(url, **over) as (kinesis, _):
        yield kinesis


def request_of(body: bytes = BODY, entries: int = 2) -> EncodedRequest:
    ends = np.arange(1, entries + 1, dtype=np.int32)
    nothing = np.zeros(entries, np.int32)
    return EncodedRequest(body, hashlib.sha256(body).hexdigest(), ends, nothing, (), nothing, {})
