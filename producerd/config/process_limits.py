"""Compare the limits of this process (getrlimit(2)) with what a daemon with its settings needs.

A daemon that a Spark task starts inherits the limits of its Python worker.  Below the need it does not start: otherwise
it would fail records later, when its queues fill.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from producerd.config.memory import needed_bytes, whole_mib
from producerd.config.settings import Config
from producerd.config.values import MIB
from producerd.errors import ConfigurationError

THREADS_BYTES: Final = 80 * MIB
"""Stacks of ten threads in addition to those measured, because each lookup of a name has a thread of its own."""
ADDRESSES_BYTES: Final = 350 * MIB + THREADS_BYTES
"""Address space that is not resident memory: 348 MiB measured, most of it libraries and stacks, and a margin."""
DATA_BYTES: Final = 90 * MIB + THREADS_BYTES
"""Writable part of it: 90 MiB measured, and a margin."""
FILES: Final = 128
"""Descriptors in addition to one for each client and stream: at most 64 for HTTP, and 30 measured when idle."""
LOG_BYTES: Final = 4 * MIB
"""Size of a task's daemon's log file (`producerd.runtime.log_lines`)."""
SMALLER: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1"}
"""Variables that save address space: Arrow's own pool reserves 1 GiB, and OpenBLAS 40 MiB for each core."""


class Needed(NamedTuple):
    """What a daemon needs of one kind, and where its limit is set."""

    kind: str
    name: str
    amount: int
    unit: Callable[[int], str]
    where: str

    def problem(self, limit: int) -> str:
        return (
            f"the {self.kind} of this process is limited to {self.unit(limit)} (RLIMIT_{self.name}), and a daemon with "
            f"these settings needs {self.unit(self.amount)}: raise it{self.where}"
        )


def check_limits(config: Config, limit_of: Callable[[str], int] | None = None) -> None:
    """Raise ConfigurationError if a limit of this process is lower than what a daemon with these settings needs."""
    limits = {needed: (limit_of or _limit_of)(needed.name) for needed in _needs(config)}
    problems = [needed.problem(limit) for needed, limit in limits.items() if 0 <= limit < needed.amount]
    if problems:
        raise ConfigurationError(problems)


def use_limits() -> None:
    """Allow as many open files as may be, and let libraries save address space if it is limited.

    Call it before the libraries are imported.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if any(_limit_of(name) != resource.RLIM_INFINITY for name in ("AS", "DATA")):
        for name, value in SMALLER.items():
            os.environ.setdefault(name, value)


def _needs(config: Config) -> Iterator[Needed]:
    memory_bytes, node = needed_bytes(config).bytes, config.node
    spark = " (in Spark it is spark.executor.pyspark.memory, divided by spark.executor.cores), or lower memory"
    yield Needed("address space", "AS", memory_bytes + ADDRESSES_BYTES, whole_mib, spark)
    yield Needed("data", "DATA", memory_bytes + DATA_BYTES, whole_mib, ", or lower memory")
    files = node.max_connections + node.max_streams + FILES
    yield Needed("number of open files", "NOFILE", files, "{:,}".format, ", or lower max_connections")
    yield Needed("size of a file", "FSIZE", LOG_BYTES, whole_mib, "")


def _limit_of(name: str) -> int:
    """Return the limit that is in effect for the daemon, which raises the number of open files; -1 if there is none."""
    soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    return hard if name == "NOFILE" else soft
