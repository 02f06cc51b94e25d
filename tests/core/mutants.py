"""Payloads with a right digest whose message keeps, bends or breaks the rules of the aggregate's format.

`named` yields each oddity alone.  `mutants` combines any of them at random, with flipped bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

MAGIC: Final = b"\xf3\x89\x9a\xc2"
BEYOND: Final = 2**128
"""The first number that is not a hash key."""

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)


class Mutant(NamedTuple):
    name: str
    payload: bytes


def framed(message: bytes) -> bytes:
    return MAGIC + message + hashlib.md5(message, usedforsecurity=False).digest()


def varint(number: int, size: int = 1) -> bytes:
    """A varint of at least ``size`` bytes."""
    parts: list[int] = []
    while number >= 0x80 or len(parts) + 1 < size:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def tag(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return tag(number, VARINT) + varint(value)
    return tag(number, BYTES) + varint(len(value)) + value


def groups(number: int, depth: int, inside: bytes = b"") -> bytes:
    return tag(number, GROUP) * depth + inside + tag(number, END_GROUP) * depth


KEYS: Final = (b"a", b"key", "é€😀".encode(), b'"\\\x00', b"k" * 256)
ODD_KEYS: Final = {
    "is empty": b"",
    "has 256 characters of 4 bytes": "😀".encode() * 256,
    "has 257 characters": b"k" * 257,
    "is not UTF-8": b"\xff",
    "ends within a character": b"key\xe2\x82",
    "ends within a character of 4 bytes": b"key\xf0\x9f\x98",
    "has a character cut short": b"\xe2\x82key\xf0\x9fkey",
    "has half of a pair": b"\xed\xa0\x80",
    "has a pair of halves": b"\xed\xa0\xbd\xed\xb8\x80",
    "ends in half of half of a pair": b"\xed\xa0",
    "has an overlong character": b"\xc0\xaf\xe0\x80\xaf\xf0\x80\x80\xaf",
    "is beyond Unicode": b"\xf4\x90\x80\x80\xf8\x88\x80\x80\x80",
    "has 257 bytes that are not UTF-8": b"\xff" * 257,
}
HASH_KEYS: Final = (b"0", b"7", b"%d" % 2**127, b"%d" % (BEYOND - 1), b"%d" % (BEYOND // 3))
ODD_HASH_KEYS: Final = {
    repr(text): text.encode()
    for text in (
        *("", "+", "-", "+5", "-0", "-1", "+-5", "--5", "5+", "5-", "007", "00"),
        *("5 ", " 5", "5\n", "1_0", "0x10", "1e3"),
        *(str(BEYOND), f"-{BEYOND}", "00" + str(BEYOND - 1), "9" * 45, "0" * 255 + "7", "0" * 256 + "7", "9" * 256),
        *("\u0665", "\u0661\u0662", "-\u0660", "\uff17", "\u0967\u0030", "\u00b2", "\u2167", "\U0001d7d3", "\u22125"),
        *("\u96f6", "five", "5\x00", "\ufeff5", "\u200e5"),
    )
} | {"is not UTF-8": b"5\xff", "ends within a digit": b"5\xd9", "of 257 bytes that are not UTF-8": b"\xff" * 257}
ODD_INDEXES: Final = (1, 9, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**63 + 2**32, 2**64 - 1)
RIGHT_TAG: Final = field(1, b"tag") + field(2, b"value")
ODD_TAGS: Final = {
    "right": RIGHT_TAG,
    "without a value": field(1, b"tag"),
    "that is not UTF-8": field(1, b"\xff"),
    "of two keys": field(1, b"one") + field(1, b"two"),
    "without a key": field(2, b"value"),
    "that is empty": b"",
    "whose key is a number": field(1, 7),
    "with an unknown field": RIGHT_TAG + field(9, 9),
    "with a group": RIGHT_TAG + groups(9, 98),
    "with a group too deep": RIGHT_TAG + groups(9, 99),
    "cut short": RIGHT_TAG[:-1],
}
ODD_FIELDS: Final = {
    "number 0": field(0, 0),
    "number 0, bytes": field(0, b"zero"),
    "number 0 of 2^32": varint(2**32) + b"\x00",
    "an unknown number": field(9, 2**64 - 1),
    "an unknown text": field(10, b"\xff new"),
    "the highest number": field(2**29 - 1, 1),
    "a number beyond 29 bits": field(2**29 + 9, 1),
    "a number beyond 64 bits": varint(2**66 + (9 << 3)) + b"\x01",
    "a tag of 10 bytes": varint(9 << 3, 10) + b"\x01",
    "a tag of 11 bytes": varint(9 << 3, 11) + b"\x01",
    "a value of 10 bytes": tag(9, VARINT) + varint(1, 10),
    "a value of 11 bytes": tag(9, VARINT) + varint(1, 11),
    "4 bytes": tag(9, FIXED32) + bytes(4),
    "8 bytes": tag(9, FIXED64) + bytes(8),
    "wire type 6": tag(9, 6),
    "wire type 7": tag(9, 7),
    "a group": groups(9, 1),
    "a group with fields": groups(9, 2, field(1, 1) + field(2, b"x") + tag(3, FIXED32) + bytes(4)),
    "a group with number 0": groups(9, 1, field(0, 1)),
    "a group that does not end": tag(9, GROUP) + field(1, 1),
    "the end of a group": tag(9, END_GROUP),
    "the end of another group": tag(9, GROUP) + tag(10, END_GROUP),
    "groups that cross": tag(9, GROUP) + tag(10, GROUP) + tag(9, END_GROUP) + tag(10, END_GROUP),
    "groups 99 deep": groups(9, 99),
    "groups 100 deep": groups(9, 100),
    "groups 101 deep": groups(9, 101),
    "a known number as a number": field(1, 0),
    "a known number as bytes": field(2, b"7"),
    "a known number as 4 bytes": tag(3, FIXED32) + bytes(4),
    "a known number as 8 bytes": tag(1, FIXED64) + bytes(8),
    "a known number as a group": groups(3, 1),
    "a known number packed": field(1, bytes(3)),
    "an empty text": field(9, b""),
    "a length of 10 bytes": tag(9, BYTES) + varint(1, 10) + b"x",
    "a length of 2^32 + 1": tag(9, BYTES) + varint(2**32 + 1) + b"x",
    "a length below 0": tag(9, BYTES) + varint(2**64 - 1) + b"x",
    "a length of 2^31": tag(9, BYTES) + varint(2**31) + b"x",
    "a length beyond the end": tag(9, BYTES) + b"\x7f",
    "a number that does not end": tag(9, VARINT) + b"\xff",
    "4 bytes cut short": tag(9, FIXED32) + bytes(3),
}


def row(key: int = 0, hash_key: int | None = None, data: bytes = b"data", more: bytes = b"") -> bytes:
    return field(1, key) + (b"" if hash_key is None else field(2, hash_key)) + field(3, data) + more


def message(*rows: bytes, keys: tuple[bytes, ...] = (b"key",), hash_keys: tuple[bytes, ...] = (b"7",)) -> bytes:
    texts = [*(field(1, key) for key in keys), *(field(2, hash_key) for hash_key in hash_keys)]
    return b"".join([*texts, *(field(3, row) for row in rows)])


NESTED: Final = framed(message(row(), row(0, 0)))
ODD_DATA: Final = {
    "an aggregate": NESTED,
    "an aggregate of none": framed(field(1, b"key")),
    "an aggregate that no one reads": framed(message(row(9))),
    "a seal without a message": framed(b""),
    "a seal on no message": framed(b"\xff"),
}


def named() -> Iterator[Mutant]:
    """Each oddity alone: between two right records, where it can stand there."""
    right = row(data=b"first"), row(0, 0, b"second")

    def mutant(name: str, *rows: bytes, more: bytes = b"", **tables: tuple[bytes, ...]) -> Mutant:
        return Mutant(name, framed(message(right[0], *rows, right[1], **tables) + more))

    yield mutant("two records")
    yield mutant("another record", row(0, 0, b"third"))
    yield Mutant("no message", framed(b""))
    yield Mutant("one byte", framed(b"\xff"))
    yield Mutant("no records", framed(message()))
    yield Mutant("one record", framed(message(row())))
    yield Mutant("tables behind the records", framed(field(3, row(0, 0)) + message()))
    for name, key in ODD_KEYS.items():
        yield mutant(f"a key that {name}", row(1), keys=(b"key", key))
        yield mutant(f"a key that {name}, of a record with a hash key", row(1, 0), keys=(b"key", key))
        yield mutant(f"a key that {name}, of no record", keys=(b"key", key))
    for name, hash_key in ODD_HASH_KEYS.items():
        yield mutant(f"a hash key {name}", row(0, 1), hash_keys=(b"7", hash_key))
        yield mutant(f"a hash key {name}, of no record", hash_keys=(b"7", hash_key))
    yield mutant("a hash key of 5,000 zeros and 7", row(0, 1), hash_keys=(b"7", b"0" * 5_000 + b"7"))
    yield mutant("a hash key of 5,000 digits", row(0, 1), hash_keys=(b"7", b"9" * 5_000))
    yield mutant("a key of 5,000 characters", row(1), row(1, 0), keys=(b"key", b"k" * 5_000))
    for index in ODD_INDEXES:
        yield mutant(f"key {index}", row(index))
        yield mutant(f"hash key {index}", row(0, index))
        yield mutant(f"key {index} behind a hash key out of range", row(0, 1), row(index), hash_keys=(b"7", b"-1"))
    for name, data in ODD_DATA.items():
        yield mutant(f"data that are {name}", row(data=data))
        yield mutant(f"data that are {name}, with a hash key", row(0, 0, data))
        yield Mutant(f"one record whose data are {name}", framed(message(row(data=data))))
    for name, inside in ODD_TAGS.items():
        yield mutant(f"a tag {name}", row(more=field(4, inside)))
    for name, odd in ODD_FIELDS.items():
        yield mutant(f"{name}, at the end", more=odd)
        yield mutant(f"{name}, in a record", row(more=odd))
        yield Mutant(f"{name}, at the beginning", framed(odd + message(*right)))
    parts = {"a key": field(1, 0), "a hash key": field(2, 0), "data": field(3, b"data")}
    for name in parts:
        without = b"".join(part for other, part in parts.items() if other != name)
        yield mutant(f"a record without {name}", without)
        yield mutant(f"a record whose {name} comes last", without + parts[name])
    yield mutant("an empty record", b"")
    for name, twice in {"key": field(1, 9), "hash key": field(2, 9), "data": field(3, b"other")}.items():
        yield mutant(f"the {name} twice, the first one wrong", twice + row(0, 0))
        yield mutant(f"the {name} twice, the second one wrong", row(0, 0) + twice)
    for size in range(1, 30):
        yield Mutant(f"cut short by {size}", framed(message(*right)[:-size]))
    for size in (2, 5, 9, 10, 11):
        yield mutant(f"an index of {size} bytes", tag(1, VARINT) + varint(0, size) + field(3, b"data"))
        yield mutant(f"a length of {size} bytes", field(1, 0) + tag(3, BYTES) + varint(4, size) + b"data")
    whole = framed(message(*right))
    yield Mutant("a wrong digest", whole[:-1] + bytes([whole[-1] ^ 1]))
    yield Mutant("another magic", b"\xf4" + whole[1:])
    yield Mutant("a byte behind it", whole + b"\x00")


def mutants(seed: int, count: int) -> Iterator[Mutant]:
    """Any oddities together."""
    for number in range(count):
        yield Mutant(f"{seed}/{number}", _Maker(Random(f"{seed}/{number}")).payload())


_FIELDS: Final = tuple(ODD_FIELDS.values())
_TAGS: Final = tuple(ODD_TAGS.values())


class _Maker:
    """One mutant.  Most have few oddities: one alone makes many a message no message."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._share = random.choice((0.0, 0.01, 0.03, 0.1, 0.3))

    def payload(self) -> bytes:
        random = self._random
        keys = [self._of(KEYS, ODD_KEYS) for _ in range(random.choice((1, 1, 2, 3)))]
        hash_keys = [self._of(HASH_KEYS, ODD_HASH_KEYS) for _ in range(random.choice((0, 1, 1, 2, 3)))]
        parts = [self._field(1, key) for key in keys] + [self._field(2, hash_key) for hash_key in hash_keys]
        rows = [self._row(len(keys), len(hash_keys)) for _ in range(random.choice((0, 1, 1, 2, 2, 3, 5)))]
        parts += [self._field(3, row) for row in rows]
        parts += [random.choice(_FIELDS) for _ in range(2) if self._odd()]
        if self._odd():
            random.shuffle(parts)
        whole = bytearray(b"".join(parts))
        if random.random() < 0.25:
            self._damage(whole)
        payload = framed(bytes(whole))
        return payload if random.random() > 0.01 else payload[: random.randrange(len(payload))]

    def _odd(self) -> bool:
        return self._random.random() < self._share

    def _of(self, right: tuple[bytes, ...], odd: dict[str, bytes]) -> bytes:
        return self._random.choice(list(odd.values()) if self._odd() else right)

    def _number(self, number: int) -> bytes:
        if self._odd():
            return varint(number + self._random.choice((0, 1 << 32, 1 << 63, 1 << 66)), self._random.randrange(1, 12))
        return varint(number)

    def _field(self, number: int, value: bytes | int) -> bytes:
        if self._odd():
            number = self._random.randrange(12)
        if isinstance(value, int):
            return self._number(number << 3) + self._number(value)
        wire = self._random.randrange(8) if self._odd() else BYTES
        return self._number(number << 3 | wire) + self._number(len(value)) + value

    def _row(self, keys: int, hash_keys: int) -> bytes:
        random = self._random
        parts = [self._field(1, self._index(keys))]
        if hash_keys and random.random() < 0.5:
            parts.append(self._field(2, self._index(hash_keys)))
        parts.append(self._field(3, self._of((b"", b"1", b"twenty-two", bytes(130)), ODD_DATA)))
        if self._odd():
            parts.append(self._field(4, random.choice(_TAGS)))
        parts += [random.choice(_FIELDS) for _ in range(2) if self._odd()]
        parts += [random.choice(parts) for _ in range(2) if self._odd()]
        if self._odd():
            random.shuffle(parts)
        if self._odd():
            del parts[random.randrange(len(parts))]
        return b"".join(parts)

    def _index(self, length: int) -> int:
        return self._random.choice(ODD_INDEXES) if self._odd() else self._random.randrange(length)

    def _damage(self, whole: bytearray) -> None:
        random = self._random
        for _ in range(random.choice((1, 1, 2, 3))):
            at = random.randrange(len(whole) + 1)
            match random.randrange(5):
                case 0:
                    whole[at : at + 1] = random.randbytes(1)
                case 1:
                    whole[at : at + 1] = bytes(byte ^ 1 << random.randrange(8) for byte in whole[at : at + 1])
                case 2:
                    whole[at:at] = random.randbytes(random.choice((1, 1, 2, 5)))
                case 3:
                    del whole[at : at + random.choice((1, 1, 2, 9))]
                case _:
                    whole[at:at] = whole[random.randrange(len(whole) + 1) :][: random.randrange(20)]
