"""On what a benchmark runs: so its conditions begin."""

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
    """Its model; not every architecture's kernel names one."""
    found = re.search(r"^model name\s*:\s*(.*\S)", CPUINFO.read_text(), re.MULTILINE) if CPUINFO.exists() else None
    return found[1] if found else platform.processor() or "processor unknown"
