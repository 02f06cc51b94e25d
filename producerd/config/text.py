"""Settings as text: a file that would give the same ones, what each may be, and what to show of a value."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from producerd.config.settings import OF_ONE_STREAM, Config, Settings
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
    return f"{low:,} to {high:,}{' seconds' if name.endswith('_seconds') else ''}"


_SECRET: Final = re.compile(r'(?<=//).*@|(?<=")[^"/]*:[^"/]*@')
"""User and password of a URL, also of one without a scheme."""


def shown(value: object) -> str:
    text = _SECRET.sub("***@", json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= 200 else f"{text[:200]}..."


def as_toml(config: Config) -> str:
    """A file that would give the same settings."""
    blocks = [_assignments(config.node), "[defaults]\n" + _assignments(config.defaults, without=OF_ONE_STREAM)]
    for name, settings in sorted(config.streams.items()):
        blocks.append(f"[streams.{json.dumps(name)}]\n" + _assignments(settings))
    return "\n\n".join(blocks)


def differing(settings: Settings, without: Collection[str] = ()) -> list[str]:
    """The settings that differ from their defaults, as a file has them; of an external id only that there is one."""
    fields = type(settings).model_fields
    names = [name for name in fields if name not in without and getattr(settings, name) != fields[name].default]
    return [f"{name} is set" if name == "external_id" else _assignment(name, getattr(settings, name)) for name in names]


def _assignments(settings: Settings, without: Sequence[str] = ()) -> str:
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
