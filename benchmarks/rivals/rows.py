"""The protocol of every rival, in any language, so that all put the same records.

A rival starts with the arguments ENDPOINT_URL, a file of records, STREAM and AGGREGATION, and prints "ready".  For each
number on stdin it puts that many of the file's records, or a few more, in turn.  It prints how many when all are
acknowledged.  It ends if Kinesis refuses a record.

The file has for each record `LENGTHS` (of key and data), key and data.  The module needs only the standard library,
because each rival in Python runs in an environment of its own.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

LENGTHS: Final = struct.Struct("<II")
REQUEST_RECORDS: Final = 500
REQUEST_BYTES: Final = 4_000_000
IN_FLIGHT: Final = 16

Row = tuple[str, bytes]


def write(path: Path, keys: Sequence[bytes], data: Sequence[bytes]) -> None:
    with path.open("wb") as file:
        for key, value in zip(keys, data, strict=True):
            file.write(LENGTHS.pack(len(key), len(value)) + key + value)


def read(path: str) -> list[Row]:
    content, at, rows = Path(path).read_bytes(), 0, []
    while at < len(content):
        key_bytes, data_bytes = LENGTHS.unpack_from(content, at)
        at += LENGTHS.size
        rows.append((content[at : at + key_bytes].decode(), content[at + key_bytes : at + key_bytes + data_bytes]))
        at += key_bytes + data_bytes
    return rows


def requests(rows: Sequence[Row], records: int) -> Iterator[list[dict[str, Any]]]:
    """Yield this many records, again from the first one after the last, as entries for `put_records`."""
    request: list[dict[str, Any]] = []
    size = 0
    for key, data in islice(cycle(rows), records):
        if len(request) == REQUEST_RECORDS or size + len(key) + len(data) > REQUEST_BYTES:
            yield request
            request, size = [], 0
        request.append({"Data": data, "PartitionKey": key})
        size += len(key) + len(data)
    if request:
        yield request


def stored(answer: Any) -> int:
    """Return the number of records of an answer.  A user would send failed ones again, but here none may fail."""
    if answer["FailedRecordCount"]:
        raise RuntimeError(f"{answer['FailedRecordCount']} records failed")
    return len(answer["Records"])


def answer(put: Callable[[int], int]) -> None:
    """Read numbers of records from stdin, put that many, and print how many were put."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(put(int(line)), flush=True)
