"""Settings of glibc's allocator for large buffers that one thread allocates and another frees.

The daemon sets one arena.  The loop thread reads bodies, and a worker thread copies them to span buffers.  With an
arena for each thread, the allocator kept as much memory again as the queue held.  With a queue of 64 MiB and an
endpoint that hung, the RSS was 283 MiB with two arenas and 233 MiB with one.

The daemon also sets high thresholds, so that glibc reuses buffers of 1 MiB instead of unmapping them.  Each KiB of
fresh pages costs 1.5 µs of CPU here, and reuse needs 1.2 to 2 times less CPU.  After a quiet period,
`give_back_when_quiet` returns the memory that glibc keeps for this to the system.
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
    ("MALLOC_MMAP_THRESHOLD_", -3, 32 * MIB),  # the largest value that glibc accepts on 64 bits
)


QUIET_SECONDS: Final = 10.0
"""Time between two looks at the queues; memory is returned if nothing arrived between them."""


def configure() -> bool:
    """Set the options that the environment does not set, and return whether glibc accepted them.

    Call it before any thread starts.  It returns False where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(name in os.environ or mallopt(number, value) == 1 for name, number, value in _SETTINGS)


async def give_back_when_quiet(taken: Callable[[], int | None]) -> Never:
    """Return free memory to the system whenever the queues have been empty and unused for `QUIET_SECONDS`.

    ``taken`` returns how many records the daemon has accepted, or None while any record is queued.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    before = given = taken()
    while True:
        await asyncio.sleep(QUIET_SECONDS)
        now = taken()
        if trim is not None and now is not None and now == before and now != given:
            await aside(lambda: trim(0))  # 10 ms of CPU for 100 MiB
            given = now
        before = now
