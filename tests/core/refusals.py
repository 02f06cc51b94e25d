"""What becomes of a row by the answer to its request, found by asking a pipeline: a table of delivery.md."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Final, NamedTuple

from producerd.core.rows.frame import Frame
from producerd.core.sending.answers import RequestFailed
from producerd.errors import Code, Outcome
from tests.core.rows import even_map
from tests.core.stories import BAD_HASH_KEY, THROTTLED, Desk, Sent, on_the_wire

SECONDS: Final = 0.02
"""How long an answer takes."""
GRACE_SECONDS: Final = 60.0
LONG_SECONDS: Final = 80.0
TOO_LARGE: Final = "Record 1 of stream s has 9 bytes, more than the maximum record size of 8 bytes."
OF_STREAM: Final = "StreamARN and StreamName do not match"


class Refusal(NamedTuple):
    """An answer: the failure of a whole request, or the error of an entry in an answer with status 200.

    ``isolates``: what is refused so holds no other session's rows.  Other failures concern a stream or a shard.
    """

    what: str
    failed: RequestFailed | tuple[str, str]
    isolates: bool = True


def failed(status: int, code: str, message: str = "", request_id: str = "d3f1") -> RequestFailed:
    maybe_stored = not (400 <= status < 500 and request_id and not code.isdecimal())
    return RequestFailed(code, message, maybe_stored, status=status, request_id=request_id)


TYPES: Final = "ValidationException", "InvalidArgumentException", "SerializationException", "MissingParameter"
REFUSALS: Final = (
    *[
        Refusal("4xx of such a type with a request id, about a record", failed(400, code, BAD_HASH_KEY))
        for code in TYPES
    ],
    Refusal("4xx of such a type with a request id, about a record's size", failed(400, TYPES[0], TOO_LARGE)),
    *[Refusal("4xx of such a type with a request id, about no record", failed(400, code, OF_STREAM)) for code in TYPES],
    Refusal("4xx of any type without a request id", failed(400, TYPES[0], BAD_HASH_KEY, "")),
    Refusal("4xx of any type without a request id", failed(403, "Blocked", BAD_HASH_KEY, "")),
    *[Refusal("4xx without a type", failed(status, str(status), BAD_HASH_KEY)) for status in (400, 403, 413)],
    Refusal("4xx of another type with a request id", failed(403, "Blocked", BAD_HASH_KEY)),
    Refusal("4xx of any type without a request id", failed(403, "AccessDeniedException", request_id="")),
    *[Refusal("408, 425, 429", failed(status, str(status))) for status in (408, 429)],
    Refusal("408, 425, 429", failed(429, TYPES[0], BAD_HASH_KEY)),
    Refusal("3xx and 5xx of any type", failed(500, TYPES[0], BAD_HASH_KEY)),
    Refusal("3xx and 5xx of any type", failed(503, "ResourceNotFoundException")),
    Refusal("3xx and 5xx of any type", failed(302, "302", BAD_HASH_KEY)),
    Refusal("a 4xx that refuses the stream", failed(400, "AccessDeniedException"), isolates=False),
    Refusal("200, but not an answer of PutRecords", RequestFailed("NotKinesis", "a page", True), isolates=False),
    Refusal("no answer", RequestFailed(Code.UNREACHABLE, "timed out", True, timed_out=True), isolates=False),
    Refusal("200, the entry is throttled or has an InternalFailure", (THROTTLED, "Rate exceeded"), isolates=False),
    Refusal("200, the entry is throttled or has an InternalFailure", ("InternalFailure", ""), isolates=False),
    Refusal("200, the entry has such a type, about a record", (TYPES[0], BAD_HASH_KEY)),
    Refusal("200, the entry has such a type, about no record", (TYPES[1], OF_STREAM)),
)
"""The answers that differ in what becomes of a row.  Such a type: one of `TYPES`."""
WAYS: Final = tuple(product((False, True), (False, True)))
"""``aggregation = "kpl"``, and ``ordering = "per_key"``."""


def is_bad(sent: Sent) -> bool:
    return any(data.startswith(b"bad") for data in sent.users)


def give(sent: Sent, refusal: RequestFailed | tuple[str, str]) -> None:
    """Answer a request so, or in a 200 each entry with a bad row."""
    if isinstance(refusal, RequestFailed):
        sent.fail(refusal)
        return
    error = {"ErrorCode": refusal[0], "ErrorMessage": refusal[1]}
    lanes, table = sent.encoded.lanes.tolist(), sent.request.lanes
    stored = [{"SequenceNumber": "1", "ShardId": table[lane].shard.shard_id} for lane in lanes]
    sent.answer([error if b"bad" in data else result for data, result in zip(sent.data, stored, strict=True)])


def serve(
    desk: Desk, answer: Callable[[Sent], RequestFailed | tuple[str, str] | None], *frames: Frame, seconds: float = 300.0
) -> float:
    """Answer requests until the frames are finished; None stores.  Return how long that took."""
    began = desk.now
    while not all(frame.finished for frame in frames) and desk.now < began + seconds:
        sent = desk.send_when_due()
        desk.now += SECONDS
        refusal = answer(sent)
        if refusal is None:
            sent.stored_as_predicted()
        else:
            give(sent, refusal)
    return desk.now - began


class Fate(NamedTuple):
    """How a row ended, and when; ``end`` is "" while it waits."""

    end: str
    judged: bool
    when: str

    def __str__(self) -> str:
        return f"{self.end} {self.when}" if self.end else "waits"


def fate_of(refusal: Refusal, *, alone: bool, aggregate: bool, per_key: bool) -> Fate:
    """Return the fate of a bad row: ``alone`` in a stream that never stored, or with others that are stored."""
    desk = Desk(even_map(2), aggregate=aggregate, per_key=per_key, permanent_error_grace_seconds=GRACE_SECONDS)
    rows = [(b"k", b"bad", None)]
    others = None if alone else desk.submit([(b"b%d" % i, b"good", None) for i in range(40)], "b")
    frame = desk.queue(rows, "a", takes_good=True)
    seconds = serve(desk, lambda sent: refusal.failed if is_bad(sent) else None, frame, seconds=LONG_SECONDS)
    if others is not None and others.tallies[Outcome.STORED] != 40:
        raise AssertionError(f"{refusal.what} held or ended the rows of another session")
    if not frame.finished:
        return Fate("", judged=False, when="")
    ((_, why),) = on_the_wire(frame.result()).failed_rows()
    when = "at once" if seconds < 10.0 else "after the grace" if seconds >= GRACE_SECONDS else "after some attempts"
    return Fate(f"{Outcome(why.outcome).name} {why.code}", why.judged, when)


def one_fate_of(refusal: Refusal, *, alone: bool) -> Fate:
    """Return a row's fate, which is the same in all ways of sending."""
    found = {fate_of(refusal, alone=alone, aggregate=aggregate, per_key=per_key) for aggregate, per_key in WAYS}
    if len(found) != 1:
        raise AssertionError(f"{refusal.what}, alone {alone}: {found}")
    return found.pop()


def matrix() -> str:
    """Return the table of docs/understand/delivery.md: one line for each kind of answer."""
    lines = [
        "| answer | a row, while others are stored | where nothing is stored | skip, divert |",
        "|---|---|---|---|",
    ]
    for refusal in REFUSALS:
        alone = one_fate_of(refusal, alone=True)
        fate = one_fate_of(refusal, alone=False) if refusal.isolates else None
        left_out = "left out" if alone.judged else "fails the batch" if alone.end or (fate and fate.end) else "waits"
        line = f"| {refusal.what} | {fate or '-'} | {alone} | {left_out} |"
        if line not in lines:
            lines.append(line)
    return "\n".join(lines)
