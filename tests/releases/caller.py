"""A caller of `KinesisClient`: ``python caller.py SOCKET``, with the client of any release on its path.

It says where its client comes from, and then does what each line of stdin asks and answers with one line; all in JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Final

import spark_client
from producerd.errors import ProducerdError, RecordsFailed
from spark_client import KinesisClient


def put(client: KinesisClient, rows: list[list[str]], timeout_seconds: float | None) -> dict[str, Any]:
    """How many rows were taken, and why no more."""
    try:
        client.put_many([(data, key) for data, key in rows], timeout_seconds=timeout_seconds)
    except ProducerdError as error:
        return {"taken": error.taken, "code": error.code}
    return {"taken": len(rows)}


def flush(client: KinesisClient) -> dict[str, Any]:
    """What has failed since the last flush: the codes."""
    try:
        client.flush(60)
    except RecordsFailed as error:
        return {"failed": [failure.code for failure in error.failures]}
    return {"failed": []}


ORDERS: Final[dict[str, Callable[..., dict[str, Any]]]] = {"put": put, "flush": flush}


def main() -> None:
    client = KinesisClient("flights", socket=sys.argv[1], reconnect_timeout_seconds=60)
    print(json.dumps(spark_client.__file__), flush=True)
    for line in sys.stdin:
        order, *arguments = json.loads(line)
        print(json.dumps(ORDERS[order](client, *arguments)), flush=True)
    client.close(60)


main()
