"""A unix socket at a path: the clients' socket, and the socket of `producerctl`.

Its mode and group hold before anybody can connect.  A stale file, which a killed daemon left, is replaced.  A socket
that another process answers on, and a file that is not a socket, are left alone.

The file can go while the daemon runs: a cleaner of temporary files, an `rm`, a directory that is made again.  The
socket then listens on, and no client can find it.  `look` notices that and binds the path again.  It may be called
often: it costs a stat of the file and one of the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import socket
import stat
from pathlib import Path
from typing import Final, NamedTuple

from producerd.errors import ConfigurationError

BACKLOG: Final = 1024


class PathProblem(Exception):
    """Why nobody can connect at a path."""


class AccessProblem(PathProblem):
    """A socket's file cannot have the owner or the group that it is to have."""


class Access(NamedTuple):
    """A socket's mode, and its owner and group; -1 leaves what the file has by itself."""

    mode: int
    uid: int = -1
    gid: int = -1


class FileId(NamedTuple):
    """A file as long as a socket is bound to it: its inode number is not used again before."""

    device: int
    inode: int


class Bound(NamedTuple):
    """A socket that listens, and its file."""

    socket: socket.socket
    file: FileId | None


class Listener:
    """The sockets that were bound to one path, and the lock that keeps a second daemon off it.

    Raises ConfigurationError, which calls the path by the name of its ``setting``.  ``bound`` are the sockets to accept
    connections from.  ``remedy`` says what a person can do where `look` raises PathProblem, and ``reminder`` what is
    left to do after it has bound the path again.
    """

    def __init__(self, path: Path, mode: int, group: str | None = None, *, setting: str = "socket") -> None:
        self.path = path
        self.remedy = f"free {path}, or set {setting} to another path and start the daemon again"
        self.reminder = f"see what deletes files in {path.parent}"
        self.bound: list[Bound] = []
        self._access = _access(mode, group)
        self._lock: int | None = None
        try:
            self.look()
        except AccessProblem as problem:
            raise ConfigurationError([f"socket_group = {group}: {problem}"]) from None
        except PathProblem as problem:
            raise ConfigurationError([f"{setting} = {path}: {problem}; set {setting} to another path"]) from None

    def look(self) -> bool:
        """See that the path leads here, and bind it again where it does not; returns whether it was bound.

        Raises PathProblem where nobody can connect.
        """
        if self._leads_here():
            if self._lock is not None:
                with contextlib.suppress(PathProblem, OSError):
                    self._hold_lock()
            return False
        try:
            self._hold_lock()
            _remove_stale(self.path)
            self.bound.append(_bind(self.path, self._access))
        except BaseException as error:
            self._free_lock()
            if isinstance(error, OSError):
                raise PathProblem(error.strerror or str(error)) from error
            raise
        # A link or a mount of the first file may still lead to its socket, and the service manager holds the one that
        # it passed.  The last but one may still have a client in its backlog.  The acceptor closes the others.
        del self.bound[1:-2]
        return True

    def close(self) -> None:
        """Take the socket's file away, unless another one has taken its place, and free the path."""
        if self._leads_here():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        self._close()

    def _leads_here(self) -> bool:
        file = _file_id(self.path)
        return file is not None and any(one.file == file for one in self.bound)

    def _hold_lock(self) -> None:
        """Lock the path, also again: where the lock's file was deleted, a second daemon could make one of its own."""
        if self._lock is not None and _file_id(_lock_path(self.path)) == _file_id(self._lock):
            return
        taken = _lock(self.path)
        self._free_lock()
        self._lock = taken

    def _free_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _close(self) -> None:
        for one in self.bound:
            one.socket.close()
        self._free_lock()


class Passed(Listener):
    """A listening socket that the service manager has bound, and holds.

    Its file is the manager's, and is never taken away.  Where that file goes, `look` binds another socket to the path,
    with the mode and the owners that the file was last seen with; ``mode`` and ``group`` count only where it was never
    seen.  The new file stays, too: the next daemon finds there who may connect.
    """

    def __init__(self, passed: socket.socket, mode: int, group: str | None = None, *, unit: str) -> None:
        name = passed.getsockname()
        self.path = Path(name if isinstance(name, str) else f"@{os.fsdecode(name[1:])}")  # bytes: an abstract name
        self.remedy = f"systemctl restart {unit}"
        self.reminder = f"systemctl restart {unit}: until then nobody listens while the daemon restarts"
        self.bound = [Bound(passed, None)]
        self._access = _access(mode, group)
        self._lock = None

    def close(self) -> None:
        self._close()

    def _leads_here(self) -> bool:
        never_seen = self.bound[0].file is None and len(self.bound) == 1
        if never_seen:
            if not self.path.is_absolute() or not os.access(self.path.parent, os.X_OK):
                return True  # an abstract name, or a path that only others see: a container's host, with PrivateTmp=
            if _is_alive(self.path):
                self.bound = [self.bound[0]._replace(file=_file_id(self.path))]
        leads_here = super()._leads_here()
        if leads_here or never_seen:
            self._access = _access_of(self.path) or self._access
        return leads_here


def _access(mode: int, group: str | None) -> Access:
    """Raises ConfigurationError where there is no such group."""
    try:
        return Access(mode) if group is None else Access(mode, gid=grp.getgrnam(group).gr_gid)
    except KeyError:
        raise ConfigurationError([f"socket_group = {group}: there is no such group"]) from None


def _access_of(path: Path) -> Access | None:
    """Who may connect to the socket at a path, for another one in its place; None where there is no socket.

    Write permission decides.  Who owns the file does not matter where everybody has it; and root needs none.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        return None
    everybody = found.st_mode & stat.S_IWOTH
    uid = -1 if everybody or found.st_uid in (0, os.geteuid()) else found.st_uid
    gid = -1 if everybody or not found.st_mode & stat.S_IWGRP else found.st_gid
    return Access(stat.S_IMODE(found.st_mode), uid, gid)


def _file_id(file: Path | int) -> FileId | None:
    """Of a path or a descriptor; None where there is no file, or none that this process may see."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return FileId(found.st_dev, found.st_ino)


def _lock_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _lock(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(_lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PathProblem(f"its directory cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise PathProblem("in use by another producerd: stop that one") from None
    return handle


def _remove_stale(path: Path) -> None:
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise PathProblem("there is a file of that name which is no socket: remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        except OSError as error:
            raise PathProblem(f"in use, or not ours to replace ({error.strerror or error})") from None
        else:
            raise PathProblem("in use: somebody answers on it")


def _is_alive(path: Path) -> bool:
    """Whether a socket is behind a file.

    A socket of another type asks.  The kernel finds the other end before it compares the types, and queues nothing.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(os.fspath(path))
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:  # the other type, as a rule; or one that this user may not connect to
        pass
    return True


def _bind(path: Path, access: Access) -> Bound:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777)  # nobody may connect until owner, group and mode are what they shall be
    try:
        bound.bind(os.fspath(path))
    except OSError as error:
        bound.close()
        raise PathProblem(f"cannot be bound: {error.strerror or error}") from None
    finally:
        os.umask(before)
    try:
        found = os.stat(path)
        if access.uid not in (-1, found.st_uid) or access.gid not in (-1, found.st_gid):
            os.chown(path, access.uid, access.gid)  # which a hardened unit forbids
        os.chmod(path, access.mode)
    except OSError as error:
        bound.close()
        os.unlink(path)
        raise AccessProblem(f"its owner or group cannot be set: {error.strerror}") from None
    bound.listen(BACKLOG)
    bound.setblocking(False)
    return Bound(bound, _file_id(path))
