"""boto3 as its users write it: threads, `put_records`, and a look at the failed count.

Sixteen threads share one client with as many connections.  The client does not validate parameters and does not retry.
With aggregation, each thread packs with aws-kinesis-agg, Amazon's own module, and sends twenty aggregates at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from typing import Any, Final

import boto3
from botocore.config import Config

from benchmarks.rivals.rows import IN_FLIGHT, Row, answer, read, requests, stored

AGGREGATE_BYTES: Final = 51_200
"""Size of an aggregate, as in the official KPL."""
REQUEST_AGGREGATES: Final = 20
"""Aggregates in a request, which are about a MiB."""


def client(endpoint_url: str) -> Any:
    config = Config(max_pool_connections=IN_FLIGHT, parameter_validation=False, retries={"total_max_attempts": 1})
    return boto3.client("kinesis", endpoint_url=endpoint_url, config=config)


def put_plain(kinesis: Any, stream: str, rows: Sequence[Row], records: int) -> int:
    return sum(stored(kinesis.put_records(StreamName=stream, Records=request)) for request in requests(rows, records))


def put_aggregated(kinesis: Any, stream: str, rows: Sequence[Row], records: int) -> int:
    aggregates = packed(islice(cycle(rows), records))
    while request := list(islice(aggregates, REQUEST_AGGREGATES)):
        stored(kinesis.put_records(StreamName=stream, Records=request))
    return records


def packed(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    from aws_kinesis_agg.aggregator import RecordAggregator  # only an environment that aggregates has it

    aggregator = RecordAggregator(AGGREGATE_BYTES)
    for key, data in rows:
        if full := aggregator.add_user_record(key, data):
            yield entry(full)
    if last := aggregator.clear_and_get():
        yield entry(last)


def entry(aggregate: Any) -> dict[str, Any]:
    key, hash_key, data = aggregate.get_contents()
    return {"Data": data, "PartitionKey": key, "ExplicitHashKey": hash_key}


def main(endpoint_url: str, path: str, stream: str, aggregation: str) -> None:
    rows = read(path)
    put_one = partial({"none": put_plain, "kpl": put_aggregated}[aggregation], client(endpoint_url), stream, rows)
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        answer(lambda records: sum(threads.map(put_one, [-(-records // IN_FLIGHT)] * IN_FLIGHT)))


if __name__ == "__main__":
    main(*sys.argv[1:])
