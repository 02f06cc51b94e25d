"""A thread for work that may never return, such as reading a file of an unreachable network drive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
    """Run ``work`` in a daemon thread of its own, and return its result or raise its exception.

    `asyncio.to_thread` would not do: when the process ends, the interpreter waits for those threads.
    """
    return await begin_aside(work)


def begin_aside(work: Callable[[], T]) -> asyncio.Future[T]:
    """Begin ``work`` in a daemon thread of its own, and return the future of its result."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def end(set_it: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(lambda: None if done.done() else set_it())

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            raised = error
            end(lambda: done.set_exception(raised))
        else:
            end(lambda: done.set_result(result))

    threading.Thread(target=run, name="producerd-aside", daemon=True).start()
    return done
