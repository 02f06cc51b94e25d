"""An idle daemon costs a node next to nothing."""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.idle import Figures
from producerd.config.memory import IDLE_BYTES
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import serve_in_thread
from producerd.wire.columns import lay_out
from tests.daemon import DaemonProcess, daemon, rows, session
from tools import ROOT

IDLE_CPU_PERCENT = 0.5
IDLE_WAKEUPS = 20


def libraries_of(running: DaemonProcess) -> set[str]:
    """The native libraries that a daemon has loaded."""
    maps = Path(f"/proc/{running.process.pid}/maps").read_text()
    return {line.split()[-1] for line in maps.splitlines() if line.endswith(".so")}


def test_a_daemon_has_loaded_all_when_it_is_ready_and_no_pandas_though_it_is_installed() -> None:
    """Arrow would load it, for what could be done without it: 0.3 s of a start, and 35 MiB.

    What a daemon loaded only for its first rows would be missing after an upgrade beneath it, or without descriptors.
    """
    assert importlib.util.find_spec("pandas")
    kinesis = FakeKinesis()
    for name in ("flights", "packed"):
        kinesis.create_stream(name, shards=1)
    settings: dict[str, Any] = {'streams."packed".aggregation': "kpl"}
    with serve_in_thread(kinesis) as server, daemon(server.url, forked=False, **settings) as running:
        ready = libraries_of(running)
        for name in ("flights", "packed"):
            with session(running, name) as client:
                for sent in (rows(1), rows(1_000), lay_out([b""], [b"spread"])):  # the ways of few rows, and of many
                    client.put(sent)
                    assert client.acks()[0].not_stored == 0
        assert libraries_of(running) == ready
    assert any("/pyarrow/" in library for library in ready)
    assert not any("/pandas/" in library for library in ready)


@pytest.mark.promise("daemon-nothing-uses")
@pytest.mark.slow
def test_a_daemon_with_nothing_to_do_uses_under_half_a_percent_of_a_core() -> None:
    """By itself, scraped, and with ten sessions that rest: by processor time, the median of four times 3 s."""
    command = [sys.executable, "-m", "benchmarks.idle", "--json", "--starts", "1", "--seconds", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    imports, start, *rests = [Figures(**row) for row in json.loads(done.stdout)]
    assert imports.rss_ratio_to_imports == 1.0
    assert all(1.0 < (row.rss_ratio_to_imports or 0.0) < 2.0 for row in (start, *rests))
    assert [row.case for row in rests] == ["alone", "scraped", "10 sessions", "10 sessions, scraped"]
    assert statistics.median(row.cpu_percent or 0.0 for row in rests) < IDLE_CPU_PERCENT, rests
    assert any(row.cpu_percent for row in rests)
    assert statistics.median(row.wakeups_per_second or 0.0 for row in rests) < IDLE_WAKEUPS, rests
    assert all(row.rss_bytes < IDLE_BYTES for row in rests), rests
