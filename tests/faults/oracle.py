"""Decide from what was sent, acknowledged, read and sampled whether a law was broken, without any I/O.

The oracle names each broken law with a number and an example.  A law that a scenario cannot judge is left out by
name, and its row says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from tests.faults.reader import Handed
from tests.faults.records import Book, Id

EXAMPLES: Final = 3


class Law(StrEnum):
    """What must hold in every scenario, except where it says that it cannot be judged."""

    READABLE = "every acknowledged record is read back"
    SENT = "everything that is read was sent, byte for byte"
    ENDS = "every record that was handed over is acknowledged, or its caller gets an error"
    RECOVERS = "a fresh record passes after the faults"
    COPIES = "no more copies than the metric counts"
    ORDER = "copies aside, the records of a key are read in the order of sending"
    QUEUE = "a queue stays within its limit"
    MEMORY = "resident memory stays within the memory law"
    LEVEL = "descriptors and threads stay level"
    REFUSED = "what is refused has its reason"
    PATIENT = "no caller gets an error for a fault that is temporary"
    OTHERS = "callers that no fault hits go on"
    CALM = "the daemon logs no traceback and ends with exit code 0"


class Broken(NamedTuple):
    law: Law
    what: str

    def __str__(self) -> str:
        return f"{self.law}: {self.what}"


@dataclass(frozen=True, slots=True)
class Sent:
    """What one sender did.  ``ordered``: its stream promises the order of each key."""

    sender: int
    count: int
    acknowledged: Set[int]
    ordered: bool


@dataclass(slots=True)
class Reading:
    """What a consumer received of all streams, compared with what was sent."""

    readable: int = 0
    duplicates: int = 0
    order_violations: int = 0
    broken: list[Broken] = field(default_factory=list)


def judge(book: Book, sent: Iterable[Sent], handed: Iterable[Handed]) -> Reading:
    """Compare all that was handed to a consumer, in the order of reading, with all that was sent."""
    senders: Mapping[int, Sent] = {one.sender: one for one in sent}
    copies: Counter[Id] = Counter()
    strangers: list[str] = []
    disordered: list[str] = []
    newest: dict[tuple[int, str], int] = {}  # by sender and key: the number of its latest first copy
    for key, data in handed:
        identity = book.identify(key, data)
        if identity is None or identity.number >= senders[identity.sender].count:
            strangers.append(f"key {key!r}, {len(data)} bytes {data[:40]!r}")
            continue
        copies[identity] += 1
        if copies[identity] == 1 and senders[identity.sender].ordered:
            place = identity.sender, key
            if identity.number < newest.get(place, -1):
                disordered.append(f"key {key!r}: {identity.number} after {newest[place]}")
            newest[place] = max(identity.number, newest.get(place, -1))
    missing = [
        Id(one.sender, number)
        for one in senders.values()
        for number in sorted(one.acknowledged)
        if Id(one.sender, number) not in copies
    ]
    acknowledged = sum(len(one.acknowledged) for one in senders.values())
    reading = Reading(acknowledged - len(missing), copies.total() - len(copies), len(disordered))
    for law, what, found in (
        (Law.READABLE, f"{len(missing):,} of {acknowledged:,} are not", map(str, missing)),
        (Law.SENT, f"{len(strangers):,} were not", strangers),
        (Law.ORDER, f"{len(disordered):,} are not", disordered),
    ):
        examples = "; ".join(islice(found, EXAMPLES))
        if examples:
            reading.broken.append(Broken(law, f"{what}: {examples}"))
    return reading


def copies_within(duplicates: int, counted: float) -> list[Broken]:
    """Copies beyond the first, against the sum of the metric over all lives of the daemon."""
    if duplicates <= counted:
        return []
    return [Broken(Law.COPIES, f"{duplicates:,} were read, {counted:,.0f} are counted")]
