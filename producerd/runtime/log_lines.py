"""LogLines: log messages become lines on a file descriptor, which a thread of its own writes.

Logging never waits for the reader of the log, because a pipe without a reader would then stop the event loop.  The
thread that logs renders its line at once, and the handler holds it for the writing thread.  The handler holds up to
`MAX_HELD_BYTES` and drops lines that do not fit.  When all held lines are written, it writes how many it dropped.

`Repeats` counts messages that repeat, except at DEBUG: an operator who chooses DEBUG wants every line.

The standard library's QueueListener does not fit: it cannot be stopped while its queue is full, and it waits for its
thread without a limit.
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
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from producerd.config.redaction import redacted_url
from producerd.runtime.journal import Journal
from producerd.runtime.repeats import MessageKind, Repeats

MAX_HELD_BYTES: Final = 1 << 20
"""Most bytes of lines that wait to be written; about 5,000 lines."""
RECENT_LINES: Final = 500
"""Most lines that are kept for `producerctl bundle`."""
RECENT_BYTES: Final = 256 * 1024
"""Most bytes of the lines that are kept."""
RECENT_LINE_BYTES: Final = 8 * 1024
"""Most bytes that are kept of one line."""
MAX_FILE_BYTES: Final = 4 << 20
"""Most bytes of a file whose size is bounded."""
LAST_LINES_SECONDS: Final = 1.5
"""Time that `close` allows for writing the last lines."""
VALUES: Final = "producerd_values"
"""Attribute of a log record that holds the values to show after its event."""
UNLIMITED: Final = "producerd.orders"
"""Logger whose repeated lines are all written: it records who ordered what."""
_KEY_QUOTED: Final = re.compile(r"Value '.*?' at 'records\.")
"""Pattern of a partition key or hash key that Kinesis's validation quotes."""
_URL: Final = re.compile(r"(?<=:)//[^\s\"'<>]+")
"""Pattern of a URL after its scheme, such as a proxy's."""


def without_secrets(text: str) -> str:
    """Return text from outside the daemon without the record keys, logins and queries of URLs that it quotes."""
    text = _KEY_QUOTED.sub("Value '...' at 'records.", text)
    return _URL.sub(lambda url: redacted_url(url[0]), text)


LOST_BECAUSE: Final = ("full", "failed")
"""Reasons for which lines are not written: too many wait, or the write fails without a reader or on a full disk."""
FIELDS: Final = ("stream", "code")
"""Values that are fields of the journal's entries, too."""


class Line(NamedTuple):
    """A line that waits to be written, with its level and `FIELDS`."""

    data: bytes
    level: int
    fields: dict[str, str]


class LogLines(logging.Handler):
    """The log handler of the process, which is safe to use from every thread.

    ``clock`` returns seconds; it decides when repeats are reported.  ``file`` is the path of the file that the
    descriptor writes to, if it may have no more than `MAX_FILE_BYTES`: then the lines go on in a new one, and the one
    before is kept as FILE.1.

    ``lost`` counts the lines that were not written, by `LOST_BECAUSE`.
    """

    def __init__(
        self,
        descriptor: int,
        repeats: Repeats | None = None,
        clock: Callable[[], float] = time.monotonic,
        file: Path | None = None,
        journal: Journal | None = None,
    ) -> None:
        super().__init__()
        self._file = file
        self._journal = journal
        self._descriptor = descriptor
        self._repeats = repeats or Repeats()
        self._clock = clock
        self._changed = threading.Condition()  # its lock guards all attributes below
        self._lines: deque[Line] = deque()
        self._held_bytes = 0  # including the line that is being written
        self._recent: deque[bytes] = deque(maxlen=RECENT_LINES)
        self._recent_bytes = 0
        self._overflows = False
        self._fails = False  # the last line could not be written: no reader is left, or the disk is full
        self.lost = dict.fromkeys(LOST_BECAUSE, 0)
        self._dropped = 0  # those that no line has reported yet
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="producerd-log", daemon=True)
        self._thread.start()

    # ---- for the threads that log

    def emit(self, record: logging.LogRecord) -> None:
        """Hold the line of a record to be written, or count it as a repeat."""
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
                self._hold(self.format(record), record)
            except Exception:  # a value's __str__ may raise anything, and so may arguments that do not fit
                self.note("a message could not be rendered", logging.ERROR, of=record.name)

    def note(self, event: str, level: int = logging.INFO, logger: str = "producerd", **values: object) -> None:
        """Write a line at any level, even if it repeats an earlier one."""
        record = logging.LogRecord(logger, level, "", 0, event, None, None)
        setattr(record, VALUES, values)
        self._hold(self.format(record), record)

    def close(self) -> None:
        """Report the repeats not yet reported, and wait up to `LAST_LINES_SECONDS` until all lines are written."""
        with self._changed:
            if not self._ends:
                self._tell_repeats()
                self._ends = True
                self._changed.notify()
        self._thread.join(LAST_LINES_SECONDS)
        if self._journal is not None:
            self._journal.close()
        super().close()

    def _tell_repeats(self, now: float = inf) -> None:
        for kind, repeated in self._repeats.ended(now):
            stream = {} if kind.stream is None else {"stream": kind.stream}
            self.note(kind.event, kind.level, kind.logger, **stream, repeated=repeated)

    def _hold(self, line: str, record: logging.LogRecord) -> None:
        data = without_secrets(f"{line}\n").encode(errors="backslashreplace")
        with self._changed:
            self._keep(data[:RECENT_LINE_BYTES])
            if self._overflows or self._held_bytes + len(data) > MAX_HELD_BYTES:
                self._overflows = True
                self._lose("full")
            else:
                self._lines.append(Line(data, record.levelno, _fields_of(record)))
                self._held_bytes += len(data)
            self._changed.notify()  # also to report what was dropped while nothing waits to be written

    def _keep(self, line: bytes) -> None:
        self._recent_bytes += len(line)
        while self._recent_bytes > RECENT_BYTES or len(self._recent) == RECENT_LINES:
            self._recent_bytes -= len(self._recent.popleft())
        self._recent.append(line)

    def recent(self) -> list[str]:
        """Return the last lines, also those that were not written."""
        with self._changed:
            lines = list(self._recent)
        return [line.decode(errors="replace").rstrip("\n") for line in lines]

    def _lose(self, because: str) -> None:
        self.lost[because] += 1
        self._dropped += 1

    # ---- for the thread that writes

    def _run(self) -> None:
        while (line := self._next()) is not None:
            written = self._journal is not None and self._journal.write(*line)
            written = written or self._write(line.data)
            with self._changed:
                self._held_bytes -= len(line.data)
                self._fails = not written
                if self._fails:
                    self._lose("failed")

    def _next(self) -> Line | None:
        """Wait for the next line and return it, or return None when the log ends."""
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
        # Do not write through sys.stderr: at its end, the interpreter would wait for the lock of a buffer that is being
        # written.
        try:
            if self._file is not None and os.fstat(self._descriptor).st_size + len(data) > MAX_FILE_BYTES:
                _begin_again(self._file, self._descriptor)
            while data:
                try:
                    data = data[os.write(self._descriptor, data) :]
                except BlockingIOError:  # another process that shares the pipe made it non-blocking
                    select.select([], [self._descriptor], [])
        except OSError:
            return False
        return True


def _fields_of(record: logging.LogRecord) -> dict[str, str]:
    """Return the values of a record by which people look for lines."""
    values = {**(record.msg if isinstance(record.msg, dict) else {}), **getattr(record, VALUES, {})}
    return {name: str(values[name]) for name in FIELDS if values.get(name) is not None}


def _begin_again(file: Path, descriptor: int) -> None:
    """Have the descriptor write to a new file of this path, and keep the old one as FILE.1."""
    with suppress(OSError):  # it was deleted
        file.replace(file.with_name(f"{file.name}.1"))
    new = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(new, descriptor, inheritable=True)
    os.close(new)


def _kind_of(record: logging.LogRecord) -> MessageKind:
    """Return what a record's repeats are counted by.

    A record of the daemon has a dict with event and values in ``msg``.  A record of a library has a template there.
    """
    if isinstance(record.msg, dict):
        stream = record.msg.get("stream")
        return MessageKind(
            record.name, record.levelno, str(record.msg.get("event")), None if stream is None else str(stream)
        )
    return MessageKind(record.name, record.levelno, str(record.msg))
