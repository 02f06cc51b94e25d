"""Print a benchmark's results as a table for people or as JSON for programs, and its progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def say(text: str) -> None:
    """Print progress to standard error.  Standard output has only the results."""
    print(text, file=sys.stderr, flush=True)


def answer(kind: type[DataclassInstance], rows: Sequence[DataclassInstance], *, as_json: bool) -> str:
    """Return the rows as an array of JSON objects, or as a table."""
    return json.dumps([asdict(row) for row in rows], indent=1) if as_json else table(kind, rows)


def table(kind: type[DataclassInstance], rows: Sequence[DataclassInstance]) -> str:
    """Return the rows as aligned columns with the names of their fields.  None is shown as ``-``."""
    lines = [[field.name for field in fields(kind)]]
    lines += [["-" if value is None else _shown(value) for value in asdict(row).values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
