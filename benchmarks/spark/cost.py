"""Measure the CPU time of Spark's Python workers.

The kernel charges user and system time to all processes below the JVM, in nanoseconds.  The benchmark reads it before
and after a run, in the same way for every path.  These processes are pyspark's daemon, the workers that it forks, and
the ones that plan and commit a Python data source.  The driver's own Python is above the JVM and does not count.

The time includes everything that a worker does: reading from the JVM, unpickling or taking Arrow, the work itself,
writing the answer, and creating a boto3 client in each partition.  It does not include the start of workers and their
imports, because each path first runs once on few rows.
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
    """A process.  ``reaped_seconds`` is the CPU time of its children that have ended, in steps of 10 ms."""

    pid: int
    parent: int
    reaped_seconds: float


def workers_cpu_seconds(jvm_pid: int) -> float:
    """Return the CPU time until now of all processes below the JVM, including ended ones."""
    everybody = list(_processes())
    below = [process for process in everybody if process.pid == jvm_pid]
    for parent in below:  # the list grows meanwhile
        below += [process for process in everybody if process.parent == parent.pid]
    total = sum(process.reaped_seconds for process in below)
    for process in below[1:]:
        with contextlib.suppress(OSError):  # it has just ended, and its parent has its time
            total += cpu_seconds(process.pid)
    return total


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of one process with all its threads."""
    # Linux's CPUCLOCK_SCHED clock of any process, as clock_getcpuclockid(3) makes it.
    return time.clock_gettime(~pid << 3 | 2)


def _processes() -> Iterator[Process]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                reaped_ticks = int(fields[13]) + int(fields[14])
                yield Process(int(entry.name), int(fields[1]), reaped_ticks / TICKS_PER_SECOND)
