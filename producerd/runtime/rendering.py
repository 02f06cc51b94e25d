"""Rendering: the metrics as text, one rendering for all callers that wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import Final

from producerd.runtime import metrics

RENDERING_SECONDS: Final = 1.0
"""Least time between the beginnings of two renderings of the metrics."""
SCRAPED_LATELY_SECONDS: Final = 120.0
"""Time for which a daemon whose metrics were read counts as one that Prometheus scrapes."""


class RenderedMetrics:
    """The last text of the metrics, usual or whole, and when its rendering began.  ``snapshot`` returns the numbers."""

    def __init__(self, snapshot: Callable[[], metrics.Scrape]) -> None:
        self._snapshot = snapshot
        self._rendering = asyncio.Lock()
        self._began_at = -inf  # the last rendering
        self._texts: dict[bool, tuple[float, bytes]] = {}  # by `everything`: when the rendering began, and its text

    @property
    def are_scraped(self) -> bool:
        """Whether the metrics were read recently."""
        return time.monotonic() < self._began_at + SCRAPED_LATELY_SECONDS

    async def text(self, *, everything: bool) -> bytes:
        """Return the metrics of a moment after the call: what a usual scrape has, or everything.

        Rendering the metrics of 64 streams takes 0.1 s of CPU.  Renderings therefore begin at least `RENDERING_SECONDS`
        apart, and all callers that wait for the same text share one.
        """
        asked_at = time.monotonic()
        async with self._rendering:
            began_at, text = self._texts.get(everything, (-inf, b""))
            if began_at < asked_at:
                await asyncio.sleep(max(0.0, self._began_at + RENDERING_SECONDS - time.monotonic()))
                began_at = self._began_at = time.monotonic()
                text = await asyncio.to_thread(metrics.text, self._snapshot(), everything=everything)
                self._texts[everything] = began_at, text
            return text
