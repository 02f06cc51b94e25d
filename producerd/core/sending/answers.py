"""Answers of PutRecords: what became of each entry, or why nobody knows.

Reading an answer is pure and may run in worker threads.  `stored` reads whole columns and is the fast twin of
`_read_results`, for answers by which every entry was stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from producerd.core.shards.hash_keys import I32
from producerd.errors import Code

LEAST_RESULTS: Final = 128


@dataclass(frozen=True, slots=True)
class Answer:
    """One result per entry.  ``shards`` and ``errors`` index the tables; each is -1 where the other one holds.

    ``sequences``: for each shard the sequence number of one of its entries, 0 where the service gave no number.
    """

    shards: I32
    shard_table: tuple[str, ...]
    errors: I32
    error_table: tuple[tuple[str, str], ...]
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """No result per entry.  ``maybe_stored``: the service may have stored some of it all the same.

    ``wrong_endpoint``: the endpoint's name does not exist, or its certificate is refused, and nothing there has ever
    answered this daemon.
    """

    code: str
    message: str
    maybe_stored: bool
    timed_out: bool = False
    wrong_endpoint: bool = False


NOT_KINESIS: Final = "NotKinesis"
"""The code of a failure of ours: an answer with the status 200, or a result in one, that nobody can read."""
MAX_TEXT: Final = 500
"""Characters of what the service says of an entry; whoever answers may say megabytes."""
_SEQUENCE_NUMBER: Final = re.compile("[0-9]{1,128}")


def parse_answer(body: bytes, entries: int) -> Answer | RequestFailed:
    """Read a PutRecords answer (HTTP 200).  Where the count does not match, nothing is known of any entry."""
    if entries >= LEAST_RESULTS and (found := stored(body, entries)) is not None:
        return Answer(found.shards, found.shard_table, np.full(entries, -1, np.int32), (), found.sequences)
    try:
        results: list[dict[str, Any]] = orjson.loads(body)["Records"]
        count = len(results)
        if count == entries:
            return _read_results(results)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return RequestFailed(NOT_KINESIS, "an answer that is not PutRecords's", maybe_stored=True)
    return RequestFailed(Code.RESULT_COUNT, f"{count} results for {entries} entries", maybe_stored=True)


def _read_results(results: list[dict[str, Any]]) -> Answer:
    shard_ids = [(result.get("ShardId") or None) if not result.get("ErrorCode") else None for result in results]
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
    """Return code and message of a result without a shard.  Without a code it does not say that nothing is stored."""
    code = result.get("ErrorCode")
    if not isinstance(code, str) or not code:
        return NOT_KINESIS, "a result with neither a shard nor an error"
    return code[:MAX_TEXT], str(result.get("ErrorMessage"))[:MAX_TEXT]


_STORED: Final = re.compile(rb'\{"SequenceNumber":"([0-9]{1,128})","ShardId":"([\w.-]{1,128})"\}')
_NAME: Final = re.compile(rb"[\w.-]+")


class Stored(NamedTuple):
    """Where entries were stored: for each the index of its shard in the table; for each shard the sequence number of
    its first."""

    shards: I32
    shard_table: tuple[str, ...]
    sequences: tuple[int, ...]


def stored(answer: bytes, entries: int) -> Stored | None:
    """An answer to PutRecords by which so many entries were stored, one and all.

    Each result is as long as the others and differs in nothing but digits and its shard: so Kinesis writes them.  None:
    it is not like that, and may still be an answer.
    """
    first = _STORED.search(answer)
    if first is None:
        return None
    at, width = first.start(), len(first[0]) + 1
    end = at + entries * width - 1
    try:
        if orjson.loads(b"%b0%b" % (answer[:at], answer[end:]))["Records"] != [0]:
            return None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    results = np.frombuffer(answer, np.uint8, entries * width, at).reshape(entries, width)
    numbers, shards = (slice(first.start(group) - at, first.end(group) - at) for group in (1, 2))
    digits = np.ascontiguousarray(results[:, numbers])
    if (digits - ord("0")).max() > 9:
        return None
    expected = bytearray(first[0] + b",") * entries
    alike = np.frombuffer(expected, np.uint8).reshape(entries, width)
    alike[:, numbers] = digits
    if answer.startswith(memoryview(expected)[:-1], at):
        return Stored(np.zeros(entries, np.int32), (str(first[2], "ascii"),), (int(first[1]),))
    alike[:, shards] = results[:, shards]
    if not answer.startswith(memoryview(expected)[:-1], at):
        return None
    column = np.ascontiguousarray(results[:, shards]).view(f"V{len(first[2])}")[:, 0]
    starts = np.append(0, np.flatnonzero(column[1:] != column[:-1]) + 1)  # entries come shard by shard
    names = [column[row].tobytes() for row in starts]
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
    return Stored(np.repeat(of_runs, np.diff(starts, append=entries)), shard_table, tuple(sequences))
