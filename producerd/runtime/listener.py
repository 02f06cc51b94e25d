"""A unix socket that is listened on: that of clients, and that of `producerctl`.

Its mode and group hold before anybody can connect.  A stale file, left by a daemon that was killed, is replaced; a
socket that somebody answers on, and anything that is no socket, is not touched.  A socket that the service manager
passed is its own: file, mode and group stay as they are, and whoever connects between two daemons waits for the next.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
from pathlib import Path
from typing import Final

from producerd.errors import ConfigurationError

BACKLOG: Final = 1024


class Listener:
    """The bound socket, and the lock that keeps a second daemon off its path.

    Raises ConfigurationError, which calls the path by the name of its ``setting``.
    """

    def __init__(self, path: Path, mode: int, group: str | None = None, *, setting: str = "socket") -> None:
        self.path = path
        try:
            self._lock = _lock(path)
            try:
                _remove_stale(path)
                self.socket = _bind(path, mode, group)
                self._inode = os.stat(path).st_ino
            except BaseException:
                os.close(self._lock)
                raise
        except _PathProblem as problem:
            raise ConfigurationError([f"{setting} = {path}: {problem}; set {setting} to another path"]) from None

    def close(self) -> None:
        """Take the socket's file away, unless somebody has put another one there, and free the path."""
        try:
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        except FileNotFoundError:
            pass
        self.socket.close()
        os.close(self._lock)


class Passed(Listener):
    """A listening socket that somebody else has bound, and keeps."""

    def __init__(self, passed: socket.socket) -> None:
        self.socket = passed
        name = passed.getsockname()
        self.path = Path(name if isinstance(name, str) else f"@{os.fsdecode(name[1:])}")  # bytes: an abstract name

    def close(self) -> None:
        self.socket.close()


class _PathProblem(Exception):
    """Why a path cannot be listened on."""


def _lock(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _PathProblem(f"its directory cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise _PathProblem("in use by another producerd: stop that one") from None
    return handle


def _remove_stale(path: Path) -> None:
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise _PathProblem("there is a file of that name which is no socket: remove it")
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    probe.settimeout(1.0)
    try:
        probe.connect(os.fspath(path))
    except (ConnectionRefusedError, FileNotFoundError):
        os.unlink(path)
    except OSError as error:
        raise _PathProblem(f"in use, or not ours to replace ({error.strerror or error})") from None
    else:
        raise _PathProblem("in use: somebody answers on it")
    finally:
        probe.close()


def _bind(path: Path, mode: int, group: str | None) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777)  # nobody may connect until group and mode are what they shall be
    try:
        bound.bind(os.fspath(path))
    except OSError as error:
        bound.close()
        raise _PathProblem(f"cannot be bound: {error.strerror or error}") from None
    finally:
        os.umask(before)
    try:
        if group is not None:
            shutil.chown(path, group=group)
        os.chmod(path, mode)
    except (LookupError, OSError) as error:
        bound.close()
        os.unlink(path)
        raise ConfigurationError([f"socket_group = {group}: {error}"]) from None
    bound.listen(BACKLOG)
    bound.setblocking(False)
    return bound
