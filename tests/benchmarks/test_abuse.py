"""Hostile clients of another user slow an honest one down by less than twice, in a short run of the benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.abuse.run import Figures

ROOT = Path(__file__).resolve().parents[2]
FLOOD = "flood of RESERVE and CANCEL"


@pytest.mark.slow
def test_a_flood_of_another_user_slows_an_honest_client_by_less_than_three_times() -> None:
    """It is 1.3 on a machine without other work.  Without shares by user it was 9."""
    if os.getuid() != 0:
        pytest.skip("only root can be two users")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.abuse", "--json", "--seconds", "1", "--attack", FLOOD],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [Figures(**row) for row in json.loads(done.stdout)]
    assert [(row.connections, row.same_uid) for row in rows if row.attack == FLOOD] == [
        (1, False),
        (1, True),
        (20, False),
        (20, True),
    ]
    (worst,) = [row for row in rows if row.attack == FLOOD and row.connections == 20 and not row.same_uid]
    assert worst.ratio < 3, worst
    assert all(row.honest_p50_after < 5 * row.honest_p50_before for row in rows), rows
    assert all(row.peak_rss_bytes > 50_000_000 for row in rows)
