"""Control the fake Kinesis with JSON over HTTP, from tests in other languages or processes.

Each call returns the state after it.  A call that is refused (400, and a line that says why) changes nothing.
docs/use/testing.md lists the paths.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Protocol

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from producerd.testing.access import checked_clock_offset
from producerd.testing.faults import Fault, checked_actions
from producerd.testing.rules import FakeKinesis, checked_calls, checked_latency
from producerd.testing.streams import FakeStream, ServiceError, Strategy

PREFIX: Final = "/_fake/"

NotNegative = Annotated[float, Field(ge=0)]


class Server(Protocol):
    """The part of `FakeServer` that these calls use.  They read and set its settings and counters by name."""

    kinesis: FakeKinesis

    def now(self) -> float:
        """Return the service's time in seconds since 1970."""

    def release(self) -> None:
        """Let the rules decide again about every request that hangs."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ServiceSettings(_Body):
    """The settings that are attributes of `FakeKinesis`."""

    latency_seconds: Annotated[float | tuple[float, float], AfterValidator(checked_latency)] = 0.0
    enforce_limits: bool = False
    denied: Annotated[set[str], AfterValidator(checked_actions)] = set()
    calls_per_second: Annotated[dict[str, float], AfterValidator(checked_calls)] = {}


class ServerSettings(_Body):
    """The settings that are attributes of `FakeServer`."""

    uplink_bytes_per_second: NotNegative | None = None
    clock_offset_seconds: Annotated[float, AfterValidator(checked_clock_offset)] = 0.0
    checks_clock: bool = False
    accepted_access_keys: set[str] | None = None
    expired_access_keys: set[str] = set()


class FakeStreamSettings(_Body):
    """The settings that are attributes of a stream."""

    max_record_kib: int = 1024
    record_distribution_strategy: Strategy | None = None
    list_shards_lag_seconds: NotNegative = 0.0
    keeps_entries: bool = True


class FakeSettings(ServiceSettings, ServerSettings):
    """The body that sets settings.  A setting that is missing in it does not change."""

    streams: dict[str, FakeStreamSettings] = {}
    shard_delay_seconds: dict[str, dict[str, NotNegative]] = {}  # by stream and shard id


class Faults(_Body):
    """The body that sets faults.  Each list replaces all faults of its kind."""

    script: list[Fault] = []
    standing: list[Fault] = []


class NewStream(_Body):
    """The body that creates a stream, in place of an existing one with its name."""

    name: str
    shards: int | None = None
    max_record_kib: int = 1024
    edges: list[int] | None = None
    record_distribution_strategy: Strategy | None = None
    restart_sequences: bool = False


class OfStream(_Body):
    """The query of a call for one stream."""

    stream: str


def answer(server: Server, method: str, path: str, query: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
    """Return the status and the JSON that answer a call."""
    if f"{method} {path}" not in CALLS:
        return 404, _json({"error": f"no {method} {path}; there are {', '.join(CALLS)}"})
    kind, call = CALLS[f"{method} {path}"]
    try:
        given = kind.model_validate_json(body or b"{}") if method == "POST" else kind.model_validate(dict(query))
        return 200, _json(call(server, given))
    except ValidationError as error:
        return 400, _json({"error": "; ".join(map(_described, error.errors()))})
    except (ServiceError, ValueError) as error:
        return 400, _json({"error": str(error)})


def _described(problem: ErrorDetails) -> str:
    where, given = ".".join(map(str, problem["loc"])), problem["input"]
    return f"{where}: {problem['msg']}" + ("" if isinstance(given, dict) else f" (given: {given!r})")


def _json(value: Any) -> bytes:
    return orjson.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple):  # a NamedTuple: an Entry or a UserRecord
        return value._asdict()  # type: ignore[attr-defined]
    return sorted(value)


def _show_settings(server: Server, _: _Body) -> dict[str, Any]:
    streams = server.kinesis.streams
    return {
        **_shown(server.kinesis, ServiceSettings),
        **_shown(server, ServerSettings),
        "streams": {name: _shown(stream, FakeStreamSettings) for name, stream in streams.items()},
        "shard_delay_seconds": {
            name: {shard.shard_id: shard.delay_seconds for shard in stream.open_shards}
            for name, stream in streams.items()
        },
    }


def _set_settings(server: Server, given: FakeSettings) -> dict[str, Any]:
    streams = [(_stream(server, name), settings) for name, settings in given.streams.items()]
    shards = [
        (_stream(server, name).shard(shard_id), seconds)
        for name, delays in given.shard_delay_seconds.items()
        for shard_id, seconds in delays.items()
    ]
    _set(server.kinesis, given, ServiceSettings)
    _set(server, given, ServerSettings)
    for stream, settings in streams:
        _set(stream, settings, FakeStreamSettings)
    for shard, seconds in shards:
        shard.delay_seconds = seconds
    return _show_settings(server, given)


def _shown(target: object, kind: type[BaseModel]) -> dict[str, Any]:
    return {name: getattr(target, name) for name in kind.model_fields}


def _set(target: object, given: BaseModel, kind: type[BaseModel]) -> None:
    for name in given.model_fields_set & kind.model_fields.keys():
        setattr(target, name, getattr(given, name))


def _show_faults(server: Server, _: _Body) -> dict[str, Any]:
    return {"script": server.kinesis.scripted, "standing": server.kinesis.standing}


def _set_faults(server: Server, given: Faults) -> dict[str, Any]:
    if "script" in given.model_fields_set:
        server.kinesis.clear_script()
        server.kinesis.script(*given.script)
    if "standing" in given.model_fields_set:
        server.kinesis.standing[:] = given.standing
    return _show_faults(server, given)


def _release(server: Server, _: _Body) -> dict[str, Any]:
    server.release()
    return {}


def _create_stream(server: Server, given: NewStream) -> dict[str, Any]:
    kinesis, name = server.kinesis, given.name
    old = kinesis.streams.get(name)
    if old is not None:
        kinesis.delete_stream(name)
    try:
        return kinesis.create_stream(**given.model_dump(), now=server.now()).describe()
    except ValueError:
        if old is not None:
            kinesis.streams[name] = old
        raise


def _show_counters(server: Server, _: _Body) -> dict[str, Any]:
    kinesis = server.kinesis
    names = ("connections_open", "connections_peak", "connections_closed", "in_flight", "in_flight_peak")
    return {
        "requests": kinesis.requests,
        "replies": kinesis.replies,
        "results": kinesis.results,
        "most_calls_a_minute": {action: kinesis.most_calls(action, 60.0) for action in kinesis.call_times},
        **{name: getattr(server, name) for name in names},
    }


def _show_entries(server: Server, given: OfStream) -> dict[str, Any]:
    return {"entries": _stream(server, given.stream).entries()}


def _show_records(server: Server, given: OfStream) -> dict[str, Any]:
    reading = _stream(server, given.stream).read()
    return {"records": reading.records, "dropped_aggregates": reading.dropped_aggregates}


def _stream(server: Server, name: str) -> FakeStream:
    try:
        return server.kinesis.streams[name]
    except KeyError:
        raise ValueError(f"no stream {name!r}; there are {', '.join(server.kinesis.streams)}") from None


CALLS: Final[dict[str, tuple[type[_Body], Callable[[Server, Any], dict[str, Any]]]]] = {
    "GET /_fake/settings": (_Body, _show_settings),
    "POST /_fake/settings": (FakeSettings, _set_settings),
    "GET /_fake/faults": (_Body, _show_faults),
    "POST /_fake/faults": (Faults, _set_faults),
    "POST /_fake/release": (_Body, _release),
    "POST /_fake/streams": (NewStream, _create_stream),
    "GET /_fake/counters": (_Body, _show_counters),
    "GET /_fake/records": (OfStream, _show_records),
    "GET /_fake/entries": (OfStream, _show_entries),
}
