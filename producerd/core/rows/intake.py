"""Check a frame's columns on the loop thread: offsets, lengths, UTF-8, hash keys.

Wrong *offsets* raise ProtocolError, which ends the session.  A wrong *row* is marked as bad, with a reason that never
quotes its data.  All checks work on whole columns.  Only if some key of a frame is not UTF-8, a loop over its keys
finds the bad ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import sub
from typing import Final

import numpy as np
import numpy.typing as npt

from producerd.core.kpl.aggregation import FRAMING_BYTES, MAGIC, MAX_KEY_CHARACTERS, Undeliverable, parse
from producerd.core.shards.hash_keys import I32, MAX_HASH_KEY
from producerd.errors import Code, ProtocolError
from producerd.wire.columns import Body

_AGGREGATE_REFUSED: Final = (
    'data is an aggregated record, which consumers take apart: set aggregation = "kpl" (and ordering = "none"), '
    "or take it apart before sending"
)
_UNDELIVERABLE: Final = (
    "data is an aggregated record that consumers are not handed: {reason}. Send its records as rows of their own"
)
_I32: Final = np.dtype("<i4")
SMALL_BYTES: Final = 16_384
"""Largest charge of a frame that is checked without numpy."""
_MAX_HASH_KEY_TEXT: Final = np.frombuffer(str(MAX_HASH_KEY).encode(), np.uint8)


@dataclass(frozen=True, slots=True)
class FaultyRows:
    """Numbers of a frame's rows that cannot be sent, all for the same reason."""

    rows: I32
    code: str
    message: str

    @property
    def judged(self) -> bool:
        """Whether these rows can never be stored.  What a setting of the daemon refuses may be, with another one."""
        return self.code != Code.CONFIGURATION


@dataclass(slots=True)
class CheckedRows:
    """The rows of one frame after their check.  Nothing changes them; a frozen class takes three times as long to make.

    ``bad`` names the rows that cannot be sent; it is empty for nearly every frame.  ``null_keys``: the number of rows
    without a partition key.
    """

    records: int
    keys: memoryview
    key_offsets: I32
    data: memoryview
    data_offsets: I32
    hash_keys: memoryview | None
    hash_key_offsets: I32 | None
    bad: tuple[FaultyRows, ...]
    null_keys: int
    aggregates: I32 | None = None
    """The numbers of the rows that are given aggregates; None for nearly every frame."""


def check(body: Body, max_record_bytes: int, *, takes_aggregates: bool = False) -> CheckedRows:
    """Check a frame's body and return its rows with the bad ones named.  Raises ProtocolError for wrong offsets.

    - ``max_record_bytes``: the most bytes of a row's key + data that any stream takes.
    - ``takes_aggregates``: given aggregates are good rows, which the daemon later splits by shard.  If it stored one
      as it is, a consumer might drop it although the daemon has acknowledged it.
    """
    if (few := _few_plain_rows(body, max_record_bytes)) is not None:
        return few
    records = body.layout.records
    key_offsets = _offsets(body.key_offsets, body.layout.key_bytes, "key")
    data_offsets = _offsets(body.data_offsets, body.layout.data_bytes, "data")
    key_lengths, data_lengths = key_offsets[1:] - key_offsets[:-1], data_offsets[1:] - data_offsets[:-1]
    bad: list[FaultyRows] = []

    def mark(rows: npt.NDArray[np.intp], code: str, message: str) -> None:
        if len(rows):
            bad.append(FaultyRows(rows.astype(np.int32), code, message))

    if body.validity is not None:
        present = np.unpackbits(np.frombuffer(body.validity, np.uint8), count=records, bitorder="little")
        mark((present == 0).nonzero()[0], Code.RECORD_INVALID, "data is null")
    mark(_not_utf8(body.keys, key_offsets), Code.RECORD_INVALID, "the partition key is not UTF-8")
    mark(
        _too_long(body.keys, key_offsets, key_lengths),
        Code.RECORD_INVALID,
        f"the partition key is over {MAX_KEY_CHARACTERS} characters",
    )
    mark(
        (key_lengths.astype(np.int64) + data_lengths > max_record_bytes).nonzero()[0],
        Code.RECORD_TOO_LARGE,
        f"key and data are over Kinesis's {max_record_bytes} bytes a record",
    )
    hash_key_offsets = None
    if body.hash_keys is not None and body.hash_key_offsets is not None:
        hash_key_offsets = _offsets(body.hash_key_offsets, body.layout.hash_key_bytes, "hash key")
        mark(
            _bad_hash_keys(body.hash_keys, hash_key_offsets),
            Code.RECORD_INVALID,
            "the explicit hash key is not a decimal number from 0 to 2^128-1 without leading zeros",
        )
    aggregates, undeliverable = _aggregates(body.data, data_offsets, data_lengths)
    for reason, rows in undeliverable.items():
        mark(np.array(rows), Code.RECORD_INVALID, _UNDELIVERABLE.format(reason=reason))
    if not takes_aggregates:
        mark(aggregates, Code.CONFIGURATION, _AGGREGATE_REFUSED)
    return CheckedRows(
        records=records,
        keys=body.keys,
        key_offsets=key_offsets,
        data=body.data,
        data_offsets=data_offsets,
        hash_keys=body.hash_keys,
        hash_key_offsets=hash_key_offsets,
        bad=tuple(bad),
        null_keys=int(np.count_nonzero(key_lengths == 0)),
        aggregates=aggregates.astype(np.int32) if takes_aggregates and len(aggregates) else None,
    )


def _few_plain_rows(body: Body, max_record_bytes: int) -> CheckedRows | None:
    """Return the rows of a small frame in which nothing needs a closer look, or None.

    It is quicker than the checks of whole columns, which take some 25 µs however few rows there are.
    """
    layout = body.layout
    if layout.charge_bytes > min(SMALL_BYTES, max_record_bytes):
        return None
    if body.validity is not None or body.hash_keys is not None:
        return None
    data = bytes(body.data)
    if not bytes(body.keys).isascii() or (MAGIC[0] in data and MAGIC in data):  # the first is a memchr
        return None
    key_offsets, data_offsets = np.frombuffer(body.key_offsets, _I32), np.frombuffer(body.data_offsets, _I32)
    keys_at, datas_at = key_offsets.tolist(), data_offsets.tolist()
    if keys_at[0] or datas_at[0] or keys_at[-1] != layout.key_bytes or datas_at[-1] != layout.data_bytes:
        return None
    key_lengths = [*map(sub, keys_at[1:], keys_at)]
    if min(key_lengths) < 0 or max(key_lengths) > MAX_KEY_CHARACTERS or datas_at != sorted(datas_at):
        return None
    null_keys = key_lengths.count(0)
    return CheckedRows(layout.records, body.keys, key_offsets, body.data, data_offsets, None, None, (), null_keys)


def _offsets(view: memoryview, column_bytes: int, column: str) -> I32:
    """Return a column's offsets from 0.  Only an Arrow slice has offsets that start higher and must be copied."""
    offsets = np.frombuffer(view, _I32)
    if offsets[0] < 0 or int(offsets[-1]) - int(offsets[0]) != column_bytes:
        raise ProtocolError(f"the {column} offsets span {int(offsets[-1]) - int(offsets[0])} of {column_bytes} bytes")
    if (offsets[1:] < offsets[:-1]).any():
        raise ProtocolError(f"the {column} offsets fall")
    return offsets - offsets[0] if offsets[0] else offsets


def _not_utf8(keys: memoryview, offsets: I32) -> npt.NDArray[np.intp]:
    """Return the rows whose key is not UTF-8.

    There are none if the column as a whole is UTF-8 and no key starts inside a character.
    """
    try:
        if str(keys, "utf-8").isascii():
            return np.empty(0, np.intp)
        octets = np.frombuffer(keys, np.uint8)
        starts = offsets[:-1][offsets[:-1] < offsets[1:]]
        if not (octets[starts] & 0xC0 == 0x80).any():
            return np.empty(0, np.intp)
    except UnicodeDecodeError:
        pass
    at = offsets.tolist()
    return np.array([row for row in range(len(at) - 1) if not _decodes(keys[at[row] : at[row + 1]])], np.intp)


def _decodes(key: memoryview) -> bool:
    try:
        str(key, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _aggregates(data: memoryview, offsets: I32, lengths: I32) -> tuple[npt.NDArray[np.intp], dict[str, list[int]]]:
    """Return the rows that are given aggregates, and by reason the rows with aggregates that no consumer could read.

    Only rows that begin with the four bytes of `MAGIC` are parsed, which random data has in one of 2^32 rows.
    """
    octets = np.frombuffer(data, np.uint8)
    rows = (lengths > FRAMING_BYTES).nonzero()[0]
    for place, octet in enumerate(MAGIC):
        if not len(rows):
            return rows, {}
        rows = rows[octets[offsets[rows] + place] == octet]
    aggregates: list[int] = []
    undeliverable: dict[str, list[int]] = {}
    for row in rows.tolist():
        try:
            if parse(bytes(data[offsets[row] : offsets[row + 1]])) is not None:
                aggregates.append(row)
        except Undeliverable as reason:
            undeliverable.setdefault(str(reason), []).append(row)
    return np.array(aggregates, np.intp), undeliverable


def _too_long(keys: memoryview, offsets: I32, lengths: I32) -> npt.NDArray[np.intp]:
    """Return the rows whose key has too many characters.  Bytes that continue a UTF-8 character do not count."""
    long = (lengths > MAX_KEY_CHARACTERS).nonzero()[0]
    if not len(long):
        return long
    begins = np.zeros(len(keys) + 1, np.int32)
    np.cumsum(np.frombuffer(keys, np.uint8) & 0xC0 != 0x80, out=begins[1:])
    return long[begins[offsets[long + 1]] - begins[offsets[long]] > MAX_KEY_CHARACTERS]


def _bad_hash_keys(hash_keys: memoryview, offsets: I32) -> npt.NDArray[np.intp]:
    """Return the rows whose explicit hash key is not a decimal number up to `MAX_HASH_KEY`.  Empty ones are good."""
    octets = np.frombuffer(hash_keys, np.uint8)
    lengths = np.diff(offsets)
    bad = lengths > len(_MAX_HASH_KEY_TEXT)
    digits = np.zeros(len(octets) + 1, np.int32)
    np.cumsum((octets >= 0x30) & (octets <= 0x39), out=digits[1:])
    bad |= digits[offsets[1:]] - digits[offsets[:-1]] != lengths
    several = np.flatnonzero(lengths > 1)
    bad[several] |= octets[offsets[several]] == 0x30  # a leading zero
    longest = np.flatnonzero(lengths == len(_MAX_HASH_KEY_TEXT))
    if len(longest):
        texts = octets[offsets[longest][:, None] + np.arange(len(_MAX_HASH_KEY_TEXT))]
        differs = texts != _MAX_HASH_KEY_TEXT
        first = differs.argmax(axis=1)
        beyond = texts[np.arange(len(longest)), first] > _MAX_HASH_KEY_TEXT[first]
        bad[longest] |= beyond & differs.any(axis=1)
    return np.flatnonzero(bad)
