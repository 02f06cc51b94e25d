"""Take stored records apart as a consumer does: plain records, and aggregates in the KPL's format.

This module follows the format's description and Amazon's library, not `producerd.core.kpl.aggregation`, so that it can
judge that module.  It behaves as the Kinesis Client Library 3.0.2: a record with a wrong magic, digest or message is a
plain record, not an error.  Messages, texts and numbers are read as Java reads them.

Format: https://github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md
"""

from __future__ import annotations

import codecs
import hashlib
import unicodedata
from collections.abc import Iterator
from typing import Final, NamedTuple

MAGIC: Final = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES: Final = 16


class UserRecord(NamedTuple):
    """A record as an application wrote it."""

    partition_key: str
    explicit_hash_key: str | None
    data: bytes


class BrokenAggregate(ValueError):
    """An aggregate on which a consumer fails, although its magic, digest and message are right.

    A record in it points outside the key tables, or has an explicit hash key that is not a number.
    """


class _NotAMessage(ValueError):
    """The bytes are not the protobuf message of the format."""


def hash_of(partition_key: str, explicit_hash_key: str | None) -> int:
    """Return a record's hash key: its explicit one, or the MD5 of its partition key as a big-endian number.

    An explicit hash key may lie outside of 0..2^128-1.  Raise ValueError if it is not a number.
    """
    if explicit_hash_key is not None:
        return _big_integer(explicit_hash_key)
    return int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest())


def deaggregate(payload: bytes) -> list[UserRecord] | None:
    """Return the user records of an aggregate, in order, or None for a plain record.  Raise BrokenAggregate."""
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
    for number, value in _ProtobufReader(message).fields():
        match number, value:
            case 1, bytes():
                keys.append(value.decode(errors=_AS_JAVA))
            case 2, bytes():
                hash_keys.append(value.decode(errors=_AS_JAVA))
            case 3, bytes():
                rows.append(_row(value))
    records = []
    for key, hash_key, data in rows:
        text = None if hash_key is None else _at(hash_keys, hash_key)
        records.append(UserRecord(_at(keys, key), text, data))
        try:
            hash_of(*records[-1][:2])
        except ValueError as reason:
            raise BrokenAggregate(str(reason)) from None
    return records


def _at(table: list[str], index: int) -> str:
    """Return an entry of a table.  The index is cut to a signed number of 32 bits, as in Java."""
    place = (index + 2**31) % 2**32 - 2**31
    if not 0 <= place < len(table):
        raise BrokenAggregate(f"index {place} in a table of {len(table)}")
    return table[place]


def _row(message: bytes) -> tuple[int, int | None, bytes]:
    """Return key index, hash key index or None, and data of a record.  Of each field the last counts."""
    key = hash_key = data = None
    for number, value in _ProtobufReader(message, 1).fields():
        match number, value:
            case 1, int():
                key = value
            case 2, int():
                hash_key = value
            case 3, bytes():
                data = value
            case 4, bytes():
                _check_tag(value)
    if key is None or data is None:
        raise _NotAMessage("a required field is missing")
    return key, hash_key, data


def _check_tag(message: bytes) -> None:
    keys = [value for number, value in _ProtobufReader(message, 2).fields() if number == 1 and isinstance(value, bytes)]
    if not keys:
        raise _NotAMessage("a tag without a key")


class _ProtobufReader:
    """A reader of one protobuf message.  ``depth`` counts the messages and groups around it."""

    MOST_DEPTH: Final = 100

    def __init__(self, message: bytes, depth: int = 0) -> None:
        self._message = message
        self._position = 0
        self._depth = depth

    def fields(self, group: int | None = None) -> Iterator[tuple[int, int | bytes | None]]:
        """Yield the number and value of each field until the message or the group ends.

        The value is an int for a varint, or bytes.
        """
        while self._position < len(self._message) or group is not None:
            number, wire_type = divmod(self._varint() % 2**32, 8)
            if number == 0:
                raise _NotAMessage("number 0")
            match wire_type:
                case 0:
                    yield number, self._varint()
                case 1:
                    self._take(8)
                case 2:
                    yield number, self._take(self._varint() % 2**32)
                case 3:
                    self._skip_group(number)
                case 4 if number == group:
                    return
                case 5:
                    self._take(4)
                case _:
                    raise _NotAMessage(f"wire type {wire_type} at byte {self._position}")

    def _skip_group(self, number: int) -> None:
        self._depth += 1
        if self._depth > self.MOST_DEPTH:
            raise _NotAMessage("too deep")
        for _ in self.fields(group=number):
            pass
        self._depth -= 1

    def _varint(self) -> int:
        value = 0
        for place, byte in enumerate(self._message[self._position : self._position + 10]):
            value += (byte & 0x7F) << 7 * place
            if byte < 0x80:
                self._position += place + 1
                return value % 2**64
        raise _NotAMessage(f"a number that does not end at byte {self._position}")

    def _take(self, size: int) -> bytes:
        start, self._position = self._position, self._position + size
        if self._position > len(self._message):
            raise _NotAMessage("cut short")
        return self._message[start : self._position]


def _replace_as_java(error: UnicodeError) -> tuple[str, int]:
    """Replace malformed bytes by one U+FFFD for each piece that Java takes for one.

    For Java a surrogate is one piece, even if it is cut short.  For Python each of its bytes is one.
    """
    assert isinstance(error, UnicodeDecodeError)
    text, start, end = error.object, error.start, error.end
    if text[start] == 0xED:
        while end < min(start + 3, len(text)) and text[end] & 0xC0 == 0x80:
            end += 1
    return "\ufffd", end


_AS_JAVA: Final = "producerd.testing: as Java"
codecs.register_error(_AS_JAVA, _replace_as_java)


def _big_integer(text: str) -> int:
    """Return a number as Java's BigInteger reads it: a sign, then decimal digits of any script in the BMP."""
    digits = text[1:] if text[:1] in {"+", "-"} else text
    values = [unicodedata.decimal(digit, None) if digit <= "\uffff" else None for digit in digits]
    if not values or None in values:
        raise ValueError(f"{text[:40]!r} is not a number")
    size = 0
    for value in values:
        size = size * 10 + int(value or 0)
    return -size if text[0] == "-" else size
