"""Find the memory limit of this process: the lowest limit of its cgroup and the cgroups around it, versions 1 and 2.

``/proc/self/cgroup`` names the process's cgroup in each hierarchy.  ``/proc/self/mountinfo`` names the place where each
hierarchy is mounted, and which directory of it (cgroups(7), proc(5)).  In a container the two may disagree: the
cgroup's path may be "/", or may not lie below the mount.  Then the mount's root counts, because it is the container's
own cgroup. A file that cannot be read counts as no limit, and the result says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

NO_LIMIT_BYTES: Final = 2**62
"""The least number that means "no limit".  Version 1 writes the largest whole number of pages below 2^63 bytes."""
_MOUNT: Final = re.compile("[^ ]+ [^ ]+ [^ ]+ ([^ ]+) ([^ ]+) [^ ]+ (?:[^ ]+ )*- (cgroup2?) [^ ]+ ([^ ]+)")
"""A mounted hierarchy in mountinfo: its root, its point, its kind and, for version 1, its controllers."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit in bytes, or None if there is none, and the path of the file that sets it."""

    bytes: int | None = None
    path: str = ""
    problem: str = ""
    """The reason why a limit may be missing here, or ""."""


class _Mount(NamedTuple):
    root: str
    """The directory of the hierarchy that is mounted."""
    point: str
    version: int


def memory_limit(system: Path = Path("/")) -> MemoryLimit:
    """Return the lowest limit that holds for this process.  ``system`` is the folder that has /proc and the mounts."""
    try:
        cgroups = (system / "proc/self/cgroup").read_text()
        mountinfo = (system / "proc/self/mountinfo").read_text()
    except (OSError, UnicodeDecodeError) as error:
        return MemoryLimit(problem=str(error))
    paths = dict(_paths(cgroups))
    mounts = [mount for mount in _mounts(mountinfo) if mount.version in paths]
    if not mounts:
        return MemoryLimit(problem="" if paths else "/proc/self/cgroup names no cgroup")
    found = MemoryLimit()
    for directory, version in _directories(system, paths, mounts):
        found = _lesser(found, _limit_of(directory, version))
    return found


def _paths(cgroups: str) -> Iterator[tuple[int, str]]:
    """Yield the version and the process's path of each hierarchy that may limit its memory."""
    for line in cgroups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.startswith("/"):
            if not controllers:
                yield 2, path.removesuffix(" (deleted)")
            elif "memory" in controllers.split(","):
                yield 1, path.removesuffix(" (deleted)")


def _mounts(mountinfo: str) -> Iterator[_Mount]:
    for line in mountinfo.splitlines():
        if found := _MOUNT.fullmatch(line):
            root, point, kind, options = map(_unescaped, found.groups())
            if kind == "cgroup2":
                yield _Mount(root, point, 2)
            elif "memory" in options.split(","):
                yield _Mount(root, point, 1)


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _directories(system: Path, paths: dict[int, str], mounts: list[_Mount]) -> Iterator[tuple[Path, int]]:
    """Yield the process's cgroups and the cgroups around them, each with its version, as far as they are mounted."""
    for version, path in paths.items():
        of_version = [mount for mount in mounts if mount.version == version]
        for mount in of_version:
            top = system / mount.point.lstrip("/")
            below = _below(path, mount.root)
            if below is not None and (top / below).is_dir():
                inner = top / below
                yield from ((each, version) for each in (inner, *inner.parents) if each.is_relative_to(top))
                break
        else:
            if of_version:
                yield system / of_version[0].point.lstrip("/"), version


def _below(cgroup: str, root: str) -> PurePosixPath | None:
    """Return a cgroup's path relative to a mount's root, or None if it does not lie below it."""
    path = PurePosixPath(cgroup)
    if ".." in path.parts:  # the process is outside its own namespace
        return None
    return path.relative_to(root) if path.is_relative_to(root) else None


def _limit_of(directory: Path, version: int) -> MemoryLimit:
    path = directory / ("memory.max" if version == 2 else "memory.limit_in_bytes")
    try:
        text = path.read_text().strip()
    except FileNotFoundError:  # the hierarchy's root has no such file, nor has a cgroup without the controller
        return MemoryLimit()
    except (OSError, UnicodeDecodeError) as error:
        return MemoryLimit(problem=str(error))
    if text == "max":
        return MemoryLimit()
    if not re.fullmatch("[0-9]{1,20}", text):
        return MemoryLimit(problem=f"{path}: not a number of bytes: {text!r}")
    return MemoryLimit(int(text), str(path)) if int(text) < NO_LIMIT_BYTES else MemoryLimit()


def _lesser(one: MemoryLimit, other: MemoryLimit) -> MemoryLimit:
    limited = [(each.bytes, each.path) for each in (one, other) if each.bytes is not None]
    least, path = min(limited, default=(None, ""))
    return MemoryLimit(least, path, one.problem or other.problem)
