"""Faults for the parsers, one for each target, which its fuzzing must find: ``./dev fuzz --planted``.

Each plant does wrongly what one function does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from producerd.config import sources
from producerd.core.kpl import aggregation
from producerd.core.sending import answers
from producerd.runtime import admin
from producerd.runtime.aws import connection
from producerd.wire import messages
from tests.faults.planted import put


def an_acknowledgement_is_not_checked() -> None:
    put(messages.SCHEMAS[messages.Ack], "check", None)


def an_index_keeps_its_last_bit_only() -> None:
    put(aggregation, "_INDEX", 1)


def a_piece_of_one_byte_is_dropped() -> None:
    read = connection.HttpConnection.on_body
    put(connection.HttpConnection, "on_body", lambda self, part: read(self, part) if len(part) > 1 else None)


def an_error_is_overlooked_where_a_shard_is_named() -> None:
    read: Callable[..., answers.Answer] = vars(answers)["_read_results"]

    def wrong(results: list[dict[str, Any]]) -> answers.Answer:
        return read([each if not each.get("ShardId") else {**each, "ErrorCode": None} for each in results])

    put(answers, "_read_results", wrong)


def a_table_is_not_checked() -> None:
    put(sources, "_table", lambda sheet, value, key, origin: value.items())


def a_name_of_a_host_is_not_checked() -> None:
    put(admin, "_name_in", lambda host: urlsplit(f"//{host}").hostname or "")


PLANTS: Final[Mapping[str, Callable[[], None]]] = {
    "wire": an_acknowledgement_is_not_checked,
    "aggregate": an_index_keeps_its_last_bit_only,
    "answer": a_piece_of_one_byte_is_dropped,
    "cbor": an_error_is_overlooked_where_a_shard_is_named,
    "config": a_table_is_not_checked,
    "http": a_name_of_a_host_is_not_checked,
}
"""The fault of each target."""
