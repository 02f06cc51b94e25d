"""Tests of access run on the daemon's loop, and reach no AWS except the one that they serve themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from producerd.runtime.event_loop import EventLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"EventLoop": EventLoop}


@pytest.fixture(autouse=True)
def _bare(bare_environment: None) -> None:
    pass
