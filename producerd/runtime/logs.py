"""Logging: every message, the daemon's or a library's, becomes one line on stderr.

A line has the UTC time, level, logger, event and values.  Libraries log through the standard library and use the same
renderer.  The loggers of other libraries stay at WARNING, or at INFO while the daemon logs at DEBUG.  AWS's libraries
stay at ERROR (`producerd.runtime.aws.credentials`).

The level says what the operator should do.  ERROR: act, because records fail or the daemon ends.  WARNING: look,
because the daemon may need you.  INFO: a rare event in the daemon's life.  DEBUG: everything else.

Events are constant texts, and what varies is a value with a key, so that lines can be grouped, and
`producerd.runtime.repeats` can count them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, cast

import structlog
from structlog.typing import EventDict, Processor

from producerd.runtime.journal import journal_of
from producerd.runtime.log_lines import VALUES, LogLines

Level = Literal["debug", "info", "warning", "error"]
"""A log level of the settings."""
Format = Literal["text", "json"]
"""A log format of the settings."""
LIBRARIES: Final = ("aiohttp", "asyncio")
"""Loggers whose messages are limited to WARNING, or to INFO at level DEBUG."""
_HEAD: Final = ("timestamp", "level", "logger", "event")


@contextmanager
def running(
    level: Level,
    format: Format,  # noqa: A002 - the setting is called log_format
    file: Path | None = None,
) -> Iterator[None]:
    """Send all logging to stderr until the block ends, then wait a limited time for the last lines to be written.

    If stderr is ``file``, its size stays bounded (`LogLines`).
    """
    shared: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        _trace_without_text,
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # otherwise structlog.testing could not replace the loggers of modules
    )
    renderer: Processor = structlog.processors.JSONRenderer() if format == "json" else render_text
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[_add_values, structlog.stdlib.ProcessorFormatter.remove_processors_meta, _head_first, renderer],
    )
    # If descriptor 2 is closed, another file soon gets its number.
    descriptor = os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else sys.stderr.fileno()
    handler = LogLines(descriptor, file=file, journal=journal_of(descriptor))
    handler.setFormatter(formatter)
    root = logging.getLogger()
    before, root.handlers[:] = root.handlers[:], [handler]
    logging.captureWarnings(True)
    _switch.begin(level, handler)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = before
        handler.close()


def level() -> Level:
    """Return the level that is in effect."""
    return cast("Level", logging.getLevelName(logging.getLogger().level).lower())


def lost_lines() -> dict[str, int]:
    """Return how many lines were not written, by `LOST_BECAUSE`."""
    return dict(_switch.lines.lost) if _switch.lines is not None else {}


def recent_lines() -> list[str]:
    """Return the last lines of the log."""
    return _switch.lines.recent() if _switch.lines is not None else []


def set_level(level: Level, seconds: float | None = None) -> None:
    """Log at ``level`` for ``seconds``, and then at the configured level again; with None, until the next change.

    Call it on the event loop.  A new call replaces the earlier one.
    """
    _switch.set(level, seconds)


def reconfigure(level: Level) -> None:
    """Change the configured level: at once, or at the end of a period for which `set_level` set another one."""
    _switch.reconfigure(level)


class _LevelSwitch:
    """The level in effect.  Every change writes a line, whatever the level."""

    def __init__(self) -> None:
        self._configured: Level = "info"
        self._back: asyncio.TimerHandle | None = None  # set while a level is in effect for a limited time
        self.lines: LogLines | None = None

    def begin(self, configured: Level, lines: LogLines) -> None:
        self._configured, self._back, self.lines = configured, None, lines
        _apply(configured)

    def set(self, level: Level, seconds: float | None) -> None:
        if self._back is not None:
            self._back.cancel()
        self._back = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._end)
        ends_at = None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds)
        self._change(level, until=f"{ends_at:%Y-%m-%dT%H:%M:%SZ}" if ends_at else "the next change")

    def reconfigure(self, level: Level) -> None:
        changed, self._configured = level != self._configured, level
        if changed and self._back is None:
            self._change(level)

    def _end(self) -> None:
        self._back = None
        self._change(self._configured)

    def _change(self, to: Level, **values: Any) -> None:
        before = level()
        _apply(to)
        if self.lines is not None:
            self.lines.note("log level changed", to=to, before=before, **values)


_switch: Final = _LevelSwitch()


def _apply(level: Level) -> None:
    root = logging.getLogger()
    root.setLevel(level.upper())
    quiet = logging.INFO if level == "debug" else max(logging.WARNING, root.level)
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(quiet)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return a logger that takes an event and its values: ``log.info("queue full", stream=name, records=n)``."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def _trace_without_text(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Drop the text of an exception if the caller passes ``exc_text=False``, because it may quote a row's data."""
    if not event.pop("exc_text", True) and (error := sys.exc_info()[1]) is not None:
        del event["exc_info"]
        stack = "".join(traceback.format_tb(error.__traceback__))
        event["exception"] = f"Traceback (most recent call last):\n{stack}{type(error).__qualname__}"
    return event


def _add_values(_logger: object, _method: str, event: EventDict) -> EventDict:
    event.update(getattr(event["_record"], VALUES, {}))
    return event


def _head_first(_logger: object, _method: str, event: EventDict) -> EventDict:
    return {key: event[key] for key in _HEAD if key in event} | dict(event)


def render_text(_logger: object, _method: str, event: EventDict) -> str:
    """Render ``time LEVEL logger: event key=value`` on one line; only a traceback adds more lines.

    structlog's ConsoleRenderer does not fit: where rich is installed, it prints the local variables of a traceback, and
    these contain records' data.
    """
    time, level, logger, text = (event.pop(key, "-") for key in _HEAD)
    trace = [str(event.pop(key)) for key in ("exception", "stack") if key in event]
    values = [f"{key}={_plain(value)}" for key, value in event.items()]
    line = " ".join([str(time), f"{str(level).upper():7}", f"{logger}:", _one_line(str(text)), *values])
    return "\n".join([line, *trace])


def _plain(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=') else _quoted(text)


def _one_line(text: str) -> str:
    """Quote a message that is not printable, so that a text from a client cannot look like two lines."""
    return text if text.isprintable() else _quoted(text)[1:-1]


def _quoted(text: str) -> str:
    """Return the text as JSON, in ASCII unless all of it is printable.

    Terminals obey some characters beyond ASCII, and take others for the end of a line.
    """
    return json.dumps(text, ensure_ascii=not text.isprintable())
