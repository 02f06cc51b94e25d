"""Conditions begin with the machine, and a benchmark that is interrupted says so."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks.machine
from benchmarks.machine import machine, processor

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (
            "processor\t: 0\nmodel name\t: A Processor (TM) @ 2 GHz \nmodel name\t: b\n",
            "A Processor (TM) @ 2 GHz",
        ),
        ("processor\t: 0\nCPU part\t: 0xd0c\n", "told by the platform"),
        (None, "told by the platform"),
    ],
)
def test_the_processor_is_named_as_the_kernel_does_else_as_the_platform(
    cpuinfo: str | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(benchmarks.machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "processor", lambda: "told by the platform")
    assert processor() == name
    assert machine().startswith(f"{os.cpu_count()} cores, {platform.machine()}, {name}, load ")


INTERRUPTED = """
import time
from benchmarks.interrupts import interrupts
with interrupts():
    try:
        print("started", flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_benchmark_that_is_interrupted_says_so_when_it_has_cleaned_up(signum: signal.Signals) -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signum)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (128 + signum, "cleaned up\n", "interrupted\n")
