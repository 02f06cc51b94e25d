"""The end of a process waits for the clients that it has not closed, for a bounded time.

A process ends without that if it is killed or calls `os._exit`, as Spark's Python workers do.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from typing import Final, Protocol

EXIT_SECONDS: Final = 10.0
"""How long the end of a process waits for all its clients together."""


class Unclosed(Protocol):
    """A client that has not been closed."""

    def hasten(self) -> None:
        """Begin to flush."""

    def end_unclosed(self, seconds: float) -> None:
        """Flush for this time at most, log one line about what is not stored, and end."""


_clients: Final[set[Unclosed]] = set()
_process = 0  # which has registered `end_all`; a child that was forked must leave its parent's clients alone


def add(client: Unclosed) -> None:
    """End a client when this process ends, unless `discard` is called before."""
    global _process
    if _process != os.getpid():
        _process = os.getpid()
        _clients.clear()
        atexit.register(end_all)
        process, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
        if process is not None and util is not None and process.parent_process() is not None:
            util.Finalize(None, end_all, exitpriority=0)  # its children end without atexit
    _clients.add(client)


def discard(client: Unclosed) -> None:
    _clients.discard(client)


def end_all() -> None:
    """End the clients of this process."""
    ends = time.monotonic() + EXIT_SECONDS
    clients = [*_clients] if _process == os.getpid() else []
    for client in clients:
        client.hasten()
    for client in clients:
        client.end_unclosed(max(0.0, ends - time.monotonic()))
