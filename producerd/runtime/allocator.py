"""glibc's allocator, set for large buffers that one thread makes and another lets go.

One arena: bodies are read on the loop thread and copied to span buffers on a worker's; with an arena each, the first
kept as much again as the queue (64 MiB queue, stuck endpoint: 283 MiB of RSS, with one arena 233).  High thresholds:
buffers of 1 MiB are used again and not unmapped (1.2 to 2 times less CPU; pages of their own cost 1.5 us a KiB here).
What is kept for that is given back when nothing has come for a while.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from typing import Final, Never

from producerd.runtime.aside import aside

MIB: Final = 1024 * 1024
_SETTINGS: Final = (  # name in the environment, number and value for mallopt (malloc.h)
    ("MALLOC_ARENA_MAX", -8, 1),
    ("MALLOC_TRIM_THRESHOLD_", -1, 256 * MIB),
    ("MALLOC_MMAP_THRESHOLD_", -3, 32 * MIB),  # the most that glibc takes on 64 bits
)


QUIET_SECONDS: Final = 10.0
"""Between two looks, of which both must find the same."""


def configure() -> bool:
    """Set what the environment does not set; before any thread starts.  False where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(name in os.environ or mallopt(number, value) == 1 for name, number, value in _SETTINGS)


async def give_back_when_quiet(taken: Callable[[], int | None]) -> Never:
    """``taken``: how many records were taken on until now; None while one of them is still there."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    before = given = taken()
    while True:
        await asyncio.sleep(QUIET_SECONDS)
        now = taken()
        if trim is not None and now is not None and now == before and now != given:
            await aside(lambda: trim(0))  # 10 ms for 100 MiB
            given = now
        before = now
