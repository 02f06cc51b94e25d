"""``--cpu-times=N`` shows the N tests with the most processor time, of which durations on a busy machine tell little.

Counted is the time of the test's own process and of its children that have ended, from one test to the next.
"""

from __future__ import annotations

import heapq
import os
from collections import defaultdict
from typing import cast

import pytest

PROPERTY = "cpu_seconds"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", type=int, default=0, metavar="N", help="show the N tests with most processor time")


class CpuTimes:
    """The processor time of each test, in seconds: written where it runs, and added up where the run is reported."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seconds = defaultdict[str, float](float)
        self._before = self._now()

    def _now(self) -> float:
        return sum(os.times()[:4])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> None:
        now = self._now()
        item.user_properties.append((PROPERTY, now - self._before))
        self._before = now

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        of_phase = dict(report.user_properties).get(PROPERTY, 0.0)  # the last: earlier phases stand before it
        self._seconds[report.nodeid] += cast("float", of_phase)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"most processor time, of {sum(self._seconds.values()):.0f} s")
        for test, seconds in heapq.nlargest(self._most, self._seconds.items(), key=lambda one: one[1]):
            terminalreporter.write_line(f"{seconds:6.1f} s  {test}")
