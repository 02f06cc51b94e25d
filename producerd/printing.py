"""The standard streams of the commands are open, and take any text, whatever its encoding.  It runs on Python 3.9.

A shell reads there what may come next on the command line.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from io import TextIOWrapper


def escape_unprintable() -> None:
    """Let the standard output write a backslash escape for what its encoding lacks, as standard error always does."""
    if isinstance(sys.stdout, TextIOWrapper):  # None if its descriptor is closed
        sys.stdout.reconfigure(errors="backslashreplace")


def open_standard_descriptors() -> None:
    """Open /dev/null as each of the descriptors 0, 1 and 2 that is closed.

    Otherwise a file or a socket of the daemon becomes one, and libuv aborts the process when it closes that.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)


def complete(parser: ArgumentParser) -> None:
    """Print what may come next, and exit, if a shell asks.  It does so only where argcomplete is installed."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


def print_file(text: str) -> None:
    """Print a file for programs, which is UTF-8 whatever the encoding of the terminal."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # without errors it would be "strict"
    print(text, flush=True)
