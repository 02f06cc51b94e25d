"""Hostile clients of another user slow an honest one down by less than twice, in a short run of the benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.abuse.attackers import BUSY
from benchmarks.abuse.run import Bench, Figures

ROOT = Path(__file__).resolve().parents[2]
FLOOD = "flood of RESERVE and CANCEL"


def test_an_attack_that_is_measured_several_times_has_the_figures_of_the_median_ratio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No pass begins before all attacks of the last one are measured."""
    measured: list[str] = []
    ratios = {BUSY: iter([1.0, 1.2, 1.1]), FLOOD: iter([2.0, 1.5, 1.75])}

    def measure(_: Bench, name: str, connections: int, uid: int) -> Figures:
        measured.append(name)
        return Figures(name, connections, uid == 0, 0.001, 0.002, 0.001, next(ratios[name]), 0)

    monkeypatch.setattr(Bench, "_measured", measure)
    monkeypatch.setattr("benchmarks.abuse.run.CONNECTIONS", (20,))
    monkeypatch.setattr(os, "getuid", lambda: 1)
    bench = Bench(None, None, "", "", 1.0, print)  # type: ignore[arg-type]  # which this does not ask
    assert [(row.attack, row.ratio) for row in bench.figures([FLOOD], 3)] == [(BUSY, 1.1), (FLOOD, 1.75)]
    assert measured == [BUSY, FLOOD] * 3


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
