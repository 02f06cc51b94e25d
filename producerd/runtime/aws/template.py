"""RequestTemplate: a PutRecords that botocore built and signed, from which further requests are made.

botocore builds every request from nothing: it resolves the host by rules, and the headers by events.  But requests to
one stream differ only in body, digest, format, date and signature.  botocore therefore builds the first one
(`build_request`), and the daemon reuses its headers.  That takes a sixth of the CPU.

The daemon signs by itself only if this reproduces botocore's signature of the first request, byte for byte.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

from botocore.awsrequest import AWSPreparedRequest
from botocore.credentials import ReadOnlyCredentials

from producerd.core.encoding.entries import EncodedRequest
from producerd.runtime.aws.connections import host_of
from producerd.runtime.aws.transport import headers_of

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
    """What requests to the host of ``url`` with these ``credentials`` have in common."""

    __slots__ = ("_headers", "_names", "_signer", "_signs", "credentials", "url")

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        names: Sequence[str],
        signer: SigV4,
        credentials: ReadOnlyCredentials,
    ) -> None:
        self.url = url
        self.credentials = credentials
        self._headers = {name: text for name, text in headers.items() if name.lower() not in _OF_ONE_REQUEST}
        self._signs = {name.lower(): text for name, text in self._headers.items()}
        self._names = [name for name in names if name not in _OF_ONE_REQUEST or name in (_DATE, _DIGEST, _TYPE)]
        self._signer = signer

    @classmethod
    def of(cls, request: AWSPreparedRequest, credentials: ReadOnlyCredentials | None) -> RequestTemplate | None:
        """Return a template of a request, or None if it was signed in another way or with other credentials."""
        headers = headers_of(request)
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
        return cls(request.url, headers, names, signer, credentials)

    def headers(self, encoded: EncodedRequest, now: datetime) -> dict[str, str]:
        """Return the headers of a request with this body, signed at ``now``, which is in UTC."""
        date = now.isoformat(timespec="seconds")[:19].replace("-", "").replace(":", "") + "Z"  # strftime takes longer
        values = {**self._signs, _DATE: date, _DIGEST: encoded.sha256, _TYPE: encoded.content_type}
        return {
            **self._headers,
            "Content-Type": encoded.content_type,
            "X-Amz-Date": date,
            "X-Amz-Content-SHA256": encoded.sha256,
            "Authorization": self._signer.authorization(self._names, values),
            "Content-Length": str(len(encoded.body)),
        }


class SigV4:
    """A signer of POSTs to one URL without a query (AWS IAM user guide, "Create a signed AWS API request").

    It keeps the signing key, which is valid for a day.
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
