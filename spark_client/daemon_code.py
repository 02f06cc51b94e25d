"""Where the code of a daemon is that a task starts: in a command of the user's, in a pex, or in this Python.

`./dev build` makes a pex for each Python and machine that a daemon runs on: one file with all that the daemon needs.
Spark ships it to executors that lack these packages, or that pin other versions of them, as Glue pins boto3.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from producerd import __version__
from producerd.errors import ConfigurationError

PEX: Final = re.compile(r"producerd-(?P<version>.+)-cp3(?P<minor>[0-9]+)-(?P<machine>\w+)\.pex")
UNPACKED: Final = ".producerd-pex"
"""The folder into which a pex is unpacked, next to it: Spark deletes both with the application's other files."""
PEX_NAME: Final = f"producerd-{__version__}-cp3N-{platform.machine()}.pex"
INSTALL: Final = (
    f"on every node `pip install 'producerd[daemon] @ file:///PATH/producerd-{__version__}-py3-none-any.whl'` into "
    f"the Python of Spark's workers (PYSPARK_PYTHON); or give {PEX_NAME} to Spark (--files, or SparkContext.addFile), "
    "where the nodes have a python3.N of 3.11 or newer and glibc 2.28 or newer; or give daemon={'command': ...}"
)
NEEDS_INSTALL: Final = ("No module named", "is missing", "needs Python", "Failed to find compatible interpreter")
"""What the errors say of a daemon whose Python, or a package, is not there.  The last one is pex's."""


class DaemonCode(NamedTuple):
    """The command to which ``serve`` and its options are added, and variables for its environment."""

    command: Sequence[str]
    variables: Mapping[str, str]


def find(command: Sequence[str], folder: Path) -> DaemonCode:
    """Return what runs the daemon here.

    ``command`` comes from the settings, or is empty.  ``folder`` is for a pex whose own folder is read-only.  Raises
    ConfigurationError if Spark's files have a pex, but none for this release, this machine and its Pythons.
    """
    if command:
        return DaemonCode(command, {})
    shipped = list(_shipped(_spark_files()))
    if not shipped:
        return DaemonCode((sys.executable, "-I", "-m", "producerd"), {})
    for minor, path in sorted(_of_this_machine(shipped), key=lambda its: (its[0] != sys.version_info[1], -its[0])):
        python = _python(minor)
        if python:
            if not zipfile.is_zipfile(path):
                raise ConfigurationError([f"daemon={{...}}: {path} on host {socket.gethostname()} is not a whole pex"])
            beside = path.parent if os.access(path.parent, os.W_OK) else folder
            # It warns of paths in scripts that it unpacks, which are never started.
            its_own = {"PEX_ROOT": str(beside / UNPACKED), "PEX_IGNORE_RCFILES": "1", "PEX_EMIT_WARNINGS": "0"}
            return DaemonCode((python, "-I", str(path)), its_own)
    raise ConfigurationError([_none_runs(shipped)])


def _spark_files() -> Path | None:
    """Return the folder of Spark's files, if there is a Spark in this process."""
    module = sys.modules.get("pyspark.files")
    with contextlib.suppress(Exception):  # a driver of Spark Connect has none, and says so by an assertion
        return None if module is None else Path(module.SparkFiles.getRootDirectory()).absolute()
    return None


def _shipped(folder: Path | None) -> Iterator[Path]:
    """Yield the pexes among Spark's files and in its archives, each of which has a folder of its own."""
    if folder is not None:
        for pattern in ("producerd-*.pex", "*/producerd-*.pex"):
            yield from sorted(folder.glob(pattern))


def _of_this_machine(shipped: Iterable[Path]) -> Iterator[tuple[int, Path]]:
    """Yield the pexes of this release and machine, each with its Python's minor version."""
    for path in shipped:
        name = PEX.fullmatch(path.name)
        if name and (name["version"], name["machine"]) == (__version__, platform.machine()):
            yield int(name["minor"]), path


def _python(minor: int) -> str | None:
    """Return a Python 3 of this minor version: this one, or the one on PATH if it starts."""
    if sys.version_info[1] == minor:
        return sys.executable
    found = shutil.which(f"python3.{minor}")
    if found and not subprocess.run([found, "-I", "-c", ""], capture_output=True, check=False).returncode:
        return found
    return None


def _none_runs(shipped: Iterable[Path]) -> str:
    names = ", ".join(sorted({path.name for path in shipped}))
    return (
        f"daemon={{...}}: none of Spark's files {names} runs on host {socket.gethostname()}, which needs {PEX_NAME} "
        f"for Python {platform.python_version()} or for a python3.N on PATH; or give daemon={{'command': ...}}"
    )
