"""RequestTemplate: a PutRecords that botocore built, reused to send other bodies.

botocore builds every request from nothing: it resolves the host by rules and the headers by events, and parses the
answer.  But requests to one stream differ only in body, digest, date and signature.  So botocore builds the first
request, and the daemon reuses it as a template.  Further requests use botocore's connections, with the same proxy,
certificates and time-outs, for a sixth of the CPU.

The daemon signs further requests itself.  It does so only if signing the first request reproduces botocore's signature
byte for byte.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

from botocore.auth import SIGV4_TIMESTAMP
from botocore.awsrequest import AWSPreparedRequest
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import ClientError
from botocore.parsers import create_parser

from producerd.runtime.aws.sending import Sending, in_json
from producerd.runtime.aws.transport import HttpAnswer, host_of

Post = Callable[[Mapping[str, str], Sending], Awaitable[HttpAnswer]]
"""A function that sends a body with these headers.  It raises botocore's exceptions."""

_SIGNED: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request, "
    r"SignedHeaders=(?P<names>[^,]+), Signature=[0-9a-f]{64}"
)
_DATE: Final = "x-amz-date"
_DIGEST: Final = "x-amz-content-sha256"
_TYPE: Final = "content-type"
_OF_ONE_REQUEST: Final = frozenset(
    {"amz-sdk-invocation-id", "amz-sdk-request", "authorization", "content-length", _TYPE, _DIGEST, _DATE}
)


class RequestTemplate:
    """The parts that requests to one stream with these ``credentials`` have in common."""

    __slots__ = ("_headers", "_names", "_post", "_signer", "_signs", "credentials")

    def __init__(
        self,
        post: Post,
        headers: Mapping[str, str],
        names: Sequence[str],
        signer: SigV4,
        credentials: ReadOnlyCredentials,
    ) -> None:
        self.credentials = credentials
        self._post = post
        self._headers = {name: text for name, text in headers.items() if name.lower() not in _OF_ONE_REQUEST}
        self._signs = {name.lower(): text for name, text in self._headers.items()}
        self._names = [name for name in names if name not in _OF_ONE_REQUEST or name in (_DATE, _DIGEST, _TYPE)]
        self._signer = signer

    @classmethod
    def of(
        cls, request: AWSPreparedRequest, credentials: ReadOnlyCredentials | None, post: Post
    ) -> RequestTemplate | None:
        """Return a template of the request that was just sent.

        Return None if it was signed in another way, or with other credentials.
        """
        headers = {name: _text(value) for name, value in request.headers.items()}
        signed = _SIGNED.fullmatch(headers.get("Authorization", ""))
        if signed is None or credentials is None:
            return None
        signer, names = SigV4(credentials, signed["region"], signed["service"], request.url), signed["names"].split(";")
        values = {name.lower(): text for name, text in headers.items()}
        try:
            if signer.authorization(names, values) != headers["Authorization"]:
                return None
        except KeyError:  # a signed header is not in the request
            return None
        return cls(post, headers, names, signer, credentials)

    async def send(self, sending: Sending) -> bytes:
        """Send a body and return the body of its answer.  Raise what botocore's client would raise."""
        date = datetime.now(UTC).strftime(SIGV4_TIMESTAMP)
        values = {**self._signs, _DATE: date, _DIGEST: sending.sha256, _TYPE: sending.content_type}
        authorization = self._signer.authorization(self._names, values)
        headers = {
            **self._headers,
            "Content-Type": sending.content_type,
            "X-Amz-Date": date,
            "X-Amz-Content-SHA256": sending.sha256,
            "Authorization": authorization,
            "Content-Length": str(len(sending.body)),
        }
        answer = await self._post(headers, sending)
        if answer.status >= 300:
            body = in_json(answer.body)
            response = {"status_code": answer.status, "headers": answer.headers, "body": body, "context": {}}
            raise ClientError(create_parser("json").parse(response, None), "PutRecords")
        return answer.body


class SigV4:
    """A signer of POSTs to one URL without a query (AWS IAM user guide, "Create a signed AWS API request").

    It keeps the signing key, which holds for a day.
    """

    __slots__ = ("_credentials", "_day", "_host", "_key", "_path", "_region", "_service")

    def __init__(self, credentials: ReadOnlyCredentials, region: str, service: str, url: str) -> None:
        self._credentials = credentials
        self._region = region
        self._service = service
        self._path = urlsplit(url).path or "/"
        self._host = host_of(url)
        self._day = ""
        self._key = b""

    def authorization(self, names: Sequence[str], values: Mapping[str, str]) -> str:
        """Return the value of the header Authorization.

        ``names`` are the headers to sign, in order, in lower case.  ``values`` holds at least these headers, except the
        host.  Raise KeyError if a value is missing.
        """
        date = values[_DATE]
        lines = [f"{name}:{self._host if name == 'host' else values[name]}" for name in names]
        canonical = "\n".join(("POST", self._path, "", *lines, "", ";".join(names), values[_DIGEST]))
        scope = f"{date[:8]}/{self._region}/{self._service}/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(self._key_of(date[:8]), text.encode(), "sha256").hex()
        return (
            f"AWS4-HMAC-SHA256 Credential={self._credentials.access_key}/{scope}, "
            f"SignedHeaders={';'.join(names)}, Signature={signature}"
        )

    def _key_of(self, day: str) -> bytes:
        if day != self._day:
            key = f"AWS4{self._credentials.secret_key}".encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._day, self._key = day, key
        return self._key


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else str(value, "utf-8")
