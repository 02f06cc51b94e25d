"""What options take: a value that means nothing is refused before anything starts, and what is allowed is named."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Final

MOST_RECORD_BYTES: Final = 1024 * 1024 - 16
"""Of data, beside a key of 16 bytes: a stream takes 1 MiB of both as it comes."""


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of a whole number."""
    allowed = f"a whole number, {least:,} or more" if most is None else f"a whole number from {least:,} to {most:,}"

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"{text}: allowed: {allowed}")
        return number

    return parse


def seconds_at_least(least: float) -> Callable[[str], float]:
    """The type of a time that ends."""

    def parse(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not least <= seconds < math.inf:
            raise argparse.ArgumentTypeError(f"{text}: allowed: a number of seconds, {least:g} or more")
        return seconds

    return parse


def assignment(text: str) -> tuple[str, str]:
    """The type of a setting and its value."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text}: allowed: KEY=VALUE")
    return key, value
