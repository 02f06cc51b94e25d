"""Give the directory of a daemon's sockets to another user, with what an earlier daemon has left in it.

The init container of the Helm chart runs it, as root with the capability CHOWN only::

    python -Im producerd.runtime.handover DIRECTORY UID GID

A daemon opens the lock files of an earlier one, and replaces only sockets that it may connect to.  Both may belong to
another user.  Lock files are not deleted, because a lock on them may be held.
"""

from __future__ import annotations

import os
import stat
import sys


def hand_over(directory: str, uid: int, gid: int) -> None:
    """Give a directory, its sockets and its lock files to a user and a group.  Raise OSError if that is not allowed.

    Files of root keep their owner, and so do files that have a second name, because a user of the directory may have
    put them there.  That user cannot replace a file meanwhile: the directory is closed, and root's.
    """
    os.chown(directory, 0, 0)
    os.chmod(directory, 0o700)
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        found = os.lstat(path)
        is_lock = stat.S_ISREG(found.st_mode) and name.endswith(".lock")
        if (is_lock or stat.S_ISSOCK(found.st_mode)) and found.st_nlink == 1 and found.st_uid != 0:
            os.lchown(path, uid, gid)
    os.chmod(directory, 0o750)
    os.chown(directory, uid, gid)


if __name__ == "__main__":
    hand_over(sys.argv[1], *map(int, sys.argv[2:]))
