"""Where the daemon's sockets are: the places that the daemon finds in the same environment and the same file.

`NodeSettings.admin_path` of the daemon's configuration has the same rule.  This module repeats it because reading
settings takes packages that producerctl may lack.  A test compares both.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

PREFIX: Final = "PRODUCERD_"
SUFFIX: Final = ".admin.sock"
_NAMES: Final = ("socket", "admin_socket")


def admin_paths(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the paths to try in order: the one that the settings name, or the default ones."""
    given = {name: environ[PREFIX + name.upper()] for name in _NAMES if PREFIX + name.upper() in environ}
    if not given.get("admin_socket"):
        given = {**_in_file(environ.get(f"{PREFIX}CONFIG")), **given}
    if given.get("admin_socket"):
        return [given["admin_socket"]]
    if Path(given.get("socket", "")).name:
        return [str(Path(given["socket"]).with_suffix(SUFFIX))]
    user = environ.get("XDG_RUNTIME_DIR")
    return [f"{folder}/producerd/producerd{SUFFIX}" for folder in ("/run", user) if folder]


def client_path(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of the socket for clients if the settings name it."""
    return environ.get(f"{PREFIX}SOCKET") or _in_file(environ.get(f"{PREFIX}CONFIG")).get("socket")


def _in_file(path: str | None) -> dict[str, str]:
    """Return the sockets that a configuration file names, as far as this user and this Python can read it."""
    document: dict[str, Any] = {}
    with contextlib.suppress(ImportError, OSError, ValueError, RecursionError):  # Python 3.9 and 3.10 have no tomllib
        if path and Path(path).is_file():  # a pipe is the daemon's, and a device may have no end
            import tomllib  # only here, as it takes 5 ms  # novermin

            document = tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
    return {name: document[name] for name in _NAMES if isinstance(document.get(name), str)}
