"""The memory benchmark reads the kernel's own numbers, and takes no run for good in which a record is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.daemon.run import RecordsWrong
from benchmarks.memory.__main__ import CASES, main
from benchmarks.memory.job import equal_shards, frames_of
from benchmarks.memory.run import SHARDS, Bench, Figures, full_frame
from producerd.core.shards.hash_keys import parse_hash_keys
from producerd.errors import BackpressureTimeout
from producerd.wire.columns import Columns, parse_body
from spark_client.tally import Tally

ROOT = Path(__file__).resolve().parents[2]


def shards_of(columns: Columns) -> Counter[int]:
    """How many of a frame's rows go to each of `SHARDS`."""
    body = parse_body(b"".join((columns.body_prefix(1), *map(bytes, columns.parts))), columns.layout.flags)
    assert body.hash_keys is not None
    assert body.hash_key_offsets is not None
    high, low = parse_hash_keys(body.hash_keys, np.frombuffer(body.hash_key_offsets, np.int32))
    return Counter(equal_shards(SHARDS).locate(high, low).tolist())


def test_a_full_frame_fits_and_goes_to_all_shards_alike() -> None:
    columns = full_frame(1 << 18, 10_000, 1_024)
    assert (1 << 18) * 0.9 < columns.layout.charge_bytes <= 1 << 18
    counts = shards_of(columns)
    assert len(counts) == SHARDS
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_record_larger_than_a_frame_goes_alone() -> None:
    assert full_frame(1 << 18, 10_000, 1 << 20).layout.records == 1


def test_a_job_is_as_large_as_asked() -> None:
    frames = frames_of(4 << 20, 1_000)
    assert 3 << 20 < sum(frame.row_charge_bytes for frame in frames) <= 4 << 20


@pytest.mark.parametrize(
    ("stored", "twice", "arrived", "good"),
    [(100, 0, 100, True), (100, 5, 103, True), (99, 0, 100, False), (100, 0, 99, False), (100, 5, 106, False)],
)
def test_a_record_that_is_missing_or_came_twice_untold_ends_it(
    stored: int, twice: int, arrived: int, good: bool
) -> None:
    caller: Any = SimpleNamespace(tally=Tally(taken=100, stored=stored, possible_duplicates=twice), close=lambda: None)
    daemon: Any = SimpleNamespace(endpoint=SimpleNamespace(stored=lambda: arrived))
    bench = Bench({}, (), 1, lambda _: None)
    if good:
        bench._check(daemon, [caller])
    else:
        with pytest.raises(RecordsWrong, match=f"{stored} acknowledged, and {arrived} arrived"):
            bench._check(daemon, [caller])


def test_callers_that_wait_too_long_end_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(_: Bench) -> Figures:
        raise BackpressureTimeout("no room")

    monkeypatch.setattr(Bench, "start", full)
    assert main(["--only", "start"]) == 1
    assert "FAILED: no room" in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_of_it_on_a_small_queue() -> None:
    """A case of each kind keeps to the law.  Standard output is JSON alone."""
    chosen = ["start", "stuck", "connections"]
    assert set(chosen) < set(CASES)
    small = ["--queue-limit-bytes", "4 MiB", "--rounds", "1", "--record-bytes", "1024"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--json", *small, "--only", *chosen],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = [Figures(**row) for row in json.loads(done.stdout)]
    stuck = [row for row in figures if row.case.startswith("stuck")]
    assert [row.record_bytes for row in stuck] == [1_024]
    for row in stuck:
        assert row.queue_limit_bytes == 4 << 20
        assert 2 << 20 < (row.charged_bytes or 0) <= 4 << 20
        assert row.rss_after_trim_bytes
        assert row.rss_after_drain_bytes
    assert figures[0].case == "start"
    assert all(1 << 20 < row.rss_bytes <= row.formula_bytes for row in figures), figures
    assert " cores, " in done.stderr
