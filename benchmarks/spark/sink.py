"""A server at the end of every path, which answers PutRecords at once with success and counts the records.

It stores and checks nothing, so that it is not a bottleneck for any path.  The stream has one shard.  The server prints
its port, and answers a GET with the number of records until now::

    python -m benchmarks.spark.sink
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import sys
from typing import Any, Final

SHARD: Final = "shardId-000000000000"
SEQUENCE_NUMBER: Final = "49590338271490256608559692538361571095921575989136588898"
"""A sequence number that is as long as Amazon's."""
CONTENT_LENGTH: Final = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)
TARGET: Final = re.compile(rb"^x-amz-target: *Kinesis_20131202\.(\w+)", re.IGNORECASE | re.MULTILINE)
FIXED: Final[dict[bytes, Any]] = {
    b"ListShards": {
        "Shards": [
            {
                "ShardId": SHARD,
                "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)},
                "SequenceNumberRange": {"StartingSequenceNumber": SEQUENCE_NUMBER},
            }
        ]
    },
    b"DescribeStreamSummary": {
        "StreamDescriptionSummary": {
            "StreamName": "bench",
            "StreamARN": "arn:aws:kinesis:us-east-1:123456789012:stream/bench",
            "StreamStatus": "ACTIVE",
            "RetentionPeriodHours": 24,
            "StreamCreationTimestamp": 1.0,
            "EnhancedMonitoring": [],
            "OpenShardCount": 1,
        }
    },
}


class Sink(asyncio.Protocol):
    """One connection.  ``records`` counts the records of all connections."""

    records = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = bytearray()
        self._body_at = self._body_bytes = 0  # of the request whose head is complete

    def data_received(self, data: bytes) -> None:
        self._received += data
        while self._request_is_whole():
            end = self._body_at + self._body_bytes
            head, body = bytes(self._received[: self._body_at]), self._received[self._body_at : end]
            del self._received[:end]
            self._body_at = 0
            self._transport.write(self._answer(head, body))

    def _request_is_whole(self) -> bool:
        if not self._body_at:
            head_bytes = self._received.find(b"\r\n\r\n")
            if head_bytes < 0:
                return False
            length = CONTENT_LENGTH.search(self._received, 0, head_bytes)
            self._body_at, self._body_bytes = head_bytes + 4, int(length[1]) if length else 0
        return len(self._received) >= self._body_at + self._body_bytes

    def _answer(self, head: bytes, body: bytearray) -> bytes:
        target = TARGET.search(head)
        if target is None:
            return _response(Sink.records)
        if target[1] != b"PutRecords":
            return _response(FIXED[target[1]])
        count = body.count(b'"PartitionKey"')
        Sink.records += count
        return _stored(count)


@functools.cache
def _stored(count: int) -> bytes:
    record = {"SequenceNumber": SEQUENCE_NUMBER, "ShardId": SHARD}
    return _response({"FailedRecordCount": 0, "Records": [record] * count})


def _response(answer: Any) -> bytes:
    body = json.dumps(answer, separators=(",", ":")).encode()
    head = (
        "HTTP/1.1 200 OK\r\nx-amzn-RequestId: 00000000-0000-0000-0000-000000000000\r\n"
        f"Content-Type: application/x-amz-json-1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
