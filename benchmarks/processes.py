"""What the kernel counts of a process: CPU time in nanoseconds, wake-ups, and memory.

Other work on the machine changes CPU time little, and can only add to it.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of one process with all its threads."""
    # Linux's CPUCLOCK_SCHED clock of any process, as clock_getcpuclockid(3) makes it.
    return time.clock_gettime(~pid << 3 | 2)


def main_thread_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process's main thread, from the scheduler's count."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def family(pid: int) -> Iterator[int]:
    """Yield the ids of a process and of all processes below it."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from family(int(child))


def wakeups(pid: int) -> int:
    """Return how often threads that had gone to sleep ran again: their voluntary context switches."""
    return sum(_numbers(task)["voluntary_ctxt_switches"] for task in Path(f"/proc/{pid}/task").glob("*/status"))


def rss_bytes(pid: int) -> int:
    return _numbers(Path(f"/proc/{pid}/status"))["VmRSS"] * 1024


def peak_rss_bytes(pid: int) -> int:
    """Return the highest resident memory since `forget_peak`."""
    return _numbers(Path(f"/proc/{pid}/status"))["VmHWM"] * 1024


def forget_peak(pid: int) -> None:
    with contextlib.suppress(OSError):  # without it the peak is the highest until now
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def memory(pid: int) -> tuple[int, int]:
    """Return RSS, and PSS, its part of memory that several processes use.  Only root may read a daemon's."""
    kib = _numbers(Path(f"/proc/{pid}/smaps_rollup"))
    return kib["Rss"] * 1024, kib["Pss"] * 1024


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers in the lines ``name: number [unit]``."""
    return {name: int(number) for name, number in re.findall(r"^(\w+):\s+(\d+)\b", path.read_text(), re.MULTILINE)}
