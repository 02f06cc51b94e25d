"""Tests of access know no AWS but what they serve themselves."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _bare(bare_environment: None) -> None:
    pass
