"""The stream that tests use: its name, its rules, and a frame's body as it reaches the daemon."""

from __future__ import annotations

from typing import Any

from producerd.core.rules import EntryRules, PipelineRules
from producerd.wire import columns
from producerd.wire.columns import Columns

STREAM = "flights"
ADDRESS = {"StreamName": STREAM}


def make_rules(**changes: Any) -> PipelineRules:
    """The defaults of docs/operate/configuration.md, with some changed."""
    entry: dict[str, Any] = {
        "aggregate": False,
        "aggregate_max_bytes": 51_200,
        "aggregate_max_records": 2**32 - 1,
        "request_max_records": 500,
        "request_max_bytes": 1 << 20,
        "per_key": False,
    }
    rest: dict[str, Any] = {
        "linger_seconds": 0.1,
        "max_in_flight_requests": 24,
        "max_in_flight_bytes": 32 << 20,
        "shard_map_wait_seconds": 10.0,
        "permanent_error_grace_seconds": 60.0,
    }
    for name, value in changes.items():
        (entry if name in entry else rest)[name] = value
    return PipelineRules(EntryRules(**entry), **rest)


def make_body(laid_out: Columns, frame_id: int = 1) -> columns.Body:
    """A frame's body as the daemon reads it."""
    payload = laid_out.body_prefix(frame_id) + b"".join(bytes(part) for part in laid_out.parts)
    return columns.parse_body(payload, laid_out.layout.flags)
