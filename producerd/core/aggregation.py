"""The KPL aggregated-record format, both directions.

An aggregate is ``F3 89 9A C2 | message | MD5(message)``; the message is protobuf 2:

    1 repeated string partition_key_table
    2 repeated string explicit_hash_key_table   (decimal)
    3 repeated Record { 1 uint64 partition_key_index; 2 optional uint64 explicit_hash_key_index; 3 bytes data }

Tables hold each key once, in order of first use.  (Source: the KPL's aggregation-format document and messages.proto.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from hashlib import md5
from typing import Final, NamedTuple

MAGIC: Final = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES: Final = 16
FRAMING_BYTES: Final = len(MAGIC) + DIGEST_BYTES


class UserRecord(NamedTuple):
    """One record inside an aggregate."""

    partition_key: bytes
    explicit_hash_key: bytes | None
    data: bytes

    @property
    def hash_key(self) -> int:
        """Its explicit hash key, or the MD5 of its partition key."""
        if self.explicit_hash_key is not None:
            return int(self.explicit_hash_key)
        return int.from_bytes(md5(self.partition_key, usedforsecurity=False).digest(), "big")


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
    """Whether magic and digest say that a consumer takes this for an aggregate."""
    if len(blob) < FRAMING_BYTES or blob[: len(MAGIC)] != MAGIC:
        return False
    message = memoryview(blob)[len(MAGIC) : -DIGEST_BYTES]
    return md5(message, usedforsecurity=False).digest() == blob[-DIGEST_BYTES:]


def parse(blob: bytes) -> list[UserRecord] | None:
    """The user records of an aggregate, or None where ``blob`` is a plain record (as Amazon's consumer decides)."""
    if not is_sealed(blob):
        return None
    message = memoryview(blob)[len(MAGIC) : -DIGEST_BYTES]
    keys: list[bytes] = []
    hash_keys: list[bytes] = []
    records: list[UserRecord] = []
    try:
        for field, value in _fields(message):
            if field == 1 and isinstance(value, bytes):
                keys.append(value)
            elif field == 2 and isinstance(value, bytes):
                hash_keys.append(value)
            elif field == 3 and isinstance(value, bytes):
                inner = dict(_fields(memoryview(value)))
                hash_index, data = inner.get(2), inner[3]
                if not isinstance(data, bytes):
                    return None
                hash_key = hash_keys[int(hash_index)] if hash_index is not None else None
                records.append(UserRecord(keys[int(inner[1])], hash_key, data))
    except (IndexError, KeyError, ValueError):
        return None
    return records


class Part(NamedTuple):
    """What is to be stored of an aggregate in one shard: an entry, and in an aggregate the range of the hash keys."""

    partition_key: bytes
    explicit_hash_key: bytes | None
    data: bytes
    hash_keys: tuple[int, int] | None


def split(blob: bytes, shard_of: Callable[[int], int] | None) -> list[Part]:
    """An aggregate as one entry for each shard, in the order of their first records; without shards, for each record.

    A record stays wrapped where its data is an aggregate itself: a consumer would take that apart.
    """
    parts: dict[int, list[UserRecord]] = {}
    for number, record in enumerate(parse(blob) or ()):
        parts.setdefault(number if shard_of is None else shard_of(record.hash_key), []).append(record)
    return [_part(records) for records in parts.values()]


def _part(records: list[UserRecord]) -> Part:
    hash_keys = [record.hash_key for record in records]
    if len(records) == 1 and not is_sealed(records[0].data):
        return Part(*records[0], None)
    aggregate = Aggregate()
    for record in records:
        aggregate.add(*record, limit_bytes=sys.maxsize)
    return Part(AGGREGATE_KEY, b"%d" % hash_keys[0], aggregate.to_bytes(), (min(hash_keys), max(hash_keys)))


AGGREGATE_KEY: Final = b"a"
"""The partition key of an aggregate, which nobody reads: its explicit hash key places it (the KPL's choice)."""


def _fields(message: memoryview) -> list[tuple[int, int | bytes]]:
    """(field number, value) of each field.  Raises ValueError or IndexError for what is not protobuf."""
    fields: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        if tag & 7 == 0:
            number, at = _read_varint(message, at)
            fields.append((tag >> 3, number))
        elif tag & 7 == 2:
            size, at = _read_varint(message, at)
            if at + size > len(message):
                raise ValueError("a field passes the end")
            fields.append((tag >> 3, bytes(message[at : at + size])))
            at += size
        else:
            raise ValueError(f"wire type {tag & 7}")
    return fields


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint over 64 bits")
