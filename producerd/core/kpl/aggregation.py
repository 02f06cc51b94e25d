"""The KPL aggregated-record format, both directions.

An aggregate is ``F3 89 9A C2 | message | MD5(message)``; the message is protobuf 2:

    1 repeated string partition_key_table
    2 repeated string explicit_hash_key_table   (decimal)
    3 repeated Record { 1 uint64 partition_key_index; 2 optional uint64 explicit_hash_key_index; 3 bytes data;
                        4 repeated Tag { 1 string key; 2 optional string value } }

Tables hold each key once, in order of first use; nobody writes tags.  (Source: the KPL's aggregation-format document
and its messages.proto.)

Amazon's consumer, KCL 3.0.2 on Java, decides what an aggregate is and what is in it, also where a message bends the
format.  `parse` follows it to the letter.  (Source: its `AggregatorUtil`; see docs/decisions/0005.)
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
DIGEST_BYTES: Final = 16
FRAMING_BYTES: Final = len(MAGIC) + DIGEST_BYTES
MAX_KEY_CHARACTERS: Final = 256
"""Of a partition key, in Unicode characters (Kinesis API reference, PutRecordsRequestEntry)."""
_NUMBER_1, _NUMBER_2 = 0x08, 0x10
_BYTES_1, _BYTES_2, _BYTES_3, _BYTES_4 = 0x0A, 0x12, 0x1A, 0x22
"""Tags: a field's number and its wire type.  A known number with another type is an unknown field."""
_INDEX: Final = 2**32 - 1
"""The bits of an index that the consumer looks at.  A number below 0 lies beyond any table here too."""
_LONG_TEXT_BYTES: Final = MAX_KEY_CHARACTERS * 4
_MOST_LONG_TEXTS_BYTES: Final = 64 * 1024
"""Of keys and hash keys that are longer, counted for each record: split, an aggregate may repeat them in each part."""
_HASH_KEY: Final = re.compile(rb"0|[1-9][0-9]{0,38}")
"""An explicit hash key as the service takes it."""
_JAVA_NUMBER: Final = re.compile(r"([+-]?)((?:(?![\U00010000-\U0010FFFF])\d)+)")
"""What Java's BigInteger reads: digits of any script that lies in Unicode's first plane."""
_DIGITS_BEYOND: Final = len(str(MAX_HASH_KEY)) + 1
"""A number with that many digits is beyond all hash keys, and more of them say nothing else."""
_HALF_OF_A_PAIR: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""A surrogate in UTF-8: Java replaces it by one character, Python by one for each byte."""


class Undeliverable(ValueError):
    """A consumer takes the payload for an aggregate, and no delivery would hand it the records."""


class UserRecord(NamedTuple):
    """One record inside an aggregate.  The texts are as they stand there, which need not be UTF-8."""

    partition_key: bytes
    explicit_hash_key: bytes | None
    data: bytes

    @property
    def hash_key(self) -> int:
        """Its explicit hash key, or the MD5 of its partition key.  Raises ValueError where that is not a number."""
        if self.explicit_hash_key is not None:
            return _java_number(self.explicit_hash_key)
        key = self.partition_key
        if not key.isascii():
            key = _java_text(key).encode()
        return int.from_bytes(md5(key, usedforsecurity=False).digest(), "big")

    @property
    def can_go_plain(self) -> bool:
        """Whether a consumer is handed the same when the record is stored as it is, outside of any aggregate."""
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
    """UTF-8 as Java decodes it, with U+FFFD for what is not."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return _HALF_OF_A_PAIR.sub("\ufffd".encode(), text).decode(errors="replace")


def _java_number(text: bytes) -> int:
    """A decimal number as Java's BigInteger reads it.  Raises ValueError."""
    if _HASH_KEY.fullmatch(text):
        return int(text)
    found = _JAVA_NUMBER.fullmatch(_java_text(text))
    if found is None:
        raise ValueError("not a number")
    digits = "".join([str(unicodedata.decimal(digit)) for digit in found[2]]).lstrip("0")
    return int(f"{found[1]}{digits[:_DIGITS_BEYOND] or 0}")


def varint(number: int) -> bytes:
    """An unsigned protobuf varint."""
    if number < 0x80:
        return _SMALL[number]
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


_SMALL: Final = tuple(bytes([number]) for number in range(0x80))


class Aggregate:
    """One aggregate while it fills.  `columnar` gives the same bytes for many small records."""

    __slots__ = ("_hash_keys", "_keys", "_records", "_tables", "records", "size")

    def __init__(self) -> None:
        self._keys: dict[bytes, int] = {}
        self._hash_keys: dict[bytes, int] = {}
        self._tables: tuple[list[bytes], list[bytes]] = ([], [])
        self._records: list[bytes] = []
        self.records = 0
        self.size = FRAMING_BYTES

    def add(self, key: bytes, hash_key: bytes | None, data: memoryview | bytes, limit_bytes: int) -> bool:
        """Add a record, unless the aggregate would pass ``limit_bytes`` with it.  The first one always fits."""
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
        self._records += (record_head, bytes(data))
        self.records += 1
        self.size += added
        return True

    def to_bytes(self) -> bytes:
        message = b"".join((*self._tables[0], *self._tables[1], *self._records))
        return b"".join((MAGIC, message, md5(message, usedforsecurity=False).digest()))

    @staticmethod
    def _place(table: dict[bytes, int], tag: bytes, value: bytes) -> tuple[int, bytes]:
        """Its index, and the table entry to write where it is new."""
        index = table.get(value)
        if index is not None:
            return index, b""
        return len(table), tag + varint(len(value)) + value


def is_sealed(blob: bytes | memoryview) -> bool:
    """Whether magic and digest are right: a consumer takes this for an aggregate if its message is one."""
    if len(blob) <= FRAMING_BYTES or blob[: len(MAGIC)] != MAGIC:
        return False
    message = memoryview(blob)[len(MAGIC) : -DIGEST_BYTES]
    return md5(message, usedforsecurity=False).digest() == blob[-DIGEST_BYTES:]


def parse(blob: bytes) -> list[UserRecord] | None:
    """The user records of an aggregate, at least one, or None where ``blob`` is a plain record.

    Raises `Undeliverable` for an aggregate of which a consumer hands on nothing, or at which it fails.  So too for one
    with more long keys than may be repeated.
    """
    message = _message_in(blob)
    if message is None:
        return None
    keys, hash_keys, rows = message
    try:
        records = [
            UserRecord(keys[key & _INDEX], hash_keys[hash_key & _INDEX] if hash_key is not None else None, data)
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
    """An aggregate's message: the two tables, and for each record its two indexes and its data."""

    keys: list[bytes]
    hash_keys: list[bytes]
    rows: list[tuple[int, int | None, bytes]]


def _message_in(blob: bytes) -> _Message | None:
    """The message of an aggregate, whatever its records are, or None where a consumer takes ``blob`` for plain."""
    if not is_sealed(blob):
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
    """A record's indexes and data, the last one of each.  Raises `NotProtobuf`, also where one is missing."""
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


class Part(NamedTuple):
    """What is to be stored of an aggregate in one shard: an entry, and in an aggregate the range of the hash keys."""

    partition_key: bytes
    explicit_hash_key: bytes | None
    data: bytes
    hash_keys: tuple[int, int] | None


def split(blob: bytes, shard_of: Callable[[int], int] | None) -> list[Part]:
    """An aggregate as one entry for each shard, in the order of their first records; without shards, for each record.

    A record that cannot go plain stays wrapped.
    """
    parts: dict[int, list[UserRecord]] = {}
    for number, record in enumerate(parse(blob) or ()):
        parts.setdefault(number if shard_of is None else shard_of(record.hash_key), []).append(record)
    return [_part(records) for records in parts.values()]


def _part(records: list[UserRecord]) -> Part:
    hash_keys = [record.hash_key for record in records]
    if len(records) == 1 and records[0].can_go_plain:
        return Part(*records[0], None)
    aggregate = Aggregate()
    for record in records:
        aggregate.add(*record, limit_bytes=sys.maxsize)
    return Part(AGGREGATE_KEY, b"%d" % hash_keys[0], aggregate.to_bytes(), (min(hash_keys), max(hash_keys)))


AGGREGATE_KEY: Final = b"a"
"""The partition key of an aggregate, which nobody reads: its explicit hash key places it (the KPL's choice)."""
