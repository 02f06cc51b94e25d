"""Settings at random, as texts for ``--set``: each is valid alone, and all of them are valid together."""

from __future__ import annotations

from random import Random

from producerd.config import NodeSettings, StreamSettings
from producerd.config.settings import OF_ONE_STREAM, Settings
from producerd.config.text import schema

ODD = "/run/ü \U0001f40d '\"$`\\\t\n\x01\x7f\x85\u2028#="
OTHERS = {
    "socket": ODD + "s",
    "admin_socket": ODD + "a",
    "socket_mode": "0626",
    "socket_group": 'a"b\\c\x7fd',
    "allowed_uids": "7, 0",
    "metrics_listen": "[::1]:9",
    "region": "eu-west-1",
    "endpoint_url": "http://localhost:1/a%20b",
    "role_arn": "arn:aws:iam::123456789012:role/x@y",
}
"""A value of each setting that has neither a range nor choices, except of one stream's and of secrets."""
TOGETHER = {
    "node_queue_limit_bytes": "64 GiB",
    "node_max_in_flight_bytes": "64 GiB",
    "max_streams": "9",
    "aggregate_max_bytes": "1 KiB",
    "linger_seconds": "0.5",
    "record_ttl_seconds": "7.5",
    "memory": "",
    "streams_allowed": "any",
}
"""Values of the settings whose limits depend on each other."""


def random_settings(chance: Random) -> list[str]:
    """Return a value for about half of all settings, of the node, of the defaults and of a stream."""
    tables: dict[str, type[Settings]] = {"": NodeSettings, "defaults.": StreamSettings, "streams.s.": StreamSettings}
    sets = []
    for place, model in tables.items():
        described = schema()["properties"]
        described = described["defaults"]["properties"] if place else described
        free = [name for name in model.model_fields if name not in ("external_id", *OF_ONE_STREAM, *TOGETHER)]
        chosen = [name for name in free if chance.random() < 0.5]
        sets += [f"{place}{name}={_value(name, described[name], chance)}" for name in chosen]
        sets += [f"{place}{name}={value}" for name, value in TOGETHER.items() if name in model.model_fields]
    return sets


def _value(name: str, described: dict[str, object], chance: Random) -> object:
    choices = described.get("enum")
    if isinstance(choices, list):
        return chance.choice(choices)
    if name in OTHERS:
        return OTHERS[name]
    limits = next(part for part in (described, *_any_of(described)) if "minimum" in part)
    low, high = limits["minimum"], limits["maximum"]
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    if described.get("type") != "number":
        return chance.choice([int(low), int(high), chance.randint(int(low), int(high))])
    digits = chance.choice([0, 1, 3, 15])
    return min(high, max(low, round(chance.uniform(low, high) * 10.0 ** -chance.randint(0, 6), digits)))


def _any_of(described: dict[str, object]) -> list[dict[str, object]]:
    parts = described.get("anyOf", [])
    assert isinstance(parts, list)
    return parts
