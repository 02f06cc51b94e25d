"""glibc's allocator, set for large buffers that one thread makes and another lets go.

One arena: bodies are read on the loop thread and copied to span buffers on a worker's; with an arena each, the first
kept as much again as the queue (64 MiB queue, stuck endpoint: 283 MiB of RSS, with one arena 233).  High thresholds:
buffers of 1 MiB are used again and not unmapped (1.2 to 2 times less CPU; pages of their own cost 1.5 us a KiB here).
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

MIB: Final = 1024 * 1024
_SETTINGS: Final = (  # name in the environment, number and value for mallopt (malloc.h)
    ("MALLOC_ARENA_MAX", -8, 1),
    ("MALLOC_TRIM_THRESHOLD_", -1, 256 * MIB),
    ("MALLOC_MMAP_THRESHOLD_", -3, 32 * MIB),  # the most that glibc takes on 64 bits
)


def configure() -> bool:
    """Set what the environment does not set; before any thread starts.  False where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(name in os.environ or mallopt(number, value) == 1 for name, number, value in _SETTINGS)
