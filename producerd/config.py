"""Settings: if a `Config` exists, every value in it is valid, and it never changes.

A setting comes from ``--set``, else from the environment (``PRODUCERD_`` + upper case), else from the TOML file, else
from its default.  `load` finds every problem at once, and each problem is one line that names the key, the value, what
is allowed and where the value came from.  Node settings stand at the file's top level, those of a stream in
``[defaults]`` and, for one stream, in ``[streams."NAME"]``; a stream's own table is laid over the defaults.

Sizes are whole bytes or text with a unit ("64 MiB"); durations are seconds, in keys that end in ``_seconds``.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from producerd.errors import ConfigurationError

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": KIB, "MIB": MIB, "GIB": GIB}
"""No bare "m": it is 10^6 to some and 2^20 to Spark."""
RECORDS: Final = 2**32 - 1
SOCKET_PATH_BYTES: Final = 107
"""Linux's sockaddr_un holds 108 bytes with the closing zero."""
PREFIX: Final = "PRODUCERD_"
_FOR_OTHERS: Final = re.compile(r"CONFIG|(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")
"""PRODUCERD_CONFIG names the file; the others are what Kubernetes gives each pod beside a Service named producerd*."""
STREAM_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")  # as the service has it
_URL_FORM: Final = re.compile(r"https?://[^\s/?#@]+(/[\w.~%/+:=,-]*)?", re.ASCII)
_HOST_LABEL: Final = re.compile(r"(?!-)[a-zA-Z0-9-]{1,63}(?<!-)")
"""RFC 1123.  No underscores, though container networks have them: botocore makes no client for such a host."""


# --- how values are read -----------------------------------------------------------------------------------------


def _not_bool(value: object) -> object:
    if isinstance(value, bool):  # Python takes True for 1
        raise ValueError("not a number")
    return value


def _to_bytes(value: object) -> object:
    if not isinstance(value, str):
        return _not_bool(value)
    match = re.fullmatch(r"\s*([\d_]+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].upper() not in UNITS:
        raise ValueError("not a size")
    size = float(match[1]) * UNITS[match[2].upper()]
    return int(match[1]) * UNITS[match[2].upper()] if match[1].replace("_", "").isdigit() else size


def _to_mode(value: object) -> int:
    """Octal text only: TOML's plain 660 would be another mode than 0660."""
    if not isinstance(value, str) or not re.fullmatch(r"0?[0-7]{3}", value):
        raise ValueError("not an octal mode")
    return int(value, 8)


def _to_path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError("not a path")
    if len(os.fsencode(value)) > SOCKET_PATH_BYTES:
        raise ValueError("too long")
    return Path(value)


def _to_url(value: object) -> object:
    if value is None or value == "":
        return None
    if isinstance(value, str) and _URL_FORM.fullmatch(value):
        parts = urlsplit(value)
        if parts.port != 0 and _is_host(parts.hostname or ""):  # `port` itself raises on 99999
            return value
    raise ValueError("not a URL")


def _is_host(name: str) -> bool:
    """An IP address, or the name of a host: its last label is not a number."""
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        labels = name.removesuffix(".").split(".")
        return len(name) <= 253 and all(map(_HOST_LABEL.fullmatch, labels)) and not labels[-1].isdigit()


def _to_listen(value: object) -> object:
    if value != "":
        split_listen(str(value))
    return value


def split_listen(text: str) -> tuple[str, int]:
    """``host:port`` or ``[v6 address]:port``."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]]+)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65_535:
        raise ValueError("not host:port")
    return match[1] or match[2], int(match[3])


def _blank_is_none(value: object) -> object:
    return None if value == "" else value


Count = Annotated[int, BeforeValidator(_not_bool)]
Bytes = Annotated[int, BeforeValidator(_to_bytes)]
Seconds = Annotated[float, BeforeValidator(_not_bool)]
Fraction = Annotated[float, BeforeValidator(_not_bool)]
Mode = Annotated[int, BeforeValidator(_to_mode)]
SocketPath = Annotated[Path, BeforeValidator(_to_path)]
AdminPath = Annotated[Path | None, BeforeValidator(lambda value: _to_path(value) if value else None)]
Url = Annotated[str | None, BeforeValidator(_to_url)]
Listen = Annotated[str, BeforeValidator(_to_listen)]
Name = Annotated[str | None, BeforeValidator(_blank_is_none)]


def _in(low: float, high: float, *, default: float) -> Any:
    return Field(default, ge=low, le=high)


def _say(words: str) -> dict[str, JsonValue]:
    """What is allowed, where no range says it."""
    return {"allowed": words}


def _name(pattern: str, words: str) -> Any:
    """A name that may be left out."""
    return Field(default=None, pattern=pattern, json_schema_extra=_say(words))


def default_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """The system's place if this process may write there, else that of the user."""
    system, user = Path("/run/producerd"), environ.get("XDG_RUNTIME_DIR", "")
    if user and os.geteuid() != 0 and not os.access(system, os.W_OK):
        return Path(user, "producerd", "producerd.sock")
    return system / "producerd.sock"


# --- the settings ------------------------------------------------------------------------------------------------

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


class _Conflict(NamedTuple):
    """Settings that are right, each alone, and wrong together."""

    message: str
    keys: tuple[str, ...]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    later: ClassVar[frozenset[str]] = frozenset()
    """Names that docs/names.md has and this version has not."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if conflicts := list(self._conflicts()):
            message = "; ".join(conflict.message for conflict in conflicts)
            raise PydanticCustomError("conflict", "{message}", {"message": message, "conflicts": conflicts})
        return self

    def _conflicts(self) -> Iterator[_Conflict]:
        raise NotImplementedError


class NodeSettings(_Settings):
    """What holds for the whole daemon."""

    socket: SocketPath = Field(
        default_factory=default_socket, json_schema_extra=_say(f"a path of 1 to {SOCKET_PATH_BYTES} bytes")
    )
    """Path of the unix socket that Spark's tasks connect to."""
    socket_mode: Mode = Field(default=0o660, json_schema_extra=_say('an octal mode in quotes, such as "0660"'))
    """Who may connect, as an octal file mode."""
    socket_group: Name = Field(default=None, pattern=r"^[^\s:]+$", json_schema_extra=_say("the name of a group"))
    """Group that owns the socket; empty: the daemon's own."""
    admin_socket: AdminPath = Field(
        default=None, json_schema_extra=_say(f"a path of 1 to {SOCKET_PATH_BYTES} bytes, or empty")
    )
    """Path of the unix socket of producerctl, for the daemon's own user; empty: NAME.admin.sock beside ``socket``."""
    metrics_listen: Listen = Field(
        default="127.0.0.1:9474", json_schema_extra=_say('host:port with a port from 0 to 65535, or ""')
    )
    """host:port of GET /metrics and /-/ready; empty: off; port 0: any free port."""
    region: Name = _name(*_REGION)
    """AWS region; empty: AWS's own settings say it."""
    endpoint_url: Url = Field(default=None, json_schema_extra=_say(_URL))
    """Address of Kinesis; empty: that of the region."""
    role_arn: Name = _name(*_ROLE)
    """Role that is assumed for every stream that names none; empty: the daemon's own credentials are used."""
    external_id: Name = _name(*_EXTERNAL)
    """What the role of ``role_arn`` asks of whoever assumes it."""
    max_streams: Count = _in(1, 10_000, default=64)
    """Streams that the daemon carries at the same time."""
    streams_allowed: Literal["any", "listed"] = "any"
    """Streams that a client may open; "listed": those with a table of their own."""
    worker_threads: Count = _in(1, 16, default=1)
    """Threads that sort and encode rows."""
    max_connections: Count = _in(1, 65_536, default=256)
    """Client connections at the same time."""
    max_frame_bytes: Bytes = _in(4 * KIB, 64 * MIB, default=MIB)
    """Largest frame that a client may send, in bytes; one larger record goes alone."""
    max_frame_records: Count = _in(1, 1_000_000, default=10_000)
    """Largest frame that a client may send, in records."""
    session_window_bytes: Bytes = _in(4 * KIB, GIB, default=8 * MIB)
    """Bytes that one connection may have unacknowledged, or one frame."""
    session_window_frames: Count = _in(1, 4_096, default=64)
    """Frames that one connection may have unacknowledged."""
    drain_timeout_seconds: Seconds = _in(0, 86_400, default=60)
    """Seconds from SIGTERM until the daemon ends, whatever is still queued."""
    body_timeout_seconds: Seconds = _in(0.05, 3_600, default=10)
    """Seconds in which a granted frame must arrive whole."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe messages that are written."""
    log_format: Literal["text", "json"] = "text"
    """One line a message, for people or as JSON."""

    later = frozenset({"allowed_uids", "node_queue_limit_bytes", "node_max_in_flight_bytes"})

    def _conflicts(self) -> Iterator[_Conflict]:
        yield from _conflicts_of_role(self)
        if self.admin_path == self.socket:
            yield _Conflict("admin_socket must be another path than socket", ("socket", "admin_socket"))
        if len(os.fsencode(self.admin_path)) > SOCKET_PATH_BYTES:
            yield _Conflict(f"{self.admin_path} is longer than a socket's path may be: give admin_socket", ("socket",))

    @property
    def admin_path(self) -> Path:
        """Where producerctl connects."""
        return self.admin_socket or self.socket.with_suffix(".admin.sock")

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of ``metrics_listen``; None: off."""
        return split_listen(self.metrics_listen) if self.metrics_listen else None


class StreamSettings(_Settings):
    """What holds for one stream."""

    stream_name: Name = _name(f"^{STREAM_NAME.pattern}$", "1 to 128 of a-z A-Z 0-9 _ . -")
    """The stream's name in Kinesis; empty: that of its table."""
    stream_arn: Name = _name(*_STREAM_ARN)
    """The stream's ARN, in place of its name: also for a stream of another account."""
    region: Name = _name(*_REGION)
    """AWS region of the stream; empty: that of its ARN, else of the node."""
    endpoint_url: Url = Field(default=None, json_schema_extra=_say(_URL))
    """Address of Kinesis for the stream; empty: that of the node."""
    role_arn: Name = _name(*_ROLE)
    """Role that is assumed for the stream; empty: that of the node."""
    external_id: Name = _name(*_EXTERNAL)
    """What the role of the stream's ``role_arn`` asks of whoever assumes it."""
    queue_limit: Count = _in(1, RECORDS, default=1_000_000)
    """Records of the stream that may be taken on and not settled; at it, callers wait."""
    queue_limit_bytes: Bytes = _in(2 * KIB, 1024 * GIB, default=64 * MIB)
    """The same in bytes: key, data and hash key, 32 for each record, 1,024 for each frame."""
    linger_seconds: Seconds = _in(0, 3_600, default=0.1)
    """Longest time that a record waits for others to be sent with, in seconds."""
    aggregation: Literal["none", "kpl"] = "none"
    """One record as one Kinesis record, or ("kpl") many in one: then only KCL and the like can read the stream."""
    aggregate_max_bytes: Bytes = _in(KIB, MIB, default=51_200)
    """Largest aggregate, in bytes."""
    aggregate_max_records: Count = _in(1, RECORDS, default=RECORDS)
    """Largest aggregate, in records."""
    request_max_records: Count = _in(1, 500, default=500)
    """Kinesis records in one PutRecords."""
    request_max_bytes: Bytes = _in(64 * KIB, 10 * MIB, default=MIB)
    """Bytes in one PutRecords; one larger record goes alone."""
    max_in_flight_requests: Count = _in(1, 1_024, default=24)
    """PutRecords that may be unanswered at the same time."""
    max_in_flight_bytes: Bytes = _in(64 * KIB, 4 * GIB, default=32 * MIB)
    """Bytes in unanswered PutRecords, or one request."""
    connect_timeout_seconds: Seconds = _in(0.05, 300, default=5)
    """Seconds in which a connection to Kinesis must be made."""
    request_timeout_seconds: Seconds = _in(0.05, 300, default=6)
    """Seconds in which PutRecords must be answered; 1 more for each 256 KiB in it."""
    record_ttl_seconds: Seconds = _in(0, 365 * 86_400, default=0)
    """Seconds after which a record that is not stored fails; 0: never, callers wait."""
    on_throttle: Literal["retry", "fail"] = "retry"
    """What becomes of a record that its shard's limit refuses: sent again, or failed."""
    ordering: Literal["none", "per_key"] = "none"
    """Whether records of one key and one caller are stored in the order in which they were sent."""
    shard_rate_fraction: Fraction = _in(0.001, 10_000, default=1.0)
    """Of each shard's 1 MiB/s and 1,000 records/s, how much this daemon sends at most."""
    shard_map_wait_seconds: Seconds = _in(0.5, 3_600, default=10)
    """Longest wait for a list of shards, in seconds."""
    permanent_error_grace_seconds: Seconds = _in(0, 86_400, default=60)
    """Seconds for which a stream that has worked may be refused before its records fail."""

    later = frozenset({"wire_format"})

    def _conflicts(self) -> Iterator[_Conflict]:
        yield from _conflicts_of_role(self)
        if self.aggregate_max_bytes > self.request_max_bytes:
            yield _Conflict("aggregate_max_bytes must not be larger than request_max_bytes", _KEYS_OF_FIT)
        if 0 < self.record_ttl_seconds <= self.linger_seconds:
            yield _Conflict("record_ttl_seconds must be longer than linger_seconds, or 0", _KEYS_OF_AGE)
        if self.stream_arn is not None and self.stream_name is not None:
            yield _Conflict("give stream_arn or stream_name, not both", ("stream_arn", "stream_name"))
        if self.stream_arn is not None and self.region not in (None, self.stream_region):
            yield _Conflict("region is not that of stream_arn; leave it out", ("stream_arn", "region"))

    @property
    def stream_region(self) -> str | None:
        """The region that the stream's own settings name."""
        return self.region if self.stream_arn is None else self.stream_arn.split(":")[3]


_OF_ONE_STREAM: Final = ("stream_name", "stream_arn")
"""What `[defaults]` cannot have: it would make one stream of all."""


def _conflicts_of_role(settings: NodeSettings | StreamSettings) -> Iterator[_Conflict]:
    if settings.external_id is not None and settings.role_arn is None:
        yield _Conflict("external_id needs a role_arn in the same table", ("external_id", "role_arn"))


_S = TypeVar("_S", bound=_Settings)
_KEYS_OF_AGE: Final = ("record_ttl_seconds", "linger_seconds")
_KEYS_OF_FIT: Final = ("aggregate_max_bytes", "request_max_bytes")


@dataclass(frozen=True, slots=True)
class Config:
    """All settings.  ``streams`` has what the named streams use, already laid over ``defaults``."""

    node: NodeSettings = field(default_factory=NodeSettings)
    defaults: StreamSettings = field(default_factory=StreamSettings)
    streams: Mapping[str, StreamSettings] = field(default_factory=lambda: MappingProxyType({}))

    def stream(self, name: str) -> StreamSettings:
        return self.streams.get(name, self.defaults)


# --- where values come from --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Given:
    """One value as somebody wrote it: under which key, and where."""

    value: object
    key: str
    origin: str

    def __str__(self) -> str:
        return f"{self.key} = {_shown(self.value)} ({self.origin})"


@dataclass(slots=True)
class _Sheet:
    """Everything given so far, later sources over earlier ones, and every problem met on the way."""

    node: dict[str, _Given] = field(default_factory=dict)
    defaults: dict[str, _Given] = field(default_factory=dict)
    streams: dict[str, dict[str, _Given]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def put_node(self, name: str, given: _Given) -> None:
        if name in StreamSettings.model_fields and name not in NodeSettings.model_fields:
            self.problems.append(f'{given}: a setting of streams: it belongs in [defaults] or [streams."NAME"]')
        elif _known(NodeSettings, name, given, self.problems, ("defaults", "streams", *StreamSettings.model_fields)):
            self.node[name] = given

    def put_default(self, name: str, given: _Given) -> None:
        if name in _OF_ONE_STREAM:
            self.problems.append(f'{given}: it is that of one stream: it belongs in [streams."NAME"]')
        elif self._of_streams(name, given):
            self.defaults[name] = given

    def put_stream(self, stream: str, name: str, given: _Given) -> None:
        if self._of_streams(name, given):
            self.streams.setdefault(stream, {})[name] = given

    def _of_streams(self, name: str, given: _Given) -> bool:
        if name in NodeSettings.model_fields and name not in StreamSettings.model_fields:
            self.problems.append(f"{given}: a setting of the node: it belongs at the file's top level")
            return False
        return _known(StreamSettings, name, given, self.problems)

    def name_stream(self, stream: str, origin: str) -> bool:
        if STREAM_NAME.fullmatch(stream):
            self.streams.setdefault(stream, {})
            return True
        self.problems.append(
            f"streams.{_shown(stream)} ({origin}): not a stream's name; allowed: 1 to 128 of a-z A-Z 0-9 _ . -"
        )
        return False


def load(path: Path | None = None, sets: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> Config:
    """The settings of file, environment and ``--set``.  Raises `ConfigurationError` with every problem."""
    sheet = _Sheet()
    named = path or environ.get(f"{PREFIX}CONFIG")
    if named:
        _read_file(sheet, Path(named))
    _read_environment(sheet, environ)
    for text in sets:
        _read_set(sheet, text)
    return _validated(sheet, environ)


def _read_file(sheet: _Sheet, path: Path) -> None:
    origin = f"file {path}"
    try:
        document = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        sheet.problems.append(f"{origin}: cannot be read: {error.strerror}")
        return
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        sheet.problems.append(f"{origin}: not TOML: {error}")
        return
    for name, value in document.items():
        if name == "defaults":
            for inner, item in _table(sheet, value, "defaults", origin):
                sheet.put_default(inner, _Given(item, f"defaults.{inner}", origin))
        elif name == "streams":
            for stream, table in _table(sheet, value, "streams", origin):
                _read_stream(sheet, stream, table, origin)
        else:
            sheet.put_node(name, _Given(value, name, origin))


def _read_stream(sheet: _Sheet, stream: str, table: object, origin: str) -> None:
    if sheet.name_stream(stream, origin):
        place = f"streams.{json.dumps(stream)}"
        for name, value in _table(sheet, table, place, origin):
            sheet.put_stream(stream, name, _Given(value, f"{place}.{name}", origin))


def _table(sheet: _Sheet, value: object, key: str, origin: str) -> Iterable[tuple[str, object]]:
    if isinstance(value, dict):
        return value.items()
    sheet.problems.append(f"{_Given(value, key, origin)}: allowed: a table, [{key}]")
    return ()


def _read_environment(sheet: _Sheet, environ: Mapping[str, str]) -> None:
    for variable in sorted(environ):
        name = variable.removeprefix(PREFIX)
        if name != variable and not _FOR_OTHERS.fullmatch(name):
            _put_anywhere(sheet, name.lower(), _Given(environ[variable], variable, "environment"))


def _read_set(sheet: _Sheet, text: str) -> None:
    key, equals, value = text.partition("=")
    path = _dotted(key)
    given = _Given(value.strip(), key.strip(), "--set")
    match path if equals else None:
        case [name]:
            _put_anywhere(sheet, name, given)
        case ["defaults", name]:
            sheet.put_default(name, given)
        case ["streams", stream, name]:
            if sheet.name_stream(stream, "--set"):
                sheet.put_stream(stream, name, given)
        case _:
            sheet.problems.append(
                f"{_shown(text)} (--set): allowed: KEY=VALUE or streams.NAME.KEY=VALUE (quote a name with dots: "
                'streams."a.b".KEY=VALUE)'
            )


def _dotted(key: str) -> list[str] | None:
    """The parts of a dotted key, quoted as TOML has it."""
    try:
        node: object = tomllib.loads(f"{key.strip()} = 0") if "\n" not in key else None
    except tomllib.TOMLDecodeError:
        return None
    parts = []
    while isinstance(node, dict) and len(node) == 1:
        ((part, node),) = node.items()
        parts.append(part)
    return parts


def _put_anywhere(sheet: _Sheet, name: str, given: _Given) -> None:
    """Environment and --set have no tables: the name says where it belongs."""
    of_node = NodeSettings.model_fields.keys() | NodeSettings.later
    if name not in of_node and name in StreamSettings.model_fields.keys() | StreamSettings.later:
        sheet.put_default(name, given)
    elif _known(NodeSettings, name, given, sheet.problems, StreamSettings.model_fields):
        sheet.node[name] = given


def _known(model: type[_Settings], name: str, given: _Given, problems: list[str], also: Iterable[str] = ()) -> bool:
    if name in model.model_fields:
        return True
    if name in model.later:
        problems.append(f"{given}: not supported yet by this version")
        return False
    near = difflib.get_close_matches(name.replace("-", "_").lower(), [*model.model_fields, *also], n=1, cutoff=0.5)
    as_written = [PREFIX + n.upper() for n in near] if given.origin == "environment" else near
    nearest = f"the nearest is {as_written[0]}" if near else "`producerd config print` shows all"
    problems.append(f"{given}: no such setting; {nearest}")
    return False


# --- values that hold --------------------------------------------------------------------------------------------


def _validated(sheet: _Sheet, environ: Mapping[str, str]) -> Config:
    socket = _Given(default_socket(environ), "socket", "default")
    node = _build(NodeSettings, {"socket": socket, **sheet.node}, sheet.problems)
    defaults = _build(StreamSettings, sheet.defaults, sheet.problems)
    streams = {
        stream: _build(StreamSettings, {**sheet.defaults, **own}, sheet.problems)
        for stream, own in sheet.streams.items()
    }
    if node is not None:
        sheet.problems.extend(_misfits(node, sheet))
    if sheet.problems or node is None or defaults is None:
        raise ConfigurationError(tuple(dict.fromkeys(sheet.problems)))  # a bad default shows in each stream
    return Config(node, defaults, MappingProxyType({k: v for k, v in streams.items() if v is not None}))


def _build(
    model: type[_S], given: Mapping[str, _Given], problems: list[str], without: Collection[str] = ()
) -> _S | None:
    """The settings; None, and every problem, where some do not hold.

    What is wrong alone hides what is wrong together, so the others are looked at once more ``without`` it.
    """
    try:
        built = model.model_validate({name: item.value for name, item in given.items() if name not in without})
        return None if without else built
    except ValidationError as error:
        faults = error.errors(include_url=False)
    if faults[0]["type"] == "conflict":
        found: list[_Conflict] = faults[0]["ctx"]["conflicts"]
        problems.extend(_explained(model, given, each) for each in found if not set(each.keys) & set(without))
        return None
    wrong = [str(fault["loc"][0]) for fault in faults]
    problems.extend(f"{given[name]}: allowed: {allowed(name, model.model_fields[name])}" for name in wrong)
    return _build(model, given, problems, wrong)


def _explained(model: type[_Settings], given: Mapping[str, _Given], conflict: _Conflict) -> str:
    fields = model.model_fields
    values = [given.get(key) or _Given(fields[key].default, key, "default") for key in conflict.keys]
    return f"{', '.join(map(str, values))}: {conflict.message}"


def _misfits(node: NodeSettings, sheet: _Sheet) -> Iterator[str]:
    """What no single table can show."""
    if node.streams_allowed == "listed" and not sheet.streams:
        yield f'{sheet.node["streams_allowed"]}: no stream is listed: nobody could send; add a [streams."NAME"]'
    if len(sheet.streams) > node.max_streams:
        limit = sheet.node.get("max_streams", _Given(node.max_streams, "max_streams", "default"))
        yield f"{limit}: allowed: at least {len(sheet.streams)}, as so many streams are listed"


def allowed(name: str, info: FieldInfo) -> str:
    """What a setting may be, in words."""
    extra = info.json_schema_extra
    if isinstance(extra, dict):
        return str(extra["allowed"])
    if get_origin(info.annotation) is Literal:
        return " or ".join(json.dumps(choice) for choice in get_args(info.annotation))
    low, high = (next(getattr(m, side) for m in info.metadata if hasattr(m, side)) for side in ("ge", "le"))
    if name.endswith("_bytes"):
        return f'{size(low)} to {size(high)}, as bytes or as text such as "{size(info.default)}"'
    return f"{low:,} to {high:,}{' seconds' if name.endswith('_seconds') else ''}"


def size(count: int) -> str:
    """Bytes in the largest unit that divides them."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count and count % factor == 0:
            return f"{count // factor:,} {unit}"
    return f"{count:,}"


_SECRET: Final = re.compile(r'(?<=//).*@|(?<=")[^"/]*:[^"/]*@')
"""User and password of a URL, also of one without a scheme."""


def _shown(value: object) -> str:
    text = _SECRET.sub("***@", json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= 200 else f"{text[:200]}..."


# --- settings as text --------------------------------------------------------------------------------------------


def as_toml(config: Config) -> str:
    """A file that would give the same settings."""
    blocks = [_assignments(config.node), "[defaults]\n" + _assignments(config.defaults, without=_OF_ONE_STREAM)]
    for name, settings in sorted(config.streams.items()):
        blocks.append(f"[streams.{json.dumps(name)}]\n" + _assignments(settings))
    return "\n\n".join(blocks)


def differing(settings: _Settings, without: Collection[str] = ()) -> list[str]:
    """The settings that differ from their defaults, as a file has them; of an external id only that there is one."""
    fields = type(settings).model_fields
    names = [name for name in fields if name not in without and getattr(settings, name) != fields[name].default]
    return [f"{name} is set" if name == "external_id" else _assignment(name, getattr(settings, name)) for name in names]


def _assignments(settings: _Settings, without: Sequence[str] = ()) -> str:
    names = [name for name in type(settings).model_fields if name not in without]
    return "\n".join(_assignment(name, getattr(settings, name)) for name in names)


def _assignment(name: str, value: object) -> str:
    if value is None:
        return f'{name} = ""'
    if name == "socket_mode":
        return f'{name} = "{value:04o}"'
    if isinstance(value, float):
        return f"{name} = {value:g}"
    if name.endswith("_bytes") and isinstance(value, int) and value % KIB == 0:
        return f'{name} = "{size(value).replace(",", "")}"'
    return f"{name} = {json.dumps(value, ensure_ascii=False, default=str)}"
