"""A cgroup that limits the memory of the processes in it, for tests of what a daemon holds at most."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VERSION_1, VERSION_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
_numbers: Final = itertools.count()


@dataclass(frozen=True)
class Cgroup:
    path: Path
    version: int

    @property
    def joined_by(self) -> Sequence[str]:
        """What a command line begins with whose process is to be in it."""
        return "/bin/sh", "-c", f'echo 0 > {self.path}/cgroup.procs && exec "$@"', "sh"

    def limit(self, limit_bytes: int) -> None:
        """Limit it to this much, in whole pages."""
        page = os.sysconf("SC_PAGE_SIZE")
        name = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
        (self.path / name).write_text(str(-(-limit_bytes // page) * page))

    def kills(self) -> int:
        """How many of its processes the kernel has killed for lack of memory."""
        events = (self.path / ("memory.oom_control" if self.version == 1 else "memory.events")).read_text()
        found = re.search(r"^oom_kill (\d+)$", events, re.MULTILINE)
        return int(found[1]) if found else 0

    def is_empty(self) -> bool:
        return not (self.path / "cgroup.procs").read_text()


def new_cgroup() -> Cgroup:
    """Make one, of the version whose memory controller is there.  Raises OSError where none may be made."""
    second = VERSION_2 / "cgroup.subtree_control"
    version, top = (2, VERSION_2) if second.exists() and "memory" in second.read_text().split() else (1, VERSION_1)
    path = top / f"producerd-law-{os.getpid()}-{next(_numbers)}"
    path.mkdir()
    return Cgroup(path, version)
