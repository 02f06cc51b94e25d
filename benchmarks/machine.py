"""Describe the machine on which a benchmark runs, for its conditions."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, {processor()}, load {os.getloadavg()[0]:.1f} before"


def processor() -> str:
    """Return the processor's model, which the kernels of some architectures do not name."""
    found = re.search(r"^model name\s*:\s*(.*\S)", CPUINFO.read_text(), re.MULTILINE) if CPUINFO.exists() else None
    return found[1] if found else platform.processor() or "processor unknown"
