"""Count the work of a piece of code: instructions under `benchmarks.instructions.qemu`, otherwise CPU nanoseconds.

Under qemu, SHA-256 is not computed but charged at the rate of processors with SHA instructions.  The processor that
qemu emulates has none, and 28 instructions per byte would hide everything else.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import time
from collections.abc import Callable
from typing import Any, Final

CALIBRATIONS: Final = 100
FILE_VARIABLE: Final = "BENCHMARK_INSTRUCTION_COUNTER"
"""Name of the environment variable with the path of the file into which qemu counts."""
SHA256_INSTRUCTIONS_PER_BYTE: Final = 2
"""Instructions per byte: 120 per block of 64, of which 32 are sha256rnds2 and 24 belong to the message schedule."""


class Counter:
    """A counter that runs from its creation on, except between `pause` and `go_on`."""

    def __init__(self) -> None:
        path = os.environ.get(FILE_VARIABLE)
        self.unit = "cpu_ns" if path is None else "instructions"
        self._now: Callable[[], int] = time.process_time_ns if path is None else _instructions(path)
        self._counted = self._since = self._itself = 0
        for _ in range(CALIBRATIONS):  # the first ones warm it up
            self._counted = 0
            self.go_on()
            self.pause()
        self._itself = self._counted
        self.take()

    def pause(self) -> None:
        self._counted += self._now() - self._since - self._itself

    def go_on(self) -> None:
        self._since = self._now()

    def take(self) -> int:
        """Return the count since the last call, and begin again at 0."""
        self.pause()
        counted, self._counted = self._counted + _Sha256.taken(), 0
        self.go_on()
        return counted


def _instructions(path: str) -> Callable[[], int]:
    with open(path, "r+b") as file:
        count = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
    return lambda: count[0]


class _Sha256:
    """A replacement for hashlib.sha256 that counts bytes and hashes nothing."""

    digest_size = 32
    block_size = 64
    name = "sha256"
    hashed_bytes = 0

    def __init__(self, data: Any = b"", *, usedforsecurity: bool = True) -> None:  # noqa: ARG002 - hashlib's signature
        self.update(data)

    def update(self, data: Any) -> None:
        _Sha256.hashed_bytes += memoryview(data).nbytes

    def copy(self) -> _Sha256:
        return _Sha256()

    def digest(self) -> bytes:
        return bytes(self.digest_size)

    def hexdigest(self) -> str:
        return self.digest().hex()

    @classmethod
    def taken(cls) -> int:
        """Return the instructions charged for the bytes hashed since the last call."""
        hashed, cls.hashed_bytes = cls.hashed_bytes, 0
        return SHA256_INSTRUCTIONS_PER_BYTE * hashed


if FILE_VARIABLE in os.environ:
    hashlib.sha256 = _Sha256  # type: ignore[assignment] # before any module imports it from there
