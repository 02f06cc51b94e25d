"""Reload: what comes of settings that were read anew while the daemon runs.

Settings that a running daemon can change are the new ones at once; those that need a restart (`AtStart`) stay as they
were, for a stream while it is open.  Whatever is neither in effect nor as it was is said.  The result agrees in itself
as every `Config` does, or there is none.
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
    """``config`` is to be in effect; ``changes`` has what it changes, ``needs_restart`` what it leaves, a line each."""

    config: Config
    changes: tuple[str, ...]
    needs_restart: tuple[str, ...]


def reload(current: Config, loaded: Config, open_streams: Collection[str]) -> Reload:
    """``current`` is in effect, ``loaded`` was read anew.  Raises ConfigurationError where they cannot be mixed."""
    config = _mixed(current, loaded, open_streams)
    if problems := list(_problems(config)):
        raise ConfigurationError(problems)
    return Reload(config, tuple(_differences(current, config)), tuple(_differences(config, loaded)))


def _mixed(current: Config, loaded: Config, open_streams: Collection[str]) -> Config:
    defaults_open = any(name not in current.streams for name in open_streams)
    defaults = _kept(current.defaults, loaded.defaults) if defaults_open else loaded.defaults
    streams = dict(loaded.streams)
    for name in open_streams:
        settings = _kept(current.stream(name), loaded.stream(name))
        if settings != streams.get(name, defaults):  # a table that is gone stays while its stream cannot do without
            streams[name] = settings
    mixed = Config(_kept(current.node, loaded.node), defaults, MappingProxyType(streams))
    return Config(mixed.node, defaults, mixed.streams, MappingProxyType(dict(_origins(mixed, current, loaded))))


def _kept(before: _S, after: _S) -> _S:
    """The new settings, with those that need a restart as they were."""
    fields = type(after).model_fields
    return after.model_copy(update={name: getattr(before, name) for name in fields if needs_restart(fields[name])})


def _problems(config: Config) -> Iterator[str]:
    """What is wrong together, now that old and new stand beside each other."""
    for place, settings in _tables(config):
        for conflict in settings.conflicts():
            values = ", ".join(f"{place}{assignment(key, getattr(settings, key))}" for key in conflict.keys)
            yield f"{values}: {conflict.message}; a restart would take all that was read"
    if len(config.streams) > config.node.max_streams:
        yield (
            f"max_streams = {config.node.max_streams}: {len(config.streams)} streams have settings of their own, with "
            "those that are open and not listed any more; a restart would take all that was read"
        )


def _tables(config: Config) -> Iterator[tuple[str, Settings]]:
    """Every table, by what its keys begin with."""
    yield "", config.node
    yield "defaults.", config.defaults
    for name, settings in config.streams.items():
        yield f"streams.{json.dumps(name)}.", settings


def _differences(before: Config, after: Config) -> Iterator[str]:
    """A line each; what streams have from the defaults is said there."""
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
            told = f"{_value(name, getattr(before, name))} -> {_value(name, value)}"
            yield f"{name}: {'changed' if name == 'external_id' else told}"  # it is kept as a secret


def _value(name: str, value: object) -> str:
    return assignment(name, value).partition(" = ")[2]


def _origins(mixed: Config, current: Config, loaded: Config) -> Iterator[tuple[str, str]]:
    """Of each value: where the new settings have it from, if they have it, else where it was from."""
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
