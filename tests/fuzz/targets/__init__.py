"""The targets of `tests.fuzz`, a module for each parser.

Each has ``check``, which raises AssertionError, or whatever the parser raises, if the bytes break a promise.  The first
byte of an input is for the target: it chooses among the forms, and seeds the cuts.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Final

SIZES: Final = tuple([random.Random(seed).choices((1, 3, 17, 60, 200, 5_000), k=16) for seed in range(256)])
"""The sizes of the pieces for each seed: a generator of random numbers for each input would take most of the time."""


def in_cuts(data: bytes, seed: int) -> Iterator[bytes]:
    """Yield the data in random pieces, as a socket may give them."""
    at = 0
    for size in itertools.cycle(SIZES[seed]):
        if at >= len(data):
            return
        yield data[at : at + size]
        at += size
