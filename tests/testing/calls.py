"""How the tests of the fake Kinesis ask it: by its rules, or over HTTP with Amazon's own client."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from producerd.testing import FakeKinesis, FakeStream, Reply
from producerd.testing.fake_kinesis import FakeServer

SHARDS = [f"shardId-{number:012d}" for number in range(8)]


def service(shards: int = 4, **settings: Any) -> tuple[FakeKinesis, FakeStream]:
    kinesis = FakeKinesis(seed=7)
    return kinesis, kinesis.create_stream("s", shards, **settings)


def entry(key: str = "k", data: bytes = b"d", hash_key: int | str | None = None) -> dict[str, Any]:
    made = {"PartitionKey": key, "Data": base64.b64encode(data).decode()}
    return made if hash_key is None else {**made, "ExplicitHashKey": str(hash_key)}


def call(kinesis: FakeKinesis, action: str, now: float = 0.0, **request: Any) -> Reply:
    return kinesis.handle(action, json.dumps({"StreamName": "s", **request}).encode(), now)


def put(kinesis: FakeKinesis, *entries: dict[str, Any], now: float = 0.0) -> Reply:
    return call(kinesis, "PutRecords", now, Records=list(entries or [entry()]))


def answer(reply: Reply) -> Any:
    assert (reply.how, reply.status) == ("answer", 200), reply
    return json.loads(reply.body)


def results(reply: Reply) -> list[dict[str, str]]:
    return list(answer(reply)["Records"])


def codes(reply: Reply) -> list[str]:
    return [result.get("ErrorCode", "stored") for result in results(reply)]


def error(reply: Reply) -> tuple[int, str, str]:
    body = json.loads(reply.body)
    return reply.status, body["__type"], body["message"]


def shards_listed(kinesis: FakeKinesis, now: float, **request: Any) -> list[str]:
    return [shard["ShardId"] for shard in answer(call(kinesis, "ListShards", now, **request))["Shards"]]


@contextlib.contextmanager
def client_of(server: FakeServer, access_key: str = "any", *, read_timeout: float = 10.0) -> Iterator[Any]:
    client = boto3.client(
        "kinesis",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key="any",
        verify=None if server.certificate is None else str(server.certificate),
        config=Config(retries={"total_max_attempts": 1}, read_timeout=read_timeout, proxies={}),
    )
    with contextlib.closing(client):
        yield client


def refusal(call: Any, **request: Any) -> Any:
    with pytest.raises(ClientError) as caught:
        call(**request)
    return caught.value.response


async def opened(server: FakeServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A bare connection to a server on the test's own loop."""
    context = server.certificate and ssl.create_default_context(cafile=server.certificate)
    return await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port, ssl=context)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition is met; the time-out is for a test that fails."""
    async with asyncio.timeout(10.0):
        while not condition():  # noqa: ASYNC110 - the server has no event for its counters
            await asyncio.sleep(0)
