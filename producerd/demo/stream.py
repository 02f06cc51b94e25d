"""Create the demo's own stream with boto3, and delete it at the end.

This process serves an endpoint that outlives the demo.  It prints ``ready`` when the stream is active.  After a line on
stdin, or its end, it deletes the stream and prints ``deleted``::

    python -m producerd.demo.stream ENDPOINT STREAM SHARDS
"""

from __future__ import annotations

import sys
from typing import Any

import boto3


def client(endpoint_url: str) -> Any:
    """Return a boto3 client with the credentials and the region of the environment."""
    return boto3.client("kinesis", endpoint_url=endpoint_url)


def wait_until_active(kinesis: Any, stream: str) -> None:
    """Wait up to 120 seconds until a stream is active."""
    kinesis.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1, "MaxAttempts": 120})


def main(endpoint_url: str, stream: str, shards: int) -> None:
    try:
        kinesis = client(endpoint_url)
        kinesis.create_stream(StreamName=stream, ShardCount=shards)
    except Exception as error:  # any error of boto3, as one line instead of a traceback
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
