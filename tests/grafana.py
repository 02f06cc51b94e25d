"""What does not fit Grafana's own types in a dashboard's JSON.

The package grafana-foundation-sdk is made from the schemas of Grafana, its panels and its Prometheus data source.  It
reads JSON into typed objects, but does not check the types.  So the values are compared with them here.
"""

from __future__ import annotations

import enum
import json
import types
import typing
import warnings
from collections.abc import Iterator, Mapping
from typing import Any


def misfits(dashboard: Mapping[str, Any]) -> list[str]:
    """Return each place with a key that Grafana does not know, or with a value of a wrong type."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it prefers another form, which older Grafanas cannot read
        from grafana_foundation_sdk.cog.plugins import register_default_plugins
        from grafana_foundation_sdk.models.dashboard import Dashboard
    register_default_plugins()
    try:
        read = Dashboard.from_json(dict(dashboard))
        return [*_lost(dashboard, _plain(read), ""), *_wrong(read, Dashboard, "")]
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        return [f"cannot be read: {error!r}"]


def _plain(read: object) -> Any:
    return json.loads(json.dumps(read, default=lambda each: each.to_json()))


def _lost(given: object, kept: object, where: str) -> Iterator[str]:
    """What does not come back when Grafana's types have read it: keys that they do not have."""
    if isinstance(given, Mapping) and isinstance(kept, Mapping):
        for key, value in given.items():
            if key in kept:
                yield from _lost(value, kept[key], f"{where}.{key}")
            elif value is not None:
                yield f"{where}.{key}: unknown"
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (before, after) in enumerate(zip(given, kept, strict=True)):
            yield from _lost(before, after, f"{where}[{number}]")
    elif given != kept:
        yield f"{where}: {given!r} became {kept!r}"


def _wrong(value: Any, kind: Any, where: str) -> Iterator[str]:
    """Where a value is not of its type."""
    if kind in (Any, object):
        kind = type(value)  # a panel's options, which have the type of its kind of panel
    if isinstance(value, dict) and hasattr(kind, "from_json"):  # in some lists
        given, value = value, kind.from_json(value)
        yield from _lost(given, _plain(value), where)
    origin, within = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        problems = [list(_wrong(value, each, where)) for each in within]
        if all(problems):
            yield from min(problems, key=lambda found: (found[0].startswith(f"{where}: "), len(found)))
    elif origin is list and isinstance(value, list):
        for number, each in enumerate(value):
            yield from _wrong(each, within[0], f"{where}[{number}]")
    elif origin is dict and isinstance(value, dict):
        for key, each in value.items():
            yield from _wrong(each, within[1], f"{where}.{key}")
    elif not _is_a(value, origin, kind, within):
        yield f"{where}: {value!r} is not a {getattr(kind, '__name__', kind)}"
    elif hasattr(value, "to_json"):
        for name, hint in typing.get_type_hints(type(value)).items():
            yield from _wrong(getattr(value, name), hint, f"{where}.{name}")


def _is_a(value: Any, origin: Any, kind: Any, within: tuple[Any, ...]) -> bool:
    if origin is typing.Literal:
        return value in within
    if issubclass(kind if isinstance(kind, type) else origin or object, enum.Enum):
        return value in [each.value for each in kind]
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, origin or kind) and not (kind is int and isinstance(value, bool))
