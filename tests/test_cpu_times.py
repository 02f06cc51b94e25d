"""The processor time of a test counts all of its phases, wherever it ran."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cpu_times import CpuTimes


def test_a_test_s_processor_time_is_that_of_its_phases_and_of_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0] * 5  # user, system, both of children, and the wall's, which does not count
    monkeypatch.setattr(os, "times", lambda: tuple(clock))
    where_it_runs, where_it_is_reported = CpuTimes(1), CpuTimes(1)
    of: Any = SimpleNamespace(user_properties=[("another", "one")])
    lines: list[str] = []
    for place, seconds in enumerate((1.0, 2.0, 4.0, 8.0)):
        clock[place] += seconds
        clock[4] += 100.0
        where_it_runs.pytest_runtest_makereport(of)
        report: Any = SimpleNamespace(nodeid="slow", user_properties=[*of.user_properties])
        where_it_is_reported.pytest_runtest_logreport(report)
    where_it_is_reported.pytest_runtest_logreport(SimpleNamespace(nodeid="quick", user_properties=[]))  # type: ignore[arg-type]
    reporter: Any = SimpleNamespace(section=lines.append, write_line=lines.append)
    where_it_is_reported.pytest_terminal_summary(reporter)
    assert lines == ["most processor time, of 15 s", "  15.0 s  slow"]
    assert ("another", "one") in of.user_properties
