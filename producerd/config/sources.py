"""Read settings from the file, the environment and ``--set``, and collect every problem.

A later source overrides an earlier one.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from pydantic import ValidationError

from producerd.config.file import contents
from producerd.config.memory import within_memory
from producerd.config.redaction import shown
from producerd.config.settings import (
    OF_ONE_STREAM,
    STREAM_NAME,
    Config,
    Conflict,
    NodeSettings,
    Settings,
    StreamSettings,
)
from producerd.config.text import allowed, toml_value
from producerd.config.tuning import TUNING
from producerd.config.values import default_socket, to_bytes
from producerd.errors import ConfigurationError

PREFIX: Final = "PRODUCERD_"
_S = TypeVar("_S", bound=Settings)
_FOR_OTHERS: Final = re.compile(r"CONFIG|(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")
"""Variables that are not settings: PRODUCERD_CONFIG names the file, and Kubernetes sets the others.

It gives them to each pod in a namespace that has a Service named producerd*.
"""


@dataclass(frozen=True, slots=True)
class _Given:
    """One value as a user wrote it, with its key and its source."""

    value: object
    key: str
    origin: str

    def __str__(self) -> str:
        key = self.key if self.key.isprintable() else ascii(self.key)  # a problem is one line
        return f"{key} = {shown(self.value, self.key)} ({self.origin})"

    @property
    def source(self) -> str:
        """The place in which a user can change the value."""
        return f"{self.origin} {self.key}" if self.origin == "environment" else self.origin


@dataclass(slots=True)
class _Sheet:
    """The values read until now, in which later sources replace earlier ones, and the problems found."""

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
        if name in OF_ONE_STREAM:
            self.problems.append(f'{given}: a setting of one stream: it belongs in [streams."NAME"]')
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
            f"streams.{shown(stream)} ({origin}): not a stream's name; allowed: 1 to 128 of a-z A-Z 0-9 _ . -"
        )
        return False


def load(path: Path | None = None, sets: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> Config:
    """Return the settings of file, environment and ``--set``.  Raise `ConfigurationError` with every problem."""
    return _validated(_read(path, sets, environ), environ)


def as_file(path: Path | None = None, sets: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> str:
    """Return a configuration file with what `load` would read and no defaults, or raise as `load` does.

    The file is for the daemon: unlike `as_toml` it holds secrets.
    """
    sheet = _read(path, sets, environ)
    _validated(sheet, environ)
    tables = {
        "[defaults]": sheet.defaults,
        **{f"[streams.{toml_value(name)}]": own for name, own in sheet.streams.items()},
    }
    lines = [f"{name} = {toml_value(one.value)}" for name, one in sheet.node.items()]
    for head, table in tables.items():
        lines += ["", head, *(f"{name} = {toml_value(one.value)}" for name, one in table.items())]
    return "\n".join(lines)


def _read(path: Path | None, sets: Sequence[str], environ: Mapping[str, str]) -> _Sheet:
    """Return what the sources give."""
    sheet = _Sheet()
    named = path or environ.get(f"{PREFIX}CONFIG")
    if named:
        _read_file(sheet, Path(named))
    _read_environment(sheet, environ)
    for text in sets:
        _read_set(sheet, text)
    return sheet


def _read_file(sheet: _Sheet, path: Path) -> None:
    origin = f"file {path}"
    try:
        document = tomllib.loads(contents(path).decode("utf-8-sig"))
    except OSError as error:
        sheet.problems.append(f"{origin}: cannot be read: {error.strerror}")
        return
    except (ValueError, RecursionError) as error:  # tomllib raises either one for thousands of digits or brackets
        needs_quotes = "; text needs quotes" if str(error).startswith("Invalid value") else ""
        sheet.problems.append(f"{origin}: not TOML: {error}{needs_quotes}")
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
            given = _Given(value, f"{place}.{name}", origin)
            if isinstance(value, dict) and name not in StreamSettings.model_fields:
                quoted = f"[streams.{json.dumps(f'{stream}.{name}')}]"
                sheet.problems.append(f"{given}: no such setting; a stream's name with dots has quotes: {quoted}")
            else:
                sheet.put_stream(stream, name, given)


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
            named = key.strip()
            said = shown(named, named if re.search(r"[\s:]", named) else "")  # behind one of these may be a secret
            sheet.problems.append(
                f"{said} (--set): allowed: KEY=VALUE or streams.NAME.KEY=VALUE (quote a name with dots: "
                'streams."a.b".KEY=VALUE)'
            )


def _dotted(key: str) -> list[str] | None:
    """Return the names in a dotted key, which may be quoted as in TOML, or None if it is not a key."""
    try:
        node: object = tomllib.loads(f"{key.strip()} = 0") if "\n" not in key else None
    except tomllib.TOMLDecodeError:
        return None
    names = []
    while isinstance(node, dict) and len(node) == 1:
        ((name, node),) = node.items()
        names.append(name)
    return names


def _put_anywhere(sheet: _Sheet, name: str, given: _Given) -> None:
    """Put a value into the node's table or the defaults, by its name: the environment has no tables."""
    if name not in NodeSettings.model_fields and name in StreamSettings.model_fields:
        sheet.put_default(name, given)
    elif _known(NodeSettings, name, given, sheet.problems, StreamSettings.model_fields):
        sheet.node[name] = given


ELSEWHERE: Final = {
    "queuelimit": "queue_limit",
    "maxconnections": "max_in_flight_requests",
    "ratelimit": "shard_rate_fraction",
    "collectionmaxcount": "request_max_records",
    "collectionmaxsize": "request_max_bytes",
    "aggregationenabled": "aggregation",
    "aggregationmaxcount": "aggregate_max_records",
    "aggregationmaxsize": "aggregate_max_bytes",
    "recordmaxbufferedtime": "linger_seconds",
    "recordttl": "record_ttl_seconds",
    "requesttimeout": "request_timeout_seconds",
    "connecttimeout": "connect_timeout_seconds",
    "kinesisendpoint": "endpoint_url",
    "failifthrottled": "on_throttle",
    "loglevel": "log_level",
}
"""Our names for settings of Flink's sink and the KPL, by their names in lower case (docs/use/migrating.md)."""


GONE: Final = {
    "transport": "every request goes the one way",
    "worker_threads": "one thread sorts and encodes large batches",
    "max_streams_per_user": "a user may have all but a sixteenth of max_streams",
    "max_connections_per_user": "a user may have all but a sixteenth of max_connections",
    "max_frame_bytes": "a frame has at most 1 MiB, or one larger record",
    "max_frame_records": "a frame has at most 10,000 records",
    "session_window_bytes": "a connection may have 8 MiB unacknowledged, and queue_limit_bytes limits all of a stream",
    "session_window_frames": "a connection may have 64 frames unacknowledged, and queue_limit limits all of a stream",
    "body_timeout_seconds": "a client has 10 s for a granted frame, and 1 s for each MiB more",
    "aggregate_max_records": "aggregate_max_bytes limits an aggregate",
    "request_max_records": "a request has up to 500 records, as Kinesis allows, and request_max_bytes limits it",
    "max_in_flight_bytes": "a stream may have 32 MiB on their way, max_in_flight_requests limits it further, and "
    "node_max_in_flight_bytes all streams together",
    "connect_timeout_seconds": "an attempt to connect may take 5 s",
    "shard_map_wait_seconds": "records wait up to 10 s for a list of shards",
    "permanent_error_grace_seconds": "Kinesis may refuse a stream that has worked for 60 s, until its records fail",
    "first_contact_timeout_seconds": "records wait 60 s for an endpoint that has never answered",
}
"""Settings of earlier versions, and what takes the place of each."""


def _known(model: type[Settings], name: str, given: _Given, problems: list[str], also: Iterable[str] = ()) -> bool:
    if name in model.model_fields:
        return True
    plain = name.replace("-", "_").lower()
    ours = ELSEWHERE.get(plain, plain)
    if ours in GONE:
        if not _changes_nothing(ours, given.value):
            problems.append(f"{given}: {ours} is gone since 0.2, so delete it: {GONE[ours]}")
        return False
    near = [ours] if ours != plain else difflib.get_close_matches(plain, [*model.model_fields, *also], cutoff=0.5)
    as_written = [PREFIX + n.upper() for n in near] if given.origin == "environment" else near
    nearest = f"the nearest is {as_written[0]}" if near else "`producerd config print` shows all"
    problems.append(f"{given}: no such setting; {nearest}")
    return False


def _changes_nothing(name: str, value: object) -> bool:
    """Return whether a setting that is gone has the value that a daemon has now.

    Files with such a value still start a daemon, because ``config print`` wrote every setting.
    """
    constant = getattr(TUNING, name, 0 if name.endswith("_per_user") else None)
    with suppress(TypeError, ValueError):
        given = to_bytes(value) if name.endswith("_bytes") else float(str(value))
        return constant is not None and given == constant
    return False


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
    named = MappingProxyType({name: settings for name, settings in streams.items() if settings is not None})
    return within_memory(Config(node, defaults, named, MappingProxyType(dict(_origins(sheet)))))


def _origins(sheet: _Sheet) -> Iterator[tuple[str, str]]:
    for name, given in sheet.node.items():
        yield name, given.source
    for name, given in sheet.defaults.items():
        yield f"defaults.{name}", given.source
    for stream, own in sheet.streams.items():
        for name, given in {**sheet.defaults, **own}.items():
            inherited = "" if name in own else "defaults: "
            yield f"streams.{json.dumps(stream)}.{name}", inherited + given.source


def _build(
    model: type[_S], given: Mapping[str, _Given], problems: list[str], without: Collection[str] = ()
) -> _S | None:
    """Return the settings that are valid, or None if some contradict each other, and append every problem.

    An invalid value hides conflicts between the others, so a second pass checks those ``without`` the invalid ones.
    """
    try:
        return model.model_validate({name: item.value for name, item in given.items() if name not in without})
    except ValidationError as error:
        faults = error.errors()
    if faults[0]["type"] == "conflict":
        found: list[Conflict] = faults[0]["ctx"]["conflicts"]
        problems.extend(_explained(model, given, each) for each in found if not set(each.keys) & set(without))
        return None
    wrong = [str(fault["loc"][0]) for fault in faults]
    for name, fault in zip(wrong, faults, strict=True):
        reason = f"{fault['msg']}; " if fault["type"] == "unknown" else ""
        problems.append(f"{given[name]}: {reason}allowed: {allowed(name, model.model_fields[name])}")
    return _build(model, given, problems, wrong)


def _explained(model: type[Settings], given: Mapping[str, _Given], conflict: Conflict) -> str:
    fields = model.model_fields
    values = [given.get(key) or _Given(fields[key].default, key, "default") for key in conflict.keys]
    return f"{', '.join(map(str, values))}: {conflict.message}"


def _misfits(node: NodeSettings, sheet: _Sheet) -> Iterator[str]:
    """Yield the problems that no single table shows."""
    if node.streams_allowed == "listed" and not sheet.streams:
        yield f'{sheet.node["streams_allowed"]}: no stream is listed, so no client could send; add a [streams."NAME"]'
    if len(sheet.streams) > node.max_streams:
        limit = sheet.node.get("max_streams", _Given(node.max_streams, "max_streams", "default"))
        yield f"{limit}: allowed: at least {len(sheet.streams)}, the number of listed streams"
