"""The latency benchmark measures from put to acknowledgement, and takes no run for good in which a record is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.latency.run import RECORDS, WARM, Figures, times

ROOT = Path(__file__).resolve().parents[2]


def test_every_round_trip_is_made_and_those_before_are_not_counted() -> None:
    calls: list[None] = []
    found = times(lambda: calls.append(None), 300)
    assert len(calls) == WARM + 300
    assert 0 < found.p50 <= found.p99


@pytest.mark.slow
def test_the_whole_of_it_on_few_puts() -> None:
    """Bare round trips, idle and under load.  Standard output is JSON alone."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.latency", "--json", "--puts", "100"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = [Figures(**row) for row in json.loads(done.stdout)]
    cases = [f"{count} record{'s' * (count > 1)}, {under}" for under in ("idle", "50% load") for count in RECORDS]
    assert [row.case for row in figures][2:] == cases
    assert all(0 < row.p50_us <= row.p99_us for row in figures)
    assert [bool(row.ratio_to_bare) for row in figures] == [False, False, True, True, True, True]
    assert [bool(row.daemon_cpu_us) for row in figures] == [False, False, True, True, False, False]
    assert " cores, " in done.stderr
    assert "of its rate" in done.stderr
