"""Types of command-line options, which refuse a meaningless value and name the allowed ones before anything starts."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Final

MOST_RECORD_BYTES: Final = 1024 * 1024 - 16
"""Largest data of a record with a key of 16 bytes: a stream takes 1 MiB of both by default."""


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return the type of an option that is a whole number in this range."""
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
    """Return the type of an option that is a finite number of seconds."""

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
    """Return the key and the value of an option KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text}: allowed: KEY=VALUE")
    return key, value
