"""An idle daemon costs a node next to nothing, and the benchmark that says so reads the kernel's own numbers."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.idle.run import Figures, memory, used
from producerd.config.memory import IDLE_BYTES
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import serve_in_thread
from tests.daemon import daemon, rows, session

ROOT = Path(__file__).resolve().parents[2]
IDLE_CPU_PERCENT = 0.5
IDLE_WAKEUPS = 20


def test_a_wake_up_is_counted_and_so_is_processor_time() -> None:
    before = used(os.getpid())
    for _ in range(50):
        time.sleep(0.001)
    awake = used(os.getpid())
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    after = used(os.getpid())
    assert awake.wakeups - before.wakeups >= 50
    assert after.cpu_seconds - awake.cpu_seconds >= 0.08  # the kernel counts in hundredths
    assert after.at > awake.at > before.at


def test_memory_that_is_used_is_seen() -> None:
    rss, pss = memory(os.getpid())
    held = b"x" * (64 << 20)
    after_rss, after_pss = memory(os.getpid())
    assert min(after_rss - rss, after_pss - pss) > len(held) * 0.9
    assert pss <= rss


@pytest.mark.parametrize("aggregation", ["none", "kpl"])
def test_a_daemon_loads_no_pandas_though_it_is_installed(aggregation: str) -> None:
    """Arrow would, for what could be done without it: 0.3 s of a start, and 35 MiB."""
    assert importlib.util.find_spec("pandas")
    kinesis = FakeKinesis()
    kinesis.create_stream("flights", shards=1)
    with serve_in_thread(kinesis) as server, daemon(server.url, forked=False, aggregation=aggregation) as running:
        with session(running) as client:
            for count in (1, 1_000):  # the ways of few rows, and of many
                client.put(rows(count))
                assert client.acks()[0].stored == count
        files = Path(f"/proc/{running.process.pid}/maps").read_text()
    assert "/pyarrow/" in files
    assert "/pandas/" not in files


@pytest.mark.promise("daemon-nothing-uses")
@pytest.mark.slow
def test_a_daemon_with_nothing_to_do_uses_under_half_a_percent_of_a_core() -> None:
    """Alone, scraped, and with ten sessions that rest: by processor time, the median of four times 8 s.

    What is resident is within what a daemon reckons for that.  Standard output is JSON alone.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.idle", "--json", "--starts", "1", "--seconds", "8"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    imports, start, *rests = [Figures(**row) for row in json.loads(done.stdout)]
    assert (imports.case, imports.rss_ratio_to_imports) == ("imports alone", 1.0)
    assert all(1.0 < (row.rss_ratio_to_imports or 0.0) < 2.0 for row in (start, *rests))
    assert (start.case, start.cpu_percent, start.wakeups_per_second) == ("start", None, None)
    assert start.start_seconds
    assert start.start_cpu_seconds
    assert [row.case for row in rests] == ["alone", "scraped", "10 sessions", "10 sessions, scraped"]
    assert statistics.median(row.cpu_percent or 0.0 for row in rests) < IDLE_CPU_PERCENT, rests
    assert all((row.cpu_percent or 0.0) > 0 for row in rests)
    assert statistics.median(row.wakeups_per_second or 0.0 for row in rests) < IDLE_WAKEUPS, rests
    assert all((row.rss_bytes or 0) < IDLE_BYTES for row in rests), rests
    assert " cores, " in done.stderr
