"""What a consumer makes of a stored record: plain, or an aggregate in the KPL's format, taken apart.

Written from the format alone and never from `producerd.core.aggregation`, so that it can judge that module.  It follows
the Kinesis Client Library: a wrong magic, digest or message is a plain record, not an error.

Format: https://github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple

MAGIC: Final = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES: Final = 16

_VARINT: Final = 0
_BYTES: Final = 2


class UserRecord(NamedTuple):
    """A record as the application wrote it."""

    partition_key: str
    explicit_hash_key: str | None
    data: bytes


class BrokenAggregate(ValueError):
    """Right magic and digest, but a record points outside the key tables: a consumer loses its records."""


class _NotAMessage(ValueError):
    """The bytes are not the protobuf message of the format."""


def hash_of(partition_key: str, explicit_hash_key: str | None) -> int:
    """The place of a record in 0..2^128-1: its explicit hash key, or the MD5 of its key as a big-endian number."""
    if explicit_hash_key is not None:
        return int(explicit_hash_key)
    return int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest())


def deaggregate(payload: bytes) -> list[UserRecord] | None:
    """The user records of an aggregate, in order; None for a plain record.  Raises BrokenAggregate."""
    if not payload.startswith(MAGIC) or len(payload) <= len(MAGIC) + DIGEST_BYTES:
        return None
    message, digest = payload[len(MAGIC) : -DIGEST_BYTES], payload[-DIGEST_BYTES:]
    if hashlib.md5(message, usedforsecurity=False).digest() != digest:
        return None
    try:
        return _user_records(message)
    except _NotAMessage:
        return None


def _user_records(message: bytes) -> list[UserRecord]:
    keys: list[str] = []
    hash_keys: list[str] = []
    rows: list[tuple[int, int | None, bytes]] = []
    for number, value in _fields(message):
        match number, value:
            case 1, bytes():
                keys.append(_text(value))
            case 2, bytes():
                hash_keys.append(_text(value))
            case 3, bytes():
                rows.append(_row(value))
    try:
        return [UserRecord(keys[k], None if h is None else hash_keys[h], data) for k, h, data in rows]
    except IndexError:
        raise BrokenAggregate(
            f"{len(keys)} keys, {len(hash_keys)} hash keys, and a record that points outside"
        ) from None


def _row(message: bytes) -> tuple[int, int | None, bytes]:
    """The key's index, the hash key's index if any, and the data of one record."""
    found = dict(_fields(message))
    key, hash_key, data = found.get(1), found.get(2), found.get(3)
    if not isinstance(key, int) or not isinstance(data, bytes) or isinstance(hash_key, bytes):
        raise _NotAMessage("a required field is missing or of another type")
    return key, hash_key, data


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Each field of a protobuf message: its number and its value (varints and lengths: there are no other)."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        value, position = _varint(message, position)
        if tag & 7 == _VARINT:
            yield tag >> 3, value
        elif tag & 7 == _BYTES and position + value <= len(message):
            yield tag >> 3, message[position : position + value]
            position += value
        else:
            raise _NotAMessage(f"tag {tag} at byte {position}")


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift, byte in zip(range(0, 64, 7), message[position : position + 10], strict=False):
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
    raise _NotAMessage(f"a number that does not end at byte {position}")


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _NotAMessage("a key that is not UTF-8") from None
