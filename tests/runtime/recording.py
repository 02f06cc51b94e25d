"""An HTTP server that keeps the requests which it gets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from producerd.core.sending.answers import loads
from tests.runtime.serving import serving


@asynccontextmanager
async def recording(
    answer: bytes | Callable[[dict[str, Any]], tuple[int, bytes]],
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> AsyncIterator[tuple[str, list[tuple[Any, bytes]]]]:
    """Serve and keep each request.  ``answer`` is the one body to send, or makes each status and body."""
    requests: list[tuple[Any, bytes]] = []

    async def respond(request: web.BaseRequest) -> web.Response:
        body = await request.read()
        requests.append((request.headers.copy(), body))
        told = (status, answer) if isinstance(answer, bytes) else answer(loads(body))
        return web.Response(status=told[0], body=told[1], headers=headers, content_type="application/x-amz-json-1.1")

    async with serving(respond) as url:
        yield url, requests


def signed_headers(url: str, headers: Any, body: bytes) -> list[str]:
    """The names of the headers that a request's signature covers.  botocore alone must sign the same bytes so."""
    signed: list[str] = headers["Authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
    again = AWSRequest("POST", url + "/", headers={name: headers[name] for name in signed if name != "host"}, data=body)
    again.context["timestamp"] = headers["X-Amz-Date"]
    auth = SigV4Auth(Credentials("testing", "secret of testing"), "kinesis", "us-east-1")
    text = auth.string_to_sign(again, auth.canonical_request(again))
    assert headers["Authorization"].endswith(f"Signature={auth.signature(text, again)}")
    return signed
