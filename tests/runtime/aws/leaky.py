"""Sources of credentials that say too much: planted secrets, whole, cut and in wrong places, and who answers so."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import parse_qsl

from aiohttp import web

ROLE = "arn:aws:iam::123456789012:role/producer"
KEY, TOKEN = "wJalrXUtnFEMIK7MDENGbPxRfiCYplantedKEY", "IQoJb3JpZ2luX2VjEplantedSessionTOKENx1x2x3"
EXTERNAL_ID, LOGIN, JWT = "x7Q-planted-4711-9zK", "aoaAAAAplantedSsoLOGIN", "eyJhbGciOiJSUzplantedJWTx9"
SECRETS = (KEY, TOKEN, EXTERNAL_ID, LOGIN, JWT)
FRAGMENT = 8
"""Fewest characters that count as a part of a secret."""
IN_JSON = {"Code": "Success", "AccessKeyId": "A", "SecretAccessKey": KEY, "Token": TOKEN, "Expiration": "2099-01-01"}


def lines_with_secrets(text: str) -> list[str]:
    """The lines of a text that have a part of a secret."""
    parts = {secret[at : at + FRAGMENT] for secret in SECRETS for at in range(len(secret) - FRAGMENT + 1)}
    return [line for line in text.splitlines() if any(part in line for part in parts)]


def xml_of(key: str, secret: str, token: str, ends: str) -> str:
    return (
        f"<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}"
        f"</SecretAccessKey><SessionToken>{token}</SessionToken><Expiration>{ends}</Expiration></Credentials>"
        f"</AssumeRoleResult><ResponseMetadata><RequestId>{token}</RequestId></ResponseMetadata></AssumeRoleResponse>"
    )


XML = xml_of("A", KEY, TOKEN, "2099-01-01T00:00:00Z")
PORTAL = {"roleCredentials": {"accessKeyId": "A", "secretAccessKey": KEY, "sessionToken": TOKEN, "expiration": 9e12}}


def answers(whole: str, *others: str) -> Iterator[tuple[int, str]]:
    """Statuses and bodies: a good answer as an error's, cut, and others."""
    for status in (403, 500):
        yield status, whole
    for end in (whole.index(KEY) + 20, whole.index(TOKEN) + 20, len(whole) - 1):
        yield 200, whole[:end]
    for other in others:
        yield 403 if "Code" in other else 200, other


OF_STS = [
    *answers(
        XML,
        xml_of(TOKEN, "A", KEY, KEY),
        XML.replace("<Credentials>", f"<{KEY}>"),
        json.dumps(IN_JSON),
        f"<ErrorResponse><Error><Code>{KEY}</Code><Message>{TOKEN} {KEY}</Message></Error>"
        f"<RequestId>{TOKEN}</RequestId></ErrorResponse>",
        "<ErrorResponse><Error><Code>AccessDenied</Code><Message>User: arn:aws:iam::123456789012:user/u is not "
        f"authorized to perform: sts:{KEY} on resource: arn:aws:iam::{TOKEN} {EXTERNAL_ID}</Message></Error>"
        "</ErrorResponse>",
    )
]


class Service:
    """STS, SSO's portal, and both metadata services: it gives one answer to all, and refuses all signatures."""

    def __init__(self) -> None:
        self.url = ""
        self.status, self.body = 500, ""
        self.of_roles: dict[str, tuple[int, str]] = {}  # other answers, by the names of roles
        self.asked = 0

    async def respond(self, request: web.BaseRequest) -> web.Response:
        if "X-Amz-Target" in request.headers:
            told = {"__type": "UnrecognizedClientException", "message": "invalid"}
            return web.json_response(told, status=400, headers={"x-amzn-RequestId": "of Kinesis"})
        if request.method == "PUT":
            return web.Response(text=TOKEN)
        if request.path.endswith("/security-credentials/"):
            return web.Response(text=KEY)
        self.asked += 1
        role = dict(parse_qsl((await request.read()).decode())).get("RoleArn", "").rpartition("/")[2]
        status, body = self.of_roles.get(role, (self.status, self.body))
        return web.Response(status=status, text=body, headers={"x-amzn-RequestId": TOKEN})


@asynccontextmanager
async def service() -> AsyncIterator[Service]:
    serving = Service()
    runner = web.ServerRunner(web.Server(serving.respond, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    serving.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield serving
    finally:
        await runner.cleanup()


@contextmanager
def service_in_thread(of_roles: dict[str, tuple[int, str]]) -> Iterator[str]:
    """Serve on a loop in a thread until the block ends; the URL."""
    url: list[str] = []
    started, loop, ended = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with service() as serving:
            serving.of_roles = of_roles
            url.append(serving.url)
            started.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="leaky", daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield url[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
