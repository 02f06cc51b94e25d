"""A daemon as one would write it on a first day, with whose CPU time producerd is compared.

It reads records from a unix socket one by one, with asyncio's StreamReader.  It sends the records of each connection
with
stock aiobotocore, at most 500 or 4 MB in a request, and 16 requests in flight in all.  At the end of a request it
reports
the number of its records.  It has no queue, shards, pacing or retries, and ends at a failed record.

A record is `HEAD` (the lengths of key and data), key and data.  A `HEAD` of zeros asks to send everything before it::

    python -m benchmarks.rivals.naive SOCKET ENDPOINT_URL STREAM
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
from typing import Any, Final

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from benchmarks.rivals.rows import IN_FLIGHT, REQUEST_BYTES, REQUEST_RECORDS

HEAD: Final = struct.Struct("<II")
ACK: Final = struct.Struct("<I")


class Naive:
    def __init__(self, kinesis: Any, stream: str, tasks: asyncio.TaskGroup) -> None:
        self._kinesis = kinesis
        self._stream = stream
        self._tasks = tasks
        self._room = asyncio.Semaphore(IN_FLIGHT)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        records: list[dict[str, Any]] = []
        size = 0
        with contextlib.suppress(asyncio.IncompleteReadError):  # the client has gone
            while True:
                key_bytes, data_bytes = HEAD.unpack(await reader.readexactly(HEAD.size))
                if key_bytes:
                    row = await reader.readexactly(key_bytes + data_bytes)
                    records.append({"Data": row[key_bytes:], "PartitionKey": row[:key_bytes].decode()})
                    size += len(row)
                if records and (not key_bytes or len(records) == REQUEST_RECORDS or size >= REQUEST_BYTES):
                    await self._room.acquire()
                    self._tasks.create_task(self._put(records, writer))  # `main` has opened this group
                    records, size = [], 0
        writer.close()

    async def _put(self, records: list[dict[str, Any]], writer: asyncio.StreamWriter) -> None:
        answer = await self._kinesis.put_records(StreamName=self._stream, Records=records)
        self._room.release()
        if answer["FailedRecordCount"]:
            raise RuntimeError(f"{answer['FailedRecordCount']} records failed")
        writer.write(ACK.pack(len(records)))


async def main(socket_path: str, endpoint_url: str, stream: str) -> None:
    config = AioConfig(max_pool_connections=IN_FLIGHT)
    async with (
        get_session().create_client("kinesis", endpoint_url=endpoint_url, config=config) as kinesis,
        asyncio.TaskGroup() as tasks,
    ):
        server = await asyncio.start_unix_server(Naive(kinesis, stream, tasks).connected, socket_path)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
