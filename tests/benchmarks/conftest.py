"""What every test of the benchmarks needs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def client_log() -> Iterator[None]:
    """A benchmark's command quiets the client's log for as long as its process lives; here others follow."""
    log = logging.getLogger("producerd.client")
    level = log.level
    yield
    log.setLevel(level)
