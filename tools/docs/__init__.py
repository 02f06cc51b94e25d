"""The documentation: its site, the tables that the code writes, and how long it may be.

Unlike the other tools, these import the project and its tests, and run in `.venv`.
"""

from __future__ import annotations

import re
from typing import Final

from tools import ROOT

DOCS: Final = ROOT / "docs"
WRITE: Final = "./dev docs --write"
"""The command that writes all that is generated."""


def without_code(page: str) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)
