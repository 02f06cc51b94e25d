"""Run a module of ours under qemu-user with the plugin that counts instructions.

The emulated processor is always the same, because libraries choose their code by its features.  It lacks "enhanced rep
movsb", of which qemu would count each byte as an instruction.
"""

from __future__ import annotations

import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.counter import FILE_VARIABLE

QEMU: Final = "qemu-x86_64"
CPU: Final = "Haswell-noTSX,-erms,-pcid,-x2apic,-tsc-deadline,-invpcid"
"""The emulated processor.  It has AVX2, without four features that qemu lacks and would warn of."""
MAJORS: Final = range(7, 9)
"""Major versions of qemu.  Later ones do not support this kind of plugin."""
ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = Path(__file__).with_name("counter.c")
SECONDS: Final = 1_800


class Failed(Exception):
    """The counted module did not run to its end."""


def missing() -> str:
    """Return what this machine lacks for counting instructions, or ""."""
    if platform.machine() != "x86_64":
        return f"needs an x86-64 machine, not {platform.machine()}"
    if absent := [name for name in (QEMU, "gcc") if shutil.which(name) is None]:
        return f"needs {', '.join(absent)}: apt-get install qemu-user gcc libc6-dev"
    if int(version().partition(".")[0]) not in MAJORS:
        return f"needs qemu-user {MAJORS[0]} to {MAJORS[-1]}, for its plugins, not {version()}"
    return ""


def version() -> str:
    output = subprocess.run([QEMU, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"version (\d[\d.]*)", output)
    return found[1] if found else "0"


def run(module: str, arguments: Sequence[str] = ()) -> str:
    """Run a module with `benchmarks.counter` in the unit instructions, and return its output.  Raise `Failed`."""
    plugin = _plugin()
    with tempfile.NamedTemporaryFile() as counter:
        counter.truncate(mmap.PAGESIZE)
        command = [QEMU, "-cpu", CPU, "-plugin", f"{plugin},counter={counter.name}"]
        command += [sys.executable, "-m", module, *arguments]
        # Hashes decide the order of sets and dictionaries in memory.  numpy's threads would be counted, too.
        fixed = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", FILE_VARIABLE: counter.name}
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **fixed}, stdout=subprocess.PIPE, text=True, timeout=SECONDS
        )
    if done.returncode:
        raise Failed(f"{module} ended with exit code {done.returncode} under qemu")
    return done.stdout


def _plugin() -> Path:
    """Return the plugin's path, and build it if its source is newer."""
    built = ROOT / "build" / "counter.so"
    if not built.exists() or built.stat().st_mtime < SOURCE.stat().st_mtime:
        built.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as folder:
            made = Path(folder, built.name)
            subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-o", made, SOURCE], check=True)
            made.replace(built)
    return built
