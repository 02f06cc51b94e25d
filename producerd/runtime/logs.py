"""Every message, ours or a library's, is one line on stderr: UTC time, level, logger, event, values.

Libraries log through the standard library and come out of the same renderer.  AWS's and aiohttp's loggers are held at
WARNING, and at INFO when ours are at DEBUG: at DEBUG botocore writes whole requests, with signatures and data.

Levels go by what the operator should do.  ERROR: act, records fail or the daemon ends.  WARNING: look, it may need
you.  INFO: its life, rarely.  DEBUG: the rest.  Events are constant texts, values are keys: so lines can be grouped,
and repeats are counted (`producerd.runtime.repeats`).
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
from typing import Any, Final, Literal, cast

import structlog
from structlog.typing import EventDict, Processor

from producerd.runtime.log_lines import VALUES, LogLines

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["text", "json"]
LIBRARIES: Final = ("aiobotocore", "aiohttp", "asyncio", "boto3", "botocore", "urllib3")
_HEAD: Final = ("timestamp", "level", "logger", "event")


@contextmanager
def running(level: Level, format: Format) -> Iterator[None]:  # noqa: A002 - the setting is called log_format
    """Send all logging to stderr until left; then wait for its last lines, but not for long where nobody reads."""
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
        cache_logger_on_first_use=False,  # else structlog.testing could not reach the loggers of modules
    )
    renderer: Processor = structlog.processors.JSONRenderer() if format == "json" else render_text
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[_add_values, structlog.stdlib.ProcessorFormatter.remove_processors_meta, _head_first, renderer],
    )
    # With descriptor 2 closed it soon is another file's number.
    handler = LogLines(os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else sys.stderr.fileno())
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
    """The one that holds now."""
    return cast("Level", logging.getLevelName(logging.getLogger().level).lower())


def set_level(level: Level, seconds: float | None = None) -> None:
    """Another level from now on, for so long, and then the configured one; with None until the next word.

    Called on the event loop.  A new call takes the place of the last one.
    """
    _switch.set(level, seconds)


def reconfigure(level: Level) -> None:
    """The configured level is another one: at once, or at the end of the period for which another one was set."""
    _switch.reconfigure(level)


class _LevelSwitch:
    """Which level holds.  Each change makes a line, whatever the level."""

    def __init__(self) -> None:
        self._configured: Level = "info"
        self._back: asyncio.TimerHandle | None = None  # in a period
        self._lines: LogLines | None = None

    def begin(self, configured: Level, lines: LogLines) -> None:
        self._configured, self._back, self._lines = configured, None, lines
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

    def _change(self, to: Level, **said: Any) -> None:
        before = level()
        _apply(to)
        if self._lines is not None:
            self._lines.note("log level changed", to=to, before=before, **said)


_switch: Final = _LevelSwitch()


def _apply(level: Level) -> None:
    root = logging.getLogger()
    root.setLevel(level.upper())
    quiet = logging.INFO if level == "debug" else max(logging.WARNING, root.level)
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(quiet)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger that takes an event and its values: ``log.info("queue full", stream=name, records=n)``."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def _trace_without_text(_logger: object, _method: str, event: EventDict) -> EventDict:
    """``exc_text=False``, of work on rows: their exceptions' own words may quote a row."""
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
    """``time LEVEL logger: event key=value``; only a traceback takes more lines.

    Not structlog's ConsoleRenderer: where rich is installed that prints the local variables of a traceback, so data.
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
    """A message that quotes a client's words must not be able to look like two."""
    return text if text.isprintable() else _quoted(text)[1:-1]


def _quoted(text: str) -> str:
    """As JSON.  Of what is beyond ASCII, terminals obey some, and take some for the end of a line: not printable."""
    return json.dumps(text, ensure_ascii=not text.isprintable())
