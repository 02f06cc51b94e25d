"""The interface to Kinesis: the calls that the daemon needs, and the types of their answers.

Every call returns failures as values and raises nothing for them, whatever the answer holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from producerd.config import StreamSettings
from producerd.core.encoding.entries import EncodedRequest
from producerd.core.sending.answers import Answer, RequestFailed

Address = Mapping[str, str]
"""Member of a request that names its stream: ``{"StreamName": ...}`` or ``{"StreamARN": ...}``."""


def address_of(name: str, settings: StreamSettings) -> dict[str, str]:
    """Return the address of the stream that clients know as ``name`` and that has these settings."""
    if settings.stream_arn is not None:
        return {"StreamARN": settings.stream_arn}
    return {"StreamName": settings.stream_name or name}


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """The members of DescribeStreamSummary's answer that a producer needs."""

    arn: str
    max_record_bytes: int
    """Largest partition key plus data, in bytes, that the stream accepts."""
    record_distribution_strategy: str = "USER_PARTITION_KEY"
    """With "AUTO" the stream ignores partition keys and explicit hash keys."""
    status: str = ""
    mode: str = ""
    kms_key: str = ""
    """The key that encrypts the stream's records, or "" if they are not encrypted."""
    created_milliseconds: int = 0
    """Its StreamCreationTimestamp since 1970, or 0 if the answer has none."""
    endpoint_host: str = ""
    """The host that gave this answer, with the port and the path of the endpoint if it has them."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The service's answer to an attempt that stores nothing.

    ``failed`` is None if the service would store records.  ``by_put_records`` is True for a dry run of PutRecords, and
    False for ListShards, which a producer may lack the permission for.
    """

    failed: RequestFailed | None
    by_put_records: bool
    endpoint: str = ""


class ControlPlane(Protocol):
    """The calls to Kinesis that ask about a stream and store nothing."""

    async def list_shards(self, address: Address) -> list[dict[str, Any]] | RequestFailed:
        """Return all pages of ListShards' answer, with open shards only."""

    async def describe_stream_summary(self, address: Address) -> StreamSummary | RequestFailed:
        """Return the stream's summary."""

    async def try_storing(self, address: Address, *, aggregates: bool) -> Tried:
        """Return what the service answers to an attempt that stores nothing."""


class Kinesis(Protocol):
    """The calls to Kinesis that send records."""

    async def ready(self) -> None:
        """Return when the endpoint is known, or when the calls themselves would say why it is not."""

    @property
    def is_aws(self) -> bool:
        """Whether the endpoint is AWS's own, by its host's name.  False while the endpoint is not known."""

    async def put_records(
        self, address: Address, request: EncodedRequest, timeout_seconds: float
    ) -> Answer | RequestFailed:
        """Send a PutRecords whose body is already encoded, and return its answer within ``timeout_seconds``."""

    def await_until(self, request: EncodedRequest, at: float) -> None:
        """Wait for the answer to a request that is on its way only until this time of the loop."""
