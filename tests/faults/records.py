"""Records whose key and data are functions of their id, so that a reader can check each of them by itself."""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

ID: Final = re.compile(rb"([0-9]{6})/([0-9]{4})/([0-9]{9}) ")
"""The data of each record begins with its id: the run's seed, the sender and the number at that sender."""
LARGEST_SEED: Final = 999_999


class Id(NamedTuple):
    sender: int
    number: int


class Shape(NamedTuple):
    """The records of one sender: how large the data are on average, in bytes, and how many keys it uses.

    If ``large_every`` is not 0, each record whose number it divides has ``large_bytes`` of data on average.
    """

    data_bytes: int = 300
    keys: int = 50
    large_every: int = 0
    large_bytes: int = 0

    def is_large(self, number: int) -> bool:
        """Return whether the record with this number is a large one."""
        return bool(self.large_every) and number % self.large_every == 0


class Book:
    """Makes the records of one run, and recognises them.  ``shapes``: the shape of each sender's records."""

    def __init__(self, seed: int, shapes: dict[int, Shape]) -> None:
        self.seed = seed
        self.shapes = shapes

    def key_of(self, identity: Id) -> str:
        return f"{identity.sender}-{identity.number % self.shapes[identity.sender].keys}"

    def data_of(self, identity: Id) -> bytes:
        """The id, then bytes that look random; their number varies by half of the mean, both ways."""
        head = b"%06d/%04d/%09d " % (self.seed, *identity)
        stream = hashlib.shake_128(head)
        shape = self.shapes[identity.sender]
        mean = shape.large_bytes if shape.is_large(identity.number) else shape.data_bytes
        varied = mean // 2 + int.from_bytes(stream.digest(4), "big") % max(1, mean)
        return head + stream.digest(max(0, varied - len(head)))

    def identify(self, key: str, data: bytes) -> Id | None:
        """The id of a record that was read, or None for one that no sender of this run can have made."""
        found = ID.match(data)
        if found is None or int(found[1]) != self.seed:
            return None
        identity = Id(int(found[2]), int(found[3]))
        if identity.sender not in self.shapes:
            return None
        return identity if (key, data) == (self.key_of(identity), self.data_of(identity)) else None
