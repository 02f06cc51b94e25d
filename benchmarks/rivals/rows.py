"""What every rival is told, and how it answers: the same records, in whatever language.

A rival is started with ENDPOINT_URL, a file of records, STREAM and AGGREGATION, and says "ready".  For each line, a
number, it puts the file's records in turn, that many or a few more, and says how many when all are acknowledged.  A
record that Kinesis refuses ends it.

The file has for each record `LENGTHS` (of key and data), key and data.  Standard library only, as each rival in Python
runs in an environment of its own.
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
    """So many records, from the first on and again, as what `put_records` takes."""
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
    """How many records; a user would send the failed ones again, but here there are none."""
    if answer["FailedRecordCount"]:
        raise RuntimeError(f"{answer['FailedRecordCount']} records failed")
    return len(answer["Records"])


def answer(put: Callable[[int], int]) -> None:
    """Be told numbers of records, and say how many were put."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(put(int(line)), flush=True)
