"""Sources of credentials that say too much: planted secrets, whole, cut and in wrong places, and who answers so."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl

from aiohttp import web

from tests.runtime.serving import serving

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

    def __init__(self, of_roles: dict[str, tuple[int, str]]) -> None:
        self.url = ""
        self.status, self.body = 500, ""
        self.of_roles = of_roles  # other answers, by the names of roles
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
async def service(of_roles: dict[str, tuple[int, str]] | None = None) -> AsyncIterator[Service]:
    saying = Service(of_roles or {})
    async with serving(saying.respond) as saying.url:
        yield saying
