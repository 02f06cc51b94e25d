"""Every message, ours or a library's, is one line on stderr: UTC time, level, logger, event, values.

Libraries log through the standard library and come out of the same renderer.  AWS's and aiohttp's loggers are held at
WARNING, and at INFO when ours are at DEBUG: at DEBUG botocore writes whole requests, with signatures and data.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Final, Literal

import structlog
from structlog.typing import EventDict, Processor

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["text", "json"]
LIBRARIES: Final = ("aiobotocore", "aiohttp", "asyncio", "boto3", "botocore", "urllib3")
_HEAD: Final = ("timestamp", "level", "logger", "event")


def configure(level: Level, format: Format) -> None:  # noqa: A002 - the setting is called log_format
    """Send all logging to stderr.  May be called again: the last call holds."""
    shared: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
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
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _head_first, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    quiet = logging.INFO if level == "debug" else max(logging.WARNING, root.level)
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(quiet)
    logging.captureWarnings(True)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger that takes an event and its values: ``log.info("queue full", stream=name, records=n)``."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


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
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    """A message that quotes a client's words must not be able to look like two."""
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)[1:-1]
