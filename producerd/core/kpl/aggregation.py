"""Write and read the KPL aggregated-record format.

An aggregate is ``F3 89 9A C2 | message | MD5(message)``; the message is protobuf 2:

    1 repeated string partition_key_table
    2 repeated string explicit_hash_key_table   (decimal)
    3 repeated Record { 1 uint64 partition_key_index; 2 optional uint64 explicit_hash_key_index; 3 bytes data;
                        4 repeated Tag { 1 string key; 2 optional string value } }

Tables hold each key once, in order of first use.  No known producer writes tags.  (Source: the KPL's aggregation-format
document and its messages.proto.)

Amazon's consumer, KCL 3.0.2 on Java, decides what an aggregate is and which records are in it, even if a message breaks
the format.  `parse` decides exactly as it does.  (Source: its `AggregatorUtil`; see docs/decisions/0005.)

A *given aggregate* is a row whose data is an aggregate that another program made.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable
from hashlib import md5
from typing import Final, NamedTuple

from producerd.core.kpl.protobuf import NotProtobuf, fields
from producerd.core.shards.hash_keys import MAX_HASH_KEY

MAGIC: Final = b"\xf3\x89\x9a\xc2"
"""The first bytes of every aggregate."""
DIGEST_BYTES: Final = 16
FRAMING_BYTES: Final = len(MAGIC) + DIGEST_BYTES
"""Size of an aggregate without its message."""
MAX_KEY_CHARACTERS: Final = 256
"""Longest partition key, in Unicode characters.  (Kinesis API reference, PutRecordsRequestEntry.)"""
_NUMBER_1, _NUMBER_2 = 0x08, 0x10
_BYTES_1, _BYTES_2, _BYTES_3, _BYTES_4 = 0x0A, 0x12, 0x1A, 0x22
"""Tags: a field's number and wire type.  The consumer ignores a known number with another wire type."""
_INDEX: Final = 2**32 - 1
"""The bits of an index that the consumer reads.  Here too, a number below 0 lies beyond any table."""
_LONG_TEXT_BYTES: Final = MAX_KEY_CHARACTERS * 4
_MOST_LONG_TEXTS_BYTES: Final = 64 * 1024
"""Most bytes in keys and hash keys over `_LONG_TEXT_BYTES`, counted once a record: each fragment may repeat them."""
_HASH_KEY: Final = re.compile(rb"0|[1-9][0-9]{0,38}")
"""An explicit hash key that Kinesis accepts."""
_JAVA_NUMBER: Final = re.compile(r"([+-]?)((?:(?![\U00010000-\U0010FFFF])\d)+)")
"""A number that Java's BigInteger reads, which has digits of any script in Unicode's first plane."""
_DIGITS_BEYOND: Final = len(str(MAX_HASH_KEY)) + 1
"""Digits to read of a number: one with this many is beyond all hash keys, so any further ones do not matter."""
_HALF_OF_A_PAIR: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""A surrogate in UTF-8.  Java replaces it by one character, Python by one character for each byte."""


class Undeliverable(ValueError):
    """A consumer takes the payload for an aggregate, but cannot read its records from any shard."""


class InnerRecord(NamedTuple):
    """One record inside an aggregate.  Its texts have the aggregate's own bytes, which need not be UTF-8."""

    partition_key: bytes
    explicit_hash_key: bytes | None
    data: bytes

    @property
    def hash_key(self) -> int:
        """The explicit hash key, or the MD5 of the partition key.

        Raises ValueError if the explicit hash key is not a number.
        """
        if self.explicit_hash_key is not None:
            return _java_number(self.explicit_hash_key)
        key = self.partition_key
        if not key.isascii():
            key = _java_text(key).encode()
        return int.from_bytes(md5(key, usedforsecurity=False).digest(), "big")

    @property
    def can_go_plain(self) -> bool:
        """Whether the record can be stored outside of an aggregate and then reaches a consumer unchanged."""
        try:
            characters = len(self.partition_key.decode())
        except UnicodeDecodeError:
            return False
        return (
            1 <= characters <= MAX_KEY_CHARACTERS
            and (self.explicit_hash_key is None or _HASH_KEY.fullmatch(self.explicit_hash_key) is not None)
            and _message_in(self.data) is None
        )


def _java_text(text: bytes) -> str:
    """Decode UTF-8 as Java does, with U+FFFD in place of invalid bytes."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return _HALF_OF_A_PAIR.sub("\ufffd".encode(), text).decode(errors="replace")


def _java_number(text: bytes) -> int:
    """Read a decimal number as Java's BigInteger does.  Raises ValueError if it is not one."""
    if _HASH_KEY.fullmatch(text):
        return int(text)
    found = _JAVA_NUMBER.fullmatch(_java_text(text))
    if found is None:
        raise ValueError("not a number")
    digits = "".join([str(unicodedata.decimal(digit)) for digit in found[2]]).lstrip("0")
    return int(f"{found[1]}{digits[:_DIGITS_BEYOND] or 0}")


def varint(number: int) -> bytes:
    """Encode a number as an unsigned protobuf varint."""
    if number < 0x80:
        return _SMALL[number]
    octets = bytearray()
    while number >= 0x80:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)


_SMALL: Final = tuple(bytes([number]) for number in range(0x80))


class Aggregate:
    """An aggregate under construction.  `columnar` makes the same bytes for many small rows."""

    __slots__ = ("_hash_keys", "_keys", "_records", "_tables", "records", "size")

    def __init__(self) -> None:
        self._keys: dict[bytes, int] = {}
        self._hash_keys: dict[bytes, int] = {}
        self._tables: tuple[list[bytes], list[bytes]] = ([], [])
        self._records: list[memoryview | bytes] = []
        self.records = 0
        self.size = FRAMING_BYTES

    def try_add(self, key: bytes, hash_key: bytes | None, data: memoryview | bytes, limit_bytes: int) -> bool:
        """Add a record, unless the aggregate would then pass ``limit_bytes``.  Returns whether it was added.

        The first record always fits.
        """
        key_index, key_entry = self._place(self._keys, b"\x0a", key)
        head = b"\x08" + varint(key_index)
        hash_entry = b""
        if hash_key is not None:
            hash_index, hash_entry = self._place(self._hash_keys, b"\x12", hash_key)
            head += b"\x10" + varint(hash_index)
        head += b"\x1a" + varint(len(data))
        record_head = b"\x1a" + varint(len(head) + len(data)) + head
        added = len(key_entry) + len(hash_entry) + len(record_head) + len(data)
        if self.records and self.size + added > limit_bytes:
            return False
        if key_entry:
            self._keys[key] = key_index
            self._tables[0].append(key_entry)
        if hash_entry and hash_key is not None:
            self._hash_keys[hash_key] = hash_index
            self._tables[1].append(hash_entry)
        self._records += (record_head, data)
        self.records += 1
        self.size += added
        return True

    def chunks(self) -> tuple[bytes, ...]:
        """Return the whole aggregate in chunks, with magic and digest."""
        message = b"".join((*self._tables[0], *self._tables[1], *self._records))
        return MAGIC, message, md5(message, usedforsecurity=False).digest()

    def to_bytes(self) -> bytes:
        """Return the whole aggregate, with magic and digest."""
        return b"".join(self.chunks())

    @staticmethod
    def _place(table: dict[bytes, int], tag: bytes, value: bytes) -> tuple[int, bytes]:
        """Return the value's index, and the table entry to write, which is empty if the value is in the table."""
        index = table.get(value)
        if index is not None:
            return index, b""
        return len(table), tag + varint(len(value)) + value


def is_framed(blob: bytes | memoryview) -> bool:
    """Return whether magic and digest are right.  A consumer then tries to read the message as an aggregate's."""
    if len(blob) <= FRAMING_BYTES or blob[: len(MAGIC)] != MAGIC:
        return False
    message = memoryview(blob)[len(MAGIC) : -DIGEST_BYTES]
    return md5(message, usedforsecurity=False).digest() == blob[-DIGEST_BYTES:]


def parse(blob: bytes) -> list[InnerRecord] | None:
    """Return the records inside an aggregate, at least one, or None if ``blob`` is a plain record.

    Raises `Undeliverable` for an aggregate that a consumer skips or fails at, and for one with more bytes of long keys
    than its fragments may repeat.
    """
    message = _message_in(blob)
    if message is None:
        return None
    keys, hash_keys, rows = message
    try:
        records = [
            InnerRecord(keys[key & _INDEX], hash_keys[hash_key & _INDEX] if hash_key is not None else None, data)
            for key, hash_key, data in rows
        ]
    except IndexError:
        raise Undeliverable("a record has a key or a hash key that is not in it") from None
    if not records:
        raise Undeliverable("it has no records")
    _check_hash_keys({record.explicit_hash_key for record in records if record.explicit_hash_key is not None})
    if max(map(len, (*keys, *hash_keys))) > _LONG_TEXT_BYTES:
        _check_long_texts([len(text) for record in records for text in record[:2] if text is not None])
    return records


def _check_hash_keys(texts: set[bytes]) -> None:
    try:
        numbers = [_java_number(text) for text in texts]
    except ValueError:
        raise Undeliverable("a hash key is not a number") from None
    if not all(0 <= number <= MAX_HASH_KEY for number in numbers):
        raise Undeliverable("a hash key is not from 0 to 2^128-1")


def _check_long_texts(sizes: list[int]) -> None:
    size = sum(size for size in sizes if size > _LONG_TEXT_BYTES)
    if size > _MOST_LONG_TEXTS_BYTES:
        raise Undeliverable(
            f"its records have {size} bytes of keys and hash keys that are over {_LONG_TEXT_BYTES} bytes each, "
            f"and {_MOST_LONG_TEXTS_BYTES} are taken"
        )


class _Message(NamedTuple):
    """An aggregate's message: the two key tables, and for each record its two indexes and its data."""

    keys: list[bytes]
    hash_keys: list[bytes]
    rows: list[tuple[int, int | None, bytes]]


def _message_in(blob: bytes) -> _Message | None:
    """Return the message of an aggregate with any records, or None if a consumer takes ``blob`` as plain."""
    if not is_framed(blob):
        return None
    message = _Message([], [], [])
    try:
        for tag, _, value in fields(blob[len(MAGIC) : -DIGEST_BYTES]):
            if tag == _BYTES_1:
                message.keys.append(value)
            elif tag == _BYTES_2:
                message.hash_keys.append(value)
            elif tag == _BYTES_3:
                message.rows.append(_row(value))
    except NotProtobuf:
        return None
    return message


def _row(record: bytes) -> tuple[int, int | None, bytes]:
    """Return a record's indexes and data; the last field of each kind counts.

    Raises `NotProtobuf`, also if the key's index or the data is missing.
    """
    key = hash_key = data = None
    for tag, number, value in fields(record, level=1):
        if tag == _NUMBER_1:
            key = number
        elif tag == _NUMBER_2:
            hash_key = number
        elif tag == _BYTES_3:
            data = value
        elif tag == _BYTES_4 and _BYTES_1 not in [tag for tag, *_ in fields(value, level=2)]:
            raise NotProtobuf("a tag without a key")
    if key is None or data is None:
        raise NotProtobuf("a record without a key or data")
    return key, hash_key, data


class Fragment(NamedTuple):
    """One entry made of a given aggregate.  ``hash_keys``: the range of those inside, None for a plain record."""

    partition_key: bytes
    explicit_hash_key: bytes | None
    data: bytes
    hash_keys: tuple[int, int] | None


def split(blob: bytes, shard_of: Callable[[int], int] | None) -> list[Fragment]:
    """Split a given aggregate into one fragment for each shard, in the order of the shards' first records.

    Without ``shard_of`` each record becomes a fragment.  A record that cannot go plain stays in an aggregate.
    """
    by_shard: dict[int, list[InnerRecord]] = {}
    for number, record in enumerate(parse(blob) or ()):
        by_shard.setdefault(number if shard_of is None else shard_of(record.hash_key), []).append(record)
    return [_fragment(records) for records in by_shard.values()]


def _fragment(records: list[InnerRecord]) -> Fragment:
    hash_keys = [record.hash_key for record in records]
    if len(records) == 1 and records[0].can_go_plain:
        return Fragment(*records[0], None)
    aggregate = Aggregate()
    for record in records:
        aggregate.try_add(*record, limit_bytes=sys.maxsize)
    return Fragment(AGGREGATE_KEY, b"%d" % hash_keys[0], aggregate.to_bytes(), (min(hash_keys), max(hash_keys)))


AGGREGATE_KEY: Final = b"a"
"""The partition key of every aggregate, as the KPL has it.  The explicit hash key decides the shard."""
