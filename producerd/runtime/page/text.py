"""Values as text, and text as HTML."""

from __future__ import annotations

import re
from html import escape
from typing import Final

TEXT_CHARACTERS: Final = 600
"""An error is cut to this: the service's words may be a whole page of a proxy."""


def text_of(text: str) -> str:
    """Whatever it is, it is text.  What is no character, as half of a pair of UTF-16, could not be sent at all."""
    cut = text if len(text) <= TEXT_CHARACTERS else text[:TEXT_CHARACTERS] + " …"
    return escape(cut.encode(errors="replace").decode())


def with_code(text: str) -> str:
    """What stands between backticks is to be typed."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", text_of(text))


def number_of(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def duration_of(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds / 60)
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days:,} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min {seconds % 60:.0f} s"


def count_of(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
