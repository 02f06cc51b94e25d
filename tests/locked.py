"""The pins of requirements.lock."""

from __future__ import annotations

import re

from tools import ROOT


def locked() -> str:
    """The versions of requirements.lock, as constraints: without hashes, as a wheel of our own has none there."""
    pins = re.findall(r"^[\w-]+==[^\\\n]+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert len(pins) > 50
    return "\n".join(pins)
