"""A small AWS on one socket, for tests of access: Kinesis by the fake's rules, STS, and container credentials.

It accepts the keys that a test lists, has its own clock, and checks every signature.  The secret of a key is
``secret of <key>``, also for the keys that STS and the container endpoint hand out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from producerd.testing import FakeKinesis
from tests.runtime.serving import serving

TIMESTAMP = "%Y%m%dT%H%M%SZ"
TOLERATED = timedelta(minutes=5)


def secret_of(key: str) -> str:
    return f"secret of {key}"


class Refusal(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class LocalAws:
    """The settings may be changed at any time, from any thread."""

    def __init__(self, kinesis: FakeKinesis) -> None:
        self.kinesis = kinesis
        self.url = ""
        self.keys = {"testing"}  # those that are taken
        self.clock_offset = timedelta(0)
        self.tells_request_id = True  # a proxy may leave it out, or speak for Kinesis
        self.role = ""  # that may be assumed, and by which external id
        self.external_id = ""
        self.lifetime = timedelta(hours=1)  # of what STS hands out
        self.container_key = ""  # "": the container endpoint fails
        self.container_lifetime = timedelta(hours=6)
        self.used: Counter[str] = Counter()  # requests to Kinesis by key
        self.regions: set[str] = set()  # that they were signed for
        self.refused: Counter[str] = Counter()  # by code
        self.assumed: list[dict[str, str]] = []
        self.container_calls = 0

    def now(self) -> datetime:
        return datetime.now(UTC) + self.clock_offset

    async def respond(self, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        headers = {"Date": format_datetime(self.now(), usegmt=True)}
        if self.tells_request_id:
            headers["x-amzn-RequestId"] = "of this test"
        if request.path == "/container":
            return self._container()
        action = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
        try:
            key = self._signed_by(request, body)
            if not action:
                return web.Response(body=self._assume(dict(parse_qsl(body.decode())), key), headers=headers)
        except Refusal as refusal:
            self.refused[refusal.code] += 1
            if action:
                told: dict[str, Any] = {"__type": refusal.code, "message": refusal.message}
                return web.json_response(told, status=400, headers=headers)
            xml = f"<Error><Code>{refusal.code}</Code><Message>{refusal.message}</Message></Error>"
            return web.Response(status=403, text=f"<ErrorResponse>{xml}</ErrorResponse>", headers=headers)
        self.used[key] += 1
        reply = self.kinesis.handle(action, body, self.now().timestamp())
        return web.Response(status=reply.status, body=reply.body, headers=headers)

    def _signed_by(self, request: web.BaseRequest, body: bytes) -> str:
        """The key of a request whose signature holds."""
        claimed = dict(part.split("=", 1) for part in request.headers["Authorization"].split(" ", 1)[1].split(", "))
        key, date, region, service, _ = claimed["Credential"].split("/")
        self.regions.add(region)
        if key not in self.keys:
            raise Refusal("UnrecognizedClientException", "The security token included in the request is invalid.")
        signed = {name: request.headers[name] for name in claimed["SignedHeaders"].split(";") if name != "host"}
        again = AWSRequest("POST", str(request.url), headers=signed, data=body)
        again.context["timestamp"] = request.headers["X-Amz-Date"]
        auth = SigV4Auth(Credentials(key, secret_of(key)), service, region)
        text = auth.string_to_sign(again, auth.canonical_request(again))
        wrong = "InvalidSignatureException" if service == "kinesis" else "SignatureDoesNotMatch"
        if auth.signature(text, again) != claimed["Signature"]:
            raise Refusal(wrong, "The request signature we calculated does not match the signature you provided.")
        at, now = datetime.strptime(request.headers["X-Amz-Date"], TIMESTAMP).replace(tzinfo=UTC), self.now()
        if not date == at.strftime("%Y%m%d"):
            raise Refusal(wrong, "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date")
        if at < now - TOLERATED:
            raise Refusal(wrong, f"Signature expired: {at:{TIMESTAMP}} is now earlier than {now:{TIMESTAMP}} - 5 min.")
        if at > now + TOLERATED:
            raise Refusal(wrong, f"Signature not yet current: {at:{TIMESTAMP}} is still later than {now:{TIMESTAMP}}")
        return key

    def _assume(self, asked: dict[str, str], key: str) -> bytes:
        if asked.get("RoleArn") != self.role or asked.get("ExternalId", "") != self.external_id:
            raise Refusal("AccessDenied", f"{key} is not authorized to perform: sts:AssumeRole on {asked['RoleArn']}")
        self.assumed.append(asked)
        issued = f"ROLE{len(self.assumed)}"
        self.keys.add(issued)
        ends = self.now() + self.lifetime
        return (
            "<AssumeRoleResponse><AssumeRoleResult>"
            f"<AssumedRoleUser><Arn>{self.role}</Arn><AssumedRoleId>A:x</AssumedRoleId></AssumedRoleUser><Credentials>"
            f"<AccessKeyId>{issued}</AccessKeyId><SecretAccessKey>{secret_of(issued)}</SecretAccessKey>"
            f"<SessionToken>token</SessionToken><Expiration>{ends:%Y-%m-%dT%H:%M:%SZ}</Expiration>"
            "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
        ).encode()

    def _container(self) -> web.Response:
        self.container_calls += 1
        if not self.container_key:
            return web.Response(status=500)
        ends = self.now() + self.container_lifetime
        return web.json_response(
            {
                "AccessKeyId": self.container_key,
                "SecretAccessKey": secret_of(self.container_key),
                "Token": "token",
                "Expiration": f"{ends:%Y-%m-%dT%H:%M:%SZ}",
            }
        )


@asynccontextmanager
async def local_aws(kinesis: FakeKinesis, kind: type[LocalAws] = LocalAws) -> AsyncIterator[LocalAws]:
    """Serve on this loop until the block ends."""
    aws = kind(kinesis)
    async with serving(aws.respond) as aws.url:
        yield aws
