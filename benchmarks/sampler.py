"""Serve as ``producerd serve`` does, and sample on which step of a record's way the event loop's thread works.

The kernel sends a signal after each `SAMPLE_SECONDS` of the process's CPU time.  Python runs the handler behind the
call that was running, in the frame that made it.  The time of a call into C therefore counts for the line that calls
it::

    python -m benchmarks.sampler FILE serve --set=...

For each line on stdin it writes the samples to FILE, and begins to count again.
"""

from __future__ import annotations

import json
import linecache
import signal
import ssl
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import producerd
from producerd import cli

SAMPLE_SECONDS: Final = 0.001
"""Time between samples.  A kernel with fewer ticks takes fewer samples."""
ROOT: Final = Path(producerd.__file__).parent
READ, ADMIT, HASH = "read and check frames, acknowledge", "admit", "hash keys"
SORT, CHOOSE, WRITE = "sort by shard and copy", "choose rows for a request", "write the body"
MD5, SHA256, SIGN = "MD5 of the aggregates", "SHA-256 of the body", "sign and address"
SEND, ANSWER, SETTLE = "encrypt and send, receive and decrypt", "read the answer", "settle rows"
LOOP, OTHER = "event loop, its reads and writes, dispatcher", "other"
STEPS: Final = (READ, ADMIT, HASH, SORT, CHOOSE, WRITE, MD5, SHA256, SIGN, SEND, ANSWER, SETTLE, LOOP, OTHER)
"""All steps, in the order in which a record comes to them."""
LINES: Final = {"sha256(": SHA256, "md5(message": MD5, "digest.update(": MD5}
"""Steps that are single calls: a part of the line that makes the call, and the step."""
PLACES: Final = {
    "runtime/session": READ,
    "runtime/client_": READ,
    "core/rows/intake": READ,
    "core/gate": ADMIT,
    "core/budget": ADMIT,
    "core/holding": ADMIT,
    "core/shards/hash_keys": HASH,
    "core/shards/md5": HASH,
    "core/shards": SORT,
    "core/rows": SORT,
    "core/lanes": CHOOSE,
    "core/sending/answers": ANSWER,
    "core/sending": CHOOSE,
    "core/encoding": WRITE,
    "core/kpl": WRITE,
    "core/ledger": SETTLE,
    "core/stats": SETTLE,
    "core": LOOP,
    "runtime/aws/connection": SEND,
    "runtime/aws/transport": SEND,
    "runtime/aws": SIGN,
    "runtime": LOOP,
    "wire": READ,
    "cli": LOOP,
}
"""The step of each part of `producerd`: of a file or folder by the longest beginning of its path."""


def step_of_file(path: str) -> str | None:
    """Return the step of a file of `producerd` or of Python's TLS, and None for every other file."""
    if path == ssl.__file__:
        return SEND
    file = Path(path)
    if ROOT not in file.parents:
        return None
    name = str(file.relative_to(ROOT).with_suffix(""))
    fitting = [place for place in PLACES if name.startswith(place)]
    return PLACES[max(fitting, key=len)] if fitting else OTHER


class Steps:
    """Finds the step of a frame."""

    def __init__(self) -> None:
        self._of_line: dict[tuple[CodeType, int], str | None] = {}
        linecache.getline(__file__, 1)  # imports what it needs, before a sample may interrupt that import

    def of(self, frame: FrameType | None) -> str:
        """Return the step of the innermost frame that belongs to one."""
        while frame is not None:
            step = self._step(frame.f_code, frame.f_lineno or 0)  # None while a frame begins
            if step is not None:
                return step
            frame = frame.f_back
        return OTHER

    def _step(self, code: CodeType, line: int) -> str | None:
        if (code, line) not in self._of_line:
            text = linecache.getline(code.co_filename, line)
            single = [step for part, step in LINES.items() if part in text]
            self._of_line[code, line] = single[0] if single else step_of_file(code.co_filename)
        return self._of_line[code, line]


def main(path: Path, arguments: list[str]) -> int:
    samples: Counter[str] = Counter()
    steps = Steps()

    def sample(_signal: int, frame: FrameType | None) -> None:
        samples[steps.of(frame)] += 1

    def write() -> None:
        for _ in sys.stdin:
            path.write_text(json.dumps(samples))
            samples.clear()
            print("written", flush=True)

    threading.Thread(target=write, daemon=True).start()
    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
    try:
        return cli.main(arguments)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)  # without Python's handler the signal would kill it


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
