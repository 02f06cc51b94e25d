"""The table of metrics in docs/operations.md, made from `producerd.runtime.metrics`; run it to write the table anew."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from producerd.runtime.metrics import NODE_FAMILIES, PREFIX, STREAM_FAMILIES

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "operations.md"
BEGIN: Final = "<!-- metrics: written by tests/metrics_table.py -->\n"
END: Final = "<!-- end of metrics -->\n"


def table() -> str:
    """One line a metric: name, type, labels, meaning."""
    lines = ["| metric | type | labels | |", "|---|---|---|---|"]
    for families, of_a_stream in ((NODE_FAMILIES, []), (STREAM_FAMILIES, ["`stream`"])):
        for family in families:
            label = [f"`{family.label}`" + (f": {' '.join(family.values)}" if family.values else "")]
            labels = ", ".join(of_a_stream + (label if family.label else []))
            lines.append(f"| `{PREFIX}{family.name}` | {family.kind} | {labels} | {family.meaning} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with this table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
