"""The processor time of Spark's Python workers.

It is read from outside, the same for every path: what the kernel has charged (user and system time, to the nanosecond)
to all processes below the JVM, before and after.  These are pyspark's daemon, the workers that it forks, and those in
which a Python data source is planned and committed; the driver's own Python is above the JVM and not counted.  So all
that a worker does is in it: reading what the JVM sends, unpickling it or taking it as Arrow, the work itself, and
writing the answer; also making a boto3 client in each partition.

Starting workers and importing modules is not: each path runs once on few rows before.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """``reaped_seconds``: of its children that have ended, in ticks of 10 ms."""

    pid: int
    parent: int
    reaped_seconds: float


def workers_cpu_seconds(jvm_pid: int) -> float:
    """Of all processes below the JVM so far, those that have ended too."""
    everybody = list(_processes())
    below = [process for process in everybody if process.pid == jvm_pid]
    for parent in below:  # which grows
        below += [process for process in everybody if process.parent == parent.pid]
    total = sum(process.reaped_seconds for process in below)
    for process in below[1:]:
        with contextlib.suppress(OSError):  # it has just ended, and its time is its parent's
            total += cpu_seconds(process.pid)
    return total


def cpu_seconds(pid: int) -> float:
    """Of one process, all of its threads."""
    # Linux's CPUCLOCK_SCHED clock of any process, as clock_getcpuclockid(3) makes it.
    return time.clock_gettime(~pid << 3 | 2)


def _processes() -> Iterator[Process]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                reaped_ticks = int(fields[13]) + int(fields[14])
                yield Process(int(entry.name), int(fields[1]), reaped_ticks / TICKS_PER_SECOND)
