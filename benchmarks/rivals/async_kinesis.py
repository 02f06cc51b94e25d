"""async-kinesis, the asyncio producer on PyPI: one `put` for each record, one request in flight.

Its throttles are set so high that they never limit.  Its batches are set to 499, because it sends one record more than
its setting.  With aggregation it packs with aws-kinesis-agg.  It refuses partition keys then, so each record has the
key
"a".
"""

from __future__ import annotations

import asyncio
import sys
from itertools import cycle, islice
from typing import Any, Final

from kinesis import Producer  # type: ignore[import-not-found]
from kinesis.aggregators import KPLAggregator, SimpleAggregator  # type: ignore[import-not-found]
from kinesis.processors import Processor  # type: ignore[import-not-found]

from benchmarks.rivals.rows import REQUEST_RECORDS, Row, answer, read

FASTER_THAN_ANY_SHARD: Final = 10**9


class Bytes:
    """A processor that sends records as they are."""

    def serialize(self, data: bytes) -> bytes:
        return data


class Plain(Processor, SimpleAggregator, Bytes):  # type: ignore[misc]
    pass


class Aggregated(Processor, KPLAggregator, Bytes):  # type: ignore[misc]
    pass


async def put(producer: Any, rows: list[Row], records: int, *, keyed: bool) -> int:
    for key, data in islice(cycle(rows), records):
        await producer.put(data, key if keyed else None)
    await producer.flush()
    return records


def main(endpoint_url: str, path: str, stream: str, aggregation: str) -> None:
    rows = read(path)
    with asyncio.Runner() as runner:
        producer = Producer(
            stream,
            endpoint_url=endpoint_url,
            region_name="us-east-1",
            batch_size=REQUEST_RECORDS - 1,
            put_rate_limit_per_shard=1_000,
            put_bandwidth_limit_per_shard=FASTER_THAN_ANY_SHARD,
            processor=Plain() if aggregation == "none" else Aggregated(),
            skip_describe_stream=True,
        )
        runner.run(producer.__aenter__())
        answer(lambda records: runner.run(put(producer, rows, records, keyed=aggregation == "none")))
        runner.run(producer.__aexit__(None, None, None))


if __name__ == "__main__":
    main(*sys.argv[1:])
