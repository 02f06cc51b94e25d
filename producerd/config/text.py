"""Write settings as text: as a configuration file, as a JSON Schema, and in messages."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from producerd.config.redaction import NOT_SHOWN
from producerd.config.settings import (
    OF_ONE_STREAM,
    STREAM_NAME,
    Config,
    NodeSettings,
    Settings,
    StreamSettings,
    needs_restart,
)
from producerd.config.values import KIB, size


def is_size(name: str) -> bool:
    """Return whether a setting is a number of bytes, which may be given as text with a unit."""
    return name.endswith("_bytes") or name == "memory"


def allowed(name: str, info: FieldInfo) -> str:
    """Return in words which values a setting allows."""
    extra = info.json_schema_extra
    if isinstance(extra, dict):
        return str(extra["allowed"])
    if get_origin(info.annotation) is Literal:
        return " or ".join(json.dumps(choice) for choice in get_args(info.annotation))
    low, high = (next(getattr(m, side) for m in info.metadata if hasattr(m, side)) for side in ("ge", "le"))
    if is_size(name):
        return f'{size(low)} to {size(high)}, as bytes or as text such as "{size(info.default)}"'
    return f"{low:,} to {high:,}{' seconds, as a number' if name.endswith('_seconds') else ''}"


def as_toml(config: Config, *, origins: bool = False) -> str:
    """Return a file that gives the same settings.  With ``origins`` a comment names the source of each."""

    def block(settings: Settings, key: str, without: Sequence[str] = ()) -> str:
        lines = {name: assignment(name, value) for name, value in settings if name not in without}
        width = max(map(len, lines.values()))
        return "\n".join(
            f"{line:{width}}  # {config.origins.get(key + name, 'default')}" if origins else line
            for name, line in lines.items()
        )

    blocks = [block(config.node, ""), "[defaults]\n" + block(config.defaults, "defaults.", OF_ONE_STREAM)]
    for name, settings in sorted(config.streams.items()):
        table = f"streams.{json.dumps(name)}"
        blocks.append(f"[{table}]\n" + block(settings, f"{table}."))
    return "\n\n".join(blocks)


def schema() -> dict[str, Any]:
    """Return a JSON Schema (2020-12) of the file, for editors."""
    streams = _table_schema(StreamSettings)
    defaults = _table_schema(StreamSettings, without=OF_ONE_STREAM)
    whole = _table_schema(NodeSettings)
    whole["properties"] |= {
        "defaults": {"description": "Settings of every stream that has no value of its own.", **defaults},
        "streams": {
            "description": "One table for each stream, which overrides the defaults.",
            "type": "object",
            "propertyNames": {"pattern": f"^{STREAM_NAME.pattern}$"},
            "additionalProperties": streams,
        },
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "producerd", **whole}


def _table_schema(model: type[Settings], without: Collection[str] = ()) -> dict[str, Any]:
    fields = {name: info for name, info in model.model_fields.items() if name not in without}
    properties = {name: _value_schema(name, info) for name, info in fields.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def plain(info: FieldInfo) -> str:
    """Return a setting's description in one line, without markup."""
    return " ".join(str(info.description).split()).replace("``", "")


def _value_schema(name: str, info: FieldInfo) -> dict[str, Any]:
    value: dict[str, Any] = {"description": f"{plain(info)} Allowed: {allowed(name, info)}."}
    if needs_restart(info):
        value["description"] += " A change needs a restart."
    if info.default is not PydanticUndefined:
        value["default"] = (
            "" if info.default is None else f"{info.default:04o}" if name == "socket_mode" else info.default
        )
    if name == "allowed_uids":
        users = {"type": "array", "items": {"type": ["integer", "string"]}}
        return {**value, "default": [], "anyOf": [users, {"type": "string"}]}
    if get_origin(info.annotation) is Literal:
        return {**value, "enum": list(get_args(info.annotation))}
    limits = {"minimum": "ge", "maximum": "le"}
    found = {word: getattr(m, side) for word, side in limits.items() for m in info.metadata if hasattr(m, side)}
    if not found:
        return {**value, "type": "string"}
    if is_size(name):
        return {**value, "anyOf": [{"type": "integer", **found}, {"type": "string"}]}
    return {**value, "type": "number" if info.annotation is float else "integer", **found}


def differing(settings: Settings, without: Collection[str] = ()) -> list[str]:
    """Return the lines of the settings that differ from their defaults, without the value of an external ID."""
    fields = type(settings).model_fields
    names = [name for name in fields if name not in without and getattr(settings, name) != fields[name].default]
    return [f"{name} is set" if name == "external_id" else assignment(name, getattr(settings, name)) for name in names]


def assignment(name: str, value: object) -> str:
    """Return a setting as a line of a file."""
    if value is None:
        return f'{name} = ""'
    if name == "external_id":  # a secret between two accounts
        return f'{name} = "{NOT_SHOWN}"'
    if name == "socket_mode":
        return f'{name} = "{value:04o}"'
    if isinstance(value, frozenset):
        return f"{name} = {sorted(value)}"
    if is_size(name) and isinstance(value, int) and value % KIB == 0:
        return f'{name} = "{size(value).replace(",", "")}"'
    return f"{name} = {toml_value(value)}"


def toml_value(value: object) -> str:
    """Return text, a path, a number or a list of them as TOML, from which a reader gets the same value.

    TOML is JSON here, except that it lets no DEL stand in a text.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 2, not 2.0
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", r"\u007f")
