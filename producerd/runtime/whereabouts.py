"""Where a stream is: its endpoint, its ARN and its creation, read for clients that keep records of what is stored.

A stream of the same name may be made again while the daemon knows it.  A client therefore gets no answer of a reading
that began before its question.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from producerd.core.failures import meaning_of
from producerd.core.sending.answers import RequestFailed
from producerd.errors import Code
from producerd.runtime.kinesis import Address, ControlPlane, StreamSummary

WHERE_SECONDS: Final = 5.0
"""How long a client waits for the answer."""
APART_SECONDS: Final = 0.5
"""The least time from one reading of a stream to the next, because each of a job's tasks asks."""
STREAMS_APART_SECONDS: Final = 0.1
"""The least time from one reading to the next of any stream: AWS allows an account 20 a second."""
QUIET_SECONDS: Final = 30.0
"""How long the daemon says at once that it does not know, after a client has waited while calls were throttled."""
Receive = Callable[["StreamSummary | None"], None]


class Pace:
    """When a node may make its next reading, and until when it makes none."""

    def __init__(self) -> None:
        self._next_at = 0.0
        self._quiet_until = 0.0

    @property
    def is_quiet(self) -> bool:
        return asyncio.get_running_loop().time() < self._quiet_until

    def take(self, at: float, before: float) -> float | None:
        """Take the next time for a reading, from ``at`` on, and return it, or None if there is none in time."""
        at = max(at, self._next_at)
        if at >= before:
            return None
        self._next_at = at + STREAMS_APART_SECONDS
        return at

    def fall_quiet(self) -> None:
        """Make no reading for a while, because the account's calls are used up."""
        self._quiet_until = asyncio.get_running_loop().time() + QUIET_SECONDS


class Whereabouts:
    """The questions where one stream is.  One reading at a time is on its way, and the next serves all that wait."""

    def __init__(self, address: Address, service: ControlPlane, tasks: asyncio.TaskGroup, pace: Pace) -> None:
        self._address = address
        self._service = service
        self._tasks = tasks
        self._reading: asyncio.Task[None] | None = None
        self._waiting: list[Receive] = []
        self._until = 0.0  # the end of the first one's wait
        self._next_at = 0.0  # when the next reading may begin
        self._pace = pace

    def ask(self, receive: Receive) -> None:
        """Call ``receive`` with the stream's summary, or with None if there is none in time."""
        if self._pace.is_quiet:
            receive(None)
            return
        if not self._waiting:
            self._until = asyncio.get_running_loop().time() + WHERE_SECONDS
        self._waiting.append(receive)
        if self._reading is None:
            self._reading = self._tasks.create_task(self._read())

    def close(self) -> None:
        """Cancel the reading, because the daemon forgets the stream."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            begins_at = self._pace.take(max(loop.time(), self._next_at), self._until)
            if begins_at is not None:
                await asyncio.sleep(begins_at - loop.time())
            waiting, self._waiting = self._waiting, []
            self._next_at = loop.time() + APART_SECONDS
            found = await self._summary() if begins_at is not None else None
            for receive in waiting:
                receive(found)
        self._reading = None

    async def _summary(self) -> StreamSummary | None:
        throttled = False
        try:
            async with asyncio.timeout_at(self._until):
                while True:
                    answer = await self._service.describe_stream_summary(self._address)
                    if not isinstance(answer, RequestFailed):
                        return answer if answer.created_milliseconds else None
                    if meaning_of(answer.code).code != Code.THROTTLED:
                        return None
                    throttled = True
                    await asyncio.sleep(random.uniform(0.2, 1))  # many nodes ask when a batch begins
        except TimeoutError:
            if throttled:
                self._pace.fall_quiet()
            return None
