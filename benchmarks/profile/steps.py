"""The steps of a record's way through the daemon, and which code belongs to which."""

from __future__ import annotations

import linecache
import ssl
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import producerd

ROOT: Final = Path(producerd.__file__).parent
OTHER: Final = "other"
LINES: Final = {
    "sha256(": "SHA-256 of the body",
    "md5(message": "MD5 of the aggregates",
    "digest.update(": "MD5 of the aggregates",
}
"""Steps that are single calls: a part of the line that makes the call, and the step."""
PLACES: Final = {
    "runtime/session": "read and check frames, acknowledge",
    "runtime/client_": "read and check frames, acknowledge",
    "core/rows/intake": "read and check frames, acknowledge",
    "core/gate": "admit",
    "core/budget": "admit",
    "core/holding": "admit",
    "core/shards/hash_keys": "hash keys",
    "core/shards/md5": "hash keys",
    "core/shards": "sort by shard and copy",
    "core/rows": "sort by shard and copy",
    "core/lanes": "choose rows for a request",
    "core/sending/answers": "read the answer",
    "core/sending": "choose rows for a request",
    "core/encoding": "write the body",
    "core/kpl": "write the body",
    "core/ledger": "settle rows",
    "core/stats": "settle rows",
    "core": "event loop, its reads and writes, dispatcher",
    "runtime/aws/connection": "encrypt and send, receive and decrypt",
    "runtime/aws/transport": "encrypt and send, receive and decrypt",
    "runtime/aws": "sign and address",
    "runtime": "event loop, its reads and writes, dispatcher",
    "wire": "read and check frames, acknowledge",
    "cli": "event loop, its reads and writes, dispatcher",
}
"""The step of each part of `producerd`: of a file or folder by the longest beginning of its path."""
STEPS: Final = (
    "read and check frames, acknowledge",
    "admit",
    "hash keys",
    "sort by shard and copy",
    "choose rows for a request",
    "write the body",
    "MD5 of the aggregates",
    "SHA-256 of the body",
    "sign and address",
    "encrypt and send, receive and decrypt",
    "read the answer",
    "settle rows",
    "event loop, its reads and writes, dispatcher",
    OTHER,
)
"""All steps, in the order in which a record comes to them."""


def step_of_file(path: str) -> str | None:
    """Return the step of a file of `producerd` or of Python's TLS, and None for every other file."""
    if path == ssl.__file__:
        return PLACES["runtime/aws/connection"]
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
