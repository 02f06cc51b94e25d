"""Run the official Kinesis Producer Library in a JVM, with as many rows as the sessions of a scenario put."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmarks import maven
from benchmarks.delivery.scenarios import LONGEST_SECONDS, RESHARD_RATE_FRACTION, Scenario, Stage
from producerd.demo.children import Child, Children
from producerd.demo.scenario import environment

NAME: Final = "official KPL 1.0.9"
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
RUN: Final = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
"""Python code that becomes the KPL's process, because `Children` start only Python."""


def command() -> list[str]:
    """Return the KPL's command line.  Raise `maven.Unavailable`."""
    return maven.command(Path(__file__).parent, "Rival", "-Xmx2g")


class Kpl:
    name = NAME

    def __init__(self, jvm: Child, rows: int) -> None:
        self._jvm = jvm
        self._rows = rows
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.monotonic()
        self._jvm.tell("go")

    def sent(self, row: int) -> bool:
        return row < self._rows

    def acknowledged(self) -> set[int]:
        """Return the rows whose futures report that they are stored."""
        left = max(1.0, self._began + LONGEST_SECONDS - time.monotonic())
        self._jvm.tell(f"end {left:.0f}")
        others = self._jvm.line(left + STOP_SECONDS)
        return set(range(self._rows)).difference(map(int, others.split()))

    @property
    def failures(self) -> list[str]:
        return []


@contextlib.contextmanager
def kpl(stage: Stage, scenario: Scenario) -> Iterator[Kpl]:
    """Start a KPL that knows the shards, and end it after the block.  Raise `ChildFailed` or `maven.Unavailable`."""
    rows, row_bytes = sum(load.rows for load in scenario.loads), scenario.loads[0].row_bytes
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as path,
        Children(Path(path), environment(Path(path))) as children,
    ):
        port = urlsplit(stage.server.url).port
        arguments = (port, stage.stream.name, rows, row_bytes, 100 * RESHARD_RATE_FRACTION, path)
        jvm = children.start("official kpl", ["-c", RUN, *command(), *map(str, arguments)])
        jvm.line(START_SECONDS)
        yield Kpl(jvm, rows)
