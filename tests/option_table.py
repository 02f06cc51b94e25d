"""The table of options in docs/spark.md, made from `spark_client.options`.  Run it to write the table anew."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from spark_client.options import OPTIONS

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "spark.md"
BEGIN: Final = "<!-- options: written by tests/option_table.py -->\n"
END: Final = "<!-- end of options -->\n"


def table() -> str:
    """One line an option: both names, the default, what it does."""
    lines = [
        f"| `{option.name}` | {f'`{option.camel}`' if option.read else '-'} | `{option.default!r}` | {option.meaning} |"
        for option in OPTIONS
    ]
    return "\n".join(["| Python | data source | default | |", "|---|---|---|---|", *lines]) + "\n"


def with_table(page: str) -> str:
    """The page with this table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
