"""The demo's stream, by boto3: made where nobody else writes to it, and deleted at the end.

As a process of its own for an endpoint that outlives the demo: prints ``ready`` when the stream can be written to, and
when it is told to by a line on stdin, or its end, deletes it and prints ``deleted``::

    python -m producerd.demo.stream ENDPOINT STREAM SHARDS
"""

from __future__ import annotations

import sys
from typing import Any

import boto3


def client(endpoint_url: str) -> Any:
    """boto3, with the credentials and the region that the environment has."""
    return boto3.client("kinesis", endpoint_url=endpoint_url)


def wait_until_active(kinesis: Any, stream: str) -> None:
    kinesis.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1, "MaxAttempts": 120})


def main(endpoint_url: str, stream: str, shards: int) -> None:
    try:
        kinesis = client(endpoint_url)
        kinesis.create_stream(StreamName=stream, ShardCount=shards)
    except Exception as error:  # whatever boto3 raises: it is told in one line
        sys.exit(f"no stream can be made at {endpoint_url}: {error}")
    try:
        wait_until_active(kinesis, stream)
        print("ready", flush=True)
        sys.stdin.readline()
    finally:
        kinesis.delete_stream(StreamName=stream)
    print("deleted", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
