"""A daemon of another user takes over a directory in which a daemon was killed."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from producerd.runtime.handover import hand_over
from producerd.runtime.listener import Listener

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the init container is")
OLD, NEW = 9474, 2000


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory for the sockets, in one to which every user may come."""
    with tempfile.TemporaryDirectory(prefix="producerd-") as path:
        os.chmod(path, 0o755)
        sockets = Path(path, "sockets")
        sockets.mkdir()
        yield sockets


def as_user(uid: int, act: Callable[[], None]) -> str:
    """Do it in a process of this user that then ends as by SIGKILL.  Return its error, or nothing."""
    read, write = os.pipe()
    if not (pid := os.fork()):
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        try:
            act()
        except BaseException as error:  # whatever it is, the child must not go on with the tests
            os.write(write, repr(error).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read) as told:
        return told.read()


def bind(directory: Path) -> None:
    for name in ("producerd.sock", "producerd.admin.sock"):
        Listener(directory / name, 0o660)


@pytest.mark.promise("init-container-gives")
def test_a_daemon_of_another_user_starts_where_one_was_killed(directory: Path) -> None:
    hand_over(str(directory), OLD, OLD)
    assert as_user(OLD, lambda: bind(directory)) == ""
    assert "Permission denied" in as_user(NEW, lambda: bind(directory))
    hand_over(str(directory), NEW, NEW)
    assert as_user(NEW, lambda: bind(directory)) == ""
    found = directory.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (NEW, NEW, 0o750)


@pytest.mark.promise("init-container-gives")
def test_what_a_user_may_have_put_there_keeps_its_owner(directory: Path) -> None:
    """Links to other files, second names of them, files of root, and files of other names."""
    hand_over(str(directory), OLD, OLD)
    secret = directory.parent / "secret"
    secret.write_text("")
    os.chown(secret, OLD, OLD)
    (directory / "linked.lock").symlink_to(secret)
    os.link(secret, directory / "second.lock")
    (directory / "root.lock").touch()
    (directory / "other").touch()
    os.chown(directory / "other", OLD, OLD)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(directory / "root.sock"))
    hand_over(str(directory), NEW, NEW)
    owners = {path.name: path.lstat().st_uid for path in directory.iterdir()}
    assert owners == {"linked.lock": 0, "second.lock": OLD, "root.lock": 0, "other": OLD, "root.sock": 0}
    assert secret.stat().st_uid == OLD
