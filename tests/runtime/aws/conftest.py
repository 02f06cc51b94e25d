"""Fixtures that keep tests of access from reaching any AWS except the one that they serve themselves."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _bare(bare_environment: None) -> None:
    pass
