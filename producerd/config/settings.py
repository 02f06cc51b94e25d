"""Every setting: its type, range and default, and what it does."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from producerd.config.values import (
    GIB,
    KIB,
    MIB,
    SOCKET_PATH_BYTES,
    AdminPath,
    Bytes,
    Count,
    Fraction,
    Listen,
    Mode,
    Name,
    Seconds,
    SocketPath,
    Uids,
    Url,
    default_socket,
    size,
    split_listen,
)

RECORDS: Final = 2**32 - 1
STREAM_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")  # as the service has it
LEAST_REQUEST_BYTES: Final = 64 * KIB
"""To what a PutRecords is cut where there is little room, and no further."""

_T = TypeVar("_T")
_AT_START: Final = "at start"
AtStart = Annotated[_T, _AT_START]
"""A setting that nothing changes while the daemon runs; one of a stream, while that stream is open.

Either something stands on it that cannot be made anew under load (sockets, threads, clients of AWS), or others were
told it (a session's windows and largest frame), or rows that wait were made for it (aggregation, ordering).
"""


def _in(low: float, high: float, *, default: float) -> Any:
    return Field(default, ge=low, le=high)


def _say(words: str) -> dict[str, JsonValue]:
    """What is allowed, where no range says it."""
    return {"allowed": words}


def _name(pattern: str, words: str) -> Any:
    """A name that may be left out."""
    return Field(default=None, pattern=pattern, json_schema_extra=_say(words))


# Patterns as the services have them, and what is allowed in words.
_REGION_NAME: Final = "[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?"  # a label of a host's name
_REGION: Final = (f"^{_REGION_NAME}$", "an AWS region such as eu-west-1")
_ROLE: Final = (
    r"^arn:aws[a-z-]*:iam::[0-9]{12}:role/[a-zA-Z0-9_+=,.@/-]{1,512}$",
    "the ARN of a role, arn:aws:iam::ACCOUNT:role/NAME",
)
_EXTERNAL: Final = (r"^[a-zA-Z0-9_+=,.@:/-]{2,1224}$", "2 to 1,224 of a-z A-Z 0-9 _ + = , . @ : / -")
_STREAM_ARN: Final = (
    rf"^arn:aws[a-z-]*:kinesis:{_REGION_NAME}:[0-9]{{12}}:stream/{STREAM_NAME.pattern}$",
    "the ARN of a stream, arn:aws:kinesis:REGION:ACCOUNT:stream/NAME",
)
_URL: Final = "a URL http(s)://HOST[:PORT][/PATH] without user, query and fragment; HOST is an IP address or a DNS name"


class Conflict(NamedTuple):
    """Settings that are right, each alone, and wrong together."""

    message: str
    keys: tuple[str, ...]


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    later: ClassVar[frozenset[str]] = frozenset()
    """Names that docs/names.md has and this version has not."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if conflicts := list(self.conflicts()):
            message = "; ".join(conflict.message for conflict in conflicts)
            raise PydanticCustomError("conflict", "{message}", {"message": message, "conflicts": conflicts})
        return self

    def conflicts(self) -> Iterator[Conflict]:
        """What is wrong together."""
        raise NotImplementedError


def needs_restart(info: FieldInfo) -> bool:
    """Whether a setting is read at the start alone."""
    return _AT_START in info.metadata


class NodeSettings(Settings):
    """What holds for the whole daemon."""

    socket: AtStart[SocketPath] = Field(
        default_factory=default_socket, json_schema_extra=_say(f"a path of 1 to {SOCKET_PATH_BYTES} bytes")
    )
    """Path of the unix socket that Spark's tasks connect to."""
    socket_mode: AtStart[Mode] = Field(default=0o660, json_schema_extra=_say('an octal mode in quotes, such as "0660"'))
    """Who may connect, as an octal file mode."""
    socket_group: AtStart[Name] = Field(
        default=None, pattern=r"^[^\s:]+$", json_schema_extra=_say("the name of a group")
    )
    """Group that owns the socket; empty: the daemon's own."""
    allowed_uids: Uids = Field(
        default=frozenset(), json_schema_extra=_say('a list of user ids and names, or text such as "1000,spark"')
    )
    """Users whose processes may connect, of those whom mode and group let in; empty: all of them."""
    admin_socket: AtStart[AdminPath] = Field(
        default=None, json_schema_extra=_say(f"a path of 1 to {SOCKET_PATH_BYTES} bytes, or empty")
    )
    """Path of the unix socket of producerctl, for the daemon's own user; empty: NAME.admin.sock beside ``socket``."""
    metrics_listen: AtStart[Listen] = Field(
        default="127.0.0.1:9474", json_schema_extra=_say('host:port with a port from 0 to 65535, or ""')
    )
    """host:port of GET /metrics and /-/ready; empty: off; port 0: any free port."""
    region: AtStart[Name] = _name(*_REGION)
    """AWS region; empty: AWS's own settings say it."""
    endpoint_url: AtStart[Url] = Field(default=None, json_schema_extra=_say(_URL))
    """Address of Kinesis; empty: that of the region."""
    role_arn: AtStart[Name] = _name(*_ROLE)
    """Role that is assumed for every stream that names none; empty: the daemon's own credentials are used."""
    external_id: AtStart[Name] = _name(*_EXTERNAL)
    """What the role of ``role_arn`` asks of whoever assumes it."""
    max_streams: Count = _in(1, 10_000, default=64)
    """Streams that the daemon carries at the same time."""
    streams_allowed: Literal["any", "listed"] = "any"
    """Streams that a client may open; "listed": those with a table of their own."""
    node_queue_limit_bytes: Bytes = _in(64 * KIB, 1024 * GIB, default=256 * MIB)
    """Bytes that all streams together may take on and not settle; each has its own limit, too."""
    node_max_in_flight_bytes: Bytes = _in(64 * KIB, 1024 * GIB, default=64 * MIB)
    """Bytes of all unanswered PutRecords: half for whoever comes first, and a part of the other half for each of
    ``max_streams``."""
    worker_threads: AtStart[Count] = _in(1, 16, default=1)
    """Threads for pieces of work that would take the loop's over 16 ms: batches of many MiB, to sort and encode."""
    max_connections: Count = _in(1, 65_536, default=256)
    """Client connections at the same time."""
    max_frame_bytes: AtStart[Bytes] = _in(4 * KIB, 64 * MIB, default=MIB)
    """Largest frame that a client may send, in bytes; one larger record goes alone."""
    max_frame_records: AtStart[Count] = _in(1, 1_000_000, default=10_000)
    """Largest frame that a client may send, in records."""
    session_window_bytes: AtStart[Bytes] = _in(4 * KIB, GIB, default=8 * MIB)
    """Bytes that one connection may have unacknowledged, or one frame."""
    session_window_frames: AtStart[Count] = _in(1, 4_096, default=64)
    """Frames that one connection may have unacknowledged."""
    drain_timeout_seconds: Seconds = _in(0, 86_400, default=60)
    """Seconds from SIGTERM until the daemon ends, whatever is still queued."""
    body_timeout_seconds: AtStart[Seconds] = _in(0.05, 3_600, default=10)
    """Seconds in which a granted frame must arrive whole."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe messages that are written."""
    log_format: AtStart[Literal["text", "json"]] = "text"
    """One line a message, for people or as JSON."""

    def conflicts(self) -> Iterator[Conflict]:
        yield from _conflicts_of_role(self)
        if self.floor_bytes < self.max_frame_bytes:
            message = (
                f"each stream owns node_queue_limit_bytes / (2 x max_streams) = {size(self.floor_bytes)} of "
                f"the node's queues, which must hold one frame of max_frame_bytes = {size(self.max_frame_bytes)}"
            )
            yield Conflict(message, ("node_queue_limit_bytes", "max_streams", "max_frame_bytes"))
        if self.in_flight_floor_bytes < LEAST_REQUEST_BYTES:
            message = (
                "each stream owns node_max_in_flight_bytes / (2 x max_streams) = "
                f"{size(self.in_flight_floor_bytes)} of what is on its way, which must hold one request of "
                f"{size(LEAST_REQUEST_BYTES)}"
            )
            yield Conflict(message, ("node_max_in_flight_bytes", "max_streams"))
        if self.admin_path == self.socket:
            yield Conflict("admin_socket must be another path than socket", ("socket", "admin_socket"))
        if len(os.fsencode(self.admin_path)) > SOCKET_PATH_BYTES:
            yield Conflict(f"{self.admin_path} is longer than a socket's path may be: give admin_socket", ("socket",))

    @property
    def floor_bytes(self) -> int:
        """What each stream may have of the node's queues, whatever the others hold."""
        return self.node_queue_limit_bytes // (2 * self.max_streams)

    @property
    def in_flight_floor_bytes(self) -> int:
        """What each stream may have in unanswered PutRecords, or one request, whatever the others have."""
        return self.node_max_in_flight_bytes // (2 * self.max_streams)

    @property
    def admin_path(self) -> Path:
        """Where producerctl connects."""
        return self.admin_socket or self.socket.with_suffix(".admin.sock")

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of ``metrics_listen``; None: off."""
        return split_listen(self.metrics_listen) if self.metrics_listen else None


class StreamSettings(Settings):
    """What holds for one stream."""

    stream_name: AtStart[Name] = _name(f"^{STREAM_NAME.pattern}$", "1 to 128 of a-z A-Z 0-9 _ . -")
    """The stream's name in Kinesis; empty: that of its table."""
    stream_arn: AtStart[Name] = _name(*_STREAM_ARN)
    """The stream's ARN, in place of its name: also for a stream of another account."""
    region: AtStart[Name] = _name(*_REGION)
    """AWS region of the stream; empty: that of its ARN, else of the node."""
    endpoint_url: AtStart[Url] = Field(default=None, json_schema_extra=_say(_URL))
    """Address of Kinesis for the stream; empty: that of the node."""
    role_arn: AtStart[Name] = _name(*_ROLE)
    """Role that is assumed for the stream; empty: that of the node."""
    external_id: AtStart[Name] = _name(*_EXTERNAL)
    """What the role of the stream's ``role_arn`` asks of whoever assumes it."""
    queue_limit: Count = _in(1, RECORDS, default=1_000_000)
    """Records of the stream that may be taken on and not settled; at it, callers wait."""
    queue_limit_bytes: Bytes = _in(2 * KIB, 1024 * GIB, default=64 * MIB)
    """The same in bytes: key, data and hash key, 32 for each record, 1,024 for each frame."""
    linger_seconds: Seconds = _in(0, 3_600, default=0.1)
    """Longest time that a record waits for others to be sent with, in seconds."""
    aggregation: AtStart[Literal["none", "kpl"]] = "none"
    """One record as one Kinesis record, or ("kpl") many in one: then only KCL and the like can read the stream."""
    aggregate_max_bytes: Bytes = _in(KIB, MIB, default=51_200)
    """Largest aggregate, in bytes."""
    aggregate_max_records: Count = _in(1, RECORDS, default=RECORDS)
    """Largest aggregate, in records."""
    request_max_records: Count = _in(1, 500, default=500)
    """Kinesis records in one PutRecords."""
    request_max_bytes: Bytes = _in(LEAST_REQUEST_BYTES, 10 * MIB, default=MIB)
    """Bytes in one PutRecords; one larger record goes alone."""
    max_in_flight_requests: Count = _in(1, 1_024, default=24)
    """PutRecords that may be unanswered at the same time."""
    max_in_flight_bytes: Bytes = _in(64 * KIB, 4 * GIB, default=32 * MIB)
    """Bytes in unanswered PutRecords, or one request."""
    transport: AtStart[Literal["aiobotocore", "direct"]] = "aiobotocore"
    """How PutRecords are sent: by AWS's client, or ("direct", where no proxy is) over our own connections: less CPU."""
    connect_timeout_seconds: AtStart[Seconds] = _in(0.05, 300, default=5)
    """Seconds in which a connection to Kinesis must be made."""
    request_timeout_seconds: Seconds = _in(0.05, 300, default=6)
    """Seconds in which PutRecords must be answered; 1 more for each 256 KiB in it."""
    record_ttl_seconds: Seconds = _in(0, 365 * 86_400, default=0)
    """Seconds after which a record that is not stored fails; 0: never, callers wait."""
    on_throttle: Literal["retry", "fail"] = "retry"
    """What becomes of a record that its shard's limit refuses: sent again, or failed."""
    ordering: AtStart[Literal["none", "per_key"]] = "none"
    """Whether records of one key and one caller are stored in the order in which they were sent."""
    shard_rate_fraction: Fraction = _in(0.001, 10_000, default=1.0)
    """Of each shard's 1 MiB/s and 1,000 records/s, how much this daemon sends at most."""
    shard_map_wait_seconds: Seconds = _in(0.5, 3_600, default=10)
    """Longest wait for a list of shards, in seconds; without one "kpl" goes plain, or is refused if that is denied."""
    permanent_error_grace_seconds: Seconds = _in(0, 86_400, default=60)
    """Seconds for which a stream that has worked may be refused before its records fail."""
    first_contact_timeout_seconds: Seconds = _in(0, 86_400, default=60)
    """Seconds for which records wait where the endpoint's name does not exist, or its certificate is refused, and
    nothing there has ever answered the daemon; 0: for ever."""

    later = frozenset({"wire_format"})

    def conflicts(self) -> Iterator[Conflict]:
        yield from _conflicts_of_role(self)
        if self.aggregate_max_bytes > self.request_max_bytes:
            yield Conflict("aggregate_max_bytes must not be larger than request_max_bytes", _KEYS_OF_FIT)
        if 0 < self.record_ttl_seconds <= self.linger_seconds:
            yield Conflict("record_ttl_seconds must be longer than linger_seconds, or 0", _KEYS_OF_AGE)
        if self.stream_arn is not None and self.stream_name is not None:
            yield Conflict("give stream_arn or stream_name, not both", ("stream_arn", "stream_name"))
        if self.stream_arn is not None and self.region not in (None, self.stream_region):
            yield Conflict("region is not that of stream_arn; leave it out", ("stream_arn", "region"))

    @property
    def stream_region(self) -> str | None:
        """The region that the stream's own settings name."""
        return self.region if self.stream_arn is None else self.stream_arn.split(":")[3]

    def queue_seconds(self, shards: int) -> float:
        """How long this many shards take to empty a full queue, at the rate at which they are sent to."""
        shard_seconds = self.queue_limit_bytes / MIB
        if self.aggregation == "none":  # else records are no measure
            shard_seconds = min(shard_seconds, self.queue_limit / 1_000)
        return shard_seconds / self.shard_rate_fraction / shards


OF_ONE_STREAM: Final = ("stream_name", "stream_arn")
"""What `[defaults]` cannot have: it would make one stream of all."""


def _conflicts_of_role(settings: NodeSettings | StreamSettings) -> Iterator[Conflict]:
    if settings.external_id is not None and settings.role_arn is None:
        yield Conflict("external_id needs a role_arn in the same table", ("external_id", "role_arn"))


_KEYS_OF_AGE: Final = ("record_ttl_seconds", "linger_seconds")
_KEYS_OF_FIT: Final = ("aggregate_max_bytes", "request_max_bytes")


@dataclass(frozen=True, slots=True)
class Config:
    """All settings.  ``streams`` has what the named streams use, already laid over ``defaults``.

    ``origins`` says where a value came from, by its key in a file (``socket``, ``defaults.queue_limit``,
    ``streams."a".region``); what is not in it is a default.
    """

    node: NodeSettings = field(default_factory=NodeSettings)
    defaults: StreamSettings = field(default_factory=StreamSettings)
    streams: Mapping[str, StreamSettings] = field(default_factory=lambda: MappingProxyType({}))
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), compare=False)

    def stream(self, name: str) -> StreamSettings:
        return self.streams.get(name, self.defaults)
