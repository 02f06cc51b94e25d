"""What is known of chunks that are stored: files of records, and which chunks of a repeated batch match them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

FILE_FORMAT: Final = 1
MOST_AGE_SECONDS: Final = 24 * 3600.0
"""The shortest retention of a stream: older rows may be gone."""
MOST_SKEW_SECONDS: Final = 600.0
"""How far a node's clock may be ahead.  A record from a later time counts as absent, since its age is unknown."""


class Where(NamedTuple):
    """Where rows are stored.  A stream that was made again has another time."""

    endpoint_host: str
    stream_arn: str
    created_milliseconds: int  # its StreamCreationTimestamp


class StoredChunk(NamedTuple):
    """A chunk of which every row was acknowledged STORED."""

    stream: str
    number: int
    digest: bytes
    where: Where
    seconds: float
    """When its first row was put, since 1970."""


class BadFile(ValueError):
    """A file that is torn, foreign, or of a newer release."""


def to_file(records: Iterable[StoredChunk]) -> bytes:
    """Return the file of records."""
    rows = [[each.stream, each.number, each.digest.hex(), each.seconds, *each.where] for each in records]
    return json.dumps({"producerd_replay": FILE_FORMAT, "chunks": rows}).encode()


def from_file(content: bytes) -> list[StoredChunk]:
    """Return the records of a file.  Raises BadFile."""
    try:
        told: Any = json.loads(content)
        if told["producerd_replay"] != FILE_FORMAT:
            raise ValueError(f"its format is {told['producerd_replay']!r}, and this release knows {FILE_FORMAT}")
        return [_record(*row) for row in told["chunks"]]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise BadFile(f"{type(error).__name__}: {error}") from None


def _record(stream: str, number: int, digest: str, seconds: float, host: str, arn: str, created: int) -> StoredChunk:
    record = StoredChunk(stream, number, bytes.fromhex(digest), Where(host, arn, created), float(seconds))
    types = [type(each) for each in (stream, number, host, arn, created)]
    if len(record.digest) != 32 or types != [str, int, str, str, int]:
        raise ValueError("its chunks are not chunks")
    return record


class Known:
    """The records of one partition of a batch, and which of its chunks are left out.

    ``per_key`` has the streams whose keys stay in order, where only a prefix is left out: were a later chunk left out
    and an earlier one sent, a reader who keeps each key's last value would end with a wrong one.  With ``follows_sent``
    an earlier call of the batch has sent rows, and nothing of these streams is left out.
    """

    def __init__(
        self, records: Iterable[StoredChunk], per_key: Mapping[str, bool], *, follows_sent: bool = False
    ) -> None:
        self._at: dict[tuple[str, int], list[StoredChunk]] = {}
        for record in records:
            self._at.setdefault((record.stream, record.number), []).append(record)
        self._per_key = per_key
        self._follows_sent = follows_sent
        self._sent: set[str] = set()  # the streams of which a chunk was not left out

    def may_match(self, stream: str, number: int) -> bool:
        """Return whether a chunk is held back until its digest is known.  If not, it is sent at once."""
        follows = self._follows_sent or stream in self._sent
        return (stream, number) in self._at and not (self._per_key[stream] and follows)

    def has(self, stream: str, number: int, digest: bytes, where: Where | None, now_seconds: float) -> bool:
        """Return whether a chunk is stored at ``where``, the place to which it would be sent now; None if unknown.

        A record that is too old, or from too far ahead of the clock, counts as absent.  Runs may have stored other rows
        at a place.  Where keys keep their order it is then not known which ones came last.
        """
        there = self._at.get((stream, number), [])
        if self._per_key[stream] and len({record.digest for record in there}) > 1:
            return False
        return any(
            (record.digest, record.where) == (digest, where)
            and -MOST_SKEW_SECONDS <= now_seconds - record.seconds < MOST_AGE_SECONDS
            for record in there
        )

    def sends(self, stream: str) -> None:
        """Note that a chunk of the stream is sent."""
        self._sent.add(stream)
