"""RequestTemplate: a PutRecords that botocore has made, to be sent again with other bodies.

botocore puts every request together anew: its host by rules, its headers by events, its answer through a parser.  Those
to one stream differ in body, digest, time and signature alone.  So botocore makes the first, and the others are made
like it and sent over its connections, with the same proxy, certificates and time-outs: for a sixth of the processor
time.  Whether they are signed as botocore does it is seen by that first one, whose signature must come out.
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

from producerd.runtime.aws.sending import Sending
from producerd.runtime.aws.transport import HttpAnswer, host_of

Post = Callable[[Mapping[str, str], Sending], Awaitable[HttpAnswer]]
"""How a body is sent, with these headers.  Raises botocore's exceptions."""

_SIGNED: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request, "
    r"SignedHeaders=(?P<names>[^,]+), Signature=[0-9a-f]{64}"
)
_DATE: Final = "x-amz-date"
_DIGEST: Final = "x-amz-content-sha256"
_OF_ONE_REQUEST: Final = frozenset(
    {"amz-sdk-invocation-id", "amz-sdk-request", "authorization", "content-length", _DIGEST, _DATE}
)


class RequestTemplate:
    """What the requests of these ``credentials`` to one stream have in common."""

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
        self._names = [name for name in names if name not in _OF_ONE_REQUEST or name in (_DATE, _DIGEST)]
        self._signer = signer

    @classmethod
    def of(
        cls, request: AWSPreparedRequest, credentials: ReadOnlyCredentials | None, post: Post
    ) -> RequestTemplate | None:
        """What was just sent, as a template.  None where it was signed in another way, or with other credentials."""
        headers = {name: _text(value) for name, value in request.headers.items()}
        signed = _SIGNED.fullmatch(headers.get("Authorization", ""))
        if signed is None or credentials is None:
            return None
        signer, names = SigV4(credentials, signed["region"], signed["service"], request.url), signed["names"].split(";")
        values = {name.lower(): text for name, text in headers.items()}
        try:
            if signer.authorization(names, values) != headers["Authorization"]:
                return None
        except KeyError:  # of a header that the signature is about
            return None
        return cls(post, headers, names, signer, credentials)

    async def send(self, sending: Sending) -> bytes:
        """The body of its answer.  Raises what botocore's client would."""
        date = datetime.now(UTC).strftime(SIGV4_TIMESTAMP)
        values = {**self._signs, _DATE: date, _DIGEST: sending.sha256}
        authorization = self._signer.authorization(self._names, values)
        headers = {
            **self._headers,
            "X-Amz-Date": date,
            "X-Amz-Content-SHA256": sending.sha256,
            "Authorization": authorization,
            "Content-Length": str(len(sending.body)),
        }
        answer = await self._post(headers, sending)
        if answer.status >= 300:
            told = {"status_code": answer.status, "headers": answer.headers, "body": answer.body, "context": {}}
            raise ClientError(create_parser("json").parse(told, None), "PutRecords")
        return answer.body


class SigV4:
    """Signs POSTs to one URL without a query.

    (AWS IAM user guide: "Create a signed AWS API request"; the key that it signs with holds for a day.)
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
        """The header.  ``names``: the headers to sign, in order; ``values``: those and the others, but the host.

        Raises KeyError where a value is not there.
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
