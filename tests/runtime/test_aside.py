"""Work in a thread of its own ends in the caller that waits for it, with its result or with its exception."""

from __future__ import annotations

import asyncio
import threading

import pytest

from producerd.runtime.aside import aside
from tests.daemon import PATIENCE_SECONDS


async def test_the_result_of_work_in_another_thread_is_returned() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await aside(threading.current_thread) is not threading.current_thread()


async def test_what_the_work_raises_is_raised_in_the_caller() -> None:
    error = OSError(5, "the drive is gone")

    def fail() -> None:
        raise error

    with pytest.raises(OSError, match="the drive is gone") as caught:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await aside(fail)
    assert caught.value is error
