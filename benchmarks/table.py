"""A benchmark's rows as aligned columns, for people; ``--json`` is for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def table(kind: type[DataclassInstance], rows: Sequence[DataclassInstance]) -> str:
    """The rows under the names of their fields; None is ``-``."""
    lines = [[field.name for field in fields(kind)]]
    lines += [["-" if value is None else _shown(value) for value in asdict(row).values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
