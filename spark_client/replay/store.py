"""Where the files of records are: a folder that all nodes share, or a prefix in S3.

Nothing here may hold a write up.  A call to S3 ends after some 5 s, and whatever calls a store does so by `within`,
because a shared folder may hang forever.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, TypeVar

from spark_client.diverting import Place

CALL_SECONDS: Final = 5.0
MOST_SECONDS: Final = 15.0
"""The longest that a task or the driver waits for a store."""
MOST_FILE_BYTES: Final = 64 << 20
THREAD: Final = "producerd replay guard"
MARKER: Final = ".producerd-replay"
"""The file by which an executor sees that its folder is the driver's."""
MOST_HANGING: Final = 4
T = TypeVar("T")
_HANGING: Final[list[threading.Thread]] = []
"""The calls that were given up and have not returned.  A store that hangs forever must not get ever more threads."""


def within(call: Callable[[], T], seconds: float = MOST_SECONDS) -> T:
    """Return what a call returns, or raise what it raises.  Raises TimeoutError if neither comes in time."""
    _HANGING[:] = [thread for thread in _HANGING if thread.is_alive()]
    if len(_HANGING) >= MOST_HANGING:
        raise TimeoutError(f"{len(_HANGING)} earlier calls have not been answered")
    returned: list[T] = []
    raised: list[Exception] = []

    def run() -> None:
        try:
            returned.append(call())
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, name=THREAD, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not returned:
        _HANGING.append(thread)
        raise TimeoutError(f"no answer within {seconds:g} s")
    return returned[0]


class Store:
    """The files below a place, by paths with slashes.  Each call raises OSError if it is not possible."""

    def __init__(self, uri: str) -> None:
        from pyarrow import fs

        place = Place.of(uri)
        self.is_local = not place.bucket
        self._root = "/".join(part for part in (place.bucket, place.prefix) if part) or "/"
        if self.is_local:
            self._files: Any = fs.LocalFileSystem()
        else:
            once = fs.AwsStandardS3RetryStrategy(max_attempts=1)  # what is not written now is with the next file
            seconds = {"connect_timeout": CALL_SECONDS, "request_timeout": CALL_SECONDS}
            self._files = place.s3(**seconds, retry_strategy=once, background_writes=False)

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder, which need not exist."""
        return [info.base_name for info in self._list(folder, recursive=False) if info.type.name == "Directory"]

    def files(self, folder: str) -> list[str]:
        """Return the paths of all files below a folder, which need not exist."""
        found = [info for info in self._list(folder, recursive=True) if info.type.name == "File"]
        return [info.path[len(self._root) :].lstrip("/") for info in found if not info.base_name.startswith(".")]

    def age_seconds(self, folder: str) -> float:
        """Return how long ago the newest file below a folder was written."""
        times = [info.mtime_ns for info in self._list(folder, recursive=True) if info.type.name == "File"]
        return time.time() - max(times, default=0) / 1e9

    def read(self, path: str) -> bytes:
        """Return what a file holds, but not more than a file of records can."""
        with self._files.open_input_file(self._at(path)) as source:
            content: bytes = source.read(MOST_FILE_BYTES)
            return content

    def write(self, path: str, content: bytes) -> None:
        """Write a file, which is then there whole or not at all."""
        at = self._at(path)
        part = f"{os.path.dirname(at)}/.{os.path.basename(at)}" if self.is_local else at  # `files` passes over it
        if self.is_local:
            self._files.create_dir(os.path.dirname(at))
        with self._files.open_output_stream(part) as target:
            target.write(content)
        if self.is_local:
            self._files.move(part, at)

    def remove(self, folder: str) -> None:
        """Remove a folder with all that is in it, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._files.delete_dir(self._at(folder))

    def mark(self) -> str:
        """Return what stands in the marker of a folder, made at the first call, or "" for S3, which needs none."""
        if not self.is_local:
            return ""
        if not os.path.exists(self._at(MARKER)):
            self.write(MARKER, uuid.uuid4().hex.encode())  # of two drivers, the tasks of one may not see theirs once
        return self.read(MARKER).decode()

    def has(self, mark: str) -> bool:
        """Return whether this is the place that returned this from `mark`."""
        try:
            return not mark or self.read(MARKER).decode() == mark
        except FileNotFoundError:
            return False

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    def _list(self, folder: str, *, recursive: bool) -> list[Any]:
        from pyarrow import fs

        selector = fs.FileSelector(self._at(folder), allow_not_found=True, recursive=recursive)
        found: list[Any] = self._files.get_file_info(selector)
        return found
