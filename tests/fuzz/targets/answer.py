"""Whatever bytes the service answers, however they are cut, give the outcome of each row or an expected failure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import botocore.exceptions as boto_errors

from producerd.core.failures import meaning_of
from producerd.core.sending.answers import Answer, RequestFailed, parse_answer
from producerd.runtime.aws.connection import NOT_HTTP, HttpAnswer, HttpConnection
from producerd.runtime.aws.connections import REDIRECTS
from producerd.runtime.aws.errors import error_of, failure_of
from producerd.runtime.aws.kinesis import most_answer_bytes
from tests.fuzz.targets import in_cuts
from tests.fuzz.targets.cbor import assert_said

ENTRIES: Final = 2
LOOP: Final = asyncio.new_event_loop()


class _Transport(asyncio.Transport):
    """A peer that takes everything at once."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def abort(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


TRANSPORT: Final = _Transport()


def check(data: bytes) -> None:
    """The first byte says how the rest is cut, and whether the peer then closes the connection orderly."""
    choice, said = data[:1] or b"\0", data[1:]
    whole = LOOP.run_until_complete(_outcome([said], choice[0]))
    cut = LOOP.run_until_complete(_outcome(in_cuts(said, choice[0]), choice[0]))
    assert cut == whole, "another outcome if the bytes are cut"


async def _outcome(pieces: Iterable[bytes], choice: int) -> str:
    """Ask, read the pieces, and judge what came of it."""
    connection = HttpConnection()
    connection.connection_made(TRANSPORT)
    asking = connection.ask(b"POST / HTTP/1.1\r\n\r\n", b"{}", most_answer_bytes(ENTRIES))
    asking.send(None)  # this coroutine waits for its answer only
    for piece in pieces:
        connection.data_received(piece)
    if choice & 1:
        connection.eof_received()
    connection.connection_lost(None if choice & 1 else ConnectionResetError("reset"))
    try:
        asking.send(None)
        raise AssertionError("neither answered nor failed at the connection's end")
    except StopIteration as ended:
        return _judged(ended.value)
    except (ConnectionError, *NOT_HTTP) as error:
        closed = boto_errors.ConnectionClosedError(endpoint_url="http://fuzz", error=error)
        failed = failure_of(closed, body_written=True)
        assert failed.maybe_stored, "a request without an answer that rules out that records are stored"
        return failed.code


def _judged(answer: HttpAnswer) -> str:
    """Do as `Connections`, `AwsClient` and `AioKinesis` do, and compare the outcome with the bytes."""
    if answer.status in REDIRECTS:
        return failure_of(boto_errors.HTTPClientError(error="a redirect"), body_written=True).code
    found: Answer | RequestFailed
    if answer.status >= 300:
        try:
            error: Exception = error_of(answer)
        except Exception as raised:  # botocore's parser raises anything, and `AioKinesis` takes it for a failure
            error = raised
        found = failure_of(error, body_written=True)
        assert found.maybe_stored or answer.status < 500, "a 5xx that rules out that records are stored"
        assert meaning_of(found.code) is not None
    else:
        found = parse_answer(answer.body, ENTRIES)
        assert_said(found, answer.body, ENTRIES)
    return str(found)
