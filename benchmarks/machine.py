"""Describe the machine on which a benchmark runs, and the versions of what it runs, for its conditions."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")
PACKAGES: Final = ("aiobotocore", "aiohttp", "numpy", "orjson", "pyarrow", "pybase64", "uvloop")


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, {processor()}, load {os.getloadavg()[0]:.1f} before"


def processor() -> str:
    """Return the processor's model, which the kernels of some architectures do not name."""
    found = re.search(r"^model name\s*:\s*(.*\S)", CPUINFO.read_text(), re.MULTILINE) if CPUINFO.exists() else None
    return found[1] if found else platform.processor() or "processor unknown"


def conditions(*facts: str, packages: tuple[str, ...] = PACKAGES) -> str:
    """Return the machine, the versions and facts in one line."""
    versions = ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)])
    return "; ".join([machine(), versions, *facts])
