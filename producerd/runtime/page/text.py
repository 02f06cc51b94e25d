"""Functions that turn values into text, and text into HTML."""

from __future__ import annotations

import re
from html import escape
from typing import Final

TEXT_CHARACTERS: Final = 600
"""Most characters of a text: an error from the service may be a whole page of a proxy."""


def text_of(text: str) -> str:
    """Return any text as HTML, escaped and cut to `TEXT_CHARACTERS`.

    Characters that cannot be sent, such as half of a surrogate pair, are replaced.
    """
    cut = text if len(text) <= TEXT_CHARACTERS else text[:TEXT_CHARACTERS] + " …"
    return escape(cut.encode(errors="replace").decode())


def with_code(text: str) -> str:
    """Return text as HTML, with the parts between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", text_of(text))


def number_of(value: float) -> str:
    """Return a number with one decimal place if it is below 10 and not whole, otherwise with none."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def duration_of(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds / 60)
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days:,} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min {seconds % 60:.0f} s"


def count_of(number: int, what: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
