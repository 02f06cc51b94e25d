"""Settings as text: a file that would give the same ones, what each may be, and what to show of a value."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

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
    return f"{low:,} to {high:,}{' seconds, as a number' if name.endswith('_seconds') else ''}"


_SECRET: Final = re.compile(r'(?<=//).*@|(?<=")[^"/]*:[^"/]*@')
"""User and password of a URL, also of one without a scheme."""


def shown(value: object) -> str:
    text = _SECRET.sub("***@", json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= 200 else f"{text[:200]}..."


def as_toml(config: Config, *, origins: bool = False) -> str:
    """A file that would give the same settings; with ``origins`` each line says in a comment where it came from."""

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
    """A JSON Schema (2020-12) of the file, for editors."""
    streams = _table_schema(StreamSettings)
    defaults = _table_schema(StreamSettings, without=OF_ONE_STREAM)
    whole = _table_schema(NodeSettings)
    whole["properties"] |= {
        "defaults": {"description": "What holds for every stream that has no value of its own.", **defaults},
        "streams": {
            "description": "One table for each stream, over the defaults.",
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
    """What a setting does, in one line and without marks."""
    return " ".join(str(info.description).split()).replace("``", "")


def _value_schema(name: str, info: FieldInfo) -> dict[str, Any]:
    told: dict[str, Any] = {"description": f"{plain(info)} Allowed: {allowed(name, info)}."}
    if needs_restart(info):
        told["description"] += " A change needs a restart."
    if info.default is not PydanticUndefined:
        told["default"] = (
            "" if info.default is None else f"{info.default:04o}" if name == "socket_mode" else info.default
        )
    if name == "allowed_uids":
        users = {"type": "array", "items": {"type": ["integer", "string"]}}
        return {**told, "default": [], "anyOf": [users, {"type": "string"}]}
    if get_origin(info.annotation) is Literal:
        return {**told, "enum": list(get_args(info.annotation))}
    limits = {"minimum": "ge", "maximum": "le"}
    found = {word: getattr(m, side) for word, side in limits.items() for m in info.metadata if hasattr(m, side)}
    if not found:
        return {**told, "type": "string"}
    if name.endswith("_bytes"):
        return {**told, "anyOf": [{"type": "integer", **found}, {"type": "string"}]}
    return {**told, "type": "number" if info.annotation is float else "integer", **found}


def differing(settings: Settings, without: Collection[str] = ()) -> list[str]:
    """The settings that differ from their defaults, as a file has them; of an external id only that there is one."""
    fields = type(settings).model_fields
    names = [name for name in fields if name not in without and getattr(settings, name) != fields[name].default]
    return [f"{name} is set" if name == "external_id" else assignment(name, getattr(settings, name)) for name in names]


def assignment(name: str, value: object) -> str:
    if value is None:
        return f'{name} = ""'
    if name == "socket_mode":
        return f'{name} = "{value:04o}"'
    if isinstance(value, frozenset):
        return f"{name} = {sorted(value)}"
    if isinstance(value, float):
        return f"{name} = {value:g}"
    if name.endswith("_bytes") and isinstance(value, int) and value % KIB == 0:
        return f'{name} = "{size(value).replace(",", "")}"'
    return f"{name} = {json.dumps(value, ensure_ascii=False, default=str)}"
