"""Read protobuf's wire format exactly as protobuf-java 4.27.5 does.

With that reader Amazon's consumer (KCL 3.0.2) decides whether a payload is an aggregate.  A number keeps its low 64
bits, a tag and a length their low 32.  Unknown fields and groups are skipped.
(Source: https://protobuf.dev/programming-guides/encoding/, and that version's `CodedInputStream`.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
"""The wire types."""
_BITS_32: Final = 2**32 - 1
_BITS_64: Final = 2**64 - 1
_VARINT_BYTES: Final = 10
_MOST_LEVELS: Final = 100
"""Deepest nesting of messages and groups."""


class NotProtobuf(ValueError):
    """The bytes are not a protobuf message."""


def fields(message: bytes, level: int = 0) -> Iterator[tuple[int, int, bytes]]:
    """Yield (tag, number, bytes) of each field; the tag is its number and wire type, and the value is one of the two.

    ``level``: how many messages enclose this one.  Raises `NotProtobuf` on reaching the first invalid byte.
    """
    at, end = 0, len(message)
    groups: list[int] = []  # the end tags of the open groups
    while at < end:
        tag, at = _varint(message, at)
        tag &= _BITS_32
        if tag < 8:
            raise NotProtobuf("a field with the number 0")
        number, value = 0, b""
        wire_type = tag & 7
        if wire_type == _VARINT:
            number, at = _varint(message, at)
        elif wire_type == _BYTES:
            size, start = _varint(message, at)
            at = start + (size & _BITS_32)  # a negative length reads as a huge one, and so passes the end
            value = message[start:at]
        elif wire_type == _GROUP:
            groups.append(tag - _GROUP + _END_GROUP)
            if level + len(groups) > _MOST_LEVELS:
                raise NotProtobuf("too many groups within each other")
        elif wire_type == _END_GROUP:
            if not groups or groups.pop() != tag:
                raise NotProtobuf("the end of a group that is not open")
        elif wire_type in (_FIXED32, _FIXED64):
            at += 4 if wire_type == _FIXED32 else 8
        else:
            raise NotProtobuf(f"the wire type {wire_type}")
        if at > end:
            raise NotProtobuf("a field passes the end")
        if not groups:
            yield tag, number, value
    if groups:
        raise NotProtobuf("a group does not end")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number and the offset behind it."""
    if at < len(message) and message[at] < 0x80:
        return message[at], at + 1
    number = 0
    for place, byte in enumerate(message[at : at + _VARINT_BYTES]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number & _BITS_64, at + place + 1
    raise NotProtobuf("a number that does not end")
