"""aiobotocore with 16 requests in flight, without validation of parameters and without retries."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from benchmarks.rivals.rows import IN_FLIGHT, Row, answer, read, requests, stored


async def put(kinesis: Any, stream: str, rows: list[Row], records: int) -> int:
    """Send with as many tasks as requests may be in flight.  Each task takes the next request."""
    waiting = requests(rows, records)

    async def sender() -> int:
        total = 0
        for request in waiting:
            total += stored(await kinesis.put_records(StreamName=stream, Records=request))
        return total

    async with asyncio.TaskGroup() as tasks:
        senders = [tasks.create_task(sender()) for _ in range(IN_FLIGHT)]
    return sum(task.result() for task in senders)


def main(endpoint_url: str, path: str, stream: str, _aggregation: str) -> None:
    rows = read(path)
    config = AioConfig(max_pool_connections=IN_FLIGHT, parameter_validation=False, retries={"total_max_attempts": 1})
    with asyncio.Runner() as runner:
        context = get_session().create_client("kinesis", endpoint_url=endpoint_url, config=config)
        kinesis = runner.run(context.__aenter__())
        answer(lambda records: runner.run(put(kinesis, stream, rows, records)))
        runner.run(context.__aexit__(None, None, None))


if __name__ == "__main__":
    main(*sys.argv[1:])
