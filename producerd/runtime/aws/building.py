"""build_request: have botocore build and sign a PutRecords for an encoded body, without sending it.

botocore's serialiser and parser see no record, which saves CPU: for 5 MB, 5.7 ms instead of 29.5.  This uses only
events that botocore documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from aiobotocore.awsrequest import AioAWSResponse
from botocore.awsrequest import AWSPreparedRequest

from producerd.core.encoding.entries import EncodedRequest
from producerd.runtime.aws.connection import HttpAnswer
from producerd.runtime.aws.transport import for_botocore

TINY: Final = ({"Data": b"", "PartitionKey": "-"},)
"""The records that botocore is called with; the encoded body replaces them."""


class Built:
    """A PutRecords that botocore builds and signs for ``encoded``, and that is not sent."""

    def __init__(self, encoded: EncodedRequest) -> None:
        self.encoded = encoded
        self.request: AWSPreparedRequest | None = None

    def finish(self, request: AWSPreparedRequest) -> None:
        """Keep what botocore has built."""
        self.request = request


_being_built: ContextVar[Built | None] = ContextVar("_being_built", default=None)


def put_body(params: dict[str, Any], **_: Any) -> None:
    """Replace the body of a request that is being built, name its format, and set the digest that signing reuses.

    It is a handler of botocore's event before-call.
    """
    if (built := _being_built.get()) is not None:
        encoded = built.encoded
        params["body"] = encoded.body
        params["headers"] |= {"Content-Type": encoded.content_type, "X-Amz-Content-SHA256": encoded.sha256}


def keep_from_sending(request: AWSPreparedRequest, **_: Any) -> AioAWSResponse | None:
    """Keep a request that is being built, and answer in place of the service.

    It is a handler of botocore's event before-send.
    """
    if (built := _being_built.get()) is None:
        return None
    built.finish(request)
    return for_botocore(request.url, HttpAnswer(200, {}, b"{}"))


async def build_request(client: Any, address: Mapping[str, str], encoded: EncodedRequest) -> AWSPreparedRequest:
    """Return the request that botocore's ``client`` would send.  Raise what botocore raises."""
    built = Built(encoded)
    token = _being_built.set(built)
    try:
        await client.put_records(**address, Records=TINY)
    finally:
        _being_built.reset(token)
    assert built.request is not None
    return built.request
