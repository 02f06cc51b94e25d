"""The table of docs/build/licences.md."""

from __future__ import annotations

import re

from tools import ROOT


def page() -> str:
    return (ROOT / "docs/build/licences.md").read_text()


def rows() -> dict[str, tuple[str, str]]:
    """What the table says of each package: its licence, and what it comes with."""
    found = re.findall(r"^\| `([\w.-]+)` \| (.+) \| (\w+) \|$", page(), re.MULTILINE)
    assert len(found) == len({name for name, _, _ in found})
    return {name: (licence, extra) for name, licence, extra in found}
