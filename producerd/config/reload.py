"""Compute the settings of a running daemon after it has read its sources again.

Most settings change at once.  A setting that needs a restart (`AtStart`) keeps its value; for a stream, as long as the
stream is open.  The result lists both kinds of changes.  It is a valid `Config`, or `reload` raises an error.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from producerd.config.settings import Config, Settings, needs_restart
from producerd.config.text import assignment
from producerd.errors import ConfigurationError

_S = TypeVar("_S", bound=Settings)


@dataclass(frozen=True, slots=True)
class Reload:
    """The settings after a reload: ``config`` is in force from now on.

    ``changes`` has a line for each setting that changes, ``needs_restart`` a line for each one that keeps its old
    value.
    """

    config: Config
    changes: tuple[str, ...]
    needs_restart: tuple[str, ...]


def reload(current: Config, loaded: Config, open_streams: Collection[str]) -> Reload:
    """Mix the settings in effect with newly loaded ones.  Raise ConfigurationError if the mixture is not valid."""
    config = _mixed(current, loaded, open_streams)
    if len(config.streams) > config.node.max_streams:
        problem = (
            f"max_streams = {config.node.max_streams}: {len(config.streams)} streams have settings of their own, "
            "including open streams that are not listed any more; a restart would apply all new settings"
        )
        raise ConfigurationError((problem,))
    return Reload(config, tuple(_differences(current, config)), tuple(_differences(config, loaded)))


def _mixed(current: Config, loaded: Config, open_streams: Collection[str]) -> Config:
    defaults_open = any(name not in current.streams for name in open_streams)
    defaults = _kept(current.defaults, loaded.defaults) if defaults_open else loaded.defaults
    streams = dict(loaded.streams)
    for name in open_streams:
        settings = _kept(current.stream(name), loaded.stream(name))
        if name in current.streams and name not in loaded.streams:  # a table taken away must not open it to all users
            settings = settings.model_copy(update={"allowed_uids": current.stream(name).allowed_uids})
        if settings != streams.get(name, defaults):  # an open stream keeps its table even if the file lost it
            streams[name] = settings
    mixed = Config(_kept(current.node, loaded.node), defaults, MappingProxyType(streams))
    return Config(mixed.node, defaults, mixed.streams, MappingProxyType(dict(_origins(mixed, current, loaded))))


def _kept(before: _S, after: _S) -> _S:
    """Return the new settings, with the old values of those that need a restart."""
    fields = type(after).model_fields
    return after.model_copy(update={name: getattr(before, name) for name in fields if needs_restart(fields[name])})


def _tables(config: Config) -> Iterator[tuple[str, Settings]]:
    """Yield every table, with the prefix of its keys."""
    yield "", config.node
    yield "defaults.", config.defaults
    for name, settings in config.streams.items():
        yield f"streams.{json.dumps(name)}.", settings


def _differences(before: Config, after: Config) -> Iterator[str]:
    """Yield a line for each difference.  A stream's line is left out if its defaults have the same line."""
    old, new = dict(_tables(before)), dict(_tables(after))
    of_defaults = list(_changed(before.defaults, after.defaults))
    for place in old | new:
        if place not in new:
            yield f"{place[:-1]}: removed"
        elif place not in old:
            yield f"{place[:-1]}: added"
        else:
            for line in _changed(old[place], new[place]):
                if not (place.startswith("streams.") and line in of_defaults):
                    yield place + line


def _changed(before: Settings, after: Settings) -> Iterator[str]:
    for name, value in after:
        if value != getattr(before, name):
            change = f"{_value(name, getattr(before, name))} -> {_value(name, value)}"
            yield f"{name}: {'changed' if name == 'external_id' else change}"  # an external id is a secret


def _value(name: str, value: object) -> str:
    return assignment(name, value).partition(" = ")[2]


def _origins(mixed: Config, current: Config, loaded: Config) -> Iterator[tuple[str, str]]:
    """Yield each value's key and source, from the new settings if they have this value, otherwise from the old."""
    sources = [(config, dict(_tables(config))) for config in (loaded, current)]
    for place, settings in _tables(mixed):
        for name, value in settings:
            for config, tables in sources:
                inherits = place not in tables
                if getattr(tables["defaults." if inherits else place], name) == value:
                    origin = config.origins.get(("defaults." if inherits else place) + name)
                    if origin is not None:
                        yield place + name, f"defaults: {origin}" if inherits else origin
                    break
