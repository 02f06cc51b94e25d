"""PutRecords bodies as AWS's SDK for Java 2 writes them.

``sdk_bodies.json`` keeps them.  `python -m tests.core.sdk_bodies` has the SDK write them again, for which it needs a
JDK and Maven.
"""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from pathlib import Path
from random import Random
from typing import Any, Final

import cbor2

from benchmarks.judges.sdk import Row, sdk
from producerd.core.encoding.formats import CBOR
from tests.core.pieces import SPECIAL_KEYS
from tests.runtime.recording import recording
from tests.simulation.setting import STREAM

FROZEN: Final = Path(__file__).with_suffix(".json")
HASH_KEYS: Final = [None, "0", str(2**128 - 1)]
LENGTHS: Final = [0, 1, 23, 24, 25, 255, 256, 257, 65_535, 65_536]


def cases() -> list[list[Row]]:
    """Rows of each request: single ones of every length, and some with all kinds of keys."""
    random = Random(1)
    keys = ["k", "k" * 23, "k" * 24, "é" * 12, "é" * 128, "k" * 255, "k" * 256, "😀" * 128]
    keys += [key.decode() for key in SPECIAL_KEYS]
    single: list[list[Row]] = [[("k", bytes(length), None)] for length in LENGTHS]
    return [*single, [(key, random.randbytes(10), hash_key) for key in keys for hash_key in HASH_KEYS]]


async def bodies() -> list[tuple[str, bytes]]:
    """Content type and body of each case, from the SDK itself.  Raise `maven.Unavailable`."""

    def answer(asked: dict[str, Any]) -> tuple[int, bytes]:
        return 200, cbor2.dumps({"Records": [{"SequenceNumber": "1", "ShardId": "s"}] * len(asked["Records"])})

    async with recording(answer) as (url, requests):
        await asyncio.to_thread(_put_all, url)
    return [(headers["Content-Type"], body) for headers, body in requests]


def _put_all(url: str) -> None:
    with sdk(url) as client:
        for rows in cases():
            client.put(STREAM, rows)


def frozen() -> list[bytes]:
    return [zlib.decompress(base64.b64decode(body)) for body in json.loads(FROZEN.read_text())]


if __name__ == "__main__":
    found = asyncio.run(bodies())
    assert {content_type for content_type, _ in found} == {CBOR.content_type}
    coded = [base64.b64encode(zlib.compress(body)).decode() for _, body in found]
    FROZEN.write_text(json.dumps(coded, indent=0) + "\n")
