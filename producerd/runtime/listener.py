"""A unix socket at a path: the clients' socket, or the socket of `producerctl`.

The file has its mode and group before any client can connect.  The daemon replaces a stale file, which a killed daemon
left.  It leaves alone a file that is not a socket, and a socket on which another process answers.

A socket's file can disappear while the daemon runs: a cleaner of temporary files deletes it, or an operator recreates
the directory.  The socket then still listens, but no client can find it.  `Listener.look` notices that and binds the
path again.  It does one stat of the socket's file and one of the lock file, so it may be called often.
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

from producerd.errors import ConfigurationError, PlaceTaken

BACKLOG: Final = 1024
"""Most connections that wait in the kernel to be accepted."""


class PathProblem(Exception):
    """The reason why no client can connect at a path."""


class TakenProblem(PathProblem):
    """Another process has the path, and may end."""


class AccessProblem(PathProblem):
    """The file of a socket cannot get the owner or the group that it should have."""


class Permissions(NamedTuple):
    """The mode, owner and group of a socket's file; -1 leaves the owner or group as the kernel sets it."""

    mode: int
    uid: int = -1
    gid: int = -1


class FileId(NamedTuple):
    """The identity of a socket's file, which is unique while a socket is bound to the file.

    Until then, the kernel does not give the file's inode number to another file.
    """

    device: int
    inode: int


class Bound(NamedTuple):
    """A listening socket and its file, which is None for a passed socket whose file the daemon has not seen."""

    socket: socket.socket
    file: FileId | None


class Listener:
    """The sockets that the daemon bound to one path, and the lock that keeps a second daemon off that path.

    ``bound`` holds the sockets to accept connections from, the oldest first.  ``remedy`` says what a person can do when
    `look` raises PathProblem.  ``reminder`` says what a person should do after `look` has bound the path again.

    The constructor raises ConfigurationError, which names the path by its ``setting``: PlaceTaken if another process
    has it.
    """

    def __init__(self, path: Path, mode: int, group: str | None = None, *, setting: str = "socket") -> None:
        self.path = path
        self.remedy = f"free {path}, or set {setting} to another path and start the daemon again"
        self.reminder = f"see what deletes files in {path.parent}"
        self.bound: list[Bound] = []
        self._permissions = _permissions(mode, group)
        self._lock: int | None = None
        try:
            self.look()
        except AccessProblem as problem:
            raise ConfigurationError([f"socket_group = {group}: {problem}"]) from None
        except PathProblem as problem:
            kind = PlaceTaken if isinstance(problem, TakenProblem) else ConfigurationError
            raise kind([f"{setting} = {path}: {problem}; set {setting} to another path"]) from None

    def look(self) -> bool:
        """Bind the path again if it does not lead to one of these sockets, and return whether that happened.

        Raise PathProblem if no client can connect at the path.
        """
        if self._leads_here():
            if self._lock is not None:
                with contextlib.suppress(PathProblem, OSError):
                    self._hold_lock()
            return False
        try:
            self._hold_lock()
            _remove_stale(self.path)
            self.bound.append(_bind(self.path, self._permissions))
        except BaseException as error:
            self._free_lock()
            if isinstance(error, OSError):
                raise PathProblem(error.strerror or str(error)) from error
            raise
        # Keep the first socket: a link or a mount of its file may still lead to it, and the service manager holds a
        # passed one. Keep the last but one: a client may still wait in its backlog. The acceptor closes the others.
        del self.bound[1:-2]
        return True

    def close(self) -> None:
        """Delete the socket's file, unless another process has replaced it, and release the path."""
        if self._leads_here():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        self._close()

    def _leads_here(self) -> bool:
        file = _file_id(self.path)
        return file is not None and any(one.file == file for one in self.bound)

    def _hold_lock(self) -> None:
        """Lock the path, or lock it again if the lock's file was deleted.

        Without a file there, a second daemon could create and lock a new one.
        """
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
    """A listening socket that the service manager bound and passed to the daemon.

    The file belongs to the manager, so the daemon never deletes it.  If it disappears, `look` binds another socket to
    the path, with the mode and owners that the file had when it was last seen.  ``mode`` and ``group`` apply only if
    the daemon never saw the file.  The daemon leaves the new file in place as well, because the next daemon reads from
    it who may connect.
    """

    def __init__(self, passed: socket.socket, mode: int, group: str | None = None, *, unit: str) -> None:
        name = passed.getsockname()
        self.path = Path(name if isinstance(name, str) else f"@{os.fsdecode(name[1:])}")  # bytes: abstract
        self.remedy = f"systemctl restart {unit}"
        self.reminder = f"systemctl restart {unit}: until then no process listens while the daemon restarts"
        self.bound = [Bound(passed, None)]
        self._permissions = _permissions(mode, group)
        self._lock = None

    def close(self) -> None:
        """Close the sockets and release the path, but leave the file in place."""
        self._close()

    def _leads_here(self) -> bool:
        never_seen = self.bound[0].file is None and len(self.bound) == 1
        if never_seen:
            if not self.path.is_absolute() or not os.access(self.path.parent, os.X_OK):
                return True  # an abstract name, or a path that only others see, such as a container's host
            if _is_alive(self.path):
                self.bound = [self.bound[0]._replace(file=_file_id(self.path))]
        leads_here = super()._leads_here()
        if leads_here or never_seen:
            self._permissions = _permissions_of(self.path) or self._permissions
        return leads_here


def _permissions(mode: int, group: str | None) -> Permissions:
    """Return the permissions with the group's number.  Raise ConfigurationError if there is no such group."""
    try:
        return Permissions(mode) if group is None else Permissions(mode, gid=grp.getgrnam(group).gr_gid)
    except KeyError:
        raise ConfigurationError([f"socket_group = {group}: there is no such group"]) from None


def _permissions_of(path: Path) -> Permissions | None:
    """Return the permissions for a replacement of the socket at a path, or None if there is no socket.

    Write permission decides who may connect: the owner does not matter where every user may write, and root does not
    need the permission.
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
    return Permissions(stat.S_IMODE(found.st_mode), uid, gid)


def _file_id(file: Path | int) -> FileId | None:
    """Return the identity of a path's or descriptor's file, or None if this process cannot see one."""
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
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW  # a link may lead to another user's file
        handle = os.open(_lock_path(path), flags, 0o600)
    except OSError as error:
        raise PathProblem(f"its directory cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise TakenProblem("in use by another producerd: stop that one") from None
    return handle


def _remove_stale(path: Path) -> None:
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise PathProblem("there is a file of that name which is not a socket: remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        except OSError as error:
            raise PathProblem(f"in use, or this process may not replace it ({error.strerror or error})") from None
        else:
            raise TakenProblem("in use: another process answers on it")


def _is_alive(path: Path) -> bool:
    """Return whether a socket is behind a file.

    The probe is a socket of another type.  The kernel looks up the other end before it compares the types, and then it
    refuses without queueing a connection.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(os.fspath(path))
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:  # the types differ, as a rule; or this user may not connect
        pass
    return True


def _bind(path: Path, permissions: Permissions) -> Bound:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777)  # no client may connect before the owner, group and mode are set
    try:
        bound.bind(os.fspath(path))
    except OSError as error:
        bound.close()
        raise PathProblem(f"cannot be bound: {error.strerror or error}") from None
    finally:
        os.umask(before)
    try:
        found = os.stat(path)
        if permissions.uid not in (-1, found.st_uid) or permissions.gid not in (-1, found.st_gid):
            os.chown(path, permissions.uid, permissions.gid)  # a hardened systemd unit forbids this
        os.chmod(path, permissions.mode)
    except OSError as error:
        bound.close()
        os.unlink(path)
        raise AccessProblem(f"its owner or group cannot be set: {error.strerror}") from None
    bound.listen(BACKLOG)
    bound.setblocking(False)
    return Bound(bound, _file_id(path))
