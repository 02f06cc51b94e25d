"""LogLines: messages become lines on a descriptor, written by a thread of their own.

Whoever logs never waits for a reader: a pipe that nobody reads would stop the event loop.  So lines are rendered at
once, by whoever logs, and held for the thread, up to `MAX_HELD_BYTES`; what does not fit is dropped until all that is
held was written, and then one line says how many were.  Repeats are counted (`Repeats`); DEBUG is not: whoever asks
for it wants all of it.

Not the standard library's QueueListener: it cannot be stopped while its queue is full, and waits for its thread for
ever.
"""

from __future__ import annotations

import logging
import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from producerd.runtime.repeats import LineKind, Repeats

MAX_HELD_BYTES: Final = 1 << 20
"""Some 5,000 lines."""
LAST_LINES_SECONDS: Final = 1.5
"""How long the last lines may take to be written."""
VALUES: Final = "producerd_values"
"""Attribute of a record: what its line says beside its event."""
UNLIMITED: Final = "producerd.orders"
"""A logger of which no line is held back: who has ordered what."""
_KEY_QUOTED: Final = re.compile(r"Value '.*?' at 'records\.")
"""How Kinesis's validation quotes a partition key or a hash key."""


_LOGIN: Final = re.compile(r"(?<=://)[^\s/\"']+@")
"""In a URL, such as that of a proxy."""


def without_secrets(text: str) -> str:
    """What others say, but for the records' keys and the logins in it."""
    return _LOGIN.sub("...@", _KEY_QUOTED.sub("Value '...' at 'records.", text))


class LogLines(logging.Handler):
    """One for the process.  ``clock``: seconds, for repeats."""

    def __init__(
        self, descriptor: int, repeats: Repeats | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._repeats = repeats or Repeats()
        self._clock = clock
        self._changed = threading.Condition()  # its lock is held for whatever touches the following
        self._lines: deque[bytes] = deque()
        self._held_bytes = 0  # also of the line that is being written
        self._overflows = False
        self._fails = False  # the last line could not be written: there may be no reader left, or no room on a disk
        self._dropped = 0
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="producerd-log", daemon=True)
        self._thread.start()

    # ---- whoever logs

    def emit(self, record: logging.LogRecord) -> None:
        with self._changed:
            now = self._clock()
            limited = record.levelno > logging.DEBUG and record.name != UNLIMITED
            owed = self._repeats.passes(_kind_of(record), now) if limited else 0
            self._tell_repeats(now)
            if owed is None:
                return
            if owed:
                setattr(record, VALUES, {"repeated": owed})
            try:
                self._hold(self.format(record))
            except Exception:  # a value's own __str__ may raise anything, as may arguments that do not fit
                self.note("a message could not be rendered", logging.ERROR, of=record.name)

    def note(self, event: str, level: int = logging.INFO, logger: str = "producerd", **values: object) -> None:
        """A line whatever the level and however often."""
        record = logging.LogRecord(logger, level, "", 0, event, None, None)
        setattr(record, VALUES, values)
        self._hold(self.format(record))

    def close(self) -> None:
        """Tell what is owed, and wait until all is written; but not for long where nobody reads."""
        with self._changed:
            if not self._ends:
                self._tell_repeats()
                self._ends = True
                self._changed.notify()
        self._thread.join(LAST_LINES_SECONDS)
        super().close()

    def _tell_repeats(self, now: float = inf) -> None:
        for kind, repeated in self._repeats.ended(now):
            stream = {} if kind.stream is None else {"stream": kind.stream}
            self.note(kind.event, kind.level, kind.logger, **stream, repeated=repeated)

    def _hold(self, line: str) -> None:
        data = without_secrets(f"{line}\n").encode(errors="backslashreplace")
        with self._changed:
            if self._overflows or self._held_bytes + len(data) > MAX_HELD_BYTES:
                self._overflows = True
                self._dropped += 1
            else:
                self._lines.append(data)
                self._held_bytes += len(data)
                self._changed.notify()

    # ---- the thread

    def _run(self) -> None:
        while (data := self._next()) is not None:
            written = self._write(data)
            with self._changed:
                self._held_bytes -= len(data)
                self._fails = not written
                self._dropped += self._fails

    def _next(self) -> bytes | None:
        """The next line, when there is one; None at the end."""
        with self._changed:
            while not self._lines:
                self._overflows = False
                if self._dropped and not self._fails:
                    dropped, self._dropped = self._dropped, 0
                    self.note("log lines were dropped", logging.WARNING, lines=dropped)
                elif self._ends:
                    return None
                else:
                    end = self._repeats.next_end
                    self._changed.wait(None if end is None else max(0.0, end - self._clock()))
                    self._tell_repeats(self._clock())
            return self._lines.popleft()

    def _write(self, data: bytes) -> bool:
        # Past sys.stderr: the interpreter's end would wait for the lock of a buffer that is being written.
        try:
            while data:
                try:
                    data = data[os.write(self._descriptor, data) :]
                except BlockingIOError:  # somebody who shares the pipe has made it so
                    select.select([], [self._descriptor], [])
        except OSError:
            return False
        return True


def _kind_of(record: logging.LogRecord) -> LineKind:
    """Ours have their event and values in ``msg``, others their template."""
    if isinstance(record.msg, dict):
        stream = record.msg.get("stream")
        return LineKind(
            record.name, record.levelno, str(record.msg.get("event")), None if stream is None else str(stream)
        )
    return LineKind(record.name, record.levelno, str(record.msg))
