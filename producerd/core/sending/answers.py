"""Read the answers of PutRecords: the result of each entry, or the failure of the whole request.

An answer is in JSON or in CBOR, which its first byte tells, whatever the format of the request was: users of AWS's SDKs
have met answers in JSON to requests in CBOR.  Reading an answer is pure and may run in worker threads.  `stored` is the
fast twin of `_read_results`.  It reads whole columns, if the answer says that every entry was stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, NamedTuple

import cbor2
import numpy as np
import orjson

from producerd.core.encoding.formats import LIST, head
from producerd.core.shards.hash_keys import I32
from producerd.errors import Code

LEAST_RESULTS: Final = 128
"""Fewest results for which `stored` is faster."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with one result for each entry.

    - ``shards``: for each entry the index of its shard in ``shard_table``, or -1 if it failed.
    - ``errors``: for each entry the index of its error in ``error_table``, or -1 if it was stored.
    - ``error_table``: the code and message of each error.
    - ``sequences``: for each shard in the table the sequence number of one of its entries, or 0 if it had none.
    """

    shards: I32
    shard_table: tuple[str, ...]
    errors: I32
    error_table: tuple[tuple[str, str], ...]
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request without results for its entries.

    - ``maybe_stored``: Kinesis may have stored some of the entries.
    - ``wrong_endpoint``: the endpoint's name does not exist, its certificate is not trusted, or it answers with a bare
      400, and this endpoint has never answered this daemon in another way.
    - ``status``: the HTTP status of the answer that says so, or 0.
    - ``request_id``: the service's id of the request, for AWS's support, or "".
    """

    code: str
    message: str
    maybe_stored: bool
    timed_out: bool = False
    wrong_endpoint: bool = False
    status: int = 0
    request_id: str = ""

    def __str__(self) -> str:
        return error_text(self.code, self.message, self.request_id)


def error_text(code: str, message: str, request_id: str = "") -> str:
    """Return an error in one line for people, with the service's id of the request if it is known."""
    return f"{code}: {message} (request id {request_id})" if request_id else f"{code}: {message}"


NOT_KINESIS: Final = "NotKinesis"
"""The code for an answer with status 200, or a result in it, that does not have the format of Kinesis."""
MAX_TEXT: Final = 500
"""Most characters to keep of an entry's error code or message, because an answer may hold megabytes."""
MOST_LEVELS: Final = 8
"""Most levels of an answer in CBOR.  The results of PutRecords are at the third."""
_SEQUENCE_NUMBER: Final = re.compile("[0-9]{1,128}")


def parse_answer(body: bytes, entries: int) -> Answer | RequestFailed:
    """Read the body of a PutRecords answer with status 200.

    Returns `RequestFailed` if the body is not an answer of PutRecords, or has another number of results than entries.
    """
    if entries >= LEAST_RESULTS and (found := stored(body, entries)) is not None:
        return Answer(found.shards, found.shard_table, np.full(entries, -1, np.int32), (), found.sequences)
    try:
        results: list[dict[str, Any]] = loads(body)["Records"]
        count = len(results)
        if count == entries:
            return _read_results(results)
    except (ValueError, KeyError, TypeError, AttributeError):
        return RequestFailed(NOT_KINESIS, "an answer that is not PutRecords's", maybe_stored=True)
    return RequestFailed(Code.RESULT_COUNT, f"{count} results for {entries} entries", maybe_stored=True)


def is_cbor(body: bytes) -> bool:
    """Return whether the body of an answer, which is a map, is in CBOR.  In JSON it begins with ASCII."""
    return body[:1] >= b"\x80"


def loads(body: bytes) -> Any:
    """Return what the body of an answer holds.  Raise ValueError if it is neither JSON nor CBOR."""
    return (_CBOR if is_cbor(body) else _JSON).loads(body)


def _loads_cbor(body: bytes) -> Any:
    try:
        return cbor2.loads(body, max_depth=MOST_LEVELS, strict_hashable_types=True)
    except Exception as error:  # CBORError, and what the types raise that its tags name
        raise ValueError(f"not CBOR: {type(error).__name__}") from None


def _read_results(results: list[dict[str, Any]]) -> Answer:
    shard_ids = [
        (result.get("ShardId") or None) if result.get("SequenceNumber") and not result.get("ErrorCode") else None
        for result in results
    ]
    shard_places = {shard_id: place for place, shard_id in enumerate(dict.fromkeys(shard_ids))}
    if not {type(shard_id) for shard_id in shard_places} <= {str, type(None)}:
        raise TypeError("a shard's id is text")
    shards = np.array([shard_places[shard_id] for shard_id in shard_ids], np.int32)
    errors = np.full(len(results), -1, np.int32)
    error_places: dict[tuple[str, str], int] = {}
    if None in shard_places:
        for row, shard_id in enumerate(shard_ids):
            if shard_id is None:
                errors[row] = error_places.setdefault(_error_of(results[row]), len(error_places))
        shards[errors >= 0] = -1
    first = dict(zip(reversed(shard_ids), range(len(results) - 1, -1, -1), strict=True))
    sequences = [0] * len(shard_places)
    for shard_id, place in shard_places.items():
        text = results[first[shard_id]].get("SequenceNumber")
        if shard_id is not None and isinstance(text, str) and _SEQUENCE_NUMBER.fullmatch(text):
            sequences[place] = int(text)
    shard_table = tuple(shard_id or "" for shard_id in shard_places)
    return Answer(shards, shard_table, errors, tuple(error_places), tuple(sequences))


def _error_of(result: Mapping[str, Any]) -> tuple[str, str]:
    """Return code and message of a result that does not say where its entry is stored.

    A result that has no code, or has a sequence number with it, gets `NOT_KINESIS`, because it does not say that the
    entry was not stored.
    """
    code = result.get("ErrorCode")
    if not isinstance(code, str) or not code or result.get("SequenceNumber"):
        return NOT_KINESIS, "a result that is neither a shard and a sequence number nor an error alone"
    return code[:MAX_TEXT], str(result.get("ErrorMessage"))[:MAX_TEXT]


class _Form(NamedTuple):
    """A format's reader, how it writes a stored entry's result, what it puts between results, and small numbers."""

    loads: Callable[[bytes], Any]
    result: re.Pattern[bytes]
    separator: bytes
    numbers: tuple[bytes, ...]


_JSON: Final = _Form(
    orjson.loads,
    re.compile(rb'\{"SequenceNumber":"([0-9]{1,128})","ShardId":"([\w.-]{1,128})"\}'),
    separator=b",",
    numbers=(b"0", b"1", b"2", b"3"),
)
_CBOR: Final = _Form(
    _loads_cbor,
    re.compile(
        rb"[\xa2\xbf]\x6eSequenceNumber(?:[\x60-\x77]|\x78.)([0-9]{1,128})"
        rb"\x67ShardId(?:[\x60-\x77]|\x78.)([\w.-]{1,128})\xff?",
        re.DOTALL,
    ),
    separator=b"",
    numbers=(b"\0", b"\1", b"\2", b"\3"),
)
UNTIL_BREAK: Final = b"\x9f"
"""How a list begins that has no length.  (Source: RFC 8949, 3.2.2.)"""
_NAME: Final = re.compile(rb"[\w.-]+")


class Stored(NamedTuple):
    """The shards in which a request's entries were stored.

    ``shards``: for each entry the index of its shard in ``shard_table``.  ``sequences``: for each shard in the table
    the sequence number of its first entry.
    """

    shards: I32
    shard_table: tuple[str, ...]
    sequences: tuple[int, ...]


def stored(answer: bytes, entries: int) -> Stored | None:
    """Read an answer of PutRecords in the form that Kinesis writes when it stored all of this many entries.

    In that form all results have the same length and differ only in the digits of the sequence number and in the shard.
    Returns None for any other body, which may still be an answer.
    """
    form = _CBOR if is_cbor(answer) else _JSON
    first = form.result.search(answer)
    if first is None:
        return None
    at, width = first.start(), len(first[0]) + len(form.separator)
    end = at + entries * width - len(form.separator)
    if end > len(answer):
        return None
    before = answer[:at]
    try:
        if form is _CBOR:
            result = {"SequenceNumber": str(first[1], "ascii"), "ShardId": str(first[2], "ascii")}
            if form.loads(first[0]) != result:  # the pattern does not compare lengths with what they are of
                return None
            if not before.endswith(UNTIL_BREAK):
                if not before.endswith(length := head(LIST, entries)):
                    return None
                before = before.removesuffix(length) + head(LIST, 1)
        # A number that occurs nowhere else in the answer takes the place of the results, since "Records" may be another
        # list, and cbor2 ignores bytes behind an answer's end.
        after = answer[end:]
        rest, number = before + after, 0
        while form.numbers[number] in rest:
            number += 1
        if form.loads(b"%b%b%b" % (before, form.numbers[number], after))["Records"] != [number]:
            return None
    except (ValueError, LookupError, TypeError):
        return None
    results = np.frombuffer(answer, np.uint8, entries * width, at).reshape(entries, width)
    numbers, shards = (slice(first.start(group) - at, first.end(group) - at) for group in (1, 2))
    digits = np.ascontiguousarray(results[:, numbers])
    if (digits - ord("0")).max() > 9:
        return None
    expected = bytearray(first[0] + form.separator) * entries
    alike = np.frombuffer(expected, np.uint8).reshape(entries, width)
    alike[:, numbers] = digits
    if answer.startswith(memoryview(expected)[: end - at], at):
        return Stored(np.zeros(entries, np.int32), (str(first[2], "ascii"),), (int(first[1]),))
    alike[:, shards] = results[:, shards]
    if not answer.startswith(memoryview(expected)[: end - at], at):
        return None
    # Kinesis answers in the order of entries, which are sorted by shard.  Names are compared as numbers of 8 bytes.
    size = len(first[2])
    padded = np.zeros((entries, -(-size // 8) * 8), np.uint8)
    padded[:, :size] = results[:, shards]
    of_eights = padded.view(np.uint64).T
    differs = reduce(np.bitwise_or, [eights[1:] != eights[:-1] for eights in of_eights])
    starts = [0, *(np.flatnonzero(differs) + 1).tolist()]
    names = [padded[row, :size].tobytes() for row in starts]
    if not all(map(_NAME.fullmatch, names)):
        return None
    places: dict[bytes, int] = {}
    sequences: list[int] = []
    for row, name in zip(starts, names, strict=True):
        if name not in places:
            places[name] = len(places)
            sequences.append(int(results[row, numbers].tobytes()))
    of_runs = np.fromiter(map(places.__getitem__, names), np.int32, len(names))
    shard_table = tuple([str(name, "ascii") for name in places])
    return Stored(np.repeat(of_runs, np.diff([*starts, entries])), shard_table, tuple(sequences))
