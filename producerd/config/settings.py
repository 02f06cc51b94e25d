"""Every setting, with its type, range and default.  The docstring of a setting is its description in the docs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from producerd.config.tuning import TUNING
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
    MaybeBytes,
    Mode,
    Name,
    Seconds,
    SocketPath,
    Uids,
    Url,
    checked_text,
    default_socket,
    size,
    split_listen,
)

RECORDS: Final = 2**32 - 1
STREAM_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
"""Pattern of a stream's name, from the API reference of Kinesis."""
LEAST_NODE_BYTES: Final = 64 * KIB
"""Smallest limit of the node's queues, and of its unanswered requests."""
LEAST_REQUEST_BYTES: Final = 64 * KIB
"""Smallest size to which the daemon cuts a PutRecords when there is little room."""

_T = TypeVar("_T")
_AT_START: Final = "at start"
AtStart = Annotated[_T, _AT_START]
"""A setting that keeps its value while the daemon runs or, for a setting of a stream, while the stream is open.

There are three reasons.  The daemon cannot replace sockets, threads and AWS clients under load.  Clients have received
a session's windows and largest frame.  Waiting rows were prepared for one kind of aggregation and ordering.
"""


def _in(low: float, high: float, *, default: float) -> Any:
    return Field(default, ge=low, le=high)


def _say(words: str) -> dict[str, JsonValue]:
    """Return the words for what is allowed, for a setting without a range."""
    return {"allowed": words}


def _name(pattern: str, words: str) -> Any:
    """Return the field of a name that may be left out."""
    return Field(default=None, pattern=pattern, json_schema_extra=_say(words))


# Patterns from the API references of AWS, each with words for what is allowed.
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
_UIDS: Final = 'a list of user ids and names, or text such as "1000,spark"'
_URL: Final = "a URL http(s)://HOST[:PORT][/PATH] without user, query and fragment; HOST is an IP address or a DNS name"


class Conflict(NamedTuple):
    """Settings whose values are each valid, but not together, and the message that says why."""

    message: str
    keys: tuple[str, ...]


class Settings(BaseModel):
    """One table of settings.  Its values are valid, each alone and all together, and never change."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    _checked_text = field_validator("*", mode="before")(checked_text)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if conflicts := list(self.conflicts()):
            message = "; ".join(conflict.message for conflict in conflicts)
            raise PydanticCustomError("conflict", "{message}", {"message": message, "conflicts": conflicts})
        return self

    def conflicts(self) -> Iterator[Conflict]:
        """Yield the settings whose values do not fit together."""
        raise NotImplementedError


def needs_restart(info: FieldInfo) -> bool:
    """Return whether a change of the setting needs a restart."""
    return _AT_START in info.metadata


class NodeSettings(Settings):
    """The settings of the whole daemon."""

    socket: AtStart[SocketPath] = Field(
        default_factory=default_socket,
        json_schema_extra=_say(f"an absolute path of 1 to {SOCKET_PATH_BYTES} bytes in UTF-8"),
    )
    """Path of the unix socket that Spark's tasks connect to."""
    socket_mode: AtStart[Mode] = Field(
        default=0o660, json_schema_extra=_say('an octal mode in quotes with which somebody may write, such as "0660"')
    )
    """File mode of the socket, in octal: it says which users may connect."""
    socket_group: AtStart[Name] = Field(
        default=None, pattern=r"^[^\s:]+$", json_schema_extra=_say("the name of a group")
    )
    """Group that owns the socket; empty: the daemon's own group."""
    allowed_uids: Uids = Field(default=frozenset(), json_schema_extra=_say(_UIDS))
    """Users whose processes may connect, in addition to the check of mode and group; empty: all users."""
    admin_socket: AtStart[AdminPath] = Field(
        default=None, json_schema_extra=_say(f"an absolute path of 1 to {SOCKET_PATH_BYTES} bytes in UTF-8, or empty")
    )
    """Path of the unix socket of producerctl, for the daemon's own user; empty: NAME.admin.sock next to ``socket``."""
    metrics_listen: AtStart[Listen] = Field(
        default="127.0.0.1:9474", json_schema_extra=_say('host:port with a port from 0 to 65535, or ""')
    )
    """host:port of GET /metrics and /-/ready; empty: off; port 0: any free port."""
    region: AtStart[Name] = _name(*_REGION)
    """AWS region; empty: the region in AWS's own settings."""
    endpoint_url: AtStart[Url] = Field(default=None, json_schema_extra=_say(_URL))
    """Address of Kinesis; empty: the region's own address."""
    role_arn: AtStart[Name] = _name(*_ROLE)
    """Role that the daemon assumes for every stream that names none; empty: the daemon's own credentials."""
    external_id: AtStart[Name] = _name(*_EXTERNAL)
    """External ID that the role of ``role_arn`` requires."""
    max_streams: Count = _in(1, 10_000, default=64)
    """Streams that may be open at the same time."""
    streams_allowed: Literal["any", "listed"] = "any"
    """Streams that a client may open; "listed": only streams with a table of their own."""
    node_queue_limit_bytes: Bytes = _in(LEAST_NODE_BYTES, 1024 * GIB, default=256 * MIB)
    """Bytes that the queues of all streams may hold together, in addition to each stream's own limit."""
    node_max_in_flight_bytes: Bytes = _in(LEAST_NODE_BYTES, 1024 * GIB, default=64 * MIB)
    """Bytes of unanswered PutRecords of all streams: any stream may use one half; the other half is divided
    equally among ``max_streams``."""
    memory: MaybeBytes = Field(
        default=None, ge=MIB, le=1024 * GIB, json_schema_extra=_say('bytes, text such as "384 MiB", or empty')
    )
    """Memory that the daemon may use: limits of queues, requests and clients that need more are lowered; empty:
    as they are."""
    max_connections: Count = _in(1, 65_536, default=512)
    """Client connections at the same time; when all are taken, an idle client makes place for a new one."""
    drain_timeout_seconds: Seconds = _in(0, 86_400, default=60)
    """Seconds after SIGTERM at which the daemon ends, even if records are still queued."""
    exit_when_idle_seconds: AtStart[Seconds] = _in(0, 86_400, default=0)
    """Seconds without any client and any record after which the daemon ends; 0: never."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe messages that the daemon logs."""
    log_format: AtStart[Literal["text", "json"]] = "text"
    """Format of the log, which has one line per message: text for people, or JSON."""

    def conflicts(self) -> Iterator[Conflict]:
        yield from _conflicts_of_role(self)
        if self.floor_bytes < TUNING.max_frame_bytes:
            message = (
                f"each stream owns node_queue_limit_bytes / (2 x max_streams) = {size(self.floor_bytes)} of "
                f"the node's queues, which must hold one frame of {size(TUNING.max_frame_bytes)}"
            )
            yield Conflict(message, ("node_queue_limit_bytes", "max_streams"))
        if self.in_flight_floor_bytes < LEAST_REQUEST_BYTES:
            message = (
                "each stream owns node_max_in_flight_bytes / (2 x max_streams) = "
                f"{size(self.in_flight_floor_bytes)} of the unanswered requests, which must hold one request of "
                f"{size(LEAST_REQUEST_BYTES)}"
            )
            yield Conflict(message, ("node_max_in_flight_bytes", "max_streams"))
        if self.admin_path == self.socket:
            yield Conflict("admin_socket must be another path than socket", ("socket", "admin_socket"))
        if len(os.fsencode(self.admin_path)) > SOCKET_PATH_BYTES:
            yield Conflict(f"{self.admin_path} is longer than a socket's path may be: give admin_socket", ("socket",))

    @property
    def floor_bytes(self) -> int:
        """Bytes of the node's queues that each stream may use, no matter how much the others hold."""
        return self.node_queue_limit_bytes // (2 * self.max_streams)

    @property
    def in_flight_floor_bytes(self) -> int:
        """Bytes of unanswered PutRecords that each stream may have, no matter how many the others have.

        One request is always allowed.
        """
        return self.node_max_in_flight_bytes // (2 * self.max_streams)

    @property
    def admin_path(self) -> Path:
        """Path of the socket that producerctl connects to."""
        return self.admin_socket or self.socket.with_suffix(".admin.sock")

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of ``metrics_listen``, or None if metrics are off."""
        return split_listen(self.metrics_listen) if self.metrics_listen else None


class StreamSettings(Settings):
    """The settings of one stream."""

    allowed_uids: Uids = Field(default=frozenset(), json_schema_extra=_say(_UIDS))
    """Users whose clients may open the stream, by any name that leads to it; empty: all users that may connect."""
    stream_name: AtStart[Name] = _name(f"^{STREAM_NAME.pattern}$", "1 to 128 of a-z A-Z 0-9 _ . -")
    """The stream's name in Kinesis; empty: the name of its table."""
    stream_arn: AtStart[Name] = _name(*_STREAM_ARN)
    """The stream's ARN, in place of its name; needed for a stream of another account."""
    region: AtStart[Name] = _name(*_REGION)
    """AWS region of the stream; empty: the region in its ARN, otherwise the node's."""
    endpoint_url: AtStart[Url] = Field(default=None, json_schema_extra=_say(_URL))
    """Address of Kinesis for the stream; empty: the node's."""
    role_arn: AtStart[Name] = _name(*_ROLE)
    """Role that the daemon assumes for the stream; empty: the node's."""
    external_id: AtStart[Name] = _name(*_EXTERNAL)
    """External ID that the stream's ``role_arn`` requires."""
    queue_limit: Count = _in(1, RECORDS, default=1_000_000)
    """Records that the stream's queue may hold, from their acceptance to their end; when it is full, callers wait."""
    queue_limit_bytes: Bytes = _in(2 * KIB, 1024 * GIB, default=64 * MIB)
    """Bytes that the stream's queue may hold: key, data and hash key, 32 for each record, 1,024 for each frame."""
    linger_seconds: Seconds = _in(0, 3_600, default=0.1)
    """Longest time in seconds that a record waits for others to share its request."""
    aggregation: AtStart[Literal["none", "kpl"]] = "none"
    """"none": one Kinesis record per record; "kpl": many records in one, so that readers must use the KCL or
    deaggregate records themselves."""
    aggregate_max_bytes: Bytes = _in(KIB, MIB, default=51_200)
    """Largest aggregate, in bytes."""
    request_max_bytes: Bytes = _in(LEAST_REQUEST_BYTES, 10 * MIB, default=MIB)
    """Bytes in one PutRecords; a larger record is sent in a request of its own."""
    max_in_flight_requests: Count = _in(1, 1_024, default=24)
    """PutRecords that may be unanswered at the same time."""
    wire_format: AtStart[Literal["auto", "json", "cbor"]] = "auto"
    """Format of PutRecords: "cbor" is binary, a quarter smaller and cheaper than "json"; "auto": CBOR towards AWS's own
    hosts, and JSON towards any other, because some store other records than they get in CBOR."""
    request_timeout_seconds: Seconds = _in(0.05, 300, default=6)
    """Seconds in which Kinesis must answer a PutRecords, plus 1 for each 256 KiB in it."""
    record_ttl_seconds: Seconds = _in(0, 365 * 86_400, default=0)
    """Seconds after which a record that is not stored fails; 0: it never fails, and callers wait."""
    on_throttle: Literal["retry", "fail"] = "retry"
    """What the daemon does with a record that exceeds its shard's limit: send it again, or let it fail."""
    ordering: AtStart[Literal["none", "per_key"]] = "none"
    """"per_key": Within a shard, Kinesis stores records of one partition key and one caller in the order in which the
    caller sent them."""
    shard_rate_fraction: Fraction = _in(0.001, 10_000, default=1.0)
    """Highest share of each shard's 1 MiB/s and 1,000 records/s that this daemon sends."""

    def conflicts(self) -> Iterator[Conflict]:
        yield from _conflicts_of_role(self)
        if self.aggregate_max_bytes > self.request_max_bytes:
            yield Conflict("aggregate_max_bytes must not be larger than request_max_bytes", _KEYS_OF_FIT)
        if 0 < self.record_ttl_seconds <= self.linger_seconds:
            yield Conflict("record_ttl_seconds must be longer than linger_seconds, or 0", _KEYS_OF_AGE)
        if self.stream_arn is not None and self.stream_name is not None:
            yield Conflict("give stream_arn or stream_name, not both", ("stream_arn", "stream_name"))
        if self.region not in (None, self.stream_region):
            yield Conflict("region differs from the region in stream_arn; leave it out", ("stream_arn", "region"))

    @property
    def stream_region(self) -> str | None:
        """Region that the stream's own settings name, or None."""
        return self.region if self.stream_arn is None else self.stream_arn.split(":")[3]

    def queue_seconds(self, shards: int) -> float:
        """Return the seconds in which the daemon empties a full queue into this many shards, at its highest rate."""
        shard_seconds = self.queue_limit_bytes / MIB
        if self.aggregation == "none":  # an aggregate counts as one record, however many it has
            shard_seconds = min(shard_seconds, self.queue_limit / 1_000)
        return shard_seconds / self.shard_rate_fraction / shards


OF_ONE_STREAM: Final = ("stream_name", "stream_arn")
"""Settings that ``[defaults]`` cannot have, because all streams would become the same stream."""


def _conflicts_of_role(settings: NodeSettings | StreamSettings) -> Iterator[Conflict]:
    if settings.external_id is not None and settings.role_arn is None:
        yield Conflict("external_id needs a role_arn in the same table", ("external_id", "role_arn"))


_KEYS_OF_AGE: Final = ("record_ttl_seconds", "linger_seconds")
_KEYS_OF_FIT: Final = ("aggregate_max_bytes", "request_max_bytes")


@dataclass(frozen=True, slots=True)
class Config:
    """All settings.  ``streams`` has the full settings of each named stream, with ``defaults`` filled in.

    ``origins`` names the source of a value by its key in a file (``socket``, ``defaults.queue_limit``,
    ``streams."a".region``).  A key that is missing there has its default.
    """

    node: NodeSettings = field(default_factory=NodeSettings)
    defaults: StreamSettings = field(default_factory=StreamSettings)
    streams: Mapping[str, StreamSettings] = field(default_factory=lambda: MappingProxyType({}))
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), compare=False)

    def stream(self, name: str) -> StreamSettings:
        """Return the settings of a stream, which may have no table of its own."""
        return self.streams.get(name, self.defaults)
