"""Run the hot functions under qemu, one by one and all together, and print a line of JSON for each.

Each piece of work is as large as in a daemon under load, so that the fixed part of a call has its real weight.  Frames
and batches have 1 MiB, requests are as the lanes make them, and answers have 500 results.  Each piece runs a few times
before it is counted, to fill caches and the interpreter's specialised code.  The lowest of a few counts is reported.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from random import Random
from typing import Any, Final, NamedTuple

import pyarrow as pa

from benchmarks.counter import Counter
from benchmarks.walk import STREAM, Case, answer_to, freeze, make_frames, shard_map, walk
from producerd.config import StreamSettings
from producerd.core.encoding.entries import encode
from producerd.core.encoding.formats import CBOR, JSON, Format
from producerd.core.pipeline import Pipeline
from producerd.core.rows import intake
from producerd.core.rows.frame import Frame
from producerd.core.rows.intake import CheckedRows
from producerd.core.rows.sorting import sort_rows
from producerd.core.sending.answers import parse_answer
from producerd.core.sending.requests import Request
from producerd.core.shards.hash_keys import hash_keys
from producerd.runtime.stream import Stream
from producerd.wire import messages
from producerd.wire.columns import Columns, parse_body
from spark_client.batches import Batch

SHARDS: Final = 16
MAX_RECORD_BYTES: Final = 1 << 20
BATCH_ROWS: Final = 10_000
"""Rows of a batch from Spark to a Python worker (spark.sql.execution.arrow.maxRecordsPerBatch)."""
RESULTS: Final = 500
ACKNOWLEDGED: Final = 3
"""Number of counted requests, of the four that a stream begins with."""
COUNTS: Final = 5
"""Number of repetitions.  The lower count of the last two is reported; the others warm up."""
WALKED_RECORDS: Final = 28_000
WARM_RECORDS: Final = 14_000
_NOW: Final = 1_000.0
_ADDRESS: Final = {"StreamName": STREAM}


class Work(NamedTuple):
    """A piece of work to do once, and its number of records."""

    do: Callable[[], object]
    records: int


# ---- pieces of work, which are created again for each repetition


def route() -> Work:
    """Compute hash keys and shards from keys."""
    rows, among = _rows(_frame(100)), shard_map(SHARDS)
    return Work(lambda: among.locate(*hash_keys(rows.keys, rows.key_offsets)), rows.records)


def sort(record_bytes: int) -> Work:
    """Route rows, sort them by shard, cut them into spans and copy them."""
    columns = _frame(record_bytes)
    frames, among = [Frame(None, 0, _rows(columns), 0) for _ in range(4)], shard_map(SHARDS)
    return Work(lambda: sort_rows(frames, among, 1), 4 * columns.layout.records)


def encode_request(aggregation: str, record_bytes: int, format_: Format = CBOR) -> Work:
    """Encode rows of lanes as entries of a request's body."""
    _, (request,) = _requests(aggregation, record_bytes)
    work, encoded = _encoding(aggregation, request, format_)
    return Work(work, int(encoded.ends[-1]))


def parse(format_: Format = CBOR) -> Work:
    """Read an answer and decide about each entry."""
    _, (request,) = _requests("none", 100)
    encoded = _encoding("none", request, format_)[1]
    assert encoded.entries == RESULTS
    return Work(partial(parse_answer, answer_to(encoded, request.lanes, format_=format_), RESULTS), RESULTS)


def acknowledge(aggregation: str) -> Work:
    """Settle rows after answers and encode the acknowledgements."""
    pipeline, requests = _requests(aggregation, 100, ACKNOWLEDGED)
    answers = []
    for request in requests:
        encoded = _encoding(aggregation, request)[1]
        pipeline.encoded(request, encoded, _NOW)
        answers.append(parse_answer(answer_to(encoded, request.lanes), encoded.entries))
    records = sum([request.records for request in requests])

    def do() -> None:
        for request, answer in zip(requests, answers, strict=True):
            pipeline.complete(request, answer, _NOW)
        for frame in pipeline.take_finished():
            result = frame.result()
            messages.encode(messages.Ack(frame.frame_id, result.records, result.stored, 0, 0, 0))

    return Work(do, records)


def read_frame(record_bytes: int) -> Work:
    """Check the rows in the bytes of a body."""
    columns = _frame(record_bytes)
    body = _body(columns)
    return Work(lambda: intake.check(parse_body(body, 0), MAX_RECORD_BYTES), columns.layout.records)


def write_frame(record_bytes: int) -> Work:
    """Turn an Arrow batch into frames that are ready to send, in the client."""
    record_batch = _record_batch(record_bytes)

    def do() -> None:
        batch, at = Batch(record_batch), 0
        while at < batch.records:
            end = batch.frame_end(at, 1 << 20, 10_000)
            columns = batch.columns(at, end)
            messages.encode(messages.Reserve(1, 1, columns.layout))
            messages.body_header(columns.layout)
            columns.body_prefix(1)
            at = end

    return Work(do, BATCH_ROWS)


PIECES: Final[dict[str, Callable[[], Work]]] = {
    "route": route,
    "sort 100 B": partial(sort, 100),
    "sort 1 KB": partial(sort, 1_024),
    "encode none 100 B": partial(encode_request, "none", 100),
    "encode none 1 KB": partial(encode_request, "none", 1_024),
    "encode none 100 B json": partial(encode_request, "none", 100, JSON),
    "encode none 1 KB json": partial(encode_request, "none", 1_024, JSON),
    "encode kpl 100 B": partial(encode_request, "kpl", 100),
    "encode kpl 1 KB": partial(encode_request, "kpl", 1_024),
    "parse an answer cbor": parse,
    "parse an answer json": partial(parse, JSON),
    "acknowledge none": partial(acknowledge, "none"),
    "acknowledge kpl": partial(acknowledge, "kpl"),
    "read a frame 100 B": partial(read_frame, 100),
    "read a frame 1 KB": partial(read_frame, 1_024),
    "write a frame 100 B": partial(write_frame, 100),
}
WALKS: Final = {
    f"walk {aggregation} {size}": (Case(aggregation, record_bytes), WALKED_RECORDS, WARM_RECORDS)
    for aggregation in ("none", "kpl")
    for size, record_bytes in (("100 B", 100), ("1 KB", 1_024))
} | {
    "walk a frame of one record": (Case("none", frame_records=1), 840, 420),
    "walk 200 frames of 20 records": (Case("none", sessions=8, frame_records=20), 4_000, 4_000),
    "walk many shards": (Case("none", shards=256, frame_records=1_000, steady=True), WALKED_RECORDS, WALKED_RECORDS),
}
"""By name a walk, the records that are counted, and those that warm it up."""
NAMES: Final = (*PIECES, *WALKS)


def count(name: str, counter: Counter) -> float:
    """Return the cost of a record, in the counter's unit."""
    if (walked := WALKS.get(name)) is not None:
        case, records, warm_records = walked
        return walk(case, counter, records, warm_records).per_record
    counts = []
    for _ in range(COUNTS):
        work = PIECES[name]()
        gc.collect()
        counter.take()
        work.do()
        counts.append(counter.take() / work.records)
    return min(counts[-2:])


# ---- the objects that they use


@cache
def _frame(record_bytes: int) -> Columns:
    return make_frames(Case("none", record_bytes), 1)[0]


@cache
def _record_batch(record_bytes: int) -> pa.RecordBatch:
    drawn = Random(1)
    keys = pa.array([drawn.randbytes(8).hex() for _ in range(BATCH_ROWS)])
    data = pa.array([drawn.randbytes(record_bytes) for _ in range(BATCH_ROWS)], pa.binary())
    return pa.RecordBatch.from_arrays([keys, data], ["partition_key", "data"])


def _body(columns: Columns) -> bytearray:
    return bytearray(columns.body_prefix(1) + b"".join(map(bytes, columns.parts)))


def _rows(columns: Columns) -> CheckedRows:
    return intake.check(parse_body(_body(columns), 0), MAX_RECORD_BYTES)


def _requests(aggregation: str, record_bytes: int, most: int = 1) -> tuple[Pipeline, list[Request]]:
    """Return the first requests of some frames, and the jobs that they belong to."""
    settings = StreamSettings(aggregation=aggregation, shard_rate_fraction=10_000)  # type: ignore[arg-type]
    pipeline = Stream(STREAM, settings).pipeline
    pipeline.set_shard_map(shard_map(SHARDS), _NOW)
    columns = _frame(record_bytes)
    for number in range(1, 5):
        layout = columns.layout
        pipeline.budget.charge(layout.records, layout.charge_bytes)
        pipeline.submit(Frame(object(), number, _rows(columns), layout.charge_bytes), _NOW)
    pipeline.hasten()
    while (job := pipeline.take_job(_NOW)) is not None:
        pipeline.sorted(job, [(job.frames, sort_rows(job.frames, job.shard_map, job.seed))])
    requests = [request for _ in range(most) if (request := pipeline.take_request(_NOW)) is not None]
    assert len(requests) == most
    return pipeline, requests


def _encoding(aggregation: str, request: Request, format_: Format = CBOR) -> tuple[Callable[[], Any], Any]:
    settings = StreamSettings(aggregation=aggregation)  # type: ignore[arg-type]
    rules = Stream(STREAM, settings).pipeline.rules.entries
    work = partial(encode, _ADDRESS, request.numbered, rules, request.aggregate_bytes, request.shard_map, format_)
    return work, work()


def main(names: Sequence[str]) -> None:
    counter = freeze()
    for name in names or NAMES:
        print(json.dumps({"name": name, "per_record": count(name, counter), "unit": counter.unit}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
