"""Read the configuration file, which may be a pipe, in bounded memory, and a pipe in bounded time."""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 16 << 20
"""Size of a configuration at most: more than a kilobyte for each of 10,000 streams, which is all that may be open."""
PIPE_SECONDS: Final = 30.0
"""Time for a pipe to give everything: the program behind it may ask a store of secrets."""
_PIECE_BYTES: Final = 64 << 10


def contents(path: Path) -> bytes:
    """Return what a file holds, or what a pipe gives until its end.  Raise OSError, also for a device.

    A pipe that gives nothing is an error: its program may have failed, or an earlier read has taken everything.
    """
    mode = path.stat().st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise OSError(errno.EINVAL, "it is a device; allowed: a file or a pipe")
    # O_NONBLOCK: opening a named pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as file:
        read = _piped(descriptor) if stat.S_ISFIFO(mode) else file.read(MOST_BYTES + 1)
    if len(read) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES >> 20} MiB")
    return read


def _piped(descriptor: int) -> bytes:
    """Return what a pipe gives, until its end or one piece more than `MOST_BYTES`."""
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + PIPE_SECONDS
    read = bytearray()
    while len(read) <= MOST_BYTES:
        if not ready.poll(max(0.0, deadline - time.monotonic()) * 1_000):
            raise OSError(errno.ETIMEDOUT, f"the pipe had no end within {PIPE_SECONDS:g} s")
        piece = os.read(descriptor, _PIECE_BYTES)
        if not piece:
            break
        read += piece
    if not read:
        raise OSError(errno.ENODATA, "the pipe gave nothing; it can be read only once")
    return bytes(read)
