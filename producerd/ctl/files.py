"""Files that commands of `producerctl` write: each appears whole, or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO

from producerd.ctl.daemon import Failed


@contextlib.contextmanager
def whole_file(path: str, mode: int) -> Iterator[BinaryIO]:
    """Open a file that takes the place of ``path`` when the block ends, with this mode less the umask.

    If the block raises, what was there stays.  A link is replaced, not followed.  A pipe or a device, such as
    /dev/null, is written as it is.  Raise Failed at once if nothing can be written there, or later for an error of the
    disk.
    """
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as place:
                yield place
        else:
            with _in_place_of(path, mode) as file:
                yield file
    except OSError as error:
        raise Failed(f"{path}: {error.strerror or error}") from None


@contextlib.contextmanager
def _in_place_of(path: str, mode: int) -> Iterator[BinaryIO]:
    # In the same folder, so that it can be renamed.  No user can have put a link there, because the name is random.
    temporary = os.path.join(os.path.dirname(path), f".producerctl-{os.urandom(8).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C, too, leaves nothing behind
        os.unlink(temporary)
        raise
