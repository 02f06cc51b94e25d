"""When a daemon that tasks have started ends by itself: with the process that it belongs to, or after an idle time."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

LOOK_SECONDS: Final = 1.0
"""Time between two looks at a process where the kernel (Linux before 5.3) or Python (some of conda) has no pidfd."""


class OwnerProcess(NamedTuple):
    """A process, by its id and its start in clock ticks since the boot: an id alone is given to another process later.

    (Source: proc_pid_stat(5), field 22.)
    """

    pid: int
    started_at: int

    @property
    def lives(self) -> bool:
        """Whether the process has not ended.  A zombie has ended."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            return False
        return fields[0] not in "ZX" and int(fields[19]) == self.started_at

    async def ends(self) -> None:
        """Return when the process has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (OSError, AttributeError):  # it has ended, or this kernel or a Python built on an older one has no pidfd
            while self.lives:  # noqa: ASYNC110 - the kernel has no event for it
                await asyncio.sleep(LOOK_SECONDS)
            return
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        try:
            loop.add_reader(descriptor, ended.set)
            if self.lives:  # looked at when the descriptor was there already, so it is of this process
                await ended.wait()
        finally:
            with suppress(OSError):
                loop.remove_reader(descriptor)
            os.close(descriptor)


class IdleTime:
    """How long nothing has used the daemon."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._changed = asyncio.Event()

    def look(self, *, is_idle: bool, now: float) -> None:
        """Note whether the daemon is idle now."""
        if is_idle != (self._since is not None):
            self._since = now if is_idle else None
            self._changed.set()

    async def lasts(self, seconds: float) -> None:
        """Return when the daemon has been idle for ``seconds``."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            left = None if self._since is None else self._since + seconds - loop.time()
            if left is not None and left <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()
