"""Sending: one PutRecords on its way past botocore.

Its body goes in as it is and its answer comes out as it came, so that no record passes botocore's serialiser or parser
(5 MB: 29.5 -> 5.7 ms); and it is known whether any of the body was handed to a connection.  Until then nothing can
have been stored.  All of it hangs on events that botocore and aiohttp document.
"""

from __future__ import annotations

import contextvars
from typing import Any, Final

from aiohttp import ClientError, TraceConfig, TraceRequestRedirectParams
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from botocore.awsrequest import AWSPreparedRequest

MAX_ANSWER_BYTES: Final = 8 << 20
"""Of any answer, far above what Kinesis says: the largest page of shards has 4 MB."""
RESULT_BYTES: Final = 1024
"""For each entry, far above what Kinesis says of one: 130 bytes, or 350 with the message of an error."""
FEW_RESULTS_BYTES: Final = 64 * 1024
"""What an answer may have in any case: an error's page, and what proxies add."""


def most_answer_bytes(entries: int) -> int:
    """Return the most that is read of the answer to a PutRecords of this many entries.

    A peer that sends more, slowly, to each request on its way would fill the memory.
    """
    return min(MAX_ANSWER_BYTES, FEW_RESULTS_BYTES + entries * RESULT_BYTES)


class Sending:
    """A body and its SHA-256 digest in hex.  It belongs to the task that sends it, and to what that task starts."""

    __slots__ = ("answer_bytes", "body", "body_written", "sent", "sha256")

    def __init__(self, body: bytes | memoryview, sha256: str, answer_bytes: int) -> None:
        self.body = body
        self.sha256 = sha256
        self.answer_bytes = answer_bytes
        self.body_written = False
        self.sent: tuple[Any, AWSPreparedRequest] | None = None  # the AbortingSession and botocore's request

    def begin(self) -> None:
        """It is tried, maybe again: nothing of the body is written."""
        self.body_written = False

    def write(self) -> None:
        """The body is about to be written."""
        self.body_written = True

    def note(self, session: Any, request: AWSPreparedRequest) -> None:
        """botocore sends it by this session, as this request."""
        self.sent = session, request

    def let_go(self) -> None:
        """Of what it sent, once it has ended: the contexts of connections and their timers hold on to it."""
        self.body, self.sent = b"", None


MOST_COPIED_BYTES: Final = 128 * 1024
"""aiohttp copies head and body together.  From here on that costs more than sending the head by itself."""
TINY: Final = ({"Data": b"", "PartitionKey": "-"},)
"""The records that botocore is called with; the ready body replaces them."""
this_sending: contextvars.ContextVar[Sending | None] = contextvars.ContextVar("this_sending", default=None)


def put_ready_body(params: dict[str, Any], **_: Any) -> None:
    """before-call: the ready body, and its digest in the header that signing reads instead of hashing again."""
    if (sending := this_sending.get()) is not None:
        params["body"], params["headers"]["X-Amz-Content-SHA256"] = sending.body, sending.sha256


def keep_raw_answer(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """before-parse: a success is handed on as it came; errors keep botocore's own path."""
    if response_dict["status_code"] < 301:  # what botocore takes for one
        customized_response_dict["Raw"] = response_dict["body"]
        response_dict["body"] = b"{}"


class NotedBody(Payload):
    """What aiohttp takes for a body.  It notes when it is about to be written."""

    def __init__(self, sending: Sending) -> None:
        super().__init__(sending.body)
        self._size = len(sending.body)
        self._sending = sending

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self._value, encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        self._sending.write()
        if len(self._value) > MOST_COPIED_BYTES:
            writer.send_headers()
        await writer.write(self._value)


def not_followed(status: int) -> str:
    """AWS does not redirect.  Whoever does would have records, and a session's token, sent to anybody it likes."""
    return f"a redirect (status {status}), which is not followed"


async def _follow_nowhere(_session: Any, _context: Any, redirect: TraceRequestRedirectParams) -> None:
    redirect.response.close()
    raise ClientError(not_followed(redirect.response.status))


redirect_trace = TraceConfig()
redirect_trace.on_request_redirect.append(_follow_nowhere)
redirect_trace.freeze()
