"""Work in a thread of its own ends in the caller that waits for it, and changes nothing if nobody does any more."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from producerd.runtime.aside import aside, begin_aside
from tests.daemon import PATIENCE_SECONDS


async def test_the_result_of_work_in_another_thread_is_returned() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        thread = await aside(threading.current_thread)
    assert thread is not threading.current_thread()
    assert (thread.name, thread.daemon) == ("producerd-aside", True), "else a process would not end before it"


async def test_the_end_of_work_for_which_nobody_waits_any_more_changes_nothing() -> None:
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
    threads: list[threading.Thread] = []
    began, may_end = threading.Event(), threading.Event()

    def work() -> None:
        threads.append(threading.current_thread())
        began.set()
        may_end.wait(PATIENCE_SECONDS)

    done = begin_aside(work)
    assert began.wait(PATIENCE_SECONDS)
    done.cancel()
    may_end.set()
    threads[0].join(PATIENCE_SECONDS)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (done.cancelled(), problems) == (True, [])
