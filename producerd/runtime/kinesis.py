"""The seam to the service: what the daemon needs of Kinesis, and what the answers are.

Failures come back as values, not exceptions, and so does an answer whatever it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from producerd.config import StreamSettings
from producerd.core.encoding.entries import EncodedRequest
from producerd.core.sending.answers import Answer, RequestFailed

Address = Mapping[str, str]
"""The members of a request that name its stream: ``{"StreamName": ...}`` or ``{"StreamARN": ...}``."""


def address_of(name: str, settings: StreamSettings) -> dict[str, str]:
    """The address of a stream with these settings that clients know by this name."""
    if settings.stream_arn is not None:
        return {"StreamARN": settings.stream_arn}
    return {"StreamName": settings.stream_name or name}


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """The part of DescribeStreamSummary's answer that a producer needs."""

    arn: str
    max_record_bytes: int
    """Largest key + data that the stream takes."""
    record_distribution_strategy: str = "USER_PARTITION_KEY"
    """With "AUTO" the stream ignores partition keys and explicit hash keys."""
    status: str = ""
    mode: str = ""
    kms_key: str = ""
    """The key that its records are encrypted with; "" where they are not."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The service's answer to an attempt that stores nothing.

    ``failed`` is None where nothing speaks against storing.  ``by_put_records``: the attempt was a dry run of
    PutRecords; else it was ListShards, which a producer need not be allowed to call.
    """

    failed: RequestFailed | None
    by_put_records: bool
    endpoint: str = ""


class Kinesis(Protocol):
    """What the daemon needs of the service."""

    async def put_records(
        self, address: Address, request: EncodedRequest, timeout_seconds: float
    ) -> Answer | RequestFailed: ...

    async def list_shards(self, address: Address) -> list[dict[str, Any]] | RequestFailed:
        """Return the answers of ListShards, all pages, with open shards only."""

    async def describe_stream_summary(self, address: Address) -> StreamSummary | RequestFailed: ...
