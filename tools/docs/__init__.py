"""The documentation: its site, the tables that the code writes, and how long it may be.

Unlike the other tools, these import the project and its tests, and run in `.venv`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tools import ROOT

DOCS: Final = ROOT / "docs"
WRITE: Final = "./dev docs --write"
"""The command that writes all that is generated."""
WIDTH: Final = 100
"""Of every page, in characters; tables and code of their own may be wider."""
CODE: Final = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
"""A block of code in a page."""


def pages() -> list[Path]:
    """Return the pages that readers are sent to."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def without_code(page: str) -> str:
    """Return a page without its blocks of code."""
    return CODE.sub("", page)
