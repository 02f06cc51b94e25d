"""PutRecords gets an answer that is not Kinesis's own, though the service has stored the records."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import cbor2

from tests.faults.oracle import Law
from tests.faults.scenarios import scenario
from tests.faults.stage import Stage

HEAD_END: Final = b"\r\n\r\n"
OVERSIZED_BYTES: Final = 50_000_000
HELD_BYTES: Final = 8_000_000
LITTLE: Final[Mapping[str, Any]] = {
    "queue_limit_bytes": "1 MiB",
    "node_queue_limit_bytes": "8 MiB",
    "node_max_in_flight_bytes": "4 MiB",
    "max_streams": 4,
    "max_connections": 16,
}
"""Settings by which the memory law allows little."""
STATUSES: Final = ("200 OK", "403 Forbidden", "407 Proxy Authentication Required", "502 Bad Gateway")
PAGE: Final = b"<!DOCTYPE html><html><head><title>Proxy</title></head><body><h1>No</h1></body></html>"
NOT_HTTP: Final = (
    b"SSH-2.0-OpenSSH_9.6\r\n" * 50,
    b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
)
NOT_RESULTS: Final = (
    *(b"", b"null", b"[]", b"{}", b'{"Records":5}', b'{"Records":null}', b"[" * 100_000, b"\xff\xfe" * 500),
    b'{"FailedRecordCount":0,"Records":[{"ShardId":"shardId-0000',
)
ODD_RESULTS: Final[tuple[Any, ...]] = (
    *(None, 5, "text", [], {}, {"ShardId": 5}, {"ShardId": ["a"]}, {"ShardId": ""}, {"ErrorCode": 5}),
    {"ErrorCode": ["InternalFailure"], "ErrorMessage": {}},
)
"""Each in place of every result."""

Answer = tuple[bytes, bool]
"""The bytes of an answer, and whether the connection ends after it."""
Wrong = Callable[[bytes], Answer]
"""Makes of the body of an answer to PutRecords what comes in place of the answer."""


def _http(body: bytes, *more: str, status: str = "200 OK", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    lines = f"HTTP/1.1 {status}", "Content-Type: application/x-amz-json-1.1", f"Content-Length: {size}", *more
    return "\r\n".join(lines).encode() + HEAD_END + body


def _answer(stage: Stage, *wrong: Wrong) -> None:
    """From now on each PutRecords is answered in one of these ways, as chance has it."""

    def change(answer: bytes) -> Answer:
        body = answer.partition(HEAD_END)[2]
        return stage.chance.choice(wrong)(body) if b"FailedRecordCount" in body else (answer, False)

    stage.proxy.change = change


def _results(body: bytes, instead: Any) -> bytes:
    """An answer with as many results as there were, all of them this one."""
    in_cbor = not body.startswith(b"{")
    told = cbor2.loads(body) if in_cbor else json.loads(body)
    answer = told | {"Records": [instead] * len(told["Records"])}
    return cbor2.dumps(answer) if in_cbor else json.dumps(answer).encode()


@scenario("each answer is garbage, from bytes that are not HTTP to results that make no sense, for a minute")
def garbage_answers(stage: Stage) -> None:
    chance = stage.chance
    _answer(
        stage,
        lambda body: (chance.randbytes(1_000), True),
        lambda body: (chance.choice(NOT_HTTP), True),
        lambda body: (_http(chance.choice(NOT_RESULTS)), False),
        lambda body: (_http(_results(body, chance.choice(ODD_RESULTS))), False),
    )
    stage.wait(60, 3)


@scenario("each answer ends in its middle, and its connection with it, for 30 s", patient=True)
def truncated_answers(stage: Stage) -> None:
    def cut(body: bytes) -> Answer:
        whole = _http(body)
        return whole[: stage.chance.randrange(len(whole))], True

    _answer(stage, cut)
    stage.wait(30, 3)


@scenario("half of the answers have one to three results too many or too few, for 30 s")
def wrong_counts(stage: Stage) -> None:
    counts = [number for number in range(-3, 4) if number]
    stage.service.fails(*({"kind": "miscount", "count": count, "fraction": 0.1} for count in counts))
    stage.wait(30, 3)


@scenario("each answer is compressed and says so, for 20 s", patient=True, resends=False)
def compressed_answers(stage: Stage) -> None:
    compressed = itertools.count()

    def compress(body: bytes) -> Answer:
        next(compressed)
        return _http(gzip.compress(body), "Content-Encoding: gzip"), False

    _answer(stage, compress)
    stage.wait(20, 3)
    stage.proxy.calm()
    assert next(compressed), "no answer was compressed"
    counted = stage.daemon.metrics()["possible_duplicate_records_total"]
    stage.must(Law.COPIES, not counted, f"{counted:,.0f} are counted, though each answer could be read")


@scenario("each answer is compressed and says nothing of it, or says so and is not, for a minute")
def mislabelled_answers(stage: Stage) -> None:
    _answer(
        stage,
        lambda body: (_http(gzip.compress(body)), False),
        lambda body: (_http(body, "Content-Encoding: gzip"), False),
        lambda body: (_http(gzip.compress(body)[:-9], "Content-Encoding: gzip"), False),
    )
    stage.wait(60, 3)


def _always(answer: bytes) -> Wrong:
    return lambda body: (answer, False)


@scenario("each answer has 50 MB, with its length, in chunks, compressed or dripping, for 30 s", settings=LITTLE)
def oversized_answers(stage: Stage) -> None:
    blank = b" " * OVERSIZED_BYTES
    with_length = _http(blank)
    in_chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(blank), blank)
    dripping = in_chunks[:HELD_BYTES]  # the daemon holds it until it gives up the request
    bomb = _http(gzip.compress(blank), "Content-Encoding: gzip")
    stage.service.control("settings", latency_seconds=0.5)  # many are on their way at once
    stage.wait(1)
    for larges in ((dripping,), (with_length, in_chunks, bomb)):
        _answer(stage, *map(_always, larges))
        stage.wait(15, 2)


@scenario("a proxy answers each request with its page, with the status 200, 403, 407 or 502, for a minute")
def proxy_pages(stage: Stage) -> None:
    _answer(stage, lambda body: (_http(PAGE, status=stage.chance.choice(STATUSES)), False))
    stage.wait(60, 3)
