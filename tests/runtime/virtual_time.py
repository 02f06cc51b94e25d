"""An event loop for stories that last for hours: its time passes when nothing is left to do, and then at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time begins at 0.  Give it to `asyncio.Runner` as its factory."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.now


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is scheduled any more"
        self._loop.now += timeout
        return super().select(0)


def live(story: Coroutine[Any, Any, T]) -> T:
    """Live through a story, in its own time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(story)
