"""Keep the process's memory, which has credentials and records, out of core files and away from the user's other
processes.

A unit's LimitCORE=0 does neither where a core goes to a pipe, as to systemd-coredump, nor where there is no unit.
"""

from __future__ import annotations

import ctypes
import resource
from typing import Final

_PR_SET_DUMPABLE: Final = 4
"""Of prctl(2).  A process that is not dumpable has no core file, and only root may trace it or read its memory."""


def keep_memory_private() -> None:
    """Turn core files off, and make the process not dumpable, where the system knows that."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
