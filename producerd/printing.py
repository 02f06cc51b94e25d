"""The standard output of the commands takes any text, whatever its encoding.  It runs on Python 3.9."""

from __future__ import annotations

import sys
from io import TextIOWrapper


def escape_unprintable() -> None:
    """Let the standard output write a backslash escape for what its encoding lacks, as standard error always does."""
    if isinstance(sys.stdout, TextIOWrapper):  # None if its descriptor is closed
        sys.stdout.reconfigure(errors="backslashreplace")


def print_file(text: str) -> None:
    """Print a file for programs, which is UTF-8 whatever the encoding of the terminal."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # without errors it would be "strict"
    print(text, flush=True)
