"""Where the daemon's sockets are: the places that the daemon finds in the same environment and the same file.

`NodeSettings.admin_path` of the daemon's configuration has the same rule.  This module repeats it because reading
settings takes packages that producerctl may lack.  A test compares both.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final

PREFIX: Final = "PRODUCERD_"
SUFFIX: Final = ".admin.sock"
_NAMES: Final = ("socket", "admin_socket")
_UNREADABLE: Final = (ImportError, OSError, ValueError, RecursionError)  # Python 3.9 and 3.10 have no tomllib


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


def client_path_beside(admin_socket: str) -> str | None:
    """Return the path of the clients' socket of the daemon with this admin socket, or None if no name tells."""
    return f"{admin_socket[: -len(SUFFIX)]}.sock" if admin_socket.endswith(SUFFIX) else None


def why_unread(environ: Mapping[str, str] = os.environ) -> str:
    """Return why the configuration file, which may name another place, cannot be read, or ""."""
    path = environ.get(f"{PREFIX}CONFIG")
    try:
        _read(path)
    except _UNREADABLE as error:
        return f"{PREFIX}CONFIG={path} cannot be read ({getattr(error, 'strerror', None) or error})"
    return ""


def _in_file(path: str | None) -> dict[str, str]:
    """Return the sockets that a configuration file names, as far as this user and this Python can read it."""
    document: dict[str, Any] = {}
    with contextlib.suppress(*_UNREADABLE):
        document = _read(path)
    return {name: document[name] for name in _NAMES if isinstance(document.get(name), str)}


def _read(path: str | None) -> dict[str, Any]:
    """Return a configuration file's contents, or nothing if none is named.  Raise one of `_UNREADABLE`."""
    if not path or not S_ISREG(os.stat(path).st_mode):  # a pipe is the daemon's, and a device may have no end
        return {}
    import tomllib  # only here, as it takes 5 ms  # novermin

    return tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
